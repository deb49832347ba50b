"""One sample of a data set for a person to look at: its line in the index, tokens and mask, and what its states hold.

The tensors are read by the worker in the engine's interpreter; the index is searched, not read, when it is long.
"""

import contextlib
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from workbench.errors import HsbenchError, UsageError
from workbench.extract.formats import layout
from workbench.extract.index import INDEX_FILE, IndexLine
from workbench.extract.job.files import JobFiles
from workbench.extract.record import Format, RunRecord, load_record
from workbench.extract.watch.foreign import count_samples
from workbench.server.engine import find_interpreter
from workbench.worker import Worker

WHOLE = 16 << 20
"""Bytes of an index that are searched from end to end; of a longer one its end, and where a row's line should be."""
BLOCK, AROUND = 1 << 16, 4 << 20
"""Bytes read at each step of the search, and at its end on both sides."""
STEPS = 40
TOKENS_SHOWN = 600
"""Tokens that are decoded."""
SEARCHED_FOR: tuple[tuple[Format, str, str], ...] = (
    ("speculators-v1", "data_", ".pt"),
    ("specforge", "data_", ".ckpt"),
    ("speculators", "hs_", ".safetensors"),
)


class TensorView(msgspec.Struct, frozen=True, kw_only=True):
    """One state of a sample. None is what was not measured, or has no finite value."""

    name: str
    block: int | None = None
    """The block whose output it is."""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    std: float | None = None
    row_norm: float | None = None
    """Median L2 norm of the rows without the first."""
    bad: int | None = None
    """Elements that are NaN or infinite; without a histogram, rows that hold one."""
    zeros: int | None = None
    """Zero elements; without a histogram, rows that are all zero."""
    histogram: tuple[int, ...] = ()


