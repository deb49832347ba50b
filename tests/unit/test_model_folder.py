"""What a model folder must hold, and what is told when it does not."""

import json
from pathlib import Path

import pytest

from tests.unit.fake_model import whole_weights
from workbench.errors import Missing
from workbench.models.folder import ModelFacts, check_model

CONFIG = {"architectures": ["A"], "max_position_embeddings": 64, "num_hidden_layers": 3, "hidden_size": 8}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.json").touch()
    (tmp_path / "model-00001-of-00001.safetensors").write_bytes(whole_weights())
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def test_a_whole_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ModelFacts(str(folder), 64, 3, 8, None, ("A",))
    assert check_model(str(folder)) == expected
    monkeypatch.chdir(folder.parent)
    assert check_model(folder.name) == expected
    assert expected.is_folder


def test_numbers_of_a_model_that_sees(folder: Path) -> None:
    (folder / "config.json").write_text(
        json.dumps({"architectures": ["V"], "text_config": {**CONFIG, "vocab_size": 5}})
    )
    assert check_model(str(folder)) == ModelFacts(str(folder), 64, 3, 8, 5, ("V",))


def test_no_folder(folder: Path) -> None:
    with pytest.raises(Missing, match="does not exist"):
        check_model(str(folder / "none"))
    with pytest.raises(Missing, match="does not exist"):
        check_model("./none")
    with pytest.raises(Missing, match="is not a folder"):
        check_model(str(folder / "config.json"))


def test_an_id_of_the_hub_is_passed_on() -> None:
    facts = check_model("org/Model-1.5B")
    assert facts == ModelFacts("org/Model-1.5B")
    assert not facts.is_folder


@pytest.mark.parametrize(
    ("remove", "message"),
    [
        ("config.json", "no readable config.json"),
        ("tokenizer.json", "no tokenizer"),
        ("model-00001-of-00001.safetensors", "no weights"),
    ],
)
def test_what_is_missing_is_named(folder: Path, remove: str, message: str) -> None:
    (folder / remove).unlink()
    with pytest.raises(Missing, match=message) as caught:
        check_model(str(folder))
    assert caught.value.next_step


@pytest.mark.parametrize("text", ["{", "[1]", '"x"'])
def test_a_broken_configuration(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(Missing, match=r"config\.json"):
        check_model(str(folder))


def test_what_is_not_needed_may_be_missing(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "model-00001-of-00001.safetensors").unlink()
    assert check_model(str(folder), needs_tokenizer=False, needs_weights=False).num_blocks == 3
