"""What recording costs: prefill tok/s with and without the recorder, and a whole extraction to disk, in one run.

Starts three servers of the same model and flags side by side, `bare` (records nothing), `recorder`, and `plain` (copies
and saves inside the forward pass, one request at a time: what one would write first), and drives them one at a time,
in alternating blocks. Then it runs `hsbench extract` on the recording server, and measures what the output disk takes
by itself. Prints ratios with 95 % intervals over the rounds; everything goes into a JSON file too.

On the CPU: ``python -m bench.capture_overhead --length 128 --concurrency 4 --block 10 --rounds 3``.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import psutil

from bench.prefill_load import Load, interval
from workbench.extract.job.arrivals import Arrivals
from workbench.probe.evidence import read_json
from workbench.server import processes, state
from workbench.server.client import SglangClient
from workbench.server.engine import find_engine
from workbench.server.flags import DUMP, with_defaults

HSBENCH = [sys.executable, "-m", "workbench.cli"]
VARIANTS = ("bare", "recorder", "plain")
GIB = 1 << 30


class Server:
    """One variant's server, started by the command line."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.options = name, options
        self.dumps = options.dumps / name
        self.arrivals: Arrivals | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = self.options
        command = [*HSBENCH, "serve", "--model", options.model, "--name", f"overhead-{self.name}", "--port", "0"]
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
        """End it; what it wrote goes."""
        if self.arrivals is not None:
            self.arrivals.close()
        subprocess.run([*HSBENCH, "stop", f"overhead-{self.name}"], capture_output=True, check=False)
        shutil.rmtree(self.dumps, ignore_errors=True)

    def block(self) -> dict[str, Any]:
        """One stretch of load, with the recorder's counters and the server's memory."""
        record = state.find_record(f"overhead-{self.name}")
        if self.name != "bare" and self.arrivals is None:
            self.arrivals = Arrivals(self.dumps, "hs-load-")  # nobody waits for these dumps: it removes them
        before = self._counters()
        concurrency = 1 if self.name == "plain" else self.options.concurrency
        with SglangClient(record.url) as client:
            load = Load(
                client,
                length=self.options.length,
                concurrency=concurrency,
                vocabulary=self.options.vocabulary,
                # On a CPU a pass is logged when the next one is put together, so the rate in the line means nothing.
                log=Path(record.log) if record.device == "cuda" else None,
            )
            load.run(self.options.warm, "hs-load-")
            found = load.run(self.options.block, "hs-load-")
        drained = self._drain()
        after = self._counters()
        family = processes.family(record.pid, record.since_boot)
        return {
            "variant": self.name,
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


def disk_rate(folder: Path, nbytes: int, threads: int) -> float:
    """Bytes a second that the disk takes: files of 64 MiB, each synced, as many at a time as the job writes."""
    piece = bytes(64 << 20)
    count = max(threads, nbytes // len(piece))
    folder.mkdir(parents=True, exist_ok=True)

    def write(number: int) -> None:
        path = folder / str(number)
        with open(path, "wb") as file:
            file.write(piece)
            file.flush()
            os.fsync(file.fileno())

    began = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(write, range(count)))
    rate = count * len(piece) / (time.monotonic() - began)
    shutil.rmtree(folder)
    return rate


def extraction(options: argparse.Namespace, server: Server) -> dict[str, Any]:
    """`hsbench extract` of random rows on the recording server: its own counts, and its wall time."""
    source = options.out.with_suffix(".rows.jsonl")
    chance = random.Random(5)
    with open(source, "w", encoding="utf-8") as file:
        for _ in range(options.samples):
            ids = [chance.randrange(5, options.vocabulary) for _ in range(options.length)]
            file.write(json.dumps({"input_ids": ids}) + "\n")
    if server.arrivals is not None:
        server.arrivals.close()
        server.arrivals = None
    command = [*HSBENCH, "extract", str(source), "--out", str(options.data), "--name", f"overhead-{server.name}"]
    command += ["--foreground", "--json", "--baseline", "0", "--concurrency", str(options.concurrency)]
    command += ["--min-free", "0.1", *(["--writers", str(options.writers)] if options.writers else [])]
    done = subprocess.run(command, env=options.env, capture_output=True, text=True, check=False)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    pictures = [event for event in events if event.get("type") == "Progress" and event["tokens_here"]]
    if done.returncode or not pictures:
        raise SystemExit(f"the extraction failed:\n{done.stderr[-3000:]}")
    last = pictures[-1]
    return {
        "samples": last["samples_here"],
        "tokens": last["tokens_here"],
        "bytes": last["bytes_here"],
        "seconds": last["seconds_here"],
        "tok_s": last["tokens_here"] / last["seconds_here"],
        "gb_s": last["bytes_here"] / last["seconds_here"] / 1e9,
        "steady_tok_s": _steady(pictures),
        "pictures": [[p["seconds_here"], p["tokens_here"], p["in_flight"], p["waiting_bytes"]] for p in pictures],
    }


def _steady(pictures: list[dict[str, Any]]) -> float | None:
    """Without the ramp and the drain: between the first and the last picture with a full house."""
    full = [p for p in pictures if p["in_flight"] >= max(q["in_flight"] for q in pictures) * 0.75]
    if len(full) < 2 or full[-1]["seconds_here"] <= full[0]["seconds_here"]:
        return None
    tokens = full[-1]["tokens_here"] - full[0]["tokens_here"]
    return float(tokens / (full[-1]["seconds_here"] - full[0]["seconds_here"]))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Start, alternate, extract, stop."""
    servers = {name: Server(name, options) for name in options.variants}
    options_text = {name: str(value) for name, value in vars(options).items() if name != "env"}
    found: dict[str, Any] = {"options": options_text, "blocks": []}
    try:
        _start_all(list(servers.values()), options.together)
        for number in range(options.rounds):
            order = [name for name in ("bare", "recorder") if name in servers]
            for name in order if number % 2 == 0 else order[::-1]:
                _add_block(found, options, number, servers[name])
            if number == 0 and options.samples:
                threads = options.writers or psutil.cpu_count() or 1
                found["extraction"] = extraction(options, servers["recorder"])
                found["disk_bytes_s"] = disk_rate(options.data.with_name("disk"), options.disk_bytes, threads)
        if "plain" in servers:
            _add_block(found, options, 0, servers["plain"])
    finally:
        options.out.write_text(json.dumps(found, indent=1))
        for server in servers.values():
            server.stop()
    return found


def _add_block(found: dict[str, Any], options: argparse.Namespace, number: int, server: Server) -> None:
    found["blocks"].append({"round": number, **server.block()})
    options.out.write_text(json.dumps(found, indent=1))
    _say(found["blocks"][-1])


def _start_all(servers: list[Server], together: bool) -> None:
    if not together:
        for server in servers:
            server.start()
        return
    threads = [threading.Thread(target=server.start) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _say(block: dict[str, Any]) -> None:
    print(
        f"round {block['round']} {block['variant']:9} {block['tok_s']:10,.0f} tok/s "
        f"{_of_the_server(block['server_tok_s'])}, "
        f"{block['recorded_bytes'] / 1e9:.2f} GB recorded, engine thread {block['engine_share']:.2%} in the recorder",
        flush=True,
    )


def _of_the_server(rate: float | None) -> str:
    return "" if rate is None else f" (server {rate:,.0f})"


def report(found: dict[str, Any]) -> None:
    """Ratios of the medians and, over the rounds, their intervals."""
    rates = {name: [b["tok_s"] for b in found["blocks"] if b["variant"] == name] for name in VARIANTS}
    if rates["bare"] and rates["recorder"]:
        ratios = [r / b for b, r in zip(rates["bare"], rates["recorder"], strict=True)]
        mean, half = interval(ratios)
        print(f"recorder / bare             {mean:.4f} ± {half:.4f} over {len(ratios)} rounds")
    if rates["plain"] and rates["recorder"]:
        print(f"recorder / plain way        {statistics.fmean(rates['recorder']) / rates['plain'][0]:.2f}")
    if "extraction" in found:
        done = found["extraction"]
        per_token = done["bytes"] / done["tokens"]
        bare = statistics.fmean(rates["bare"] or rates["recorder"])
        disk = found["disk_bytes_s"] / per_token
        print(
            f"extraction to disk          {done['tok_s']:,.0f} tok/s whole, {done['steady_tok_s'] or 0:,.0f} steady, "
            f"{done['gb_s']:.2f} GB/s"
        )
        print(
            f"plain prefill, disk alone   {bare:,.0f} tok/s, {disk:,.0f} tok/s ({found['disk_bytes_s'] / 1e9:.2f} GB/s)"
        )
        print(f"extraction / smaller        {(done['steady_tok_s'] or done['tok_s']) / min(bare, disk):.4f}")


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--vocabulary", type=int, default=32000, help="random ids are below this")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--layers", default="")
    parser.add_argument("--capture", default="auto")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--warm", type=float, default=3.0, help="seconds of load before each block")
    parser.add_argument("--block", type=float, default=10.0, help="seconds of load in a block")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--together", action="store_true", help="start the servers at the same time")
    parser.add_argument("--samples", type=int, default=0, help="rows of the extraction; 0 leaves it out")
    parser.add_argument("--writers", type=int, help="of the extraction")
    parser.add_argument("--recorder-writers", type=int, default=4)
    parser.add_argument("--disk-bytes", type=int, default=4 * GIB)
    parser.add_argument("--dumps", type=Path, default=Path("/dev/shm/overhead"))
    parser.add_argument("--data", type=Path, default=Path("overhead-data"))
    parser.add_argument("--out", type=Path, default=Path("capture-overhead.json"))
    parser.add_argument("flags", nargs="*", help="SGLang's, after --")
    options = parser.parse_args()
    options.env = dict(os.environ)
    return options


if __name__ == "__main__":
    report(measure(parsed()))
