"""The recorder's settings and the request ids it knows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

SCHEMA = 1
OUR_PREFIX = "hs-"
HEALTH_PREFIX = "HEALTH_CHECK"  # sglang.srt.constants.HEALTH_CHECK_RID_PREFIX in both tested releases


class Settings(NamedTuple):
    """The recorder's settings; see the module's docstring for the variables they come from."""

    dump_dir: Path
    blocks: tuple[int, ...] | None
    final: str
    record_all: bool
    writers: int
    max_waiting: int
    plain: bool = False
    """Copy and save inside the forward pass: what one would write first, to be measured against."""

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Settings | None:
        """Read the settings, or None when no dump folder is named. Raises ValueError for a bad value."""
        folder = env.get("SGLANG_HS_DUMP_DIR", "")
        if not folder:
            return None
        listed = env.get("SGLANG_HS_DUMP_BLOCKS", "")
        final = env.get("SGLANG_HS_DUMP_FINAL", "") or "pre"
        if final not in ("pre", "post", "both"):
            raise ValueError(f"SGLANG_HS_DUMP_FINAL is {final!r}, must be pre, post or both")
        blocks = tuple(int(part) for part in listed.split(",")) if listed else None
        return cls(
            dump_dir=Path(folder),
            blocks=blocks,
            final=final,
            record_all=env.get("SGLANG_HS_DUMP_ALL", "") == "1",
            writers=int(env.get("SGLANG_HS_DUMP_WRITERS", "") or 4),
            max_waiting=int(env.get("SGLANG_HS_DUMP_WAIT_MB", "") or 4096) << 20,
            plain=env.get("SGLANG_HS_DUMP_PLAIN", "") == "1",
        )
