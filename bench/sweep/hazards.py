"""What is known to go wrong with each environment variable of a sweep.

Sources, by the word in `Rule.source`:

- `env.rst`: NVIDIA's environment page, which divides the variables into system configuration and debugging.
- `nccl#N`: an issue of NVIDIA/nccl. Issues tell what their reporters saw.
- `tuning.cc`: NCCL 2.30, `src/graph/tuning.cc`: a protocol that is named skips the test of the links.
- `engine.py`: SGLang 0.5.23, `srt/entrypoints/engine.py`, which sets or overwrites the variable itself.
- `sglang`: read nowhere but by SGLang's own code.

A variable without a rule whose name NCCL knows counts as unsafe, since nobody looked at it.
"""

import difflib
import functools
import importlib.resources
from collections.abc import Callable
from enum import StrEnum

import msgspec

from workbench.errors import UsageError


class Hazard(StrEnum):
    """May it be swept?"""

    SAFE = "safe"
    """Whatever it does is seen by the numeric gate, by supervision or by the clock."""
    UNSAFE = "unsafe"
    """It can hang the machine's GPUs or corrupt data where a gate may not see it; only with `--unsafe`."""
    NEVER = "never"
    """It is refused: known to corrupt or hang, or without any effect on what is measured."""


class Finding(msgspec.Struct, frozen=True):
    """One variable of a variant, judged."""

    name: str
    value: str
    hazard: Hazard
    why: str
    source: str

    def __str__(self) -> str:
        return f"{self.name}={self.value}: {self.why} ({self.source})"


class Rule(msgspec.Struct, frozen=True):
    """The judgement of one variable: a class, or a function that finds the class of a value."""

    hazard: Hazard | Callable[[str], Hazard]
    why: str
    source: str

    def of(self, value: str) -> Hazard:
        """The class of this value."""
        return self.hazard if isinstance(self.hazard, Hazard) else self.hazard(value)


def _is_power_of_two(value: str) -> bool:
    return value.isdigit() and int(value) > 0 and int(value) & (int(value) - 1) == 0


def _level(value: str) -> Hazard:
    """By name only: the numbers mean other levels in the manual than in guides."""
    if value in {"LOC", "NVL", "PIX", "PXB"}:
        return Hazard.SAFE
    return Hazard.UNSAFE if value in {"PHB", "SYS"} else Hazard.NEVER


def _protocol(value: str) -> Hazard:
    """`^A,B` excludes; anything else includes, and then a named LL128 is forced on."""
    names = set(value.removeprefix("^").upper().split(","))
    if not names <= {"LL", "LL128", "SIMPLE"}:
        return Hazard.NEVER if not {":", ";"} & set(value) else Hazard.UNSAFE
    return Hazard.UNSAFE if "LL128" in names and not value.startswith("^") else Hazard.SAFE


def _threads(value: str) -> Hazard:
    if value in {"128", "256", "512"}:
        return Hazard.SAFE
    return Hazard.UNSAFE if value == "64" else Hazard.NEVER


def _buffer(value: str) -> Hazard:
    return Hazard.SAFE if _is_power_of_two(value) and int(value) >= 65536 else Hazard.NEVER


def _count(value: str) -> Hazard:
    return Hazard.SAFE if value.isdigit() and 1 <= int(value) <= 64 else Hazard.NEVER


def _switch(hazard: Hazard) -> Callable[[str], Hazard]:
    return lambda value: hazard if value in {"0", "1"} else Hazard.NEVER


_CHANNELS = Rule(_count, "a whole number from 1 to 64; more channels take SMs from the model", "env.rst")
_NEVER_BUFFER = Rule(Hazard.NEVER, "other sizes hang or give wrong results", "nccl#1739, nccl#2408")
_HIDDEN = Rule(Hazard.NEVER, "brings in settings that the record of a start would not show", "env.rst")
_NO_EFFECT = "SGLang overwrites it, so the variant would be the baseline"
_OUTPUT = Rule(Hazard.NEVER, "writes while the clock runs; the sweep has a debug start of its own", "env.rst")

