"""One hash for all that records by the plug-in or the built-in route, where no manifest of a patch stands for it."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent
_PARTS = ("codemods/*.py", "recorder/*.py", "plugin.py", "hooks.py")


@cache
def source_sha256() -> str:
    """Of the files in this installation of hsbench; it goes into every dump as `patch_hash`."""
    digest = hashlib.sha256()
    for path in (path for pattern in _PARTS for path in sorted(_HERE.glob(pattern))):
        digest.update(str(path.relative_to(_HERE)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
