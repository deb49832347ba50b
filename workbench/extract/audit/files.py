"""Reading sample files with all cores, and comparing each with its line in the index."""

import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import msgspec

from workbench.extract.audit.report import Problem, Progress
from workbench.extract.audit.structure import Found
from workbench.extract.index import IndexLine
from workbench.extract.pool import WorkerPool

TELL_EVERY_S = 2.0
FILES_A_WORKER = 8
"""A worker takes seconds to start; fewer files than this are not worth another."""
CHECKS = {"unreadable": "files", "shape": "tensors", "ids": "ids", "mask": "mask", "values": "values", "norm": "norm"}
"""The check that a fault of `probes.audit.Fault` counts for."""


Fetch = Callable[[str], contextlib.AbstractContextManager[None]]
"""Has a file, named by its path below the data set's folder, lie there for a while."""


def at_hand(file: str) -> contextlib.AbstractContextManager[None]:
    """For a data set whose files are there anyway."""
    return contextlib.nullcontext()


class FilesRead(msgspec.Struct, frozen=True):
    """What the files hold, by row, and what is wrong with them."""

    audits: dict[int, dict[str, Any]]
    problems: tuple[Problem, ...]
    seconds: float


def read_files(
    found: Found, rows: Sequence[int], pool: WorkerPool, model: str | None, fetch: Fetch = at_hand
) -> Generator[Progress, None, FilesRead]:
    """Read the files of these rows whole, as many at once as the pool has workers.

    Args:
        found: The data set.
        rows: Rows that have a file.
        pool: Workers.
        model: Model folder whose final norm the last states are compared with; None leaves that out.
        fetch: For files that are not there.
    """
    audits: dict[int, dict[str, Any]] = {}
    began = told = time.monotonic()
    nbytes = 0
    many = min(pool.size, 1 + len(rows) // FILES_A_WORKER)
    with concurrent.futures.ThreadPoolExecutor(many, "verify") as threads:
        waiting = {threads.submit(_audit, found, row, pool, model, fetch): row for row in rows}
        try:
            for future in concurrent.futures.as_completed(waiting):
                audits[waiting[future]] = future.result()
                nbytes += audits[waiting[future]]["nbytes"]
                if time.monotonic() - told > TELL_EVERY_S:
                    told = time.monotonic()
                    yield Progress(len(audits), len(rows), nbytes, told - began)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    seconds = time.monotonic() - began
    yield Progress(len(audits), len(rows), nbytes, seconds)
    return FilesRead(audits, tuple(_problems(found, audits)), seconds)


def _audit(found: Found, row: int, pool: WorkerPool, model: str | None, fetch: Fetch) -> dict[str, Any]:
    states = found.record.states if found.record is not None else None
    with fetch(found.files[row]):
        whole: dict[str, Any] = pool.call(
            "audit_file",
            path=str((found.folder / found.files[row]).absolute()),
            kind=found.layout.name,
            tensors=len(states.after_block) + 1 if states else None,
            hidden_size=states.hidden_size if states else None,
            dtype=states.dtype if states else None,
            model=model,
        )
    return whole


def _problems(found: Found, audits: dict[int, dict[str, Any]]) -> Iterator[Problem]:
    owners = {line.ids: line.index for line in found.written()}
    for row in sorted(audits):
        audit, file = audits[row], found.files[row]
        for fault in audit["faults"]:
            yield Problem(check=CHECKS[fault["check"]], index=row, file=file, message=fault["message"])
        line = found.lines.get(row)
        if line is not None and line.status == "written" and audit["ids"]:
            for check, message in _against_line(line, audit, owners):
                yield Problem(check=check, index=row, file=file, message=message)


def _against_line(line: IndexLine, audit: dict[str, Any], owners: dict[str, int]) -> Iterator[tuple[str, str]]:
    if audit["ids"] != line.ids:
        owner = owners.get(audit["ids"])
        yield "ids", "its token ids are not the row's" + (f" but those of row {owner}" if owner is not None else "")
    if audit["mask"] and audit["mask"] != line.mask:
        yield "mask", "its loss mask is not the one that was written"
    if audit["crc32"] != line.crc32:
        yield "checksum", f"its crc32 is {audit['crc32']}, the index says {line.crc32}: changed after it was written"
