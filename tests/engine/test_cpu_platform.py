"""The CPU platform on stock SGLang: MLA, MoE, attention sinks and two ranks, against transformers in float32.

The engine computes in float32 here. A random model's router has near ties, which bfloat16 decides one way and
float32 another; the comparison would then say nothing of the attention.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.engine import tiny_models
from tests.engine.conftest import FAULTS, Command, few_models
from workbench.models.folder import check_model
from workbench.server import routes
from workbench.server.client import SglangClient
from workbench.server.engine import find_engine
from workbench.server.specs import DumpSpec

pytestmark = pytest.mark.engine

WORKER = Path(__file__).with_name("platform_worker.py")
FAMILIES = ("deepseek_v2", "gpt_oss", "qwen2", "qwen3_moe", "glm4_moe")
PROMPTS = {"hs-long": list(range(300, 340)), "hs-short": [5, 900, 77], "hs-middle": list(range(2000, 2017))}
STEPS = 5
BLOCKS = (0, 2, 4)
NOISE = 5e-4
"""Between two right float32 passes a log-probability differs by about 1e-5; between two positions by 1 or so."""


@pytest.fixture(scope="module")
def models(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("platform")
    return {family: tiny_models.make(family, folder / family, demo_model) for family in FAMILIES}


@pytest.fixture(scope="module")
def runs(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Family, or family-builtin → folder with `result` and, in `dumps`, what one rank records by that route."""
    folder = tmp_path_factory.mktemp("runs")
    jobs = [job(folder / name, family, models[family], route) for name, family, route in cases()]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_")}
    told = {"SGLANG_PLATFORM": "hsbench_cpu", "XDG_CACHE_HOME": str(folder / "cache")}
    told["SGLANG_HS_DUMP_BLOCKS"] = ",".join(map(str, BLOCKS))
    told |= few_models()
    done = subprocess.run(
        [sys.executable, str(WORKER), str(folder / "jobs.json")],
        env={**kept, **told},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    errors = "\n".join(path.read_text() for path in folder.glob("*/*.error"))
    assert done.returncode == 0, errors or done.stderr[-4000:]
    return {name: folder / name for name, _, _ in cases()}


def cases() -> list[tuple[str, str, str]]:
    """Name of the run, family, route."""
    return [
        (f"{family}{'' if route == 'plugin' else '-' + route}", family, route)
        for family in FAMILIES
        for route in ("plugin", "builtin")
    ]


def job(folder: Path, family: str, model: Path, route: str) -> dict[str, Any]:
    folder.mkdir()
    facts = check_model(str(model))
    dump = DumpSpec(str(folder / "dumps"), BLOCKS, route=route)  # type: ignore[arg-type]
    return {
        "model": str(model),
        "prompts": PROMPTS,
        "steps": STEPS,
        "flags": list(routes.choose(dump, (), find_engine(), facts).flags),
        "env": {"SGLANG_HS_DUMP_DIR": dump.folder, "SGLANG_HS_ROUTE": route},
        "result": str(folder / "result"),
    }


def continued(model: Path, token_ids: list[int]) -> torch.Tensor:
    """Log-probabilities of the token after each of `token_ids`, by transformers: [tokens, vocabulary]."""
    from transformers import AutoModelForCausalLM

    made = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = made(torch.tensor([token_ids]), use_cache=False).logits[0]
    assert isinstance(logits, torch.Tensor)
    return logits.log_softmax(dim=-1)


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_and_decode_agree_with_transformers(
    family: str, models: dict[str, Path], runs: dict[str, Path]
) -> None:
    """Three prompts of 40, 3 and 17 tokens in one batch, then five decode passes of all three."""
    result = torch.load(runs[family] / "result")
    for number, prompt in enumerate(PROMPTS.values()):
        chosen = result["tokens"][:, number].tolist()
        expected = continued(models[family], [*prompt, *chosen])
        for step in range(1 + STEPS):
            at = len(prompt) - 1 + step
            found = result["logprobs"][step, number]
            assert (found - expected[at]).abs().max() < NOISE, (number, step)
            assert (found - expected[at - 1]).abs().max() > 100 * NOISE, "the neighbour must not fit as well"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_built_in_route_records_what_the_plug_in_records(family: str, runs: dict[str, Path]) -> None:
    """To the last bit, in every family: SGLang's own ids, its packed and listed captures, and the hook on the norm."""
    edited, builtin = of_one_rank(runs[family]), of_one_rank(runs[f"{family}-builtin"])
    assert sorted(edited) == sorted(builtin) == sorted(PROMPTS)
    for dumps, route in ((edited, "plugin"), (builtin, "builtin")):
        assert {json.loads((one / "meta.json").read_text())["route"] for one in dumps.values()} == {route}
    for rid, folder in edited.items():
        for name in ("aux_0", "aux_1", "aux_2", "final"):
            assert torch.equal(load(folder, name), load(builtin[rid], name)), (rid, name)
    results = [torch.load(runs[name] / "result") for name in (family, f"{family}-builtin")]
    assert torch.equal(results[0]["logprobs"], results[1]["logprobs"])


# Two ranks.


@pytest.fixture(scope="module")
def ranks(hsbench: Command, models: dict[str, Path]) -> Iterator[str]:
    """A real server: DeepSeek-V3 shape, two tensor-parallel ranks over gloo, recording by the plug-in."""
    dumps = ["--dump-dir", str(hsbench.home / "two"), "--layers", ",".join(map(str, BLOCKS)), "--capture", "plugin"]
    options = ["--model", str(models["deepseek_v2"]), "--name", "ranks", "--device", "cpu", "--port", "0", *dumps]
    yield hsbench.ok("serve", *options, "--", "--tp", "2", "--dtype", "float32", "--skip-server-warmup").strip()
    hsbench.ok("stop", "ranks")


@pytest.fixture(scope="module")
def probed(hsbench: Command, ranks: str) -> dict[str, Any]:
    return {
        rid: hsbench.json("probe", "--name", "ranks", "--tokens", ",".join(map(str, ids)))
        for rid, ids in PROMPTS.items()
    }


def load(folder: Path, name: str) -> torch.Tensor:
    tensor = torch.load(folder / f"{name}.pt", weights_only=True)
    assert isinstance(tensor, torch.Tensor)
    return tensor


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).mean())


