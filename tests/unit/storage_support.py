"""What the tests of storage share: a run that goes to a URL, with made-up dumps, and an S3 server in a process."""

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.extract_support import local_pool, run_record, sample, write_both
from workbench.extract.index import IndexLine
from workbench.extract.job.settings import ExtractSettings
from workbench.extract.record import Format, RunRecord
from workbench.server import ports
from workbench.storage import address, uploader
from workbench.storage.remote import Remote
from workbench.storage.staged import StagedWriter
from workbench.storage.store import Store

KEYS = {"AWS_ACCESS_KEY_ID": "AKIATESTONLY12345678", "AWS_SECRET_ACCESS_KEY": "not/a+secretJustForTests0123456789"}


def memory_url(test: str) -> str:
    """A prefix of a store in this process, of its own for each test's id."""
    return f"memory://bucket/{hashlib.md5(test.encode()).hexdigest()[:10]}"


def in_memory(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let a test's jobs write to `memory_url`, often, with their state below `folder`."""
    monkeypatch.setattr(uploader, "PART_S", 0.05)
    monkeypatch.setattr(uploader, "REST_S", 0.05)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.delitem(address.NEVER, "memory")  # which is a store like any other while one process lasts


def settings(url: str, staging: Path, **changes: Any) -> ExtractSettings:
    """Of a job at a URL."""
    return ExtractSettings(data=str(staging), out=str(staging), store=url, **{"timeout_s": 20.0, **changes})


class Far:
    """A run of `rows` samples at a URL, driven by hand."""

    def __init__(
        self,
        url: str,
        staging: Path,
        kind: Format = "speculators-v1",
        rows: int = 6,
        *,
        record: RunRecord | None = None,
        **changes: Any,
    ) -> None:
        self.pool = local_pool()
        self.record = record or run_record(kind, rows)
        self.staging, self.dumps = staging, staging.parent / "dumps"
        self.dumps.mkdir(exist_ok=True)
        self.remote = Remote.open(settings(url, staging, **changes), "abc123")
        self.store: Store = self.remote.store
        found = self.remote.record()
        self.writer: StagedWriter = self.remote.writer(found or self.record, self.pool)
        self.recovery = self.writer.recover()
        self.remote.set_limit(1 << 20)

    def write(self, *rows: int) -> list[IndexLine]:
        """Make samples of these rows."""
        return [self.writer.write(sample(row), write_both(self.dumps, sample(row))) for row in rows]

    def drain(self) -> "Far":
        """Wait until all is stored and recorded."""
        for _ in self.remote.drain(lambda: False):
            pass
        return self

    def finish(self) -> "Far":
        """All that the end of a job does."""
        self.drain()
        self.writer.finalise()
        return self

    def close(self) -> None:
        self.writer.close()
        self.remote.close()
        self.pool.close()


def recorded(store: Store) -> dict[int, IndexLine]:
    """The last line of every row in the parts, read without the code under test."""
    found = {}
    for name in sorted(store.names("index")):
        if name.startswith("index/part-"):
            for text in (store.read(name) or b"").splitlines():
                value = json.loads(text)
                if "claim" not in value:
                    found[value["index"]] = msgspec.convert(value, IndexLine)
    return found


def check_recorded(store: Store) -> int:
    """Every line of every part names an object of its size and checksum; how many lines there are."""
    lines = recorded(store)
    for line in lines.values():
        if line.status == "written":
            data = store.read(line.file)
            assert data is not None, f"{line.file} is recorded and not there"
            assert (len(data), f"{zlib.crc32(data):08x}") == (line.nbytes, line.crc32), line.file
    return len(lines)


def work_until_done(url: str, staging: Path, kind: Format, rows: int, told: Any) -> None:
    """For a process that is killed: go on with a run, and send a row's number after each sample."""
    uploader.PART_S = 0.1
    far = Far(url, staging, kind, rows)
    told.send(-1)
    for row in range(rows):
        if row not in far.writer.index:
            far.write(row)
            told.send(row)
            time.sleep(0.02)
    far.finish().close()
    told.send(rows)


@contextlib.contextmanager
def moto() -> Iterator[str]:
    """An S3 server in a process of its own; its endpoint."""
    port, _ = ports.choose("127.0.0.1", 0, ())
    code = (
        "import sys, threading; from moto.server import ThreadedMotoServer; "
        f"ThreadedMotoServer(ip_address='127.0.0.1', port={port}, verbose=False).start(); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        _await(url)
        yield url
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def _await(url: str) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            assert time.monotonic() < end, "no S3 server"
            time.sleep(0.1)


def s3_environment(endpoint: str) -> dict[str, str]:
    """How a process finds the server."""
    return {
        **KEYS,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


class Cutter:
    """Passes bytes on to a server, and cuts connections that have sent more than `budget` bytes, `cuts` times."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition("/")[2].partition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.budget = 0
        self.cuts = self.done = 0
        """How many connections are still to be cut, and how many were."""
        self.down = False
        """Whether every connection is refused."""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = self._listener.accept()
                threading.Thread(target=self._join, args=(one,), daemon=True).start()

    def _join(self, one: socket.socket) -> None:
        with one:
            if self.down:
                return
            with socket.create_connection(self._target) as other:
                back = threading.Thread(target=self._pass, args=(other, one, False), daemon=True)
                back.start()
                self._pass(one, other, True)
                back.join()

    def _pass(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        sent = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sent += len(data)
                if counted and (self.down or self._cut(sent)):
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _cut(self, sent: int) -> bool:
        with self._lock:
            if self.cuts <= 0 or sent <= self.budget:
                return False
            self.cuts -= 1
            self.done += 1
            return True

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
