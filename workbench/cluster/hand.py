"""The process that works on a node: it has one server, does one shard at a time, and ends with whoever started it.

It reads an `Errand` and then `Order`s from stdin, and writes news to stdout, a JSON object a line. It knows nothing of
Ray. A shard is the ordinary job in a child, so server, restarts, verdicts and resuming are the job's own. When stdin
ends, or brings nothing for `lease_s`, the job is killed, the server is ended, and so is this process.
"""

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from io import RawIOBase
from pathlib import Path

import msgspec

from workbench.cluster import place
from workbench.cluster.records import Errand, Hello, News, Order, Over, Unfit
from workbench.cluster.shardjob import ShardJob, settings_of
from workbench.errors import HsbenchError
from workbench.exitcodes import ExitCode
from workbench.extract.job.files import Request

TICK_S = 0.25
NOT_THE_SERVER = frozenset({ExitCode.CHECK_FAILED, ExitCode.USAGE})
"""Ends of a job after which its server may be used again."""
GRACE_S = 5.0
"""For a server to end by itself."""


class Hand:
    """Obeys orders until it is told to end, or nobody orders any more."""

    def __init__(self, errand: Errand, node: str, home: Path, orders: "queue.Queue[Order | None]") -> None:
        self.errand, self.node, self.home, self._orders = errand, node, home, orders
        self.name = place.server_name(node, errand.slot)
        self._port = place.own_port(home)
        self._job: ShardJob | None = None
        self._measured = False
        """Plain prefill is measured once for a server."""
        self._paused: bool | None = None
        """What its job was told last."""

    def work(self) -> None:
        """Until the end."""
        heard, ending = time.monotonic(), False
        while True:
            order: Order | None = Order()
            with contextlib.suppress(queue.Empty):
                order = self._orders.get(timeout=TICK_S)
                heard = heard if order is not None and order.do == "look" else time.monotonic()
            if order is None or time.monotonic() - heard > self.errand.lease_s:
                break
            ending = ending or order.do == "end"
            self._obey(order)
            if self._job is not None and (over := self._job.over()) is not None:
                self._job = None
                if over.outcome == "failed" and over.code not in NOT_THE_SERVER:
                    place.end_servers(self.home, 0)  # the next shard starts another
                say(over)
            if ending and self._job is None:
                break
        if self._job is not None:
            self._job.kill()

    def _obey(self, order: Order) -> None:
        if order.do == "shard":
            if self._job is not None:
                say(Over(shard=order.shard, outcome="busy", message="this hand has a shard already"))
                return
            settings = settings_of(self.errand, order.shard, self.name, self._port, not self._measured)
            request = Request(settings=settings, command=self.errand.command)
            self._job = ShardJob.start(request, order.shard, say, lambda: self._orders.put(Order(do="look")))
            self._paused = None  # what an earlier job left in the folder
            self._measured = self._measured or self._job is not None
        elif order.do in ("stop", "end") and self._job is not None:
            self._job.stop()
        if self._job is not None and order.paused is not None and order.paused != self._paused:
            self._paused = order.paused
            self._job.pause(order.paused)


_out_lock = threading.Lock()


def say(news: News) -> None:
    """One line for whoever started this process; nothing once that is gone."""
    with _out_lock, contextlib.suppress(OSError):
        os.write(1, msgspec.json.encode(news) + b"\n")


def read_orders(source: RawIOBase, orders: "queue.Queue[Order | None]") -> None:
    """Orders as they come, and None when nobody is there to give any."""
    for line in source:
        with contextlib.suppress(msgspec.MsgspecError):
            orders.put(msgspec.json.decode(line, type=Order))
    orders.put(None)


def main() -> None:
    """Run as a process: `python -m workbench.cluster.hand NODE`."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})  # Ray blocks one for all it starts
    node = sys.argv[1]
    source = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115 - a buffer's lock breaks an end with a reader
    errand = msgspec.json.decode(source.readline(), type=Errand)
    home = place.homes(errand.run) / place.server_name(node, errand.slot)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = os.open(home / "hand.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    if os.fork():
        os._exit(0)  # Ray kills the children of a worker that ends; a server must be ended in order
    os.setsid()
    orders: queue.Queue[Order | None] = queue.Queue()
    threading.Thread(target=read_orders, args=(source, orders), daemon=True).start()
    try:
        with place.own(home):
            place.end_leftovers(errand.run, home)
            place.end_servers(home, 0)
            os.environ[place.STATE] = str(home)
            place.check_seen(errand.settings, errand.token)
            hand = Hand(errand, node, home, orders)
            say(Hello(node=f"{place.host()}:{node[:8]}", server=hand.name, pid=os.getpid()))
            try:
                hand.work()
            finally:
                place.end_servers(home, GRACE_S)
    except HsbenchError as error:
        say(
            Unfit(
                node=f"{place.host()}:{node[:8]}",
                reason=f"{error.message}; {error.next_step}" if error.next_step else error.message,
            )
        )


if __name__ == "__main__":
    main()
