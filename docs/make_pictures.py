"""Makes the README's pictures of the app from a real session: server, patch, probes, a measured run, an extraction.

    python docs/make_pictures.py [--out docs/pictures]

Takes some minutes on two CPU cores. State goes into a folder of its own; the patch that it applies to the SGLang of
this interpreter is reverted at the end.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SIZE = (132, 40)
HSBENCH = [sys.executable, "-m", "workbench.cli"]
PROMPTS = ("Hello world", "The lighthouse keeper counted eleven ships before dawn.")
ROWS = 120


def hsbench(*arguments: str) -> str:
    """Run a command; its stdout."""
    print("$ hsbench", *arguments, flush=True)
    done = subprocess.run([*HSBENCH, *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{arguments} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


@contextmanager
def server(folder: Path) -> Iterator[None]:
    """The demo model, recording by the patch."""
    hsbench("patch", "apply")
    dumps = ("--dump-dir", str(folder / "dumps"), "--layers", "2,15,27", "--capture", "patch")
    hsbench("serve", "--model", "demo", "--name", "demo", "--device", "cpu", "--port", "0", *dumps)
    try:
        yield
    finally:
        hsbench("stop", "demo")
        hsbench("patch", "revert")


def rows(path: Path) -> None:
    """A small data set of made-up conversations."""
    with open(path, "w", encoding="utf-8") as file:
        for number in range(ROWS):
            asked = {"role": "user", "content": f"What is {number} times {number + 3}?"}
            told = {"role": "assistant", "content": f"{number} times {number + 3} is {number * (number + 3)}. " * 6}
            file.write(json.dumps({"messages": [asked, told]}) + "\n")


def work(folder: Path) -> None:
    """What there is to see."""
    for prompt in PROMPTS:
        hsbench("probe", prompt, "--name", "demo", "--reference")
    for concurrency in ("1", "4"):
        size = ("--input-len", "32", "--output-len", "24", "--concurrency", concurrency, "--requests", "24")
        hsbench("bench", "--name", "demo", *size)
    rows(folder / "conversations.jsonl")
    data, out = str(folder / "conversations.jsonl"), str(folder / "states")
    hsbench("extract", data, "--out", out, "--name", "demo", "--concurrency", "4", "--baseline", "5")


async def pictures(out: Path) -> None:
    """One of each mode, as soon as it has something to show."""
    from workbench.tui.app import WorkbenchApp

    app = WorkbenchApp()
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: bool(app.servers))
        seconds = {"extraction": 12.0, "server": 4.0, "probe": 2.0, "bench": 3.0, "patches": 3.0, "machine": 6.0}
        for mode, wait in seconds.items():
            await app.go(mode)
            await pilot.pause(wait)
            (out / f"{mode}.svg").write_text(app.export_screenshot(title=f"hsbench: {mode}"), encoding="utf-8")
            print(f"{out / mode}.svg", flush=True)


async def until(pilot: Any, condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Let the app go on until something is true."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("the app did not come so far in time")
        await pilot.pause(0.1)


def main() -> None:
    """Set up, work, look."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("pictures"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hsbench-") as name:
        folder = Path(name)
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        os.environ["XDG_CONFIG_HOME"] = str(folder / "config")
        with server(folder):
            work(folder)
            asyncio.run(pictures(options.out.absolute()))
            subprocess.run([*HSBENCH, "job", "stop", str(folder / "states")], check=False, capture_output=True)


if __name__ == "__main__":
    main()
