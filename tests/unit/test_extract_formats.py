"""Each format is written from the recorder's own dumps and read the way its readers do."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from datasets import load_from_disk
from safetensors.torch import load_file

from probes import samplefile
from probes.samplefile import Kind
from tests.unit.extract_support import (
    STATES,
    build,
    local_pool,
    run_record,
    sample,
    states_of,
    write_both,
)
from tests.unit.probes_support import HIDDEN
from workbench.errors import CheckFailed, Missing, UsageError
from workbench.extract.index import IndexLine, Torn, read_lines
from workbench.extract.record import Format
from workbench.extract.sample import Refused
from workbench.extract.writer import DatasetWriter

ROOT = Path(__file__).parents[2]
FORMATS: list[Format] = ["speculators-v1", "speculators", "specforge"]


def tree(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_speculators_v1_is_what_its_reader_takes(tmp_path: Path) -> None:
    folder = build(tmp_path / "out", "speculators-v1")
    assert tree(folder) == {
        *(f"rows_0-2000/data_{n}.pt" for n in range(5)),
        "rows_0-2000/sample_lengths.json",
        "sample_lengths.json",
        "data_config.json",
        "hsbench.json",
        "index.jsonl",
    }
    for number in range(5):
        held = torch.load(folder / f"rows_0-2000/data_{number}.pt", mmap=True, weights_only=True)
        one = sample(number)
        assert sorted(held) == ["hidden_states", "input_ids", "loss_mask"]
        assert held["input_ids"].tolist() == list(one.input_ids)
        assert held["loss_mask"].tolist() == list(one.loss_mask)
        assert (held["input_ids"].dtype, held["loss_mask"].dtype) == (torch.int64, torch.int64)
        assert isinstance(held["hidden_states"], list)
        for found, expected in zip(held["hidden_states"], states_of(one, 4), strict=True):
            assert found.dtype == torch.bfloat16
            assert torch.equal(found, expected)
    assert json.loads((folder / "rows_0-2000/sample_lengths.json").read_text()) == {str(n): 10 + n for n in range(5)}


def test_speculators_is_what_its_reader_takes(tmp_path: Path) -> None:
    folder = build(tmp_path / "out", "speculators")
    data: Any = load_from_disk(str(folder))
    assert list(data.with_format(None)["seq_len"]) == [10, 11, 12, 13, 14]
    for number in range(5):
        held = load_file(folder / f"hidden_states/hs_{number}.safetensors")
        assert torch.equal(held["token_ids"], data[number]["input_ids"])
        assert held["hidden_states"].shape == (10 + number, 4, HIDDEN)
        assert torch.equal(held["hidden_states"], torch.stack(states_of(sample(number), 4), dim=1))
        assert data[number]["loss_mask"].tolist() == list(sample(number).loss_mask)


def test_specforge_has_the_post_norm_state_and_the_aux_side_by_side(tmp_path: Path) -> None:
    folder = build(tmp_path / "out", "specforge", rows=2)
    held = torch.load(folder / "rows_0-2000/data_1.ckpt", weights_only=True)
    states = states_of(sample(1))
    assert sorted(held) == ["aux_hidden_state", "hidden_state", "input_ids", "loss_mask"]
    assert torch.equal(held["aux_hidden_state"], torch.cat(states[:3], dim=-1).unsqueeze(0))
    assert torch.equal(held["hidden_state"], states[4].unsqueeze(0))


@pytest.mark.parametrize(("kind", "final"), [("specforge", "pre"), ("speculators-v1", "post"), ("speculators", "post")])
def test_the_other_side_of_the_norm_is_refused(tmp_path: Path, kind: Format, final: str) -> None:
    with local_pool() as pool:
        writer = DatasetWriter(tmp_path / "out", run_record(kind), pool)
        line = writer.write(sample(0), write_both(tmp_path / "dumps", sample(0), final=final))
        writer.close()
    assert line.status == "quarantined"
    side = {"pre": "post", "post": "pre"}[final]
    assert f"wants the last state {side}-norm" in line.reason
    about = json.loads((tmp_path / "out.quarantine/sample_0/reason.json").read_text())
    assert f"SGLANG_HS_DUMP_FINAL={side}" in about["next_step"]


def test_the_config_says_what_the_tensors_are(tmp_path: Path) -> None:
    config = json.loads((build(tmp_path / "out", "speculators-v1") / "data_config.json").read_text())
    assert config["version"] == "2.0"
    assert config["hidden_states"]["layer_ids"] == [0, 1, 2, 3]
    assert config["model"]["target_model_path"] == "/models/tiny"
    assert config["data"]["num_samples"] == 5
    ours = config["hsbench"]
    assert (ours["after_block"], ours["captured_entering"], ours["final_norm"]) == ([0, 1, 2], [1, 2, 3], "pre")
    assert (ours["sglang_version"], ours["patch_hash"]) == ("0.5.23", "abc")
    assert ours["nccl_env"] == {"NCCL_P2P_DISABLE": "1"}
    assert ours["server_flags"] == ["--disable-radix-cache"]
    assert (ours["tokens"], ours["trained_tokens"]) == (60, 5 + 6 + 6 + 7 + 7)


def damage(folder: Path, how: str) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    if how == "cut":
        data = (folder / "final.pt").read_bytes()
        (folder / "final.pt").write_bytes(data[: len(data) // 2])
    elif how == "bit":
        data = bytearray((folder / "aux_1.pt").read_bytes())
        data[len(data) // 2] ^= 0x40
        (folder / "aux_1.pt").write_bytes(data)
    elif how == "undone":
        (folder / "done").unlink()
    elif how == "entering":
        meta["tensors"]["aux_1"]["captured_entering"] = 1
        (folder / "meta.json").write_text(json.dumps(meta))


@pytest.mark.parametrize(
    ("how", "says"), [("cut", "cannot be read"), ("bit", "crc32"), ("undone", "not finished"), ("entering", "entering")]
)
def test_a_damaged_dump_goes_to_the_quarantine(tmp_path: Path, how: str, says: str) -> None:
    dump = write_both(tmp_path / "dumps", sample(0))
    damage(dump, how)
    with local_pool() as pool:
        writer = DatasetWriter(tmp_path / "out", run_record("speculators-v1"), pool)
        line = writer.write(sample(0), dump)
        writer.close()
    assert (line.status, says in line.reason) == ("quarantined", True), line.reason
    assert not dump.exists()
    assert (tmp_path / f"out.quarantine/sample_0/{dump.name}/meta.json").exists()
    assert not list((tmp_path / "out").rglob("*.pt"))


def nan(states: list[torch.Tensor]) -> None:
    states[1][3, 7] = float("nan")


def inf(states: list[torch.Tensor]) -> None:
    states[2][0, 0] = float("-inf")


def zero(states: list[torch.Tensor]) -> None:
    states[0].zero_()


def zero_row(states: list[torch.Tensor]) -> None:
    states[3][4].zero_()


def constant(states: list[torch.Tensor]) -> None:
    states[0].fill_(2.5)


def stuck(states: list[torch.Tensor]) -> None:
    states[0][:] = states[0][0].clone()


def narrow(states: list[torch.Tensor]) -> None:
    states[1] = states[1][:, :32].contiguous()


def short(states: list[torch.Tensor]) -> None:
    states[1] = states[1][:-1].contiguous()


def wide_type(states: list[torch.Tensor]) -> None:
    states[1] = states[1].to(torch.float32)


@pytest.mark.parametrize(
    ("plant", "says"),
    [
        (nan, "aux_1: 1 of 10 rows hold NaN or Inf, the first is row 3"),
        (inf, "aux_2: 1 of 10 rows hold NaN or Inf, the first is row 0"),
        (zero, "aux_0 is all zero"),
        (zero_row, "final: 1 of 10 rows are all zero"),
        (constant, "aux_0 is constant"),
        (stuck, "aux_0 is constant"),
        (narrow, "aux_1 is 32 wide, not 64"),
        (short, "for 10 tokens"),
        (wide_type, "aux_1 is float32, not bfloat16"),
    ],
)
def test_bad_values_are_told(tmp_path: Path, plant: Any, says: str) -> None:
    states = states_of(sample(0))
    plant(states)
    with local_pool() as pool:
        writer = DatasetWriter(tmp_path / "out", run_record("speculators"), pool)
        line = writer.write(sample(0), write_both(tmp_path / "dumps", sample(0), states))
        writer.close()
    assert line.status == "quarantined"
    assert says in line.reason


@pytest.mark.parametrize(
    ("meta", "says"),
    [
        ({"token_ids": [9] * 10}, "token 0 is 9, 1 was sent"),
        ({"token_ids": [1] * 9, "num_tokens": 9}, "9 tokens, 10 were sent"),
        ({"prefix_len": 64}, "prefix cache"),
        ({"num_blocks": 7}, "a model of 7 blocks"),
    ],
)
def test_a_dump_of_something_else_is_told(tmp_path: Path, meta: dict[str, Any], says: str) -> None:
    dump = write_both(tmp_path / "dumps", sample(0))
    whole = json.loads((dump / "meta.json").read_text())
    (dump / "meta.json").write_text(json.dumps({**whole, **meta}))
    with local_pool() as pool:
        writer = DatasetWriter(tmp_path / "out", run_record("speculators"), pool)
        line = writer.write(sample(0), dump)
        writer.close()
    assert line.status == "quarantined"
    assert says in line.reason or "for 9 tokens" in line.reason


def test_other_blocks_and_an_empty_mask_are_refused(tmp_path: Path) -> None:
    other = msgspec.structs.replace(STATES, after_block=(0, 1, 3))
    with local_pool() as pool:
        writer = DatasetWriter(tmp_path / "a", run_record("speculators", states=other), pool)
        line = writer.write(sample(0), write_both(tmp_path / "dumps", sample(0)))
        assert "outputs of blocks [0, 1, 2], not [0, 1, 3]" in line.reason
        empty = msgspec.structs.replace(sample(1), loss_mask=(0,) * 11)
        line = writer.write(empty, write_both(tmp_path / "dumps", empty))
        assert "all zero: nothing to train on" in line.reason
        writer.close()


def test_too_many_bad_dumps_stop_the_run(tmp_path: Path) -> None:
    with local_pool() as pool:
        writer = DatasetWriter(tmp_path / "out", run_record("speculators", 50), pool, max_bad=2)
        for index in range(2):
            writer.write(sample(index), write_both(tmp_path / "dumps", sample(index), final="post"))
        with pytest.raises(CheckFailed, match="3 samples were bad"):
            writer.write(sample(2), write_both(tmp_path / "dumps", sample(2), final="post"))
        assert [line.status for line in writer.index.lines()] == ["quarantined"] * 3
        writer.close()


@pytest.mark.parametrize("kind", FORMATS)
def test_opening_again_puts_right_what_a_crash_left(tmp_path: Path, kind: Format) -> None:
    folder = build(tmp_path / "out", kind)
    lines = {line.index: line for line in read_lines(folder) if isinstance(line, IndexLine)}
    (folder / lines[0].file).unlink()
    with open(folder / lines[1].file, "rb+") as file:
        file.truncate(lines[1].nbytes // 2)
    whole = (folder / "index.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "index.jsonl").write_bytes(b"".join(whole[:4]) + whole[4][:20])
    half = (folder / lines[2].file).with_name(".x.1.tmp")
    half.write_bytes(b"half")
    with local_pool() as pool:
        writer = DatasetWriter(folder, run_record(kind), pool)
        found = writer.recover()
        assert found.redo == (0, 1)
        assert set(found.removed) == {lines[4].file, half.relative_to(folder).as_posix()}
        assert [index in writer.index for index in range(5)] == [False, False, True, True, False]
        for index in (0, 1, 4):
            writer.write(sample(index), write_both(tmp_path / "dumps", sample(index)))
        writer.finalise()
        writer.close()
    assert (folder / "index.jsonl").read_bytes().endswith(b"\n")
    assert not [line for line in read_lines(folder) if isinstance(line, Torn)]
    undisturbed = build(tmp_path / "other", kind)
    for line in lines.values():
        assert (folder / line.file).read_bytes() == (undisturbed / line.file).read_bytes()
    assert {p for p in tree(folder) if "arrow" not in p} == {p for p in tree(undisturbed) if "arrow" not in p}


def test_another_run_is_refused_with_what_differs(tmp_path: Path) -> None:
    folder = build(tmp_path / "out", "speculators", rows=2)
    record = run_record("speculators", rows=2)
    with local_pool() as pool:
        blocks = msgspec.structs.replace(record, states=msgspec.structs.replace(STATES, after_block=(0, 1, 3)))
        with pytest.raises(UsageError, match=r"blocks: \[0, 1, 2\], now \[0, 1, 3\]"):
            DatasetWriter(folder, blocks, pool)
        source = msgspec.structs.replace(record.source, fingerprint="f1")
        with pytest.raises(UsageError, match="data set or tokenizer: other contents"):
            DatasetWriter(folder, msgspec.structs.replace(record, source=source), pool)
        again = DatasetWriter(folder, msgspec.structs.replace(record, created=2e9, command="again"), pool)
        assert again.record.created == 1e9
        again.close()


def test_side_files_come_back_from_the_index(tmp_path: Path) -> None:
    folder = build(tmp_path / "out", "speculators")
    before = {name: (folder / name).read_bytes() for name in ("data_config.json",)}
    for name in ("data_config.json", "state.json", "dataset_info.json"):
        (folder / name).unlink()
    with local_pool() as pool:
        writer = DatasetWriter(folder, run_record("speculators"), pool)
        writer.finalise()
        writer.close()
    assert len(load_from_disk(str(folder))) == 5
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert len(list(folder.glob("*.arrow"))) == 1


def test_refused_rows_are_empty_rows_of_the_arrow_data_set(tmp_path: Path) -> None:
    with local_pool() as pool:
        writer = DatasetWriter(tmp_path / "out", run_record("speculators", 3), pool)
        writer.write(sample(0), write_both(tmp_path / "dumps", sample(0)))
        writer.refuse(Refused(1, "no_mask", "nothing to train on"))
        writer.write(sample(2), write_both(tmp_path / "dumps", sample(2)))
        writer.finalise()
        writer.close()
    data: Any = load_from_disk(str(tmp_path / "out"))
    assert list(data.with_format(None)["seq_len"]) == [10, 0, 12]
    assert data[2]["input_ids"].tolist() == list(sample(2).input_ids)


@pytest.mark.parametrize("kind", FORMATS)
def test_the_bytes_of_a_sample_depend_on_its_contents_alone(tmp_path: Path, kind: Kind) -> None:
    one = sample(0)
    ids, mask, states = torch.tensor(one.input_ids), torch.tensor(one.loss_mask), states_of(one, 4)
    first, second = tmp_path / ".data_0.pt.17.tmp", tmp_path / ".data_0.pt.91823.tmp"
    samplefile.save(first, kind, ids, mask, states)
    samplefile.save(second, kind, ids.clone(), mask.clone(), [state.clone() for state in states])
    assert first.read_bytes() == second.read_bytes()
    found = samplefile.load(second, kind)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found.states, states, strict=True))


FULL = """
import resource, signal, sys, torch
from pathlib import Path
from probes import samplefile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
states = [torch.ones(64, 1024) for _ in range(4)]
try:
    samplefile.save(Path(sys.argv[1]), "speculators-v1", torch.arange(64), torch.ones(64).long(), states)
except OSError as error:
    print(error.errno)
"""


def test_the_error_of_a_file_that_cannot_grow_is_the_systems_own(tmp_path: Path) -> None:
    out = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "one.pt")], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert out == f"{errno.EFBIG}\n"
    assert (tmp_path / "one.pt").stat().st_size == 100_000


def test_a_disk_that_does_not_take_the_file_is_no_bad_sample(tmp_path: Path) -> None:
    dump = write_both(tmp_path / "dumps", sample(0))
    with local_pool() as pool:
        writer = DatasetWriter(tmp_path / "out", run_record("speculators-v1"), pool)
        blocked = tmp_path / "out/rows_0-2000"
        blocked.mkdir()
        (blocked / f".data_0.pt.{os.getpid()}.tmp").mkdir()
        with pytest.raises(Missing, match="cannot be written"):
            writer.write(sample(0), dump)
        assert dump.exists()
        assert 0 not in writer.index
        shutil.rmtree(blocked)
        assert writer.write(sample(0), dump).status == "written"
        writer.close()
