"""The plug-in route: inert unless asked for, and then the same edit as the patch, in memory."""

import ast
import hashlib
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from patches import plugin
from patches.codemods import FAMILIES, loops_by_file
from patches.codemods.mark import MARK
from patches.errors import PatchError
from patches.identity import source_sha256
from patches.manage import apply
from patches.tree import Tree
from tests.trees import LLAMA

EDITED = b"from patches import recorder as _hs_recorder"
OF_THE_PATCH = b"from sglang._hs import recorder as _hs_recorder"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hsbench" / "edited"


def test_the_same_edit_as_the_patch_but_for_the_recorder(tree: Tree) -> None:
    files = [file for file in loops_by_file(FAMILIES) if (tree.root / file).exists()]
    before = {file: (tree.root / file).read_bytes() for file in files}
    in_memory = {file: plugin.edited(tree.root / file, file) for file in files}
    assert {file: (tree.root / file).read_bytes() for file in files} == before
    apply(tree)
    for file in files:
        patched = (tree.root / file).read_bytes()
        assert in_memory[file] == patched.replace(OF_THE_PATCH, EDITED)
        assert plugin.edited(tree.root / file, file) == in_memory[file], (
            "a patched tree has its originals to start from"
        )
    assert MARK.search(in_memory[LLAMA])
    assert EDITED in in_memory[LLAMA]
    (tree.root / "_hs" / "original" / LLAMA).unlink()
    with pytest.raises(PatchError, match="its original is gone"):
        plugin.edited(tree.root / LLAMA, LLAMA)


