"""Shards of one run side by side and summed: pure, from a look at each of them."""

import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from workbench.extract.record import RunRecord, differences
from workbench.extract.shards import parse, shard_name
from workbench.extract.watch.view import MESSAGES, NOW_S, RunView, ShardRow, ViewState
from workbench.render.text import duration

FULL = 0.8
"""Of what may wait in a dump folder: then the server waits for the writers."""
LISTED = 4096
"""Shards that are not begun have a row up to this one."""
SLOW = 0.8
"""Of the median rate: a shard below is called slow."""
AT_WORK: tuple[ViewState, ...] = ("running", "restarting", "paused", "finishing", "preflight")
"""States of a shard that has a job, the ones that name the whole's state first."""


class Told(msgspec.Struct, frozen=True):
    """A line of `cluster.jsonl`: where a server is. Keys that are not known are passed over."""

    time: float
    server: str
    node: str = ""
    shard: str | int | None = None
    state: str = ""
    verdict: str = ""
    samples: int | None = None
    tok_s: float | None = None
    waiting_bytes: int | None = None
    note: str = ""


def shard_rows(views: dict[str, RunView], of: int, rows: int | None, cluster: dict[str, Told]) -> tuple[ShardRow, ...]:
    """A row for each shard, at work ones first, then by their numbers.

    Args:
        views: Looks at the shards that lie here, by name.
        of: How many there are to be.
        rows: Of the data set, if they are known.
        cluster: What is told of each shard's server; all there is of shards that lie elsewhere.
    """
    found = [_row(name, view, cluster.get(name)) for name, view in views.items()]
    found += [_told_row(name, told) for name, told in cluster.items() if name not in views and parse(name)]
    found = compared(found)
    known = {row.shard for row in found}
    waiting = [
        ShardRow(shard=name, state="waiting", rows=len(range(number, rows, of)) if rows is not None else None)
        for number in range(min(of, rows or 0, LISTED))
        if (name := shard_name(number, of)) not in known
    ]
    return tuple(sorted([*found, *waiting], key=lambda row: (_rank(row.state), parse(row.shard) or (0, 0))))


def _rank(state: str) -> int:
    return 0 if state in ("failed", "killed") else 1 if state in AT_WORK else 3 if state == "done" else 2


def compared(rows: Sequence[ShardRow]) -> list[ShardRow]:
    """The rows with the rate of each shard at work as a share of the median of those."""
    rates = [row.tok_s for row in rows if row.tok_s and row.state in AT_WORK]
    median = statistics.median(rates) if rates else None
    return [
        msgspec.structs.replace(row, of_median=row.tok_s / median)
        if median and row.tok_s is not None and row.state in AT_WORK
        else row
        for row in rows
    ]


def _row(name: str, view: RunView, told: Told | None) -> ShardRow:
    return ShardRow(
        shard=name,
        state=view.state,
        server=told.server if told is not None else "",
        node=told.node if told is not None else view.host,
        verdict=told.verdict if told is not None else "",
        rows=view.rows,
        done=view.written + view.refused + view.quarantined,
        tok_s=view.tok_s_now if view.tok_s_now is not None else view.tok_s_avg if view.over else None,
        in_flight=view.in_flight,
        quiet_s=view.quiet_s,
        waiting_bytes=view.waiting_bytes,
        upload_bytes=view.upload_bytes,
        restarts=view.restarts,
        waits_for=waits_for(view),
        why=view.why,
    )


def _told_row(name: str, told: Told) -> ShardRow:
    """A shard that only its server's line tells of."""
    working = told.state in AT_WORK and told.state != "preflight"
    waits = _pause(told.note) if told.state == "paused" else "server" if told.state == "restarting" else ""
    return ShardRow(
        shard=name,
        state=told.state,
        server=told.server,
        node=told.node,
        verdict=told.verdict,
        done=told.samples or 0,
        tok_s=told.tok_s if working else None,
        waiting_bytes=told.waiting_bytes,
        waits_for=waits,
        why=told.note,
    )


def waits_for(view: RunView) -> str:
    """What a shard at work is held up by, one of `MEANS`; empty for one that is not at work."""
    if view.state not in AT_WORK or view.state == "preflight":
        return ""
    if "told nothing" in view.why:
        return "stalled"
    if view.state == "paused":
        return _pause(view.why)
    full = view.high_water_bytes and (view.waiting_bytes or 0) >= FULL * view.high_water_bytes
    if full and view.state != "restarting":
        return "disk"
    return "server" if view.in_flight or view.state == "restarting" else "data set"


