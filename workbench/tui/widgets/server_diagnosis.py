"""What a diagnosis found, as `hsbench doctor --json` told it."""

import textwrap
from typing import Any

import msgspec
from rich.text import Text

from workbench.supervision.verdict import State
from workbench.tasks.store import Task
from workbench.tui.glyphs import plain, sign
from workbench.tui.sources.server_facts import LEVELS

WIDTH = 86


def diagnosis_text(task: Task) -> Text:
    """The verdict with all of its evidence; what went wrong, if there is none."""
    found = _decoded(task.output())
    if found is None:
        lines = [plain(line) for line in task.narration(12)] or ["it ended without a word"]
        return Text("\n").join([sign("bad", "no verdict"), *(Text(line) for line in lines)])
    word = str(found.get("verdict"))
    level = LEVELS[State(word)] if word in set(State) else "warn"
    text = sign(level, word)
    text.stylize("bold")
    confidence, phase = found.get("confidence"), found.get("phase")
    if isinstance(confidence, int | float):
        text.append(f"  {confidence:.0%} sure", style="dim")
    text.append(f"   {plain(str(phase))}\n" if phase else "\n")
    good = f" of {found['lines_known_good']} of a good start" if found.get("lines_known_good") else ""
    _paragraph(text, "log", f"{found.get('lines', 0)} lines{good}")
    for label, key in (("for", "evidence"), ("against", "against")):
        words = found.get(key)
        for number, line in enumerate(words if isinstance(words, list) else []):
            _paragraph(text, "" if number else label, str(line))
    _paragraph(text, "next", str(found.get("next_step", "")), "bold")
    return text


def _paragraph(text: Text, label: str, words: str, style: str = "") -> None:
    for number, line in enumerate(textwrap.wrap(plain(words), WIDTH - 9) or [""]):
        text.append(f"\n{'' if number else label:9}", style="dim").append(line, style=style)


def _decoded(output: str) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(output)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) and "verdict" in found else None
