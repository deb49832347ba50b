"""Runs of the load generator as text: tables, and charts that need no colour."""

import time
from collections.abc import Sequence

from bench.load.compare import Difference
from bench.load.curves import rate_over_time, share_within
from bench.load.metrics import Metrics, Spread, itl_values
from bench.load.records import RequestRecord
from bench.load.runner import Measured, Point, Round
from bench.load.selftest import Ceiling
from bench.load.store import Run, RunFolder, Summary
from bench.load.target import Target
from workbench.render.charts import chart
from workbench.render.text import columns, harmless, number, plain_table, verdict_mark


def told_text(told: Target | Round | Measured) -> str:
    """One line of what a run tells while it goes on."""
    if isinstance(told, Target):
        return harmless(f"{told.url} serves {told.model}")
    if isinstance(told, Round):
        return f"{told.label}: warm-up round {told.number}, {number(told.tok_s, 4)} tok/s"
    found = told.point.metrics
    return f"{told.point.workload.label}: {found.requests} requests, {number(found.whole_tok_s, 4)} tok/s"


def summary_text(points: Sequence[Point]) -> str:
    """Throughput, latencies, and what must be known of them."""
    if not points:
        return "no workload is over"
    notes = [f"  ! {point.workload.label}: {harmless(note)}" for point in points for note in point.notes]
    return "\n\n".join(["\n".join([_throughput(points), *notes]), _latencies(points)])


def _throughput(points: Sequence[Point]) -> str:
    header = ["workload", "requests", "failed", "batch tok/s", "whole tok/s", "decode tok/s", "requests/s"]
    header += ["goodput/s", "CPU us/token", "lag p99 ms", "client"]
    return plain_table("throughput", header, [_throughput_row(point) for point in points], columns())


def _throughput_row(point: Point) -> list[str]:
    found, client = point.metrics, point.client
    rates = (found.batch_tok_s, found.whole_tok_s, found.decode_tok_s, found.requests_s, found.good_s)
    return [
        point.workload.label,
        str(found.requests),
        str(found.failed),
        *(number(rate, 4) for rate in rates),
        number(client.cpu_us_per_token, 3),
        number(client.lag_p99 * 1000, 3),
        "LIMITED" if client.limited else verdict_mark(True),
    ]


def _latencies(points: Sequence[Point]) -> str:
    header = ["workload", "ms", "values", "mean", "p50", "p90", "p95", "p99", "largest"]
    rows = [row for point in points for row in _latency_rows(point.workload.label, point.metrics)]
    return plain_table("latencies in milliseconds", header, rows, columns(), left=2)


def _latency_rows(label: str, found: Metrics) -> list[list[str]]:
    spreads = {"TTFT": found.ttft, "TPOT": found.tpot, "ITL": found.itl, "E2E": found.e2e}
    return [[label, name, *_spread_cells(values)] for name, values in spreads.items() if values]


def _spread_cells(one: Spread) -> list[str]:
    values = (one.mean, one.p50, one.p90, one.p95, one.p99, one.largest)
    return [str(one.count), *(number(value * 1000, 4) for value in values)]


def definitions_text(definitions: Sequence[tuple[str, str]]) -> str:
    """What every figure means."""
    return plain_table("", ["figure", "meaning"], [list(one) for one in definitions], columns(), left=2)


def ceiling_text(ceiling: Ceiling) -> str:
    """The outcome of a self-test."""
    rows = [
        [
            str(step.offered),
            f"{step.taken:.0f}",
            number(step.cost.cpu_us_per_token, 3),
            f"{step.cost.cpu_share:.0%}",
            number(step.cost.lag_p99 * 1000, 3),
            number(step.server_late * 1000, 3),
        ]
        for step in ceiling.steps
    ]
    header = ["offered tok/s", "taken tok/s", "CPU us/token", "CPU", "lag p99 ms", "server late p99 ms"]
    table = plain_table(f"{ceiling.api}: one event a token, client and server on this machine", header, rows, left=0)
    return f"{table}\nceiling: {ceiling.tok_s:.0f} tok/s; runs above half of it are marked client-limited"


def runs_text(kept: Sequence[tuple[Run, Summary]]) -> str:
    """The runs that are kept, one a row."""
    if not kept:
        return "no run is kept"
    rows = [
        [
            run.name,
            time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started)),
            harmless(run.settings.url),
            harmless(run.model),
            f"{len(summary.points)}/{len(run.settings.workloads)}",
            "finished" if summary.finished else "broken off or running",
        ]
        for run, summary in kept
    ]
    return plain_table("", ["run", "started", "server", "model", "workloads", "state"], rows, columns(), left=6)


def run_text(folder: RunFolder) -> str:
    """Everything of one run, with a chart or two a workload."""
    run, summary = folder.run(), folder.summary()
    head = [f"run {run.name} of {harmless(run.model)} at {harmless(run.settings.url)} by {run.settings.api}"]
    head += [f"seed {run.settings.seed}; client: {_pairs(run.client)}"]
    head += [f"server: {harmless(_pairs(run.facts))}"] if run.facts else []
    head += [] if summary.finished else ["broken off, or still running"]
    parts = ["\n".join(head), summary_text(summary.points)]
    for at, point in enumerate(summary.points):
        parts += _charts(point.workload.label, list(folder.requests(at)))
    return "\n\n".join(part for part in parts if part)


def _pairs(facts: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def _charts(label: str, records: list[RequestRecord]) -> list[str]:
    width = min(columns(), 100)
    good = [record for record in records if record.ok and record.times]
    itl = [value * 1000 for record in good for value in itl_values(record)]
    ttft = [record.times[0] * 1000 for record in good]
    return [
        chart(share_within(ttft), f"{label}: % of requests with a TTFT up to x ms", width),
        chart(share_within(itl), f"{label}: % of tokens with an ITL up to x ms", width),
        chart(rate_over_time(records), f"{label}: tok/s over seconds", width),
    ]


def differences_text(differences: Sequence[Difference]) -> str:
    """Two runs figure by figure; what B is worse in has a word for it."""
    rows = [
        [
            one.workload,
            one.measure,
            number(one.first, 5),
            number(one.second, 5),
            f"{one.ratio:.4f}",
            _word(one.slower),
        ]
        for one in differences
    ]
    table = plain_table("", ["workload", "figure", "A", "B", "B/A", "B is"], rows, columns(), left=2)
    return f"{table}\none run a side: this has no interval, and starts of one server differ by a few percent"


def _word(slower: float) -> str:
    if abs(slower) < 0.0005:
        return "same"
    return f"{abs(slower):.1%} {'worse' if slower > 0 else 'better'}"
