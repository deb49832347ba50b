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
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench import capture_extraction, capture_safety
from bench.capture_report import block_line, report
from bench.capture_server import Server
from bench.gpu_check import FLAGS, SHAPES
from bench.host_rates import memory_rates, refuse_used
from probes.weights import read_config
from workbench.errors import HsbenchError

VARIANTS = ("bare", "recorder", "plain")
VOCABULARY = 32000
GIB = 1 << 30
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Start, alternate, extract, check, stop."""
    refuse_used(options.data)
    options.out.touch()
    options.dumps.mkdir(parents=True, exist_ok=True)
    options.scratch = tempfile.mkdtemp(prefix="run-", dir=options.dumps)
    servers = {name: Server(name, options) for name in options.variants}
    try:
        return _measured(options, servers)
    finally:
        with _deaf():
            for server in servers.values():
                server.stop()
            shutil.rmtree(options.scratch, ignore_errors=True)
            with contextlib.suppress(OSError):
                options.dumps.rmdir()


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """To whoever wants an end that is under way already."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _measured(options: argparse.Namespace, servers: dict[str, Server]) -> dict[str, Any]:
    _start_all(list(servers.values()), options.together)
    _set_vocabulary(options, next(iter(servers.values())))
    shown = {name: str(value) for name, value in vars(options).items() if name not in ("env", "scratch")}
    found: dict[str, Any] = {"options": shown, "blocks": []}
    for length in options.length:
        _rounds(found, options, servers, length)
    if options.samples:
        _extractions(found, options, servers)
    if not options.no_checks and "recorder" in servers:
        _check(found, options, servers)
    _keep(found, options)
    return found


def _set_vocabulary(options: argparse.Namespace, server: Server) -> None:
    """An id beyond the model's vocabulary ends a server on a CPU."""
    most = int(read_config(Path(server.record.model)).get("vocab_size", VOCABULARY))
    if options.vocabulary is not None and options.vocabulary > most:
        raise SystemExit(f"--vocabulary {options.vocabulary} is more than the model has: {most}")
    options.vocabulary = options.vocabulary or min(VOCABULARY, most)


def _start_all(servers: list[Server], together: bool) -> None:
    print(f"starting {', '.join(server.name for server in servers)}", file=sys.stderr)
    with ThreadPoolExecutor(len(servers) if together else 1) as pool:
        try:
            list(pool.map(Server.start, servers))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for server in servers:
                server.break_off()
            raise


def _rounds(found: dict[str, Any], options: argparse.Namespace, servers: dict[str, Server], length: int) -> None:
    """The plain way is slow: the first length is enough."""
    order = [name for name in VARIANTS if name in servers and (name != "plain" or length == options.length[0])]
    for number in range(options.rounds):
        for name in order if number % 2 == 0 else order[::-1]:
            with _alone(options):
                found["blocks"].append({"round": number, **servers[name].block(length)})
            _keep(found, options)
            print(block_line(found["blocks"][-1]), flush=True)


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
        found["host"] = memory_rates(Path(options.scratch), options.disk_bytes, options.writers)
    _keep(found, options)


def _check(found: dict[str, Any], options: argparse.Namespace, servers: dict[str, Server]) -> None:
    for name, server in servers.items():
        if name != "recorder":
            server.stop()  # the reference needs their memory
    record = servers["recorder"].record
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
    parser.add_argument("--vocabulary", type=_number, help=f"random ids are below this; {VOCABULARY} or the model's")
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
    if options.vocabulary is not None and options.vocabulary < 6:
        parser.error("--vocabulary: ids are drawn from 5 on, so it must be 6 or more")
    options.env = dict(os.environ)
    if options.shape:
        options.model = str(_checkpoint(options))
        options.layers = options.layers or ",".join(map(str, SHAPES[options.shape][1]))
        options.flags += [] if FLAGS[-1] in options.flags else FLAGS  # such a checkpoint has no tokenizer
    return options


def _checkpoint(options: argparse.Namespace) -> Path:
    """Made by a process of its own, which gives the GPU's memory back."""
    folder = Path(options.work).absolute() / str(options.shape)
    command = [sys.executable, "-m", "bench.gpu_check", "--shape", options.shape, "--work", str(options.work)]
    subprocess.run([*command, "--checkpoint-only"], check=True)
    return folder


if __name__ == "__main__":
    for end in ENDS:
        signal.signal(end, signal.default_int_handler)  # the servers are stopped then too
    try:
        for text in report(measure(parsed())):
            print(text)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except HsbenchError as error:
        raise SystemExit(f"{error.message}\n  next: {error.next_step}") from None
    except OSError as error:
        raise SystemExit(str(error)) from None