def _pause(why: str) -> str:
    """By the words of `job.gate` and `storage.remote`."""
    for words, what in (
        ("paused by hand", "a person"),
        ("upload", "upload"),
        ("storage", "upload"),
        ("a dump takes", "dump folder"),
        ("dump folder", "dump folder"),
        ("to stay free", "disk"),
        ("disk", "disk"),
    ):
        if words in why:
            return what
    return "see why"


MEANS = {
    "server": "its server's prefill, or its start",
    "disk": "its writers: what was recorded waits to be written",
    "dump folder": "room in the server's dump folder",
    "upload": "the storage: samples wait to be uploaded",
    "a person": "a person, who paused it",
    "stalled": "nothing that it tells: it is silent",
    "data set": "rows: its server has none in flight",
}
"""What each word of `waits_for` means."""


def slowest(rows: Iterable[ShardRow]) -> str:
    """The shard at work that is the furthest behind the others, and why; empty where none can be told from others.

    The last one at work is told only if it stands, or is slow beside those that are done.
    """
    rows = list(rows)
    work = [row for row in rows if row.state in AT_WORK and row.state != "preflight"]
    if len(work) < 2 and not (work := [row for row in work if _lags(row, rows)]):
        return ""
    row = min(work, key=lambda row: (row.tok_s or 0.0, row.shard))
    of, among = (_of_done(row, rows), " of those done") if len(work) == 1 else (row.of_median, "")
    where = f" on {row.node}" if row.node else ""
    share = f"goes at {100 * (of or 0.0):.0f} % of the median rate{among}" if row.tok_s else f"stands{_stands(row)}"
    if of is not None and of >= SLOW:
        return f"{row.shard}{where} {share}: none is slow"
    means = f", and waits for {MEANS.get(row.waits_for, row.waits_for)}" if row.waits_for else ""
    return f"{row.shard}{where} {share}{means}" + (f" ({row.why})" if row.why else "")


def _lags(row: ShardRow, rows: Sequence[ShardRow]) -> bool:
    """Whether the only shard at work is worth a word."""
    if row.tok_s:
        return (_of_done(row, rows) or 1.0) < SLOW
    return row.state in ("paused", "restarting") or (row.quiet_s or 0.0) >= NOW_S


def _of_done(row: ShardRow, rows: Sequence[ShardRow]) -> float | None:
    """A shard's rate as a share of the median of those that are done."""
    rates = [one.tok_s for one in rows if one.tok_s and one.state == "done"]
    return row.tok_s / statistics.median(rates) if row.tok_s and rates else None


def _stands(row: ShardRow) -> str:
    """How a running shard stands."""
    if row.state != "running" or row.quiet_s is None:
        return ""
    flying = f"{row.in_flight} in flight, " if row.in_flight else ""
    return f" (0 tok/s, {flying}no sample for {duration(row.quiet_s)})"


def together(folder: str, views: dict[str, RunView], of: int, rows: int | None) -> RunView:
    """The whole, where no job tells of it: sums over the shards, and a state that names what needs a person."""
    all_views = list(views.values())
    state, why, next_step = _state(folder, views, of, rows)
    working = [view for view in all_views if view.state in AT_WORK]
    sums = {name: sum(getattr(view, name) for view in all_views) for name in ("written", "refused", "quarantined")}
    known = ("tokens", "nbytes", "in_flight", "waiting_bytes", "upload_bytes", "high_water_bytes")
    sums |= {name: _sum(getattr(view, name) for view in all_views) for name in known}
    rates = {f"{n}_now": _sum(getattr(v, f"{n}_now") for v in working) for n in ("tok_s", "bytes_s", "samples_s")}
    expected = _expected(all_views, rows)
    tokens, rate = sums["tokens"], rates["tok_s_now"]
    told = sorted(
        (msgspec.structs.replace(one, text=f"{name}: {one.text}") for name, v in views.items() for one in v.messages),
        key=lambda one: one.time,
    )
    return RunView(
        kind="shards",
        folder=folder,
        time=time.time(),
        state=state,
        why=why,
        next_step=next_step,
        rows=rows,
        tokens_expected=expected,
        eta_s=(expected - tokens) / rate if expected and tokens is not None and rate and working else None,
        free_bytes=min((view.free_bytes for view in all_views if view.free_bytes is not None), default=None),
        restarts=sum(view.restarts for view in all_views),
        retries=sum(view.retries for view in all_views),
        messages=tuple(told[-MESSAGES:]),
        estimated=("tokens_expected", "eta_s") if working else (),
        **sums,
        **rates,
    )


