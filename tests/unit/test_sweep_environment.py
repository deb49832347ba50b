"""The machine around a start: what makes it invalid, and a driver that answers or does not."""

from types import SimpleNamespace
from typing import Any

from bench.sweep.environment import GpuLook, GpuWatch, judge
from workbench.supervision.gpu import Holder

OWN = frozenset({10, 11})
QUIET = (GpuLook(index=0), GpuLook(index=1))


def test_a_quiet_machine_is_valid() -> None:
    seen = [(GpuLook(index=0, sm_mhz=1980, power_w=300.0), GpuLook(index=1)), (GpuLook(index=0, sm_mhz=1900), QUIET[1])]
    found = judge(QUIET, [], seen, [Holder(0, 10, 1)], OWN)
    assert found.invalid == ()
    assert (found.gpus[0].sm_mhz, found.gpus[0].power_w) == (1900, 300.0)


def test_heat_makes_a_start_invalid_and_the_power_cap_does_not() -> None:
    seen = [(GpuLook(index=0, throttled=("power cap",)),), (GpuLook(index=0, throttled=("heat", "power cap")),)]
    assert judge((), [], seen[:1], [], OWN).invalid == ()
    assert judge((), [], seen, [], OWN).invalid == ("GPU 0 was throttled: heat",)


def test_a_gpu_that_was_not_free_makes_a_start_invalid() -> None:
    assert "process 99 held memory" in judge(QUIET, [Holder(0, 99, 1)], [], [], OWN).invalid[0]
    assert "50% busy" in judge((GpuLook(index=0, busy=0.5),), [], [], [], OWN).invalid[0]
    assert "2.0 GiB were in use" in judge((GpuLook(index=0, used=2 << 30),), [], [], [], OWN).invalid[0]


def test_a_foreign_process_beside_the_server_makes_a_start_invalid() -> None:
    both = [Holder(0, 10, 1), Holder(1, 99, 1)]
    assert judge(QUIET, [], [QUIET], both, OWN).invalid == ("process 99, not the server's, was on GPU 1",)


def test_where_nvml_numbers_processes_otherwise_none_is_called_foreign() -> None:
    assert judge(QUIET, [], [QUIET], [Holder(0, 4000, 1), Holder(1, 4001, 1)], OWN).invalid == ()


def driver(**more: Any) -> SimpleNamespace:
    return SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlSystemGetDriverVersion=lambda: "595.0",
        nvmlDeviceGetName=lambda handle: "NVIDIA H200",
        **more,
    )


def test_a_watch_asks_the_driver_while_the_server_is_measured() -> None:
    module = driver(
        nvmlDeviceGetClockInfo=lambda handle, kind: {1: 1980, 2: 3201}[kind],
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x4 | 0x20,
        nvmlDeviceGetTemperature=lambda handle, kind: 71,
        nvmlDeviceGetPowerUsage=lambda handle: 650_000,
    )
    watch = GpuWatch(module, every_s=0.001)
    watch.measuring(OWN)
    found = watch.end()
    (gpu,) = found.gpus
    assert (gpu.name, gpu.sm_mhz, gpu.mem_mhz, gpu.temperature_c, gpu.power_w) == ("NVIDIA H200", 1980, 3201, 71, 650)
    assert gpu.throttled == ("heat", "power cap")
    assert found.invalid == ("GPU 0 was throttled: heat",)


def test_a_driver_that_does_not_answer_is_no_fault() -> None:
    watch = GpuWatch(driver(), every_s=0.001)
    watch.measuring(OWN)
    found = watch.end()
    assert found.invalid == ()
    assert found.gpus[0].sm_mhz is None


def test_a_watch_that_never_measured_ends() -> None:
    assert GpuWatch(driver()).end().gpus == ()
