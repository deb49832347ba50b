"""The verdict as a pure function: windows of made-up samples, and what is said of them."""

from typing import Any

import msgspec
import pytest

from workbench.exitcodes import ExitCode
from workbench.supervision.judge import judge
from workbench.supervision.progress import Window
from workbench.supervision.records import GpuSample, LogSample, PortSample, ProcessSample, Role, Sample, StackSample
from workbench.supervision.verdict import Facts, Limits, State, Verdict

GB = 1 << 30


def process(pid: int, at: float, cores: float = 0.0, **more: Any) -> ProcessSample:
    fields: dict[str, Any] = {
        **{"parent": 1, "name": f"sglang::scheduler_TP{pid - 2}", "role": "rank", "state": "S", "created": pid},
        **{"rss": 300 << 20, "read": 0, "faults": 0, "cpu_s": cores * at, "wanted_s": cores * at},
    }
    return ProcessSample(pid=pid, **{**fields, **more})


def server(at: float) -> ProcessSample:
    return process(1, at, name="python", role="server")


def stack(*frames: str, pid: int = 2, source: str = "py-spy") -> StackSample:
    return StackSample(pid=pid, label=f"sglang::scheduler_TP0 ({pid})", source=source, frames=frames)  # type: ignore[arg-type]


LOG = LogSample(lines=217, phase="kv cache", news=9, last="Memory pool end")
CLOSED, OPEN = PortSample(port=30017), PortSample(port=30017, accepts=True, owner=1, owned=True)
AT_ALL_REDUCE = stack("all_reduce (pynccl.py:10)", "forward (llama.py:20)", "event_loop_overlap (scheduler.py:5)")
POLLING = stack("recv_requests (scheduler.py:7)", "event_loop_overlap (scheduler.py:5)")


def watched(seconds: int, cores: float, stacks: list[StackSample] | None = None, **sample: Any) -> Window:
    """A server of two ranks, watched for so long, in which nothing moves; the last samples carry the stacks."""
    window = Window()
    stacks = stacks or []
    for at in range(seconds + 1):
        left = seconds - at
        window.add(
            Sample(
                at=float(at),
                processes=(server(at), process(2, at, cores), process(3, at, cores)),
                log=sample.get("log", LOG),
                port=sample.get("port", CLOSED),
                gpus=sample.get("gpus", ()),
                stacks=(stacks[-left - 1],) if left < len(stacks) else (),
            )
        )
    return window


def said(verdict: Verdict) -> str:
    return " ".join((*verdict.evidence, *verdict.against, verdict.next_step))


def test_busy_and_silent_and_at_one_place_is_a_hang() -> None:
    found = judge(watched(70, 1.0, [AT_ALL_REDUCE] * 3), Facts(known_lines=641))
    assert found.state is State.HUNG_SPIN
    assert "the log has 217 of 641 lines of a good start" in found.evidence
    assert "all_reduce (pynccl.py:10) < forward (llama.py:20)" in said(found)
    assert (found.lines, found.lines_known_good, found.exit_code) == (217, 641, ExitCode.BROKEN)


@pytest.mark.parametrize(
    ("seconds", "cores", "stacks"),
    [
        (50, 1.0, [AT_ALL_REDUCE] * 3),  # not long enough
        (70, 0.05, [AT_ALL_REDUCE] * 3),  # asleep
        (70, 1.0, [AT_ALL_REDUCE] * 2),  # too few stacks
        (70, 1.0, [AT_ALL_REDUCE, stack("x (y.py:1)"), AT_ALL_REDUCE]),  # the stack moves
        (70, 1.0, [POLLING] * 3),  # an idle scheduler
        (70, 1.0, []),  # a busy processor alone
    ],
)
def test_a_hang_needs_all_of_its_evidence(seconds: int, cores: float, stacks: list[StackSample]) -> None:
    assert judge(watched(seconds, cores, stacks)).state is not State.HUNG_SPIN


def test_a_line_of_the_same_loop_is_the_same_place() -> None:
    other = stack("all_reduce (pynccl.py:11)", *AT_ALL_REDUCE.frames[1:])
    assert judge(watched(70, 1.0, [AT_ALL_REDUCE, other, AT_ALL_REDUCE])).state is State.HUNG_SPIN
    elsewhere = stack(AT_ALL_REDUCE.frames[0], "forward (llama.py:21)", AT_ALL_REDUCE.frames[2])
    assert judge(watched(70, 1.0, [AT_ALL_REDUCE, elsewhere, AT_ALL_REDUCE])).state is State.SUSPECT_SPIN


def test_the_limit_follows_the_known_good_starts() -> None:
    window = watched(100, 1.0, [AT_ALL_REDUCE] * 3)
    assert judge(window, Facts(known_silence=60.0)).state is not State.HUNG_SPIN
    assert judge(window, Facts(known_silence=45.0)).state is State.HUNG_SPIN


