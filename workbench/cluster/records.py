"""What driver and hands say to each other: small records, as JSON lines and as plain dicts through Ray.

No tensor, token or file content is in any of them; `LARGEST` is refused, far below what Ray would put into its object
store instead of the message itself (100 KiB).
"""

from typing import Any, Literal, Protocol

import msgspec

from workbench.errors import HsbenchError
from workbench.exitcodes import ExitCode
from workbench.extract.job.events import Level, State
from workbench.extract.job.settings import ExtractSettings

LARGEST = 64 << 10
"""Bytes of one message, as JSON."""


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """All that a hand needs to know: which run, which place in it, and how long to go on without its driver."""

    settings: ExtractSettings
    """Of the whole run; `out` is the folder that holds the shards, of one at a URL the driver's own."""
    run: str
    """Short id of the run."""
    slot: int
    """Which of the run's servers this is."""
    shards: int
    token: str
    """Content of the file by which a hand knows that it sees the driver's folder."""
    lease_s: float
    command: str = ""
    staging: str | None = None
    """Of a run at a URL: where its shards' staging folders are on every node; None means the hand's state folder."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a hand is to do: `shard` N, `stop` the shard in order, `end`, or go on (`beat`); `look` is its own."""

    do: Literal["shard", "stop", "end", "beat", "look"] = "beat"
    shard: int = -1
    paused: bool | None = None
    """Whether the hand's job is to pause, where the driver does not see its folder; None says nothing about it."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The hand is there and may be given shards."""

    node: str
    server: str
    """Name of the server that it will have, unique in the cluster."""
    pid: int


class Unfit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Nothing can be done from where this hand is."""

    node: str
    reason: str


class At(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Where a shard is; a whole picture."""

    shard: int
    state: State
    why: str = ""
    written: int = 0
    refused: int = 0
    quarantined: int = 0
    tokens: int = 0
    tokens_expected: float = 0.0
    nbytes: int = 0
    in_flight: int = 0
    waiting_bytes: int = 0
    high_water_bytes: int = 0
    free_bytes: int = 0
    restarts: int = 0
    retries: int = 0
    plain_tok_s: float | None = None
    tok_s: float | None = None
    """Of the last half minute of work."""


class Said(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Something that a shard's job told, worth passing on."""

    shard: int
    text: str
    level: Level = "note"


class Over(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The hand has nothing to do with this shard any more. `busy`: somebody else still writes there."""

    shard: int
    outcome: Literal["done", "stopped", "failed", "busy"]
    code: int = 0
    message: str = ""
    next_step: str = ""


News = Hello | Unfit | At | Said | Over


class Gone(msgspec.Struct, frozen=True):
    """A hand that answers no more."""

    reason: str


class Crew(Protocol):
    """The machines, as the driver sees them. One call a slot is under way at any time after `hire`."""

    def hire(self, slot: int, errand: Errand) -> None:
        """Get a hand for this slot, as soon as there is room for one; its first reply says that it is there."""

    def send(self, slot: int, order: Order) -> None:
        """Give an order, and ask for news."""

    def wait(self, seconds: float) -> list[tuple[int, "list[News] | Gone"]]:
        """The replies that came, at most one a slot; none if none came in this time."""

    def dismiss(self, slot: int) -> None:
        """Be done with a hand; what it runs ends."""

    def close(self) -> None:
        """Be done with all."""


class ShardFailed(HsbenchError):
    """A shard failed for a reason that would repeat."""

    def __init__(self, message: str, next_step: str, code: int) -> None:
        super().__init__(message, next_step)
        self.exit_code = ExitCode(code) if code in list(ExitCode) else ExitCode.INTERNAL


def encode(value: msgspec.Struct) -> dict[str, Any]:
    """For Ray: plain values."""
    found = msgspec.to_builtins(value)
    assert isinstance(found, dict)
    return found


def decode_news(value: Any) -> News:
    """A message of a hand."""
    found: News = msgspec.convert(value, type=News)
    return found