def caught_up(whole: RunView, views: Iterable[RunView]) -> RunView:
    """The whole as its own job tells it, which hears of a shard's samples later than the shard's folder holds them."""
    names = ("written", "refused", "quarantined", "tokens", "nbytes")
    here = {name: sum(getattr(view, name) or 0 for view in views) for name in names} if (views := [*views]) else {}
    rows = ("written", "refused", "quarantined")
    if sum(here.get(name, 0) for name in rows) <= sum(getattr(whole, name) for name in rows):
        return whole
    return msgspec.structs.replace(whole, **here)


def with_strangers(whole: RunView, strangers: dict[str, str]) -> RunView:
    """The whole with a word on shards of another run: they will not be joined, so it is not done."""
    if not strangers:
        return whole
    why = "; ".join([*([whole.why] if whole.why and whole.state != "done" else []), *list(strangers.values())[:3]])
    if whole.state != "done":
        return msgspec.structs.replace(whole, why=why)
    step = f"move {next(iter(strangers))} away, or make it again as the others were made"
    return msgspec.structs.replace(whole, state="failed", why=why, next_step=step)


def strangers(records: dict[str, RunRecord]) -> dict[str, str]:
    """Of each shard that is not of the run that most are of: what differs, in words. By the folders' names."""
    kinds: dict[str, list[str]] = {}
    for name, record in records.items():
        kind = next((first for first in kinds if not _differ(records[first], record)), name)
        kinds.setdefault(kind, []).append(name)
    most = max(kinds, key=lambda first: len(kinds[first]), default="")
    return {
        name: f"{name} is of another run than {most}: {'; '.join(_differ(records[most], records[name]))}"
        for first, names in kinds.items()
        if first != most
        for name in names
    }


def _differ(one: RunRecord, other: RunRecord) -> list[str]:
    return differences(one, msgspec.structs.replace(other, shard=one.shard))


def _sum(values: Iterable[Any]) -> Any:
    """Of those that are known; None of none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _expected(views: Sequence[RunView], rows: int | None) -> float | None:
    """Tokens of all rows: what the shards that say so expect, for as many rows as there are."""
    telling = [view for view in views if view.tokens_expected and view.rows]
    seen = sum(view.rows or 0 for view in telling)
    return sum(view.tokens_expected or 0.0 for view in telling) * (rows or seen) / seen if seen else None


def _state(folder: str, views: dict[str, RunView], of: int, rows: int | None) -> tuple[ViewState, str, str]:
    """State, why, and what to do. Something at work names the state; else what needs a person does."""
    names: dict[str, list[str]] = {}
    for name, view in views.items():
        names.setdefault(view.state, []).append(name)
    failed, killed = names.get("failed", []), names.get("killed", [])
    broken = [f"{name} failed: {views[name].why}" for name in failed]
    broken += [f"{name} was killed: {views[name].why}" for name in killed]
    working: ViewState | None = next((state for state in AT_WORK if state in names), None)
    if working is not None:
        first = names[working][0]
        why = [] if working == "running" else [f"{', '.join(names[working][:3])}: {views[first].why or working}"]
        return working, "; ".join([*why, *broken[:2]]), ""
    resume = f"hsbench extract --resume {folder}/"
    if broken:
        return "failed" if failed else "killed", "; ".join(broken[:3]), resume + [*failed, *killed][0]
    if stopped := names.get("stopped"):
        return "stopped", f"{', '.join(stopped[:3])} stopped", resume + stopped[0]
    wanted = of if rows is None else min(of, rows)
    done = set(names.get("done", ()))  # a shard that no row belongs to may be among them
    if missing := sum(shard_name(number, of) not in done for number in range(wanted)):
        return "waiting", f"{missing} of {wanted} shards are not begun", ""
    return "done", f"all {wanted} shards are done", f"hsbench extract --merge {folder}"
