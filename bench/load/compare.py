"""Two runs side by side, and one as rows of a table."""

import csv
import io
from collections.abc import Iterator, Sequence

import msgspec

from bench.load.metrics import Metrics, Spread
from bench.load.runner import Point
from bench.load.store import Run
from workbench.errors import UsageError


class Measure(msgspec.Struct, frozen=True):
    """One figure of a point."""

    name: str
    path: tuple[str, ...]
    higher_is_better: bool = False
    judged: bool = False
    """Whether it counts for `--fail-if-slower`."""

    def of(self, metrics: Metrics) -> float | None:
        """Its value; None when there is none."""
        value: Metrics | Spread | float | None = metrics
        for name in self.path:
            value = getattr(value, name) if value is not None else None
        assert value is None or isinstance(value, int | float)
        return value


MEASURES = (
    Measure("batch tok/s", ("batch_tok_s",), True, True),
    Measure("whole tok/s", ("whole_tok_s",), True),
    Measure("requests/s", ("requests_s",), True),
    Measure("TTFT p50 s", ("ttft", "p50"), False, True),
    Measure("TTFT p99 s", ("ttft", "p99")),
    Measure("TPOT p50 s", ("tpot", "p50"), False, True),
    Measure("ITL p50 s", ("itl", "p50")),
    Measure("ITL p99 s", ("itl", "p99")),
    Measure("E2E p50 s", ("e2e", "p50")),
)


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one workload in two runs."""

    workload: str
    measure: str
    first: float
    second: float
    ratio: float
    """Second by first."""
    slower: float
    """By what share the second is worse; negative when it is better."""
    judged: bool


def compare(first: Sequence[Point], second: Sequence[Point]) -> list[Difference]:
    """Every figure that both runs have, of the workloads that both did; whole tok/s is judged where batch is missing.

    Raises:
        UsageError: they have no workload in common.
    """
    others = {point.workload.label: point for point in second}
    pairs = [(point, others[point.workload.label]) for point in first if point.workload.label in others]
    if not pairs:
        raise UsageError("the runs have no workload in common", "hsbench bench show RUN says what a run did")
    return [difference for one, other in pairs for difference in _differences(one, other)]


def _differences(one: Point, other: Point) -> list[Difference]:
    batch = MEASURES[0].of(one.metrics) and MEASURES[0].of(other.metrics)
    found = []
    for measure in MEASURES:
        first, second = measure.of(one.metrics), measure.of(other.metrics)
        if not first or second is None:
            continue
        ratio = second / first
        found.append(
            Difference(
                workload=one.workload.label,
                measure=measure.name,
                first=first,
                second=second,
                ratio=ratio,
                slower=1 - ratio if measure.higher_is_better else ratio - 1,
                judged=measure.judged or (measure.name == "whole tok/s" and not batch),
            )
        )
    return found


def slower_than(differences: Sequence[Difference], share: float) -> list[Difference]:
    """The judged figures that are worse by more than `share`."""
    return [difference for difference in differences if difference.judged and difference.slower > share]


def cautions(first: tuple[Run, Sequence[Point]], second: tuple[Run, Sequence[Point]]) -> Iterator[str]:
    """Reasons not to take the differences for the servers'."""
    for name, (_, points) in (("A", first), ("B", second)):
        for point in points:
            if point.client.limited or point.metrics.failed or point.metrics.counted == "assumed":
                yield f"{name}, {point.workload.label}: {'; '.join(point.notes)}"
    one, other = first[0], second[0]
    if one.model != other.model:
        yield f"the models differ: {one.model} and {other.model}"
    for name in sorted(one.facts.keys() | other.facts.keys()):
        if one.facts.get(name) != other.facts.get(name):
            yield f"the servers differ in {name}: {one.facts.get(name)} and {other.facts.get(name)}"


HEADER = ("workload", "requests", "failed", "short", "counted", "client_limited", *(m.name for m in MEASURES))


def _cells(point: Point) -> list[str]:
    found = point.metrics
    values = [measure.of(found) for measure in MEASURES]
    told = [point.workload.label, str(found.requests), str(found.failed), str(found.short), found.counted]
    told.append("yes" if point.client.limited else "no")
    return told + ["" if value is None else f"{value:.6g}" for value in values]


def as_csv(points: Sequence[Point]) -> str:
    """One line a workload below a header (RFC 4180, but lines end in LF)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(_cells(point) for point in points)
    return out.getvalue().rstrip("\n")


def as_markdown(points: Sequence[Point]) -> str:
    """One row a workload."""
    rows = [list(HEADER), ["---", *["---:"] * (len(HEADER) - 1)], *(_cells(point) for point in points)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
