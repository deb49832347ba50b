"""A run's facts as lines: what is known of it, `~` before an estimate and `≥` before a lower bound."""

import math
import time
from collections.abc import Callable

from rich.cells import cell_len
from rich.text import Text

from workbench.extract.job.events import Told
from workbench.extract.watch.view import RunView
from workbench.render.text import duration, room, short, size
from workbench.tui import glyphs
from workbench.tui.glyphs import Level
from workbench.tui.sources.extraction import Detail, RunRow
from workbench.tui.widgets.plain import pairs

LEVELS: dict[str, Level] = {
    "preflight": "busy",
    "running": "busy",
    "finishing": "busy",
    "paused": "warn",
    "restarting": "warn",
    "waiting": "off",
    "still": "warn",
    "done": "good",
    "stopped": "off",
    "failed": "bad",
    "killed": "bad",
}
BAR = 30
"""Columns of the progress bar at most."""
GAUGE = 12
LABEL = 9
"""Columns of the names before the facts."""
AT_WORK = ("running", "finishing", "waiting", "paused")
"""States in which the list tells how far a run is."""
Kind = Callable[[float], str]


def level_of(state: str) -> Level:
    """How a state is shown."""
    return LEVELS.get(state, "off")


def run_sign(row: RunRow, verdict: str = "") -> Text:
    """The list's word for a run: how far it is while it is at work, else its state, or what its audit said."""
    if row.kind == "lost":
        return glyphs.sign("warn", "lost")
    if verdict and not row.running:
        return glyphs.sign("good", "verified") if verdict == "ok" else glyphs.sign("bad", "faulty")
    if not row.state:
        return glyphs.sign("off", "foreign")
    far = f"{100 * min(1.0, row.written / row.rows):.1f} %" if row.rows and row.state in AT_WORK else ""
    return glyphs.sign(level_of(row.state), far or row.state)


def marked(level: Level, word: str) -> Text:
    """A sign that plain words may follow."""
    return Text().append_text(glyphs.sign(level, word))


def value(number: float | None, write: Kind) -> str:
    """A number in words; a dash for what is not known or not finite."""
    if number is None or not math.isfinite(number):
        return "-"
    return write(number)


def about(view: RunView, *names: str) -> str:
    """What stands before a number of these fields."""
    if set(names) & set(view.at_least):
        return ">= " if glyphs.is_ascii() else "≥ "
    return "~" if set(names) & set(view.estimated) else ""


def facts(detail: Detail, width: int, verdict: Text | None = None) -> Text:
    """All lines for the selected run, for a panel of that many columns."""
    if detail.view is None:
        return _nothing(detail)
    view = detail.view
    text = Text()
    for line in (_state(detail, view), *_asides(detail, view), _progress(view, width)):
        text.append_text(line).append("\n")
    rows: list[tuple[str, str | Text]] = [*_samples(view, width), ("tokens", _tokens(view))]
    rows += [("rate", _rate(view)), ("writing", _writing(view))]
    if view.plain_share is not None:
        rows.insert(3, ("share", f"{value(100 * view.plain_share, '{:.1f}'.format)} % of plain prefill"))
    rows += [("dumps", _dumps(view)), ("waiting", _waiting(view)), ("disk", _disk(view)), ("trouble", _trouble(view))]
    if verdict is not None:
        rows.append(("audit", verdict))
    return text.append_text(pairs(rows))


def _nothing(detail: Detail) -> Text:
    text = marked("warn", "lost").append(f"  {glyphs.plain(detail.problem)}")
    if detail.next_step:
        text.append("\nnext  ", style="dim").append(glyphs.plain(detail.next_step))
    return text


def _state(detail: Detail, view: RunView) -> Text:
    text = marked(level_of(view.state), view.state)
    why = view.why
    if detail.pausing and detail.running and view.state != "paused":
        why = "it is asked to pause"
    if why:
        text.append(f"  {glyphs.plain(why)}")
    return text


def _asides(detail: Detail, view: RunView) -> list[Text]:
    found = []
    if detail.remark:
        found.append(Text(glyphs.plain(detail.remark), style="yellow"))
    if view.next_step:
        found.append(Text().append("next  ", style="dim").append(glyphs.plain(view.next_step)))
    return found


def _progress(view: RunView, width: int) -> Text:
    share = view.share
    if share is None:
        return Text(f"{about(view, 'written')}{view.written:,} samples of an unknown number", style="dim")
    eta = ""
    if view.eta_s is not None and not view.over:
        eta = f"   ETA {about(view, 'eta_s')}{value(view.eta_s, duration)}"
    percent = f" {about(view, 'written', 'rows')}{100 * share:.1f} %"
    line = glyphs.bar(share, max(8, min(BAR, width - len(percent) - len(eta) - 1)))
    style = "green" if view.state == "done" else "cyan"
    return Text().append(line, style=style).append(percent, style="bold").append(eta)


