"""The errors a user can meet.

::

    HsbenchError
    ├── UsageError            the call or its input is wrong               exit 2
    ├── CheckFailed           something was checked and found wrong        exit 1
    │   └── BadSample         one dump cannot become a training sample     exit 1
    ├── ServerError           cannot reach, start or keep a server         exit 3
    │   ├── ServerDied        the server process ended                     exit 3
    │   ├── ServerBroken      it runs but will never answer                exit 7
    │   ├── NotRecording      it does not record as it was told to         exit 3
    │   └── RequestRefused    the server answered with an error            exit 3
    ├── TimedOut              a deadline passed                            exit 4
    │   └── DumpMissing       no dump came for a request                   exit 4
    ├── PatchRefused          the engine's source is not as expected       exit 5
    └── Missing               engine, package, model or space is missing   exit 6

A message is one line saying what is wrong; `next_step` is one line saying what to do about it.
"""

from patches.errors import PatchError
from workbench.exitcodes import ExitCode


class HsbenchError(Exception):
    """Base of all errors meant for the user.

    Args:
        message: One line; what is wrong.
        next_step: One line; what the user can do. Empty when there is nothing to say.
        details: Longer evidence, such as the last lines of a log, printed below the message.
    """

    exit_code = ExitCode.USAGE

    def __init__(self, message: str, next_step: str = "", details: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.details = details


class UsageError(HsbenchError):
    """The call, or a file or value it names, cannot be used."""


class CheckFailed(HsbenchError):
    """A check ran to its end and its outcome is red."""

    exit_code = ExitCode.CHECK_FAILED


class BadSample(CheckFailed):
    """One dump or one row of a data set cannot become a training sample; the others may."""


class ServerError(HsbenchError):
    """A server cannot be reached, started or kept."""

    exit_code = ExitCode.SERVER


class ServerDied(ServerError):
    """The server's process ended while something waited for it."""


class ServerBroken(ServerError):
    """The server's process runs, but its state does not end by itself; the message carries the verdict."""

    exit_code = ExitCode.BROKEN


class NotRecording(ServerError):
    """A server that should record hidden states runs without the recorder."""


class RequestRefused(ServerError):
    """The server answered a request with an error status."""


class TimedOut(HsbenchError):
    """A deadline passed."""

    exit_code = ExitCode.TIMEOUT


class DumpMissing(TimedOut):
    """A request was answered but its dump did not appear."""


class PatchRefused(HsbenchError):
    """The engine's source tree is not in a state that the patch can work with."""

    exit_code = ExitCode.PATCH

    @classmethod
    def of(cls, error: PatchError) -> "PatchRefused":
        """The user's view of an error raised by the `patches` package."""
        return cls(error.message, error.next_step)


class Missing(HsbenchError):
    """An engine, a package, a model, hardware or disk space is missing."""

    exit_code = ExitCode.MISSING
