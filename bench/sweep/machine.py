"""The machine that a sweep is run on: it launches real servers through supervision, and measures them."""

import contextlib
import json
import os
import random
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.load.runner import Measured as LoadMeasured
from bench.load.runner import Point, Round, run
from bench.load.spec import BenchSettings, WarmUp, Workload
from bench.sweep import allreduce
from bench.sweep.design import Start
from bench.sweep.environment import GpuWatch
from bench.sweep.gate import GateRecord, Greedy, ProbeTensor, ReduceCheck
from bench.sweep.records import MachineWatch, Measured, Next, Server
from bench.sweep.serving import Sight, parse_environ
from bench.sweep.variants import Variant
from workbench.errors import HsbenchError, ServerBroken, ServerError
from workbench.probe.session import model_config
from workbench.server import processes
from workbench.server.bringup import start_and_wait
from workbench.server.client import SglangClient
from workbench.server.engine import find_interpreter
from workbench.server.events import Started
from workbench.server.launch import Plan
from workbench.server.prepare import prepare
from workbench.server.specs import LaunchSpec
from workbench.server.state import ServerRecord
from workbench.server.stop import stop
from workbench.supervision.gpu import Nvml
from workbench.supervision.verdict import Limits

GATE_LENGTHS = (8, 33, 120)
GATE_TOKENS = 16
GATE_SEED = 20
GATE_TIMEOUT_S = 300.0
REDUCE_TIMEOUT_S = 120.0
GRACE_S = 10.0


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The loads that give a start its two speeds."""

    concurrency: int = 1
    input_len: int = 32
    output_len: int = 128
    requests: int = 8
    prefill_len: int = 1024
    prefill_requests: int = 16
    warm_up: WarmUp = WarmUp(windows=2, within=0.05, most_rounds=4, most_seconds=30.0)


class Machine:
    """Starts servers of one launch, changed by variants. See `bench.sweep.records.Bench`.

    Args:
        spec: The baseline.
        shape: How a start is measured.
        timeout_s: For a start.
        limits: What supervision calls long.
        tp_size: Ranks; more than one on GPUs has its all-reduce checked.
        seed: Of the load's prompts; each start gets others, which no cache knows.
    """

    def __init__(
        self, spec: LaunchSpec, shape: Shape, *, timeout_s: float, limits: Limits, tp_size: int, seed: int
    ) -> None:
        self.spec, self.shape, self.timeout_s, self.limits, self.tp_size = spec, shape, timeout_s, limits, tp_size
        self._seeds = random.Random(seed)
        self._checked: dict[str, ReduceCheck | None] = {}

    def reduce_check(self, variant: Variant) -> ReduceCheck | None:
        """All-reduce of whole numbers on as many GPUs as there are ranks; None without GPUs. One run a variant."""
        if self.tp_size < 2 or self.spec.device == "cpu" or not Nvml().sample():
            return None
        if variant.name not in self._checked:
            self._checked[variant.name] = reduce_check(self.spec.python, self.tp_size, variant.env)
        return self._checked[variant.name]

    def upcoming(self, starts: Sequence[Next]) -> None:
        """Nothing is started ahead; `bench.sweep.sidebyside` does that."""

    def done(self) -> None:
        """Nothing waits here."""

    def start(self, start: Start, variant: Variant, env: dict[str, str]) -> Server:
        """One server; nothing of it is left when it does not come up."""
        return self.launch(self.plan(variant, env, self.spec.name))

    def plan(self, variant: Variant, env: dict[str, str], name: str) -> Plan:
        """The command of a server under a variant."""
        spec = msgspec.structs.replace(
            self.spec,
            name=name,
            flags=(*self.spec.flags, *variant.flags),
            env={**self.spec.env, **variant.env, **env},
        )
        preparing = prepare(spec)
        try:
            while True:
                next(preparing)
        except StopIteration as ended:
            plan: Plan = ended.value
            return plan

    def launch(self, plan: Plan, started: Callable[[ServerRecord], None] = lambda _: None) -> Server:
        """Start it and wait until it answers; nothing of it is left when it does not. `started` gets its record."""
        record: ServerRecord | None = None
        try:
            for event in start_and_wait(plan, self.timeout_s, self.limits):
                if isinstance(event, Started):
                    record = event.record
                    started(record)
        except BaseException:
            if record is not None:
                with contextlib.suppress(HsbenchError):  # it may be gone already
                    self.end(record)
            raise
        assert record is not None
        return RunningServer(record, plan.api_key, self.shape)

    def end(self, record: ServerRecord) -> None:
        """End a server without grace."""
        _end(record, grace_s=0)

    def measure(self, url: str) -> Measured:
        """Decode speed in the full batch, and prefill speed; each warmed up."""
        shape = self.shape
        decode = Workload(
            input_len=shape.input_len,
            output_len=shape.output_len,
            concurrency=shape.concurrency,
            requests=shape.requests,
        )
        prefill = Workload(
            input_len=shape.prefill_len, output_len=1, concurrency=shape.concurrency, requests=shape.prefill_requests
        )
        points: list[Point] = []

        def keep(told: Round | LoadMeasured) -> None:
            if isinstance(told, LoadMeasured):
                points.append(told.point)

        size = model_config(self.spec.model).get("vocab_size")
        high = min(8000, size) if isinstance(size, int) else 8000
        settings = BenchSettings(
            url=url,
            workloads=(decode, prefill),
            seed=self._seeds.randrange(1 << 32),
            token_range=(min(100, high // 2), high),
            warm_up=shape.warm_up,
        )
        run(settings, keep)
        return measured(points[0], points[1])

    def watch_machine(self) -> MachineWatch:
        """NVML's view; without GPUs it sees none."""
        return GpuWatch()


