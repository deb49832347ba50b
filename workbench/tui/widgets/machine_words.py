"""The words of the Machine mode: jobs, vitals, the doctor's findings, what a job says."""

import math
import time
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from workbench.render.charts import fit
from workbench.render.text import ASCII_BARS, BARS, duration, room
from workbench.supervision.doctor import Finding
from workbench.supervision.records import GpuSample
from workbench.tui import glyphs
from workbench.tui.glyphs import Level
from workbench.tui.sources.machine import Detail, JobView, Report, Room, Snapshot, Vitals
from workbench.tui.widgets.plain import pairs
from workbench.tui.widgets.table import Column, Row
from workbench.tui.widgets.topline import LEVELS as SERVER_LEVELS

WHAT = 24
"""Columns of what a job does."""
LAST = 120
COLUMNS = (
    Column("kind", 11),
    Column("state", 13),
    Column("what", WHAT + 1),
    Column("since", 9),
    Column("took", 11, True),
    Column("exit", 5, True),
    Column("  last word", LAST),
)
"""Their widths hold the blanks between them. All but the last fit into 80 columns."""
BEFORE_LAST = sum(column.width or 0 for column in COLUMNS[:-1])
LEVELS: dict[str, Level] = {
    **SERVER_LEVELS,
    "done": "good",
    "running": "busy",
    "preflight": "busy",
    "finishing": "busy",
    "restarting": "warn",
    "paused": "warn",
    "stopped": "off",
}
FINDING: dict[str, Level] = {"ok": "good", "note": "warn", "problem": "bad"}
FULL = 0.9
"""A share from which on something is nearly full."""


def job_row(job: JobView, room: int) -> Row:
    """A line of a table of so many columns."""
    what = _end_of(job.what) if job.kind == "extraction" else job.what
    cells = (
        job.kind,
        glyphs.sign(LEVELS.get(job.state, "bad"), job.state),
        fit(what, WHAT, glyphs.is_ascii()).rstrip(),
        since(job.since),
        took(job.seconds),
        "" if job.exit_code is None else str(job.exit_code),
        Text("  " + fit(job.last, max(0, min(LAST, room - BEFORE_LAST) - 2), glyphs.is_ascii()).rstrip(), style="dim"),
    )
    return Row(job.key, cells, {name: getattr(job, name) for name in job.__struct_fields__})


def _end_of(path: str) -> str:
    """The end of a long path says more than its beginning."""
    mark = "~" if glyphs.is_ascii() else "…"
    return path if len(path) <= WHAT else f"{mark}{path[1 - WHAT :]}"


def matches(job: JobView, words: str) -> bool:
    """Whether a job is kept by a filter."""
    return words.casefold() in f"{job.kind} {job.what} {job.state} {job.last}".casefold()


def since(when: float) -> str:
    """The time of day, or the day when it is another."""
    if not math.isfinite(when) or when <= 0:
        return ""
    there, today = time.localtime(when), time.localtime()
    return time.strftime("%H:%M:%S" if there[:3] == today[:3] else "%d %b", there)


def took(seconds: float | None) -> str:
    """A time that may be unknown."""
    return duration(seconds) if seconds is not None and math.isfinite(seconds) else ""


def percent(share: float | None) -> str:
    """A share of 0 to 1 that may be unknown."""
    return f"{share:3.0%}" if share is not None and math.isfinite(share) else "n/a"


def summary(seen: Snapshot) -> Text:
    """The machine in one line, where there is no room for tiles."""
    vitals = seen.vitals
    load = f"{vitals.load[0]:.1f}" if vitals.load else "n/a"
    gpus = f"GPUs {len(vitals.gpus)}" if vitals.gpus else "no GPU"
    parts = [
        Text(f"cpu {percent(vitals.cpu)}"),
        Text(f"load {load}"),
        _filled("mem", vitals.memory),
        _filled("disk", vitals.disk),
        Text(gpus),
        verdict(seen.report),
    ]
    return Text("  ").join(parts)


def _filled(name: str, held: Room) -> Text:
    words = f"{name} {room(held.used, held.total)}"
    return glyphs.sign("warn", words) if held.share >= FULL else Text(words)


def verdict(report: Report) -> Text:
    """The doctor's report in a few words."""
    if report.examining and not report.findings:
        return glyphs.sign("busy", "examining")
    problems = report.count("problem")
    word = f"{problems} problem{'s' if problems != 1 else ''}" if problems else "fit"
    return glyphs.sign("bad" if problems else "good", word)


