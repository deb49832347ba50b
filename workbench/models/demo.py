"""The demo model: SmolLM2-135M-Instruct, a 30-block Llama, made once from its package into the cache."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import msgspec

from workbench.errors import Missing
from workbench.models import source, store
from workbench.models.convert import MISSING_PACKAGE
from workbench.paths import cache_dir
from workbench.server.engine import find_interpreter, neutral_environment

NAME = "SmolLM2-135M-Instruct-bf16"
RECIPE = f"1 {source.GGUF_SHA256}"
NEEDED_BYTES = 600_000_000
"""Model, wheel and GGUF together, with some room."""
_CONVERT = Path(__file__).with_name("convert.py")


class Step(msgspec.Struct, frozen=True):
    """Something that is about to be done, in words."""

    text: str


class Progress(msgspec.Struct, frozen=True):
    """Tensors converted so far."""

    done: int
    total: int


class ModelReady(msgspec.Struct, frozen=True):
    """The folder can be used."""

    path: str
    made: bool
    """Whether it was made just now."""


ModelEvent = Step | Progress | ModelReady


def describe(event: ModelEvent) -> str:
    """One line for a person."""
    match event:
        case Step(text):
            return text
        case Progress(done, total):
            return f"converting the demo model: {done} of {total} tensors"
        case ModelReady(path, made):
            return f"demo model {'made' if made else 'found'}: {path}"


def demo_folder() -> Path:
    """Where the demo model is, or will be."""
    return cache_dir() / "models" / NAME


def ensure_demo_model(
    python: str | None = None, verify: bool = False, report: Callable[[ModelEvent], None] = lambda event: None
) -> Path:
    """Do as `fetch` does, tell its events to `report`, and return the demo model's folder."""
    for event in fetch(python, verify):
        report(event)
    return demo_folder()


def fetch(python: str | None = None, verify: bool = False) -> Iterator[ModelEvent]:
    """Make the demo model unless it is there and whole. The last event is `ModelReady`.

    Two fetches at once are safe: one waits and uses what the other made. A fetch that is killed leaves the
    cache as it was.

    Args:
        python: The interpreter that converts it, which needs what SGLang brings; None means hsbench's own.
        verify: Take the hash of every file, even when its size and time are as written down.

    Raises:
        Missing: the package, a package that reads it, or disk space is missing.
    """
    folder = demo_folder()
    made = False
    if store.problem(folder, RECIPE, verify):
        with store.locked(folder):
            why = store.problem(folder, RECIPE, verify)
            if why:
                made = True
                yield Step(f"making the demo model: {why}" + ("" if "not made" in why else ", so it is made again"))
                yield from _make(find_interpreter(python), folder)
    yield ModelReady(str(folder), made)


def _make(python: str, folder: Path) -> Iterator[ModelEvent]:
    free, needed = shutil.disk_usage(folder.parent).free / 1e6, NEEDED_BYTES / 1e6
    if free < needed:
        raise Missing(
            f"no space for the demo model in {folder.parent}: {free:.0f} MB free, {needed:.0f} needed",
            "free some, or name another cache: XDG_CACHE_HOME=DIR",
        )
    with store.building(folder, RECIPE) as made:
        gguf = source.installed(python)
        if gguf is None:
            yield Step(f"fetching {source.REQUIREMENT} with pip (90 MB)")
            gguf = source.download(python, made.parent)
        yield from _convert(python, gguf, made)


def _convert(python: str, gguf: Path, folder: Path) -> Iterator[Progress]:
    """Run the converter in the engine's interpreter; it is ended when the caller stops listening."""
    with tempfile.TemporaryFile() as complaints:
        child = subprocess.Popen(
            [python, str(_CONVERT), str(gguf), str(folder)],
            cwd=folder,
            env=neutral_environment({"CUDA_VISIBLE_DEVICES": ""}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
        )
        assert child.stdout is not None
        last = ""
        try:
            for line in child.stdout:
                last = line.strip()
                with contextlib.suppress(ValueError):
                    done, total = map(int, last.split())
                    yield Progress(done, total)
            child.wait()
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
            child.stdout.close()
        if child.returncode != 0:
            raise _failure(child.returncode, last, python, complaints)


def _failure(code: int, last: str, python: str, complaints: IO[bytes]) -> Missing:
    if code == MISSING_PACKAGE:
        return Missing(
            f"{python} lacks the package {last}, needed to make the demo model",
            f"{python} -m pip install {last}, or name SGLang's interpreter with --python PATH",
        )
    complaints.seek(0, os.SEEK_SET)
    said = complaints.read().decode("utf-8", "replace").strip()
    last_words = said.splitlines()[-1] if said else "no message"
    return Missing(
        f"the demo model could not be made (exit code {code}): {last_words}",
        "make room if the disk is full; else name SGLang's interpreter with --python PATH",
        said[-2000:],
    )
