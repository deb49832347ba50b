"""The driver's round: who is there, who does what, what is told, until every shard is done or the run must end."""

import time
from collections.abc import Callable, Iterator

import msgspec

from workbench.cluster.board import Board
from workbench.cluster.records import At, Crew, Errand, Gone, Hello, News, Order, Over, Said, ShardFailed, Unfit
from workbench.cluster.tale import Tale
from workbench.errors import HsbenchError, ServerError
from workbench.extract.job.events import JobEvent, Level, Told

TICK_S = 1.0
CLOSE_S = 180.0
"""For all servers to end in order."""
TELL_PENDING_S = 30.0


class Post(msgspec.Struct):
    """One slot: the hand that is there, or is waited for."""

    hired: float
    hello: Hello | None = None
    ending: bool = False
    told_pending: bool = False


class Shift:
    """Hands shards out until there are none.

    Args:
        crew: The machines.
        board: The queue.
        errand: What each hand is told; its slot is filled in here.
        servers: Slots.
        tale: What is known of the shards, for whoever watches.
        timeout_s: How long to wait for room in the cluster when no server is there.
        stopping: Whether to end in order.
        paused: Whether to hand nothing out.
        clock: Seconds that only go on.
    """

    def __init__(
        self,
        crew: Crew,
        board: Board,
        errand: Errand,
        servers: int,
        tale: Tale,
        *,
        timeout_s: float,
        stopping: Callable[[], bool],
        paused: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._crew, self._board, self._errand, self._servers, self._tale = crew, board, errand, servers, tale
        self._timeout_s, self._stopping, self._paused, self._clock = timeout_s, stopping, paused, clock
        self._posts: dict[int, Post] = {}
        self._failure: HsbenchError | None = None
        self._closing_at: float | None = None
        self.lost = 0
        """Hands that went away."""
        self.used: set[str] = set()
        """Servers that did a shard."""

    def events(self) -> Iterator[JobEvent]:
        """Work.

        Raises:
            ShardFailed: a shard failed for a reason that would repeat.
            ServerError: no server is left, or the cluster had no room for any.
        """
        for slot in range(min(self._servers, len(self._board.waiting))):
            self._hire(slot)
        while self._posts and not self._late():
            for slot, reply in self._crew.wait(TICK_S):
                yield from self._reply(slot, reply)
            yield from self._look_round()
            yield from self._tale.due()
        if self._failure is not None:
            raise self._failure

    def _look_round(self) -> Iterator[JobEvent]:
        """What no reply tells."""
        now = self._clock()
        if self._closing_at is None and not self._board.over and not self._stopping():
            if not self._posts:
                self._fail(ServerError(f"no server is left: {self._reasons()}", "hsbench extract --resume goes on"))
            yield from self._pending(now)
        if self._board.over or self._stopping() or self._failure is not None:
            self._closing_at = self._closing_at or now
            for slot in [slot for slot, post in self._posts.items() if post.hello is None]:
                self._leave(slot)

    def _pending(self, now: float) -> Iterator[JobEvent]:
        """Say that servers wait for room; give up when there is none at all."""
        waiting = {slot: post for slot, post in self._posts.items() if post.hello is None}
        new = [one for one in waiting.values() if now - one.hired > TELL_PENDING_S and not one.told_pending]
        if new:
            yield _told(f"{len(waiting)} of {len(self._posts)} servers wait for room in the cluster", "warning")
        for post in new:
            post.told_pending = True
        alone = waiting and len(waiting) == len(self._posts)
        if alone and now - min(post.hired for post in waiting.values()) > self._timeout_s:
            self._fail(
                ServerError(
                    f"the cluster had no room for a server within {self._timeout_s:.0f} s",
                    "ray status shows what is free; --gpus-per-server says what a server takes",
                )
            )

    def _late(self) -> bool:
        return self._closing_at is not None and self._clock() - self._closing_at > CLOSE_S

    def _hire(self, slot: int) -> None:
        self._posts[slot] = Post(self._clock())
        self._crew.hire(slot, msgspec.structs.replace(self._errand, slot=slot))

    def _leave(self, slot: int) -> None:
        self._posts.pop(slot, None)
        self._crew.dismiss(slot)

    def _fail(self, error: HsbenchError) -> None:
        self._failure = self._failure or error

    def _reasons(self) -> str:
        return "; ".join(sorted(set(self._board.retired.values()))) or "all were lost"

    # Replies.

    def _reply(self, slot: int, reply: list[News] | Gone) -> Iterator[JobEvent]:
        post = self._posts.get(slot)
        if post is None:
            return
        if isinstance(reply, Gone):
            yield from self._gone(slot, post, reply.reason)
            return
        for news in reply:
            yield from self._take(slot, post, news)
        if slot in self._posts:
            self._crew.send(slot, self._order(slot, post))

    def _order(self, slot: int, post: Post) -> Order:
        if self._board.over or self._stopping() or self._failure is not None:
            if post.ending:
                return Order()
            post.ending = True
            return Order(do="end")
        paused = self._paused()
        told = paused if self._errand.settings.store is not None else None
        shard = None if post.hello is None or paused else self._board.take(slot, self._clock())
        return Order(paused=told) if shard is None else Order(do="shard", shard=shard, paused=told)

    def _gone(self, slot: int, post: Post, reason: str) -> Iterator[JobEvent]:
        if post.ending:
            self._board.give_back(slot, self._clock())
            self._leave(slot)
            return
        self.lost += 1
        shard = self._board.held.get(slot)
        who = post.hello.server if post.hello is not None else f"server {slot}"
        again = self._board.lose(slot, self._clock())
        what = "" if shard is None else f"; its shard {shard} goes to another in {self._board.lease_s:.0f} s"
        yield _told(f"{who} is lost: {reason}{what}", "warning")
        self._tale.server(post.hello, shard, "lost", reason)
        if again:
            self._crew.dismiss(slot)
            self._hire(slot)
        else:
            yield from self._retire(slot, post, f"lost again and again: {reason}")

    def _retire(self, slot: int, post: Post, reason: str) -> Iterator[JobEvent]:
        self._board.retire(slot, reason, self._clock())
        self._tale.server(post.hello, None, "retired", reason)
        who = post.hello.server if post.hello is not None else f"server {slot}"
        yield _told(f"{who} gets no more shards: {reason}", "error")
        self._leave(slot)

    def _take(self, slot: int, post: Post, news: News) -> Iterator[JobEvent]:
        if isinstance(news, Hello):
            post.hello = news
            self._tale.server(news, None, "waiting", "")
            yield _told(f"{news.server} is there, on node {news.node}")
        elif isinstance(news, Unfit):
            yield from self._retire(slot, post, news.reason)
        elif self._board.held.get(slot) != news.shard:
            return  # of a shard that is no longer this hand's
        elif isinstance(news, At):
            self._board.moved(news.shard)
            self._tale.shard(news, post.hello)
        elif isinstance(news, Said):
            if news.level != "note":
                yield _told(f"{self._who(post)}, shard {news.shard}: {news.text}", news.level)
        else:
            yield from self._over(slot, post, news)

    def _who(self, post: Post) -> str:
        return post.hello.server if post.hello is not None else "?"

    def _over(self, slot: int, post: Post, news: Over) -> Iterator[JobEvent]:
        now, who = self._clock(), self._who(post)
        self._tale.server(post.hello, news.shard, news.outcome, news.message)
        if news.outcome == "done":
            self._board.finish(slot, news.shard)
            self.used.add(who)
            self._tale.finished(news.shard)
            yield _told(f"shard {news.shard} is done, by {who}; {self._tale.left()} to go")
        elif news.outcome == "stopped":
            self._board.give_back(slot, now, 1.0)
        elif news.outcome == "busy":
            if self._board.busy(slot, now):
                self._fail(ShardFailed(f"shard {news.shard}: {news.message}", "hsbench job stop ends that job", 2))
        else:
            yield from self._failed(slot, post, news)

    def _failed(self, slot: int, post: Post, news: Over) -> Iterator[JobEvent]:
        what = self._board.fail(slot, news.code, self._clock())
        yield _told(f"{self._who(post)}, shard {news.shard} failed: {news.message}", "warning")
        if what == "stop":
            self._fail(ShardFailed(f"shard {news.shard}: {news.message}", news.next_step, news.code))
        elif what == "retire":
            yield from self._retire(slot, post, news.message)


def _told(text: str, level: Level = "note") -> Told:
    return Told(time=time.time(), text=text, level=level)
