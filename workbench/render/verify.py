"""An audit's report as a table or as Markdown."""

from workbench.extract.audit.report import Problem, Progress, VerifyReport
from workbench.render.text import columns, number, plain_table, size, speaks_unicode

SHOWN = 20
"""Problems listed one by one; the rest is counted, and in the JSON."""


def progress_text(event: Progress) -> str:
    """One line of narration."""
    rate = event.nbytes / event.seconds if event.seconds > 0 else 0.0
    return f"{event.done} of {event.total} files, {size(event.nbytes)}, {size(rate)}/s"


def verify_text(report: VerifyReport) -> str:
    """The report for a terminal."""
    marks = {"ok": "✓", "failed": "✗", "warning": "!", "skipped": "-"} if speaks_unicode() else {}
    rows = [[marks.get(c.outcome, c.outcome), c.name, c.detail] for c in report.checks]
    parts = [_head(report), plain_table("", ["", "check", "what was found"], rows, columns(), left=3)]
    if report.tensors:
        sizes = [
            [_state(report, place), number(t["row_norm"], 4), number(t["std"], 4)] for place, t in _numbered(report)
        ]
        parts.append(plain_table("", ["state", "median row norm", "median std"], sizes, columns()))
    if listed := _problems(report):
        parts.append("\n".join(listed))
    parts.append(f"verdict: {report.verdict}")
    return "\n\n".join(parts)


def verify_markdown(report: VerifyReport) -> str:
    """The report as Markdown."""
    lines = [
        f"# hsbench verify: {report.verdict}",
        "",
        _head(report),
        "",
        "| check | outcome | what was found |",
        "|---|---|---|",
    ]
    lines += [f"| {c.name} | {c.outcome} | {_cell(c.detail)} |" for c in report.checks]
    if report.tensors:
        lines += ["", "| state | median row norm | median std |", "|---|---:|---:|"]
        lines += [
            f"| {_state(report, place)} | {number(t['row_norm'], 4)} | {number(t['std'], 4)} |"
            for place, t in _numbered(report)
        ]
    if listed := _problems(report):
        lines += ["", *(f"- {_cell(line)}" for line in listed)]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _head(report: VerifyReport) -> str:
    rate = report.nbytes / report.read_seconds if report.read_seconds > 0 else 0.0
    share = report.trained / max(1, report.tokens)
    return (
        f"{report.folder}: {report.samples:,} samples of {report.format}, {report.checked:,} read whole "
        f"({size(report.nbytes)}, {report.tokens:,} tokens, {share:.1%} trained on) "
        f"at {size(rate)}/s, {report.seconds:.1f} s in all"
    )


def _numbered(report: VerifyReport) -> list[tuple[int, dict[str, float | None]]]:
    return list(enumerate(report.tensors))


def _state(report: VerifyReport, place: int) -> str:
    if place == len(report.tensors) - 1:
        return f"last, {report.final_norm}-norm"
    return f"aux {place}" + (f", block {report.after_block[place]}" if place < len(report.after_block) else "")


def _problems(report: VerifyReport) -> list[str]:
    worst_first = sorted(report.problems, key=lambda problem: problem.warning)
    lines = [f"{'warning' if p.warning else 'fault'}, {p.check}: {_where(p)}{p.message}" for p in worst_first[:SHOWN]]
    if len(worst_first) > SHOWN:
        lines.append(f"and {len(worst_first) - SHOWN} more (--json has all)")
    return lines


def _where(problem: Problem) -> str:
    if problem.file:
        return f"{problem.file}: "
    return f"row {problem.index}: " if problem.index is not None else ""
