"""Processes read straight from `/proc`: a look at 16 of them costs about a millisecond.

psutil tells the same but opens more files for each fact; it is used where one look is enough. The format of the
files is in proc(5); `schedstat` is in the kernel's Documentation/scheduler/sched-stats.rst.
"""

import os
import re

from workbench.supervision.records import ProcessSample, Role

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGESIZE")
COMPILERS = frozenset({"nvcc", "cicc", "ptxas", "fatbinary", "cudafe++", "ninja", "cc1plus", "cc1", "ld", "nvlink"})
"""Programs that build kernels while a server starts."""
_RANK = re.compile(r"(DP\d+|PP\d+|TP\d+|EP\d+)", re.IGNORECASE)
_WORKERS = ("sglang::detoken", "sglang::data_par", "sglang::router", "sglang::encode")


def read(path: str) -> str:
    """A file of `/proc`; empty when the process is gone or the file may not be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(65536).decode("utf-8", "replace")
    except OSError:
        return ""


def process(pid: int, root: int) -> ProcessSample | None:
    """One process; None when it is gone. `root` is the server's main process."""
    stat = read(f"/proc/{pid}/stat")
    if not stat:
        return None
    comm = stat[stat.index("(") + 1 : stat.rindex(")")]
    field = stat[stat.rindex(")") + 2 :].split()
    name = title(pid, comm, int(field[19]))
    cpu_s = (int(field[11]) + int(field[12])) / TICK
    wanted = read(f"/proc/{pid}/schedstat").split()
    return ProcessSample(
        pid=pid,
        parent=int(field[1]),
        name=name,
        role=role_of(pid, root, name),
        rank=" ".join(part.upper() for part in _RANK.findall(name)) if "sglang::" in name else "",
        state=field[0],
        created=int(field[19]),
        cpu_s=cpu_s,
        wanted_s=sum(map(int, wanted[:2])) / 1e9 if wanted else cpu_s,
        rss=int(field[21]) * PAGE,
        read=_number(read(f"/proc/{pid}/io"), "rchar:"),
        faults=int(field[9]),
    )


_titles: dict[tuple[int, str, int], str] = {}


def title(pid: int, comm: str, created: int) -> str:
    """What a process calls itself. The kernel's own name is cut at 15 characters, the command line is not.

    Read once for a process and a name: `created` is there to tell a number that was given on.
    """
    if not comm.startswith("sglang::"):
        return comm
    known = _titles.get((pid, comm, created))
    if known is None:
        known = read(f"/proc/{pid}/cmdline").split("\0", 1)[0].strip()
        if not known.startswith(comm):
            return comm
        _titles[pid, comm, created] = known
    return known


def role_of(pid: int, root: int, name: str) -> Role:
    """What a process is to the server."""
    if pid == root:
        return "rank" if name.startswith("sglang::schedul") else "server"
    if name.startswith("sglang::schedul"):
        return "rank"
    if name.startswith(_WORKERS):
        return "worker"
    return "compiler" if name in COMPILERS else "helper"


def is_stopped(process: ProcessSample) -> bool:
    """Whether a process that the server needs was stopped by a signal. One that is traced (`t`) soon goes on."""
    needed = process.role in ("server", "rank", "worker") or process.name.startswith("sglang::")
    return needed and process.state == "T"


def stopped(root: int) -> tuple[str, ...]:
    """Processes of a server that are stopped, as `name (pid)`."""
    found = (process(pid, root) for pid in relatives(root))
    return tuple(one.label for one in found if one is not None and is_stopped(one))


def relatives(root: int) -> list[int]:
    """The process and its descendants within its session, and the whole session if the process leads it.

    One listing of `/proc` and one file for each member. A child that left the session is missed; `psutil` finds it,
    at the cost of a file for every process of the machine.
    """
    try:
        session = os.getsid(root)
    except OSError:
        session = root
    members = session_members(session)
    if session == root:
        return members
    parents = {pid: parent(pid) for pid in members}
    found = [root] if root in parents else []
    for pid in found:
        found += [child for child, its in parents.items() if its == pid]
    return found


def parent(pid: int) -> int:
    """The parent's number; 0 when the process is gone."""
    stat = read(f"/proc/{pid}/stat")
    return int(stat[stat.rindex(")") + 2 :].split(None, 2)[1]) if stat else 0


def session_members(session: int) -> list[int]:
    """Processes that run in a session, also those whose parents are gone."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.getsid(int(name)) == session:
                    found.append(int(name))
            except OSError:
                continue
    return found


def thread_cpu(pid: int) -> dict[int, float]:
    """Processor seconds of each thread."""
    found = {}
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return {}
    for tid in threads:
        stat = read(f"/proc/{pid}/task/{tid}/stat")
        if stat:
            field = stat[stat.rindex(")") + 2 :].split()
            found[int(tid)] = (int(field[11]) + int(field[12])) / TICK
    return found


def environment(pid: int) -> dict[str, str]:
    """A process's variables as it was started with; empty when they may not be read or were overwritten."""
    pairs = (entry.partition("=") for entry in read(f"/proc/{pid}/environ").split("\0"))
    return {name: value for name, equals, value in pairs if equals and name.isidentifier()}


def command_line(pid: int) -> tuple[str, ...]:
    """A process's arguments; empty when it is gone."""
    return tuple(read(f"/proc/{pid}/cmdline").rstrip("\0").split("\0")) if read(f"/proc/{pid}/cmdline") else ()


def _number(text: str, key: str) -> int:
    at = text.find(f"\n{key}") + 1 if not text.startswith(key) else 0
    if not text.startswith(key, at):
        return 0
    return int(text[at + len(key) :].split(None, 1)[0])
