"""The three routes on a real SGLang: the same tensors, no file edited, and a route that does not record is told."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.conftest import LAYERS, SLOW_START, Command
from tests.trees import installed_root
from workbench.server.client import SglangClient

pytestmark = pytest.mark.engine

PROMPTS = ("Hello world", "The lighthouse keeper counted eleven ships before dawn and wrote their names in a book.")
TOKENS = [[19556, 905], list(range(500, 530)), [11, 12, 13]]


def hashes() -> dict[str, str]:
    """Every model file of the installed SGLang."""
    models = installed_root() / "srt" / "models"
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(models.glob("*.py"))}


class Seen:
    """What one route gave: dumps by prompt, and the server's own log-probabilities."""

    def __init__(self, hsbench: Command, name: str, url: str) -> None:
        self.reports = [hsbench.json("probe", text, "--name", name) for text in PROMPTS]
        with SglangClient(url) as client:
            ids = [f"{name}-{number}" for number in range(len(TOKENS))]
            answers = client.generate(TOKENS, ids, max_new_tokens=3, logprobs=True, logprob_start=0)
        self.logprobs = [
            [pair[:2] for pair in answer["meta_info"][f"{side}_token_logprobs"]]
            for answer in answers
            for side in ("input", "output")
        ]

    def tensors(self, prompt: int) -> dict[str, torch.Tensor]:
        folder = Path(self.reports[prompt]["dump"])
        return {path.stem: torch.load(path, weights_only=True) for path in sorted(folder.glob("*.pt"))}

    def meta(self, prompt: int) -> dict[str, Any]:
        meta = json.loads((Path(self.reports[prompt]["dump"]) / "meta.json").read_text())
        assert isinstance(meta, dict)
        return meta


def served(hsbench: Command, model: Path, route: str) -> Seen:
    """One server by this route, asked and stopped."""
    layers = ",".join(map(str, LAYERS))
    dumps = ["--dump-dir", str(hsbench.home / route), "--layers", layers, "--capture", route]
    done = hsbench(
        "serve", "--model", str(model), "--name", route, "--device", "cpu", "--port", "0", *dumps, env=SLOW_START
    )
    assert done.returncode == 0, done.stderr
    assert f"the recorder runs, by the route {route}" in done.stderr
    try:
        return Seen(hsbench, route, done.stdout.strip())
    finally:
        hsbench.ok("stop", route)


@pytest.fixture(scope="module")
def by_route(hsbench: Command, server: str, demo_model: Path) -> dict[str, Seen]:
    """Route → what it gave. The engine is patched already, for the shared server."""
    before = hashes()
    found = {"patch": Seen(hsbench, "default", server)}
    for route in ("plugin", "builtin"):
        found[route] = served(hsbench, demo_model, route)
    assert hashes() == before
    return found


def test_the_same_prompt_gives_equal_tensors_by_all_routes(by_route: dict[str, Seen]) -> None:
    for prompt in range(len(PROMPTS)):
        patched = by_route["patch"].tensors(prompt)
        assert list(patched) == ["aux_0", "aux_1", "aux_2", "final"]
        for route in ("plugin", "builtin"):
            others = by_route[route].tensors(prompt)
            assert list(others) == list(patched)
            for name, tensor in patched.items():
                assert torch.equal(others[name], tensor), (route, name)


def test_dumps_differ_by_route_in_nothing_but_what_names_it(by_route: dict[str, Seen]) -> None:
    own = ("request_id", "time", "pass", "route", "patch_hash")
    for prompt in range(len(PROMPTS)):
        metas = {route: seen.meta(prompt) for route, seen in by_route.items()}
        assert {route: meta["route"] for route, meta in metas.items()} == {route: route for route in by_route}
        assert metas["plugin"]["patch_hash"] == metas["builtin"]["patch_hash"] != metas["patch"]["patch_hash"]
        assert all(len(meta["patch_hash"]) == 64 for meta in metas.values())
        plain = [{key: value for key, value in meta.items() if key not in own} for meta in metas.values()]
        assert plain[0] == plain[1] == plain[2]


def test_no_route_changes_what_the_server_answers(by_route: dict[str, Seen]) -> None:
    """Log-probabilities of prompts and of generated tokens, to the last bit."""
    assert by_route["plugin"].logprobs == by_route["patch"].logprobs
    assert by_route["builtin"].logprobs == by_route["patch"].logprobs


def test_each_prompt_is_recorded_once_though_the_engine_is_patched(hsbench: Command, by_route: dict[str, Seen]) -> None:
    for route in ("plugin", "builtin"):
        lines = (hsbench.home / route / "index.jsonl").read_text().splitlines()
        assert [json.loads(line)["request_id"] for line in lines] == [r["request_id"] for r in by_route[route].reports]
        assert not (hsbench.home / route / "errors.jsonl").exists()


def test_a_dry_run_says_which_route_and_why(hsbench: Command, demo_model: Path) -> None:
    start = [
        "serve",
        "--model",
        str(demo_model),
        "--device",
        "cpu",
        "--dump-dir",
        str(hsbench.home / "dry"),
        "--dry-run",
    ]
    done = hsbench(*start)
    assert "captured by the route plugin: it edits no file" in done.stderr
    assert "SGLANG_HS_ROUTE=plugin" in done.stdout
    assert "SGLANG_HS_FILES=srt/models/llama.py" in done.stdout
    done = hsbench(*start, "--capture", "builtin")
    assert "--return-aux-hidden-state-layer-ids 2 15 27" in done.stdout
    assert not (hsbench.home / "dry").exists()


def test_a_plug_in_that_sglang_leaves_out_ends_the_server(hsbench: Command, demo_model: Path) -> None:
    dumps = ["--dump-dir", str(hsbench.home / "left-out"), "--capture", "plugin"]
    options = ["--model", str(demo_model), "--name", "left-out", "--device", "cpu", "--port", "0", *dumps]
    done = hsbench("serve", *options, "--", "--skip-server-warmup", env={"SGLANG_PLUGINS": "another"})
    assert done.returncode == 3
    assert "the plug-in was not applied in left-out" in done.stderr
    assert "next:" in done.stderr
    assert [s["server"]["name"] for s in hsbench.json("status")["servers"]].count("left-out") == 0
