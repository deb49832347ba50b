"""Reading and listing dumps: those of the real recorder, those of other patches, and damaged ones."""

import json
import os
import pickle
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from patches.recorder import settings
from probes import listing
from probes.dumps import find_by_request_id, list_dumps, load, read_meta
from probes.errors import DumpError
from probes.listing import peek_shape
from tests.unit.probes_support import HIDDEN, IDS, made_up, write_dump


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return write_dump(tmp_path, "hs-one", made_up())


def refused(folder: Path) -> str:
    with pytest.raises(DumpError) as caught:
        load(folder)
    assert "\n" not in caught.value.message
    return caught.value.message


def edit_meta(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    change(meta)
    (folder / "meta.json").write_text(json.dumps(meta))


def test_a_recorders_dump_comes_back_bit_for_bit(dump: Path) -> None:
    written = dict(zip(("aux_0", "aux_1", "aux_2", "final"), made_up(), strict=True))
    tensors = load(dump)
    assert tensors.keys() == written.keys()
    assert all(torch.equal(tensors[name], written[name]) for name in written)
    meta = read_meta(dump)
    assert (meta.request_id, meta.token_ids, meta.prefix_len, meta.num_blocks) == ("hs-one", tuple(IDS), 0, 4)
    assert [claim.after_block for claim in meta.tensors.values()] == [0, 1, 2, 3]
    assert [claim.norm for claim in meta.tensors.values()] == [None, None, None, "pre"]


def test_a_flipped_byte_is_found_wherever_it_is(dump: Path) -> None:
    path = dump / "aux_1.pt"
    clean = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/data/0"))
        start = clean.index(archive.read(name))
    for offset in (0, 1, 700, len(IDS) * HIDDEN * 2 - 1):
        damaged = bytearray(clean)
        damaged[start + offset] ^= 0x10
        path.write_bytes(damaged)
        assert "aux_1.pt is damaged: crc32" in refused(dump)
        assert load(dump, checksum=False).keys() == {"aux_0", "aux_1", "aux_2", "final"}
    path.write_bytes(clean)
    load(dump)


def test_a_file_truncated_anywhere_is_refused(dump: Path) -> None:
    path = dump / "aux_0.pt"
    clean = path.read_bytes()
    for length in (0, 1, 100, len(clean) // 2, len(clean) - 1):
        path.write_bytes(clean[:length])
        assert "aux_0.pt cannot be read" in refused(dump)


def test_a_missing_tensor_or_done_or_folder_is_named(dump: Path) -> None:
    (dump / "final.pt").unlink()
    assert "final.pt does not exist" in refused(dump)
    (dump / "done").unlink()
    assert "not finished" in refused(dump)
    assert "not a folder" in refused(dump / "nowhere")


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (made_up()[0].float(), "float32, meta.json says"),
        (made_up()[0][:, :32].clone(), "holds [10, 32] bfloat16"),
        (made_up(rows=9)[0], "holds [9, 64] bfloat16"),
        (made_up(seed=9)[0], "is damaged: crc32"),
        ({"a": made_up()[0]}, "holds a dict, not a tensor"),
    ],
)
def test_another_tensor_in_the_place_of_the_claimed_one(dump: Path, tensor: Any, message: str) -> None:
    torch.save(tensor, dump / "aux_0.pt")
    assert message in refused(dump)


