"""Every family for real: its states against transformers, a shift by one block, and the patch that is not enabled.

The models are tiny and random (`tiny_models.py`). They run in SGLang's own model runner on the CPU, all from one
process (`family_worker.py`), since a server for each would take minutes more and show no more of the states.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import torch

from probes import dumps
from probes.measure import mean_error
from probes.meta import Meta, read_meta
from probes.model import ReferenceModel, load_model
from probes.reference import reference_with
from tests.engine import tiny_models
from tests.engine.conftest import FAULTS, Command
from tests.engine.tiny_models import BLOCKS, SHAPES

pytestmark = pytest.mark.engine

WORKER = Path(__file__).with_name("family_worker.py")
KIMI = "kimi_k25"
NAMES = (*SHAPES, KIMI)
MODEL_CLASS = {
    "llama": "LlamaModel",
    "qwen2": "Qwen2Model",
    "qwen3": "Qwen3Model",
    "qwen3_moe": "Qwen3MoeModel",
    "gpt_oss": "GptOssModel",
    "deepseek_v2": "DeepseekV2Model",
    "glm4_moe": "Glm4MoeModel",
    KIMI: "DeepseekV2Model",
}
TOLERANCE = 1e-4
"""In float32 a right state is off by 1e-7 to 1e-6, gpt-oss by 4e-5; a neighbouring block's by 0.3 at least."""
PROMPTS = {"hs-long": list(range(100, 140)), "hs-short": [7, 9, 11, 500, 3000], "hs-alone": list(range(1000, 1017))}
BATCHES = [{rid: PROMPTS[rid] for rid in ("hs-long", "hs-short")}, {"hs-alone": PROMPTS["hs-alone"]}]
WAYS = {"callback": "llama", "accumulator": "deepseek_v2", "callback at the norm": "gpt_oss"}
"""The ways in which a model of 0.5.23 hands its states out, each with a family for it."""
LATE = range(BLOCKS - 2)
"""The blocks of which the next one can be captured in their place."""


class Run(NamedTuple):
    """One child of the worker: log-probabilities [prompts, vocabulary], and the folder of its dumps."""

    logprobs: torch.Tensor
    hooked: bool
    folder: Path


