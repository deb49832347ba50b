"""Finding the tree to patch, with real interpreters and without importing SGLang."""

from __future__ import annotations

import os
import shutil
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from patches.errors import NoTree, PatchError
from patches.tree import Tree, find_tree
from tests.trees import NEW, OLD, copy_of, installed_root


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with no packages, found at PREFIX/bin/pythonX.Y."""
    prefix = tmp_path_factory.mktemp("bare")
    venv.create(prefix, symlinks=True)
    return prefix / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"


def site_of(python: Path) -> Path:
    return python.parents[1] / "lib" / python.name / "site-packages"


def test_the_running_interpreters_tree() -> None:
    assert find_tree() == Tree(installed_root(), NEW, os.path.abspath(sys.executable))


@pytest.mark.parametrize("inside", [False, True])
def test_a_folder_is_the_package_or_around_it(tree: Tree, inside: bool) -> None:
    given = tree.root if inside else tree.root.parent
    assert find_tree(target=given) == Tree(tree.root, tree.version, None)
    assert find_tree(sys.executable, given) == Tree(tree.root, tree.version, sys.executable, by_target=True)


def test_a_relative_folder(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree.root)
    assert find_tree(target=Path()).root == tree.root
    monkeypatch.chdir(tree.root.parent)
    assert find_tree(target=Path("sglang")).root == tree.root


def test_another_interpreter_and_the_tree_inside_it(
    bare: Path, releases: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tree = copy_of(releases[OLD], tmp_path / "site", OLD)
    monkeypatch.setenv("PYTHONPATH", str(tree.root.parent))
    assert find_tree(str(bare)) == Tree(tree.root, OLD, str(bare))


def test_an_installed_folder_knows_its_interpreter(bare: Path, releases: dict[str, Path]) -> None:
    site = site_of(bare)
    shutil.copytree(releases[OLD] / "sglang", site / "sglang")
    try:
        assert find_tree(target=site) == Tree(site / "sglang", OLD, str(bare))
    finally:
        shutil.rmtree(site / "sglang")


def test_the_working_folder_does_not_shadow_the_package(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree.root.parent)
    assert find_tree().root == installed_root()


@pytest.mark.parametrize(
    ("spoil", "version"),
    [
        (("sglang-{}.dist-info",), None),  # the generated sglang/_version.py knows it
        (("sglang-{}.dist-info", "sglang/_version.py"), "unknown"),
    ],
)
def test_the_version_of_a_folder(tree: Tree, spoil: tuple[str, ...], version: str | None) -> None:
    for name in spoil:
        path = tree.root.parent / name.format(tree.version)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert find_tree(target=tree.root).version == (version or tree.version)


def test_leftover_metadata_does_not_decide(tree: Tree) -> None:
    (tree.root.parent / "sglang-0.1.0.dist-info").mkdir()
    assert find_tree(target=tree.root).version == tree.version


def test_no_sglang_in_the_interpreter(bare: Path) -> None:
    with pytest.raises(NoTree, match="has no package sglang") as caught:
        find_tree(str(bare))
    assert "--python" in caught.value.next_step


@pytest.mark.parametrize("content", [None, "not a program", "#!/bin/sh\nexit 3\n"])
def test_an_interpreter_that_is_none(tmp_path: Path, content: str | None) -> None:
    python = tmp_path / "python"
    if content is not None:
        python.write_text(content)
        python.chmod(0o755)
    with pytest.raises(NoTree) as caught:
        find_tree(str(python))
    assert str(python) in caught.value.message
    assert "\n" not in caught.value.message


def test_a_folder_that_holds_no_tree(tmp_path: Path) -> None:
    with pytest.raises(NoTree, match="is not a folder"):
        find_tree(target=tmp_path / "nothing")
    with pytest.raises(NoTree, match="is not an SGLang tree"):
        find_tree(target=tmp_path)
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").touch()
    with pytest.raises(NoTree, match="is not an SGLang tree"):
        find_tree(target=tmp_path)


def test_a_folder_named_sglang_that_is_no_package(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sglang").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(NoTree, match="an sglang that is no package"):
        find_tree(str(bare))


def test_a_package_inside_an_archive(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "sglang.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("sglang/__init__.py", "")
    monkeypatch.setenv("PYTHONPATH", str(archive))
    with pytest.raises(PatchError, match="inside an archive cannot be patched"):
        find_tree(str(bare))


def test_a_linked_package_names_the_real_one(tree: Tree, tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "sglang").symlink_to(tree.root)
    with pytest.raises(PatchError, match="is a symbolic link") as caught:
        find_tree(target=tmp_path / "linked")
    assert caught.value.next_step.endswith(f"--target {tree.root}")
