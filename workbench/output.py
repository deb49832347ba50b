"""The only module that writes to stdout and stderr: stdout is data, stderr is narration."""

import errno
import json
import os
import sys
import time
from typing import Any, TextIO

_STARTED = time.monotonic()


def data(text: str) -> None:
    """Write one piece of the command's result to stdout."""
    _write(sys.stdout, text + "\n")


def data_json(value: Any) -> None:
    """Write `value` as one JSON object on one line. NaN and infinities become null."""
    import msgspec

    data(json.dumps(_finite(msgspec.to_builtins(value)), ensure_ascii=False))


def narrate(text: str) -> None:
    """Tell a person what is going on, with the seconds since the command began."""
    _flush_data()
    _write(sys.stderr, f"[{time.monotonic() - _STARTED:6.1f} s] {text}\n")


def complain(message: str, next_step: str = "", details: str = "") -> None:
    """Report an error: its evidence, then one line, then the next step."""
    _flush_data()
    if details:
        _write(sys.stderr, "".join(f"  | {line}\n" for line in details.splitlines()))
    _write(sys.stderr, f"hsbench: {message}\n")
    if next_step:
        _write(sys.stderr, f"  next: {next_step}\n")


def narrates_to_a_person() -> bool:
    """Whether somebody reads the narration as it comes."""
    return sys.stderr is not None and sys.stderr.isatty()


def show_help(text: str) -> None:
    """Help that answers an incomplete call goes to stderr, since it is not what was asked for."""
    _write(sys.stderr, text + "\n")


def _flush_data() -> None:
    """stdout before stderr, so that their order survives when both go into one file."""
    _write(sys.stdout, "")


def _finite(value: Any) -> Any:
    """JSON has no NaN or infinity (RFC 8259, section 6); null keeps the object readable."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


def _write(stream: TextIO | None, text: str) -> None:
    """Write text that may hold characters which the terminal's encoding lacks; nothing when the stream is closed."""
    if stream is None:
        return
    try:
        _put(stream, text)
    except BrokenPipeError:
        # The reader has seen enough. What was found still decides the exit code, and Python's own flush at the
        # end must not fail on the broken pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except OSError as error:
        if stream is not sys.stderr or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise  # what is told on the way may be lost to a full disk; a result may not


def _put(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()
