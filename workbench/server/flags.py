"""SGLang's flags: which ones hsbench sets, which ones a complete dump needs, and which ones contradict it.

A dump is complete when each prompt passes through the model once, whole and uncached, outside a CUDA graph.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.errors import UsageError

OWNED = {
    "--model-path": "hsbench serve --model",
    "--model": "hsbench serve --model",
    "--port": "hsbench serve --port",
    "--device": "hsbench serve --device",
}
"""Flags that hsbench sets itself → the option that stands for them."""

CPU = (
    ("--attention-backend", "torch_native"),
    ("--disable-cuda-graph", None),
    ("--disable-radix-cache", None),
    ("--mem-fraction-static", "0.2"),
    ("--sleep-on-idle", None),
)
"""What SGLang needs on a CPU without AMX, unless the user says otherwise. An idle scheduler polls with a whole
core by design, which on a CPU is taken from the model and from whoever reads the dumps."""

TP_SIZE = ("--tp-size", "--tp", "--tensor-parallel-size")
"""The names of one flag."""

CPU_TOKENS = 32768
"""Size of the key-value cache on a CPU, or the model's context if that is more. SGLang's own choice fills a
fifth of the memory with zeros, which takes seconds and gives room for minutes of prefill."""

DUMP = (
    ("--disable-radix-cache", None),
    ("--chunked-prefill-size", "-1"),
    ("--disable-prefill-cuda-graph", None),
)
"""What makes a dump complete. `--max-prefill-tokens` is not among them: without chunks both tested releases
admit the first request of a pass whatever its length, so no prompt is cut."""


CHUNKS = frozenset({"--chunked-prefill-size", "--enable-dynamic-chunking"})
"""Flags that spoil a dump only as long as nobody puts its chunks together."""

_SCATTERS = "spreads the rows of a pass over several ranks, none of which sees whole states"
_REPLICAS = "runs several engines that would write into one folder; start a server for each instead"


SPREAD_SIZES = ("attn_dp_size", "attn_cp_size")
SPREAD_MODES = ("enable_dp_attention", "enable_layernorm_sp", "enable_attn_tp_input_scattered")
"""What `/server_info` calls the settings that spread a pass over several ranks."""


def _positive(value: str | None) -> bool:
    return not (value or "").lstrip().startswith("-") and value != "0"


def _more_than_one(value: str | None) -> bool:
    return value not in (None, "1")


def _graph(value: str | None) -> bool:
    return value != "disabled"


def _graph_config(value: str | None) -> bool:
    try:
        prefill = json.loads(value or "{}").get("prefill", {"backend": "disabled"})
        return bool(prefill.get("backend") != "disabled")
    except (ValueError, AttributeError):
        return False


def _always(_: str | None) -> bool:
    return True


SPOILS: dict[str, tuple[Callable[[str | None], bool], str]] = {
    "--chunked-prefill-size": (_positive, "cuts a prompt into several passes"),
    "--enable-dynamic-chunking": (_always, "cuts a prompt into several passes"),
    "--enable-mixed-chunk": (_always, "mixes prefill and decode in one pass"),
    "--enable-two-batch-overlap": (_always, "splits a pass in two"),
    "--enable-hierarchical-cache": (_always, "serves prompts from a cache"),
    "--cuda-graph-backend-prefill": (_graph, "runs prefill in a graph that the recorder cannot enter"),
    "--cuda-graph-config": (_graph_config, "runs prefill in a graph that the recorder cannot enter"),
    "--enable-dp-attention": (_always, _SCATTERS),
    "--attn-dp-size": (_more_than_one, _SCATTERS),
    "--attention-data-parallel-size": (_more_than_one, _SCATTERS),
    "--attn-cp-size": (_more_than_one, _SCATTERS),
    "--attention-context-parallel-size": (_more_than_one, _SCATTERS),
    "--enable-prefill-cp": (_always, _SCATTERS),
    "--enable-layernorm-sp": (_always, _SCATTERS),
    "--enable-attn-tp-input-scattered": (_always, _SCATTERS),
    "--dp-size": (_more_than_one, _REPLICAS),
    "--data-parallel-size": (_more_than_one, _REPLICAS),
    "--pp-size": (_more_than_one, "spreads the blocks over several processes"),
    "--pipeline-parallel-size": (_more_than_one, "spreads the blocks over several processes"),
}
"""Flag → (whether this value of it spoils a dump, how)."""


def given(flags: Sequence[str]) -> dict[str, str | None]:
    """The flags of a command line and their values: `--a 1 --b=2 --c` is {--a: 1, --b: 2, --c: None}."""
    found: dict[str, str | None] = {}
    last = ""
    for word in flags:
        if word.startswith("--"):
            last, equals, value = word.partition("=")
            found[last] = value if equals else None
        elif last and found[last] is None:
            found[last] = word
    return found


def refuse_owned(flags: Sequence[str]) -> None:
    """Raise UsageError for a flag that hsbench sets itself."""
    for flag in given(flags):
        if flag in OWNED:
            raise UsageError(f"{flag} is set by hsbench", f"use {OWNED[flag]} instead")


def refuse_spoiling(flags: Sequence[str], allowed: frozenset[str] = frozenset()) -> None:
    """Raise UsageError for a flag that would make dumps incomplete, unless it is one of those `allowed`."""
    for flag, value in given(flags).items():
        if flag in allowed:
            continue
        spoils, how = SPOILS.get(flag, (None, ""))
        if spoils is not None and spoils(value):
            shown = flag if value is None else f"{flag} {value}"
            raise UsageError(
                f"{shown} {how}, so a dump would not be complete", "leave it out, add --fix, or record nothing"
            )


def with_defaults(
    flags: Sequence[str], defaults: Sequence[tuple[str, str | None]], known: frozenset[str]
) -> tuple[str, ...]:
    """The flags, after those defaults that they leave open and that the engine knows."""
    present = given(flags)
    added: list[str] = []
    for flag, value in defaults:
        if flag not in present and (flag in known or not known):
            added += [flag] if value is None else [flag, value]
    return (*added, *flags)


def absolute_paths(flags: Sequence[str]) -> tuple[str, ...]:
    """Relative paths of existing files made absolute: the server runs in another folder."""
    return tuple(_absolute(word) for word in flags)


def _absolute(word: str) -> str:
    name, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    if os.sep in value and not os.path.isabs(value) and Path(value).exists():
        value = os.path.abspath(value)
    return f"{name}{equals}{value}"


def incomplete(info: Mapping[str, Any]) -> list[str]:
    """Why dumps of a running server would be incomplete, from what `/server_info` says it runs with."""
    found = []
    if not info.get("disable_radix_cache", True):
        found.append("the radix cache is on: --disable-radix-cache")
    if (info.get("chunked_prefill_size") or -1) > 0:
        found.append(f"prefill is cut into chunks of {info['chunked_prefill_size']}: --chunked-prefill-size -1")
    graphs = info.get("cuda_graph_config")
    prefill = graphs.get("prefill") if isinstance(graphs, Mapping) else None
    if isinstance(prefill, Mapping) and prefill.get("backend", "disabled") != "disabled":
        found.append("prefill runs in a CUDA graph: --disable-prefill-cuda-graph")
    if info.get("enable_two_batch_overlap"):
        found.append("two-batch overlap splits a pass: leave out --enable-two-batch-overlap")
    spread = [f"--{name.replace('_', '-')}" for name in SPREAD_SIZES if (info.get(name) or 1) > 1]
    spread += [f"--{name.replace('_', '-')}" for name in SPREAD_MODES if info.get(name)]
    found += [f"rows are spread over several ranks: leave out {flag}" for flag in spread]
    if (info.get("pp_size") or 1) > 1:
        found.append("the blocks are spread over several processes: --pp-size 1")
    return found
