"""A whole run as one operation: ask the server what it is, measure, store, and hand back where it is stored."""

import secrets
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.load.live import LiveLog
from bench.load.runner import Measured, Round, Source, run_source
from bench.load.selftest import remembered
from bench.load.spec import BenchSettings
from bench.load.store import RunFolder, new_run
from bench.load.target import Target, target_of
from workbench.errors import UsageError
from workbench.probe.session import model_config
from workbench.server.state import find_record

Tell = Callable[[Target | Round | Measured], None]
SEEDS = 1 << 32


def url_of(url: str | None, name: str | None) -> str:
    """The URL given, or that of a server of ours: the one of this name, or the only one.

    Raises:
        HsbenchError: both are given, or there is no such server.
    """
    if url is not None and name is not None:
        raise UsageError("--url and --name both name a server", "give one of them")
    return url if url is not None else find_record(name).url


def fresh_seed() -> int:
    """A seed that no run before had, so that no cache knows its prompts."""
    return secrets.randbelow(SEEDS)


def measure(settings: BenchSettings, tell: Tell, out: Path | None = None, api_key: str | None = None) -> RunFolder:
    """Do the run and store it. A run that breaks off keeps the workloads that were over, if any.

    Args:
        settings: What to do; the URL may end in `/v1`.
        tell: Called with the server found, each round of a warm-up, and each workload when it is over.
        out: The run's folder, instead of one under its name.
        api_key: Sent as a bearer token; not stored.
    """
    target = target_of(settings.url, settings.api, settings.model, api_key)
    settings = msgspec.structs.replace(
        settings, url=target.url, model=target.model, token_range=_known_tokens(settings, target.model)
    )
    source = Source(settings)
    folder = RunFolder.create(new_run(settings, target.model, target.facts), out)
    tell(target)
    count = 0

    def keep(told: Round | Measured) -> None:
        nonlocal count
        if isinstance(told, Measured):
            folder.append(count, told)
            count += 1
        tell(told)

    ceiling = remembered(settings.api)
    try:
        with LiveLog(folder.path, ceiling) as live:
            run_source(source, keep, api_key, ceiling, live)
    except BaseException as error:
        if count:
            folder.break_off(str(error) or type(error).__name__)
        else:
            folder.discard()
        raise
    folder.finish()
    return folder


def _known_tokens(settings: BenchSettings, model: str) -> tuple[int, int]:
    """The range of token ids, cut to the vocabulary of a model on this machine: an id outside ends some servers."""
    low, high = settings.token_range
    size = model_config(model).get("vocab_size")
    return (min(low, size // 2), min(high, size)) if isinstance(size, int) else (low, high)
