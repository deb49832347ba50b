"""What recording costs: prefill tok/s with and without the recorder, and a whole extraction to disk, in one run.

Starts three servers of the same model and flags side by side, `bare` (records nothing), `recorder`, and `plain` (copies
and saves inside the forward pass, one request at a time: what one would write first), and drives them one at a time,
in alternating blocks, for each prompt length. Then it runs `hsbench extract` on the recording server, each time between
a block of plain prefill and plain writing to the same disk, measures what the host takes by itself (dump folder, copies
from the GPU), and compares a few requests alone, in a batch and with a float32 reference. Prints ratios with 95 %
intervals over the rounds; everything goes into a JSON file too.

On the CPU: ``python -m bench.capture_overhead --length 128 --concurrency 4 --block 10 --rounds 3``. With `--shape`, a
random checkpoint of a large model's shape is made in `--work` first. Two such runs may share a host with two GPUs:
`--lock FILE` lets one measure while the other waits.
"""

import argparse
import contextlib
import fcntl
import functools
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import psutil

from bench import capture_extraction, capture_safety
from bench.capture_extraction import HSBENCH
from bench.gpu_check import SHAPES
from bench.host_rates import memory_rates
from bench.prefill_load import Load, spread
from workbench.errors import HsbenchError
from workbench.extract.job.arrivals import Arrivals
from workbench.probe.evidence import read_json
from workbench.server import processes, state
from workbench.server.client import SglangClient
from workbench.server.engine import find_engine
from workbench.server.flags import DUMP, with_defaults

VARIANTS = ("bare", "recorder", "plain")
GIB = 1 << 30


