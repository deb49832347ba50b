"""The machine around a start: clocks, power, throttling, and what else runs on the GPUs.

A start is invalid when a GPU was slowed down by heat or by its board, or when a process that is not the server's used
it. The cap of its own power limit is no fault: it is how a loaded GPU runs, and is only written down.
"""

import contextlib
import statistics
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from bench.sweep.records import Environment, GpuState
from workbench.supervision.gpu import Holder, Nvml

EVERY_S = 0.5
BUSY = 0.1
"""A GPU that works for more than this share of the time before the server starts works for somebody else."""
LEFT = 1 << 30
"""Bytes of GPU memory that may be in use before a start: the driver and displays take some."""
THROTTLES = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat (hardware)", 0x80: "power brake"}
"""Bits of `nvmlDeviceGetCurrentClocksThrottleReasons`, from nvml.h. Idle and chosen clocks are no throttling."""
Ours = Callable[[], frozenset[int]]
HARMLESS = frozenset({"power cap"})
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


class GpuLook(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU at one instant."""

    index: int
    name: str = "?"
    used: int = 0
    busy: float | None = None
    power_w: float | None = None
    sm_mhz: int | None = None
    mem_mhz: int | None = None
    temperature_c: int | None = None
    throttled: tuple[str, ...] = ()


class Clocks(Nvml):
    """NVML with the questions that only a measurement asks."""

    def looks(self) -> tuple[GpuLook, ...]:
        """Every GPU now."""
        return tuple(self._look(index, handle) for index, handle in enumerate(self._handles))

    def _look(self, index: int, handle: Any) -> GpuLook:
        sample = self._one(index, handle)
        reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
        return GpuLook(
            index=index,
            name=sample.name,
            used=sample.used,
            busy=sample.busy,
            power_w=sample.power_w,
            sm_mhz=self._ask("nvmlDeviceGetClockInfo", handle, 1),  # NVML_CLOCK_SM
            mem_mhz=self._ask("nvmlDeviceGetClockInfo", handle, 2),  # NVML_CLOCK_MEM
            temperature_c=self._ask("nvmlDeviceGetTemperature", handle, 0),  # NVML_TEMPERATURE_GPU
            throttled=tuple(name for bit, name in THROTTLES.items() if reasons & bit),
        )


class GpuWatch:
    """Looks at the GPUs in a thread of its own; see `bench.sweep.records.MachineWatch`.

    Args:
        module: `pynvml` or a stand-in, for `Nvml`.
        every_s: Seconds between two looks while a server is measured.
        ours: Gives the processes of servers that wait for their turn; it is asked twice, since starts go on between.
    """

    def __init__(
        self, module: ModuleType | Any | None = None, every_s: float = EVERY_S, ours: Ours = frozenset
    ) -> None:
        self._clocks, self._ask_ours = Clocks(module), ours
        self._ours = ours()
        self._every_s = every_s
        self._before, self._holders_before = self._clocks.looks(), self._clocks.holders()
        self._own: frozenset[int] = frozenset()
        self._seen: list[tuple[GpuLook, ...]] = []
        self._holders: list[Holder] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-watch", daemon=True)

    def measuring(self, own: frozenset[int]) -> None:
        """Begin to look; `own` are the server's processes."""
        self._own = own
        self._ours |= self._ask_ours()
        self._thread.start()

    def end(self) -> Environment:
        """Stop looking and judge."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        return judge(self._before, self._holders_before, self._seen, self._holders, self._own, ours=self._ours)

    def _run(self) -> None:
        while True:
            self._seen.append(self._clocks.looks())
            self._holders += self._clocks.holders()
            if self._over.wait(self._every_s):
                return


def judge(
    before: Sequence[GpuLook],
    holders_before: Sequence[Holder],
    seen: Sequence[Sequence[GpuLook]],
    holders: Sequence[Holder],
    own: frozenset[int],
    *,
    ours: frozenset[int] = frozenset(),
) -> Environment:
    """The environment of a start from what was seen before it and while it was measured.

    A process that NVML names and that is not the server's counts as foreign only where NVML numbers processes as this
    machine does: in a container it may not, and then none of the server's own is found among them. Where servers of
    `ours` wait, memory in use says nothing.
    """
    gpus = tuple(_state([looks[index] for looks in seen]) for index in range(len(seen[0]))) if seen else ()
    invalid = [f"GPU {gpu.index} was throttled: {', '.join(bad)}" for gpu in gpus if (bad := _bad(gpu))]
    known = not ours or any(holder.pid in ours for holder in holders_before)
    strangers = [holder for holder in holders_before if known and holder.pid not in ours]
    occupied = {holder.gpu: f"process {holder.pid} held memory" for holder in strangers}
    for look in before:
        if look.busy is not None and look.busy > BUSY:
            occupied.setdefault(look.index, f"it was {look.busy:.0%} busy")
        if look.used > LEFT and not ours:
            occupied.setdefault(look.index, f"{look.used / 2**30:.1f} GiB were in use")
    invalid += [f"GPU {index} was not free before the start: {why}" for index, why in sorted(occupied.items())]
    if own & {holder.pid for holder in holders}:
        foreign = sorted({(holder.gpu, holder.pid) for holder in holders if holder.pid not in own | ours})
        invalid += [f"process {pid}, not the server's, was on GPU {gpu}" for gpu, pid in foreign]
    return Environment(gpus=gpus, governor=_governor(), invalid=tuple(invalid))


def _bad(gpu: GpuState) -> list[str]:
    return [reason for reason in gpu.throttled if reason not in HARMLESS]


def _state(looks: Sequence[GpuLook]) -> GpuState:
    """One GPU over the whole measurement."""
    powers = [look.power_w for look in looks if look.power_w is not None]
    return GpuState(
        index=looks[0].index,
        name=looks[0].name,
        sm_mhz=min((look.sm_mhz for look in looks if look.sm_mhz is not None), default=None),
        mem_mhz=min((look.mem_mhz for look in looks if look.mem_mhz is not None), default=None),
        power_w=statistics.fmean(powers) if powers else None,
        temperature_c=max((look.temperature_c for look in looks if look.temperature_c is not None), default=None),
        throttled=tuple(sorted({reason for look in looks for reason in look.throttled})),
    )


def _governor() -> str:
    with contextlib.suppress(OSError):
        return GOVERNOR.read_text(encoding="ascii").strip()
    return ""
