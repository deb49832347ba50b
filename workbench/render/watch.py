"""A look at a run: one line where nobody looks on, a block that is redrawn in place on a terminal."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING

from workbench.extract.watch.view import RunView
from workbench.render.charts import chart
from workbench.render.shards import shards_left, shards_table
from workbench.render.text import columns, duration, harmless, room, short, size, speaks_unicode

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType

SLOWEST = 3
"""Slow samples shown."""


def on_terminal() -> bool:
    """Whether a person looks on."""
    return sys.stdout.isatty()


def watch_line(view: RunView) -> str:
    """All in one line. ``~`` stands before an estimate."""
    state = [] if view.state == "running" and not view.why else [_state(view)]
    behind = [f"slowest {harmless(view.slowest_shard)}"] if view.slowest_shard else []
    parts = [*state, *(text for _, text in _facts(view)), *behind]
    return (" · " if speaks_unicode() else " | ").join(parts)


def watch_text(view: RunView) -> str:
    """The whole block as plain text."""
    import io

    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, width=columns(), no_color=True, color_system=None, highlight=False)
    console.print(watch_block(view, columns(), bar=False))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def watch_block(view: RunView, width: int, bar: bool) -> "Group":
    """What a terminal of that width shows, with a progress bar or without."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    # Text, never a string: a string is markup, and a folder's name may look like it.
    parts: list[RenderableType] = [Text(f"{harmless(view.folder)}: {_state(view)}", style="bold")]
    if view.share is not None and bar:
        line = Table.grid()  # a bar alone does not end its line
        line.add_row(ProgressBar(total=1.0, completed=view.share, width=min(width, 80)))
        parts.append(line)
    grid = Table.grid(padding=(0, 2))
    for label, text in (*_facts(view), *_more(view)):
        grid.add_row(Text(label, style="dim"), Text(text.removeprefix(f"{label} ")))
    parts.append(grid)
    if view.shards:
        parts.append(shards_table(view))
        parts.append(Text(shards_left(view)))
    if plot := _plot(view, width):
        parts.append(Text(plot))
    return Group(*parts)


def _state(view: RunView) -> str:
    return f"{view.state}: {harmless(view.why)}" if view.why else view.state


def _facts(view: RunView) -> list[tuple[str, str]]:
    """(label, text) of all that is known; each text can stand alone."""
    found = [("done", _percent(view)), ("samples", _samples(view)), ("tokens", _tokens(view)), ("rate", _rate(view))]
    if view.bytes_s_now is not None or view.bytes_s_avg is not None:
        rate = view.bytes_s_now if view.bytes_s_now is not None else view.bytes_s_avg
        found.append(("writing", f"{_about(view, 'bytes_s_now')}{size(rate or 0.0)}/s"))
    if view.eta_s is not None and not view.over:
        found.append(("left", f"ETA {_about(view, 'eta_s')}{duration(view.eta_s)}"))
    if view.dump_n is not None:
        found.append(("dumps", f"req_{view.dump_n}"))
    if view.waiting_bytes is not None:
        waiting = room(view.waiting_bytes, view.high_water_bytes or None)
        found.append(("waiting", f"waiting {_about(view, 'waiting_bytes')}{waiting}"))
    if view.upload_bytes:
        found.append(("upload", f"to upload {size(view.upload_bytes)}"))
    if view.free_bytes is not None:
        found.append(("disk", f"disk {room(view.free_bytes)} free"))
    trouble = [f"{count} {name}" for name, count in (("restarts", view.restarts), ("retries", view.retries)) if count]
    found.append(("trouble", ", ".join(trouble)))
    return [(label, text) for label, text in found if text]


def _about(view: RunView, *names: str) -> str:
    if set(names) & set(view.at_least):
        return "≥ " if speaks_unicode() else ">= "
    return "~" if set(names) & set(view.estimated) else ""


def _percent(view: RunView) -> str:
    return "" if view.share is None else f"{_about(view, 'written', 'rows')}{100 * view.share:.1f} %"


def _samples(view: RunView) -> str:
    total = f"/{_about(view, 'rows')}{view.rows:,}" if view.rows else ""
    bad = [f"{n} {name}" for name, n in (("refused", view.refused), ("quarantined", view.quarantined)) if n]
    more = f" ({', '.join(bad)})" if bad else ""
    return f"{_about(view, 'written')}{view.written:,}{total} samples{more}"


def _tokens(view: RunView) -> str:
    written = "" if view.nbytes is None else f", {_about(view, 'nbytes')}{size(view.nbytes)}"
    if view.tokens is None:
        return written.removeprefix(", ")
    return f"{_about(view, 'tokens')}{short(view.tokens, ' ')} tokens{written}"


def _rate(view: RunView) -> str:
    by_tokens = view.tok_s_now is not None or view.tok_s_avg is not None
    field, unit = ("tok_s", "tok/s") if by_tokens else ("samples_s", "samples/s")
    now, average = getattr(view, f"{field}_now"), getattr(view, f"{field}_avg")
    if now is None and average is None:
        return ""
    share = f" ({100 * view.plain_share:.0f} % of plain prefill)" if view.plain_share else ""
    mean = "" if average is None else f"{_about(view, f'{field}_avg')}{short(average)}"
    if now is None:
        return f"{mean} {unit} avg{share}"
    return f"{_about(view, f'{field}_now')}{short(now)} {unit} now" + (f", {mean} avg{share}" if mean else "")


def _more(view: RunView) -> list[tuple[str, str]]:
    """Rows that only the block has."""
    found = []
    if view.in_flight:
        found.append(("in flight", f"{view.in_flight} requests"))
    if view.dump_dir:
        found.append(("dump folder", _about(view, "dump_dir") + harmless(view.dump_dir)))
    slow = [f"row {one.index}: {duration(one.seconds)} for {one.tokens:,} tokens" for one in view.slowest[:SLOWEST]]
    if slow:
        found.append(("slowest", "; ".join(slow)))
    if view.slowest_shard:
        found.append(("behind", harmless(view.slowest_shard)))
    found += [(told.level, f"{_row(told.index)}{harmless(told.text)}") for told in view.messages]
    if view.next_step:
        found.append(("next", harmless(view.next_step)))
    return found


def _row(index: int | None) -> str:
    return "" if index is None else f"row {index}: "


def _plot(view: RunView, width: int) -> str:
    if not view.history or not speaks_unicode():
        return ""
    end = view.history[-1][0]
    ago = [((when - end) / 60, rate) for when, rate in view.history]
    return chart(ago, f"{view.history_unit} over the last minutes", min(width, 100))


class Screen:
    """The block in place on the terminal while it is open; the last one stays."""

    def __init__(self, console: "Console | None" = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = console or Console(highlight=False)
        # Nothing else writes meanwhile; and rich's stand-in for stdout does not know its encoding.
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def show(self, view: RunView) -> None:
        """Draw one look."""
        self._live.update(watch_block(view, self._console.width, bar=speaks_unicode()), refresh=True)

    def __enter__(self) -> "Screen":
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
