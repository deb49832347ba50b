"""The plug-in route: the codemods edit SGLang's model files in memory, as they are imported, and none on disk.

SGLang finds `register` through the entry point `hsbench` in the group `sglang.srt.plugins` and calls it in each of
its processes, before a model file is imported. It does nothing unless `SGLANG_HS_ROUTE=plugin`. Where
`SGLANG_HS_FILES` names files below `sglang/`, with commas between, it edits those alone. SGLang only logs a plug-in
that fails; so each file that was edited is told on stderr in a line that begins with `APPLIED`, whatever the level of
logging, and whoever started the server looks for it.

The edit takes seconds a file and is the same for the same source, so its result is kept in the user's cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.abc
import importlib.machinery
import inspect
import linecache
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

from patches.codemods import FAMILIES, codemods_sha256, edit, loops_by_file
from patches.codemods.mark import MARK
from patches.errors import PatchError

ROUTE = "plugin"
APPLIED = "_hs_ plug-in applied to "
FAILED = "_hs_ plug-in cannot edit "
FOLDER = "_hs/original"
"""Where the other route, the patch, keeps the originals of the files that it has edited."""
_PATCHED_IMPORT, _OWN_IMPORT = b"from sglang._hs import recorder", b"from patches import recorder"


def register() -> None:
    """The entry point: have the model files edited from now on, if this route is asked for."""
    if os.environ.get("SGLANG_HS_ROUTE") != ROUTE:
        return
    from patches import recorder
    from patches.identity import source_sha256

    recorder.come_by(ROUTE, source_sha256())
    only = os.environ.get("SGLANG_HS_FILES")
    modules = {_module(f): f for f in loops_by_file(FAMILIES) if not only or f in only.split(",")}
    for name in sorted(set(modules) & set(sys.modules)):
        _edit_imported(sys.modules[name], modules[name])
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(modules))


def edited(path: Path, file: str) -> bytes:
    """The edited source of the model file at `path`, which stays as it is.

    Raises:
        PatchError: the codemods do not recognise this release's source.
    """
    source = _original(path, file)
    key = hashlib.sha256(b"\0".join((source, file.encode(), codemods_sha256().encode()))).hexdigest()
    place = _cache() / f"{key}.py"
    with contextlib.suppress(OSError):
        digest, _, kept = place.read_bytes().partition(b"\n")
        if digest == _digest(kept):
            return kept
    result = edit(source, file, loops_by_file(FAMILIES)[file]).replace(_PATCHED_IMPORT, _OWN_IMPORT)
    _keep(place, result)
    return result


def _original(path: Path, file: str) -> bytes:
    """The file as its release has it, even when the patch has edited it on disk."""
    source = path.read_bytes()
    if MARK.search(source) is None:
        return source
    root = path.parents[file.count("/")]
    try:
        return (root / FOLDER / file).read_bytes()
    except OSError as error:
        raise PatchError(f"{file} is patched and its original is gone", "reinstall this SGLang release") from error


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "hsbench" / "edited"


def _keep(place: Path, result: bytes) -> None:
    """Nothing is lost when it cannot be kept; the edit is made anew."""
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        building = place.with_suffix(f".{os.getpid()}.tmp")
        building.write_bytes(_digest(result) + b"\n" + result)
        os.replace(building, place)


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


def _module(file: str) -> str:
    return "sglang." + file.removesuffix(".py").replace("/", ".")


def _tell(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode())


def _edit_imported(module: ModuleType, file: str) -> None:
    """For a file that SGLang imported before it called the plug-in: in 0.5.15 some attention code needs deepseek_v2.

    To run the module again would make its classes anew, and register its operations twice. All edits are inside the
    functions that run the blocks; so these get their edited code, and the module the name that it uses.
    """
    from patches import recorder

    try:
        source = edited(Path(str(module.__file__)), file)
        code = compile(source, shown(str(module.__file__), source), "exec", dont_inherit=True)
        for loop in loops_by_file(FAMILIES)[file]:
            forward = vars(getattr(module, loop.model)).get("forward")
            if forward is not None:
                inspect.unwrap(forward).__code__ = _inner(_inner(code, loop.model), "forward")
        vars(module)["_hs_recorder"] = recorder
    except Exception as error:
        _tell(f"{FAILED}{file}, which was imported before the plug-in was called: {error}")
        return
    if MARK.search(source):
        _tell(f"{APPLIED}{file}")


def _inner(code: CodeType, name: str) -> CodeType:
    """The code of a class or function that stands directly in another's."""
    return next(part for part in code.co_consts if isinstance(part, CodeType) and part.co_name == name)


def shown(path: str, source: bytes) -> str:
    """The file's name in tracebacks. Its lines are others than the file's, so the name is another, too."""
    name = f"{path}[edited by hsbench]"
    lines = source.decode().splitlines(keepends=True)
    linecache.cache[name] = (len(source), None, lines, name)
    return name


class _Finder(importlib.abc.MetaPathFinder):
    """Has the model files loaded by `_Loader`; all other imports go their usual way."""

    def __init__(self, modules: dict[str, str]) -> None:
        self._modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        file = self._modules.get(fullname)
        if file is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path, file)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles the edited source. A file that the codemods do not recognise is loaded as it is, and told of."""

    def __init__(self, fullname: str, path: str, file: str) -> None:
        super().__init__(fullname, path)
        self._file = file

    def get_code(self, fullname: str) -> CodeType | None:
        try:
            source = edited(Path(self.path), self._file)
            code = compile(source, shown(self.path, source), "exec", dont_inherit=True)
        except Exception as error:
            _tell(f"{FAILED}{self._file}: {error}")
            return super().get_code(fullname)
        if MARK.search(source):  # not in a file whose classes inherit their loop from another file
            _tell(f"{APPLIED}{self._file}")
        return code
