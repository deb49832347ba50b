"""The recorder with a stand-in for the engine's batch: gate, rows, files, failures. No SGLang is needed."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from patches import recorder
from patches.recorder.passes import Slot
from patches.recorder.settings import Settings
from patches.recorder.store import DumpStore

BLOCKS, HIDDEN = 6, 8
MODEL = SimpleNamespace(config=SimpleNamespace(num_hidden_layers=BLOCKS))


def batch(*requests: tuple[str, int], mode: str = "EXTEND", prefix: int = 0) -> Any:
    total = sum(length for _, length in requests)
    return SimpleNamespace(
        forward_mode=SimpleNamespace(name=mode),
        rids=[rid for rid, _ in requests],
        extend_seq_lens_cpu=[length for _, length in requests],
        extend_prefix_lens_cpu=[prefix for _ in requests],
        input_ids=torch.arange(total) + 100,
    )


def state(block: int, rows: int) -> torch.Tensor:
    """The made-up output of `block`: every value tells its block and row."""
    return (torch.arange(rows).float()[:, None] + 1000 * block).expand(rows, HIDDEN).contiguous()


def forward(the_batch: Any, pad: int = 0, style: str = "callback") -> torch.Tensor:
    """What a patched forward pass does, with storage that is overwritten at every block."""
    rows = int(the_batch.input_ids.shape[0]) + pad
    now = recorder.begin(MODEL, the_batch)
    stream = torch.empty(rows, HIDDEN)
    for block in range(BLOCKS):
        if block:
            stream.copy_(state(block - 1, rows))
        if style == "callback":
            if (callback := recorder.capture(now, block, None)) is not None:
                callback(stream, owned=False)
        elif style == "accumulator":
            if (accumulator := recorder.accumulate(now, block, None)) is not None:
                accumulator.capture(stream, owned=False)
        else:
            recorder.entering(now, block, stream / 2, stream / 2)
    stream.copy_(state(BLOCKS - 1, rows))
    if (callback := recorder.final_capture(now)) is not None:
        callback(stream)
    normed = -stream
    recorder.finish(now, normed)
    stream.fill_(-1)
    return normed


def dumps(folder: Path, expected: int) -> list[Path]:
    """The finished dumps, once `expected` of them are in the index."""
    deadline = time.monotonic() + 20
    index = folder / "index.jsonl"
    while time.monotonic() < deadline:
        if index.exists() and len(index.read_text().splitlines()) >= expected:
            break
        time.sleep(0.01)
    found = sorted(path for path in folder.glob("req_*") if path.suffix != ".tmp")
    assert len(found) == expected
    return found


def status(folder: Path, name: str, at_least: int = 1) -> int:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if (folder / "recorder.json").exists():
            counts = json.loads((folder / "recorder.json").read_text())["counts"]
            if counts.get(name, 0) >= at_least:
                return int(counts[name])
        time.sleep(0.02)
    raise AssertionError(f"{name} never reached {at_least}")


def by_request(folder: Path, expected: int) -> dict[str, Path]:
    return {json.loads((path / "meta.json").read_text())["request_id"]: path for path in dumps(folder, expected)}


def load(path: Path, name: str) -> torch.Tensor:
    tensor = torch.load(path / f"{name}.pt", mmap=True, weights_only=True)
    assert isinstance(tensor, torch.Tensor)
    return tensor


@pytest.mark.parametrize("style", ["callback", "accumulator", "sum"])
@pytest.mark.parametrize("pad", [0, 3])
def test_rows_are_split_by_request_and_named_by_block(dump_dir: Path, style: str, pad: int) -> None:
    forward(batch(("hs-a", 3), ("hs-b", 2)), pad=pad, style=style)
    found = by_request(dump_dir, 2)
    for name, block in (("aux_0", 0), ("aux_1", 2), ("aux_2", 4), ("final", BLOCKS - 1)):
        assert torch.equal(load(found["hs-a"], name), state(block, 5)[:3])
        assert torch.equal(load(found["hs-b"], name), state(block, 5)[3:])


def test_foreign_requests_between_ours_are_left_out(dump_dir: Path) -> None:
    forward(batch(("warm", 1)))
    forward(batch(("hs-a", 1), ("other", 2), ("hs-b", 2), ("HEALTH_CHECK_1", 1)))
    found = by_request(dump_dir, 2)
    assert torch.equal(load(found["hs-b"], "aux_1"), state(2, 6)[3:5])
    assert status(dump_dir, "requests_foreign") == 1
    assert status(dump_dir, "requests_health") == 1
    assert status(dump_dir, "requests_warm_up") == 1


def test_meta_says_what_the_files_are(dump_dir: Path) -> None:
    forward(batch(("hs-a", 3), prefix=7))
    path = dumps(dump_dir, 1)[0]
    meta = json.loads((path / "meta.json").read_text())
    assert meta["after_block"] == [0, 2, 4]
    assert meta["captured_entering"] == [1, 3, 5]
    assert (meta["num_tokens"], meta["prefix_len"], meta["token_ids"]) == (3, 7, [100, 101, 102])
    assert (meta["final_norm"], meta["tensors"]["final"]["norm"]) == ("pre", "pre")
    for name, entry in meta["tensors"].items():
        tensor = load(path, name)
        assert (list(tensor.shape), str(tensor.dtype)) == (entry["shape"], f"torch.{entry['dtype']}")
        assert entry["crc32"] == f"{zlib.crc32(bytes(tensor.contiguous().view(torch.uint8).numpy())):08x}"
    assert sorted(p.name for p in path.iterdir()) == sorted(
        ["done", "meta.json", *(entry["file"] for entry in meta["tensors"].values())]
    )


def test_a_file_holds_only_its_own_rows(dump_dir: Path) -> None:
    forward(batch(("hs-small", 1), ("hs-large", 5000)))
    found = by_request(dump_dir, 2)
    assert (found["hs-small"] / "aux_0.pt").stat().st_size < 5000


@pytest.mark.parametrize(
    ("final", "names"), [("pre", {"final": 1}), ("post", {"final": -1}), ("both", {"final": 1, "final_post": -1})]
)
def test_side_of_the_final_norm(
    dump_dir: Path, monkeypatch: pytest.MonkeyPatch, final: str, names: dict[str, int]
) -> None:
    monkeypatch.setenv("SGLANG_HS_DUMP_FINAL", final)
    forward(batch(("hs-a", 2)))
    path = dumps(dump_dir, 1)[0]
    assert {p.stem for p in path.glob("final*.pt")} == set(names)
    for name, sign in names.items():
        assert torch.equal(load(path, name), sign * state(BLOCKS - 1, 2))


def test_all_records_foreign_but_not_health_and_warm_up(dump_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_HS_DUMP_ALL", "1")
    forward(batch(("warm", 2)))
    forward(batch(("other", 2), ("HEALTH_CHECK_2", 1)))
    assert list(by_request(dump_dir, 1)) == ["other"]


@pytest.mark.parametrize("mode", ["DECODE", "MIXED", "IDLE", "TARGET_VERIFY"])
def test_only_extend_passes_are_recorded(dump_dir: Path, mode: str) -> None:
    forward(batch(("hs-a", 2), mode=mode))
    assert status(dump_dir, f"passes_{mode.lower()}") == 1
    assert not list(dump_dir.glob("req_*"))


def test_default_blocks(dump_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_HS_DUMP_BLOCKS")
    monkeypatch.setattr(MODEL.config, "num_hidden_layers", 12)
    now = recorder.begin(MODEL, batch(("hs-a", 1)))
    assert now is not None
    assert [slot.after_block for slot in now.slots.values()] == [2, 6, 9]


def test_a_wrapped_callback_is_called_with_what_the_engine_gave(dump_dir: Path) -> None:
    calls: list[tuple[Any, dict[str, Any]]] = []
    now = recorder.begin(MODEL, batch(("hs-a", 2)))
    value = state(0, 2)
    callback = recorder.capture(now, 1, lambda v, **how: calls.append((v, how)))
    assert callback is not None
    callback(value, owned=True)
    assert calls[0][0] is value
    assert calls[0][1] == {"owned": True}
    assert recorder.capture(now, 2, None) is None


@pytest.mark.parametrize("blocks", ["5", "9"])
def test_a_block_that_cannot_be_entered_fails_the_pass_not_the_engine(
    dump_dir: Path, monkeypatch: pytest.MonkeyPatch, blocks: str
) -> None:
    monkeypatch.setenv("SGLANG_HS_DUMP_BLOCKS", blocks)
    normed = forward(batch(("hs-a", 2)))
    assert torch.equal(normed, -state(BLOCKS - 1, 2))
    assert status(dump_dir, "errors") == 1
    assert "among 0..4" in (dump_dir / "errors.jsonl").read_text()


def test_too_few_rows_never_become_a_dump(dump_dir: Path) -> None:
    the_batch = batch(("hs-a", 3), ("hs-b", 3))
    now = recorder.begin(MODEL, the_batch)
    for block in range(BLOCKS):
        if (callback := recorder.capture(now, block, None)) is not None:
            callback(state(block, 5))
    recorder.final_pair(now, (state(5, 6), state(5, 6)))
    recorder.finish(now, state(5, 6))
    assert status(dump_dir, "errors") == 1
    lines = [json.loads(line) for line in (dump_dir / "errors.jsonl").read_text().splitlines()]
    assert [line["request_id"] for line in lines] == ["hs-a", "hs-b"]
    assert not list(dump_dir.glob("req_*"))


def test_a_missing_capture_never_becomes_a_dump(dump_dir: Path) -> None:
    now = recorder.begin(MODEL, batch(("hs-a", 2)))
    recorder.final_pair(now, (state(5, 2), state(5, 2)))
    recorder.finish(now, state(5, 2))
    assert status(dump_dir, "errors") == 1
    assert "not captured: aux_0, aux_1, aux_2" in (dump_dir / "errors.jsonl").read_text()


def test_a_write_that_fails_is_reported_by_request_and_leaves_nothing(
    dump_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    forward(batch(("hs-a", 2)))
    assert status(dump_dir, "errors") == 1
    assert json.loads((dump_dir / "errors.jsonl").read_text())["request_id"] == "hs-a"
    assert not list(dump_dir.glob("req_*"))


def test_waiting_bytes_return_to_zero(dump_dir: Path) -> None:
    for _ in range(5):
        forward(batch(("hs-a", 2), ("hs-b", 3)))
    dumps(dump_dir, 10)
    status(dump_dir, "written", 10)
    assert recorder._recorder is not None
    assert recorder._recorder.waiting == 0


def test_prefill_is_held_back_rather_than_memory_filled(dump_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.save

    def slow(*args: Any) -> None:
        time.sleep(0.05)
        real(*args)

    monkeypatch.setattr(torch, "save", slow)
    forward(batch(("hs-0", 2)))
    assert recorder._recorder is not None
    one = 2 * HIDDEN * 4 * 4
    recorder._recorder.settings = recorder._recorder.settings._replace(max_waiting=2 * one)
    for number in range(1, 8):
        forward(batch((f"hs-{number}", 2)))
        assert recorder._recorder.waiting <= 2 * one
    dumps(dump_dir, 8)
    assert status(dump_dir, "held_back_ms") > 0


def test_numbers_go_on_after_a_restart_even_when_dumps_were_freed(tmp_path: Path) -> None:
    (tmp_path / "req_3").mkdir()
    (tmp_path / "req_5.tmp").mkdir()
    (tmp_path / "index.jsonl").write_text('{"n": 8}\n{"n"')
    assert DumpStore(tmp_path)._claim()[0] == 9


def test_off_without_the_variable(dump_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_HS_DUMP_DIR")
    assert recorder.begin(MODEL, batch(("hs-a", 2))) is None
    assert recorder.capture(None, 1, None) is None
    pair = (state(0, 1), state(1, 1))
    assert recorder.final_pair(None, pair) is pair
    assert not dump_dir.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [("FINAL", "none"), ("BLOCKS", "2,x"), ("WRITERS", "many"), ("DIR", "/proc/nowhere")],
)
def test_bad_settings_switch_off_with_one_log_line(
    dump_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, value: str
) -> None:
    monkeypatch.setenv(f"SGLANG_HS_DUMP_{name}", value)
    assert recorder.begin(MODEL, batch(("hs-a", 2))) is None
    assert recorder.begin(MODEL, batch(("hs-a", 2))) is None
    assert len([r for r in caplog.records if "recorder is off" in r.message]) == 1


def test_settings_defaults() -> None:
    settings = Settings.from_environment({"SGLANG_HS_DUMP_DIR": "/d"})
    assert settings is not None
    assert (settings.blocks, settings.final, settings.record_all) == (None, "pre", False)
    assert Settings.from_environment({}) is None


def test_it_needs_only_torch_and_the_standard_library(tmp_path: Path) -> None:
    source = Path(recorder.__file__).parent
    (tmp_path / "alone").symlink_to(source)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import torch; before = set(sys.modules); import alone; "
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)))"
    )
    command = [sys.executable, "-I", "-c", code, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "['alone']"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_rows_of_any_kind_are_written_as_they_are(tmp_path: Path, dtype: torch.dtype) -> None:
    whole = torch.randn(40, 16, generator=torch.Generator().manual_seed(1)).to(dtype)
    store = DumpStore(tmp_path)
    for number, rows in enumerate((whole[3:9], whole[5:6], whole[0:0], whole[::2], whole.T[2:5], whole)):
        store.write(f"r{number}", [(Slot("aux_0", 0, 1, None), rows)], {"pass": {"index": 0}})
        saved = torch.load(tmp_path / f"req_{number}/aux_0.pt", weights_only=True)
        assert (saved.dtype, saved.shape) == (dtype, rows.shape)
        assert torch.equal(saved.float(), rows.float())
        assert saved.untyped_storage().nbytes() == rows.nbytes
        described = json.loads((tmp_path / f"req_{number}/meta.json").read_text())["tensors"]["aux_0"]
        raw = rows.contiguous().view(torch.uint8).numpy().tobytes()
        assert (described["nbytes"], described["crc32"]) == (rows.nbytes, f"{zlib.crc32(raw):08x}")


def test_a_full_folder_is_called_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch has several words for it, none of which says so."""

    def fails(*_: object) -> None:
        raise RuntimeError("basic_ios::clear: iostream error")

    monkeypatch.setattr(torch, "save", fails)
    store, rows = DumpStore(tmp_path), torch.ones(4, 8)
    with pytest.raises(RuntimeError, match="iostream"):
        store.write("r", [(Slot("aux_0", 0, 1, None), rows)], {"pass": {"index": 0}})
    monkeypatch.setattr("patches.recorder.store.shutil.disk_usage", lambda folder: SimpleNamespace(free=rows.nbytes))
    with pytest.raises(OSError, match=r"\[Errno 28\] No space left"):
        store.write("r", [(Slot("aux_0", 0, 1, None), rows)], {"pass": {"index": 0}})
    assert not list(tmp_path.glob("req_*"))


