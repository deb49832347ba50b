"""The extraction operation: a generator of events that are journalled before anybody sees them."""

import contextlib
import platform
import secrets
import signal
import time
from collections.abc import Callable, Iterator

import msgspec
import psutil

from workbench.errors import HsbenchError, Missing
from workbench.extract.index import INDEX_FILE
from workbench.extract.job import roster
from workbench.extract.job.events import Ended, JobEvent
from workbench.extract.job.files import JobFile, JobFiles, Journal, Request, recent
from workbench.extract.job.start import Start
from workbench.extract.record import RECORD_FILE
from workbench.extract.shards import shard_folders
from workbench.server import processes


class Control:
    """Lets another thread, or a signal, end the job in order: send nothing more, finish what is under way."""

    stopping = False

    def stop(self) -> None:
        """End in order."""
        self.stopping = True

    def on_signals(self) -> None:
        """Stop in order at the first SIGTERM or SIGINT, at once at the second."""

        def stop(number: int, frame: object) -> None:
            if self.stopping:
                raise KeyboardInterrupt
            self.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)


Work = Callable[[JobFiles, JobFile, Request, Callable[[], bool]], Iterator[JobEvent]]
"""What a start does, with its folder locked: see `Start` for the arguments."""


def _alone(files: JobFiles, job: JobFile, request: Request, stopping: Callable[[], bool]) -> Iterator[JobEvent]:
    return Start(files, job, request, stopping).events()


def run(request: Request, control: Control, work: Work = _alone) -> Iterator[JobEvent]:
    """Extract, or go on with what was begun. Ends with an `Ended`, or raises after writing one down.

    Raises:
        HsbenchError: see `workbench.errors`. Nothing that was finished is lost by it.
    """
    files = JobFiles(request.settings.folder)
    with files.locked():
        finished = _Finished(files)
        job = _begin(files, request)
        journal = Journal(files)
        try:
            for told in work(files, job, request, lambda: control.stopping):
                event = msgspec.structs.replace(told, start=job.start) if isinstance(told, Ended) else told
                journal.append(event)
                yield event
        except OSError as error:
            found = Missing(f"{error.filename or files.out}: {error.strerror}", "is there room, and may it be written?")
            failed = _failed(job, found.message, found.next_step, int(found.exit_code))
            journal.append(failed, *finished.still(job))
            raise found from error
        except HsbenchError as error:
            failed = _failed(job, error.message, error.next_step, int(error.exit_code))
            journal.append(failed, *finished.still(job))
            raise
        except KeyboardInterrupt:
            broken = Ended(time=time.time(), state="stopped", message="broken off", exit_code=130, start=job.start)
            journal.append(broken, *finished.still(job))
            raise
        except Exception as error:
            journal.append(_failed(job, f"defect in hsbench: {type(error).__name__}: {error}", str(files.log), 70))
            raise
        finally:
            journal.close()


class _Finished:
    """A run that was done when a start began. It is shown as done again if the start changed nothing and failed."""

    def __init__(self, files: JobFiles) -> None:
        self._out = files.out
        self._ended: Ended | None = None
        job, last = files.load(), next(reversed(recent(files.events)[0]), None)
        if job is not None and isinstance(last, Ended) and last.state == "done" and last.start in (0, job.start):
            self._ended = last
        self._before = self._stamp()

    def still(self, job: JobFile) -> list[Ended]:
        """The end that goes on to hold, as of this start; none when there was none, or samples were changed."""
        if self._ended is None or self._stamp() != self._before:
            return []
        return [msgspec.structs.replace(self._ended, start=job.start)]

    def _stamp(self) -> list[tuple[str, int, int]]:
        """Of what says which samples there are."""
        found = []
        for folder in (self._out, *shard_folders(self._out)) if self._ended is not None else ():
            for name in (RECORD_FILE, INDEX_FILE):
                with contextlib.suppress(OSError):
                    facts = (folder / name).stat()
                    found.append((f"{folder.name}/{name}", facts.st_mtime_ns, facts.st_size))
        return found


def _failed(job: JobFile, message: str, next_step: str, code: int) -> Ended:
    return Ended(
        time=time.time(), state="failed", message=message, next_step=next_step, exit_code=code, start=job.start
    )


def _begin(files: JobFiles, request: Request) -> JobFile:
    """Write down that this process does the job now. Its settings are replaced only once they are not refused."""
    before = files.load()
    me = psutil.Process()
    kept = before if before is not None and before.accepted else None
    job = JobFile(
        run=before.run if before else secrets.token_hex(3),
        start=before.start + 1 if before else 1,
        pid=me.pid,
        since_boot=processes.since_boot(me),
        started=time.time(),
        host=platform.node(),
        settings=kept.settings if kept else request.settings,
        command=kept.command if kept else request.command,
        accepted=kept is not None,
        dump_dir=kept.dump_dir if kept else "",
        server=kept.server if kept else "",
        plain_tok_s=before.plain_tok_s if before else None,
        cluster=kept.cluster if kept else request.cluster,
    )
    files.save(job)
    roster.note(files.out)
    return job
