"""The codemod on the real sources of both releases, and on sources that it must refuse."""

from __future__ import annotations
import __future__

import ast
import difflib
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from patches.codemods import FAMILIES, BlockLoop, edit
from patches.errors import PatchError
from tests.trees import LLAMA, NEW, OLD

LOOPS = (BlockLoop("LlamaModel"),)
NORMAL = ("normal_start_layer", "normal_end_layer")
OTHERS = {
    "qwen2": BlockLoop("Qwen2Model"),
    "gpt_oss": BlockLoop("GptOssModel"),
    "glm4_moe": BlockLoop("Glm4MoeModel", NORMAL),
}


def source_of(releases: dict[str, Path], release: str, name: str = "llama") -> bytes:
    return (releases[release] / "sglang" / "srt" / "models" / f"{name}.py").read_bytes()


def added_lines(before: bytes, after: bytes) -> list[str]:
    lines = difflib.ndiff(before.decode().splitlines(), after.decode().splitlines())
    return [line[2:] for line in lines if line.startswith("+ ")]


class Unpatched(ast.NodeTransformer):
    """Takes the recorder's calls out of a syntax tree again, knowing nothing of how they were put in."""

    def _ours(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and ast.unparse(node.func).startswith("_hs_recorder.")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if node.module == "sglang._hs" else node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if self._ours(node.value) else self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        return None if ast.unparse(node.targets[0]) == "_hs_pass" else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.keywords = [k for k in node.keywords if not (self._ours(k.value) and len(k.value.args) == 1)]  # type: ignore[attr-defined]
        self.generic_visit(node)
        return node.args[-1] if self._ours(node) else node


@pytest.mark.parametrize("name", ["llama", *OTHERS])
def test_only_the_recorders_calls_are_added(releases: dict[str, Path], release: str, name: str) -> None:
    before = source_of(releases, release, name)
    after = edit(before, f"{name}.py", LOOPS if name == "llama" else (OTHERS[name],))
    added = added_lines(before, after)
    assert 5 <= len(added) <= 6
    assert all("_hs_" in line for line in added)
    assert ast.dump(ast.parse(before)) != ast.dump(ast.parse(after))
    assert ast.dump(ast.parse(before)) == ast.dump(Unpatched().visit(ast.parse(after)))


def test_what_enters_is_recorded_before_the_block_does_anything(releases: dict[str, Path]) -> None:
    lines = edit(source_of(releases, OLD), LLAMA, LOOPS).decode().splitlines()
    head = lines.index(f"        {LOOP}")
    assert lines[head - 1] == "        _hs_pass = _hs_recorder.begin(self, forward_batch)"
    assert lines[head + 1] == "            _hs_recorder.entering(_hs_pass, i, hidden_states, residual)"


def test_the_spec_of_llama_names_its_file() -> None:
    assert FAMILIES["llama"].edits == ((LLAMA, LOOPS[0]),)


class Log(list[Any]):
    """A stand-in for the recorder that writes down what it is given."""

    def begin(self, model: Any, batch: Any) -> str:
        self.append(("begin", batch))
        return "pass"

    def capture(self, now: str, block: int, wrapped: Any) -> Any:
        return self._callback((now, block), wrapped)

    def final_capture(self, now: str, wrapped: Any = None) -> Any:
        return self._callback((now, "final"), wrapped)

    def _callback(self, what: tuple[Any, ...], wrapped: Any) -> Any:
        def both(value: int) -> None:
            self.append((*what, value))
            if wrapped is not None:
                wrapped(value)

        return both

    def entering(self, now: str, block: int, hidden: int, residual: int | None) -> None:
        self.append((now, block, hidden + (residual or 0)))

    def final_pair(self, now: str, pair: tuple[int, int]) -> tuple[int, int]:
        self.append((now, "final", pair[1]))
        return pair

    def finish(self, now: str, hidden: int) -> None:
        self.append((now, "finish", hidden))


class AuxList(list[int]):
    capture = list.append


def callback_layer(block: int) -> Any:
    """0.5.23: a block takes the whole stream and reports what enters it."""

    def layer(positions: Any, hidden: int, batch: Any, capture_output: Any = None) -> int:
        if capture_output is not None:
            capture_output(hidden)
        return hidden + 2**block

    return layer


def pair_layer(block: int) -> Any:
    """0.5.15: hidden states are what the last block added, the residual is the stream before it."""

    def layer(positions: Any, hidden: int, batch: Any, residual: int | None) -> tuple[int, int]:
        return 2**block, hidden + (residual or 0)

    return layer


def final_norm(hidden: int, batch: Any, norm: Any, capture: Any = None) -> int:
    if capture is not None:
        capture(hidden)
    return -hidden


def run_forward(source: bytes, release: str, log: Log) -> Any:
    """Run the source's own `LlamaModel.forward` over 4 blocks; block k adds 2**k to the embedding, 1000."""
    (model,) = [n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == "LlamaModel"]
    (forward,) = [n for n in model.body if isinstance(n, ast.FunctionDef) and n.name == "forward"]
    flags = __future__.annotations.compiler_flag
    names: dict[str, Any] = {
        "_hs_recorder": log,
        "AuxHiddenStateList": AuxList,
        "residual_batch": SimpleNamespace(start=lambda batch: None, final_norm=final_norm),
    }
    exec(compile(ast.Module([forward], []), "forward", "exec", flags, dont_inherit=True), names)
    layer = callback_layer if release == NEW else pair_layer
    rank = SimpleNamespace(is_first_rank=True, is_last_rank=True)
    this = SimpleNamespace(
        pp_group=rank,
        embed_tokens=lambda ids: 1000,
        layers=[layer(block) for block in range(4)],
        start_layer=0,
        end_layer=4,
        layers_to_capture=[2],
        norm=lambda hidden, residual: (-hidden - residual, hidden + residual),
    )
    return names["forward"](this, None, None, "batch")


def test_the_recorder_sees_what_enters_each_block(releases: dict[str, Path], release: str) -> None:
    before = source_of(releases, release)
    log = Log()
    result = run_forward(edit(before, LLAMA, LOOPS), release, log)
    assert log == [
        ("begin", "batch"),
        ("pass", 0, 1000),
        ("pass", 1, 1001),
        ("pass", 2, 1003),
        ("pass", 3, 1007),
        ("pass", "final", 1015),
        ("pass", "finish", -1015),
    ]
    assert result == run_forward(before, release, Log()) == (-1015, [1003])


LOOP = "for i in range(self.start_layer, self.end_layer):"
SECOND_CALL = "x = self.layers[i](capture_output=None)"
NORM_NEW = "residual_batch.final_norm(\n            hidden_states, forward_batch, self.norm\n        )"
NORM_OLD = "hidden_states, _ = self.norm(hidden_states, residual)"
IF_OLD = "if i in self.layers_to_capture:\n                aux_hidden_states.append(hidden_states + residual)\n"
INDENT = "\n            "
MUTATIONS = {
    "loop over other bounds": (None, LOOP, LOOP.replace("start", "first"), "`for i in .* 0 times"),
    "loop twice": (None, LOOP, f"{LOOP}{INDENT}self.layers[i]\n        {LOOP}", "`for i in .* 2 times"),
    "loop variable renamed in the head": (None, LOOP, LOOP.replace("i in", "k in"), "`for i in .* 0 times"),
    "loop variable set again": (None, LOOP, f"{LOOP}{INDENT}i = i + 1", "`for i in .* 0 times"),
    "class renamed": (None, "class LlamaModel(", "class LlamaBody(", "class LlamaModel.* 0 times"),
    "class twice": (None, "class LlamaModel(", "class LlamaModel: ...\nclass LlamaModel(", "2 times"),
    "keyword renamed": (NEW, "capture_output=aux", "capture=aux", r"capture_output= \(0 times\)"),
    "keyword twice": (NEW, LOOP, f"{LOOP}{INDENT}{SECOND_CALL}", "capture_output= .* 2 times"),
    "final norm renamed": (
        NEW,
        NORM_NEW,
        NORM_NEW.replace("final_norm", "last_norm"),
        "final_norm.* 0 times",
    ),
    "final norm of another": (NEW, NORM_NEW, NORM_NEW.replace("self.norm", "self.norm2"), "0 times"),
    "final norm twice": (NEW, NORM_NEW, f"{NORM_NEW}\n        hidden_states = {NORM_NEW}", "2 times"),
    "capture test gone": (OLD, IF_OLD, "pass\n", r"layers_to_capture.*\(0 times\)"),
    "capture test twice": (OLD, IF_OLD, f"{IF_OLD}            {IF_OLD}", "layers_to_capture.* 2 times"),
    "both shapes": (OLD, LOOP, f"{LOOP}{INDENT}{SECOND_CALL}", r"exactly one of .*\(1 times\).*\(1 times\)"),
    "norm gone": (OLD, NORM_OLD, "pass", "self.norm.* 0 times"),
    "norm twice": (
        OLD,
        NORM_OLD,
        f"{NORM_OLD}; y = 1{INDENT}{NORM_OLD}{INDENT}{NORM_OLD}",
        "self.norm.* 2 times",
    ),
}
CASES = [
    pytest.param(release, *rest, id=f"{name}-{release}")
    for name, (only, *rest) in MUTATIONS.items()
    for release in (NEW, OLD)
    if only in (None, release)
]


@pytest.mark.parametrize(("release_", "old", "new", "says"), CASES)
def test_an_unknown_source_is_refused(releases: dict[str, Path], release_: str, old: str, new: str, says: str) -> None:
    source = source_of(releases, release_).decode()
    assert source.count(old) == 1
    with pytest.raises(PatchError, match=says) as caught:
        edit(source.replace(old, new).encode(), LLAMA, LOOPS)
    assert caught.value.message.startswith(f"{LLAMA}: ")
    assert "\n" not in caught.value.message
    assert caught.value.next_step


def test_a_forward_without_the_batch_is_refused(releases: dict[str, Path], release: str) -> None:
    model = source_of(releases, release).decode().split("class LlamaModel(")
    assert len(model) == 2
    renamed = model[1].replace("forward_batch: ForwardBatch", "batch: ForwardBatch", 1)
    with pytest.raises(PatchError, match=r"parameter forward_batch of LlamaModel\.forward.* 0 times"):
        edit("class LlamaModel(".join([model[0], renamed]).encode(), LLAMA, LOOPS)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda s: s.replace(b"\n", b"\r\n"), "carriage returns"),
        (lambda s: b"\xef\xbb\xbf" + s, "byte order mark"),
        (lambda s: s + b"\n_hs_recorder = 1\n", "already carries"),
        (lambda s: s + b"\ndef broken(:\n", r"cannot be parsed as Python: line \d+: invalid syntax"),
        (lambda s: s + b"\n# \xff\n", "cannot be parsed"),
        (lambda s: s[s.index(b"class LlamaMLP") :], "imports at the top"),
    ],
    ids=["crlf", "bom", "marked", "syntax", "encoding", "no imports"],
)
def test_odd_bytes_are_refused(releases: dict[str, Path], release: str, spoil: Any, says: str) -> None:
    with pytest.raises(PatchError, match=says) as caught:
        edit(spoil(source_of(releases, release)), LLAMA, LOOPS)
    assert "\n" not in caught.value.message


def test_deepseek_has_a_shape_that_is_refused_for_now(releases: dict[str, Path], release: str) -> None:
    with pytest.raises(PatchError, match=r"exactly one of .*\(0 times\).*\(0 times\)"):
        edit(source_of(releases, release, "deepseek_v2"), "d.py", (BlockLoop("DeepseekV2Model", NORMAL),))


def test_a_capture_that_is_there_already_is_wrapped(releases: dict[str, Path]) -> None:
    after = edit(source_of(releases, NEW, "gpt_oss"), "gpt_oss.py", (OTHERS["gpt_oss"],)).decode()
    line = "capture=_hs_recorder.final_capture(_hs_pass, aux_hidden_states.capture if self.end_layer in "
    assert after.count(line) == 1
    assert re.search(r"\(_hs_pass, i, aux_hidden_states\.capture if i in self\.layers_to_capture else None\),", after)


def test_nothing_loads_libcst_before_it_is_needed() -> None:
    code = "import sys, patches.manage; assert 'libcst' not in sys.modules and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
