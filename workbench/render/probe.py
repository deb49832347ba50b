"""A probe report as text for a terminal."""

import textwrap
from typing import Any

from workbench.probe.report import OtherDump, ProbeReport, TensorRow, Token
from workbench.render.text import bars, columns, number, plain_table, size, verdict_mark

SHOWN_DUMPS = 6
ONE_TABLE = 128
"""Columns that what-it-is and what-it-holds need side by side."""


def probe_text(report: ProbeReport) -> str:
    """The whole report: tokens, tensors, checks, other dumps, verdict."""
    width = columns()
    parts = [f"model {report.model}", _tokens(report.tokens, width), _tensors(report.tensors, width)]
    parts += [_reference(report.reference, width)] if report.reference else []
    parts += [_logits(report.logits)] if report.logits else []
    parts += [_self_test(report.self_test, width)] if report.self_test else []
    parts += [_others(report.other_dumps, width), _verdict(report)]
    return "\n\n".join(part for part in parts if part)


def _tokens(tokens: tuple[Token, ...], width: int) -> str:
    shown = tokens if len(tokens) <= 64 else tokens[:48] + tokens[-8:]
    pieces = [f"{i} {token.id} {_piece(token)}" for i, token in enumerate(shown)]
    if len(shown) < len(tokens):
        pieces[48:] = [f"… {len(tokens) - 56} more …", *(f"{t.id} {_piece(t)}" for t in tokens[-8:])]
    lines, line = [], f"tokens {len(tokens)}:"
    for piece in pieces:
        if len(line) + len(piece) + 3 > width:
            lines.append(line)
            line = " "
        line += f"  {piece}"
    return "\n".join([*lines, line])


def _piece(token: Token) -> str:
    """A token's text; a token that holds part of a character only has no text of its own."""
    return "(part of a character)" if token.text == "\ufffd" else repr(token.text)


def _identity(row: TensorRow) -> list[str]:
    taken = f"entering {row.captured_entering}" if row.captured_entering is not None else f"{row.norm}-norm"
    shape = f"[{', '.join(map(str, row.shape))}]"
    return [row.name, str(row.after_block), taken, shape, row.dtype, size(row.bytes)]


def _values(row: TensorRow) -> list[str]:
    total = max(1, _count(row.shape))
    numbers = [number(value) for value in (row.min, row.max, row.mean, row.std)]
    return [*numbers, f"{100 * row.zeros / total:.3g} %", str(row.nan), str(row.inf)]


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for length in shape:
        total *= length
    return total


def _tensors(rows: tuple[TensorRow, ...], width: int) -> str:
    what = ["tensor", "after block", "taken", "shape", "dtype", "bytes"]
    held = ["min", "max", "mean", "std", "zeros", "NaN", "Inf"]
    if width >= ONE_TABLE:
        cells = [[*_identity(row), *_values(row), bars(row.histogram)] for row in rows]
        return plain_table("", [*what, *held, "values (log)"], cells, width=width)
    first = plain_table("", what, [_identity(row) for row in rows], width=width)
    cells = [[row.name, *_values(row)] for row in rows]
    spread = "\n".join(f"{row.name:<8} {bars(row.histogram)}" for row in rows)
    return f"{first}\n\n{plain_table('', ['tensor', *held], cells, width=width)}\n\nvalues (log)\n{spread}"


def _reference(reference: dict[str, Any], width: int) -> str:
    header = ["tensor", "claimed", "error", "one before", "one after", "best block", "verdict"]
    cells = []
    for row in reference["tensors"]:
        ok = row["verdict"] == "ok"
        errors = [number(row[key], 3) for key in ("error", "error_before", "error_after")]
        verdict = f"{verdict_mark(ok)} {row['verdict']}"
        cells.append([row["name"], str(row["claimed"]), *errors, str(row["best"]), verdict])
    title = f"reference: transformers in float32, {reference['num_tokens']} tokens"
    if reference.get("note"):
        title += f" ({reference['note']})"
    return plain_table(title, header, cells, width=width)


def _logits(logits: dict[str, Any]) -> str:
    mark = verdict_mark(logits["verdict"] == "ok")
    return (
        f"final state through norm and LM head against the server's log-probabilities: {mark} {logits['verdict']}, "
        f"mean difference {number(logits['error'], 3)} as {logits['claimed']}-norm, "
        f"{number(logits['error_other'], 3)} as {logits['other']}-norm"
    )


def _self_test(result: dict[str, Any], width: int) -> str:
    cells = []
    for row in result["rows"]:
        ok = row["verdict"] == "ok"
        cells.append(
            [
                row["label"],
                str(row["num_tokens"]),
                number(row["error"], 3),
                "yes" if row["bit_equal"] else "no",
                f"{verdict_mark(ok)} {row['verdict']}",
            ]
        )
    title = f"self-test: each prompt alone against the same prompt in one batch of {result['batch']}"
    return plain_table(title, ["prompt", "tokens", "error", "bit-equal", "verdict"], cells, width=width)


def _others(others: tuple[OtherDump, ...], width: int) -> str:
    if not others:
        return "other dumps: none"
    pieces = []
    listed = [other for other in others if other.name]
    for other in [*listed[-SHOWN_DUMPS:], *(other for other in others if not other.name)]:
        tokens = f" {other.tokens} tokens" if other.tokens is not None else ""
        times = f" x{other.count}" if other.count > 1 else ""
        pieces.append(f"{other.name or 'not written'}: {other.kind}{tokens}{times}")
    if len(listed) > SHOWN_DUMPS:
        pieces.insert(0, f"{len(listed) - SHOWN_DUMPS} older ones (--json lists all)")
    return textwrap.fill("other dumps: " + " · ".join(pieces), width, subsequent_indent="  ", break_on_hyphens=False)


def _how(report: ProbeReport) -> str:
    """The route, and the number of chunks if there was more than one."""
    route = f", route {report.route}" if report.route else ""
    return route + (f", put together from {report.chunks} chunks" if report.chunks > 1 else "")


def _verdict(report: ProbeReport) -> str:
    took = f"captured in {report.capture_seconds:.2f} s ({report.gb_per_second:.3g} GB/s)"
    lines = [
        f"verdict: {verdict_mark(report.verdict == 'ok')} {report.verdict}: {report.summary}",
        f"{report.dump}  {took}, {report.seconds:.1f} s in all{_how(report)}",
    ]
    return "\n".join([*lines, *([f"next: {report.next_step}"] if report.next_step else [])])
