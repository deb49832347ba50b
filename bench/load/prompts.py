"""Prompts: random tokens of which no two begin alike, or the rows of a file."""

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench.load.spec import Api
from workbench.errors import UsageError

Prompt = list[int] | str | list[dict[str, str]]
"""Token ids, text, or the messages of a conversation."""
HEAD = 6
"""Tokens that number a prompt, so that no prefix cache knows it."""
SLACK = 4096


class Unique:
    """Synthetic prompts. The first tokens count up from a random start, lowest digit first; the rest is random.

    Args:
        low: Smallest token id.
        high: Ids are smaller than this.
        seed: The same seed gives the same prompts.
    """

    def __init__(self, low: int, high: int, seed: int) -> None:
        if not 0 <= low < high:
            raise UsageError(f"no token ids lie in {low},{high}", "such as --token-range 100,8000")
        self._low, self._base = low, high - low
        self._random = random.Random(seed)
        self._number = self._random.randrange(self._base**HEAD)
        self._pool: list[int] = []

    def tokens(self, length: int) -> list[int]:
        """The next prompt."""
        if len(self._pool) < length + SLACK:
            more = length + SLACK - len(self._pool)
            self._pool += self._random.choices(range(self._low, self._low + self._base), k=more)
        head, number = [], self._number
        for _ in range(min(HEAD, length)):
            number, digit = divmod(number, self._base)
            head.append(self._low + digit)
        self._number += 1
        at = self._random.randrange(SLACK)
        return head + self._pool[at : at + length - len(head)]

    def text(self, words: int) -> str:
        """The next prompt as words; what tokens they are is the tokenizer's affair, so their number is not exact."""
        return " ".join(_word(token) for token in self.tokens(words))

    def endless(self, length: int, api: Api) -> Iterator[Prompt]:
        """Prompts of one length, for one API."""
        while True:
            if api == "openai-chat":
                yield [{"role": "user", "content": self.text(length)}]
            else:
                yield self.tokens(length)


def _word(number: int) -> str:
    letters = ""
    while True:
        number, digit = divmod(number, 26)
        letters += chr(ord("a") + digit)
        if not number:
            return letters


def from_file(path: str, api: Api) -> list[Prompt]:
    """The prompts of a file: JSON lines or one JSON array, rows as for `row_prompt`.

    Raises:
        UsageError: the file cannot be read, a row has no prompt for this API, or there are none.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "name a JSONL or ShareGPT file") from error
    prompts = [row_prompt(row, api, f"{path}, row {number}") for number, row in enumerate(_rows(data, path), 1)]
    kept = [prompt for prompt in prompts if prompt]
    if not kept:
        raise UsageError(f"there are no prompts in {path}", "name a JSONL or ShareGPT file")
    return kept


def _rows(data: bytes, path: str) -> Iterator[Any]:
    if data.lstrip()[:1] == b"[":
        try:
            yield from msgspec.json.decode(data, type=list[Any])
        except msgspec.DecodeError as error:
            raise UsageError(f"{path} is not JSON: {error}", "name a JSONL or ShareGPT file") from error
        return
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise UsageError(f"{path}, line {number} is not JSON", "name a JSONL or ShareGPT file") from error


def row_prompt(row: Any, api: Api, where: str) -> Prompt | None:
    """The prompt in a row with `input_ids`, `prompt`, `messages` or ShareGPT's `conversations`.

    Of a conversation the turns up to the last one before an answer are taken for a chat, and only the first turn, as
    plain text, for the other APIs. None for an empty conversation.

    Raises:
        UsageError: the row has none of them, or what the API cannot take.
    """
    found = row if isinstance(row, dict) else {}
    if isinstance(ids := found.get("input_ids"), list) and all(type(token) is int for token in ids):
        if api == "openai-chat":
            raise UsageError(f"{where} has token ids, which a chat cannot take", "use --api openai or native")
        return list(ids)
    if isinstance(text := found.get("prompt"), str):
        return [{"role": "user", "content": text}] if api == "openai-chat" and text else text
    turns = found.get("messages", found.get("conversations"))
    if not isinstance(turns, list):
        raise UsageError(f"{where} has no prompt", "rows need input_ids, prompt, messages or conversations")
    return _conversation([_message(turn, where) for turn in turns], api)


ROLES = {"human": "user", "gpt": "assistant"}


def _message(turn: Any, where: str) -> dict[str, str]:
    if isinstance(turn, dict):
        role, content = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
        if isinstance(role, str) and isinstance(content, str):
            return {"role": ROLES.get(role, role), "content": content}
    raise UsageError(f"{where} has a turn without role and content", 'such as {"role": "user", "content": "Hi"}')


def _conversation(messages: list[dict[str, str]], api: Api) -> Prompt | None:
    if api != "openai-chat":
        return messages[0]["content"] if messages else None
    while messages and messages[-1]["role"] == "assistant":
        messages = messages[:-1]
    return messages or None


def in_turn(prompts: list[Prompt]) -> Iterator[Prompt]:
    """The prompts over and over; a server that caches prefixes may know those of the second round."""
    return itertools.cycle(prompts)
