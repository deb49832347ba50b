"""From finished starts to winners and to the table of decisions. Pure functions of the records."""

import statistics
from collections.abc import Mapping, Sequence

from bench.sweep.design import Stage, screening
from bench.sweep.journal import Settings
from bench.sweep.records import ENDING, Row, StartRecord, Table
from bench.sweep.serving import NCCL_SERVES
from bench.sweep.stats import Decision, decide, drift, pair, winners
from bench.sweep.variants import BASELINE, Variant

DECODE = "decode_tok_s"
"""The speed that decides; the others are decided too, each as a family of its own, and shown beside it."""


def ended(records: Sequence[StartRecord]) -> dict[str, StartRecord]:
    """The variants that are not started again, with the start that ended each."""
    found: dict[str, StartRecord] = {}
    for record in records:
        if record.outcome in ENDING:
            found.setdefault(record.start.variant, record)
    return found


def settled(records: Sequence[StartRecord], retries: int) -> set[str]:
    """The keys of the starts that are done: over, or invalid as often as they may be."""
    return {record.start.key for record in records if record.outcome != "invalid" or record.attempt > retries}


def speeds(records: Sequence[StartRecord], stage: Stage, variant: str, name: str) -> dict[int, float]:
    """Block → speed, of the starts that count."""
    found: dict[int, float] = {}
    for record in records:
        if (record.start.stage, record.start.variant, record.outcome) == (stage, variant, "measured"):
            value = record.measured.speeds().get(name) if record.measured else None
            if value is not None:
                found[record.start.block] = value
    return found


def ratios(records: Sequence[StartRecord], stage: Stage, names: Sequence[str], speed: str) -> dict[str, list[float]]:
    """For each variant its speed over the baseline's of the same block."""
    base = speeds(records, stage, BASELINE, speed)
    return {name: pair(speeds(records, stage, name, speed), base) for name in names}


def winners_of(settings: Settings, records: Sequence[StartRecord]) -> tuple[str, ...]:
    """The variants to start afresh, by the screening alone, so that it stays the same while they are."""
    if not settings.confirm:
        return ()
    screen = [record for record in records if record.start.stage == "screen"]
    alive = [variant.name for variant in settings.variants if variant.name not in ended(screen)]
    return winners(ratios(screen, "screen", alive, DECODE), settings.most_winners, settings.margin)


def screened(settings: Settings, records: Sequence[StartRecord]) -> bool:
    """Whether no start of the screening is left to be made."""
    over, done = ended(records), settled(records, settings.retries)
    plan = screening([variant.name for variant in settings.variants], settings.blocks, settings.seed)
    return all(start.key in done or start.variant in over for start in plan)


def table(settings: Settings, records: Sequence[StartRecord], complete: bool) -> Table:
    """The table of decisions by what is finished so far."""
    screened = any(record.start.stage in ("confirm", "close") for record in records)
    fresh = winners_of(settings, records) if screened else ()
    decisions = _decisions(settings, records, fresh)
    rows = [_row(variant, settings, records, decisions, fresh) for variant in settings.variants]
    base = [record for record in records if record.start.variant == BASELINE and record.outcome == "measured"]
    measured = [record.measured.speeds() for record in base if record.measured]
    names = dict.fromkeys(name for values in measured for name in values)
    return Table(
        rows=tuple(rows),
        margin=settings.margin,
        baseline={name: statistics.median(v[name] for v in measured if name in v) for name in names},
        drift=drift([values[DECODE] for values in measured]),
        invalid=tuple(f"{r.start.key}: {r.reason}" for r in records if r.outcome == "invalid"),
        complete=complete,
    )


def _decisions(
    settings: Settings, records: Sequence[StartRecord], fresh: Sequence[str]
) -> dict[str, dict[str, Decision]]:
    """Variant → speed → decision; winners by their fresh starts, the others by the screening."""
    over = ended(records)
    alive = [variant.name for variant in settings.variants if variant.name not in over]
    stages: dict[Stage, list[str]] = {
        "screen": [name for name in alive if name not in fresh],
        "confirm": [name for name in alive if name in fresh],
    }
    found: dict[str, dict[str, Decision]] = {name: {} for name in alive}
    for stage, members in stages.items():
        for speed in (DECODE, "prefill_tok_s"):
            # All that were screened are one family, the winners among them too: they were looked at as well.
            family = alive if stage == "screen" else members
            made = decide(ratios(records, stage, family, speed), settings.margin)
            for name in members:
                if speed == DECODE or made[name].blocks:
                    found[name][speed] = made[name]
    return found


def _row(
    variant: Variant,
    settings: Settings,
    records: Sequence[StartRecord],
    decisions: Mapping[str, dict[str, Decision]],
    fresh: Sequence[str],
) -> Row:
    own = [record for record in records if record.start.variant == variant.name]
    last = ended(own).get(variant.name)
    made = decisions.get(variant.name, {})
    carried = next((record.served for record in reversed(own) if record.served), None)
    notes = [*([variant.note] if variant.note else []), *(note for record in own for note in record.notes)]
    if variant.nccl and carried and carried.decode not in NCCL_SERVES:
        notes.append(carried.meaning)
    verdict = last.outcome if last else made[DECODE].word
    if settings.confirm and verdict == "faster" and variant.name not in fresh:
        verdict = "undecided"
        notes.append("it looked faster, and only fresh starts, which were not made, could show that it is")
    return Row(
        variant=variant.name,
        settings=variant.describe(),
        verdict=verdict,
        stage="confirm" if variant.name in fresh else "screen",
        decisions=made,
        reason=last.reason if last else "",
        served=carried,
        choices=next((record.choices for record in reversed(own) if record.choices), ()),
        notes=tuple(dict.fromkeys(notes)),
    )
