"""From speeds of server starts to one word a variant: faster, slower, same, undecided.

The unit is a server start. In each block the speed of a variant is divided by the speed of the baseline of the same
block; the logarithms of these ratios, one a block, are the sample. What drifts from block to block cancels in the
ratio. What drifts inside a block is not subtracted: the order is random, so it is noise that the interval holds. (A
baseline interpolated between two neighbouring ones would be shared by two blocks, which makes their ratios alike and
the interval too narrow. The baselines that open and close a sweep only show the drift.)

With n ratios of mean m and standard deviation s, the interval is m ± t(0.95, n-1) · s / √n: each side errs in 5 % of
cases, so it is the 90 % interval. In words, where the margin is what a user cares about (2 % unless told otherwise):

- `faster`: the mean is at least the margin above the baseline, and Holm's procedure over all variants rejects that it
  is not above at all. Holm (Scand. J. Statist. 6, 1979) keeps the chance of one false `faster` in a sweep at 5 %.
- `slower`: likewise on the other side.
- `same`: the whole interval lies within the margin (two one-sided tests: Schuirmann,
  J. Pharmacokin. Biopharm. 15, 1987).
- `undecided`: none of these.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from bench.sweep.student import quantile, upper_tail

Word = Literal["faster", "slower", "same", "undecided"]
ALPHA = 0.05
MARGIN = 0.02
MOST_BLOCKS = 200
"""Above so many blocks a difference is not worth looking for."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What the starts of a variant say about it. Ratios are to the baseline: 1.05 is 5 % faster."""

    word: Word
    blocks: int
    """Pairs that the decision rests on."""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p_faster: float | None = None
    """After Holm's adjustment."""
    p_slower: float | None = None
    more_blocks: int | None = None
    """So many blocks more would decide if mean and scatter stayed as they are; None when decided, or never."""


class Sample(msgspec.Struct, frozen=True):
    """The log ratios of a variant."""

    count: int
    mean: float
    deviation: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> "Sample":
        """From ratios, of which there may be too few for a deviation."""
        logs = [math.log(ratio) for ratio in ratios]
        mean = statistics.fmean(logs) if logs else 0.0
        # Rounding alone parts the logarithms of equal ratios by some 1e-16; no clock is that good.
        deviation = max(statistics.stdev(logs), 1e-9) if len(logs) > 1 else math.inf
        return cls(len(logs), mean, deviation)

    def half_width(self, count: int | None = None) -> float:
        """Of the interval, with so many ratios."""
        n = count or self.count
        if n < 2 or math.isinf(self.deviation):
            return math.inf
        return quantile(1.0 - ALPHA, n - 1) * self.deviation / math.sqrt(n)

    def p_above(self) -> float:
        """The chance of a mean at least this high where the variant is no faster."""
        if self.count < 2:
            return 1.0
        return upper_tail(self.mean / (self.deviation / math.sqrt(self.count)), self.count - 1)


def holm(values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values: rejecting those below a level keeps the chance of any false rejection below it."""
    adjusted: dict[str, float] = {}
    running = 0.0
    for rank, (name, value) in enumerate(sorted(values.items(), key=lambda item: item[1])):
        running = max(running, min(1.0, (len(values) - rank) * value))
        adjusted[name] = running
    return adjusted


def pair(variant: Mapping[int, float], baseline: Mapping[int, float]) -> list[float]:
    """The ratios of those blocks that have both; keys are block numbers, values are speeds."""
    return [variant[block] / baseline[block] for block in sorted(variant.keys() & baseline.keys())]


def decide(ratios: Mapping[str, Sequence[float]], margin: float = MARGIN) -> dict[str, Decision]:
    """A decision for each variant. All that are decided together, and no others, are one family for Holm.

    Args:
        ratios: For each variant its speed over the baseline's, a number a block.
        margin: The least difference that matters, as a share.
    """
    samples = {name: Sample.of(values) for name, values in ratios.items()}
    above = holm({name: sample.p_above() for name, sample in samples.items()})
    below = holm({name: 1.0 - sample.p_above() if sample.count > 1 else 1.0 for name, sample in samples.items()})
    return {name: _decision(sample, above[name], below[name], margin) for name, sample in samples.items()}


def _decision(sample: Sample, p_faster: float, p_slower: float, margin: float) -> Decision:
    if sample.count < 2:
        ratio = math.exp(sample.mean) if sample.count else None
        return Decision(word="undecided", blocks=sample.count, ratio=ratio, more_blocks=2 - sample.count)
    word = _word(sample, p_faster, p_slower, margin)
    half = sample.half_width()
    return Decision(
        word=word,
        blocks=sample.count,
        ratio=math.exp(sample.mean),
        low=math.exp(sample.mean - half),
        high=math.exp(sample.mean + half),
        p_faster=p_faster,
        p_slower=p_slower,
        more_blocks=_more(sample, p_faster, p_slower, margin) if word == "undecided" else None,
    )


def _word(sample: Sample, p_faster: float, p_slower: float, margin: float) -> Word:
    up, down = math.log1p(margin), math.log1p(-margin)
    half = sample.half_width()
    if down < sample.mean - half and sample.mean + half < up:
        return "same"
    if sample.mean >= up and p_faster <= ALPHA:
        return "faster"
    if sample.mean <= down and p_slower <= ALPHA:
        return "slower"
    return "undecided"


def _more(sample: Sample, p_faster: float, p_slower: float, margin: float) -> int | None:
    """The blocks to add until the present mean and scatter would decide."""
    up, down = math.log1p(margin), math.log1p(-margin)
    outside = not down < sample.mean < up
    adjusted, raw = (p_faster, sample.p_above()) if sample.mean > 0 else (p_slower, 1.0 - sample.p_above())
    factor = max(1.0, round(adjusted / raw)) if raw > 0 else 1.0
    for count in range(sample.count + 1, sample.count + MOST_BLOCKS + 1):
        if outside:
            t = abs(sample.mean) / (sample.deviation / math.sqrt(count))
            decided = upper_tail(t, count - 1) * factor <= ALPHA
        else:
            half = sample.half_width(count)
            decided = down < sample.mean - half and sample.mean + half < up
        if decided:
            return count - sample.count
    return None


def winners(ratios: Mapping[str, Sequence[float]], most: int = 3, margin: float = MARGIN) -> tuple[str, ...]:
    """The variants to start afresh: the fastest, if their mean reaches the margin.

    This is no decision, and no level is kept: a variant that merely looks fast costs some starts. Whether it is faster
    is decided by its fresh starts alone, since the best of many is always partly the luckiest.
    """
    samples = {name: Sample.of(values) for name, values in ratios.items() if len(values) > 1}
    able = [name for name, sample in samples.items() if sample.mean >= math.log1p(margin)]
    return tuple(sorted(sorted(able), key=lambda name: -samples[name].mean)[:most])


def drift(speeds: Sequence[float]) -> float | None:
    """By what share the last start of the baseline was faster than the first."""
    return speeds[-1] / speeds[0] - 1.0 if len(speeds) > 1 else None