def test_a_writer_computes_with_no_other_thread(tmp_path: Path) -> None:
    """In a process of its own, which counts its threads: torch adds a team of them for each thread that it works in."""
    code = """
import os, pathlib, sys, threading, torch
from patches.recorder.passes import Slot
from patches.recorder.store import DumpStore

rows = torch.ones(4096, 1024, dtype=torch.bfloat16)
rows * 2  # this thread's team
store, found = DumpStore(pathlib.Path(sys.argv[1])), []

def threads(work):
    work()
    found.append(len(os.listdir("/proc/self/task")))

def save():
    store.write("r", [(Slot("aux_0", 0, 1, None), rows[1:4000])], {"pass": {"index": 0}})

for work in (lambda: None, save, lambda: rows * 2):
    thread = threading.Thread(target=threads, args=(work,))
    thread.start()
    thread.join()
print(*found)
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    env = {**os.environ, "OMP_NUM_THREADS": "3"}
    done = subprocess.run(command, cwd=Path(__file__).parents[2], env=env, capture_output=True, text=True, check=True)
    plain, saved, torch_s = map(int, done.stdout.split())
    assert saved == plain
    assert torch_s > plain, "torch has no team here, so the test shows nothing"


def test_a_full_folder_loses_no_word_and_leaves_no_dump_without_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DumpStore(tmp_path)
    full = True
    append = DumpStore._append

    def when_there_is_room(self: DumpStore, name: str, line: Any) -> None:
        if full:
            raise OSError(28, "No space left on device")
        append(self, name, line)

    monkeypatch.setattr(DumpStore, "_append", when_there_is_room)
    with pytest.raises(OSError, match="No space left"):
        store.write("hs-a", [], {"pass": {"index": 0}})
    store.note_error({"request_id": "hs-a"})
    store.note_error({"request_id": "hs-b"})
    assert not store.say_errors()
    assert list(tmp_path.iterdir()) == []
    full = False
    assert store.say_errors()
    said = [json.loads(line)["request_id"] for line in (tmp_path / "errors.jsonl").read_text().splitlines()]
    assert said == ["hs-a", "hs-b"]


def test_half_a_line_is_taken_back(tmp_path: Path) -> None:
    with limited_file_size(100):
        store = DumpStore(tmp_path)
        store.note_error({"request_id": "hs-a", "error": "x" * 40})
        store.note_error({"request_id": "hs-b", "error": "y" * 40})
    assert len((tmp_path / "errors.jsonl").read_text().splitlines()) == 1
    assert store.say_errors()
    lines = (tmp_path / "errors.jsonl").read_text().splitlines()
    assert [json.loads(line)["request_id"] for line in lines] == ["hs-a", "hs-b"]


@contextlib.contextmanager
def limited_file_size(nbytes: int) -> Iterator[None]:
    """Files may not grow beyond this: a write that would is cut, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_pass_larger_than_all_that_may_wait_is_let_through_when_nothing_waits(
    dump_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward(batch(("hs-a", 3)))
    assert recorder._recorder is not None
    dumps(dump_dir, 1)
    monkeypatch.setattr(recorder._recorder, "settings", recorder._recorder.settings._replace(max_waiting=100))
    forward(batch(("hs-b", 9)))
    forward(batch(("hs-c", 9)))
    dumps(dump_dir, 3)


def test_the_plain_way_writes_before_the_pass_ends(dump_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_HS_DUMP_PLAIN", "1")
    forward(batch(("hs-a", 3)))
    assert (dump_dir / "req_0/done").exists()


def test_the_engines_own_time_in_the_recorder_is_told(dump_dir: Path) -> None:
    before = time.perf_counter_ns()
    forward(batch(("hs-a", 3)))
    most = (time.perf_counter_ns() - before) // 1000
    dumps(dump_dir, 1)
    status = settled_status(dump_dir)
    assert 0 < status["engine_us"] <= most
    assert status["waiting_peak"] == 4 * 3 * HIDDEN * 4, "three aux and the final, 3 tokens in float32"


def settled_status(dump_dir: Path) -> dict[str, Any]:
    """The recorder's status once it tells of a written dump."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            status: dict[str, Any] = json.loads((dump_dir / "recorder.json").read_text())
            if status["counts"].get("written"):
                return status
        time.sleep(0.02)
    raise AssertionError("no status")


def test_half_a_line_of_a_killed_server_is_ended(tmp_path: Path) -> None:
    (tmp_path / "index.jsonl").write_text('{"n": 4, "request_id": "hs-a"}\n{"n": 5, "requ')
    store = DumpStore(tmp_path)
    store.write("hs-b", [], {"pass": {"index": 0}})
    last = json.loads((tmp_path / "index.jsonl").read_text().splitlines()[-1])
    assert last["request_id"] == "hs-b"
