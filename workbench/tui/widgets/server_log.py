"""The words in the border of the log."""

from workbench.tui.glyphs import is_ascii
from workbench.tui.sources.server_facts import ServerView
from workbench.tui.widgets.logpane import LogPane


def log_title(view: ServerView, pane: LogPane, stopped: bool = False) -> str:
    """How many lines there are. During a start they are counted as those of good starts are, to be compared."""
    starting = view.verdict is not None and view.phases and view.phases[-1].state == "to come"
    words = ["Log"]
    if stopped:
        words.append("of a server that is gone")
    if pane.extent.state == "missing":
        words.append("there is none yet")
    elif starting and view.lines is not None and view.known_lines:
        words += [f"{view.lines:,} lines", f"known good {view.known_lines:,}"]
    elif pane.extent.whole:
        words.append(f"{pane.extent.lines:,} lines")
    else:
        words.append(f"counting, {pane.extent.read:.0%}")
    if pane.extent.state == "removed":
        words.append("the file was deleted")
    return (" - " if is_ascii() else " · ").join(words)


def log_state(pane: LogPane) -> str:
    """Where in it one is."""
    extent, words = pane.extent, []
    if pane.found is not None:
        found = pane.found
        count = f"{found.total:,}{'' if found.done else '+'}"
        at = f"{pane.hit + 1:,} of {count}" if pane.hit is not None else count if found.total else "nothing"
        words.append(f"/{found.words}  {at if found.total or found.done else 'searching'}")
    if pane.left:
        words.append(f"from column {pane.left + 1}")
    if pane.following:
        words.append(f"following, {extent.lines:,} in the file" if extent.whole else "following")
    else:
        last = min(extent.lines, pane.scroll_offset.y + pane.size.height)
        words.append(f"line {last:,} of {extent.lines:,}, f follows" if extent.whole else "f follows")
    return (" - " if is_ascii() else " · ").join(words)
