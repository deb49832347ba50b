"""A run's shards as a table: one row each, those that need a person first."""

import collections
from typing import TYPE_CHECKING

from workbench.extract.watch.view import RunView, ShardRow
from workbench.render.text import harmless, room, short, speaks_unicode

if TYPE_CHECKING:
    from rich.table import Table

SHOWN = 24
"""Rows at most; the rest is counted."""


def shards_table(view: RunView) -> "Table":
    """Columns that no shard has anything for are left out."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rows = [_cells(row) for row in view.shards[:SHOWN]]
    table = Table(box=box.SIMPLE_HEAD if speaks_unicode() else box.ASCII2, pad_edge=False)
    used = [name for name in COLUMNS if any(row[name] for row in rows)]
    for name in used:
        table.add_column(Text(name), justify="right" if name in NUMBERS else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[name]) for name in used))
    return table


COLUMNS = ("shard", "node", "server", "state", "samples", "tok/s", "of median", "waiting", "verdict", "waits for")
NUMBERS = frozenset({"samples", "tok/s", "of median", "waiting"})


def _cells(row: ShardRow) -> dict[str, str]:
    waiting = (row.waiting_bytes or 0) + (row.upload_bytes or 0)
    held = harmless(row.why) if row.state in ("failed", "killed", "paused", "restarting") else ""
    return {
        "shard": harmless(row.shard),
        "node": harmless(row.node),
        "server": harmless(row.server),
        "state": harmless(row.state),
        "samples": f"{row.done:,}" + (f"/{row.rows:,}" if row.rows is not None else ""),
        "tok/s": "" if row.tok_s is None else short(row.tok_s),
        "of median": "" if row.of_median is None else f"{100 * row.of_median:.0f} %",
        "waiting": room(waiting) if waiting else "",
        "verdict": harmless(row.verdict),
        "waits for": ": ".join(part for part in (row.waits_for, held) if part),
    }


def shards_left(view: RunView) -> str:
    """How many there are in each state, and how many are not shown."""
    counts = collections.Counter(row.state for row in view.shards)
    text = f"{len(view.shards)} shards: " + ", ".join(f"{count} {harmless(state)}" for state, count in counts.items())
    hidden = len(view.shards) - SHOWN
    return text + (f"; the last {hidden} are not shown, --json has all" if hidden > 0 else "")
