"""Asking a server over HTTP, in a thread of its own: an answer may take twenty seconds, a look may not."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import psutil

from workbench.server import ports
from workbench.supervision.records import PortSample
from workbench.supervision.target import Target

if TYPE_CHECKING:
    import httpx

RARELY_S = 60.0
"""Seconds between two questions that cost the server something, of one that is watched in passing and well."""
HEALTH_S = 25.0
"""SGLang answers `/health` within 20 s, whatever the answer."""


class Prober:
    """Keeps a `PortSample` up to date.

    Args:
        target: The server; it needs a port.
        every_s: Seconds between two rounds.
        generate: Also ask for one token by a streamed request, when `/health` is green. It is asked once a
            minute, with a request id that the recorder does not keep. Without it the server is disturbed as
            little as can be: SGLang generates a token for each `/health`, so that is asked once a minute, too.
        silence_s: Seconds without a token after which a request counts as silent.
    """

    def __init__(self, target: Target, every_s: float = 5.0, *, generate: bool, silence_s: float = 20.0) -> None:
        assert target.port is not None
        self.target = target
        self.every_s, self.generate, self.silence_s = every_s, generate, silence_s
        self.latest = PortSample(port=target.port)
        self._looked = self._without_metrics = False
        self._family: tuple[int, ...] = ()
        self._ask = threading.Event()
        self._end = threading.Event()
        self._asked: float | None = None
        self._owned_at = float("-inf")
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._rounds, self._requests)]

    def start(self) -> None:
        """Begin asking."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End after the question that is under way."""
        self._end.set()
        self._ask.set()

    def sample(self) -> PortSample | None:
        """What is known now; None until the first round is over."""
        return self.latest if self._looked else None

    def belongs_to(self, pids: tuple[int, ...]) -> None:
        """Say which processes are the server's, so that the owner of the port can be told from a stranger."""
        self._family = pids

    def _rounds(self) -> None:
        with self._client() as client:
            while not self._end.is_set():
                with contextlib.suppress(Exception):
                    self._round(client)
                self._looked = True
                self._end.wait(self.every_s if self.latest.accepts else min(1.0, self.every_s))

    def _round(self, client: "httpx.Client") -> None:
        target = self.target
        accepts = ports.accepts(target.reached, self.latest.port)
        if not accepts:
            self._update(accepts=False, owner=None, owned=None, owner_name="", health=None, generation=None)
            return
        self._update(accepts=True)
        self._find_owner()
        self._looked = True
        if self.latest.owned is False:
            return
        self._update(model_info=_status(client, "/model_info", 3.0))
        asked = time.monotonic()
        if self.generate or not self._well(asked):
            self._update(health=_status(client, "/health", HEALTH_S), health_at=asked)
            self._update(server_info=_status(client, "/server_info", 3.0))
        if not self._without_metrics:
            self._update(tokens=_tokens(client))
            self._without_metrics = self.latest.health == 200 and self.latest.tokens is None
        if self.generate and self.latest.health == 200:
            self._ask.set()

    def _well(self, now: float) -> bool:
        """Whether it answered all not long ago and answers now."""
        seen = self.latest
        fresh = seen.health_at is not None and now - seen.health_at < RARELY_S
        return seen.health == 200 and seen.server_info == 200 and seen.model_info == 200 and fresh

    def _find_owner(self) -> None:
        """Looked for rarely: it reads the open files of every process."""
        if self.latest.owned and time.monotonic() - self._owned_at < 30:
            return
        owner = ports.owner(self.latest.port)
        self._owned_at = time.monotonic()
        name = ""
        with contextlib.suppress(psutil.Error):
            name = psutil.Process(owner).name() if owner is not None else ""
        owned = None if owner is None or not self._family else owner in self._family
        self._update(owner=owner, owned=owned, owner_name=name)

    def _requests(self) -> None:
        with self._client() as client:
            while not self._end.is_set():
                self._ask.wait()
                self._ask.clear()
                due = self._asked is None or time.monotonic() - self._asked >= 60 or not self.latest.generation
                if due and not self._end.is_set():
                    self._request(client)

    def _request(self, client: "httpx.Client") -> None:
        self._asked = time.monotonic()
        came, refused = False, ""
        try:
            came = any(True for _ in _first_token(client, self.silence_s))
        except _Refused as error:
            refused = str(error)
        except Exception as error:
            refused = "" if "Timeout" in type(error).__name__ else type(error).__name__
        took = time.monotonic() - self._asked
        self._update(generation=None if refused else came, generation_s=took, refused=refused)

    def _update(self, **what: object) -> None:
        self.latest = msgspec.structs.replace(self.latest, **what)

    def _client(self) -> "httpx.Client":
        import httpx

        key = self.target.api_key
        # The address is plain http: loading the certificates would only cost time.
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.target.url, headers=headers, trust_env=False, timeout=HEALTH_S, verify=False)


class _Refused(Exception):
    """The server answered, but with an error."""


def _status(client: "httpx.Client", path: str, timeout: float) -> int:
    """The answer's status; 0 when none came."""
    try:
        return client.get(path, timeout=timeout).status_code
    except Exception:
        return 0


def _tokens(client: "httpx.Client") -> float | None:
    """Prompt and generated tokens by the counters of `/metrics`; None when the server has none."""
    try:
        answer = client.get("/metrics", timeout=3.0)
    except Exception:
        return None
    if answer.status_code != 200:
        return None
    found = [
        float(line.rsplit(" ", 1)[1])
        for line in answer.text.splitlines()
        if line.startswith(("sglang:prompt_tokens_total", "sglang:generation_tokens_total"))
    ]
    return sum(found) if found else None


def _first_token(client: "httpx.Client", silence_s: float) -> Iterator[str]:
    """Yield what the server streams in answer to a one-token request, until the first token came."""
    body = {
        "input_ids": [1],
        "rid": f"ready-{time.time_ns()}",
        "stream": True,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0},
    }
    with client.stream("POST", "/generate", json=body, timeout=silence_s) as answer:
        if answer.status_code != 200:
            raise _Refused(f"the server answered a request with {answer.status_code}")
        for line in answer.iter_lines():
            data = line.removeprefix("data:").strip()
            if data and data != "[DONE]" and "text" in json.loads(data):
                yield data
                return
