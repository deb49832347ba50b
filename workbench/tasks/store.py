"""The commands that the app started: one folder each in `tasks/` of the state directory.

::

    tasks/20261130-101500-3fa2/
      task.json   Task: the command, its process and when it began
      out         its stdout
      err         its stderr
      exit        its exit code, once it has ended by itself

Whoever started a task may end: the task goes on, and is known by its folder.
"""

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import psutil

from workbench.errors import UsageError
from workbench.extract.durable import replace_bytes
from workbench.paths import state_dir
from workbench.server import processes
from workbench.server.log import tail
from workbench.server.secrets import mask_flags

KEPT = 200
"""Finished tasks that are kept; the oldest are removed first."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A command of `hsbench` in a process of its own. `argv` is what follows the word `hsbench`, secrets masked."""

    id: str
    argv: tuple[str, ...]
    pid: int
    since_boot: float
    """With `pid`, the process's identity."""
    started: float
    """Time of day in seconds."""

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return tasks_dir() / self.id

    @property
    def kind(self) -> str:
        """The command's name, such as `probe`."""
        return self.argv[0] if self.argv else ""

    def running(self) -> bool:
        """Whether its process still runs."""
        return processes.find(self.pid, self.since_boot) is not None

    def exit_code(self) -> int | None:
        """How it ended; None while it runs, and when it was killed before it could tell."""
        with contextlib.suppress(OSError, ValueError):
            return int((self.folder / "exit").read_text())
        return None

    def state(self) -> str:
        """`running`, `done`, `failed` or `killed`."""
        running = self.running()  # asked first: it may end between the two questions
        code = self.exit_code()
        if code is None:
            return "running" if running else "killed"
        return "done" if code == 0 else "failed"

    def output(self) -> str:
        """What it wrote to stdout so far."""
        with contextlib.suppress(OSError):
            return (self.folder / "out").read_text(encoding="utf-8", errors="replace")
        return ""

    def narration(self, lines: int = 20) -> list[str]:
        """The last lines that it wrote to stderr."""
        return tail(self.folder / "err", lines)


def tasks_dir() -> Path:
    """Where tasks are kept."""
    return state_dir() / "tasks"


def start(argv: Sequence[str]) -> Task:
    """Run `hsbench` with these arguments in a session of its own.

    Raises:
        UsageError: the state directory cannot be written.
    """
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    folder = tasks_dir() / name
    try:
        folder.mkdir(mode=0o700, parents=True)
        with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
            child = processes.Detached(
                [sys.executable, "-m", "workbench.tasks.runner", str(folder / "exit"), *argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        task = Task(
            id=name,
            argv=tuple(mask_flags(argv)),
            pid=child.pid,
            since_boot=_born(child.pid),
            started=time.time(),
        )
        replace_bytes(folder / "task.json", msgspec.json.encode(task))
    except OSError as error:
        raise UsageError(f"cannot write into {tasks_dir()}: {error.strerror}", "make room there") from error
    _forget_old()
    return task


def _born(pid: int) -> float:
    """A child that has ended already is a zombie until it is waited for, so it can still be asked."""
    return processes.since_boot(psutil.Process(pid))


def all_tasks() -> Iterator[Task]:
    """Every task that can be read, the newest first."""
    with contextlib.suppress(OSError):
        for path in sorted(tasks_dir().iterdir(), reverse=True):
            found = load(path.name)
            if found is not None:
                yield found


def load(name: str) -> Task | None:
    """A task by its id; None when it is gone or cannot be read."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((tasks_dir() / name / "task.json").read_bytes(), type=Task)
    return None


def interrupt(task: Task) -> bool:
    """Ask a task to end, as Ctrl-C does; False when it has ended already."""
    process = processes.find(task.pid, task.since_boot)
    if process is None:
        return False
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(2)
    return True


def _forget_old() -> None:
    for task in list(all_tasks())[KEPT:]:
        if not task.running():
            shutil.rmtree(task.folder, ignore_errors=True)
