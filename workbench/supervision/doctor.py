"""A look at the whole machine: everything that has made a server fail for somebody, each as one finding."""

import contextlib
import os
import platform
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from workbench import __version__
from workbench.errors import HsbenchError
from workbench.paths import cache_dir, state_dir
from workbench.server import launches, ports, processes, state
from workbench.server.secrets import mask_env, mask_text
from workbench.server.specs import DEFAULT_PORT
from workbench.supervision.facts import PROXIES
from workbench.supervision.gpu import Nvml
from workbench.supervision.target import SGLANG_PORT

SHM_MIN = 1 << 30
DISK_MIN = 10 << 30
FILES_MIN = 4096
NCCL_FILES = ("/etc/nccl.conf", "~/.nccl.conf")
OVERWRITTEN = ("CUDA_DEVICE_MAX_CONNECTIONS",)
"""Variables that SGLang sets anew, so that setting them has no effect."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at. `level` is `ok`, `note` or `problem`; only a problem has a next step."""

    area: str
    level: Literal["ok", "note", "problem"]
    text: str
    next_step: str = ""


def examine(python: str | None = None, nvml: Nvml | None = None) -> Iterator[Finding]:
    """Look at everything in turn. What cannot be looked at is said, not raised.

    Args:
        python: The interpreter where SGLang lives; None means the one that runs hsbench.
        nvml: The GPUs; made here unless given.
    """
    gpus = nvml or Nvml()
    looks: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
        ("engine", lambda: _engine(python)),
        ("gpu", lambda: _gpus(gpus)),
        ("memory", _memory),
        ("disk", _disk),
        ("ports", _ports),
        ("servers", _servers),
        ("network", _network),
        ("nccl", _nccl),
        ("limits", _limits),
        ("tools", _tools),
    )
    yield Finding("hsbench", "ok", f"hsbench {__version__}, Python {platform.python_version()}, {platform.platform()}")
    for area, look in looks:
        try:
            yield from look()
        except HsbenchError as error:
            yield Finding(area, "problem", error.message, error.next_step)
        except Exception as error:
            yield Finding(
                area, "note", f"could not be looked at: {type(error).__name__}: {mask_text(str(error))[:200]}"
            )


def _engine(python: str | None) -> Iterator[Finding]:
    from patches.manage import status
    from patches.tree import find_tree
    from workbench.server.engine import find_engine

    engine = find_engine(python)
    yield Finding("engine", "ok", f"SGLang {engine.version}, torch {engine.torch}, in {engine.python}")
    if not engine.cuda and not engine.has_cpu_platform:
        remedy = f"{engine.python} -m pip install hsbench"
        yield Finding("engine", "problem", "no GPU, and SGLang there lacks the platform that runs without one", remedy)
    found = status(find_tree(engine.python))
    level: Literal["ok", "problem"] = "ok" if str(found.state) in ("clean", "applied") else "problem"
    step = "" if level == "ok" else "hsbench patch status, then hsbench patch apply or revert"
    yield Finding("patch", level, f"{found.state}: {found.reason}", step)


def _gpus(nvml: Nvml) -> Iterator[Finding]:
    if nvml.missing:
        driver = os.path.exists("/dev/nvidiactl")
        step = "pip install nvidia-ml-py" if driver else ""
        yield Finding("gpu", "problem" if driver else "note", f"no GPU can be looked at: {nvml.missing}", step)
        return
    yield Finding("gpu", "ok", f"driver {nvml.driver}")
    for gpu in nvml.sample():
        text = f"GPU {gpu.index} {gpu.name}: {gpu.used / 1e9:.1f} of {gpu.total / 1e9:.1f} GB used"
        yield Finding("gpu", "ok", text)
    for holder in nvml.holders():
        used = f"{holder.used / 1e9:.1f} GB of " if holder.used else ""
        yield Finding("gpu", "note", f"process {_who(holder.pid)} holds {used}GPU {holder.gpu}")