class Server:
    """One variant's server, started by the command line."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.options = name, options
        self.dumps = options.dumps / name
        self.arrivals: Arrivals | None = None
        self._ours = False

    def start(self) -> None:
        """Start it and wait until it answers. One of that name that runs is another run's, and is left to it."""
        options, name = self.options, f"overhead-{self.name}"
        found = state.load(name)
        if found is not None and state.alive(found):
            raise SystemExit(f"a server named {name} runs already; hsbench stop {name} ends it")
        self._ours = True
        command = [*HSBENCH, "serve", "--model", options.model, "--name", name, "--port", "0"]
        command += ["--device", options.device, "--timeout", "500"]
        if self.name != "bare":
            self.dumps.mkdir(parents=True, exist_ok=True)
            command += ["--dump-dir", str(self.dumps), "--capture", options.capture]
            command += ["--layers", options.layers] if options.layers else []
        env = {**self.options.env, "SGLANG_HS_DUMP_WRITERS": str(options.recorder_writers)}
        if self.name == "plain":
            env["SGLANG_HS_DUMP_PLAIN"] = "1"
        flags = tuple(options.flags)
        if self.name == "bare":
            flags = with_defaults(flags, DUMP, find_engine(None).flags)
        done = subprocess.run([*command, "--", *flags], env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{self.name} does not start:\n{done.stderr[-3000:]}")

    def stop(self) -> None:
        """End it if it was started here; what it wrote goes."""
        if not self._ours:
            return
        self._ours = False
        if self.arrivals is not None:
            self.arrivals.close()
        subprocess.run([*HSBENCH, "stop", f"overhead-{self.name}"], capture_output=True, check=False)
        shutil.rmtree(self.dumps, ignore_errors=True)

    def block(self, length: int) -> dict[str, Any]:
        """One stretch of load of prompts of `length` tokens, with the recorder's counters and the server's memory."""
        record = state.find_record(f"overhead-{self.name}")
        if self.name != "bare" and self.arrivals is None:
            self.arrivals = Arrivals(self.dumps, "hs-load-")  # nobody waits for these dumps: it removes them
        before = self._counters()
        concurrency = 1 if self.name == "plain" else self.options.concurrency
        with SglangClient(record.url) as client:
            load = Load(
                client,
                length=length,
                concurrency=concurrency,
                vocabulary=self.options.vocabulary,
                # On a CPU a pass is logged when the next one is put together, so the rate in the line means nothing.
                log=Path(record.log) if record.device == "cuda" else None,
            )
            load.run(self.options.warm, "hs-load-")
            found = load.run(self.options.block, "hs-load-")
        if not found.requests:
            raise SystemExit(f"{self.name} answered none of {found.failed} requests of {length} tokens: {found.error}")
        drained = self._drain()
        after = self._counters()
        family = processes.family(record.pid, record.since_boot)
        return {
            "variant": self.name,
            "length": length,
            **msgspec.to_builtins(found),
            "recorded_bytes": after.get("bytes", 0) - before.get("bytes", 0),
            "engine_share": (after.get("engine_us", 0) - before.get("engine_us", 0))
            / 1e6
            / (found.seconds + self.options.warm),
            "held_back_ms": after.get("held_back_ms", 0) - before.get("held_back_ms", 0),
            "waiting_peak": after.get("waiting_peak", 0),
            "errors": after.get("errors", 0) - before.get("errors", 0),
            "drain_s": drained,
            "rss": sum(_rss(process) for process in family),
        }

    def _counters(self) -> dict[str, Any]:
        status = read_json(self.dumps / "recorder.json") or {}
        return {**status.get("counts", {}), **{k: status.get(k, 0) for k in ("engine_us", "waiting_peak")}}

    def _drain(self) -> float:
        """Seconds until the recorder has written everything, so that the next block meets an idle machine."""
        began = time.monotonic()
        while self.name != "bare" and time.monotonic() - began < 120:
            time.sleep(0.6)
            if (read_json(self.dumps / "recorder.json") or {}).get("waiting_bytes") == 0:
                break
        return time.monotonic() - began


def _rss(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Start, alternate, extract, check, stop."""
    servers = {name: Server(name, options) for name in options.variants}
    options_text = {name: str(value) for name, value in vars(options).items() if name != "env"}
    found: dict[str, Any] = {"options": options_text, "blocks": []}
    _keep(found, options)
    try:
        _start_all(list(servers.values()), options.together)
        for length in options.length:
            _rounds(found, options, servers, length)
        if "plain" in servers:
            _add_block(found, options, 0, servers["plain"], options.length[0])
        if options.samples:
            _extractions(found, options, servers)
        if not options.no_checks and "recorder" in servers:
            _check(found, options, servers)
            _keep(found, options)
    finally:
        for server in servers.values():
            server.stop()
    return found


def _rounds(found: dict[str, Any], options: argparse.Namespace, servers: dict[str, Server], length: int) -> None:
    order = [name for name in ("bare", "recorder") if name in servers]
    for number in range(options.rounds):
        for name in order if number % 2 == 0 else order[::-1]:
            _add_block(found, options, number, servers[name], length)


def _add_block(found: dict[str, Any], options: argparse.Namespace, number: int, server: Server, length: int) -> None:
    with _alone(options):
        found["blocks"].append({"round": number, **server.block(length)})
    _keep(found, options)
    _say(found["blocks"][-1])


def _extractions(found: dict[str, Any], options: argparse.Namespace, servers: dict[str, Server]) -> None:
    """Whole extractions, each with the ceilings of its round: plain prefill before it, the disk after it."""
    found["extractions"] = []
    recorder = servers["recorder"]
    for number in range(options.extractions):
        with _alone(options):
            bare = servers["bare"].block(options.length[0])["tok_s"] if "bare" in servers else None
            if recorder.arrivals is not None:  # it takes dumps that it did not expect for its own
                recorder.arrivals.close()
                recorder.arrivals = None
            done = capture_extraction.extraction(options, f"overhead-{recorder.name}")
            found["extractions"].append({"round": number, "bare_tok_s": bare, **done})
        _keep(found, options)
        print(capture_extraction.line(found["extractions"][-1]), flush=True)
    with _alone(options):
        found["host"] = memory_rates(options.dumps, options.disk_bytes, options.writers)
    _keep(found, options)


def _check(found: dict[str, Any], options: argparse.Namespace, servers: dict[str, Server]) -> None:
    for name, server in servers.items():
        if name != "recorder":
            server.stop()  # the reference needs their memory
    record = state.find_record("overhead-recorder")
    device = "cuda" if record.device == "cuda" else "cpu"
    with _alone(options):
        found["checks"] = capture_safety.check(record.name, Path(record.model), options.vocabulary, device)


def _keep(found: dict[str, Any], options: argparse.Namespace) -> None:
    options.out.write_text(json.dumps(found, indent=1))


@contextlib.contextmanager
def _alone(options: argparse.Namespace) -> Iterator[None]:
    """The host to ourselves among the runs that share a `--lock`."""
    if options.lock is None:
        yield
        return
    with open(options.lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _start_all(servers: list[Server], together: bool) -> None:
    if not together:
        for server in servers:
            server.start()
        return
    with ThreadPoolExecutor(len(servers)) as pool:
        list(pool.map(Server.start, servers))


def _say(block: dict[str, Any]) -> None:
    print(
        f"{block['length']} tokens, round {block['round']} {block['variant']:9} {block['tok_s']:10,.0f} tok/s "
        f"{_of_the_server(block['server_tok_s'])}, "
        f"{block['recorded_bytes'] / 1e9:.2f} GB recorded, engine thread {block['engine_share']:.2%} in the recorder",
        flush=True,
    )


def _of_the_server(rate: float | None) -> str:
    return "" if rate is None else f" (server {rate:,.0f})"


def report(found: dict[str, Any]) -> None:
    """Ratios of the blocks of one round and, over the rounds, their intervals."""
    for length in dict.fromkeys(block["length"] for block in found["blocks"]):
        for what, key in (("client", "tok_s"), ("server's log", "server_tok_s")):
            _report_ratio(found["blocks"], length, what, key)
    plain = [block for block in found["blocks"] if block["variant"] == "plain"]
    first = [b for b in found["blocks"] if b["variant"] == "recorder" and plain and b["length"] == plain[0]["length"]]
    if first:
        ratio = statistics.fmean(b["tok_s"] for b in first) / plain[0]["tok_s"]
        print(f"recorder / plain way        {ratio:.2f}")
    for line in capture_extraction.summary(found["extractions"]) if "extractions" in found else ():
        print(line)
    if "host" in found:
        print("host, GB/s " + ", ".join(f"{name} {rate / 1e9:.2f}" for name, rate in found["host"].items()))
    for line in capture_safety.summary(found["checks"]) if "checks" in found else ():
        print(line)


def _report_ratio(blocks: list[dict[str, Any]], length: int, what: str, key: str) -> None:
    rates = {
        name: [b[key] for b in blocks if b["variant"] == name and b["length"] == length]
        for name in ("bare", "recorder")
    }
    pairs = [(b, r) for b, r in zip(rates["bare"], rates["recorder"], strict=False) if b and r]
    if pairs:
        ratio = spread([r / b for b, r in pairs])
        bare = statistics.fmean(b for b, _ in pairs)
        print(f"recorder / bare, {length:5} tokens {ratio}, by the {what}; bare {bare:,.0f} tok/s")


def _number(text: str, kind: type = int, least: float = 1) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not least <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} on")
    return value


_COUNT_OR_NONE = functools.partial(_number, least=0)
_SECONDS = functools.partial(_number, kind=float, least=0.1)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--vocabulary", type=int, default=32000, help="random ids are below this")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--layers", default="")
    parser.add_argument("--capture", default="auto")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="instead of --model: a random checkpoint of this shape")
    parser.add_argument("--work", type=Path, default=Path("overhead-models"), help="where --shape's checkpoint goes")
    parser.add_argument(
        "--length", type=_number, nargs="+", default=[2048], help="of the prompts; the first one's is extracted"
    )
    parser.add_argument("--concurrency", type=_number, default=32)
    parser.add_argument("--warm", type=_SECONDS, default=3.0, help="seconds of load before each block")
    parser.add_argument("--block", type=_SECONDS, default=10.0, help="seconds of load in a block")
    parser.add_argument("--rounds", type=_COUNT_OR_NONE, default=3)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--together", action="store_true", help="start the servers at the same time")
    parser.add_argument("--samples", type=_COUNT_OR_NONE, default=0, help="rows of the extraction; 0 leaves it out")
    parser.add_argument("--extractions", type=_number, default=1, help="how often, each with ceilings of its own")
    parser.add_argument("--writers", type=_number, help="of the extraction")
    parser.add_argument(
        "--disk-threads", type=_number, nargs="+", default=[4, 12, 28], help="the best is the disk's rate"
    )
    parser.add_argument("--recorder-writers", type=_number, default=4)
    parser.add_argument("--no-checks", action="store_true", help="leave out batch against alone, and the reference")
    parser.add_argument("--lock", type=Path, help="measure only while holding this file's lock")
    parser.add_argument("--disk-bytes", type=_number, default=4 * GIB)
    parser.add_argument("--dumps", type=Path, default=Path("/dev/shm/overhead"))
    parser.add_argument("--data", type=Path, default=Path("overhead-data"))
    parser.add_argument("--out", type=Path, default=Path("capture-overhead.json"))
    parser.add_argument("flags", nargs="*", help="SGLang's, after --")
    options = parser.parse_args()
    if options.samples and "recorder" not in options.variants:
        parser.error("--samples needs the recorder among --variants")
    if options.vocabulary < 6:
        parser.error("--vocabulary: ids are drawn from 5 on, so it must be 6 or more")
    options.env = dict(os.environ)
    if options.shape:
        options.model = str(_checkpoint(options))
        options.layers = options.layers or ",".join(map(str, SHAPES[options.shape][1]))
    return options


def _checkpoint(options: argparse.Namespace) -> Path:
    """Made by a process of its own, which gives the GPU's memory back."""
    folder = Path(options.work).absolute() / str(options.shape)
    command = [sys.executable, "-m", "bench.gpu_check", "--shape", options.shape, "--work", str(options.work)]
    subprocess.run([*command, "--checkpoint-only"], check=True)
    return folder


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers are stopped then too
    try:
        report(measure(parsed()))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except HsbenchError as error:
        raise SystemExit(f"{error.message}\n  next: {error.next_step}") from None
    except OSError as error:
        raise SystemExit(str(error)) from None
