"""What a person asks of a server: the model, where it runs, and what it records."""

from typing import Literal

import msgspec

Device = Literal["auto", "cpu", "cuda"]

DEFAULT_NAME = "default"
DEFAULT_PORT = 30017
DEMO = "demo"
"""Given as a model, this word means the demo model."""


class DumpSpec(msgspec.Struct, frozen=True):
    """What the recorder inside the engine is told to write."""

    folder: str
    blocks: tuple[int, ...] | None = None
    """Numbers of the decoder blocks whose outputs are kept; None leaves the recorder its default."""
    final: str = "pre"
    """The last state before the final norm (`pre`), after it (`post`), or `both`."""
    record_all: bool = False
    """Record requests of any id, not only those whose id starts with `hs-`."""


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A server to start. `flags` and `env` go to SGLang as they are."""

    model: str
    """A folder, or the id of a model on the Hugging Face Hub."""
    name: str = DEFAULT_NAME
    python: str | None = None
    """The interpreter where SGLang lives; None means the one that runs hsbench."""
    device: Device = "auto"
    port: int = DEFAULT_PORT
    """0 means any free port."""
    dump: DumpSpec | None = None
    flags: tuple[str, ...] = ()
    env: dict[str, str] = {}
