"""The hand on a node, as the process that it is, with a job that only tells: orders, ends, and what outlives whom."""

import contextlib
import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from workbench.cluster import place, ray_crew
from workbench.cluster.records import LARGEST, At, Errand, Hello, News, Order, Over, Said, Unfit, decode_news, encode
from workbench.cluster.relay import Relay, _bounded
from workbench.cluster.shardjob import Rate, settings_of
from workbench.errors import Missing, ServerError, UsageError
from workbench.extract.job.files import JobFiles
from workbench.extract.job.settings import Cluster, ExtractSettings
from workbench.extract.shards import shard_name
from workbench.paths import state_dir
from workbench.server import launches, processes, state
from workbench.server.state import ServerRecord

JOB = Path(__file__).with_name("fake_shard_job.py")
HAND = (
    sys.executable,
    "-c",
    f"from workbench.cluster import hand, shardjob; shardjob.COMMAND = ({sys.executable!r}, {str(JOB)!r}); hand.main()",
)
NODE = "abcdef0123456789"


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def errand(folder: Path, kind: str, lease_s: float = 30.0, **changes: Any) -> Errand:
    data, out = folder / f"{kind}-data.jsonl", folder / "out"
    data.write_text("{}\n")
    place.leave_token(out, "t0")
    settings = ExtractSettings(data=str(data), out=str(out), model="some/model", **changes)
    return Errand(settings=settings, run="r1", slot=0, shards=4, token="t0", lease_s=lease_s)


class Worked:
    """A relay as the driver sees it."""

    def __init__(self, wanted: Errand) -> None:
        self.relay = Relay(encode(wanted), NODE, command=HAND)
        self.reader = self.relay.reader

    def until(self, kind: type[News], order: Order | None = None, seconds: float = 30.0) -> list[News]:
        """All news up to the first of a kind."""
        found: list[News] = []
        end = time.monotonic() + seconds
        while not any(isinstance(one, kind) for one in found):
            assert time.monotonic() < end, found
            found += [decode_news(one) for one in self.relay.work(encode(order or Order()))]
            order = None
        return found


@pytest.fixture
def begin() -> Iterator[Callable[[Errand], Worked]]:
    begun: list[Worked] = []

    def start(wanted: Errand) -> Worked:
        begun.append(Worked(wanted))
        return begun[-1]

    yield start
    for one in begun:
        one.relay.close()
        one.reader.join(20)


