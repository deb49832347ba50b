"""The server that a probe talks to: the running one, a foreign one by its URL, or one started for the probe."""

import contextlib
import json
import os
from collections.abc import Generator
from typing import Any
from urllib.parse import urlsplit

import msgspec
import psutil

from workbench.errors import UsageError
from workbench.probe.evidence import DUMP_VARIABLE
from workbench.probe.options import ProbeOptions
from workbench.server import ports, state
from workbench.server.engine import find_interpreter
from workbench.server.events import Note, ServerEvent, Started
from workbench.server.specs import DumpSpec, LaunchSpec
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

    def dump_variable(self) -> str | None:
        """The server process's own dump folder: empty when unset, None when it cannot be read."""
        return _dump_variable(self.pid)

    def patch_state(self) -> str | None:
        """State of the engine's source, None when it cannot be told."""
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


def open_target(options: ProbeOptions) -> Generator[ServerEvent, None, Target]:
    """Find the server to probe, or start one and wait until it answers.

    Raises:
        UsageError: the running server does not record, or records other blocks than asked for.
    """
    if options.url is not None:
        return _foreign(options, options.url)
    record = state.load(options.name)
    if record is not None and state.alive(record):
        return (yield from _running(options, record))
    return (yield from _start(options))


def _running(options: ProbeOptions, record: ServerRecord) -> Generator[ServerEvent, None, Target]:
    remedy = f"hsbench stop {record.name} and probe again, or use another --name"
    if record.dump is None:
        raise UsageError(f"the running server {record.name!r} records no hidden states", remedy)
    if None not in (options.layers, record.dump.blocks) and options.layers != record.dump.blocks:
        blocks = ",".join(map(str, record.dump.blocks or ()))
        raise UsageError(f"the running server {record.name!r} captures blocks {blocks}", remedy)
    if record.ready_after is None:
        from workbench.server.ready import wait_ready

        yield from wait_ready(record, options.timeout_s)
    yield Note(f"using the running server {record.name} at {record.url}")
    return _target(record, started_here=False)


def _start(options: ProbeOptions) -> Generator[ServerEvent, None, Target]:
    from workbench.server.bringup import bring_up

    folder = options.dump_dir or state.folder_of(options.name) / "dumps"
    spec = LaunchSpec(
        model=options.model,
        name=options.name,
        python=options.python,
        device=options.device,
        dump=DumpSpec(str(folder.absolute()), options.layers),
    )
    record: ServerRecord | None = None
    try:
        for event in bring_up(spec, options.timeout_s):
            if isinstance(event, Started):
                record = event.record
            yield event
    except BaseException:
        if record is not None:
            stop_quietly(record)
        raise
    assert record is not None
    return _target(record, started_here=True)


def _target(record: ServerRecord, *, started_here: bool) -> Target:
    assert record.dump is not None
    return Target(
        url=record.url,
        dump_dir=record.dump.folder,
        python=record.python,
        pid=record.pid,
        log=record.log,
        record=record,
        started_here=started_here,
    )


def _foreign(options: ProbeOptions, url: str) -> Target:
    """A server that hsbench did not start. Its dump folder is asked of its process, if that is ours to read."""
    known = next((r for r in state.all_records() if r.url == url.rstrip("/") and state.alive(r)), None)
    if known is not None and known.dump is not None:
        return _target(known, started_here=False)
    pid = _listener(url)
    folder = str(options.dump_dir.absolute()) if options.dump_dir else _dump_variable(pid)
    if not folder:
        reason = "it runs without " + DUMP_VARIABLE if folder == "" else "its process cannot be read from here"
        raise UsageError(
            f"the dump folder of {url} is not known: {reason}",
            "name it with --dump-dir, or start the server with hsbench serve --dump",
        )
    return Target(url=url, dump_dir=folder, python=find_interpreter(options.python), pid=pid)


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
