"""Which folders jobs were started in: one line a start in `jobs.jsonl` of the state directory."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from workbench.errors import UsageError
from workbench.extract.job.events import Ended, Progress
from workbench.extract.job.files import JobFiles, recent
from workbench.paths import state_dir


class KnownJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job by its folder, and where it is."""

    folder: str
    data: str
    pid: int | None
    """None when it does not run."""
    state: str
    """One of `events.State`, or `killed`."""
    written: int
    rows: int
    store: str = ""
    """URL where the data set goes from the folder, if it does."""


def note(folder: Path) -> None:
    """Remember a job's folder."""
    state_dir().mkdir(parents=True, exist_ok=True)
    if str(folder) not in folders():
        with open(state_dir() / "jobs.jsonl", "ab", buffering=0) as file:
            file.write(msgspec.json.encode(str(folder)) + b"\n")


def folders() -> list[str]:
    """Every folder that a job was started in, the oldest first."""
    found: dict[str, None] = {}
    with contextlib.suppress(OSError):
        for line in (state_dir() / "jobs.jsonl").read_bytes().splitlines():
            with contextlib.suppress(msgspec.DecodeError):
                found[msgspec.json.decode(line, type=str)] = None
    return list(found)


def known_jobs() -> Iterator[KnownJob]:
    """Every job whose folder is still there, the oldest first."""
    for folder in folders():
        with contextlib.suppress(UsageError):
            found = look(JobFiles(Path(folder)))
            if found is not None:
                yield found


def look(files: JobFiles) -> KnownJob | None:
    """A job as it is now; None when there was none."""
    job = files.load()
    if job is None:
        return None
    events, _ = recent(files.events)
    nothing = Progress(time=0, state="preflight")  # a start tells one without counts first, and may need no other
    picture = next((e for e in reversed(events) if isinstance(e, Progress) and e.rows), nothing)
    last = next((e for e in reversed(events) if isinstance(e, Progress | Ended)), nothing)
    process = files.running()
    over = process is None and not isinstance(last, Ended)
    return KnownJob(
        folder=str(files.out),
        data=job.settings.data,
        pid=process.pid if process is not None else None,
        state="killed" if over else last.state,
        written=picture.written,
        rows=picture.rows,
        store=job.settings.store or "",
    )
