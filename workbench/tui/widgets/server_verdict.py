"""The verdict on a server: what it does, how long nothing has moved, where its processes stand, and what to do."""

import math
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.text import Text
from textual.app import ComposeResult

from workbench.render.text import duration
from workbench.server import log
from workbench.supervision.verdict import State
from workbench.tui.glyphs import Level, bar, is_ascii, plain, sign
from workbench.tui.sources.server_facts import LEVELS, ServerView, named
from workbench.tui.widgets.panel import Panel
from workbench.tui.widgets.server_text import Block

LABEL = 9
QUIET_S = 5.0
"""Silence that is worth a line."""
SERVING = frozenset({State.READY, State.READY_UNVERIFIED, State.UNHEALTHY_BUT_BUSY})
STYLES: dict[Level, str] = {"bad": "bold red", "warn": "bold yellow"}


def lasting(seconds: float) -> str:
    """A length of time, whatever number stands for it."""
    return duration(seconds) if math.isfinite(seconds) else "?"


class Part(NamedTuple):
    """One paragraph: its label, its words, and how much it matters (0 matters most)."""

    label: str
    words: str
    rank: int = 0
    style: str = ""


class VerdictPanel(Panel):
    """Takes as many lines as it needs, up to a share of the screen, and gives them back only for another server."""

    def __init__(self, **how: str) -> None:
        super().__init__(title="Verdict", **how)
        self._key, self._lines = "", 0

    def compose(self) -> ComposeResult:
        """The text."""
        yield Block(id="verdict-text")

    def tell(self, view: ServerView, note: str = "") -> None:
        """Show a view's verdict; `note` stands in the lower border."""
        text = verdict_text(view, self._width(), self._room())
        self._put(text, view.key, level_of(view))
        self.name_it(
            f"Verdict · {view.name}" if not is_ascii() else f"Verdict - {view.name}", note or "enter: all of it"
        )

    def say(self, title: str, text: Text, level: Level = "off", note: str = "") -> None:
        """Show other words."""
        self._put(text, title, level)
        self.name_it(title, note)

    def _put(self, text: Text, key: str, level: Level) -> None:
        if key != self._key:
            self._key, self._lines = key, 0
        self._lines = min(self._room(), max(self._lines, len(text.split("\n"))))
        label = self.query_one("#verdict-text", Block)
        if label.styles.height is None or label.styles.height.value != self._lines:
            label.styles.height = self._lines
        label.show(text)
        self.set_class(is_ascii(), "-plain")
        self.set_class(level == "bad", "-bad")
        self.set_class(level == "warn", "-warn")

    def _width(self) -> int:
        return max(20, self.size.width - 2)

    def _room(self) -> int:
        return max(5, min(14, round(0.29 * self.screen.size.height)))


def level_of(view: ServerView) -> Level:
    """How bad it is."""
    if view.verdict is None:
        return "busy" if view.alive else "bad"
    return LEVELS[view.verdict.state]


def verdict_text(view: ServerView, width: int, rows: int) -> Text:
    """The verdict in so many lines; what matters least is left out, and that something is stands in its last line."""
    head = [headline(view, width), *quiet(view, width)]
    found = list(parts(view))
    lines = [*head, *(line for part in found for line in _lines(part, width))]
    if len(lines) > rows:
        by_weight = sorted(range(len(found)), key=lambda n: (found[n].rank, n))
        kept = sorted(by_weight[: max(1, rows - len(head))])
        lines = [*head, *(line for n in kept for line in _lines(found[n], width, most=1))]
    return Text("\n").join(lines[:rows])


def headline(view: ServerView, width: int = 200) -> Text:
    """State, how sure, and the phase with its length."""
    if view.verdict is None:
        return sign("busy", "looking") if view.alive else sign("bad", "DEAD")
    verdict = view.verdict
    text = Text().append_text(sign(LEVELS[verdict.state], str(verdict.state)))
    text.stylize("bold")
    text.append(f"  {verdict.confidence:.0%} sure", style="dim")
    running = next((one for one in view.phases if one.state in ("running", "ended here")), None)
    if running is not None:
        usual = f", in good starts {lasting(running.known)}" if running.known is not None else ""
        text.append(f"   {running.name}", style="bold")
        text.append(f" for {lasting(running.seconds or 0.0)}{usual}")
    elif verdict.waiting_on:
        text.append(f"   waits for {plain(verdict.waiting_on)}")
    if verdict.eta_s is not None:
        text.append(f"   about {lasting(verdict.eta_s)} left", style="dim")
    text.truncate(width, overflow="ellipsis")
    return text


