"""An SGLang platform that serves on any CPU, with no GPU and no AMX.

SGLang finds it through the entry point `hsbench_cpu` in the group `sglang.srt.platforms` and uses it only
when `SGLANG_PLATFORM=hsbench_cpu` selects it. With the variable unset SGLang activates every plug-in that
offers itself, so `platform` offers nothing unless it was named.
"""

import os
from functools import cache
from typing import Any

NAME = "hsbench_cpu"


def platform() -> str | None:
    """The entry point: where the platform class is, or None when it is not selected."""
    if os.environ.get("SGLANG_PLATFORM") != NAME:
        return None
    return f"{__name__}:CpuPlatform"


@cache
def _platform_class() -> type[Any]:
    from sglang.srt.platforms.cpu import CpuDeviceMixin
    from sglang.srt.platforms.device_mixin import PlatformEnum
    from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

    class CpuPlatform(CpuDeviceMixin, SRTPlatform):  # type: ignore[misc]
        """SGLang's CPU device operations with attention in plain torch."""

        _enum = PlatformEnum.OOT
        capabilities = PlatformCapabilities()

        def get_default_attention_backend(self) -> str:
            return "torch_native"

    return CpuPlatform


def __getattr__(name: str) -> Any:
    """`CpuPlatform` needs SGLang to be defined, and this module must import without it."""
    if name == "CpuPlatform":
        return _platform_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
