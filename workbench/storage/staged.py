"""A data set's writer whose files go on to a store: the folder is only where they wait."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from workbench.errors import Missing
from workbench.extract.durable import leftovers, replace_bytes
from workbench.extract.index import INDEX_FILE, IndexLine, read_lines
from workbench.extract.pool import WorkerPool
from workbench.extract.record import RunRecord
from workbench.extract.writer import DatasetWriter, Recovery
from workbench.storage import light
from workbench.storage.parts import Parts
from workbench.storage.store import Store
from workbench.storage.uploader import Uploader


def align(folder: Path, stored: dict[int, IndexLine]) -> None:
    """Rewrite the staging folder's index: what is stored, and what is not yet but lies here whole.

    Another machine may have gone on with the run meanwhile; what the parts say goes before what is here.
    """
    here = {entry.index: entry for entry in read_lines(folder) if isinstance(entry, IndexLine)}
    waiting = {row: line for row, line in here.items() if row not in stored and _whole(folder, line)}
    lines = [line for _, line in sorted({**waiting, **stored}.items())]
    folder.mkdir(parents=True, exist_ok=True)
    replace_bytes(folder / INDEX_FILE, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def _whole(folder: Path, line: IndexLine) -> bool:
    try:
        return not line.file or (folder / line.file).stat().st_size == line.nbytes
    except OSError:
        return False


class StagedWriter(DatasetWriter):
    """Writes as `DatasetWriter` does; each line, and the file it names, is then handed to the uploader.

    Args:
        store: Where the data set goes.
        parts: Loaded.
        stored: Lines that the parts hold.
        uploader: Running.
    """

    def __init__(
        self,
        folder: Path,
        record: RunRecord,
        pool: WorkerPool,
        *,
        store: Store,
        parts: Parts,
        stored: dict[int, IndexLine],
        uploader: Uploader,
        max_bad: int | None = None,
    ) -> None:
        align(folder, stored)
        super().__init__(folder, record, pool, max_bad=max_bad)
        self._store, self._parts, self._stored, self.uploader = store, parts, stored, uploader

    @property
    def waiting(self) -> int:
        """Rows that are done here and not recorded there yet."""
        return self.uploader.left

    def _record(self, lines: Sequence[IndexLine]) -> None:
        super()._record(lines)
        for line in lines:
            self.uploader.submit(self.index.get(line.index) or line)

    def recover(self) -> Recovery:
        """Put folder and store right: see the base class. What waited here is sent, what is stored leaves here."""
        removed = [path.relative_to(self.folder).as_posix() for path in leftovers(self.folder)]
        lines = {line.index: line for line in self.index.lines()}
        waiting = {line.file for row, line in lines.items() if row not in self._stored and line.file}
        removed += [file for file in self._samples_here() if file not in waiting]
        for file in removed:
            (self.folder / file).unlink(missing_ok=True)
        redo, orphans = self._against_store()
        self._parts.forget(self._stored[row].file for row in redo)
        self._store.remove(orphans)
        self._store.abort_uploads()
        for row in redo:
            self.index.forget(row)
            self._stored.pop(row, None)
            (self.folder / light.light_name(row)).unlink(missing_ok=True)
        for row, line in lines.items():
            if row not in self._stored and row not in redo:
                self.uploader.submit(line)
        return Recovery(len(self.index), tuple([*removed, *orphans]), tuple(redo))

    def _samples_here(self) -> Iterator[str]:
        for parent, _, names in os.walk(self.folder):
            for name in names:
                file = (Path(parent) / name).relative_to(self.folder).as_posix()
                if self.layout.index_of(file) is not None:
                    yield file

    def _against_store(self) -> tuple[list[int], list[str]]:
        """Rows whose object is gone or of another size, and objects that no part knows: they were never finished."""
        there = self._store.names()
        known = {line.file: line for line in self._stored.values() if line.file}
        redo = [line.index for file, line in known.items() if there.get(file) != line.nbytes]
        again = {self._stored[row].file for row in redo}
        samples = [file for file in there if self.layout.index_of(file) is not None]
        return sorted(redo), [file for file in samples if file not in known or file in again]

    def finalise(self) -> list[str]:
        """Make the side files and store them, then the run's description, and the whole index last of all.

        Nothing is stored unless every row is recorded: what has an `index.jsonl` is whole.
        """
        lines = self.index.lines()
        if self.waiting or len(lines) < len(self.record.rows()):
            return []
        if self._parts.sealed:
            return []
        self._parts.refuse_newer()
        made = self._side_files(lines)
        if self.layout.arrow and any(line.status == "written" for line in lines):
            made += ["dataset_info.json", "state.json"]
        for name in made:
            self._store.put(self.folder / name, name, replace=True)
        old = [name for name in self._store.top() if name.endswith(".arrow") and name not in made]
        self._store.remove(old)
        self._parts.seal(self.record, lines, self.folder)
        return made

    def _side_files(self, lines: list[IndexLine]) -> list[str]:
        from workbench.extract.writer import finalise

        written = [line for line in lines if line.status == "written"]
        for parent in {(self.folder / line.file).parent for line in written}:
            parent.mkdir(parents=True, exist_ok=True)
        files = light.fetch_missing(self._store, self.folder, written) if self.layout.arrow else None
        try:
            return finalise(self.folder, self.record, lines, self.pool, files)
        except OSError as error:
            raise Missing(f"{self.folder}: the side files cannot be written: {error}", "is the disk full?") from error
