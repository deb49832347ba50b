"""Words, cells and rows of the Bench mode: pure functions of what its source found."""

import math
import time
from collections.abc import Sequence

from rich.text import Text

from bench.load.compare import Difference
from bench.load.live import Beat
from bench.load.metrics import Spread
from bench.load.runner import Point
from workbench.render import charts
from workbench.render.text import duration, number
from workbench.render.text import short as decimal
from workbench.tui import glyphs
from workbench.tui.glyphs import Level, plain, sign
from workbench.tui.sources.bench import Comparison, Entry, RunDetail
from workbench.tui.widgets.plain import pairs
from workbench.tui.widgets.table import Row

STATES: dict[str, Level] = {"running": "busy", "finished": "good", "broken off": "warn", "unreadable": "bad"}
LIVE_KEY = "live"
STALE_S = 5.0
LIMITED = "CLIENT-LIMITED"


def known(value: float | None) -> float | None:
    """A finite number, or None."""
    return value if value is not None and math.isfinite(value) else None


def rate(value: float | None) -> str:
    """Tokens a second in a few characters."""
    found = known(value)
    if found is None:
        return "-"
    if abs(found) < 100_000:
        return f"{found:.1f}" if abs(found) < 1000 else f"{found:.0f}"
    return decimal(found)


def ms(value: float | None) -> str:
    """Seconds as milliseconds, with three digits."""
    found = known(value)
    if found is None:
        return "-"
    return f"{found * 1000:.0f}" if abs(found) >= 0.0995 else f"{found * 1000:#.3g}"


def entry_row(entry: Entry, marked: str | None) -> Row:
    """A run or a sweep in the list."""
    mark = ("m " if glyphs.is_ascii() else "◆ ") if entry.key == marked else ""
    name = entry.name if entry.kind == "sweep" else _short_name(entry)
    state = sign(STATES.get(entry.state, "warn"), entry.state)
    if entry.state == "running":
        state = sign("busy", f"{rate(entry.tok_s)} tok/s" if entry.tok_s is not None else "running")
    how_far = f"{entry.done}/{entry.of}" if entry.of else ""
    data = {"folder": entry.key, "kind": entry.kind, "state": entry.state, "about": entry.about}
    cells = (f"{mark}{name}", state, how_far, entry.kind, entry.about)
    return Row(entry.key, cells, data)


def _short_name(entry: Entry) -> str:
    """A run is known by when it began; one in a folder of its own choice by that."""
    try:
        return time.strftime("%m-%d %H:%M:%S", time.localtime(entry.began))
    except (ValueError, OverflowError, OSError):
        return entry.name


def matches(entry: Entry, words: str) -> bool:
    """Whether a filter lets it through: each word stands somewhere in it."""
    text = f"{entry.kind} {entry.name} {entry.state} {entry.about}".casefold()
    return all(word in text for word in words.casefold().split())


def run_head(found: RunDetail) -> Text:
    """Two or three lines about a run."""
    run, settings = found.run, found.run.settings
    facts = ", ".join(f"{name} {value}" for name, value in run.facts.items())
    why = f": {found.broken}" if found.broken else ""
    text = Text().append_text(sign(STATES.get(found.state, "warn"), found.state + why))
    text.append(f"  {plain(run.model)} at {plain(settings.url)} by {plain(settings.api)}")
    text.append(f"\nseed {settings.seed}" + (f"  data {plain(settings.data)}" if settings.data else ""), style="dim")
    if facts:
        text.append(f"  {plain(facts)}", style="dim")
    return text


def point_row(number_of_point: int, point: Point) -> Row:
    """A finished workload."""
    found = point.metrics
    signs = [sign("bad", LIMITED)] if point.client.limited else []
    more = len([note for note in point.notes if not note.startswith(LIMITED)])
    signs += [sign("warn", f"{more} note{'s' if more > 1 else ''}")] if more else []
    notes = Text(" ").append_text(Text("  ").join(signs or [sign("good", "clean")]))
    cells: tuple[str | Text, ...] = (
        point.workload.label,
        rate(found.batch_tok_s if known(found.batch_tok_s) is not None else found.whole_tok_s),
        _latency(found.ttft, "p50"),
        _latency(found.ttft, "p99"),
        _latency(found.tpot, "p50"),
        _latency(found.itl, "p99"),
        _latency(found.e2e, "p50"),
        sign("bad", str(found.failed)) if found.failed else "0",
        notes,
    )
    return Row(str(number_of_point), cells, {"workload": point.workload.label, "notes": point.notes})


def _latency(spread: Spread | None, name: str) -> str:
    return ms(getattr(spread, name) if spread is not None else None)


