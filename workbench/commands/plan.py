"""`hsbench plan`: what a run costs, before anything is started."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench import output
from workbench.commands.params import Seconds
from workbench.errors import Missing, UsageError

if TYPE_CHECKING:
    from workbench.extract.like import Like
    from workbench.extract.plan import Plan, Rates, Volume

AUX = 3
"""Blocks besides the last one when --layers says nothing: EAGLE-3 takes three."""
WIDTH = 2
"""Bytes of a value in bfloat16, which states are kept in."""
GB = 1e9
MOST = 1e18
"""Of tokens, and of 10^9 bytes a second."""


class Positive(click.ParamType[Any]):
    """A finite number above 0, such as 17.3e6."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number, or a usage error."""
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 1 / MOST <= number <= MOST:
            self.fail(f"{value!r} is not a number above 0 and up to {MOST:g}", param, ctx)
        return number


@click.command()
@click.argument("data", required=False, type=click.Path())
@click.option("--tokens", type=Positive(), metavar="N", help="Plan for so many tokens instead of for DATA.")
@click.option("--rows", type=click.IntRange(1, 10**12), metavar="N", help="Samples that these are.")
@click.option("--model", metavar="PATH|demo", help="Its config.json gives a token's size, its tokenizer the count.")
@click.option("--layers", metavar="BLOCKS", help=f"Blocks whose outputs are taken [default: any {AUX}].")
@click.option(
    "--format",
    type=click.Choice(("speculators-v1", "speculators", "specforge")),
    default="speculators-v1",
    help="Every format takes the same room.",
)
@click.option("--max-seq-len", type=click.IntRange(min=1), metavar="N", help="Cut longer rows to N tokens.")
@click.option("--form", help="Column to read [default: input_ids, messages, conversations or text].")
@click.option("--count-all", is_flag=True, help="Count the tokens of every row instead of estimating from 512.")
@click.option("--servers", type=click.IntRange(1, 10**6), metavar="N", help="Also for so many servers.")
@click.option("--gpus-per-server", type=click.IntRange(0, 10**4), metavar="K", default=1, show_default=True)
@click.option("--tok-s", type=Positive(), metavar="X", help="Prefill of one server while it records, tokens/s.")
@click.option("--like", metavar="DIR", help="Take that, and a token's size, from a run; or the rate from a bench.")
@click.option("--disk-gb-s", type=Positive(), metavar="Y", help="A node's disk, 10^9 bytes/s.")
@click.option("--net-gb-s", type=Positive(), metavar="Z", help="A node's network, 10^9 bytes/s.")
@click.option("--shared-storage-gb-s", type=Positive(), metavar="S", help="Storage that all share, 10^9 bytes/s.")
@click.option("--start-s", type=Seconds(min=0), metavar="S", default=300.0, show_default=True, help="A server's start.")
@click.option(
    "--shard-s", type=Seconds(min=0), metavar="S", default=30.0, show_default=True, help="A shard's own time."
)
@click.option("--shards-per-server", type=click.IntRange(1, 10**4), default=4, show_default=True, metavar="N")
@click.option("--python", metavar="PATH", help="The interpreter where SGLang lives [default: this one].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(data: str | None, *, as_json: bool, **given: Any) -> None:
    """Say how many tokens and bytes DATA comes to, and how long it takes on one server and on many.

    Nothing is started or written. What bounds the time is named: prefill, a node's disk or network, the storage that
    all share, too few rows, or the start-up. docs/plan.md has the arithmetic.
    """
    from workbench.extract.like import like
    from workbench.extract.plan import Overheads, make_plan, numbers

    _refuse_odd_calls(data, given)
    model = _model(given["model"], given["python"])
    known = like(Path(given["like"]).expanduser()) if given["like"] is not None else None
    size = _bytes_per_token(model, given["layers"], known)
    counted = _volume(data, size, model, known, given)
    rates = _rates(given, known)
    overheads = Overheads(
        start_s=given["start_s"], shard_s=given["shard_s"], shards_a_server=given["shards_per_server"]
    )
    made = make_plan(counted, rates, overheads, numbers(given["servers"]), given["gpus_per_server"])
    _show(made, known.said if known is not None and given["tok_s"] is None else "", as_json)


def _show(made: "Plan", rate_from: str, as_json: bool) -> None:
    from workbench.render.plan import plan_text

    if rate_from:
        output.narrate(f"one server's rate: {rate_from}")
    if as_json:
        output.data_json(made)
    else:
        output.data(plan_text(made))


def _refuse_odd_calls(data: str | None, given: dict[str, Any]) -> None:
    if (data is None) == (given["tokens"] is None):
        raise UsageError("it takes DATA or --tokens N", "hsbench plan DATA --model PATH --tok-s X")
    if data is not None and not os.path.exists(data):
        raise UsageError(f"there is no {data}", "name a JSONL, Parquet or Arrow file, or a folder of them")
    if data is not None and given["rows"] is not None:
        raise UsageError("--rows goes with --tokens", "DATA has its own rows")
    if given["rows"] is not None and given["tokens"] < given["rows"]:
        raise UsageError(
            f"--tokens {given['tokens']:,.0f} are fewer than --rows {given['rows']:,}",
            "a row has a token at least; --tokens is of all rows together",
        )


def _model(model: str | None, python: str | None) -> str | None:
    if model != "demo":
        return None if model is None else os.path.expanduser(model)
    from workbench.models import demo

    return str(demo.ensure_demo_model(python, False, lambda event: output.narrate(demo.describe(event))))


def _bytes_per_token(model: str | None, layers: str | None, known: "Like | None") -> int:
    """(blocks + 1) * hidden size * 2, from the model's configuration, else from the run that is told of."""
    from workbench.models.folder import check_model
    from workbench.probe.prompt import parse_layers

    blocks = parse_layers(layers)
    if model is None:
        states = known.record.states if known is not None and known.record is not None else None
        if states is None:
            raise UsageError("the size of a token is not known", "--model PATH, or --like the folder of a run")
        wide = states.bytes_per_token // (len(states.after_block) + 1)
        _refuse_blocks(blocks, states.num_blocks)
        return wide * (1 + len(blocks if blocks is not None else states.after_block))
    facts = check_model(model, needs_tokenizer=False, needs_weights=False)
    if not facts.is_folder:
        raise Missing(f"{model} is not a folder here", "fetch its config.json and name the folder")
    if not facts.hidden_size or facts.hidden_size < 1:
        raise UsageError(f"{model}/config.json names no hidden_size", "give --model a decoder model's folder")
    _refuse_blocks(blocks, facts.num_blocks)
    return (1 + (len(blocks) if blocks is not None else AUX)) * facts.hidden_size * WIDTH


def _refuse_blocks(blocks: tuple[int, ...] | None, count: int | None) -> None:
    """The last block's output is taken anyway, and there is none after it."""
    if blocks and count and blocks[-1] >= count - 1:
        raise UsageError(
            f"--layers names block {blocks[-1]}; the model has blocks 0 to {count - 1}, and the last is taken anyway",
            "hsbench layers --model PATH shows them",
        )


def _volume(data: str | None, size: int, model: str | None, known: "Like | None", given: dict[str, Any]) -> "Volume":
    """Tokens as the data set's own reader counts them."""
    from workbench.extract.dataset import Dataset, DatasetSettings
    from workbench.extract.plan import Volume, counted
    from workbench.render.extract import dataset_text
    from workbench.server.engine import find_interpreter
    from workbench.worker import Worker

    if data is None:
        return Volume(tokens=given["tokens"], bytes_per_token=size, rows=given["rows"])
    source = known.record.source if known is not None and known.record is not None else None
    tokenizer = model or (source.tokenizer if source is not None else None)
    settings = DatasetSettings(path=data, model=tokenizer, max_seq_len=given["max_seq_len"], form=given["form"])
    with Worker(find_interpreter(given["python"])) as worker:
        opened = Dataset.open(settings, worker)
        output.narrate(dataset_text(opened))
        return counted(opened, size, every=given["count_all"])


def _rates(given: dict[str, Any], known: "Like | None") -> "Rates":
    from workbench.extract.plan import Rates

    names = {"disk_bytes_s": "disk_gb_s", "net_bytes_s": "net_gb_s", "shared_bytes_s": "shared_storage_gb_s"}
    bounds = {name: None if given[option] is None else given[option] * GB for name, option in names.items()}
    return Rates(tok_s=given["tok_s"] or (known.tok_s if known is not None else None), **bounds)
