"""What happens while a server is started or stopped, as records; `describe` turns one into a line."""

import msgspec

from workbench.server.state import ServerRecord


class Note(msgspec.Struct, frozen=True):
    """Something that was decided or done on the user's behalf."""

    text: str


class Started(msgspec.Struct, frozen=True):
    """The server's process exists; it does not answer yet."""

    record: ServerRecord


class PhaseChanged(msgspec.Struct, frozen=True):
    """The log shows that the start reached a phase."""

    phase: str
    seconds: float
    """Since the process was started."""


class Judged(msgspec.Struct, frozen=True):
    """What the start is doing has changed, by its samples."""

    state: str
    """One of `workbench.supervision.verdict.State`."""
    text: str
    """State, evidence and next step in one line."""


class Ready(msgspec.Struct, frozen=True):
    """A request for one token was answered."""

    seconds: float
    """Since the process was started."""


class Stopping(msgspec.Struct, frozen=True):
    """The server was asked to end."""

    name: str
    pids: tuple[int, ...]


class Killing(msgspec.Struct, frozen=True):
    """What did not end in time is killed."""

    name: str
    pids: tuple[int, ...]


class Stopped(msgspec.Struct, frozen=True):
    """No process of the server is left and its port is free."""

    name: str
    seconds: float


ServerEvent = Note | Started | PhaseChanged | Judged | Ready | Stopping | Killing | Stopped


def describe(event: ServerEvent) -> str:
    """One line for a person."""
    match event:
        case Note(said):
            text = said
        case Started(record):
            port = f"; {record.port_note}" if record.port_note else ""
            text = f"started {record.name} as process {record.pid} on {record.device}, log {record.log}{port}"
        case PhaseChanged(phase, seconds):
            text = f"{phase} ({seconds:.1f} s after the start)"
        case Judged(_, said):
            text = said
        case Ready(seconds):
            text = f"answers ({seconds:.1f} s after the start)"
        case Stopping(name, pids):
            text = f"stopping {name}: {len(pids)} processes"
        case Killing(name, pids):
            text = f"killing what is left of {name}: {', '.join(map(str, pids))}"
        case Stopped(name, seconds):
            text = f"{name} is stopped: no process is left, its port is free ({seconds:.1f} s)"
    return text
