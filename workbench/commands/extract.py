"""`hsbench extract`: a data set in, checked training data out."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workbench import output
from workbench.commands import clustering
from workbench.commands.params import Gibibytes, Seconds
from workbench.errors import UsageError
from workbench.server.specs import CAPTURE_HELP, ROUTES

if TYPE_CHECKING:
    from workbench.extract.job.events import JobEvent
    from workbench.extract.job.files import Request
    from workbench.extract.job.settings import ExtractSettings

FORMATS = ("speculators-v1", "speculators", "specforge")
LOOK_AT = 200
"""Rows whose mask coverage a preview tells."""
GIB = 1 << 30
TERMINAL_S, LINE_S = 5.0, 30.0
"""Seconds between two lines of a job in the foreground, with and without somebody who looks on."""


class Shard(click.ParamType[Any]):
    """`I/N`: the rows whose number leaves I when divided by N."""

    name = "I/N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """The two numbers, 0 ≤ I < N."""
        if isinstance(value, tuple):
            return value
        number, _, of = str(value).partition("/")
        if not (len(value) < 20 and number.isdecimal() and of.isdecimal() and int(number) < int(of)):
            self.fail(f"{value!r} is not I/N with I from 0 to N-1, such as 0/4", param, ctx)
        return int(number), int(of)


@click.command(
    epilog="Flags after -- go to a server that is started: hsbench extract D --out O --model M -- --tp-size 2"
)
@click.argument("data", required=False, type=click.Path())
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- SGLANG FLAGS]")
@click.option("--out", metavar="DIR|URL", help="Where the data set goes: a folder, or such as s3://bucket/prefix.")
@click.option("--staging", metavar="DIR", help="Where samples wait that go to a URL [default: the state folder].")
@click.option("--staging-limit", type=Gibibytes(min=0), metavar="GIB", help="May wait there.")
@click.option("--resume", metavar="DIR|URL", help="Go on with that job; other options given here replace its own.")
@click.option("--merge", metavar="DIR", help="Make one data set of the shards in DIR; nothing is written twice.")
@click.option("--check", is_flag=True, help="With --merge: compare the checksum of every file first.")
@click.option("--preview", type=click.IntRange(min=1), metavar="N", help="Show the first N rows with their loss mask.")
@click.option("--requested", metavar="DIR", hidden=True, help="Do what request.json asks for.")
@click.option("--foreground", is_flag=True, help="Do the job in this process instead of a detached one.")
@click.option("--format", type=click.Choice(FORMATS), default="speculators-v1", show_default=True)
@click.option("--layers", metavar="BLOCKS", help="Blocks whose outputs are taken [default: the server's].")
@click.option("--shard", type=Shard(), default="0/1", help="Only this share of the rows, into DIR/shard_I-of-N.")
@click.option("--max-seq-len", type=click.IntRange(min=1), metavar="N", help="Cut longer rows to N tokens.")
@click.option("--form", help="Column to read [default: input_ids, messages, conversations or text].")
@click.option("--model", metavar="PATH|demo", help="Model to serve if no server runs, and whose tokenizer is used.")
@click.option("--name", default="default", show_default=True, help="The server to use, if it runs.")
@click.option("--url", help="A server that runs already and records into --dump-dir on this machine.")
@click.option("--dump-dir", metavar="DIR", help="Where the server records [default: asked of it].")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--python", metavar="PATH", help="The interpreter where SGLang lives [default: this one].")
@click.option("--capture", type=click.Choice(ROUTES), default="auto", show_default=True, help=CAPTURE_HELP)
@click.option("--allow-chunked", is_flag=True, help="Put prompts together that prefill cuts into several passes.")
@click.option("--keep", is_flag=True, help="Leave a server that the job started running.")
@click.option("--concurrency", type=click.IntRange(1, 1024), default=32, show_default=True, help="Requests in flight.")
@click.option("--writers", type=click.IntRange(1, 256), help="Processes that check and write [default: one a core].")
@click.option("--high-water", type=Gibibytes(min=0), metavar="GIB", help="May wait in the dump folder.")
@click.option("--min-free", type=Gibibytes(min=0), metavar="GIB", default=1.0, help="Pause below this.")
@click.option("--max-bad", type=click.IntRange(min=0), help="Bad samples to bear [default: 1 %, at least 10].")
@click.option("--redo-bad", is_flag=True, help="Try the rows in quarantine again.")
@click.option("--baseline", type=Seconds(min=0), default=10.0, metavar="S", help="Measure plain prefill so long first.")
@click.option("--timeout", type=Seconds(min=1), default=900.0, metavar="S", help="For a start, and for one request.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a row (--preview) or an event.")
@clustering.options
def extract(data: str | None, preview: int | None, as_json: bool, resume: str | None, **rest: Any) -> int:
    """Make training data from DATA: a JSONL, Parquet or Arrow file, or a folder of them.

    Rows have input_ids (and loss_mask), messages or conversations, or text. The job goes on when this command ends:
    hsbench watch DIR shows it, hsbench job stop DIR ends it, and the same command again, or --resume DIR, goes on
    after whatever ended it.
    """
    from workbench.extract.job.files import Request

    on_cluster, check = clustering.taken(rest), rest.pop("check")
    if (target := rest.pop("merge")) is not None:
        from workbench.commands.merging import merged

        return merged(target, check, rest["python"], as_json)
    if check:
        raise UsageError("--check goes with --merge", "hsbench verify DIR --all checks a data set")
    if preview is not None:
        if data is None:
            raise UsageError("--preview needs DATA", "hsbench extract DATA --preview 3")
        kept = {name: rest[name] for name in ("max_seq_len", "form")}
        return _preview(data, preview, as_json, model=rest["model"], python=rest["python"], **kept)
    requested, foreground = rest.pop("requested"), rest.pop("foreground")
    if requested is not None:
        return _in_foreground(_requested(requested), as_json)
    settings = _resumed(resume, data, rest) if resume is not None else _asked(data, rest)
    from workbench.extract.merge import refuse_part_of_whole
    from workbench.server.secrets import mask_flags

    refuse_part_of_whole(settings.folder)
    cluster = clustering.cluster_of(on_cluster, settings, resume is not None)
    request = Request(settings=settings, command=" ".join(mask_flags(tuple(sys.argv))), cluster=cluster)
    return _in_foreground(request, as_json) if foreground else _detached(request, as_json)


def _requested(folder: str) -> "Request":
    from workbench.extract.job.files import JobFiles

    return JobFiles(Path(folder)).load_request()


def _asked(data: str | None, rest: dict[str, Any]) -> "ExtractSettings":
    from workbench.extract.job.settings import ExtractSettings

    if data is None or rest["out"] is None:
        raise UsageError(
            "it takes DATA and --out DIR", "hsbench extract DATA --out DIR; --preview 3 shows rows with their loss mask"
        )
    if data.startswith("-"):
        raise UsageError("DATA is missing", "hsbench extract DATA --out DIR [-- SGLANG FLAGS]")
    if not os.path.exists(data):
        raise UsageError(f"there is no {data}", "name a JSONL, Parquet or Arrow file, or a folder of them")
    return ExtractSettings(data=os.path.abspath(data), **_settings(rest))


def _resumed(folder: str, data: str | None, rest: dict[str, Any]) -> "ExtractSettings":
    """The job's own settings, with those replaced that stand on the command line."""
    import msgspec

    from workbench.extract.job.files import JobFiles
    from workbench.storage.address import is_url

    context = click.get_current_context()
    given = {k for k in rest if context.get_parameter_source(k) is click.core.ParameterSource.COMMANDLINE}
    if data is not None or given & {"out", "shard", "flags"}:
        raise UsageError(
            "--resume DIR knows DATA, --out, --shard and the server's flags",
            "leave them out, or give the first command",
        )
    if is_url(folder):
        folder, settings = _resumed_url(folder, rest["staging"])
    else:
        job = JobFiles(Path(folder)).load()
        if job is None:
            raise UsageError(f"there was no job in {folder}", "hsbench extract DATA --out DIR begins one")
        settings = job.settings
    new = _settings({**rest, "out": folder, "staging": None, "shard": (0, 1)})
    given = (given - {"resume", "staging"}) | {"out"}  # the folder may have been moved
    return msgspec.structs.replace(settings, **{NAMES.get(k, k): new[NAMES.get(k, k)] for k in given})