def test_rows_must_be_as_many_as_tokens(tmp_path: Path) -> None:
    folder = write_dump(tmp_path, "hs-short", made_up(rows=9))
    assert "holds [9, 64] for 10 tokens" in refused(folder)


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("foreign", [False, True])
def test_a_pickle_with_code_is_refused_and_never_runs(dump: Path, tmp_path: Path, foreign: bool) -> None:
    sprung = tmp_path / "sprung"
    torch.save({"tensor": torch.zeros(2), "trap": Trap(sprung)}, dump / "aux_0.pt")
    if foreign:
        (dump / "meta.json").unlink()
    assert "aux_0.pt cannot be read: UnpicklingError" in refused(dump)
    (dump / "aux_0.pt").write_bytes(pickle.dumps(Trap(sprung)))
    assert "aux_0.pt cannot be read" in refused(dump)
    list_dumps(tmp_path)
    assert not sprung.exists()
    with zipfile.ZipFile(dump / "aux_0.pt", "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps(Trap(sprung), protocol=2))
    assert peek_shape(dump / "aux_0.pt") is None
    assert not sprung.exists()
    pickle.loads(pickle.dumps(Trap(sprung)))
    assert sprung.exists()  # the trap works


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda meta: meta.update(schema=2), "schema 2, this release reads 1"),
        (lambda meta: meta.pop("token_ids"), "KeyError: 'token_ids'"),
        (lambda meta: meta["token_ids"].pop(), "9 token ids for 10 tokens"),
        (lambda meta: meta["tensors"]["final"].update(file="../../final.pt"), "names the file"),
        (lambda meta: meta["tensors"]["final"].update(norm="both"), "side 'both'"),
        (lambda meta: meta.update(tensors=[1]), "AttributeError"),
    ],
)
def test_a_wrong_meta_is_refused(dump: Path, change: Callable[[dict[str, Any]], None], message: str) -> None:
    edit_meta(dump, change)
    assert message in refused(dump)
    assert [entry.kind for entry in list_dumps(dump.parent)] == ["incomplete"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00\xff", "[" * 100_000])
def test_garbage_in_the_place_of_meta(dump: Path, text: str) -> None:
    (dump / "meta.json").write_text(text)
    refused(dump)
    assert [entry.kind for entry in list_dumps(dump.parent)] == ["incomplete"]


def test_dumps_of_another_patch_are_loaded_by_name(tmp_path: Path) -> None:
    one, two = made_up(count=2)
    torch.save(one, tmp_path / "aux_0.pt")
    torch.save({"hidden_states": [two], "states": two, "ids": [1, 2]}, tmp_path / "x.pt")
    torch.save([one, two], tmp_path / "y.pt")
    tensors = load(tmp_path)
    assert tensors.keys() == {"aux_0", "x.states", "y.0", "y.1"}
    assert torch.equal(tensors["y.1"], two)


def test_every_kind_of_dump_is_named(tmp_path: Path) -> None:
    (tmp_path / "req_0").mkdir()
    torch.save(made_up(rows=6)[0], tmp_path / "req_0" / "aux_0.pt")  # SGLang's warm-up through another patch
    write_dump(tmp_path, "abc", made_up(), pass_index=0)
    write_dump(tmp_path, "hs-1", made_up())
    write_dump(tmp_path, "HEALTH_CHECK_17", made_up(rows=1), token_ids=[1])
    write_dump(tmp_path, "xyz", made_up(rows=1), token_ids=[1], forward_mode="DECODE")
    write_dump(tmp_path, "xyz", made_up())
    for number, rows in ((6, 1), (7, 30)):
        (tmp_path / f"req_{number}").mkdir()
        torch.save(made_up(rows=rows)[0], tmp_path / f"req_{number}" / "layer.pt")
    shutil.copytree(tmp_path / "req_2", tmp_path / "req_8")
    (tmp_path / "req_8" / "done").unlink()
    (tmp_path / "req_9.tmp").mkdir()
    (tmp_path / "req_10").mkdir()
    found = list_dumps(tmp_path)
    assert [(entry.name, entry.kind, entry.tokens) for entry in found] == [
        ("req_0", "warm-up", 6),
        ("req_1", "warm-up", 10),
        ("req_2", "ours", 10),
        ("req_3", "health", 1),
        ("req_4", "decode", 1),
        ("req_5", "foreign", 10),
        ("req_6", "decode", 1),
        ("req_7", "foreign", 30),
        ("req_8", "incomplete", 10),
        ("req_9.tmp", "incomplete", None),
        ("req_10", "incomplete", None),
    ]
    assert "probably" in found[0].note
    assert [entry.name for entry in list_dumps(tmp_path, newest=2)] == ["req_9.tmp", "req_10"]
    assert list_dumps(tmp_path, newest=0) == []


def test_the_prefixes_are_the_recorders() -> None:
    assert (listing.OUR_PREFIX, listing.HEALTH_PREFIX) == (settings.OUR_PREFIX, settings.HEALTH_PREFIX)


def test_listing_survives_anything_and_loads_no_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a tensor was loaded"))
    chance = random.Random(3)
    torch.save(made_up()[0], tmp_path / "good.pt")
    good = (tmp_path / "good.pt").read_bytes()
    for number in range(200):
        folder = tmp_path / f"req_{number}"
        folder.mkdir()
        damaged = bytearray(good[: chance.randrange(len(good))] if number % 2 else good)
        for _ in range(20):
            if damaged:
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        (folder / "aux_0.pt").write_bytes(damaged)
    (tmp_path / "req_x").mkdir()
    (tmp_path / "req_500").write_text("a file")
    (tmp_path / "req_501").symlink_to(tmp_path / "nowhere")
    assert len(list_dumps(tmp_path)) == 200
    assert list_dumps(tmp_path / "nowhere") == []
    assert list_dumps(tmp_path / "good.pt") == []


@pytest.mark.parametrize("shape", [(6, 64), (1, 7168), (300, 70000), (5,), (2, 3, 4), (2, 3, 4, 5), (), (0, 8)])
def test_the_shape_is_read_without_loading(tmp_path: Path, shape: tuple[int, ...]) -> None:
    torch.save(torch.zeros(shape, dtype=torch.bool), tmp_path / "one.pt")
    assert peek_shape(tmp_path / "one.pt") == shape


def test_a_dump_is_found_by_its_request_id(tmp_path: Path) -> None:
    assert find_by_request_id(tmp_path, "hs-1") is None
    for number in range(3):
        write_dump(tmp_path, f"hs-{number}", made_up())
    again = write_dump(tmp_path, "hs-1", made_up())
    assert find_by_request_id(tmp_path, "hs-0") == tmp_path / "req_0"
    assert find_by_request_id(tmp_path, "hs-1") == again == tmp_path / "req_3"
    assert find_by_request_id(tmp_path, "hs-") is None
    shutil.rmtree(again)
    assert find_by_request_id(tmp_path, "hs-1") == tmp_path / "req_1"


def test_the_index_is_read_across_blocks_and_past_garbage(tmp_path: Path) -> None:
    write_dump(tmp_path, "hs-first", made_up())
    with open(tmp_path / "index.jsonl", "a", encoding="utf-8") as index:
        for number in range(5000):
            index.write(json.dumps({"n": number + 1, "request_id": f"hs-{number:08}", "num_tokens": 1}) + "\n")
        index.write('garbage hs-first\n{"n": "x", "request_id": "hs-first"}\n[]\n{"n": 4, "request_id": "hs-fi')
    assert (tmp_path / "index.jsonl").stat().st_size > 2 * listing.TAIL_BYTES
    assert find_by_request_id(tmp_path, "hs-first") == tmp_path / "req_0"
    for number in (0, 1234, 4999):
        folder = tmp_path / f"req_{number + 1}"
        folder.mkdir()
        (folder / "done").touch()
        assert find_by_request_id(tmp_path, f"hs-{number:08}") == folder


@pytest.mark.parametrize("block", [1, 7, 64, 100])
def test_no_line_of_the_index_is_lost_at_a_blocks_edge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(listing, "TAIL_BYTES", block)
    folders = {f"hs-{number}": write_dump(tmp_path, f"hs-{number}", made_up(rows=10)) for number in range(12)}
    assert {request_id: find_by_request_id(tmp_path, request_id) for request_id in folders} == folders
