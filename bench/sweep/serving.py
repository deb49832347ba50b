"""Which collective really served a server's tensor parallelism, and whether a variant's variables reached it.

Everything here is a function of text and of what `/server_info` said. The order in which SGLang asks its communicators
is that of `GroupCoordinator.all_reduce` in 0.5.23 (`srt/distributed/parallel_state.py`): NCCL's symmetric memory where
the custom all-reduce does not want the message, FlashInfer's fusion, the custom all-reduce up to its largest message,
PCIe-IPC, MSCCL++, torch's symmetric memory, NCCL.
"""

import os
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from bench.sweep.variants import Variant
from workbench.errors import UsageError

MIB = 1 << 20
LARGEST_LEGACY = 8 * MIB
"""`CustomAllreduce._MAX_CAR_SIZE`, on CUDA."""
LARGEST_V2 = 16 * MIB
"""`SGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB`."""


class Collective(StrEnum):
    """What carries an all-reduce."""

    NONE = "none"
    CPU = "CPU (gloo or shared memory)"
    CUSTOM = "custom all-reduce"
    CUSTOM_V2 = "custom all-reduce v2"
    FUSION = "FlashInfer fusion"
    PCIE_IPC = "PCIe-IPC"
    MSCCLPP = "MSCCL++"
    TORCH_SYMMETRIC = "torch symmetric memory"
    SYMMETRIC = "NCCL symmetric memory"
    NCCL = "NCCL"


NCCL_SERVES = frozenset({Collective.NCCL, Collective.SYMMETRIC})


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """Who served, and why that is known."""

    decode: Collective
    prefill: Collective
    why: tuple[str, ...] = ()
    sure: bool = True
    """False where it follows from settings alone and no line of the log says so."""

    @property
    def meaning(self) -> str:
        """What NCCL's variables can change here, in one sentence."""
        if self.decode is Collective.NONE:
            return "no collective runs: NCCL has no role"
        if self.decode in NCCL_SERVES:
            return "NCCL serves decode: its variables matter"
        if self.prefill in NCCL_SERVES:
            return f"decode is served by {self.decode}: NCCL's variables matter for large prefill messages only"
        return f"served by {self.decode}: NCCL's variables do not matter for all-reduce"


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """What can be seen of a running server."""

    log: str = ""
    info: dict[str, Any] = {}
    """Of `/server_info`."""
    environ: dict[str, str] | None = None
    """Of a scheduler process, by `parse_environ`; None when it cannot be read."""
    nccl_log: str = ""
    """Of a debug start: the files of NCCL_DEBUG_FILE, one after the other."""
    decode_bytes: int | None = None
    """Of one all-reduce of a decode pass."""
    prefill_bytes: int | None = None


class LogFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What lines of a server's log say about its communicators."""

    v2: bool = False
    graph_addresses: int = 0
    """That the legacy custom all-reduce registered while graphs were captured."""
    custom_off: str = ""
    pcie_ipc: bool = False
    pcie_ipc_off: str = ""
    nccl_version: str = ""


class Choice(msgspec.Struct, frozen=True, order=True):
    """What NCCL chose for messages of one size. With CUDA graphs it chooses at capture, not at replay."""

    function: str
    bytes: int
    algorithm: str
    protocol: str
    channels: int
    count: int = 1


_CUSTOM_OFF = re.compile(r"custom ?all-?reduce\w* is disabled (?:because|due to) (.+?)(?:\. To silence|\.?\s*$)", re.I)
_ADDRESSES = re.compile(r"Registering (\d+) cuda graph addresses")
_IPC_OFF = re.compile(
    r"(?:PCIe-IPC|PCIE_IPC)[^\n]*?(no pcie_ipc_comm|workspace[^\n]*failed|leaving PCIe-IPC all-reduce off)"
)
_VERSION = re.compile(r"sglang is using nccl==(\S+)")
_CHOICE = re.compile(r"(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}")


def read_log(text: str) -> LogFacts:
    """The communicators' lines of a server's log."""
    off = next((found[1] for line in text.splitlines() if (found := _CUSTOM_OFF.search(line))), "")
    ipc_off, version = _IPC_OFF.search(text), _VERSION.search(text)
    return LogFacts(
        v2="All Reduce config: symmetric_memory" in text,
        graph_addresses=max((int(count) for count in _ADDRESSES.findall(text)), default=0),
        custom_off=off,
        pcie_ipc="PCIe-IPC all-reduce enabled" in text,
        pcie_ipc_off=ipc_off[1] if ipc_off else "",
        nccl_version=version[1] if version else "",
    )


def read_choices(text: str) -> tuple[Choice, ...]:
    """NCCL's lines of the subsystem TUNING, which rank 0 writes for each collective (NCCL 2.24 to 2.30), counted."""
    counts: dict[tuple[str, int, str, str, int], int] = {}
    for function, size, algorithm, protocol, low, high in _CHOICE.findall(text):
        key = (function, int(size), algorithm.upper(), protocol.upper(), int(high) - int(low) + 1)
        counts[key] = counts.get(key, 0) + 1
    return tuple(sorted(Choice(*key, count) for key, count in counts.items()))


