"""Points of the curves that a run is drawn as."""

import math
from collections.abc import Sequence

from bench.load.metrics import tokens_between
from bench.load.records import RequestRecord

Curve = list[tuple[float, float]]


def rate_over_time(records: Sequence[RequestRecord], steps: int = 60) -> Curve:
    """Tokens a second in `steps` equal stretches of a load, at their middles."""
    ends = [record.start + record.times[-1] for record in records if record.times]
    if not ends or max(ends) <= 0:
        return []
    width = max(ends) / steps
    return [((n + 0.5) * width, tokens_between(records, n * width, (n + 1) * width) / width) for n in range(steps)]


def share_within(values: Sequence[float], most: int = 200) -> Curve:
    """The percentage of values that are at most so large (the empirical distribution), at up to `most` of them."""
    ordered = sorted(values)
    step = max(1, math.ceil(len(ordered) / most))
    return [(ordered[at], 100 * (at + 1) / len(ordered)) for at in range(step - 1, len(ordered), step)]
