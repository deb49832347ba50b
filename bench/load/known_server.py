"""A server with an exact schedule, for measuring the client: the first token `ttft` after the request arrived, then
one every `itl`, each written when it is due. It speaks SGLang's `/generate` and OpenAI's two, and does nothing else.

It runs in its own process: `KnownServer(Schedule(...))`, or ``python -m bench.load.known_server --ttft 0.1``.
"""

import argparse
import asyncio
import heapq
import json
import subprocess
import sys
import time
from types import TracebackType
from typing import Any, Self

import msgspec

from bench.load.metrics import percentile
from bench.load.records import RequestRecord
from workbench.errors import ServerError

clock = time.perf_counter


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """When tokens come, in seconds, and how they are told."""

    ttft: float = 0.1
    itl: float = 0.01
    chunk: int = 1
    """Tokens an event; an event is due with its last token."""
    usage: str = "every"
    """Whether `every` event, only the `last`, or `none` tells the count."""
    spin: float = 0.0
    """Seconds before an event is due from which its time is waited for without sleeping: the loop's timers are only
    good to a millisecond."""


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What the server did since it was last asked, by its own clock."""

    late_p99: float
    """How far events were behind the schedule, in seconds."""
    late_largest: float
    answers: tuple[RequestRecord, ...]
    """Each request as it came and each event as it was written: what a perfect client would have recorded."""


class KnownServer:
    """The server as a child process, from entering to leaving."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._process: subprocess.Popen[str]
        self.url = ""

    def __enter__(self) -> Self:
        given = [f"--{name}={value}" for name, value in msgspec.to_builtins(self._schedule).items()]
        command = [sys.executable, "-m", "bench.load.known_server", *given]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if not (said := self._process.stdout.readline()):
            raise ServerError("the built-in server did not start", "its error is above; report it")
        self.url = f"http://127.0.0.1:{json.loads(said)['port']}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def account(self) -> Account:
        """Ask the server what it did since it was last asked."""
        import httpx

        return msgspec.json.decode(httpx.get(f"{self.url}/account", trust_env=False).content, type=Account)


class _Texts:
    """Events of one API: before the count, after it, and the last ones."""

    def __init__(self, path: str, prompt: int, usage: str) -> None:
        self.native = path == "/generate"
        self._usage = usage
        chat = b'"delta":{"role":null,"content":" of"}' if "chat" in path else b'"text":" of"'
        if self.native:
            head = b'{"text":" of","output_ids":[282],"meta_info":{"id":"0123456789abcdef0123456789abcdef",'
            self._going = head + b'"finish_reason":null,"prompt_tokens":%d,"weight_version":"default",' % prompt
            self._ended = head + b'"finish_reason":{"type":"length"},"prompt_tokens":%d,' % prompt
        else:
            head = b'{"id":"cmpl-0123456789abcdef","object":"text_completion","created":1,"model":"known","choices":'
            self._going = head + b'[{"index":0,' + chat + b',"logprobs":null,"finish_reason":null}]'
            self._ended = head + b'[{"index":0,' + chat + b',"logprobs":null,"finish_reason":"length"}]'
        self._prompt = prompt

    def event(self, tokens: int, last: bool) -> bytes:
        """The event after which there are so many tokens, as a piece of a chunked body."""
        told = self._usage == "every" or (last and self._usage == "last")
        text = self._ended if last else self._going
        if self.native:
            count = b'"completion_tokens":%d,' % tokens if told else b""
            text += count + b'"cached_tokens":0,"e2e_latency":null}}'
        elif told:
            text += b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}' % (
                self._prompt,
                self._prompt + tokens,
                tokens,
            )
        else:
            text += b',"usage":null}'
        return _piece(b"data: " + text + b"\n\n")


