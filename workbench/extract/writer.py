"""The data set being written: one dump in, one durable file and one line of the index out. See `DatasetWriter`."""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from workbench.errors import BadSample, CheckFailed, Missing
from workbench.extract.commits import Commits
from workbench.extract.durable import leftovers, replace_json, sync_file, sync_folder, temporary_name
from workbench.extract.formats import layout
from workbench.extract.index import Index, IndexLine, TensorFacts
from workbench.extract.pool import WorkerPool
from workbench.extract.record import RunRecord, load_record, refuse_differences, save_record
from workbench.extract.sample import Refused, Sample

BAD_SHARE = 0.01
BAD_AT_LEAST = 10
SYNCING = 16
"""Files being synced besides those that workers are at: enough for a disk that is slow to answer and wide."""


class Recovery(msgspec.Struct, frozen=True):
    """What was found and put right when a folder was opened again."""

    done: int
    """Rows that need nothing more."""
    removed: tuple[str, ...]
    """Temporary files, and files without a line in the index."""
    redo: tuple[int, ...]
    """Rows with a line whose file is gone or of another size."""


class DatasetWriter:
    """A data set folder open for writing. Its methods may be called from several threads; one process a folder.

    Args:
        folder: The data set's folder, which readers are given.
        record: The run. When the folder is of a run already, it must not differ in what decides the samples.
        pool: Workers that check and convert.
        quarantine: Receives bad dumps; outside the data set's tree, since readers walk that. Default: beside it.
        max_bad: Bad dumps after which `write` gives up; by default 1 % of the rows, at least 10.

    Raises:
        UsageError: the folder is of another run.
    """

    def __init__(
        self,
        folder: Path,
        record: RunRecord,
        pool: WorkerPool,
        *,
        quarantine: Path | None = None,
        max_bad: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder.absolute()
        self.layout = layout(record.format)
        self.quarantine = quarantine or self.folder.with_name(f"{self.folder.name}.quarantine")
        old = load_record(self.folder)
        if old is None:
            save_record(self.folder, record)
        else:
            refuse_differences(old, record)
        self.record = old or record
        self.index = Index(self.folder)
        self.pool = pool
        self._commits = Commits(self._record)
        self._clock = clock
        self._max_bad = max_bad if max_bad is not None else max(BAD_AT_LEAST, int(BAD_SHARE * len(record.rows())))
        self._lock = threading.Lock()
        self._bad = 0

    def recover(self) -> Recovery:
        """Put a folder right after a crash: call it before the first `write`, with no other process writing.

        Temporary files go, and so do sample files without a line in the index: they were never finished. A line whose
        file is missing or has another size is taken back, so that the row is done again.
        """
        removed = list(leftovers(self.folder))
        lines = self.index.lines()
        written = {line.file for line in lines if line.status == "written"}
        for parent, _, names in os.walk(self.folder):
            for name in names:
                relative = (Path(parent) / name).relative_to(self.folder).as_posix()
                if self.layout.index_of(relative) is not None and relative not in written:
                    removed.append(Path(parent) / name)
        for path in removed:
            path.unlink(missing_ok=True)
        redo = [line.index for line in lines if line.status == "written" and not self._whole(line)]
        for index in redo:
            self.index.forget(index)
        return Recovery(
            len(self.index), tuple(path.relative_to(self.folder).as_posix() for path in removed), tuple(redo)
        )

    def _whole(self, line: IndexLine) -> bool:
        try:
            return (self.folder / line.file).stat().st_size == line.nbytes
        except OSError:
            return False

    def write(self, sample: Sample, dump: Path, *, free: bool = True) -> IndexLine:
        """Check a dump and add it to the data set; a bad one goes to the quarantine instead, and its line says so.

        Args:
            sample: What was sent.
            dump: The finished dump folder.
            free: Remove the dump once its line is in the index.

        Raises:
            CheckFailed: too many dumps were bad.
            Missing: the disk is full or a worker died; nothing was recorded, and the dump is still there.
        """
        file = self.layout.file_of(sample.index)
        path = self.folder / file
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            sync_folder(self.folder)
        building = temporary_name(path)
        try:
            found = self._convert(sample, dump, building)
        except BadSample as error:
            return self._set_aside(sample, dump, error, free)
        line = _line(sample, file, found, self._clock())
        self._publish(building, path, line)
        if free:
            shutil.rmtree(dump, ignore_errors=True)
        return line

    def _publish(self, building: Path, path: Path, line: IndexLine) -> None:
        try:
            sync_file(building)
            self._commits.add(building, path, line)
        except OSError as error:
            building.unlink(missing_ok=True)
            raise Missing(f"{path} cannot be written: {error}", "is the disk full?") from error

    def _convert(self, sample: Sample, dump: Path, building: Path) -> dict[str, Any]:
        found: dict[str, Any] = self.pool.call(
            "convert",
            folder=str(dump.absolute()),
            target=str(building),
            kind=self.record.format,
            input_ids=list(sample.input_ids),
            mask="".join(map(str, sample.loss_mask)),
            states=msgspec.to_builtins(self.record.states),
        )
        return found

    def _record(self, lines: Sequence[IndexLine]) -> None:
        try:
            self.index.extend(lines)
        except OSError as error:
            raise Missing(f"{self.index.path} cannot be written: {error}", "is the disk full?") from error

    def lose(self, sample: Sample, reason: str) -> IndexLine:
        """Record a row of which no dump could be had.

        Raises:
            CheckFailed: too many rows are bad.
        """
        line = _bad_line(sample, reason, self._clock())
        self._record([line])
        self._count_bad(reason)
        return line

    def refuse(self, refused: Refused) -> IndexLine:
        """Record a row that never goes to the server."""
        line = IndexLine(index=refused.index, status="refused", reason=refused.reason, time=self._clock())
        self._record([line])
        return line

    def _set_aside(self, sample: Sample, dump: Path, error: BadSample, free: bool) -> IndexLine:
        place = self.quarantine / f"sample_{sample.index}"
        with contextlib.suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            shutil.copytree(dump, place / dump.name, dirs_exist_ok=True)
        about = {"index": sample.index, "reason": error.message, "next_step": error.next_step, "dump": dump.name}
        with contextlib.suppress(OSError):
            replace_json(place / "reason.json", about)
        line = _bad_line(sample, error.message, self._clock())
        self._record([line])
        if free:
            shutil.rmtree(dump, ignore_errors=True)
        self._count_bad(error.message, error.next_step)
        return line

    def _count_bad(self, reason: str, next_step: str = "") -> None:
        with self._lock:
            self._bad += 1
            if self._bad > self._max_bad:
                raise CheckFailed(
                    f"{self._bad} samples were bad, the last one: {reason}",
                    next_step or f"{self.quarantine} has them with the reasons; hsbench probe checks the server",
                )

    @property
    def at_once(self) -> int:
        """Samples that are best written at once: some wait for the disk while the workers have others."""
        return self.pool.size + SYNCING

    @property
    def waiting(self) -> int:
        """Rows that have a line here and are not yet where the data set goes."""
        return 0

    def finalise(self) -> list[str]:
        """Write the files that readers want beside the samples, from the index alone; may be called at any time.

        Returns their paths below the folder.
        """
        try:
            return finalise(self.folder, self.record, self.index.lines(), self.pool)
        except OSError as error:
            raise Missing(f"{self.folder}: the side files cannot be written: {error}", "is the disk full?") from error

    def close(self) -> None:
        """Give the index back; the pool is the caller's."""
        self.index.close()


def finalise(
    folder: Path,
    record: RunRecord,
    lines: list[IndexLine],
    pool: WorkerPool,
    files: dict[str, str] | None = None,
) -> list[str]:
    """Make the side files of a data set from its index; each is replaced atomically.

    Args:
        folder: Of the data set.
        record: The run.
        lines: The index.
        pool: Workers.
        files: By row number, files below `folder` with ids and masks for the Arrow data set; by default the samples.
    """
    written = [line for line in lines if line.status == "written"]
    kind = layout(record.format)
    made = []
    for name, value in kind.side_files(record, written).items():
        replace_json(folder / name, value, indent=None if name.endswith("lengths.json") else 2)
        made.append(name)
    if kind.arrow and written:
        files = files if files is not None else {str(line.index): line.file for line in written}
        rows = 1 + max((line.index for line in written), default=-1)
        made += pool.call("write_arrow", folder=str(folder), files=files, rows=rows)["files"]
    return made


def _bad_line(sample: Sample, reason: str, now: float) -> IndexLine:
    return IndexLine(
        index=sample.index,
        status="quarantined",
        tokens=len(sample.input_ids),
        trained=sum(sample.loss_mask),
        reason=reason,
        time=now,
    )


def _line(sample: Sample, file: str, found: dict[str, Any], now: float) -> IndexLine:
    facts = tuple(TensorFacts(f["row_norm"], f["std"], f["low"], f["high"]) for f in found["facts"])
    return IndexLine(
        index=sample.index,
        status="written",
        file=file,
        nbytes=found["nbytes"],
        crc32=found["crc32"],
        tokens=found["tokens"],
        trained=found["trained"],
        truncated=sample.truncated,
        ids=found["ids"],
        mask=found["mask"],
        facts=facts,
        request_id=found["request_id"],
        time=now,
    )
