"""Conversations to token ids, with a loss mask on what the assistant says.

The mask is the tokenizer's own where its chat template marks the assistant's text (``{% generation %}``). Else it is
found by rendering again: the conversation once as it is, and once for each assistant turn with that turn's content
replaced by a mark. Where the two texts begin and cease to be equal is where the turn's content stands, whatever the
template strips from it or changes in earlier turns. What lies between the generation prompt and that place is the
assistant's too (an opening ``<think>``), and so is the first special token after it, which ends the turn.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.errors import ModelError, PackageMissing, ProbeError, one_line

MARK = "\ue0a7hsbench\ue0a8"
"""Private-use characters at both ends, so that no common beginning or end reaches into it."""
GENERATION = re.compile(r"\{%-?\s*generation\b")
DATE = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)
"""Templates that ask for the date get this one: a run that goes on the next day must see the same tokens."""
ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "function_call": "assistant",
}


class RowError(ProbeError):
    """One row cannot be a sample. `kind` counts, the message says why."""

    kind = "bad_row"


@dataclass(frozen=True)
class Rendered:
    """One row as text, ids and mask, before it is cut to length."""

    ids: list[int]
    mask: list[int]


class Renderer:
    """A tokenizer with its chat template.

    Args:
        tokenizer: Of the transformers library, fast or slow.
        where: Its folder, for messages.
    """

    def __init__(self, tokenizer: Any, where: str) -> None:
        self.tokenizer = tokenizer
        self.where = where
        self.template = tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else _default(tokenizer)
        self.marks_generation = bool(self.template and GENERATION.search(self.template)) and bool(tokenizer.is_fast)
        self.special = set(tokenizer.all_special_ids) | {
            number for number, token in tokenizer.added_tokens_decoder.items() if token.special
        }

    @property
    def mask_source(self) -> str:
        """In words, for the run's record."""
        return "the chat template's own generation mask" if self.marks_generation else "offsets of the assistant turns"

    def text(self, text: str) -> Rendered:
        """Plain text: every token is trained on. A text that brings its own BOS does not get a second one."""
        ids = list(self.tokenizer(text, add_special_tokens=True)["input_ids"])
        bos = self.tokenizer.bos_token_id
        if bos is not None and ids[:2] == [bos, bos]:
            ids = ids[1:]
        return Rendered(ids, [1] * len(ids))

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: Any = None) -> Rendered:
        """One conversation of `normalised` messages.

        Raises RowError when the template refuses it, ModelError when there is no template.
        """
        if not self.template:
            raise ModelError(f"{self.where} has no chat template", "give a data set with input_ids or text")
        if self.marks_generation:
            return self._by_template(messages, tools)
        text = self._render(messages, tools)
        spans = self._spans(messages, tools, text)
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=bool(self.tokenizer.is_fast))
        ids = list(encoded["input_ids"])
        find = Offsets(text, encoded["offset_mapping"]) if self.tokenizer.is_fast else Prefixes(text, ids, self._ids)
        mask = [0] * len(ids)
        for start, end in spans:
            first, stop = find.tokens(start, end)
            if stop < len(ids) and ids[stop] in self.special and find.only_blanks_before(stop, end):
                stop += 1
            mask[first:stop] = [1] * (stop - first)
        return Rendered(ids, mask)

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _by_template(self, messages: Sequence[Mapping[str, Any]], tools: Any) -> Rendered:
        try:
            found = self.tokenizer.apply_chat_template(
                list(messages),
                tools=tools,
                tokenize=True,
                return_dict=True,
                return_assistant_tokens_mask=True,
                **_fixed_date(),
            )
        except Exception as error:  # templates raise what they like
            raise RowError(f"the chat template refuses it: {one_line(str(error), 200)}") from None
        return Rendered(list(found["input_ids"]), [int(value) for value in found["assistant_masks"]])

    def _render(self, messages: Sequence[Mapping[str, Any]], tools: Any, prompt: bool = False) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), tools=tools, tokenize=False, add_generation_prompt=prompt, **_fixed_date()
            )
        except Exception as error:  # templates raise what they like
            raise RowError(f"the chat template refuses it: {one_line(str(error), 200)}") from None
        return str(text)

    def _spans(self, messages: Sequence[Mapping[str, Any]], tools: Any, text: str) -> list[tuple[int, int]]:
        """Where in `text` the assistant's turns stand, as character ranges."""
        if MARK[0] in text or MARK[-1] in text:
            raise RowError("it has private-use characters that the mask is found with")
        turns = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        prompt = self._generation_prompt(messages[: turns[0]], tools) if turns else ""
        spans: list[tuple[int, int]] = []
        for number in turns:
            other = self._render(_marked(messages, number), tools)
            start = _common(text, other)
            end = len(text) - _common(text[start:][::-1], other[start:][::-1])
            if other == text or end <= start:
                continue  # the template leaves this turn's content out
            before = text.rfind(prompt, spans[-1][1] if spans else 0, start) if prompt else -1
            spans.append((before + len(prompt) if before >= 0 else start, end))
        return spans

    def _generation_prompt(self, messages: Sequence[Mapping[str, Any]], tools: Any) -> str:
        """What the template adds to have the assistant speak; empty when it does not say."""
        try:
            plain, asking = self._render(messages, tools), self._render(messages, tools, prompt=True)
        except RowError:
            return ""
        return asking[len(plain) :] if asking.startswith(plain) else ""


