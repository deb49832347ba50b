"""Folders made once: whole or not at all, checked on use, made by one process at a time."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from workbench.models import store

RECIPE = "r1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "models" / "m"


def make(folder: Path, text: str = "weights") -> None:
    with store.locked(folder), store.building(folder, RECIPE) as made:
        (made / "a.bin").write_text(text)
        (made / "b.json").write_text("{}")


def test_a_made_folder_is_whole(folder: Path) -> None:
    assert store.problem(folder, RECIPE, full=False) == "it was not made yet"
    make(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["a.bin", "b.json", "manifest.json"]
    assert store.problem(folder, RECIPE, full=True) == ""
    written = json.loads((folder / "manifest.json").read_text())
    digest = subprocess.run(["sha256sum", folder / "a.bin"], capture_output=True, text=True, check=True).stdout
    assert written["files"]["a.bin"]["sha256"] == digest.split()[0]
    assert {path.name for path in folder.parent.iterdir()} == {"m", ".m.lock"}


def test_another_recipe_is_made_again(folder: Path) -> None:
    make(folder)
    assert "another release" in store.problem(folder, "r2", full=False)


def test_damage_is_seen(folder: Path) -> None:
    make(folder)
    before = (folder / "a.bin").stat()
    (folder / "a.bin").write_text("wEights")
    assert store.problem(folder, RECIPE, full=False) == "a.bin is damaged"
    os.utime(folder / "a.bin", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert store.problem(folder, RECIPE, full=False) == ""
    assert store.problem(folder, RECIPE, full=True) == "a.bin is damaged"
    (folder / "a.bin").write_text("short")
    assert store.problem(folder, RECIPE, full=False) == "a.bin is damaged"
    (folder / "a.bin").unlink()
    assert store.problem(folder, RECIPE, full=False) == "a.bin is missing"


def test_a_copied_folder_is_hashed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(folder)
    os.utime(folder / "a.bin", (1, 1))
    assert store.problem(folder, RECIPE, full=False) == ""

    def never(path: Path) -> str:
        raise AssertionError(path)

    monkeypatch.setattr(store, "sha256", never)
    assert store.problem(folder, RECIPE, full=False) == ""


@pytest.mark.parametrize("manifest", ["", "{", '{"recipe": "r1"}', "[]"])
def test_a_broken_manifest_is_no_manifest(folder: Path, manifest: str) -> None:
    make(folder)
    (folder / "manifest.json").write_text(manifest)
    assert "cannot be read" in store.problem(folder, RECIPE, full=False)
    (folder / "manifest.json").unlink()
    assert store.problem(folder, RECIPE, full=False) == "manifest.json is missing"


def test_a_failed_build_changes_nothing(folder: Path) -> None:
    make(folder, "first")

    def interrupted() -> None:
        with store.building(folder, RECIPE) as made:
            (made / "a.bin").write_text("second")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (folder / "a.bin").read_text() == "first"
    assert store.problem(folder, RECIPE, full=True) == ""
    assert {path.name for path in folder.parent.iterdir()} == {"m", ".m.lock"}


BUILD = """
import sys, time
from pathlib import Path
from workbench.models import store
folder = Path(sys.argv[1])
with store.locked(folder):
    if store.problem(folder, "r1", False):
        with store.building(folder, "r1") as made:
            (made / "a.bin").write_text("half")
            print("building", flush=True)
            time.sleep(float(sys.argv[2]))
            (made / "a.bin").write_text("whole")
            (folder.parent / f"built-by-{sys.argv[3]}").touch()
"""


def build(folder: Path, seconds: float, name: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", BUILD, str(folder), str(seconds), name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_killed_build_leaves_nothing_that_could_be_used(folder: Path) -> None:
    with build(folder, 60, "x") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "building\n"
        child.kill()
    assert not folder.exists()
    assert list(folder.parent.glob(".m.build-*"))
    make(folder)
    assert {path.name for path in folder.parent.iterdir()} == {"m", ".m.lock"}


def test_of_two_at_once_only_one_builds(folder: Path) -> None:
    with build(folder, 0.5, "1") as first, build(folder, 0.5, "2") as second:
        assert (first.wait(), second.wait()) == (0, 0)
    assert len(list(folder.parent.glob("built-by-*"))) == 1
    assert (folder / "a.bin").read_text() == "whole"


def test_a_reader_never_sees_half_a_folder(folder: Path) -> None:
    make(folder, "whole")
    (folder / "manifest.json").unlink()
    with build(folder, 0.3, "1") as child:
        while child.poll() is None:
            with contextlib.suppress(FileNotFoundError):  # between the old folder and the new one there is none
                assert (folder / "a.bin").read_text() == "whole"
            time.sleep(0.001)
    assert store.problem(folder, RECIPE, full=True) == ""
