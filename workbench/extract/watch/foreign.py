"""Watching a run that has no job file, from its folders alone.

Only the last `rows_` folder is counted; the ones before it are taken as full. A flat folder is searched for its highest
number. Sizes and rates come from the newest files, so that a look costs the same for every number of finished samples.
"""

import contextlib
import os
import re
import shutil
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from workbench.errors import UsageError
from workbench.extract.formats.speculators import FOLDER as STATES_FOLDER
from workbench.extract.record import RECORD_FILE, load_record
from workbench.extract.watch import dumps
from workbench.extract.watch.counting import BOUND, Counted, numbered
from workbench.extract.watch.view import HISTORY, NOW_S, RunView, ViewState

SAMPLE_SUFFIXES = (".pt", ".ckpt")
STILL_S = 120.0
"""A run whose newest file is older than this, and than ten times the usual, is still."""
SEARCH_AGAIN = 12
"""Looks after which a dump folder that was not found is searched again."""
CONFIG_FILE = "data_config.json"
IDS_AND_MASK = 16
"""Bytes a token takes beside its states: an int64 id and an int64 mask value."""
WIDTHS = {"float32": 4, "float64": 8}


class About(NamedTuple):
    """What side files of constant size say of a run. None is what they do not say."""

    rows: int | None = None
    rows_certain: bool = True
    bytes_per_token: int | None = None
    shard: tuple[int, int] = (0, 1)


class Newest(NamedTuple):
    """What the newest files say."""

    mean: float | None = None
    """Bytes of a file."""
    at: float | None = None
    """When the newest was written."""
    per_second: float | None = None
    """Files, while these were written."""
    gap: float = 0.0
    """Seconds between two."""


