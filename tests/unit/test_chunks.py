"""Prompts that prefill cuts into several passes: numbered by the recorder, put together by the reader."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from patches import recorder
from patches.recorder.passes import Chunks
from probes.chunks import join
from probes.dumps import list_dumps, load, read_meta
from probes.errors import DumpError
from tests.unit.probes_support import IDS, made_up, write_dump
from tests.unit.test_recorder import batch, dumps, forward
from workbench.probe.capture import _whole, is_chain
from workbench.probe.session import Target


def test_the_recorder_numbers_chunks_and_knows_a_prefix_hit(dump_dir: Path) -> None:
    for length, prefix in ((4, 0), (4, 4), (2, 8)):
        forward(batch(("hs-a", length), prefix=prefix))
    forward(batch(("hs-b", 3), prefix=5))
    found = {}
    for path in dumps(dump_dir, 4):
        meta = json.loads((path / "meta.json").read_text())
        found[meta["request_id"], meta["prefix_len"]] = meta["chunk"]
    assert found == {("hs-a", 0): 0, ("hs-a", 4): 1, ("hs-a", 8): 2, ("hs-b", 5): None}
    index = [json.loads(line) for line in (dump_dir / "index.jsonl").read_text().splitlines()]
    passes = {line["pass"]: (line["prefix_len"], line["num_tokens"], line["chunk"]) for line in index}
    assert passes == {0: (0, 4, 0), 1: (4, 4, 1), 2: (8, 2, 2), 3: (5, 3, None)}
    assert recorder._recorder is not None


def test_a_request_that_begins_again_is_numbered_again() -> None:
    chunks = Chunks()
    assert [chunks.number("a", 4, 0), chunks.number("a", 4, 4), chunks.number("a", 9, 0)] == [0, 1, 0]
    assert chunks.number("a", 1, 8) is None, "nine tokens are recorded, not eight"
    assert chunks.number("b", 4, 4) is None


def test_only_the_latest_requests_are_remembered() -> None:
    chunks = Chunks(remembered=2)
    for name in "abc":
        chunks.number(name, 4, 0)
    assert chunks.number("a", 4, 4) is None
    assert chunks.number("c", 4, 4) == 1


WHOLE = made_up()
CUTS = ((0, 4), (4, 9), (9, 10))


def parts(folder: Path, cuts: tuple[tuple[int, int], ...] = CUTS, **more: Any) -> list[Path]:
    return [
        write_dump(folder, "hs-a", [t[a:b] for t in WHOLE], token_ids=IDS[a:b], prefix_len=a, pass_index=5 + n, **more)
        for n, (a, b) in enumerate(cuts)
    ]


def test_joined_chunks_are_the_whole_dump(tmp_path: Path) -> None:
    folder = join(parts(tmp_path))
    assert folder.name == "req_0.whole"
    for tensor, expected in zip(load(folder).values(), WHOLE, strict=True):
        assert torch.equal(tensor, expected)
    meta = read_meta(folder)
    assert (meta.token_ids, meta.num_tokens, meta.prefix_len) == (tuple(IDS), len(IDS), 0)
    assert [chunk["num_tokens"] for chunk in meta.raw["chunks"]] == [4, 5, 1]
    assert [(entry.name, entry.kind) for entry in list_dumps(tmp_path)][:2] == [
        ("req_0", "ours"),
        ("req_0.whole", "ours"),
    ]
    assert join(parts(tmp_path / "other")).is_dir()
    assert join([tmp_path / f"req_{n}" for n in range(3)]) == folder, "again, over the first one"


@pytest.mark.parametrize(
    ("cuts", "says"),
    [
        (((0, 4), (5, 10)), "begins at token 5, 4 tokens are recorded"),
        (((4, 9), (9, 10)), "begins at token 4, 0 tokens"),
    ],
)
def test_a_gap_is_an_error(tmp_path: Path, cuts: tuple[tuple[int, int], ...], says: str) -> None:
    with pytest.raises(DumpError, match=says):
        join(parts(tmp_path, cuts))
    assert not list(tmp_path.glob("*.whole*"))


def test_chunks_of_different_requests_or_tensors_are_an_error(tmp_path: Path) -> None:
    first, second = parts(tmp_path, ((0, 4), (4, 10)))
    other = write_dump(tmp_path, "hs-b", [t[4:] for t in WHOLE], token_ids=IDS[4:], prefix_len=4)
    with pytest.raises(DumpError, match="is of request hs-b"):
        join([first, other])
    (moved,) = parts(tmp_path, ((4, 10),), blocks=(1, 2, 3))
    with pytest.raises(DumpError, match="holds other tensors"):
        join([first, moved])
    (second / "aux_0.pt").write_bytes(b"damaged")
    with pytest.raises(DumpError, match=r"aux_0\.pt"):
        join([first, second])


class Joiner:
    """The worker's end of one call, without its process."""

    def call(self, name: str, folders: list[str]) -> str:
        assert name == "join"
        return str(join(folders))


def captured(folder: Path, found: list[Path], allow: bool) -> Any:
    target = Target(url="http://x", dump_dir=str(folder), python="/p", allow_chunked=allow)
    return _whole(target, "hs-a", IDS, found, worker=Joiner(), answer={}, seconds=1.0)  # type: ignore[arg-type]


def test_the_probe_joins_only_where_chunks_are_allowed(tmp_path: Path) -> None:
    found = parts(tmp_path)
    assert is_chain(found, len(IDS))
    assert not is_chain(found[1:], len(IDS))
    got = captured(tmp_path, found, allow=True)
    assert (got.shortfall, len(got.parts), got.meta["num_tokens"]) == (None, 3, len(IDS))
    short = captured(tmp_path, found, allow=False)
    assert short.shortfall.cause == "chunked"
    assert "--allow-chunked" in short.shortfall.next_step
    assert short.parts == ()


def test_a_prefix_hit_is_red_where_chunks_are_allowed(tmp_path: Path) -> None:
    (hit,) = parts(tmp_path, ((4, 10),))
    meta = json.loads((hit / "meta.json").read_text())
    (hit / "meta.json").write_text(json.dumps({**meta, "chunk": None}))
    got = captured(tmp_path, [hit], allow=True)
    assert got.shortfall.cause == "radix_hit"
