"""A real SGLang on the CPU: started with what a complete dump needs, asked, killed, and stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.errors import RequestRefused
from workbench.server import flags, state
from workbench.server.client import AnsweredWithError, SglangClient
from workbench.server.engine import find_engine
from workbench.server.events import PhaseChanged, Ready
from workbench.server.launch import DumpSpec, LaunchSpec, ServerRecord, plan, start, wait_ready
from workbench.server.stop import stop
from workbench.server.survey import survey

pytestmark = pytest.mark.engine

HELLO = [19556, 905]


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        patch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # would break a warm-up that obeyed it
        patch.setenv("http_proxy", "http://127.0.0.1:9")
        yield folder


@pytest.fixture(scope="module")
def own_server(home: Path, demo_model: Path) -> Iterator[ServerRecord]:
    dump = DumpSpec(str(home / "dumps"))
    record = start(plan(LaunchSpec(model=str(demo_model), device="cpu", port=0, dump=dump), find_engine()))
    try:
        events = list(wait_ready(record, 900))
        phases = [event.phase for event in events if isinstance(event, PhaseChanged)]
        assert phases == ["import", "start workers", "load weights", "kv cache", "warm-up", "ready"]
        assert isinstance(events[-1], Ready)
        yield record
    finally:
        list(stop(record, grace_s=0))


@pytest.fixture
def client(own_server: ServerRecord) -> Iterator[SglangClient]:
    with SglangClient(own_server.url) as client:
        yield client


def run_hsbench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "workbench.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


def test_the_engine_declares_every_flag_that_is_added() -> None:
    engine = find_engine()
    added = {flag for flag, _ in (*flags.CPU, *flags.DUMP)} | {"--max-total-tokens"}
    assert added <= engine.flags
    assert engine.has_cpu_platform


def test_the_server_runs_as_a_complete_dump_needs(client: SglangClient, own_server: ServerRecord) -> None:
    info = client.server_info()
    assert flags.incomplete(info) == []
    assert info["version"] == own_server.engine_version
    assert (info["device"], info["port"]) == ("cpu", own_server.port)
    assert client.max_input_len() == 8185


def test_tokens_come_from_the_model(client: SglangClient, demo_model: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo_model)
    assert client.tokenize("Hello world") == (HELLO, 8192)
    assert client.pieces([*HELLO, 1]) == ["Hello", " world", "<|im_start|>"]
    chat = [{"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert client.tokenize_chat(chat) == tokenizer.encode(text)


def test_prompts_alone_and_together(client: SglangClient) -> None:
    alone = client.generate(HELLO, "serve-1", logprobs=True, logprob_start=0, top_logprobs=3)
    assert alone["meta_info"]["id"] == "serve-1"
    assert alone["meta_info"]["prompt_tokens"] == 2
    assert [token for _, token, _ in alone["meta_info"]["input_token_logprobs"]] == HELLO
    assert len(alone["meta_info"]["output_top_logprobs"][0]) == 3
    both = client.generate([HELLO, [1, 2, 3]], ["serve-2", "serve-3"], max_new_tokens=2)
    assert [one["meta_info"]["id"] for one in both] == ["serve-2", "serve-3"]
    assert both[0]["output_ids"][0] == alone["output_ids"][0]


def test_refusals_in_the_servers_words(client: SglangClient) -> None:
    with pytest.raises(RequestRefused, match="cannot be empty"):
        client.generate([], "serve-4")
    with pytest.raises(AnsweredWithError, match=r"8192|8186") as caught:
        client.generate([5] * 9000, "serve-5")
    assert caught.value.status == 400
    assert client.health() == 200


def test_status_tells_what_it_is(own_server: ServerRecord) -> None:
    done = run_hsbench("status", "--json")
    [seen] = json.loads(done.stdout)["servers"]
    assert seen["state"] == "ready"
    assert len(seen["pids"]) >= 3
    assert seen["server"]["url"] == own_server.url
    assert own_server.url in run_hsbench("status").stdout


def test_a_wrong_flag_is_named_with_the_exit_code(demo_model: Path) -> None:
    flags_ = ("--", "--no-such-flag", "--api-key", "planted-secret")
    done = run_hsbench("serve", "--model", str(demo_model), "--name", "wrong", "--port", "0", *flags_)
    assert done.returncode == 3
    assert done.stdout == ""
    assert "wrong died in phase 'import' (exit code 2): unrecognized arguments: --no-such-flag" in done.stderr
    assert "next: correct the flags after --" in done.stderr
    assert "planted-secret" not in done.stderr
    assert state.load("wrong") is None


def test_a_killed_server_is_known_and_nothing_is_left_of_it(own_server: ServerRecord) -> None:
    os.kill(own_server.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while state.alive(own_server):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [seen.state for seen in survey()] == ["dead"]
    done = run_hsbench("stop")
    assert done.returncode == 0, done.stderr
    assert "no process is left" in done.stderr
    listed = subprocess.run(["ps", "-eo", "sid=,stat="], capture_output=True, text=True, check=True).stdout
    assert not [line for line in listed.splitlines() if line.split()[0] == str(own_server.pid) and "Z" not in line]
    assert list(survey()) == []
