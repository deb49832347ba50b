"""The runs that are known and the one that is looked at: their jobs' files are read, a bounded part at each look.

Runs are found through the roster of jobs, or attached by their folder; attached ones, and lost ones that a person does
not want to see, are kept in `runs.json` of the state directory.
"""

import contextlib
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from workbench.errors import HsbenchError, UsageError
from workbench.extract.durable import replace_bytes
from workbench.extract.job import roster
from workbench.extract.job.files import JobFile, JobFiles
from workbench.extract.job.roster import KnownJob
from workbench.extract.watch import Run, run_in
from workbench.extract.watch.view import RunView
from workbench.paths import state_dir

LIST_S = 5.0
"""Seconds between two looks at the list; a job whose files did not change is not read again."""
FOREIGN_S = 30.0
"""Seconds after which a run of another tool that is not selected is looked at again, one a list."""
KEPT = 50
"""Attached runs that are remembered, and as many hidden ones."""
RUNS_KEPT = 16
"""Runs whose history is kept while others are selected."""

Kind = Literal["own", "foreign", "lost"]


class Attached(msgspec.Struct, frozen=True):
    """A folder that a person named."""

    folder: str
    dump_dir: str = ""


class Book(msgspec.Struct, frozen=True):
    """What a person said of the list."""

    attached: tuple[Attached, ...] = ()
    """The newest first."""
    hidden: tuple[str, ...] = ()
    """Folders that are not listed while they are lost."""


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run in the list. `problem` says why nothing can be seen of it."""

    folder: str
    kind: Kind = "own"
    state: str = ""
    """As in `RunView.state`; empty while it was not looked at."""
    written: int = 0
    rows: int = 0
    running: bool = False
    """Its process is on this machine."""
    attached: bool = False
    problem: str = ""


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """The selected run."""

    folder: str
    view: RunView | None = None
    job: JobFile | None = None
    """None for another tool's run."""
    running: bool = False
    pausing: bool = False
    """A person wants it to pause."""
    remark: str = ""
    """What is unusual about where it is."""
    problem: str = ""
    next_step: str = ""


class Said(msgspec.Struct, frozen=True):
    """An answer to something that the screen asked for; `number` tells new ones from old."""

    number: int
    message: str
    next_step: str = ""
    folder: str = ""
    """The run that was attached; empty when it was refused."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One look."""

    runs: tuple[RunRow, ...] = ()
    detail: Detail | None = None
    said: Said | None = None


class _Seen(msgspec.Struct, frozen=True):
    """What a job's files were when its row was made."""

    stamp: tuple[int, ...]
    row: RunRow
    grown: bool = False
    """They changed between two looks although its process is not here."""


