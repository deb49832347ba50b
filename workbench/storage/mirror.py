"""A data set at a URL, seen as a folder: small files are copied, samples are empty files of the right size.

So the audit of folders looks at a URL as it is: a sample that is read is fetched for that long, in ranges several at a
time, and emptied again. What is on this disk at a time are the small files and one sample a worker.
"""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from workbench.errors import UsageError
from workbench.extract.index import INDEX_FILE, IndexLine
from workbench.extract.record import RECORD_FILE
from workbench.storage.errors import called
from workbench.storage.parts import Parts, lines_of
from workbench.storage.remote import RUN_FILE, load_run
from workbench.storage.store import Store

OWN = ("index/",)
"""What only a URL has, and belongs to no format."""
COPIED = (".json", ".arrow")
"""Ends of the names of side files."""
_RUN = (f"/{RUN_FILE}", f"/{RECORD_FILE}")
"""Ends of the names that tell of a run below the URL."""
_SHARD = re.compile(r"shard_\d+-of-\d+/")


class Mirror:
    """A folder that looks like the data set at a URL. Use it with `with`.

    Args:
        store: Of the URL.
        folder: An empty one.
    """

    def __init__(self, store: Store, folder: Path) -> None:
        self.folder, self.name = folder, store.url
        self._store = store
        self._objects: dict[str, str] = {}
        """The object of each file."""
        self._sizes: dict[str, int] = {}

    @classmethod
    @contextlib.contextmanager
    def of(cls, url: str) -> Iterator["Mirror"]:
        """The mirror of a URL, gone after the block.

        Raises:
            UsageError: there is no data set.
        """
        store = Store.open(url)
        with (
            tempfile.TemporaryDirectory(prefix="hsbench-mirror-") as folder,
            called(Path(folder), store.url),
            cls(store, Path(folder)) as mirror,
        ):
            yield mirror

    def __enter__(self) -> Self:
        names = {name: size for name, size in self._store.names().items() if not name.startswith(OWN)}
        record = self._store.read(RECORD_FILE)
        run = load_run(self._store) if record is None else None
        if record is None and run is None:
            if not names:
                raise UsageError(f"there is nothing at {self.name}", "name the URL of --out")
            if any(_SHARD.match(name) for name in names):
                raise UsageError(f"{self.name} holds shards", "name one of them, or join them: hsbench extract --merge")
            if runs := sorted({name[: -len(end)] for name in names for end in _RUN if name.endswith(end)}):
                shown = ", ".join(runs[:3]) + (", …" if len(runs) > 3 else "")
                raise UsageError(
                    f"{self.name} is no data set: below it are {shown}", f"name one: {self.name}/{runs[0]}"
                )
        if run is not None:
            (self.folder / RECORD_FILE).write_bytes(msgspec.json.encode(run))
        self._index(names)
        for name, size in names.items():
            if _SHARD.match(name) or name == INDEX_FILE:
                continue
            self._take(name, name, size)
        return self

    def _index(self, names: dict[str, int]) -> None:
        """The index as it would be in a folder; a merged one points into its shards, whose samples are then ours."""
        data = self._store.read(INDEX_FILE) if INDEX_FILE in names else None
        if data is None:
            lines = list(Parts(self._store).load().values())
            if lines:
                self._write_index(lines)
            return
        lines, _ = lines_of(data, INDEX_FILE)
        merged = []
        for line in lines:
            file = _SHARD.sub("", line.file, count=1)
            if file != line.file and line.file in names:
                self._take(line.file, file, names[line.file])
            merged.append(msgspec.structs.replace(line, file=file))
        self._write_index(merged)

    def _write_index(self, lines: list[IndexLine]) -> None:
        with open(self.folder / INDEX_FILE, "wb") as file:
            file.writelines(msgspec.json.encode(line) + b"\n" for line in sorted(lines, key=lambda line: line.index))

    def _take(self, name: str, file: str, size: int) -> None:
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        self._objects[file], self._sizes[file] = name, size
        path.touch()
        if file.endswith(COPIED):
            self._fill(file)
        else:
            os.truncate(path, size)

    def _fill(self, file: str) -> None:
        with open(self.folder / file, "wb") as target:
            for data in self._store.ranges(self._objects[file], self._sizes[file]):
                target.write(data)

    @contextlib.contextmanager
    def fetch(self, file: str) -> Iterator[None]:
        """Have a sample's bytes in its file during the block."""
        self._fill(file)
        try:
            yield
        finally:
            os.truncate(self.folder / file, 0)  # gives the blocks back
            os.truncate(self.folder / file, self._sizes[file])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._objects.clear()
