"""A real terminal for the app: a pseudo-terminal driven by pexpect, its picture kept by pyte."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import pexpect
import pyte

KEYS = {"esc": "\x1b", "enter": "\r", "tab": "\t", "ctrl+r": "\x12", "ctrl+u": "\x15", "ctrl+c": "\x03"}


class Terminal:
    """A program in a terminal of its own.

    Args:
        argv: What to run.
        env: Its environment.
        size: Columns and lines.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], size: tuple[int, int] = (110, 34)) -> None:
        columns, lines = size
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.sent = b""
        """All that the program wrote."""
        # COLUMNS and LINES would be believed over the terminal's own size.
        told = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}
        self.child = pexpect.spawn(
            argv[0], list(argv[1:]), env={**told, "TERM": "xterm-256color"}, dimensions=(lines, columns), timeout=5
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.close(force=True)

    def look(self, seconds: float = 0.1) -> str:
        """What the terminal shows after so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with contextlib.suppress(pexpect.TIMEOUT, pexpect.EOF):
                data = self.child.read_nonblocking(65536, timeout=left)
                self.sent += data
                self._stream.feed(data)
            if not self.child.isalive():
                break
        return "\n".join(self.screen.display)

    def wait_for(self, words: str, seconds: float = 120.0) -> str:
        """The picture, as soon as it holds these words."""
        end = time.monotonic() + seconds
        while words not in (shown := self.look()):
            assert time.monotonic() < end, f"{words!r} did not appear:\n{shown}"
            assert self.child.isalive(), f"it ended before {words!r} appeared:\n{shown}"
        return shown

    def press(self, *keys: str) -> None:
        """Keys by name, or text as it is; each is given time to act."""
        for key in keys:
            self.child.send(KEYS.get(key, key))
            self.look(0.15)

    def resize(self, columns: int, lines: int) -> None:
        """As a person drags the window's corner."""
        self.screen.resize(lines, columns)
        self.child.setwinsize(lines, columns)

    def exit_code(self, seconds: float = 120.0) -> int:
        """How it ended: as a shell would say it."""
        end = time.monotonic() + seconds
        while self.child.isalive():
            assert time.monotonic() < end, f"it did not end:\n{self.look()}"
            self.look()
        self.look(0.2)
        if self.child.signalstatus is not None:
            return 128 + int(self.child.signalstatus)
        return int(self.child.exitstatus or 0)

    def is_restored(self) -> bool:
        """Whether the alternate screen was left and the mouse is no longer reported (xterm's private modes)."""
        modes = {b"1049": b"", b"1000": b"", b"1003": b"", b"25": b""}
        for mode in modes:
            on, off = self.sent.rfind(b"\x1b[?" + mode + b"h"), self.sent.rfind(b"\x1b[?" + mode + b"l")
            modes[mode] = b"h" if on > off else b"l"
        return modes[b"1049"] == modes[b"1000"] == modes[b"1003"] == b"l" and modes[b"25"] == b"h"
