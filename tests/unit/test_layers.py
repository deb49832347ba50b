"""Who may import whom: proven in fresh interpreters and by reading every import statement."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "sglang", "textual", "httpx", "plotext", "numpy", "rich", "libcst", "transformers", "aiohttp", "ray"}
OURS = {"workbench", "probes", "patches", "bench"}
MAY_IMPORT = {"patches": {"torch", "libcst", "sglang"}, "probes": {"torch", "safetensors", "transformers", "datasets"}}


@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["--help"], *([name, "--help"] for name in ("probe", "serve", "patch", "extract", "bench"))],
)
def test_the_command_line_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys, workbench.cli\n"
        "try: workbench.cli.run(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print('LOADED', *sorted({m.split('.')[0] for m in sys.modules}))"
    )
    command = [sys.executable, "-c", code, *arguments]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    loaded = set(out.rpartition("LOADED")[2].split())
    assert "click" in loaded
    assert not loaded & HEAVY


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_the_engine_side_imports_only_what_it_may(package: str) -> None:
    files = list((ROOT / package).rglob("*.py"))
    assert files
    allowed = MAY_IMPORT[package] | {package} | set(sys.stdlib_module_names)
    for path in files:
        assert not set(imports(path)) - allowed, path


def test_only_the_app_may_import_textual() -> None:
    for path in (p for name in OURS for p in (ROOT / name).rglob("*.py")):
        if ROOT / "workbench" / "tui" not in path.parents:
            assert "textual" not in set(imports(path)), path


def test_only_one_module_of_the_application_knows_ray() -> None:
    for path in (ROOT / "workbench").rglob("*.py"):
        names_it = 'import_module("ray' in path.read_text(encoding="utf-8") or "ray" in set(imports(path))
        assert names_it == (path.name == "ray_crew.py"), path


def test_only_one_module_writes_to_the_terminal() -> None:
    for path in (ROOT / "workbench").rglob("*.py"):
        if path.name == "output.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{path}:{node.lineno}"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sys":
                written = node.attr in ("stdout", "stderr")
                assert not written or path.parent.name == "render", f"{path}:{node.lineno}"
