"""What a probe is asked to do."""

from pathlib import Path

import msgspec

from workbench.probe.prompt import Prompt
from workbench.server.specs import Capture, Device


class ProbeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One probe. `layers` are block numbers; `timeout_s` bounds the server's start and, again, the dump."""

    prompt: Prompt
    layers: tuple[int, ...] | None = None
    reference: bool = False
    self_test: bool = False
    name: str = "default"
    model: str | None = None
    """None means the running server's, or the demo model."""
    url: str | None = None
    dump_dir: Path | None = None
    device: Device = "auto"
    capture: Capture = "auto"
    """The route of a server that is started; a running one must have taken it."""
    allow_chunked: bool = False
    python: str | None = None
    keep: bool = False
    timeout_s: float = 600.0
