"""The probe operation: from a prompt to a report, as a generator of records that any front end can show."""

import contextlib
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from probes.weights import is_routed
from workbench.errors import RequestRefused, ServerError, UsageError
from workbench.probe import checks
from workbench.probe.capture import Capture, capture, check_room
from workbench.probe.evidence import read_json
from workbench.probe.lease import Lease
from workbench.probe.options import ProbeOptions
from workbench.probe.prompt import Prompt
from workbench.probe.report import OtherDump, ProbeReport, TensorRow, Token
from workbench.probe.session import Target, check_folder, explained, model_config, open_target, stop_quietly
from workbench.probe.verdict import judge
from workbench.server.client import SglangClient
from workbench.server.engine import find_interpreter
from workbench.server.events import Note, ServerEvent
from workbench.worker import Worker

DUMPED_TENSORS = 4
BYTES_PER_VALUE = 4
"""Upper bound for the room that a dump needs: bfloat16 in truth, float32 at most."""


def run(options: ProbeOptions) -> Iterator[ServerEvent | ProbeReport]:
    """Probe one prompt. The report comes last but for the notes about stopping the server.

    Raises:
        HsbenchError: see `workbench.errors`; a server started for the probe is stopped first.
    """
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        worker = stack.enter_context(Worker(find_interpreter(options.python)))
        target = yield from open_target(options)
        lease = stack.enter_context(_use(target, options.keep)) if target.record is not None else None
        if target.python != worker.python:
            worker = stack.enter_context(Worker(target.python))
        client = stack.enter_context(SglangClient(target.url))
        try:
            yield from _probe(options, target, client, worker, began)
        except ServerError as error:
            raise explained(target, error) from error
        if lease is not None and (target.started_here or lease.passing):
            yield Note(_afterwards(options, target))


@contextlib.contextmanager
def _use(target: Target, keep: bool) -> Iterator[Lease]:
    """Hold a lease on the server while it is probed, and stop it if it is passing and nobody else uses it."""
    assert target.record is not None
    lease = Lease(target.record)
    try:
        with lease:
            if keep:
                lease.keep()
            elif target.started_here:
                lease.mark_passing()
            yield lease
    finally:
        if lease.last and lease.passing:
            stop_quietly(target.record)


def _afterwards(options: ProbeOptions, target: Target) -> str:
    if options.keep:
        return f"the server stays at {target.url}; hsbench stop {options.name} ends it"
    return "stopping the server that was started for a probe, unless another one uses it (--keep leaves it running)"


def _probe(
    options: ProbeOptions, target: Target, client: SglangClient, worker: Worker, began: float
) -> Generator[ServerEvent | ProbeReport, None, None]:
    check_folder(target)
    model = str(client.model_info()["model_path"])
    config = model_config(model)
    tokens = _tokens(options.prompt, client)
    _check_tokens(tokens, client, config)
    room = len(tokens) * int(config.get("hidden_size", 0)) * DUMPED_TENSORS * BYTES_PER_VALUE
    check_room(target, room)
    got = capture(target, client, tokens, timeout_s=options.timeout_s, logprobs=options.reference, worker=worker)
    _check_layers(options, got)
    rows = _rows(worker.call("describe", folder=got.folder))
    deeper: dict[str, Any] = {}
    if options.reference and got.shortfall is None:
        yield Note("loading the same model with transformers in float32")
        deeper["reference"], deeper["logits"] = checks.reference_check(
            target, client, worker, got, model=model, timeout_s=options.timeout_s
        )
    if options.self_test and got.shortfall is None:
        yield Note("sending the prompt again inside a batch")
        deeper["self_test"] = checks.self_test(
            target, client, worker, got, timeout_s=options.timeout_s, routed=is_routed(config)
        )
    verdict = judge(got, rows, deeper)
    pieces = _pieces(tokens, client)
    seconds = sum(row.bytes for row in rows) / got.seconds / 1e9
    yield ProbeReport(
        model=model,
        prompt=options.prompt.text or ",".join(map(str, tokens)),
        tokens=tuple(Token(i, text) for i, text in zip(tokens, pieces, strict=True)),
        tensors=rows,
        final_norm=str(got.meta.get("final_norm")),
        other_dumps=_others(worker, target, got),
        verdict=verdict.name,
        summary=verdict.summary,
        next_step=verdict.next_step,
        seconds=time.monotonic() - began,
        capture_seconds=got.seconds,
        gb_per_second=seconds,
        request_id=got.request_id,
        dump=got.folder,
        server=target.url,
        route=got.meta.get("route"),
        chunks=max(1, len(got.parts)),
        **deeper,
    )


