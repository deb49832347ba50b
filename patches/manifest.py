"""What `patch apply` leaves in a tree: `sglang/_hs/` with the recorder, the originals and `manifest.json`.

The manifest is the same, byte for byte, for the same tree and the same hsbench, because its sha256 goes into
every dump as `patch_hash`. So it holds no time, no path of this machine and no file mode.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from patches.codemods import codemods_sha256
from patches.errors import PatchError
from patches.files import sha256

FOLDER = "_hs"
BUILDING = "_hs.building"
REMOVING = "_hs.removing"
SCHEMA = 1
_RECORDER = Path(__file__).parent / "recorder"
_INIT = b'"""Put here by `hsbench patch apply`, removed by `hsbench patch revert`."""\n'


@dataclass(frozen=True)
class Edited:
    """One edited file: sha256 of its bytes before and after, and the families that need it."""

    before: str
    after: str
    families: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """The record of one application. `state` is "applying" until every file is in place."""

    state: str
    hsbench: str
    sglang: str
    families: tuple[str, ...]
    codemods: str
    package: dict[str, str]
    files: dict[str, Edited]

    def to_bytes(self) -> bytes:
        files = {
            path: {"before": file.before, "after": file.after, "families": list(file.families)}
            for path, file in self.files.items()
        }
        value = {
            "schema": SCHEMA,
            "state": self.state,
            "route": "patch",
            "hsbench": self.hsbench,
            "sglang": self.sglang,
            "families": list(self.families),
            "codemods": self.codemods,
            "package": self.package,
            "files": files,
        }
        return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Raises PatchError when it is damaged or of a schema that this hsbench does not know."""
        try:
            value: dict[str, Any] = json.loads(data)
            if value["schema"] != SCHEMA:
                raise PatchError(
                    f"_hs/manifest.json has schema {value['schema']}, this hsbench knows {SCHEMA}",
                    "revert with the hsbench that applied it",
                )
            files = {
                path: Edited(entry["before"], entry["after"], tuple(entry["families"]))
                for path, entry in value["files"].items()
            }
            return cls(
                value["state"],
                value["hsbench"],
                value["sglang"],
                tuple(value["families"]),
                value["codemods"],
                dict(value["package"]),
                files,
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PatchError(f"_hs/manifest.json is damaged: {error!r}") from error

    def applied(self) -> Manifest:
        return replace(self, state="applied")

    def written_by_this(self) -> bool:
        """The recorder and the codemods behind it are those of the hsbench that runs now."""
        ours = (hsbench_version(), codemods_sha256(), hashes(package_files()))
        return (self.hsbench, self.codemods, self.package) == ours


def hsbench_version() -> str:
    try:
        return importlib.metadata.version("hsbench")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def package_files() -> dict[str, bytes]:
    """The modules that go into `_hs/`: path in there → bytes."""
    recorder = {f"recorder/{path.name}": path.read_bytes() for path in sorted(_RECORDER.glob("*.py"))}
    return {"__init__.py": _INIT, **recorder}


def hashes(files: dict[str, bytes]) -> dict[str, str]:
    return {path: sha256(data) for path, data in files.items()}


def original_path(root: Path, file: str, folder: str = FOLDER) -> Path:
    return root / folder / "original" / file


def read_original(root: Path, file: str, edited: Edited) -> bytes:
    """The original bytes kept at apply. Raises PatchError when they are not there or not the same."""
    path = original_path(root, file)
    data = path.read_bytes() if path.is_file() else b""
    if sha256(data) != edited.before:
        raise PatchError(f"the original kept in {path} is missing or damaged", "reinstall this SGLang release")
    return data


def damaged_files(root: Path, package: dict[str, str]) -> Iterable[str]:
    """Files of `_hs/` that are missing or changed; none when the folder is whole."""
    for file, expected in package.items():
        path = root / FOLDER / file
        if not path.is_file() or sha256(path.read_bytes()) != expected:
            yield file
