"""What a run costs on one server and on many: arithmetic alone, explained in docs/plan.md.

With T tokens of b bytes, n servers, M shards (four a server, at most one a row), done in ⌈M/n⌉ rounds by k = M/⌈M/n⌉
servers at a time, and rates X (prefill, tokens/s a server), Y, Z (disk and network, bytes/s a node), S (bytes/s of
the storage that all share)::

    time = start-up + rounds * a shard's overhead + T / min(k X, k Y/b, k Z/b, S/b)
"""

from collections.abc import Iterable
from typing import Literal

import msgspec

from workbench.errors import UsageError
from workbench.extract.dataset import Dataset
from workbench.extract.job.estimate import LOOK_AT, estimate

Bound = Literal["prefill", "node's disk", "node's network", "shared storage", "too few rows", "start-up"]

START_S = 300.0
"""Default of a server's start, model and first requests included; all start at the same time."""
SHARD_S = 30.0
"""Default of what a shard costs beside its samples: a process, the data set opened, the probe, side files."""
SHARDS_A_SERVER = 4
MOST_SERVERS = 1024
STEPS = (1, 2, 4, 16, 64, 256, MOST_SERVERS)


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be made."""

    tokens: float
    bytes_per_token: int
    rows: int | None = None
    """Of the data set; None bounds nothing."""
    looked_at: int | None = None
    """Rows whose tokens were counted; None when the tokens were given."""
    tokens_low: float | None = None
    """Lower end of the estimate's 95 % interval."""

    @property
    def nbytes(self) -> float:
        """On disk; ids, masks and side files left out."""
        return self.tokens * self.bytes_per_token


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to do it with. None bounds nothing."""

    tok_s: float | None = None
    """Of one server, while it records."""
    disk_bytes_s: float | None = None
    """Of one node, where samples are written."""
    net_bytes_s: float | None = None
    """Of one node, where samples go to storage elsewhere."""
    shared_bytes_s: float | None = None
    """Of that storage, all nodes together."""

    def known(self) -> bool:
        """Whether a time follows from them."""
        return any(getattr(self, name) is not None for name in self.__struct_fields__)


class Overheads(msgspec.Struct, frozen=True, kw_only=True):
    """What is added to the work, in seconds."""

    start_s: float = START_S
    shard_s: float = SHARD_S
    shards_a_server: int = SHARDS_A_SERVER


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """One number of servers."""

    servers: int
    shards: int
    at_work: float
    """Servers that have a shard, on average over the rounds."""
    tok_s: float
    nbytes_s: float
    work_s: float
    fixed_s: float
    """Start-up and shards' overhead."""
    total_s: float
    bound: Bound
    """What would have to be faster."""
    server_hours: float
    efficiency: float
    """Time of one server over that of n, divided by n."""


def cost(volume: Volume, rates: Rates, overheads: Overheads, servers: int) -> Cost:
    """The cost on so many servers.

    Raises:
        ValueError: no rate is known.
    """
    shards, at_work, rounds = _division(volume.rows, overheads.shards_a_server, servers)
    speeds = _speeds(volume, rates, at_work)
    bound = min(speeds, key=lambda name: speeds[name])
    tok_s = speeds[bound]
    work_s = volume.tokens / tok_s
    fixed_s = overheads.start_s + rounds * overheads.shard_s
    if shards < servers and bound != "shared storage":
        bound = "too few rows"  # some never have a shard; what follows is of those that have
    elif fixed_s > work_s:
        bound = "start-up"
    elif at_work < servers and bound != "shared storage":
        bound = "too few rows"
    total = work_s + fixed_s
    return Cost(
        servers=servers,
        shards=shards,
        at_work=at_work,
        tok_s=tok_s,
        nbytes_s=tok_s * volume.bytes_per_token,
        work_s=work_s,
        fixed_s=fixed_s,
        total_s=total,
        bound=bound,
        server_hours=servers * total / 3600,
        efficiency=1.0 if servers == 1 else cost(volume, rates, overheads, 1).total_s / total / servers,
    )


def _division(rows: int | None, shards_a_server: int, servers: int) -> tuple[int, float, int]:
    """Shards, servers at work, rounds."""
    wanted = shards_a_server * servers
    shards = max(1, wanted if rows is None else min(wanted, rows))
    rounds = -(-shards // servers)
    return shards, shards / rounds, rounds


def _speeds(volume: Volume, rates: Rates, at_work: float) -> dict[Bound, float]:
    """Tokens a second that each bound allows all servers together; of equal ones the first counts."""
    size = volume.bytes_per_token
    given: tuple[tuple[Bound, float | None, float], ...] = (
        ("prefill", rates.tok_s, at_work),
        ("node's disk", rates.disk_bytes_s, at_work / size),
        ("node's network", rates.net_bytes_s, at_work / size),
        ("shared storage", rates.shared_bytes_s, 1 / size),
    )
    return {name: rate * factor for name, rate, factor in given if rate is not None}


def numbers(servers: int | None) -> list[int]:
    """The numbers of servers in a plan: powers of two up to `MOST_SERVERS`, and the one that is asked about."""
    return sorted({*STEPS, *([servers] if servers is not None else [])})


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    volume: Volume
    nbytes: float
    rates: Rates
    overheads: Overheads
    gpus_per_server: int
    costs: tuple[Cost, ...]
    """By servers; none while no rate is known."""
    enough_servers: float | None
    """At work: from so many on the shared storage is the bound. None where it is not known."""
    schema: int = 1


def make_plan(volume: Volume, rates: Rates, overheads: Overheads, servers: Iterable[int], gpus: int) -> Plan:
    """The plan for these numbers of servers."""
    return Plan(
        volume=volume,
        nbytes=volume.nbytes,
        rates=rates,
        overheads=overheads,
        gpus_per_server=gpus,
        costs=tuple(cost(volume, rates, overheads, number) for number in servers) if rates.known() else (),
        enough_servers=enough(volume, rates),
    )


def enough(volume: Volume, rates: Rates) -> float | None:
    """Servers from which on the shared storage is the bound; None without one, or without a bound a server."""
    alone = _speeds(volume, msgspec.structs.replace(rates, shared_bytes_s=None), 1.0)
    if rates.shared_bytes_s is None or not alone:
        return None
    return rates.shared_bytes_s / volume.bytes_per_token / min(alone.values())


def counted(data: Dataset, bytes_per_token: int, *, every: bool) -> Volume:
    """A data set's tokens: of `LOOK_AT` rows at a stride, as a job estimates them, or of every row.

    Raises:
        CheckFailed: too many rows are refused.
        UsageError: none is a sample.
    """
    if every and data.rows > LOOK_AT:
        for _ in data.samples(range(data.rows)):
            pass
        data.tally.check()
        tokens = low = float(data.tally.tokens)
        looked_at = data.rows
    else:
        guess = estimate(data, range(data.rows))
        tokens, low, looked_at = guess.tokens, guess.tokens_low, guess.looked_at
    if not tokens:
        raise UsageError(f"none of {data.rows} rows is a sample", "hsbench extract DATA --preview 3 says why")
    return Volume(tokens=tokens, bytes_per_token=bytes_per_token, rows=data.rows, looked_at=looked_at, tokens_low=low)
