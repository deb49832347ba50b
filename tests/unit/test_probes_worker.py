"""The worker as a child process: protocol, stray output, and an interpreter that knows nothing of us."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import probes
from probes import calls, worker
from tests.unit.probes_support import BLOCKS, IDS, Capture, made_up, save_tiny_model, write_dump

WORKER = Path(probes.__file__).parent / "worker.py"


class Child:
    """A running worker that is asked one thing at a time."""

    def __init__(self, *options: str, env: dict[str, str] | None = None, cwd: Path | str = "/") -> None:
        self.process = subprocess.Popen(
            [sys.executable, *options, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=env,
        )

    def send(self, line: bytes) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()
        reply = json.loads(self.process.stdout.readline(), parse_constant=pytest.fail)
        assert isinstance(reply, dict)
        return reply

    def call(self, call: str, **arguments: Any) -> Any:
        reply = self.send(json.dumps({"id": 7, "call": call, "args": arguments}).encode())
        assert reply["id"] == 7
        assert "error" not in reply, reply
        return reply["result"]

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out.decode(), err.decode()


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def begin(*options: str, **how: Any) -> Child:
        children.append(Child(*options, **how))
        return children[-1]

    yield begin
    for child in children:
        if child.process.poll() is None:
            child.process.kill()
        child.process.communicate()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


def test_every_call_over_one_pipe(start: Callable[..., Child], model: Path, tmp_path: Path) -> None:
    capture = Capture(model, IDS)
    right = write_dump(tmp_path, "hs-1", capture.states[1:5])
    shifted = write_dump(tmp_path, "hs-2", [capture.states[k] for k in (2, 2, 3, 5)])
    child = start()
    assert child.call("ping")["torch"] == torch.__version__
    described = child.call("describe", folder=str(right))
    assert described["tensors"]["final"]["claim"]["norm"] == "pre"
    assert described["tensors"]["aux_0"]["stats"]["max"] == float(capture.states[1].max())
    assert [entry["kind"] for entry in child.call("list_dumps", folder=str(tmp_path))] == ["ours", "ours"]
    checked = child.call("reference", model=str(model), folder=str(right))
    assert ([row["verdict"] for row in checked["tensors"]], checked["num_tokens"]) == (["ok"] * BLOCKS, 10)
    checked = child.call("reference", model=str(model), folder=str(shifted))
    verdicts = [row["verdict"] for row in checked["tensors"]]
    assert verdicts == ["wrong block", "ok", "ok", "wrong norm"]
    scored = child.call("logits", model=str(model), folder=str(right), server_logprobs=capture.logprobs)
    assert (scored["verdict"], scored["fits"]) == ("ok", "pre")
    scored = child.call("logits", model=str(model), folder=str(shifted), server_logprobs=capture.logprobs)
    assert (scored["verdict"], scored["fits"]) == ("wrong norm", "post")
    rows = child.call("compare", solo=[str(right)], batch=[str(right)])["rows"]
    assert (rows[0]["bit_equal"], rows[0]["verdict"]) == (True, "ok")
    code, out, err = child.end()
    assert (code, out) == (0, "")
    assert "Traceback" not in err


def test_bad_lines_are_answered_and_the_worker_goes_on(start: Callable[..., Child], tmp_path: Path) -> None:
    child = start()
    for line in (
        b"garbage",
        b"\xff\x00\xfe",
        b"[1]",
        b"null",
        b'{"id": 1',
        b"{}",
        b'{"call": 5}',
        b"[" * 99_999,
    ):
        reply = child.send(line)
        assert (reply["id"], reply["error"]["kind"]) == (None, "call"), line
        assert "\n" not in reply["error"]["message"]
    reply = child.send(b'\n\n{"id": "a", "call": "nonsense", "args": {}}')
    assert (reply["id"], reply["error"]["kind"]) == ("a", "call")
    assert "unknown call 'nonsense'; known are ping, describe" in reply["error"]["message"]
    reply = child.send(b'{"id": 3, "call": "describe", "args": {"path": "x"}}')
    assert (reply["id"], reply["error"]["kind"]) == (3, "call")
    reply = child.send(b'{"id": 4, "call": "describe", "args": []}')
    assert (reply["id"], reply["error"]["kind"]) == (4, "call")
    reply = child.send(b'{"id": 5, "call": "describe", "args": {"folder": 5}}')
    assert (reply["id"], reply["error"]["kind"]) == (5, "internal")
    reply = child.send(json.dumps({"id": 6, "call": "describe", "args": {"folder": str(tmp_path / "no")}}).encode())
    assert reply["error"] == {
        "kind": "dump",
        "message": f"{tmp_path / 'no'} is not a folder",
        "next_step": "",
    }
    assert child.call("ping")
    assert child.end()[0] == 0


def test_nan_and_inf_become_null(start: Callable[..., Child], tmp_path: Path) -> None:
    tensors = made_up()
    tensors[0][2, 2], tensors[1][:] = float("inf"), float("nan")
    described = start().call("describe", folder=str(write_dump(tmp_path, "hs-1", tensors)))["tensors"]
    norms = described["aux_0"]["stats"]["token_norms"]
    assert [norm is None for norm in norms] == [row == 2 for row in range(len(IDS))]
    stats = described["aux_1"]["stats"]
    assert (stats["min"], stats["mean"], stats["nan"]) == (None, None, 640)


NOISY = """
import os, subprocess, sys
print("a library prints while it is imported")
os.write(1, b"and writes to file descriptor 1\\n")
subprocess.run(["echo", "and so does its child"])
assert sys.stdin.read() == "", "nobody else reads the requests"
try:
    import stats
