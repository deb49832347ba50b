"""The servers that hsbench started: one `job.json` each, replaced as a whole, never edited."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from workbench.errors import ServerError, UsageError
from workbench.paths import servers_dir
from workbench.server import processes
from workbench.server.specs import DumpSpec

SCHEMA = 1


class ServerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A started server. Secrets are masked; paths are absolute."""

    name: str
    pid: int
    since_boot: float
    """Seconds from boot to the creation of the process: with `pid`, its identity."""
    create_time: float
    """The same instant as a time of day, for people."""
    argv: tuple[str, ...]
    env: dict[str, str]
    """Variables added to the environment of the shell that started it."""
    url: str
    host: str
    port: int
    port_note: str = ""
    """Why the port is not the one asked for; empty when it is."""
    model: str
    python: str
    engine_version: str
    device: str
    log: str
    dump: DumpSpec | None = None
    patch_hash: str | None = None
    started: float
    """Time of day in seconds."""
    stopping: float | None = None
    """Time of day at which its stop was ordered."""
    ready_after: float | None = None
    """Seconds from the start to the first answered request; None until then."""
    schema: int = SCHEMA

    @property
    def folder(self) -> Path:
        """Where the record and the log are."""
        return folder_of(self.name)

    def save(self) -> None:
        """Write `job.json` beside its place and rename it in, so that nobody reads half of one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        building = self.folder / f"job.json.{os.getpid()}.tmp"
        building.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2))
        os.replace(building, self.folder / "job.json")

    def forget(self) -> None:
        """Remove `job.json` if it is still this server's; the log stays."""
        current = load(self.name)
        if current is not None and (current.pid, current.since_boot) == (self.pid, self.since_boot):
            (self.folder / "job.json").unlink(missing_ok=True)


def folder_of(name: str) -> Path:
    """The folder of the server of this name.

    Raises:
        UsageError: the name cannot be a folder's.
    """
    allowed = name and not name.startswith(".") and all(c.isalnum() or c in "._-" for c in name)
    if not allowed:
        raise UsageError(f"{name!r} cannot be a server's name", "use letters, digits, dot, dash and underscore")
    return servers_dir() / name


def load(name: str) -> ServerRecord | None:
    """The record of this name; None when there is none, or none that can be read."""
    try:
        return msgspec.json.decode((folder_of(name) / "job.json").read_bytes(), type=ServerRecord)
    except (OSError, msgspec.DecodeError):
        return None


def all_records() -> Iterator[ServerRecord]:
    """Every readable record, by name, whether or not its server still runs."""
    with contextlib.suppress(FileNotFoundError):
        for path in sorted(servers_dir().iterdir()):
            with contextlib.suppress(UsageError):
                record = load(path.name)
                if record is not None:
                    yield record


def alive(record: ServerRecord) -> bool:
    """Whether the server's main process runs, and is the one that was started."""
    return processes.find(record.pid, record.since_boot) is not None


def find_record(name: str | None) -> ServerRecord:
    """The server of this name, or the only one there is.

    Raises:
        ServerError: there is none.
        UsageError: no name is given and there are several.
    """
    if name is not None:
        record = load(name)
        if record is None:
            raise ServerError(f"no server is named {name!r}", "hsbench status lists the servers")
        return record
    records = list(all_records())
    if not records:
        raise ServerError("no server was started by hsbench", "hsbench serve --model demo starts one")
    if len(records) > 1:
        raise UsageError(f"there are several servers: {', '.join(r.name for r in records)}", "name one of them")
    return records[0]
