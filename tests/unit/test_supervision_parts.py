"""The parts of a diagnosis: the log's milestones, the known-good starts, GPUs, room, flags, the machine."""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from workbench.errors import ServerError
from workbench.server import room
from workbench.server.engine import Engine, find_engine
from workbench.server.explain import explain
from workbench.server.purpose import fixed, missing, wrong
from workbench.server.secrets import blot, secret_values
from workbench.supervision import doctor, known_good, signals, stacks
from workbench.supervision.gpu import Nvml
from workbench.supervision.known_good import GoodStart
from workbench.supervision.milestones import LogFollower, Milestone

HEAD = "[2026-01-01 00:00:0{}{}] "


def follow(path: Path, text: str) -> LogFollower:
    path.write_text(text)
    follower = LogFollower(path, time.time())
    follower.sample()
    return follower


def test_lines_are_counted_without_what_varies_from_start_to_start(tmp_path: Path) -> None:
    lines = [
        "server_args={}",
        "[2026-01-01 00:00:01 TP0] Load weight begin. avail mem=20.60 GB",
        "[2026-01-01 00:00:01 TP1] Load weight begin. avail mem=20.60 GB",
        "[2026-01-01 00:00:01 DP1 TP0] Load weight begin. avail mem=20.60 GB",
        "Loading shards:  50% Completed | 1/2",
        "host:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
        '[2026-01-01 00:00:02] INFO:     127.0.0.1:5 - "GET /model_info HTTP/1.1" 200 OK',
        "[2026-01-01 00:00:02] Prefill batch, #new-seq: 1, #new-token: 6",
        "",
        "[2026-01-01 00:00:03] The server is fired up and ready to roll!",
        "[2026-01-01 00:00:04] a line after the start",
    ]
    sample = follow(tmp_path / "log", "\n".join(lines) + "\n").sample()
    assert sample.lines == 3
    assert sample.activity == 1
    assert sample.phase == "ready"


def test_news_are_new_kinds_of_line_and_steps_of_bars(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower = follow(path, "one\n")

    def news(text: str) -> int:
        before = follower.sample().news
        with path.open("a") as log:
            log.write(text)
        return follower.sample().news - before

    assert news("two\n") == 1
    assert news("waited 10 s for rank 1\n") == 1
    assert news("waited 20 s for rank 1\nwaited 30 s for rank 1, 0x7f\n") == 1
    assert news("waiting, attempt 5/100\nwaiting, attempt 6/100\n") == 1
    assert news("Capturing batch 1/40\n") == 1
    assert news("Capturing batch 2/40\n") == 1
    assert news("Capturing batch 2/40\n") == 0
    assert news("\rLoading: 10%") == 1
    assert news("\rLoading: 11%") == 1
    assert news("\rLoading: 11%") == 0
    assert follower.sample().bar == (11.0, 100.0)


def test_a_log_that_is_cut_short_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    follower = follow(path, "one\ntwo\nthree\n")
    path.write_text("four\n")
    assert follower.sample().last == "four"


def test_milestones_carry_time_and_lines(tmp_path: Path) -> None:
    began = time.time() - 100
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began + 40))
    (tmp_path / "log").write_text(f"a\nb\n[{stamp}] Load weight begin.\n[2001-01-01 00:00:00] Load weight end.\n")
    follower = LogFollower(tmp_path / "log", began)
    follower.sample()
    first, second = follower.milestones
    assert (first.phase, first.lines) == ("load weights", 3)
    assert first.seconds == pytest.approx(40, abs=1.01)
    assert second.seconds == pytest.approx(100, abs=30)
    assert follower.phase == "kv cache"


def good(seconds: float, lines: int = 641) -> GoodStart:
    marks = (Milestone("load weights", 0.2 * seconds, 100), Milestone("warm-up", 0.6 * seconds, 600))
    return GoodStart(seconds=seconds, lines=lines, longest_silence=seconds / 10, milestones=marks)


def test_good_starts_are_remembered_by_what_shapes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    argv = ("python", "-m", "sglang.launch_server", "--model-path", "/m", "--port", "1", "--tp-size", "2")
    assert known_good.load("/m", "0.5.23", argv) is None
    known_good.learn("/m", "0.5.23", argv, good(100))
    moved = (*argv[:5], "--api-key", "planted", "--tp-size=2", "--port", "2", "--host", "0.0.0.0")
    for other in (("/m", "0.5.23", (*argv, "--dp-size", "2")), ("/n", "0.5.23", argv), ("/m", "0.5.15", argv)):
        assert known_good.load(*other) is None
    known_good.learn("/m", "0.5.23", moved, good(200, 640))
    known = known_good.load("/m", "0.5.23", argv)
    assert known is not None
    assert (known.lines, known.seconds, known.longest_silence) == (640, 150, 20)
    assert known.phase_seconds("import") == pytest.approx(30)
    assert known.phase_seconds("load weights") == pytest.approx(60)
    assert known.phase_seconds("warm-up") == pytest.approx(60)
    assert known.phase_seconds("graphs") is None
    assert known.remaining("load weights", 10) == pytest.approx((80 - 10 + 160 - 10) / 2)
    assert known.remaining("import", 1000) == pytest.approx((80 + 160) / 2)
    for _ in range(9):
        known_good.learn("/m", "0.5.23", argv, good(50))
    last = known_good.load("/m", "0.5.23", argv)
    assert last is not None
    assert (len(last.starts), last.seconds) == (5, 50)
    [file] = (tmp_path / "hsbench" / "known-good").iterdir()
    assert "planted" not in file.read_text()
    file.write_text("{")
    assert known_good.load("/m", "0.5.23", argv) is None


