"""A small program in SGLang's place: it takes its command line, writes the lines of its log, and answers.

`FAKE` says how it behaves: `good`; `die` (an error while it loads); `silent` (opens no port); `stubborn` (it
and its children ignore SIGTERM); `quiet` (does not write the line that says it is ready); `spin` (a child spins, no
port opens); `ranks` (its children bear a scheduler's name); `slow` (opens its port after some seconds).
"""

import json
import os
import signal
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOW = os.environ.get("FAKE", "good")
START = (
    "[2026-01-01 00:00:00] server_args={'model_path': '/m', 'api_key': 'planted-key-1'}",
    "[2026-01-01 00:00:01] Load weight begin. avail mem=20.60 GB",
    "[2026-01-01 00:00:01 TP1] Load weight begin. avail mem=20.60 GB",
    "[2026-01-01 00:00:02] Load weight end. elapsed=0.18 s, type=LlamaForCausalLM, avail mem=20.43 GB.",
)
READY = "[2026-01-01 00:00:04] The server is fired up and ready to roll!"


def say(line: str) -> None:
    os.write(1, line.encode() + b"\n")


class Handler(BaseHTTPRequestHandler):
    """Answers every request with what it was asked and what the process sees."""

    def allowed(self) -> bool:
        """SGLang's rule: with an API key, nothing is answered without it."""
        key = sys.argv[sys.argv.index("--api-key") + 1] if "--api-key" in sys.argv else None
        return key is None or self.headers["Authorization"] == f"Bearer {key}"

    def do_GET(self) -> None:
        self.answer({"path": self.path, "environ": dict(os.environ), "cwd": os.getcwd()})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer({"path": self.path, "asked": asked})

    def answer(self, what: dict[str, Any]) -> None:
        body = json.dumps(what).encode()
        self.send_response(200 if self.allowed() else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        say(f"access {format % args}")


def spin() -> None:
    while True:
        pass


def child() -> "subprocess.Popen[bytes]":
    """A process like a scheduler: it outlives a killed parent."""
    if HOW == "ranks":
        name = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'sglang::schedul', 0, 0, 0); time.sleep(600)"
        return subprocess.Popen([sys.executable, "-c", name])
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if HOW == "stubborn" else ""
    return subprocess.Popen([sys.executable, "-c", f"import signal, time; {ignore}time.sleep(600)"])


def main() -> None:
    port = int(sys.argv[sys.argv.index("--port") + 1])
    for line in START:
        say(line)
    if HOW == "die":
        say("ValueError: not enough memory, api_key='planted-key-1'")
        sys.exit(7)
    if "--api-key" in sys.argv:
        say(f"a client came with {sys.argv[sys.argv.index('--api-key') + 1]}")
    if HOW == "spin":
        spin()
    children = [child(), child()]
    if HOW == "slow":
        time.sleep(4)
    if HOW == "silent":
        time.sleep(600)

    def end(number: int, frame: object) -> None:
        for one in children:
            one.kill()
        os._exit(0)

    signal.signal(signal.SIGTERM, signal.SIG_IGN if HOW == "stubborn" else end)
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    say("[2026-01-01 00:00:03] INFO:     Uvicorn running on http://127.0.0.1 (Press CTRL+C to quit)")
    if HOW != "quiet":
        say(READY)
    server.serve_forever()


if __name__ == "__main__":
    main()
