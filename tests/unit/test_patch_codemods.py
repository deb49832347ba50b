"""The codemods on the real sources of both releases, and on sources that they must refuse."""

from __future__ import annotations

import ast
import difflib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from patches.codemods import FAMILIES, BlockLoop, edit, loops_by_file
from patches.errors import PatchError
from tests.trees import LLAMA, NEW, OLD
from tests.unit.engine_forward import Log, run_forward

LOOPS = (BlockLoop("LlamaModel"),)
FILES = loops_by_file(FAMILIES)
INHERIT = {OLD: {"qwen3", "qwen3_moe"}, NEW: {"qwen3_moe"}}
"""Files whose class has no `forward` of its own in that release."""
ACCUMULATE = {"deepseek_v2", "qwen2_moe"}


def source_of(releases: dict[str, Path], release: str, name: str = "llama") -> bytes:
    return (releases[release] / "sglang" / "srt" / "models" / f"{name}.py").read_bytes()


def edited(releases: dict[str, Path], release: str, file: str) -> tuple[bytes, bytes]:
    """The file before and after."""
    before = source_of(releases, release, Path(file).stem)
    return before, edit(before, file, FILES[file])


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


@pytest.mark.parametrize("file", FILES)
def test_only_the_recorders_calls_are_added(releases: dict[str, Path], release: str, file: str) -> None:
    before, after = edited(releases, release, file)
    if Path(file).stem in INHERIT[release]:
        assert after == before
        return
    added = added_lines(before, after)
    assert 5 <= len(added) <= 6
    assert all("_hs_" in line for line in added)
    assert ast.dump(ast.parse(before)) != ast.dump(ast.parse(after))
    assert ast.dump(ast.parse(before)) == ast.dump(Unpatched().visit(ast.parse(after)))


@pytest.mark.parametrize("file", FILES)
def test_each_family_is_captured_in_the_way_of_its_release(releases: dict[str, Path], release: str, file: str) -> None:
    """Deepseek and Qwen MoE through the accumulator; the others by the sum before, by the callback now."""
    name = Path(file).stem
    if name in INHERIT[release]:
        return
    after = edited(releases, release, file)[1].decode()
    way = "accumulate" if name in ACCUMULATE else "entering" if release == OLD else "capture"
    final = "final_pair" if release == OLD else "final_capture"
    assert re.findall(r"_hs_recorder\.(\w+)\(", after) == ["begin", way, final, "finish"]


def test_what_enters_is_recorded_before_the_block_does_anything(releases: dict[str, Path]) -> None:
    lines = edit(source_of(releases, OLD), LLAMA, LOOPS).decode().splitlines()
    head = lines.index(f"        {LOOP}")
    assert lines[head - 1] == "        _hs_pass = _hs_recorder.begin(self, forward_batch)"
    assert lines[head + 1] == "            _hs_recorder.entering(_hs_pass, i, hidden_states, residual)"


def test_a_family_is_its_file_and_its_class() -> None:
    assert FAMILIES["llama"].edits == ((LLAMA, LOOPS[0]),)
    assert list(FAMILIES) == ["llama", "qwen2", "qwen3", "qwen3_moe", "gpt_oss", "deepseek_v2", "glm4_moe"]


SEEN = [
    ("begin", "batch"),
    ("pass", 0, 1000),
    ("pass", 1, 1001),
    ("pass", 2, 1003),
    ("pass", 3, 1007),
    ("pass", "final", 1015),
    ("pass", "finish", -1015),
]


def forward_of(before: bytes, file: str) -> list[tuple[Log, Any, Any]]:
    """The patched forward of each class with a loop: what the recorder saw, its result, the unpatched one's."""
    after = edit(before, file, FILES[file])
    found = []
    for loop in FILES[file] if after != before else ():
        for captured in ((2,), ()):
            log = Log()
            found.append(
                (
                    log,
                    run_forward(after, loop.model, log, captured),
                    run_forward(before, loop.model, Log(), captured),
                )
            )
    return found


@pytest.mark.parametrize("file", FILES)
def test_the_recorder_sees_what_enters_each_block(releases: dict[str, Path], release: str, file: str) -> None:
    """Whether or not the engine captures for itself; its own result, aux states included, stays the same."""
    before = source_of(releases, release, Path(file).stem)
    found = forward_of(before, file)
    assert len(found) == (0 if Path(file).stem in INHERIT[release] else 2)
    for (log, result, unpatched), expected in zip(found, ((-1015, [1003]), -1015), strict=False):
        assert log == SEEN
        assert result == unpatched == expected


def test_the_last_boundary_of_gpt_oss_is_still_handed_over(releases: dict[str, Path]) -> None:
    file = "srt/models/gpt_oss.py"
    _, after = edited(releases, NEW, file)
    log = Log()
    assert run_forward(after, "GptOssModel", log, captured=(1, 4)) == (-1015, [1001, 1015])
    assert log == SEEN


def test_a_class_that_neither_loops_nor_inherits_the_loop_is_refused(releases: dict[str, Path], release: str) -> None:
    source = source_of(releases, release, "qwen3_moe")
    other = source.replace(b"class Qwen3MoeModel(Qwen2MoeModel)", b"class Qwen3MoeModel(SomeModel)")
    assert other != source
    with pytest.raises(PatchError, match=r"looked for Qwen3MoeModel\.forward, found it 0 times"):
        edit(other, "srt/models/qwen3_moe.py", FILES["srt/models/qwen3_moe.py"])


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
    "both shapes": (
        OLD,
        LOOP,
        f"{LOOP}{INDENT}{SECOND_CALL}",
        r"exactly one of .*\(1 times\).*\(0 times\).*\(1 times\)",
    ),
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


def test_a_capture_that_is_there_already_is_wrapped(releases: dict[str, Path]) -> None:
    after = edited(releases, NEW, "srt/models/gpt_oss.py")[1].decode()
    line = "capture=_hs_recorder.final_capture(_hs_pass, aux_hidden_states.capture if self.end_layer in "
    assert after.count(line) == 1
    assert re.search(r"\(_hs_pass, i, aux_hidden_states\.capture if i in self\.layers_to_capture else None\),", after)


def test_nothing_loads_libcst_before_it_is_needed() -> None:
    code = "import sys, patches.manage; print(sorted({'libcst', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
