"""How much longer than the bare server does `hsbench probe` take until its table is there?

Alternates, in one run: a bare SGLang start until it answers, and a probe that starts the same server, captures
"Hello world" and prints its table. Usage: ``python -m bench.probe_start [--rounds 3]``.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

HSBENCH = [sys.executable, "-m", "workbench.cli"]
NAME = "bench-probe-start"


def bare_start() -> float:
    """Seconds from the call of the SGLang command line to the first answered request."""
    serve = [*HSBENCH, "serve", "--model", "demo", "--name", NAME, "--port", "0"]
    subprocess.run(serve, check=True, capture_output=True)
    status = subprocess.run([*HSBENCH, "status", "--json"], check=True, capture_output=True, text=True)
    seconds = next(
        s["server"]["ready_after"] for s in json.loads(status.stdout)["servers"] if s["server"]["name"] == NAME
    )
    subprocess.run([*HSBENCH, "stop", NAME], check=True, capture_output=True)
    return float(seconds)


def probe() -> float:
    """Seconds from the call of `hsbench probe` to the last line of its table on stdout."""
    began = time.monotonic()
    command = [*HSBENCH, "probe", "Hello world", "--name", NAME]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        assert child.stdout is not None
        shown = began
        for line in child.stdout:
            shown = time.monotonic()
            if line.startswith("verdict: "):
                assert " ok" in line, line
    assert child.returncode == 0
    return shown - began


def main() -> None:
    """Print every round, the medians and their difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    subprocess.run([*HSBENCH, "model", "fetch"], check=True, capture_output=True)
    bare, probed = [], []
    for number in range(rounds):
        bare.append(bare_start())
        probed.append(probe())
        print(f"round {number + 1}: bare server {bare[-1]:.1f} s, probe to table {probed[-1]:.1f} s", flush=True)
    extra = [p - b for p, b in zip(probed, bare, strict=True)]
    print(f"median: bare {statistics.median(bare):.1f} s, probe {statistics.median(probed):.1f} s")
    print(f"probe takes {statistics.median(extra):.1f} s more ({min(extra):.1f} to {max(extra):.1f}), ", end="")
    print(f"ratio {statistics.median(probed) / statistics.median(bare):.3f}")


if __name__ == "__main__":
    main()
