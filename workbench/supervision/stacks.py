"""Where a process stands: py-spy where it is allowed, else what the kernel shows in `/proc`.

py-spy stops the process for some milliseconds, so a dump is taken only when a verdict hangs on it. It is a dependency
of SGLang, so it is mostly found beside the engine's interpreter.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from workbench.server.secrets import mask_text
from workbench.supervision import signals
from workbench.supervision.records import ProcessSample, StackSample

TIMEOUT_S = 5.0
DEEPEST = 60
"""Frames kept of a stack, from the innermost."""
_IDLE = ("event_loop_", "recv_req", "on_idle", "maybe_sleep")
_WORK = ("run_batch", "forward", "process_batch_result", "all_reduce", "capture", "load_", "warmup", "compile")
"""Functions of a scheduler's loop: what it calls when it has nothing to do, and what it calls to work."""


def dump(process: ProcessSample, busiest: dict[int, float] | None = None) -> StackSample:
    """The stack of one process's busiest thread.

    Args:
        process: Which one.
        busiest: Processor seconds of its threads at an earlier time, to tell which one works now; without it the
            thread that has used the most decides.
    """
    frames, note = _py_spy(process.pid, busiest or {})
    if frames:
        return StackSample(pid=process.pid, label=process.label, source="py-spy", frames=tuple(frames[:DEEPEST]))
    seen = tuple(_kernel(process))
    return StackSample(pid=process.pid, label=process.label, source="/proc", frames=seen, note=note)


def find_py_spy(pid: int) -> str | None:
    """The program: beside hsbench's interpreter, beside the process's own, or on the path."""
    first = (signals.command_line(pid) or ("",))[0]
    places = [os.path.dirname(sys.executable), os.path.dirname(first) if os.path.isabs(first) else ""]
    for place in places:
        if place and os.access(os.path.join(place, "py-spy"), os.X_OK):
            return os.path.join(place, "py-spy")
    return shutil.which("py-spy")


def same_place(stacks: Sequence[StackSample]) -> bool:
    """Whether all dumps of one process show it in the same call, if not on the same line of it."""
    return len({_place(stack) for stack in stacks}) == 1 and bool(stacks[0].frames)


def is_polling(stack: StackSample) -> bool:
    """Whether this is a scheduler that waits for requests: its loop runs, and nothing was called to do work."""
    loop = next((n for n, frame in enumerate(stack.frames) if frame.startswith(_IDLE)), None)
    return loop is not None and not any(mark in frame for frame in stack.frames[:loop] for mark in _WORK)


def waits_on(stack: StackSample) -> str:
    """What a sleeping stack waits on, in words; empty when it does not show."""
    for frame in stack.frames[:8]:
        for mark, words in _WAITS:
            if mark in frame:
                return f"{words} in {frame}"
    return ""


_WAITS = (
    ("file_baton", "a lock file"),
    ("filelock", "a file lock"),
    ("flock", "a file lock"),
    ("locks_lock_inode", "a file lock"),
    ("store_based_barrier", "the other ranks"),
    ("rendezvous", "the other ranks"),
    ("init_process_group", "the other ranks"),
    ("barrier", "the other ranks"),
    ("recv", "a peer's answer"),
    ("read (ssl", "the network"),
    ("urlopen", "a download"),
    ("hf_hub", "a download"),
    ("wait (subprocess", "a child process"),
    ("folio_wait", "the disk or network file system"),
    ("nfs", "a network file system"),
    ("futex", "another thread"),
    ("do_poll", "an event"),
    ("ep_poll", "an event"),
)


def _place(stack: StackSample) -> tuple[str, ...]:
    """The stack without the innermost line number: a loop of several lines is one place."""
    if not stack.frames:
        return ()
    return (stack.frames[0].rpartition(":")[0], *stack.frames[1:])


def _py_spy(pid: int, before: dict[int, float]) -> tuple[list[str], str]:
    program = find_py_spy(pid)
    if program is None:
        return [], "py-spy is not installed"
    try:
        done = subprocess.run(
            [program, "dump", "--json", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        threads: list[dict[str, Any]] = json.loads(done.stdout) if done.returncode == 0 else []
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return [], f"py-spy failed: {type(error).__name__}"
    if not threads:
        words = mask_text((done.stderr.strip().splitlines() or ["no Python threads"])[0])
        return [], f"py-spy was refused: {words[:160]}"
    used = signals.thread_cpu(pid)
    busiest = max(threads, key=lambda t: used.get(t["os_thread_id"], 0.0) - before.get(t["os_thread_id"], 0.0))
    return [_frame(frame) for frame in busiest["frames"]], ""


def _frame(frame: dict[str, Any]) -> str:
    return f"{frame['name']} ({Path(frame['short_filename'] or frame['filename']).name}:{frame['line']})"


def _kernel(process: ProcessSample) -> Iterator[str]:
    """What `/proc` has of a process: its state, what it waits in, and its system call."""
    wait = signals.read(f"/proc/{process.pid}/wchan").strip()
    call = signals.read(f"/proc/{process.pid}/syscall").split()
    yield f"state {process.state}"
    if wait not in ("", "0"):
        yield wait
    if call:
        yield "running" if call[0] == "running" else f"system call {call[0]}"
