"""Where a hand works: what it must see of the driver's machine, and a state folder that is its own.

::

    $XDG_STATE_HOME/hsbench/cluster/RUN/HOST-NODE-SLOT/
      lock       held by the hand while it lives
      hand.log   what it writes to stderr
      hsbench/   state folder of its server and its jobs

Several nodes of one cluster may be on one machine, and a home may be shared by many machines: so the folder bears the
names of both.
"""

import contextlib
import fcntl
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workbench.cluster.lead import check_store_seen
from workbench.errors import Missing, ServerError
from workbench.extract.durable import replace_bytes
from workbench.extract.job.files import FOLDER
from workbench.extract.job.settings import ExtractSettings
from workbench.paths import state_dir
from workbench.server import ports

STATE = "XDG_STATE_HOME"
LOCK_S = 60.0
"""For the hand before to end its server."""
SEEN_S = 15.0
"""A shared file system may take so long to show a file of another machine."""
TOKENS = "nodes"


def homes(run: str) -> Path:
    """The run's folders on this machine."""
    return state_dir() / "cluster" / run


def host() -> str:
    """This machine's name, as far as it can be a part of a file's."""
    name = "".join(c for c in socket.gethostname().partition(".")[0] if c.isalnum() or c == "-")
    return name or "host"


def server_name(node: str, slot: int) -> str:
    """A server's name, which no other in the cluster has: a shard that moves must not find another's by its name."""
    return f"{host()}-{node[:8]}-{slot}"


@contextmanager
def own(home: Path, seconds: float = LOCK_S) -> Iterator[None]:
    """Hold a home's lock.

    Raises:
        ServerError: the hand before has not ended after so long.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    with open(home / "lock", "w", encoding="utf-8") as lock:
        while not _lock(lock.fileno()):
            if time.monotonic() >= deadline:
                raise ServerError(f"the hand that was here before still holds {home}", "is its process stuck?")
            time.sleep(0.2)
        yield


def _lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def state_in(home: Path) -> Iterator[None]:
    """Have this process keep its state in `home` for a while."""
    before = os.environ.get(STATE)
    os.environ[STATE] = str(home)
    try:
        yield
    finally:
        if before is None:
            del os.environ[STATE]
        else:
            os.environ[STATE] = before


def end_servers(home: Path, grace_s: float) -> None:
    """End every server whose state is in `home`, and what dead ones left behind."""
    from workbench.probe.session import stop_quietly
    from workbench.server import state
    from workbench.server.stop import stop, stop_orphans

    with state_in(home):
        for record in list(state.all_records()):
            with contextlib.suppress(ServerError):
                for _ in stop(record, grace_s):
                    pass
            if state.alive(record):
                stop_quietly(record)
        with contextlib.suppress(ServerError):
            for _ in stop_orphans(0):
                pass


def end_leftovers(run: str, home: Path) -> None:
    """End the servers of the run's hands on this machine that were killed before they could.

    What waited there for a URL is made again by others, unless the node may get the same shard again.
    """
    node = f"{home.name.rpartition('-')[0]}-"
    for other in sorted(homes(run).glob(f"{host()}-*")):
        if other != home:
            with contextlib.suppress(ServerError, OSError), own(other, 0):
                end_servers(other, 0)
                if not other.name.startswith(node):
                    _drop_staged(other)


def _drop_staged(home: Path) -> None:
    """Free what a lost hand staged. What is in quarantine is for a person to look at."""
    for path in (home / "hsbench" / "staging").glob("*"):
        if path.is_dir() and path.suffix != ".quarantine":
            shutil.rmtree(path, ignore_errors=True)


def own_port(home: Path) -> int:
    """A port for the home's server that is free, and that no other hand of this machine has taken for its own.

    Servers that start side by side would else find the same one free, since each listens minutes later.
    """
    with open(home.parent / ".ports", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        promised = {int(path.read_text() or 0) for path in home.parent.glob(f"{host()}-*/port") if path.parent != home}
        port, _ = ports.choose("127.0.0.1", 0, promised)
        (home / "port").write_text(str(port))
    return port


def leave_token(out: Path, token: str) -> None:
    """The driver's half of the proof that all see the same folder."""
    folder = out / FOLDER / TOKENS
    folder.mkdir(parents=True, exist_ok=True)
    replace_bytes(folder / "token", token.encode())


def check_seen(settings: ExtractSettings, token: str, seconds: float = SEEN_S) -> None:
    """The hand's half.

    Raises:
        Missing: data set, model or the driver's folder or URL are not to be seen from here, or not to be written.
    """
    model = settings.model
    if not os.path.exists(settings.data):
        raise Missing(f"there is no {settings.data} on {socket.gethostname()}", "put it where every node sees it")
    if model is not None and os.path.isabs(model) and not os.path.isdir(model):
        raise Missing(f"there is no model {model} on {socket.gethostname()}", "put it where every node sees it")
    if settings.store is not None:
        check_store_seen(settings.store, token, seconds)
        return
    path, deadline = settings.folder / FOLDER / TOKENS / "token", time.monotonic() + seconds
    while not _holds(path, token):
        if time.monotonic() >= deadline:
            raise Missing(
                f"{socket.gethostname()} does not see the driver's {settings.out}",
                "--out must be on a file system that every node shares",
            )
        time.sleep(0.2)
    try:
        replace_bytes(path.with_name(f"{socket.gethostname()}-{os.getpid()}"), token.encode())
    except OSError as error:
        raise Missing(f"{socket.gethostname()} cannot write into {settings.out}: {error.strerror}", "") from error


def _holds(path: Path, token: str) -> bool:
    with contextlib.suppress(OSError):
        os.listdir(path.parent)  # lets a network file system look again
        return path.read_text(encoding="utf-8") == token
    return False
