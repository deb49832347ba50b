"""The app's settings: `$XDG_CONFIG_HOME/hsbench/config.toml`, over them `./hsbench.toml`, over them the command line.

::

    [app]
    theme = "nord"
    ascii = false
    readonly = false
    mouse = true

    [keys]
    "server.stop" = "ctrl+x"
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import platformdirs

from workbench.errors import UsageError
from workbench.paths import APP
from workbench.tui.actions import BY_ID, MODES, of_mode

_KEY = re.compile(r"(?:(?:ctrl|shift|alt)\+)*(?:\S|[a-z][a-z0-9_]+)")
"""As textual names keys: a letter or a name, after modifiers."""


class AppSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[app]`."""

    theme: str = "hsbench"
    """A theme of the app; the palette lists them."""
    ascii: bool = False
    """Draw with ASCII only."""
    readonly: bool = False
    """Look, and start, end or change nothing."""
    mouse: bool = True


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    app: AppSettings = AppSettings()
    keys: dict[str, str] = {}
    """Id of an action → its key."""


def config_file() -> Path:
    """The file of the user."""
    return Path(platformdirs.user_config_dir(APP)) / "config.toml"


def profiles_dir() -> Path:
    """Where the profiles of servers are looked for."""
    return Path(platformdirs.user_config_dir(APP)) / "profiles"


def load(paths: tuple[Path, ...] | None = None) -> Config:
    """The settings of both files; a later one's keys win.

    Raises:
        UsageError: a file is no TOML, or names something that is not known.
    """
    merged: dict[str, dict[str, object]] = {}
    for path in paths if paths is not None else (config_file(), Path("hsbench.toml")):
        for table, values in _read(path).items():
            if not isinstance(values, dict):
                raise UsageError(f"{path}: {table} is not a table", "known tables: [app] and [keys]")
            merged.setdefault(table, {}).update(values)
    try:
        config = msgspec.convert(merged, type=Config)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"the app's settings: {error}", f"known: {', '.join(AppSettings.__struct_fields__)}"
        ) from error
    _check_keys(config.keys)
    return config


def _check_keys(keys: Mapping[str, str]) -> None:
    """Raise UsageError for what names no action or no key, or would take a key from another action of its view."""
    for name, key in keys.items():
        if name not in BY_ID:
            raise UsageError(
                f"[keys] names no action {name!r}", f"such as {', '.join(list(BY_ID)[:4])}; see docs/app.md"
            )
        if not _KEY.fullmatch(key):
            raise UsageError(f"[keys] {name} = {key!r} is no key", "such as x, X, f5, ctrl+x or question_mark")
    for mode in MODES:
        taken = {one.key: f"mode {one.name}" for one in MODES}
        for action in (*of_mode(""), *of_mode(mode.name)):
            key = keys.get(action.id, action.key)
            if key in taken:
                raise UsageError(f"[keys] {key!r} is for {action.id} and for {taken[key]}", "give one of them another")
            taken[key] = action.id


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", "correct it, or move it away") from error
