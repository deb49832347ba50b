"""Errors of the probes. The worker sends `kind`, `message` and `next_step`; the command line shows them."""

from __future__ import annotations


class ProbeError(Exception):
    """A dump or a model cannot be read or compared as asked.

    Args:
        message: One line; what is wrong, with the file it is about.
        next_step: One line; what to do about it. Empty when there is nothing to say.
    """

    kind = "probe"

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.message = one_line(message)
        self.next_step = next_step


class DumpError(ProbeError):
    """A dump is missing, unfinished, truncated or not what its meta.json says."""

    kind = "dump"


class ModelError(ProbeError):
    """A model folder cannot serve as a reference."""

    kind = "model"


class MemoryShort(ProbeError):
    """The reference model does not fit in the memory that is free."""

    kind = "memory"


class CallError(ProbeError):
    """The worker was called in a way that it does not know."""

    kind = "call"


class PackageMissing(ProbeError):
    """The interpreter lacks a package that the call needs."""

    kind = "package"


def one_line(text: str, limit: int = 300) -> str:
    """`text` with its line breaks turned into spaces, cut to `limit` characters."""
    joined = " ".join(text.split())
    return joined if len(joined) <= limit else joined[: limit - 1] + "…"
