"""What a frame of the app costs over a log of a million lines.

    python -m bench.app_log [--lines 1000000] [--pages 300]

A log is made in a temporary folder and shown in the Server mode, drawn without a terminal. Printed are the times from
the start of the app, and from the choice of the log, to the first picture with its lines and until all lines are
counted; and from a key to the painted frame: page by page up and down, to either end, and from hit to hit of a search.
The time from a key contains the wait for the app's next frame, which comes 60 times a second; the processor time
does not hang on what else the machine does.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.app_support import PaintedApp, app_over, status_of
from workbench.tui.app import calm_collector
from workbench.tui.widgets.logpane import LogPane

LIMIT_S = 5.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--pages", type=int, default=300, help="frames of each kind")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        make_log(log, options.lines)
        print(f"a log of {options.lines:,} lines, {log.stat().st_size / 1e6:.0f} MB")
        asyncio.run(measure(log, options.lines, options.pages))


def make_log(path: Path, lines: int) -> None:
    """Lines as SGLang writes them; one in a thousand is an error."""
    with path.open("w") as file:
        for number in range(lines):
            level = "ERROR: RuntimeError" if number % 1000 == 999 else "Decode batch"
            text = f"{level}. #running-req: 8, #token: {number}, token usage: 0.12, gen throughput (token/s): 331.8"
            file.write(f"[2026-01-01 00:00:00 TP{number % 8}] {text}, #queue-req: 0\n")


async def measure(log: Path, lines: int, pages: int) -> None:
    """Open the app, and scroll."""
    began = time.perf_counter()
    app = app_over([status_of(str(log))])
    async with app.run_test(size=(120, 40)) as pilot:
        pane = app.screen.query_one(LogPane)
        await _until(app, lambda: pane.path is not None)
        chosen = time.perf_counter()
        await _until(app, lambda: pane.extent.lines > 0)
        first = time.perf_counter()
        await _until(app, lambda: pane.extent.whole)
        counted = time.perf_counter()
        print(
            f"first picture with the log's end {first - began:.2f} s after the start, {first - chosen:.3f} s after it"
        )
        print(f"was chosen; all lines counted after {counted - chosen:.2f} s")
        assert pane.extent.lines == lines
        await pilot.pause(1.5)
        calm_collector()  # as the app does by itself in a terminal
        await _report(app, "page up", pages, lambda _: pane.action_page(-1))
        await _report(app, "page down", pages, lambda _: pane.action_page(1))
        await _report(app, "home, end", pages, lambda n: pane.action_last() if n % 2 else pane.action_first())
        await _report(app, "anywhere", pages, lambda n: pane.show_line((n * 7919 * 131) % lines))
        searched = time.perf_counter()
        pane.look_for("runtimeerror")
        await _until(app, lambda: pane.found is not None and pane.found.done)
        total = pane.found.total if pane.found else 0
        print(f"search: {total:,} lines found in {time.perf_counter() - searched:.2f} s")
        await _report(app, "next hit", pages, lambda _: pane.next_hit(1))


async def _report(app: PaintedApp, what: str, count: int, do: Callable[[int], object]) -> None:
    times, work = [], []
    for number in range(count):
        before, began, used = app.painted, time.perf_counter(), time.process_time()
        do(number)
        await _until(app, lambda before=before: app.painted > before)  # type: ignore[misc]
        times.append(1e3 * (time.perf_counter() - began))
        work.append(1e3 * (time.process_time() - used))
    print(f"{what:<12}{_two(times)} from key to picture,{_two(work)} of it processor time")


def _two(times: list[float]) -> str:
    return f"{statistics.median(times):7.1f} (median){statistics.quantiles(times, n=100)[98]:7.1f} (p99) ms"


async def _until(app: PaintedApp, condition: Callable[[], bool]) -> None:
    end = time.perf_counter() + LIMIT_S
    while not condition():
        if time.perf_counter() > end:
            raise SystemExit("the app did not draw in time")
        await asyncio.sleep(0.001)


if __name__ == "__main__":
    main()
