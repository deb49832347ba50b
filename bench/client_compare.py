"""The load generator beside SGLang's own (`sglang.benchmark.serving`), on the same real server, in one run.

    python -m bench.client_compare [--model demo] [--rounds 3] [--input-len 32] [--output-len 32] [--concurrency 4]

Alternates the two on one server, with the same number of random prompts of the same length, `ignore_eos`, and as many
in flight. Processor time is that of each client's process after its imports; what else a start costs (a tokenizer) is
taken out by running each twice a round, with few requests and with many: the difference, over the tokens between.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HSBENCH = [sys.executable, "-m", "workbench.cli"]
NAME = "client-compare"
FEW = 4


DRIVER = """
import importlib, sys, time
module, function = sys.argv.pop(1), sys.argv.pop(1)
run = getattr(importlib.import_module(module), function)
before = time.process_time()
try:
    run()
except SystemExit as end:
    if end.code:
        raise
print(f"cpu {time.process_time() - before}", file=sys.stderr)
"""


def cpu_of(module: str, function: str, arguments: list[str]) -> float:
    """Run a client's main function in a process of its own; the processor seconds after its imports."""
    command = [sys.executable, "-c", DRIVER, module, function, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command} failed:\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}")
    return float(done.stderr.rpartition("cpu ")[2])


def theirs(options: argparse.Namespace, url: str, requests: int, folder: Path) -> dict[str, Any]:
    """SGLang's client; its figures in our names, seconds."""
    out = folder / f"theirs-{os.urandom(4).hex()}.jsonl"
    host, _, port = url.removeprefix("http://").partition(":")
    command = ["--backend", "sglang", "--host", host, "--port", port]
    command += ["--dataset-name", "random-ids", "--tokenize-prompt", "--random-range-ratio", "1.0", "--disable-tqdm"]
    command += ["--random-input-len", str(options.input_len), "--random-output-len", str(options.output_len)]
    command += ["--num-prompts", str(requests), "--max-concurrency", str(options.concurrency), "--warmup-requests", "0"]
    command += ["--model", options.folder, "--tokenizer", options.folder, "--seed", str(int.from_bytes(os.urandom(3)))]
    cpu = cpu_of("sglang.benchmark.serving", "cli_main", [*command, "--output-file", str(out)])
    told = json.loads(out.read_text().splitlines()[-1])
    return {
        "tokens": told["total_output_tokens"],
        "tok_s": told["output_throughput"],
        "ttft": told["mean_ttft_ms"] / 1e3,
        "tpot": told["mean_tpot_ms"] / 1e3,
        "cpu": cpu,
    }


def ours(options: argparse.Namespace, url: str, requests: int, folder: Path) -> dict[str, Any]:
    """`hsbench bench`."""
    command = ["bench", "--url", url, "--no-warm-up", "--json", "--out", str(folder / os.urandom(4).hex())]
    command += ["--input-len", str(options.input_len), "--output-len", str(options.output_len)]
    command += ["--concurrency", str(options.concurrency), "--requests", str(requests)]
    cpu = cpu_of("workbench.cli", "main", command)
    figures = json.loads((Path(command[command.index("--out") + 1]) / "summary.json").read_text())["points"][0][
        "metrics"
    ]
    return {
        "tokens": figures["tokens"],
        "tok_s": figures["whole_tok_s"],
        "ttft": figures["ttft"]["mean"],
        "tpot": figures["tpot"]["mean"],
        "cpu": cpu,
    }


CLIENTS = {"sglang": theirs, "hsbench": ours}


def measure(options: argparse.Namespace, url: str) -> dict[str, list[dict[str, Any]]]:
    """All rounds; who goes first changes."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in CLIENTS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for name in list(CLIENTS)[:: 1 if number % 2 else -1]:
                few = CLIENTS[name](options, url, FEW, Path(folder))
                many = CLIENTS[name](options, url, options.requests, Path(folder))
                many["cpu_us"] = 1e6 * (many["cpu"] - few["cpu"]) / (many["tokens"] - few["tokens"])
                found[name].append(many)
                print(
                    f"round {number + 1} {name:8} {json.dumps({k: round(v, 4) for k, v in many.items()})}", flush=True
                )
    return found


def report(found: dict[str, list[dict[str, Any]]]) -> None:
    """Medians side by side, and ours over theirs."""
    print("| | sglang.benchmark.serving | hsbench bench | ratio (each round) |\n|---|---|---|---|")
    for key, unit, scale in (
        ("tok_s", "tok/s", 1),
        ("ttft", "ms", 1e3),
        ("tpot", "ms", 1e3),
        ("cpu_us", "µs/token", 1),
    ):
        their, our = ([one[key] * scale for one in found[name]] for name in ("sglang", "hsbench"))
        ratios = ", ".join(f"{o / t:.3f}" for t, o in zip(their, our, strict=True))
        name = {"cpu_us": "client CPU", "tok_s": "output"}.get(key, f"mean {key.upper()}")
        print(f"| {name}, {unit} | {statistics.median(their):.4g} | {statistics.median(our):.4g} | {ratios} |")


def main() -> None:
    """Start a server, measure, stop it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--input-len", type=int, default=32)
    parser.add_argument("--output-len", type=int, default=32)
    parser.add_argument("--concurrency", type=int, default=4)
    options = parser.parse_args()
    serve = [*HSBENCH, "serve", "--model", options.model, "--name", NAME, "--port", "0", "--device", options.device]
    url = subprocess.run(serve, check=True, capture_output=True, text=True).stdout.strip()
    try:
        status = json.loads(subprocess.run([*HSBENCH, "status", "--json"], capture_output=True, check=True).stdout)
        options.folder = next(s["server"]["model"] for s in status["servers"] if s["server"]["name"] == NAME)
        report(measure(options, url))
    finally:
        subprocess.run([*HSBENCH, "stop", NAME], capture_output=True, check=False)


if __name__ == "__main__":
    main()
