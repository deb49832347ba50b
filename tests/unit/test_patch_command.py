"""`hsbench patch` as a user runs it, and `verify` against real interpreters."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from patches.manage import verify
from patches.tree import Tree
from tests.trees import LLAMA, NEW, installed_root, snapshot
from tests.trees import apply_llama as apply
from workbench.cli import run

# Just enough of a package to import quickly, with the loop of 0.5.23.
MINIATURE = """\
import logging


class LlamaModel:
    def forward(self, forward_batch, aux):
        hidden_states = 0
        for i in range(self.start_layer, self.end_layer):
            hidden_states = self.layers[i](hidden_states, capture_output=aux.capture)
        hidden_states = self.batch.final_norm(hidden_states, self.norm)
        return hidden_states
"""


@pytest.fixture
def miniature(tmp_path: Path) -> Tree:
    root = tmp_path / "mini" / "sglang"
    for folder in (root, root / "srt", root / "srt" / "models"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").touch()
    (root / LLAMA).write_text(MINIATURE)
    return Tree(root, "unknown", sys.executable, by_target=True)


def hsbench(tree: Tree, command: str, *more: str) -> int:
    family = ["--family", "llama"] if command == "apply" else []
    return run(["patch", command, "--target", str(tree.root), *family, *more])


def answer(tree: Tree, capsys: pytest.CaptureFixture[str], command: str, *more: str) -> tuple[int, Any]:
    code = hsbench(tree, command, "--json", *more)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    loaded = json.loads(out)
    assert (loaded["schema"], loaded["root"], loaded["sglang"]) == (1, str(tree.root), tree.version)
    return code, loaded


def test_from_clean_to_clean(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(tree.root)
    code, said = answer(tree, capsys, "status")
    assert (code, said["state"], said["files"][LLAMA]) == (0, "clean", "original")
    code, said = answer(tree, capsys, "verify")
    assert (code, said["ok"]) == (5, False)
    code, said = answer(tree, capsys, "apply")
    assert (code, said["changed"], said["was"], said["files"]) == (0, True, "clean", [LLAMA])
    code, said = answer(tree, capsys, "apply")
    assert (code, said["changed"], said["was"]) == (0, False, "applied")
    code, said = answer(tree, capsys, "status")
    assert (code, said["state"], said["outdated"], said["files"]) == (0, "applied", False, {LLAMA: "patched"})
    code, said = answer(tree, capsys, "verify")
    assert (code, said["ok"], said["problems"], said["imported"]) == (0, True, [], [])
    assert "no interpreter is known" in said["notes"][0]
    code, said = answer(tree, capsys, "revert")
    assert (code, said["changed"], said["restored"]) == (0, True, [LLAMA])
    code, said = answer(tree, capsys, "revert")
    assert (code, said["changed"]) == (0, False)
    assert snapshot(tree.root) == before


def test_grep_prints_what_grep_prints(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    apply(tree)
    assert hsbench(tree, "grep") == 0
    printed = capsys.readouterr().out
    real = subprocess.run(["grep", "-Hn", "_hs_", str(tree.root / LLAMA)], capture_output=True, text=True, check=True)
    assert printed == real.stdout
    _, said = answer(tree, capsys, "grep")
    lines = [f"{line['path']}:{line['number']}:{line['text']}\n" for line in said["lines"]]
    assert "".join(lines) == real.stdout


def test_diff_leads_from_the_original_to_the_patched_file(
    tree: Tree, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    work = tmp_path / "work"
    shutil.copytree(tree.root.parent, work)
    apply(tree)
    assert hsbench(tree, "diff") == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"--- a/sglang/{LLAMA}\n+++ b/sglang/{LLAMA}\n")
    subprocess.run(["git", "apply", "-"], input=printed, text=True, cwd=work, check=True)
    assert (work / "sglang" / LLAMA).read_bytes() == (tree.root / LLAMA).read_bytes()
    assert answer(tree, capsys, "diff")[1]["diff"] == printed


def test_diff_of_a_file_without_a_last_newline(
    miniature: Tree, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (miniature.root / LLAMA).write_text(MINIATURE.removesuffix("\n"))
    work = tmp_path / "work"
    shutil.copytree(miniature.root.parent, work)
    apply(miniature)
    edited = (miniature.root / LLAMA).read_text() + "  # a note"
    (miniature.root / LLAMA).write_text(edited)
    assert hsbench(miniature, "diff") == 0
    subprocess.run(["git", "apply", "-"], input=capsys.readouterr().out, text=True, cwd=work, check=True)
    assert (work / "sglang" / LLAMA).read_text() == edited


@pytest.mark.parametrize("command", ["grep", "diff"])
def test_nothing_to_show_in_a_clean_tree(tree: Tree, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert hsbench(tree, command) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert str(tree.root) in said.err


def test_words_for_a_person(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    assert hsbench(tree, "apply") == 0
    said = capsys.readouterr()
    assert said.out == f"{tree.root / LLAMA}\n"
    assert f"SGLang {tree.version} in {tree.root}: patched (it was clean)" in said.err
    assert hsbench(tree, "status") == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("applied: by hsbench ")
    assert hsbench(tree, "revert") == 0
    assert capsys.readouterr().out == f"{tree.root / LLAMA}\n"


def test_a_refusal_is_one_line_and_a_next_step(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    path = tree.root / LLAMA
    path.write_bytes(path.read_bytes().replace(b"class LlamaModel(", b"class LlamaBody("))
    assert hsbench(tree, "apply") == 5
    said = capsys.readouterr()
    assert said.out == ""
    first, second = said.err.splitlines()
    assert first == f"hsbench: {LLAMA}: looked for class LlamaModel, found it 0 times, expected once"
    assert second.startswith("  next: ")


def test_a_file_edited_after_apply(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    apply(tree)
    with open(tree.root / LLAMA, "a", encoding="utf-8") as file:
        file.write("# a note of mine\n")
    code, said = answer(tree, capsys, "status")
    assert (code, said["state"]) == (0, "foreign")
    assert hsbench(tree, "revert") == 5
    assert hsbench(tree, "verify") == 5
    capsys.readouterr()
    assert "+# a note of mine" in answer(tree, capsys, "diff")[1]["diff"]
    code, said = answer(tree, capsys, "revert", "--force")
    assert (code, said["restored"], said["saved"]) == (0, [LLAMA], [f"{LLAMA}.hs-saved"])


def test_no_engine_has_its_own_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["patch", "status", "--target", str(tmp_path)]) == 6
    assert run(["patch", "status", "--python", str(tmp_path / "none")]) == 6
    assert "Traceback" not in capsys.readouterr().err


# verify


def test_verify_imports_from_this_tree(miniature: Tree) -> None:
    apply(miniature)
    found = verify(miniature)
    assert (found.ok, found.problems, found.imported) == (True, (), ("sglang.srt.models.llama",))


def test_verify_can_leave_the_import_out(miniature: Tree) -> None:
    apply(miniature)
    found = verify(miniature, import_modules=False)
    assert (found.ok, found.imported, found.notes) == (True, (), ("compiled only, not imported: as asked",))


def test_verify_reports_a_module_that_does_not_import(miniature: Tree) -> None:
    (miniature.root / LLAMA).write_text(f"{MINIATURE}\nraise RuntimeError('no kernels here')\n")
    apply(miniature)
    found = verify(miniature)
    assert not found.ok
    assert found.problems[0].startswith("sglang.srt.models.llama does not import in ")
    assert found.problems[0].endswith("RuntimeError: no kernels here")


def test_verify_notices_that_another_package_is_imported(miniature: Tree, tmp_path: Path) -> None:
    apply(miniature)
    other = tmp_path / "other"
    shutil.copytree(miniature.root, other / "sglang")
    shadowed = Tree(other / "sglang", "unknown", sys.executable, by_target=True)
    (other / "sglang" / "__init__.py").write_text(f"__path__[:] = [{str(miniature.root)!r}]\n")
    found = verify(shadowed)
    assert not found.ok
    assert str(miniature.root) in found.problems[0]
    assert found.imported == ()


@pytest.mark.parametrize("name", ["recorder/store.py", "__init__.py"])
def test_verify_notices_a_changed_recorder(miniature: Tree, name: str) -> None:
    apply(miniature)
    (miniature.root / "_hs" / name).write_text("changed = True\n")
    found = verify(miniature, import_modules=False)
    assert not found.ok
    assert f"_hs/{name}" in found.problems[0]


def test_verify_says_that_a_patch_is_outdated(miniature: Tree) -> None:
    apply(miniature)
    manifest = miniature.root / "_hs" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "codemods": "older"}))
    found = verify(miniature, import_modules=False)
    assert found.ok
    assert "brings it up to date" in found.notes[0]


def test_the_patched_module_of_a_real_engine_imports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ignored = shutil.ignore_patterns("_hs", "multimodal_gen")
    shutil.copytree(installed_root(), tmp_path / "sglang", ignore=ignored)
    kept = installed_root() / "_hs" / "original"
    if kept.is_dir():  # this environment happens to be patched
        shutil.copytree(kept, tmp_path / "sglang", dirs_exist_ok=True)
    tree = Tree(tmp_path / "sglang", NEW, sys.executable, by_target=True)
    apply(tree)
    code, said = answer(tree, capsys, "verify", "--python", sys.executable)
    assert (code, said["ok"], said["imported"]) == (0, True, ["sglang.srt.models.llama"])