def test_without_python_stacks_a_hang_needs_three_times_as_long() -> None:
    kernel = [stack("state R", "running", source="/proc")] * 3
    assert judge(watched(100, 1.0, kernel)).state is State.SUSPECT_SPIN
    found = judge(watched(190, 1.0, kernel))
    assert found.state is State.HUNG_SPIN
    assert found.confidence < 0.7


def gpu(busy: float, power: float, used: int = 2 * GB, traffic: float = 0.0) -> GpuSample:
    return GpuSample(
        index=0, name="H200", used=used, total=141 * GB, busy=busy, power_w=power, power_limit_w=700.0, traffic=traffic
    )


def test_a_busy_gpu_at_low_power_speaks_for_a_spin_and_at_high_power_against() -> None:
    spin = judge(watched(70, 1.0, [AT_ALL_REDUCE] * 3, gpus=(gpu(1.0, 140.0),)))
    assert "a kernel that spins" in " ".join(spin.evidence)
    work = judge(watched(70, 1.0, [AT_ALL_REDUCE] * 3, gpus=(gpu(1.0, 600.0),)))
    assert "may be computing" in " ".join(work.against)
    assert (spin.state, work.state) == (State.HUNG_SPIN, State.SUSPECT_SPIN)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"gpus": (gpu(0.0, 100.0, used=3 * GB),)}, "memory of GPU 0 grew"),
        ({"gpus": (gpu(0.0, 100.0, traffic=5e9),)}, "GPU 0 moves 5000 MB/s"),
        ({"log": msgspec.structs.replace(LOG, news=10)}, "new in the log: Memory pool end"),
        ({"log": msgspec.structs.replace(LOG, bar=(3.0, 40.0))}, "the progress bar is at 3 of 40"),
        ({"log": msgspec.structs.replace(LOG, activity=1)}, "prefill or decode passes"),
        ({"cache": 2.0}, "a kernel cache was written"),
    ],
)
def test_each_kind_of_movement_is_progress(changes: dict[str, Any], kind: str) -> None:
    window = watched(70, 1.0, [AT_ALL_REDUCE] * 3, gpus=(gpu(0.0, 100.0),))
    window.samples[-1] = msgspec.structs.replace(window.samples[-1], cache=1.0)
    window.add(msgspec.structs.replace(window.now, **{"at": 71.5, "stacks": (), **changes}))
    found = judge(window)
    assert found.state is State.PROGRESSING
    assert kind in " ".join(found.evidence)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"read": 1 << 20}, "reads 0."),
        ({"faults": 500}, "mapped pages a second"),
        ({"rss": 400 << 20}, "grew to"),
    ],
)
def test_reads_faults_and_growth_are_progress(fields: dict[str, int], kind: str) -> None:
    window = watched(70, 1.0)
    window.add(
        Sample(
            at=72.0, processes=(server(72), process(2, 72, 1.0, **fields), process(3, 72, 1.0)), log=LOG, port=CLOSED
        )
    )
    found = judge(window)
    assert found.state is State.PROGRESSING
    assert kind in " ".join(found.evidence)


def test_a_little_noise_is_no_progress() -> None:
    window = watched(70, 1.0)
    window.add(
        Sample(
            at=72.0,
            processes=(server(72), process(2, 72, 1.0, read=9000, faults=3, rss=301 << 20)),
            log=LOG,
            port=CLOSED,
        )
    )
    assert window.silent == 72.0


def test_progress_that_takes_too_long_is_slow() -> None:
    window = watched(5, 0.5)
    window.add(msgspec.structs.replace(window.now, at=7.0, log=msgspec.structs.replace(LOG, news=10)))
    fast = Facts(known_phase_s=10.0, phase_s=29.0, known_remaining_s=12.0)
    assert judge(window, fast).state is State.PROGRESSING
    assert judge(window, fast).eta_s == 12.0
    slow = judge(window, msgspec.structs.replace(fast, phase_s=31.0))
    assert slow.state is State.SLOW
    assert "lasts 31 s, in good starts 10 s" in said(slow)
    assert slow.exit_code is ExitCode.UNSETTLED


def test_silent_and_asleep_waits_and_says_on_what() -> None:
    baton = stack("wait (file_baton.py:50)", "load (cpp_extension.py:1)")
    found = judge(watched(40, 0.0, [baton] * 3))
    assert found.state is State.WAITING
    assert found.waiting_on == "a lock file in wait (file_baton.py:50)"
    lock = judge(watched(40, 0.0, [baton] * 3), Facts(locks=("/c/lock",)))
    assert lock.next_step == "remove /c/lock"
    elsewhere = stack("init_process_group (distributed_c10d.py:1)")
    ranks = judge(watched(40, 0.0, [elsewhere] * 3), Facts(locks=("/c/lock",)))
    assert ranks.waiting_on.startswith("the other ranks")
    assert judge(watched(20, 0.0)).state is State.PROGRESSING


