"""The data set formats. Each says where a sample's file lies, what its last state must be, and which files go with it.

To add one: a module here with a `Layout`, its name in `record.Format`, and how its file is written and read in
`probes/samplefile.py`.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from workbench.extract.index import IndexLine
from workbench.extract.record import Format, RunRecord

ROWS_A_FOLDER = 2000


class Layout(Protocol):
    """One format, without any tensor."""

    name: Format
    final_norm: Literal["pre", "post"]
    """Side of the final norm that the last state must be on."""
    arrow: bool
    """Whether an Arrow data set with the ids and masks stands beside the files."""

    def file_of(self, index: int) -> str:
        """Path of a row's file below the data set's folder."""

    def index_of(self, file: str) -> int | None:
        """The row that a file below the data set's folder is for by its name; None when it is no sample file."""

    def takes(self, file: str) -> bool:
        """Whether readers would take a file below the data set's folder for a sample, whoever wrote it."""

    def side_files(self, record: RunRecord, lines: Sequence[IndexLine]) -> dict[str, Any]:
        """JSON files that readers want, by path, made from the index's written lines alone."""


def layout(name: Format) -> Layout:
    """The layout of that name."""
    from workbench.extract.formats import specforge, speculators, speculators_v1

    known: dict[Format, Layout] = {
        "speculators-v1": speculators_v1.SpeculatorsV1(),
        "speculators": speculators.Speculators(),
        "specforge": specforge.SpecForge(),
    }
    return known[name]


def shard_folder(index: int) -> str:
    """Such as ``rows_0-2000`` for the rows 0 to 1999."""
    start = index // ROWS_A_FOLDER * ROWS_A_FOLDER
    return f"rows_{start}-{start + ROWS_A_FOLDER}"


def row_of_sharded(file: str, suffix: str) -> int | None:
    """The row N of ``rows_…/data_N<suffix>``, None for any other path, one in another row's folder included."""
    folder, _, name = file.rpartition("/")
    digits = name.removeprefix("data_").removesuffix(suffix)
    if f"data_{digits}{suffix}" != name or not digits.isdecimal() or str(int(digits)) != digits:
        return None
    return int(digits) if folder == shard_folder(int(digits)) else None
