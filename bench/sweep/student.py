"""Student's t distribution from the standard library alone.

The distribution is the regularised incomplete beta function, I_x(df/2, 1/2) with x = df / (df + t²): Abramowitz and
Stegun, Handbook of Mathematical Functions, 26.7.1. The function itself is their continued fraction 26.5.8, evaluated
by Lentz's method as modified by Thompson and Barnett (J. Comput. Phys. 64, 1986). The quantile is found by bisection.
"""

import functools
import math

_TINY = 1e-300
_PRECISION = 1e-14
_TERMS = 500


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function; it converges fast for x < (a + 1) / (a + b + 2)."""
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1.0) or _TINY)
    value = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / (1.0 + term * d or _TINY)
            c = 1.0 + term / c or _TINY
            value *= c * d
        if abs(c * d - 1.0) < _PRECISION:
            break
    return value


def _beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    log = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    if x < (a + 1.0) / (a + b + 2.0):
        return math.exp(log) * _fraction(a, b, x) / a
    return 1.0 - math.exp(log) * _fraction(b, a, 1.0 - x) / b


def upper_tail(t: float, df: int) -> float:
    """The probability that a t of `df` degrees of freedom is above `t`."""
    half = 0.5 * _beta(df / 2, 0.5, df / (df + t * t))
    return half if t >= 0 else 1.0 - half


@functools.cache
def quantile(probability: float, df: int) -> float:
    """The t below which lies this share, for 0.5 <= probability < 1."""
    low, high = 0.0, 1.0
    while upper_tail(high, df) > 1.0 - probability:
        high *= 2.0
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if upper_tail(middle, df) > 1.0 - probability else (low, middle)
    return (low + high) / 2