def _samples(view: RunView, width: int) -> list[tuple[str, Text]]:
    """How many there are, and how many there will not be, below it where one line has no room for both."""
    total = f" / {about(view, 'rows')}{view.rows:,}" if view.rows else ""
    text = Text(f"{about(view, 'written')}{view.written:,}{total}")
    if view.kind == "foreign":
        return [("samples", text)]
    without = Text(f"{view.quarantined:,} quarantined", style="bold red" if view.quarantined else "dim")
    if view.refused:
        without = Text(f"{view.refused:,} refused", style="yellow").append("   ").append_text(without)
    if LABEL + text.cell_len + 3 + without.cell_len > width:
        return [("samples", text), ("", without)]
    return [("samples", text.append("   ").append_text(without))]


def _tokens(view: RunView) -> str:
    expected = ""
    if view.tokens_expected is not None:
        expected = f" / {about(view, 'tokens_expected')}{value(view.tokens_expected, _short)}"
    written = f"   {about(view, 'nbytes')}{value(view.nbytes, size)} written" if view.nbytes is not None else ""
    return f"{about(view, 'tokens')}{value(view.tokens, _short)}{expected}{written}"


def _short(number: float) -> str:
    return short(number, " ")


def _rate(view: RunView) -> str:
    by_tokens = view.tok_s_now is not None or view.tok_s_avg is not None
    field, unit = ("tok_s", "tok/s") if by_tokens else ("samples_s", "samples/s")
    return _now_and_average(view, field, short, f" {unit}")


def _now_and_average(view: RunView, field: str, write: Kind, unit: str) -> str:
    now, average = getattr(view, f"{field}_now"), getattr(view, f"{field}_avg")
    if now is None and average is None:
        return "-"
    mean = f"{about(view, f'{field}_avg')}{value(average, write)}"
    if now is None:
        return f"{mean}{unit} avg"
    return f"{about(view, f'{field}_now')}{value(now, write)}{unit} now   {mean} avg"


def _writing(view: RunView) -> str:
    return _now_and_average(view, "bytes_s", size, "/s")


def _dumps(view: RunView) -> str:
    counter = "-" if view.dump_n is None else f"req_{view.dump_n}"
    flying = f"   {view.in_flight} in flight" if view.in_flight else ""
    where = f"   {about(view, 'dump_dir')}{view.dump_dir}" if view.dump_dir else ""
    return f"{counter}{flying}{where}"


def _waiting(view: RunView) -> Text:
    if view.waiting_bytes is None:
        return Text("-")
    text = Text()
    if view.high_water_bytes:
        share = view.waiting_bytes / view.high_water_bytes
        style = "cyan" if share < 0.7 else "yellow" if share < 1 else "bold red"
        text.append(glyphs.bar(share, GAUGE), style=style).append(" ")
    return text.append(f"{about(view, 'waiting_bytes')}{room(view.waiting_bytes, view.high_water_bytes or None)}")


def _disk(view: RunView) -> str:
    if view.free_bytes is None:
        return "-"
    needed = ""
    if view.tokens and view.nbytes and view.tokens_expected and not view.over:
        left = view.nbytes / view.tokens * max(0.0, view.tokens_expected - view.tokens)
        needed = f"   {value(left, size)} still to come"
    return f"{room(view.free_bytes)} free{needed}"


def _trouble(view: RunView) -> Text:
    if view.kind == "foreign":
        return Text("-")
    text = Text()
    for one, many, count in (("restart", "restarts", view.restarts), ("retry", "retries", view.retries)):
        text.append(f"{count} {one if count == 1 else many}   ", style="yellow" if count else "dim")
    return text


def messages(view: RunView) -> Text:
    """The last warnings and errors, the newest first."""
    if not view.messages:
        return Text("no warning, no error", style="dim")
    return Text("\n").join(told_line(told) for told in reversed(view.messages))


def told_line(told: Told) -> Text:
    """One thing that the job told."""
    glyph: Level = "bad" if told.level == "error" else "warn" if told.level == "warning" else "off"
    row = "" if told.index is None or told.text.startswith(f"row {told.index} ") else f"row {told.index}: "
    text = marked(glyph, told.level).append(f" {clock(told.time)} ", style="dim")
    return text.append(f"{row}{glyphs.plain(told.text)}")


def clock(when: float) -> str:
    """The time of day, with the date if it was not today."""
    try:
        then, today = time.localtime(when), time.localtime()
    except (OverflowError, ValueError, OSError):
        return "-"
    return time.strftime("%H:%M:%S" if then[:3] == today[:3] else "%m-%d %H:%M", then)


def slowest(view: RunView) -> Text:
    """The samples that took longest."""
    if not view.slowest:
        return Text("none yet", style="dim")
    lines = [f"row {one.index:<8} {value(one.seconds, duration):>10}  {one.tokens:,} tokens" for one in view.slowest]
    return Text("\n".join(lines))


def plot(view: RunView) -> list[tuple[float, float]]:
    """The rate's history in minutes before its last point."""
    if len(view.history) < 2:
        return []
    end = view.history[-1][0]
    return [((when - end) / 60, rate) for when, rate in view.history]


def lines_of(text: Text, width: int) -> int:
    """Lines that a text takes at most at that width; where that stays the same nothing needs to be laid out anew."""
    return sum(max(1, math.ceil(cell_len(line) / width)) for line in text.plain.split("\n"))
