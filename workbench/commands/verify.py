"""`hsbench verify`: audit a data set of hidden states."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from workbench import output
from workbench.errors import UsageError
from workbench.exitcodes import ExitCode

if TYPE_CHECKING:
    from workbench.extract.audit.deep import ServerRecapture
    from workbench.extract.audit.files import Fetch
    from workbench.extract.audit.run import VerifyOptions
    from workbench.extract.pool import WorkerPool


@click.command()
@click.argument("folder", metavar="DIR|URL")
@click.option(
    "--sample", type=click.IntRange(min=1), metavar="N", help="Read N files whole, chosen at random [default: 200]."
)
@click.option("--all", "every", is_flag=True, help="Read every file whole.")
@click.option("--partial", is_flag=True, help="The run is not finished: missing rows are no fault.")
@click.option("--source", metavar="DATA", help="The data set that the samples were made of [default: as recorded].")
@click.option("--server", metavar="URL", help="Capture some samples again and compare; it must record on this machine.")
@click.option(
    "--dump-dir", type=click.Path(path_type=Path), help="The server's dump folder [default: asked of the server]."
)
@click.option("--reference", is_flag=True, help="Compute some samples with transformers in float32 and compare.")
@click.option(
    "--deep", type=click.IntRange(min=1), default=8, show_default=True, help="Samples for --server, --reference."
)
@click.option("--model", metavar="PATH", help="The model's folder [default: as recorded].")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the choice of samples.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes that read files [default: one a core].")
@click.option("--python", metavar="PATH", help="The interpreter where SGLang lives [default: this one].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--markdown", is_flag=True, help="Print Markdown.")
def verify(
    folder: str,
    *,
    sample: int | None,
    every: bool,
    server: str | None,
    dump_dir: Path | None,
    workers: int | None,
    python: str | None,
    as_json: bool,
    markdown: bool,
    partial: bool,
    source: str | None,
    reference: bool,
    deep: int,
    model: str | None,
    seed: int,
) -> int:
    """Check the data set in DIR or at URL: files, index, values, masks, statistics, source. Exit code 1 on a fault."""
    import msgspec

    from workbench.extract.audit.deep import ServerRecapture
    from workbench.extract.audit.files import at_hand
    from workbench.extract.audit.run import SAMPLE, VerifyOptions
    from workbench.extract.pool import WorkerPool
    from workbench.server.engine import find_interpreter
    from workbench.storage.address import is_url
    from workbench.storage.mirror import Mirror

    if sample and every:
        raise UsageError("--sample and --all exclude each other", "give one of them")
    options = VerifyOptions(
        folder=Path(folder),
        sample=None if every else sample or SAMPLE,
        partial=partial,
        source=source,
        reference=reference,
        deep=deep,
        model=model,
        seed=seed,
    )
    recapture = ServerRecapture(server, dump_dir, python) if server else None
    how = "json" if as_json else "markdown" if markdown else "table"
    with contextlib.ExitStack() as stack:
        fetch = at_hand
        if is_url(folder):
            mirror = stack.enter_context(Mirror.of(folder))
            options, fetch = msgspec.structs.replace(options, folder=mirror.folder, name=mirror.name), mirror.fetch
        pool = stack.enter_context(WorkerPool(find_interpreter(python), workers))
        return _show(options, pool, recapture, how, fetch)


def _show(
    options: "VerifyOptions", pool: "WorkerPool", recapture: "ServerRecapture | None", how: str, fetch: "Fetch"
) -> int:
    from workbench.extract.audit.report import Progress, VerifyReport
    from workbench.extract.audit.run import verify as operation
    from workbench.render.verify import progress_text, verify_markdown, verify_text

    code = ExitCode.INTERNAL
    for event in operation(options, pool, recapture, fetch):
        if isinstance(event, Progress):
            output.narrate(progress_text(event))
        elif not isinstance(event, VerifyReport):
            output.narrate(event.text)
        else:
            if how == "json":
                output.data_json(event)
            else:
                output.data(verify_markdown(event) if how == "markdown" else verify_text(event))
            code = ExitCode.OK if event.verdict == "ok" else ExitCode.CHECK_FAILED
    return code
