"""An SGLang platform that serves on any CPU, with no GPU and no AMX: dense, MoE and MLA models, on several ranks.

SGLang finds it through the entry point `hsbench_cpu` in the group `sglang.srt.platforms` and uses it only
when `SGLANG_PLATFORM=hsbench_cpu` selects it. With the variable unset SGLang activates every plug-in that
offers itself, so `platform` offers nothing unless it was named.
"""

import os
from functools import cache
from typing import Any

NAME = "hsbench_cpu"
NO_COMPILING = "TORCH_COMPILE_DISABLE"
"""SGLang compiles some small functions of MoE models; on a CPU the first request then waits for a C++ compiler."""
ATTENTION_NAMES = ("torch_native", "intel_amx")
"""Names under which ours is installed; the second remains where the processor has AMX."""


def platform() -> str | None:
    """The entry point: where the platform class is, or None when it is not selected."""
    if os.environ.get("SGLANG_PLATFORM") != NAME:
        return None
    os.environ.setdefault(NO_COMPILING, "1")
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

        def apply_server_args_defaults(self, server_args: Any) -> None:
            """Called on the parsed arguments, before SGLang looks at which model they name.

            SGLang refuses `torch_native` by name for gpt-oss, and turns `intel_amx` into it afterwards where the
            processor has no AMX. Left alone it would also pick Triton's kernels for the experts of gpt-oss.
            """
            if server_args.attention_backend in (None, "torch_native"):
                server_args.attention_backend = "intel_amx"
            if server_args.moe_runner_backend == "auto":
                server_args.moe_runner_backend = "triton"

        def init_backend(self) -> None:
            """Called in every worker before a backend is made: ours takes the place of `torch_native`."""
            from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

            from patches.cpu_attention import CpuAttnBackend

            for name in ATTENTION_NAMES:
                ATTENTION_BACKENDS[name] = CpuAttnBackend

    return CpuPlatform


def __getattr__(name: str) -> Any:
    """`CpuPlatform` needs SGLang to be defined, and this module must import without it."""
    if name == "CpuPlatform":
        return _platform_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
