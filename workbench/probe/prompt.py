"""What the user asks to probe: text, a chat turn, or token ids."""

import os
from pathlib import Path

import msgspec

from workbench.errors import UsageError


class Prompt(msgspec.Struct, frozen=True):
    """A prompt as given: either `text` (a user's turn when `chat`) or `token_ids`."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    chat: bool = False


def parse_prompt(text: str | None, tokens: str | None, chat: bool) -> Prompt:
    """Build the prompt from the command line.

    Args:
        text: The prompt's text, or None.
        tokens: A list such as ``19556,905``, or the path of a file that holds one (JSON or separated by
            commas or white space), or None.
        chat: Render `text` as a user's turn through the model's chat template.

    Raises:
        UsageError: neither or both are given, the prompt is empty, or the ids are no token ids.
    """
    if tokens is not None:
        if text is not None or chat:
            raise UsageError("--tokens replaces the text and --chat", "give one of them")
        return Prompt(token_ids=parse_token_ids(tokens))
    if text is None:
        raise UsageError("no prompt given", 'hsbench probe "Hello world", or --tokens 19556,905')
    if not text:
        raise UsageError("the prompt is empty", 'give at least one token, such as hsbench probe "Hello world"')
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            "the prompt is not valid in this terminal's encoding", "use a UTF-8 locale, or give --tokens"
        ) from error
    return Prompt(text=text, chat=chat)


def parse_token_ids(given: str) -> tuple[int, ...]:
    """Token ids from a list or from a file of one; see `parse_prompt`."""
    listed = _read_list(given)
    words = listed.replace(",", " ").replace("[", " ").replace("]", " ").split()
    ids = []
    for word in words:
        if not (word.isascii() and word.isdigit()):
            raise UsageError(f"--tokens: {word[:40]!r} is not a token id", "give numbers, such as 19556,905")
        ids.append(int(word))
    if not ids:
        raise UsageError("--tokens names no token ids", "give numbers, such as 19556,905, or a file of them")
    return tuple(ids)


def _read_list(given: str) -> str:
    path = Path(given)
    if all(char in "0123456789.-+,[] \n\t" for char in given) and not os.path.isfile(given):
        return given
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(
            f"--tokens: {given[:80]!r} is neither a list of ids nor a readable file ({reason})",
            "give numbers, such as 19556,905, or a file of them",
        ) from error


def parse_layers(given: str | None) -> tuple[int, ...] | None:
    """Block numbers such as ``2,15,27``: the outputs of these decoder blocks, counted from 0.

    Raises:
        UsageError: not a list of distinct rising block numbers.
    """
    if given is None:
        return None
    parts = given.replace(" ", "").split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise UsageError(f"--layers {given!r} is not a list of block numbers", "such as --layers 2,15,27")
    blocks = tuple(int(part) for part in parts)
    if list(blocks) != sorted(set(blocks)):
        raise UsageError(f"--layers {given!r}: blocks must rise and differ", "such as --layers 2,15,27")
    return blocks
