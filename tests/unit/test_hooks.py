"""The built-in route's hooks, on real torch modules with SGLang's names."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from patches import hooks, recorder
from tests.unit.test_recorder import BLOCKS, HIDDEN, batch, by_request, load, state, status

Aux = list[torch.Tensor]


class Norm(nn.Module):
    """Adds, then changes the sign; `fused` leaves the work to whoever calls it, as a fused all-reduce does."""

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        if residual is None:
            return -hidden
        residual.add_(hidden)
        return -residual, residual


class Model(nn.Module):
    """Runs "blocks" whose outputs are `state(block, rows)`, and returns what SGLang's models return."""

    def __init__(self, captured: tuple[int, ...] = (1, 3, 5), packed: bool = False, how: str = "pair") -> None:
        super().__init__()
        self.norm = Norm()
        self.config = SimpleNamespace(num_hidden_layers=BLOCKS)
        self.layers_to_capture = list(captured)
        self.packed, self.how = packed, how

    def forward(self, input_ids: torch.Tensor, positions: Any, forward_batch: Any) -> Any:
        rows = len(input_ids)
        aux: Any = [state(block - 1, rows) for block in sorted(self.layers_to_capture)]
        last = state(BLOCKS - 1, rows)
        if self.how == "pair":
            hidden, _ = self.norm(last / 2, last / 2)
        elif self.how == "single":
            hidden = self.norm(last)
        else:
            hidden = -last
        if not aux:
            return hidden
        return hidden, torch.cat(aux, dim=-1) if self.packed else aux


@pytest.fixture(autouse=True)
def by_hooks(dump_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The route is the built-in's. For every test, since making a hook makes the recorder take that route."""
    monkeypatch.setenv("SGLANG_HS_ROUTE", "builtin")
    monkeypatch.setattr(hooks, "_last", {})


def hooked(model: Model) -> Model:
    """Hooks registered as SGLang does it: the factory is called with the hook's settings."""
    model.norm.register_forward_hook(hooks.norm({}))
    model.register_forward_hook(hooks.model({}))
    return model


def forward(model: Model, the_batch: Any) -> Any:
    return model(the_batch.input_ids, None, the_batch)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("how", ["pair", "single"])
def test_states_reach_the_recorder_by_block_and_request(dump_dir: Path, packed: bool, how: str) -> None:
    forward(hooked(Model(packed=packed, how=how)), batch(("hs-a", 3), ("other", 2), ("hs-b", 2)))
    found = by_request(dump_dir, 2)
    for name, block in (("aux_0", 0), ("aux_1", 2), ("aux_2", 4), ("final", BLOCKS - 1)):
        assert torch.equal(load(found["hs-a"], name), state(block, 7)[:3])
        assert torch.equal(load(found["hs-b"], name), state(block, 7)[5:])
    meta = json.loads((found["hs-a"] / "meta.json").read_text())
    assert meta["route"] == "builtin"
    assert len(meta["patch_hash"]) == 64
    assert (meta["after_block"], meta["captured_entering"]) == ([0, 2, 4], [1, 3, 5])


def test_the_models_output_is_not_touched(dump_dir: Path) -> None:
    the_batch = batch(("hs-a", 3))
    plain, seen = forward(Model(), the_batch), forward(hooked(Model()), the_batch)
    assert torch.equal(plain[0], seen[0])
    assert all(torch.equal(a, b) for a, b in zip(plain[1], seen[1], strict=True))


def refused(dump_dir: Path) -> str:
    assert status(dump_dir, "errors") >= 1
    assert not list(dump_dir.glob("req_*"))
    line = json.loads((dump_dir / "errors.jsonl").read_text().splitlines()[0])
    assert line["request_id"] == "hs-a"
    return str(line["error"])


def test_other_blocks_than_asked_for_are_an_error(dump_dir: Path) -> None:
    """What the EAGLE3 convention makes of ids 0, 2, 4 in a file that does not add one."""
    forward(hooked(Model(captured=(0, 2, 4))), batch(("hs-a", 3)))
    assert "captures on entering blocks [0, 2, 4], wanted are [1, 3, 5]" in refused(dump_dir)


def test_a_norm_that_was_not_called_as_a_module_is_an_error(dump_dir: Path) -> None:
    forward(hooked(Model(how="fused")), batch(("hs-a", 3)))
    assert "the final norm was not called as a module" in refused(dump_dir)


def test_the_state_after_the_norm_does_not_need_the_norm(dump_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_HS_DUMP_FINAL", "post")
    forward(hooked(Model(how="fused")), batch(("hs-a", 3)))
    assert torch.equal(load(by_request(dump_dir, 1)["hs-a"], "final"), -state(BLOCKS - 1, 3))


def test_a_norm_of_another_pass_is_not_taken_for_this_one(dump_dir: Path) -> None:
    model = hooked(Model(how="fused"))
    model.norm(state(1, 3), state(1, 3))
    forward(model, batch(("hs-a", 3)))
    assert "the final norm was not called as a module" in refused(dump_dir)


def test_nothing_captured_is_an_error(dump_dir: Path) -> None:
    forward(hooked(Model(captured=())), batch(("hs-a", 3)))
    assert "is --enable-return-aux-hidden-states in force?" in refused(dump_dir)


def test_decode_and_foreign_requests_pass_by(dump_dir: Path) -> None:
    model = hooked(Model(captured=()))
    forward(model, batch(("hs-a", 3), mode="DECODE"))
    forward(model, batch(("warm-up", 3)))
    forward(model, batch(("other", 3)))
    assert status(dump_dir, "passes_extend", 2) == 2
    assert not (dump_dir / "errors.jsonl").exists()


@pytest.mark.parametrize("route", ["plugin", "patch", ""])
def test_hooks_stay_off_when_another_route_records(dump_dir: Path, monkeypatch: pytest.MonkeyPatch, route: str) -> None:
    monkeypatch.setenv("SGLANG_HS_ROUTE", route)
    forward(hooked(Model()), batch(("hs-a", 3)))
    assert not dump_dir.exists()


def test_the_patch_stays_off_when_hooks_record(dump_dir: Path) -> None:
    """A tree may be patched and served by another route all the same."""
    assert recorder.begin(Model(), batch(("hs-a", 3))) is None
    assert not dump_dir.exists()


def test_hook_settings_name_functions_that_are_there() -> None:
    for spec in hooks.specs():
        module, _, name = spec["hook_factory"].partition(":")
        assert module == "patches.hooks"
        assert callable(getattr(hooks, name)({}))
    assert HIDDEN
