"""GPUs through NVML, where the machine has any and `nvidia-ml-py` is installed; otherwise an empty list.

`Nvml` takes the module as an argument, so that a test can hand in a stand-in.
"""

import contextlib
import importlib
from types import ModuleType
from typing import Any

import msgspec

from workbench.supervision.records import GpuSample


class Holder(msgspec.Struct, frozen=True):
    """A process that holds memory of a GPU."""

    gpu: int
    pid: int
    used: int | None


class Nvml:
    """A connection to the driver. Every question answers with nothing rather than an error.

    Args:
        module: `pynvml` or a stand-in; None imports it, and finds no GPU without it.
    """

    def __init__(self, module: ModuleType | Any | None = None) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        self.driver = ""
        self.missing = ""
        """Why there is nothing to see; empty when there is."""
        try:
            self._nvml = module or importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
            self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
            self.driver = _text(self._nvml.nvmlSystemGetDriverVersion())
        except ImportError:
            self.missing = "nvidia-ml-py is not installed"
        except Exception as error:
            self.missing = f"NVML: {error}"

    def sample(self) -> tuple[GpuSample, ...]:
        """Every GPU now. Takes up to some 20 ms a GPU: the PCIe counters are measured over that time."""
        return tuple(self._one(index, handle) for index, handle in enumerate(self._handles))

    def holders(self) -> list[Holder]:
        """The processes that hold GPU memory, as far as this user and container may see them."""
        return [
            Holder(index, int(process.pid), getattr(process, "usedGpuMemory", None))
            for index, handle in enumerate(self._handles)
            for process in self._ask("nvmlDeviceGetComputeRunningProcesses", handle) or []
        ]

    def _ask(self, function: str, *arguments: Any) -> Any:
        with contextlib.suppress(Exception):
            return getattr(self._nvml, function)(*arguments)
        return None

    def _one(self, index: int, handle: Any) -> GpuSample:
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
        power, limit = (
            self._ask("nvmlDeviceGetPowerUsage", handle),
            self._ask("nvmlDeviceGetEnforcedPowerLimit", handle),
        )
        return GpuSample(
            index=index,
            name=_text(self._ask("nvmlDeviceGetName", handle) or "?"),
            used=memory.used if memory else 0,
            total=memory.total if memory else 0,
            busy=rates.gpu / 100 if rates else None,
            power_w=power / 1000 if power is not None else None,
            power_limit_w=limit / 1000 if limit is not None else None,
            traffic=self._pcie(handle),
            nvlink=self._nvlink(handle),
        )

    def _pcie(self, handle: Any) -> float | None:
        """NVML counts kilobytes a second, over 20 ms."""
        kilobytes = [
            self._ask("nvmlDeviceGetPcieThroughput", handle, getattr(self._nvml, name, index))
            for index, name in enumerate(("NVML_PCIE_UTIL_TX_BYTES", "NVML_PCIE_UTIL_RX_BYTES"))
        ]
        known = [value for value in kilobytes if value is not None]
        return 1024.0 * sum(known) if known else None

    def _nvlink(self, handle: Any) -> int | None:
        """Sum over the links of the raw data counters, in KiB there."""
        fields = [getattr(self._nvml, f"NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_{way}", None) for way in ("TX", "RX")]
        if None in fields:
            return None
        values = self._ask("nvmlDeviceGetFieldValues", handle, fields) or []
        good = [v.value.ullVal for v in values if getattr(v, "nvmlReturn", 1) == 0]
        return 1024 * sum(good) if good else None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
