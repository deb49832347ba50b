"""Are the states those of the model? A few samples, captured again by a server or computed with transformers."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from workbench.errors import CheckFailed, HsbenchError
from workbench.extract.audit.report import Check, Problem, outcome
from workbench.extract.audit.structure import Found
from workbench.extract.pool import WorkerPool

MATCH = 0.05
"""Mean relative error a token between two captures of the same prompt; `probes/compare.py` has the measurements."""


class Recaptured(msgspec.Struct, frozen=True):
    """A fresh dump of a sample's ids, and the server's log-probability of each of them, None for the first."""

    folder: str
    logprobs: tuple[float | None, ...]


class Recapture(Protocol):
    """A server that records; `url` is for messages."""

    url: str

    def capture(self, ids: Sequence[int]) -> contextlib.AbstractContextManager[Recaptured]:
        """Capture these ids; the dump is removed at the end of the block."""


class ServerRecapture:
    """The real one: an SGLang server that records into a folder of this machine."""

    def __init__(self, url: str, dump_dir: Path | None, python: str | None, timeout_s: float = 600.0) -> None:
        from workbench.probe.options import ProbeOptions
        from workbench.probe.prompt import Prompt
        from workbench.probe.session import open_target
        from workbench.server.client import SglangClient

        self.url = url
        self._timeout_s = timeout_s
        options = ProbeOptions(prompt=Prompt(text="-"), url=url, dump_dir=dump_dir, python=python)
        events = open_target(options)
        while True:
            try:
                next(events)
            except StopIteration as done:
                self._target = done.value
                break
        self._client = SglangClient(self._target.url)

    @contextlib.contextmanager
    def capture(self, ids: Sequence[int]) -> Iterator[Recaptured]:
        """Raises DumpMissing when no dump comes, CheckFailed when it is short."""
        from workbench.probe.capture import capture, free_dumps

        got = capture(self._target, self._client, ids, timeout_s=self._timeout_s, logprobs=True)
        try:
            if got.shortfall is not None:
                raise CheckFailed(got.shortfall.message, got.shortfall.next_step)
            pairs = got.answer.get("meta_info", {}).get("input_token_logprobs") or []
            yield Recaptured(got.folder, tuple(pair[0] for pair in pairs))
        finally:
            free_dumps(self._target, [got])


def against_server(
    found: Found, rows: Sequence[int], pool: WorkerPool, server: Recapture, model: str | None
) -> tuple[list[Problem], list[Check]]:
    """Capture the rows again and compare the states; and push the last state through norm and LM head.

    Args:
        found: The data set.
        rows: Rows whose files can be read.
        pool: Workers.
        server: Captures.
        model: Model folder for the norm and the LM head; None leaves that out.
    """
    problems: list[Problem] = []
    worst, equal, nats = 0.0, 0, 0.0
    for row in rows:
        file = found.files[row]
        about = {"path": str((found.folder / file).absolute()), "kind": found.layout.name}
        ids = pool.call("sample_ids", **about, tensors=_tensors(found))
        with server.capture(ids) as fresh:
            compared = pool.call("audit_against_dump", **about, dump=fresh.folder)
            errors = [float("inf") if error is None else error for error in compared["errors"]]
            worst, equal = max(worst, *errors), equal + bool(compared["equal"])
            problems += _unlike(row, file, errors, compared["after_block"], found)
            if model is not None and len(fresh.logprobs) == len(ids):
                scored = _scored(pool, about, compared, model, fresh)
                nats = max(nats, scored.get("error") or 0.0)
                problems += _score_problem(row, file, scored)
    detail = (
        f"{len(rows)} samples captured again by {server.url}: off by {worst:.2g} at most, {equal} equal bit for bit"
    )
    checks = [outcome("server", problems, detail)]
    if model is None:
        checks.append(Check("log-probabilities", "skipped", "the model's folder is not known; name it with --model"))
    else:
        said = f"{len(rows)} last states give the server's log-probabilities, off by {nats:.2g} nats at most"
        checks.append(outcome("log-probabilities", problems, said))
    return problems, checks


def _tensors(found: Found) -> int | None:
    return len(found.record.states.after_block) + 1 if found.record is not None else None


def _unlike(row: int, file: str, errors: list[float], blocks: list[int], found: Found) -> list[Problem]:
    problems = []
    if found.record is not None and blocks != list(found.record.states.after_block):
        said = list(found.record.states.after_block)
        message = f"the server records blocks {blocks}, the data set holds {said}: start it with the same --layers"
        return [Problem(check="server", index=row, file=file, message=message)]
    for place, error in enumerate(errors):
        name = "the last state" if place == len(errors) - 1 else f"aux {place} (block {blocks[place]})"
        if not error <= MATCH:
            message = f"{name} is {error:.3g} off what the server computes for the same ids"
            problems.append(Problem(check="server", index=row, file=file, message=message))
    return problems


def _scored(
    pool: WorkerPool, about: Mapping[str, str], compared: Mapping[str, Any], model: str, fresh: Recaptured
) -> dict[str, Any]:
    try:
        scored: dict[str, Any] = pool.call(
            "audit_logits",
            **about,
            tensors=len(compared["errors"]),
            model=model,
            server_logprobs=list(fresh.logprobs),
        )
    except HsbenchError as error:
        return {"verdict": "ok", "error": None, "note": error.message}
    return scored


def _score_problem(row: int, file: str, scored: Mapping[str, Any]) -> list[Problem]:
    verdict = scored["verdict"]
    if verdict in ("ok", "nothing to compare"):
        return []
    far = f"{scored['error']:.3g}" if scored["error"] is not None else "infinitely"
    words = {
        "wrong norm": f"the last state fits as {scored['fits']}-norm, not as {scored['claimed']}-norm",
        "no match": f"the last state does not give the server's log-probabilities ({far} nats off)",
        "unclear": "the last state fits on both sides of the norm",
    }
    return [
        Problem(check="log-probabilities", index=row, file=file, message=words[verdict], warning=verdict == "unclear")
    ]


def against_reference(
    found: Found, rows: Sequence[int], pool: WorkerPool, model: str | None
) -> tuple[list[Problem], Check]:
    """Compute the rows' states with transformers in float32 and compare every block."""
    name = "reference"
    if found.record is None:
        return [], Check(name, "skipped", "the data set does not say which blocks it holds")
    if model is None:
        return [], Check(name, "skipped", "the model's folder is not known; name it with --model")
    states, problems, weak = found.record.states, [], 0
    with pool.borrow() as worker:  # one, since the model stays loaded in it
        for row in rows:
            judged = worker.call(
                "audit_reference",
                path=str((found.folder / found.files[row]).absolute()),
                kind=found.layout.name,
                after_block=list(states.after_block),
                num_blocks=states.num_blocks,
                model=str(Path(model).absolute()),
            )
            weak += any(check["weak"] for check in judged)
            problems += [p for check in judged if (p := _reference_problem(row, found.files[row], check)) is not None]
    note = f", {weak} of them too short to rely on" if weak else ""
    return problems, outcome(name, problems, f"{len(rows)} samples fit transformers in float32{note}")


def _reference_problem(row: int, file: str, check: Mapping[str, Any]) -> Problem | None:
    verdict = check["verdict"]
    if verdict == "ok":
        return None
    if verdict in ("wrong block", "wrong norm"):
        message = f"{check['name']} claims block {check['claimed']}, but it is {check['best']}"
    elif verdict == "unclear":
        message = f"{check['name']}: other blocks fit nearly as well"
    else:
        message = f"{check['name']} fits no block of the model"
    return Problem(
        check="reference", index=row, file=file, message=message, warning=verdict == "unclear" or check["weak"]
    )
