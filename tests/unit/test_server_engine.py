"""Finding the engine in real interpreters, without importing it."""

import sys
import venv
from pathlib import Path

import pytest

from workbench.errors import Missing
from workbench.server import scan
from workbench.server.engine import find_engine, find_interpreter


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bare virtual environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True, with_pip=False)
    return folder


def packages(environment: Path) -> Path:
    return next(environment.glob("lib/python*/site-packages"))


def install(environment: Path, name: str, version: str) -> Path:
    root = packages(environment) / name
    root.mkdir(exist_ok=True)
    (root / "__init__.py").write_text("raise SystemExit('imported')")
    info = packages(environment) / f"{name}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return root


def test_an_engine_is_found_without_being_imported(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoy = tmp_path / "sglang"
    decoy.mkdir()
    (decoy / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Missing, match="no SGLang in") as caught:
        find_engine(str(environment))
    assert "--python PATH" in caught.value.next_step
    root = install(environment, "sglang", "0.5.99")
    with pytest.raises(Missing, match="has no torch"):
        find_engine(str(environment))
    install(environment, "torch", "2.99.0+cpu")
    arguments = root / "srt" / "server_args.py"
    arguments.parent.mkdir()
    arguments.write_text("class A:\n    tp_size: A[\n        int\nparser.add_argument('--old-flag')\n")
    engine = find_engine(str(environment))
    assert (engine.version, engine.torch, engine.root) == ("0.5.99", "2.99.0+cpu", root)
    assert engine.python == str(environment / "bin" / "python")
    assert (engine.cuda, engine.has_cpu_platform) == (False, False)
    assert engine.flags == {"--tp-size", "--old-flag"}


def test_the_version_of_a_tree_without_metadata(tmp_path: Path) -> None:
    (tmp_path / "_version.py").write_text("__version__ = version = '0.5.15.post1'\n")
    assert scan.source_version(str(tmp_path)) == "0.5.15.post1"
    assert scan.source_version(str(tmp_path / "none")) is None


def test_no_interpreter(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="no interpreter at"):
        find_engine(str(tmp_path / "python"))
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho oh no >&2\nexit 3\n")
    broken.chmod(0o755)
    with pytest.raises(Missing, match="not a usable Python") as caught:
        find_engine(str(broken))
    assert "oh no" in caught.value.details


def test_interpreters_by_name_and_folder(environment: Path) -> None:
    assert find_interpreter(None) == sys.executable
    assert find_interpreter(str(environment)) == str(environment / "bin" / "python")
    assert find_interpreter("sh").endswith("/sh")