def of_one_rank(folder: Path) -> dict[str, Path]:
    """Request id → dump."""
    return {json.loads((one / "meta.json").read_text())["request_id"]: one for one in folder.glob("dumps/req_*")}


def test_two_ranks_record_what_one_records(
    probed: dict[str, Any], runs: dict[str, Path], models: dict[str, Path]
) -> None:
    alone = of_one_rank(runs["deepseek_v2"])
    states_of = tiny_models.states_of(models["deepseek_v2"])
    for rid, report in probed.items():
        assert report["verdict"] == "ok"
        assert report["route"] == "plugin"
        states = states_of(PROMPTS[rid])
        for tensor in report["tensors"]:
            found = load(Path(report["dump"]), tensor["name"])
            block = tensor["after_block"]
            assert error(found, load(alone[rid], tensor["name"])) < 1e-5
            assert error(found, states[str(block)]) < 1e-4
            assert error(found, states[str(block - 1 if block else 1)]) > 0.1


def test_only_one_rank_writes(hsbench: Command, ranks: str, probed: dict[str, Any]) -> None:
    folder = hsbench.home / "two"
    lines = [json.loads(line) for line in (folder / "index.jsonl").read_text().splitlines()]
    assert [line["request_id"] for line in lines] == [report["request_id"] for report in probed.values()]
    assert not (folder / "errors.jsonl").exists()
    for report in probed.values():
        meta = json.loads(Path(report["dump"], "meta.json").read_text())
        assert (meta["tp_rank"], meta["tp_size"]) == (0, 2)
    server = next(s for s in hsbench.json("status")["servers"] if s["server"]["name"] == "ranks")
    schedulers = [pid for pid in server["pids"] if "scheduler" in psutil.Process(pid).name()]
    assert len(schedulers) == 2
    assert json.loads((folder / "recorder.json").read_text())["pid"] in schedulers
    assert len(list(folder.glob("req_*"))) == len(PROMPTS)


def test_two_ranks_generate_as_transformers_does(ranks: str, models: dict[str, Path]) -> None:
    prompts = list(PROMPTS.values())
    with SglangClient(ranks) as client:
        names = [f"two-{n}" for n in range(len(prompts))]
        answers = client.generate(prompts, names, max_new_tokens=STEPS, logprobs=True)
    for prompt, answer in zip(prompts, answers, strict=True):
        pairs = answer["meta_info"]["output_token_logprobs"]
        chosen = [pair[1] for pair in pairs]
        expected = continued(models["deepseek_v2"], [*prompt, *chosen])
        for step, pair in enumerate(pairs):
            assert pair[0] == pytest.approx(float(expected[len(prompt) - 1 + step, pair[1]]), abs=NOISE)


def test_the_platform_is_off_unless_selected() -> None:
    code = (
        "import sys, logging; logging.disable(logging.CRITICAL)\n"
        "from sglang.srt.platforms import current_platform\nprint(type(current_platform).__module__)\n"
        "print(any(name.startswith('patches.cpu_attention') for name in sys.modules))"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_")}
    found = {}
    for name in ("", "hsbench_cpu"):
        env = {**kept, **({"SGLANG_PLATFORM": name} if name else {}), "PYTHONPATH": str(FAULTS)}
        command = [sys.executable, "-W", "ignore", "-c", code]
        found[name] = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split()[:1]
    assert found == {"": ["sglang.srt.platforms.interface"], "hsbench_cpu": ["patches.cpu_platform"]}