def _tokens(prompt: Prompt, client: SglangClient) -> list[int]:
    if prompt.token_ids:
        return list(prompt.token_ids)
    if prompt.chat:
        return client.tokenize_chat([{"role": "user", "content": prompt.text}])
    return client.tokenize(prompt.text)[0]


def _pieces(tokens: list[int], client: SglangClient) -> list[str]:
    """The text of each token; empty when the server has no tokenizer."""
    try:
        return client.pieces(tokens)
    except RequestRefused:
        return [""] * len(tokens)


def _check_tokens(tokens: list[int], client: SglangClient, config: dict[str, Any]) -> None:
    """Refuse what the engine would cut, or die of.

    Raises:
        UsageError: no tokens, an id outside the vocabulary, or more tokens than the server takes.
    """
    if not tokens:
        raise UsageError("the prompt has no tokens", 'give at least one, such as hsbench probe "Hello world"')
    limit = client.max_input_len()
    if limit is not None and len(tokens) > limit:
        raise UsageError(
            f"the prompt has {len(tokens)} tokens, the server takes {limit}",
            "shorten it, or start the server with a longer --context-length or more --max-total-tokens",
        )
    vocabulary = config.get("vocab_size")
    if isinstance(vocabulary, int) and max(tokens) >= vocabulary:
        raise UsageError(
            f"token id {max(tokens)} is outside the model's vocabulary of {vocabulary}", "are these ids of this model?"
        )


def _check_layers(options: ProbeOptions, got: Capture) -> None:
    blocks = got.meta.get("after_block")
    if options.layers is not None and blocks is not None and list(options.layers) != list(blocks):
        raise UsageError(
            f"the server captures blocks {','.join(map(str, blocks))}, not {','.join(map(str, options.layers))}",
            "leave --layers out, or stop the server and probe again",
        )


def _rows(described: dict[str, Any]) -> tuple[TensorRow, ...]:
    rows = []
    for name, entry in described["tensors"].items():
        claim, stats = entry["claim"] or {}, entry["stats"]
        rows.append(
            TensorRow(
                name=name,
                after_block=claim.get("after_block", -1),
                captured_entering=claim.get("captured_entering"),
                norm=claim.get("norm"),
                shape=tuple(stats["shape"]),
                **{field: stats[field] for field in ("dtype", "bytes", "min", "max", "mean", "std")},
                **{field: stats[field] for field in ("zeros", "nan", "inf")},
                histogram=tuple(stats["histogram"]),
                token_norms=tuple(stats["token_norms"]),
            )
        )
    return tuple(rows)


def _others(worker: Worker, target: Target, got: Capture) -> tuple[OtherDump, ...]:
    """Other dumps in the folder, and what the recorder saw without writing it."""
    own = Path(got.folder).name
    listed = [
        OtherDump(entry["name"], entry["kind"], entry["tokens"], entry["request_id"])
        for entry in worker.call("list_dumps", folder=target.dump_dir)
        if entry["name"] != own
    ]
    status = read_json(Path(target.dump_dir) / "recorder.json") or {}
    return (*listed, *_left_out(status))


def _left_out(status: dict[str, Any]) -> Iterator[OtherDump]:
    """What the recorder saw and did not write; readiness checks of `hsbench serve` are told from foreign ones."""
    counts = dict(status.get("counts", {}))
    ready = sum(str(seen.get("request_id")).startswith("ready-") for seen in status.get("recent", ()))
    counts["requests_foreign"] = max(0, counts.get("requests_foreign", 0) - ready)
    kinds = {
        "warm-up": counts.get("requests_warm_up", 0),
        "readiness check": ready,
        "health probe": counts.get("requests_health", 0),
        "foreign": counts["requests_foreign"],
        "decode pass": counts.get("passes_decode", 0),
    }
    yield from (OtherDump("", kind, count=count) for kind, count in kinds.items() if count)