class Offsets:
    """Tokens of a character range, from a fast tokenizer's offsets."""

    def __init__(self, text: str, offsets: Sequence[tuple[int, int]]) -> None:
        self.text = text
        self.offsets = offsets

    def tokens(self, start: int, end: int) -> tuple[int, int]:
        """First token of the range and the one after the last. A token may also hold blanks that stand before it."""
        inside = [
            number
            for number, (first, last) in enumerate(self.offsets)
            if first < end and last > start and (first >= start or self.text[first:start].isspace())
        ]
        return (inside[0], inside[-1] + 1) if inside else (0, 0)

    def only_blanks_before(self, token: int, end: int) -> bool:
        """Whether nothing but blanks stands between a range's end and a token."""
        return not self.text[end : self.offsets[token][0]].strip()


class Prefixes:
    """The same by tokenizing the beginnings of the text, for slow tokenizers."""

    def __init__(self, text: str, ids: Sequence[int], encode: Any) -> None:
        self.text = text
        self.ids = ids
        self.encode = encode

    def tokens(self, start: int, end: int) -> tuple[int, int]:
        """As `Offsets.tokens`."""
        return self._count(start), self._count(end)

    def _count(self, place: int) -> int:
        return _common(list(self.ids), self.encode(self.text[:place]))

    def only_blanks_before(self, token: int, end: int) -> bool:
        """As `Offsets.only_blanks_before`: `token` is the first one after the range."""
        return True


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Length of the beginning that two strings or two lists share."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _marked(messages: Sequence[Mapping[str, Any]], number: int) -> list[dict[str, Any]]:
    copied = [dict(message) for message in messages]
    kept: dict[str, Any] = {key: value for key, value in copied[number].items() if key in ("role", "name")}
    copied[number] = kept | {"content": MARK}
    return copied


def _fixed_date() -> dict[str, Any]:
    return {"strftime_now": DATE.strftime, "date_string": DATE.strftime("%d %b %Y")}


def _default(tokenizer: Any) -> str:
    templates = tokenizer.chat_template
    return str(templates.get("default", "")) if isinstance(templates, dict) else ""


def normalised(turns: Any) -> list[dict[str, Any]]:
    """Messages in OpenAI's form, from that or from ShareGPT's (`from` and `value`). Raises RowError for others."""
    if not isinstance(turns, list) or not turns:
        raise RowError("it has no turns")
    return [_message(number, turn) for number, turn in enumerate(turns)]


def _message(number: int, turn: Any) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise RowError(f"turn {number} is a {type(turn).__name__}, not an object")
    given = turn.get("role") or turn.get("from")
    role = ROLES.get(str(given).lower())
    if role is None:
        raise RowError(f"turn {number} has the unknown role {given!r}")
    content = turn.get("content") if turn.get("content") is not None else turn.get("value")
    rest = {
        key: value
        for key, value in turn.items()
        if key not in ("role", "from", "content", "value") and value not in (None, [], "")
    }
    if content is None and not rest:
        raise RowError(f"turn {number} has no content")
    return {"role": role, "content": _text_of(number, content), **rest}


def _text_of(number: int, content: Any) -> str:
    """OpenAI's lists of parts become one text; other parts than text cannot be sent as token ids."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in content
    ):
        return "".join(part["text"] for part in content)
    raise RowError(f"the content of turn {number} is not text")


def load_renderer(folder: str) -> Renderer:
    """The tokenizer of a model folder. Raises ModelError or PackageMissing."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise PackageMissing(
            f"rendering needs transformers: {error}", "install transformers beside the engine"
        ) from None
    if not Path(folder).is_dir():
        raise ModelError(f"{folder} is not a folder", "name the model's folder with --model")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # a foreign library reading a foreign folder
        raise ModelError(f"{folder} has no usable tokenizer: {one_line(str(error), 200)}") from error
    return Renderer(tokenizer, folder)
