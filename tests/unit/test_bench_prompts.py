"""Where prompts come from: no two alike, and files of every kind."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from bench.load.prompts import Unique, from_file, in_turn
from bench.load.spec import Api, GoodputLimits, grid, parse_limits, parse_numbers, parse_percent
from workbench.errors import UsageError


def test_synthetic_prompts_share_no_beginning() -> None:
    unique = Unique(100, 8000, 1)
    prompts = [unique.tokens(length) for length in (50, 20, 300) * 100]
    assert [len(prompt) for prompt in prompts] == [50, 20, 300] * 100
    assert all(100 <= token < 8000 for prompt in prompts for token in prompt)
    assert len({prompt[0] for prompt in prompts}) == len(prompts)
    assert len({tuple(prompt[10:20]) for prompt in prompts}) > 250
    few = Unique(0, 2, 1)
    assert len({tuple(few.tokens(6)) for _ in range(64)}) == 64  # all there are, before one comes twice


def test_a_seed_gives_the_same_prompts() -> None:
    one, same, other = Unique(0, 1000, 1), Unique(0, 1000, 1), Unique(0, 1000, 2)
    first = [one.tokens(30) for _ in range(5)]
    assert first == [same.tokens(30) for _ in range(5)]
    assert first != [other.tokens(30) for _ in range(5)]


def test_short_and_chat_prompts() -> None:
    assert len(Unique(0, 10, 1).tokens(1)) == 1
    chat = list(islice(Unique(0, 99, 1).endless(12, "openai-chat"), 2))
    assert chat[0] != chat[1]
    for one in chat:
        message: Any = one[0]
        assert (message["role"], len(message["content"].split())) == ("user", 12)
    with pytest.raises(UsageError, match="no token ids"):
        Unique(5, 5, 1)


IDS, TEXT = {"input_ids": [1, 2]}, {"prompt": "Once"}
CHAT = {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]}
SHARED = {"conversations": [{"from": "human", "value": "H"}, {"from": "gpt", "value": "G"}]}
USER = {"role": "user", "content": "H"}


@pytest.mark.parametrize(
    ("row", "api", "prompt"),
    [
        (IDS, "native", [1, 2]),
        (IDS, "openai", [1, 2]),
        (TEXT, "native", "Once"),
        (TEXT, "openai-chat", [{"role": "user", "content": "Once"}]),
        (CHAT, "openai-chat", CHAT["messages"]),
        (SHARED, "openai-chat", [USER]),
        (SHARED, "native", "H"),
    ],
)
@pytest.mark.parametrize("array", [False, True])
def test_rows_of_files(row: dict[str, Any], api: Api, prompt: Any, array: bool, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text(json.dumps([row, row], indent=1) if array else f"{json.dumps(row)}\n\n{json.dumps(row)}\n")
    assert from_file(str(path), api) == [prompt, prompt]
    assert list(islice(in_turn([[1], "a"]), 3)) == [[1], "a", [1]]


@pytest.mark.parametrize(
    ("text", "api", "words"),
    [
        ("", "native", "no prompts"),
        ('{"messages": []}', "native", "no prompts"),
        ("{", "native", "line 1 is not JSON"),
        ("[1,", "native", "not JSON"),
        ("3", "native", "row 1 has no prompt"),
        ('{"text": "x"}', "native", "row 1 has no prompt"),
        ('{"input_ids": [1.5]}', "native", "row 1 has no prompt"),
        ('{"messages": ["x"]}', "openai-chat", "turn without role"),
        ('{"input_ids": [1]}', "openai-chat", "chat cannot take"),
    ],
)
def test_files_that_cannot_be_used(text: str, api: Api, words: str, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        from_file(str(path), api)
    with pytest.raises(UsageError, match="cannot read"):
        from_file(str(tmp_path / "nosuch"), api)


def test_what_is_asked_for() -> None:
    labels = [work.label for work in grid([8, 16], [4], [1, 2])]
    assert labels == ["8->4 c=1", "8->4 c=2", "16->4 c=1", "16->4 c=2"]
    assert [work.requests for work in grid([8], [4], [1, 64])] == [10, 256]
    (timed,) = grid([None], [4], rate=2.5, seconds=3.0)
    assert (timed.label, timed.requests, timed.concurrency) == ("data->4 rate=2.5/s", None, None)
    assert parse_numbers("8, 16,8", "x") == (8, 16)
    assert parse_limits("ttft=0.5,e2e=2") == GoodputLimits(ttft=0.5, e2e=2.0)
    assert parse_limits(None) == GoodputLimits()
    assert (parse_percent("3%"), parse_percent("2.5")) == (pytest.approx(0.03), pytest.approx(0.025))
