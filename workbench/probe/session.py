"""The server that a probe talks to: the running one, a foreign one by its URL, or one started for the probe."""

import contextlib
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psutil

from workbench.errors import HsbenchError, Missing, ServerDied, TimedOut, UsageError
from workbench.models.demo import demo_folder
from workbench.probe.evidence import DUMP_VARIABLE
from workbench.probe.options import ServerOptions
from workbench.server import log, ports, state
from workbench.server.client import SglangClient
from workbench.server.engine import find_interpreter
from workbench.server.events import Note, ServerEvent, Started
from workbench.server.specs import DEMO, DumpSpec, LaunchSpec
from workbench.server.state import ServerRecord


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A server that records into a folder of this machine."""

    url: str
    dump_dir: str
    python: str
    """The interpreter that reads the tensors; it has torch."""
    pid: int | None = None
    log: str | None = None
    record: ServerRecord | None = None
    started_here: bool = False
    allow_chunked: bool = False
    """Prompts may come in several passes, whose dumps are put together."""

    def dump_variable(self) -> str | None:
        """The server process's own dump folder: empty when unset, None when it cannot be read."""
        return _dump_variable(self.pid)

    def patch_state(self) -> str | None:
        """State of the engine's source, None when it cannot be told or does not matter to this server."""
        dump = self.record.dump if self.record is not None else None
        if dump is not None and dump.route not in ("auto", "patch"):
            return None
        with contextlib.suppress(Exception):
            from patches.manage import status
            from patches.tree import find_tree

            return str(status(find_tree(self.python)).state)
        return None

    def patched_after_start(self) -> bool:
        """Whether the patch's manifest is younger than the server's process."""
        with contextlib.suppress(Exception):
            from patches.tree import find_tree

            manifest = find_tree(self.python).root / "_hs" / "manifest.json"
            return manifest.stat().st_mtime > psutil.Process(self.pid).create_time()
        return False


def open_target(options: ServerOptions) -> Generator[ServerEvent, None, Target]:
    """Find the server to use, or start one and wait until it answers.

    Raises:
        UsageError: the running server does not record, or records other blocks than asked for.
    """
    if options.url is not None:
        return _foreign(options, options.url)
    record = state.load(options.name)
    if record is not None and state.alive(record):
        return (yield from _running(options, record))
    return (yield from _start(options))


def check_same(options: ServerOptions, record: ServerRecord) -> None:
    """Refuse options that contradict the server at hand: a probe of another model must not look like this one's.

    Raises:
        UsageError: the server records nothing, or is not what was asked for.
    """
    dump = record.dump
    if dump is None:
        raise UsageError(f"the running server {record.name!r} records no hidden states", _remedy(record))
    model = str(demo_folder()) if options.model == DEMO else options.model
    asked = {
        "model": (model and os.path.abspath(os.path.expanduser(model)), record.model),
        "interpreter": (options.python and find_interpreter(options.python), record.python),
        "device": (None if options.device == "auto" else options.device, record.device),
        "dump folder": (options.dump_dir and str(options.dump_dir.absolute()), dump.folder),
        "route": (None if options.capture == "auto" else options.capture, dump.route),
        "blocks": (dump.blocks and options.layers and _listed(options.layers), _listed(dump.blocks or ())),
    }
    for what, (wanted, has) in asked.items():
        if wanted and wanted != has:
            message = f"the running server {record.name!r} has the {what} {has}, not {wanted}"
            raise UsageError(message, _remedy(record))


def _listed(blocks: tuple[int, ...]) -> str:
    return ",".join(map(str, blocks))


def _remedy(record: ServerRecord) -> str:
    return f"hsbench stop {record.name} and probe again, or use another --name"


def _running(options: ServerOptions, record: ServerRecord) -> Generator[ServerEvent, None, Target]:
    check_same(options, record)
    if record.ready_after is None:
        from workbench.server.ready import wait_ready

        yield from wait_ready(record, options.timeout_s)
    yield Note(f"using the running server {record.name} at {record.url}")
    return target_of(record, started_here=False)


