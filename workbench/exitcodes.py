"""Every exit code that `hsbench` can end with. Scripts may rely on these numbers."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a finished command means. 9 is free."""

    OK = 0
    CHECK_FAILED = 1
    """The command ran; what it checked is wrong (a probe mismatch, a red verdict)."""
    USAGE = 2
    """The call, a file or a setting given by the user is not usable."""
    SERVER = 3
    """A server could not be reached, could not start, or died."""
    TIMEOUT = 4
    """Something did not arrive in the time allowed."""
    PATCH = 5
    """The engine's source is not in a state that the patch can work with."""
    MISSING = 6
    """An engine, a package, hardware or disk space is missing."""
    BROKEN = 7
    """A server's state does not end by itself: HUNG_SPIN, DEAD_CHILD, STOPPED_CHILD, PORT_TAKEN or ZOMBIE_READY."""
    UNSETTLED = 8
    """A server is neither well nor proven broken: SLOW, WAITING, SUSPECT_SPIN, READY_UNVERIFIED, UNHEALTHY_BUT_BUSY."""
    INTERNAL = 70
    """A defect in hsbench itself (sysexits' EX_SOFTWARE)."""
    INTERRUPTED = 130
    """Stopped by Ctrl-C."""
