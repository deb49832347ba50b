"""Server-sent events (WHATWG HTML, section 9.2) out of pieces cut anywhere."""


class SseParser:
    """Cuts a stream into the data of its events; comments and other fields are dropped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of every event that `data` completes."""
        if self._rest:
            data = self._rest + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        events = data.split(b"\n\n")
        self._rest = events.pop()
        return [found for event in events if (found := _data(event))]

    @property
    def rest(self) -> bytes:
        """What has come of an event that is not complete."""
        return self._rest


def _data(event: bytes) -> bytes:
    if b"\n" not in event and event.startswith(b"data: "):
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)
