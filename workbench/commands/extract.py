"""`hsbench extract`: a data set in, checked training data out."""

from typing import Any

import click

from workbench import output
from workbench.errors import UsageError

LOOK_AT = 200
"""Rows whose mask coverage a preview tells."""


@click.command()
@click.argument("data", type=click.Path())
@click.option("--preview", type=click.IntRange(min=1), metavar="N", help="Show the first N rows with their loss mask.")
@click.option("--model", metavar="PATH|demo", help="Model folder with the tokenizer; not needed for rows of input_ids.")
@click.option("--max-seq-len", type=click.IntRange(min=1), metavar="N", help="Cut longer rows to N tokens.")
@click.option("--form", help="Column to read [default: input_ids, messages, conversations or text].")
@click.option("--python", metavar="PATH", help="The interpreter where SGLang lives [default: this one].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a row.")
def extract(data: str, preview: int | None, as_json: bool, **rest: Any) -> int:
    """Make training data from DATA: a JSONL, Parquet or Arrow file, or a folder of them.

    Rows have input_ids (and loss_mask), messages or conversations, or text.
    """
    if preview is None:
        raise UsageError("nothing to do", "hsbench extract DATA --preview 3 shows rows with their loss mask")
    return _preview(data, preview, as_json, **rest)


def _preview(data: str, count: int, as_json: bool, *, model: str | None, python: str | None, **rest: Any) -> int:
    from workbench.extract.dataset import Dataset, DatasetSettings
    from workbench.render.extract import dataset_text, in_colour, preview_text, tally_text
    from workbench.server.engine import find_interpreter
    from workbench.worker import Worker

    settings = DatasetSettings(path=data, model=_model(model, python), **rest)
    with Worker(find_interpreter(python)) as worker:
        opened = Dataset.open(settings, worker)
        output.narrate(dataset_text(opened))
        for row in opened.preview(range(min(count, opened.rows))):
            if as_json:
                output.data_json(row)
            else:
                output.data(preview_text(row, in_colour()) + "\n")
        for _ in opened.samples(range(min(LOOK_AT, opened.rows))):
            pass
        for line in tally_text(opened.tally):
            output.narrate(line)
        opened.tally.check()
    return 0


def _model(model: str | None, python: str | None) -> str | None:
    if model != "demo":
        return model
    from workbench.models import demo

    return str(demo.ensure_demo_model(python, False, lambda event: output.narrate(demo.describe(event))))
