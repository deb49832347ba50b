"""The port is open, the first forward pass spins in the scheduler, the log is silent."""

from common import child, load, serve, spin


def forward() -> None:
    spin()


def event_loop_normal() -> None:
    forward()


load()
child("sglang::schedul", event_loop_normal)
serve(lambda: 503, lambda: False)
