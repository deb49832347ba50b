"""The audit as an operation: a generator of notes and progress, the report last."""

import contextlib
import random
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import msgspec

from workbench.extract.audit import bands, deep
from workbench.extract.audit.files import Fetch, FilesRead, at_hand, read_files
from workbench.extract.audit.report import Check, Problem, Progress, VerifyReport, outcome
from workbench.extract.audit.source import against_arrow, against_source
from workbench.extract.audit.structure import Found, look
from workbench.extract.pool import WorkerPool
from workbench.server.events import Note

SAMPLE = 200
DEEP = 8


class VerifyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to look at."""

    folder: Path
    name: str = ""
    """What people call the data set by, where that is not its folder."""
    sample: int | None = SAMPLE
    """Files read whole, chosen at random; None means all. The structure is always looked at whole."""
    partial: bool = False
    """The run is not finished: missing rows and side files are no problem."""
    source: str | None = None
    model: str | None = None
    """Model folder for tokenizer, final norm, LM head and reference; by default the one that the run names."""
    reference: bool = False
    deep: int = DEEP
    """Samples that are compared with a server or the reference."""
    seed: int = 0


def verify(
    options: VerifyOptions, pool: WorkerPool, server: deep.Recapture | None = None, fetch: Fetch = at_hand
) -> Iterator[Note | Progress | VerifyReport]:
    """Audit a data set. The report comes last; it names every problem and never raises for one.

    Args:
        options: What to look at.
        pool: Workers in an interpreter with torch; files are read by as many as it has.
        server: Captures samples again; see `deep.ServerRecapture`.
        fetch: For files that are not in the folder; only their sizes are then.

    Raises:
        UsageError: there is no data set.
        CheckFailed, Missing: the model, the source named by hand or the server cannot be used.
    """
    began = time.monotonic()
    found = look(options.folder, options.partial)
    model = options.model or _model_of(found)
    rows = _chosen(found, options)
    place = options.name or options.folder
    yield Note(f"{place}: {len(found.files)} samples of {found.layout.name}, reading {len(rows)}")
    read = yield from read_files(found, rows, pool, model, fetch)
    problems, checks = [*found.problems, *read.problems], []
    outside, medians = bands.judge(_facts(read), found.files)
    problems += outside
    if found.layout.arrow and not any(p.check == "side files" and p.file.endswith(".json") for p in problems):
        problems += against_arrow(found, read.audits, pool)
    more, check = against_source(found, read.audits, pool, options.source, model)
    problems += more
    checks.append(check)
    broken = {problem.index for problem in problems if problem.check == "files"}
    sound = [row for row in rows if row not in broken]
    few = sorted(random.Random(options.seed).sample(sound, min(options.deep, len(sound))))
    with contextlib.ExitStack() as there:
        for row in few if server is not None or options.reference else []:
            there.enter_context(fetch(found.files[row]))
        more, several = yield from _deeper(options, found, few, pool, server)
    problems += more
    checks += several
    if options.partial:
        problems = [_forgiven(problem) for problem in problems]
    yield _report(
        options,
        found,
        read,
        checks=[*_plain_checks(found, read, problems, model), *checks],
        problems=problems,
        medians=medians,
        seconds=time.monotonic() - began,
    )


def _deeper(
    options: VerifyOptions,
    found: Found,
    few: list[int],
    pool: WorkerPool,
    server: deep.Recapture | None,
) -> Generator[Note, None, tuple[list[Problem], list[Check]]]:
    """Compare a few of the samples that can be read with a server and with transformers, as far as asked for."""
    model, more, checks = options.model or _model_of(found), [], []
    if server is not None:
        yield Note(f"capturing {len(few)} samples again")
        found_bad, several = deep.against_server(found, few, pool, server, model)
        more += found_bad
        checks += several
    if options.reference:
        yield Note(f"computing {len(few)} samples with transformers in float32")
        found_bad, check = deep.against_reference(found, few, pool, model)
        more += found_bad
        checks.append(check)
    return more, checks


def _model_of(found: Found) -> str | None:
    """The model's folder as the run names it, if it is on this machine."""
    path = found.record.engine.model if found.record is not None else None
    return path if path is not None and (Path(path) / "config.json").exists() else None


