"""From what a person asks for to a plan: engine, patch, model, command. Starts no server."""

import hashlib
from collections.abc import Generator, Iterator
from pathlib import Path

import msgspec

from patches.identity import source_sha256
from workbench.errors import PatchRefused, UsageError
from workbench.models import demo
from workbench.models.folder import ModelFacts, check_model
from workbench.server import flags as sglang_flags
from workbench.server import launch, routes
from workbench.server.engine import Engine, find_engine
from workbench.server.events import Note, ServerEvent
from workbench.server.launch import Plan
from workbench.server.specs import DEMO, LaunchSpec


def prepare(spec: LaunchSpec) -> Generator[ServerEvent, None, Plan]:
    """Find the engine, make the demo model if it is asked for, choose a way to record if it is to record.

    Everything that can be refused cheaply is refused before anything is made or changed.

    Returns:
        The plan, for `launch.start`.

    Raises:
        UsageError: a flag contradicts what is asked for, or the dump folder cannot be written.
        Missing: there is no engine, no such device, no such model, or the route asked for is not open.
        PatchRefused: the engine's source is not one that can be patched.
    """
    engine = find_engine(spec.python)
    launch.plan(spec, engine)
    yield Note(f"SGLang {engine.version} in {engine.python}, torch {engine.torch}")
    facts = yield from _model(spec, engine)
    spec = msgspec.structs.replace(spec, model=facts.path)
    if spec.dump is None:
        return launch.plan(spec, engine, facts.context_len)
    _check_blocks(spec.dump.blocks, facts)
    launch.check_dump_folder(spec.dump.folder)
    route = routes.choose(spec.dump, spec.flags, engine, facts)
    yield Note(route.describe())
    patch_hash = (yield from _patched(engine)) if route.name == "patch" else source_sha256()
    return launch.plan(by_route(spec, route), engine, facts.context_len, patch_hash)


def _check_blocks(blocks: tuple[int, ...] | None, facts: ModelFacts) -> None:
    """Refuse blocks that no prefill of this model could record.

    Raises:
        UsageError: the model has no such block, or it is the last, whose output is `final`.
    """
    last = None if facts.num_blocks is None else facts.num_blocks - 1
    wrong = [block for block in blocks or () if last is not None and block >= last]
    if wrong:
        raise UsageError(
            f"--layers {wrong[0]}: {facts.path} has blocks 0 to {last}, and the output of the last is `final`",
            f"choose blocks up to {(last or 0) - 1}; `final` is always recorded",
        )


def by_route(spec: LaunchSpec, route: routes.Route) -> LaunchSpec:
    """The launch with what the route adds to it."""
    assert spec.dump is not None
    dump = msgspec.structs.replace(spec.dump, route=route.name)
    env = {**spec.env, "SGLANG_HS_FILES": ",".join(route.files)} if route.files else spec.env
    return msgspec.structs.replace(spec, dump=dump, env=env, flags=(*route.flags, *spec.flags))


def _model(spec: LaunchSpec, engine: Engine) -> Generator[ServerEvent, None, ModelFacts]:
    path = spec.model
    if path == DEMO and not Path(DEMO).is_dir():
        yield from _demo(engine)
        path = str(demo.demo_folder())
    given = sglang_flags.given(spec.flags)
    facts = check_model(
        path,
        needs_tokenizer="--tokenizer-path" not in given and "--skip-tokenizer-init" not in given,
        needs_weights=given.get("--load-format") != "dummy",
    )
    if not facts.is_folder:
        yield Note(f"{path} is no folder here; SGLang will look for it on the Hugging Face Hub")
    return facts


def _demo(engine: Engine) -> Iterator[Note]:
    """Tell of the demo model only when it has to be made."""
    for event in demo.fetch(engine.python):
        if not isinstance(event, demo.ModelReady) or event.made:
            yield Note(demo.describe(event))


def _patched(engine: Engine) -> Generator[ServerEvent, None, str]:
    """Patch the engine unless it is patched; returns the hash that the recorder states in its dumps."""
    from patches.errors import PatchError
    from patches.manage import apply
    from patches.tree import find_tree

    try:
        tree = find_tree(engine.python)
        applied = apply(tree)
    except PatchError as error:
        raise PatchRefused.of(error) from error
    if applied.changed:
        yield Note(f"patched {', '.join(applied.files)} in {tree.root}; hsbench patch revert undoes it")
    return hashlib.sha256((tree.root / "_hs" / "manifest.json").read_bytes()).hexdigest()
