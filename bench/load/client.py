"""The streaming client. A request's time begins when its bytes go to the connection, and a chunk's time is taken when
the event loop hands over its bytes, before they are read: what the client itself waits or works is in neither.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec
from aiohttp.abc import AbstractStreamWriter

from bench.load.dialects import Dialect, error_words
from bench.load.records import Trace
from bench.load.sse import SseParser

KEEP_ALIVE_S = 4.0
"""Idle connections are closed before uvicorn does it, after 5 s, which would fail the request that meets it."""
BUFFER = 1 << 18

clock = time.perf_counter


class _Body(aiohttp.BytesPayload):
    """A request's body that notes when it is written.

    Before Python 3.12 aiohttp writes it in a task of its own, after everything else that is ready to run.
    """

    def __init__(self, body: bytes, trace: Trace) -> None:
        super().__init__(body, content_type="application/json")
        self._trace = trace

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        self._trace.start = self._trace.heard = clock()
        await super().write_with_length(writer, content_length)


class Silence:
    """Ends requests that hear nothing for too long.

    aiohttp's own limit sets a timer anew at every chunk, which is a seventh of what a chunk costs the client; here all
    requests share one timer.

    Args:
        limit: Seconds without a byte.
    """

    def __init__(self, limit: float) -> None:
        self._limit, self._every = limit, min(1.0, limit / 10)
        self._open: dict[int, tuple[Trace, asyncio.Timeout]] = {}
        self._arm()

    @contextlib.asynccontextmanager
    async def ends(self, trace: Trace) -> AsyncIterator[None]:
        """Look after one request.

        Raises:
            TimeoutError: it heard nothing for too long.
        """
        async with asyncio.timeout(None) as timeout:
            self._open[id(trace)] = trace, timeout
            try:
                yield
            finally:
                del self._open[id(trace)]

    def close(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._every, self._look)

    def _look(self) -> None:
        last = clock() - self._limit
        for trace, timeout in list(self._open.values()):
            if trace.heard < last:
                timeout.reschedule(asyncio.get_running_loop().time())
        self._arm()


class LoadClient:
    """Sends requests to one server over kept connections, as many as are in flight. Proxies are not obeyed.

    Args:
        url: Such as ``http://127.0.0.1:30017``.
        dialect: The API to speak.
        timeout: Seconds without a byte after which a request is given up.
        api_key: Sent as a bearer token.
    """

    def __init__(self, url: str, dialect: Dialect, timeout: float = 600.0, api_key: str | None = None) -> None:
        self._url, self._dialect = url + dialect.path, dialect
        self._timeout, self._key = timeout, api_key
        self.sent: list[Trace] = []
        """The requests of this load so far, under way or over; whoever puts a load begins a new list."""
        self._session: aiohttp.ClientSession
        self._silence: Silence

    async def __aenter__(self) -> Self:
        headers = {"Accept-Encoding": "identity"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
            headers=headers,
            read_bufsize=BUFFER,
            auto_decompress=False,
        )
        self._silence = Silence(self._timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._silence.close()
        await self._session.close()

    async def send(self, body: bytes, number: int = 0, asked: int = 0) -> Trace:
        """Send one request and follow its answer to the end. What goes wrong stands in the trace; nothing is raised."""
        trace = Trace(number, asked)
        self.sent.append(trace)
        trace.asked_at = trace.start = trace.heard = clock()
        try:
            async with self._silence.ends(trace), self._session.post(self._url, data=_Body(body, trace)) as response:
                trace.status = response.status
                if response.status == 200:
                    await self._follow(response, trace)
                else:
                    trace.error = f"HTTP {response.status}: {_refusal(await response.read(), response.reason)}"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            trace.error = _transport_words(error)
        except msgspec.DecodeError as error:
            trace.error = f"an event is not as expected: {error}"
        trace.end = clock()
        return trace

    async def _follow(self, response: aiohttp.ClientResponse, trace: Trace) -> None:
        parser, take, read = SseParser(), self._dialect.take, response.content.readany
        while data := await read():
            trace.heard = now = clock()
            for event in parser.feed(data):
                take(trace, event, now)
        if trace.error is None and not (trace.done or trace.finish):
            streamed = "event-stream" in response.headers.get("Content-Type", "")
            trace.error = "the answer ended early" if streamed else "the answer is not a stream of events"


def _refusal(body: bytes, reason: str | None) -> str:
    try:
        said: Any = msgspec.json.decode(body)
    except msgspec.DecodeError:
        said = body[:300].decode(errors="replace") or reason
    return error_words(said)


def _transport_words(error: Exception) -> str:
    if isinstance(error, aiohttp.ServerTimeoutError | TimeoutError):
        return "no byte came in the time allowed"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect: {error.strerror or error}"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the connection broke in the middle of the answer"
    words = " ".join(str(error).split())
    return f"the connection broke: {words or type(error).__name__}"