def test_an_edit_is_kept_and_a_damaged_one_made_anew(tree: Tree, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = plugin.edited(tree.root / LLAMA, LLAMA)
    (kept,) = cache.glob("*.py")
    made: list[str] = []
    real = plugin.edit

    def counted(source: bytes, file: str, loops: object) -> bytes:
        made.append(file)
        return real(source, file, loops)  # type: ignore[arg-type]

    monkeypatch.setattr(plugin, "edit", counted)
    assert plugin.edited(tree.root / LLAMA, LLAMA) == first
    assert made == []
    kept.write_bytes(kept.read_bytes()[:-20])
    assert plugin.edited(tree.root / LLAMA, LLAMA) == first
    assert made == [LLAMA]


def test_it_works_where_nothing_can_be_kept(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert MARK.search(plugin.edited(tree.root / LLAMA, LLAMA))


PACKAGE = {
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/models/__init__.py": "",
    "sglang/srt/models/other.py": "HERE = __file__\n",
}


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A package with the place of a model file in it; each test puts its own there."""
    for name, text in PACKAGE.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "site"


MODEL = '''"""A model file."""
import logging


class LlamaModel:
    def forward(self, input_ids, positions, forward_batch):
        hidden_states = 0
        aux_hidden_states = []
        for i in range(self.start_layer, self.end_layer):
            hidden_states = self.layers[i](
                hidden_states, capture_output=aux_hidden_states.append if i in self.layers_to_capture else None
            )
        hidden_states = residual_batch.final_norm(hidden_states, forward_batch, self.norm)
        return hidden_states
'''


def run(engine: Path, code: str, **env: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(plugin.__file__).parents[1])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_")}
    path = os.pathsep.join([str(engine), root])
    return subprocess.run(
        [sys.executable, "-c", "import patches.plugin; patches.plugin.register()\n" + code],
        env={**kept, "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        check=True,
    )


IMPORT = "import sglang.srt.models.llama as m, inspect\nprint(inspect.getsource(m.LlamaModel.forward))"


def test_it_does_nothing_unless_asked_for(engine: Path) -> None:
    (engine / "sglang/srt/models/llama.py").write_text(MODEL)
    for env in ({}, {"SGLANG_HS_ROUTE": "patch"}, {"SGLANG_HS_ROUTE": "builtin"}):
        done = run(engine, f"import sys; assert 'libcst' not in sys.modules\n{IMPORT}", **env)
        assert "_hs_" not in done.stdout + done.stderr


def test_it_edits_on_import_tells_of_it_and_leaves_the_file(engine: Path) -> None:
    file = engine / "sglang/srt/models/llama.py"
    file.write_text(MODEL)
    code = f"{IMPORT}\nfrom patches import recorder\nprint(recorder._this_route())\nprint(m._hs_recorder is recorder)"
    done = run(engine, code, SGLANG_HS_ROUTE="plugin")
    assert done.stderr.splitlines() == ["_hs_ plug-in applied to srt/models/llama.py"]
    assert "_hs_recorder.begin(self, forward_batch)" in done.stdout, "tracebacks and inspect see what runs"
    assert f"_Route(name='plugin', patch_hash='{source_sha256()}')" in done.stdout
    assert done.stdout.endswith("True\n")
    assert file.read_text() == MODEL
    assert not list(engine.rglob("llama*.pyc"))


def test_only_the_files_named_are_edited(engine: Path) -> None:
    (engine / "sglang/srt/models/llama.py").write_text(MODEL)
    done = run(engine, IMPORT, SGLANG_HS_ROUTE="plugin", SGLANG_HS_FILES="srt/models/qwen2.py,srt/models/gpt_oss.py")
    assert "_hs_" not in done.stdout + done.stderr


def test_a_file_that_it_does_not_recognise_is_told_and_loaded_as_it_is(engine: Path) -> None:
    (engine / "sglang/srt/models/llama.py").write_text(MODEL.replace("capture_output", "capture"))
    done = run(engine, IMPORT, SGLANG_HS_ROUTE="plugin")
    assert done.stderr.startswith("_hs_ plug-in cannot edit srt/models/llama.py: srt/models/llama.py: looked for")
    assert "capture=" in done.stdout


EARLY = """
import sglang.srt.models.llama as m, inspect, os
model, before = m.LlamaModel(), m.LlamaModel
os.environ['SGLANG_HS_ROUTE'] = 'plugin'
patches.plugin.register()
print(m.LlamaModel is before, m._hs_recorder.__name__)
print(inspect.getsource(model.forward))
model.forward(None, None, None)
"""


def test_a_file_imported_too_early_gets_its_edited_code(engine: Path) -> None:
    """In SGLang 0.5.15 some attention code imports deepseek_v2, which may come before the plug-ins."""
    body = "class LlamaModel:\n    start_layer, end_layer, layers_to_capture, norm = 0, 0, (), None\n"
    text = MODEL.replace("class LlamaModel:\n", body).replace("import logging\n", "from types import SimpleNamespace\n")
    text += "\n\nresidual_batch = SimpleNamespace(final_norm=lambda *_, capture=None: print('normed', capture))\n"
    (engine / "sglang/srt/models/llama.py").write_text(text)
    done = run(engine, EARLY)
    assert done.stderr.splitlines() == ["_hs_ plug-in applied to srt/models/llama.py"]
    assert done.stdout.startswith("True patches.recorder\n")
    assert "_hs_recorder.begin(self, forward_batch)" in done.stdout
    assert done.stdout.endswith("normed None\n"), "an object that was made before runs the edited code"


def test_one_imported_too_early_and_not_recognised_is_told(engine: Path) -> None:
    (engine / "sglang/srt/models/llama.py").write_text(MODEL.replace("capture_output", "capture"))
    done = run(engine, EARLY.partition("print")[0])
    assert "cannot edit srt/models/llama.py, which was imported before the plug-in was called: " in done.stderr


@pytest.mark.parametrize("file", sorted(loops_by_file(FAMILIES)))
def test_every_edit_is_inside_the_functions_that_run_the_blocks(tree: Tree, file: str) -> None:
    """What the code of an imported module is replaced by rests on this: no other function changes."""
    before = functions(ast.parse((tree.root / file).read_bytes()))
    after = functions(ast.parse(plugin.edited(tree.root / file, file)))
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed <= {f"{loop.model}.forward" for loop in loops_by_file(FAMILIES)[file]}
    assert before.keys() == after.keys()


def functions(module: ast.Module) -> dict[str, str]:
    """Every function at the top or in a class, and what else stands at the top."""
    found = {}
    for node in module.body:
        for inner in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(inner, ast.FunctionDef):
                name = f"{node.name}.{inner.name}" if isinstance(node, ast.ClassDef) else inner.name
                found[name] = ast.dump(inner)
    return found


def test_sglang_calls_it_through_its_entry_point(tmp_path: Path) -> None:
    """SGLang's own loader in both its moods: every plug-in, and only those of a list that ours is not on."""
    code = (
        "import sys, logging; logging.disable(logging.CRITICAL)\n"
        "from sglang.srt.plugins import load_plugins\nload_plugins()\n"
        "print(any(type(f).__module__ == 'patches.plugin' for f in sys.meta_path))"
    )
    for only, called in (("", "True"), ("another", "False")):
        env = {**os.environ, "SGLANG_HS_ROUTE": "plugin", "SGLANG_PLUGINS": only}
        command = [sys.executable, "-W", "ignore", "-c", code]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, cwd=tmp_path)
        assert done.stdout.splitlines()[-1] == called


def test_the_hash_stands_for_every_file_that_records() -> None:
    root = Path(plugin.__file__).parent
    digest = hashlib.sha256()
    names = [
        *sorted(root.glob("codemods/*.py")),
        *sorted(root.glob("recorder/*.py")),
        root / "plugin.py",
        root / "hooks.py",
    ]
    for path in names:
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    assert source_sha256() == digest.hexdigest()
    assert inspect.getsource(importlib.import_module("patches.hooks"))
