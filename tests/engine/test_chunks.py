"""Prompts cut into passes of 16 tokens, and prompts of which the radix cache holds the beginning, on a real SGLang."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from tests.engine.conftest import LAYERS, Command
from workbench.server import state
from workbench.server.engine import find_engine
from workbench.server.launch import plan, start, wait_ready
from workbench.server.specs import DumpSpec, LaunchSpec
from workbench.server.stop import stop

pytestmark = pytest.mark.engine

LONG = (
    "The lighthouse keeper counted eleven ships before dawn, wrote their names in a blue book, and wondered which of "
    "them would return before the storm that the old sailors had been promising for a week."
)
OTHER = (
    "Rivers that run north are rarer than those that run south, said the teacher, and nobody in the class could say "
    "whether that was true, or a joke, or something that she had read in the newspaper that morning."
)


@pytest.fixture(scope="module")
def cutting(hsbench: Command, demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that cuts prompts and keeps prefixes, which hsbench itself never starts for a dump."""
    folder = tmp_path_factory.mktemp("cutting")
    dump = DumpSpec(str(folder / "dumps"), LAYERS, route="plugin", allow_chunked=True)
    flags = ("--chunked-prefill-size", "16", "--skip-server-warmup")
    spec = LaunchSpec(model=str(demo_model), name="cutting", device="cpu", port=0, dump=dump, flags=flags)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        for name in ("XDG_CACHE_HOME", "SGLANG_DISABLED_MODEL_ARCHS", "PYTHONPATH", "HS_TEST_QUICK"):
            patch.setenv(name, hsbench.env[name])
        made = plan(spec, find_engine())
        argv = tuple(word for word in made.argv if word != "--disable-radix-cache")
        record = start(msgspec.structs.replace(made, argv=argv))
        try:
            list(wait_ready(record, 900))
            yield record.url
        finally:
            list(stop(state.load("cutting") or record, grace_s=0))


def probe(hsbench: Command, url: str, *more: str) -> dict[str, Any]:
    done = hsbench("probe", *more, "--url", url, "--json")
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    assert (report["verdict"] == "ok") == (done.returncode == 0)
    assert isinstance(report, dict)
    return report


@pytest.fixture(scope="module")
def joined(hsbench: Command, cutting: str) -> dict[str, Any]:
    return probe(hsbench, cutting, LONG, "--allow-chunked", "--reference")


def load(report: dict[str, Any], name: str) -> torch.Tensor:
    tensor = torch.load(Path(report["dump"]) / f"{name}.pt", weights_only=True)
    assert isinstance(tensor, torch.Tensor)
    return tensor.float()


def test_chunks_are_put_together_and_fit_the_reference(joined: dict[str, Any]) -> None:
    """`--reference` compares every block with transformers in float32, and the log-probabilities with the server's."""
    assert joined["verdict"] == "ok", joined["summary"]
    count = len(joined["tokens"])
    assert joined["chunks"] == -(-count // 16) >= 3
    assert all(tensor["shape"] == [count, 576] for tensor in joined["tensors"])
    meta = json.loads((Path(joined["dump"]) / "meta.json").read_text())
    assert [chunk["num_tokens"] for chunk in meta["chunks"]] == [16] * (count // 16) + [count % 16] * (count % 16 > 0)
    assert meta["token_ids"] == [token["id"] for token in joined["tokens"]]


def test_they_are_the_states_of_one_pass(hsbench: Command, server: str, joined: dict[str, Any]) -> None:
    """The shared server computes the same prompt at once; bfloat16 rounds the two ways apart a little."""
    whole = hsbench.json("probe", LONG)
    assert whole["chunks"] == 1
    for name in ("aux_0", "aux_1", "aux_2", "final"):
        one, other = load(joined, name), load(whole, name)
        apart = ((one - other).norm(dim=1) / other.norm(dim=1)).mean()
        shifted = ((one[1:] - other[:-1]).norm(dim=1) / other[:-1].norm(dim=1)).mean()
        assert apart < 0.02
        assert shifted > 10 * apart


def test_without_leave_a_cut_prompt_is_red(hsbench: Command, cutting: str) -> None:
    report = probe(hsbench, cutting, OTHER)
    assert report["verdict"] == "chunked"
    assert "--allow-chunked" in report["next_step"]


def test_a_prefix_from_the_cache_is_red_chunks_or_not(hsbench: Command, cutting: str, joined: dict[str, Any]) -> None:
    for allowed in (["--allow-chunked"], []):
        report = probe(hsbench, cutting, LONG, *allowed)
        assert report["verdict"] == "radix_hit"
        assert f"of {len(joined['tokens'])} tokens came from the prefix cache" in report["summary"]
        assert "--disable-radix-cache" in report["next_step"]
        meta = json.loads((Path(report["dump"]) / "meta.json").read_text())
        assert meta["chunk"] is None
        assert meta["prefix_len"] > 0
