"""Secrets are hidden wherever they stand, and nothing else is."""

import pytest

from workbench.server.secrets import mask_env, mask_flags, mask_text


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("args={'api_key': 'planted-1', 'x': 1}", "args={'api_key': '***', 'x': 1}"),
        (
            "ServerArgs(api_key='planted-1', admin_api_key=None)",
            "ServerArgs(api_key='***', admin_api_key=None)",
        ),
        ("run --api-key planted-1 --tp 2", "run --api-key *** --tp 2"),
        ("Authorization: Bearer planted-123", "Authorization: Bearer ***"),
        ("GET https://me:planted-1@host/x", "GET https://***@host/x"),
        ("HF_TOKEN=planted-1 next", "HF_TOKEN=*** next"),
        ("with hf_plantedplanted inside", "with *** inside"),
        ("'ssl_keyfile_password': 'planted-1'", "'ssl_keyfile_password': '***'"),
    ],
)
def test_text(text: str, kept: str) -> None:
    assert mask_text(text) == kept


@pytest.mark.parametrize(
    "text",
    [
        "max_total_num_tokens=179287, chunked_prefill_size=-1",
        "'api_key': None, 'tokenizer_path': '/m'",
        "http://127.0.0.1:30017/generate",
        "KeyError: 'tokens'",
    ],
)
def test_other_text_stays(text: str) -> None:
    assert mask_text(text) == text


def test_flags() -> None:
    given = [
        "--api-key",
        "planted",
        "--ssl-keyfile-password=planted",
        "--ssl-keyfile",
        "/k",
        "--max-total-tokens",
        "9",
    ]
    assert mask_flags(given) == (
        *("--api-key", "***", "--ssl-keyfile-password=***", "--ssl-keyfile", "/k"),
        *("--max-total-tokens", "9"),
    )


def test_variables() -> None:
    given = {
        "HF_TOKEN": "p",
        "OPENAI_API_KEY": "p",
        "TOKENIZERS_PARALLELISM": "false",
        "PROXY": "http://u:p@h",
    }
    assert mask_env(given) == {
        "HF_TOKEN": "***",
        "OPENAI_API_KEY": "***",
        "TOKENIZERS_PARALLELISM": "false",
        "PROXY": "http://***@h",
    }


@pytest.mark.parametrize("word", ["a-", "secret", "token", "x://"])
def test_a_long_word_is_masked_in_time(word: str) -> None:
    """A log may hold lines of a megabyte. Anything that takes the square of that does not end."""
    long = word * (60_000 // len(word))
    assert "hunter2" not in mask_text(f"{long}_password=hunter2")
