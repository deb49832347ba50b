"""What a run that was made tells of the next one: tokens a second of one server, and the size of a token."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from workbench.errors import UsageError
from workbench.extract.job.events import Progress
from workbench.extract.job.files import JobFiles, recent
from workbench.extract.merge.move import KEPT
from workbench.extract.record import RunRecord, load_record
from workbench.extract.shards import shard_folders


class Like(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured."""

    tok_s: float
    """Of one server."""
    record: RunRecord | None = None
    """None for a bench, which records nothing."""
    said: str
    """Where the rate is from, in words."""


def like(folder: Path) -> Like:
    """Read an extraction's folder, one of its shards, a merged run, or a bench's folder.

    Raises:
        UsageError: nothing was measured there.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", "--like takes the --out of a run, or of hsbench bench")
    if (folder / "run.json").exists():
        return _bench(folder)
    pictures = [picture for path in _journals(folder) if (picture := _last(path)) is not None]
    tokens, seconds = sum(p.tokens_here for p in pictures), sum(p.seconds_here for p in pictures)
    if not tokens or seconds <= 0:
        raise UsageError(f"no rate was measured in {folder}", "--like takes a run that made samples; or give --tok-s X")
    record = next((r for one in (folder, *shard_folders(folder)) if (r := load_record(one)) is not None), None)
    said = f"{tokens:,} tokens in {seconds:,.0f} s of work in {folder}"
    return Like(tok_s=tokens / seconds, record=record, said=said)


def _journals(folder: Path) -> Iterator[Path]:
    """Of the jobs that each had one server: the shards', where there are any."""
    shards = [JobFiles(shard).events for shard in shard_folders(folder)]
    with contextlib.suppress(OSError):
        shards += [path / "events.jsonl" for path in sorted((folder / KEPT).iterdir())]
    yield from shards or [JobFiles(folder).events]


def _last(events: Path) -> Progress | None:
    found = [event for event in recent(events)[0] if isinstance(event, Progress) and event.tokens_here]
    return found[-1] if found else None


def _bench(folder: Path) -> Like:
    """The best rate of prompts with one token of answer; others would count decoding as prefill."""
    from bench.load.store import RunFolder

    rates = {}
    for point in RunFolder(folder).summary().points:
        told, asked = point.metrics, point.workload.output_len
        if asked == 1 and told.prompt_tokens and told.seconds > 0:
            rates[(told.prompt_tokens - (told.cached_tokens or 0)) / told.seconds] = point
    if not rates:
        raise UsageError(
            f"no prefill was measured in {folder}",
            "hsbench bench --input-len 2048 --output-len 1 --out DIR measures it",
        )
    return Like(tok_s=max(rates), said=f"prefill without recording, by the bench in {folder}")
