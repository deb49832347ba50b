"""What can be seen, from outside the engine, of a request whose dump is missing or short."""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

FULL = (f"[Errno {errno.ENOSPC}]", "PytorchStreamWriter failed writing", "inline_container.cc")
"""How the recorder is told of a full disk: by Python, and by torch's writer of archives, which drops the reason."""
DUMP_VARIABLE = "SGLANG_HS_DUMP_DIR"


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one request, its server and its dump folder; None where a fact cannot be had."""

    request_id: str
    dump_dir: str
    recorder: dict[str, Any] | None = None
    """The recorder's own status, `recorder.json`; None when the recorder never ran."""
    errors: tuple[dict[str, Any], ...] = ()
    """Lines of `errors.jsonl` about this request."""
    passes: int = 0
    """Dumps of this very request id in `index.jsonl`."""
    variable: str | None = None
    """The server process's own `SGLANG_HS_DUMP_DIR`: None unreadable, empty when it is not set."""
    patch_state: str | None = None
    patched_after_start: bool = False
    log_complaint: str = ""
    """The log's line saying why the recorder is off."""
    free_bytes: int | None = None
    needed_bytes: int = 0


def gather(
    request_id: str,
    dump_dir: Path,
    *,
    variable: str | None,
    patch_state: str | None,
    patched_after_start: bool,
    log: Path | None,
    needed_bytes: int,
) -> Evidence:
    """Read the dump folder and the log. Never raises for a missing or half-written file."""
    free = None
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(dump_dir).free
    about = tuple(e for e in json_lines(dump_dir / "errors.jsonl") if e.get("request_id") in (request_id, ""))
    return Evidence(
        request_id=request_id,
        dump_dir=str(dump_dir),
        recorder=read_json(dump_dir / "recorder.json"),
        errors=about,
        passes=sum(e.get("request_id") == request_id for e in json_lines(dump_dir / "index.jsonl")),
        variable=variable,
        patch_state=patch_state,
        patched_after_start=patched_after_start,
        log_complaint=complaint(log),
        free_bytes=free,
        needed_bytes=needed_bytes,
    )


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None when the file is missing, half-written or something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file of lines; a last line still being written is passed over."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    yield value


def complaint(log: Path | None) -> str:
    if log is None:
        return ""
    with contextlib.suppress(OSError), open(log, "rb") as file:
        file.seek(max(0, os.path.getsize(log) - (1 << 20)))
        for line in file.read().decode(errors="replace").splitlines():
            if "_hs_ recorder is off" in line:
                return line.split("_hs_ recorder is off", 1)[1].strip(": ")
    return ""


def no_space(evidence: Evidence) -> bool:
    """Whether the dump folder is full: the recorder was told so, or what is free cannot hold the dump."""
    told = any(word in str(e.get("error")) for e in evidence.errors for word in FULL)
    return told or (evidence.free_bytes is not None and evidence.free_bytes < evidence.needed_bytes)
