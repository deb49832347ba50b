"""Data sets at an S3 server of its own process: connections cut, jobs killed, uploads orphaned, rights withheld."""

import json
import multiprocessing
import os
import random
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.unit.extract_support import build, local_pool, sample, states_of, write_both
from tests.unit.storage_support import (
    KEYS,
    Cutter,
    Far,
    check_recorded,
    moto,
    s3_environment,
    settings,
    work_until_done,
)
from workbench.errors import HsbenchError, UsageError
from workbench.extract.audit.run import VerifyOptions, verify
from workbench.extract.job.files import JobFiles, Request
from workbench.extract.job.run import Control, run
from workbench.extract.record import FORMATS, Format
from workbench.storage import s3, store, uploader
from workbench.storage.errors import Refused, StorageError, TakenOver
from workbench.storage.mirror import Mirror
from workbench.storage.remote import Remote
from workbench.storage.store import Store

pytestmark = pytest.mark.xdist_group("s3 server")
BUCKET = "samples"
MIB = 1 << 20


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto() as url:
        yield url


@pytest.fixture
def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty prefix of a bucket, with the environment that leads there."""
    for name, value in s3_environment(endpoint).items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(uploader, "PART_S", 0.1)
    fs = fsspec.filesystem("s3", skip_instance_cache=True)
    if not fs.exists(BUCKET):
        fs.mkdir(BUCKET)
    return f"s3://{BUCKET}/{os.urandom(4).hex()}"


@pytest.fixture
def cutter(endpoint: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cutter]:
    """A proxy on the way to the server."""
    proxy = Cutter(endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    yield proxy
    proxy.close()


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".hsbench" not in path.parts
    }


def objects_of(at: Store) -> dict[str, bytes]:
    return {name: at.read(name) or b"" for name in at.names() if not name.startswith("index/")}


def audit(url: str) -> Any:
    with Mirror.of(url) as mirror, local_pool() as pool:
        options = VerifyOptions(folder=mirror.folder, name=mirror.name, sample=None)
        return list(verify(options, pool, None, mirror.fetch))[-1]


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_stored_is_what_a_folder_would_hold(kind: Format, bucket: str, tmp_path: Path) -> None:
    far = Far(bucket, tmp_path / "staging", kind)
    far.write(0, 1, 2)
    far.drain().close()
    other = Far(bucket, tmp_path / "another machine", kind)
    assert len(other.writer.index) == 3
    other.write(3, 4, 5)
    other.finish().close()
    (tmp_path / "plain").mkdir()
    plain = files_of(build(tmp_path / "plain" / "out", kind, 6, created=1e9))
    stored = objects_of(other.store)
    assert set(stored) == set(plain)
    samples = [name for name in plain if other.writer.layout.index_of(name) is not None]
    assert len(samples) == 6
    assert all(stored[name] == plain[name] for name in samples)
    assert stored["data_config.json"] == plain["data_config.json"]
    assert check_recorded(other.store) == 6
    report = audit(bucket)
    assert (report.verdict, report.checked, report.problems) == ("ok", 6, ())
    left = {path.name for path in (tmp_path / "another machine").rglob("*") if ".hsbench" not in path.parts}
    assert not left & {Path(name).name for name in samples}


def test_an_audit_sees_what_is_wrong_with_objects(bucket: str, tmp_path: Path) -> None:
    far = Far(bucket, tmp_path / "staging", "speculators")
    far.write(*range(6))
    far.finish().close()
    name = "hidden_states/hs_2.safetensors"
    data = bytearray(far.store.read(name) or b"")
    data[-10] ^= 1
    far.store.replace(name, bytes(data))
    far.store.remove(["hidden_states/hs_4.safetensors"])
    far.store.replace("hidden_states/hs_9.safetensors", b"x")
    report = audit(bucket)
    assert report.verdict == "failed"
    found = {(problem.check, problem.file) for problem in report.problems}
    assert ("checksum", name) in found
    assert ("files", "hidden_states/hs_4.safetensors") in found
    assert ("files", "hidden_states/hs_9.safetensors") in found


def test_a_large_file_goes_in_parts_and_comes_in_ranges_through_cut_connections(
    bucket: str, cutter: Cutter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "PART_BYTES", 5 * MIB)
    monkeypatch.setattr(store, "RANGE_BYTES", MIB)
    path, data = tmp_path / "large.pt", os.urandom(12 * MIB + 17)
    path.write_bytes(data)
    at = Store.open(bucket)
    cutter.budget, cutter.cuts = 2 * MIB, 3
    at.put(path, "large.pt")
    assert cutter.done == 3
    info = at.fs.info(at.path("large.pt"))
    assert info["ETag"].strip('"').endswith("-3")
    asked: list[str] = []
    monkeypatch.setattr(at, "crc32", lambda *_: asked.append("read back"))
    at.put(path, "large.pt", replace=True)
    assert not asked, "the tag alone proves it"
    assert b"".join(at.ranges("large.pt", len(data))) == data


def test_uploads_that_nobody_finished_are_given_up_below_the_url_only(bucket: str, tmp_path: Path) -> None:
    far = Far(bucket, tmp_path / "staging")
    far.write(0)
    far.drain().close()
    prefix = bucket.rpartition("/")[2]
    fs = far.store.fs
    for key in (f"{prefix}/rows_0-2000/data_1.pt", f"{prefix}-other/rows_0-2000/data_1.pt"):
        begun = fs.call_s3("create_multipart_upload", Bucket=BUCKET, Key=key)
        fs.call_s3("upload_part", Bucket=BUCKET, Key=key, UploadId=begun["UploadId"], PartNumber=1, Body=b"half")
    again = Far(bucket, tmp_path / "empty")
    left = [upload["Key"] for upload in fs.call_s3("list_multipart_uploads", Bucket=BUCKET).get("Uploads", [])]
    assert left == [f"{prefix}-other/rows_0-2000/data_1.pt"]
    assert len(again.writer.index) == 1
    again.close()


def test_a_server_that_is_away_is_waited_for_and_then_the_run_goes_on(
    bucket: str, cutter: Cutter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(s3.OPTIONS, "config_kwargs", {"retries": {"mode": "standard", "max_attempts": 1}})
    monkeypatch.setattr(uploader, "REST_S", 0.1)
    far = Far(bucket, tmp_path / "staging")
    far.store.fs.retries = 1
    cutter.down = True
    far.write(0, 1)
    end = time.monotonic() + 60
    while far.remote.closed(0, 1) is None:
        assert time.monotonic() < end
        time.sleep(0.05)
    closed = far.remote.closed(0, 1)
    assert closed is not None
    assert (closed.kind, closed.why.startswith("the storage is not reachable: ")) == ("storage", True)
    cutter.down = False
    far.drain().close()
    assert check_recorded(far.store) == 2


def test_a_job_killed_at_any_moment_has_recorded_only_what_is_stored(bucket: str, tmp_path: Path) -> None:
    rows, chance = 24, random.Random(4)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.unit.storage_support"])
    for number in range(4):
        end, told = context.Pipe(duplex=False)
        staging = tmp_path / f"machine {number}" if number != 2 else tmp_path / "machine 1"
        staging.parent.mkdir(exist_ok=True)
        arguments = (bucket, staging, "speculators", rows, told)
        process = context.Process(target=work_until_done, args=arguments)
        process.start()
        told.close()
        patience = chance.randint(2, 6)
        try:
            while end.recv() != rows and (number == 3 or patience > 0):
                patience -= 1
        except EOFError:
            raise AssertionError("it ended by itself") from None
        if number < 3:
            time.sleep(chance.uniform(0.0, 0.3))
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        process.join(60)
        at = Store.open(bucket)
        assert check_recorded(at) == (rows if number == 3 else pytest.approx(rows / 2, abs=rows / 2))
        assert (at.read("index.jsonl") is not None) == (number == 3)
    (tmp_path / "plain").mkdir()
    plain, stored = files_of(build(tmp_path / "plain" / "out", "speculators", rows, created=1e9)), objects_of(at)
    samples = [name for name in plain if name.startswith("hidden_states/")]
    assert len(samples) == rows
    assert {name for name in stored if not name.endswith(".arrow")} == {n for n in plain if not n.endswith(".arrow")}
    assert all(stored[name] == plain[name] for name in samples)
    ours, theirs = ([json.loads(line) for line in held["index.jsonl"].splitlines()] for held in (stored, plain))
    for line in [*ours, *theirs]:
        line.pop("time")
        line.pop("again", None)
    assert ours == theirs
    assert audit(bucket).problems == ()


@pytest.mark.parametrize("kind", FORMATS)
def test_of_two_jobs_the_newer_goes_on(kind: Format, bucket: str, tmp_path: Path) -> None:
    old, go = Far(bucket, tmp_path / "old", kind), threading.Event()
    append = old.remote._parts.append
    old.remote._parts.append = lambda lines: (go.wait(60), append(lines))[1]  # type: ignore[method-assign]
    new = Far(bucket, tmp_path / "new", kind)
    names = set()
    for row in (0, 1, 5):
        other = [state + 1 for state in states_of(sample(row))]
        names.add(old.writer.write(sample(row), write_both(old.dumps, sample(row), other)).file)
    end = time.monotonic() + 60
    while not names <= set(new.store.names()):
        assert time.monotonic() < end
        time.sleep(0.05)
    new.write(0, 1, 2)
    new.drain()
    go.set()
    with pytest.raises(TakenOver, match="was taken over by"):
        old.drain()
    old.close()
    new.write(3, 4, 5)
    new.finish().close()
    assert check_recorded(new.store) == 6
    report = audit(bucket)
    assert (report.verdict, report.checked, report.problems) == ("ok", 6, ())


# Refused before anything begins.


def opened(url: str, folder: Path) -> HsbenchError:
    with pytest.raises(HsbenchError) as caught:
        Remote.open(settings(url, folder), "abc")
    return caught.value


def test_without_bucket_or_credentials_nothing_begins(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = opened("s3://no-such-bucket/x", tmp_path)
    assert isinstance(error, Refused)
    assert error.message.startswith("there is no s3://no-such-bucket")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    error = opened(bucket, tmp_path)
    assert "no credentials" in error.message
    assert "AWS_ACCESS_KEY_ID" in error.next_step


def test_a_server_that_is_nowhere_is_refused_with_one_line(
    bucket: str, cutter: Cutter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(s3.OPTIONS, "config_kwargs", {"retries": {"mode": "standard", "max_attempts": 1}})
    cutter.close()
    error = opened(bucket, tmp_path)
    assert isinstance(error, StorageError)
    assert "\n" not in error.message


def test_a_bucket_that_may_be_read_only_is_refused_and_no_secret_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server checks rights here: one user may only read, one has a wrong secret, and one a key that nobody has."""
    import boto3

    with moto() as own:
        for name, value in s3_environment(own).items():
            monkeypatch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        iam = boto3.client("iam")
        iam.create_user(UserName="reader")
        allowed = {"Effect": "Allow", "Action": ["s3:ListBucket", "s3:GetObject"], "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=policy)
        key = iam.create_access_key(UserName="reader")["AccessKey"]
        plain = {"Content-Type": "text/plain"}
        urllib.request.urlopen(urllib.request.Request(f"{own}/moto-api/reset-auth", b"0", plain)).close()
        unknown, other = KEYS.values()
        pairs = {
            "list, read, write and delete": (key["AccessKeyId"], key["SecretAccessKey"]),
            "SignatureDoesNotMatch: check AWS_ACCESS_KEY_ID": (key["AccessKeyId"], other),
            "InvalidAccessKeyId: check AWS_ACCESS_KEY_ID": (unknown, other),
        }
        for number, (step, (access, secret)) in enumerate(pairs.items()):
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", access)
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
            folder = tmp_path / str(number)
            wanted = settings(f"s3://{BUCKET}/x", folder)
            with pytest.raises(UsageError, match="is not allowed") as caught:
                list(run(Request(settings=wanted), Control()))
            assert step in caught.value.next_step
            told = "".join(path.read_text() for path in JobFiles(folder).folder.iterdir() if path.is_file())
            for text in (caught.value.message, caught.value.next_step, told):
                assert access not in text
                assert secret not in text
            assert '"failed"' in told
