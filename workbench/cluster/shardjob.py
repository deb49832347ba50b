"""One shard on this machine: the ordinary job as a child, tied to this process, its events turned into news."""

import collections
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO

import msgspec

from workbench.cluster.records import At, Errand, News, Over, Said
from workbench.cluster.tied import end_session
from workbench.errors import HsbenchError, UsageError
from workbench.extract.job.events import Ended, JobEvent, Progress, Told
from workbench.extract.job.files import JobFiles, Request, recent
from workbench.extract.job.settings import ExtractSettings
from workbench.extract.shards import shard_name
from workbench.storage.address import shard_of, staging_folder

END_S = 0.5
TAKEN_OVER = "was taken over by"
"""In the message of `workbench.storage.errors.TakenOver`: another job records at the shard's URL."""
WINDOW_S = 30.0
"""Seconds of work that a rate is of."""
COMMAND = (sys.executable, "-m", "workbench.cli", "extract", "--tied", "--json", "--requested")


def settings_of(errand: Errand, shard: int, server: str, port: int, measure: bool) -> ExtractSettings:
    """What the job of this shard is asked for."""
    whole, store = errand.settings, None
    out = os.path.join(whole.out, shard_name(shard, errand.shards))
    if whole.store is not None:
        store = shard_of(whole.store, (shard, errand.shards))
        out = str(staging_folder(store, errand.staging))
    return msgspec.structs.replace(
        whole,
        out=out,
        store=store,
        shard=(shard, errand.shards),
        name=server,
        port=port,
        keep=True,  # the next shard uses the server too, and the hand ends it
        dump_dir=None if whole.dump_dir is None else os.path.join(whole.dump_dir, server),
        baseline_s=whole.baseline_s if measure else 0.0,
    )


class Rate:
    """Tokens a second over the last half minute of work."""

    def __init__(self) -> None:
        self._points: collections.deque[tuple[float, int]] = collections.deque([(0.0, 0)])

    def of(self, seconds: float, tokens: int) -> float | None:
        """With one more picture of the job's own counters."""
        self._points.append((seconds, tokens))
        while len(self._points) > 2 and self._points[1][0] <= seconds - WINDOW_S:
            self._points.popleft()
        began = self._points[0]
        return (tokens - began[1]) / (seconds - began[0]) if seconds > began[0] else None


class ShardJob:
    """A job that runs. Use `start`. `say` gets its news, `wake` is called when it is about to end."""

    def __init__(
        self,
        shard: int,
        files: JobFiles,
        process: subprocess.Popen[bytes],
        say: Callable[[News], None],
        wake: Callable[[], None],
    ) -> None:
        self.shard, self._files, self._process, self._say, self._wake = shard, files, process, say, wake
        self._rate = Rate()
        self._ended: Ended | None = None
        assert process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(process.stdout,), daemon=True)
        self._reader.start()

    @classmethod
    def start(
        cls, request: Request, shard: int, say: Callable[[News], None], wake: Callable[[], None]
    ) -> "ShardJob | None":
        """Ask for the shard and start its job; None, and the news of why, when that cannot be."""
        files = JobFiles(request.settings.folder)
        try:
            with files.locked():
                files.save_request(request)
        except UsageError as error:
            say(Over(shard=shard, outcome="busy", message=error.message))
            return None
        except (HsbenchError, OSError) as error:
            say(Over(shard=shard, outcome="failed", code=6, message=str(error)))
            return None
        with open(files.log, "ab") as log:
            process = subprocess.Popen(
                [*COMMAND, str(files.out)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        return cls(shard, files, process, say, wake)

    def pause(self, paused: bool) -> None:
        """Send nothing more, or go on."""
        self._files.hold(paused)

    def stop(self) -> None:
        """End in order: what is in flight is finished."""
        with contextlib.suppress(OSError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End now; nothing that has a line in the index is lost."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # the job then ends all that it started
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()
        end_session(self._process.pid)

    def over(self) -> Over | None:
        """How the job ended; None while it runs. Everything else it told has been passed on by then."""
        if not self._reader.is_alive():  # what has closed its stdout is about to end
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_S)
        code = self._process.poll()
        if code is None:
            return None
        end_session(self._process.pid)
        self._reader.join(10)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        return self._outcome(code)

    def _outcome(self, code: int) -> Over:
        """How it ended, by its exit code, and by what it wrote down about it."""
        ended = self._ended
        if ended is not None and code == 0:
            outcome = "done" if ended.state == "done" else "stopped"
            return msgspec.convert(
                {"type": "Over", "shard": self.shard, "outcome": outcome, "message": ended.message}, type=Over
            )
        events, _ = recent(self._files.events)
        last = events[-1] if events else None
        if isinstance(last, Ended) and TAKEN_OVER in last.message:
            return Over(shard=self.shard, outcome="busy", message=last.message)
        if isinstance(last, Ended) and last.state == "failed" and last.exit_code == code:
            return Over(shard=self.shard, outcome="failed", code=code, message=last.message, next_step=last.next_step)
        return Over(
            shard=self.shard,
            outcome="failed",
            code=code,
            message=f"the job of {self._files.out.name} ended with {code} and no word",
            next_step=f"its log: {self._files.log}",
        )

    def _read(self, pipe: IO[bytes]) -> None:
        for line in pipe:
            with contextlib.suppress(msgspec.MsgspecError):
                self._take(msgspec.json.decode(line, type=JobEvent))
        self._wake()

    def _take(self, event: JobEvent) -> None:
        if isinstance(event, Ended):
            self._ended = event
        elif isinstance(event, Told):
            self._say(Said(shard=self.shard, text=event.text, level=event.level))
        elif isinstance(event, Progress):
            self._say(self._picture(event))

    def _picture(self, event: Progress) -> At:
        same = ("state", "why", "written", "refused", "quarantined", "tokens", "tokens_expected", "nbytes")
        load = ("in_flight", "waiting_bytes", "high_water_bytes", "free_bytes", "restarts", "retries", "plain_tok_s")
        told = {name: getattr(event, name) for name in (*same, *load)}
        return At(shard=self.shard, tok_s=self._rate.of(event.seconds_here, event.tokens_here), **told)