class SampleView(msgspec.Struct, frozen=True, kw_only=True):
    """One sample."""

    index: int
    path: str = ""
    """Its file, or the dump in quarantine."""
    line: IndexLine | None = None
    """Its last line in the index."""
    line_note: str = ""
    """Why there is no line, or in what the file differs from it."""
    ids: tuple[int, ...] = ()
    mask: tuple[int, ...] | None = None
    pieces: tuple[str, ...] = ()
    """Text of the first tokens; empty without a tokenizer."""
    tensors: tuple[TensorView, ...] = ()
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be shown, and why."""


class Samples:
    """Looks at samples of one data set, one after the other. Not for several threads.

    Args:
        folder: Of the data set.
        worker: Makes the process that reads tensors, given an interpreter.

    Raises:
        UsageError: the folder's description is damaged, or no format that is known is in it.
    """

    every_s = 3600.0
    """It is only woken."""

    def __init__(self, folder: Path, worker: Callable[[str], Worker] = Worker) -> None:
        self.folder = folder.absolute()
        self.record = load_record(self.folder)
        self.format, self.suffix = _format_of(self.folder, self.record)
        self.index = self.first
        """The sample that is looked at next."""
        self._make_worker = worker
        self._worker: Worker | None = None
        self._tokenizer: Any = None
        self._asked_tokenizer = False

    @property
    def rows(self) -> int | None:
        """Rows of the source; None when it is not known."""
        return self.record.source.rows if self.record else None

    @property
    def first(self) -> int:
        """The first row of this folder's share."""
        return self.record.shard[0] if self.record else 0

    @property
    def step(self) -> int:
        """From one row of this folder's share to the next."""
        return self.record.shard[1] if self.record else 1

    def collect(self) -> SampleView:
        """Look at `index`."""
        return self.look(self.index)

    def look(self, index: int) -> SampleView:
        """Look at one sample. What cannot be seen of it is in the notes."""
        line, note = find_line(self.folder, index)
        view = SampleView(index=index, line=line, line_note=note)
        dump = self._dump_of(index) if line is None or line.status != "written" else None
        path = self.path_of(index, line)
        try:
            if dump is not None:
                return self._with_text(_of_dump(view, dump, self._call))
            if not path.exists():
                missing = f"there is no {path.relative_to(self.folder)}"
                return msgspec.structs.replace(view, notes=(missing,))
            return self._with_text(self._of_file(view, path))
        except HsbenchError as error:
            notes = (error.message, *([f"next: {error.next_step}"] if error.next_step else []))
            return msgspec.structs.replace(view, path=str(path), notes=notes)

    def path_of(self, index: int, line: IndexLine | None = None) -> Path:
        """Where a sample's file is, or would be."""
        if line is not None and line.file:
            return self.folder / line.file
        beside = self.folder / layout(self.format).file_of(index)
        flat = self.folder / f"data_{index}{self.suffix}"
        return flat if not beside.exists() and flat.exists() else beside

    def _dump_of(self, index: int) -> Path | None:
        """The dump of a sample in quarantine."""
        place = self.folder.with_name(f"{self.folder.name}.quarantine") / f"sample_{index}"
        with contextlib.suppress(OSError):
            return max((one for one in place.iterdir() if one.is_dir()), default=None)
        return None

    def _of_file(self, view: SampleView, path: Path) -> SampleView:
        tensors = len(self.record.states.after_block) + 1 if self.record else None
        audit = self._call("audit_file", path=str(path), kind=self.format, tensors=tensors)
        faults = tuple(f"{fault['check']}: {fault['message']}" for fault in audit["faults"])
        view = msgspec.structs.replace(view, path=str(path), faults=faults)
        view = msgspec.structs.replace(view, line_note=view.line_note or _difference(view.line, audit))
        if any(fault["check"] == "unreadable" for fault in audit["faults"]):
            return view
        try:
            told = self._call("describe_sample", path=str(path), kind=self.format, tensors=tensors)
        except UsageError:  # a worker without that call
            ids = self._call("sample_ids", path=str(path), kind=self.format, tensors=tensors)
            told = {"ids": ids, "mask": None, "states": []}
            note = "the worker tells no histogram and no mask by token"
            view = msgspec.structs.replace(view, notes=(*view.notes, note))
        blocks = (*self.record.states.after_block, self.record.states.num_blocks - 1) if self.record else ()
        return msgspec.structs.replace(
            view,
            ids=tuple(told["ids"]),
            mask=tuple(told["mask"]) if told["mask"] is not None else None,
            tensors=_tensors(audit["facts"], told["states"], blocks),
        )

    def _call(self, name: str, **arguments: Any) -> Any:
        if self._worker is None or not self._worker.alive():
            self._worker = self._make_worker(find_interpreter(self._python()))
        return self._worker.call(name, **arguments)

    def _python(self) -> str | None:
        with contextlib.suppress(HsbenchError):
            job = JobFiles(self.folder).load()
            return job.settings.python if job is not None else None
        return None

    def _with_text(self, view: SampleView) -> SampleView:
        tokenizer = self._tokenizer_of_model()
        if tokenizer is None or not view.ids:
            return view
        try:
            pieces = tuple(str(tokenizer.decode([one], skip_special_tokens=False)) for one in view.ids[:TOKENS_SHOWN])
        except Exception:  # ids of another vocabulary; the library raises kinds of its own
            return view
        return msgspec.structs.replace(view, pieces=pieces)

    def _tokenizer_of_model(self) -> Any:
        """From `tokenizer.json` of the model's folder, where the library is; loaded once."""
        if not self._asked_tokenizer and self.record is not None:
            self._asked_tokenizer = True
            model = self.record.source.tokenizer or self.record.engine.model
            file = Path(model) / "tokenizer.json"
            with contextlib.suppress(Exception):  # not installed, or a file that it does not understand
                if file.is_file():
                    self._tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(str(file))
        return self._tokenizer

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.close()


def _format_of(folder: Path, record: RunRecord | None) -> tuple[Format, str]:
    """The format, by the run's description or by its files' names, and the suffix of these."""
    if record is not None:
        return record.format, next(suffix for name, _, suffix in SEARCHED_FOR if name == record.format)
    newest = count_samples(str(folder), (0, 1)).newest
    for name, prefix, suffix in SEARCHED_FOR:
        if any(os.path.basename(file).startswith(prefix) and file.endswith(suffix) for file in newest):
            return name, suffix
    raise UsageError(f"{folder} holds no samples yet", "wait for the first one")


