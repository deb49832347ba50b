"""How far a merge is: `.hsbench/merge.json`, there from its first change to its last."""

from pathlib import Path
from typing import Literal

import msgspec

from workbench.errors import UsageError
from workbench.extract.durable import replace_bytes
from workbench.extract.job.files import FOLDER

JOURNAL_FILE = f"{FOLDER}/merge.json"

Phase = Literal["moving", "clearing"]
"""`moving`: a sample lies in its shard or in the whole. `clearing`: the whole is complete, shards only go."""


class MergeJournal(msgspec.Struct, frozen=True):
    """The merge that is under way in a folder."""

    of: int
    """Number of shards."""
    phase: Phase


def load_journal(out: Path) -> MergeJournal | None:
    """The merge that was begun in `out` and is not over; None without one.

    Raises:
        UsageError: the file is there and cannot be read.
    """
    path = out / JOURNAL_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=MergeJournal)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "was it written by this release?") from error


def save_journal(out: Path, journal: MergeJournal) -> None:
    """Replace it, durably."""
    replace_bytes(out / JOURNAL_FILE, msgspec.json.encode(journal) + b"\n")
