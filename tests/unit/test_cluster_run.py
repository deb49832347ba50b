"""The driver's run over real folders: shards written by the writer, joined by the merge, on machines without Ray."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.extract_support import run_record
from tests.unit.merge_support import ROWS, contents, write
from workbench.cluster.driver import Driver, on
from workbench.cluster.records import At, Errand, Gone, Hello, News, Order, Over
from workbench.errors import ServerError, UsageError
from workbench.extract.job import detach
from workbench.extract.job.events import Ended, JobEvent, Progress
from workbench.extract.job.files import JobFiles, Journal, Request
from workbench.extract.job.run import Control, run
from workbench.extract.job.settings import Cluster, ExtractSettings
from workbench.extract.shards import shard_name
from workbench.extract.watch import own
from workbench.extract.watch.shards import is_sharded
from workbench.server.flags import given


class Here:
    """Machines whose hands write a whole shard when they are given one. `broken` shards stop half-way."""

    def __init__(self, gpus: int = 0, servers: int = 2) -> None:
        self.gpus, self.servers = gpus, servers
        self.errands: dict[int, Errand] = {}
        self.calls: dict[int, Order | None] = {}
        self.gave: list[int] = []
        self.closed = False

    def hire(self, slot: int, errand: Errand) -> None:
        self.errands[slot], self.calls[slot] = errand, None

    def send(self, slot: int, order: Order) -> None:
        self.calls[slot] = order

    def dismiss(self, slot: int) -> None:
        self.calls.pop(slot, None)

    def close(self) -> None:
        self.closed = True

    def wait(self, seconds: float) -> list[tuple[int, list[News] | Gone]]:
        calls, self.calls = self.calls, {}
        return [(slot, self.reply(slot, order)) for slot, order in calls.items()]

    def reply(self, slot: int, order: Order | None) -> list[News] | Gone:
        if order is None:
            return [Hello(node="n", server=f"s{slot}", pid=1)]
        if order.do == "end":
            return Gone("the hand has ended")
        if order.do != "shard":
            return []
        self.gave.append(order.shard)
        return self.shard(self.errands[slot], order.shard)

    def shard(self, errand: Errand, number: int) -> list[News]:
        folder = Path(errand.settings.out) / shard_name(number, errand.shards)
        write(folder, "speculators-v1", (number, errand.shards))
        done(folder)
        rows = len(range(number, ROWS, errand.shards))
        return [At(shard=number, state="running", written=rows, tokens=10 * rows), Over(shard=number, outcome="done")]


def done(folder: Path) -> None:
    journal = Journal(JobFiles(folder))
    journal.append(Ended(time=1.0, state="done", message="", start=1))
    journal.close()


@pytest.fixture(autouse=True)
def _a_data_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(Driver, "_source", lambda self: run_record("speculators-v1", ROWS).source)


def ask(out: Path, flags: tuple[str, ...] = (), **cluster: Any) -> Request:
    settings = ExtractSettings(data="d.jsonl", out=str(out), model="/models/tiny", flags=flags)
    return Request(settings=settings, command="extract", cluster=Cluster(address="here", **cluster))


def go(request: Request, machines: Here, control: Control | None = None) -> list[JobEvent]:
    return list(run(request, control or Control(), on(lambda cluster: machines)))


def end_of(events: list[JobEvent]) -> Ended:
    assert isinstance(events[-1], Ended)
    return events[-1]


def test_a_run_of_many_machines_is_that_of_one(tmp_path: Path) -> None:
    out, machines = tmp_path / "out", Here()
    ended = end_of(go(ask(out, shards=4), machines))
    assert (ended.state, machines.closed) == ("done", True)
    assert "4 shards by 2 servers" in ended.message
    assert sorted(machines.gave) == [0, 1, 2, 3]
    assert contents(out) == contents(write(tmp_path / "alone", "speculators-v1"))
    assert not is_sharded(out)
    job = JobFiles(out).load()
    assert job is not None
    assert (job.cluster, job.settings.out, job.settings.shard) == (None, str(out), (0, 1))
    view = own.OwnRun(out).look()
    assert (view.state, view.written + view.refused + view.quarantined) == ("done", ROWS)
    again = Here()
    assert end_of(go(ask(out, shards=4), again)).state == "done"
    assert not again.gave


def test_what_is_done_is_not_done_again_and_a_shard_that_only_looks_done_is(tmp_path: Path) -> None:
    out, first = tmp_path / "out", Here()
    assert "in 4 shards" in end_of(go(ask(out, shards=4, merge=False), first)).message
    (out / shard_name(1, 4) / "index.jsonl").write_bytes(b"")
    JobFiles(out / shard_name(2, 4)).events.unlink()
    machines = Here()
    machines.shard = lambda errand, number: [Over(shard=number, outcome="done")]  # type: ignore[method-assign]
    events = list(run(ask(out), Control(), on(lambda cluster: machines)))
    assert sorted(machines.gave) == [1, 2]
    assert "2 of 4 shards to go" in end_of(events).message


def test_a_driver_that_dies_anywhere_is_gone_on_with(tmp_path: Path) -> None:
    whole = contents(write(tmp_path / "alone", "speculators-v1"))
    count = len(go(ask(tmp_path / "counted", shards=3), Here(servers=1)))
    for lives in range(1, count):
        out = tmp_path / f"out{lives}"
        gave = []
        for limit in (lives, 10**9):
            machines = Here(servers=1)
            going = run(ask(out, shards=3), Control(), on(lambda cluster, machines=machines: machines))
            for number, _ in enumerate(going, start=1):
                if number >= limit:
                    break
            going.close()  # type: ignore[attr-defined]
            gave += machines.gave
        assert contents(out) == whole, f"died after {lives} events"
        assert sorted(gave) == [0, 1, 2], f"died after {lives} events"


def test_a_second_driver_is_refused_while_one_lives(tmp_path: Path) -> None:
    out = tmp_path / "out"
    going = run(ask(out), Control(), on(lambda cluster: Here()))
    next(going)
    with pytest.raises(UsageError, match="a job already writes into"):
        go(ask(out), Here())
    going.close()  # type: ignore[attr-defined]


def test_a_stop_leaves_what_goes_on(tmp_path: Path) -> None:
    out, control = tmp_path / "out", Control()

    class Stopping(Here):
        def shard(self, errand: Errand, number: int) -> list[News]:
            control.stop()
            return super().shard(errand, number)

    ended = end_of(go(ask(out, shards=5), Stopping(servers=1), control))
    assert (ended.state, ended.exit_code) == ("stopped", 0)
    assert "4 of 5 shards to go" in ended.message
    assert ended.next_step == f"hsbench extract --resume {out}"
    job = JobFiles(out).load()
    assert job is not None
    assert job.cluster == Cluster(address="here", shards=5)
    assert end_of(go(ask(out), Here())).state == "done"


def test_a_pause_hands_nothing_out_and_reaches_the_shards(tmp_path: Path) -> None:
    out = tmp_path / "out"
    JobFiles(out).make()
    JobFiles(out).pause.touch()
    shard = out / shard_name(0, 3)
    shard.mkdir()
    JobFiles(shard).make()
    machines = Here()
    seen = []
    for event in run(ask(out, shards=3), Control(), on(lambda cluster: machines)):
        if isinstance(event, Progress) and event.rows and not seen:
            seen += [list(machines.gave), JobFiles(shard).pause.exists()]
            JobFiles(out).pause.unlink()
    assert seen == [[], True]
    assert sorted(machines.gave) == [0, 1, 2]
    assert end_of([event]).state == "done"


def test_the_cluster_decides_what_the_command_leaves_open(tmp_path: Path) -> None:
    machines = Here(gpus=2, servers=2)
    go(ask(tmp_path / "out", ("--log-level", "info")), machines)
    errand = machines.errands[0]
    assert errand.shards == 8
    assert given(errand.settings.flags)["--tp-size"] == "2"
    chosen = Here(gpus=2, servers=1)
    go(ask(tmp_path / "other", ("--tp", "1")), chosen)
    assert "--tp-size" not in given(chosen.errands[0].settings.flags)


def damage_other(out: Path) -> None:
    out.mkdir()
    (out / "notes.txt").write_text("mine")


def damage_cut(out: Path) -> None:
    write(out / shard_name(0, 7), "speculators-v1", (0, 7))


def damage_two(out: Path) -> None:
    damage_cut(out)
    write(out / shard_name(0, 6), "speculators-v1", (0, 6))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (damage_other, "is not empty (notes.txt) and is of no run of shards"),
        (damage_cut, "is cut into 7 shards, not 4"),
        (damage_two, "has shards of runs cut into 6 and 7"),
    ],
)
def test_a_folder_of_something_else_is_refused(tmp_path: Path, make: Callable[[Path], None], words: str) -> None:
    make(tmp_path / "out")
    with pytest.raises(UsageError) as refused:
        go(ask(tmp_path / "out", shards=4), Here())
    assert words in refused.value.message


def test_a_whole_with_rows_to_go_is_left_to_one_machine(tmp_path: Path) -> None:
    out = write(tmp_path / "out", "speculators-v1")
    lines = (out / "index.jsonl").read_text().splitlines(keepends=True)
    (out / "index.jsonl").write_text("".join(lines[:-2]))
    with pytest.raises(UsageError, match="with 2 rows to go"):
        go(ask(out), Here())


def test_a_line_for_each_server_is_told_as_is_agreed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    go(ask(out, shards=2, merge=False), Here(servers=1))
    lines = [json.loads(line) for line in (out / ".hsbench/cluster.jsonl").read_text().splitlines()]
    keys = {"time", "server", "node", "shard", "state", "verdict", "samples", "tok_s", "waiting_bytes", "note"}
    assert all(set(line) == keys for line in lines)
    ran = [line for line in lines if line["state"] == "running"]
    assert [(line["shard"], line["server"], line["verdict"]) for line in ran] == [
        ("shard_0-of-2", "s0", "READY"),
        ("shard_1-of-2", "s0", "READY"),
    ]


def hsbench(*arguments: str, code: str = "") -> "subprocess.CompletedProcess[str]":
    whole = f"import sys\n{code}\nfrom workbench.cli import main\nmain(sys.argv[1:])"
    return subprocess.run([sys.executable, "-c", whole, *arguments], capture_output=True, text=True, check=False)


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    data, out = tmp_path / "d.jsonl", str(tmp_path / "out")
    data.write_text("{}\n")
    base = ["extract", str(data), "--out", out]
    for arguments, words in (
        ([*base, "--servers", "2"], "--servers goes with --ray"),
        ([*base, "--ray", "auto"], "--ray needs a model to serve"),
        ([*base, "--ray", "auto", "--model", "m", "--url", "http://x"], "starts servers of its own"),
        ([*base, "--ray", "auto", "--model", "m", "--shard", "0/2"], "cuts the data set by itself"),
        ([*base, "--ray", "head:port", "--model", "m"], "--ray 'head:port' is neither auto nor HOST:PORT"),
    ):
        done = hsbench(*arguments)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    without = hsbench(*base, "--ray", "auto", "--model", "m", code="sys.modules['ray'] = None")
    assert (without.returncode, "pip install 'hsbench[ray]'" in without.stderr) == (6, True), without.stderr
    assert not Path(out).exists()


OTHER: list[tuple[tuple[dict[str, Any], dict[str, Any]], str]] = [
    (({}, {"format": "specforge"}), "format: speculators-v1, now specforge"),
    (({}, {"layers": (0, 1)}), "blocks: [0, 1, 2], now [0, 1]"),
    (({}, {"model": "/models/huge"}), "model: /models/tiny, now /models/huge"),
    (({"fingerprint": "f1"}, {}), "data set or tokenizer: other contents (data.jsonl, now data.jsonl)"),
    (({"rows": ROWS + 1}, {}), f"rows: {ROWS}, now {ROWS + 1}"),
    (({"max_seq_len": 64}, {}), "--max-seq-len: None, now 64"),
    (({"mask": "template"}, {}), "mask: column, now template"),
]


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize(("changes", "words"), OTHER)
def test_another_run_is_not_told_to_be_done(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    merge: bool,
    changes: tuple[dict[str, Any], dict[str, Any]],
    words: str,
) -> None:
    source, settings = changes
    out, first = tmp_path / "out", ask(tmp_path / "out", shards=2, merge=merge)
    go(first, Here())
    job, before = JobFiles(out).load(), contents(out)
    other = msgspec.structs.replace(run_record("speculators-v1", ROWS).source, **source)
    monkeypatch.setattr(Driver, "_source", lambda self: other)
    machines = Here()
    with pytest.raises(UsageError) as refused:
        go(msgspec.structs.replace(first, settings=msgspec.structs.replace(first.settings, **settings)), machines)
    part = "" if merge else "shard_0-of-2: "
    assert refused.value.message == f"this folder is of another run: {part}{words}"
    assert not machines.errands
    assert contents(out) == before
    after = JobFiles(out).load()
    assert job is not None
    assert after is not None
    assert (after.settings, after.cluster) == (job.settings, job.cluster)


def test_the_cluster_is_asked_for_before_the_data_set_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def nobody(cluster: Cluster) -> Here:
        raise ServerError(f"nothing listens at {cluster.address}")

    monkeypatch.setattr(Driver, "_source", lambda self: read.append(self.settings.data))
    with pytest.raises(ServerError, match="nothing listens at here"):
        list(run(ask(tmp_path / "out"), Control(), on(nobody)))
    assert not read


def test_one_machine_is_told_that_the_folder_is_of_a_run_on_ray(tmp_path: Path) -> None:
    out = tmp_path / "out"
    alone = msgspec.structs.replace(ask(out), cluster=None)
    going = run(ask(out, shards=3), Control(), on(lambda cluster: Here(servers=1)))
    while not (out / shard_name(0, 3)).exists():
        next(going)

    def killed() -> None:
        going.close()  # type: ignore[attr-defined]
        job = JobFiles(out).load()
        assert job is not None
        JobFiles(out).save(msgspec.structs.replace(job, since_boot=-5.0))

    for end, words, step in (
        (lambda: None, f"{out} is of a run on Ray, which goes on", f"hsbench watch {out} shows it"),
        (killed, f"{out} is of a run on Ray", f"hsbench extract --resume {out} goes on with it"),
        ((out / ".hsbench/job.json").unlink, f"{out} holds shards of a run, such as shard_0-of-3", "--merge"),
    ):
        end()
        with pytest.raises(UsageError) as refused:
            detach.ask(JobFiles(out), alone)
        assert refused.value.message == words
        assert step in refused.value.next_step
