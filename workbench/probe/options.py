"""What a probe is asked to do."""

from pathlib import Path

import msgspec

from workbench.probe.prompt import Prompt
from workbench.server.specs import Device


class ProbeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One probe. `layers` are block numbers; `timeout_s` bounds the server's start and, again, the dump."""

    prompt: Prompt
    layers: tuple[int, ...] | None = None
    reference: bool = False
    self_test: bool = False
    name: str = "default"
    model: str = "demo"
    url: str | None = None
    dump_dir: Path | None = None
    device: Device = "auto"
    python: str | None = None
    keep: bool = False
    timeout_s: float = 600.0
