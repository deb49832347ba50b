"""What one run asks of a server: its workloads, limits and manners. Times in seconds, lengths in tokens."""

import itertools
import math
from collections.abc import Sequence
from typing import Literal, get_args

import msgspec

from workbench.errors import UsageError

Api = Literal["native", "openai", "openai-chat"]
"""SGLang's `/generate`, `/v1/completions` or `/v1/chat/completions`."""
APIS = get_args(Api)
LIMITS = ("ttft", "tpot", "itl", "e2e")


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One point of the grid. Either `concurrency` requests are always in flight, or they arrive at `rate`."""

    input_len: int | None
    """Of synthetic prompts; None when the prompts come from a file."""
    output_len: int
    concurrency: int | None = 1
    rate: float | None = None
    """Requests a second, with exponential gaps (a Poisson process)."""
    requests: int | None = None
    seconds: float | None = None
    """Requests are sent for so long, and those in flight then are waited for."""
    ignore_eos: bool = True

    @property
    def label(self) -> str:
        """Such as `128→32 c=8`, in ASCII."""
        load = f"c={self.concurrency}" if self.rate is None else f"rate={self.rate:g}/s"
        return f"{'data' if self.input_len is None else self.input_len}->{self.output_len} {load}"


class GoodputLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a request must keep to count as good; None is no limit."""

    ttft: float | None = None
    tpot: float | None = None
    itl: float | None = None
    e2e: float | None = None


class WarmUp(msgspec.Struct, frozen=True, kw_only=True):
    """When the server counts as warm: the rates of the last `windows` rounds lie within `within` of each other."""

    windows: int = 3
    within: float = 0.02
    most_rounds: int = 10
    most_seconds: float = 60.0


class BenchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One run: its target and everything that it does there."""

    url: str
    api: Api = "native"
    workloads: tuple[Workload, ...]
    model: str | None = None
    """The `model` of OpenAI requests; None asks the server."""
    data: str | None = None
    seed: int
    token_range: tuple[int, int] = (100, 8000)
    """Synthetic prompts take ids from the first up to, not including, the second."""
    limits: GoodputLimits = GoodputLimits()
    warm_up: WarmUp | None = WarmUp()
    timeout: float = 600.0
    """Seconds without a byte after which a request is given up."""


def grid(
    inputs: Sequence[int | None],
    outputs: Sequence[int],
    concurrency: Sequence[int] = (1,),
    rate: float | None = None,
    *,
    requests: int | None = None,
    seconds: float | None = None,
    ignore_eos: bool = True,
) -> tuple[Workload, ...]:
    """Every combination; without `requests` or `seconds`, four requests for each in flight and at least ten.

    Raises:
        UsageError: both `requests` and `seconds` are given.
    """
    if requests is not None and seconds is not None:
        raise UsageError("a run ends after --requests or after --seconds", "give one of them")
    points: list[Workload] = []
    loads: Sequence[int | None] = [None] if rate is not None else concurrency
    for length, output, load in itertools.product(inputs, outputs, loads):
        count = requests
        if requests is None and seconds is None:
            count = max(10, 4 * load) if load is not None else max(10, math.ceil(10 * (rate or 1)))
        points.append(
            Workload(
                input_len=length,
                output_len=output,
                concurrency=load,
                rate=rate,
                requests=count,
                seconds=seconds,
                ignore_eos=ignore_eos,
            )
        )
    return tuple(points)


def parse_numbers(text: str, what: str) -> tuple[int, ...]:
    """`128,512` as numbers of 1 or more.

    Raises:
        UsageError: anything else.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and part.isascii() and 0 < len(part) < 10 and int(part) > 0 for part in parts):
        raise UsageError(f"{what} {text!r} is not a list of whole numbers from 1", "such as 128,512")
    return tuple(dict.fromkeys(int(part) for part in parts))


def parse_limits(text: str | None) -> GoodputLimits:
    """`ttft=0.5,itl=0.05`, in seconds.

    Raises:
        UsageError: an unknown name, or what is no positive number.
    """
    found: dict[str, float] = {}
    for part in text.split(",") if text else ():
        name, _, value = part.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            found[name.strip()] = math.nan
        if name.strip() not in LIMITS or not 0 < found[name.strip()] < math.inf:
            raise UsageError(f"{part!r} is not a limit", f"one of {', '.join(LIMITS)} in seconds, such as ttft=0.5")
    return GoodputLimits(**found)


def parse_percent(text: str) -> float:
    """`3%` or `3` as 0.03.

    Raises:
        UsageError: it is not a percentage from 0 to 100.
    """
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = math.nan
    if not 0 <= value <= 100:
        raise UsageError(f"{text!r} is not a percentage", "such as 3%")
    return value / 100
