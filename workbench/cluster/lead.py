"""Who leads a run at a URL: `index/cluster.json` there, replaced by each driver that begins to work.

One who finds another's token in it ends. By the same token a hand knows that it sees the driver's store.
"""

import contextlib
import os
import platform
import socket
import time

import msgspec

from workbench.errors import HsbenchError, Missing, UsageError
from workbench.extract.job.settings import Cluster
from workbench.storage.errors import Refused, StorageError, TakenOver
from workbench.storage.remote import LEAD_FILE
from workbench.storage.store import Store


class Lead(msgspec.Struct, frozen=True, kw_only=True):
    """The driver that works there now, or did last."""

    token: str
    run: str
    """Short id of the run: the same for all its drivers, so that hands find what earlier ones left on their nodes."""
    driver: str = ""
    """Host and process."""
    time: float = 0.0
    cluster: Cluster
    """What it was asked for."""


def load_lead(store: Store) -> Lead | None:
    """The last one; None where no driver ever worked.

    Raises:
        UsageError: the object is not one of this release's.
    """
    data = store.read(LEAD_FILE)
    try:
        return None if data is None else msgspec.json.decode(data, type=Lead)
    except (msgspec.MsgspecError, ValueError) as error:
        name = f"{store.url}/{LEAD_FILE}"
        raise UsageError(f"{name} cannot be read: {error}", "was it written by this release?") from None


def take_lead(store: Store, token: str, run: str, cluster: Cluster) -> None:
    """Be the driver from now on."""
    me = f"{platform.node()}, process {os.getpid()}"
    lead = Lead(token=token, run=run, driver=me, time=time.time(), cluster=cluster)
    store.replace(LEAD_FILE, msgspec.json.format(msgspec.json.encode(lead)) + b"\n")


def check_lead(store: Store, token: str) -> None:
    """A store that does not answer, or not to us now, says nothing about who leads.

    Raises:
        TakenOver: another driver does.
    """
    with contextlib.suppress(StorageError, Refused):
        lead = load_lead(store)
        if lead is None or lead.token != token:
            who = lead.driver if lead is not None else "somebody who removed what is there"
            raise TakenOver(f"{store.url} was taken over by {who}", f"hsbench watch {store.url} shows how far it is")


def check_store_seen(url: str, token: str, seconds: float) -> None:
    """The hand's half of the proof that all see the same store.

    Raises:
        Missing: from here nothing can be written there, or something else is there.
    """
    host, env = socket.gethostname(), "credentials and endpoint must be in the environment of `ray start` on each node"
    deadline = time.monotonic() + seconds
    try:
        store = Store.open(url)
        store.probe()
        lead = load_lead(store)
        while (lead is None or lead.token != token) and time.monotonic() < deadline:
            time.sleep(0.5)
            lead = load_lead(store)
    except HsbenchError as error:
        raise Missing(f"{host}: {error.message}", env) from None
    if lead is None or lead.token != token:
        raise Missing(f"{host} does not find at {url} what the driver left there", env)
