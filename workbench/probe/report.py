"""What a probe found, as one frozen record; its JSON form is the command's `--json` output."""

from typing import Any

import msgspec

SCHEMA = 1


class Token(msgspec.Struct, frozen=True):
    """One token of the prompt. `text` is what the server decodes the id to, alone."""

    id: int
    text: str


class TensorRow(msgspec.Struct, frozen=True):
    """One captured tensor. Statistics leave NaN and infinities out; std is over all values (population).

    `after_block` counts decoder blocks from 0: the tensor is that block's output, taken on entering
    `captured_entering`. `norm` is the side of the final norm for the last state, else None. `histogram` counts
    values in bins of equal width on a symmetric logarithmic axis. `token_norms` are L2 norms, one a token; in JSON null
    stands for one that is not finite.
    """

    name: str
    after_block: int
    captured_entering: int | None
    norm: str | None
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    zeros: int
    nan: int
    inf: int
    histogram: tuple[int, ...] = ()
    token_norms: tuple[float | None, ...] = ()


class OtherDump(msgspec.Struct, frozen=True):
    """Another dump in the same folder, or passes that the recorder saw and left out (`name` is empty)."""

    name: str
    kind: str
    tokens: int | None = None
    request_id: str | None = None
    count: int = 1


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one probe. `verdict` is "ok" or the short name of what is wrong; see `summary`."""

    schema: int = SCHEMA
    model: str
    prompt: str
    tokens: tuple[Token, ...]
    tensors: tuple[TensorRow, ...]
    final_norm: str
    other_dumps: tuple[OtherDump, ...]
    verdict: str
    summary: str
    next_step: str = ""
    seconds: float
    capture_seconds: float
    """From sending the request to the finished dump."""
    gb_per_second: float
    request_id: str
    dump: str
    server: str
    route: str | None = None
    """How the recorder got into the engine: `patch`, `plugin` or `builtin`."""
    chunks: int = 1
    """Passes that prefill cut the prompt into."""
    reference: dict[str, Any] | None = None
    logits: dict[str, Any] | None = None
    self_test: dict[str, Any] | None = None
