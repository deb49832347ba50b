"""Comparing samples with the data set that they were made of: ids and masks are rendered again."""

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.errors import HsbenchError
from workbench.extract.audit.report import Check, Problem, outcome
from workbench.extract.audit.structure import Found
from workbench.extract.dataset import Dataset, DatasetSettings
from workbench.extract.pool import WorkerPool
from workbench.extract.sample import Refused, Sample

NAME = "source"


def digest(values: Sequence[int]) -> str:
    """As `probes.convert.digest`; the machines that this runs on are little-endian."""
    return hashlib.sha256(array("q", values).tobytes()).hexdigest()[:16]


def against_source(
    found: Found, audits: Mapping[int, Mapping[str, Any]], pool: WorkerPool, path: str | None, model: str | None
) -> tuple[list[Problem], Check]:
    """Render the rows again and compare; skipped, with the reason, when the source cannot be opened.

    Args:
        found: The data set.
        audits: What its files hold, by row.
        pool: Workers.
        path: The source, when it is not where it was.
        model: The tokenizer's folder, when it is not where it was.
    """
    record = found.record
    if record is None and path is None:
        return [], Check(NAME, "skipped", "not known; name it with --source")
    source = record.source if record is not None else None
    settings = DatasetSettings(
        path=path or (source.path if source else ""),
        model=model or (source.tokenizer if source else None),
        max_seq_len=source.max_seq_len if source else None,
        form=source.form if source else None,
    )
    with pool.borrow() as worker:
        try:
            data = Dataset.open(settings, worker)
        except HsbenchError as error:
            if path is not None:
                raise
            return [], Check(NAME, "skipped", f"{error.message}; name it with --source")
        problems = []
        if source is not None and data.fingerprint != source.fingerprint:
            message = f"{settings.path} or its tokenizer has changed since the run"
            problems.append(Problem(check=NAME, message=message, warning=True))
        rows = [row for row in sorted(audits) if audits[row]["ids"] and row < data.rows]
        for row in data.samples(rows):
            problems += _compare(found, audits, row)
    return problems, outcome(NAME, problems, f"ids and masks of {len(rows)} rows are those of {settings.path}")


def _compare(found: Found, audits: Mapping[int, Mapping[str, Any]], row: Sample | Refused) -> list[Problem]:
    held, file = audits[row.index], found.files[row.index]
    if isinstance(row, Refused):
        return [Problem(check=NAME, index=row.index, file=file, message=f"the source's row is no sample: {row.reason}")]
    if held["ids"] != digest(row.input_ids):
        owner = next((other for other, audit in audits.items() if audit["ids"] == digest(row.input_ids)), None)
        where = "" if owner is None else f"; those are in the file of row {owner}"
        message = f"its token ids are not those of the source's row{where}"
        return [Problem(check=NAME, index=row.index, file=file, message=message)]
    if held["mask"] and held["mask"] != digest(row.loss_mask):
        message = "its loss mask is not that of the source's row" + _shift(held["mask"], row.loss_mask)
        return [Problem(check=NAME, index=row.index, file=file, message=message)]
    return []


def _shift(held: str, mask: Sequence[int]) -> str:
    whole = list(mask)
    shifted = {
        "later": ([0, *whole[:-1]], [whole[0], *whole[:-1]], [whole[-1], *whole[:-1]]),
        "earlier": ([*whole[1:], 0], [*whole[1:], whole[-1]], [*whole[1:], whole[0]]),
    }
    for way, candidates in shifted.items():
        if held in map(digest, candidates):
            return f": shifted by one token, {way}"
    return ""


def against_arrow(found: Found, audits: Mapping[int, Mapping[str, Any]], pool: WorkerPool) -> list[Problem]:
    """Compare the Arrow data set's rows with the files beside them."""
    rows = [row for row in sorted(audits) if audits[row]["ids"]]
    try:
        held = pool.call("audit_arrow", folder=str(found.folder.absolute()), numbers=rows)
    except HsbenchError as error:
        return [Problem(check="side files", file="state.json", message=error.message)]
    problems = []
    for row, entry in zip(rows, held, strict=True):
        if (entry["ids"], entry["mask"]) != (audits[row]["ids"], audits[row]["mask"] or entry["mask"]):
            message = f"row {row} of the Arrow data set does not fit the file"
            problems.append(Problem(check="side files", index=row, file=found.files[row], message=message))
    return problems
