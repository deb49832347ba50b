"""What the client sends, and what it makes of answers. The bodies are those that SGLang 0.5.23 gave."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from workbench.errors import RequestRefused, ServerError, TimedOut, UsageError
from workbench.server.client import AnsweredWithError, SglangClient

Answer = Callable[[httpx.Request], httpx.Response]


def client(answer: Answer, **more: Any) -> SglangClient:
    return SglangClient("http://server:1", httpx.MockTransport(answer), **more)


def recording(body: Any) -> tuple[list[tuple[str, str, Any]], SglangClient]:
    seen: list[tuple[str, str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.method, request.url.path, json.loads(request.content or b"null")))
        return httpx.Response(200, json=body)

    return seen, client(answer)


def test_tokens_and_pieces() -> None:
    seen, one = recording({"tokens": [19556, 905], "count": 2, "max_model_len": 8192})
    assert one.tokenize("Hello world") == ([19556, 905], 8192)
    assert one.tokenize_chat([{"role": "user", "content": "Hi"}]) == [19556, 905]
    other, two = recording({"text": ["Hello", " world"]})
    assert two.pieces([19556, 905]) == ["Hello", " world"]
    assert two.pieces([]) == []
    assert seen + other == [
        ("POST", "/tokenize", {"prompt": "Hello world"}),
        ("POST", "/tokenize", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("POST", "/detokenize", {"tokens": [[19556], [905]], "skip_special_tokens": False}),
    ]


def test_generate() -> None:
    seen, one = recording({"text": " of"})
    sampling = {"max_new_tokens": 1, "temperature": 0.0}
    assert one.generate([1, 2], "hs-1") == {"text": " of"}
    one.generate([[1], [2]], ["hs-1", "hs-2"], logprobs=True)
    one.generate([1], "hs-1", 4, logprob_start=0, top_logprobs=3)
    asked = [body for _, path, body in seen if path == "/generate"]
    assert asked[0] == {"input_ids": [1, 2], "rid": "hs-1", "sampling_params": sampling}
    assert (asked[1]["rid"], asked[1]["return_logprob"], asked[1]["logprob_start_len"]) == (
        ["hs-1", "hs-2"],
        True,
        -1,
    )
    assert (asked[2]["logprob_start_len"], asked[2]["top_logprobs_num"]) == (0, 3)
    assert asked[2]["sampling_params"]["max_new_tokens"] == 4


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"error": {"message": "input_ids cannot be empty."}}, "input_ids cannot be empty."),
        ({"object": "error", "message": "Invalid prompt", "code": 400}, "Invalid prompt"),
        ({"error": "bad contract"}, "bad contract"),
        ({"detail": "Not Found"}, "Not Found"),
    ],
)
def test_refusals_carry_the_servers_words(body: Any, words: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        client(lambda request: httpx.Response(400, json=body)).generate([], "hs-1")
    assert caught.value.message == f"the server refused /generate (400): {words}"
    assert isinstance(caught.value, AnsweredWithError)
    assert caught.value.status == 400


def test_a_refusal_in_plain_text() -> None:
    with pytest.raises(RequestRefused, match="tea"):
        client(lambda request: httpx.Response(418, text="tea")).model_info()


def test_an_api_key_is_sent_and_a_missing_one_named() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200 if request.headers.get("Authorization") == "Bearer k" else 401, json={"error": "no"})

    assert client(answer, api_key="k").server_info() == {"error": "no"}
    with pytest.raises(RequestRefused) as caught:
        client(answer).server_info()
    assert "API key" in caught.value.next_step


def test_health_is_a_status() -> None:
    assert client(lambda request: httpx.Response(503)).health() == 503


def test_the_longest_prompt() -> None:
    assert recording({"max_req_input_len": 8186})[1].max_input_len() == 8185
    assert recording({})[1].max_input_len() is None


def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with SglangClient("127.0.0.1:1") as nobody, pytest.raises(ServerError) as caught:
        nobody.model_info()
    assert caught.value.message == "no server answers at http://127.0.0.1:1"
    assert "hsbench serve" in caught.value.next_step


def failing(error: Exception) -> SglangClient:
    def answer(request: httpx.Request) -> httpx.Response:
        raise error

    return client(answer)


def test_broken_connections() -> None:
    with pytest.raises(TimedOut):
        failing(httpx.ReadTimeout("slow")).model_info()
    with pytest.raises(ServerError, match="broke off"):
        failing(httpx.RemoteProtocolError("peer closed connection")).model_info()
    with pytest.raises(ServerError, match="JSON"):
        client(lambda request: httpx.Response(200, text="<html>")).model_info()


@pytest.mark.parametrize("url", ["http://[::1", "ftp://host/"])
def test_no_url(url: str) -> None:
    with pytest.raises(UsageError, match="is not a URL"), SglangClient(url) as one:
        one.model_info()
