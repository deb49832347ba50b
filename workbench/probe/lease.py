"""Who uses a server that a probe started: the last one to finish stops it, so that none stops it under another."""

import fcntl
from types import TracebackType
from typing import Self

from workbench.server.state import ServerRecord


class Lease:
    """A shared lock on a server, held while it is used.

    A server that a probe started is marked as passing by the process that started it; one that somebody wants to
    keep is not. `last` tells, when the lease is given up, whether nobody else holds one.
    """

    def __init__(self, record: ServerRecord) -> None:
        self.record = record
        self.last = False
        self._mark = record.folder / "passing"
        record.folder.mkdir(parents=True, exist_ok=True)
        self._file = open(record.folder / ".users", "w", encoding="utf-8")  # noqa: SIM115 - open while it is held
        fcntl.flock(self._file, fcntl.LOCK_SH)

    def mark_passing(self) -> None:
        """Let the last user stop this server."""
        self._mark.write_text(self._identity(), encoding="utf-8")

    def keep(self) -> None:
        """Let nobody stop this server by itself."""
        self._mark.unlink(missing_ok=True)

    @property
    def passing(self) -> bool:
        """Whether this very server is to be stopped by its last user."""
        try:
            return self._mark.read_text(encoding="utf-8") == self._identity()
        except OSError:
            return False

    def _identity(self) -> str:
        return f"{self.record.pid} {self.record.since_boot}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the lease up; with an exclusive lock in hand nobody else uses the server."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.last = True
        except OSError:
            self.last = False
        finally:
            self._file.close()
