"""What a probe is asked to do."""

from pathlib import Path

import msgspec

from workbench.probe.prompt import Prompt
from workbench.server.specs import DEFAULT_PORT, Capture, Device


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which server to use. `layers` are block numbers; `timeout_s` bounds the server's start."""

    layers: tuple[int, ...] | None = None
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
    timeout_s: float = 600.0
    flags: tuple[str, ...] = ()
    """SGLang's, for a server that is started."""
    final: str = "pre"
    """Side of the final norm that a server which is started records: `pre`, `post` or `both`."""
    port: int = DEFAULT_PORT
    """Of a server that is started, unless it is taken."""


class ProbeOptions(ServerOptions, frozen=True, kw_only=True):
    """One probe. `timeout_s` bounds the dump too."""

    prompt: Prompt
    reference: bool = False
    self_test: bool = False
    keep: bool = False