def measured(decode: Point, prefill: Point) -> Measured:
    """The two speeds of a start, and why they cannot be believed if so."""
    said = [note for point in (decode, prefill) for note in point.notes if note.startswith("CLIENT-LIMITED")]
    failed = decode.metrics.failed + prefill.metrics.failed
    said += [f"{failed} requests failed"] if failed else []
    tokens, seconds = prefill.metrics.prompt_tokens, prefill.metrics.seconds
    spreads = {"ttft": decode.metrics.ttft, "tpot": decode.metrics.tpot, "prefill_ttft": prefill.metrics.ttft}
    return Measured(
        decode_tok_s=decode.metrics.batch_tok_s or decode.metrics.decode_tok_s or 0.0,
        prefill_tok_s=tokens / seconds if tokens and seconds else None,
        details={f"{name}_mean": spread.mean for name, spread in spreads.items() if spread is not None},
        invalid="; ".join(said),
    )


class RunningServer:
    """One started server. See `bench.sweep.records.Server`."""

    def __init__(self, record: ServerRecord, api_key: str | None, shape: Shape) -> None:
        self.record, self.url, self._shape = record, record.url, shape
        self._client = SglangClient(record.url, api_key=api_key, timeout=120.0)
        self._config = model_config(record.model)

    def gate_record(self) -> GateRecord:
        """Greedy continuations of fixed random prompts, and the log-probabilities of their own tokens.

        The latter are numbers of the whole network in a prefill, so they stand for its states.
        """
        chance = random.Random(GATE_SEED)
        size = int(self._config.get("vocab_size", 8000))
        greedy, tensors = [], []
        for length in GATE_LENGTHS:
            ids = [chance.randrange(min(100, size // 2), min(8000, size)) for _ in range(length)]
            answer = self._client.generate(
                ids, f"gate-{length}", GATE_TOKENS, logprob_start=0, top_logprobs=2, timeout=GATE_TIMEOUT_S
            )
            about = answer["meta_info"]
            greedy.append(greedy_of(f"{length} tokens", about))
            values = tuple(float(entry[0]) for entry in about["input_token_logprobs"] if entry[0] is not None)
            tensors.append(ProbeTensor(f"log-probabilities of {length} tokens", (values,)))
        return GateRecord(greedy=tuple(greedy), tensors=tuple(tensors))

    def sight(self) -> Sight:
        """Log, settings, the scheduler's environment, NCCL's log, and the sizes of the all-reduces."""
        log = Path(self.record.log).read_text(encoding="utf-8", errors="replace")
        info: dict[str, Any] = {}
        with contextlib.suppress(HsbenchError):
            info = self._client.server_info()
        row = int(self._config.get("hidden_size", 0)) * 2
        return Sight(
            log=log,
            info=info,
            environ=self._environ(),
            nccl_log=self._nccl_log(),
            decode_bytes=row * self._shape.concurrency or None,
            prefill_bytes=row * self._shape.prefill_len or None,
        )

    def _environ(self) -> dict[str, str] | None:
        for process in processes.family(self.record.pid, self.record.since_boot):
            with contextlib.suppress(Exception):
                if process.name().startswith("sglang::schedul"):
                    return parse_environ(Path(f"/proc/{process.pid}/environ").read_bytes())
        return None

    def _nccl_log(self) -> str:
        name = self.record.env.get("NCCL_DEBUG_FILE", "")
        pattern = Path(name).name.replace("%h", "*").replace("%p", "*")
        if not name:
            return ""
        return "\n".join(path.read_text(errors="replace") for path in sorted(Path(name).parent.glob(pattern)))

    def pids(self) -> frozenset[int]:
        """All processes of the server."""
        return frozenset(p.pid for p in processes.family(self.record.pid, self.record.since_boot))

    def stop(self) -> None:
        """End it; raises when something of it is left."""
        self._client.close()
        _end(self.record, GRACE_S)


def greedy_of(prompt: str, about: dict[str, Any]) -> Greedy:
    """SGLang's `meta_info` as the gate takes it: entries are [log-probability, token id, text]."""
    chosen = about["output_token_logprobs"]
    tops = about.get("output_top_logprobs") or [None] * len(chosen)
    second: list[int | None] = []
    margins: list[float | None] = []
    for top in tops:
        known = top is not None and len(top) > 1
        second.append(int(top[1][1]) if known else None)
        margins.append(float(top[0][0]) - float(top[1][0]) if known else None)
    return Greedy(prompt=prompt, tokens=tuple(int(e[1]) for e in chosen), second=tuple(second), margins=tuple(margins))


def _end(record: ServerRecord, grace_s: float) -> None:
    for _ in stop(record, grace_s=grace_s):
        pass


def reduce_check(python: str | None, ranks: int, env: dict[str, str]) -> ReduceCheck:
    """Run `bench/sweep/allreduce.py` in the engine's interpreter under these variables.

    Raises:
        ServerBroken: it hangs.
        ServerError: it does not run.
    """
    command = [find_interpreter(python), str(allreduce.__file__), str(ranks)]
    try:
        done = subprocess.run(
            command, env={**os.environ, **env}, capture_output=True, text=True, timeout=REDUCE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ServerBroken(f"an all-reduce of {ranks} GPUs hangs under its variables", "") from None
    return read_check(done.returncode, done.stdout, done.stderr)


def read_check(code: int, stdout: str, stderr: str) -> ReduceCheck:
    """What the script found."""
    with contextlib.suppress(ValueError, IndexError, KeyError):
        found = json.loads(stdout.splitlines()[-1])
        wrong: Sequence[Sequence[int]] = found["wrong"]
        return ReduceCheck(tuple((size, count) for size, count in wrong), tuple(found["sizes"]))
    last = (stderr.strip().splitlines() or ["no word"])[-1]
    raise ServerError(f"the all-reduce check did not run (exit code {code}): {last[:300]}", "")