def _piece(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class _Clockwork:
    """Writes what is due; one timer for all streams."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.late: list[float] = []
        self.streams: list[_Stream] = []
        self._due: list[tuple[float, int, _Stream]] = []
        self._order = 0
        self._timer: asyncio.Handle | None = None
        self._set_for = 0.0

    def add(self, due: float, stream: "_Stream") -> None:
        """Have a stream's next event written at `due`."""
        self._order += 1
        self.streams.append(stream)
        heapq.heappush(self._due, (due, self._order, stream))
        if self._timer is None or due < self._set_for:
            self._arm()

    def account(self) -> Account:
        """What was done, and forget it."""
        late = sorted(self.late) or [0.0]
        answers = tuple(stream.record(number) for number, stream in enumerate(self.streams))
        self.late, self.streams = [], []
        return Account(late_p99=percentile(late, 99), late_largest=late[-1], answers=answers)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due:
            self._set_for = self._due[0][0]
            delay = self._set_for - self.schedule.spin - clock()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(delay, self._fire) if delay > 0 else loop.call_soon(self._fire)

    def _fire(self) -> None:
        self._timer = None
        due, now = self._due, clock()
        while due and due[0][0] <= now:
            instant, _, stream = heapq.heappop(due)
            then = stream.write(instant)
            self.late.append(stream.times[-1] - instant)
            if then is not None:
                self._order += 1
                heapq.heappush(due, (then, self._order, stream))
        self._arm()


class _Stream:
    """One answer under way; its request arrived at `began`."""

    def __init__(
        self, transport: asyncio.WriteTransport, texts: _Texts, schedule: Schedule, tokens: int, began: float
    ) -> None:
        self._transport, self._texts, self._schedule, self._tokens = transport, texts, schedule, tokens
        self._began, self._sent = began, 0
        self.times: list[float] = []
        self._counts: list[int] = []

    def write(self, due: float) -> float | None:
        """Write the event that was due; when the next one is, or None after the last."""
        chunk = min(self._schedule.chunk, self._tokens - self._sent)
        self._sent += chunk
        last = self._sent >= self._tokens
        data = self._texts.event(self._sent, last)
        self.times.append(clock())
        self._counts.append(chunk)
        if self._transport.is_closing():
            return None
        self._transport.write(data + _piece(b"data: [DONE]\n\n") + b"0\r\n\r\n" if last else data)
        return None if last else due + self._schedule.itl * min(self._schedule.chunk, self._tokens - self._sent)

    def record(self, number: int) -> RequestRecord:
        """What a perfect client would record; `start` is an instant of the machine's monotonic clock."""
        times = tuple(instant - self._began for instant in self.times)
        end = times[-1] if times else 0.0
        return RequestRecord(
            number=number, start=self._began, end=end, times=times, counts=tuple(self._counts), finish="length"
        )


class _Connection(asyncio.Protocol):
    """Just enough HTTP/1.1 for this server's own client."""

    def __init__(self, clockwork: _Clockwork) -> None:
        self._clockwork = clockwork
        self._seen = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Note when a request is whole, which is when its schedule begins.

        The work on it waits a while, so that of many requests at once each is noted when it came.
        """
        now = clock()
        self._seen += data
        head, cut, body = self._seen.partition(b"\r\n\r\n")
        if not cut:
            return
        lower = head.lower()
        at = lower.find(b"content-length:")
        length = int(lower[at + 15 : lower.find(b"\r", at) if b"\r" in lower[at:] else None]) if at >= 0 else 0
        if len(body) < length:
            return
        self._seen = body[length:]
        delay = min(self._clockwork.schedule.ttft / 4, 0.02)
        path = head.split(b" ", 2)[1].decode()
        asyncio.get_running_loop().call_later(delay, self._answer, path, body[:length], now)

    def _answer(self, path: str, body: bytes, now: float) -> None:
        if path not in ("/generate", "/v1/completions", "/v1/chat/completions"):
            self._tell(path)
            return
        asked: dict[str, Any] = msgspec.json.decode(body)
        tokens = asked.get("sampling_params", {}).get("max_new_tokens") or asked.get("max_tokens", 16)
        prompt = asked.get("input_ids") or asked.get("prompt") or asked.get("text") or asked.get("messages") or ""
        schedule = self._clockwork.schedule
        stream = _Stream(self._transport, _Texts(path, len(prompt), schedule.usage), schedule, tokens, now)
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        self._clockwork.add(now + schedule.ttft + schedule.itl * (min(schedule.chunk, tokens) - 1), stream)

    def _tell(self, path: str) -> None:
        answers: dict[str, Any] = {
            "/v1/models": {"object": "list", "data": [{"id": "known", "object": "model"}]},
            "/model_info": {"model_path": "known"},
            "/server_info": {"version": "known schedule"},
        }
        status = b"200 OK" if path == "/account" or path in answers else b"404 Not Found"
        said = self._clockwork.account() if path == "/account" else answers.get(path, {"error": "no such path"})
        body = msgspec.json.encode(said)
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(head + body)


async def serve(schedule: Schedule) -> None:
    """Serve on a free port, say which on stdout, and end with stdin, so that no parent leaves it behind."""
    loop = asyncio.get_running_loop()
    clockwork = _Clockwork(schedule)
    server = await loop.create_server(lambda: _Connection(clockwork), "127.0.0.1", 0, backlog=4096)
    sys.stdout.write(json.dumps({"port": server.sockets[0].getsockname()[1]}) + "\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


def main() -> None:
    """Read the schedule from the command line and serve."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for field in msgspec.structs.fields(Schedule):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    asyncio.run(serve(Schedule(**vars(parser.parse_args()))))


if __name__ == "__main__":
    main()
