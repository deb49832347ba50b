"""The server to look at: one of ours, or any process of this machine."""

import contextlib
import os
from pathlib import Path

import msgspec
import psutil

from workbench.errors import UsageError
from workbench.server import processes
from workbench.server.flags import given
from workbench.server.state import ServerRecord
from workbench.supervision import signals

SGLANG_PORT = 30000
"""Where SGLang listens when it is not told."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A server by its main process. It may hold an API key; no record does."""

    pid: int
    began: float
    """Time of day at which the process was created."""
    log: Path | None = None
    port: int | None = None
    host: str = "127.0.0.1"
    model: str = ""
    version: str = ""
    argv: tuple[str, ...] = ()
    api_key: str | None = None
    name: str = ""

    @property
    def reached(self) -> str:
        """The address at which this machine reaches the server."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)

    @property
    def url(self) -> str:
        """Such as ``http://127.0.0.1:30017``."""
        return f"http://[{self.reached}]:{self.port}" if ":" in self.reached else f"http://{self.reached}:{self.port}"


def of_record(record: ServerRecord, api_key: str | None = None) -> Target:
    """A server that hsbench started. A key that was not handed over is read from the process, never from disk."""
    if api_key is None:
        api_key = given(signals.command_line(record.pid)).get("--api-key")
    return Target(
        pid=record.pid,
        began=record.started,
        log=Path(record.log),
        port=record.port,
        host=record.host,
        model=record.model,
        version=record.engine_version,
        argv=record.argv,
        api_key=api_key,
        name=record.name,
    )


def of_pid(pid: int, log: Path | None = None, port: int | None = None) -> Target:
    """A process that somebody else started. What is not given is taken from its command line and its open files.

    Raises:
        UsageError: there is no such process, or it may not be read.
    """
    try:
        process = psutil.Process(pid)
        argv = tuple(process.cmdline())
        began = process.create_time()
    except psutil.NoSuchProcess as error:
        raise UsageError(f"there is no process {pid}", "ps -ef | grep sglang lists candidates") from error
    except psutil.AccessDenied as error:
        raise UsageError(f"process {pid} may not be read", "run hsbench as its owner or as root") from error
    flags = given(argv)
    looks_like_sglang = any("sglang" in word for word in argv)
    default = SGLANG_PORT if looks_like_sglang and not argv[0].startswith("sglang::") else None
    return Target(
        pid=pid,
        began=began,
        log=log if log is not None else _stdout(pid),
        port=port if port is not None else _number(flags.get("--port")) or default,
        host=flags.get("--host") or "127.0.0.1",
        model=flags.get("--model-path") or flags.get("--model") or "",
        argv=argv,
        api_key=flags.get("--api-key"),
    )


def record_of(pid: int) -> ServerRecord | None:
    """The record of the server that this process belongs to, if it is one of ours."""
    from workbench.server import state

    with contextlib.suppress(OSError):
        session = os.getsid(pid)
        for record in state.all_records():
            if record.pid == session and processes.find(record.pid, record.since_boot) is not None:
                return record
    return None


def _stdout(pid: int) -> Path | None:
    """The regular file that the process writes its output to."""
    for number in (1, 2):
        with contextlib.suppress(OSError):
            path = os.readlink(f"/proc/{pid}/fd/{number}")
            if path.startswith("/") and os.path.isfile(path):
                return Path(path)
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None
