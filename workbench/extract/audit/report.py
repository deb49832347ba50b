"""What an audit says, as frozen records."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

Outcome = Literal["ok", "failed", "warning", "skipped"]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One fault. `check` is the name of the check that found it."""

    check: str
    message: str
    index: int | None = None
    """The row, where the fault belongs to one."""
    file: str = ""
    """Path below the data set's folder."""
    warning: bool = False
    """Worth knowing, but no reason to distrust the data."""


class Check(msgspec.Struct, frozen=True):
    """One kind of check. `detail` says what it covered, what was found, or why it was not made."""

    name: str
    outcome: Outcome
    detail: str


class Progress(msgspec.Struct, frozen=True):
    """How far the reading of files is."""

    done: int
    total: int
    nbytes: int
    seconds: float


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an audit. `verdict` is ``ok`` when no problem is more than a warning."""

    folder: str
    format: str
    samples: int
    """Sample files of the data set."""
    checked: int
    """Those that were read whole."""
    tokens: int
    trained: int
    nbytes: int
    read_seconds: float
    """For reading the files, the start of the workers included; `seconds` is the whole audit."""
    seconds: float
    verdict: Literal["ok", "failed"]
    checks: tuple[Check, ...]
    problems: tuple[Problem, ...]
    after_block: tuple[int, ...] = ()
    final_norm: str = ""
    tensors: tuple[dict[str, Any], ...] = ()
    """Of each state: its name and the run's median `row_norm` and `std`."""


def outcome(name: str, problems: Sequence[Problem], detail: str) -> Check:
    """The check's line, from the problems that it found."""
    own = [problem for problem in problems if problem.check == name]
    bad = [problem for problem in own if not problem.warning]
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        where = bad[0].file or (f"row {bad[0].index}" if bad[0].index is not None else "")
        return Check(name, "failed", f"{where}: {bad[0].message}{more}".removeprefix(": "))
    if own:
        return Check(name, "warning", own[0].message + (f" and {len(own) - 1} more" if len(own) > 1 else ""))
    return Check(name, "ok", detail)
