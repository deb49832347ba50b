"""A child process that reads tensors for a parent which must not load torch.

Started by path in any interpreter that has torch, such as the engine's::

    python /path/to/probes/worker.py

No other package of this distribution, nor the folder that it is installed in, becomes importable there:
only `probes` is registered. One JSON object a line on stdin, one on stdout, in the same order::

    {"id": 1, "call": "describe", "args": {"folder": "…/req_0"}}
    {"id": 1, "result": {…}}
    {"id": 1, "error": {"kind": "dump", "message": "…", "next_step": "…"}}

`probes.calls.CALLS` lists the calls. `kind` is that of the `ProbeError`, or ``internal`` for a defect, whose
traceback goes to stderr. A line that is no request is answered with id null. NaN and infinities are null.
torch is loaded before the first line is read. Whatever libraries print goes to stderr, and they cannot
read stdin. The end of stdin ends the process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import inspect
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, BinaryIO


def main() -> None:
    """Serve until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C in the parent's terminal: end without a traceback
    requests, replies = _take_streams()
    with contextlib.suppress(ImportError):  # every call then says so
        import torch  # noqa: F401

    with contextlib.suppress(BrokenPipeError):
        for line in requests:
            if line.strip():
                replies.write(json.dumps(answer(line), allow_nan=False).encode() + b"\n")
                replies.flush()


def _take_streams() -> tuple[BinaryIO, BinaryIO]:
    """Keep the real stdin and stdout to ourselves; what others write to stdout goes to stderr."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return requests, replies


def answer(line: bytes) -> dict[str, Any]:
    """The reply to one line. Never raises."""
    from probes.errors import CallError, PackageMissing, ProbeError, one_line

    number: Any = None
    try:
        number, call, arguments = _parse(line)
        return {"id": number, "result": plain(_run(call, arguments))}
    except ProbeError as error:
        kind, message, next_step = error.kind, error.message, error.next_step
        if isinstance(error, CallError) and number is None:
            with contextlib.suppress(ValueError, AttributeError, RecursionError):
                number = _id_of(json.loads(line).get("id"))
    except ImportError as error:
        kind, message = PackageMissing.kind, f"{sys.executable} cannot import {error.name or '?'}: {error}"
        next_step = "name the interpreter that has torch, the engine's, with --python"
    except BaseException as error:  # SystemExit of a library too: the parent waits for a reply
        traceback.print_exc()
        kind, message, next_step = (
            "internal",
            f"{type(error).__name__}: {error}",
            "the worker's stderr has more",
        )
    return {"id": number, "error": {"kind": kind, "message": one_line(message), "next_step": next_step}}


def _parse(line: bytes) -> tuple[Any, str, dict[str, Any]]:
    from probes.errors import CallError

    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CallError(f"not a JSON object: {error}") from None
    if not isinstance(request, dict):
        raise CallError("not a JSON object")
    call, arguments = request.get("call"), request.get("args", {})
    if not isinstance(call, str) or not isinstance(arguments, dict):
        raise CallError("a request is {id, call: a name, args: an object}")
    return _id_of(request.get("id")), call, arguments


def _id_of(value: Any) -> Any:
    return value if isinstance(value, (int, str)) else None


def _run(call: str, arguments: dict[str, Any]) -> Any:
    from probes.calls import CALLS
    from probes.errors import CallError

    function = CALLS.get(call)
    if function is None:
        raise CallError(f"unknown call {call!r}; known are {', '.join(CALLS)}")
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise CallError(f"{call}: {error}") from None
    return function(**arguments)


def plain(value: Any) -> Any:
    """`value` in the types of JSON; records become objects, NaN and infinities null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if value - value == 0 else None
    return value


def _register() -> None:
    """Make this folder the package `probes`, and take it off the path as the script's folder."""
    folder = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != folder]
    spec = importlib.util.spec_from_file_location(
        "probes", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["probes"] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    _register()
    importlib.import_module("probes.worker").main()
    os._exit(0)  # unloading torch takes half a second of a core, and whoever started this waits for the end
