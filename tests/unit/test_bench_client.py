"""The streaming client and its parsing: answers cut anywhere, counted in every way, and broken in every way."""

import asyncio
import json
import socket

import pytest

from bench.load.records import RequestRecord, record_of
from bench.load.spec import Api
from bench.load.sse import SseParser
from tests.unit.bench_support import DONE, STREAM, answered, answering, ask, native, openai, traced, usage

TEXT = b'data: {"a": 1}\n\n: a comment\n\ndata:two\ndata: lines\nid: 3\n\nevent: x\ndata: \xe2\x82\xac\n\n'
EVENTS = [b'{"a": 1}', b"two\nlines", b"\xe2\x82\xac"]


@pytest.mark.parametrize("text", [TEXT, TEXT.replace(b"\n", b"\r\n")], ids=["lf", "crlf"])
def test_events_cut_at_any_byte(text: bytes) -> None:
    for cut in range(len(text) + 1):
        parser = SseParser()
        assert parser.feed(text[:cut]) + parser.feed(text[cut:]) == EVENTS
        assert parser.rest == b""
    parser = SseParser()
    assert [event for at in range(len(text)) for event in parser.feed(text[at : at + 1])] == EVENTS
    assert SseParser().feed(text) == EVENTS


def test_an_event_without_its_end_is_kept_back() -> None:
    parser = SseParser()
    assert parser.feed(b"data: 1\n") == []
    assert parser.rest == b"data: 1\n"


@pytest.mark.parametrize("api", ["native", "openai", "openai-chat"])
def test_counts_of_the_server(api: Api) -> None:
    chat = api == "openai-chat"
    end = {"type": "length", "length": 6}
    if api == "native":
        events = [native(1), native(2), native(5), native(6, end), DONE]
    else:
        events = [openai("a", chat=chat, **usage(n)) for n in (1, 2, 5)]
        events += [openai("b", "length", chat=chat, **usage(6)), openai(**usage(6)), DONE]
    trace = traced(api, *events)
    assert (trace.times, trace.totals) == ([1.0, 2.0, 3.0, 4.0], [1, 2, 5, 6])
    assert (trace.finish, trace.error, trace.done, trace.prompt) == ("length", None, True, 7)
    record = record_of(trace, 0.0)
    assert (record.counts, record.counted, record.tokens) == ((1, 1, 3, 1), "chunk", 6)
    assert record.cached_tokens == (2 if api == "native" else None)


def test_text_that_looks_like_a_count() -> None:
    text = '"completion_tokens":99,"finish_reason":null'
    trace = traced("native", native(1, text=text), native(2, text=text), native(3, {"type": "stop"}, text=text))
    assert (trace.totals, trace.finish) == ([1, 2, 3], "stop")


def test_json_with_blanks_is_read_too() -> None:
    spaced = [b"data: " + json.dumps(json.loads(native(n)[6:])).encode() for n in (1, 2)]
    assert traced("native", *spaced).totals == [1, 2]


@pytest.mark.parametrize("chat", [False, True])
def test_a_total_at_the_end_is_spread_and_marked(chat: bool) -> None:
    api: Api = "openai-chat" if chat else "openai"
    pieces = [openai(text, chat=chat) for text in ("", "a", "b", "c")]
    trace = traced(api, *pieces, openai("d", "stop", chat=chat), openai(**usage(10)), DONE)
    record = record_of(trace, 0.0)
    assert (len(record.times), record.tokens, record.counted) == (4, 10, "total")
    assert max(record.counts) - min(record.counts) == 1
    assert record.finish == "stop"


def test_without_any_count_one_a_chunk_is_assumed() -> None:
    record = record_of(traced("openai", openai("a"), openai("b"), openai("", "stop"), DONE), 0.0)
    assert (record.counts, record.counted, record.prompt_tokens) == ((1, 1), "assumed", None)
    blind = traced("native", b'{"text":"a","meta_info":{}}', b'{"text":"ab","meta_info":{"finish_reason":null}}')
    assert record_of(blind, 0.0).counted == "assumed"


