"""Real SGLang sources to patch: small copies of the two supported releases.

0.5.23 comes from the running interpreter, 0.5.15.post1 is downloaded from the package index once a session.
Where either is missing the tests fail; they never skip.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from patches.manage import Applied, apply
from patches.tree import Tree

NEW, OLD = "0.5.23", "0.5.15.post1"
LLAMA = "srt/models/llama.py"
MODELS = ("llama", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gpt_oss", "glm4_moe", "deepseek_v2")
FILES = ("__init__.py", "version.py", "_version.py", *(f"srt/models/{name}.py" for name in MODELS))
BETWEEN = ("0.5.17", "0.5.19", "0.5.21")
"""Releases whose loops have shapes that neither supported one has: gpt-oss in the first two, Qwen in the last."""


def apply_llama(tree: Tree) -> Applied:
    """The patch of one family: one file, and a fraction of the time."""
    return apply(tree, ["llama"])


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Release → folder that holds its `sglang/` and its dist-info. Read only: copy before a change."""
    folder = tmp_path_factory.mktemp("releases")
    return {NEW: _installed(folder / NEW), OLD: _downloaded(OLD, folder / OLD)}


@pytest.fixture(params=[NEW, OLD])
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tree(releases: dict[str, Path], release: str, tmp_path: Path) -> Tree:
    """A copy of each release in turn, free to change."""
    return copy_of(releases[release], tmp_path / "site", release)


def copy_of(folder: Path, to: Path, release: str) -> Tree:
    shutil.copytree(folder, to)
    return Tree(to / "sglang", release, None)


def installed_root() -> Path:
    """The `sglang/` of the running interpreter, found without importing it."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None, "the tests need SGLang"
    assert spec.origin is not None
    return Path(spec.origin).parent


def _installed(to: Path) -> Path:
    assert importlib.metadata.version("sglang") == NEW
    root = installed_root()
    for name in FILES:
        kept = root / "_hs" / "original" / name  # there when this environment happens to be patched
        target = to / "sglang" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(kept if kept.is_file() else root / name, target)
    info = f"sglang-{NEW}.dist-info"
    shutil.copytree(root.parent / info, to / info)
    return to


def wheel_of(release: str, folder: Path) -> Path:
    """Download a release's wheel into the folder."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:none:"]
    done = subprocess.run(
        [*command, f"--dest={folder}", f"sglang=={release}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def _downloaded(release: str, to: Path) -> Path:
    wheel = wheel_of(release, to.with_name(f"{to.name}-wheel"))
    wanted = {f"sglang/{name}" for name in FILES}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name in wanted or name.startswith(f"sglang-{release}.dist-info/"):
                archive.extract(name, to)
    return to


def snapshot(root: Path) -> dict[str, tuple[int, bytes | None]]:
    """Everything below `root`: path → (mode, bytes, or None for a folder)."""
    return dict(_entries(root))


def _entries(root: Path) -> Iterator[tuple[str, tuple[int, bytes | None]]]:
    for path in sorted(root.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        yield str(path.relative_to(root)), (mode, None if path.is_dir() else path.read_bytes())
