"""Data sets at a URL, with stores in memory: addresses, what is the truth, what ends a run, what waits."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import safetensors.torch
from fsspec.registry import _registry

from tests.unit.extract_support import build, local_pool, run_record, sample, write_both
from tests.unit.job_support import Run, wait_until
from tests.unit.storage_support import Far, check_recorded, in_memory, memory_url, recorded, settings
from tests.unit.watch_support import job_file, picture, tell
from workbench import cli
from workbench.errors import CheckFailed, UsageError
from workbench.extract.audit.run import VerifyOptions, verify
from workbench.extract.job import roster
from workbench.extract.job.events import Ended
from workbench.extract.job.files import JobFile, JobFiles
from workbench.extract.job.gate import Gate
from workbench.extract.job.start import Start
from workbench.extract.record import FORMATS, Format
from workbench.extract.watch import run_in
from workbench.extract.writer import DatasetWriter
from workbench.server import engine
from workbench.storage import address, light, merging, s3
from workbench.storage.address import checked_url, is_url, local_folder, shard_of, staging_folder
from workbench.storage.errors import StorageError
from workbench.storage.mirror import Mirror
from workbench.storage.remote import Remote, _portable, load_settings
from workbench.storage.store import Store
from workbench.storage.sums import sums_of

SECRET = "wJalr/XUtnFEMI+K7MDENG"


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """A prefix of a store in this process, of its own for each test."""
    return memory_url(request.node.nodeid)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    in_memory(monkeypatch, tmp_path)


# Addresses.


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("s3://bucket/a//b/", "s3://bucket/a/b"),
        ("S3://Bucket/Pre_fix", "s3://Bucket/Pre_fix"),
        ("file:///data//x", "file:///data/x"),
        ("abfs://container@account.dfs.core.windows.net/x", "abfs://container@account.dfs.core.windows.net/x"),
        ("s3://arn:aws:s3::1:accesspoint/x/y", "s3://arn:aws:s3::1:accesspoint/x/y"),
    ],
)
def test_a_url_is_written_in_one_way(given: str, expected: str) -> None:
    assert is_url(given)
    assert checked_url(given) == expected


@pytest.mark.parametrize(
    "given",
    [
        f"s3://AKIAKEY:{SECRET}@bucket/x",
        f"s3://AKIAKEY:{SECRET}",
        f"s3://{SECRET}@bucket/x",
        f"https://user:{SECRET}@host/x",
        f"s3://bucket/x?X-Amz-Signature={SECRET}",
        f"s3://bucket/{SECRET}*",
        f"simplecache::s3://bucket/{SECRET}",
        f"s3://bucket/../{SECRET}",
        "s3://",
    ],
)
@pytest.mark.parametrize(
    "command", [["extract", "D", "--out", "U"], ["verify", "U"], ["watch", "U"], ["job", "stop", "U"]]
)
def test_a_url_that_cannot_be_written_down_is_refused_and_not_repeated(
    given: str, command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d.jsonl").write_text('{"text": "x"}\n')
    words = [{"D": str(tmp_path / "d.jsonl"), "U": given}.get(word, word) for word in command]
    assert cli.run(words) == 2
    out, err = capfd.readouterr()
    assert SECRET not in out + err
    assert len(err.splitlines()) == 2
    assert not list(tmp_path.rglob("job.json"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("memory://bucket/x", "memory cannot be written to: it is gone with the process"),
        ("http://host/x", "http cannot be written to"),
        ("HTTPS://host/x", "https cannot be written to"),
        ("github://owner/x", ""),
        ("tar://x/y", "tar cannot be written to"),
        ("s3:/bucket/x", "did you mean s3://bucket/x"),
        ("s3:bucket/x", "did you mean s3://bucket/x"),
        ("s3:///bucket//x", ""),
        ("GS:/bucket/x", "did you mean gs://bucket/x"),
        ("file:/data/x", "did you mean file:///data/x"),
        ("http:/host/x", "did you mean http://host/x"),
    ],
)
def test_a_url_that_cannot_be_written_to_is_refused_before_anything_is(
    given: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if not said:
        assert address.writable_url(given)
        return
    monkeypatch.setitem(address.NEVER, "memory", "it is gone with the process")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.jsonl").write_text('{"text": "x"}\n')
    assert cli.run(["extract", "d.jsonl", "--out", given]) == 2
    err = capfd.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["d.jsonl"], "no folder of that name, and no job"
    if "cannot" in said:
        with pytest.raises(UsageError, match="cannot be written to"):
            Remote.open(settings(given, tmp_path / "one"), "abc")


def test_a_folder_whose_name_has_a_colon_is_a_folder() -> None:
    assert not any(map(is_url, ("a:b/c", "./s3:/bucket", "run:1", "s3", "/data/s3:/x")))


def test_each_shard_and_url_has_a_staging_folder_of_its_own(tmp_path: Path) -> None:
    places = {staging_folder(shard_of("s3://b/x", (number, 4))) for number in range(4)} | {staging_folder("s3://b/x")}
    assert len(places) == 5
    assert all(place.parent == tmp_path / "state/hsbench/staging" for place in places)
    assert staging_folder("s3://b/x", str(tmp_path / "here")).parent == tmp_path / "here"
    assert shard_of("s3://b/x", (1, 4)) == "s3://b/x/shard_1-of-4"


def test_nothing_of_a_store_is_loaded_without_a_url() -> None:
    code = (
        "import sys, workbench.cli\n"
        "try: workbench.cli.run(['extract', '--help'])\n"
        "except SystemExit: pass\n"
        "import workbench.extract.job.start\n"
        "print('LOADED', *sorted({m.split('.')[0] for m in sys.modules}))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = set(out.rpartition("LOADED")[2].split())
    assert "workbench" in loaded
    assert not loaded & {"fsspec", "s3fs", "aiobotocore", "botocore"}


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    (tmp_path / "d.jsonl").write_text('{"text": "x"}\n')
    for name in [name for name in sys.modules if name.partition(".")[0] == "s3fs"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(_registry, "s3", raising=False)  # it remembers what another test imported
    assert cli.run(["verify", "s3://bucket/x"]) == 6
    err = capfd.readouterr().err
    assert "pip install 'hsbench[s3]'" in err
    assert len(err.splitlines()) == 2


# Checksums.


def test_the_tags_of_a_file_sent_whole_and_in_parts(tmp_path: Path) -> None:
    data = os.urandom(2_500_000)
    (tmp_path / "f").write_bytes(data)
    pieces = [data[:1_000_000], data[1_000_000:2_000_000], data[2_000_000:]]
    joined = hashlib.md5(b"".join(hashlib.md5(piece).digest() for piece in pieces)).hexdigest()
    sums = sums_of(tmp_path / "f", 1_000_000)
    assert sums == (2_500_000, f"{zlib.crc32(data):08x}", (hashlib.md5(data).hexdigest(), f"{joined}-3"))
    (tmp_path / "g").write_bytes(data[:2_000_000])
    assert sums_of(tmp_path / "g", 1_000_000).etags[1].endswith("-2")


def test_the_ids_and_mask_of_a_sample_without_its_states(tmp_path: Path) -> None:
    folder = build(tmp_path / "out", "speculators", 2)
    path = folder / "hidden_states/hs_1.safetensors"
    data = path.read_bytes()
    made = safetensors.torch.load(light.light_bytes(lambda start, end: data[start:end]))
    whole = safetensors.torch.load(data)
    assert set(made) == {"token_ids", "loss_mask"}
    assert all(made[name].equal(whole[name]) for name in made)
    with pytest.raises(CheckFailed, match="lacks ids or mask"):
        light.light_bytes(lambda start, end: b"\xff" * (end - start))


# What is the truth.


def test_parts_are_the_truth_and_the_index_object_is_the_last(url: str, tmp_path: Path) -> None:
    far = Far(url, tmp_path / "one")
    far.write(0, 1, 2)
    far.drain()
    assert set(recorded(far.store)) == {0, 1, 2}
    assert not list((tmp_path / "one").rglob("*.pt")), "stored samples leave this machine"
    assert far.writer.finalise() == []
    assert far.store.read("index.jsonl") is None
    assert far.store.read("hsbench.json") is None
    far.close()
    order: list[str] = []
    other = Far(url, tmp_path / "two")
    put, replace = other.store.fs.put_file, other.store.fs.pipe_file
    other.store.fs.put_file = lambda path, name, **more: (order.append(name), put(path, name, **more))
    other.store.fs.pipe_file = lambda name, data, **more: (order.append(name), replace(name, data, **more))
    try:
        other.write(3, 4, 5)
        other.finish().close()
    finally:
        del other.store.fs.put_file, other.store.fs.pipe_file
    names = [name.rpartition("/")[2] for name in order]
    assert names[-2:] == ["hsbench.json", "index.jsonl"]
    assert check_recorded(other.store) == 6
    assert [json.loads(line)["index"] for line in (other.store.read("index.jsonl") or b"").splitlines()] == [*range(6)]


def test_what_waits_here_is_sent_by_the_next_start(url: str, tmp_path: Path) -> None:
    far = Far(url, tmp_path / "one")
    down = lambda *_, **__: (_ for _ in ()).throw(ConnectionError("down"))  # noqa: E731
    far.store.fs.put_file = down
    try:
        far.write(0, 1)
        wait_until(lambda: bool(far.remote._uploader.trouble))  # type: ignore[union-attr]
        far.close()
    finally:
        del far.store.fs.put_file
    assert not recorded(far.store)
    assert len(list((tmp_path / "one").rglob("*.pt"))) == 2
    again = Far(url, tmp_path / "one")
    assert len(again.writer.index) == 2
    again.drain()
    assert set(recorded(again.store)) == {0, 1}
    again.write(2, 3, 4, 5)
    again.finish().close()
    assert check_recorded(again.store) == 6


def test_what_another_machine_did_meanwhile_goes_before_what_is_here(url: str, tmp_path: Path) -> None:
    here = Far(url, tmp_path / "here")
    here.write(0, 1)
    here.drain()
    here.close()
    there = Far(url, tmp_path / "there")
    there.write(2, 3)
    there.drain()
    there.close()
    line = write_one_by_hand(tmp_path / "here", 3)
    back = Far(url, tmp_path / "here")
    assert len(back.writer.index) == 4
    assert back.writer.index.get(3) == recorded(back.store)[3] != line
    assert not list((tmp_path / "here").rglob("*.pt"))
    back.write(4, 5)
    back.finish().close()
    assert check_recorded(back.store) == 6


def write_one_by_hand(folder: Path, row: int) -> Any:
    """A sample that a start killed before its upload left in a staging folder."""
    writer = DatasetWriter(folder, run_record("speculators-v1", 6), local_pool(), clock=lambda: 7.0)
    line = writer.write(sample(row), write_both(folder.parent / "dumps", sample(row)))
    writer.close()
    return line


def test_lost_and_unfinished_objects_are_made_again(url: str, tmp_path: Path) -> None:
    far = Far(url, tmp_path / "one")
    far.write(0, 1, 2)
    far.drain()
    far.close()
    names = {row: line.file for row, line in recorded(far.store).items()}
    far.store.remove([names[0]])
    far.store.replace(names[1], b"short")
    far.store.replace("rows_0-2000/data_4.pt", b"never recorded")
    again = Far(url, tmp_path / "two")
    assert again.recovery.redo == (0, 1)
    assert "rows_0-2000/data_4.pt" in again.recovery.removed
    assert "rows_0-2000/data_4.pt" not in again.store.names()
    again.store.replace(names[0], b"stored late by an older job")
    again.write(0, 1, 3, 4, 5)
    again.finish().close()
    assert check_recorded(again.store) == 6
    assert recorded(again.store)[0].again


def test_a_finished_run_that_lost_a_sample_is_not_finished_while_it_is_made_again(url: str, tmp_path: Path) -> None:
    far = Far(url, tmp_path / "one")
    far.write(*range(6))
    far.finish().close()
    parts = [name for name in far.store.names("index") if "part-" in name]
    idle = Far(url, tmp_path / "one")
    idle.finish().close()
    assert [name for name in far.store.names("index") if "part-" in name] == parts, "nothing to do, nothing written"
    far.store.remove(["rows_0-2000/data_2.pt"])
    again = Far(url, tmp_path / "two")
    assert again.recovery.redo == (2,)
    again.write(2)
    again.drain()
    assert again.store.read("index.jsonl") is None
    again.finish().close()
    assert again.store.read("index.jsonl") is not None
    assert check_recorded(again.store) == 6


@pytest.mark.parametrize("there", ["other", "different"])
def test_a_url_of_something_else_is_refused(there: str, url: str, tmp_path: Path) -> None:
    store = Store.open(url)
    if there == "other":
        store.replace("precious.txt", b"1")
        with pytest.raises(UsageError, match=r"is not empty \(precious.txt\)"):
            Far(url, tmp_path / "one")
        assert store.names() == {"precious.txt": 1}
        return
    Far(url, tmp_path / "one", rows=6).close()
    (tmp_path / "two").mkdir()
    write_one_by_hand(tmp_path / "two", 0)
    record = json.loads((tmp_path / "two/hsbench.json").read_text())
    record["states"]["after_block"] = [1]
    (tmp_path / "two/hsbench.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match="another run: blocks"):
        Far(url, tmp_path / "two")


# What goes wrong on the way.


def test_an_object_that_is_not_what_was_sent_is_never_recorded(url: str, tmp_path: Path) -> None:
    far = Far(url, tmp_path / "one")
    send, spoilt = far.store.fs.put_file, []

    def spoil(path: str, name: str, **more: Any) -> None:
        send(path, name, **more)
        if len(spoilt) < 2:
            spoilt.append(name)
            data = bytearray(far.store.fs.cat_file(name))
            data[100] ^= 1
            far.store.fs.pipe_file(name, bytes(data))

    far.store.fs.put_file = spoil
    try:
        far.write(0)
        far.drain()
    finally:
        del far.store.fs.put_file
    far.close()
    assert len(spoilt) == 2
    assert check_recorded(far.store) == 1


def test_a_sample_that_changed_while_it_waited_ends_the_run_and_is_made_again(url: str, tmp_path: Path) -> None:
    far = Far(url, tmp_path / "one")
    held = threading.Event()
    put = far.store.put
    far.store.put = lambda *a, **k: (held.wait(20), put(*a, **k))  # type: ignore[method-assign,assignment,func-returns-value]
    (line,) = far.write(0)
    path = tmp_path / "one" / line.file
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    held.set()
    with pytest.raises(CheckFailed, match="changed while it waited"):
        far.drain()
    far.close()
    again = Far(url, tmp_path / "one")
    assert 0 not in again.writer.index
    again.close()


class Through:
    """A flow whose samples go on to a store."""

    def __init__(self, url: str, folder: Path, **changes: Any) -> None:
        self.run = Run(folder)
        self.run.writer.close()
        self.far = Far(url, self.run.out, rows=12, **changes)
        self.remote = self.far.remote
        self.run.writer = self.far.writer
        self.run.gate = Gate(
            self.run.out, self.run.dumps, high_water=1 << 30, min_free=0, pause=folder / "pause", uploads=self.remote
        )

    def go(self) -> None:
        try:
            self.run.go()
            self.far.drain()
        finally:
            self.remote.close()


def failing(until: Callable[[], bool]) -> Callable[..., None]:
    def put(path: str, name: str, **more: Any) -> None:
        if until():
            return Store.open("memory://x").fs.__class__.put_file(Store.open("memory://x").fs, path, name, **more)
        raise ConnectionError("no route to the store")

    return put


def test_a_store_that_is_away_pauses_the_run_and_it_goes_on(url: str, tmp_path: Path) -> None:
    through = Through(url, tmp_path)
    through.remote.limit = 6000
    back = threading.Event()
    fs = through.far.store.fs
    fs.put_file = failing(back.is_set)
    thread = threading.Thread(target=through.go)
    try:
        thread.start()
        wait_until(lambda: "the storage is not reachable" in through.run.said())
        sent = len(through.run.server.asked)
        assert sent < 12
        back.set()
        thread.join(30)
    finally:
        del fs.put_file
    assert not thread.is_alive()
    assert "no route to the store" in through.run.said()
    assert check_recorded(through.far.store) == 12


def test_a_store_that_stays_away_ends_the_run_which_can_go_on(url: str, tmp_path: Path) -> None:
    through = Through(url, tmp_path, timeout_s=0.3)
    through.remote.limit = 6000
    fs = through.far.store.fs
    fs.put_file = failing(lambda: False)
    try:
        with pytest.raises(StorageError, match=r"was not reachable for .* s: .*no route to the store") as caught:
            through.go()
    finally:
        del fs.put_file
    assert caught.value.next_step == f"hsbench extract --resume {url} goes on when it is back"
    again = Far(url, through.run.out, rows=12)
    done = set(again.drain().writer.index._lines)
    assert done
    again.write(*(row for row in range(12) if row not in done))
    again.finish().close()
    assert check_recorded(again.store) == 12


def test_what_waits_for_its_upload_is_bounded(url: str, tmp_path: Path) -> None:
    through = Through(url, tmp_path)
    through.remote.limit = 12_000
    most = 0
    opened = threading.Event()
    put = through.far.store.put

    def slow(path: Path, name: str, *more: Any, **others: Any) -> None:
        nonlocal most
        opened.wait(20)
        most = max(most, sum(file.stat().st_size for file in through.run.out.rglob("*.pt")))
        put(path, name, *more, **others)

    through.far.store.put = slow  # type: ignore[method-assign,assignment]
    thread = threading.Thread(target=through.go)
    thread.start()
    wait_until(lambda: through.remote.waiting > 0 and not through.run.server.flying)
    time.sleep(0.5)
    held = len(through.run.server.asked)
    opened.set()
    thread.join(30)
    sizes = [line.nbytes for line in recorded(through.far.store).values()]
    assert len(sizes) == 12
    assert held < 12
    assert sum(sizes) > 12_000 + 2 * max(sizes), "the bound must be felt"
    assert most <= 12_000 + 2 * max(sizes)  # what is sent is counted by its states, a file is a little larger


# Going on from a URL, and looking at it.


def test_the_settings_of_a_job_are_at_its_url(url: str, tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text("{}\n")
    asked = settings(url, tmp_path / "one", shard=(0, 1), layers=(1, 2), flags=("--tp-size", "2"))
    asked = type(asked)(
        **{**{f: getattr(asked, f) for f in asked.__struct_fields__}, "data": str(tmp_path / "d.jsonl")}
    )
    remote = Remote.open(asked, "abc")
    far = Far(url, tmp_path / "one")
    far.close()
    remote.store.replace("index/job.json", _portable(asked))
    found = load_settings(url, tmp_path / "two")
    assert (found.out, found.store, found.layers, found.flags) == (str(tmp_path / "two"), url, (1, 2), asked.flags)
    with pytest.raises(UsageError, match="there was no job"):
        load_settings(f"{url}/elsewhere", tmp_path / "two")
    secret = msgspec.structs.replace(asked, flags=("--api-key", SECRET))
    remote.store.replace("index/job.json", _portable(secret))
    assert SECRET.encode() not in (remote.store.read("index/job.json") or b"")
    with pytest.raises(UsageError, match="held a secret"):
        load_settings(url, tmp_path / "two")


def test_a_url_is_watched_by_its_parts(url: str, tmp_path: Path) -> None:
    far = Far(url, tmp_path / "one")
    far.write(0, 1)
    far.drain()
    run = run_in(url)
    view = run.look()
    assert (view.state, view.written, view.rows, view.folder) == ("running", 2, 6, url)
    assert view.tokens == sum(len(sample(row).input_ids) for row in (0, 1))
    far.write(2, 3, 4, 5)
    far.finish().close()
    view = run.look()
    assert (view.state, view.written) == ("done", 6)
    with pytest.raises(UsageError, match="there was no job"):
        run_in(f"{url}/elsewhere")


def test_a_job_here_is_watched_under_its_url_and_has_nothing_to_upload_when_it_is_done(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    staging, url = tmp_path / "staging", "s3://bucket/watched"
    job = msgspec.structs.replace(job_file(staging, time.time()), settings=settings(url, staging))
    files, now = JobFiles(staging), time.time()
    files.save(job)
    tell(files, picture(10, 80_000, time=now, upload_bytes=5_600_000))
    roster.note(staging)
    for named in (url, str(staging)):
        assert cli.run(["watch", named, "--once"]) == 0
        out = capfd.readouterr().out
        assert out.startswith(f"{url}: running")
        assert "to upload 5.6 MB" in out
    tell(files, Ended(time=now + 1, state="done", message="800 samples"))
    for named in (url, str(staging)):
        assert cli.run(["watch", named, "--once"]) == 0
        out = capfd.readouterr().out
        assert out.startswith(f"{url}: done")
        assert "to upload" not in out


def test_a_url_means_the_staging_folder_of_its_last_job_here(tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    JobFiles(staging).save(
        JobFile(run="r", start=1, pid=1, since_boot=0.0, started=0.0, settings=settings("s3://b/x", staging))
    )
    roster.note(staging)
    assert local_folder("s3://b/x/") == staging
    assert local_folder("s3://b/y") == staging_folder("s3://b/y")
    assert local_folder("some/folder") == Path("some/folder")


def test_part_sizes_stay_within_what_s3_takes() -> None:
    assert s3.part_bytes(1) == s3.PART_BYTES
    huge = 5 << 40
    assert -(-huge // s3.part_bytes(huge)) <= 10_000


def test_the_job_opens_its_store_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from workbench.extract.job.files import Request

    wanted = settings("s3a://bucket/none", tmp_path / "one")
    job = JobFile(run="r", start=1, pid=1, since_boot=0.0, started=0.0, settings=wanted)
    asked: list[str] = []

    def opened(*_: Any) -> None:
        asked.append("store")
        raise StorageError("away")

    start = Start(JobFiles(tmp_path / "one"), job, Request(settings=wanted), lambda: False)
    monkeypatch.setattr(Remote, "open", opened)
    with pytest.raises(StorageError, match="away"):
        list(start.events())
    assert asked == ["store"]


def test_an_audit_of_a_url_names_the_url_and_the_runs_below_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    above = f"file://{tmp_path}/bucket"
    far = Far(f"{above}/deep/run1", tmp_path / "one")
    far.write(0)
    far.drain().close()
    assert cli.run(["verify", above]) == 2
    assert capfd.readouterr().err.splitlines() == [
        f"hsbench: {above} is no data set: below it are deep/run1",
        f"  next: name one: {above}/deep/run1",
    ]
    Store.open(f"{above}/other").replace("x/notes.txt", b"1")
    assert cli.run(["verify", f"{above}/other"]) == 2
    err = capfd.readouterr().err
    assert f"{above}/other holds no samples of a known format" in err
    assert "mirror" not in err


def test_a_folder_that_was_written_as_a_url_has_no_strays(tmp_path: Path) -> None:
    far = Far(f"file://{tmp_path}/out", tmp_path / "staging")
    far.write(*range(6))
    far.finish().close()
    (tmp_path / "out/index/part-x.jsonl").write_text("")
    (tmp_path / "out/index/cluster.json").write_text("{}")  # a run on Ray has it
    with local_pool() as pool:
        report = list(verify(VerifyOptions(folder=tmp_path / "out", sample=None), pool))[-1]
    assert [problem.file for problem in report.problems] == ["index/part-x.jsonl"]  # type: ignore[union-attr]


# Shards at a URL.


def shard_at(url: str, tmp_path: Path, number: int, kind: Format) -> Far:
    """One of three shards of seven rows, all of them made."""
    of, rows = 3, 7
    record = run_record(kind, rows, shard=(number, of), created=1e9)
    far = Far(f"{url}/shard_{number}-of-{of}", tmp_path / f"staging-{number}", kind, rows, record=record)
    far.write(*record.rows())
    return far


def merged(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: bool = False) -> list[Any]:
    monkeypatch.setattr(merging, "WorkerPool", lambda *_: local_pool())
    monkeypatch.setattr(engine, "find_interpreter", lambda *_: "here")
    return list(merging.merge_at(url, check=check))


@pytest.mark.parametrize("kind", FORMATS)
def test_shards_at_a_url_are_one_data_set_by_an_index_above_them(
    kind: Format, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        shard_at(url, tmp_path, number, kind).finish().close()
    store = Store.open(url)
    before = store.names()
    assert merged(url, tmp_path, monkeypatch, check=True)[-1].message.startswith("7 samples")
    assert {name: size for name, size in store.names().items() if name in before} == before, "nothing was moved"
    lines = [json.loads(line) for line in (store.read("index.jsonl") or b"").splitlines()]
    assert [line["index"] for line in lines] == [*range(7)]
    assert all(line["file"].startswith(f"shard_{line['index'] % 3}-of-3/") for line in lines)
    (tmp_path / "plain").mkdir()
    plain = build(tmp_path / "plain/out", kind, 7, created=1e9)
    assert store.read("data_config.json") == (plain / "data_config.json").read_bytes()
    with Mirror.of(url) as mirror, local_pool() as pool:
        options = VerifyOptions(folder=mirror.folder, name=mirror.name, sample=None)
        report = list(verify(options, pool, None, mirror.fetch))[-1]
    assert (report.verdict, report.checked, report.problems) == ("ok", 7, ())  # type: ignore[union-attr]
    view = run_in(url).look()
    assert (view.state, view.written, view.rows) == ("done", 7, 7)
    assert merged(url, tmp_path, monkeypatch, check=True)[-1].message.startswith("nothing to merge: 7 samples")
    spoilt, gone = lines[3]["file"], lines[5]["file"]
    store.replace(spoilt, (store.read(spoilt) or b"")[:-1] + b"!")
    store.remove([gone])
    assert merged(url, tmp_path, monkeypatch)[-1].message.startswith("nothing to merge: 7 samples")
    with pytest.raises(CheckFailed, match=f"2 objects are not as they were written: {spoilt}, {gone}"):
        merged(url, tmp_path, monkeypatch, check=True)


def test_shards_at_a_url_that_make_no_whole_are_named(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = [shard_at(url, tmp_path, number, "speculators-v1") for number in range(2)]
    far[0].finish().close()
    far[1].drain().close()
    with pytest.raises(UsageError, match=r"1 of 3 shards are missing in memory://.*: shard_2-of-3"):
        merged(url, tmp_path, monkeypatch)
    shard_at(url, tmp_path, 2, "speculators-v1").finish().close()
    with pytest.raises(UsageError, match="shard_1-of-3: all rows are there, but") as caught:
        merged(url, tmp_path, monkeypatch)
    assert caught.value.next_step == f"hsbench extract --resume {url}/shard_1-of-3"
    again = Far(f"{url}/shard_1-of-3", tmp_path / "staging-1", record=far[1].record)
    again.finish().close()
    store = Store.open(url)
    whole = store.read("shard_2-of-3/rows_0-2000/data_2.pt") or b""
    store.replace("shard_2-of-3/rows_0-2000/data_2.pt", whole[:-1] + b"!")
    with pytest.raises(CheckFailed, match="1 objects are not as they were written: shard_2-of-3/"):
        merged(url, tmp_path, monkeypatch, check=True)
    store.remove(["shard_2-of-3/rows_0-2000/data_2.pt"])
    with pytest.raises(CheckFailed, match=r"shard_2-of-3/rows_0-2000/data_2\.pt is missing"):
        merged(url, tmp_path, monkeypatch)
    assert not {"index.jsonl", "hsbench.json"} & set(store.names())
