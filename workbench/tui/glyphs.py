"""Glyphs with words and styles: colour is never the only sign, and in ASCII mode no glyph leaves ASCII."""

from typing import Literal, NamedTuple

from rich.text import Text

Level = Literal["good", "busy", "warn", "bad", "off"]


class Sign(NamedTuple):
    """How a level looks."""

    glyph: str
    ascii: str
    style: str


SIGNS: dict[Level, Sign] = {
    "good": Sign("●", "*", "green"),
    "busy": Sign("◐", ">", "cyan"),
    "warn": Sign("◌", "?", "yellow"),
    "bad": Sign("✗", "X", "bold red"),
    "off": Sign("·", ".", "dim"),
}
_ascii = False


def set_ascii(on: bool) -> None:
    """Draw with ASCII only from now on."""
    global _ascii  # noqa: PLW0603 - one terminal a process
    _ascii = on


def is_ascii() -> bool:
    """Whether only ASCII may be drawn."""
    return _ascii


def sign(level: Level, word: str) -> Text:
    """A glyph and a word in the level's style."""
    found = SIGNS[level]
    return Text(f"{found.ascii if _ascii else found.glyph} {plain(word)}", style=found.style)


def plain(text: str) -> str:
    """Text from outside on one line: what could steer the terminal is escaped; in ASCII mode so is all else."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown.encode("ascii", "backslashreplace").decode() if _ascii else shown


def bar(share: float, width: int) -> str:
    """A progress bar of so many characters for a share of 0 to 1."""
    full = round(min(1.0, max(0.0, share)) * width)
    done, left = ("#", "-") if _ascii else ("█", "░")
    return done * full + left * (width - full)