def _chosen(found: Found, options: VerifyOptions) -> list[int]:
    rows = sorted(found.files)
    if options.sample is None or options.sample >= len(rows):
        return rows
    return sorted(random.Random(options.seed).sample(rows, options.sample))


def _facts(read: FilesRead) -> dict[int, Any]:
    return {row: audit["facts"] for row, audit in read.audits.items() if audit["facts"]}


def _forgiven(problem: Problem) -> Problem:
    unfinished = problem.check == "side files" or (problem.check == "files" and "does not know" in problem.message)
    return msgspec.structs.replace(problem, warning=True) if unfinished else problem


def _plain_checks(found: Found, read: FilesRead, problems: list[Problem], model: str | None) -> list[Check]:
    done, rows = len(read.audits), len(found.lines)
    short = bands.ENOUGH_SAMPLES
    whole = [
        outcome("index", problems, f"{rows} rows"),
        outcome("rows", problems, _fates(found)),
        outcome("duplicates", problems, "no row and no file twice"),
        outcome("files", problems, f"{done} read, none cut off or unreadable"),
        outcome("strays", problems, "no file of another origin"),
        outcome("side files", problems, "as the index has it"),
        outcome("checksum", problems, f"{done} files as they were written"),
        outcome("tensors", problems, "number, shape and dtype as the run says"),
        outcome("values", problems, "finite, no row zero, none constant"),
        outcome("ids", problems, "as the index has them"),
        outcome("mask", problems, "0 and 1, none all zero, as the index has them"),
        outcome("statistics", problems, "every state in the run's own bands"),
        outcome("norm", problems, f"last states are {found.layout.final_norm}-norm by the model's weight"),
    ]
    reasons = {
        "norm": ""
        if model and _judged(read)
        else "the model's final norm is not at hand; name its folder with --model",
        "statistics": "" if done >= short else f"fewer than {short} samples to learn from",
        **dict.fromkeys(("checksum", "ids", "index", "rows") if found.record is None else (), "no index"),
        **({"side files": "not written by hsbench"} if found.record is None else {}),
    }
    return [_unless_found(check, reasons.get(check.name, "")) for check in whole]


def _unless_found(check: Check, reason: str) -> Check:
    return Check(check.name, "skipped", reason) if reason and check.outcome == "ok" else check


def _judged(read: FilesRead) -> bool:
    return any(audit["norm_distance"] is not None for audit in read.audits.values())


def _fates(found: Found) -> str:
    counts = {"written": 0, "refused": 0, "quarantined": 0}
    for line in found.lines.values():
        counts[line.status] += 1
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "none"


def _report(
    options: VerifyOptions,
    found: Found,
    read: FilesRead,
    *,
    checks: list[Check],
    problems: list[Problem],
    medians: list[dict[str, Any]],
    seconds: float,
) -> VerifyReport:
    bad = any(not problem.warning for problem in problems)
    assert bad == any(check.outcome == "failed" for check in checks), "a problem without a check"
    return VerifyReport(
        folder=options.name or str(options.folder),
        format=found.layout.name,
        samples=len(found.files),
        checked=len(read.audits),
        tokens=sum(audit["tokens"] for audit in read.audits.values()),
        trained=sum(audit["trained"] or 0 for audit in read.audits.values()),
        nbytes=sum(audit["nbytes"] for audit in read.audits.values()),
        read_seconds=read.seconds,
        seconds=seconds,
        verdict="failed" if bad else "ok",
        checks=tuple(checks),
        problems=tuple(problems),
        after_block=found.record.states.after_block if found.record is not None else (),
        final_norm=found.layout.final_norm,
        tensors=tuple(medians),
    )
