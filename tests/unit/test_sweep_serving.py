"""Which collective served: from lines as SGLang 0.5.23 and NCCL 2.30 write them."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.sweep.serving import (
    Choice,
    Collective,
    Sight,
    hidden_settings,
    no_role,
    not_applied,
    parse_environ,
    read_choices,
    read_log,
    refuse_useless,
    served,
)
from bench.sweep.variants import Variant
from tests.trees import installed_root
from workbench.errors import UsageError

MIB = 1 << 20
V2 = (
    "[2026-01-05 10:00:00 TP0] All Reduce config: symmetric_memory = 34.00 MB, local_buffer = 16.02 MB, "
    "multicast = True, pull = True\n"
)
PCIE_ONLY = (
    "[2026-01-05 10:00:00 TP0] CustomAllreduce is disabled because it's not supported on more than two PCIe-only GPUs. "
    "To silence this warning, specify disable_custom_all_reduce=True explicitly.\n"
)
ODD = (
    "[2026-01-05 10:00:00 TP0] CustomAllReduceV2 is disabled due to an unsupported world size: 3. "
    "Supported world sizes: [2, 4, 6, 8]. To silence this warning, specify disable_custom_all_reduce=True explicitly.\n"
)
GRAPHS = "[2026-01-05 10:00:09 TP0] Registering 195 cuda graph addresses\n"
IPC = "[2026-01-05 10:00:00] FlashInfer PCIe-IPC all-reduce enabled (world=4, workspace sized on first reduction)\n"
IPC_FAILS = (
    "[2026-01-05 10:00:00] FlashInfer PCIe-IPC workspace (max_numel=524288) failed: out of memory; "
    "reductions stay on NCCL\n"
)
NCCL = """\
host:101:101 [0] NCCL INFO NCCL_PROTO set by environment to LL
host:101:101 [0] NCCL INFO NCCL_BUFFSIZE set by environment to 8388608.
host:101:300 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
host:102:301 [1] NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct
host:101:101 [0] NCCL INFO AllReduce: 8192 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
host:101:101 [0] NCCL INFO AllReduce: 8192 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
host:101:101 [0] NCCL INFO AllReduce: 33554432 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15} cgaClusterSize 4
host:101:101 [0] NCCL INFO AllGather: 64128 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..3}
"""


def sight(log: str = "", decode: int = 8192, prefill: int | None = 128 * MIB, **info: Any) -> Sight:
    return Sight(log=log, info={"tp_size": 2, "device": "cuda", **info}, decode_bytes=decode, prefill_bytes=prefill)


@pytest.mark.parametrize(
    ("seen", "decode", "prefill"),
    [
        (sight(tp_size=1), Collective.NONE, Collective.NONE),
        (sight(device="cpu"), Collective.CPU, Collective.CPU),
        (sight(V2), Collective.CUSTOM_V2, Collective.NCCL),
        (sight(V2, prefill=10 * MIB), Collective.CUSTOM_V2, Collective.CUSTOM_V2),
        (sight(GRAPHS), Collective.CUSTOM, Collective.NCCL),
        (sight(GRAPHS, prefill=10 * MIB), Collective.CUSTOM, Collective.NCCL),
        (sight(GRAPHS, prefill=8 * MIB), Collective.CUSTOM, Collective.CUSTOM),
        (sight(V2, disable_custom_all_reduce=True), Collective.NCCL, Collective.NCCL),
        (sight(PCIE_ONLY, tp_size=4), Collective.NCCL, Collective.NCCL),
        (sight(ODD, tp_size=3), Collective.NCCL, Collective.NCCL),
        (sight(PCIE_ONLY + IPC, tp_size=4), Collective.PCIE_IPC, Collective.NCCL),
        (sight(PCIE_ONLY + IPC + IPC_FAILS, tp_size=4), Collective.NCCL, Collective.NCCL),
        (sight(V2, enable_symm_mem=True), Collective.CUSTOM_V2, Collective.SYMMETRIC),
        (
            sight(enable_symm_mem=True, disable_custom_all_reduce=True),
            Collective.SYMMETRIC,
            Collective.SYMMETRIC,
        ),
        (sight(V2, enable_torch_symm_mem=True), Collective.CUSTOM_V2, Collective.TORCH_SYMMETRIC),
        (sight(V2, flashinfer_allreduce_fusion_backend="trtllm"), Collective.FUSION, Collective.FUSION),
    ],
)
def test_who_serves_decode_and_prefill(seen: Sight, decode: Collective, prefill: Collective) -> None:
    found = served(seen)
    assert (found.decode, found.prefill) == (decode, prefill)
    assert found.why


def test_what_no_line_says_is_not_sure() -> None:
    assert served(sight(V2)).sure
    assert served(sight(PCIE_ONLY, tp_size=4)).sure
    assert not served(sight("")).sure
    assert not served(sight(V2, prefill=None)).sure


def test_the_meaning_for_nccl_is_said() -> None:
    assert "no role" in served(sight(tp_size=1)).meaning
    assert "large prefill messages only" in served(sight(V2)).meaning
    assert "its variables matter" in served(sight(PCIE_ONLY, tp_size=4)).meaning


def test_the_reason_for_no_custom_all_reduce_is_kept() -> None:
    assert read_log(PCIE_ONLY).custom_off == "it's not supported on more than two PCIe-only GPUs"
    assert read_log(ODD).custom_off.startswith("an unsupported world size: 3")
    assert read_log("Custom quick allreduce is disabled because this is no ROCm").custom_off == ""
    assert read_log("x sglang is using nccl==2.30.7\n").nccl_version == "2.30.7"


def test_sglang_still_writes_these_lines() -> None:
    """The text of the lines, where SGLang's source has it in one piece."""
    folder = installed_root() / "srt" / "distributed" / "device_communicators"
    source = "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    for piece in (
        "All Reduce config: symmetric_memory = ",
        "cuda graph addresses",
        " is disabled because it's not supported on",
        " is disabled due to an unsupported world",
        "FlashInfer PCIe-IPC all-reduce enabled (world=",
        "FlashInfer PCIe-IPC workspace (max_numel=",
        "sglang is using nccl==",
    ):
        assert piece in source, piece