class ExtractionSource:
    """Looks at the list seldom, and at the selected run each time. The screen sets `chosen` and calls `attach`."""

    every_s = 1.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.chosen = ""
        """Folder of the selected run; empty selects the first."""
        self._clock = clock
        self._asked: deque[Attached] = deque()
        self._forget: deque[str] = deque()
        self._said: Said | None = None
        self._seen: dict[str, _Seen] = {}
        self._runs: dict[str, Run] = {}
        self._views: dict[str, tuple[float, RunView]] = {}
        self._rows: tuple[RunRow, ...] = ()
        self._listed = float("-inf")

    def attach(self, folder: str, dump_dir: str = "") -> None:
        """Have a run added to the list at the next look."""
        self._asked.append(Attached(folder, dump_dir))

    def forget(self, folder: str) -> None:
        """Have an attached run, or a lost one, taken off the list at the next look."""
        self._forget.append(folder)

    def relist(self) -> None:
        """Have the list looked at again at the next look."""
        self._listed = float("-inf")

    def collect(self) -> Snapshot:
        """Look once."""
        self._answer()
        now = self._clock()
        if now - self._listed >= LIST_S:
            self._listed = now
            self._rows = self._list(now)
        known = {row.folder: row for row in self._rows}
        chosen = self.chosen if self.chosen in known else next(iter(known), "")
        detail = self._look(chosen, now) if chosen else None
        return Snapshot(runs=self._rows, detail=detail, said=self._said)

    def close(self) -> None:
        """Nothing is held."""

    # Attached runs

    def _answer(self) -> None:
        while self._asked:
            self._say(*self._attach(self._asked.popleft()))
        while self._forget:
            folder = self._forget.popleft()
            book = load_book()
            attached = tuple(one for one in book.attached if one.folder != folder)
            try:
                save_book(Book(attached, tuple(dict.fromkeys((folder, *book.hidden)))))
            except UsageError as error:
                self._say(error.message, error.next_step)
            self._runs.pop(folder, None)
            self.relist()

    def _say(self, message: str, next_step: str = "", folder: str = "") -> None:
        self._said = Said(self._said.number + 1 if self._said else 1, message, next_step, folder)

    def _attach(self, asked: Attached) -> tuple[str, str, str]:
        folder = str(Path(asked.folder).expanduser().absolute())
        dump_dir = str(Path(asked.dump_dir).expanduser().absolute()) if asked.dump_dir else ""
        try:
            run = run_in(Path(folder), Path(dump_dir) if dump_dir else None)
            book = load_book()
            others = (one for one in book.attached if one.folder != folder)
            save_book(Book((Attached(folder, dump_dir), *others), book.hidden))
        except HsbenchError as error:
            return error.message, error.next_step, ""
        self._runs[folder] = run
        self.chosen = folder
        self.relist()
        return f"attached {folder}", "", folder

    # The list

    def _list(self, now: float) -> tuple[RunRow, ...]:
        book = load_book()
        named = {one.folder for one in book.attached}
        folders = dict.fromkeys([*(one.folder for one in book.attached), *reversed(roster.folders())])
        self._seen = {folder: seen for folder, seen in self._seen.items() if folder in folders}
        self._look_at_one_foreign(book.attached, now)
        rows = [self._row(folder, folder in named) for folder in folders]
        shown = [row for row in rows if row.kind != "lost" or row.folder not in book.hidden]
        return tuple(sorted(shown, key=lambda row: (row.kind == "lost", not row.running)))

    def _row(self, folder: str, attached: bool) -> RunRow:
        files = JobFiles(Path(folder))
        if not attached and not files.out.is_dir():
            return RunRow(folder=folder, kind="lost", problem="the folder is gone")
        stamp = files.stamp()
        before = self._seen.get(folder)
        if before is not None and before.stamp == stamp and before.row.running == _runs(files):
            return msgspec.structs.replace(before.row, attached=attached)
        row = self._read(files, attached)
        grown = before is not None and before.stamp != stamp and not before.row.running and not row.running
        self._seen[folder] = _Seen(stamp, row, grown and row.kind == "own")
        return row

    def _read(self, files: JobFiles, attached: bool) -> RunRow:
        folder = str(files.out)
        try:
            job = roster.look(files)
        except HsbenchError as error:
            return RunRow(folder=folder, kind="lost", attached=attached, problem=error.message)
        if job is not None:
            return _row_of(job, attached)
        if not attached:
            return RunRow(folder=folder, kind="lost", problem="its .hsbench/job.json is gone")
        if not files.out.is_dir():
            return RunRow(folder=folder, kind="lost", attached=True, problem="the folder is gone")
        return self._foreign_row(folder)

    def _foreign_row(self, folder: str) -> RunRow:
        view = self._views.get(folder, (0.0, None))[1]
        if view is None:
            return RunRow(folder=folder, kind="foreign", attached=True)
        rows = view.rows or 0
        return RunRow(folder=folder, kind="foreign", state=view.state, written=view.written, rows=rows, attached=True)

    def _look_at_one_foreign(self, attached: tuple[Attached, ...], now: float) -> None:
        """The one that was looked at longest ago, so that a list of many costs one look."""
        due = [
            (self._views[one.folder][0] if one.folder in self._views else float("-inf"), one.folder)
            for one in attached
            if one.folder != self.chosen and not JobFiles(Path(one.folder)).job.exists()
        ]
        if due and now - min(due)[0] >= FOREIGN_S:
            self._look(min(due)[1], now)

    # The selected run

    def _look(self, folder: str, now: float) -> Detail:
        if not Path(folder).is_dir():
            self._runs.pop(folder, None)
            return Detail(
                folder=folder,
                problem="the folder is gone: it was moved or removed, or its file system is not mounted",
                next_step="o attaches it where it is now; hsbench extract --resume DIR goes on there",
            )
        try:
            view = self._run(folder).look()
            files = JobFiles(Path(folder))
            job = files.load()
        except HsbenchError as error:
            self._runs.pop(folder, None)
            return Detail(folder=folder, problem=error.message, next_step=error.next_step)
        if view.kind != "own" or job is None:
            self._views[folder] = (now, view)
            self._seen.pop(folder, None)
            return Detail(folder=folder, view=view)
        running = _runs(files)
        seen = self._seen.get(folder)
        remark = _remark(folder, job, elsewhere=seen is not None and seen.grown and not running)
        return Detail(folder=folder, view=view, job=job, running=running, pausing=files.pause.exists(), remark=remark)

    def _run(self, folder: str) -> Run:
        run = self._runs.pop(folder, None)
        if run is None:
            dump_dir = next((one.dump_dir for one in load_book().attached if one.folder == folder), "")
            run = run_in(Path(folder), Path(dump_dir) if dump_dir else None)
        self._runs[folder] = run  # the last used is the last
        while len(self._runs) > RUNS_KEPT:
            self._runs.pop(next(iter(self._runs)))
        return run


def make() -> ExtractionSource:
    """The real source."""
    return ExtractionSource()


def book_file() -> Path:
    """Where the book is kept."""
    return state_dir() / "runs.json"


def load_book() -> Book:
    """What is known; nothing when the file cannot be read."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError):
        return msgspec.json.decode(book_file().read_bytes(), type=Book)
    return Book()


def save_book(book: Book) -> None:
    """Keep it.

    Raises:
        UsageError: the state directory cannot be written.
    """
    short = Book(book.attached[:KEPT], book.hidden[:KEPT])
    try:
        book_file().parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(book_file(), msgspec.json.encode(short))
    except OSError as error:
        raise UsageError(f"cannot write {book_file()}: {error.strerror}", "make room there") from error


def _row_of(job: KnownJob, attached: bool) -> RunRow:
    return RunRow(
        folder=job.folder,
        state=job.state,
        written=job.written,
        rows=job.rows,
        running=job.pid is not None,
        attached=attached,
    )


def _runs(files: JobFiles) -> bool:
    """Whether the job's process is here."""
    try:
        return files.running() is not None
    except HsbenchError:
        return False


def _remark(folder: str, job: JobFile | None, elsewhere: bool) -> str:
    if elsewhere:
        return "its events go on although its process is not here: it runs on another machine, which alone can stop it"
    if job is not None and job.settings.out != folder and str(Path(job.settings.out).absolute()) != folder:
        return f"it was made as {job.settings.out}, and moved or is seen through another path; r resumes it here"
    return ""