def _resumed_url(url: str, staging: str | None) -> tuple[str, "ExtractSettings"]:
    """The folder that stages a data set here, and its job's settings, kept here or at the URL."""
    from workbench.extract.job.files import JobFiles
    from workbench.storage.address import checked_url, local_folder, staging_folder
    from workbench.storage.remote import load_settings

    url = checked_url(url)
    folder = local_folder(url) if staging is None else staging_folder(url, staging)
    job = JobFiles(folder).load()
    settings = job.settings if job is not None and job.settings.store == url else load_settings(url, folder)
    return str(folder), settings


NAMES = {
    "staging_limit": "staging_bytes",
    "high_water": "high_water_bytes",
    "min_free": "min_free_bytes",
    "baseline": "baseline_s",
    "timeout": "timeout_s",
}
"""Options whose setting has another name."""


def _settings(rest: dict[str, Any]) -> dict[str, Any]:
    """The command line's values as `ExtractSettings` takes them, without `data`."""
    from workbench.probe.prompt import parse_layers

    number, of = rest["shard"]
    given = {NAMES.get(name, name): value for name, value in rest.items() if name != "staging"}
    for name in ("high_water_bytes", "min_free_bytes", "staging_bytes"):
        given[name] = None if given[name] is None else int(given[name] * GIB)
    given["layers"] = parse_layers(rest["layers"])
    given["model"] = _model(rest["model"], rest["python"])
    given["out"], given["store"] = _place(rest["out"], (number, of), rest["staging"])
    if rest["dump_dir"] is not None:
        given["dump_dir"] = os.path.abspath(rest["dump_dir"])
    if rest["python"] is not None and os.sep in rest["python"]:
        given["python"] = os.path.abspath(os.path.expanduser(rest["python"]))
    return given


