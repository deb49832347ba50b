"""Which server starts a sweep makes, and in which order.

Randomised complete blocks: a block starts the baseline and every variant once, in an order drawn anew for each block.
Two more starts of the baseline open and close the sweep. They show how far the machine drifted, the opening one is
the reference of the numeric gate and takes the cold start (kernel compilation), and neither is part of a comparison.

The plan of a stage is a pure function of its variants, the number of blocks and the seed, so progress is nothing but
the set of starts that are finished.
"""

import random
from collections.abc import Sequence
from typing import Literal

import msgspec

from bench.sweep.variants import BASELINE
from workbench.errors import UsageError

Stage = Literal["open", "screen", "confirm", "close", "debug"]


class Start(msgspec.Struct, frozen=True, order=True):
    """One start of a server in a plan."""

    stage: Stage
    block: int
    """From 1; 0 outside of blocks."""
    position: int
    """In its block, from 1."""
    variant: str

    @property
    def key(self) -> str:
        """Names the start within its sweep, as `screen-2/proto-ll`."""
        block = f"-{self.block}" if self.block else ""
        return f"{self.stage}{block}/{self.variant}"


def opening() -> Start:
    """The baseline before everything else."""
    return Start("open", 0, 1, BASELINE)


def closing() -> Start:
    """The baseline after everything that is timed."""
    return Start("close", 0, 1, BASELINE)


def blocks(stage: Stage, names: Sequence[str], count: int, seed: int) -> tuple[Start, ...]:
    """The starts of one stage, in order.

    Args:
        stage: `screen`, or `confirm` for the winners' fresh starts.
        names: The variants without the baseline. Their order does not matter.
        count: Number of blocks.
        seed: Of the orders. The stages of one sweep draw different orders from the same seed.
    """
    if count < 2:
        raise UsageError(f"--blocks {count}: an interval needs at least two blocks", "give 3 or more")
    draw = random.Random(f"{stage} {seed}")
    starts = []
    for block in range(1, count + 1):
        order = [BASELINE, *sorted(names)]
        draw.shuffle(order)
        starts += [Start(stage, block, position, name) for position, name in enumerate(order, 1)]
    return tuple(starts)


def screening(names: Sequence[str], count: int, seed: int) -> tuple[Start, ...]:
    """The opening start and the blocks of the first stage."""
    return (opening(), *blocks("screen", names, count, seed))


def confirming(winners: Sequence[str], count: int, seed: int) -> tuple[Start, ...]:
    """The winners' fresh starts, if there are winners, and the closing start."""
    fresh = blocks("confirm", winners, count, seed) if winners else ()
    return (*fresh, closing())


def debugging(names: Sequence[str]) -> tuple[Start, ...]:
    """One start each with NCCL's log on, which is never timed."""
    return tuple(Start("debug", 0, position, name) for position, name in enumerate([BASELINE, *sorted(names)], 1))