def test_what_nccl_chose_is_counted_by_size() -> None:
    assert read_choices(NCCL) == (
        Choice("AllGather", 64128, "RING", "LL128", 4, 1),
        Choice("AllReduce", 8192, "RING", "LL", 1, 2),
        Choice("AllReduce", 33554432, "NVLS", "SIMPLE", 16, 1),
    )
    assert read_choices("no such line") == ()


def test_variables_that_did_not_reach_the_process() -> None:
    variant = Variant(name="x", axis="nccl", env={"NCCL_PROTO": "LL", "NCCL_CUMEM_ENABLE": "1", "NCCL_ALGO": "Ring"})
    environ = parse_environ(b"PATH=/bin\0NCCL_PROTO=LL\0NCCL_CUMEM_ENABLE=0\0ODD==x=y\0\0")
    assert environ["ODD"] == "=x=y"
    assert not_applied(variant, environ) == (
        "NCCL_CUMEM_ENABLE=1, but the scheduler has NCCL_CUMEM_ENABLE=0",
        "NCCL_ALGO=Ring",
    )
    assert not_applied(variant, None) == ()
    assert not_applied(variant, variant.env) == ()


def test_the_environment_of_a_process_can_be_read() -> None:
    child = subprocess.run(["cat", "/proc/self/environ"], env={"A": "b=c", "D": ""}, capture_output=True, check=True)
    assert parse_environ(child.stdout) == {"A": "b=c", "D": ""}


def test_nccl_has_no_role_without_gpus_or_with_one_rank() -> None:
    assert "no GPU" in no_role(2, 0)
    assert "tensor parallelism 1" in no_role(1, 2)
    assert no_role(2, 2) == ""
    refuse_useless(["flags"], 1, 0)
    refuse_useless(["nccl", "flags"], 2, 2)
    with pytest.raises(UsageError, match="NCCL has no role") as caught:
        refuse_useless(["nccl", "flags"], 1, 1)
    assert "--axes flags" in caught.value.next_step


def test_files_that_change_nccl_without_a_word_are_named(tmp_path: Path) -> None:
    conf = tmp_path / ".nccl.conf"
    conf.write_text("NCCL_ALGO=Tree\n", encoding="ascii")
    assert f"NCCL also reads {conf}" in hidden_settings({"HOME": str(tmp_path)})
    assert f"NCCL also reads {conf}" in hidden_settings({"HOME": "/", "NCCL_CONF_FILE": str(conf)})
    assert not any(str(tmp_path) in said for said in hidden_settings({"HOME": "/nowhere"}))
