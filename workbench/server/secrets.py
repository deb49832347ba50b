"""Hides secrets before anything is written to a record, a message or a screen.

A value is secret when the name it belongs to says so (`--api-key`, `HF_TOKEN`, `db_password`), and so are
user names and passwords inside URLs and the tokens of well-known services.
"""

import itertools
import re
from collections.abc import Mapping, Sequence

MASK = "***"
SHORTEST = 6

_SECRET_NAME = re.compile(r"(?i)(api[-_]?key|auth[-_]?key|access[-_]?key|token$|secret|passw|credential|_key$|-key$)")
_NOT_SECRET = re.compile(r"(?i)(keyfile$|tokens$)")
_IN_TEXT = (
    # name=value, "name": "value" and `--name value`, as argument dumps and tracebacks print them
    (
        re.compile(
            # Looked for in pieces of 80 letters, since else a long word takes the square of its length.
            r"(?i)((?:api[-_]?key|(?:(?<![\w-])|(?<=[\w-]{80}))[\w-]{0,80}?"
            r"(?:secret[\w-]{0,80}+|passw(?:or)?d|(?:access|auth|hf)[-_]token))"
            r"['\"]?\s*[=:\s]\s*['\"]?)(?!None\b|null\b)([^\s'\",;&)}]+)"
        ),
        rf"\g<1>{MASK}",
    ),
    (re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]{6,}"), rf"\g<1>{MASK}"),
    (re.compile(r"(?<!\w)(\w{1,20}://)[^/\s:@]+:[^/\s@]+@"), rf"\g<1>{MASK}@"),
    (
        re.compile(r"(?i)([?&](?:[\w-]*token|[\w-]*key|sig|signature|x-amz-[\w-]+|auth|password|secret)=)[^&\s'\"]+"),
        rf"\g<1>{MASK}",
    ),
    (re.compile(r"\b(?:hf_|sk-)[A-Za-z0-9_-]{8,}"), MASK),
)
_HINT = re.compile(r"(?i)api[-_]?key|secret|passw|[-_]token")
"""What the first and slowest of them needs."""


def is_secret(name: str) -> bool:
    """Whether a flag or variable of this name carries a secret."""
    return bool(_SECRET_NAME.search(name)) and not _NOT_SECRET.search(name)


def mask_text(text: str) -> str:
    """The text with everything that looks like a secret replaced."""
    hinted = _HINT.search(text) is not None
    for number, (pattern, replacement) in enumerate(_IN_TEXT):
        if number or hinted:
            text = pattern.sub(replacement, text)
    return text


def mask_flags(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line with the values of secret flags replaced, both as `--flag value` and `--flag=value`."""
    masked: list[str] = []
    for position, word in enumerate(argv):
        name, equals, _ = word.partition("=")
        before = argv[position - 1] if position else ""
        if word.startswith("--") and equals and is_secret(name):
            masked.append(f"{name}={MASK}")
        elif before.startswith("--") and "=" not in before and is_secret(before) and not word.startswith("--"):
            masked.append(MASK)
        else:
            masked.append(mask_text(word))
    return tuple(masked)


def mask_env(env: Mapping[str, str]) -> dict[str, str]:
    """Variables with the values of secret ones replaced."""
    return {name: MASK if is_secret(name) else mask_text(value) for name, value in env.items()}


def secret_values(env: Mapping[str, str], argv: Sequence[str]) -> tuple[str, ...]:
    """The secret values that a process was given, the longest first; see `blot`. Short ones are words, not secrets."""
    found = {value for name, value in env.items() if is_secret(name) and len(value) >= SHORTEST}
    for name, value in itertools.pairwise(argv):
        if name.startswith("--") and "=" not in name and is_secret(name) and len(value) >= SHORTEST:
            found.add(value)
    for word in argv:
        name, equals, value = word.partition("=")
        if name.startswith("--") and equals and is_secret(name) and len(value) >= SHORTEST:
            found.add(value)
    return tuple(sorted(found, key=len, reverse=True))


def blot(text: str, values: Sequence[str]) -> str:
    """The text with these values hidden wherever they turn up, and with all that `mask_text` knows hidden too."""
    for value in values:
        text = text.replace(value, MASK)
    return mask_text(text)
