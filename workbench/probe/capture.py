"""One prompt through one server: send it, wait for its dump, say why if it does not come."""

import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from workbench.errors import DumpMissing, HsbenchError, Missing, ServerError
from workbench.probe.arrival import errors_of, wait_for_dumps
from workbench.probe.diagnose import Diagnosis, why_missing, why_short
from workbench.probe.evidence import Evidence, gather, read_json
from workbench.probe.session import Target
from workbench.server.client import SglangClient
from workbench.worker import Worker

REQUEST_PREFIX = "hs-"
OTHER_TOKENS = Diagnosis("other_tokens", "the dump holds other token ids than were sent", "report this defect")
SPARE_BYTES = 1 << 20
REST_S = 2.0
"""How long to wait for further chunks of a prompt that should have none, to say what is wrong with it."""


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """A dump that came: where it is, what the server answered, and what is short about it, if anything."""

    request_id: str
    token_ids: tuple[int, ...]
    folder: str
    meta: dict[str, Any]
    answer: dict[str, Any]
    seconds: float
    """From sending the request to the finished dump."""
    parts: tuple[str, ...] = ()
    """The dumps that `folder` was put together from; empty when prefill took one pass."""
    shortfall: Diagnosis | None = None
    """Why the dump does not hold the whole prompt; None when it does."""


def new_request_id() -> str:
    """A request id that the recorder takes as ours."""
    return f"{REQUEST_PREFIX}{uuid.uuid4().hex[:12]}"


def capture(
    target: Target,
    client: SglangClient,
    token_ids: Sequence[int],
    *,
    timeout_s: float,
    logprobs: bool = False,
    worker: Worker | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Capture:
    """Send `token_ids` and wait for their dump. The `worker` puts chunks together where they are allowed.

    Raises:
        DumpMissing: the server answered but no dump came; the message says why.
        ServerError: the recorder says that it failed on this request.
        Missing: the dump folder has no room for the dump.
    """
    request_id, began = new_request_id(), clock()
    start = 0 if logprobs else None
    answer = client.generate(list(token_ids), request_id, logprob_start=start, timeout=timeout_s)
    assert isinstance(answer, dict)
    parts = _arrived(target, request_id, began + timeout_s - clock(), len(token_ids))
    seconds = clock() - began
    return _whole(target, request_id, token_ids, parts, worker=worker, answer=answer, seconds=seconds)


def capture_batch(
    target: Target,
    client: SglangClient,
    prompts: Sequence[Sequence[int]],
    *,
    timeout_s: float,
    worker: Worker | None = None,
) -> list[Capture]:
    """Send several prompts as one batch and wait for all their dumps."""
    ids, began = [new_request_id() for _ in prompts], time.monotonic()
    answers = client.generate([list(prompt) for prompt in prompts], rid=ids, timeout=timeout_s)
    assert isinstance(answers, list)
    captures = []
    for request_id, prompt, answer in zip(ids, prompts, answers, strict=True):
        parts = _arrived(target, request_id, began + timeout_s - time.monotonic(), len(prompt))
        seconds = time.monotonic() - began
        captures.append(_whole(target, request_id, prompt, parts, worker=worker, answer=answer, seconds=seconds))
    return captures


def free_dumps(target: Target, captures: Sequence[Capture]) -> None:
    """Remove dumps that a check made for itself."""
    for folder in (folder for one in captures for folder in (one.folder, *one.parts)):
        if Path(folder).parent == Path(target.dump_dir):
            shutil.rmtree(folder, ignore_errors=True)


def check_room(target: Target, bytes_needed: int) -> None:
    """Refuse before sending when the dump folder cannot hold the dump.

    Raises:
        Missing: there is not enough space.
    """
    try:
        free = shutil.disk_usage(target.dump_dir).free
    except OSError:
        return
    if free < bytes_needed + SPARE_BYTES:
        found = why_missing(_seen(target, "", bytes_needed + SPARE_BYTES))
        raise Missing(found.message, found.next_step)


def _arrived(target: Target, request_id: str, timeout_s: float, tokens: int) -> list[Path]:
    dump_dir = Path(target.dump_dir)
    folders = wait_for_dumps(
        dump_dir,
        request_id,
        max(0.0, timeout_s),
        tokens=tokens,
        rest_s=timeout_s if target.allow_chunked else REST_S,
        failed=errors_of(dump_dir, request_id),
    )
    if not folders:
        raise no_dump(target, request_id, tokens)
    return folders


def no_dump(target: Target, request_id: str, tokens: int) -> HsbenchError:
    """The error that says why a finished request left no dump."""
    found = why_missing(_seen(target, request_id, 0))
    kinds: dict[str, type[HsbenchError]] = {"no_space": Missing, "recorder_failed": ServerError}
    kind = kinds.get(found.cause, DumpMissing)
    return kind(f"no dump came for {tokens} tokens: {found.message}", found.next_step)


def _whole(
    target: Target,
    request_id: str,
    token_ids: Sequence[int],
    parts: Sequence[Path],
    *,
    worker: Worker | None,
    answer: dict[str, Any],
    seconds: float,
) -> Capture:
    folder = parts[0]
    if len(parts) > 1 and target.allow_chunked and worker is not None and is_chain(parts, len(token_ids)):
        folder = Path(worker.call("join", folders=[str(part) for part in parts]))
    meta = read_json(folder / "meta.json") or {}
    found = None
    if list(meta.get("token_ids", ())) != list(token_ids) or meta.get("prefix_len"):  # evidence takes a while to gather
        found = why_short(_seen(target, request_id, 0), len(token_ids), meta) or OTHER_TOKENS
    return Capture(
        request_id=request_id,
        token_ids=tuple(token_ids),
        folder=str(folder),
        parts=() if folder == parts[0] else tuple(map(str, parts)),
        meta=meta,
        answer=answer,
        seconds=seconds,
        shortfall=found,
    )


def is_chain(parts: Sequence[Path], tokens: int) -> bool:
    """Whether each part begins where the one before it ends, and they hold the whole prompt."""
    have = 0
    for part in parts:
        meta = read_json(part / "meta.json") or {}
        if meta.get("prefix_len") != have:
            return False
        have += int(meta.get("num_tokens", 0))
    return have == tokens


def _seen(target: Target, request_id: str, needed: int) -> Evidence:
    return gather(
        request_id,
        Path(target.dump_dir),
        variable=target.dump_variable(),
        patch_state=target.patch_state(),
        patched_after_start=target.patched_after_start(),
        log=Path(target.log) if target.log else None,
        needed_bytes=needed,
    )
