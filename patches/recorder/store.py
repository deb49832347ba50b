"""The dump folder: numbering, atomic publication, index, errors and status."""

from __future__ import annotations

import collections
import contextlib
import errno
import json
import os
import re
import shutil
import threading
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from .passes import Slot

ROOM = 1 << 16
"""Bytes that a file takes beside its tensor, and more."""
UNSAID = 10_000
"""Lines about failures that are kept while the disk takes none."""


class DumpStore:
    """The dump folder: numbering, atomic publication, index, errors and status."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._saying = threading.Lock()
        self._unsaid: collections.deque[Mapping[str, Any]] = collections.deque(maxlen=UNSAID)
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("index.jsonl", "errors.jsonl"):
            self._end_torn_line(name)
        self._next = 1 + max(self._numbers(), default=-1)

    def _end_torn_line(self, name: str) -> None:
        """A server that was killed while writing left half a line, which ours must not go on with."""
        with contextlib.suppress(OSError), open(self.folder / name, "rb+") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")

    def _numbers(self) -> Iterable[int]:
        for entry in os.scandir(self.folder):
            if match := re.fullmatch(r"req_(\d+)(\.tmp)?", entry.name):
                yield int(match[1])
        with contextlib.suppress(OSError), open(self.folder / "index.jsonl", encoding="utf-8") as lines:
            for line in lines:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    yield int(json.loads(line)["n"])

    def write(self, request_id: str, tensors: list[tuple[Slot, torch.Tensor]], meta: dict[str, Any]) -> int:
        """Write one dump and publish it by rename. Returns its bytes of tensor data."""
        number, building = self._claim()
        try:
            meta["tensors"] = {slot.name: _save(building, slot, tensor) for slot, tensor in tensors}
            (building / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
            (building / "done").touch()
            os.rename(building, self.folder / f"req_{number}")
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
        size = sum(entry["nbytes"] for entry in meta["tensors"].values())
        line = {"n": number, "request_id": request_id, "nbytes": size, "pass": meta["pass"]["index"]}
        more = {key: meta.get(key, 0) for key in ("num_tokens", "prefix_len", "chunk")}
        try:
            self._append("index.jsonl", {**line, **more})
        except BaseException:  # a dump that no consumer can find would lie there for ever
            shutil.rmtree(self.folder / f"req_{number}", ignore_errors=True)
            raise
        return int(size)

    def _claim(self) -> tuple[int, Path]:
        with self._lock:
            while True:
                number, self._next = self._next, self._next + 1
                building = self.folder / f"req_{number}.tmp"
                if not (self.folder / f"req_{number}").exists():
                    with contextlib.suppress(FileExistsError):
                        building.mkdir()
                        return number, building

    def note_error(self, line: Mapping[str, Any]) -> None:
        """Add a line to errors.jsonl; one that a full disk does not take is kept for `say_errors`."""
        with self._saying:
            self._unsaid.append(line)
        self.say_errors()

    def say_errors(self) -> bool:
        """Write the lines that are kept; whether none is left."""
        with self._saying:
            while self._unsaid:
                try:
                    self._append("errors.jsonl", self._unsaid[0])
                except OSError:
                    return False
                self._unsaid.popleft()
        return True

    def publish_status(self, status: Mapping[str, Any]) -> None:
        """Replace recorder.json; a full disk must not end the status thread."""
        with contextlib.suppress(OSError):
            building = self.folder / "recorder.json.tmp"
            building.write_text(json.dumps(status), encoding="utf-8")
            os.replace(building, self.folder / "recorder.json")

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        """One write of a whole line, so that a reader and a second writer never see half of one.

        A full disk may take half a line; it is taken back.
        """
        data = (json.dumps(line) + "\n").encode()
        with self._lock, open(self.folder / name, "ab", buffering=0) as file:
            start = os.fstat(file.fileno()).st_size
            if file.write(data) != len(data):
                file.truncate(start)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder / name))


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that shares nothing.

    Made without torch, which has a team of OpenMP threads for each thread that copies: they spin when they are done,
    on the cores that the engine computes with.
    """
    copy = torch.empty(tensor.shape, dtype=tensor.dtype)
    copy.view(torch.uint8).numpy()[...] = tensor.contiguous().view(torch.uint8).numpy()
    return copy


def _save(folder: Path, slot: Slot, tensor: torch.Tensor) -> dict[str, Any]:
    """Save one tensor and describe it; crc32 is over its raw bytes, row by row."""
    if tensor.untyped_storage().nbytes() != tensor.nbytes or not tensor.is_contiguous():
        tensor = _alone(tensor)  # torch.save writes the whole storage behind a view, in its order
    try:
        torch.save(tensor, folder / f"{slot.name}.pt")
    except RuntimeError as error:
        if shutil.disk_usage(folder).free < tensor.nbytes + ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from error  # torch does not say so
        raise
    raw = memoryview(tensor.view(torch.uint8).numpy())  # type: ignore[arg-type]
    return {
        "file": f"{slot.name}.pt",
        "after_block": slot.after_block,
        "captured_entering": slot.captured_entering,
        "norm": slot.norm,
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "nbytes": tensor.nbytes,
        "crc32": f"{zlib.crc32(raw):08x}",
    }
