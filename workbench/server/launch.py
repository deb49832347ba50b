"""Starting a server: `plan` decides command and environment, `start` runs it detached and writes it down."""

import contextlib
import fcntl
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil

from workbench.errors import Missing, ServerError, UsageError
from workbench.paths import servers_dir
from workbench.server import flags as sglang_flags
from workbench.server import launches, ports, processes, purpose, room, state
from workbench.server.engine import Engine
from workbench.server.ready import wait_ready
from workbench.server.secrets import mask_env, mask_flags
from workbench.server.specs import DumpSpec, LaunchSpec
from workbench.server.state import ServerRecord

__all__ = ["DumpSpec", "LaunchSpec", "Plan", "ServerRecord", "plan", "start", "wait_ready"]

CPU_PLATFORM = "hsbench_cpu"
LOCAL = "127.0.0.1"
CORES_BY_RANK = "SGLANG_CPU_OMP_THREADS_BIND"
DUMP_VARIABLES = (
    "SGLANG_HS_DUMP_DIR",
    "SGLANG_HS_DUMP_BLOCKS",
    "SGLANG_HS_DUMP_FINAL",
    "SGLANG_HS_DUMP_ALL",
    "SGLANG_HS_ROUTE",
    "SGLANG_HS_FILES",
)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The command of a server and all that goes with it. It may hold secrets; a record does not."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]
    """Variables to add."""
    without: tuple[str, ...]
    """Variables of the shell that the server must not see."""
    host: str
    port: int
    """0 means any free port; `argv` holds the same number."""
    model: str
    python: str
    engine_version: str
    device: str
    dump: DumpSpec | None
    patch_hash: str | None = None
    api_key: str | None = None
    port_fixed: bool = False

    @property
    def url(self) -> str:
        """Where this machine reaches the server."""
        reached = {"0.0.0.0": LOCAL, "::": "::1"}.get(self.host, self.host)
        return f"http://[{reached}]:{self.port}" if ":" in reached else f"http://{reached}:{self.port}"

    def on_port(self, port: int) -> "Plan":
        """The same plan on another port."""
        argv = list(self.argv)
        argv[argv.index("--port") + 1] = str(port)
        return msgspec.structs.replace(self, port=port, argv=tuple(argv))


def plan(spec: LaunchSpec, engine: Engine, context_len: int | None = None, patch_hash: str | None = None) -> Plan:
    """Decide the command and the environment. Touches nothing.

    Args:
        spec: What is asked for.
        engine: The SGLang to run.
        context_len: The model's longest sequence in tokens, if known.
        patch_hash: Hash of the patch that the engine carries, for the record.

    Raises:
        UsageError: a flag contradicts what is asked for.
        Missing: the engine cannot run on the device asked for.
    """
    state.folder_of(spec.name)
    device = _device(spec, engine)
    flags = _flags(spec, engine, device, context_len)
    user = sglang_flags.given(spec.flags)
    host = user.get("--host") or LOCAL
    own = ["--model-path", spec.model, "--host", host, "--port", str(spec.port), "--device", device]
    env = _environment(spec, device)
    unwanted = (*DUMP_VARIABLES, "SGLANG_USE_CPU_ENGINE") if device == "cpu" else DUMP_VARIABLES
    return Plan(
        name=spec.name,
        argv=(engine.python, "-m", "sglang.launch_server", *own, *flags),
        env=env,
        without=tuple(name for name in unwanted if name not in env),
        host=host,
        port=spec.port,
        model=spec.model,
        python=engine.python,
        engine_version=engine.version,
        device=device,
        dump=spec.dump,
        patch_hash=patch_hash,
        api_key=user.get("--api-key"),
        port_fixed=spec.port_fixed,
    )


def _device(spec: LaunchSpec, engine: Engine) -> str:
    device = spec.device if spec.device != "auto" else ("cuda" if engine.cuda else "cpu")
    if device == "cuda" and not engine.cuda:
        raise Missing(f"{engine.python} sees no CUDA device (torch {engine.torch})", "use --device cpu")
    if device == "cpu" and not engine.has_cpu_platform:
        raise Missing(
            f"SGLang in {engine.python} cannot run on a CPU: the platform of hsbench is not installed there",
            f"{engine.python} -m pip install hsbench",
        )
    return device


def _flags(spec: LaunchSpec, engine: Engine, device: str, context_len: int | None) -> tuple[str, ...]:
    """The user's flags, without `--host`, after the ones that the device and the dump need."""
    sglang_flags.refuse_owned(spec.flags)
    flags = sglang_flags.absolute_paths(_without_host(spec.flags))
    if spec.dump is not None:
        chunked = sglang_flags.CHUNKS if spec.dump.allow_chunked else frozenset()
        if spec.fix:
            flags = purpose.fixed(flags, context_len, spec.dump.allow_chunked)
        sglang_flags.refuse_spoiling(flags, chunked)
        purpose.refuse_short_passes(flags, context_len)
        defaults = [(flag, value) for flag, value in sglang_flags.DUMP if flag not in chunked]
        flags = sglang_flags.with_defaults(flags, defaults, engine.flags)
    if device == "cpu":
        tokens = max(sglang_flags.CPU_TOKENS, context_len or 0)
        on_cpu = (*sglang_flags.CPU, ("--max-total-tokens", str(tokens)))
        flags = sglang_flags.with_defaults(flags, on_cpu, engine.flags)
    return flags


def _without_host(flags: tuple[str, ...]) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in flags:
        if skip or word.startswith("--host="):
            skip = False
        elif word == "--host":
            skip = True
        else:
            kept.append(word)
    return kept


