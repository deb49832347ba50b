"""What `bench.capture_overhead` measured, in words."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from bench import capture_extraction, capture_safety
from bench.prefill_load import spread


def block_line(block: dict[str, Any]) -> str:
    """One block."""
    server = "" if block["server_tok_s"] is None else f" (server {block['server_tok_s']:,.0f})"
    recorded = ""
    if block["variant"] != "bare":
        rate = block["recorded_bytes"] / block["seconds"] / 1e9
        recorded = f", {rate:.3g} GB/s recorded, engine thread {block['engine_share']:.2%} in the recorder"
    which = f"{block['length']} tokens, round {block['round']} {block['variant']:9}"
    return f"{which} {block['tok_s']:10,.0f} tok/s{server}{recorded}"


def report(found: dict[str, Any]) -> Iterator[str]:
    """Ratios of the blocks of one round and, over the rounds, their intervals."""
    blocks = found["blocks"]
    for length in dict.fromkeys(block["length"] for block in blocks):
        yield from _ratio(blocks, length, "bare", "client", "tok_s")
        yield from _ratio(blocks, length, "bare", "server's log", "server_tok_s")
        yield from _ratio(blocks, length, "plain", "client", "tok_s")
    yield from _recorder([block for block in blocks if block["variant"] == "recorder"])
    if "extractions" in found:
        yield from capture_extraction.summary(found["extractions"])
    if "host" in found:
        yield "host, GB/s " + ", ".join(f"{name} {rate / 1e9:.2f}" for name, rate in found["host"].items())
    if "checks" in found:
        yield from capture_safety.summary(found["checks"])


def _ratio(blocks: Sequence[dict[str, Any]], length: int, other: str, what: str, key: str) -> Iterator[str]:
    rates = {
        name: [block[key] for block in blocks if block["variant"] == name and block["length"] == length]
        for name in (other, "recorder")
    }
    pairs = [(one, mine) for one, mine in zip(rates[other], rates["recorder"], strict=False) if one and mine]
    if pairs:
        ratio = spread([mine / one for one, mine in pairs])
        mean = statistics.fmean(one for one, _ in pairs)
        yield f"recorder / {other + ',':6} {length:5} tokens {ratio}, by the {what}; {other} {mean:,.0f} tok/s"


def _recorder(blocks: Sequence[dict[str, Any]]) -> Iterator[str]:
    if not blocks:
        return
    most = {name: max(block[name] for block in blocks) for name in ("waiting_peak", "drain_s", "memory")}
    held = sum(block["held_back_ms"] for block in blocks)
    yield (
        f"recorder                    held prefill back for {held} ms, at most {most['waiting_peak'] / 1e6:,.1f} MB "
        f"waited, all written {most['drain_s']:.1f} s after a block; its server takes {most['memory'] / 1e9:.1f} GB"
    )
