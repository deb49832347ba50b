"""Prompts and block lists as users type them."""

from pathlib import Path

import pytest

from workbench.errors import UsageError
from workbench.probe.prompt import Prompt, parse_layers, parse_prompt, parse_token_ids


def test_text_and_chat() -> None:
    assert parse_prompt("Hello", None, False) == Prompt(text="Hello")
    assert parse_prompt("Hello", None, True) == Prompt(text="Hello", chat=True)


@pytest.mark.parametrize("given", ["19556,905", "19556 905", "[19556, 905]", " 19556,\n905 "])
def test_token_lists(given: str) -> None:
    assert parse_token_ids(given) == (19556, 905)


def test_token_file(tmp_path: Path) -> None:
    file = tmp_path / "ids.json"
    file.write_text("[1, 2,\n 3]\n")
    assert parse_prompt(None, str(file), False).token_ids == (1, 2, 3)


@pytest.mark.parametrize(
    ("text", "tokens", "chat", "says"),
    [
        (None, None, False, "no prompt given"),
        ("", None, False, "the prompt is empty"),
        ("a", "1", False, "--tokens replaces"),
        (None, "1", True, "--tokens replaces"),
        (None, "", False, "names no token ids"),
        (None, "[]", False, "names no token ids"),
        (None, "no/such/file", False, "neither a list of ids nor a readable file"),
        (None, "a\0b", False, "neither a list of ids nor a readable file"),
        (None, "1,-2", False, "'-2' is not a token id"),
        (None, "1.5,2", False, "'1.5' is not a token id"),
        ("\udcff", None, False, "encoding"),
    ],
)
def test_refused(text: str | None, tokens: str | None, chat: bool, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_prompt(text, tokens, chat)


def test_a_byte_order_mark_is_no_token(tmp_path: Path) -> None:
    file = tmp_path / "ids"
    file.write_bytes(b"\xef\xbb\xbf1,2")
    assert parse_token_ids(str(file)) == (1, 2)


def test_file_of_words(tmp_path: Path) -> None:
    file = tmp_path / "ids"
    file.write_text("1 two")
    with pytest.raises(UsageError, match="'two' is not a token id"):
        parse_token_ids(str(file))


def test_binary_file(tmp_path: Path) -> None:
    file = tmp_path / "ids"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="readable file"):
        parse_token_ids(str(file))


def test_layers() -> None:
    assert parse_layers(None) is None
    assert parse_layers("2, 15,27") == (2, 15, 27)


@pytest.mark.parametrize("given", ["", "a", "1,,2", "2,1", "2,2", "-1,3", "1;2"])
def test_layers_refused(given: str) -> None:
    with pytest.raises(UsageError, match="--layers"):
        parse_layers(given)