class FakeNvml:
    """The functions of pynvml that are used, for one GPU."""

    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1

    def __init__(self, used: int, holders: list[tuple[int, int]]) -> None:
        self.used, self.list = used, holders

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"590.1"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "H200"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=self.used, total=100_000_000_000)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=99)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        raise RuntimeError("not supported")

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        return 700_000

    def nvmlDeviceGetPcieThroughput(self, handle: int, way: int) -> int:
        return 1000

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.list]


def test_a_gpu_tells_what_its_driver_does(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Nvml(FakeNvml(2_000_000_000, [(os.getpid(), 2_000_000_000)]))
    assert (gpus.driver, gpus.missing) == ("590.1", "")
    [seen] = gpus.sample()
    assert (seen.busy, seen.power_w, seen.power_limit_w) == (0.99, None, 700.0)
    assert seen.traffic == 2000 * 1024
    assert seen.nvlink is None
    assert [(h.pid, h.used) for h in gpus.holders()] == [(os.getpid(), 2_000_000_000)]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Nvml().missing == "nvidia-ml-py is not installed"
    assert Nvml().sample() == ()


def test_a_start_is_refused_when_others_hold_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    full = Nvml(FakeNvml(60_000_000_000, [(os.getpid(), 60_000_000_000)]))
    with pytest.raises(ServerError, match=f"GPU 0 has 40.0 of 100.0 GB free, .* process {os.getpid()} .*60.0 GB"):
        room.refuse_full_gpus((), "cuda", full)
    room.refuse_full_gpus(("--mem-fraction-static", "0.3"), "cuda", full)
    room.refuse_full_gpus(("--base-gpu-id", "1"), "cuda", full)
    room.refuse_full_gpus((), "cpu", full)
    room.refuse_full_gpus(("--max-total-tokens", "9000"), "cuda", full)
    room.refuse_full_gpus((), "cuda", Nvml(FakeNvml(1_000_000_000, [])))


def test_the_machine_is_examined_piece_by_piece(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("http_proxy", "http://me:planted-1@proxy:1")
    monkeypatch.setenv("NO_PROXY", "example.org")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NCCL_PROTO", "LL128")
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_DEBUG=INFO")
    monkeypatch.setenv("NCCL_CONF_FILE", str(conf))
    found = list(doctor.examine(None, Nvml(FakeNvml(2_000_000_000, [(os.getpid(), 5)]))))
    by_area: dict[str, list[doctor.Finding]] = {}
    for one in found:
        by_area.setdefault(one.area, []).append(one)
        assert (one.level == "problem") == bool(one.next_step), one
    assert {
        "hsbench",
        "engine",
        "patch",
        "gpu",
        "memory",
        "/dev/shm",
        "disk",
        "ports",
        "proxy",
        "nccl",
        "limits",
    } <= set(by_area)
    assert "planted" not in str(found)
    assert by_area["proxy"][0].level == "problem"
    assert any("NCCL_PROTO=LL128" in one.text for one in by_area["nccl"])
    assert any(str(conf) in one.text for one in by_area["nccl"])
    assert "GPU 0 H200: 2.0 of 100.0 GB used" in [one.text for one in by_area["gpu"]]
    assert by_area["engine"][0].text.startswith("SGLang 0.5.")


@pytest.fixture
def small_engine(tmp_path: Path) -> Engine:
    root = tmp_path / "sglang"
    (root / "srt" / "arg_groups" / "fields").mkdir(parents=True)
    (root / "srt" / "arg_groups" / "fields" / "schedule.py").write_text(
        'class Schedule:\n    steps: A[int, Arg(help="steps of decode")] = 1\n'
        '    width: A[int, Arg(aliases=["--wide"])] = 1\n'
    )
    (root / "srt" / "arg_groups" / "field_order.py").write_text('ORDER = ["steps", "width"]\n')
    (root / "srt" / "scheduler.py").write_text(
        "def f(args):\n    args.steps = 3\n    return args.width + getattr(args, 'width', 1)\n"
    )
    return Engine("/p", "0.5.99", root, "2", cuda=False, has_cpu_platform=True, flags=frozenset({"--steps", "--width"}))


def test_a_flag_that_nothing_reads_is_told_from_one_that_is_read(small_engine: Engine) -> None:
    dead = explain("--steps", small_engine)
    assert (dead.declared, dead.reads) == (True, ())
    assert "read nowhere: it has no effect" in dead.describe()
    alive = explain("wide", small_engine)
    assert [(read.path, read.line) for read in alive.reads] == [("srt/scheduler.py", 3)] * 2
    assert "is no flag of SGLang 0.5.99; it takes --steps" in explain("--step", small_engine).describe()


def test_the_installed_release_reads_one_and_not_the_other() -> None:
    engine = find_engine()
    dead = explain("--num-continuous-decode-steps", engine)
    assert (dead.declared, dead.reads) == (True, ())
    read = explain("--scheduler-recv-interval", engine).reads
    assert read
    for place in read:  # independent of the search: the line really holds it
        text = (engine.root / place.path).read_text(encoding="utf-8").splitlines()[place.line - 1]
        assert "scheduler_recv_interval" in text
        ast.parse(place.code)


def test_flags_against_the_purpose() -> None:
    flags = (
        "--chunked-prefill-size",
        "2048",
        "--enable-mixed-chunk",
        "--log-level",
        "info",
        "--max-prefill-tokens=100",
    )
    assert [one.flag for one in wrong(flags, 8192)] == [
        *("--chunked-prefill-size", "--enable-mixed-chunk", "--max-prefill-tokens")
    ]
    assert fixed(flags, 8192) == (
        *("--chunked-prefill-size", "-1", "--log-level", "info", "--max-prefill-tokens", "8192"),
    )
    assert wrong(fixed(flags, 8192), 8192) == []
    assert missing(flags, frozenset()) == ["--disable-radix-cache", "--disable-prefill-cuda-graph"]


def test_a_process_is_read_from_proc() -> None:
    me = signals.process(os.getpid(), os.getpid())
    assert me is not None
    times = os.times()
    assert me.cpu_s == pytest.approx(times.user + times.system, abs=0.5)
    assert me.parent == os.getppid()
    assert me.role == "server"
    assert os.getpid() in signals.relatives(os.getpid())
    assert signals.process(1 << 22, 1) is None
    with subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], "A": "b=c"}) as child:
        end = time.monotonic() + 10
        while b"60" not in Path(f"/proc/{child.pid}/cmdline").read_bytes() and time.monotonic() < end:
            time.sleep(0.01)  # between fork and exec it has ours
        assert signals.environment(child.pid) == {"PATH": os.environ["PATH"], "A": "b=c"}
        child.kill()


