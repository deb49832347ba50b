"""`hsbench bench`: measure a server, and look at what was measured."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench import output
from workbench.commands.params import Seconds
from workbench.errors import CheckFailed, UsageError
from workbench.exitcodes import ExitCode

if TYPE_CHECKING:
    from bench.load.spec import BenchSettings

SWEEP, SWEEP_FILE = "--nccl-sweep", "sweep.json"
APIS = ("native", "openai", "openai-chat")


class BenchGroup(click.Group):
    """Knows `--nccl-sweep` too: another name of the subcommand `sweep`, which has a module of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ours = args[: args.index("--")] if "--" in args else args
        if SWEEP in ours:
            args = ["sweep", *(word for number, word in enumerate(args) if word != SWEEP or number >= len(ours))]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), "sweep"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name != "sweep":
            return super().get_command(ctx, cmd_name)
        from workbench.commands.sweep import sweep

        return sweep


@click.group(cls=BenchGroup, invoke_without_command=True)
@click.option("--url", help="A server that runs, of any kind with --api openai or openai-chat.")
@click.option("--name", help="A server that hsbench started [default: the only one].")
@click.option("--api", type=click.Choice(APIS), default="native", show_default=True, help="How to ask.")
@click.option("--model", help="The model that OpenAI requests name [default: the server's first].")
@click.option("--input-len", metavar="N,...", help="Tokens of synthetic prompts [default: 128].")
@click.option("--output-len", metavar="N,...", default="128", show_default=True, help="Tokens to generate.")
@click.option("--concurrency", metavar="N,...", help="Requests kept in flight [default: 1].")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True, max=1e6), help="Arrivals a second, Poisson.")
@click.option("--requests", type=click.IntRange(min=1), help="For each workload [default: 4 x concurrency, >= 10].")
@click.option("--seconds", type=Seconds(min=0, min_open=True), help="Send for so long instead.")
@click.option("--data", metavar="FILE", help="Prompts from JSONL or ShareGPT instead of synthetic ones.")
@click.option("--seed", type=click.IntRange(min=0), help="Same prompts again [default: new ones, in no cache].")
@click.option("--token-range", metavar="LO,HI", default="100,8000", show_default=True, help="Ids of synthetic prompts.")
@click.option("--respect-eos", is_flag=True, help="Let answers end before their length.")
@click.option("--limits", metavar="NAME=S,...", help="Goodput limits: ttft, tpot, itl, e2e in seconds.")
@click.option("--no-warm-up", is_flag=True, help="Measure at once.")
@click.option("--timeout", type=Seconds(min=1), default=600.0, show_default=True, help="Seconds without a byte.")
@click.option("--api-key-env", metavar="VAR", help="Send the key in this variable of the environment.")
@click.option("--out", type=click.Path(path_type=Path), help="The run's folder [default: one of its own].")
@click.option("--explain", is_flag=True, help="Print what every figure means.")
@click.option("--self-test", is_flag=True, help="Measure what this machine's client can take.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def bench(context: click.Context, /, *, explain: bool, self_test: bool, as_json: bool, **given: Any) -> int:
    """Put load on a server and measure latencies and throughput; every combination of the lists given is one workload.

    Exit code 1 when requests failed or answers were shorter than asked. hsbench bench list, show, compare and export
    work on the runs that are kept.
    """
    if context.invoked_subcommand is not None:
        return ExitCode.OK
    if explain:
        return _explain(as_json)
    if self_test:
        return _self_test(given["api"], as_json)
    return _measure(given, as_json)


def _explain(as_json: bool) -> int:
    from bench.load.metrics import DEFINITIONS
    from workbench.render.bench import definitions_text

    if as_json:
        output.data_json(dict(DEFINITIONS))
    else:
        output.data(definitions_text(DEFINITIONS))
    return ExitCode.OK


def _self_test(api: Any, as_json: bool) -> int:
    from bench.load.selftest import Ceiling, remember, self_test
    from workbench.render.bench import ceiling_text

    for told in self_test(api):
        if not isinstance(told, Ceiling):
            output.narrate(f"offered {told.offered} tok/s, taken {told.taken:.0f}")
            continue
        remember(told)
        if as_json:
            output.data_json(told)
        else:
            output.data(ceiling_text(told))
    return ExitCode.OK


def _measure(given: dict[str, Any], as_json: bool) -> int:
    from bench.load.runner import Measured
    from bench.load.session import measure
    from workbench.render.bench import summary_text, told_text

    points = []

    def tell(told: Any) -> None:
        output.narrate(told_text(told))
        if isinstance(told, Measured):
            points.append(told.point)
            if as_json:
                output.data_json(told.point)

    folder = measure(_settings(given), tell, given["out"], _key(given["api_key_env"]))
    if not as_json:
        output.data(summary_text(points))
    output.narrate(f"kept in {folder.path}; hsbench bench show {folder.path.name} draws it")
    bad = any(one.metrics.failed or (one.metrics.short and one.workload.ignore_eos) for one in points)
    if bad:
        output.complain("requests failed, or answers were shorter than asked", "the lines with ! say which")
    return ExitCode.CHECK_FAILED if bad else ExitCode.OK


def _settings(given: dict[str, Any]) -> "BenchSettings":
    from bench.load.session import fresh_seed, url_of
    from bench.load.spec import BenchSettings, WarmUp, grid, parse_limits, parse_numbers

    if given["data"] is not None and given["input_len"] is not None:
        raise UsageError("--data brings its own lengths", "leave --input-len out")
    if given["rate"] is not None and given["concurrency"] is not None:
        raise UsageError("--rate and --concurrency are two kinds of load", "give one of them")
    workloads = grid(
        [None] if given["data"] is not None else parse_numbers(given["input_len"] or "128", "--input-len"),
        parse_numbers(given["output_len"], "--output-len"),
        parse_numbers(given["concurrency"] or "1", "--concurrency"),
        given["rate"],
        requests=given["requests"],
        seconds=given["seconds"],
        ignore_eos=not given["respect_eos"],
    )
    return BenchSettings(
        url=url_of(given["url"], given["name"]),
        api=given["api"],
        workloads=workloads,
        model=given["model"],
        data=given["data"],
        seed=fresh_seed() if given["seed"] is None else given["seed"],
        token_range=_pair(given["token_range"]),
        limits=parse_limits(given["limits"]),
        warm_up=None if given["no_warm_up"] else WarmUp(),
        timeout=given["timeout"],
    )


def _pair(text: str) -> tuple[int, int]:
    low, _, high = text.partition(",")
    if not (low.strip().isdecimal() and high.strip().isdecimal() and int(low) < int(high)):
        raise UsageError(f"--token-range {text!r} is not LO,HI", "such as 100,8000")
    return int(low), int(high)


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise UsageError(f"the variable {variable} is not set", "it holds the API key")
    return os.environ[variable]


@bench.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a run.")
def list_runs(as_json: bool) -> None:
    """Show the runs that are kept."""
    from bench.load.store import all_runs
    from workbench.render.bench import runs_text

    kept = [(folder.run(), folder.summary()) for folder in all_runs()]
    if not as_json:
        output.data(runs_text(kept))
    for run, summary in kept if as_json else ():
        output.data_json({"name": run.name, "started": run.started, "url": run.settings.url, "summary": summary})


@bench.command()
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(run: str, as_json: bool) -> None:
    """Show RUN, its name, folder or `last`, with latencies and rates drawn; a sweep's folder with its decisions."""
    from bench.load.store import find_run
    from workbench.render.bench import run_text

    if (Path(run) / SWEEP_FILE).is_file():
        _show_sweep(Path(run), as_json)
        return
    folder = find_run(run)
    if as_json:
        output.data_json({"run": folder.run(), "summary": folder.summary()})
    else:
        output.data(run_text(folder))


def _show_sweep(folder: Path, as_json: bool) -> None:
    """The table of decisions, made anew from the starts."""
    from bench.sweep.journal import load_settings, load_starts
    from bench.sweep.outcome import screened, table
    from workbench.render.sweep import table_text

    settings, starts = load_settings(folder), load_starts(folder)
    if settings is None:
        raise UsageError(f"there is no sweep in {folder}", "hsbench bench --nccl-sweep --out DIR makes one")
    decided = table(settings, starts, complete=screened(settings, starts))
    if as_json:
        output.data_json(decided)
    else:
        output.data(table_text(decided))


@bench.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--fail-if-slower", metavar="P%", help="Exit code 1 if B is worse by more in tok/s, TTFT or TPOT.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a figure.")
def compare(first: str, second: str, fail_if_slower: str | None, as_json: bool) -> None:
    """Compare run B with run A, workload by workload."""
    from bench.load.compare import cautions, slower_than
    from bench.load.compare import compare as differences_of
    from bench.load.spec import parse_percent
    from bench.load.store import find_run
    from workbench.render.bench import differences_text
    from workbench.render.text import harmless

    share = None if fail_if_slower is None else parse_percent(fail_if_slower)
    old, new = ((folder.run(), folder.summary().points) for folder in map(find_run, (first, second)))
    differences = differences_of(old[1], new[1])
    for caution in cautions(old, new):
        output.narrate(f"! {harmless(caution)}")
    if as_json:
        for one in differences:
            output.data_json(one)
    else:
        output.data(differences_text(differences))
    if share is not None and (worse := slower_than(differences, share)):
        worst = max(worse, key=lambda one: one.slower)
        raise CheckFailed(
            f"{second} is slower by more than {fail_if_slower} in {len(worse)} of the judged figures, "
            f"most in {worst.measure} of {worst.workload}: by {worst.slower:.1%}",
            "one run a side: measure again before believing it",
        )


@bench.command()
@click.argument("run")
@click.argument("form", metavar="csv|md", type=click.Choice(["csv", "md"]))
def export(run: str, form: str) -> None:
    """Print the figures of RUN as a table."""
    from bench.load.compare import as_csv, as_markdown
    from bench.load.store import find_run

    points = find_run(run).summary().points
    output.data(as_csv(points) if form == "csv" else as_markdown(points))
