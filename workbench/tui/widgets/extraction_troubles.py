"""What went wrong in a run, in full, as far as a bounded part of its files tells. It is read in a thread."""

import contextlib
import os
from pathlib import Path
from typing import Any

import msgspec
from rich.text import Text

from workbench.extract.index import INDEX_FILE, IndexLine
from workbench.extract.job.events import Ended, JobEvent, Told
from workbench.extract.job.files import JobFiles
from workbench.tui import glyphs
from workbench.tui.widgets.extraction_facts import clock, marked, told_line

EVENTS, INDEX = 16 << 20, 8 << 20
"""Bytes at the end of each file that are read."""
SHOWN = 200
FOLDERS = 4096


class Troubles(msgspec.Struct, frozen=True, kw_only=True):
    """The newest come first; at most `SHOWN` of each."""

    told: tuple[Told | Ended, ...] = ()
    """Warnings, errors, and ends that are none to be glad of."""
    quarantined: tuple[tuple[int, str], ...] = ()
    """(row, reason), by the folder of bad dumps and the index."""
    refused: tuple[tuple[int, str], ...] = ()
    cut: tuple[str, ...] = ()
    """What was left out."""


def troubles(folder: Path) -> Troubles:
    """Read them."""
    files = JobFiles(folder)
    lines, cut_events = _tail(files.events, EVENTS)
    told = [event for line in lines if (event := _event(line)) is not None]
    index, cut_index = _tail(folder / INDEX_FILE, INDEX)
    quarantined, refused = _rows(index)
    quarantined = {**_reasons(folder.with_name(f"{folder.name}.quarantine")), **quarantined}
    cut = [f"only the last {size >> 20} MiB of {name} were read" for name, size, was in _cuts(cut_events, cut_index)]
    if len(told) > SHOWN:
        cut.append(f"{len(told) - SHOWN} older messages are not shown; {files.log} has them")
    return Troubles(
        told=tuple(reversed(told[-SHOWN:])),
        quarantined=tuple(sorted(quarantined.items())[:SHOWN]),
        refused=tuple(sorted(refused.items())[:SHOWN]),
        cut=tuple(cut),
    )


def _cuts(events: bool, index: bool) -> list[tuple[str, int, bool]]:
    return [one for one in (("events.jsonl", EVENTS, events), ("the index", INDEX, index)) if one[2]]


def _tail(path: Path, nbytes: int) -> tuple[list[bytes], bool]:
    """Whole lines in the last bytes of a file, and whether there are others before them."""
    try:
        with open(path, "rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - nbytes)
            file.seek(start)
            data = file.read(nbytes)
    except OSError:
        return [], False
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    return lines[1:] if start else lines, bool(start)


def _event(line: bytes) -> Told | Ended | None:
    if b'"Told"' not in line and b'"Ended"' not in line:  # most lines are pictures: not worth decoding
        return None
    with contextlib.suppress(msgspec.MsgspecError):
        event: Any = msgspec.json.decode(line, type=JobEvent)
        if isinstance(event, Told) and event.level != "note":
            return event
        if isinstance(event, Ended) and event.state == "failed":
            return event
    return None


def _rows(lines: list[bytes]) -> tuple[dict[int, str], dict[int, str]]:
    """Reasons of the quarantined and of the refused rows; a later line of the same row replaces an earlier one."""
    found: dict[str, dict[int, str]] = {"quarantined": {}, "refused": {}}
    for line in lines:
        if b'"written"' in line[:64] and b'"again":true' not in line:
            continue
        with contextlib.suppress(msgspec.MsgspecError):
            one = msgspec.json.decode(line, type=IndexLine)
            for rows in found.values():
                rows.pop(one.index, None)
            if one.status in found:
                found[one.status][one.index] = one.reason
    return found["quarantined"], found["refused"]


def _reasons(folder: Path) -> dict[int, str]:
    found: dict[int, str] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for place, entry in enumerate(entries):
            if place >= FOLDERS or len(found) >= SHOWN:
                break
            digits = entry.name.removeprefix("sample_")
            with contextlib.suppress(OSError, msgspec.MsgspecError, AttributeError):
                if digits.isdecimal():
                    told: Any = msgspec.json.decode(Path(entry.path, "reason.json").read_bytes())
                    found[int(digits)] = str(told.get("reason", ""))
    return found


def troubles_text(found: Troubles) -> Text:
    """For a screen."""
    text = Text()
    for told in found.told:
        text.append_text(_line(told)).append("\n")
    for title, rows in (("quarantined", found.quarantined), ("refused", found.refused)):
        if rows:
            text.append(f"\n{title}\n", style="bold")
            for index, reason in rows:
                text.append(f"row {index:<8} ", style="dim").append(f"{glyphs.plain(reason)}\n")
    for line in found.cut:
        text.append(f"\n{glyphs.plain(line)}", style="dim")
    return text if text.plain.strip() else Text("no warning, no error, nothing in quarantine", style="dim")


def _line(event: Told | Ended) -> Text:
    if isinstance(event, Told):
        return told_line(event)
    text = marked("bad", "failed").append(f" {clock(event.time)} ", style="dim")
    step = f"  next: {event.next_step}" if event.next_step else ""
    return text.append(glyphs.plain(f"{event.message}{step}"))
