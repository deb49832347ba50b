"""The numeric gate: does a variant compute what the baseline computes?

Speed alone would let a setting win that corrupts data. But equal bits are not the test: Ring and Tree add in another
order, and in bfloat16 that moves logits by a step of their precision.

- All-reduce of whole numbers must be exact.
- Greedy outputs must be equal up to the first token where the baseline itself was near a tie, and there the variant
  must have taken the baseline's second choice. After that token the texts are different texts, and nothing more is
  compared.
- Hidden states of a probe must agree within a tolerance, row by row.
"""

import math
from collections.abc import Sequence

import msgspec

NEAR_TIE = 0.25
"""Nats between the best two tokens. A logit between 16 and 32 has steps of 0.125 in bfloat16 (8 bits of precision), so
two logits that each move by one step close a gap of 0.25."""
TOLERANCE = 0.03
"""Mean relative error of a row. Right captures in bfloat16 are at 0.004 to 0.008 against float32, and the state of a
neighbouring block is at 0.07 or more."""


class Greedy(msgspec.Struct, frozen=True, kw_only=True):
    """The greedy output of one prompt."""

    prompt: str
    """Names the prompt; need not be its text."""
    tokens: tuple[int, ...]
    second: tuple[int | None, ...] = ()
    """The runner-up at each position; empty when the server did not say."""
    margins: tuple[float | None, ...] = ()
    """Log-probability of the best less that of the runner-up, in nats."""


class ProbeTensor(msgspec.Struct, frozen=True):
    """A state of one probe."""

    name: str
    rows: tuple[tuple[float, ...], ...]
    """(tokens, hidden size)"""


class ReduceCheck(msgspec.Struct, frozen=True):
    """An all-reduce of whole numbers, in several sizes."""

    wrong: tuple[tuple[int, int], ...] = ()
    """(bytes, wrong elements) of the sizes that did not add up."""
    sizes: tuple[int, ...] = ()
    """Bytes of all sizes tried."""


class GateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a server computed for the gate."""

    greedy: tuple[Greedy, ...] = ()
    tensors: tuple[ProbeTensor, ...] = ()


class Gated(msgspec.Struct, frozen=True):
    """The outcome. `failures` is empty when it passed; `notes` says what differed harmlessly, or was not compared."""

    failures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the variant may be timed."""
        return not self.failures


def gate(
    baseline: GateRecord,
    got: GateRecord,
    reduce: ReduceCheck | None = None,
    near_tie: float = NEAR_TIE,
    tolerance: float = TOLERANCE,
) -> Gated:
    """Compare a variant with the baseline's opening start. Nothing to compare with is a failure, not a pass."""
    failures, notes = list(reduce_faults(reduce)), []
    outputs = {greedy.prompt: greedy for greedy in got.greedy}
    for wanted in baseline.greedy:
        failed, note = _compare_greedy(wanted, outputs.get(wanted.prompt), near_tie)
        failures += [failed] if failed else []
        notes += [note] if note else []
    states = {tensor.name: tensor for tensor in got.tensors}
    for tensor in baseline.tensors:
        failures += _tensor_faults(tensor, states.get(tensor.name), tolerance)
    if not baseline.greedy and not baseline.tensors:
        failures.append("the baseline has no outputs to compare with")
    return Gated(tuple(failures), tuple(notes))


def reduce_faults(check: ReduceCheck | None) -> Sequence[str]:
    """What did not add up; nothing where there was no check."""
    if check is None:
        return []
    if not check.sizes:
        return ["the all-reduce check ran no size"]
    return [f"all-reduce of {size} bytes has {count} wrong elements" for size, count in check.wrong]


def _compare_greedy(wanted: Greedy, got: Greedy | None, near_tie: float) -> tuple[str, str]:
    """(failure, note) of one prompt; both empty when the outputs are equal."""
    if got is None:
        return f"no output for {wanted.prompt}", ""
    if wanted.tokens == got.tokens:
        return "", ""
    pairs = enumerate(zip(wanted.tokens, got.tokens, strict=False))
    at = next((index for index, (one, other) in pairs if one != other), None)
    if at is None:
        return f"{wanted.prompt}: {len(got.tokens)} tokens instead of {len(wanted.tokens)}", ""
    where = f"{wanted.prompt}: token {at} is {got.tokens[at]} instead of {wanted.tokens[at]}"
    fault, margin = _fork(wanted, at, got.tokens[at], near_tie)
    return (f"{where}, {fault}", "") if fault else ("", f"{where}, a near tie ({margin:.2f} nats)")


def _fork(wanted: Greedy, at: int, token: int, near_tie: float) -> tuple[str, float]:
    """Why the first other token is no near tie (empty when it is one), and the baseline's margin there."""
    margin = wanted.margins[at] if at < len(wanted.margins) else None
    second = wanted.second[at] if at < len(wanted.second) else None
    if margin is None or second is None:
        return "and how near a tie it was is not known", math.nan
    if token != second:
        return "which was not the baseline's second choice", margin
    return ("" if margin <= near_tie else f"where the baseline was sure by {margin:.2f} nats"), margin


def row_errors(wanted: ProbeTensor, got: ProbeTensor) -> list[float]:
    """|got - wanted| / |wanted| of each row, as Euclidean lengths; infinite where something is not finite."""
    errors = []
    for one, other in zip(wanted.rows, got.rows, strict=True):
        apart, length = math.dist(one, other), math.hypot(*one)
        error = apart / length if length else (0.0 if apart == 0 else math.inf)
        errors.append(error if math.isfinite(error) else math.inf)
    return errors


def _tensor_faults(wanted: ProbeTensor, got: ProbeTensor | None, tolerance: float) -> list[str]:
    if got is None:
        return [f"no state {wanted.name}"]
    if [len(row) for row in wanted.rows] != [len(row) for row in got.rows] or not wanted.rows:
        return [f"{wanted.name} has another shape, or none"]
    errors = row_errors(wanted, got)
    mean = math.fsum(errors) / len(errors) if all(map(math.isfinite, errors)) else math.inf
    if mean <= tolerance:
        return []
    return [f"{wanted.name} is off by {mean:.3g} (mean relative error of a row), tolerance {tolerance:g}"]
