"""`hsbench bench --nccl-sweep`: start the server under each variant, again and again, and decide."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench import output
from workbench.commands.params import Seconds
from workbench.errors import UsageError
from workbench.exitcodes import ExitCode

if TYPE_CHECKING:
    from bench.sweep.journal import Settings
    from bench.sweep.machine import Shape
    from bench.sweep.variants import Variant
    from workbench.server.specs import LaunchSpec

NAME = "sweep"
TP_FLAGS = ("--tp-size", "--tp", "--tensor-parallel-size")


@click.command(epilog="Flags after -- go to every server: hsbench bench --nccl-sweep --model M -- --tp-size 2")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- SGLANG FLAGS]")
@click.option("--model", metavar="PATH|demo", help="The model to serve.")
@click.option("--profile", type=click.Path(path_type=Path), metavar="FILE.toml", help="A server's profile.")
@click.option("--python", metavar="PATH", help="The interpreter where SGLang lives [default: this one].")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--variants", metavar="SET|FILE", help="pcie, nvlink, flags, or a TOML file [default: by the axes].")
@click.option("--axes", default="nccl,communicator,flags", show_default=True, help="Kinds of variants to run.")
@click.option("--ablation", nargs=2, metavar="ENV FLAGS", help="NCCL only, flags only, both: 'A=1 B=2' '--flag 4'.")
@click.option("--unsafe", is_flag=True, help="Run variants that may hang or corrupt too.")
@click.option("--blocks", type=click.IntRange(2, 50), default=3, show_default=True, help="Starts of each variant.")
@click.option("--budget", type=click.FloatRange(min=0, min_open=True), metavar="MIN", help="Stop in time; resumable.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the order of starts.")
@click.option(
    "--retries", type=click.IntRange(0, 10), default=1, show_default=True, help="Of starts not to be counted."
)
@click.option("--no-confirm", is_flag=True, help="Do not start winners afresh.")
@click.option("--nccl-debug", is_flag=True, help="Start each variant once more, untimed, with NCCL's log on.")
@click.option("--concurrency", type=click.IntRange(1, 1024), default=1, show_default=True)
@click.option("--input-len", type=click.IntRange(1), default=32, show_default=True, help="Of the decode load.")
@click.option("--output-len", type=click.IntRange(2), default=128, show_default=True, help="Of the decode load.")
@click.option("--requests", type=click.IntRange(1), help="Of each load [default: 8, or 4 x concurrency].")
@click.option("--prefill-len", type=click.IntRange(1), default=1024, show_default=True, help="Of the prefill load.")
@click.option(
    "--side-by-side", type=click.IntRange(1, 32), default=1, show_default=True, help="Servers that start together."
)
@click.option("--timeout", type=Seconds(min=1), default=900.0, show_default=True, help="For one start.")
@click.option("--silence", type=Seconds(min=1), default=60.0, show_default=True, help="Seconds that are long.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Its folder [default: by what is swept].")
@click.option("--json", "as_json", is_flag=True, help="Print every event as a JSON object.")
def sweep(*, as_json: bool, out: Path | None, **given: Any) -> int:
    """Compare NCCL variables, communicators and flags by starts of the server. The same command again goes on.

    Exit code 0 when every variant was decided or has ended, 4 when the budget ended the sweep, 2 when nothing it asks
    for could matter, such as NCCL's variables with one GPU.
    """
    from bench.sweep.records import Table
    from bench.sweep.roster import default_folder, note
    from bench.sweep.sweep import sweep as run
    from workbench.render.sweep import event_text

    spec = _spec(given)
    settings = _settings(given, spec)
    folder = out if out is not None else default_folder(settings)
    note(folder)
    output.narrate(f"sweeping in {folder}")
    budget = given["budget"] * 60 if given["budget"] is not None else None
    complete = True
    for event in run(_machine(given, spec), settings, folder, budget_s=budget):
        complete = event.complete if isinstance(event, Table) else complete
        if as_json:
            output.data_json(event)
        elif isinstance(event, Table):
            output.data(event_text(event))
        else:
            output.narrate(event_text(event))
    return ExitCode.OK if complete else ExitCode.TIMEOUT


def _spec(given: dict[str, Any]) -> "LaunchSpec":
    from workbench.server.profile import Profile, applied, read

    profile = read(given["profile"]) if given["profile"] is not None else Profile()
    chosen = {key: given[key] for key in ("model", "python", "device") if given[key] not in (None, "auto")}
    if given["flags"] and not given["flags"][0].startswith("-"):
        raise UsageError(f"unexpected argument {given['flags'][0]!r}", "SGLang's flags come after --")
    return applied(profile, {**chosen, "name": NAME, "port": 0}, given["flags"], None)


def _settings(given: dict[str, Any], spec: "LaunchSpec") -> "Settings":
    from bench.sweep.journal import Settings
    from bench.sweep.serving import refuse_useless
    from bench.sweep.variants import choose
    from workbench.supervision.gpu import Nvml

    axes = [axis.strip() for axis in given["axes"].split(",") if axis.strip()]
    gpus = 0 if spec.device == "cpu" else len(Nvml().sample())
    chosen = choose(_variants(given), axes, unsafe=given["unsafe"])
    refuse_useless(axes, _tp(spec.flags), gpus)
    if not chosen.variants:
        left = "; ".join(f"{name}: {why}" for name, why in chosen.left_out)
        raise UsageError(f"no variant is left to run: {left}", "another --variants, more --axes, or --unsafe")
    return Settings(
        variants=chosen.variants,
        left_out=chosen.left_out,
        blocks=given["blocks"],
        seed=given["seed"],
        confirm=not given["no_confirm"],
        retries=given["retries"],
        debug=given["nccl_debug"],
        server=_described(spec, given),
    )


def _variants(given: dict[str, Any]) -> "tuple[Variant, ...]":
    from bench.sweep.variants import SETS, ablation, load_file, load_set

    if given["ablation"]:
        env, flags = given["ablation"]
        pairs = [word.partition("=") for word in env.split()]
        if not all(equals for _, equals, _ in pairs):
            raise UsageError(f"{env!r} is not a list of NAME=VALUE", "such as --ablation 'NCCL_PROTO=LL' '--flag 4'")
        return ablation({name: value for name, _, value in pairs}, flags.split())
    name = given["variants"] or ("flags" if given["axes"].strip() == "flags" else "nvlink")
    return load_set(name) if name in SETS else load_file(Path(name))


def _tp(flags: tuple[str, ...]) -> int:
    from workbench.server.flags import given as flags_given

    present = flags_given(flags)
    value = next((present[name] for name in TP_FLAGS if present.get(name)), None)
    return int(value) if value and value.isdigit() else 1


def _described(spec: "LaunchSpec", given: dict[str, Any]) -> dict[str, str]:
    """What a resumed sweep must have in common with the one before."""
    from workbench.server.engine import find_engine
    from workbench.server.secrets import mask_flags

    engine = find_engine(spec.python)
    shape = ("concurrency", "input_len", "output_len", "requests", "prefill_len")
    return {
        "model": spec.model,
        "sglang": engine.version,
        "torch": engine.torch,
        "device": spec.device,
        "flags": " ".join(mask_flags(spec.flags)),
        **{name: str(given[name]) for name in shape},
        **({"side by side": str(given["side_by_side"])} if given["side_by_side"] > 1 else {}),
    }


def _machine(given: dict[str, Any], spec: "LaunchSpec") -> Any:
    from bench.sweep.machine import Machine
    from bench.sweep.sidebyside import SideBySide
    from workbench.supervision.verdict import Limits

    silence = given["silence"]
    limits = Limits(silence_s=silence, fresh_s=min(30.0, silence))
    machine = Machine(
        spec, _shape(given), timeout_s=given["timeout"], limits=limits, tp_size=_tp(spec.flags), seed=given["seed"]
    )
    return machine if given["side_by_side"] == 1 else SideBySide(machine, given["side_by_side"])


def _shape(given: dict[str, Any]) -> "Shape":
    from bench.sweep.machine import Shape

    requests = given["requests"] or max(8, 4 * given["concurrency"])
    return Shape(
        concurrency=given["concurrency"],
        input_len=given["input_len"],
        output_len=given["output_len"],
        requests=requests,
        prefill_len=given["prefill_len"],
        prefill_requests=requests,
    )
