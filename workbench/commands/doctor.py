"""`hsbench doctor`: is this machine fit, and what is that server doing?"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench import output
from workbench.commands.params import Seconds
from workbench.exitcodes import ExitCode

if TYPE_CHECKING:
    from workbench.supervision.doctor import Finding
    from workbench.supervision.verdict import Verdict


@click.command()
@click.option("--pid", type=click.IntRange(min=1), help="The server's main process; any server, also a foreign one.")
@click.option("--name", help="A server that hsbench started, instead of --pid.")
@click.option("--log", type=click.Path(path_type=Path), help="Its log; default: what its output goes to.")
@click.option("--port", type=click.IntRange(1, 65535), help="Its port; default: as its command line says.")
@click.option("--seconds", type=Seconds(min=1), default=12.0, show_default=True, help="How long to watch it.")
@click.option("--silence", type=Seconds(min=1), default=60.0, show_default=True, help="Seconds that are long.")
@click.option("--python", metavar="PATH", help="The interpreter where SGLang lives; default hsbench's own.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--bundle", type=click.Path(path_type=Path), metavar="FILE.tar.gz", help="Pack it all for a bug report.")
def doctor(
    *,
    pid: int | None,
    name: str | None,
    log: Path | None,
    port: int | None,
    seconds: float,
    silence: float,
    python: str | None,
    as_json: bool,
    bundle: Path | None,
) -> int:
    """Examine the machine, or with --pid or --name diagnose one server. Changes nothing, ends nothing.

    The exit code says the verdict: 0 well, 7 broken, 8 neither; of the machine: 0, or 1 when something is a problem.
    """
    pid = _pid_of(name) if name is not None else pid
    if pid is None:
        return _machine(python, as_json, bundle)
    return _server(pid, log, port, seconds=seconds, silence=silence, as_json=as_json, bundle=bundle)


def _pid_of(name: str) -> int:
    from workbench.server.state import find_record

    return find_record(name).pid


def _machine(python: str | None, as_json: bool, bundle: Path | None) -> int:
    from workbench.supervision.doctor import examine

    found = list(examine(python))
    if bundle is not None:
        _bundle(bundle, found)
    if as_json:
        output.data_json({"schema": 1, "findings": found})
    else:
        output.data(_table(found))
    return ExitCode.CHECK_FAILED if any(one.level == "problem" for one in found) else ExitCode.OK


def _server(
    pid: int,
    log: Path | None,
    port: int | None,
    *,
    seconds: float,
    silence: float,
    as_json: bool,
    bundle: Path | None,
) -> int:
    from workbench.supervision.diagnosis import diagnose, find_target
    from workbench.supervision.doctor import examine
    from workbench.supervision.verdict import Limits

    target, lost = find_target(pid, log, port)
    if not as_json:
        output.narrate(f"watching process {pid} for {seconds:.0f} s, log {target.log}, port {target.port}")
    samples, verdict = [], None
    for seen in diagnose(target, seconds, Limits(silence_s=silence, fresh_s=min(30.0, silence)), lost):
        samples.append(seen.sample)
        verdict = seen.verdict
    assert verdict is not None
    if bundle is not None:
        _bundle(bundle, list(examine(None)), target=target, samples=samples[-60:], verdict=verdict)
    if as_json:
        output.data_json(verdict.as_json())
    else:
        output.data(_report(verdict))
    return verdict.exit_code


def _bundle(path: Path, findings: "list[Finding]", **more: Any) -> None:
    from workbench.supervision.bundle import write

    names = write(path, findings, **more)
    output.narrate(f"wrote {path}: {', '.join(names)}; secrets are masked, but look before you send it")


def _report(verdict: "Verdict") -> str:
    known = f" of {verdict.lines_known_good} of a good start" if verdict.lines_known_good else ""
    lines = [verdict.headline(), f"  log      {verdict.lines} lines{known}"]
    lines += [f"  {'for' if not n else '':8} {text}" for n, text in enumerate(verdict.evidence)]
    lines += [f"  {'against' if not n else '':8} {text}" for n, text in enumerate(verdict.against)]
    return "\n".join([*lines, f"  next     {verdict.next_step}"])


def _table(found: "list[Finding]") -> str:
    from workbench.render.text import columns, plain_table

    rows = [[one.area, one.level, one.text + (f"\nnext: {one.next_step}" if one.next_step else "")] for one in found]
    return plain_table("", ["", "", "found"], rows, left=3, width=columns())
