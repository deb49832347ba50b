"""From a window of samples to a verdict: the rules, each in a function of its own, asked in order."""

from collections.abc import Callable, Sequence

from workbench.supervision import signals, stacks
from workbench.supervision.progress import Usage, Window
from workbench.supervision.records import StackSample
from workbench.supervision.verdict import Facts, Limits, State, Verdict

Rule = Callable[["Case"], Verdict | None]


class Case:
    """A window, the facts and the limits, and the questions that the rules ask of them."""

    def __init__(self, window: Window, facts: Facts, limits: Limits) -> None:
        self.window, self.facts, self.limits = window, facts, limits
        self.now = window.now
        self.log, self.port = window.now.log, window.now.port

    @property
    def silence_limit(self) -> float:
        """How long nothing may move here."""
        return max(self.limits.silence_s, 2 * (self.facts.known_silence or 0.0))

    @property
    def fresh(self) -> float:
        """How long a movement counts as progress: also over two rates, however rarely they could be taken."""
        return max(self.limits.fresh_s, 2.5 * self.window.interval)

    @property
    def silent(self) -> float:
        """Seconds since anything moved. Before it was watched, the log's silence stands for it."""
        silent = self.window.silent
        unmoved = not self.window.last
        return max(silent, self.facts.logged_silence or 0.0) if unmoved else silent

    @property
    def demand(self) -> float:
        """Cores that all processes want together."""
        return sum(one.wanted for one in self.window.usage)

    def spinning(self) -> list[Usage]:
        """Processes that want a whole core."""
        found = [one for one in self.window.usage if one.wanted >= self.limits.spin and one.process.role != "compiler"]
        return sorted(found, key=lambda one: -one.wanted)

    def stacks_of(self, pid: int) -> list[StackSample]:
        """The dumps of one process since anything moved, the oldest first."""
        return [stack for _, dumped in self.window.stacks for stack in dumped if stack.pid == pid]

    def verdict(
        self,
        state: State,
        confidence: float,
        evidence: Sequence[str],
        against: Sequence[str] = (),
        next_step: str = "",
        *,
        waiting_on: str = "",
        eta_s: float | None = None,
    ) -> Verdict:
        """A verdict with what all of them state."""
        return Verdict(
            state=state,
            phase=self.window.phase or None,
            confidence=min(0.99, confidence),
            evidence=tuple(evidence),
            against=tuple(against),
            next_step=next_step,
            waiting_on=waiting_on,
            eta_s=eta_s,
            lines=self.log.lines if self.log else 0,
            lines_known_good=self.facts.known_lines,
        )

    def lines(self) -> str:
        """The classic line."""
        lines, known = self.log.lines if self.log else 0, self.facts.known_lines
        return f"the log has {lines} of {known} lines of a good start" if known else f"the log has {lines} lines"

    def silence(self) -> str:
        """How long nothing has moved, and what that is measured by."""
        limit = self.silence_limit
        return f"nothing has moved for {self.silent:.0f} s (log, reads, memory, compilers); the limit is {limit:.0f} s"

    def log_words(self) -> str:
        """What the log said last."""
        return f"last line of the log: {self.log.last[:160]}" if self.log and self.log.last else "the log is empty"

    def step(self, text: str) -> str:
        """A next step, with the server's name put in."""
        return (
            text.replace("NAME", self.facts.name) if self.facts.name else text.replace("hsbench stop NAME", "stop it")
        )


def judge(window: Window, facts: Facts | None = None, limits: Limits | None = None) -> Verdict:
    """Say what state the server is in.

    Args:
        window: The samples, at least one.
        facts: What else is known.
        limits: How long is long.
    """
    case = Case(window, facts or Facts(), limits or Limits())
    for rule in _RULES:
        found = rule(case)
        if found is not None:
            return found
    return _quiet(case)


def _lost(case: Case) -> Verdict | None:
    here = {(p.pid, p.created) for p in case.now.processes if p.state not in "ZX"}
    known = case.window.known.values()
    gone = [p.label for p in known if (p.pid, p.created) not in here]
    dead = [p.label for p in case.now.processes if p.state in "ZX" and p.role != "helper" and p.label not in gone]
    why = [case.facts.orphan] if case.facts.orphan else []
    lost = sorted({*gone, *dead, *case.facts.lost})
    if not (lost or why):
        return None
    alive = [p.label for p in case.now.processes if p.state not in "ZX"]
    evidence = [*(f"{one} is gone" for one in lost), *why]
    if alive:
        evidence.append(f"still there: {', '.join(alive[:6])}")
    if case.log and case.log.error:
        evidence.append(f"last error in the log: {case.log.error}")
    step = (
        "end it: hsbench stop --orphans if hsbench started it, else kill the processes listed"
        if why
        else "the log says why it ended, if anything does; then hsbench stop NAME and start again"
    )
    return case.verdict(State.DEAD_CHILD, 0.95, evidence, next_step=case.step(step))


