"""Which family is supported by which route: on the real releases, those between them, and broken ones."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from pathlib import Path

import pytest

from patches.codemods import FAMILIES, edit, loops_by_file
from patches.errors import NoTree, PatchError
from patches.manage import State, apply, revert, status
from patches.support import ROUTES, copy_of_release, support
from patches.tree import Tree
from tests.trees import BETWEEN, LLAMA, NEW, OLD, apply_llama, installed_root, snapshot, wheel_of
from tests.unit.engine_forward import Log, run_forward
from tests.unit.test_patch_codemods import INHERIT, SEEN
from workbench.cli import run

NO_FLAG = "the release has no --enable-return-aux-hidden-states"


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Release → its wheel, for 0.5.15.post1 and some between it and 0.5.23."""
    return {name: wheel_of(name, tmp_path_factory.mktemp(name)) for name in (OLD, *BETWEEN)}


def test_every_family_on_the_installed_release() -> None:
    source = Tree(installed_root(), NEW, None)
    before = hashlib.sha256((source.root / LLAMA).read_bytes()).digest()
    with copy_of_release(source) as copy:
        cells = list(support(copy))
    assert [(cell.family, cell.route) for cell in cells] == [(f, r) for f in FAMILIES for r in ROUTES]
    assert [cell for cell in cells if not cell.ok or cell.reason] == []
    assert hashlib.sha256((source.root / LLAMA).read_bytes()).digest() == before
    assert not copy.root.exists()


@pytest.mark.parametrize("name", [OLD, *BETWEEN])
def test_every_family_on_a_wheel(wheels: dict[str, Path], name: str) -> None:
    """The patch and the plug-in everywhere; the flag came with 0.5.23."""
    with copy_of_release(wheels[name]) as copy:
        assert copy.version == name
        before = snapshot(copy.root)
        cells = list(support(copy))
        assert snapshot(copy.root) == before
    assert {cell.reason for cell in cells if cell.route == "builtin"} == {NO_FLAG}
    assert [cell for cell in cells if cell.route != "builtin" and not cell.ok] == []


@pytest.mark.parametrize("name", BETWEEN)
def test_the_recorder_sees_what_enters_each_block_in_releases_between(wheels: dict[str, Path], name: str) -> None:
    with copy_of_release(wheels[name]) as copy:
        for file, loops in loops_by_file(FAMILIES).items():
            before = (copy.root / file).read_bytes()
            after = edit(before, file, loops)
            if after == before:
                assert Path(file).stem in INHERIT[OLD]
                continue
            log = Log()
            result = run_forward(after, loops[0].model, log)
            assert (file, log) == (file, SEEN)
            assert result == run_forward(before, loops[0].model, Log()) == (-1015, [1003])


def test_all_families_at_once_and_back(tree: Tree) -> None:
    before = snapshot(tree.root)
    done = apply(tree)
    changed = {path for path, now in snapshot(tree.root).items() if path in before and before[path] != now}
    assert set(done.files) == changed
    assert {Path(path).stem for path in changed} == {Path(p).stem for p in loops_by_file(FAMILIES)} - INHERIT[
        tree.version
    ]
    assert status(tree).state is State.APPLIED
    manifest = json.loads((tree.root / "_hs" / "manifest.json").read_text())
    assert manifest["families"] == list(FAMILIES)
    assert manifest["files"]["srt/models/qwen2.py"]["families"] == ["qwen2", "qwen3"]
    revert(tree)
    assert snapshot(tree.root) == before


def test_from_one_family_to_all_and_back_to_one(tree: Tree) -> None:
    apply_llama(tree)
    one = snapshot(tree.root)
    assert apply(tree).changed
    assert apply_llama(tree).changed
    assert not apply_llama(tree).changed
    assert snapshot(tree.root) == one


def test_one_unknown_family_leaves_the_tree_as_it_was(tree: Tree) -> None:
    path = tree.root / "srt/models/glm4_moe.py"
    path.write_bytes(path.read_bytes().replace(b"class Glm4MoeModel(", b"class Glm4Body("))
    before = snapshot(tree.root)
    with pytest.raises(PatchError, match="looked for class Glm4MoeModel") as caught:
        apply(tree)
    assert "patch support" in caught.value.next_step
    assert snapshot(tree.root) == before
    cells = {(cell.family, cell.route): cell for cell in support(tree)}
    assert not cells["glm4_moe", "patch"].ok
    assert "looked for class Glm4MoeModel" in cells["glm4_moe", "patch"].reason
    assert all(cell.ok for (family, route), cell in cells.items() if route == "patch" and family != "glm4_moe")
    assert snapshot(tree.root) == before


def test_a_patched_tree_is_judged_by_its_originals(tree: Tree) -> None:
    apply_llama(tree)
    before = snapshot(tree.root)
    with copy_of_release(tree) as copy:
        assert status(copy).state is State.CLEAN
        assert all(cell.ok for cell in support(copy) if cell.route == "patch")
    assert snapshot(tree.root) == before


def test_a_tree_with_foreign_marks_is_refused(tree: Tree) -> None:
    apply_llama(tree)
    shutil.rmtree(tree.root / "_hs")
    with pytest.raises(PatchError, match=f"{LLAMA} carries _hs_ lines"), copy_of_release(tree):
        pass


@pytest.mark.parametrize("content", [None, "text", "zip"])
def test_what_is_no_wheel_of_sglang_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "other-1.0-py3-none-any.whl"
    if content == "text":
        path.write_text("no archive")
    elif content == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("other/__init__.py", "")
    with pytest.raises(NoTree, match=str(path)), copy_of_release(path):
        pass


def test_the_command_prints_a_matrix(wheels: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["patch", "support", "--wheel", str(wheels[OLD])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"SGLang {OLD}"
    assert ["deepseek_v2", "yes", "yes", "no", "(1)"] in [line.split() for line in lines]
    assert lines[-1] == f"(1) {NO_FLAG}"
    assert run(["patch", "support", "--wheel", str(wheels[OLD]), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["schema"], said["sglang"], len(said["cells"])) == (1, OLD, len(FAMILIES) * len(ROUTES))
    assert said["cells"][0] == {"family": "llama", "route": "patch", "ok": True, "reason": ""}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["support", "--wheel", "/none.whl"], 6, "/none.whl cannot be read as a wheel: No such file or directory"),
        (["support", "--wheel", "/none.whl", "--target", "/"], 2, "--wheel names the release by itself"),
        (["support", "--target", "/none"], 6, "/none is not a folder"),
        (["apply", "--family", "gpt5"], 2, "--family gpt5 is none of llama, qwen2, qwen3"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str) -> None:
    assert run(["patch", *arguments]) == code
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert said[0].startswith(f"hsbench: {says}")
