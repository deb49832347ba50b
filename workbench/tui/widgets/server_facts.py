"""The small parts of the Server mode: list of servers, milestones, processes, GPUs and the machine."""

import math
import shlex
import time
from collections.abc import Iterator, Sequence

from rich.text import Text

from workbench.render.text import room
from workbench.server.survey import ServerStatus
from workbench.tui.glyphs import bar, is_ascii, plain, sign
from workbench.tui.services import TaskView
from workbench.tui.sources.server_facts import GpuRow, Machine, Phase, ProcessRow, ServerView
from workbench.tui.widgets.table import Column, Row
from workbench.tui.widgets.topline import LEVELS

SERVERS = (Column("name", 10), Column("state", 10), Column("up", 8, right=True))
PROCESSES = (
    Column("rank", 9),
    Column("pid", 8, right=True),
    Column("cpu", 8, right=True),
    Column("rss", 11, right=True),
    Column("read/s", 11, right=True),
    Column("  state", 12),
    Column("stack", 48),
)
ALARMS = {"ended": "bold red", "disk wait": "yellow"}
MARKS = {"done": ("✓", "+"), "running": ("▶", ">"), "ended here": ("✗", "X"), "to come": ("·", ".")}
STYLES = {"done": "green", "running": "bold cyan", "ended here": "bold red", "to come": "dim"}
SLOW = 3.0
"""So many times its known length is slow, as in `supervision.verdict.Limits`."""
TASK = "task:"
FAILED_S = 600.0
"""A launch that failed is listed for so long."""


def server_rows(servers: Sequence[ServerStatus], tasks: Sequence[TaskView]) -> Iterator[Row]:
    """Servers, and launches that have no server yet."""
    for status in servers:
        server = status.server
        cells = (server.name, sign(LEVELS.get(status.state, "warn"), status.state), up(status.seconds))
        data = {"name": server.name, "state": status.state, "url": server.url, "pid": server.pid, "log": server.log}
        yield Row(server.name, cells, data)
    there = {status.server.name for status in servers}
    for view in launches(tasks):
        name = launched(view.task.argv)
        if name not in there:
            there.add(name)
            state = sign("busy", "preparing") if view.state == "running" else sign("bad", "not begun")
            age = up(max(0.0, time.time() - view.task.started))
            yield Row(TASK + view.task.id, (name, state, age), {"name": name, "argv": view.task.argv})


def launches(tasks: Sequence[TaskView]) -> Iterator[TaskView]:
    """Tasks that start a server and go on, or failed a short while ago, the newest first."""
    for view in tasks:
        recent = time.time() - view.task.started < FAILED_S
        if view.task.kind == "serve" and (view.state == "running" or (view.state == "failed" and recent)):
            yield view


def launched(argv: Sequence[str]) -> str:
    """The name that a launch gives its server."""
    from workbench.server.specs import DEFAULT_NAME

    return argv[argv.index("--name") + 1] if "--name" in argv[:-1] else DEFAULT_NAME


def launch_text(view: TaskView, lines: int) -> Text:
    """What a launch that has no server yet is doing."""
    text = sign("busy", "preparing") if view.state == "running" else sign("bad", f"launch {view.state}")
    text.append(f"  $ hsbench {plain(shlex.join(view.task.argv))}", style="dim")
    for line in view.task.narration(lines):
        text.append(f"\n{plain(line)}")
    return text


def up(seconds: float) -> str:
    """A time in seven characters."""
    if not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d"
    return f"{hours} h {minutes:02}" if hours else f"{minutes}:{rest:02}"


def phases_text(view: ServerView, width: int) -> Text:
    """The start, phase by phase, beside what good starts took; `!` stands before a time that is far too long."""
    known = any(phase.known is not None for phase in view.phases) and width >= 28
    head = f"{'':16}{'took':>6}{'good':>8}" if known else f"{'':16}{'took':>5}"
    return Text("\n").join([Text(head, style="dim"), *(_phase(phase, known) for phase in view.phases)])