@pytest.fixture(scope="module")
def tiny(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name → model folder."""
    folder = tmp_path_factory.mktemp("tiny")
    made = {family: tiny_models.make(family, folder / family, demo_model) for family in SHAPES}
    return {**made, KIMI: tiny_models.make_kimi(made["deepseek_v2"], folder / KIMI)}


@pytest.fixture(scope="module")
def unpatched(hsbench: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the installed SGLang, reverted; it shares the files that do not differ."""
    folder = tmp_path_factory.mktemp("unpatched")
    root = Path(hsbench.json("patch", "status")["root"])
    shutil.copytree(root, folder / "sglang", copy_function=_linked)
    hsbench.ok("patch", "revert", "--target", str(folder))
    assert hsbench.json("patch", "status", "--target", str(folder))["state"] == "clean"
    return folder


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


class Worker:
    """Collects jobs and runs them in one process; `path` goes before the installed packages."""

    def __init__(self, hsbench: Command, folder: Path, path: Path | None = None) -> None:
        self.hsbench, self.folder, self.path = hsbench, folder, path
        self.jobs: list[dict[str, Any]] = []

    def add(self, name: str, model: Path, env: dict[str, str]) -> None:
        job = {"name": name, "model": str(model), "result": str(self.folder / f"{name}.pt"), "env": env}
        self.jobs.append({**job, "flags": [], "batches": BATCHES})

    def record(self, name: str, model: Path, **env: str) -> None:
        blocks = ",".join(map(str, range(BLOCKS - 1)))
        folder = {"SGLANG_HS_DUMP_DIR": str(self.folder / name)}
        self.add(name, model, {**folder, "SGLANG_HS_DUMP_BLOCKS": blocks, "SGLANG_HS_DUMP_FINAL": "both", **env})

    def run(self) -> dict[str, Run]:
        (self.folder / "jobs.json").write_text(json.dumps(self.jobs))
        path = os.pathsep.join(str(part) for part in (self.path, FAULTS) if part is not None)
        env = {"SGLANG_PLATFORM": "hsbench_cpu", "PYTHONPATH": path, "TORCH_COMPILE_DISABLE": "1"}
        done = subprocess.run(
            [sys.executable, str(WORKER), str(self.folder / "jobs.json")],
            env={**self.hsbench.env, **env},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        errors = "\n".join(path.read_text() for path in self.folder.glob("*.error"))
        assert done.returncode == 0, f"{errors}\n{done.stderr[-3000:]}"
        return {job["name"]: self._read(job["name"], Path(job["result"])) for job in self.jobs}

    def _read(self, name: str, result: Path) -> Run:
        found = torch.load(result, weights_only=True)
        return Run(found["logprobs"], found["hooked"], self.folder / name)


@pytest.fixture(scope="module")
def runs(hsbench: Command, tiny: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Each model recorded; three of them with capture one block late, and not recorded at all."""
    hsbench.ok("patch", "apply")
    folder = tmp_path_factory.mktemp("runs")
    (folder / "fault").write_text("shift")
    worker = Worker(hsbench, folder)
    for name in NAMES:
        worker.record(name, tiny[name])
    for family in WAYS.values():
        late = {"HS_TEST_FAULT": str(folder / "fault"), "SGLANG_HS_DUMP_BLOCKS": ",".join(map(str, LATE))}
        worker.record(f"{family} late", tiny[family], **late)
        worker.add(f"{family} off", tiny[family], {})
    return worker.run()


@pytest.fixture(scope="module")
def plain_runs(
    hsbench: Command, tiny: dict[str, Path], unpatched: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Run]:
    """The same models in the unpatched copy."""
    worker = Worker(hsbench, tmp_path_factory.mktemp("plain"), unpatched)
    for family in WAYS.values():
        worker.add(family, tiny[family], {})
    return worker.run()


@pytest.fixture(scope="module")
def reference(tiny: dict[str, Path]) -> Callable[[str], ReferenceModel]:
    """hsbench's own judge, which loads the model with transformers."""
    return lambda name: load_model(tiny["deepseek_v2" if name == KIMI else name])


def of_prompts(run: Run) -> Iterator[tuple[Meta, dict[str, torch.Tensor]]]:
    """The dump of each prompt."""
    found = {read_meta(folder).request_id: folder for folder in run.folder.glob("req_*")}
    assert set(found) == set(PROMPTS), (run.folder / "errors.jsonl").exists()
    for folder in found.values():
        yield read_meta(folder), dumps.load(folder)


@pytest.mark.parametrize("name", NAMES)
def test_every_state_is_what_transformers_computes(name: str, runs: dict[str, Run], tiny: dict[str, Path]) -> None:
    """Two prompts of unequal length in one pass, and one alone; every block, and both sides of the final norm."""
    states_of = tiny_models.states_of(tiny["deepseek_v2" if name == KIMI else name])
    for meta, tensors in of_prompts(runs[name]):
        assert list(meta.token_ids) == PROMPTS[meta.request_id]
        assert meta.raw["model_class"] == MODEL_CLASS[name]
        assert meta.raw["after_block"] == list(range(BLOCKS - 1))
        expected = states_of(PROMPTS[meta.request_id])
        named = {f"aux_{block}": expected[str(block)] for block in range(BLOCKS - 1)}
        named |= {"final": expected["pre"], "final_post": expected["post"]}
        assert set(tensors) == set(named)
        for key, state in named.items():
            assert tensors[key].dtype == torch.float32
            assert mean_error(tensors[key], state) < TOLERANCE, key
            nearest = min(mean_error(tensors[key], other) for it, other in named.items() if it != key)
            assert nearest > 1000 * TOLERANCE, key


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_check_is_green(
    name: str, runs: dict[str, Run], reference: Callable[[str], ReferenceModel]
) -> None:
    model = reference(name)
    for meta, tensors in of_prompts(runs[name]):
        checks = reference_with(model, meta.token_ids, tensors, meta)
        assert {check.name: check.verdict for check in checks} == dict.fromkeys(tensors, "ok")


@pytest.mark.parametrize("name", NAMES)
def test_a_claim_that_is_one_block_off_is_red(
    name: str, runs: dict[str, Run], reference: Callable[[str], ReferenceModel]
) -> None:
    model = reference(name)
    meta, tensors = next(of_prompts(runs[name]))
    claims = {
        key: dataclasses.replace(claim, after_block=claim.after_block + 1)
        for key, claim in meta.tensors.items()
        if claim.after_block < BLOCKS - 2
    }
    checks = reference_with(model, meta.token_ids, {key: tensors[key] for key in claims}, _claiming(meta, claims))
    assert {check.verdict for check in checks} == {"wrong block"}
    assert [check.best_block for check in checks] == [claim.after_block - 1 for claim in claims.values()]


def _claiming(meta: Meta, claims: dict[str, Any]) -> Meta:
    return dataclasses.replace(meta, tensors=claims)


@pytest.mark.parametrize("family", WAYS.values())
def test_a_capture_that_is_one_block_late_is_red(
    family: str, runs: dict[str, Run], reference: Callable[[str], ReferenceModel]
) -> None:
    """The engine really hands out the state that enters the next block; the dump claims what it always claims."""
    model = reference(family)
    meta, tensors = next(of_prompts(runs[f"{family} late"]))
    checks = {check.name: check for check in reference_with(model, meta.token_ids, tensors, meta)}
    assert {checks[f"aux_{block}"].verdict for block in LATE} == {"wrong block"}
    assert [checks[f"aux_{block}"].best_block for block in LATE] == [block + 1 for block in LATE]
    assert checks["final"].verdict == checks["final_post"].verdict == "ok"


@pytest.mark.parametrize("family", WAYS.values())
def test_the_patch_changes_no_number(family: str, runs: dict[str, Run], plain_runs: dict[str, Run]) -> None:
    """Log-probabilities of the whole vocabulary, bit for bit: unpatched, patched but off, and recording."""
    plain, off, on = plain_runs[family], runs[f"{family} off"], runs[family]
    assert (plain.hooked, off.hooked, on.hooked) == (False, True, True)
    assert not off.folder.exists()
    assert torch.isfinite(plain.logprobs).all()
    assert torch.equal(plain.logprobs, off.logprobs)
    assert torch.equal(plain.logprobs, on.logprobs)


def test_a_patched_server_that_is_not_enabled_answers_as_an_unpatched_one(
    hsbench: Command, tiny: dict[str, Path], unpatched: Path
) -> None:
    hsbench.ok("patch", "apply")
    answers = []
    for name, path in (("patched", f"{FAULTS}"), ("unpatched", f"{unpatched}{os.pathsep}{FAULTS}")):
        env = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        started = ("serve", "--model", str(tiny["qwen3"]), "--name", name, "--device", "cpu", "--port", "0")
        url = hsbench.ok(*started, "--", "--dtype", "float32", env=env).strip()
        try:
            answers.append(_logprobs(url))
        finally:
            hsbench.ok("stop", name, env=env)
    assert len(answers[0]) == len(PROMPTS["hs-long"])
    assert answers[0] == answers[1]


def _logprobs(url: str) -> list[Any]:
    """Of every prompt token but the first, and of the token generated, as JSON carries them: all their bits."""
    body = {
        "input_ids": PROMPTS["hs-long"],
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    answer = httpx.post(f"{url}/generate", json=body, timeout=120, trust_env=False)
    answer.raise_for_status()
    told = answer.json()["meta_info"]
    return [entry[0] for entry in (*told["input_token_logprobs"][1:], *told["output_token_logprobs"])]
