"""Who gets which shard, on simulated machines that fail at random, under a clock of their own."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.cluster.board import LOSSES, REST_S, STRIKES, TRIES, Board
from workbench.cluster.records import At, Errand, Gone, Hello, News, Order, Over, ShardFailed, Unfit
from workbench.cluster.shift import Shift
from workbench.cluster.tale import Tale
from workbench.errors import HsbenchError, ServerError
from workbench.extract.job.events import JobEvent, Progress, Told
from workbench.extract.job.settings import ExtractSettings

LEASE_S = 30.0
ROWS, OF = 60, 10


class Disk:
    """What all machines see: the rows of each shard, in the order in which they were written, and who writes now."""

    def __init__(self) -> None:
        self.rows: dict[int, list[int]] = {shard: [] for shard in range(OF)}
        self.writer: dict[int, Job] = {}
        self.clashes = 0

    def left(self, shard: int) -> list[int]:
        return [row for row in range(shard, ROWS, OF) if row not in self.rows[shard]]


class Job:
    """Writes a shard's rows; one that lost its hand goes on until its lease is over."""

    def __init__(self, disk: Disk, shard: int) -> None:
        self.disk, self.shard = disk, shard
        self.dies_at = float("inf")

    def step(self, now: float, count: int) -> None:
        if now >= self.dies_at:
            if self.disk.writer.get(self.shard) is self:
                del self.disk.writer[self.shard]
            return
        assert self.disk.writer[self.shard] is self
        self.disk.rows[self.shard] += self.disk.left(self.shard)[:count]


class Machines:
    """A crew whose hands do, fail, vanish and hang by chance."""

    def __init__(self, disk: Disk, chance: random.Random, trouble: float) -> None:
        self.disk, self.chance, self.trouble = disk, chance, trouble
        self.now = 0.0
        self.calls: dict[int, Order | None] = {}
        self.jobs: dict[int, Job] = {}
        self.zombies: list[Job] = []
        self.ended: set[int] = set()

    def hire(self, slot: int, errand: Errand) -> None:
        assert errand.slot == slot
        self.dismiss(slot)
        self.ended.discard(slot)
        self.calls[slot] = None

    def send(self, slot: int, order: Order) -> None:
        assert slot not in self.calls, "two calls at once"
        self.calls[slot] = order

    def dismiss(self, slot: int) -> None:
        self.calls.pop(slot, None)
        self.orphan(slot)

    def orphan(self, slot: int) -> None:
        job = self.jobs.pop(slot, None)
        if job is not None:
            job.dies_at = self.now + self.chance.uniform(0.0, LEASE_S)
            self.zombies.append(job)

    def close(self) -> None:
        for slot in list(self.jobs):
            self.orphan(slot)

    def wait(self, seconds: float) -> list[tuple[int, list[News] | Gone]]:
        self.now += self.chance.uniform(0.1, 2.0)
        for job in self.zombies:
            job.step(self.now, 1)
        replies = []
        for slot, order in list(self.calls.items()):
            if self.chance.random() < 0.7:
                del self.calls[slot]
                replies.append((slot, self.reply(slot, order)))
        return replies

    def reply(self, slot: int, order: Order | None) -> list[News] | Gone:
        if self.chance.random() < self.trouble:
            self.orphan(slot)
            return Gone("the node is lost")
        if order is None:
            return [Hello(node="n", server=f"s{slot}", pid=1)]
        if order.do == "shard":
            return self.begin(slot, order.shard)
        job = self.jobs.get(slot)
        if order.do == "end" or job is None:
            return self.end(slot, job, order)
        return self.go_on(slot, job)

    def begin(self, slot: int, shard: int) -> list[News] | Gone:
        assert slot not in self.jobs
        if shard in self.disk.writer:
            self.disk.clashes += 1
            return [Over(shard=shard, outcome="busy", message="a job already writes")]
        self.jobs[slot] = self.disk.writer[shard] = Job(self.disk, shard)
        return [At(shard=shard, state="preflight")]

    def end(self, slot: int, job: Job | None, order: Order) -> list[News] | Gone:
        if slot in self.ended:
            return Gone("the hand has ended")
        if order.do != "end":
            return []
        self.ended.add(slot)
        if job is None:
            return []
        self.finish(slot, job)
        return [Over(shard=job.shard, outcome="stopped")]

    def go_on(self, slot: int, job: Job) -> list[News] | Gone:
        job.step(self.now, self.chance.randrange(3))
        if self.chance.random() < self.trouble:
            self.finish(slot, job)
            code = self.chance.choice([3, 4, 6, 7, -9, 70])
            return [Over(shard=job.shard, outcome="failed", code=code, message="it failed")]
        if not self.disk.left(job.shard):
            self.finish(slot, job)
            return [Over(shard=job.shard, outcome="done")]
        return [At(shard=job.shard, state="running", written=len(self.disk.rows[job.shard]))]

    def finish(self, slot: int, job: Job) -> None:
        del self.jobs[slot], self.disk.writer[job.shard]