def _stopped(case: Case) -> Verdict | None:
    stopped = [p for p in case.now.processes if signals.is_stopped(p)]
    if not stopped:
        return None
    evidence = [f"{p.label} is stopped: its state is T, as after SIGSTOP" for p in stopped[:6]]
    step = f"kill -CONT {stopped[0].pid} lets it go on; if nobody stopped it on purpose, hsbench stop NAME"
    return case.verdict(State.STOPPED_CHILD, 0.95, evidence, next_step=case.step(step))


def _port_taken(case: Case) -> Verdict | None:
    port, log = case.port, case.log
    bound = log is not None and "address already in use" in f"{log.error} {log.last}".lower()
    taken = port is not None and port.accepts and port.owned is False
    if port is None or not (taken or bound):
        return None
    evidence = []
    if taken:
        evidence.append(f"port {port.port} is held by process {port.owner} {port.owner_name}, not by this server")
    if bound:
        evidence.append(f"the log says: {(log.error or log.last) if log else ''}")
    return case.verdict(
        State.PORT_TAKEN,
        0.97 if taken else 0.8,
        evidence,
        next_step=case.step(
            f"hsbench stop NAME, then start on another port or end process {port.owner or 'that holds it'}"
        ),
    )


def _serving(case: Case) -> Verdict | None:
    port = case.port
    if port is None or not port.accepts or port.health != 200:
        return None
    evidence = [f"port {port.port} is open and /health answers 200"]
    if port.generation:
        evidence.append(f"a streamed request brought a token after {port.generation_s or 0:.1f} s")
        against = _idle_notes(case)
        return case.verdict(State.READY, 0.97, evidence, against, "nothing to do")
    busy = case.window.recent(case.limits.quiet_tokens_s)
    tokens = [m for m in busy if m.kind in ("tokens", "passes")]
    if port.generation is False and not tokens:
        evidence.append(f"a streamed request brought no token in {port.generation_s or 0:.0f} s")
        return case.verdict(
            State.ZOMBIE_READY,
            0.9,
            evidence,
            [],
            case.step("collect hsbench doctor --bundle, then restart it: hsbench stop NAME"),
        )
    if port.generation is False:
        evidence.append(f"its own request is late, but {tokens[0].what}")
        return case.verdict(State.READY, 0.6, evidence, ["a streamed request brought no token yet"], "look again")
    why = port.refused or "no streamed request was sent yet"
    return case.verdict(State.READY_UNVERIFIED, 0.7, evidence, [why], "wait for a real token, or send a request")


def _idle_notes(case: Case) -> list[str]:
    return [
        f"{one.process.label} uses {one.cpu:.0%} of a core: an idle scheduler polls; --sleep-on-idle stops that"
        for one in case.spinning()[:1]
    ]


def _busy(case: Case) -> Verdict | None:
    """Answers badly, but works."""
    port = case.port
    if port is None or not port.accepts or port.health in (None, 200):
        return None
    moving = [m for m in case.window.recent(case.fresh) if m.kind in ("tokens", "passes")]
    since = case.window.phase_since or 0.0
    was_ready = case.window.phase == "ready" and (port.health_at or 0.0) > since
    if not moving or not (was_ready or port.tokens):
        return None
    said = f"/health answers {port.health}" if port.health else "/health does not answer"
    return case.verdict(
        State.UNHEALTHY_BUT_BUSY,
        0.85,
        [said, *(m.what for m in moving)],
        [],
        "do not restart it: it works through a long prefill or many requests; look again in a minute",
    )


