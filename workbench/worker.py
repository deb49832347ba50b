"""The probes worker: a child process in the engine's interpreter that reads tensors for this process.

This process has no torch, and the engine's interpreter need not have hsbench: `probes/worker.py` is started by
path. Requests and answers are JSON lines; see that module for the calls.
"""

import contextlib
import json
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import probes
from workbench.errors import BadSample, CheckFailed, HsbenchError, Missing, UsageError

SCRIPT = Path(probes.__file__).with_name("worker.py")
START_TIMEOUT_S = 120
KINDS: dict[str, type[HsbenchError]] = {
    "package": Missing,
    "memory": Missing,
    "space": Missing,
    "call": UsageError,
    "data": UsageError,
    "sample": BadSample,
}
"""What a `ProbeError` of this kind is to the user; all others are failed checks."""


class Worker:
    """One worker process. Starting it does not wait; the first call waits until torch is loaded there.

    Args:
        python: The interpreter to run in; it must have torch.
    """

    def __init__(self, python: str) -> None:
        self.python = python
        self._calls = 0
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker; a pipe could fill up
        try:
            self._process = subprocess.Popen(
                [python, "-I", str(SCRIPT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                text=True,
                encoding="utf-8",
                cwd="/",
                process_group=0,  # Ctrl-C in a terminal is for whoever uses the worker to act on
            )
        except OSError as error:
            self._stderr.close()
            raise Missing(f"cannot run {python}: {error.strerror}", "name the engine's --python") from error

    def call(self, name: str, **arguments: Any) -> Any:
        """Call one function of `probes` and return its result as plain JSON values.

        Raises:
            CheckFailed: the worker reports that a dump or a model cannot be used.
            BadSample: the worker reports that a dump cannot become a training sample.
            Missing: the worker's interpreter lacks torch, another package, memory or disk space, or the worker died.
            UsageError: the call itself does not fit the dump.
        """
        self._calls += 1
        request = {"id": self._calls, "call": name, "args": arguments}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise self._died()
        return self._result(json.loads(answer))

    def _result(self, answer: dict[str, Any]) -> Any:
        if "error" not in answer:
            return answer["result"]
        error = answer["error"]
        kind = KINDS.get(error.get("kind", ""), CheckFailed)
        raise kind(error["message"], error.get("next_step", ""))

    def _died(self) -> Missing:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self._stderr.seek(0)
        last = self._stderr.read().decode(errors="replace").strip().splitlines()[-5:]
        return Missing(
            f"the process that reads tensors ended (exit code {self._process.poll()})",
            f"does {self.python} have torch? pip install 'hsbench[engine]' there, or name another --python",
            "\n".join(last),
        )

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the worker; it ends by itself when this process does."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
