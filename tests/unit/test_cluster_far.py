"""A run of many machines whose shards lie at a URL: the store is the truth, whatever driver, hand or folder is lost."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.extract_support import local_pool, run_record, sample, write_both
from tests.unit.merge_support import BAD, REFUSED, ROWS, write
from tests.unit.storage_support import check_recorded
from tests.unit.test_cluster_hand import NODE, Worked, begin, errand, wait_until  # noqa: F401 - `begin` is a fixture
from tests.unit.test_cluster_run import Here, end_of, go
from workbench.cluster import far, place, ray_crew
from workbench.cluster.driver import Driver, on
from workbench.cluster.far import cluster_at
from workbench.cluster.lead import check_lead, load_lead, take_lead
from workbench.cluster.records import At, Errand, Gone, Hello, News, Order, Over, Said
from workbench.cluster.shardjob import TAKEN_OVER, settings_of
from workbench.commands.clustering import cluster_of
from workbench.errors import Missing, UsageError
from workbench.extract.job.files import JobFiles, Request
from workbench.extract.job.run import Control, run
from workbench.extract.job.settings import Cluster, ExtractSettings
from workbench.extract.sample import Refused
from workbench.extract.shards import shard_name
from workbench.extract.watch import run_in
from workbench.storage import uploader
from workbench.storage.address import staging_folder
from workbench.storage.errors import TakenOver
from workbench.storage.parts import Parts
from workbench.storage.remote import Remote, load_settings
from workbench.storage.store import Store


@pytest.fixture(autouse=True)
def _a_data_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(Driver, "_source", lambda self: run_record("speculators-v1", ROWS).source)
    monkeypatch.setattr(uploader, "PART_S", 0.02)
    (tmp_path / "d.jsonl").write_text("{}\n")


class Nodes(Here):
    """Machines whose hands do a shard as its job does, from a folder of their own to the store.

    Args:
        folder: Where each slot has a state folder.
        lost: Shards whose hand is lost after their second row.
    """

    def __init__(self, folder: Path, lost: tuple[int, ...] = (), servers: int = 2) -> None:
        super().__init__(servers=servers)
        self.folder, self.lost = folder, set(lost)
        self.made: list[int] = []
        """Rows, in the order in which they were made."""

    def reply(self, slot: int, order: Order | None) -> list[News] | Gone:
        if order is not None and order.do == "shard" and order.shard in self.lost:
            self.lost.remove(order.shard)
            self.gave.append(order.shard)
            self.rows(slot, order.shard, 2)
            return Gone("the node died")
        return super().reply(slot, order)

    def shard(self, errand: Errand, number: int) -> list[News]:
        rows = self.rows(errand.slot, number, ROWS)
        return [At(shard=number, state="running", written=rows, tokens=10 * rows), Over(shard=number, outcome="done")]

    def rows(self, slot: int, number: int, most: int) -> int:
        """Do so many rows of a shard."""
        one = self.errands[slot]
        with place.state_in(self.folder / f"slot{slot}-{len(self.gave)}"):
            settings = settings_of(one, number, f"s{slot}", 30000, True)
        Path(settings.out).mkdir(parents=True)
        with local_pool() as pool:
            remote = Remote.open(settings, "abc123")
            record = remote.record() or run_record("speculators-v1", ROWS, shard=(number, one.shards))
            writer = remote.writer(record, pool)
            writer.recover()
            remote.set_limit(1 << 20)
            left = [row for row in record.rows() if row not in writer.index][:most]
            for row in left:
                self.row(writer, row)
            for _ in remote.drain(lambda: False):
                pass
            writer.finalise()
            writer.close()
            remote.close()
        return len(left)

    def row(self, writer: Any, row: int) -> None:
        self.made.append(row)
        if row == REFUSED:
            writer.refuse(Refused(row, "mask", "nothing is trained on"))
        else:
            wrong = {"token_ids": [1] * 3} if row == BAD else {}
            writer.write(sample(row), write_both(self.folder / "dumps", sample(row), **wrong))


def ask(tmp_path: Path, url: str, staging: str | None = None, **changes: Any) -> Request:
    cluster = Cluster(address="here", **{"shards": 4, "lease_s": 0.05, **changes})
    settings = ExtractSettings(
        data=str(tmp_path / "d.jsonl"), out=str(staging_folder(url, staging)), store=url, model="/models/tiny"
    )
    return Request(settings=settings, command="extract", cluster=cluster)


def check_whole(url: str, alone: Path) -> None:
    """The same rows, samples and side files as one machine leaves in a folder."""
    store = Store.open(url)
    text = (store.read("index.jsonl") or b"").splitlines()
    lines = {line["index"]: line for line in map(json.loads, text)}
    whole = [json.loads(line) for line in (alone / "index.jsonl").read_text().splitlines()]
    assert len(text) == len(lines) == len(whole) == ROWS
    for line in whole:
        there = lines[line["index"]]
        assert (there["status"], there.get("tokens")) == (line["status"], line.get("tokens"))
        if line["status"] == "written":
            assert there["file"] == f"{shard_name(line['index'] % 4, 4)}/{line['file']}"
            data, same = store.read(there["file"]) or b"", (alone / line["file"]).read_bytes()
            assert zlib.crc32(data) == zlib.crc32(same)
    for path in alone.glob("*.json"):
        stored = json.loads(store.read(path.name) or b"")
        assert stored == json.loads(path.read_text()), path.name


def test_a_run_to_a_url_is_that_of_one_machine_and_a_lost_node_costs_no_row(tmp_path: Path) -> None:
    url, nodes = f"file://{tmp_path}/bucket/run", Nodes(tmp_path, lost=(1,))
    ended = end_of(go(ask(tmp_path, url), nodes))
    assert (ended.state, ended.next_step) == ("done", f"hsbench verify {url} --all")
    assert "1 were lost on the way" in ended.message
    assert sorted(nodes.gave) == [0, 1, 1, 2, 3]
    assert sorted(nodes.made) == list(range(ROWS)), "what was stored by the lost node was made again, or is missing"
    check_whole(url, write(tmp_path / "alone", "speculators-v1"))
    assert sum(check_recorded(Store.open(f"{url}/{shard_name(shard, 4)}")) for shard in range(4)) == ROWS
    here = staging_folder(url)
    assert {path.name for path in here.iterdir()} == {".hsbench"}, "samples went through the driver's folder"
    again = Nodes(tmp_path)
    assert f"{ROWS} rows are done and joined in {url}" in end_of(go(ask(tmp_path, url), again)).message
    assert not again.gave


def test_a_driver_that_dies_is_gone_on_with_from_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, nodes = f"file://{tmp_path}/bucket/run", Nodes(tmp_path, servers=1)
    going = run(ask(tmp_path, url), Control(), on(lambda cluster: nodes))
    for _ in going:
        if len(nodes.gave) == 2:
            break
    going.close()  # type: ignore[attr-defined]
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    settings, cluster = load_settings(url, staging_folder(url)), cluster_at(url)
    assert cluster == Cluster(address="here", shards=4, lease_s=0.05)
    first = load_lead(Store.open(url))
    others = Nodes(tmp_path / "more", servers=1)
    ended = end_of(go(Request(settings=settings, cluster=cluster), others))
    assert ended.state == "done"
    last = load_lead(Store.open(url))
    assert first is not None
    assert last is not None
    assert (first.run, first.token == last.token) == (last.run, False)
    assert sorted(nodes.gave + others.gave) == [0, 1, 2, 3]
    check_whole(url, write(tmp_path / "alone", "speculators-v1"))


def test_of_two_drivers_the_older_ends_and_on_one_machine_the_second_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, nodes = f"file://{tmp_path}/bucket/run", Nodes(tmp_path, servers=1)
    monkeypatch.setattr(far, "CHECK_S", 0.0)
    going = run(ask(tmp_path, url), Control(), on(lambda cluster: nodes))
    for _ in going:
        if nodes.gave:
            break
    with pytest.raises(UsageError, match="a job already writes into"):
        go(ask(tmp_path, url), Nodes(tmp_path / "same"))
    others = Nodes(tmp_path / "more", servers=1)
    assert end_of(go(ask(tmp_path, url, str(tmp_path / "staging")), others)).state == "done"
    given = len(nodes.gave)
    with pytest.raises(TakenOver, match=f"{url} was taken over by .*, process"):
        list(going)
    assert len(nodes.gave) == given, "the older one handed out a shard after the newer began"
    assert nodes.closed
    assert sorted(nodes.gave + others.gave) == [0, 1, 2, 3]


@pytest.mark.parametrize("error", [OSError("connection reset"), PermissionError("expired token")])
def test_a_store_that_does_not_answer_ends_no_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    def fail(path: str, **options: Any) -> bytes:
        raise error

    store = Store.open(f"file://{tmp_path}/bucket/run")
    take_lead(store, "t1", "r1", Cluster(address="here"))
    with pytest.raises(TakenOver):
        check_lead(store, "t0")
    monkeypatch.setattr(store.fs, "cat_file", fail)
    check_lead(store, "t0")


def test_a_shard_that_only_looks_done_is_done_again_and_shards_may_stay_as_they_are(tmp_path: Path) -> None:
    url, first = f"file://{tmp_path}/bucket/run", Nodes(tmp_path)
    ended = end_of(go(ask(tmp_path, url, merge=False), first))
    assert (ended.state, ended.next_step) == ("done", f"hsbench extract --merge {url}")
    store = Store.open(url)
    assert not store.has("index.jsonl")
    store.remove([f"{shard_name(2, 4)}/index.jsonl"])
    nodes = Nodes(tmp_path / "more")
    assert end_of(go(ask(tmp_path, url), nodes)).state == "done"
    assert (nodes.gave, nodes.made) == ([2], []), "rows that were recorded are made again"
    check_whole(url, write(tmp_path / "alone", "speculators-v1"))


def put(url: str, name: str, data: bytes = b"{}") -> None:
    Store.open(url).replace(name, data)


def one_machine(url: str) -> None:
    put(url, "index/run.json", msgspec.json.encode(run_record("speculators-v1", ROWS)))


def other_data(url: str) -> None:
    put(url, "shard_0-of-4/index/run.json", msgspec.json.encode(run_record("specforge", ROWS, shard=(0, 4))))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda url: put(url, "notes.txt"), "is not empty (notes.txt) and is of no run of shards"),
        (lambda url: put(url, "shard_0-of-7/x"), "is cut into 7 shards, not 4"),
        (one_machine, "is one machine's"),
        (other_data, "shard_0-of-4: format: specforge, now speculators-v1"),
    ],
)
def test_a_url_of_something_else_is_refused_and_left_alone(
    tmp_path: Path, make: Callable[[str], None], words: str
) -> None:
    url = f"file://{tmp_path}/bucket/run"
    make(url)
    before = Store.open(url).names()
    with pytest.raises(UsageError) as refused:
        go(ask(tmp_path, url), Nodes(tmp_path))
    assert words in refused.value.message
    assert Store.open(url).names() == before


def test_a_finished_url_of_another_run_is_not_told_to_be_done(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket/run"
    go(ask(tmp_path, url), Nodes(tmp_path))
    request = ask(tmp_path, url)
    other = msgspec.structs.replace(request, settings=msgspec.structs.replace(request.settings, layers=(0, 1)))
    store = Store.open(url)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"another run: blocks: \[0, 1, 2\], now \[0, 1\]"):
            go(other, Nodes(tmp_path / "more"))
        store.remove([name for name in store.names() if name.endswith("/index/run.json")])


def test_a_pause_hands_nothing_out_and_is_told_with_every_order(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket/run"
    files = JobFiles(staging_folder(url))
    files.make()
    files.pause.touch()
    told: list[tuple[str, bool | None]] = []

    class Told(Nodes):
        def send(self, slot: int, order: Order) -> None:
            told.append((order.do, order.paused))
            if len(told) == 3:
                files.pause.unlink()
            super().send(slot, order)

    assert end_of(go(ask(tmp_path, url), Told(tmp_path, servers=1))).state == "done"
    assert told[:3] == [("beat", True)] * 3
    assert [one for one in told[3:] if one[0] == "shard"] == [("shard", False)] * 4


def test_whoever_watches_sees_servers_in_the_folder_and_the_sum_at_the_url(tmp_path: Path) -> None:
    url, nodes = f"file://{tmp_path}/bucket/run", Nodes(tmp_path, servers=1)
    seen: list[Any] = []
    watched: list[Any] = []
    for _ in run(ask(tmp_path, url), Control(), on(lambda cluster: nodes)):
        if len(nodes.gave) == 3 and not seen:
            seen += [run_in(url).look(), run_in(staging_folder(url)).look()]
            with place.state_in(tmp_path / "elsewhere"):
                watched.append(run_in(url))
                seen.append(watched[0].look())
    for view in seen[:2]:
        assert {(row.shard, row.server) for row in view.shards if row.server} >= {("shard_1-of-4", "s0")}
    assert (seen[2].rows, seen[2].written + seen[2].refused + seen[2].quarantined) == (ROWS, 9)
    done = watched[0].look()
    assert (done.state, done.written + done.refused + done.quarantined) == ("done", ROWS)


def test_the_staging_folder_of_a_shard_is_on_its_node(tmp_path: Path) -> None:
    url = "s3://bucket/run"
    whole = ExtractSettings(data="d", out="/driver/abc", store=url, model="m", dump_dir="/dumps")
    told = Errand(settings=whole, run="r1", slot=0, shards=4, token="t", lease_s=1.0)
    mine = settings_of(told, 2, "s0", 1, True)
    assert (mine.store, mine.shard, mine.dump_dir) == (f"{url}/shard_2-of-4", (2, 4), "/dumps/s0")
    assert Path(mine.out).parent == tmp_path / "state/hsbench/staging"
    asked = settings_of(msgspec.structs.replace(told, staging="/scratch"), 2, "s0", 1, True)
    assert (Path(asked.out).parent, Path(asked.out).name) == (Path("/scratch"), Path(mine.out).name)


def test_the_command_takes_a_url_and_its_cluster_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file://{tmp_path}/bucket/run"
    monkeypatch.setattr(ray_crew, "load", lambda: None)
    settings = ask(tmp_path, url).settings
    assert cluster_of({"ray": "auto", "shards": 3}, settings, False) == Cluster(address="auto", shards=3)
    assert cluster_of({}, settings, True) is None
    take_lead(Store.open(url), "t", "r", Cluster(address="h:6379", shards=4, merge=False))
    assert cluster_of({}, settings, True) == Cluster(address="h:6379", shards=4, merge=False)
    assert cluster_of({"ray": "auto"}, settings, True) == Cluster(address="auto", shards=4, merge=False)
    with pytest.raises(UsageError, match="is of a run on Ray"):
        Remote.open(settings, "abc123").record()


# Hands.


def test_a_hand_frees_what_a_lost_node_on_its_machine_staged(tmp_path: Path) -> None:
    mine, same, lost = (place.homes("r1") / f"{place.host()}-{name}" for name in ("aa-0", "aa-1", "bb-0"))
    left = [home / "hsbench/staging" / name / "data_1.pt" for home in (same, lost) for name in ("x", "x.quarantine")]
    for path in left:
        path.parent.mkdir(parents=True)
        path.touch()
    place.end_leftovers("r1", mine)
    assert [path.exists() for path in left] == [True, True, False, True]


def far_errand(folder: Path, kind: str) -> Errand:
    """One whose driver has left its token at a URL."""
    url = f"file://{folder}/bucket/run"
    take_lead(Store.open(url), "t0", "r1", Cluster(address="here"))
    one = errand(folder, kind)
    return msgspec.structs.replace(one, settings=msgspec.structs.replace(one.settings, store=url))


def test_a_hand_that_does_not_see_the_drivers_store_gets_no_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = far_errand(tmp_path, "done")
    place.check_seen(one.settings, "t0", 0)
    with pytest.raises(Missing, match=r"does not find at file://.* what the driver left"):
        place.check_seen(one.settings, "t1", 0)
    (tmp_path / "file").touch()
    nowhere = msgspec.structs.replace(one.settings, store=f"file://{tmp_path}/file/run")
    with pytest.raises(Missing) as refused:
        place.check_seen(nowhere, "t0", 0)
    assert "environment of `ray start`" in refused.value.next_step


def test_a_pause_reaches_the_job_whose_folder_the_driver_does_not_see(
    tmp_path: Path,
    begin: Callable[[Errand], Worked],  # noqa: F811
) -> None:
    told = far_errand(tmp_path, "endless")
    home = place.homes("r1") / place.server_name(NODE, 0)
    with place.state_in(home):
        mark = JobFiles(settings_of(told, 1, "s", 1, True).folder).pause
    mark.parent.mkdir(parents=True)
    mark.touch()
    one = begin(told)
    one.until(Hello)
    one.until(Said, Order(do="shard", shard=1, paused=False))
    wait_until(lambda: not mark.exists())
    one.relay.work(encoded(paused=True))
    wait_until(mark.exists)
    one.relay.work(encoded(paused=None))
    assert mark.exists()
    one.relay.work(encoded(paused=False))
    wait_until(lambda: not mark.exists())


def encoded(paused: bool | None) -> dict[str, Any]:
    found = msgspec.to_builtins(Order(paused=paused))
    assert isinstance(found, dict)
    return found


def test_a_shard_at_which_another_job_records_is_busy(
    tmp_path: Path,
    begin: Callable[[Errand], Worked],  # noqa: F811
) -> None:
    store = Store.open(f"file://{tmp_path}/bucket/run/shard_0-of-4")
    older, newer = Parts(store), Parts(store)
    older.claim()
    newer.claim()
    with pytest.raises(TakenOver) as taken:
        older.append([])
    assert TAKEN_OVER in taken.value.message
    one = begin(far_errand(tmp_path, "taken"))
    one.until(Hello)
    over = one.until(Over, Order(do="shard", shard=0))[-1]
    assert isinstance(over, Over)
    assert (over.outcome, TAKEN_OVER in over.message) == ("busy", True)