def _moving(case: Case) -> Verdict | None:
    movements = case.window.recent(case.fresh)
    if not movements:
        return None
    facts = case.facts
    evidence = [m.what for m in movements[:4]]
    known, lasts = facts.known_phase_s, facts.phase_s
    bar = f"at {case.log.bar[0]:g} of {case.log.bar[1]:g}" if case.log and case.log.bar else ""
    against = []
    if known is not None and lasts is not None and lasts > max(1.0, known) * case.limits.slow_factor:
        evidence.append(f"phase {case.window.phase!r} lasts {lasts:.0f} s, in good starts {known:.0f} s")
        step = "let it go on; the disk may be slow, mapped files (--weight-loader-disable-mmap) or the machine crowded"
        return case.verdict(State.SLOW, 0.8, evidence, [bar] if bar else [], step, eta_s=facts.known_remaining_s)
    if case.spinning() and not any(m.kind in ("read", "bar", "compiler", "memory", "gpu memory") for m in movements):
        against.append(f"{case.spinning()[0].process.label} is busy, which by itself says nothing")
    confidence = 0.95 if case.window.silent < 5 else 0.8
    return case.verdict(State.PROGRESSING, confidence, evidence, against, "wait", eta_s=facts.known_remaining_s)


def _hung(case: Case) -> Verdict | None:
    """Silent for longer than allowed, and busy."""
    spinning = case.spinning()
    if not spinning or case.silent < case.silence_limit or case.window.watched < min(case.fresh, 10.0):
        return None
    evidence = [case.silence(), case.lines(), f"{_names(spinning)} wants {spinning[0].wanted:.0%} of a core"]
    against = _gpu_notes(case, evidence)
    places = {one.process.pid: case.stacks_of(one.process.pid) for one in spinning}
    seen = {pid: dumped for pid, dumped in places.items() if any(stack.source == "py-spy" for stack in dumped)}
    step = case.step("keep the evidence: hsbench doctor --bundle FILE.tar.gz; then hsbench stop NAME")
    if not seen:
        return _hung_blindly(case, evidence, against, places, step)
    held = {pid: dumped for pid, dumped in seen.items() if _held(case, dumped)}
    if held and against:
        return case.verdict(State.SUSPECT_SPIN, 0.5, evidence, against, "watch it for longer, or hsbench doctor")
    if held:
        evidence += [
            f"{len(dumped)} stacks of {dumped[-1].label} agree: {' < '.join(dumped[-1].frames[:5])}"
            for dumped in held.values()
        ]
        if any(not case.stacks_of(p.pid) for p in case.now.processes if p.role == "rank"):
            against.append("not all ranks could be looked at")
        return case.verdict(State.HUNG_SPIN, 0.95 if not against else 0.85, evidence, against, step)
    few = all(len(dumped) < case.limits.stacks for dumped in seen.values())
    polling = [dumped[-1] for dumped in seen.values() if stacks.is_polling(dumped[-1])]
    if few:
        against.append("more stacks are needed")
    if polling:
        against.append(f"{polling[0].label} polls for requests, as an idle scheduler does")
        return None
    if not few:
        against.append("the stack moves, so it may be computing")
    return case.verdict(
        State.SUSPECT_SPIN, 0.5 if few else 0.4, evidence, against, "watch it for longer, or hsbench doctor"
    )


def _hung_blindly(
    case: Case, evidence: list[str], against: list[str], places: dict[int, list[StackSample]], step: str
) -> Verdict:
    """Without Python stacks only a much longer silence tells."""
    notes = {stack.note for dumped in places.values() for stack in dumped if stack.note}
    against += sorted(notes) or ["no stack was taken yet"]
    kernel = [stack for dumped in places.values() for stack in dumped]
    if kernel:
        evidence.append(f"/proc shows {kernel[-1].label}: {', '.join(kernel[-1].frames)}")
    enough = case.silent >= case.limits.blind_factor * case.silence_limit
    state = State.HUNG_SPIN if enough and kernel else State.SUSPECT_SPIN
    return case.verdict(state, 0.6 if state is State.HUNG_SPIN else 0.5, evidence, against, step)


def _held(case: Case, dumped: list[StackSample]) -> bool:
    last = [stack for stack in dumped if stack.source == "py-spy"][-case.limits.stacks :]
    return len(last) >= case.limits.stacks and stacks.same_place(last) and not stacks.is_polling(last[-1])


def _gpu_notes(case: Case, evidence: list[str]) -> list[str]:
    against = []
    for gpu in case.now.gpus:
        power = (gpu.power_w or 0.0) / gpu.power_limit_w if gpu.power_limit_w else None
        if gpu.busy is not None and gpu.busy > 0.9 and power is not None and power < 0.5:
            evidence.append(
                f"GPU {gpu.index} shows {gpu.busy:.0%} use at {power:.0%} of its power: a kernel that spins"
            )
        elif gpu.busy is not None and gpu.busy > 0.2 and power is not None and power >= 0.5:
            against.append(f"GPU {gpu.index} draws {power:.0%} of its power: it may be computing")
    return against


