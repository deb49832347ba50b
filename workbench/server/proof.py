"""Whether a server that should record does: asked once, when it has answered its first request.

A plug-in that fails is only a line in SGLang's log, and a model that passes through no edited file leaves no trace
at all. So nothing is taken on trust: the recorder publishes its status from inside the engine at the first forward
pass, which the readiness check has just made, and the plug-in tells on stderr which files it has edited.
"""

import time
from collections.abc import Iterator
from pathlib import Path

from patches.plugin import APPLIED, FAILED
from workbench.errors import NotRecording
from workbench.probe.evidence import complaint, read_json
from workbench.server.events import Note
from workbench.server.state import ServerRecord

WAIT_S = 10.0
POLL_S = 0.05
PLUGIN_LINES = (FAILED, "Failed to load plugin hsbench", "general plugin: hsbench", "Skipping plugin hsbench")
"""What the log says, by hsbench or by SGLang, when the plug-in did not come to its work."""


def records(record: ServerRecord) -> Iterator[Note]:
    """Check that the recorder runs inside this server, by the route that was chosen.

    Raises:
        NotRecording: it does not; with the reason as far as the log tells.
    """
    if record.dump is None or record.dump.route == "auto":
        return
    route = record.dump.route
    files = _edited(record) if route == "plugin" else []
    status = _status(record)
    if status is None:
        said = complaint(Path(record.log))
        raise NotRecording(
            f"the recorder does not run in {record.name}: {said or 'this model passes through no file that it is in'}",
            "hsbench patch support shows the families of each route; another one: --capture builtin",
        )
    if status.get("route") != route:
        raise NotRecording(
            f"{record.name} records by the route {status.get('route')}, not by {route}",
            "does its environment set SGLANG_HS_ROUTE?",
        )
    yield Note(f"the recorder runs, by the route {route}{': ' + ', '.join(files) if files else ''}")


def _edited(record: ServerRecord) -> list[str]:
    """The files that the plug-in has edited in memory, by its own word in the log."""
    text = Path(record.log).read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines()
    files = dict.fromkeys(line.partition(APPLIED)[2].strip() for line in lines if APPLIED in line)
    wanted = [file for file in record.env.get("SGLANG_HS_FILES", "").split(",") if file]
    if not files or not set(wanted) <= set(files):
        said = next((line for mark in PLUGIN_LINES for line in lines if mark in line), "SGLang did not call it")
        raise NotRecording(
            f"the plug-in was not applied in {record.name}: {said.strip()[:300]}",
            "is it left out by SGLANG_PLUGINS? --capture patch does without it",
        )
    return list(files)


def _status(record: ServerRecord) -> dict[str, object] | None:
    """The recorder's status, if it is younger than the server."""
    assert record.dump is not None
    deadline = time.monotonic() + WAIT_S
    while True:
        status = read_json(Path(record.dump.folder) / "recorder.json")
        if status is not None and float(status.get("time", 0)) >= record.started:
            return status
        if time.monotonic() >= deadline or complaint(Path(record.log)):
            return None
        time.sleep(POLL_S)
