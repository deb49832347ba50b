"""What a job tells, as records: the same ones go to `events.jsonl`, to the terminal and to whatever watches.

`Progress` is a whole picture, so a reader needs only the last one; the others are told once.
"""

from typing import Literal

import msgspec

State = Literal["preflight", "running", "paused", "restarting", "finishing", "done", "stopped", "failed"]
"""`paused` waits for disk, dump folder or a person; `restarting` for a server. The last three are ends."""
Level = Literal["note", "warning", "error"]
ENDS: frozenset[str] = frozenset({"done", "stopped", "failed"})


class Preflight(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the job found before its first sample, in numbers."""

    time: float
    rows: int
    """Of this shard."""
    done: int
    """Rows that need nothing more."""
    tokens: float
    """Of the rows left, estimated from `looked_at` of them unless that is all."""
    tokens_low: float
    """Lower end of the estimate's 95 % interval."""
    looked_at: int
    bytes_per_token: int
    bytes_needed: float
    free_bytes: int
    """Where the data set goes."""
    min_free_bytes: int
    dump_free_bytes: int
    high_water_bytes: int
    """Bytes that may wait in the dump folder."""
    longest: int
    """Tokens of the longest row looked at."""
    after_block: tuple[int, ...]
    plain_tok_s: float | None = None
    """Prefill rate of the same server and rows without recording; None when it was not measured."""


class Slow(msgspec.Struct, frozen=True):
    """A sample that took long, from being sent to being in the index."""

    index: int
    tokens: int
    seconds: float


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Where the job is. Counts are of the data set's rows, `*_here` of this start of the job only."""

    time: float
    state: State
    why: str = ""
    """What it waits for, when it does."""
    rows: int = 0
    written: int = 0
    refused: int = 0
    quarantined: int = 0
    tokens: int = 0
    """Of the written samples."""
    tokens_expected: float = 0.0
    """Of all rows of this shard, once they are done."""
    nbytes: int = 0
    """Of the written samples' files."""
    samples_here: int = 0
    tokens_here: int = 0
    bytes_here: int = 0
    seconds_here: float = 0.0
    """Since the first sample was sent, pauses and restarts left out."""
    in_flight: int = 0
    """Requests that the server has."""
    waiting_bytes: int = 0
    """In the dump folder, or on the way there."""
    high_water_bytes: int = 0
    upload_bytes: int = 0
    """Of finished samples that wait in the staging folder for the data set's URL."""
    dump_n: int = -1
    """Highest N of the `req_N` that came."""
    free_bytes: int = 0
    restarts: int = 0
    retries: int = 0
    plain_tok_s: float | None = None
    slowest: tuple[Slow, ...] = ()


class Told(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Something worth a line: a restart, a pause, a bad sample."""

    time: float
    text: str
    level: Level = "note"
    index: int | None = None
    """The row that it is about."""


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The job ended by itself; a killed one leaves none of these."""

    time: float
    state: Literal["done", "stopped", "failed"]
    message: str
    next_step: str = ""
    exit_code: int = 0
    start: int = 0
    """Which start of the job it was; 0 in what an older release wrote."""


JobEvent = Preflight | Progress | Told | Ended
