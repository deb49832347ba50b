"""A sweep's events as lines, and its table of decisions with a chart of intervals that needs no colour."""

from bench.sweep.records import (
    Began,
    BudgetSpent,
    Confirming,
    Ended,
    Finished,
    Planned,
    Row,
    StartRecord,
    SweepEvent,
    Table,
)
from bench.sweep.stats import Decision
from workbench.render.text import duration, harmless, plain_table, short, speaks_unicode

DECODE, PREFILL = "decode_tok_s", "prefill_tok_s"
CHART = 41
"""Columns of an interval's line."""


def event_text(event: SweepEvent) -> str:
    """One line; the table is many."""
    match event:
        case Planned():
            left = "".join(f"; {name} left out: {why}" for name, why in event.left_out)
            text = f"{event.starts} starts of {len(event.variants)} variants, {event.finished} finished{harmless(left)}"
        case Began():
            text = f"{event.start.key}: {harmless(event.settings)}"
        case Finished():
            text = f"{event.record.start.key}: {_start_text(event.record)}"
        case Ended():
            text = f"{event.variant} ends: {harmless(event.reason)}"
        case Confirming():
            names = ", ".join(event.variants)
            text = f"started afresh, since they looked faster: {names}" if names else "nothing looked faster"
        case BudgetSpent():
            text = f"the budget is spent, {event.left} starts are left; the same command goes on"
        case Table():
            text = table_text(event)
    return text


def _start_text(record: StartRecord) -> str:
    took = f" ({duration(record.seconds)})"
    if record.measured is None:
        return f"{record.outcome}{': ' + harmless(record.reason) if record.reason else ''}{took}"
    prefill = record.measured.prefill_tok_s
    speeds = f"decode {short(record.measured.decode_tok_s)} tok/s"
    return f"{speeds}{f', prefill {short(prefill)} tok/s' if prefill else ''}{took}"


def table_text(table: Table) -> str:
    """Decisions, their intervals as a chart, and what served."""
    base = ", ".join(f"{name.removesuffix('_tok_s')} {short(value)} tok/s" for name, value in table.baseline.items())
    drift = "" if table.drift is None else f"; it drifted by {table.drift:+.1%} from the first start to the last"
    parts = [f"baseline: {base or 'never measured'}{drift}"]
    header = ["variant", "verdict", "decode ratio (90 %)", "starts", "prefill", "settings"]
    parts.append(plain_table("", header, [_cells(row) for row in table.rows], left=2))
    if chart := interval_chart(table):
        parts.append(chart)
    parts += [f"{row.variant}: {harmless(row.reason)}" for row in table.rows if row.reason]
    parts += [f"{row.variant}: {row.served.meaning}" for row in table.rows if row.served is not None]
    parts += [f"not counted: {harmless(said)}" for said in table.invalid]
    if not table.complete:
        parts.append("the sweep is not complete: the same command goes on")
    return "\n".join(parts)


def _cells(row: Row) -> list[str]:
    decode, prefill = row.decisions.get(DECODE), row.decisions.get(PREFILL)
    more = f", {decode.more_blocks} more blocks would tell" if decode is not None and decode.more_blocks else ""
    fresh = " (fresh)" if row.stage == "confirm" else ""
    return [
        row.variant,
        f"{row.verdict}{more}",
        _ratio(decode),
        f"{decode.blocks if decode else 0}{fresh}",
        f"{prefill.word} {_ratio(prefill)}" if prefill is not None else "-",
        harmless(row.settings),
    ]


def _ratio(decision: Decision | None) -> str:
    if decision is None or decision.ratio is None:
        return "-"
    if decision.low is None or decision.high is None:
        return f"{decision.ratio:.3f}"
    return f"{decision.ratio:.3f} ({decision.low:.3f} to {decision.high:.3f})"


def interval_chart(table: Table) -> str:
    """A line a variant: its interval of decode speed over the baseline's; the bar marks 1 and the margin's ends."""
    held = {row.variant: row.decisions.get(DECODE) for row in table.rows}
    known = {
        name: (one.low, one.ratio, one.high)
        for name, one in held.items()
        if one is not None and one.low is not None and one.ratio is not None and one.high is not None
    }
    if not known:
        return ""
    low = min(1 - 2 * table.margin, *(low for low, _, _ in known.values()))
    high = max(1 + 2 * table.margin, *(high for _, _, high in known.values()))
    width = max(map(len, known))

    def place(value: float) -> int:
        return round((value - low) / (high - low) * (CHART - 1))

    lines = [f"{name:>{width}} {_line(tuple(map(place, ends)), place(1.0))}" for name, ends in known.items()]
    return "\n".join([*lines, f"{'':{width}} {low:<.3f}{'':{CHART - 10}}{high:.3f}"])


def _line(ends: tuple[int, ...], one: int) -> str:
    first, middle, last = ends
    dash, dot, bar = ("─", "●", "│") if speaks_unicode() else ("-", "o", "|")
    cells = [" "] * CHART
    cells[one] = bar
    for column in range(first, last + 1):
        cells[column] = dash
    cells[middle] = dot
    return "".join(cells).rstrip()
