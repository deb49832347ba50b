"""A data set's rows as token ids and loss masks. See `probes/render.py` for how conversations are rendered."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.arrow import STATE_FILE, datasets_library
from probes.errors import CallError, ModelError, ProbeError, one_line
from probes.render import Renderer, RowError, load_renderer, normalised
from probes.weights import read_config

VERSION = 1
"""Part of the fingerprint; raised when the same row would give other ids or another mask than before."""
FORMS = ("input_ids", "messages", "conversations", "text")
TEXT = (".jsonl", ".json")
LOADERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".arrow": "arrow"}
TOKENIZER_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)


class DataError(ProbeError):
    """A data set cannot be opened or has no column that can be used."""

    kind = "data"


@dataclass(frozen=True)
class Opened:
    """What a data set is. `fingerprint` stands for its bytes, the tokenizer's files and the settings."""

    rows: int
    columns: tuple[str, ...]
    form: str
    mask: str
    fingerprint: str


class Rows:
    """An open data set with the settings that make samples of its rows.

    Args:
        path: A JSONL, JSON, Parquet or Arrow file, a folder of such files, or one that `save_to_disk` wrote.
        cache: Folder for what the `datasets` library makes of it.
        model: Model folder with the tokenizer; not needed for `input_ids`.
        max_seq_len: Longer rows are cut.
        form: One of `FORMS`; by default the first of them that is a column.
    """

    def __init__(self, path: str, cache: str, model: str | None, max_seq_len: int | None, form: str | None) -> None:
        self.files = data_files(Path(path))
        self._hashes = [_hash(file) for file in self.files]
        # By content: `datasets` itself goes by path and time of change, which copies and archives set as they like.
        named = hashlib.sha256("".join(self._hashes).encode()).hexdigest()[:16]
        self.data = _load(Path(path), self.files, str(Path(cache) / named))
        self.max_seq_len = max_seq_len
        self.model = model
        self.form = _form(self.data.column_names, form)
        self._vocabulary = _vocabulary(model)
        self.renderer: Renderer | None = None
        if self.form != "input_ids":
            if model is None:
                raise DataError(f"rows of {self.form} need a tokenizer", "name the model's folder with --model")
            self.renderer = load_renderer(model)
            if self.form != "text" and not self.renderer.template:
                raise ModelError(f"{model} has no chat template", "give a data set with input_ids or text")

    def opened(self) -> Opened:
        """Facts about the data set; reads all of its bytes for the fingerprint."""
        columns = tuple(self.data.column_names)
        return Opened(len(self.data), columns, self.form, self._mask_source(), self._fingerprint())

    def _mask_source(self) -> str:
        if self.form == "input_ids":
            return "the column loss_mask" if "loss_mask" in self.data.column_names else "every token"
        if self.form == "text" or self.renderer is None:
            return "every token"
        return self.renderer.mask_source

    def _fingerprint(self) -> str:
        whole = hashlib.sha256(json.dumps([VERSION, self.form, self.max_seq_len, self._mask_source()]).encode())
        for digest in self._hashes:
            whole.update(digest.encode())
        if self.form != "input_ids" and self.model is not None:
            for name in TOKENIZER_FILES:
                if (file := Path(self.model) / name).exists():
                    whole.update(f"{name} {_hash(file)}".encode())
        return whole.hexdigest()

    def samples(self, numbers: Iterable[int]) -> Iterator[dict[str, Any]]:
        """For each row number its ids, its mask as a string of 0 and 1, and whether it was cut; or why not."""
        for number in numbers:
            try:
                ids, mask = self._sample(self.data[number])
                cut = self.max_seq_len is not None and len(ids) > self.max_seq_len
                whole, mask = mask, mask[: self.max_seq_len]
                if "1" not in mask:
                    raise _no_mask(whole, len(ids), self.max_seq_len)
                yield {"index": number, "ids": ids[: self.max_seq_len], "mask": mask, "truncated": cut}
            except RowError as error:
                yield {"index": number, "refused": error.kind, "reason": error.message}

    def _sample(self, row: Mapping[str, Any]) -> tuple[list[int], str]:
        if self.form == "input_ids":
            ids, mask = _given(row)
        else:
            assert self.renderer is not None
            if self.form == "text":
                if not isinstance(row["text"], str):
                    raise RowError("its text is not a string")
                rendered = self.renderer.text(row["text"])
            else:
                tools = row.get("tools")
                rendered = self.renderer.chat(normalised(row[self.form]), tools if isinstance(tools, list) else None)
            ids, mask = rendered.ids, "".join(map(str, rendered.mask))
        if not ids:
            raise RowError("it has no tokens")
        if self._vocabulary is not None and not 0 <= min(ids) <= max(ids) < self._vocabulary:
            outside = max(ids) if max(ids) >= self._vocabulary else min(ids)
            raise RowError(f"token id {outside} is outside the model's vocabulary of {self._vocabulary}")
        return ids, mask

    def pieces(self, ids: list[int], mask: str) -> list[tuple[str, int]]:
        """The text of each run of equally masked tokens; the ids themselves without a tokenizer."""
        runs: list[tuple[str, int]] = []
        start = 0
        for place in range(1, len(ids) + 1):
            if place == len(ids) or mask[place] != mask[start]:
                runs.append((self._text(ids[start:place]), int(mask[start])))
                start = place
        return runs

    def _text(self, ids: list[int]) -> str:
        if self.renderer is None and self.model is not None:
            self.renderer = load_renderer(self.model)
        if self.renderer is None:
            return " ".join(map(str, ids)) + " "
        return str(self.renderer.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


class NoMask(RowError):
    """Nothing in the row is trained on."""

    kind = "no_mask"


class CutMask(RowError):
    """What is trained on lies beyond the longest sequence."""

    kind = "cut_mask"


def _no_mask(whole: str, tokens: int, limit: int | None) -> RowError:
    if "1" in whole:
        return CutMask(
            f"its first trained token is number {whole.index('1')} of {tokens}, beyond --max-seq-len {limit}"
        )
    return NoMask("its loss mask is all zero: nothing to train on")


def _given(row: Mapping[str, Any]) -> tuple[list[int], str]:
    ids, mask = row["input_ids"], row.get("loss_mask")
    if not isinstance(ids, list) or not all(isinstance(value, int) for value in ids):
        raise RowError("its input_ids are not a list of numbers")
    if mask is None:
        return ids, "1" * len(ids)
    if not isinstance(mask, list) or len(mask) != len(ids):
        raise RowError(
            f"its loss_mask has {len(mask) if isinstance(mask, list) else 'no'} entries for {len(ids)} tokens"
        )
    if not all(value in (0, 1) for value in mask):
        raise RowError("its loss_mask has other values than 0 and 1")
    return ids, "".join("1" if value else "0" for value in mask)


def data_files(path: Path) -> list[Path]:
    """The files that a data set consists of, in order. Raises DataError when there are none that can be read."""
    if path.is_file():
        _loader(path)
        return [path]
    if not path.is_dir():
        raise DataError(f"{path} does not exist", "name a JSONL, Parquet or Arrow file or a folder of them")
    if (path / STATE_FILE).exists():
        try:
            listed = json.loads((path / STATE_FILE).read_bytes())["_data_files"]
            return [path / Path(entry["filename"]).name for entry in listed]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path / STATE_FILE} cannot be read: {error}") from None
    if (path / "dataset_dict.json").exists():
        parts = ", ".join(sorted(entry.name for entry in path.iterdir() if entry.is_dir()))
        raise DataError(f"{path} holds the splits {parts}", f"name one of them, such as {path}/train")
    found = sorted(file for file in path.iterdir() if file.is_file() and _suffix(file) in LOADERS)
    if len({_suffix(file) for file in found}) != 1:
        kinds = ", ".join(sorted({_suffix(file) for file in found})) or "nothing that can be read"
        raise DataError(f"{path} holds {kinds}", "name one file, or a folder of files of one kind")
    return found


