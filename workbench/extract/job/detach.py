"""A job that outlives the terminal: a session of its own, its output in a log, its news in `events.jsonl`."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil

from workbench.errors import HsbenchError, ServerError
from workbench.exitcodes import ExitCode
from workbench.extract.job.events import Ended, JobEvent, Progress
from workbench.extract.job.files import JobFiles, Request, recent
from workbench.extract.job.preflight import refuse_used_folder
from workbench.extract.record import load_record
from workbench.server import processes
from workbench.server.log import tail

POLL_S = 0.1
STOP_S = 120.0


class JobFailed(HsbenchError):
    """A detached job ended with an error, which is told here as the job told it."""

    def __init__(self, message: str, next_step: str, code: int, details: str = "") -> None:
        super().__init__(message, next_step, details)
        self.exit_code = ExitCode(code) if code in list(ExitCode) else ExitCode.INTERNAL


def ask(files: JobFiles, request: Request) -> None:
    """Keep the request for the process that will do the job.

    Raises:
        UsageError: a job runs there already, or the folder cannot be written, or holds what is not ours.
    """
    if load_record(files.out) is None and request.cluster is None:
        refuse_used_folder(files.out)  # before anything is put there
    with files.locked():
        files.save_request(request)


def start(files: JobFiles) -> subprocess.Popen[bytes]:
    """Run the job that was asked for in a session of its own."""
    command = [sys.executable, "-m", "workbench.cli", "extract", "--requested", str(files.out)]
    with open(files.log, "ab") as log:
        return processes.Detached(
            command,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )


def until_running(files: JobFiles, process: subprocess.Popen[bytes], offset: int) -> Iterator[JobEvent]:
    """The job's events from `offset` of its journal on, until its first sample is sent or it has ended.

    Raises:
        JobFailed: it ended with an error.
    """
    while True:
        over = process.poll() is not None
        events, offset = recent(files.events, offset=offset)
        for event in events:
            if isinstance(event, Ended) and event.state == "failed":
                raise JobFailed(event.message, event.next_step, event.exit_code)
            yield event
            runs = isinstance(event, Progress) and event.state not in ("preflight", "done")
            if isinstance(event, Ended) or runs:
                return
        if over:
            log = "\n".join(tail(files.log, 10))
            raise JobFailed("the job ended without a word", f"its log: {files.log}", ExitCode.INTERNAL, log)
        time.sleep(POLL_S)


def stop(files: JobFiles) -> bool:
    """Have a job end in order, and wait for it; False when none runs.

    Raises:
        ServerError: it has not ended after two minutes.
    """
    process = files.running()
    if process is None:
        return False
    with contextlib.suppress(psutil.NoSuchProcess):
        process.terminate()
        try:
            process.wait(STOP_S)
        except psutil.TimeoutExpired:
            raise ServerError(
                f"the job, process {process.pid}, has not ended after {STOP_S:.0f} s",
                f"kill -9 {process.pid} loses nothing that was finished",
            ) from None
    return True