def _start(options: ServerOptions) -> Generator[ServerEvent, None, Target]:
    from workbench.server.bringup import bring_up

    folder = options.dump_dir or state.folder_of(options.name) / "dumps"
    spec = LaunchSpec(
        model=options.model or DEMO,
        name=options.name,
        python=options.python,
        device=options.device,
        port=options.port,
        flags=options.flags,
        dump=DumpSpec(
            str(folder.absolute()),
            options.layers,
            options.final,
            route=options.capture,
            allow_chunked=options.allow_chunked,
        ),
    )
    record: ServerRecord | None = None
    try:
        for event in bring_up(spec, options.timeout_s):
            if isinstance(event, Started):
                record = event.record
            yield event
    except BaseException as error:
        if record is not None:
            stop_quietly(record)
        if isinstance(error, TimedOut):
            raise TimedOut(error.message, "it was stopped; allow more time with --timeout S", error.details) from error
        raise
    assert record is not None
    return target_of(record, started_here=True)


def target_of(record: ServerRecord, *, started_here: bool) -> Target:
    """A server of ours that records, as the target of captures."""
    assert record.dump is not None
    return Target(
        url=record.url,
        dump_dir=record.dump.folder,
        python=record.python,
        pid=record.pid,
        log=record.log,
        record=record,
        started_here=started_here,
        allow_chunked=record.dump.allow_chunked,
    )


def _foreign(options: ServerOptions, url: str) -> Target:
    """A server that hsbench did not start. Its dump folder is asked of its process, if that is ours to read."""
    known = next((r for r in state.all_records() if r.url == url.rstrip("/") and state.alive(r)), None)
    if known is not None:
        check_same(options, known)
        return target_of(known, started_here=False)
    with SglangClient(url) as client:
        client.model_info()  # a URL that nothing or something else answers at is the first thing to say
    pid = _listener(url)
    folder = str(options.dump_dir.absolute()) if options.dump_dir else _dump_variable(pid)
    if not folder:
        reason = "it runs without " + DUMP_VARIABLE if folder == "" else "its process cannot be read from here"
        raise UsageError(
            f"the dump folder of {url} is not known: {reason}",
            "name it with --dump-dir, or start the server with hsbench serve --dump-dir DIR",
        )
    python = find_interpreter(options.python)
    return Target(url=url, dump_dir=folder, python=python, pid=pid, allow_chunked=options.allow_chunked)


def _listener(url: str) -> int | None:
    """The process that listens on the URL's port on this machine, if it can be seen."""
    with contextlib.suppress(ValueError, psutil.Error):
        parts = urlsplit(url if "://" in url else f"http://{url}")
        return ports.owner(parts.port or 80)
    return None


def _dump_variable(pid: int | None) -> str | None:
    try:
        return None if pid is None else psutil.Process(pid).environ().get(DUMP_VARIABLE, "")
    except psutil.Error:
        return None


def stop_quietly(record: ServerRecord) -> None:
    """Stop a server without telling about it; used when the probe itself is being broken off."""
    from workbench.server.stop import stop

    with contextlib.suppress(Exception):
        for _ in stop(record):
            pass


def model_config(model: str) -> dict[str, Any]:
    """The model's config.json, its text part if it has one; empty when the folder is not on this machine."""
    try:
        with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
    except (OSError, ValueError):
        return {}
    inner = config.get("text_config") if isinstance(config, dict) else None
    return inner if isinstance(inner, dict) else config


def explained(target: Target, error: HsbenchError) -> HsbenchError:
    """`error` of a request, or the news that the server died meanwhile, with the last lines of its log."""
    record = target.record
    if record is None or state.alive(record):
        return error
    lines = log.tail(Path(record.log))
    why = log.reason(lines)
    return ServerDied(
        f"the server {record.name} died during the probe{': ' + why if why else ''}",
        f"the whole log: {record.log}",
        "\n".join(lines),
    )


def check_folder(target: Target) -> None:
    """Refuse to send a prompt whose dump could not be written.

    Raises:
        Missing: the dump folder is gone or cannot be written.
    """
    folder = Path(target.dump_dir)
    if not folder.is_dir():
        raise Missing(f"the dump folder {folder} is gone", f"mkdir -p {folder}; the server then goes on recording")
    if not os.access(folder, os.W_OK):
        raise Missing(f"the dump folder {folder} cannot be written", "make it writable, or restart with --dump-dir DIR")
