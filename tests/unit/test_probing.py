"""How much a server is asked by whoever looks at it."""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from workbench.supervision.probing import Prober
from workbench.supervision.target import Target


class Asked:
    """A server that counts what it is asked for, and answers as it is told to."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.codes = {"/model_info": 200, "/server_info": 200, "/health": 200}
        self.port = 0

    def until(self, path: str, count: int) -> None:
        end = time.monotonic() + 20
        while self.counts[path] < count:
            assert time.monotonic() < end, self.counts
            time.sleep(0.01)


@pytest.fixture
def asked() -> Iterator[Asked]:
    seen = Asked()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.counts[self.path] += 1
            self.send_response(seen.codes.get(self.path, 404))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Not here."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        seen.port = server.server_port
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield seen
        server.shutdown()


@contextlib.contextmanager
def probing(asked: Asked, *, generate: bool) -> Iterator[Prober]:
    prober = Prober(Target(pid=1, began=0.0, port=asked.port), 0.02, generate=generate)
    prober.start()
    yield prober
    prober.stop()


def test_a_server_that_is_well_is_seldom_asked_for_its_health(asked: Asked) -> None:
    """SGLang generates a token for each such question."""
    with probing(asked, generate=False) as prober:
        asked.until("/model_info", 12)
        assert (asked.counts["/health"], asked.counts["/server_info"]) == (1, 1)
        assert asked.counts["/metrics"] == 1, "it has none"
        assert asked.counts["/generate"] == 0
        sample = prober.sample()
    assert sample is not None
    assert (sample.health, sample.model_info) == (200, 200)


def test_one_that_is_not_well_is_asked_again(asked: Asked) -> None:
    asked.codes["/health"] = 503
    with probing(asked, generate=False):
        asked.until("/health", 4)
        asked.codes["/health"] = 200
        asked.until("/health", asked.counts["/health"] + 1)
        time.sleep(0.2)
        calm = asked.counts["/health"]
        asked.until("/model_info", asked.counts["/model_info"] + 5)
        assert asked.counts["/health"] == calm
        asked.codes["/model_info"] = 500
        asked.until("/health", calm + 2)


def test_a_diagnosis_asks_each_time(asked: Asked) -> None:
    with probing(asked, generate=True):
        asked.until("/health", 4)
