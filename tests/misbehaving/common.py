"""What the misbehaving servers share. Each is a program of its own: `python PROGRAM PORT [FOLDER]`, log on stdout."""

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = int(sys.argv[1]) if len(sys.argv) > 1 else 0
FOLDER = sys.argv[2] if len(sys.argv) > 2 else "/tmp"
PR_SET_NAME = 15


def say(line: str) -> None:
    os.write(1, f"[2026-01-01 00:00:00] {line}\n".encode())


def load() -> None:
    """The beginning of a good start."""
    say("server_args={'model_path': '/m', 'api_key': 'planted-key-1'}")
    say("Load weight begin. avail mem=20.60 GB")
    say("Load weight end. elapsed=0.18 s, type=LlamaForCausalLM, avail mem=20.43 GB.")


def call_yourself(name: str) -> None:
    """Change the name that the kernel shows, as setproctitle does."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def child(name: str, work: Callable[[], None]) -> int:
    """A process like a scheduler."""
    pid = os.fork()
    if pid == 0:
        call_yourself(name)
        work()
        os._exit(0)
    return pid


def spin() -> None:
    """A collective that never completes."""
    while True:
        pass


def event_loop_normal() -> None:
    """An idle scheduler: polls, and never stands at the same place."""
    while True:
        recv_requests()
        get_next_batch()


def recv_requests() -> int:
    return sum(range(200))


def get_next_batch() -> int:
    return sum(range(200))


def serve(health: Callable[[], int], generate: Callable[[], bool], beat: Callable[[], None] | None = None) -> None:
    """Open the port and answer: the status of `/health`, and whether a request brings a token."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(health() if self.path == "/health" else 404 if self.path == "/metrics" else 200, b"{}")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if generate():
                self.answer(200, b"data: " + json.dumps({"text": "a"}).encode() + b"\n\ndata: [DONE]\n\n")
            else:
                time.sleep(600)

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            os.write(1, f'INFO: 127.0.0.1:1 - "{args[0]}" {args[1]}\n'.encode())

    server = ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
    say("INFO:     Uvicorn running on http://127.0.0.1 (Press CTRL+C to quit)")
    if beat is None:
        server.serve_forever()
        return
    import threading

    threading.Thread(target=server.serve_forever, daemon=True).start()
    while True:
        beat()