def _phase(phase: Phase, known: bool) -> Text:
    usual = phase.known if phase.known is not None else math.nan
    slow = phase.seconds is not None and phase.state != "to come" and phase.seconds > SLOW * max(1.0, usual)
    style = STYLES[phase.state]
    text = Text().append(f"{MARKS[phase.state][is_ascii()]} ", style=style)
    text.append(f"{phase.name:<14.13}", style="" if phase.state == "done" else style)
    text.append(f"{'!' * slow + short(phase.seconds):>{6 if known else 5}}", style="bold yellow" if slow else "")
    return text.append(f"{short(phase.known):>8}", style="dim") if known else text


def short(seconds: float | None) -> str:
    """Seconds in a few characters."""
    if seconds is None or not math.isfinite(seconds):
        return ""
    return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s" if seconds < 999 else f"{seconds / 60:.0f} min"


def process_table(rows: Sequence[ProcessRow]) -> Iterator[Row]:
    """Rows of the table of processes."""
    for one in rows:
        cells = (
            one.rank,
            str(one.pid),
            percent(one.cpu),
            room(one.rss),
            "" if one.read is None else f"{room(round(one.read, -3))}" if one.read >= 1000 else "-",
            Text(f"  {one.state}", style=ALARMS.get(one.state, "")),
            one.stack,
        )
        yield Row(f"{one.pid} {one.created}", cells, _data(one))


def _data(one: ProcessRow) -> dict[str, object]:
    return {name: getattr(one, name) for name in one.__struct_fields__}


def percent(share: float | None) -> str:
    """A share as per cent; nothing for what is not known."""
    return "" if share is None or not math.isfinite(share) else f"{100 * share:.0f} %"


def machine_text(view: ServerView, width: int) -> Text:
    """CPU, memory and GPUs."""
    lines = list(_machine(view.machine, width)) if view.machine else []
    if view.no_gpu:
        lines.append(Text(f"no GPU: {plain(view.no_gpu)}", style="dim"))
    elif view.gpus:
        head = f"{'GPU':<3}{'use':>6}{'memory':>11}{'W':>9}{'PCIe/s':>9}{'NVLink':>8}"
        lines += [Text(head[:width], style="dim"), *(_gpu(row, width) for row in view.gpus)]
    return Text("\n").join(lines)


def _machine(machine: Machine, width: int) -> Iterator[Text]:
    share = machine.used / machine.total if machine.total else 0.0
    wide = max(4, min(16, width - 26))
    load = f" {machine.load:.1f}/{machine.cores} load" if width >= 28 else ""
    yield Text().append("cpu ", style="dim").append(f"{bar(machine.cpu, wide)} {percent(machine.cpu):>5}{load}")
    style = "bold yellow" if share > 0.95 else ""
    memory = f" of {room(machine.total)}" if width >= 24 else ""
    yield Text().append("mem ", style="dim").append(f"{bar(share, wide)} {percent(share):>5}{memory}", style=style)


def _gpu(row: GpuRow, width: int) -> Text:
    """As many columns as there is room for, whole ones."""
    gpu = row.gpu
    limit = f"/{gpu.power_limit_w:.0f}" if gpu.power_limit_w else ""
    power = "" if gpu.power_w is None else f"{gpu.power_w:.0f}{limit}"
    cells = ((percent(gpu.busy), 6), (room(gpu.used, gpu.total), 11), (power, 9), (rate(gpu.traffic), 9))
    text = f"{gpu.index:<3}"
    for cell, wide in (*cells, (rate(row.nvlink), 8)):
        if len(text) + wide > width:
            break
        text += f"{cell:>{wide}}"
    return Text(text)


def rate(value: float | None) -> str:
    """Bytes a second in a few characters; nothing for what is not known."""
    return "" if value is None or not math.isfinite(value) else room(value)


def summary(view: ServerView) -> str:
    """The lower border of the milestones."""
    if view.known_seconds is None:
        return "no good start known"
    return f"good: {short(view.known_seconds)}"
