"""Stub."""

import msgspec


class Snapshot(msgspec.Struct, frozen=True):
    """Stub."""


class ProbeSource:
    """Stub."""

    every_s = 1.0

    def collect(self) -> Snapshot:
        """Look."""
        return Snapshot()

    def close(self) -> None:
        """Nothing is held."""


def make() -> ProbeSource:
    """The real source."""
    return ProbeSource()
