"""The run folder of a sweep: `sweep.json` says what is swept, `starts.jsonl` has one line for each finished start.

A line counts once its newline is on the disk. What a kill left of a line is cut off when the folder is opened again.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.sweep.records import StartRecord
from bench.sweep.stats import MARGIN
from bench.sweep.variants import Variant
from workbench.errors import UsageError
from workbench.extract.durable import replace_json, sync_folder

SETTINGS_FILE = "sweep.json"
STARTS_FILE = "starts.jsonl"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What decides the plan and the words of a sweep. The server's own description is the caller's, in `server`."""

    variants: tuple[Variant, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    blocks: int = 3
    seed: int = 0
    confirm: bool = True
    """Start the winners afresh, and decide about them on these starts alone."""
    most_winners: int = 3
    margin: float = MARGIN
    retries: int = 1
    """How often an invalid start is repeated."""
    debug: bool = False
    """Start the baseline and each living variant once more with NCCL's log on, untimed."""
    server: dict[str, str] = {}
    """What the baseline is, such as model, flags and versions: a resumed sweep must have the same."""


class Journal:
    """One run folder, held by one process.

    Args:
        folder: Made if need be.
        settings: They must be those of the folder, if it has any.

    Raises:
        UsageError: another sweep's folder, one that cannot be read, or one that another process is using.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = open(folder / ".lock", "w", encoding="ascii")  # noqa: SIM115 - closed in close()
        except OSError as error:
            raise UsageError(f"cannot write into {folder}: {error.strerror}", "name another --out") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._settle(settings)
            self.records = list(self._read())
        except BlockingIOError as error:
            self._lock.close()
            raise UsageError(f"another sweep is writing into {folder}", "wait for it, or name another --out") from error
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        """Let another process have the folder."""
        self._lock.close()

    def append(self, record: StartRecord) -> None:
        """Add a start, durably."""
        with open(self.folder / STARTS_FILE, "ab") as file:
            file.write(msgspec.json.encode(record) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if not self.records:
            sync_folder(self.folder)
        self.records.append(record)

    def _settle(self, settings: Settings) -> None:
        old = load_settings(self.folder)
        if old is None:
            replace_json(self.folder / SETTINGS_FILE, msgspec.to_builtins(settings))
        elif old != settings:
            names = [name for name in Settings.__struct_fields__ if getattr(old, name) != getattr(settings, name)]
            raise UsageError(
                f"{self.folder} is of another sweep: {', '.join(names)} differ", "resume it as it was, or another --out"
            )

    def _read(self) -> Iterator[StartRecord]:
        path = self.folder / STARTS_FILE
        data = path.read_bytes() if path.exists() else b""
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(path, whole)
        yield from _decode(data[:whole], path)


def _decode(data: bytes, path: Path) -> Iterator[StartRecord]:
    for number, line in enumerate(data.splitlines(), 1):
        try:
            yield msgspec.json.decode(line, type=StartRecord)
        except (msgspec.MsgspecError, ValueError) as error:
            raise UsageError(f"{path}, line {number} is not a start: {error}", "name another --out") from error


def load_settings(folder: Path) -> Settings | None:
    """What a folder sweeps; None when it is not a sweep's."""
    with contextlib.suppress(FileNotFoundError):
        try:
            return msgspec.json.decode((folder / SETTINGS_FILE).read_bytes(), type=Settings)
        except (msgspec.MsgspecError, ValueError) as error:
            raise UsageError(f"{folder / SETTINGS_FILE} is not of this release: {error}", "another --out") from error
    return None


def load_starts(folder: Path) -> tuple[StartRecord, ...]:
    """The finished starts of a folder, for showing it; touches nothing."""
    path = folder / STARTS_FILE
    data = path.read_bytes() if path.exists() else b""
    return tuple(_decode(data[: data.rfind(b"\n") + 1], path))
