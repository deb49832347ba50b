"""A job's own files, in `DIR/.hsbench/`: who it is, what it was asked for, what it tells, whether it is to pause.

::

    DIR/.hsbench/
      job.json       JobFile, replaced as a whole
      request.json   Request: what is asked of the next start; becomes the job's once it was not refused
      server.json    the server's record as it was last used, in case its own is gone
      events.jsonl   JobEvent, one a line, appended
      job.log        what a detached job writes to stdout and stderr
      lock           held by the process that writes the data set; freed by the kernel when it dies
      pause          there while a person wants the job to pause
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec
import psutil

from workbench.errors import UsageError
from workbench.extract.durable import replace_bytes
from workbench.extract.job.events import JobEvent
from workbench.extract.job.settings import Cluster, ExtractSettings
from workbench.server import processes, state
from workbench.server.state import ServerRecord

FOLDER = ".hsbench"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a person asked for, and how they said it."""

    settings: ExtractSettings
    command: str = ""
    cluster: Cluster | None = None
    """Many machines are to do it."""


class JobFile(msgspec.Struct, frozen=True, kw_only=True):
    """A job's identity. The process named is the last one that wrote here."""

    run: str
    """Short id of the run; the same over all its starts."""
    start: int
    """How many times the job was started; request ids carry it."""
    pid: int
    since_boot: float
    """With `pid`, the process's identity: see `workbench.server.processes`."""
    started: float
    host: str = ""
    """The machine that the process is on; empty in what an older release wrote."""
    settings: ExtractSettings
    """Of the last start that was not refused; of the first one otherwise."""
    command: str = ""
    """What a person typed."""
    accepted: bool = False
    """Some start was not refused."""
    dump_dir: str = ""
    server: str = ""
    """URL of the server in use."""
    plain_tok_s: float | None = None
    """Prefill rate of this server and these rows without recording, measured once."""
    cluster: Cluster | None = None
    """The job hands shards out, and does none itself."""

    @property
    def request_prefix(self) -> str:
        """How the request ids of all starts of this run begin; the recorder takes them as ours."""
        return f"hs-{self.run}-"


class JobFiles:
    """The job folder of a data set's folder."""

    def __init__(self, out: Path) -> None:
        self.out = out.absolute()
        self.folder = self.out / FOLDER
        self.job, self.events = self.folder / "job.json", self.folder / "events.jsonl"
        self.log, self.pause = self.folder / "job.log", self.folder / "pause"

    def stamp(self) -> tuple[int, ...]:
        """Changes whenever the job tells something; empty without a job."""
        found: list[int] = []
        for path in (self.job, self.events):
            with contextlib.suppress(OSError):
                facts = path.stat()
                found += [facts.st_mtime_ns, facts.st_size]
        return tuple(found)

    def hold(self, paused: bool) -> None:
        """Have the job send nothing more, or go on. A folder that is gone is left alone."""
        with contextlib.suppress(OSError):
            if paused:
                self.pause.touch()
            else:
                self.pause.unlink(missing_ok=True)

    def load(self) -> JobFile | None:
        """The last job here, None when there was none.

        Raises:
            UsageError: `job.json` is there and is not one of this release's.
        """
        try:
            return msgspec.json.decode(self.job.read_bytes(), type=JobFile)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise UsageError(f"{self.job} cannot be read: {error}", "was it written by this release?") from error

    def load_request(self) -> Request:
        """What the next start is asked for.

        Raises:
            UsageError: nothing is.
        """
        try:
            return msgspec.json.decode((self.folder / "request.json").read_bytes(), type=Request)
        except (OSError, msgspec.MsgspecError) as error:
            raise UsageError(
                f"no job was asked for in {self.out}: {error}", "hsbench extract DATA --out DIR"
            ) from error

    def save_request(self, request: Request) -> None:
        """Replace `request.json`."""
        self.make()
        replace_bytes(self.folder / "request.json", msgspec.json.format(msgspec.json.encode(request)))

    def load_server(self, name: str) -> ServerRecord | None:
        """The record of the server of this name: its own, else the one that the job kept."""
        record = state.load(name)
        if record is not None:
            return record
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            kept = msgspec.json.decode((self.folder / "server.json").read_bytes(), type=ServerRecord)
            return kept if kept.name == name else None
        return None

    def save_server(self, record: ServerRecord) -> None:
        """Keep the record of the server in use."""
        self.make()
        replace_bytes(self.folder / "server.json", msgspec.json.format(msgspec.json.encode(record)))

    def make(self) -> None:
        """The folder, for its owner only: flags may hold secrets.

        Raises:
            UsageError: it cannot be made.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"cannot make {self.folder}: {error.strerror or error}", "name another --out, or make room"
            ) from error

    def save(self, job: JobFile) -> None:
        """Replace `job.json`."""
        self.make()
        replace_bytes(self.job, msgspec.json.format(msgspec.json.encode(job)))

    def running(self) -> psutil.Process | None:
        """The job's process if it is the one of `job.json` and runs."""
        job = self.load()
        return None if job is None else processes.find(job.pid, job.since_boot)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only process that writes here.

        Raises:
            UsageError: another one does.
        """
        self.make()
        with open(self.folder / "lock", "w", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise self.in_use() from None
            yield

    def in_use(self) -> UsageError:
        """The refusal to write where another job does."""
        process = self.running()
        who = f"process {process.pid}" if process is not None else "another process"
        return UsageError(
            f"a job already writes into {self.out}: {who}",
            f"hsbench watch {self.out} shows it; hsbench job stop {self.out} ends it",
        )


class Journal:
    """`events.jsonl` open for appending. A full disk loses events, never the job."""

    def __init__(self, files: JobFiles) -> None:
        files.make()
        self._file: IO[bytes] = open(files.events, "ab", buffering=0)  # noqa: SIM115 - open as long as the job
        _end_line(files.events, self._file)

    def append(self, *events: JobEvent) -> None:
        """Add a line for each, all in one write."""
        lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
        with contextlib.suppress(OSError):
            start = os.fstat(self._file.fileno()).st_size
            if self._file.write(lines) != len(lines):
                self._file.truncate(start)

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


def _end_line(path: Path, file: IO[bytes]) -> None:
    """A start that was killed while writing left half a line, which the next must not go on with."""
    size = path.stat().st_size
    if size:
        with open(path, "rb") as reader:
            reader.seek(size - 1)
            if reader.read(1) != b"\n":
                with contextlib.suppress(OSError):
                    file.write(b"\n")


def recent(path: Path, nbytes: int = 1 << 18, offset: int | None = None) -> tuple[list[JobEvent], int]:
    """The events in the last `nbytes` of the file, or from `offset` on, and the offset to go on from.

    Whole lines only; one that cannot be read is passed over, and a file that does not exist has none.
    """
    decoder = msgspec.json.Decoder(JobEvent)
    found: list[JobEvent] = []
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = max(0, size - nbytes) if offset is None else min(offset, size)
            file.seek(start)
            data = file.read(size - start)
    except OSError:
        return [], 0
    end = data.rfind(b"\n") + 1
    first = data.find(b"\n") + 1 if offset is None and start else 0
    for line in data[first:end].splitlines():
        with contextlib.suppress(msgspec.MsgspecError):
            found.append(decoder.decode(line))
    return found, start + end