def _place(out: str, shard: tuple[int, int], staging: str | None) -> tuple[str, str | None]:
    """The folder to write into, and the URL where the data set goes from there, if it does."""
    from workbench.storage.address import is_url, shard_of, staging_folder, writable_url

    if is_url(out):
        url = shard_of(writable_url(out), shard)
        return _folder(str(staging_folder(url, staging))), url
    if staging is not None:
        raise UsageError("--staging goes with --out URL", "leave it out: a folder needs no staging")
    number, of = shard
    return _folder(out) if of == 1 else os.path.join(_folder(out), f"shard_{number}-of-{of}"), None


def _folder(name: str) -> str:
    """An absolute path for --out that can be a folder's, and can be written down."""
    path = os.path.abspath(os.path.expanduser(name))
    above = next((p for p in (Path(path), *Path(path).parents) if p.exists()), Path("/"))
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UsageError("--out is no text in UTF-8, so it could not be written down", "rename it") from None
    if not name.strip() or not above.is_dir():
        raise UsageError(f"--out {name!r} cannot be a folder", f"{above} is a file" if name.strip() else "name one")
    return path


def _model(model: str | None, python: str | None) -> str | None:
    if model is None:
        return None
    if model != "demo":
        return os.path.abspath(os.path.expanduser(model)) if os.path.isdir(os.path.expanduser(model)) else model
    from workbench.models import demo

    return str(demo.ensure_demo_model(python, False, lambda event: output.narrate(demo.describe(event))))


def _in_foreground(request: "Request", as_json: bool) -> int:
    from workbench.extract.job.events import Ended
    from workbench.extract.job.run import Control, run

    control, lines = Control(), Lines(request.settings.folder)
    control.on_signals()
    code = 0
    work = () if request.cluster is None else (clustering.work_of(request),)
    for event in run(request, control, *work):
        _show(event, as_json)
        if not as_json and (line := lines.of(event)):
            output.narrate(line)
        code = event.exit_code if isinstance(event, Ended) else code
    return code


class Lines:
    """Now and then a line about how far a job in the foreground is."""

    def __init__(self, folder: Path) -> None:
        from workbench.extract.watch.own import Known

        self._folder, self._known = folder, Known()
        self._told = time.monotonic()
        self._every_s = TERMINAL_S if output.narrates_to_a_person() else LINE_S

    def of(self, event: "JobEvent") -> str:
        """The line, empty while none is due."""
        from workbench.extract.job.files import JobFiles
        from workbench.extract.watch import own
        from workbench.render.watch import watch_line

        self._known = own.take(self._known, event)
        if self._known.progress is None or time.monotonic() - self._told < self._every_s:
            return ""
        self._told = time.monotonic()
        job = JobFiles(self._folder).load()
        return "" if job is None else watch_line(own.view(self._known, job, True, time.time(), str(self._folder)))


def _detached(request: "Request", as_json: bool) -> int:
    from workbench.extract.job import detach
    from workbench.extract.job.events import Ended
    from workbench.extract.job.files import JobFiles
    from workbench.render.text import harmless

    files = JobFiles(request.settings.folder)
    detach.ask(files, request)
    offset = files.events.stat().st_size if files.events.exists() else 0
    process = detach.start(files)
    output.narrate(f"the job is process {process.pid}, log {harmless(str(files.log))}")
    place = harmless(request.settings.place)
    event = None
    try:
        for event in detach.until_running(files, process, offset):
            _show(event, as_json)
    except KeyboardInterrupt:
        output.narrate(f"the job goes on; hsbench job stop {place} ends it")
        raise
    if not isinstance(event, Ended):
        output.narrate(f"it runs on by itself: hsbench watch {place}")
    if not as_json:
        output.data(request.settings.place)
    return event.exit_code if isinstance(event, Ended) else 0


def _show(event: Any, as_json: bool) -> None:
    from workbench.extract.job.events import Ended
    from workbench.render.job import event_text

    if as_json:
        output.data_json(event)
        return
    for line in event_text(event).splitlines():
        output.narrate(line)
    if isinstance(event, Ended) and event.next_step:
        output.narrate(f"  next: {event.next_step}")


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
