"""Starting a server again as it was, from its record and, for what a record must not hold, from its process."""

import os
from collections.abc import Iterator, Mapping, Sequence

from workbench.errors import UsageError
from workbench.server.flags import given
from workbench.server.launch import DUMP_VARIABLES, Plan
from workbench.server.secrets import MASK
from workbench.server.state import ServerRecord
from workbench.supervision import signals


def _unmasked(argv: Sequence[str], live: Mapping[str, str | None]) -> Iterator[str]:
    """The words of a command line, hidden values taken from the living process's flags."""
    flag = ""
    for word in argv:
        name, equals, _ = word.partition("=") if word.startswith("--") else ("", "", "")
        flag = name or flag
        value = live.get(flag) if MASK in word else None
        if value is None:
            yield word
        else:
            yield f"{name}={value}" if equals else value


def plan_of(record: ServerRecord) -> Plan:
    """The plan that the server was started by.

    A record holds no secrets. While the server runs they are read from its process, as its owner may; after that
    they are lost.

    Raises:
        UsageError: the server is gone and was started with secrets.
    """
    argv, env = record.argv, dict(record.env)
    hidden = [word for word in (*argv, *env.values()) if MASK in word]
    if hidden:
        seen = signals.environment(record.pid)
        argv = tuple(_unmasked(argv, given(signals.command_line(record.pid))))
        env = {name: seen.get(name, value) for name, value in env.items()}
    if any(MASK in word for word in (*argv, *env.values())):
        raise UsageError(
            f"{record.name} was started with secrets, which are not kept, and its process is gone",
            "start it again with hsbench serve",
        )
    return Plan(
        name=record.name,
        argv=argv,
        env={name: value for name, value in env.items() if name.lower() != "no_proxy"},
        without=tuple(name for name in (*DUMP_VARIABLES, "SGLANG_USE_CPU_ENGINE") if name not in env),
        host=record.host,
        port=record.port,
        model=record.model,
        python=os.fspath(record.python),
        engine_version=record.engine_version,
        device=record.device,
        dump=record.dump,
        patch_hash=record.patch_hash,
        api_key=given(argv).get("--api-key"),
    )
