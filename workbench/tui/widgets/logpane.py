"""A log on the screen: only the lines that are seen are read, whatever the file's size."""

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding
from textual.cache import LRUCache
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from workbench.tui.glyphs import is_ascii, plain
from workbench.tui.logindex import NOTHING, Extent, Found, LogIndex, Search, line_text, raw_line

CACHED = 200
"""Lines that are kept drawn. Each is many small objects, over which the collector of garbage goes again and again."""
STEP = 16
"""Columns that a key goes sideways."""
_STAMP = re.compile(r"^\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[^\]\s]*")
_BAD = re.compile(r"\b(?:\w*error|\w*exception|traceback|fatal|critical|panic|killed|abort(?:ed)?)\b", re.IGNORECASE)
_WARN = re.compile(r"\b\w*warn(?:ing)?\b", re.IGNORECASE)
_GOOD = re.compile(r"fired up and ready to roll")


class LogPane(ScrollView, can_focus=True):
    """Shows one log file, and searches it. It follows the end until somebody scrolls up."""

    DEFAULT_CSS = """
    LogPane { height: 1fr; scrollbar-size: 1 1; overflow-x: hidden; overflow-y: scroll; background: $background; }
    """
    BINDINGS: ClassVar = [
        Binding("up,k", "line(-1)", show=False),
        Binding("down,j", "line(1)", show=False),
        Binding("pageup,ctrl+b,b", "page(-1)", show=False),
        Binding("pagedown,ctrl+f", "page(1)", show=False),
        Binding("home,g", "first", show=False),
        Binding("end,G", "last", show=False),
        Binding("left,h", "sideways(-1)", show=False),
        Binding("right", "sideways(1)", show=False),
    ]

    class Grown(Message):
        """The file was looked at."""

        def __init__(self, index: LogIndex, extent: Extent) -> None:
            super().__init__()
            self.index, self.extent = index, extent

        def can_replace(self, message: Message) -> bool:
            """Only the newest counts."""
            return isinstance(message, LogPane.Grown) and message.index is self.index

    class Hits(Message):
        """A search went on."""

        def __init__(self, found: Found) -> None:
            super().__init__()
            self.found = found

        def can_replace(self, message: Message) -> bool:
            """Only the newest counts."""
            return isinstance(message, LogPane.Hits) and message.found.words == self.found.words

    class Moved(Message):
        """What a title tells has changed."""

        def __init__(self, pane: "LogPane") -> None:
            super().__init__()
            self.pane = pane

        def can_replace(self, message: Message) -> bool:
            """One is enough."""
            return isinstance(message, LogPane.Moved)

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        self.following = True
        self.left = 0
        self.extent = NOTHING
        self.found: Found | None = None
        self.hit: int | None = None
        """Which of the hits is the present one."""
        self._index: LogIndex | None = None
        self._search: Search | None = None
        self._secrets: tuple[str, ...] = ()
        self._anchor = 0
        self._strips: LRUCache[tuple[int, int, int, bool], Strip] = LRUCache(CACHED)

    # What is shown

    @property
    def path(self) -> Path | None:
        """The file."""
        return self._index.path if self._index is not None else None

    def open(self, path: Path | None, secrets: Sequence[str] = ()) -> None:
        """Show a file, from its end; values in `secrets` are hidden. The file that is shown already is kept."""
        if tuple(secrets) != self._secrets:
            self._secrets = tuple(secrets)
            self._redraw()
        if path == self.path:
            return
        self._close()
        self.extent, self.following, self.left = NOTHING, True, 0
        if path is not None:
            self._index = index = LogIndex(path, lambda extent: self.post_message(self.Grown(index, extent)))
            index.start()
            self.look_for(self.found.words if self.found else "")
        self._resize()

    def _close(self) -> None:
        if self._search is not None:
            self._search.stop()
        if self._index is not None:
            self._index.stop()
        self._search = self._index = None

    def on_unmount(self) -> None:
        """Nobody looks on."""
        self._close()

    def on_log_pane_grown(self, event: Grown) -> None:
        """Take in what the index knows now."""
        event.stop()
        if event.index is not self._index:
            return
        before, self.extent = self.extent, event.extent
        if event.extent.age != before.age:
            self._strips.clear()
        if self._search is not None:
            self._search.feed(event.extent)
        self._resize(event.extent.front - before.front if event.extent.age == before.age else 0)

    def _resize(self, put_before: int = 0) -> None:
        """Make room for all lines; what is seen stays where it is, unless the end is followed."""
        # Assigned as usual this would lay out the whole screen again each time that the log grows; the bar is always
        # there, so only its length changes.
        size = Size(self.size.width, self.extent.lines)
        self.set_reactive(LogPane.virtual_size, size)
        self._scroll_update(size)
        if self.following:
            self.scroll_to(y=self.extent.lines, animate=False)
        elif put_before:
            self.scroll_to(y=self.scroll_offset.y + put_before, animate=False)
        self.refresh()
        self.post_message(self.Moved(self))

    def on_resize(self) -> None:
        """The end stays at the end."""
        if self.following:
            self.scroll_to(y=self.extent.lines, animate=False)

    # Lines

    def line(self, number: int) -> str:
        """The text of a line; empty when there is none."""
        extent, index = self.extent, self._index
        if index is None or not 0 <= number < extent.lines:
            return ""
        start = extent.starts[number]
        return plain(line_text(raw_line(index, start, extent.end(number)), self._secrets))

    def render_line(self, y: int) -> Strip:
        """One line of the screen."""
        width, number = self.size.width, y + self.scroll_offset.y
        if not 0 <= number < self.extent.lines:
            return Strip.blank(width, self.rich_style)
        strip = self._strip(number).crop_extend(self.left, self.left + width, self.rich_style)
        if self._strip(number).cell_length > self.left + width > 1:
            mark = Strip([Segment(">" if is_ascii() else "→", self.rich_style + Style(dim=True))], 1)
            strip = Strip.join([strip.crop(0, width - 1), mark])
        return strip

    def _strip(self, number: int) -> Strip:
        extent = self.extent
        current = self.present() == number
        key = (extent.age, extent.starts[number], extent.end(number), current)
        strip = self._strips.get(key)
        if strip is None:
            words = self.found.words if self.found else ""
            text = styled(self.line(number), words, current)
            segments = [one for one in text.render(self.app.console) if one.text]
            strip = Strip(segments, text.cell_len).apply_style(self.rich_style)
            self._strips[key] = strip
        return strip

    def _redraw(self) -> None:
        self._strips.clear()
        self.refresh()

    def notify_style_update(self) -> None:
        """Another theme."""
        super().notify_style_update()
        self._strips.clear()

    # Moving

    def follow(self, on: bool) -> None:
        """Stay at the end as the log grows, or hold still."""
        self.following = on
        if on:
            self.scroll_to(y=self.extent.lines, animate=False)
        self.post_message(self.Moved(self))

    def show_line(self, number: int) -> None:
        """Bring a line into view, with some before it, and hold still."""
        self.following = False
        top, height = self.scroll_offset.y, max(1, self.size.height)
        if not top <= number < top + height:
            self.scroll_to(y=max(0, number - height // 3), animate=False)
        self.refresh()
        self.post_message(self.Moved(self))

    def _go(self, y: float) -> None:
        if y < self.scroll_offset.y:
            self.following = False
        self.scroll_to(y=y, animate=False)
        self.post_message(self.Moved(self))

    def action_line(self, by: int) -> None:
        """A line down or up."""
        self._go(self.scroll_offset.y + by)

    def action_page(self, by: int) -> None:
        """A page down or up, with one line in common."""
        self._go(self.scroll_offset.y + by * max(1, self.size.height - 1))

    def action_first(self) -> None:
        """To the first line."""
        self._go(0)

    def action_last(self) -> None:
        """To the end, and follow it."""
        self.follow(True)

    def action_sideways(self, by: int) -> None:
        """The rest of long lines."""
        self.left = max(0, self.left + by * STEP)
        self.refresh()
        self.post_message(self.Moved(self))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Whoever scrolls up wants to read."""
        if not (event.ctrl or event.shift) and self.scroll_offset.y > 0:
            self.following = False
            self.post_message(self.Moved(self))

    def on_scroll_to(self) -> None:
        """The bar was dragged."""
        self.following = False

    def on_scroll_up(self) -> None:
        """A click above the bar's handle."""
        self.following = False

    # Searching

    def look_for(self, words: str) -> None:
        """Search for words at each letter that is typed; empty ones end the search."""
        if self._search is not None:
            self._search.stop()
            self._search = None
        if self.found is None:
            self._anchor = self.scroll_offset.y
        self.hit = None
        self.found = Found(words, NOTHING.starts, 0, False, self.extent.age) if words else None
        if words and self._index is not None:
            self._search = Search(self._index, words, lambda found: self.post_message(self.Hits(found)))
            self._search.feed(self.extent)
        self._redraw()
        self.post_message(self.Moved(self))

    def on_log_pane_hits(self, event: Hits) -> None:
        """More is known; the first hit after where the search began is gone to."""
        event.stop()
        found = event.found
        if self.found is None or found.words != self.found.words or found.age != self.extent.age:
            return
        self.found = found
        known = found.total and (found.done or found.lines[found.total - 1] >= self._anchor)
        if self.hit is None and known:
            self._choose(found.near(self._anchor))
        self.post_message(self.Moved(self))

    def next_hit(self, by: int) -> bool:
        """To the next hit or the one before, round the end; False when there is none."""
        if self.found is None or not self.found.total:
            return False
        if self.hit is None:
            self._choose(self.found.near(self.scroll_offset.y))
        else:
            self._choose((self.hit + by) % self.found.total)
        return True

    def _choose(self, hit: int | None) -> None:
        self.hit = hit
        number = self.present()
        if number is not None:
            self._anchor = number
            self._show_words(number)
            self.show_line(number)

    def _show_words(self, number: int) -> None:
        """Scroll sideways to the words, if they lie outside."""
        words = self.found.words if self.found else ""
        line = self.line(number)
        at = line.lower().find(words.lower()) if words == words.lower() else line.find(words)
        if at >= 0 and not self.left <= at <= self.left + self.size.width - len(words) - 1:
            self.left = 0 if at + len(words) < self.size.width else max(0, at - self.size.width // 3)

    def present(self) -> int | None:
        """The line of the present hit."""
        found = self.found
        if found is None or self.hit is None or self.hit >= found.total or found.age != self.extent.age:
            return None
        return found.lines[self.hit]

    def copied(self) -> str:
        """The present hit's line, or the last one that is seen."""
        number = self.present()
        if number is None:
            number = min(self.extent.lines, self.scroll_offset.y + self.size.height) - 1
        return self.line(number)


def styled(line: str, words: str, current: bool) -> Text:
    """A line with its level and the words that are looked for made visible. The words themselves stay readable."""
    text = Text(line, no_wrap=True, end="")
    with contextlib.suppress(StopIteration):
        pattern, style = next(pair for pair in _LEVELS if pair[0].search(line))
        text.stylize(style)
        text.highlight_regex(pattern, style="bold")
    if stamp := _STAMP.match(line):
        text.stylize("dim", 0, stamp.end())
    if words:
        flags = re.IGNORECASE if words == words.lower() else 0
        style = "bold reverse underline" if current else "reverse"
        text.highlight_regex(re.compile(re.escape(plain(words)), flags), style=style)
    return text


_LEVELS = ((_BAD, "red"), (_WARN, "yellow"), (_GOOD, "green"))