@pytest.mark.parametrize(
    ("name", "role", "rank"),
    [
        ("sglang::scheduler_DP1_TP0", "rank", "DP1 TP0"),
        ("sglang::detokenizer", "worker", ""),
        ("ptxas", "compiler", ""),
        ("python", "helper", ""),
    ],
)
def test_what_a_process_is_to_the_server(name: str, role: str, rank: str) -> None:
    assert signals.role_of(5, 1, name) == role
    assert " ".join(signals._RANK.findall(name)) == rank


def test_a_stack_of_this_very_process() -> None:
    me = signals.process(os.getpid(), os.getpid())
    assert me is not None
    seen = stacks.dump(me)
    if seen.source == "py-spy":
        assert any(frame.startswith("test_a_stack_of_this_very_process") for frame in seen.frames)
    else:
        assert seen.note
        assert seen.frames[0].startswith("state ")


def test_gpu_memory_that_stays_after_a_stop_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from workbench.server import stop
    from workbench.server.launches import Launch

    monkeypatch.setattr(stop, "GPU_WAIT_S", 0.2)
    launch = Launch("one", 1, 0.0, "")
    me = {os.getpid(): psutil.Process()}
    with pytest.raises(ServerError, match=f"process {os.getpid()} on GPU 0"):
        stop._verify_gpus(launch, me, Nvml(FakeNvml(5, [(os.getpid(), 5)])))
    stop._verify_gpus(launch, me, Nvml(FakeNvml(5, [(1, 5)])))


def test_secret_values_are_hidden_wherever_they_turn_up() -> None:
    argv = ("python", "--api-key", "planted-1", "--admin-api-key=planted-2", "--tp", "2", "--token", "short")
    values = secret_values({"HF_TOKEN": "planted-3", "PATH": "/usr/bin"}, argv)
    assert set(values) == {"planted-1", "planted-2", "planted-3"}
    assert blot("a planted-1 b planted-23 c /usr/bin", values) == "a *** b ***3 c /usr/bin"
