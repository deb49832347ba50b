"""Parameter types that several commands share."""

import math
from typing import Any

import click

MOST_GIB = 1e9
LONGEST_S = 1e7
"""About four months; longer waits overflow what the system's clocks take."""


class Gibibytes(click.FloatRange):
    """A finite number of GiB."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, or a usage error."""
        size = float(super().convert(value, param, ctx))
        if not math.isfinite(size) or size > MOST_GIB:
            self.fail(f"{value!r} is not a number of GiB up to {MOST_GIB:.0f}", param, ctx)
        return size


class Seconds(click.FloatRange):
    """A finite number of seconds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, or a usage error: `nan` slips through every range check, `inf` through an open one."""
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds) or seconds > LONGEST_S:
            self.fail(f"{value!r} is not a number of seconds up to {LONGEST_S:.0f}", param, ctx)
        return seconds
