"""Finding a port for a server, and telling whether one is taken."""

import contextlib
import random
import socket
from collections.abc import Collection

import psutil

from workbench.errors import ServerError
from workbench.server import processes

FREE_PORTS = range(30018, 32768)
"""Where a free port is looked for: below the range that Linux gives to outgoing connections, so that none of
them takes it before the server does, and low enough for the ports that SGLang derives from it by adding."""


def accepts(host: str, port: int, timeout: float = 0.5) -> bool:
    """Whether something listens there."""
    try:
        socket.create_connection((host, port), timeout).close()
    except OSError:
        return False
    return True


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError:
            return False
    return True


def choose(host: str, wanted: int, promised: Collection[int]) -> tuple[int, str]:
    """The port to use, and why it is not the one that was wanted.

    Args:
        host: The address to listen on.
        wanted: The port asked for; 0 means any.
        promised: Ports of servers that may not listen yet.

    Returns:
        The port and a note, which is empty when the wanted port is used.
    """
    if wanted and wanted not in promised and is_free(host, wanted):
        return wanted, ""
    for port in random.sample(FREE_PORTS, len(FREE_PORTS)):
        if port not in promised and is_free(host, port):
            return (
                port,
                f"port {wanted} is not free{_holder(wanted)}; using {port}" if wanted else f"using port {port}",
            )
    raise ServerError(f"no free port between {FREE_PORTS.start} and {FREE_PORTS.stop - 1}", "give one with --port")


def owner(port: int) -> int | None:
    """The process that listens on a port of this machine, where the system lets that be seen."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN
            if listens and getattr(connection.laddr, "port", None) == port and connection.pid:
                return int(connection.pid)
    return None


def _holder(port: int) -> str:
    pid = owner(port)
    return "" if pid is None else f", process {processes.describe(psutil.Process(pid))} listens there"
