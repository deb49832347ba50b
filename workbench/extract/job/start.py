"""One start of a job, in order: data set, folder, server, numbers, and then the flow."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator

import msgspec

from workbench.errors import CheckFailed, Missing, UsageError
from workbench.extract.dataset import Dataset, Tally
from workbench.extract.durable import leftovers
from workbench.extract.job import preflight
from workbench.extract.job.arrivals import Arrivals
from workbench.extract.job.estimate import Estimate, estimate
from workbench.extract.job.events import Ended, JobEvent, Preflight, Progress, State, Told
from workbench.extract.job.files import JobFile, JobFiles, Request
from workbench.extract.job.flow import Flow, Limits, Parts
from workbench.extract.job.gate import Gate, free_bytes
from workbench.extract.job.guarded import guarded
from workbench.extract.job.keeper import Keeper
from workbench.extract.job.lanes import Lanes
from workbench.extract.job.tally import Counts
from workbench.extract.pool import WorkerPool
from workbench.extract.record import RunRecord, load_record, refuse_differences
from workbench.extract.sample import Refused
from workbench.extract.writer import DatasetWriter
from workbench.probe.session import model_config
from workbench.render.text import size
from workbench.server.client import SglangClient
from workbench.server.engine import find_interpreter
from workbench.server.events import describe
from workbench.storage.remote import Remote
from workbench.worker import Worker


class Work(msgspec.Struct, frozen=True):
    """What is to be done."""

    data: Dataset
    left: list[int]
    """Rows without a line."""
    guess: Estimate
    dump_per_token: int
    """Bytes; more than a sample has where the server records more than is kept."""


class Start:
    """Yields everything that happens, and an `Ended` last.

    Args:
        files: The job's folder, locked.
        job: This start, written down there.
        request: What is asked for.
        stopping: Whether to end in order.
    """

    def __init__(self, files: JobFiles, job: JobFile, request: Request, stopping: Callable[[], bool]) -> None:
        self.files, self.job, self.request = files, job, request
        self.settings = request.settings
        self._stopping = stopping
        self._stack = contextlib.ExitStack()
        self._remote: Remote | None = None

    def events(self) -> Iterator[JobEvent]:
        """Work, until the data set is whole or the job is told to stop."""
        yield Progress(time=time.time(), state="preflight")
        with self._stack as stack:
            yield from self._open_store()
            pool = stack.enter_context(WorkerPool(self._python(), self.settings.writers))
            data = Dataset.open(self.settings.dataset(self._tokenizer()), stack.enter_context(Worker(pool.python)))
            yield _note(_described(data, self.settings.shard))
            old = load_record(self.settings.folder) if self._remote is None else self._remote.record()
            writer = None
            if old is None:
                preflight.refuse_used_folder(self.settings.folder)
                if not self._rows(data):
                    yield from self._no_row(data)
                    return
            else:
                refuse_differences(old, self._asked(data, old))
                writer = self._writer(old, pool)
                yield from self._recover(writer)
            left = [row for row in self._rows(data) if writer is None or row not in writer.index]
            if not left and writer is not None:
                yield from self._finish(writer)
                return
            yield from self._with_server(data, left, pool, writer)

    def _open_store(self) -> Iterator[JobEvent]:
        """Find out first of all whether the data set can go where it is to go."""
        if self.settings.store is None:
            return
        self._remote = Remote.open(self.settings, self.job.run)
        self._stack.callback(self._remote.close)
        yield _note(f"{self.settings.store} takes objects and gives them back; staged in {self.settings.out}")
        if not self._remote.store.exclusive:
            text = "this store makes an object twice without a word: take care that only one job writes there"
            yield Told(time=time.time(), text=text, level="warning")

    def _python(self) -> str:
        record = None if self.settings.url else self.files.load_server(self.settings.name)
        return record.python if record is not None else find_interpreter(self.settings.python)

    def _tokenizer(self) -> str | None:
        """The model's folder, as far as it is known before there is a server."""
        if self.settings.model is not None:
            return self.settings.model
        if self.settings.url is not None:
            with SglangClient(self.settings.url) as client:
                told = client.model_info()
            if path := told.get("tokenizer_path") or told.get("model_path"):
                return str(path)
            raise UsageError(f"{self.settings.url} names no model", "is it an SGLang server?")
        record = self.files.load_server(self.settings.name)
        return record.model if record is not None else None

    def _rows(self, data: Dataset) -> range:
        number, of = self.settings.shard
        return range(number, data.rows, of)

    def _no_row(self, data: Dataset) -> Iterator[JobEvent]:
        """There are more shards than rows: this one is done without a server or a record; --merge wants none."""
        self.job = msgspec.structs.replace(
            self.job, settings=self.settings, command=self.request.command, accepted=True
        )
        self.files.save(self.job)
        yield Progress(time=time.time(), state="done")
        text = f"0 samples: none of the {data.rows:,} rows belongs to shard {{}}/{{}}".format(*self.settings.shard)
        step = f"hsbench extract --merge {os.path.dirname(self.settings.place)}"
        yield Ended(time=time.time(), state="done", message=text, next_step=step)

    def _asked(self, data: Dataset, old: RunRecord) -> RunRecord:
        """The run that is asked for, as far as it is known before there is a server."""
        states = old.states
        if self.settings.layers is not None:
            states = msgspec.structs.replace(states, after_block=self.settings.layers)
        settings = self.settings
        return msgspec.structs.replace(
            old, format=settings.format, source=data.source(), shard=settings.shard, states=states
        )

    def _writer(self, record: RunRecord, pool: WorkerPool) -> DatasetWriter:
        if self._remote is not None:
            writer: DatasetWriter = self._remote.writer(record, pool)
        else:
            writer = DatasetWriter(self.settings.folder, record, pool, max_bad=self.settings.max_bad)
        self._stack.callback(writer.close)
        return writer

    def _recover(self, writer: DatasetWriter) -> Iterator[JobEvent]:
        found = writer.recover()
        if self.settings.redo_bad:
            for line in writer.index.lines():
                if line.status == "quarantined":
                    writer.index.forget(line.index)
        text = f"{found.done:,} of {len(writer.record.rows()):,} rows are done"
        if found.removed:
            text += f"; removed {len(found.removed)} files that were never finished"
        if found.redo:
            text += f"; {len(found.redo)} samples whose file is gone or has another size are made again"
        yield _note(text)

    def _with_server(
        self, data: Dataset, left: list[int], pool: WorkerPool, writer: DatasetWriter | None
    ) -> Iterator[JobEvent]:
        guess = self._estimate(data, left, first=writer is None)
        shortest = guess.shortest
        if shortest is None:
            yield from self._only_refused(data, left, writer)
            return
        keeper = self._stack.enter_context(Keeper(self.settings, self.files))
        for event in keeper.open():
            yield _note(describe(event))
            if self._stopping():
                yield Ended(time=time.time(), state="stopped", message="stopped before the first sample was sent")
                return
        pool.start(len(left))
        preflight.check_server(keeper)
        preflight.refuse_same_folder(keeper.target_dir, self.settings.folder)
        with pool.borrow() as worker:
            got = yield from guarded(
                keeper, [shortest], lambda: preflight.probe(keeper, shortest, worker, self.settings.timeout_s)
            )
            record = preflight.describe_run(self.request, data.source(), keeper, got, worker)
        shown = ", ".join(map(str, record.states.after_block))
        yield _note(f"the probe of row {shortest.index} gave whole states, after blocks {shown}")
        work = Work(data, left, guess, preflight.dump_bytes_per_token(got.meta))
        if writer is not None:
            refuse_differences(writer.record, record)
            yield from _news(writer.record, record)
        gate = self._gate(keeper, work)  # what cannot fit is refused before anything is written down
        preflight.refuse_no_space(self.settings, guess, record.states.bytes_per_token)
        writer = writer or self._writer(record, pool)
        self._remember(keeper, record)
        yield from self._flow(work, keeper, writer, gate)

    def _estimate(self, data: Dataset, left: list[int], *, first: bool) -> Estimate:
        """Tokens of the rows left, and a sample to probe with: of another shard, where this one has refused rows only.

        Raises:
            CheckFailed: too many rows of the data set are refused; a shard may be worse off than all of it.
        """
        try:
            return estimate(data, left, check=first)
        except CheckFailed:
            if self.settings.shard == (0, 1):
                raise
            data.tally = Tally()
            whole = estimate(data, range(data.rows))
            guess = estimate(data, left, check=False)
            return msgspec.structs.replace(guess, shortest=guess.shortest or whole.shortest)

    def _only_refused(self, data: Dataset, left: list[int], writer: DatasetWriter | None) -> Iterator[JobEvent]:
        """What to do when no sample was seen among the rows that are left."""
        if writer is None:
            raise UsageError(f"none of {len(left)} rows is a sample", "hsbench extract DATA --preview 3 says why")
        for row in data.samples(left):
            if isinstance(row, Refused):
                writer.refuse(row)
            else:
                yield _note(f"row {row.index} is a sample after many refused ones; the same command goes on with it")
                break
        yield from self._finish(writer)

    def _remember(self, keeper: Keeper, record: RunRecord) -> None:
        """Write down what a later start needs to have the same server, and what watches look at."""
        target = keeper.target
        model = target.record.model if target.record is not None else self.settings.model
        blocks = record.states.after_block
        self.settings = msgspec.structs.replace(self.settings, model=model, layers=blocks, redo_bad=False)
        self.job = msgspec.structs.replace(
            self.job,
            settings=self.settings,
            command=self.request.command,
            accepted=True,
            dump_dir=target.dump_dir,
            server=target.url,
        )
        self.files.save(self.job)

    def _flow(self, work: Work, keeper: Keeper, writer: DatasetWriter, gate: Gate) -> Iterator[JobEvent]:
        plain = yield from self._plain(work, keeper)
        yield self._numbers(writer, work.guess, gate, plain)
        arrivals = Arrivals(keeper.target_dir, self.job.request_prefix, allow_chunked=keeper.target.allow_chunked)
        self._stack.callback(arrivals.close)
        lanes = Lanes(keeper, arrivals, writer, prefix=f"{self.job.request_prefix}{self.job.start}-")
        self._stack.callback(lanes.close)
        counts = Counts(len(writer.record.rows()), writer.index.lines(), work.guess.tokens, plain)
        parts = Parts(keeper, arrivals, lanes, writer, gate, counts)
        limits = self._limits(keeper, writer, work.dump_per_token)
        yield from Flow(work.data.samples(work.left), limits, parts, self._stopping).run()
        yield from self._finish(writer, lambda: counts.look(lanes, arrivals, gate), counts)

    @staticmethod
    def _limits(keeper: Keeper, writer: DatasetWriter, dump_per_token: int) -> Limits:
        vocabulary = model_config(writer.record.engine.model).get("vocab_size")
        largest = shutil.disk_usage(keeper.target_dir).total
        return Limits(keeper.client.max_input_len(), vocabulary, dump_per_token, largest)

    def _gate(self, keeper: Keeper, work: Work) -> Gate:
        longest, per_token = work.guess.longest, work.dump_per_token
        return Gate(
            self.settings.folder,
            keeper.target_dir,
            high_water=preflight.high_water(self.settings, keeper.target_dir, longest, per_token),
            min_free=self.settings.min_free_bytes,
            pause=self.files.pause,
            uploads=self._uploads(longest * per_token),
        )

    def _uploads(self, longest: int) -> Remote | None:
        if self._remote is not None:
            self._remote.set_limit(longest)
        return self._remote

    def _plain(self, work: Work, keeper: Keeper) -> Generator[Told, None, float | None]:
        """Plain prefill, measured once a run, on a server that is known to record our requests only."""
        record = keeper.target.record
        wanted = self.settings.baseline_s > 0 and record is not None and record.dump is not None
        if self.job.plain_tok_s is not None or not wanted or (record and record.dump and record.dump.record_all):
            return self.job.plain_tok_s
        rows = preflight.baseline_rows(work.data.samples(work.left), self.settings)
        work.data.tally = Tally()
        if not rows:
            return None
        flying = rows[: self.settings.concurrency]
        rate = yield from guarded(keeper, flying, lambda: preflight.plain_prefill(keeper, rows, self.settings))
        self.job = msgspec.structs.replace(self.job, plain_tok_s=rate)
        self.files.save(self.job)
        return self.job.plain_tok_s

    def _numbers(self, writer: DatasetWriter, guess: Estimate, gate: Gate, plain: float | None) -> Preflight:
        states = writer.record.states
        return Preflight(
            time=time.time(),
            rows=len(writer.record.rows()),
            done=len(writer.index),
            tokens=guess.tokens,
            tokens_low=guess.tokens_low,
            looked_at=guess.looked_at,
            bytes_per_token=states.bytes_per_token,
            bytes_needed=guess.tokens * states.bytes_per_token,
            free_bytes=free_bytes(self.settings.folder),
            min_free_bytes=self.settings.min_free_bytes,
            dump_free_bytes=free_bytes(gate.dump_dir),
            high_water_bytes=gate.high_water,
            longest=guess.longest,
            after_block=states.after_block,
            plain_tok_s=plain,
        )

    def _finish(
        self, writer: DatasetWriter, look: Callable[[], None] | None = None, counts: Counts | None = None
    ) -> Iterator[JobEvent]:
        """Bring what is done to where it goes, make the side files, and say what there is."""

        def at(state: State, why: str = "") -> Iterator[JobEvent]:
            if look is not None and counts is not None:
                look()
                yield from counts.waiting(state, why)

        yield from at("finishing")
        if self._remote is not None:
            for why in self._remote.drain(self._stopping):
                yield from at("paused" if why else "finishing", why)
            for why in self._remote.insist(writer.finalise, self._stopping):
                yield from at("paused", why)
        ended = self._end(writer)
        if counts is not None:
            yield counts.picture(ended.state)
        yield ended

    def _end(self, writer: DatasetWriter) -> Ended:
        """Make the side files, and say what there is. A stop must not fail because the disk is full."""
        lines = writer.index.lines()
        with contextlib.suppress(*([Missing] if len(lines) < len(writer.record.rows()) else [])):
            writer.finalise()
        for left in leftovers(self.settings.folder):
            left.unlink(missing_ok=True)
        whole = [line for line in lines if line.status == "written"]
        missing = len(writer.record.rows()) - len(lines)
        bad = sum(line.status == "quarantined" for line in lines)
        text = (
            f"{len(whole):,} samples, {sum(line.tokens for line in whole):,} tokens, "
            f"{size(sum(line.nbytes for line in whole))} in {self.settings.place}"
        )
        text += f"; {len(lines) - len(whole) - bad} rows refused" if len(lines) - len(whole) - bad else ""
        text += f"; {bad} in quarantine, {writer.quarantine}" if bad else ""
        text += f"; {missing:,} rows to go" if missing else ""
        text += f"; {writer.waiting:,} rows wait in {self.settings.out} to be stored" if writer.waiting else ""
        if missing or writer.waiting:
            step = f"hsbench extract --resume {self.settings.place}"
            return Ended(time=time.time(), state="stopped", message=text, next_step=step)
        return Ended(
            time=time.time(), state="done", message=text, next_step=f"hsbench verify {self.settings.place} --all"
        )


def _described(data: Dataset, shard: tuple[int, int]) -> str:
    part = "" if shard == (0, 1) else f", shard {shard[0]}/{shard[1]}"
    return f"{data.settings.path}: {data.rows:,} rows of {data.form}{part}; loss mask from {data.mask}"


def _note(text: str) -> Told:
    return Told(time=time.time(), text=text)


def _news(old: RunRecord, new: RunRecord) -> Iterator[Told]:
    """What is not the same as when the run began, and need not be."""
    for what, was, now in (
        ("SGLang", old.engine.sglang_version, new.engine.sglang_version),
        ("the patch", (old.engine.patch_hash or "")[:12], (new.engine.patch_hash or "")[:12]),
        ("tensor parallelism", old.engine.tp_size, new.engine.tp_size),
        ("flags", " ".join(old.engine.flags), " ".join(new.engine.flags)),
    ):
        if was != now:
            text = f"{what} differs from the run's beginning: {was}, now {now}; states may differ in the last bits"
            yield Told(time=time.time(), text=text, level="warning")
