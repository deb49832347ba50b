"""One row of a data set, ready to be sent, or the reason why it is not."""

import msgspec


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids and loss mask of one row.

    `index` is the row's number in the source, and the sample's number in the data set that is written.
    """

    index: int
    input_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    """1 where the token is trained on; as long as `input_ids`."""
    truncated: bool = False
    """Cut to `--max-seq-len`."""


class Refused(msgspec.Struct, frozen=True):
    """A row that cannot be a sample. `kind` is one word for counting, `reason` one line."""

    index: int
    kind: str
    reason: str
