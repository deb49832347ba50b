"""`verify` against a model: a tiny Llama in bfloat16 stands for the engine, through the recorder's own store."""

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.extract_support import sample, write_both
from tests.unit.probes_support import Capture, save_tiny_model
from tests.unit.verify_support import audit, build, failed, plant
from workbench.extract.audit.deep import Recaptured
from workbench.extract.record import FORMATS, Format
from workbench.extract.sample import Sample


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


class FakeServer:
    """Captures as the engine would, through the recorder's own store."""

    url = "http://fake"

    def __init__(self, model: Path, folder: Path) -> None:
        self.model = model
        self.folder = folder
        self.count = 0

    @contextlib.contextmanager
    def capture(self, ids: Sequence[int]) -> Iterator[Recaptured]:
        got = Capture(self.model, ids)
        one = Sample(index=self.count, input_ids=tuple(ids), loss_mask=(1,) * len(ids))
        self.count += 1
        dump = write_both(self.folder, one, model_states(got))
        yield Recaptured(str(dump), tuple(got.logprobs))
        shutil.rmtree(dump)


def model_states(got: Capture) -> list[torch.Tensor]:
    """Outputs of blocks 0, 1 and 2, then the last state before and after the norm."""
    return [got.states[1], got.states[2], got.states[3], got.states[4], got.states[5]]


@pytest.fixture(scope="module")
def modelled(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Format, Path]:
    samples = [sample(n, 12) for n in range(3)]
    folder = tmp_path_factory.mktemp("modelled")

    def states(one: Sample) -> list[torch.Tensor]:
        return model_states(Capture(model, one.input_ids))

    return {kind: build(folder / kind, kind, samples, states, model=str(model)) for kind in FORMATS}


@pytest.mark.parametrize("kind", FORMATS)
def test_a_right_data_set_agrees_with_server_and_reference(
    modelled: dict[Format, Path], model: Path, tmp_path: Path, kind: Format
) -> None:
    report = audit(modelled[kind], FakeServer(model, tmp_path), reference=True)
    assert not report.problems
    outcomes = {check.name: check.outcome for check in report.checks}
    assert [outcomes[name] for name in ("norm", "server", "log-probabilities", "reference")] == ["ok"] * 4


def test_one_block_too_few(modelled: dict[Format, Path], model: Path, tmp_path: Path) -> None:
    data = shutil.copytree(modelled["speculators-v1"], tmp_path / "out")
    ids = sample(1, 12).input_ids
    plant(data, 1, lambda held: held["hidden_states"].__setitem__(2, Capture(model, ids).states[2]))
    assert not failed(audit(data)), "nothing but a model tells"
    report = audit(data, FakeServer(model, tmp_path / "dumps"), reference=True)
    found = failed(report)
    assert set(found) == {"server", "reference"}
    assert "claims block 2, but it is block 1" in found["reference"]
    assert "aux 2 (block 2) is" in found["server"]
    assert {p.index for p in report.problems if not p.warning} == {1}


@pytest.mark.parametrize("kind", FORMATS)
def test_the_other_side_of_the_norm_by_its_weight(
    modelled: dict[Format, Path], model: Path, tmp_path: Path, kind: Format
) -> None:
    data = shutil.copytree(modelled[kind], tmp_path / "out")
    pre, post = model_states(Capture(model, sample(1, 12).input_ids))[3:]

    def swap(held: dict[str, Any]) -> None:
        if kind == "speculators-v1":
            held["hidden_states"][3] = post
        elif kind == "speculators":
            held["hidden_states"] = torch.cat([held["hidden_states"][:, :3], post.unsqueeze(1)], dim=1)
        else:
            held["hidden_state"] = pre.unsqueeze(0)

    plant(data, 1, swap)
    found = failed(audit(data))
    assert set(found) == {"norm"}
    assert "after the final norm" in found["norm"]
    deeper = failed(audit(data, FakeServer(model, tmp_path / "dumps"), reference=True))
    assert set(deeper) == {"norm", "server", "log-probabilities", "reference"}


def test_states_of_another_sample(modelled: dict[Format, Path], model: Path, tmp_path: Path) -> None:
    """Ids and mask are right, the states are another prompt's of the same length: no checksum tells."""
    data = shutil.copytree(modelled["speculators-v1"], tmp_path / "out")
    other = model_states(Capture(model, sample(0, 12).input_ids))[:4]
    plant(data, 1, lambda held: held.__setitem__("hidden_states", [state.clone() for state in other]))
    assert not failed(audit(data))
    assert set(failed(audit(data, FakeServer(model, tmp_path / "dumps")))) == {"server", "log-probabilities"}
