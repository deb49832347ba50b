"""The sweep: a generator of events over the plan, resumable at any point, ending with a table of decisions."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.sweep import design, outcome
from bench.sweep.attempt import REFERENCE_FILE, Attempts
from bench.sweep.design import Start
from bench.sweep.journal import Journal, Settings
from bench.sweep.records import (
    ENDING,
    Began,
    Bench,
    BudgetSpent,
    Confirming,
    Ended,
    Finished,
    Planned,
    StartRecord,
    SweepEvent,
)
from bench.sweep.variants import Variant, baseline
from workbench.errors import UsageError

__all__ = ["Settings", "sweep"]


def sweep(
    bench: Bench,
    settings: Settings,
    folder: Path,
    *,
    budget_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
) -> Iterator[SweepEvent]:
    """Start the server under each variant, again and again, and decide.

    A variant that hangs, dies, computes something else or does not arrive ends; the sweep goes on without it. What is
    finished is on disk before the next start begins, so the same call goes on after an interruption, which costs at
    most the start that was under way.

    Args:
        bench: Starts and measures servers.
        settings: What is swept. A folder holds one sweep.
        folder: Of the run.
        budget_s: Seconds after which no start is begun that would, by those before, take longer.
        clock: Monotonic seconds.
        wall: Seconds since the epoch.

    Yields:
        `Planned` first, `Table` last, even where the budget ends the sweep.

    Raises:
        UsageError: the folder is of another sweep, or in use.
        CheckFailed: the baseline's opening start failed.
        ServerError: something of a server is left after its stop.
    """
    journal = Journal(folder, settings)
    try:
        if journal.records and not (folder / REFERENCE_FILE).is_file():
            raise UsageError(f"{folder / REFERENCE_FILE} is gone, so no start can pass the gate", "another --out")
        yield from _Sweep(Attempts(bench, folder, wall, clock), settings, journal, budget_s, clock).events()
    finally:
        try:
            bench.done()
        finally:
            journal.close()


class _Sweep:
    """One call of `sweep`."""

    def __init__(
        self,
        attempts: Attempts,
        settings: Settings,
        journal: Journal,
        budget_s: float | None,
        clock: Callable[[], float],
    ) -> None:
        self._attempts, self._settings, self._journal, self._clock = attempts, settings, journal, clock
        self._deadline = None if budget_s is None else clock() + budget_s
        self._spent = False
        self._variants = {variant.name: variant for variant in (baseline(), *settings.variants)}

    @property
    def _records(self) -> list[StartRecord]:
        return self._journal.records

    def events(self) -> Iterator[SweepEvent]:
        """The whole sweep."""
        settings = self._settings
        names = [variant.name for variant in settings.variants]
        screening = design.screening(names, settings.blocks, settings.seed)
        done = outcome.settled(self._records, settings.retries)
        finished = sum(start.key in done for start in screening)
        yield Planned(tuple(names), len(screening), finished, settings.left_out)
        yield from self._stage(screening)
        if not self._spent:
            winners = outcome.winners_of(settings, self._records)
            yield Confirming(winners)
            yield from self._stage(design.confirming(winners, settings.blocks, settings.seed))
        if settings.debug and not self._spent:
            yield from self._stage(design.debugging(names))
        yield outcome.table(settings, self._records, complete=not self._spent)

    def _stage(self, starts: Sequence[Start]) -> Iterator[SweepEvent]:
        """The starts of a stage that are not done."""
        for index, start in enumerate(starts):
            self._attempts.upcoming(self._ahead(starts[index:]))
            yield from self._until_settled(start)
            if self._spent:
                left = outcome.settled(self._records, self._settings.retries)
                yield BudgetSpent(sum(other.key not in left for other in starts[index:] if not self._over(other)))
                return

    def _ahead(self, starts: Sequence[Start]) -> list[tuple[Start, Variant]]:
        settled = outcome.settled(self._records, self._settings.retries)
        left = (start for start in starts if start.key not in settled and not self._over(start))
        return [(start, self._variants[start.variant]) for start in left]

    def _over(self, start: Start) -> bool:
        return start.variant in outcome.ended(self._records)

    def _until_settled(self, start: Start) -> Iterator[SweepEvent]:
        """Make one start, and again while it is invalid; nothing if it is done or its variant has ended."""
        while not self._over(start) and start.key not in outcome.settled(self._records, self._settings.retries):
            if self._out_of_time():
                self._spent = True
                return
            variant = self._variants[start.variant]
            yield Began(start, variant.describe())
            record = self._make(start)
            self._journal.append(record)
            yield Finished(record)
            if record.outcome in ENDING:
                yield Ended(variant.name, f"{record.outcome}: {record.reason}")

    def _make(self, start: Start) -> StartRecord:
        variant = self._variants[start.variant]
        if start.stage == "debug":
            return self._attempts.debug(start, variant)
        before = sum(record.start.key == start.key for record in self._records)
        return self._attempts.run(start, variant, before + 1)

    def _out_of_time(self) -> bool:
        """Whether a start as long as those before would end after the deadline."""
        if self._deadline is None:
            return False
        usual = statistics.median([record.seconds for record in self._records] or [0.0])
        return self._clock() + usual > self._deadline