def _suffix(path: Path) -> str:
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


def _loader(path: Path) -> str:
    loader = LOADERS.get(_suffix(path))
    if loader is None:
        raise DataError(f"{path} is not a data set by its name", f"known endings are {', '.join(LOADERS)}")
    return loader


def _load(path: Path, files: list[Path], cache: str) -> Any:
    library = datasets_library()
    if all(_is_blank(file) for file in files):
        raise DataError(f"{path} is empty: it has no rows", "was it written to its end?")
    try:
        if path.is_dir() and (path / STATE_FILE).exists():
            data = library.load_from_disk(str(path)).with_format(None)
        else:
            names = [str(file) for file in files]
            data = library.load_dataset(_loader(files[0]), data_files=names, split="train", cache_dir=cache)
    except Exception as error:  # the library raises many kinds for damaged files
        cause = error.__cause__ or error
        said = one_line(str(cause), 200) or type(cause).__name__
        if "corresponds to no data" in said:  # such as {} and []
            raise DataError(f"{path} has no rows", "is every line a JSON object with a column in it?") from None
        raise DataError(f"{path} cannot be read: {said}", "is every line a JSON object, and is there one?") from None
    if len(data) == 0:
        raise DataError(f"{path} has no rows")
    return data


def _is_blank(path: Path) -> bool:
    """Whether a file has nothing to read; the library says of one only that an iteration stopped."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            parts = iter(lambda: file.read(1 << 16), b"")
            return not any(part.strip() if _suffix(path) in TEXT else part for part in parts)
    except (OSError, EOFError):
        return False  # the library tells what is wrong with it


def _form(columns: list[str], asked: str | None) -> str:
    if asked is not None:
        if asked not in FORMS:
            raise CallError(f"unknown form {asked!r}; known are {', '.join(FORMS)}")
        if asked not in columns:
            raise DataError(f"the data set has no column {asked}, only {', '.join(columns)}")
        return asked
    for form in FORMS:
        if form in columns:
            return form
    raise DataError(f"the data set has the columns {', '.join(columns)}", f"it needs one of {', '.join(FORMS)}")


def _vocabulary(model: str | None) -> int | None:
    if model is None:
        return None
    try:
        config = read_config(Path(model))
    except ModelError:
        return None
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    return size if isinstance(size, int) else None


def _hash(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None


@functools.lru_cache(maxsize=2)
def _rows(path: str, cache: str, model: str | None, max_seq_len: int | None, form: str | None) -> Rows:
    return Rows(path, cache, model, max_seq_len, form)


def open_dataset(**settings: Any) -> Opened:
    """`Rows.opened`; the settings are those of `Rows`, by name. The data set stays open in this process."""
    return _rows(**settings).opened()


def dataset_samples(numbers: list[int], **settings: Any) -> list[dict[str, Any]]:
    """`Rows.samples` of an open data set."""
    return list(_rows(**settings).samples(numbers))


def dataset_preview(numbers: list[int], **settings: Any) -> list[dict[str, Any]]:
    """`Rows.samples` with `pieces` (text and mask of each run) in place of the ids."""
    rows = _rows(**settings)
    found = []
    for sample in rows.samples(numbers):
        if "ids" in sample:
            sample["pieces"] = rows.pieces(sample["ids"], sample["mask"])
        found.append(sample)
    return found