def errand() -> Errand:
    settings = ExtractSettings(data="d", out="o", model="m")
    return Errand(settings=settings, run="r", slot=0, shards=OF, token="t", lease_s=LEASE_S)


def shift(machines: Machines, folder: Path, servers: int = 3, left: list[int] | None = None) -> Shift:
    """A driver that starts now, by what is on disk."""
    left = left if left is not None else [shard for shard in range(OF) if machines.disk.left(shard)]
    clock = lambda: machines.now  # noqa: E731
    tale = Tale(folder / "cluster.jsonl", ROWS, OF, [], clock)
    board = Board(left, LEASE_S)
    return Shift(machines, board, errand(), servers, tale, timeout_s=600, stopping=lambda: False, clock=clock)


@pytest.mark.parametrize("trouble", [0.0, 0.01, 0.05, 0.2])
def test_every_row_is_written_once_whatever_fails_and_however_often_the_driver_comes_back(
    tmp_path: Path, trouble: float
) -> None:
    for seed in range(60):
        chance = random.Random(f"{seed} {trouble}")
        disk = Disk()
        machines = Machines(disk, chance, trouble)
        finished: list[str] = []
        drivers = 0
        while any(disk.left(shard) for shard in range(OF)):
            drivers += 1
            assert drivers < 400
            lives = chance.randrange(5, 400) if trouble and chance.random() < 0.5 else 10**9
            said, whole = followed(shift(machines, tmp_path), lives)
            finished += said
            machines.close()
        for shard, rows in disk.rows.items():
            assert sorted(rows) == list(range(shard, ROWS, OF)), f"seed {seed}: a row lost or doubled"
        if drivers == 1 and whole:
            assert disk.clashes == 0, f"seed {seed}: a shard was given away before its job had ended"
            assert len(finished) == len(set(finished)) == OF
        assert trouble or drivers == 1


def followed(one: Shift, lives: int) -> tuple[list[str], bool]:
    """The shards that a driver says are done, until it ends, fails or dies; and whether it ended."""
    said: list[str] = []
    try:
        for number, event in enumerate(one.events()):
            if isinstance(event, Told) and " is done, by " in event.text:
                said.append(event.text.split()[1])
            if number >= lives:
                return said, False
    except HsbenchError:
        return said, False
    return said, True


class Scripted(Machines):
    """Hands that reply what is written down for them, then nothing new."""

    def __init__(self, replies: dict[int, list[list[News] | Gone]]) -> None:
        super().__init__(Disk(), random.Random(1), 0.0)
        self.replies = replies
        self.orders: list[tuple[int, Order | None]] = []
        self.dismissed: list[int] = []

    def dismiss(self, slot: int) -> None:
        self.dismissed.append(slot)
        super().dismiss(slot)

    def reply(self, slot: int, order: Order | None) -> list[News] | Gone:
        self.orders.append((slot, order))
        if order is not None and order.do == "end":
            return Gone("the hand has ended")
        waiting = self.replies.get(slot, [])
        return waiting.pop(0) if waiting else []


def hello(slot: int) -> list[News]:
    return [Hello(node="n", server=f"s{slot}", pid=1)]


def texts(events: Iterator[JobEvent]) -> Iterator[str]:
    for event in events:
        if isinstance(event, Told):
            yield event.text


@pytest.mark.parametrize("code", [1, 2])
def test_a_failure_that_would_repeat_ends_the_run_with_its_reason(tmp_path: Path, code: int) -> None:
    machines = Scripted(
        {0: [hello(0), [Over(shard=0, outcome="failed", code=code, message="12 samples are bad", next_step="look")]]}
    )
    with pytest.raises(ShardFailed, match="shard 0: 12 samples are bad") as failed:
        list(shift(machines, tmp_path, 1).events())
    assert int(failed.value.exit_code) == code
    assert machines.orders[-1][1] == Order(do="end"), "the server was not ended"


