"""Servers of a sweep that start together: who is there when, and that none is left."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.sweep.environment import GpuLook, GpuWatch, judge
from bench.sweep.gate import GateRecord, ReduceCheck
from bench.sweep.journal import Settings
from bench.sweep.records import Measured, Server
from bench.sweep.serving import Sight
from bench.sweep.sidebyside import SideBySide
from bench.sweep.sweep import sweep
from bench.sweep.variants import Variant
from tests.unit.sweep_support import RIGHT, WRONG, flag_variants, table_of, verdicts
from workbench.errors import ServerBroken, ServerDied
from workbench.supervision.gpu import Holder


class Waiting:
    """A server of `Launcher`."""

    def __init__(self, launcher: "Launcher", name: str, variant: str) -> None:
        self.launcher, self.name, self.variant, self.url = launcher, name, variant, f"http://{name}"
        assert name not in launcher.alive, "a server of this name already runs"
        launcher.alive.add(name)

    def gate_record(self) -> GateRecord:
        return WRONG if self.variant == "wrong" else RIGHT

    def sight(self) -> Sight:
        return Sight(environ={})

    def pids(self) -> frozenset[int]:
        return frozenset({hash(self.name) % 1000})

    def stop(self) -> None:
        self.launcher.alive.remove(self.name)


class Launcher:
    """The seam: plans are (name, variant), records are names."""

    def __init__(self, hold: threading.Event | None = None) -> None:
        self.alive: set[str] = set()
        self.ended: list[str] = []
        self.most = self.starting = self.launched = 0
        self.while_measured: list[int] = []
        self.loses: list[str] = []
        self._hold = hold
        self._lock = threading.Lock()

    def plan(self, variant: Variant, env: dict[str, str], name: str) -> tuple[str, str]:
        return name, variant.name

    def launch(self, plan: tuple[str, str], started: Callable[[str], None]) -> Server:
        name, variant = plan
        with self._lock:
            self.launched += 1
            self.starting += 1
            self.most = max(self.most, self.starting)
        started(name)
        if self._hold is not None:
            self._hold.wait(20)
            self.starting -= 1
            raise ServerDied(f"{name} was ended")
        self.starting -= 1
        if variant == "hangs":
            raise ServerBroken("stands still")
        return Waiting(self, name, variant)

    def end(self, name: str) -> None:
        self.ended.append(name)
        assert self._hold is not None
        self._hold.set()

    def reduce_check(self, variant: Variant) -> ReduceCheck | None:
        return None

    def measure(self, url: str) -> Measured:
        self.while_measured.append(self.starting)
        if self.loses:
            return Measured(decode_tok_s=100.0, prefill_tok_s=1000.0, invalid=self.loses.pop())
        return Measured(decode_tok_s=100.0, prefill_tok_s=1000.0)


def run(launcher: Launcher, count: int, folder: Path, *names: str):  # type: ignore[no-untyped-def]
    settings = Settings(variants=flag_variants(*names), blocks=2)
    return list(sweep(SideBySide(launcher, count), settings, folder))  # type: ignore[arg-type]


def test_nothing_is_measured_while_another_server_starts_and_none_is_left(tmp_path: Path) -> None:
    launcher = Launcher()
    events = run(launcher, 4, tmp_path, "a", "b")
    assert verdicts(table_of(events)) == {"a": "same", "b": "same"}
    assert launcher.while_measured == [0] * 8, "open, two blocks of three, close"
    assert launcher.launched == 8
    assert launcher.alive == set()


def test_a_start_that_does_not_count_is_made_again_on_a_free_machine(tmp_path: Path) -> None:
    launcher = Launcher()
    launcher.loses = ["the client was slow"] * 3
    events = run(launcher, 3, tmp_path, "a", "b")
    assert len(launcher.while_measured) > 8
    assert table_of(events).complete
    assert launcher.alive == set()


def test_a_server_of_a_variant_that_has_ended_is_not_measured(tmp_path: Path) -> None:
    launcher = Launcher()
    events = run(launcher, 8, tmp_path, "wrong", "hangs")
    assert verdicts(table_of(events)) == {"wrong": "gate", "hangs": "hung"}
    assert len(launcher.while_measured) == 4, "the baselines alone"
    assert launcher.alive == set()


def test_an_interruption_ends_those_that_are_still_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = threading.Event()
    launcher = Launcher(hold)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bench.sweep.sidebyside._outcome", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(launcher, 3, tmp_path, "a", "b")
    assert set(launcher.ended), "they were told"
    assert launcher.starting == 0
    assert launcher.alive == set()


def test_servers_that_wait_are_no_strangers_and_others_are() -> None:
    look = GpuLook(index=0, used=40 << 30)
    ours = [Holder(gpu=0, pid=7, used=None)]
    fine = judge([look], ours, [[look]], [*ours, Holder(gpu=0, pid=8, used=None)], frozenset({8}), ours=frozenset({7}))
    assert fine.invalid == ()
    both = [*ours, Holder(gpu=0, pid=9, used=None)]
    strange = judge([look], both, [[look]], [*both, Holder(0, 8, None)], frozenset({8}), ours=frozenset({7}))
    assert strange.invalid == (
        "GPU 0 was not free before the start: process 9 held memory",
        "process 9, not the server's, was on GPU 0",
    )


def test_servers_that_were_started_since_the_watch_began_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [frozenset[int](), frozenset({7})]
    watch = GpuWatch(every_s=60, ours=lambda: waiting.pop(0))
    monkeypatch.setattr(watch._clocks, "looks", lambda: (GpuLook(index=0),))
    monkeypatch.setattr(watch._clocks, "holders", lambda: [Holder(0, 7, None), Holder(0, 8, None)])
    watch.measuring(frozenset({8}))
    assert watch.end().invalid == ()
