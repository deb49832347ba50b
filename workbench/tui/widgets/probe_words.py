"""A report's words: tokens, verdict, other dumps. Whatever comes from outside is plain text."""

from typing import Any

from rich.text import Text

from workbench.probe.report import OtherDump, ProbeReport, Token
from workbench.render.text import number
from workbench.tui import glyphs
from workbench.tui.glyphs import Level, plain, sign

SHOWN_TOKENS = 400
SHOWN_DUMPS = 40
UNSURE = {"unclear", "not_batched", "logits_unclear"}


def separator() -> str:
    """Between facts of one line."""
    return " | " if glyphs.is_ascii() else " · "


def level_of(verdict: str) -> Level:
    """How a verdict looks."""
    if verdict == "ok":
        return "good"
    return "warn" if verdict in UNSURE else "bad"


def piece(token: Token) -> str:
    """A token's text in quotes; one that holds part of a character has none of its own."""
    return "(part)" if token.text == "\ufffd" else repr(token.text)


def token_words(tokens: tuple[Token, ...]) -> Text:
    """Place, id and text of each token; of many the first and the last."""
    text = Text()
    first = tokens if len(tokens) <= SHOWN_TOKENS else tokens[: SHOWN_TOKENS - 8]
    for at, token in enumerate(first):
        _token(text, at, token)
    if len(first) < len(tokens):
        text.append(f"  ({len(tokens) - SHOWN_TOKENS} more)  ", style="italic")
        for at in range(len(tokens) - 8, len(tokens)):
            _token(text, at, tokens[at])
    return text


def _token(text: Text, at: int, token: Token) -> None:
    text.append("  " if text else "").append(f"{at} ", style="dim")
    text.append(f"{token.id} ").append(plain(piece(token)), style="bold")


def verdict_words(report: ProbeReport) -> Text:
    """Verdict, the deeper checks, how it was captured, and what to do next."""
    text = Text().append_text(sign(level_of(report.verdict), report.verdict))  # whose style is not the rest's
    text.append(f"  {plain(report.summary)}")
    if report.next_step:
        text.append("\nnext: ", style="bold").append(plain(report.next_step))
    for line in (_reference(report), _logits(report), _self_test(report), _captured(report)):
        if line is not None:
            text.append("\n").append_text(line)
    return text


def _line(label: str, ok: bool, words: str) -> Text:
    mark = sign("good" if ok else "bad", "")
    return Text().append(f"{label} ", style="dim").append_text(mark).append(plain(words))


def _reference(report: ProbeReport) -> Text | None:
    found = report.reference
    if not found:
        return None
    rows = found.get("tensors", ())
    good = sum(row.get("verdict") == "ok" for row in rows)
    note = f" ({found['note']})" if found.get("note") else ""
    words = f"{good} of {len(rows)} tensors fit the block they claim, over {found.get('num_tokens')} tokens{note}"
    return _line("reference", good == len(rows), words)


def _logits(report: ProbeReport) -> Text | None:
    found = report.logits
    if not found:
        return None
    words = (
        f"{found.get('verdict')}, mean difference {_few(found.get('error'))} as {found.get('claimed')}-norm, "
        f"{_few(found.get('error_other'))} as {found.get('other')}-norm"
    )
    return _line("log-probabilities", found.get("verdict") in ("ok", "nothing to compare"), words)


def _self_test(report: ProbeReport) -> Text | None:
    found = report.self_test
    if not found:
        return None
    rows = found.get("rows", ())
    good = sum(row.get("verdict") == "ok" for row in rows)
    same = sum(bool(row.get("bit_equal")) for row in rows)
    words = f"{good} of {len(rows)} prompts got their own rows in a batch of {found.get('batch')}, {same} bit for bit"
    return _line("self-test", good == len(rows), words)


def _captured(report: ProbeReport) -> Text:
    facts = [f"captured in {number(report.capture_seconds, 3)} s", f"{number(report.gb_per_second, 3)} GB/s"]
    facts += [f"{number(report.seconds, 3)} s in all"]
    facts += [f"route {report.route}"] if report.route else []
    facts += [f"{report.chunks} chunks"] if report.chunks > 1 else []
    return Text(plain(separator().join([*facts, report.dump])), style="dim")


def _few(value: Any) -> str:
    return number(value if isinstance(value, int | float) else None, 3)


def dump_words(others: tuple[OtherDump, ...]) -> Text:
    """The newest of the other dumps, one a line, and what was seen without being written."""
    listed = [one for one in others if one.name]
    unwritten = [one for one in others if not one.name]
    lines = [_dump(one) for one in (*unwritten, *reversed(listed[-SHOWN_DUMPS:]))]
    lines += [f"{len(listed) - SHOWN_DUMPS} older ones"] if len(listed) > SHOWN_DUMPS else []
    return Text("\n".join(plain(line) for line in lines) or "none", style="" if lines else "dim")


def _dump(one: OtherDump) -> str:
    tokens = f" {one.tokens} tokens" if one.tokens is not None else ""
    times = f" x{one.count}" if one.count > 1 else ""
    return f"{one.name or 'not written'}: {one.kind}{tokens}{times}"