def test_a_server_that_fails_again_and_again_gets_nothing_more_and_says_why(tmp_path: Path) -> None:
    board = Board(range(3), LEASE_S)
    for strike in range(STRIKES):
        assert board.take(0, strike * 10.0) == 0
        assert board.fail(0, 7, strike * 10.0) == ("retire" if strike == STRIKES - 1 else "")
    assert board.take(0, 20.1) == 1, "a shard that failed rests, and the next is taken"
    broken: list[list[News] | Gone] = [hello(0)]
    broken += [[Over(shard=n, outcome="failed", code=7, message="HUNG_SPIN")] for n in (0, 1, 2)]
    with pytest.raises(ServerError, match="no server is left: HUNG_SPIN"):
        list(shift(Scripted({0: broken}), tmp_path, 1).events())


def test_a_shard_that_fails_everywhere_ends_the_run() -> None:
    board = Board([4], LEASE_S)
    said = []
    for number in range(TRIES):
        assert board.take(number, number * 10.0) == 4
        said.append(board.fail(number, 3, number * 10.0))
    assert said == [""] * (TRIES - 1) + ["stop"]
    assert Board([1], 0).take(0, 0.0) == 1


def test_a_lost_servers_shard_rests_for_a_lease_and_a_failed_one_shortly() -> None:
    board = Board([0, 1], LEASE_S)
    assert board.take(0, 100.0) == 0
    assert board.lose(0, 100.0)
    assert board.take(1, 100.0 + LEASE_S - 0.1) == 1
    assert board.take(2, 100.0 + LEASE_S - 0.1) is None
    assert board.take(2, 100.0 + LEASE_S) == 0
    assert board.fail(2, 3, 200.0) == ""
    assert board.take(3, 200.0 + REST_S) == 0


def test_a_slot_whose_hands_are_lost_at_once_is_given_up(tmp_path: Path) -> None:
    machines = Scripted({0: [Gone("hsbench is not installed")] * LOSSES})
    with pytest.raises(ServerError, match="hsbench is not installed"):
        list(shift(machines, tmp_path, 1).events())


def test_a_node_that_sees_nothing_is_left_and_the_others_do_the_work(tmp_path: Path) -> None:
    done: list[list[News] | Gone] = [[Over(shard=n, outcome="done")] for n in range(OF)]
    machines = Scripted({0: [[Unfit(node="n", reason="no such folder here")]], 1: [hello(1), *done]})
    said = "\n".join(texts(shift(machines, tmp_path, 2).events()))
    assert "server 0 gets no more shards: no such folder here" in said
    assert f"shard {OF - 1} is done, by s1; 0 of {OF} shards to go" in said
    assert 0 in machines.dismissed


def test_without_room_for_any_server_the_run_says_so_and_ends(tmp_path: Path) -> None:
    class Full(Scripted):
        def reply(self, slot: int, order: Order | None) -> list[News] | Gone:
            raise AssertionError

        def wait(self, seconds: float) -> list[tuple[int, list[News] | Gone]]:
            self.now += 10.0
            return []

    said: list[str] = []
    with pytest.raises(ServerError, match="had no room for a server within 600 s"):
        said.extend(texts(shift(Full({}), tmp_path, 2).events()))
    assert said == ["2 of 2 servers wait for room in the cluster"]


def test_a_stop_ends_every_hand_in_order(tmp_path: Path) -> None:
    machines = Machines(Disk(), random.Random(3), 0.0)
    clock = lambda: machines.now  # noqa: E731
    stopping = False
    tale = Tale(tmp_path / "cluster.jsonl", ROWS, OF, [], clock)
    one = Shift(
        machines,
        Board(range(OF), LEASE_S),
        errand(),
        3,
        tale,
        timeout_s=60,
        stopping=lambda: stopping,
        clock=clock,
    )
    for event in one.events():
        stopping = stopping or (isinstance(event, Progress) and event.written > 5)
    assert not machines.jobs
    assert not machines.calls
    assert 0 < sum(map(len, machines.disk.rows.values())) < ROWS