def _memory() -> Iterator[Finding]:
    memory = psutil.virtual_memory()
    yield Finding("memory", "ok", f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB available")
    with contextlib.suppress(OSError):
        shm = shutil.disk_usage("/dev/shm")
        small = shm.free < SHM_MIN
        step = "give the container more: --shm-size 16g, or mount a bigger /dev/shm" if small else ""
        text = f"/dev/shm: {shm.used / 1e9:.1f} of {shm.total / 1e9:.1f} GB used"
        yield Finding("/dev/shm", "problem" if small else "ok", text, step)


def _disk() -> Iterator[Finding]:
    for folder in dict.fromkeys((state_dir(), cache_dir())):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(there).free
        small = free < DISK_MIN
        text = f"{free / 1e9:.1f} GB free for {folder}"
        yield Finding("disk", "problem" if small else "ok", text, "free space there" if small else "")


def _ports() -> Iterator[Finding]:
    for port in (DEFAULT_PORT, SGLANG_PORT):
        if ports.accepts("127.0.0.1", port):
            owner = ports.owner(port)
            yield Finding("ports", "note", f"port {port} is open{f', held by process {_who(owner)}' if owner else ''}")
        else:
            yield Finding("ports", "ok", f"port {port} is free")


def _servers() -> Iterator[Finding]:
    for record in state.all_records():
        alive = "runs" if state.alive(record) else "is dead"
        yield Finding("servers", "ok" if state.alive(record) else "note", f"{record.name} {alive}, {record.url}")
    for found in launches.orphans():
        who = ", ".join(processes.describe(process) for process in found.processes)
        yield Finding("orphans", "problem", f"ours, left by {found.launch.name}: {who}", "hsbench stop --orphans")
    for process in launches.foreign_orphans():
        step = f"if it is yours: kill {process.pid}"
        yield Finding("orphans", "problem", f"not ours: {processes.describe(process)} has lost its server", step)


def _network() -> Iterator[Finding]:
    env = mask_env(os.environ)
    found = [f"{name}={env[name]}" for name in PROXIES if env.get(name)]
    if not found:
        yield Finding("proxy", "ok", "no proxy variables")
        return
    exempt = (env.get("no_proxy") or env.get("NO_PROXY") or "").split(",")
    if "127.0.0.1" in exempt or "*" in exempt:
        yield Finding("proxy", "ok", f"{', '.join(found)}; NO_PROXY names 127.0.0.1")
    else:
        text = f"{', '.join(found)}: a server that hsbench does not start warms itself up through it, and fails"
        yield Finding("proxy", "problem", text, "export NO_PROXY=127.0.0.1,localhost; hsbench serve does so itself")


def _nccl() -> Iterator[Finding]:
    env = mask_env({name: value for name, value in os.environ.items() if name.startswith("NCCL_")})
    for name, value in sorted(env.items()):
        yield Finding("nccl", "note", f"{name}={value} is set in this shell and goes to the servers started from it")
    for name in OVERWRITTEN:
        if name in os.environ:
            yield Finding("nccl", "note", f"{name} is set, but SGLang sets it anew")
    places = (*NCCL_FILES, os.environ.get("NCCL_CONF_FILE", ""))
    for path in (Path(place).expanduser() for place in places if place):
        if path.exists():
            yield Finding("nccl", "note", f"{path} sets NCCL's variables for every program here")
    if not env:
        yield Finding("nccl", "ok", "no NCCL variables are set")


def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft != resource.RLIM_INFINITY and soft < FILES_MIN
    step = f"ulimit -n {hard}" if few else ""
    yield Finding("limits", "problem" if few else "ok", f"open files: {soft} (up to {hard})", step)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    shown = "unlimited" if locked == resource.RLIM_INFINITY else f"{locked >> 10} KiB"
    yield Finding("limits", "ok", f"locked memory: {shown}")
    processes_, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    yield Finding("limits", "ok", f"processes: {'unlimited' if processes_ == resource.RLIM_INFINITY else processes_}")


def _tools() -> Iterator[Finding]:
    from workbench.supervision.stacks import find_py_spy

    found = find_py_spy(os.getpid())
    text = f"py-spy: {found}" if found else "py-spy is not installed: stacks come from /proc, which shows less"
    yield Finding("py-spy", "ok" if found else "note", text)
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if scope.exists() and scope.read_text().strip() not in ("0", "1") and os.geteuid() != 0:
        yield Finding("py-spy", "note", "the kernel forbids it to look at processes (ptrace_scope); /proc is used")
    yield Finding("python", "ok", f"hsbench runs in {sys.executable}")


def _who(pid: int) -> str:
    try:
        return processes.describe(psutil.Process(pid))
    except psutil.Error:
        return str(pid)
