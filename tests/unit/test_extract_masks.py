"""The loss mask covers what the assistant says and nothing else, on every kind of chat template."""

from pathlib import Path
from typing import Any

import pytest

from probes.render import Renderer, RowError, load_renderer, normalised
from tests.unit.chat_support import CHATML, DATED, LLAMA, MARKED, MISTRAL, THINKING, TOOLS, save_tokenizer

CHAT = [
    {"role": "system", "content": "the cat"},
    {"role": "user", "content": "two plus two"},
    {"role": "assistant", "content": "is four, Zürich 🐈"},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "the mat"},
]


def renderer(folder: Path, template: str | None, **how: Any) -> Renderer:
    return load_renderer(str(save_tokenizer(folder, template, **how)))


def trained(made: Renderer, messages: list[dict[str, Any]]) -> list[str]:
    """The text of each run of trained tokens."""
    found = made.chat(messages)
    assert len(found.ids) == len(found.mask)
    runs: list[list[int]] = []
    last = 0
    for token, value in zip(found.ids, found.mask, strict=True):
        if value and not last:
            runs.append([])
        if value:
            runs[-1].append(token)
        last = value
    return [str(made.tokenizer.decode(run)) for run in runs]


@pytest.mark.parametrize("template", [CHATML, MARKED, DATED, TOOLS], ids=["plain", "marked", "dated", "tools"])
def test_several_turns_with_a_system_turn(tmp_path: Path, template: str) -> None:
    made = renderer(tmp_path, template)
    assert made.marks_generation == (template == MARKED)
    assert trained(made, CHAT) == ["is four, Zürich 🐈<|im_end|>", "the mat<|im_end|>"]


def test_the_two_ways_agree_to_the_token(tmp_path: Path) -> None:
    plain, marked = renderer(tmp_path / "a", CHATML), renderer(tmp_path / "b", MARKED)
    for messages in (CHAT, CHAT[1:3], CHAT[:4]):
        assert plain.chat(messages) == marked.chat(messages)


def test_a_slow_tokenizer_gives_the_same(tmp_path: Path) -> None:
    fast = renderer(tmp_path, CHATML)
    expected = fast.chat(CHAT)

    class Slow:
        """The same tokenizer without offsets."""

        is_fast = False

        def __getattr__(self, name: str) -> Any:
            return getattr(fast.tokenizer, name)

        def __call__(self, text: str, add_special_tokens: bool, return_offsets_mapping: bool = False) -> Any:
            assert not return_offsets_mapping
            return fast.tokenizer(text, add_special_tokens=add_special_tokens)

    assert Renderer(Slow(), "here").chat(CHAT) == expected


def test_thoughts_that_the_template_strips_from_earlier_turns(tmp_path: Path) -> None:
    made = renderer(tmp_path, THINKING)
    chat = [
        {"role": "user", "content": "two plus two"},
        {"role": "assistant", "content": "<think>\nthe cat\n</think>\n\nfour"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "<think>\nthe dog\n</think>\n\nthe log"},
    ]
    assert trained(made, chat) == ["four<|im_end|>", "<think>\nthe dog\n</think>\n\nthe log<|im_end|>"]
    assert trained(made, chat[:2]) == ["<think>\nthe cat\n</think>\n\nfour<|im_end|>"]
    bare = [chat[0], {"role": "assistant", "content": "four"}]
    assert trained(made, bare) == ["<think>\n\n</think>\n\nfour<|im_end|>"]


def test_one_bos_whoever_adds_it(tmp_path: Path) -> None:
    made = renderer(tmp_path, LLAMA, adds_bos=True)
    chat = [{"role": "user", "content": " hello "}, {"role": "assistant", "content": " the cat \n"}]
    assert made.chat(chat).ids.count(made.tokenizer.bos_token_id) == 1
    assert trained(made, chat) == ["the cat<|eot|>"]
    assert made.text("hello").ids[0] == made.tokenizer.bos_token_id
    assert made.text("<s>hello").ids == made.text("hello").ids


def test_no_generation_prompt_and_no_system_turn(tmp_path: Path) -> None:
    made = renderer(tmp_path, MISTRAL)
    assert [run.strip() for run in trained(made, CHAT[1:])] == ["is four, Zürich 🐈</s>", "the mat</s>"]
    with pytest.raises(RowError, match="no system turn"):
        made.chat(CHAT)


def test_a_turn_that_says_what_another_says(tmp_path: Path) -> None:
    made = renderer(tmp_path, CHATML)
    same = [{"role": role, "content": "the cat"} for role in ("user", "assistant", "user", "assistant")]
    assert trained(made, same) == ["the cat<|im_end|>"] * 2
    quoting = [CHAT[1], {"role": "assistant", "content": "<|im_start|>assistant\nhello"}]
    assert trained(made, quoting) == ["<|im_start|>assistant\nhello<|im_end|>"]


def test_empty_and_absent_assistant_turns(tmp_path: Path) -> None:
    made = renderer(tmp_path, CHATML)
    assert trained(made, CHAT[:2]) == []
    assert trained(made, [CHAT[1], {"role": "assistant", "content": ""}]) in ([], ["<|im_end|>"])


def test_a_call_of_a_tool_is_the_assistants(tmp_path: Path) -> None:
    made = renderer(tmp_path, TOOLS)
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add"}}]}
    chat = [CHAT[1], call, {"role": "tool", "content": "four"}, CHAT[4]]
    assert trained(made, chat) == ["<call>add</call><|im_end|>", "the mat<|im_end|>"]


def test_the_date_does_not_move(tmp_path: Path) -> None:
    made = renderer(tmp_path, DATED)
    assert made.tokenizer.decode(made.chat(CHAT).ids).startswith("2025-01-01\n")


def test_forms_of_messages() -> None:
    sharegpt = [
        {"from": "system", "value": "a"},
        {"from": "human", "value": "b"},
        {"from": "gpt", "value": "c", "weight": None},
    ]
    openai = [
        {"role": "system", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
    ]
    assert (
        normalised(sharegpt) == normalised(openai) == [{**openai[0]}, {"role": "user", "content": "b"}, {**openai[2]}]
    )


@pytest.mark.parametrize(
    ("turns", "says"),
    [
        ([], "no turns"),
        (None, "no turns"),
        (["hello"], "turn 0 is a str"),
        ([{"role": "narrator", "content": "x"}], "unknown role 'narrator'"),
        ([{"role": "user"}], "turn 0 has no content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "turn 0 is not text"),
    ],
)
def test_bad_turns_are_told(turns: Any, says: str) -> None:
    with pytest.raises(RowError, match=says):
        normalised(turns)
