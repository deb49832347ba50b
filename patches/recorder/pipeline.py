"""From the engine's forward pass to the dump folder: choose, copy aside, copy to the host, write."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from .passes import Chunks, Pass, Slot, Span, packed
from .settings import HEALTH_PREFIX, OUR_PREFIX, SCHEMA, Settings
from .store import DumpStore

RECENT = 64
STATUS_INTERVAL_S = 0.5

logger = logging.getLogger("sglang.hs_recorder")


class Recorder:
    """Chooses the requests to record and hands their tensors to the writer threads.

    With `writes` False it chooses the same and keeps nothing, touches no disk and has no threads.
    """

    def __init__(self, settings: Settings, engine: Mapping[str, Any], writes: bool = True) -> None:
        self.settings = settings
        self.engine = dict(engine)
        self.writes = writes
        self.counts: collections.Counter[str] = collections.Counter()
        self.recent: collections.deque[dict[str, Any]] = collections.deque(maxlen=RECENT)
        self.waiting = self.waiting_peak = 0
        self.engine_ns = 0
        """Time that the engine's thread has spent in the recorder, being held back included."""
        self._chunks = Chunks()
        self._changed = threading.Condition()
        self._dirty = threading.Event()
        self._side_stream: Any = None
        if not writes:
            return
        self.store = DumpStore(settings.dump_dir)
        self._copier = concurrent.futures.ThreadPoolExecutor(1, "hs-copier")
        self._writers = concurrent.futures.ThreadPoolExecutor(settings.writers, "hs-writer")
        threading.Thread(target=self._publish_status, name="hs-status", daemon=True).start()
        self._dirty.set()

    # On the engine's thread.

    @contextlib.contextmanager
    def on_engine_thread(self) -> Iterator[None]:
        """Count the time of the block."""
        began = time.perf_counter_ns()
        try:
            yield
        finally:
            self.engine_ns += time.perf_counter_ns() - began

    def begin(self, model: Any, batch: Any) -> Pass | None:
        """Start recording this forward pass, or None when it holds nothing for us."""
        mode = getattr(batch.forward_mode, "name", "")
        if mode != "EXTEND" or batch.rids is None or _is_capturing():
            self._count("passes_graph" if mode == "EXTEND" else f"passes_{mode.lower()}")
            return None
        index = self.counts["passes_extend"]
        self._count("passes_extend")
        spans = self._spans(batch, first=index == 0)
        if not spans:
            return None
        num_blocks = _num_blocks(model)
        lengths = batch.extend_seq_lens_cpu
        now = Pass(index, spans, sum(map(int, lengths)), len(lengths), num_blocks)
        now.slots = {slot.captured_entering: slot for slot in self._aux_slots(num_blocks)}  # type: ignore[misc]
        now.model_class = type(model).__name__
        if self.writes:
            self._keep_token_ids(now, batch)
        return now

    def _keep_token_ids(self, now: Pass, batch: Any) -> None:
        """A failure must not end the pass: this rank goes on asking for states as the others do."""
        try:
            now.keep_token_ids(batch.input_ids)
        except Exception as error:
            self.fail(now, "begin", error)

    def _spans(self, batch: Any, first: bool) -> list[Span]:
        spans, start = [], 0
        lengths, prefixes = batch.extend_seq_lens_cpu, batch.extend_prefix_lens_cpu
        for rid, length, prefix in zip(batch.rids, lengths, prefixes, strict=False):
            fate = self._fate(str(rid), first)
            if fate == "recorded":
                chunk = self._chunks.number(str(rid), int(length), int(prefix))
                spans.append(Span(str(rid), start, int(length), int(prefix), chunk))
            self._count(f"requests_{fate}")
            self._remember(str(rid), int(length), int(prefix), fate)
            start += int(length)
        return spans

    def _fate(self, request_id: str, first: bool) -> str:
        """A server's first EXTEND pass is its own warm-up unless the request is ours."""
        if request_id.startswith(OUR_PREFIX):
            return "recorded"
        if request_id.startswith(HEALTH_PREFIX):
            return "health"
        if first:
            return "warm_up"
        return "recorded" if self.settings.record_all else "foreign"

    def _aux_slots(self, num_blocks: int) -> Iterable[Slot]:
        blocks = self.settings.blocks
        if blocks is None:
            blocks = (2, num_blocks // 2, num_blocks - 3)
        for number, block in enumerate(blocks):
            if not 0 <= block < num_blocks - 1:
                raise ValueError(f"block {block} is not among 0..{num_blocks - 2}; the last is `final`")
            yield Slot(f"aux_{number}", block, block + 1, None)

    def final_slot(self, now: Pass, norm: str) -> Slot | None:
        """The slot for the last state on the given side of the final norm, or None if not wanted."""
        if self.settings.final not in (norm, "both"):
            return None
        name = "final_post" if norm == "post" and self.settings.final == "both" else "final"
        return Slot(name, now.num_blocks - 1, None, norm)

    def finish(self, now: Pass) -> None:
        """Hand the pass to the copier; holds the engine back only while too many bytes wait."""
        if not self.writes:
            return
        finals = [slot for norm in ("pre", "post") if (slot := self.final_slot(now, norm)) is not None]
        missing = [slot.name for slot in (*now.slots.values(), *finals) if slot.name not in now.tensors]
        if missing:
            raise RuntimeError(f"not captured: {', '.join(missing)}")
        if len({tensor.shape for _, tensor in now.tensors.values()}) > 1:
            shapes = {slot.name: tuple(tensor.shape) for slot, tensor in now.tensors.values()}
            raise RuntimeError(f"captured tensors of different shapes: {shapes}")
        if self.settings.plain:
            self._write_plainly(now)
            return
        size = sum(tensor.nbytes for _, tensor in now.tensors.values())
        with self._changed:
            if self.waiting and self.waiting + size > self.settings.max_waiting:
                began = time.monotonic()
                self._changed.wait_for(lambda: not self.waiting or self.waiting + size <= self.settings.max_waiting)
                self.counts["held_back_ms"] += int(1000 * (time.monotonic() - began))
            self.waiting += size
            self.waiting_peak = max(self.waiting_peak, self.waiting)
        event = None
        if next(iter(now.tensors.values()))[1].is_cuda:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._copier.submit(self._copy_and_write, now, event, size)

    def _write_plainly(self, now: Pass) -> None:
        """The forward pass waits for pageable copies and for the disk."""
        assert now.token_ids is not None
        host = {name: tensor.cpu() for name, (_, tensor) in now.tensors.items()} | {"token_ids": now.token_ids.cpu()}
        for span, row in packed(now):
            self._write(now, host, span, row, 0)

    # On the recorder's threads.

    def _copy_and_write(self, now: Pass, event: Any, size: int) -> None:
        try:
            host = self._to_host(now, event)
        except Exception as error:
            self.fail(now, "copy", error)
            self._release(size)
            return
        bytes_per_row = size // max(1, sum(span.length for span in now.spans))
        for span, row in packed(now):
            self._writers.submit(self._write, now, host, span, row, bytes_per_row * span.length)

    def _release(self, size: int) -> None:
        with self._changed:
            self.waiting -= size
            self._changed.notify_all()
        self._dirty.set()

    def _to_host(self, now: Pass, event: Any) -> dict[str, torch.Tensor]:
        """All tensors of the pass in host memory; on CUDA through pinned memory and a stream of its own."""
        assert now.token_ids is not None
        device = {name: tensor for name, (_, tensor) in now.tensors.items()}
        device["token_ids"] = now.token_ids
        if event is None:
            return device
        if self._side_stream is None:
            self._side_stream = torch.cuda.Stream(now.token_ids.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._side_stream):
            self._side_stream.wait_event(event)
            host = {name: torch.empty_like(t, device="cpu", pin_memory=True) for name, t in device.items()}
            for name, tensor in device.items():
                host[name].copy_(tensor, non_blocking=True)
        self._side_stream.synchronize()
        return host

    def _write(self, now: Pass, host: Mapping[str, torch.Tensor], span: Span, row: int, size: int) -> None:
        try:
            rows = slice(row, row + span.length)
            tensors = [(slot, host[slot.name][rows]) for slot, _ in now.tensors.values()]
            meta = self._meta(now, span, host["token_ids"][rows].tolist())
            written = self.store.write(span.request_id, tensors, meta)
        except Exception as error:
            self.fail(now, "write", error, [span])
        else:
            self._count("written")
            self._count("bytes", written)
        finally:
            self._release(size)

    def _meta(self, now: Pass, span: Span, token_ids: list[int]) -> dict[str, Any]:
        aux = list(now.slots.values())
        return {
            "schema": SCHEMA,
            "request_id": span.request_id,
            "forward_mode": "EXTEND",
            "token_ids": token_ids,
            "num_tokens": span.length,
            "prefix_len": span.prefix_len,
            "chunk": span.chunk,
            "num_blocks": now.num_blocks,
            "after_block": [slot.after_block for slot in aux],
            "captured_entering": [slot.captured_entering for slot in aux],
            "final_norm": "post" if self.settings.final == "post" else "pre",
            "pass": {"index": now.index, "requests": now.requests, "rows": now.rows, "row": span.start},
            "model_class": now.model_class,
            "time": time.time(),
            **self.engine,
        }

    def fail(self, now: Pass | None, where: str, error: BaseException, spans: list[Span] | None = None) -> None:
        """Count a failure, log the first, and add one line a request to errors.jsonl."""
        if now is not None:
            now.failed = True
        if not self.writes:
            return
        if self.counts["errors"] == 0:
            logger.error("_hs_ recorder failed in %s: %s", where, error, exc_info=error)
        self._count("errors")
        for span in spans or (now.spans if now else []) or [Span("", 0, 0, 0)]:
            self.store.note_error(
                {"time": time.time(), "request_id": span.request_id, "where": where, "error": repr(error)}
            )

    def _count(self, what: str, by: int = 1) -> None:
        with self._changed:
            self.counts[what] += by
        self._dirty.set()

    def _remember(self, rid: str, tokens: int, prefix: int, fate: str) -> None:
        self.recent.append(
            {"time": time.time(), "request_id": rid, "tokens": tokens, "prefix_len": prefix, "fate": fate}
        )

    def _publish_status(self) -> None:
        while True:
            self._dirty.wait()
            self._dirty.clear()
            with self._changed:
                status = {
                    "schema": SCHEMA,
                    "pid": os.getpid(),
                    "time": time.time(),
                    "blocks": self.settings.blocks,
                    "final": self.settings.final,
                    "record_all": self.settings.record_all,
                    "counts": dict(self.counts),
                    "waiting_bytes": self.waiting,
                    "waiting_peak": self.waiting_peak,
                    "engine_us": self.engine_ns // 1000,
                    "recent": list(self.recent),
                    **self.engine,
                }
            self.store.publish_status(status)
            if not self.store.say_errors():
                self._dirty.set()
            time.sleep(STATUS_INTERVAL_S)


def _num_blocks(model: Any) -> int:
    """From the configuration, or for models that keep none (gpt-oss) from the list of blocks, which is whole."""
    config = getattr(model, "config", None)
    return len(model.layers) if config is None else int(config.num_hidden_layers)


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