def report_title(report: Report) -> str:
    """Counts by level."""
    counts = ", ".join(f"{report.count(level)} {level}" for level in ("problem", "note", "ok"))
    return f"Doctor: {counts}" if report.findings else "Doctor"


def report_text(report: Report) -> Table | Text:
    """Problems first, each with what to do."""
    if not report.findings:
        return glyphs.sign("busy", "examining…" if not glyphs.is_ascii() else "examining")
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, width=9)
    table.add_column(no_wrap=True, width=8)
    table.add_column(overflow="fold", ratio=1)
    order = list(FINDING)[::-1]
    for finding in sorted(report.findings, key=lambda one: order.index(one.level)):
        table.add_row(*_finding(finding))
    return table


def _finding(finding: Finding) -> tuple[Text, Text, Text]:
    text = Text(glyphs.plain(finding.text))
    if finding.next_step:
        text.append(f"\nnext: {glyphs.plain(finding.next_step)}", style="bold")
    level = glyphs.sign(FINDING.get(finding.level, "warn"), finding.level)
    return level, Text(glyphs.plain(finding.area), style="dim"), text


def machine_text(seen: Snapshot, width: int) -> Text:
    """Bars, GPUs, versions and places, for so many columns."""
    vitals = seen.vitals
    rows: list[tuple[str, str | Text]] = [
        ("cpu", _bar(vitals.cpu, f"{len(vitals.cores)} cores, load {_load(vitals)}", width)),
    ]
    if vitals.cores:
        rows.append(("cores", core_bars(vitals.cores, max(8, width - 12))))
    rows.append(("memory", _room_bar(vitals.memory, width)))
    rows.append(("disk", _room_bar(vitals.disk, width)))
    if vitals.shm is not None:
        rows.append(("/dev/shm", _room_bar(vitals.shm, width)))
    rows += [(f"GPU {gpu.index}", gpu_text(gpu, width)) for gpu in vitals.gpus]
    if not vitals.gpus:
        rows.append(("GPU", glyphs.sign("off", f"none: {vitals.no_gpu}" if vitals.no_gpu else "none")))
    rows += list(seen.places)
    rows += list(seen.versions)
    return pairs(rows, 12)


def core_bars(cores: Sequence[float], width: int) -> Text:
    """A character a core, as high as it is busy; as many a line as fit."""
    levels = ASCII_BARS if glyphs.is_ascii() else BARS
    shown = "".join(levels[_step(share, len(levels))] for share in cores)
    lines = [shown[start : start + width] for start in range(0, len(shown), width)]
    return Text(f"\n{'':14}".join(lines), style="cyan")


def _step(share: float, steps: int) -> int:
    return min(steps - 1, int(share * steps)) if math.isfinite(share) and share > 0 else 0


def gpu_text(gpu: GpuSample, width: int) -> Text:
    """How busy, how full, how warm with work."""
    text = _bar(gpu.busy if gpu.busy is not None else math.nan, room(gpu.used, gpu.total), width)
    if gpu.power_w is not None:
        limit = f"/{gpu.power_limit_w:.0f}" if gpu.power_limit_w is not None else ""
        text.append(f"  {gpu.power_w:.0f}{limit} W")
    return text.append(glyphs.plain(f"  {gpu.name}"), style="dim")


def _load(vitals: Vitals) -> str:
    return " ".join(f"{one:.2f}" for one in vitals.load) or "n/a"


def _room_bar(held: Room, width: int) -> Text:
    return _bar(held.share, room(held.used, held.total), width)


def _bar(share: float, words: str, width: int) -> Text:
    text = Text().append(glyphs.bar(share, 16 if width >= 60 else 8), style=_style(share))
    return text.append(f" {percent(share):>4}  ").append(words)


def _style(share: float) -> str:
    return "yellow" if math.isfinite(share) and share >= FULL else "cyan"


def detail_text(detail: Detail | None) -> Text:
    """What a job says, its narration before its output."""
    if detail is None:
        return Text("no job is selected", style="dim")
    text = Text("\n".join(glyphs.plain(line) for line in detail.narration), style="dim" if detail.output else "")
    if detail.output:
        text.append("\n" if detail.narration else "")
        text.append("\n".join(glyphs.plain(line) for line in detail.output), style="not dim")
    return text if text.plain else Text("it has said nothing yet", style="dim")