def test_thoughts_count_as_text() -> None:
    thought = b'{"choices":[{"delta":{"reasoning_content":"hm"}}]}'
    assert len(traced("openai-chat", thought, openai("a", chat=True)).times) == 2


@pytest.mark.parametrize("api", ["native", "openai", "openai-chat"])
def test_a_request_and_its_answer(api: Api) -> None:
    chat = api == "openai-chat"
    if api == "native":
        events = [native(1), native(2), native(4, {"type": "length", "length": 4}), DONE]
    else:
        events = [openai("a", chat=chat, **usage(1)), openai("b", chat=chat, **usage(2))]
        events += [openai("c", "length", chat=chat, **usage(4)), DONE]
    whole = b"".join(events)
    record, sent = answered(api, STREAM, whole[:50], whole[50:200], whole[200:], key="k3y")
    assert (record.error, record.status, record.finish) == (None, 200, "length")
    assert (record.tokens, record.number, record.asked_tokens, record.prompt_tokens) == (4, 5, 4, 7)
    assert 0 < record.times[0] <= record.times[-1] <= record.end
    head, _, body = sent.partition(b"\r\n\r\n")
    path = {"native": "/generate", "openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}[api]
    assert head.startswith(f"POST {path} HTTP".encode())
    assert b"authorization: bearer k3y" in head.lower()
    asked = json.loads(body)
    assert asked["stream"] is True
    if api == "native":
        assert asked["input_ids"] == [1, 2, 3]
        assert asked["sampling_params"] == {"max_new_tokens": 4, "temperature": 0.0, "ignore_eos": True}
    else:
        assert (asked["model"], asked["max_tokens"], asked["ignore_eos"]) == ("m", 4, True)
        assert asked["stream_options"]["include_usage"] is True
        assert asked["messages" if chat else "prompt"]


@pytest.mark.parametrize(
    ("pieces", "words", "tokens"),
    [
        ([STREAM, native(1), b'data: {"error":{"message":"out of memory"}}\n\n', DONE], "out of memory", 1),
        ([STREAM, native(1), native(2)], "ended early", 2),
        ([STREAM, native(1, {"type": "abort", "message": "killed"}), DONE], "aborted: killed", 1),
        ([STREAM, b"data: {nonsense}\n\n"], "not as expected", 0),
        ([b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"text": ""}'], "not a stream", 0),
        ([b'HTTP/1.1 400 No\r\nContent-Length: 20\r\n\r\n{"error":"too long"}'], "HTTP 400: too long", 0),
        ([b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"], "HTTP 503: Busy", 0),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"], "the connection broke", 0),
        ([b""], "the connection broke", 0),
    ],
)
def test_answers_that_go_wrong(pieces: list[bytes], words: str, tokens: int) -> None:
    record, _ = answered("native", *pieces)
    assert record.error is not None
    assert words in record.error
    assert "\n" not in record.error
    assert (record.tokens, record.ok) == (tokens, False)


def test_nobody_listens() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        record = asyncio.run(ask(f"http://127.0.0.1:{held.getsockname()[1]}", "native"))
    assert record.error is not None
    assert record.error.startswith("cannot connect")
    assert record.status is None


def test_a_server_that_falls_silent_is_given_up_and_one_that_is_slow_is_not() -> None:
    """A comment is a sign of life: it is what a server sends while it has nothing to say."""

    async def with_gaps(limit: float) -> RequestRecord:
        comments = [b": still here\n\n"] * 4
        async with answering(STREAM, *comments, native(1, {"type": "stop"}), DONE, gap=0.5) as (url, _):
            return await ask(url, "native", timeout=limit)

    slow = asyncio.run(with_gaps(2.0))
    assert (slow.error, slow.tokens) == (None, 1)
    silent = asyncio.run(with_gaps(0.2))
    assert silent.error == "no byte came in the time allowed"
    assert not silent.ok
