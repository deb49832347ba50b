"""An audit's report on the screen."""

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from workbench.extract.audit.report import VerifyReport
from workbench.render import verify
from workbench.render.text import number
from workbench.tui import glyphs
from workbench.tui.glyphs import Level
from workbench.tui.widgets.extraction_facts import marked

LEVELS: dict[str, Level] = {"ok": "good", "failed": "bad", "warning": "warn", "skipped": "off"}


def report_in(output: str) -> VerifyReport | None:
    """The report that `hsbench verify --json` printed; None when it printed none."""
    lines = [line for line in output.splitlines() if line.strip()]
    if not lines:
        return None
    try:
        return msgspec.json.decode(lines[-1].encode(), type=VerifyReport)
    except msgspec.MsgspecError:
        return None


def verdict_line(report: VerifyReport) -> Text:
    """In one line: what came of it."""
    bad = sum(not problem.warning for problem in report.problems)
    word = "verified" if report.verdict == "ok" else "faulty"
    warnings = len(report.problems) - bad
    words = f"  {report.checked:,} of {report.samples:,} files read whole, {bad} faults, {warnings} warnings"
    return marked("good" if report.verdict == "ok" else "bad", word).append(words)


def audit_report(report: VerifyReport) -> RenderableType:
    """The whole report, as wide as the place it is shown in."""
    checks = Table.grid(padding=(0, 2))
    for check in report.checks:
        sign = glyphs.sign(LEVELS.get(check.outcome, "warn"), check.outcome)
        checks.add_row(sign, Text(glyphs.plain(check.name)), Text(glyphs.plain(check.detail), style="dim"))
    parts: list[RenderableType] = [verdict_line(report), Text(glyphs.plain(verify._head(report)), style="dim"), Text()]
    parts += [checks]
    if report.tensors:
        parts += [Text(), _sizes(report)]
    problems = [Text(glyphs.plain(line)) for line in verify._problems(report)]
    return Group(*parts, *([Text(), *problems] if problems else []))


def _sizes(report: VerifyReport) -> Table:
    sizes = Table.grid(padding=(0, 2))
    sizes.add_row(*(Text(name, style="dim") for name in ("state", "median row norm", "median std")))
    for place, told in verify._numbered(report):
        row = (verify._state(report, place), number(told.get("row_norm"), 4), number(told.get("std"), 4))
        sizes.add_row(*(Text(glyphs.plain(cell)) for cell in row))
    return sizes