except ModuleNotFoundError:
    print("our modules do not stand in for others of their names")
"""


def test_what_libraries_print_goes_to_stderr(start: Callable[..., Child], tmp_path: Path) -> None:
    (tmp_path / "noise.py").write_text(NOISY)
    (tmp_path / "sitecustomize.py").write_text(
        textwrap.dedent("""
        import sys
        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == "probes.dumps":
                    import noise
        sys.meta_path.insert(0, Finder())
        """)
    )
    child = start(env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert child.call("ping")
    code, out, err = child.end()
    assert (code, out) == (0, "")
    for said in ("a library prints", "and writes to", "and so does its child", "our modules do not"):
        assert said in err
    assert "Traceback" not in err


BARE = """
import json, os, runpy, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in {"workbench", "patches", "bench", "probes"}:
            raise ModuleNotFoundError("this distribution is not installed here", name=name)
sys.meta_path.insert(0, Finder())
sys.path[:] = [entry for entry in sys.path if entry not in sys.argv[2:]]
sys.argv = sys.argv[1:2]
def say(code, leave=os._exit):
    sys.stderr.write("PATH " + json.dumps(sys.path) + " MODULES " + " ".join(sys.modules))
    sys.stderr.flush()
    leave(code)
os._exit = say
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_an_interpreter_without_this_distribution(model: Path, tmp_path: Path) -> None:
    """-I keeps the working folder, PYTHONPATH and the user's packages out; a finder keeps us out."""
    capture = Capture(model, IDS)
    dump = write_dump(tmp_path, "hs-1", capture.states[1:5])
    root = str(WORKER.parents[1])
    requests = [
        {"id": 1, "call": "reference", "args": {"model": str(model), "folder": str(dump)}},
        {"id": 2, "call": "describe", "args": {"folder": str(dump)}},
    ]
    done = subprocess.run(
        [sys.executable, "-I", "-c", BARE, str(WORKER), root],
        input="".join(json.dumps(request) + "\n" for request in requests),
        capture_output=True,
        text=True,
        cwd="/",
        check=True,
    )
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["verdict"] for row in replies[0]["result"]["tensors"]] == ["ok"] * BLOCKS
    assert replies[1]["id"] == 2
    path, _, modules = done.stderr.rpartition("PATH ")[2].partition(" MODULES ")
    assert root not in json.loads(path)
    assert str(WORKER.parent) not in json.loads(path)
    assert {"probes.reference", "probes.stats"} <= set(modules.split())


def test_without_torch_every_call_says_so() -> None:
    code = "import runpy, sys; sys.modules['torch'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code, str(WORKER)],
        input='{"id": 1, "call": "ping", "args": {}}\n',
        capture_output=True,
        text=True,
        check=True,
    )
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "package"
    assert f"{sys.executable} cannot import torch" in error["message"]
    assert "--python" in error["next_step"]


def test_the_end_of_stdin_ends_it_and_so_does_ctrl_c(start: Callable[..., Child]) -> None:
    assert start().end()[0] == 0
    child = start()
    child.call("ping")
    child.process.send_signal(signal.SIGINT)
    code, _, err = child.end()
    assert code == -signal.SIGINT
    assert "Traceback" not in err


def test_a_defect_is_answered_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise SystemExit("a library\ngives up")

    monkeypatch.setitem(calls.CALLS, "broken", broken)
    reply = worker.answer(b'{"id": 1, "call": "broken", "args": {}}')
    assert reply["error"]["kind"] == "internal"
    assert reply["error"]["message"] == "SystemExit: a library gives up"
    assert "Traceback" in capsys.readouterr().err


def test_reading_dumps_loads_no_torch() -> None:
    code = (
        "import sys, probes.dumps, probes.calls, probes.worker; probes.dumps.list_dumps('/');"
        "print(sorted({'torch', 'numpy', 'transformers', 'safetensors', 'click', 'msgspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
