"""What the Probe mode shows: the kept probes, one of them in full, and how the newest probe task gets on."""

import contextlib
import shlex
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import PurePath

import msgspec

from workbench.errors import UsageError
from workbench.probe import history
from workbench.probe.history import Kept
from workbench.probe.report import ProbeReport
from workbench.server.survey import ServerStatus
from workbench.tasks import store
from workbench.tasks.store import Task

LOADED_A_LOOK = 25
"""Reports read at one look, so that the first look is quick whatever is kept."""
WHOLE = 8
"""Whole reports that are held."""
TASKS_SEEN = 50
LINES = 8
LONGEST = 100_000
"""Bytes of one argument; Linux takes 131,072 (MAX_ARG_STRLEN)."""
SERVER = "default"
"""The server that `hsbench probe` uses when none is named."""


class Entry(msgspec.Struct, frozen=True):
    """A kept probe in one line."""

    name: str
    time: float
    """Time of day in seconds."""
    prompt: str
    """Its beginning."""
    tokens: int
    model: str
    verdict: str


class Progress(msgspec.Struct, frozen=True):
    """The newest probe task, while it runs or when it ended without a report."""

    id: str
    command: str
    state: str
    seconds: float
    lines: tuple[str, ...]
    """The end of its narration, or of what it said of its failure."""


class Snapshot(msgspec.Struct, frozen=True):
    """One look."""

    entries: tuple[Entry, ...] = ()
    """The newest first."""
    unread: int = 0
    """Files of the history that hold no report."""
    chosen: str = ""
    selected: Kept | None = None
    marked: Kept | None = None
    progress: Progress | None = None


class ProbeSource:
    """Looks at the history and the tasks. `selected` None is the newest; `marked` may be none."""

    every_s = 1.0

    def __init__(self) -> None:
        self.selected: str | None = None
        self.marked: str | None = None
        self._entries: dict[str, Entry | None] = {}
        self._shown: tuple[Entry, ...] = ()
        self._whole: OrderedDict[str, Kept] = OrderedDict()
        self._tasks: dict[str, Task | None] = {}

    def collect(self) -> Snapshot:
        """Read what is new by its name, and nothing twice."""
        names = history.names()
        self._read(names)
        found = tuple(entry for name in names if (entry := self._entries.get(name)) is not None)
        self._shown = self._shown if found == self._shown else found
        known = {entry.name for entry in found}
        chosen = self.selected if self.selected in known else next(iter(entry.name for entry in found), "")
        return Snapshot(
            entries=self._shown,
            unread=sum(name in self._entries and self._entries[name] is None for name in names),
            chosen=chosen,
            selected=self._kept(chosen),
            marked=self._kept(self.marked) if self.marked in known else None,
            progress=self._progress(max((entry.time for entry in found), default=0.0)),
        )

    def close(self) -> None:
        """Nothing is held."""

    def _read(self, names: Sequence[str]) -> None:
        present = set(names)
        for gone in [name for name in self._entries if name not in present]:
            del self._entries[gone]
            self._whole.pop(gone, None)
        for name in [name for name in names if name not in self._entries][:LOADED_A_LOOK]:
            kept = history.load(name)
            self._entries[name] = None if kept is None else entry_of(name, kept)

    def _kept(self, name: str | None) -> Kept | None:
        """The whole report; the same object as long as it is asked for."""
        if not name:
            return None
        kept = self._whole.get(name) or history.load(name)
        if kept is not None:
            self._whole[name] = kept
            self._whole.move_to_end(name)
            while len(self._whole) > WHOLE:
                self._whole.popitem(last=False)
        return kept

    def _progress(self, last_report: float) -> Progress | None:
        task = self._newest_task()
        if task is None:
            return None
        state = task.state()
        if state == "done" or (state != "running" and (_told(task) or task.started < last_report)):
            return None
        lines = task.narration(LINES) if state == "running" else failure(task.narration(4 * LINES))
        return Progress(
            id=task.id,
            command=shlex.join(task.argv),
            state=state,
            seconds=max(0.0, time.time() - task.started),
            lines=tuple(lines),
        )

    def _newest_task(self) -> Task | None:
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = sorted((path.name for path in store.tasks_dir().iterdir()), reverse=True)[:TASKS_SEEN]
        self._tasks = {name: task for name, task in self._tasks.items() if name in names}
        for name in names:
            if name not in self._tasks:
                loaded = store.load(name)
                if loaded is None:
                    continue  # it is just being made
                self._tasks[name] = loaded if loaded.kind == "probe" else None
            if (task := self._tasks[name]) is not None:
                return task
        return None