def find_line(folder: Path, index: int) -> tuple[IndexLine | None, str]:
    """The last line of a row in the index; without one, why. A bounded part of the index is read."""
    path = folder / INDEX_FILE
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            found = _last_in(_read(file, max(0, size - WHOLE), size), index)
            if found is None and size > WHOLE:
                found = _search(file, size, index)
    except FileNotFoundError:
        return None, "there is no index"
    except OSError as error:
        return None, f"the index cannot be read: {error.strerror}"
    if found is not None:
        return found, ""
    return None, "not in the index: still to be done" if size <= WHOLE else "not in the part of the index looked at"


def _read(file: Any, start: int, end: int) -> bytes:
    file.seek(start)
    data: bytes = file.read(end - start)
    return data


def _last_in(data: bytes, index: int) -> IndexLine | None:
    """The last whole line of a row; the key opens each line, and cannot stand inside a string unescaped."""
    end = len(data)
    while (start := data.rfind(b'{"index":%d,' % index, 0, end)) >= 0:
        stop = data.find(b"\n", start)
        if stop >= 0:
            with contextlib.suppress(msgspec.MsgspecError):
                return msgspec.json.decode(data[start:stop], type=IndexLine)
        end = start
    return None


def _search(file: Any, size: int, index: int) -> IndexLine | None:
    """By halves: lines come nearly in the order of their rows."""
    low, high = 0, size
    for _ in range(STEPS):
        if high - low <= BLOCK:
            break
        middle = (low + high) // 2
        numbers = sorted(_numbers(_read(file, middle, middle + BLOCK)))
        if not numbers:
            break
        if numbers[len(numbers) // 2] < index:
            low = middle
        else:
            high = middle
    return _last_in(_read(file, max(0, low - AROUND), low + AROUND), index)


def _numbers(block: bytes) -> list[int]:
    """Rows of the lines that begin in a block."""
    found = []
    for piece in block.split(b'{"index":')[1:]:
        digits = piece.partition(b",")[0]
        if digits.isdigit():
            found.append(int(digits))
    return found


def _difference(line: IndexLine | None, audit: dict[str, Any]) -> str:
    """In what a file is not what its line says."""
    if line is None or line.status != "written":
        return ""
    names = ("nbytes", "crc32", "tokens", "ids", "mask")
    other = [name for name in names if getattr(line, name) and audit[name] not in ("", getattr(line, name))]
    return f"the file is not as the index says: {', '.join(other)}" if other else ""


def _tensors(facts: Any, states: Any, blocks: tuple[int, ...]) -> tuple[TensorView, ...]:
    """From `probes.quick.Facts` of each state, and `probes.stats.TensorStats` where they are known."""
    found = []
    for number, fact in enumerate(facts):
        block = blocks[number] if len(blocks) == len(facts) else None
        name = "last" if number == len(facts) - 1 else f"aux {number}"
        whole: dict[str, Any] = {
            "shape": (fact["rows"], fact["width"]),
            "dtype": fact["dtype"],
            "low": fact["low"],
            "high": fact["high"],
            "std": fact["std"],
            "bad": fact["bad_rows"],
            "zeros": fact["zero_rows"],
        }
        if number < len(states):
            whole = _of_stats(states[number])
        found.append(TensorView(name=name, block=block, row_norm=fact["row_norm"], **whole))
    return tuple(found)


def _of_stats(stats: dict[str, Any]) -> dict[str, Any]:
    return {
        "shape": tuple(stats["shape"]),
        "dtype": stats["dtype"],
        "low": stats["min"],
        "high": stats["max"],
        "mean": stats["mean"],
        "std": stats["std"],
        "bad": stats["nan"] + stats["inf"],
        "zeros": stats["zeros"],
        "histogram": tuple(stats["histogram"]),
    }


def _of_dump(view: SampleView, dump: Path, call: Callable[..., Any]) -> SampleView:
    """A sample in quarantine, by the dump that was kept."""
    told = call("describe", folder=str(dump))
    meta = told["meta"] or {}
    tensors = tuple(
        TensorView(name=name, block=(entry["claim"] or {}).get("after_block"), **_of_stats(entry["stats"]))
        for name, entry in told["tensors"].items()
    )
    ids = tuple(meta.get("token_ids") or ())
    return msgspec.structs.replace(view, path=str(dump), ids=ids, tensors=tensors, notes=("the dump in quarantine",))
