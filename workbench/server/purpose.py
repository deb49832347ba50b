"""Flags against the purpose: which of them would spoil a dump, and the same command line put right.

A dump needs each prompt to pass through the model once, whole, uncached, outside a CUDA graph and in one process.
"""

from collections.abc import Sequence

import msgspec

from workbench.errors import UsageError
from workbench.server.flags import CHUNKS, DUMP, SPOILS, given

PREFILL_TOKENS = "--max-prefill-tokens"
_RIGHT = {
    "--chunked-prefill-size": "-1",
    "--pp-size": "1",
    "--pipeline-parallel-size": "1",
    "--cuda-graph-backend-prefill": "disabled",
}
"""Flag → the value that does no harm; the others are left out."""


class Wrong(msgspec.Struct, frozen=True):
    """A flag that spoils a dump."""

    flag: str
    value: str | None
    how: str
    right: str | None
    """The value that does not; None means that the flag must go."""

    def describe(self) -> str:
        """For a person: what is wrong, and what it becomes."""
        shown = self.flag if self.value is None else f"{self.flag} {self.value}"
        return f"{shown} {self.how}; " + (f"made {self.flag} {self.right}" if self.right else "left out")


def wrong(flags: Sequence[str], context_len: int | None = None, allow_chunked: bool = False) -> list[Wrong]:
    """The flags that spoil a dump.

    Args:
        flags: A command line's flags.
        context_len: The model's longest sequence in tokens, if known.
        allow_chunked: A prompt may be cut into several passes.
    """
    found = []
    for flag, value in given(flags).items():
        spoils, how = SPOILS.get(flag, (None, "")) if not (allow_chunked and flag in CHUNKS) else (None, "")
        if spoils is not None and spoils(value):
            found.append(Wrong(flag, value, how, _RIGHT.get(flag)))
    short = _short(flags, context_len)
    return [*found, short] if short else found


def missing(flags: Sequence[str], known: frozenset[str]) -> list[str]:
    """Flags that a dump needs and that this command line leaves out; hsbench adds them."""
    present = given(flags)
    return [
        flag if value is None else f"{flag} {value}"
        for flag, value in DUMP
        if flag not in present and (flag in known or not known)
    ]


def fixed(flags: Sequence[str], context_len: int | None = None, allow_chunked: bool = False) -> tuple[str, ...]:
    """The flags with the wrong ones corrected or left out."""
    bad = {one.flag: one for one in wrong(flags, context_len, allow_chunked)}
    kept: list[str] = []
    dropping = False
    for word in flags:
        name = word.partition("=")[0]
        if word.startswith("--"):
            dropping = name in bad
            if dropping and bad[name].right is not None:
                kept += [name, str(bad[name].right)]
        if not dropping:
            kept.append(word)
    return tuple(kept)


def refuse_short_passes(flags: Sequence[str], context_len: int | None) -> None:
    """Raise UsageError when fewer tokens are let into a pass than the longest prompt has."""
    short = _short(flags, context_len)
    if short:
        raise UsageError(
            f"{short.flag} {short.value} {short.how}, so a dump would not be complete",
            f"give {short.flag} {short.right}, leave it out, or add --fix",
        )


def _short(flags: Sequence[str], context_len: int | None) -> Wrong | None:
    value = given(flags).get(PREFILL_TOKENS)
    if value is None or context_len is None or not value.isdigit() or int(value) >= context_len:
        return None
    how = f"is less than the model's context of {context_len} tokens"
    return Wrong(PREFILL_TOKENS, value, how, str(context_len))
