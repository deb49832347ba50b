"""Finished sample files become part of a data set in groups.

On a file system with a journal each sync waits for all data that other files have under way, so one after another they
take as long as the largest of them. While one group is made durable the next one gathers; each is one sync of a
folder and one of the index, however many samples it has.
"""

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from workbench.extract.durable import sync_folder
from workbench.extract.index import IndexLine


class Finished(msgspec.Struct):
    """A synced file under its temporary name, what it is to be called, and its line."""

    building: Path
    path: Path
    line: IndexLine
    done: bool = False
    error: Exception | None = None


class Commits:
    """Gives files their names and the index their lines, durably and in that order. Safe for threads.

    Args:
        record: Adds lines to the index and syncs it; all of them or none.
    """

    def __init__(self, record: Callable[[Sequence[IndexLine]], None]) -> None:
        self._record = record
        self._waiting: list[Finished] = []
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    def add(self, building: Path, path: Path, line: IndexLine) -> None:
        """Return once the file has its name and the index has its line.

        Raises what renaming or recording raises; of a group that could not be recorded, for each of it.
        """
        mine = Finished(building, path, line)
        with self._lock:
            self._waiting.append(mine)
        with self._turn:
            if not mine.done:  # nobody took it along: this thread takes all that wait by now
                with self._lock:
                    group, self._waiting = self._waiting, []
                self._commit(group)
        if mine.error is not None:
            raise mine.error

    def _commit(self, group: list[Finished]) -> None:
        try:
            named = [one for one in group if self._name(one)]
            for folder in {one.path.parent for one in named}:
                sync_folder(folder)
            if named:
                self._record([one.line for one in named])
        except Exception as error:
            for one in group:
                one.error = one.error or error
        finally:
            for one in group:
                one.done = True

    def _name(self, one: Finished) -> bool:
        try:
            os.replace(one.building, one.path)
        except OSError as error:
            one.error = error
        return one.error is None