class ForeignRun:
    """Looks at one folder again and again.

    Args:
        folder: With `rows_A-B/data_N.pt`, `hidden_states/hs_N.safetensors`, `data_N.pt`, or `req_N` itself.
        dump_dir: Where the server dumps; None searches in `folder` and beside it.

    Raises:
        UsageError: there is nothing of a run.
    """

    step_s = 5.0
    """Seconds between two looks, at most."""

    def __init__(self, folder: Path, dump_dir: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self.folder, self._given, self._clock = folder.absolute(), dump_dir, clock
        self._dumps: Path | None = dump_dir
        self._searched = 0
        self._looks: deque[tuple[float, int]] = deque()
        self._history: deque[tuple[float, float]] = deque(maxlen=HISTORY)
        self._refuse_nothing()

    def _refuse_nothing(self) -> None:
        if not self.folder.is_dir():
            raise UsageError(f"there is no folder {self.folder}", "give the folder that --out named")
        if self._given is not None and not self._given.is_dir():
            raise UsageError(f"there is no dump folder {self._given}", "leave --dump-dir out to have it searched")
        if self._given is None and dumps.is_dumps(self.folder):
            self._dumps = self.folder
        if self._dumps is None and not _is_run(str(self.folder)):
            raise UsageError(
                f"no run in {self.folder}: no .hsbench/job.json, rows_*, {STATES_FOLDER} or data_N.pt",
                "give the folder that --out named, or --dump-dir with the folder of req_N",
            )

    def look(self) -> RunView:
        """Count and measure once."""
        now, about = self._clock(), _about(self.folder)
        found = count_samples(str(self.folder), about.shard)
        if about.rows is not None and found.total > about.rows:
            about = about._replace(rows=None)  # it was told of an earlier, smaller run
        newest = measure(found.newest)
        self._remember(now, found.total)
        recently, watched = self._rate_now(newest, now)
        average = _average(found, newest)
        state, why = self._state(found, newest, about, now)
        fields = _sizes(found, newest, about, recently if state != "still" else None, average)
        self._plot(now, watched, fields)
        return RunView(
            kind="foreign",
            folder=str(self.folder),
            time=now,
            state=state,
            why=why,
            rows=about.rows,
            written=found.total,
            free_bytes=_free(self.folder),
            history=tuple(self._history),
            history_unit="tok/s" if about.bytes_per_token else "samples/s",
            **self._dump_fields(_estimated(fields, found, about, watched)),
            **fields,
        )

    def _remember(self, now: float, count: int) -> None:
        """Keep the looks of the last `NOW_S` seconds and the one before them."""
        self._looks.append((now, count))
        while len(self._looks) > 2 and self._looks[1][0] <= now - NOW_S:
            self._looks.popleft()

    def _rate_now(self, newest: Newest, now: float) -> tuple[float | None, bool]:
        """Samples a second now, and whether it was watched; else the newest files' times tell it."""
        before, count = self._looks[0]
        if now - before >= 2.0:
            return max(0.0, (self._looks[-1][1] - count) / (now - before)), True
        return newest.per_second, False

    def _state(self, found: Counted, newest: Newest, about: About, now: float) -> tuple[ViewState, str]:
        if about.rows is not None and found.total >= about.rows:
            return "done", "every row has its file"
        if not found.total:
            return "waiting", "no sample yet"
        silent = now - newest.at if newest.at is not None else 0.0
        if silent > max(STILL_S, 10 * newest.gap) and self._looks[0][1] == found.total:
            return "still", f"the newest file is {silent:.0f} s old"
        return "running", ""

    def _plot(self, now: float, watched: bool, fields: dict[str, Any]) -> None:
        rate = fields["tok_s_now"] if fields["tokens"] is not None else fields["samples_s_now"]
        if watched and rate is not None:
            self._history.append((now, rate))

    def _dump_fields(self, estimated: tuple[str, ...]) -> dict[str, Any]:
        if self._dumps is None:
            self._search()
        if self._dumps is None:
            return {"estimated": estimated}
        seen = dumps.look(self._dumps)
        guessed = self._given is None and self._dumps != self.folder
        return {
            "dump_dir": str(self._dumps),
            "dump_n": seen.highest,
            "waiting_bytes": seen.waiting_bytes,
            "estimated": (*estimated, "waiting_bytes", *(("dump_dir",) if guessed else ())),
            "at_least": () if seen.exact else ("waiting_bytes",),
        }

    def _search(self) -> None:
        if self._searched % SEARCH_AGAIN == 0:
            self._dumps = dumps.find(self.folder)
        self._searched += 1


def count_samples(folder: str, shard: tuple[int, int]) -> Counted:
    """Finished samples below `folder`, in whichever layout it has."""
    starts = _row_folders(folder)
    if starts:
        return _count_rows(starts, shard)
    states = os.path.join(folder, STATES_FOLDER)
    if os.path.exists(states):
        return numbered(states, "hs_", (".safetensors",))
    return numbered(folder, "data_", SAMPLE_SUFFIXES)


def _is_run(folder: str) -> bool:
    """Whether there are samples, or something that is made before the first."""
    early = (STATES_FOLDER, RECORD_FILE, CONFIG_FILE)
    return (
        bool(_row_folders(folder))
        or any(os.path.exists(os.path.join(folder, name)) for name in early)
        or count_samples(folder, (0, 1)).total > 0
    )


def _row_folders(folder: str) -> list[tuple[int, int, str]]:
    """(A, B, path) of the folders `rows_A-B`, in order."""
    found: list[tuple[int, int, str]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for place, entry in enumerate(entries):
            if place >= BOUND:
                break
            if match := re.fullmatch(r"rows_(\d+)-(\d+)", entry.name):
                found.append((int(match[1]), int(match[2]), entry.path))
    return sorted(found)


def _count_rows(folders: list[tuple[int, int, str]], shard: tuple[int, int]) -> Counted:
    """The last folder that has samples is counted, the ones before it are taken as full."""
    last = Counted(0, -1)
    while folders and not last.total:
        last = numbered(folders.pop()[2], "data_", SAMPLE_SUFFIXES)
    before = sum(_rows_between(start, end, shard) for start, end, _ in folders)
    oldest = last.oldest
    if folders and last.newest:
        suffix = os.path.splitext(last.newest[0])[1]
        oldest = os.path.join(folders[0][2], f"data_{folders[0][0] + shard[0]}{suffix}")
    return Counted(before + last.total, last.highest, last.newest, oldest, exact=last.exact and not folders)


def _rows_between(start: int, end: int, shard: tuple[int, int]) -> int:
    """Rows from `start` to below `end` that belong to a shard."""
    first = start + (shard[0] - start) % shard[1]
    return len(range(first, end, shard[1]))


def measure(paths: tuple[str, ...]) -> Newest:
    """Sizes and times of a few files; the ones that do not exist are left out."""
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            facts = os.stat(path)
            found.append((facts.st_mtime, facts.st_size))
    if not found:
        return Newest()
    times = sorted(when for when, _ in found)
    mean, span = sum(size for _, size in found) / len(found), times[-1] - times[0]
    if span <= 0:
        return Newest(mean, times[-1])
    return Newest(mean, times[-1], (len(found) - 1) / span, span / (len(found) - 1))


def _average(found: Counted, newest: Newest) -> float | None:
    """Samples a second from the first file to the newest, pauses included."""
    if newest.at is None or found.total < 2:
        return None
    with contextlib.suppress(OSError):
        span = newest.at - os.stat(found.oldest).st_mtime
        return (found.total - 1) / span if span > 0 else None
    return None


def _sizes(
    found: Counted, newest: Newest, about: About, recently: float | None, average: float | None
) -> dict[str, Any]:
    """Counts and rates in samples, bytes and tokens, the latter two from the mean file."""
    mean, per_token = newest.mean, about.bytes_per_token
    tokens = mean / (per_token + IDS_AND_MASK) if mean is not None and per_token else None
    left = None if about.rows is None else max(0, about.rows - found.total)
    fields: dict[str, Any] = {
        "nbytes": _times(found.total, mean),
        "tokens": _times(found.total, tokens),
        "tokens_expected": _times(about.rows, tokens),
        "samples_s_now": recently,
        "samples_s_avg": average,
        "eta_s": left / average if left is not None and average else None,
    }
    for name, rate in (("now", recently), ("avg", average)):
        fields[f"tok_s_{name}"] = None if rate is None or tokens is None else rate * tokens
        fields[f"bytes_s_{name}"] = None if rate is None or mean is None else rate * mean
    return fields


def _estimated(fields: dict[str, Any], found: Counted, about: About, watched: bool) -> tuple[str, ...]:
    """All of `fields` that are known, but for a rate that was watched; and counts that rest on an assumption."""
    counts = [] if found.exact else ["written"]
    counts += [] if about.rows is None or about.rows_certain else ["rows"]
    known = [name for name, value in fields.items() if value is not None]
    return (*counts, *(name for name in known if not (watched and name == "samples_s_now")))


def _times(count: int | None, each: float | None) -> int | None:
    return None if count is None or each is None else round(count * each)


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _about(folder: Path) -> About:
    """From `hsbench.json`, else from a `data_config.json`; what cannot be understood is unknown."""
    with contextlib.suppress(UsageError):
        if record := load_record(folder):
            return About(len(record.rows()), True, record.states.bytes_per_token, record.shard)
    with contextlib.suppress(OSError, msgspec.MsgspecError, AttributeError, KeyError, TypeError, ValueError):
        config: Any = msgspec.json.decode((folder / CONFIG_FILE).read_bytes())
        return _of_config(config)
    return About()


def _of_config(config: dict[str, Any]) -> About:
    data = config.get("data", {})
    told = [n for name in ("num_samples", "max_samples") if isinstance(n := data.get(name), int) and n > 0]
    blocks = config.get("hidden_states", {}).get("layer_ids")
    hidden = config.get("model", {}).get("hidden_size")
    kind = str(config.get("format", {}).get("schema", {}).get("hidden_states", {}).get("dtype", ""))
    width = next((width for name, width in WIDTHS.items() if name in kind), 2)
    each = len(blocks) * hidden * width if blocks and isinstance(hidden, int) else None
    return About(max(told, default=None), False, each)