def make() -> ProbeSource:
    """The real source."""
    return ProbeSource()


def entry_of(name: str, kept: Kept) -> Entry:
    """One line's worth of a report."""
    report = kept.report
    return Entry(
        name=name,
        time=kept.time,
        prompt=report.prompt[:120],
        tokens=len(report.tokens),
        model=PurePath(report.model).name,
        verdict=report.verdict,
    )


def failure(narration: Sequence[str]) -> list[str]:
    """What a command said of its failure: the evidence, the message, the next step; else its last lines."""
    at = next((n for n, line in enumerate(narration) if line.startswith("hsbench: ")), None)
    if at is None:
        return list(narration[-LINES:])
    first = at
    while first > 0 and narration[first - 1].startswith("  | "):
        first -= 1
    return [*narration[max(first, at - LINES) : at], narration[at].removeprefix("hsbench: "), *narration[at + 1 :]]


def _told(task: Task) -> bool:
    """Whether a report came: a red verdict fails the command too."""
    with contextlib.suppress(OSError):
        return (task.folder / "out").stat().st_size > 0
    return False


# Which server is probed


def recording(servers: Iterable[ServerStatus]) -> list[ServerStatus]:
    """The servers that can be probed now."""
    return [one for one in servers if one.state == "ready" and one.server.dump is not None]


def target(servers: Sequence[ServerStatus], wanted: str | None = None) -> tuple[str | None, str]:
    """The server to name in the command, if any, and words about it.

    Args:
        servers: All that are known.
        wanted: The one that a person chose; left aside when it is not ready.
    """
    ready = recording(servers)
    chosen = next((one for one in ready if one.server.name == wanted), None)
    if chosen is None and len(ready) == 1:
        chosen = ready[0]
    chosen = chosen or next((one for one in ready if one.server.name == SERVER), None)
    if chosen is not None:
        dump = chosen.server.dump
        blocks = ", ".join(map(str, dump.blocks)) if dump is not None and dump.blocks else "as recorded"
        more = f", s takes the next of {len(ready)}" if len(ready) > 1 else ""
        name = chosen.server.name
        return name, f"to {name}: {PurePath(chosen.server.model).name}, blocks {blocks}{more}"
    waiting = next((one for one in servers if one.server.name == SERVER and one.state != "dead"), None)
    if waiting is not None:
        return None, f"{SERVER} is {waiting.state}: the probe waits for it"
    if ready:
        return None, f"{len(ready)} servers record: s chooses one; else the demo model is started"
    return None, "no server: starts the demo model, and stops it"


# The command


def command(
    text: str, *, name: str | None = None, chat: bool = False, tokens: bool = False, check: str = ""
) -> tuple[str, ...]:
    """The arguments of `hsbench` that probe a prompt.

    Args:
        text: The prompt, or its token ids with `tokens`.
        name: The server.
        chat: Render it as a user's turn.
        tokens: It is a list of ids.
        check: Such as ``--reference``.

    Raises:
        UsageError: it cannot be an argument of a command.
    """
    if not text.strip():
        raise UsageError("the prompt is empty", "write one into the box")
    if "\0" in text:
        raise UsageError("the prompt holds a NUL character", "no command can be given one; probe token ids instead")
    if len(text.encode("utf-8", "replace")) > LONGEST:
        raise UsageError("the prompt is too long for a command's argument", "hsbench probe --tokens FILE takes any")
    options = [
        "--json",
        *(["--name", name] if name else []),
        *(["--chat"] if chat else []),
        *([check] if check else []),
    ]
    if tokens:
        return ("probe", *options, "--tokens", text)
    return ("probe", *options, *(["--"] if text.startswith("-") else []), text)


def again(report: ProbeReport, name: str | None, check: str) -> tuple[str, ...]:
    """The arguments that probe a kept prompt again.

    As text where its tokens, put together, are that text; by its token ids otherwise, since a report does not say
    whether a chat template was used.
    """
    ids = ",".join(str(token.id) for token in report.tokens)
    pieces = [token.text for token in report.tokens]
    plain_text = report.prompt != ids and report.prompt in ("".join(pieces), "".join(pieces[1:]))
    if plain_text and "\0" not in report.prompt:
        return command(report.prompt, name=name, check=check)
    return command(ids, name=name, tokens=True, check=check)
