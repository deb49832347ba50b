"""A stand-in for the job of a shard: it tells what its data set's name says, and ends so, or never.

`done-…` ends well, `bad-…` with exit code 1 and a reason, `taken-…` because another job records, `silent-…` is killed
without a word, `endless-…` goes on, with a child of its own that does too.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from workbench.cluster.tied import tie

tie()
out = Path(sys.argv[-1])
request = json.loads((out / ".hsbench/request.json").read_text())
name = os.path.basename(request["settings"]["data"])


def tell(**event: object) -> None:
    line = json.dumps({"time": time.time(), **event})
    with open(out / ".hsbench/events.jsonl", "a", encoding="utf-8") as file:
        file.write(line + "\n")
    os.write(1, line.encode() + b"\n")


tell(type="Progress", state="running", rows=4, written=1, tokens=50, tokens_here=50, seconds_here=2.0)
tell(type="Told", text="row 3 is in quarantine", level="error")
if name.startswith("endless"):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (out / "child").write_text(f"{os.getpid()} {child.pid}")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(tell(type="Ended", state="stopped", message="told to") or 0))
    time.sleep(600)
if name.startswith("silent"):
    os.kill(os.getpid(), signal.SIGKILL)
if name.startswith("bad"):
    tell(type="Ended", state="failed", message="12 samples are bad", next_step="look at them", exit_code=1)
    sys.exit(1)
if name.startswith("taken"):
    tell(type="Ended", state="failed", message="file:///x was taken over by h, process 1; nothing more", exit_code=1)
    sys.exit(1)
tell(type="Ended", state="done", message="all of it")
