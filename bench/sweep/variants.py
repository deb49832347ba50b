"""What a sweep compares: variants, built-in sets of them, files of a user, and the ablation.

A variant adds variables and flags to a server that is otherwise the baseline. A file holds tables::

    [[variant]]
    name = "proto-ll"
    axis = "nccl"                  # nccl, communicator or flags
    env = { NCCL_PROTO = "LL" }
    flags = []
    note = "small messages"
"""

import importlib.resources
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

import msgspec

from bench.sweep.hazards import Finding, Hazard, judge
from workbench.errors import UsageError
from workbench.server.flags import refuse_owned
from workbench.server.secrets import is_secret

Axis = Literal["nccl", "communicator", "flags"]
AXES: tuple[Axis, ...] = get_args(Axis)
SETS = ("pcie", "nvlink", "flags")
BASELINE = "baseline"

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")


class Variant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that differ from the baseline. The baseline itself has none, and the axis `flags`."""

    name: str
    axis: Axis
    env: dict[str, str] = {}
    flags: tuple[str, ...] = ()
    note: str = ""

    @property
    def nccl(self) -> dict[str, str]:
        """Its variables that NCCL reads."""
        return {name: value for name, value in self.env.items() if name.startswith("NCCL_")}

    def describe(self) -> str:
        """Its settings in one line."""
        return " ".join([*(f"{name}={value}" for name, value in self.env.items()), *self.flags]) or "as given"


class Chosen(msgspec.Struct, frozen=True):
    """The variants to run, and those left out with the reason."""

    variants: tuple[Variant, ...]
    left_out: tuple[tuple[str, str], ...] = ()


class _File(msgspec.Struct, forbid_unknown_fields=True):
    variant: tuple[Variant, ...]


def baseline() -> Variant:
    """The server as it is given."""
    return Variant(name=BASELINE, axis="flags")


def parse(text: str, where: str) -> tuple[Variant, ...]:
    """The variants of a TOML text.

    Raises:
        UsageError: it is not TOML, or a variant is not as the module describes.
    """
    try:
        variants = msgspec.convert(tomllib.loads(text), _File).variant
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{where}: {error}", "see bench/sweep/sets for examples") from error
    check(variants, where)
    return variants


def load_set(name: str) -> tuple[Variant, ...]:
    """A built-in set: `pcie`, `nvlink` or `flags`."""
    if name not in SETS:
        raise UsageError(f"no built-in set of variants is named {name!r}", f"one of {', '.join(SETS)}")
    file = importlib.resources.files(__package__).joinpath("sets", f"{name}.toml")
    return parse(file.read_text(encoding="utf-8"), f"set {name}")


def load_file(path: Path) -> tuple[Variant, ...]:
    """The variants of a user's file."""
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", "give a TOML file with [[variant]] tables") from error


def ablation(env: Mapping[str, str], flags: Sequence[str]) -> tuple[Variant, ...]:
    """Whose doing is it? NCCL's variables alone, the flags alone, and both, beside the baseline."""
    if not env or not flags:
        raise UsageError("an ablation needs NCCL variables and flags", "give both")
    variants = (
        Variant(name="nccl-only", axis="nccl", env=dict(env)),
        Variant(name="flag-only", axis="flags", flags=tuple(flags)),
        Variant(name="both", axis="nccl", env=dict(env), flags=tuple(flags)),
    )
    check(variants, "ablation")
    return variants


def check(variants: Sequence[Variant], where: str) -> None:
    """Raise UsageError for a variant that cannot be run, whatever the user allows."""
    seen: dict[str, str] = {}
    for variant in variants:
        said = _fault(variant)
        if said:
            raise UsageError(f"{where}, variant {variant.name!r}: {said}", "change or remove this variant")
        same = seen.setdefault(variant.describe(), variant.name)
        if same != variant.name or [other.name for other in variants].count(variant.name) > 1:
            raise UsageError(f"{where}: {variant.name!r} is there twice", "give each its own name and settings")
        refuse_owned(variant.flags)
        for finding in _findings(variant, Hazard.NEVER):
            raise UsageError(f"{where}, variant {variant.name!r} is refused: {finding}", "remove the variable")


def _fault(variant: Variant) -> str:
    """What is wrong with its form; empty when nothing is."""
    bare = [word for word in variant.flags[:1] if not word.startswith("--")]
    secret = [name for name in variant.env if is_secret(name)]
    faults = (
        (variant.name == BASELINE, "the baseline is the server as given and is always there"),
        (not _NAME.fullmatch(variant.name), "a name is made of a-z, 0-9, '.', '_' and '-'"),
        (not variant.env and not variant.flags, "it changes nothing"),
        (bool(bare), f"flags begin with '--', not {bare}"),
        (bool(secret), f"{', '.join(secret)} is a secret, and variants are written down"),
        (variant.axis == "nccl" and not variant.nccl, "the axis nccl needs a variable of NCCL"),
        (variant.axis != "nccl" and bool(variant.nccl), "variables of NCCL belong to the axis nccl"),
        (variant.axis == "flags" and bool(variant.env), "the axis flags has no variables"),
    )
    return next((said for wrong, said in faults if wrong), "")


def _findings(variant: Variant, hazard: Hazard) -> list[Finding]:
    found = [judge(name, value) for name, value in variant.env.items()]
    return [one for one in found if one.hazard is hazard]


def choose(variants: Iterable[Variant], axes: Sequence[str] = AXES, *, unsafe: bool = False) -> Chosen:
    """The variants of these axes; without `unsafe` the hazardous ones are left out, each with its reason."""
    unknown = [axis for axis in axes if axis not in AXES]
    if unknown or not axes:
        raise UsageError(f"no axis is named {', '.join(unknown) or '(none given)'}", f"some of {', '.join(AXES)}")
    kept, left = [], []
    for variant in variants:
        hazards = [] if unsafe else _findings(variant, Hazard.UNSAFE)
        if variant.axis not in axes:
            left.append((variant.name, f"axis {variant.axis} is not asked for"))
        elif hazards:
            left.append((variant.name, f"unsafe, --unsafe would run it: {hazards[0]}"))
        else:
            kept.append(variant)
    return Chosen(tuple(kept), tuple(left))
