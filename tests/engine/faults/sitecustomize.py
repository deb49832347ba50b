"""Test hooks inside the engine: faults in the recorder, and a warm-up that never ends.

Python imports this module at start-up when its folder is on PYTHONPATH. The file named by `HS_TEST_FAULT` holds
`shift` (every block is captured one block late), `swap` (the rows of the first two requests of a pass change
places, their token ids do not), `nan`, `slow` or nothing; these need the route `patch`. With `HS_TEST_SPIN` the first
forward pass, which is the warm-up's, never ends; if it holds a number, only in a server that was given this
`--random-seed`. With `HS_TEST_HANG` the first server that is sent a row of a job while that file is there takes it away
and hangs; while the fault is `pace` each row takes a second more. With `HS_TEST_SILENCE` a job takes its server for
hung after so many seconds, not a minute. `HS_TEST_QUICK` makes the start of a server cheap (`quick_start.py`). With
`HS_TEST_LAG` a load's own delays matter from so many seconds on.
"""

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import math
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

RECORDER = "sglang._hs.recorder"
RUNNER = "sglang.srt.model_executor.model_runner"
ROW = re.compile(r"hs-[0-9a-f]{6}-\d+-\d+-\d+")
"""Request id of a row of an extraction: run, start, row, try."""


def fault() -> str:
    try:
        return Path(os.environ["HS_TEST_FAULT"]).read_text(encoding="utf-8").strip()
    except (KeyError, OSError):
        return ""


def plant_faults(recorder: Any) -> None:
    """Wrap the recorder's functions; each asks for the fault of the moment when it is called."""
    capture, accumulate = recorder.capture, recorder.accumulate
    pipeline = sys.modules[f"{RECORDER}.pipeline"]
    to_host, write = pipeline.Recorder._to_host, pipeline.Recorder._write

    def late_capture(now: Any, block: int, wrapped: Any) -> Any:
        return capture(now, block - 1 if fault() == "shift" else block, wrapped)

    def late_accumulate(now: Any, block: int, wrapped: Any) -> Any:
        return accumulate(now, block - 1 if fault() == "shift" else block, wrapped)

    def changed_rows(self: Any, now: Any, event: Any) -> Any:
        host = to_host(self, now, event)
        for name, rows in host.items():
            if name == "token_ids":
                continue
            if fault() == "swap" and len(now.spans) > 1:
                first, second = now.spans[0].length, now.spans[1].length
                assert first == second
                host[name] = rows[[*range(first, first + second), *range(first), *range(2 * first, len(rows))]]
            if fault() == "nan":
                rows[0, 0] = float("nan")
        return host

    def slow_write(self: Any, *args: Any) -> None:
        if fault() == "slow":
            time.sleep(30)
        write(self, *args)

    recorder.capture = late_capture
    recorder.accumulate = late_accumulate
    pipeline.Recorder._to_host = changed_rows
    pipeline.Recorder._write = slow_write


def plant_spin(runner: Any) -> None:
    """Replace the model runner's forward pass."""
    forward = runner.ModelRunner.forward
    seed = os.environ["HS_TEST_SPIN"]

    def spin_in_the_warm_up(self: Any, *args: Any, **how: Any) -> Any:
        """As a collective does whose peer never comes."""
        while not seed.isdecimal() or self.server_args.random_seed == int(seed):
            pass
        return forward(self, *args, **how)

    runner.ModelRunner.forward = spin_in_the_warm_up


def plant_hang(runner: Any) -> None:
    """Replace the model runner's forward pass."""
    forward = runner.ModelRunner.forward
    place = os.environ["HS_TEST_HANG"]

    def hang_at_a_row(self: Any, batch: Any, *args: Any, **how: Any) -> Any:
        """Spin for ever, unless another server was first. With the fault `pace` a row takes a second more."""
        row = any(ROW.fullmatch(rid) for rid in batch.rids or ())
        time.sleep(row and fault() == "pace")
        if row and os.path.exists(place):
            with contextlib.suppress(FileNotFoundError):
                os.rename(place, f"{place}.taken")
                while True:
                    pass
        return forward(self, batch, *args, **how)

    runner.ModelRunner.forward = hang_at_a_row


def plant_silence(stall: Any) -> None:
    """Shorten how long a job waits before it looks, and before it believes what it sees."""
    from workbench.supervision.verdict import Limits

    seconds = float(os.environ["HS_TEST_SILENCE"])
    stall.QUIET_S = seconds
    stall.Watch = functools.partial(stall.Watch, limits=Limits(silence_s=seconds, fresh_s=seconds / 2))


def plant_patience(load: Any) -> None:
    """On a busy machine no start would count; a unit test has the real bounds."""
    load.LAG_P99_S = float(os.environ["HS_TEST_LAG"])
    load.CPU_SHARE = math.inf


class AfterImport(importlib.abc.MetaPathFinder):
    """Lets one module load as usual, then plants hooks in it."""

    def __init__(self, name: str, plant: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.plant = plant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_plant(module: ModuleType) -> None:
            load(module)
            self.plant(module)

        spec.loader.exec_module = load_and_plant  # type: ignore[method-assign]
        return spec


if os.environ.get("HS_TEST_QUICK") and "sglang.launch_server" in sys.orig_argv:
    import quick_start

    sys.meta_path.insert(0, AfterImport("multiprocessing.context", quick_start.plant))
if "HS_TEST_FAULT" in os.environ:
    sys.meta_path.insert(0, AfterImport(RECORDER, plant_faults))
if "HS_TEST_SILENCE" in os.environ:
    sys.meta_path.insert(0, AfterImport("workbench.extract.job.stall", plant_silence))
if "HS_TEST_LAG" in os.environ:
    sys.meta_path.insert(0, AfterImport("bench.load.load", plant_patience))
if "HS_TEST_HANG" in os.environ:
    sys.meta_path.insert(0, AfterImport(RUNNER, plant_hang))
if "HS_TEST_SPIN" in os.environ:
    sys.meta_path.insert(0, AfterImport(RUNNER, plant_spin))
