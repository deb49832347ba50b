"""A server that answers with given bytes, and requests as records, for the tests of the load generator."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

from bench.load.client import LoadClient
from bench.load.dialects import dialect
from bench.load.records import RequestRecord, Trace, record_of
from bench.load.spec import Api

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def native(tokens: int, finish: Any = None, **more: Any) -> bytes:
    """An event as SGLang 0.5.23 writes it: no blanks, the count behind the text."""
    meta = {"id": "x", "finish_reason": finish, "prompt_tokens": 7, "completion_tokens": tokens, "cached_tokens": 2}
    said = {"text": more.pop("text", "a" * tokens), "output_ids": [1], "meta_info": meta | more}
    return b"data: " + json.dumps(said, separators=(",", ":")).encode() + b"\n\n"


def openai(text: str | None = None, finish: str | None = None, chat: bool = False, **more: Any) -> bytes:
    """An event of completions or of a chat; without text and finish it has no choices."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    choice |= {"delta": {"content": text}} if chat else {"text": text}
    choices = [choice] if text is not None or finish else []
    return b"data: " + json.dumps({"id": "x", "choices": choices, **more}).encode() + b"\n\n"


def usage(tokens: int) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}}


@contextlib.asynccontextmanager
async def answering(*pieces: bytes, gap: float = 0.002) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server's URL, and the bodies that it was sent. It writes the pieces one by one, then closes."""
    seen: list[bytes] = []
    tasks: list[asyncio.Task[Any] | None] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        seen.append(head + await reader.readexactly(int(length.split(b":")[1])))
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(gap)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen
        await asyncio.gather(*(task for task in tasks if task is not None))


def answered(api: Api, *pieces: bytes, key: str | None = None) -> tuple[RequestRecord, bytes]:
    """The record of one request that was answered so, and the request as it arrived."""

    async def main() -> tuple[RequestRecord, bytes]:
        async with answering(*pieces) as (url, seen):
            record = await ask(url, api, key)
        return record, seen[0]

    return asyncio.run(main())


async def ask(url: str, api: Api, key: str | None = None, timeout: float = 5.0) -> RequestRecord:
    spoken = dialect(api, "m")
    prompt: Any = [{"role": "user", "content": "Hi"}] if api == "openai-chat" else [1, 2, 3]
    async with LoadClient(url, spoken, timeout=timeout, api_key=key) as client:
        trace = await client.send(spoken.body(prompt, 4, True), 5, 4)
    return record_of(trace, trace.start)


def request(start: float, times: Sequence[float], counts: Sequence[int] | None = None, **more: Any) -> RequestRecord:
    """A good request, unless told otherwise, with one token a chunk."""
    counts = tuple(counts if counts is not None else [1] * len(times))
    given = {"finish": "length", "asked_tokens": sum(counts), "end": times[-1] if times else 0.0, **more}
    return RequestRecord(number=0, start=start, times=tuple(times), counts=counts, **given)


def traced(api: Api, *events: bytes) -> Trace:
    """A trace after these events, which arrived at 1, 2, 3..."""
    spoken, trace = dialect(api, "m"), Trace()
    for number, event in enumerate(events, 1):
        spoken.take(trace, event.removeprefix(b"data: ").strip(), float(number))
    return trace
