"""Watching a server: a sample about once a second, and a verdict after each."""

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import msgspec

from workbench.server.secrets import secret_values
from workbench.supervision import facts as facts_of
from workbench.supervision import known_good, signals
from workbench.supervision.gpu import Nvml
from workbench.supervision.judge import Case, judge
from workbench.supervision.known_good import GoodStart, KnownGood
from workbench.supervision.milestones import LogFollower
from workbench.supervision.probing import Prober
from workbench.supervision.progress import Window
from workbench.supervision.records import Sample
from workbench.supervision.sampler import Sampler
from workbench.supervision.target import Target
from workbench.supervision.verdict import Facts, Limits, Verdict

EVERY_S = 1.0
FACTS_S = 10.0
"""Seconds between two collections of the facts; they read more than a sample does."""


class Observation(msgspec.Struct, frozen=True):
    """A sample and what it means together with those before."""

    sample: Sample
    verdict: Verdict


class Watch:
    """Follows one server. `look` does one round; the caller decides how often.

    Args:
        target: The server.
        limits: How long is long.
        follower: Reads its log, if something else reads it too.
        generate: Ask a ready server for a token, to know that it is more than green.
        attached: The server was running before: the log's silence counts, and stacks are taken at once.
        every_s: Seconds between two rounds of questions over HTTP.
        lost: Processes of the server known to be gone.
        nvml: The GPUs; made here unless given.
    """

    def __init__(
        self,
        target: Target,
        limits: Limits | None = None,
        *,
        follower: LogFollower | None = None,
        generate: bool = True,
        attached: bool = False,
        every_s: float = 5.0,
        lost: tuple[str, ...] = (),
        nvml: Nvml | None = None,
    ) -> None:
        self.target, self.limits, self.attached, self.lost = target, limits or Limits(), attached, lost
        self.known: KnownGood | None = known_good.load(target.model, target.version, target.argv)
        silence = self.limits.quiet_tokens_s
        prober = Prober(target, every_s, generate=generate, silence_s=silence) if target.port else None
        self.sampler = Sampler(target, follower, nvml or Nvml(), prober)
        self.window = Window()
        self._facts = Facts()
        self._facts_at = float("-inf")
        self._stacks_at = float("-inf")
        self._want_stacks = attached

    def __enter__(self) -> Self:
        self.sampler.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sampler.__exit__(kind, error, trace)

    def look(self) -> Observation:
        """Take a sample and judge. Stacks are dumped only once something is suspected."""
        now = time.monotonic()
        due = self._want_stacks and now - self._stacks_at >= self._gap()
        sample = self.sampler.sample(with_stacks=due)
        if due:
            self._stacks_at = now
        self.window.add(sample)
        facts = self._gather(now)
        case = Case(self.window, facts, self.limits)
        suspicious = case.silent >= min(self.limits.fresh_s, case.silence_limit)
        if suspicious and not self._want_stacks:
            self._facts_at = float("-inf")
        self._want_stacks = suspicious or self.attached
        return Observation(sample, judge(self.window, facts, self.limits))

    def _gap(self) -> float:
        """Seconds between two dumps: once there are enough to compare, rarely, since each stops the processes."""
        enough = len(self.window.stacks) >= self.limits.stacks
        return self.limits.stack_gap_s * (10 if enough and not self.attached else 1)

    def run(self, seconds: float, every_s: float = EVERY_S) -> Iterator[Observation]:
        """Look again and again for so long, at least twice."""
        end = time.monotonic() + seconds
        with self:
            while True:
                began = time.monotonic()
                yield self.look()
                if began >= end:
                    return
                time.sleep(max(0.0, min(every_s, end - time.monotonic())))

    def learn(self, seconds: float) -> KnownGood | None:
        """Remember a start that has just ended well, `seconds` after it began."""
        follower = self.sampler.follower
        if follower is None or not self.target.model:
            return None
        start = GoodStart(
            seconds=seconds,
            lines=follower.sample().lines,
            longest_silence=self.window.longest_silence,
            milestones=tuple(follower.milestones),
        )
        return known_good.learn(self.target.model, self.target.version, self.target.argv, start)

    def _gather(self, now: float) -> Facts:
        follower = self.sampler.follower
        if now - self._facts_at >= FACTS_S:
            self._facts = facts_of.gather(self.target, self.known, follower, self.lost)
            self._facts_at = now
            if follower is not None:
                env, argv = signals.environment(self.target.pid), signals.command_line(self.target.pid)
                follower.secrets = secret_values(env, argv) or follower.secrets
        if follower is None:
            return self._facts
        log = self.window.now.log
        phase, lasts = follower.phase, follower.phase_seconds()
        return msgspec.structs.replace(
            self._facts,
            phase_s=lasts,
            known_phase_s=self.known.phase_seconds(phase) if self.known else None,
            known_remaining_s=self.known.remaining(phase, lasts) if self.known else None,
            logged_silence=log.grown if log is not None and self.attached else None,
        )
