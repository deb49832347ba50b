"""What is found out before the first sample, in numbers, and what is refused because of them."""

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import workbench
from workbench.errors import CheckFailed, HsbenchError, Missing, ServerError, UsageError
from workbench.extract.job.estimate import Estimate
from workbench.extract.job.files import FOLDER, JobFiles, Request
from workbench.extract.job.gate import SPARE_BYTES, free_bytes
from workbench.extract.job.keeper import Keeper
from workbench.extract.job.settings import GIB, ExtractSettings
from workbench.extract.record import Engine, RunRecord, Source, States, effective_nccl
from workbench.extract.sample import Sample
from workbench.extract.shards import shard_folders
from workbench.probe.capture import Capture, capture, check_room, free_dumps
from workbench.probe.session import check_folder, model_config
from workbench.render.text import size
from workbench.server import purpose
from workbench.worker import Worker

HIGH_WATER = 64 * GIB
BASELINE_ROWS = 4
"""Rows that plain prefill is measured on, for each request at a time."""
OWN_WORDS = 9
"""Words of a server's command line before its flags: interpreter, module, model, host and port."""
PACKAGES = ("sglang", "torch", "transformers", "speculators", "safetensors")


def check_server(keeper: Keeper) -> None:
    """Refuse a server whose flags would spoil samples, or whose dump folder cannot be used.

    Raises:
        UsageError: it says which flag, and what is right.
        Missing: there is no dump folder.
    """
    record = keeper.target.record
    if record is not None:
        bad = purpose.wrong(record.argv, allow_chunked=keeper.target.allow_chunked)
        if bad:
            said = "; ".join(one.describe() for one in bad)
            raise UsageError(
                f"the server {record.name} spoils dumps: {said}",
                f"hsbench stop {record.name}, and start it with --fix or let this command start one",
            )
    check_folder(keeper.target)


def probe(keeper: Keeper, sample: Sample, worker: Worker, timeout_s: float) -> Capture:
    """Send the first sample twice: the second shows a cache that keeps prefixes. The dumps are removed.

    Raises:
        CheckFailed: a dump is not the whole prompt.
        HsbenchError: no dump comes; the message says why.
    """
    config = model_config(str(keeper.client.model_info()["model_path"]))
    check_room(keeper.target, 4 * int(config.get("hidden_size", 0)) * len(sample.input_ids) * 4)
    first = None
    for _ in range(2):
        got = capture(keeper.target, keeper.client, sample.input_ids, timeout_s=timeout_s, worker=worker)
        free_dumps(keeper.target, [got])
        if got.shortfall is not None:
            raise CheckFailed(f"the probe of row {sample.index}: {got.shortfall.message}", got.shortfall.next_step)
        first = first or got
    assert first is not None
    return first


def states_of(meta: dict[str, Any], settings: ExtractSettings) -> States:
    """What every sample of the run will hold, from the dump of the probe.

    Raises:
        UsageError: the server records other blocks, or another side of the final norm, than is needed.
    """
    blocks = tuple(meta["after_block"])
    if settings.layers is not None and settings.layers != blocks:
        raise UsageError(
            f"the server records blocks {_listed(blocks)}, not {_listed(settings.layers)}",
            "leave --layers out, or start the server with these --layers",
        )
    needed = "post" if settings.format == "specforge" else "pre"
    sides = {entry.get("norm") for entry in meta["tensors"].values()} - {None}
    if needed not in sides:
        raise UsageError(
            f"--format {settings.format} takes the last state {needed}-norm; the server records it {_listed(sides)}",
            f"hsbench serve … --dump-dir DIR --final {needed}",
        )
    aux = meta["tensors"]["aux_0"]
    return States(
        after_block=blocks, num_blocks=int(meta["num_blocks"]), hidden_size=aux["shape"][1], dtype=aux["dtype"]
    )


def _listed(values: Any) -> str:
    return ",".join(map(str, values))


def describe_run(request: Request, source: Source, keeper: Keeper, got: Capture, worker: Worker) -> RunRecord:
    """The run's record, from the probe and from what the server says of itself."""
    target, meta, settings = keeper.target, got.meta, request.settings
    info: dict[str, Any] = {}
    with contextlib.suppress(HsbenchError):
        info = keeper.client.server_info()
    flags = target.record.argv[OWN_WORDS:] if target.record is not None else ()
    engine = Engine(
        model=str(keeper.client.model_info()["model_path"]),
        sglang_version=meta.get("sglang_version"),
        patch_hash=meta.get("patch_hash"),
        tp_size=int(meta.get("tp_size", 1)),
        flags=tuple(flags),
        nccl_env=effective_nccl(target.pid) if target.pid is not None else {},
        versions=worker.call("versions", packages=list(PACKAGES)),
        gpu=_gpu(info),
    )
    return RunRecord(
        format=settings.format,
        states=states_of(meta, settings),
        source=source,
        engine=engine,
        shard=settings.shard,
        created=time.time(),
        command=request.command,
        hsbench_version=workbench.__version__,
    )


def _gpu(info: dict[str, Any]) -> str | None:
    from workbench.supervision.gpu import Nvml

    if info.get("device") == "cpu":
        return None
    with contextlib.suppress(Exception):
        names = {gpu.name for gpu in Nvml().sample()}
        return ", ".join(sorted(names)) or None
    return None


