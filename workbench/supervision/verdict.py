"""One verdict from what was seen: which state a server is in, what speaks for it and against it, and what to do.

`judge` is a pure function of a window of samples and of facts about the server. It never kills, and it calls nothing a
hang because a processor or a GPU is busy: an idle scheduler polls at 100 % of a core, and a collective that spins shows
a GPU at 100 %. What proves a hang is that nothing moves for longer than any good start was quiet, while a process
wants a whole core and stands at the same place of its code each time it is looked at.
"""

from enum import StrEnum

import msgspec

from workbench.exitcodes import ExitCode


class State(StrEnum):
    """What a server is doing. `docs/diagnosis.md` explains each."""

    PROGRESSING = "PROGRESSING"
    SLOW = "SLOW"
    WAITING = "WAITING"
    SUSPECT_SPIN = "SUSPECT_SPIN"
    HUNG_SPIN = "HUNG_SPIN"
    DEAD_CHILD = "DEAD_CHILD"
    STOPPED_CHILD = "STOPPED_CHILD"
    PORT_TAKEN = "PORT_TAKEN"
    READY_UNVERIFIED = "READY_UNVERIFIED"
    READY = "READY"
    UNHEALTHY_BUT_BUSY = "UNHEALTHY_BUT_BUSY"
    ZOMBIE_READY = "ZOMBIE_READY"


BROKEN = frozenset({State.HUNG_SPIN, State.DEAD_CHILD, State.STOPPED_CHILD, State.PORT_TAKEN, State.ZOMBIE_READY})
"""States that do not end by themselves."""
GOOD = frozenset({State.PROGRESSING, State.READY})


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long is long, and how much is much. Seconds, and shares of one core."""

    silence_s: float = 60.0
    """Nothing may move for so long before a busy process is suspected; at least twice the longest silence of the
    known good starts."""
    fresh_s: float = 30.0
    """A movement counts as progress for so long."""
    stack_gap_s: float = 3.0
    """Between two dumps."""
    stacks: int = 3
    """Dumps that must agree."""
    spin: float = 0.9
    """A process that wants this share of a core is busy."""
    idle: float = 0.1
    """All processes together below this are asleep."""
    slow_factor: float = 3.0
    """A phase that takes so many times its known length is slow."""
    blind_factor: float = 3.0
    """Without stacks that can be compared, a hang is claimed after so many silence limits."""
    quiet_tokens_s: float = 20.0
    """A request for a token may be silent for so long."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the server besides the samples."""

    began: float | None = None
    """Monotonic time at which its process was created."""
    known_lines: int | None = None
    known_silence: float | None = None
    known_phase_s: float | None = None
    known_remaining_s: float | None = None
    phase_s: float | None = None
    """How long the present phase has lasted, where the log tells."""
    proxy: str = ""
    """The proxy variable that would catch the server's request to itself; empty when none would."""
    locks: tuple[str, ...] = ()
    """Lock files of kernel caches that exist and that nobody holds."""
    held_locks: tuple[str, ...] = ()
    """Lock files that a living process holds, with it."""
    orphan: str = ""
    """Why the process is thought to have lost its server; empty when it has not."""
    lost: tuple[str, ...] = ()
    """Processes of the server that are known to have been there and are gone."""
    logged_silence: float | None = None
    """Seconds since the log grew, for a server that was not watched from the start."""
    name: str = ""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome."""

    state: State
    phase: str | None
    confidence: float
    """0 to 1: how sure the state is, by how much of the evidence it needs is there."""
    evidence: tuple[str, ...]
    against: tuple[str, ...]
    next_step: str
    waiting_on: str = ""
    eta_s: float | None = None
    lines: int = 0
    lines_known_good: int | None = None

    @property
    def exit_code(self) -> ExitCode:
        """What a command ends with that reports this."""
        if self.state in GOOD:
            return ExitCode.OK
        return ExitCode.BROKEN if self.state in BROKEN else ExitCode.UNSETTLED

    def as_json(self) -> dict[str, object]:
        """The documented object of `hsbench doctor --json`."""
        return {
            "schema": 1,
            "verdict": str(self.state),
            "phase": self.phase,
            "confidence": round(self.confidence, 2),
            "evidence": list(self.evidence),
            "against": list(self.against),
            "next_step": self.next_step,
            "lines": self.lines,
            "lines_known_good": self.lines_known_good,
        }

    def headline(self) -> str:
        """One line: the state, the phase or what is waited for, and how sure it is."""
        inside = self.waiting_on or self.phase or ""
        eta = f", about {self.eta_s:.0f} s left" if self.eta_s is not None else ""
        return (
            f"{self.state}({inside}{eta}), {self.confidence:.0%} sure"
            if inside
            else f"{self.state}, {self.confidence:.0%} sure"
        )
