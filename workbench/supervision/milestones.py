"""What a server's log shows of its start: phases, a line count that two starts can be compared by, and news.

Before a line is counted it is normalised. Left out are the states of a progress bar, access-log lines, what NCCL
prints about itself, lines of passes (prefill, decode), and every rank's repetition of what rank 0 said: none of
them says how far a start is, and their number changes from start to start. A line is *news* when no line of its
kind came before, a kind being the line without its numbers, or when it is a bar's next step: so a heartbeat that
repeats every ten seconds is no news, however many lines it makes.
"""

import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from workbench.server.log import LINE_LENGTH, LogReader, clean, reason
from workbench.server.secrets import blot
from workbench.supervision.records import LogSample

KINDS = 20000
"""Kinds of line that are remembered; a log with more is no start any more."""
_PREFIX = re.compile(r"^\[(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?P<rank>[^\]]*)\]\s*")
_OTHER_RANK = re.compile(r"(?:DP|PP|TP|EP)0*[1-9]")
_UNCOUNTED = re.compile(r"NCCL (?:INFO|WARN|TRACE)|\"(?:GET|POST|PUT|HEAD) /\S* HTTP/|^access ")
_ACTIVITY = re.compile(r"\b(?:Prefill|Decode) batch\b")
_BAR = re.compile(r"(?P<percent>\d{1,3}(?:\.\d+)?)%|\b(?P<done>\d+)\s*(?:/|of)\s*(?P<total>\d+)\b")
_NO_BAR = re.compile(r"(?i)wait|retr(?:y|ied)|attempt|timed? ?out|heartbeat")
_VARIES = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?")


class Milestone(msgspec.Struct, frozen=True):
    """A phase was entered."""

    phase: str
    seconds: float
    """Since the server's process was started."""
    lines: int
    """Normalised lines until then."""


class LogFollower(LogReader):
    """Reads a log as it grows and remembers what a verdict needs.

    Args:
        path: The log; it may come into being later.
        began: When the server's process was started, as a time of day.
    """

    def __init__(self, path: Path, began: float) -> None:
        super().__init__(path)
        self.began = began
        self.milestones: list[Milestone] = []
        self.secrets: tuple[str, ...] = ()
        """Values that are hidden in what is kept of the log."""
        self._seen: set[int] = set()
        self._bar_at: dict[int, float] = {}
        self._now = LogSample(phase=self.phase)
        self._stamp: float | None = None

    def lines(self) -> Iterator[str]:
        """New whole lines, each counted before it is handed on."""
        for line in super().lines():
            self._count(line)
            yield line

    def new_phases(self) -> Iterator[str]:
        """Phases that the new lines enter, each remembered as a milestone."""
        for phase in super().new_phases():
            self.milestones.append(Milestone(phase, self._stamped() - self.began, self._now.lines))
            yield phase

    def sample(self) -> LogSample:
        """Read what is new, and tell how things stand."""
        for _ in self.new_phases():
            pass
        self._look_at_open_bar()
        try:
            grown = max(0.0, time.time() - self.path.stat().st_mtime)
        except OSError:
            return msgspec.structs.replace(self._now, phase=self.phase)
        return msgspec.structs.replace(self._now, phase=self.phase, grown=grown)

    def hide(self, text: str) -> str:
        """The text without the server's secrets."""
        return blot(text, self.secrets)

    def phase_seconds(self) -> float:
        """How long the present phase lasts, by the log's own clock where it has one."""
        since = self.milestones[-1].seconds if self.milestones else 0.0
        return max(0.0, time.time() - self.began - since)

    def _stamped(self) -> float:
        """When the last line was written: by its stamp if that can be true, else now."""
        now = time.time()
        if self._stamp is None or not self.began - 1 <= self._stamp <= now + 1:
            return max(now, self.began)
        return max(self._stamp, self.began)

    def _count(self, line: str) -> None:
        prefix = _PREFIX.match(line)
        if prefix:
            self._stamp = _seconds(prefix["stamp"])
        text = line[prefix.end() :] if prefix else line
        now = self._now
        if not text.strip() or _UNCOUNTED.search(text):
            return
        if _ACTIVITY.search(text):
            self._now = msgspec.structs.replace(now, activity=now.activity + 1)
            return
        news = self._is_news(text)
        counted = _BAR.search(text) is None or _NO_BAR.search(text) is not None
        first_rank = prefix is None or not _OTHER_RANK.search(prefix["rank"])
        error = reason([text])
        self._now = msgspec.structs.replace(
            self._now,
            lines=now.lines + (counted and first_rank and self.phase != "ready"),
            news=self._now.news + news,
            repeats=0 if news else now.repeats + 1,
            last=self.hide(text)[:LINE_LENGTH],
            error=self.hide(error)[:LINE_LENGTH] if error else now.error,
        )

    def _is_news(self, text: str) -> bool:
        kind = hash(_VARIES.sub("#", text))
        if self._bar_moved(kind, text):
            return True
        if kind in self._seen or len(self._seen) >= KINDS:
            return False
        self._seen.add(kind)
        return True

    def _bar_moved(self, kind: int, text: str) -> bool:
        """Whether this is a bar's next step. The kind of a bar is its words, without what it is drawn with."""
        found = None if _NO_BAR.search(text) else _BAR.search(text)
        if found is None:
            return False
        done, total = (
            (float(found["percent"]), 100.0) if found["percent"] else (float(found["done"]), float(found["total"]))
        )
        name = hash(text[: found.start()].strip())
        before = self._bar_at.get(name)
        self._bar_at[name] = done
        self._seen.add(kind)
        if done <= total:
            self._now = msgspec.structs.replace(self._now, bar=(done, total))
        return before is None or done != before

    def _look_at_open_bar(self) -> None:
        """A bar ends its line only when it is full; until then its states wait behind carriage returns."""
        text = clean(self._partial)
        if text and _BAR.search(text) and self._bar_moved(hash(text), text):
            self._now = msgspec.structs.replace(self._now, news=self._now.news + 1, repeats=0)


def _seconds(stamp: str) -> float:
    """SGLang stamps its lines in local time, to the second."""
    return datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S").astimezone().timestamp()
