"""What a start would do, without doing it: the exact command and environment, secrets masked."""

import shlex
from pathlib import Path

import msgspec

from workbench.models import demo
from workbench.models.folder import ModelFacts, check_model
from workbench.server import launch, purpose, routes
from workbench.server.engine import find_engine
from workbench.server.prepare import by_route
from workbench.server.secrets import mask_env, mask_flags
from workbench.server.specs import DEMO, LaunchSpec


class DryRun(msgspec.Struct, frozen=True, kw_only=True):
    """A start that does not happen."""

    argv: tuple[str, ...]
    env: dict[str, str]
    """Variables added to those of the shell."""
    without: tuple[str, ...]
    """Variables of the shell that the server does not see."""
    notes: tuple[str, ...]

    def describe(self) -> str:
        """A command that a shell takes."""
        unset = [f"-u {name}" for name in self.without]
        put = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.env.items())]
        return " ".join(["env", *unset, *put, shlex.join(self.argv)])


def dry_run(spec: LaunchSpec) -> DryRun:
    """Decide everything that a start decides. Makes no model, patches nothing, starts nothing.

    Raises:
        HsbenchError: what would be refused at a start.
    """
    engine = find_engine(spec.python)
    notes = []
    context = None
    path = spec.model
    facts = ModelFacts(path)
    if path == DEMO and not Path(DEMO).is_dir():
        path = str(demo.demo_folder())
        if not Path(path).is_dir():
            notes.append(f"the demo model would be made in {path}")
    if Path(path).is_dir():
        facts = check_model(path, needs_tokenizer=False, needs_weights=False)
        path, context = facts.path, facts.context_len
    notes += described(spec, context)
    spec = msgspec.structs.replace(spec, model=path)
    if spec.dump is not None:
        route = routes.choose(spec.dump, spec.flags, engine, facts)
        notes.append(route.describe())
        notes += ["the engine would be patched, unless it is"] if route.name == "patch" else []
        spec = by_route(spec, route)
    plan = launch.plan(spec, engine, context)
    env = plan.env | launch.around_proxies()
    return DryRun(argv=mask_flags(plan.argv), env=mask_env(env), without=plan.without, notes=tuple(notes))


def described(spec: LaunchSpec, context_len: int | None = None) -> list[str]:
    """What `--fix` changes of the flags, for a person; empty when there is nothing to record or to correct."""
    if spec.dump is None or not spec.fix:
        return []
    return [one.describe() for one in purpose.wrong(spec.flags, context_len, spec.dump.allow_chunked)]
