"""A shard's job with a server that takes no time: it writes a line for each row. Standard library only."""

import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    """`cluster_stub_job.py … FOLDER`: as many rows as the data set's name says."""
    out = Path(sys.argv[-1])
    settings = json.loads((out / ".hsbench/request.json").read_text())["settings"]
    rows, (number, of) = int(os.path.basename(settings["data"])), settings["shard"]
    tell({"type": "Progress", "state": "running", "rows": rows, "written": 0})
    with open(out / "index.jsonl", "ab", buffering=0) as index:
        for row in range(rows):
            line = {"index": number + row * of, "status": "written", "tokens": 100, "nbytes": 1000, "time": time.time()}
            index.write(json.dumps(line).encode() + b"\n")
    tell({"type": "Progress", "state": "finishing", "rows": rows, "written": rows, "tokens": 100 * rows})
    tell({"type": "Ended", "state": "done", "message": f"{rows} samples"})


def tell(event: dict[str, object]) -> None:
    """An event, as a job with --json tells it."""
    os.write(1, json.dumps({"time": time.time(), **event}).encode() + b"\n")


if __name__ == "__main__":
    main()
