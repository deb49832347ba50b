"""Takes samples: everything that can be seen of a server from outside, about once a second."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from workbench.supervision import signals, stacks
from workbench.supervision.gpu import Nvml
from workbench.supervision.milestones import LogFollower
from workbench.supervision.probing import Prober
from workbench.supervision.records import GpuSample, ProcessSample, Sample, StackSample
from workbench.supervision.target import Target

TREE_S = 2.0
"""Seconds between two searches for new processes of the server; known ones are looked at each time."""
FAR_S = 10.0
"""Seconds between two searches for those that left its session."""
GPU_S = 2.0
CACHE_S = 10.0
CACHE_ENTRIES = 2000
CACHES = (
    ("TORCH_EXTENSIONS_DIR", "~/.cache/torch_extensions"),
    ("TRITON_CACHE_DIR", "~/.triton/cache"),
    ("FLASHINFER_WORKSPACE_BASE", "~/.cache/flashinfer"),
    ("SGLANG_DG_CACHE_DIR", "~/.cache/deep_gemm"),
    ("TVM_FFI_CACHE_DIR", "~/.cache/tvm-ffi"),
    ("TORCHINDUCTOR_CACHE_DIR", "~/.cache/torchinductor"),
)
"""Variable that moves a cache of compiled kernels → where it is otherwise."""


class Sampler:
    """Looks at one server.

    Args:
        target: The server.
        follower: Reads its log; None makes one for the target's log.
        nvml: The GPUs; None means none are looked at.
        prober: Asks over HTTP; None means the port is not looked at.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        target: Target,
        follower: LogFollower | None = None,
        nvml: Nvml | None = None,
        prober: Prober | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.target = target
        self.follower = follower or (LogFollower(target.log, target.began) if target.log else None)
        self.nvml, self.prober, self.clock = nvml, prober, clock
        self._near: list[int] = []
        self._far: list[int] = []
        self._tree_at = self._far_at = self._gpus_at = self._cache_at = float("-inf")
        self._gpus: tuple[GpuSample, ...] = ()
        self._cache: float | None = None
        self._threads: dict[int, dict[int, float]] = {}

    def __enter__(self) -> Self:
        if self.prober is not None:
            self.prober.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.prober is not None:
            self.prober.stop()

    def sample(self, *, with_stacks: bool = False) -> Sample:
        """One look. Stacks are dumped of the server's main process, ranks and busy helpers."""
        now = self.clock()
        found = self._processes(now)
        if self.prober is not None:
            self.prober.belongs_to(tuple(process.pid for process in found))
        return Sample(
            at=now,
            processes=found,
            log=self.follower.sample() if self.follower else None,
            port=self.prober.sample() if self.prober else None,
            gpus=self._gpu_samples(now),
            cache=self._cache_time(now),
            stacks=self._stacks(found) if with_stacks else (),
        )

    def _processes(self, now: float) -> tuple[ProcessSample, ...]:
        if now - self._far_at >= FAR_S:
            self._far, self._far_at = _descendants(self.target.pid), now
        if now - self._tree_at >= TREE_S:
            self._near, self._tree_at = signals.relatives(self.target.pid), now
        samples = (signals.process(pid, self.target.pid) for pid in sorted({*self._near, *self._far}))
        return tuple(sample for sample in samples if sample is not None)

    def _gpu_samples(self, now: float) -> tuple[GpuSample, ...]:
        if self.nvml is not None and now - self._gpus_at >= GPU_S:
            self._gpus, self._gpus_at = self.nvml.sample(), now
        return self._gpus

    def _cache_time(self, now: float) -> float | None:
        if now - self._cache_at >= CACHE_S:
            self._cache, self._cache_at = newest(cache_folders(self.target.pid)), now
        return self._cache

    def _stacks(self, processes: tuple[ProcessSample, ...]) -> tuple[StackSample, ...]:
        wanted = [p for p in processes if p.role in ("server", "rank") or (p.role == "helper" and p.cpu_s > 1)]
        found = []
        for process in wanted[:32]:
            before = self._threads.get(process.pid)
            self._threads[process.pid] = signals.thread_cpu(process.pid)
            found.append(stacks.dump(process, before))
        return tuple(found)


def _descendants(pid: int) -> list[int]:
    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return []


def cache_folders(pid: int) -> list[Path]:
    """Where a process keeps kernels that it compiled, by its own environment."""
    env = signals.environment(pid)
    home = env.get("HOME", "~")
    places = (env.get(variable) or usual.replace("~", home) for variable, usual in CACHES)
    return [Path(place) for place in places if os.path.isdir(place)]


def newest(folders: list[Path]) -> float | None:
    """When an entry of these folders, three levels down, was written last; None when there is none."""
    times = [0.0]
    level = [str(folder) for folder in folders]
    for _ in range(3):
        below: list[str] = []
        for folder in level:
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    if len(times) > CACHE_ENTRIES:
                        return max(times)
                    with contextlib.suppress(OSError):
                        times.append(entry.stat(follow_symlinks=False).st_mtime)
                        below += [entry.path] if entry.is_dir(follow_symlinks=False) else []
        level = below
    return max(times) or None
