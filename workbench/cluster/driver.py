"""The run on a cluster, as work of a job in the folder that holds the shards, or that has a URL: cut, hand out, join.

What is there decides what is left to do, so a driver that died is gone on with by any other: see ground.py.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from workbench.cluster import folder
from workbench.cluster.board import Board
from workbench.cluster.far import Far
from workbench.cluster.ground import Folder, Ground
from workbench.cluster.records import Crew, Errand
from workbench.cluster.shift import Shift
from workbench.cluster.tale import CLUSTER_FILE, Tale
from workbench.errors import UsageError
from workbench.extract.dataset import Dataset
from workbench.extract.job.events import Ended, JobEvent, Progress, Told
from workbench.extract.job.files import JobFile, JobFiles, Request
from workbench.extract.job.run import Work
from workbench.extract.job.settings import Cluster, ExtractSettings
from workbench.extract.record import Source
from workbench.render.text import size
from workbench.server.engine import find_interpreter
from workbench.server.flags import TP_SIZE, given
from workbench.worker import Worker


class Machines(Crew, Protocol):
    """A crew that knows its size."""

    gpus: int
    """A server."""
    servers: int


Connect = Callable[[Cluster], Machines]


def on(connect: Connect) -> Work:
    """The work of `workbench.extract.job.run.run` for a run on these machines."""

    def work(files: JobFiles, job: JobFile, request: Request, stopping: Callable[[], bool]) -> Iterator[JobEvent]:
        return Driver(files, job, request, stopping, connect).events()

    return work


class Driver:
    """Yields everything that happens, and an `Ended` last."""

    def __init__(
        self, files: JobFiles, job: JobFile, request: Request, stopping: Callable[[], bool], connect: Connect
    ) -> None:
        assert request.cluster is not None
        self.files, self.job, self.request, self.cluster = files, job, request, request.cluster
        self.settings: ExtractSettings = request.settings
        self.ground: Ground = Folder(files.out, job.run)
        if request.settings.store is not None:
            self.ground = Far(request.settings)
        self._stopping, self._connect = stopping, connect
        self._was_paused = False
        self._did = ""
        """What the servers did, in words."""

    def events(self) -> Iterator[JobEvent]:
        """Work, until the data set is whole or the run is told to stop."""
        yield Progress(time=time.time(), state="preflight")
        joined, joining = self.ground.joined() is not None, self.ground.joining()
        if not (joined or joining):
            self.ground.refuse_other_use()
        found: list[folder.Found] = []
        with contextlib.ExitStack() as stack:
            over = joined or joining or self.ground.seems_done()
            crew = None if over else self._crew(stack)  # a wrong address is told before the data set is read
            source = self._source()
            self.ground.refuse_another_run(self.settings, source)
            if not (joined or joining):
                yield _note(f"{self.settings.data}: {source.rows:,} rows")
                of = self.ground.how_many(self.cluster.shards, self.cluster.servers, source.rows)
                found = [] if of is None else self.ground.found(source.rows, of)
                if of is None or not all(one.done for one in found):
                    crew = crew or self._crew(stack)
                    of = of or min(folder.A_SERVER * crew.servers, source.rows)
                    yield from self._work(crew, source.rows, found or self.ground.found(source.rows, of))
                    found = self.ground.found(source.rows, of)
        if joining:
            yield from self._join()
        elif joined:
            yield self._joined_before()
        else:
            yield from self._end(found)

    def _crew(self, stack: contextlib.ExitStack) -> Machines:
        return stack.enter_context(contextlib.closing(self._connect(self.cluster)))

    def _source(self) -> Source:
        """The data set, which is read here once, so that a bad one is refused before a server is started."""
        with Worker(find_interpreter(self.settings.python)) as worker:
            source = Dataset.open(self.settings.dataset(self.settings.model), worker).source()
        if not source.rows:
            raise UsageError(f"{self.settings.data} has no rows", "hsbench extract DATA --preview 3 shows them")
        return source

    def _work(self, crew: Machines, rows: int, found: list[folder.Found]) -> Iterator[JobEvent]:
        """Have the shards done that are not."""
        of, left = len(found), [one.at.shard for one in found if not one.done]
        self._remember(of, crew)
        token = secrets.token_hex(8)
        self.ground.begin(token, self.job.settings, self.cluster)
        yield _note(f"{of - len(left)} of {of} shards are done; {min(crew.servers, len(left))} servers are asked for")
        errand = Errand(
            settings=self.settings,
            run=self.ground.run,
            slot=0,
            shards=of,
            token=token,
            lease_s=self.cluster.lease_s,
            command=self.request.command,
            staging=self.ground.staging,
        )
        tale = Tale(self.files.folder / CLUSTER_FILE, rows, of, (one.at for one in found))
        shift = Shift(
            crew,
            Board(left, self.cluster.lease_s),
            errand,
            crew.servers,
            tale,
            timeout_s=self.settings.timeout_s,
            stopping=self._stopping,
            paused=self._paused,
        )
        yield from shift.events()
        yield tale.picture("finishing")
        lost = f", {shift.lost} were lost on the way" if shift.lost else ""
        self._did = f"{len(left)} shards by {len(shift.used)} servers{lost}; "

    def _remember(self, of: int, crew: Machines) -> None:
        """Write down what --resume needs. Servers of several GPUs are tensor-parallel unless their flags say how."""
        flags = self.settings.flags
        if crew.gpus > 1 and not any(given(flags).get(name) for name in TP_SIZE):
            self.settings = msgspec.structs.replace(self.settings, flags=(*flags, TP_SIZE[0], str(crew.gpus)))
        self.cluster = msgspec.structs.replace(self.cluster, shards=of)
        self.job = msgspec.structs.replace(
            self.job,
            settings=msgspec.structs.replace(self.settings, flags=flags),
            command=self.request.command,
            accepted=True,
            cluster=self.cluster,
        )
        self.files.save(self.job)

    def _paused(self) -> bool:
        """Whether nothing is to be handed out; the shards under way are told when that changes."""
        self.ground.check()
        paused = self.files.pause.exists()
        if paused != self._was_paused:
            self._was_paused = paused
            self.ground.pause(paused)
        return paused

    # The end.

    def _end(self, found: list[folder.Found]) -> Iterator[JobEvent]:
        name = self.settings.place
        left = [one for one in found if not one.done]
        if left:
            text = f"{self._did}{_sum(found, name)}; {len(left)} of {len(found)} shards to go"
            yield Ended(time=time.time(), state="stopped", message=text, next_step=f"hsbench extract --resume {name}")
        elif not self.cluster.merge:
            text = f"{self._did}{_sum(found, name)}, in {len(found)} shards"
            yield Ended(time=time.time(), state="done", message=text, next_step=f"hsbench extract --merge {name}")
        else:
            yield from self._join()

    def _join(self) -> Iterator[JobEvent]:
        """Make one data set of the shards; the folder is then like that of a run of one machine."""
        yield _note("all shards are done; joining them")
        for event in self.ground.join(self.settings.python):
            if isinstance(event, Ended):
                yield msgspec.structs.replace(event, message=f"{self._did}{event.message}")
            else:
                yield event
        self.job = msgspec.structs.replace(
            self.job,
            settings=self.settings,
            command=self.request.command,
            accepted=True,
            cluster=None if self.settings.store is None else self.cluster,  # a joined URL takes no job of one machine
        )
        self.files.save(self.job)

    def _joined_before(self) -> Ended:
        """What to say of a folder that is one data set already."""
        record, name = self.ground.joined(), self.settings.place
        assert record is not None
        if missing := len(record.rows()) - self.ground.joined_rows():
            raise UsageError(
                f"{name} is one data set already, with {missing:,} rows to go",
                "go on with it on one machine: give the same command without --ray",
            )
        return Ended(
            time=time.time(),
            state="done",
            message=f"{len(record.rows()):,} rows are done and joined in {name}",
            next_step=f"hsbench verify {name} --all",
        )


def _sum(found: list[folder.Found], out: object) -> str:
    written, tokens = sum(one.at.written for one in found), sum(one.at.tokens for one in found)
    return f"{written:,} samples, {tokens:,} tokens, {size(sum(one.at.nbytes for one in found))} in {out}"


def _note(text: str) -> Told:
    return Told(time=time.time(), text=text)
