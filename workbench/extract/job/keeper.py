"""The job's server: found or started, and started again when it dies."""

import contextlib
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import msgspec
import psutil

from workbench.errors import HsbenchError, ServerError, TimedOut, UsageError
from workbench.extract.job.arrivals import sweep
from workbench.extract.job.files import JobFiles
from workbench.extract.job.settings import ExtractSettings
from workbench.probe.lease import Lease
from workbench.probe.options import ServerOptions
from workbench.probe.session import Target, check_same, open_target, stop_quietly, target_of
from workbench.server import processes, roster, state
from workbench.server.bringup import start_and_wait
from workbench.server.client import SglangClient
from workbench.server.events import Note, ServerEvent, Started
from workbench.server.flags import absolute_paths
from workbench.server.launch import Plan
from workbench.server.ready import wait_ready
from workbench.server.relaunch import plan_of
from workbench.server.secrets import mask_flags
from workbench.server.state import ServerRecord
from workbench.server.stop import stop
from workbench.supervision.target import of_record

POLL_S = 1.0
PING_S = 5.0
STARTS = 3
"""Starts that may fail in a row."""
REST_S = 5.0
"""Between a start that failed and the next."""


class Keeper:
    """Holds a lease on the server, so that no probe that ends stops it.

    A server that the job started is stopped when the last who uses it ends, unless it is to be kept.
    """

    target: Target
    client: SglangClient

    def __init__(self, settings: ExtractSettings, files: JobFiles) -> None:
        self.settings, self._files = settings, files
        self._lease: Lease | None = None
        self._plan: Plan | None = None

    @property
    def target_dir(self) -> Path:
        """The folder that the server records into."""
        return Path(self.target.dump_dir)

    def open(self) -> Generator[ServerEvent, None, None]:
        """Find the server, start it again as it was, or start one.

        Raises:
            UsageError: there is none and no model to serve, or it is not what the settings say.
            HsbenchError: it does not start.
        """
        settings = self.settings
        record = None if settings.url else self._files.load_server(settings.name)
        if record is not None:
            yield from self._known(record)
            return
        if settings.url is None and settings.model is None:
            raise UsageError(
                f"no server named {settings.name!r} runs, and no model is named",
                "give --model PATH, or start one: hsbench serve --model PATH --dump-dir DIR",
            )
        self._use((yield from self._opened(_options(settings))))

    def _known(self, record: ServerRecord) -> Generator[ServerEvent, None, None]:
        """A server of this name: used if it runs, else started again as it was, or as it is asked for now."""
        self._files.save_server(record)
        options = _options(self.settings)
        if state.alive(record):
            self._refuse_other_flags(record)
            self._use((yield from self._opened(options)))
            return
        if record.dump is None or self._other_flags(record):
            model = self.settings.model or record.model
            yield Note(f"the server {record.name} is gone; starting one of {model} as it is asked for now")
            self._use((yield from self._opened(msgspec.structs.replace(options, model=model))))
            return
        check_same(options, record)
        yield Note(f"the server {record.name} is gone; starting it again as it was")
        self._plan = plan_of(record)
        yield from self._revive(record)

    def _opened(self, options: ServerOptions) -> Generator[ServerEvent, None, Target]:
        """`open_target`; a server that is started is marked at once, so that a later start of the job may stop it."""
        with contextlib.closing(open_target(options)) as opening:
            while True:
                try:
                    event = next(opening)
                except StopIteration as found:
                    return cast(Target, found.value)
                self._mark_if_started(event, passing=not self.settings.keep)
                yield event

    def _mark_if_started(self, event: ServerEvent, *, passing: bool) -> None:
        if isinstance(event, Started) and passing:
            with Lease(event.record) as lease:
                lease.mark_passing()

    def _other_flags(self, record: ServerRecord) -> list[str]:
        """Flags asked for that the server does not have; a record shows secrets masked and paths absolute."""
        asked = mask_flags(absolute_paths(self.settings.flags))
        return [word for word in asked if word not in record.argv]

    def _refuse_other_flags(self, record: ServerRecord) -> None:
        if other := self._other_flags(record):
            raise UsageError(
                f"the running server {record.name!r} was started without {' '.join(other)}",
                f"hsbench stop {record.name} and give the same command again, or another --name",
            )

    def _use(self, target: Target, passing: bool = False) -> None:
        self.target = target
        key = of_record(target.record).api_key if target.record is not None else None
        self.client = SglangClient(target.url, api_key=key)
        self._asking = SglangClient(target.url, api_key=key, timeout=PING_S)
        if target.record is None:
            self._model = str(self.client.model_info()["model_path"])
            return
        self._plan = plan_of(target.record)
        self._files.save_server(target.record)
        self._lease = Lease(target.record)
        if self.settings.keep:
            self._lease.keep()
        elif target.started_here or passing:
            self._lease.mark_passing()

    def lost(self) -> bool:
        """Whether the server, or a process that it needs, is gone."""
        record = self.target.record
        if record is not None:
            return not state.alive(record) or bool(roster.lost(record))
        try:
            self._asking.ping()
        except (ServerError, TimedOut):
            return True
        return False

    def kill(self) -> None:
        """End a server that hangs, so that its requests break off. A foreign one is left alone."""
        record = self.target.record
        if record is not None:
            for process in processes.family(record.pid, record.since_boot):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    def restart(self) -> Iterator[ServerEvent]:
        """End what is left of the server and start it again; of a foreign one, wait until it is back.

        Raises:
            HsbenchError: it does not come back.
        """
        record = self.target.record
        if record is None:
            yield from self._wait_back()
        else:
            yield from self._revive(record)

    def _revive(self, record: ServerRecord) -> Iterator[ServerEvent]:
        other = state.load(record.name)
        if other is not None and other.pid != record.pid and state.alive(other):
            if (other.dump, other.model, _but_port(other)) != (record.dump, record.model, _but_port(record)):
                raise UsageError(
                    f"a server named {record.name!r} was started meanwhile, and is not the one of this run",
                    f"hsbench stop {record.name}, then hsbench extract --resume DIR",
                )
            yield Note(f"the server {record.name} was started again by somebody else")
            yield from wait_ready(other, self.settings.timeout_s)
            self._release()
            self._use(target_of(other, started_here=False))
            return
        yield from stop(record, grace_s=0)
        if record.dump is not None and (count := sweep(Path(record.dump.folder))):
            yield Note(f"removed {count} half-written dumps")
        yield from self._start(record)

    def _start(self, record: ServerRecord) -> Iterator[ServerEvent]:
        assert self._plan is not None
        passing = self._lease is not None and self._lease.passing
        if self._lease is None:  # a start of the job before this one may have marked it
            with Lease(record) as before:
                passing = before.passing
        for number in range(1, STARTS + 1):
            try:
                for event in start_and_wait(self._plan, self.settings.timeout_s):
                    record = event.record if isinstance(event, Started) else record
                    self._mark_if_started(event, passing=passing)
                    yield event
            except HsbenchError as error:
                if number == STARTS or not isinstance(error, ServerError):
                    raise
                yield Note(f"the start failed: {error.message}; trying again in {REST_S:.0f} s")
                stop_quietly(record)
                time.sleep(REST_S)
            else:
                break
        self._release()
        self._use(target_of(record, started_here=False), passing)

    def _wait_back(self) -> Iterator[ServerEvent]:
        yield Note(f"waiting up to {self.settings.timeout_s:.0f} s for {self.target.url} to answer again")
        deadline = time.monotonic() + self.settings.timeout_s
        while self.lost():
            if time.monotonic() >= deadline:
                raise ServerError(
                    f"{self.target.url} did not come back", "start it again, then hsbench extract --resume DIR"
                )
            time.sleep(POLL_S)
        model = str(self.client.model_info()["model_path"])
        if model != self._model:
            raise UsageError(
                f"{self.target.url} came back with the model {model}, not {self._model}", "start that again"
            )

    def _release(self) -> None:
        if self._lease is not None:
            self._lease.__exit__(None, None, None)
            self._lease = None
        if hasattr(self, "client"):
            self.client.close()
            self._asking.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease = self._lease
        self._release()
        if lease is not None and lease.last and lease.passing:
            stop_quietly(lease.record)


def _but_port(record: ServerRecord) -> list[str]:
    """A server's command line without its port, which may have been taken when it was started again."""
    words = list(record.argv)
    if "--port" in words:
        del words[words.index("--port") : words.index("--port") + 2]
    return words


def _options(settings: ExtractSettings) -> ServerOptions:
    return ServerOptions(
        layers=settings.layers,
        name=settings.name,
        model=settings.model,
        url=settings.url,
        dump_dir=Path(settings.dump_dir) if settings.dump_dir else None,
        device=settings.device,
        capture=settings.capture,
        allow_chunked=settings.allow_chunked,
        python=settings.python,
        timeout_s=settings.timeout_s,
        flags=settings.flags,
        final="post" if settings.format == "specforge" else "pre",
        port=settings.port,
    )