def live_row(beat: Beat) -> Row:
    """The workload that goes on."""
    notes = Text(" ").append_text(sign("busy", phase(beat)))
    if beat.limited:
        notes.append("  ").append_text(sign("bad", LIMITED))
    failed = sign("bad", str(beat.failed)) if beat.failed else "0"
    cells = (beat.workload, rate(beat.tok_s), ms(beat.ttft), "", ms(beat.tpot), "", "", failed, notes)
    return Row(LIVE_KEY, cells)


def phase(beat: Beat) -> str:
    """What is being done."""
    return f"warm-up, round {beat.round}" if beat.phase == "warm-up" else beat.phase


def live_text(beat: Beat, now: float, running: bool, width: int) -> Text:
    """How a run goes, in three lines."""
    word = phase(beat) if running else f"it broke off in {phase(beat)}"
    text = Text().append_text(sign("busy" if running else "warn", word))
    text.append(f"  {plain(beat.workload)}  ", style="bold").append_text(_how_far(beat, max(8, min(40, width - 60))))
    counts = f"requests {beat.done} done, {beat.failed} failed, {beat.in_flight} in flight"
    text.append(f"\n{counts}   tokens {decimal(beat.tokens)}   {duration(max(0.0, known(beat.at) or 0.0))}\n")
    figures = f"{rate(beat.tok_s)} tok/s   TTFT {ms(beat.ttft)} ms   TPOT {ms(beat.tpot)} ms   "
    text.append(figures, style="bold")
    if beat.limited:
        text.append_text(sign("bad", f"{LIMITED}: {', '.join(beat.limited)}"))
    else:
        text.append_text(sign("good", "client within bounds"))
    late = now - beat.time
    if running and late > STALE_S:
        text.append("   ").append_text(sign("warn", f"nothing told for {duration(late)}"))
    return text


def _how_far(beat: Beat, width: int) -> Text:
    if beat.asked:
        over = beat.done + beat.failed
        return Text(f"{glyphs.bar(over / beat.asked, width)} {over}/{beat.asked}")
    if beat.seconds:
        bar = glyphs.bar(beat.at / beat.seconds, width)
        return Text(f"{bar} {min(beat.at, beat.seconds):.0f}/{beat.seconds:.0f} s")
    return Text()


def notes_text(point: Point | None) -> Text:
    """What must be known of a point, and of its client."""
    if point is None:
        return Text()
    text = Text()
    for note in point.notes:
        line = sign("bad" if note.startswith(LIMITED) else "warn", note)
        text.append_text(line).append("\n")
    cost = point.client
    client = [f"CPU {ms_of(cost.cpu_us_per_token)} us/token", f"{known(cost.cpu_share) or 0:.0%} of a core"]
    client += [f"loop lag p99 {ms(cost.lag_p99)} ms"]
    goodput = point.metrics.good_s
    told = "" if goodput is None else f"; goodput {number(known(goodput), 4)}/s"
    return text.append(f"client {', '.join(client)}{told}; requests {point.metrics.requests}", style="dim")


def ms_of(value: float | None) -> str:
    """A number with three digits."""
    return number(known(value), 3)


def comparison_text(found: Comparison) -> Text:
    """Figure by figure, worse and better in words, and what speaks against believing it."""
    text = pairs([("A", found.first), ("B", found.second)]).append("\n")
    for caution in found.cautions:
        text.append_text(sign("warn", caution)).append("\n")
    workload = None
    for one in found.differences:
        if one.workload != workload:
            workload = one.workload
            text.append(f"\n{charts.fit(workload, 22, glyphs.is_ascii())}", style="bold")
            text.append(f"{'A':>12} {'B':>12} {'B/A':>9}  B is\n", style="dim")
        text.append_text(_difference_line(one)).append("\n")
    text.append("\none run a side: this has no interval, and starts of one server differ by a few percent", style="dim")
    return text


def _difference_line(one: Difference) -> Text:
    values = f"{number(known(one.first), 5):>12} {number(known(one.second), 5):>12} {number(known(one.ratio), 4):>9}  "
    line = Text(f"  {plain(one.measure):<20}{values}")
    if known(one.slower) is None or abs(one.slower) < 0.0005:
        return line.append_text(sign("off", "same"))
    word = f"{abs(one.slower):.1%} {'worse' if one.slower > 0 else 'better'}"
    return line.append_text(sign("warn" if one.slower > 0 else "good", word))


def series(beats: Sequence[Beat], of: str) -> list[tuple[float, float | None]]:
    """A figure of the beats over seconds ago; times in milliseconds."""
    if not beats:
        return []
    last, scale = beats[-1].time, 1.0 if of == "tok_s" else 1000.0
    values = ((beat.time - last, known(getattr(beat, of))) for beat in beats)
    return [(at, value * scale if value is not None else None) for at, value in values]
