"""A sweep's table of decisions as rows, with an interval against the baseline in a cell of each."""

from rich.text import Text

from bench.sweep.records import Row as Decided
from bench.sweep.stats import Decision
from bench.sweep.variants import BASELINE
from workbench.render import charts
from workbench.render.sweep import DECODE, PREFILL
from workbench.render.text import size
from workbench.tui import glyphs
from workbench.tui.glyphs import Level, plain, sign
from workbench.tui.sources.bench import SweepDetail
from workbench.tui.widgets.bench_words import STATES, known, rate
from workbench.tui.widgets.plain import pairs
from workbench.tui.widgets.table import Row

INTERVAL = 19
"""Columns of the drawn interval."""
CHOICES = 6
VERDICTS: dict[str, Level] = {"faster": "good", "slower": "warn", "same": "off", "undecided": "busy"}
LEFT_OUT = "left out"


def sweep_head(found: SweepDetail) -> Text:
    """Two lines about a sweep."""
    server, table = found.settings.server, found.table
    text = Text().append_text(sign(STATES.get(found.state, "warn"), found.state))
    text.append(f"  {found.done} of {found.planned} starts   {plain(server.get('model', ''))} ")
    text.append(plain(server.get("flags", "")))
    base = ", ".join(f"{name.removesuffix('_tok_s')} {rate(value)} tok/s" for name, value in table.baseline.items())
    drift = "" if known(table.drift) is None else f"; drifted by {table.drift:+.1%} from first to last"
    text.append(f"\nbaseline {plain(base) or 'never measured'}{drift}", style="dim")
    versions = "  ".join(f"{name} {server[name]}" for name in ("sglang", "torch", "device") if server.get(name))
    text.append(f"   {plain(versions)}   {found.settings.blocks} blocks, margin {table.margin:.0%}", style="dim")
    return text


def sweep_rows(found: SweepDetail) -> list[Row]:
    """The baseline, every variant, and those that were left out."""
    decided = found.table.rows
    drawn = charts.interval_cells(
        [(None, None, None), *(_ends(row.decisions.get(DECODE)) for row in decided)],
        INTERVAL,
        centre=1.0,
        ascii=glyphs.is_ascii(),
    )
    base = Row(BASELINE, (BASELINE, rate(found.tok_s.get(BASELINE)), drawn[0], "", Text(" -"), "", "as given"))
    rows = [_row(found, row, cell) for row, cell in zip(decided, drawn[1:], strict=True)]
    left = [
        Row(
            f"-{name}",
            (name, "", "", "", Text(" ").append_text(sign("off", LEFT_OUT)), "", why),
            {"variant": name, "left out": why},
        )
        for name, why in found.settings.left_out
    ]
    return [base, *rows, *left]


def _row(found: SweepDetail, row: Decided, cell: str) -> Row:
    decision = row.decisions.get(DECODE)
    shown = cell if decision is not None and known(decision.ratio) is not None else Text(plain(row.reason))
    cells = (
        row.variant,
        rate(found.tok_s.get(row.variant)),
        shown,
        change(decision),
        _verdict(row, decision),
        row.served.decode.value if row.served is not None else "",
        row.settings,
    )
    data = {"variant": row.variant, "verdict": row.verdict, "settings": row.settings, "decisions": row.decisions}
    return Row(row.variant, cells, data)


def _verdict(row: Decided, decision: Decision | None) -> Text:
    if row.verdict == "undecided" and (decision is None or not decision.blocks):
        return Text(" ").append_text(sign("off", "not yet"))
    return Text(" ").append_text(sign(VERDICTS.get(row.verdict, "bad"), row.verdict))


def _ends(decision: Decision | None) -> tuple[float | None, float | None, float | None]:
    """Without an interval the ratio alone."""
    if decision is None:
        return None, None, None
    low = decision.low if known(decision.low) is not None else decision.ratio
    high = decision.high if known(decision.high) is not None else decision.ratio
    return known(low), known(decision.ratio), known(high)


def change(decision: Decision | None) -> str:
    """Percent against the baseline, and half the interval's width, such as ``-12.3 ± 0.6 %``."""
    if decision is None or (ratio := known(decision.ratio)) is None:
        return ""
    text = f"{(ratio - 1) * 100:+.1f}"
    low, high = known(decision.low), known(decision.high)
    if low is not None and high is not None:
        text += f" {'+-' if glyphs.is_ascii() else '±'} {(high - low) * 50:.1f}"
    return f"{text} %"


def sweep_notes(found: SweepDetail, key: str | None) -> Text:
    """What is to be said of the selected variant."""
    row = next((row for row in found.table.rows if row.variant == key), None)
    if row is not None:
        return _notes(row)
    why = next((why for name, why in found.settings.left_out if f"-{name}" == key), None)
    if why is not None:
        return Text(f"left out: {plain(why)}")
    text = Text("the server as it is given; every ratio is to its start in the same block")
    for said in found.table.invalid:
        text.append("\n").append_text(sign("warn", f"not counted: {said}"))
    return text


def _notes(row: Decided) -> Text:
    decode, prefill = row.decisions.get(DECODE), row.decisions.get(PREFILL)
    lines: list[tuple[str, str | Text]] = [("settings", row.settings)]
    if row.reason:
        lines.append(("ended", sign("bad", f"{row.verdict}: {row.reason}")))
    if decode is not None and decode.blocks:
        fresh = " of fresh starts" if row.stage == "confirm" else ""
        more = f"; {decode.more_blocks} more would tell" if decode.more_blocks else ""
        lines.append(("decode", f"{decode.word} {change(decode)} by {decode.blocks} blocks{fresh}{more}"))
    if prefill is not None:
        lines.append(("prefill", f"{prefill.word} {change(prefill)}"))
    if row.served is not None:
        sure = "" if row.served.sure else " (by the settings alone)"
        lines.append(("served by", f"{row.served.decode.value}{sure}: {row.served.meaning}"))
    if row.choices:
        chosen = (f"{size(one.bytes)} {one.algorithm}/{one.protocol}x{one.channels}" for one in row.choices[:CHOICES])
        lines.append(("NCCL chose", ", ".join(chosen)))
    lines += [("note", note) for note in row.notes]
    return pairs(lines)
