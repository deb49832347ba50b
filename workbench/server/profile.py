"""A server's profile: a TOML file that says everything `hsbench serve` can be told.

::

    model = "demo"
    name = "trainer"
    python = "/opt/sglang/bin/python"
    device = "cuda"
    port = 30017
    tp = 2
    flags = ["--mem-fraction-static", "0.8"]

    [environment]
    NCCL_P2P_DISABLE = "1"

    [dump]
    dir = "dumps"
    blocks = [2, 15, 27]
    final = "pre"

Relative paths are relative to the file. An unknown key is an error, and so is a value of another type.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from workbench.errors import UsageError
from workbench.server.specs import DEMO, Capture, Device, DumpSpec, LaunchSpec

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class DumpSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[dump]`."""

    dir: str
    blocks: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] | None = None
    final: Literal["pre", "post", "both"] = "pre"
    record_all: bool = False
    capture: Capture = "auto"
    allow_chunked: bool = False


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file. What is left out is as if it were left out on the command line."""

    model: str | None = None
    name: str | None = None
    python: str | None = None
    device: Device | None = None
    port: Port | None = None
    tp: Count | None = None
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    dump: DumpSettings | None = None


def read(path: Path) -> Profile:
    """Read a profile.

    Raises:
        UsageError: it cannot be read, is no TOML, or has a key or value that is not known; with the key's name.
    """
    try:
        found = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), type=Profile, strict=True)
    except OSError as error:
        raise UsageError(f"cannot read the profile {path}: {error.strerror}", "give --profile a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}", "correct it") from error
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{path}: {_named(str(error))}", f"known keys: {', '.join(Profile.__struct_fields__)}"
        ) from error
    return _placed(found, path.absolute().parent)


def applied(profile: Profile, given: dict[str, Any], flags: tuple[str, ...], dump: DumpSpec | None) -> LaunchSpec:
    """A launch from a profile and the command line, which wins. Its flags come after the profile's.

    Args:
        profile: The file.
        given: Options that were given on the command line, by the names of `LaunchSpec`.
        flags: SGLang's flags from the command line.
        dump: Dump settings from the command line, if any.
    """
    named = ("model", "name", "python", "device", "port")
    from_file = {key: value for key in named if (value := getattr(profile, key)) is not None}
    chosen = {**from_file, **given}
    if "model" not in chosen:
        raise UsageError("Missing option '--model'", "name a model's folder, or put `model` into the profile")
    tp = ("--tp-size", str(profile.tp)) if profile.tp is not None else ()
    from_profile = _dump(profile.dump)
    return LaunchSpec(
        **chosen,
        flags=(*tp, *profile.flags, *flags),
        env=profile.environment,
        dump=dump if dump is not None else from_profile,
        port_fixed=bool(chosen.get("port")),
    )


def _dump(settings: DumpSettings | None) -> DumpSpec | None:
    if settings is None:
        return None
    return DumpSpec(
        settings.dir,
        settings.blocks,
        settings.final,
        settings.record_all,
        settings.capture,
        settings.allow_chunked,
    )


def _placed(profile: Profile, folder: Path) -> Profile:
    """The profile with its relative paths made absolute. A model's name may also be that of the Hub."""
    changes: dict[str, Any] = {}
    if profile.dump is not None:
        changes["dump"] = msgspec.structs.replace(profile.dump, dir=str(folder / profile.dump.dir))
    if profile.model and profile.model != DEMO and (folder / profile.model).exists():
        changes["model"] = str(folder / profile.model)
    if profile.python and "/" in profile.python:
        changes["python"] = str(folder / Path(profile.python).expanduser())
    return msgspec.structs.replace(profile, **changes)


def _named(message: str) -> str:
    """msgspec says ``Expected `int`, got `str` - at `$.dump.blocks[0]` ``; the key comes first here."""
    what, at, where = message.partition(" - at `$.")
    what = what.replace(" | null", "")  # TOML has none: a key is left out
    return f"{where.rstrip('`')}: {what}" if at else what
