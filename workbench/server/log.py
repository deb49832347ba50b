"""Reading a server's log: new lines as they come, the phase they show, and the end of it when it died."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from workbench.server.secrets import mask_text

FIRST_PHASE = "import"
PHASES = (
    ("start workers", re.compile(r"server_args=")),
    ("load weights", re.compile(r"Load weight begin")),
    ("kv cache", re.compile(r"Load weight end")),
    ("graphs", re.compile(r"Capture .*graph.* begin", re.IGNORECASE)),
    ("warm-up", re.compile(r"Started server process|Uvicorn running on")),
    ("ready", re.compile(r"The server is fired up and ready to roll")),
)
"""Phase of a start → the line that begins it, as SGLang 0.5.15.post1 and 0.5.23 write it. Every rank repeats
the lines of the model's loading, so a phase is only ever left for a later one."""

TAIL_BYTES = 65536
CHUNK_BYTES = 1 << 20
LINE_LENGTH = 300
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_REASON = re.compile(r"(?:[A-Za-z_.]*(?:Error|Exception)|error): +\S.*")


class LogReader:
    """The lines that were appended to a log since the last look, and the phase they lead to."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.phase = FIRST_PHASE
        self._offset = offset
        self._partial = b""

    def lines(self) -> Iterator[str]:
        """New whole lines. Of a progress bar, which rewrites its line, only the last state is kept."""
        for data in self._chunks():
            *whole, self._partial = (self._partial + data).split(b"\n")
            for line in whole:
                yield clean(line)

    def _chunks(self) -> Iterator[bytes]:
        """What was appended, in pieces: a log may be gigabytes. One that was cut short is read anew."""
        try:
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset, self._partial = 0, b""
                file.seek(self._offset)
                while data := file.read(CHUNK_BYTES):
                    self._offset += len(data)
                    yield data
        except OSError:
            return

    def new_phases(self) -> Iterator[str]:
        """Phases that the new lines enter."""
        names = [FIRST_PHASE, *(name for name, _ in PHASES)]
        for line in self.lines():
            for name, pattern in PHASES:
                if names.index(name) > names.index(self.phase) and pattern.search(line):
                    self.phase = name
                    yield name


def clean(line: bytes) -> str:
    """A line of a log without colours and without the earlier states of a progress bar."""
    text = line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
    return _ANSI.sub("", text)


def tail(path: Path, count: int = 20) -> list[str]:
    """The last lines that say something, cut to a readable length, secrets masked."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = [clean(line) for line in file.read().split(b"\n")]
    except OSError:
        return []
    return [mask_text(line)[:LINE_LENGTH] for line in lines if line.strip()][-count:]


def reason(lines: list[str]) -> str:
    """What the last error in these lines says; empty when there is none."""
    for line in reversed(lines):
        if found := _REASON.search(line):
            return found[0].removeprefix("error: ").strip()
    return ""


def next_step(why: str, path: Path) -> str:
    """What to do about the reason that a server died."""
    lower = why.lower()
    if "unrecognized arguments" in lower or "invalid choice" in lower or "expected one argument" in lower:
        return "correct the flags after --; `python -m sglang.launch_server --help` lists them"
    if "out of memory" in lower or "outofmemory" in lower or "not enough memory" in lower:
        return "free memory, or give less to the cache: -- --mem-fraction-static 0.5"
    if "address already in use" in lower:
        return "let hsbench find a free port: --port 0"
    if "no module named" in lower or "importerror" in lower:
        return "the engine's environment is incomplete; install SGLang there again"
    return f"the whole log: {path}"