RULES: dict[str, Rule] = {
    "NCCL_P2P_LEVEL": Rule(
        _level,
        "PHB and SYS hang in the first all-reduce where ACS or a translating IOMMU is on; numbers are ambiguous, "
        "so give LOC, NVL, PIX, PXB, PHB or SYS",
        "env.rst",
    ),
    "NCCL_P2P_DISABLE": Rule(_switch(Hazard.SAFE), "0 or 1; slow where there is NVLink", "env.rst"),
    "NCCL_PROTO": Rule(
        _protocol,
        "naming LL128 forces it on without the test of the links and can corrupt data; "
        "otherwise LL, Simple, or ^ and what to exclude",
        "env.rst, tuning.cc",
    ),
    "NCCL_ALGO": Rule(Hazard.SAFE, "what the machine does not support aborts the start", "nccl#1184"),
    "NCCL_MIN_CTAS": _CHANNELS,
    "NCCL_MAX_CTAS": _CHANNELS,
    "NCCL_MIN_NCHANNELS": _CHANNELS,
    "NCCL_MAX_NCHANNELS": _CHANNELS,
    "NCCL_NTHREADS": Rule(
        _threads, "128, 256 or 512; 64 gave wrong results once and odd values do", "nccl#355, nccl#698"
    ),
    "NCCL_BUFFSIZE": Rule(_buffer, "a power of two from 65536, or results are wrong", "nccl#698"),
    "NCCL_LL_BUFFSIZE": _NEVER_BUFFER,
    "NCCL_LL128_BUFFSIZE": _NEVER_BUFFER,
    "NCCL_CHUNK_SIZE": _NEVER_BUFFER,
    "NCCL_IB_DISABLE": Rule(_switch(Hazard.SAFE), "0 or 1; sockets between nodes", "env.rst"),
    "NCCL_SHM_DISABLE": Rule(_switch(Hazard.UNSAFE), "may leave only the network between GPUs, and hang", "env.rst"),
    "NCCL_CUMEM_ENABLE": Rule(_switch(Hazard.SAFE), "0 or 1; SGLang overwrites it with --enable-symm-mem", "engine.py"),
    "NCCL_NVLS_ENABLE": Rule(
        _switch(Hazard.SAFE), "0 or 1; NCCL 2.27 and 2.28 can hang when a rank fails to allocate", "env.rst"
    ),
    "NCCL_CUMEM_HOST_ENABLE": Rule(_switch(Hazard.SAFE), "0 or 1", "env.rst"),
    "NCCL_GRAPH_FILE": Rule(Hazard.UNSAFE, "a topology of another machine hangs or is slow", "nccl#2127"),
    "NCCL_GRAPH_MIXING_SUPPORT": Rule(
        _switch(Hazard.UNSAFE), "0 hangs when a graph and an eager call overlap", "env.rst"
    ),
    "NCCL_CONF_FILE": _HIDDEN,
    "NCCL_ENV_PLUGIN": _HIDDEN,
    "NCCL_TUNER_PLUGIN": Rule(Hazard.UNSAFE, "runs foreign code in the engine", "env.rst"),
    "NCCL_DEBUG": _OUTPUT,
    "NCCL_DEBUG_SUBSYS": _OUTPUT,
    "NCCL_DEBUG_FILE": _OUTPUT,
    "NCCL_COMM_ID": Rule(Hazard.NEVER, "is the address of the communicator", "env.rst"),
    "CUDA_DEVICE_MAX_CONNECTIONS": Rule(Hazard.NEVER, _NO_EFFECT, "engine.py"),
    "CUDA_VISIBLE_DEVICES": Rule(Hazard.NEVER, "changes the machine, not a setting of it", "sglang"),
    "SGLANG_PLATFORM": Rule(Hazard.NEVER, "changes the machine, not a setting of it", "sglang"),
    "LD_PRELOAD": Rule(Hazard.NEVER, "brings in code that the record of a start would not show", "ld.so(8)"),
    "LD_LIBRARY_PATH": Rule(Hazard.NEVER, "brings in code that the record of a start would not show", "ld.so(8)"),
}


@functools.cache
def known_names() -> frozenset[str]:
    """Every variable that NCCL is known to read, with those of the rules."""
    text = importlib.resources.files(__package__).joinpath("known_names.txt").read_text(encoding="utf-8")
    lines = (line.strip() for line in text.splitlines())
    return frozenset(line for line in lines if line and not line.startswith("#")) | RULES.keys()


def judge(name: str, value: str) -> Finding:
    """The class of one variable.

    Raises:
        UsageError: a name that begins with NCCL_ and that NCCL does not read.
    """
    rule = RULES.get(name)
    if rule is not None:
        return Finding(name, value, rule.of(value), rule.why, rule.source)
    if name.startswith("SGLANG_HS_"):
        return Finding(name, value, Hazard.NEVER, "belongs to the recorder", "sglang")
    if not name.startswith("NCCL_"):
        return Finding(name, value, Hazard.SAFE, "not a variable of NCCL", "")
    if name not in known_names():
        near = difflib.get_close_matches(name, sorted(known_names()), n=1, cutoff=0.0)
        raise UsageError(f"NCCL reads no variable {name}", f"did you mean {near[0]}?")
    return Finding(name, value, Hazard.UNSAFE, "nobody has looked at what it does to a server", "no source")
