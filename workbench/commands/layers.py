"""`hsbench layers`: which blocks a list of layer ids means."""

from typing import TYPE_CHECKING

import click

from workbench import layers as conventions
from workbench import output
from workbench.errors import Missing, UsageError

if TYPE_CHECKING:
    from workbench.layers import Reading, State

SCHEMA = 1


@click.command()
@click.option("--model", metavar="PATH", required=True, help="A model's folder; only its config.json is read.")
@click.option("--ids", metavar="2,30,58", help="The ids to read; left out, those that the convention takes itself.")
@click.option(
    "--convention",
    type=click.Choice(conventions.CONVENTIONS),
    default="eagle3",
    show_default=True,
    help="Whose ids they are.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def layers(model: str, ids: str | None, convention: str, as_json: bool) -> None:
    """Say which blocks layer ids mean, where they are captured, and who means others by them."""
    from workbench.models.folder import check_model

    facts = check_model(model, needs_tokenizer=False, needs_weights=False)
    if not facts.is_folder:
        raise Missing(f"{model} is not a folder here", "fetch its config.json and name the folder")
    if not facts.num_blocks or facts.num_blocks < 1:
        raise UsageError(f"{model}/config.json names no num_hidden_layers", "give --model a decoder model's folder")
    family = conventions.family_of(facts.architectures)
    reading = conventions.read(convention, family, facts.num_blocks, _parsed(ids))
    if as_json:
        about = {"schema": SCHEMA, "model": facts.path, "architectures": facts.architectures, "blocks": reading.blocks}
        output.data_json({**about, "reading": reading})
    else:
        output.data(_text(reading, facts.path))


def _parsed(ids: str | None) -> tuple[int, ...] | None:
    if ids is None:
        return None
    parts = ids.replace(" ", "").split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise UsageError(f"--ids {ids!r} is not a list of layer ids", "such as --ids 2,30,58")
    return tuple(int(part) for part in parts)


def _text(reading: "Reading", path: str) -> str:
    from workbench.render.text import plain_table

    family = reading.family or "a family that is not known here"
    title = f"{reading.num_blocks} blocks, {family}; ids by the {reading.convention} convention"
    rows = [_row(state, reading.num_blocks) for state in reading.states]
    parts = [plain_table(title, ["id", "state", "captured on entering"], rows, left=3)]
    parts.append(f"final: {reading.final}")
    recordable = [str(block) for block in reading.blocks if 0 <= block < reading.num_blocks - 1]
    parts.append(f"record them: hsbench serve --model {path} --dump-dir DIR --layers {','.join(recordable)}")
    if reading.elsewhere:
        others = [[name, _meant(other)] for name, other in reading.elsewhere.items()]
        parts.append(plain_table("the same ids elsewhere", ["convention", "outputs of blocks"], others, left=2))
    return "\n".join([*parts, *(f"warning: {warning}" for warning in reading.warnings)])


def _row(state: "State", num_blocks: int) -> list[str]:
    what = f"output of block {state.after_block}" if state.after_block >= 0 else "embeddings"
    where = f"block {state.entering}" if state.entering < num_blocks else "the final norm"
    return ["-" if state.id is None else str(state.id), what, where]


def _meant(other: "tuple[int, ...] | str") -> str:
    if isinstance(other, str):
        return other
    return ", ".join("embeddings" if block < 0 else str(block) for block in other)
