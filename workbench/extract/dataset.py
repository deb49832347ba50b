"""The data set that a run is made of. A worker in the engine's interpreter reads and renders it; here are its samples.

with Worker(python) as worker:
    data = Dataset.open(DatasetSettings(path="chats.jsonl", model="/models/x", max_seq_len=4096), worker)
    for row in data.samples(range(data.rows)):
        ...                                   # Sample or Refused
    data.tally.check()                        # CheckFailed when too many rows were refused
"""

import collections
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from workbench.errors import CheckFailed
from workbench.extract.record import Source
from workbench.extract.sample import Refused, Sample
from workbench.paths import cache_dir
from workbench.worker import Worker

AT_ONCE = 32
"""Rows that one call of the worker renders."""
REFUSED_SHARE = 0.1
ENOUGH_ROWS = 20


class DatasetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What decides the samples."""

    path: str
    model: str | None = None
    """Model folder with the tokenizer and its chat template; not needed for rows of `input_ids`."""
    max_seq_len: int | None = None
    form: str | None = None
    """Column to read: `input_ids`, `messages`, `conversations` or `text`; by default the first of them there is."""

    def arguments(self) -> dict[str, Any]:
        """For the worker's calls; paths made absolute, since the worker has another working directory."""
        model = str(Path(self.model).absolute()) if self.model is not None else None
        return {
            "path": str(Path(self.path).absolute()),
            "cache": str(cache_dir() / "datasets"),
            "model": model,
            "max_seq_len": self.max_seq_len,
            "form": self.form,
        }


class Tally:
    """Counts of the rows that went by."""

    def __init__(self) -> None:
        self.samples = self.truncated = self.tokens = self.trained = 0
        self.refused: collections.Counter[str] = collections.Counter()
        self.examples: dict[str, Refused] = {}
        """The first refused row of each kind."""

    def add(self, row: Sample | Refused) -> None:
        """Count one row."""
        if isinstance(row, Refused):
            self.refused[row.kind] += 1
            self.examples.setdefault(row.kind, row)
            return
        self.samples += 1
        self.truncated += row.truncated
        self.tokens += len(row.input_ids)
        self.trained += sum(row.loss_mask)

    @property
    def coverage(self) -> float:
        """Share of the samples' tokens that is trained on."""
        return self.trained / max(1, self.tokens)

    def check(self, max_refused: float = REFUSED_SHARE) -> None:
        """Raise CheckFailed when more than this share of at least `ENOUGH_ROWS` rows was refused, or all of fewer."""
        count = sum(self.refused.values())
        seen = count + self.samples
        if not count or (self.samples and (seen < ENOUGH_ROWS or count <= max_refused * seen)):
            return
        kind = self.refused.most_common(1)[0][0]
        example = self.examples[kind]
        raise CheckFailed(
            f"{count} of {seen} rows were refused, such as row {example.index}: {example.reason}",
            "hsbench extract DATA --preview 3 shows rows with their loss mask",
        )


class Piece(msgspec.Struct, frozen=True):
    """A run of tokens that are all trained on, or all not."""

    text: str
    trained: bool


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """One row for a person to look at; `reason` is empty unless it was refused."""

    index: int
    tokens: int = 0
    trained: int = 0
    truncated: bool = False
    pieces: tuple[Piece, ...] = ()
    reason: str = ""


class Dataset:
    """An open data set. Use `open`; not for several threads, since it talks to one worker."""

    def __init__(self, settings: DatasetSettings, worker: Worker, opened: dict[str, Any]) -> None:
        self.settings = settings
        self.rows = int(opened["rows"])
        self.columns = tuple(opened["columns"])
        self.form = str(opened["form"])
        self.mask = str(opened["mask"])
        """Where the loss mask comes from, in words."""
        self.fingerprint = str(opened["fingerprint"])
        self.tally = Tally()
        """Of all rows that `samples` gave."""
        self._worker = worker

    @classmethod
    def open(cls, settings: DatasetSettings, worker: Worker) -> "Dataset":
        """Open a data set and read all of its bytes once, for the fingerprint.

        Raises:
            UsageError: there is no such data set, or no column that can be used.
            CheckFailed: the model has no usable tokenizer or no chat template.
        """
        return cls(settings, worker, worker.call("open_dataset", **settings.arguments()))

    def source(self) -> Source:
        """For the run's record."""
        arguments = self.settings.arguments()
        return Source(
            path=arguments["path"],
            fingerprint=self.fingerprint,
            rows=self.rows,
            form=self.form,
            mask=self.mask,
            tokenizer=arguments["model"],
            max_seq_len=self.settings.max_seq_len,
        )

    def samples(self, numbers: Iterable[int]) -> Iterator[Sample | Refused]:
        """The rows of these numbers in that order, rendered as they are asked for, and counted in `tally`."""
        for group in _groups(numbers, AT_ONCE):
            for row in self._worker.call("dataset_samples", numbers=group, **self.settings.arguments()):
                found = _row(row)
                self.tally.add(found)
                yield found

    def preview(self, numbers: Iterable[int]) -> Iterator[Preview]:
        """Rows as text with their mask."""
        for group in _groups(numbers, AT_ONCE):
            for row in self._worker.call("dataset_preview", numbers=group, **self.settings.arguments()):
                yield _preview(row)


def _row(row: dict[str, Any]) -> Sample | Refused:
    if "refused" in row:
        return Refused(row["index"], row["refused"], row["reason"])
    return Sample(
        index=row["index"],
        input_ids=tuple(row["ids"]),
        loss_mask=tuple(map(int, row["mask"])),
        truncated=row["truncated"],
    )


def _preview(row: dict[str, Any]) -> Preview:
    if "refused" in row:
        return Preview(index=row["index"], reason=row["reason"])
    return Preview(
        index=row["index"],
        tokens=len(row["ids"]),
        trained=row["mask"].count("1"),
        truncated=row["truncated"],
        pieces=tuple(Piece(text, bool(trained)) for text, trained in row["pieces"]),
    )


def _groups(numbers: Iterable[int], size: int) -> Iterator[list[int]]:
    group: list[int] = []
    for number in numbers:
        group.append(number)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
