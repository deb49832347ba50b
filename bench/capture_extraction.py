"""Whole extractions on a recording server, and the disk's own rate right after each."""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from bench.host_rates import disk_rates
from bench.prefill_load import spread

HSBENCH = [sys.executable, "-m", "workbench.cli"]


def extraction(options: argparse.Namespace, server: str) -> dict[str, Any]:
    """`hsbench extract` of random rows on the server of this name: its own counts, and what the disk took.

    The data set, for which `options.data` must be free, is removed.
    """
    source = _rows(options)
    try:
        found = _extracted(options, server, source)
    finally:
        source.unlink()
        shutil.rmtree(options.data, ignore_errors=True)
    one = found["bytes"] // found["samples"]
    return {**found, "disk": disk_rates(options.data.absolute().parent, options.disk_bytes, options.disk_threads, one)}


def _extracted(options: argparse.Namespace, server: str, source: Path) -> dict[str, Any]:
    command = [*HSBENCH, "extract", str(source), "--out", str(options.data), "--name", server]
    command += ["--foreground", "--json", "--baseline", "0", "--concurrency", str(options.concurrency)]
    command += ["--min-free", "0.1", *(["--writers", str(options.writers)] if options.writers else [])]
    os.sync()
    before, used = psutil.disk_io_counters(), os.times()
    done = subprocess.run(command, env=options.env, capture_output=True, text=True, check=False)
    now = os.times()
    os.sync()
    after = psutil.disk_io_counters()
    events = [json.loads(line) for line in done.stdout.splitlines()]
    pictures = [event for event in events if event.get("type") == "Progress" and event["tokens_here"]]
    if done.returncode or not pictures:
        raise SystemExit(f"the extraction failed:\n{done.stderr[-3000:]}")
    last = pictures[-1]
    return {
        "samples": last["samples_here"],
        "tokens": last["tokens_here"],
        "bytes": last["bytes_here"],
        "seconds": last["seconds_here"],
        "tok_s": last["tokens_here"] / last["seconds_here"],
        "gb_s": last["bytes_here"] / last["seconds_here"] / 1e9,
        "steady_tok_s": _steady(pictures),
        "cpu_s": now.children_user + now.children_system - used.children_user - used.children_system,
        "disk_bytes_per_byte": (after.write_bytes - before.write_bytes) / last["bytes_here"]
        if before and after
        else None,
        "pictures": [[p["seconds_here"], p["tokens_here"], p["in_flight"], p["waiting_bytes"]] for p in pictures],
    }


def _rows(options: argparse.Namespace) -> Path:
    source: Path = options.out.with_suffix(".rows.jsonl")
    chance = random.Random(5)
    with open(source, "w", encoding="utf-8") as file:
        for _ in range(options.samples):
            ids = [chance.randrange(5, options.vocabulary) for _ in range(options.length[0])]
            file.write(json.dumps({"input_ids": ids}) + "\n")
    return source


def _steady(pictures: list[dict[str, Any]]) -> float | None:
    """Without the ramp and the drain: between the first and the last picture with a full house."""
    full = [p for p in pictures if p["in_flight"] >= max(q["in_flight"] for q in pictures) * 0.75]
    if len(full) < 2 or full[-1]["seconds_here"] <= full[0]["seconds_here"]:
        return None
    tokens = full[-1]["tokens_here"] - full[0]["tokens_here"]
    return float(tokens / (full[-1]["seconds_here"] - full[0]["seconds_here"]))


def ceiling(one: dict[str, Any]) -> float:
    """Tokens a second: the smaller of plain prefill and of what the disk takes at best, both of the same round."""
    disk = max(one["disk"].values()) / (one["bytes"] / one["tokens"])
    return float(min(disk, one["bare_tok_s"] or disk))


def line(one: dict[str, Any]) -> str:
    """One round in words."""
    disk = ", ".join(f"{rate / 1e9:.2f} ({threads} threads)" for threads, rate in one["disk"].items())
    bare = f"plain prefill {one['bare_tok_s']:,.0f}, " if one["bare_tok_s"] else ""
    steady = one["steady_tok_s"] or one["tok_s"]
    return (
        f"extraction, round {one['round']}: {one['tok_s']:,.0f} tok/s whole, {steady:,.0f} steady, "
        f"{one['gb_s']:.3g} GB/s, {one['cpu_s']:.0f} CPU-s; {bare}disk {disk} GB/s; of the smaller: "
        f"whole {one['tok_s'] / ceiling(one):.3f}, steady {steady / ceiling(one):.3f}"
    )


def summary(rounds: list[dict[str, Any]]) -> Iterator[str]:
    """Over the rounds: the share of the smaller of plain prefill and disk, or of the disk where it was alone."""
    against = "smaller" if all(one["bare_tok_s"] for one in rounds) else "disk"
    for name, key in (("whole", "tok_s"), ("steady", "steady_tok_s")):
        yield f"extraction / {against}, {name:7} " + spread(
            [(one[key] or one["tok_s"]) / ceiling(one) for one in rounds]
        )
    written = [one["disk_bytes_per_byte"] for one in rounds if one["disk_bytes_per_byte"] is not None]
    if written:
        yield f"disk bytes a dataset byte    {max(written):.3f} at most"