def _waiting(case: Case) -> Verdict | None:
    """Silent and asleep."""
    if _warming_up(case) or case.silent < min(case.fresh, case.silence_limit):
        return None
    if case.spinning() and not any(_polls(case, one) for one in case.spinning()):
        return None
    on, evidence = _what_for(case)
    evidence = [case.silence(), case.lines(), f"all processes together want {case.demand:.0%} of a core", *evidence]
    if case.log and case.log.repeats:
        evidence.append(f"{case.log.repeats} lines of a kind already seen: {case.log.last[:120]}")
    against = [] if case.demand < case.limits.idle else ["it does use some processor time"]
    stale = case.facts.locks if "nobody holds" in on else ()
    step = f"remove {stale[0]}" if stale else "look at what it waits for; hsbench doctor --bundle keeps the evidence"
    confidence = 0.9 if (on and not against) else 0.7 if not against else 0.5
    return case.verdict(State.WAITING, confidence, evidence, against, step, waiting_on=on or "something unseen")


def _polls(case: Case, one: Usage) -> bool:
    dumped = case.stacks_of(one.process.pid)
    return bool(dumped) and stacks.is_polling(dumped[-1])


def _what_for(case: Case) -> tuple[str, list[str]]:
    if case.facts.locks and _may_be_the_lock(case):
        lock = case.facts.locks[0]
        return f"the lock {lock}, which nobody holds", [f"the lock file {lock} exists, and no process has it open"]
    if case.facts.held_locks and _may_be_the_lock(case):
        return f"the lock {case.facts.held_locks[0]}", [f"the lock file is held: {case.facts.held_locks[0]}"]
    seen = [stack for _, dumped in case.window.stacks for stack in dumped]
    for stack in reversed(seen):
        if words := stacks.waits_on(stack):
            return words, [f"{stack.label} stands in {stack.frames[0]} (by {stack.source})"]
    asleep = [p.label for p in case.now.processes if p.state == "D"]
    if asleep:
        return f"a device or file system ({asleep[0]})", []
    if case.log and case.log.repeats > 1:
        return f"what the log repeats: {case.log.last[:80]}", []
    return "", []


def _may_be_the_lock(case: Case) -> bool:
    """A lock file may lie about from long ago: where Python stacks can be read, one must stand at a lock."""
    seen = [stack for _, dumped in case.window.stacks for stack in dumped if stack.source == "py-spy"]
    return not seen or any("baton" in frame or "lock" in frame for stack in seen for frame in stack.frames[:6])


def _warming_up(case: Case) -> bool:
    return case.port is not None and case.port.accepts


def _unverified(case: Case) -> Verdict | None:
    port = case.port
    if port is None or not port.accepts:
        return None
    if case.window.phase == "warm-up" and case.silent < case.silence_limit and not case.facts.proxy:
        return None
    said = f"/health answers {port.health}" if port.health else "/health does not answer"
    said = "/health was not asked yet" if port.health is None else said
    evidence = [f"port {port.port} is open, {said}", case.log_words()]
    step, confidence = "it warms itself up; look again, and see the log if it stays so", 0.8
    if case.facts.proxy:
        evidence.append(f"{case.facts.proxy}, so the server's request to itself goes to the proxy")
        step, confidence = "start it with NO_PROXY=127.0.0.1,localhost, as hsbench serve does", 0.9
    return case.verdict(State.READY_UNVERIFIED, confidence, evidence, [], step)


def _quiet(case: Case) -> Verdict:
    """Nothing moved for a while, but not for long enough to mean anything."""
    evidence = ["its processes are there"] if case.now.processes else ["no process was seen yet"]
    facts = case.facts
    if case.spinning():
        evidence.append(f"{_names(case.spinning())} works")
    quiet = [f"{case.silence()}"] if case.silent > 5 else []
    return case.verdict(State.PROGRESSING, 0.5, evidence, quiet, "wait", eta_s=facts.known_remaining_s)


def _names(usage: list[Usage]) -> str:
    return ", ".join(one.process.label for one in usage[:4])


_RULES: tuple[Rule, ...] = (_lost, _stopped, _port_taken, _serving, _busy, _moving, _hung, _waiting, _unverified)
