"""One prompt through one server: send it, wait for its dump, say why if it does not come."""

import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from workbench.errors import DumpMissing, Missing
from workbench.probe.arrival import has_error, wait_for_dump
from workbench.probe.diagnose import Diagnosis, why_missing, why_short
from workbench.probe.evidence import Evidence, gather, read_json
from workbench.probe.session import Target
from workbench.server.client import SglangClient

REQUEST_PREFIX = "hs-"
SPARE_BYTES = 1 << 20


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """A dump that came: where it is, what the server answered, and what is short about it, if anything."""

    request_id: str
    token_ids: tuple[int, ...]
    folder: str
    meta: dict[str, Any]
    answer: dict[str, Any]
    seconds: float
    """From sending the request to the finished dump."""
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
    clock: Callable[[], float] = time.monotonic,
) -> Capture:
    """Send `token_ids` and wait for their dump.

    Raises:
        DumpMissing: the server answered but no dump came; the message says why.
        Missing: the dump folder has no room for the dump.
    """
    request_id, began = new_request_id(), clock()
    start = 0 if logprobs else None
    answer = client.generate(list(token_ids), request_id, logprob_start=start, timeout=timeout_s)
    assert isinstance(answer, dict)
    folder = _arrived(target, request_id, began + timeout_s - clock(), len(token_ids))
    return _whole(target, request_id, token_ids, folder, answer=answer, seconds=clock() - began)


def capture_batch(
    target: Target, client: SglangClient, prompts: Sequence[Sequence[int]], *, timeout_s: float
) -> list[Capture]:
    """Send several prompts as one batch and wait for all their dumps."""
    ids, began = [new_request_id() for _ in prompts], time.monotonic()
    answers = client.generate([list(prompt) for prompt in prompts], rid=ids, timeout=timeout_s)
    assert isinstance(answers, list)
    captures = []
    for request_id, prompt, answer in zip(ids, prompts, answers, strict=True):
        folder = _arrived(target, request_id, began + timeout_s - time.monotonic(), len(prompt))
        captures.append(_whole(target, request_id, prompt, folder, answer=answer, seconds=time.monotonic() - began))
    return captures


def free_dumps(target: Target, captures: Sequence[Capture]) -> None:
    """Remove dumps that a check made for itself."""
    for one in captures:
        if Path(one.folder).parent == Path(target.dump_dir):
            shutil.rmtree(one.folder, ignore_errors=True)


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


def _arrived(target: Target, request_id: str, timeout_s: float, tokens: int) -> Path:
    dump_dir = Path(target.dump_dir)
    folder = wait_for_dump(dump_dir, request_id, max(0.0, timeout_s), failed=lambda: has_error(dump_dir, request_id))
    if folder is None:
        found = why_missing(_seen(target, request_id, 0))
        raise DumpMissing(f"no dump came for {tokens} tokens: {found.message}", found.next_step)
    return folder


def _whole(
    target: Target,
    request_id: str,
    token_ids: Sequence[int],
    folder: Path,
    *,
    answer: dict[str, Any],
    seconds: float,
) -> Capture:
    meta = read_json(folder / "meta.json") or {}
    got, prefix = len(meta.get("token_ids", ())), int(meta.get("prefix_len", 0))
    found = why_short(_seen(target, request_id, 0), len(token_ids), got, prefix)
    if found is None and list(meta.get("token_ids", ())) != list(token_ids):
        found = Diagnosis("other_tokens", "the dump holds other token ids than were sent", "report this defect")
    return Capture(
        request_id=request_id,
        token_ids=tuple(token_ids),
        folder=str(folder),
        meta=meta,
        answer=answer,
        seconds=seconds,
        shortfall=found,
    )


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
