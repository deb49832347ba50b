"""What a person asks of a server: the model, where it runs, and what it records."""

from typing import Literal, get_args

import msgspec

Device = Literal["auto", "cpu", "cuda"]
Capture = Literal["auto", "patch", "plugin", "builtin"]
"""A way that the recorder gets into the engine; `auto` takes the least invasive that will do."""
ROUTES = get_args(Capture)
CAPTURE_HELP = "How the recorder gets in: an edit of the engine's files, a plug-in, or SGLang's own capture."

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
    route: Capture = "auto"
    """Of a server that was started: the route taken. `auto` there means the patch, by a hsbench of before."""
    allow_chunked: bool = False
    """Let the engine cut a prompt into several passes; the reader puts their dumps together."""


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
    port_fixed: bool = False
    """Refuse to start when the port is taken, instead of looking for another."""
    fix: bool = False
    """Correct flags that contradict what is asked for, instead of refusing them."""