def wait_until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def alive(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_a_hand_does_shards_and_passes_on_what_their_jobs_tell(
    tmp_path: Path, begin: Callable[[Errand], Worked]
) -> None:
    one = begin(errand(tmp_path, "done"))
    [hello] = one.until(Hello)
    assert isinstance(hello, Hello)
    assert hello.server == f"{place.host()}-abcdef01-0"
    for shard in (2, 3):
        news = one.until(Over, Order(do="shard", shard=shard))
        at = next(x for x in news if isinstance(x, At))
        assert (at.shard, at.state, at.written, at.tok_s) == (shard, "running", 1, 25.0)
        assert Said(shard=shard, text="row 3 is in quarantine", level="error") in news
        assert news[-1] == Over(shard=shard, outcome="done", message="all of it")
        asked = JobFiles(tmp_path / "out" / shard_name(shard, 4)).load_request().settings
        assert (asked.shard, asked.name, asked.keep) == ((shard, 4), hello.server, True)
        assert asked.baseline_s == (10.0 if shard == 2 else 0.0), "plain prefill is measured once a server"


@pytest.mark.parametrize(("kind", "code", "words"), [("bad", 1, "12 samples are bad"), ("silent", -9, "no word")])
def test_a_job_that_fails_says_how(
    tmp_path: Path, begin: Callable[[Errand], Worked], kind: str, code: int, words: str
) -> None:
    one = begin(errand(tmp_path, kind))
    over = one.until(Over, Order(do="shard", shard=0))[-1]
    assert isinstance(over, Over)
    assert (over.outcome, over.code) == ("failed", code)
    assert words in over.message


def test_a_shard_that_somebody_writes_is_busy(tmp_path: Path, begin: Callable[[Errand], Worked]) -> None:
    one = begin(errand(tmp_path, "done"))
    with JobFiles(tmp_path / "out" / shard_name(0, 4)).locked():
        over = one.until(Over, Order(do="shard", shard=0))[-1]
    assert isinstance(over, Over)
    assert (over.outcome, "a job already writes into" in over.message) == ("busy", True)


def running(one: Worked, folder: Path) -> list[int]:
    """A shard without an end is begun; the numbers of its job, that one's child, and the hand."""
    hello = next(x for x in one.until(Hello) if isinstance(x, Hello))
    one.until(Said, Order(do="shard", shard=1))
    mark = folder / "out" / shard_name(1, 4) / "child"
    wait_until(lambda: mark.exists() and len(mark.read_text().split()) == 2)
    return [*map(int, mark.read_text().split()), hello.pid]


def test_a_stop_ends_the_job_in_order(tmp_path: Path, begin: Callable[[Errand], Worked]) -> None:
    one = begin(errand(tmp_path, "endless"))
    running(one, tmp_path)
    assert one.until(Over, Order(do="stop"))[-1] == Over(shard=1, outcome="stopped", message="told to")


def test_job_and_its_children_end_with_the_actor(tmp_path: Path, begin: Callable[[Errand], Worked]) -> None:
    one = begin(errand(tmp_path, "endless"))
    pids = running(one, tmp_path)
    one.relay.close()
    wait_until(lambda: not any(map(alive, pids)))


def test_job_and_its_children_end_with_a_killed_hand(tmp_path: Path, begin: Callable[[Errand], Worked]) -> None:
    one = begin(errand(tmp_path, "endless"))
    pids = running(one, tmp_path)
    os.kill(pids[-1], signal.SIGKILL)
    wait_until(lambda: not any(map(alive, pids)))
    with pytest.raises(RuntimeError, match="the hand has ended"):
        one.until(Hello)


def test_a_hand_that_hears_nothing_for_its_lease_ends(tmp_path: Path, begin: Callable[[Errand], Worked]) -> None:
    one = begin(errand(tmp_path, "endless", lease_s=3.0))
    pids = running(one, tmp_path)
    for _ in range(3):
        one.relay.work(encode(Order()))
    assert all(map(alive, pids)), "it ended though it was spoken to"
    wait_until(lambda: not any(map(alive, pids)))


def test_what_a_node_cannot_see_is_told(tmp_path: Path, begin: Callable[[Errand], Worked]) -> None:
    wanted = errand(tmp_path, "done")
    os.unlink(wanted.settings.data)
    [unfit] = begin(wanted).until(Unfit)
    assert isinstance(unfit, Unfit)
    assert f"there is no {wanted.settings.data}" in unfit.reason
    wanted = errand(tmp_path, "done")
    with pytest.raises(Missing, match="does not see the driver's"):
        place.check_seen(wanted.settings, "another token", seconds=0.3)
    with pytest.raises(Missing, match="there is no model"):
        place.check_seen(msgspec.structs.replace(wanted.settings, model="/models/none"), "t0")


@pytest.fixture
def left(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """What a killed hand left: its home, and a server that still runs."""
    home = place.homes("r1") / f"{place.host()}-abcdef01-7"
    home.mkdir(parents=True)
    (home / "lock").touch()
    with place.state_in(home):
        child = processes.Detached([sys.executable, "-c", "import time; time.sleep(600)"])
        record = server_record("left", child.pid, home)
        record.save()
        launches.note("left", record.pid, record.since_boot)
    yield home, child.pid
    with contextlib.suppress(ProcessLookupError):
        child.kill()
    child.wait()


def server_record(name: str, pid: int, home: Path) -> ServerRecord:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = psutil.Process(pid)
    return ServerRecord(
        **{"name": name, "pid": pid, "since_boot": processes.since_boot(process)},
        **{"create_time": process.create_time(), "argv": (), "env": {}, "url": "http://x", "host": "127.0.0.1"},
        **{"port": port, "model": "m", "python": "p", "engine_version": "1", "device": "cpu"},
        **{"log": str(home / "log"), "started": time.time()},
    )


def test_a_server_whose_hand_was_killed_is_ended_by_the_next_hand_of_the_machine(
    left: tuple[Path, int], tmp_path: Path
) -> None:
    home, pid = left
    mine = place.homes("r1") / f"{place.host()}-abcdef01-0"
    with place.own(home, 0):
        place.end_leftovers("r1", mine)
    assert alive(pid), "a server whose hand lives was ended"
    place.end_leftovers("other", mine)
    assert alive(pid), "a server of another run was ended"
    place.end_leftovers("r1", mine)
    assert not alive(pid)
    with place.state_in(home):
        assert state.load("left") is None
    assert state_dir() == tmp_path / "state" / "hsbench"


def test_a_hand_waits_for_the_one_before_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with place.own(home, 0), pytest.raises(ServerError, match="still holds"), place.own(home, 0.3):
        raise AssertionError
    with place.own(home, 0):
        pass


def test_hands_of_one_machine_have_ports_of_their_own(tmp_path: Path) -> None:
    homes = [place.homes("r1") / f"{place.host()}-n-{slot}" for slot in range(40)]
    for home in homes:
        home.mkdir(parents=True)
    ports = [place.own_port(home) for home in homes]
    assert len(set(ports)) == len(ports)


def test_settings_of_a_shard_are_the_runs_but_for_its_place() -> None:
    whole = ExtractSettings(data="d", out="/o", model="m", layers=(1, 2), dump_dir="/dev/shm/d", max_seq_len=7)
    wanted = Errand(settings=whole, run="r", slot=3, shards=4, token="t", lease_s=1.0)
    one = settings_of(wanted, 2, "vm-n-3", 30500, False)
    assert (one.out, one.shard, one.dump_dir, one.port) == ("/o/shard_2-of-4", (2, 4), "/dev/shm/d/vm-n-3", 30500)
    assert (one.layers, one.max_seq_len, one.model, one.data) == ((1, 2), 7, "m", "d")


def test_a_rate_is_of_the_last_half_minute() -> None:
    rate = Rate()
    assert rate.of(0.0, 0) is None
    assert rate.of(10.0, 1000) == 100.0
    assert [rate.of(t, 1000 + 10 * (t - 10)) for t in (20.0, 30.0, 40.0)][-1] == 10.0


def test_a_message_stays_small_and_loses_no_end() -> None:
    said = [encode(Said(shard=1, text="x" * 9000)) for _ in range(300)]
    over = encode(Over(shard=1, outcome="done", message="y" * 99_000))
    kept = _bounded([*said, over])
    assert len(json.dumps(kept)) <= LARGEST + 3000
    assert kept[-1]["outcome"] == "done"


def test_a_process_that_is_not_tied_by_a_pipe_ends_at_once_with_stdin() -> None:
    code = "from workbench.cluster.tied import tie; import time; tie(); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL)
    assert child.wait(20) == -signal.SIGKILL


NODES = [{"CPU": 4.0}, {"CPU": 64.0, "GPU": 8.0}, {"CPU": 2.0, "GPU": 8.0}]


@pytest.mark.parametrize(
    ("nodes", "asked", "sizes"),
    [
        (NODES, {}, (1, 10)),
        (NODES, {"gpus": 4}, (4, 4)),
        (NODES, {"gpus": 4, "servers": 3}, (4, 3)),
        (NODES, {"gpus": 0}, (0, 3)),
        ([{"CPU": 1.0}, {}], {}, (0, 1)),
    ],
)
def test_the_cluster_says_how_many_servers_fit(
    nodes: list[dict[str, float]], asked: dict[str, int], sizes: tuple[int, int]
) -> None:
    assert ray_crew._sizes(nodes, Cluster(address="auto", **asked)) == sizes  # type: ignore[arg-type]


def test_a_server_that_fits_on_no_node_is_refused() -> None:
    with pytest.raises(UsageError, match="16 GPUs: the most that one has is 8"):
        ray_crew._sizes(NODES, Cluster(address="auto", gpus=16))


def test_a_cluster_of_another_version_is_told_by_both_versions() -> None:
    """By the words of the installed Ray."""
    ray: Any = importlib.import_module("ray")
    check = importlib.import_module("ray._private.utils").check_version_info
    with pytest.raises(RuntimeError) as caught:
        check({"ray_version": "2.9.0", "python_version": "3.9.1"}, "node 10.0.0.7")
    told = ray_crew.unjoined("10.0.0.1:6379", caught.value)
    mine = re.escape(ray.__version__)
    assert re.search(rf"Ray: 2\.9\.0; Python: 3\.9\.1; This process .*: Ray: {mine}; Python", told.message)
    assert "\n" not in told.message
    assert "the cluster's own Python and Ray" in told.next_step
    deaf = ray_crew.unjoined("auto", ConnectionError("Could not find any running Ray instance.\nStart one."))
    assert deaf.message == "no Ray cluster answers at 'auto': Could not find any running Ray instance."