def parse_environ(raw: bytes) -> dict[str, str]:
    """The variables of `/proc/PID/environ`."""
    pairs = (os.fsdecode(entry).partition("=") for entry in raw.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def not_applied(variant: Variant, environ: Mapping[str, str] | None) -> tuple[str, ...]:
    """Variables of the variant that the scheduler does not have, or has with another value; empty when unknown."""
    if environ is None:
        return ()
    return tuple(
        f"{name}={value}, but the scheduler has {name}={environ[name]}" if name in environ else f"{name}={value}"
        for name, value in variant.env.items()
        if environ.get(name) != value
    )


def served(sight: Sight) -> Served:
    """Who served decode and prefill."""
    info, log = sight.info, read_log(sight.log)
    size = int(info.get("tp_size") or 1)
    if size == 1:
        return Served(decode=Collective.NONE, prefill=Collective.NONE, why=("tensor parallelism is 1",))
    if info.get("device") == "cpu":
        return Served(decode=Collective.CPU, prefill=Collective.CPU, why=("the server runs on the CPU",))
    environ = sight.environ or {}
    decode, why, sure = _carrier(info, log, environ, sight.decode_bytes or 0, small=True)
    prefill, more, also = _carrier(info, log, environ, sight.prefill_bytes, small=False)
    return Served(decode=decode, prefill=prefill, why=tuple(dict.fromkeys((why, more))), sure=sure and also)


def _carrier(
    info: Mapping[str, Any], log: LogFacts, environ: Mapping[str, str], size: int | None, *, small: bool
) -> tuple[Collective, str, bool]:
    """The first communicator that takes a message of so many bytes (None: a large one), why, and whether it is sure."""
    custom, why, sure = _custom(info, log)
    largest = LARGEST_V2 if custom is Collective.CUSTOM_V2 else LARGEST_LEGACY
    fits = custom is not None and size is not None and size <= largest
    ipc = small and log.pcie_ipc and environ.get("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", "1") == "1"
    if ipc and log.pcie_ipc_off:
        why = f"{why}; PCIe-IPC is off: {log.pcie_ipc_off}"
    on_down = "what it does not take goes on down the list"
    order = (
        (bool(info.get("enable_symm_mem")) and not fits, Collective.SYMMETRIC, "enable_symm_mem", False),
        (_fusion(info), Collective.FUSION, f"all-reduce fusion is on; {on_down}", False),
        (bool(info.get("enable_mscclpp")), Collective.MSCCLPP, f"enable_mscclpp; {on_down}", False),
        (fits, custom or Collective.CUSTOM, why, sure),
        (ipc and not log.pcie_ipc_off, Collective.PCIE_IPC, "the log says that PCIe-IPC is enabled", True),
        (
            bool(info.get("enable_torch_symm_mem")),
            Collective.TORCH_SYMMETRIC,
            f"enable_torch_symm_mem; {on_down}",
            False,
        ),
        (custom is None, Collective.NCCL, why, True),
    )
    over = "messages of a size not known" if size is None else f"messages of {size / MIB:.0f} MiB"
    above = (Collective.NCCL, f"{over} against {largest // MIB} MiB, the most that {custom} takes", size is not None)
    return next(((carrier, reason, known) for takes, carrier, reason, known in order if takes), above)


def _fusion(info: Mapping[str, Any]) -> bool:
    asked = info.get("flashinfer_allreduce_fusion_backend") or info.get("enable_flashinfer_allreduce_fusion")
    return bool(asked) and not info.get("enforce_disable_flashinfer_allreduce_fusion")


def _custom(info: Mapping[str, Any], log: LogFacts) -> tuple[Collective | None, str, bool]:
    """The custom all-reduce that is on, if one is."""
    if info.get("disable_custom_all_reduce"):
        return None, "disable_custom_all_reduce", True
    if log.custom_off:
        return None, f"custom all-reduce is disabled: {log.custom_off}", True
    if log.v2:
        return Collective.CUSTOM_V2, "the log shows the configuration of the custom all-reduce v2", True
    if log.graph_addresses:
        return Collective.CUSTOM, f"the custom all-reduce registered {log.graph_addresses} graph addresses", True
    return Collective.CUSTOM, "the custom all-reduce is not disabled, and no line says that it is", False


def no_role(tp_size: int, gpus: int) -> str:
    """Why NCCL has no role on this machine for this server; empty when it has."""
    if gpus == 0:
        return "there is no GPU, so NCCL has no role"
    return "with tensor parallelism 1 no collective runs, so NCCL has no role" if tp_size == 1 else ""


def refuse_useless(axes: Sequence[str], tp_size: int, gpus: int) -> None:
    """Raise UsageError when axes are asked for that cannot change anything here."""
    reason = no_role(tp_size, gpus)
    if reason and set(axes) - {"flags"}:
        raise UsageError(reason, "--axes flags sweeps the scheduler's flags instead")


def hidden_settings(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Files from which NCCL takes more settings; they change the baseline without a word in any environment."""
    files = [
        Path(environ.get("NCCL_CONF_FILE") or Path(environ.get("HOME", "/")) / ".nccl.conf"),
        Path("/etc/nccl.conf"),
    ]
    return tuple(f"NCCL also reads {file}" for file in files if file.is_file())
