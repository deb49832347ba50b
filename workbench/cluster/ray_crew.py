"""The machines of a Ray cluster. The only module that imports Ray, and only when a cluster is asked for."""

import contextlib
import importlib
import logging
import os
from collections.abc import Iterator
from typing import Any

from workbench.cluster.records import Errand, Gone, News, Order, decode_news, encode
from workbench.cluster.relay import THREADS, Relay
from workbench.errors import Missing, ServerError, UsageError
from workbench.extract.job.settings import Cluster
from workbench.server import ports

QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_IGNORE_UNHANDLED_ERRORS": "1"}


def load() -> Any:
    """The package.

    Raises:
        Missing: it is not installed.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise Missing(
            f"--ray needs Ray, which cannot be imported here: {error}", "pip install 'hsbench[ray]'"
        ) from error


def connect(cluster: Cluster) -> "RayCrew":
    """Join the cluster as a driver.

    Raises:
        Missing: Ray is not installed.
        ServerError: no cluster answers there.
        UsageError: the cluster has not what is asked for.
    """
    ray = load()
    worker: Any = importlib.import_module("ray._private.worker")
    if hasattr(worker, "print_to_stdstream"):  # it tells of nodes on stdout, which is data; no setting turns it off
        worker.print_to_stdstream = lambda *_args, **_how: None
    _refuse_deaf(cluster.address)
    try:
        ray.init(
            address=cluster.address,
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.ERROR,
            namespace="hsbench",
        )
    except Exception as error:
        raise unjoined(cluster.address, error) from error
    try:
        return RayCrew(ray, cluster)
    except BaseException:
        ray.shutdown()
        raise


def checked_address(address: str) -> tuple[str, int] | None:
    """Host and port of an address, None of `auto`.

    Raises:
        UsageError: it is neither.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return None
    if not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise UsageError(f"--ray {address!r} is neither auto nor HOST:PORT", "ray status tells the address")
    return host, int(port)


def _refuse_deaf(address: str) -> None:
    """Ray itself waits minutes for an address at which nothing listens."""
    if (place := checked_address(address)) is not None and not ports.accepts(*place, 5.0):
        raise ServerError(f"nothing listens at {address}", "ray start --head begins a cluster and tells its address")


def unjoined(address: str, error: Exception) -> ServerError:
    """Why Ray does not let this process in. Of other versions it speaks in a block of lines, ours and the cluster's."""
    said = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    versions = "; ".join(said).replace(":;", ":").partition("Version mismatch: ")[2]
    if versions:
        return ServerError(
            f"the Ray cluster at {address!r} is of another version: {versions}"[:500],
            "run hsbench in an environment with the cluster's own Python and Ray",
        )
    return ServerError(
        f"no Ray cluster answers at {address!r}: {said[0]}",
        "ray start --head begins one; ray start --address HOST:6379 joins a node to it",
    )


class RayCrew:
    """See `Crew`. An actor a slot; it ends with this process, and what it started ends with it."""

    def __init__(self, ray: Any, cluster: Cluster) -> None:
        self._ray = ray
        nodes = [node for node in ray.nodes() if node["Alive"]]
        self.gpus, self.servers = _sizes([node["Resources"] for node in nodes], cluster)
        how: dict[str, Any] = {"scheduling_strategy": "SPREAD", "max_restarts": 0, "num_cpus": 1}
        if self.gpus:
            how["num_gpus"] = self.gpus
        self._actor = ray.remote(NodeActor).options(**how)
        self._actors: dict[int, Any] = {}
        self._calls: dict[Any, int] = {}

    def hire(self, slot: int, errand: Errand) -> None:
        """Ask the cluster for an actor. Where there is no room now it comes when there is."""
        self.dismiss(slot)
        self._actors[slot] = self._actor.remote(encode(errand), os.environ.get(THREADS))
        self._calls[self._actors[slot].work.remote(None)] = slot

    def send(self, slot: int, order: Order) -> None:
        """See `Crew`."""
        self._calls[self._actors[slot].work.remote(encode(order))] = slot

    def wait(self, seconds: float) -> list[tuple[int, list[News] | Gone]]:
        """See `Crew`."""
        if not self._calls:
            return []
        done, _ = self._ray.wait(list(self._calls), num_returns=1, timeout=seconds)
        if done:
            done, _ = self._ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)
        return [(self._calls.pop(call), self._reply(call)) for call in done]

    def _reply(self, call: Any) -> list[News] | Gone:
        try:
            return [decode_news(one) for one in self._ray.get(call)]
        except Exception as error:  # whatever became of actor, node or network, the hand answers no more
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            last = lines[-1] if isinstance(error, self._ray.exceptions.RayTaskError) and lines else "; ".join(lines[:2])
            return Gone(f"{type(error).__name__}: {last}"[:500])

    def dismiss(self, slot: int) -> None:
        """See `Crew`."""
        actor = self._actors.pop(slot, None)
        self._calls = {call: of for call, of in self._calls.items() if of != slot}
        if actor is not None:
            with contextlib.suppress(Exception):
                self._ray.kill(actor)

    def close(self) -> None:
        """See `Crew`."""
        for slot in list(self._actors):
            self.dismiss(slot)
        self._ray.shutdown()


class NodeActor:
    """Becomes a Ray actor."""

    def __init__(self, errand: dict[str, Any], threads: str | None) -> None:
        node = importlib.import_module("ray").get_runtime_context().get_node_id()
        self._relay = Relay(errand, node, threads)

    def work(self, order: dict[str, Any] | None) -> list[dict[str, Any]]:
        """See `Relay.work`."""
        return self._relay.work(order)


def _sizes(resources: list[dict[str, float]], cluster: Cluster) -> tuple[int, int]:
    """GPUs a server and servers, where the command leaves them to the cluster.

    Raises:
        UsageError: no node has what one server needs.
    """
    has_gpus = any(node.get("GPU") for node in resources)
    gpus = cluster.gpus if cluster.gpus is not None else int(has_gpus)
    room = sum(_fits(resources, gpus))
    if room == 0:
        most = max((node.get("GPU", 0) for node in resources), default=0)
        wanted = f"{gpus} GPUs: the most that one has is {most:.0f}" if gpus else "a free CPU"
        raise UsageError(f"no node of the cluster has {wanted}", "ray status shows the nodes")
    return gpus, cluster.servers or room


def _fits(resources: list[dict[str, float]], gpus: int) -> Iterator[int]:
    """Servers for each node: as its GPUs allow, or one where a server takes none."""
    for node in resources:
        if gpus:
            yield int(min(node.get("GPU", 0) // gpus, node.get("CPU", 0)))
        else:
            yield int(node.get("CPU", 0) >= 1)
