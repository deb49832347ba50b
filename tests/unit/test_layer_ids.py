"""What layer ids mean: SGLang's own setters run from its sources, the others by the table that was read from them."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trees import NEW, OLD
from workbench.cli import run
from workbench.errors import UsageError
from workbench.layers import CONVENTIONS, FAMILY_OF, WITHOUT_DFLASH, Reading, family_of, read

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe", "gpt_oss", "deepseek_v2", "glm4_moe")
ENTRY = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
}
IDS = [(2, 30, 58), (1, 29, 57), (0, 5, 59), (3, 31, 60)]


class Engine:
    """The capture points that a release's own setters choose, run from its source with stand-ins."""

    def __init__(self, source: str, entry: str, num_blocks: int) -> None:
        methods = {n.name: n for n in self._class(source, entry).body if isinstance(n, ast.FunctionDef)}
        self._setters = {name: node for name, node in methods.items() if name.startswith("set_")}
        model = SimpleNamespace(layers_to_capture=None)
        for name in ("set_eagle3_layers_to_capture", "set_dflash_layers_to_capture"):  # Qwen MoE keeps them inside
            setattr(model, name, lambda ids: setattr(model, "layers_to_capture", list(ids)))
        self._self = SimpleNamespace(
            pp_group=SimpleNamespace(is_last_rank=True),
            config=SimpleNamespace(num_hidden_layers=num_blocks),
            model=model,
        )

    @staticmethod
    def _class(source: str, name: str) -> ast.ClassDef:
        (found,) = [n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == name]
        return found

    def entering(self, convention: str, ids: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """None when this file has no setter for the convention."""
        setter = self._setters.get(f"set_{convention}_layers_to_capture")
        if setter is None:
            return None
        code = ast.parse("from __future__ import annotations\n")
        code.body.append(setter)
        names: dict[str, Any] = {}
        exec(compile(code, "setter", "exec", dont_inherit=True), names)
        names[setter.name](self._self, None if ids is None else list(ids))
        return tuple(self._self.model.layers_to_capture)


@pytest.fixture
def engine(releases: dict[str, Path], request: pytest.FixtureRequest) -> Any:
    def make(release: str, family: str, num_blocks: int) -> Engine:
        path = releases[release] / "sglang" / "srt" / "models" / f"{family}.py"
        return Engine(path.read_text(), ENTRY[family], num_blocks)

    return make


def entering(reading: Reading) -> tuple[int, ...]:
    return tuple(state.entering for state in reading.states)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ids", [*IDS, None], ids=str)
@pytest.mark.parametrize("convention", ["eagle3", "dflash"])
def test_sglang_itself_captures_there(
    engine: Any, release: str, family: str, ids: tuple[int, ...] | None, convention: str
) -> None:
    """Every id list on every family in both releases, by the engine's own functions."""
    source = engine(release, family, 61)
    if convention == "dflash" and (family in WITHOUT_DFLASH or ids is None):
        with pytest.raises(UsageError):
            read(convention, family, 61, ids)
        if ids is not None:
            assert source.entering(convention, ids) is None
        return
    expected = source.entering(convention, ids)
    if 61 in expected and family != "gpt_oss":  # no block of that number: the loop never comes there
        with pytest.raises(UsageError, match="output of the last block, which SGLang's"):
            read(convention, family, 61, ids)
        return
    reading = read(convention, family, 61, ids)
    assert entering(reading) == expected
    assert reading.blocks == tuple(number - 1 for number in expected)


@pytest.mark.parametrize("ids", [(24, 30, 36), (24, 30, 35)])
def test_the_gpt_oss_rule_is_that_of_today(engine: Any, ids: tuple[int, ...]) -> None:
    """36 blocks. SGLang before 0.5.17 adds 1 even to the largest, and a warning says so."""
    reading = read("eagle3", "gpt_oss", 36, ids)
    assert entering(reading) == engine(NEW, "gpt_oss", 36).entering("eagle3", ids)
    old = engine(OLD, "gpt_oss", 36).entering("eagle3", ids)
    assert (old == entering(reading)) == (ids[-1] != 36)
    assert any("before 0.5.17" in warning for warning in reading.warnings)


@pytest.mark.parametrize(
    ("convention", "ids", "blocks"),
    [
        ("vllm", (0, 30, 61), (-1, 29, 60)),  # 0 the embeddings, N what enters the final norm
        ("vllm", None, (1, 29, 57)),
        ("speculators", (2, 30, 58, 61), (1, 29, 57, 60)),
        ("speculators", None, (1, 29, 57, 60)),
        ("speculators-v0.4", (2, 30, 58, 60), (2, 30, 58, 60)),
        ("speculators-v0.4", None, (2, 30, 58, 60)),
        ("specforge", None, (1, 29, 57)),
        ("after-block", (2, 30, 58), (2, 30, 58)),
        ("after-block", None, (2, 30, 58)),
        ("eagle3", None, (1, 29, 57)),
    ],
)
@pytest.mark.parametrize("family", ["llama", "deepseek_v2"])
def test_the_table(convention: str, ids: tuple[int, ...] | None, blocks: tuple[int, ...], family: str) -> None:
    assert read(convention, family, 61, ids).blocks == blocks


def test_the_same_ids_in_every_convention() -> None:
    """The question of every dataset: which blocks are [2, 30, 58]?"""
    llama, deepseek = read("eagle3", "llama", 61, (2, 30, 58)), read("eagle3", "deepseek_v2", 61, (2, 30, 58))
    assert llama.blocks == (2, 30, 58)
    assert deepseek.blocks == (1, 29, 57)
    moved, kept = (1, 29, 57), (2, 30, 58)
    others = {"dflash": kept, "speculators": moved, "speculators-v0.4": kept, "vllm": moved, "after-block": kept}
    assert llama.elsewhere == {**others, "specforge": kept}
    assert deepseek.elsewhere == {**others, "specforge": moved}
    assert "the same ids mean other blocks in speculators, vllm" in llama.warnings
    assert "deepseek_v2 adds 1 to eagle3 ids only when the first is 1, which it is not here" in deepseek.warnings


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_the_side_of_the_norm_is_said(convention: str) -> None:
    reading = read(convention, "llama", 32, (2, 16, 29))
    assert reading.final.startswith("after" if convention in ("eagle3", "dflash", "specforge") else "before")


def test_every_family_that_can_be_patched_has_a_rule() -> None:
    from patches.codemods import FAMILIES as PATCHED

    assert set(FAMILY_OF.values()) == set(PATCHED) == set(FAMILIES)
    assert family_of(("KimiK25ForConditionalGeneration",)) == "deepseek_v2"
    assert family_of(("SomethingElse",)) is None


@pytest.mark.parametrize(
    ("convention", "family", "count", "ids", "says"),
    [
        ("eagle3", "llama", 32, (29, 2), "do not ascend"),
        ("eagle3", "llama", 32, (2, 2), "do not ascend"),
        ("after-block", None, 32, (2, 32), "id 32 is outside the model"),
        ("vllm", "llama", 32, (33,), "id 33 is outside the model"),
        ("eagle3", "llama", 32, (2, 31), "SGLang's llama leaves out"),
        ("eagle3", None, 32, (2, 16), "this model's is not known here"),
        ("eagle3", None, 32, None, "this model's is not known here"),
        ("dflash", "llama", 32, None, "no default ids"),
        ("dflash", "qwen2", 32, (2, 16), "qwen2 takes no dflash ids"),
        ("eagle3", "llama", 4, None, "4 blocks are too few for the default"),
        ("speculators", "llama", 3, None, "3 blocks are too few for the default"),
    ],
)
def test_what_cannot_be_read_is_refused(
    convention: str, family: str | None, count: int, ids: tuple[int, ...] | None, says: str
) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        read(convention, family, count, ids)
    assert caught.value.next_step


# The command.


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder as a multimodal model has it: the numbers stand one level down."""
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": {"num_hidden_layers": 61}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_the_command_says_blocks_capture_points_and_differences(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["layers", "--model", str(model), "--ids", "2,30,58"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "30 output of block 29 block 30" in lines
    assert "final: after the final norm" in lines
    assert f"record them: hsbench serve --model {model} --dump-dir DIR --layers 1,29,57" in lines
    assert "dflash 2, 30, 58" in lines
    assert "warning: the same ids mean other blocks in dflash, speculators-v0.4, after-block" in lines


def test_the_command_in_json(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["layers", "--model", str(model), "--ids", "0,61", "--convention", "vllm", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["schema"], said["model"], said["blocks"]) == (1, str(model), [-1, 60])
    assert said["reading"]["states"][1] == {"id": 61, "after_block": 60, "entering": 61}
    assert "the first of these are the embeddings, which hsbench does not record" in said["reading"]["warnings"]


def test_the_final_state_is_not_named_as_a_block_to_record(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["layers", "--model", str(model), "--convention", "speculators"]) == 0
    said = capsys.readouterr().out
    assert "--layers 1,29,57\n" in said
    assert "61   output of block 60   the final norm" in said


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--ids", "2,x"], 2, "--ids '2,x' is not a list of layer ids"),
        (["--ids", ""], 2, "--ids '' is not a list of layer ids"),
        (["--ids", "2,-3"], 2, "--ids '2,-3' is not a list of layer ids"),
        (["--ids", "2", "--convention", "mine"], 2, "Invalid value for '--convention'"),
        (["--ids", "30,2"], 2, "ids 30,2 do not ascend"),
    ],
)
def test_bad_input_is_one_line(
    model: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str
) -> None:
    assert run(["layers", "--model", str(model), *arguments]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"hsbench: {says}")
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("config", "code", "says"),
    [
        (None, 6, "no readable config.json"),
        ("{", 6, "is not JSON"),
        ("{}", 2, "names no num_hidden_layers"),
        ('{"num_hidden_layers": 0}', 2, "names no num_hidden_layers"),
    ],
)
def test_a_bad_model_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str | None, code: int, says: str
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert run(["layers", "--model", str(tmp_path)]) == code
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert says in said[0]


def test_a_model_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["layers", "--model", "org/name"]) == 6
    assert "org/name is not a folder here" in capsys.readouterr().err
