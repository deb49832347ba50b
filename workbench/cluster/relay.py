"""What runs inside a Ray actor: it starts a hand on its node, carries orders to it and news back. No Ray here."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from workbench.cluster.records import LARGEST

POLL_S = 2.0
"""One call waits so long for news at most. It bounds the calls a second that a driver gets."""
MOST = 200
"""News that one call brings, besides the newest picture."""
THREADS = "OMP_NUM_THREADS"
HAND = (sys.executable, "-m", "workbench.cluster.hand")


class Relay:
    """A hand as a child of this process; it ends when this process does.

    Args:
        errand: An `Errand` as plain values.
        node: Name of the node in the cluster.
        threads: `OMP_NUM_THREADS` of whoever started the run. Ray sets one of its own, which servers must not get.
    """

    def __init__(
        self, errand: dict[str, Any], node: str, threads: str | None = None, command: Sequence[str] = HAND
    ) -> None:
        env = {name: value for name, value in os.environ.items() if name != THREADS}
        if threads is not None:
            env[THREADS] = threads
        self._hand = subprocess.Popen(
            [*command, node],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd="/",
        )
        self._news: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._gone = False
        self._words = ""
        self._write(errand)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def work(self, order: dict[str, Any] | None) -> list[dict[str, Any]]:
        """Give an order and wait for news: a little while, or until there is some that matters.

        Raises:
            RuntimeError: the hand has ended.
        """
        if order is not None:
            self._write(order)
        pictures: dict[int, dict[str, Any]] = {}
        others: list[dict[str, Any]] = []
        deadline = time.monotonic() + POLL_S
        while not others and not self._gone and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self._take(self._news.get(timeout=left), pictures, others)
        with contextlib.suppress(queue.Empty):
            while len(others) < MOST:
                self._take(self._news.get_nowait(), pictures, others)
        news = [*pictures.values(), *others]
        if not news and self._gone:
            raise RuntimeError(f"the hand has ended{self._words}")
        return _bounded(news)

    def _take(self, one: dict[str, Any] | None, pictures: dict[int, dict[str, Any]], others: list[Any]) -> None:
        if one is None:
            self._gone = True
        elif one["type"] == "At":
            pictures[one["shard"]] = one
        else:
            others.append(one)

    def _write(self, message: dict[str, Any]) -> None:
        assert self._hand.stdin is not None
        with contextlib.suppress(OSError):
            self._hand.stdin.write(json.dumps(message).encode() + b"\n")
            self._hand.stdin.flush()

    def _read(self) -> None:
        assert self._hand.stdout is not None
        assert self._hand.stderr is not None
        with self._hand.stdout as lines, self._hand.stderr as trouble:
            for line in lines:
                with contextlib.suppress(ValueError):
                    self._news.put(json.loads(line))
            words = trouble.read().decode(errors="replace").strip().splitlines()
        self._words = f": {words[-1]}" if words else ""
        self._hand.wait()
        self._news.put(None)

    def close(self) -> None:
        """End the hand, and with it what it runs."""
        assert self._hand.stdin is not None
        with contextlib.suppress(OSError):
            self._hand.stdin.close()


def _bounded(news: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The oldest of them, as far as one message may hold."""
    kept, room = [], LARGEST
    for one in news:
        for name in ("text", "message", "reason", "why"):
            if len(one.get(name, "")) > 2000:
                one[name] = one[name][:2000] + " …"
        room -= len(json.dumps(one))
        if room > 0 or one["type"] != "Said":
            kept.append(one)
    return kept