@pytest.mark.parametrize(
    ("port", "facts", "state"),
    [
        ({"health": 200, "generation": True, "generation_s": 0.2}, Facts(), State.READY),
        ({"health": 200}, Facts(), State.READY_UNVERIFIED),
        ({"health": 200, "refused": "the server answered a request with 401"}, Facts(), State.READY_UNVERIFIED),
        ({"health": 200, "generation": False, "generation_s": 20.0}, Facts(), State.ZOMBIE_READY),
        ({"health": 503}, Facts(), State.READY_UNVERIFIED),
        ({"health": 503}, Facts(proxy="http_proxy=p is set"), State.READY_UNVERIFIED),
        ({"owner": 9, "owned": False, "owner_name": "nginx"}, Facts(), State.PORT_TAKEN),
        ({"health": 200, "generation": True}, Facts(lost=("sglang::scheduler_TP1 (7)",)), State.DEAD_CHILD),
        ({"health": 200, "generation": True}, Facts(orphan="it has lost its server"), State.DEAD_CHILD),
    ],
)
def test_an_open_port(port: dict[str, Any], facts: Facts, state: State) -> None:
    found = judge(watched(40, 1.0, [POLLING] * 3, port=msgspec.structs.replace(OPEN, **port)), facts)
    assert found.state is state
    assert found.evidence
    assert found.next_step
    assert 0 < found.confidence < 1


@pytest.mark.parametrize("port", [{"health": 503}, {"health": 200, "generation": True, "generation_s": 0.1}])
@pytest.mark.parametrize(("pid", "name", "role"), [(1, "python", "server"), (4, "sglang::detokenizer", "worker")])
def test_a_process_that_was_stopped_is_told_and_one_that_is_traced_is_not(
    port: dict[str, Any], pid: int, name: str, role: Role
) -> None:
    window = watched(40, 1.0, [POLLING] * 3, port=msgspec.structs.replace(OPEN, **port))
    others = tuple(p for p in window.now.processes if p.pid != pid)
    before = judge(window).state
    for at, letter in ((41.0, "t"), (42.0, "T")):
        halted = process(pid, at, name=name, role=role, state=letter)
        window.add(msgspec.structs.replace(window.now, at=at, processes=(halted, *others)))
        found = judge(window)
        assert found.state is (State.STOPPED_CHILD if letter == "T" else before)
    assert found.exit_code is ExitCode.BROKEN
    assert found.evidence == (f"{name} ({pid}) is stopped: its state is T, as after SIGSTOP",)
    assert found.next_step.startswith(f"kill -CONT {pid} ")


def test_503_while_token_counters_move_is_busy() -> None:
    log = msgspec.structs.replace(LOG, phase="ready")
    port = msgspec.structs.replace(OPEN, health=503, health_at=30.0, tokens=100.0)
    window = watched(40, 1.0, port=port, log=log)
    assert judge(window).state is not State.UNHEALTHY_BUT_BUSY
    window.add(msgspec.structs.replace(window.now, at=41.0, port=msgspec.structs.replace(port, tokens=900.0)))
    found = judge(window)
    assert found.state is State.UNHEALTHY_BUT_BUSY
    assert "the token counters are at 900" in found.evidence


def test_a_rank_that_vanishes_is_missed_and_a_compiler_is_not() -> None:
    window = watched(10, 0.5)
    compiler = process(9, 10, name="cicc", role="compiler")
    window.add(msgspec.structs.replace(window.now, at=11.0, processes=(*window.now.processes, compiler)))
    window.add(msgspec.structs.replace(window.now, at=12.0, processes=window.now.processes[:3]))
    assert judge(window).state is State.PROGRESSING
    window.add(msgspec.structs.replace(window.now, at=13.0, processes=window.now.processes[:2]))
    found = judge(window)
    assert found.state is State.DEAD_CHILD
    assert found.evidence[0] == "sglang::scheduler_TP1 (3) is gone"


def test_silence_before_the_watching_is_taken_from_the_log() -> None:
    window = watched(12, 1.0, [AT_ALL_REDUCE] * 3)
    limits = Limits(fresh_s=5.0)
    assert judge(window, Facts(), limits).state is not State.HUNG_SPIN
    assert judge(window, Facts(logged_silence=600.0), limits).state is State.HUNG_SPIN


def test_the_json_is_the_documented_object() -> None:
    found = judge(watched(70, 1.0, [AT_ALL_REDUCE] * 3)).as_json()
    kinds = {key: type(value) for key, value in found.items()}
    assert kinds == {
        **{"schema": int, "verdict": str, "phase": str, "confidence": float, "evidence": list, "against": list},
        **{"next_step": str, "lines": int, "lines_known_good": type(None)},
    }


def test_a_health_answer_from_before_the_start_ended_says_nothing() -> None:
    passes = msgspec.structs.replace(LOG, phase="ready", activity=5)
    window = watched(40, 1.0, port=msgspec.structs.replace(OPEN, health=503, health_at=40.5))
    stale = msgspec.structs.replace(window.now, at=41.0, log=passes)
    window.add(stale)
    assert judge(window).state is State.PROGRESSING
    asked = msgspec.structs.replace(OPEN, health=503, health_at=41.5)
    window.add(msgspec.structs.replace(stale, at=42.0, port=asked))
    assert judge(window).state is State.UNHEALTHY_BUT_BUSY