def refuse_used_folder(folder: Path) -> None:
    """Raise UsageError when a new run would begin among files that are not its own."""
    others = sorted(path.name for path in folder.iterdir() if path.name != FOLDER) if folder.is_dir() else []
    if not others:
        return
    shards, job = shard_folders(folder), JobFiles(folder).load()
    if job is not None and job.cluster is not None:
        running = JobFiles(folder).running() is not None
        step = "hsbench watch {0} shows it" if running else "hsbench extract --resume {0} goes on with it"
        what = "is of a run on Ray" + (", which goes on" if running else "")
        raise UsageError(f"{folder} {what}", f"{step.format(folder)}; without --ray name another --out")
    if shards:
        what = f"{folder} holds shards of a run, such as {shards[0].name}"
        raise UsageError(what, f"hsbench extract --merge {folder} joins them, --shard I/N makes more; or another --out")
    shown = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
    raise UsageError(
        f"{folder} is not empty ({shown}) and is of no run of ours",
        "name a new or empty --out; hsbench watch and verify look at data sets of other tools",
    )


def refuse_same_folder(dump_dir: Path, out: Path) -> None:
    """Raise UsageError when dumps and data set would share a folder: both keep an index.jsonl."""
    if dump_dir.resolve() == out.resolve() or out.resolve() in dump_dir.resolve().parents:
        raise UsageError(f"the dump folder {dump_dir} lies in --out {out}", "put one of them elsewhere")


def dump_bytes_per_token(meta: dict[str, Any]) -> int:
    """Of all tensors that the server records."""
    return sum(int(entry["nbytes"]) for entry in meta["tensors"].values()) // max(1, int(meta["num_tokens"]))


def high_water(settings: ExtractSettings, dump_dir: Path, longest: int, bytes_per_token: int) -> int:
    """Bytes that may wait in the dump folder.

    Raises:
        Missing: the longest sample alone does not fit there.
    """
    free, one = free_bytes(dump_dir), longest * bytes_per_token
    limit = settings.high_water_bytes if settings.high_water_bytes is not None else min(HIGH_WATER, free // 2)
    if one + SPARE_BYTES > free:
        raise Missing(
            f"the dump folder {dump_dir} has {size(free)} free, and the longest sample alone takes "
            f"{size(one)} ({longest:,} tokens of {bytes_per_token:,} B)",
            "a container's /dev/shm is often 64 MB: enlarge it (--shm-size), or serve with another --dump-dir",
        )
    return max(limit, one)


def refuse_no_space(settings: ExtractSettings, left: Estimate, bytes_per_token: int) -> None:
    """Raise Missing when what is left to write cannot fit, by the lower end of its estimate."""
    free, needed = free_bytes(settings.folder), left.tokens_low * bytes_per_token
    if settings.store is not None:  # samples only pass through
        needed = min(needed, left.longest * bytes_per_token)
    if needed + settings.min_free_bytes > free:
        about = "" if left.looked_at == left.rows else "at least "
        raise Missing(
            f"{left.rows:,} rows are {about}{left.tokens_low:,.0f} tokens of {bytes_per_token:,} B, "
            f"{size(needed)}; {settings.out} has {size(free)} free, of which "
            f"{size(settings.min_free_bytes)} are to stay free",
            "another --out, fewer --layers, --shard I/N over several disks, or a smaller --min-free",
        )


def refusal(sample: Sample, limit: int | None, vocabulary: int | None) -> str:
    """Why a row must not be sent; empty when it may. An id outside the vocabulary ends a server on a CPU."""
    if limit is not None and len(sample.input_ids) > limit:
        return f"it has {len(sample.input_ids)} tokens, the server takes {limit}; --max-seq-len {limit} cuts such rows"
    if vocabulary is not None and max(sample.input_ids) >= vocabulary:
        return f"token id {max(sample.input_ids)} is outside the model's vocabulary of {vocabulary}"
    return ""


def plain_prefill(keeper: Keeper, samples: Sequence[Sample], settings: ExtractSettings) -> float | None:
    """Tokens a second that the server prefills without recording: same rows, as many at a time.

    The request ids are none that the recorder takes. Rows go round until the time is up; the clock runs from the
    first request to the last answer, so the ramps at both ends count, as they do in the run. It ends early when the
    server is lost.
    """
    mark = f"plain-{secrets.token_hex(3)}"
    began = time.monotonic()
    ending = began + settings.baseline_s
    done: list[int] = []

    def lane(first: int) -> None:
        number = first
        while time.monotonic() < ending:
            sample = samples[number % len(samples)]
            try:
                keeper.client.generate(list(sample.input_ids), f"{mark}-{number}", timeout=settings.timeout_s)
                done.append(len(sample.input_ids))
            except HsbenchError as error:
                if isinstance(error, ServerError) and keeper.lost():
                    return
            number += settings.concurrency

    threads = [threading.Thread(target=lane, args=(n,), daemon=True) for n in range(settings.concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.monotonic() - began) if done else None


def baseline_rows(rows: Iterator[Any], settings: ExtractSettings) -> list[Sample]:
    """Rows to measure plain prefill on."""
    found: list[Sample] = []
    for row in rows:
        if isinstance(row, Sample):
            found.append(row)
        if len(found) >= BASELINE_ROWS * settings.concurrency:
            break
    return found
