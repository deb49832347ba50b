"""One of the servers that `bench.capture_overhead` compares, and a block of load on it."""

import argparse
import contextlib
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil

from bench.capture_extraction import HSBENCH
from bench.prefill_load import Block, Load
from workbench.extract.job.arrivals import Arrivals
from workbench.probe.evidence import json_lines, read_json
from workbench.server import processes, state
from workbench.server.client import SglangClient
from workbench.server.engine import find_engine
from workbench.server.flags import DUMP, with_defaults
from workbench.server.state import ServerRecord

DRAIN_S = 120.0


class Server:
    """One variant's server, started by the command line.

    Args:
        name: `bare`, `recorder` or `plain`.
        options: The script's; `scratch` is the folder that dumps go below.
    """

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.options = name, options
        self.dumps = Path(options.scratch) / name
        self.arrivals: Arrivals | None = None
        self._starting: subprocess.Popen[str] | None = None

    @property
    def record(self) -> ServerRecord:
        """What is written down of it."""
        return state.find_record(f"overhead-{self.name}")

    def start(self) -> None:
        """Start it and wait until it answers. One of that name that runs is another run's, and is left to it."""
        name = f"overhead-{self.name}"
        found = state.load(name)
        if found is not None and state.alive(found):
            raise SystemExit(f"a server named {name} runs already; hsbench stop {name} ends it")
        self._starting = subprocess.Popen(
            self._command(name), env=self._env(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        said = self._starting.communicate()[1]
        if self._starting.returncode:
            raise SystemExit(f"{self.name} does not start:\n{said[-3000:]}")

    def _command(self, name: str) -> list[str]:
        options, flags = self.options, tuple(self.options.flags)
        command = [*HSBENCH, "serve", "--model", options.model, "--name", name, "--port", "0"]
        command += ["--device", options.device, "--timeout", "500"]
        if self.name == "bare":
            return [*command, "--", *with_defaults(flags, DUMP, find_engine(None).flags)]
        self.dumps.mkdir(parents=True, exist_ok=True)
        command += ["--dump-dir", str(self.dumps), "--capture", options.capture]
        command += ["--layers", options.layers] if options.layers else []
        return [*command, "--", *flags]

    def _env(self) -> dict[str, str]:
        env = {**self.options.env, "SGLANG_HS_DUMP_WRITERS": str(self.options.recorder_writers)}
        return {**env, "SGLANG_HS_DUMP_PLAIN": "1"} if self.name == "plain" else env

    def stop(self) -> None:
        """End it if it was started here, ready or not; what it wrote goes."""
        if self._starting is None:
            return
        self.break_off()
        self._starting = None
        if self.arrivals is not None:
            self.arrivals.close()
        command = [*HSBENCH, "stop", f"overhead-{self.name}"]
        subprocess.run(command, capture_output=True, check=False, start_new_session=True)  # no Ctrl-C for it
        shutil.rmtree(self.dumps, ignore_errors=True)

    def break_off(self) -> None:
        """Wait for its start no longer."""
        if self._starting is not None and self._starting.poll() is None:
            self._starting.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._starting.wait(10)

    def block(self, length: int) -> dict[str, Any]:
        """One stretch of load of prompts of `length` tokens, with the recorder's counters and the server's memory."""
        record = self.record
        if self.name != "bare" and self.arrivals is None:
            self.arrivals = Arrivals(self.dumps, "hs-load-")  # nobody waits for these dumps: it removes them
        with SglangClient(record.url) as client:
            load = Load(
                client,
                length=length,
                concurrency=1 if self.name == "plain" else self.options.concurrency,
                vocabulary=self.options.vocabulary,
                # On a CPU a pass is logged when the next one is put together, so the rate in the line means nothing.
                log=Path(record.log) if record.device == "cuda" else None,
            )
            self._loaded(load, self.options.warm)
            self._drain()
            before = self._counters()
            found = self._loaded(load, self.options.block)
        drained = self._drain()
        after = self._counters()
        made = {name: after[name] - before[name] for name in ("bytes", "engine_us", "held_back_ms", "errors")}
        self._refuse_lost(made)
        return {
            "variant": self.name,
            "length": length,
            **msgspec.to_builtins(found),
            "recorded_bytes": made["bytes"],
            "engine_share": made["engine_us"] / 1e6 / found.seconds,
            "held_back_ms": made["held_back_ms"],
            "waiting_peak": after["waiting_peak"],
            "errors": made["errors"],
            "drain_s": drained,
            "memory": sum(_memory(process) for process in processes.family(record.pid, record.since_boot)),
        }

    def _loaded(self, load: Load, seconds: float) -> Block:
        found = load.run(seconds, "hs-load-")
        if found.error:
            raise SystemExit(f"{self.name}: a request of {load.length} tokens failed: {found.error}")
        return found

    def _refuse_lost(self, made: dict[str, int]) -> None:
        """A recorder that records nothing would be a fast one."""
        if self.name == "bare" or (made["bytes"] and not made["errors"]):
            return
        said = list(json_lines(self.dumps / "errors.jsonl"))
        why = said[-1].get("error", "") if said else "its errors.jsonl does not say why"
        raise SystemExit(f"{self.name} lost {made['errors'] or 'all'} dumps of this block: {why}")

    def _counters(self) -> dict[str, int]:
        status = read_json(self.dumps / "recorder.json") or {}
        counts = status.get("counts", {})
        found = {name: int(counts.get(name, 0)) for name in ("bytes", "held_back_ms", "errors")}
        return found | {name: int(status.get(name, 0)) for name in ("engine_us", "waiting_peak")}

    def _drain(self) -> float:
        """Seconds until the recorder has written everything, so that the next block meets an idle machine."""
        began = time.monotonic()
        while self.name != "bare" and time.monotonic() - began < DRAIN_S:
            time.sleep(0.6)
            if (read_json(self.dumps / "recorder.json") or {}).get("waiting_bytes") == 0:
                break
        return time.monotonic() - began


def _memory(process: psutil.Process) -> int:
    """Bytes; what several processes share is divided among them."""
    with contextlib.suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0