def quiet(view: ServerView, width: int) -> Iterator[Text]:
    """How long nothing has moved, against how long that may be."""
    verdict = view.verdict
    if verdict is None or not view.alive or verdict.state in SERVING or view.silent < QUIET_S:
        return
    share = view.silent / view.allowed if view.allowed > 0 else 1.0
    style = "bold red" if share >= 1 else "yellow" if share >= 0.5 else ""
    text = labelled("silent", "")
    text.append(f"{bar(share, max(6, min(24, width - 52)))} ", style=style)
    text.append(f"{lasting(view.silent)} of {lasting(view.allowed)} allowed", style=style)
    if view.known_silence is not None:
        text.append(f", good starts {lasting(view.known_silence)}", style="dim")
    text.truncate(width, overflow="ellipsis")
    yield text


def parts(view: ServerView) -> Iterator[Part]:
    """Everything below the first lines, in the order in which it is read."""
    if not view.alive:
        yield from _last_words(view)
    if view.verdict is None:
        return
    for number, one in enumerate(() if view.verdict.state in SERVING else view.standing):
        words = f"{named(one.who)}: {' < '.join(one.frames)}"
        yield Part("but" if number else "stands", words, 0 if number < 2 else 3, "bold" if number else "")
    told = any(quiet(view, 80))
    evidence = [words for words in view.verdict.evidence if not (told and words.startswith("nothing has moved"))]
    for number, words in enumerate(evidence):
        yield Part("" if number else "for", words, min(number + 1, 3))
    for number, words in enumerate(view.verdict.against):
        yield Part("" if number else "against", words, min(number + 1, 3))
    yield Part("next", next_step(view), 0, "bold")


def _last_words(view: ServerView) -> Iterator[Part]:
    if view.why:
        yield Part("why", view.why, 0, "bold")
    for number, line in enumerate(view.last_words):
        yield Part("" if number else "said", line, 2 + len(view.last_words) - number)


def next_step(view: ServerView) -> str:
    """What to do, by the keys of this view where one does it."""
    assert view.verdict is not None
    if not view.alive and view.why:
        return f"{log.next_step(view.why, Path(view.log))}; r starts it again, x removes it"
    if not view.alive:
        return "the log says why it ended, if anything does; r starts it again, x removes it"
    if view.verdict.state is State.READY_UNVERIFIED and view.verdict.against:
        return "nothing, or d: it sends one request and waits for a token"
    keys = {State.HUNG_SPIN: "d diagnose, then x stop", State.SUSPECT_SPIN: "d diagnose", State.WAITING: "d diagnose"}
    more = keys.get(view.verdict.state)
    return f"{more}; {view.verdict.next_step}" if more else view.verdict.next_step


def labelled(label: str, words: str, style: str = "") -> Text:
    """A label of less weight, and words."""
    return Text().append(f"{label:{LABEL}}", style="dim").append(words, style=style)


def _lines(part: Part, width: int, most: int | None = None) -> Iterator[Text]:
    """A paragraph in lines; with `most`, what is cut off shows by dots."""
    wide = max(10, width - LABEL)
    words = plain(part.words)
    lines = textwrap.wrap(words, wide) or [""]
    if most is not None and len(lines) > most:
        lines = [*lines[: most - 1], words[sum(map(len, lines[: most - 1])) :][: wide - 3] + "..."]
    for number, line in enumerate(lines):
        yield labelled("" if number else part.label, line, part.style)


def whole_text(view: ServerView, width: int = 90) -> Text:
    """Nothing left out."""
    lines = [headline(view), *quiet(view, width), Text("")]
    lines += [line for part in parts(view) for line in _lines(part, width)]
    return Text("\n").join([*lines, Text(""), labelled("log", plain(view.log))])