def _environment(spec: LaunchSpec, device: str) -> dict[str, str]:
    env = {"PYTHONUNBUFFERED": "1"}
    if device == "cpu":
        env["SGLANG_PLATFORM"] = CPU_PLATFORM
        env |= _cores_by_rank(spec.flags)
    if spec.dump is not None:
        env["SGLANG_HS_DUMP_DIR"] = os.path.abspath(spec.dump.folder)
        env["SGLANG_HS_DUMP_FINAL"] = spec.dump.final
        if spec.dump.blocks is not None:
            env["SGLANG_HS_DUMP_BLOCKS"] = ",".join(map(str, spec.dump.blocks))
        if spec.dump.record_all:
            env["SGLANG_HS_DUMP_ALL"] = "1"
        if spec.dump.route != "auto":
            env["SGLANG_HS_ROUTE"] = spec.dump.route
    return env | spec.env


def _cores_by_rank(flags: tuple[str, ...]) -> dict[str, str]:
    """Cores for each rank: SGLang by itself gives each a NUMA node, of which most machines have one."""
    given = sglang_flags.given(flags)
    size = next((given[name] for name in sglang_flags.TP_SIZE if given.get(name)), None) or "1"
    if CORES_BY_RANK in os.environ or not size.isdigit() or int(size) < 2:
        return {}
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // int(size))
    shares = ([cores[(rank * share + i) % len(cores)] for i in range(share)] for rank in range(int(size)))
    return {CORES_BY_RANK: "|".join(",".join(map(str, sorted(one))) for one in shares)}


def start(plan: Plan) -> ServerRecord:
    """Run the server in a session of its own and write its record. Returns at once.

    Raises:
        ServerError: a server of this name runs, or left processes behind; or it cannot be run.
    """
    with _one_at_a_time():
        _claim_name(plan.name)
        room.refuse_taken_port(plan.host, plan.port if plan.port_fixed else 0)
        room.refuse_full_gpus(plan.argv, plan.device)
        promised = {record.port for record in state.all_records() if state.alive(record)}
        port, note = ports.choose(plan.host, plan.port, promised)
        return _run(plan.on_port(port), note)


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Two starts at once must not choose the same name or port; the lock ends with its process."""
    servers_dir().mkdir(parents=True, exist_ok=True)
    with open(servers_dir() / ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _claim_name(name: str) -> None:
    """Clear away the record of a server that is gone; refuse when something of it still runs."""
    record = state.load(name)
    if record is None:
        return
    left = processes.family(record.pid, record.since_boot)
    if not left:
        record.forget()
    elif state.alive(record):
        raise ServerError(
            f"a server named {name!r} already runs: process {record.pid}, {record.url}, model {record.model}",
            f"hsbench stop {name}, or another --name",
        )
    else:
        who = ", ".join(processes.describe(process) for process in left)
        raise ServerError(f"the server named {name!r} died and left processes: {who}", f"hsbench stop {name}")


def _run(plan: Plan, port_note: str) -> ServerRecord:
    folder = state.folder_of(plan.name)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = _new_log(folder)
    added = plan.env | around_proxies()
    with open(log, "ab", opener=lambda path, how: os.open(path, how, 0o600)) as sink:
        try:
            child = processes.Detached(
                plan.argv,
                cwd=folder,  # no folder of the caller may stand in for an installed package
                env=_whole_environment(plan) | added,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise ServerError(f"{plan.python} does not run: {error}", "name another one with --python") from error
    try:
        record = _record(plan, child.pid, log, added, port_note)
        record.save()
        launches.note(plan.name, record.pid, record.since_boot)
    except BaseException:
        child.kill()
        raise
    return record


def _record(plan: Plan, pid: int, log: Path, added: dict[str, str], port_note: str) -> ServerRecord:
    process = psutil.Process(pid)
    return ServerRecord(
        name=plan.name,
        pid=pid,
        since_boot=processes.since_boot(process),
        create_time=process.create_time(),
        argv=mask_flags(plan.argv),
        env=mask_env(added),
        url=plan.url,
        host=plan.host,
        port=plan.port,
        port_note=port_note,
        model=plan.model,
        python=plan.python,
        engine_version=plan.engine_version,
        device=plan.device,
        log=str(log),
        dump=plan.dump,
        patch_hash=plan.patch_hash,
        started=time.time(),
    )


def _new_log(folder: Path) -> Path:
    """The log's path; the log of the server before is kept once."""
    log = folder / "server.log"
    with contextlib.suppress(FileNotFoundError):
        os.replace(log, folder / "server.previous.log")
    return log


def _whole_environment(plan: Plan) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in plan.without}
    if plan.device != "cpu" and kept.get("SGLANG_PLATFORM") == CPU_PLATFORM:
        del kept["SGLANG_PLATFORM"]
    return kept


def around_proxies() -> dict[str, str]:
    """The server warms itself up through its own address, with a client that obeys proxy variables."""
    named = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    hosts = [host for host in named.split(",") if host]
    hosts += [host for host in (LOCAL, "localhost") if host not in hosts]
    return {"NO_PROXY": ",".join(hosts), "no_proxy": ",".join(hosts)}


def check_dump_folder(folder: str) -> None:
    """Make the folder that receives dumps.

    Raises:
        UsageError: it cannot be made or written.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        probe = Path(folder) / f".hsbench-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(f"cannot write into {folder}: {error.strerror}", "name another --dump-dir") from error
