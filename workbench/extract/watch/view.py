"""What watching shows of a run, in one record, whoever made the run."""

from typing import Literal

import msgspec

from workbench.extract.job.events import Slow, Told

NOW_S = 30.0
"""Seconds that "now" means in a rate."""
MESSAGES = 5
"""Warnings and errors shown; the run's log has all."""
HISTORY = 240
"""Points of the rate's history."""
OVER: frozenset[str] = frozenset({"done", "stopped", "failed", "killed"})
"""States after which nothing more comes."""

ViewState = Literal[
    "preflight",
    "running",
    "paused",
    "restarting",
    "finishing",
    "done",
    "stopped",
    "failed",
    "killed",
    "waiting",
    "still",
]
"""A job's own states, and: `killed`, its process is gone without a word; of a run without a job: `waiting` for its
first file, `still` when no file came for long."""


class ShardRow(msgspec.Struct, frozen=True, kw_only=True):
    """One shard of a run of several. None is what is not known."""

    shard: str
    """Its folder's name."""
    state: str
    """One of `ViewState`."""
    server: str = ""
    node: str = ""
    """Where it is, or was last."""
    verdict: str = ""
    """Of its server, where a cluster's driver tells one."""
    rows: int | None = None
    done: int = 0
    """Rows that need nothing more."""
    tok_s: float | None = None
    """Now; of a shard that is over, on average."""
    of_median: float | None = None
    """`tok_s` as a share of the median of the shards at work."""
    in_flight: int | None = None
    quiet_s: float | None = None
    """As in `RunView`."""
    waiting_bytes: int | None = None
    upload_bytes: int | None = None
    restarts: int = 0
    waits_for: str = ""
    """What holds it up: see `watch.together.MEANS`."""
    why: str = ""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a run. None is what cannot be known; rates are per second, pauses left out where they are known."""

    kind: Literal["own", "foreign", "shards"]
    """`shards` are several jobs without one that tells of all."""
    folder: str
    time: float
    state: ViewState
    why: str = ""
    next_step: str = ""
    rows: int | None = None
    written: int = 0
    refused: int = 0
    quarantined: int = 0
    tokens: int | None = None
    tokens_expected: float | None = None
    nbytes: int | None = None
    samples_s_now: float | None = None
    samples_s_avg: float | None = None
    tok_s_now: float | None = None
    """Over the last `NOW_S` seconds of work."""
    tok_s_avg: float | None = None
    """Of a job: since its last start."""
    bytes_s_now: float | None = None
    bytes_s_avg: float | None = None
    plain_tok_s: float | None = None
    """Prefill without recording on the same server."""
    plain_share: float | None = None
    """`tok_s_avg` as a share of it."""
    eta_s: float | None = None
    """By tokens where they are known, else by samples; at the average rate."""
    in_flight: int | None = None
    dump_dir: str = ""
    dump_n: int | None = None
    """Highest N of the `req_N` that came."""
    waiting_bytes: int | None = None
    high_water_bytes: int | None = None
    upload_bytes: int | None = None
    """Of finished samples that wait for the upload, where the data set goes to a URL."""
    free_bytes: int | None = None
    quiet_s: float | None = None
    """Seconds since a row was finished, or since it runs; None where it is not running."""
    restarts: int = 0
    retries: int = 0
    messages: tuple[Told, ...] = ()
    """The last warnings and errors."""
    slowest: tuple[Slow, ...] = ()
    history: tuple[tuple[float, float], ...] = ()
    """(time, rate) in `history_unit`, oldest first."""
    history_unit: Literal["tok/s", "samples/s"] = "tok/s"
    estimated: tuple[str, ...] = ()
    """Names of the fields above that are estimates."""
    at_least: tuple[str, ...] = ()
    """Names of the fields above that are lower bounds."""
    host: str = ""
    """The machine that the job runs on, or ran."""
    shards: tuple[ShardRow, ...] = ()
    """Of a run of several, those that need a person first."""
    slowest_shard: str = ""
    """Which of those at work is behind, and why, in one line."""
    schema: int = 1

    @property
    def over(self) -> bool:
        """Whether nothing more comes."""
        return self.state in OVER

    @property
    def share(self) -> float | None:
        """Of the rows that need nothing more, 0 to 1; None when their number is unknown."""
        if not self.rows:
            return None
        return min(1.0, (self.written + self.refused + self.quarantined) / self.rows)
