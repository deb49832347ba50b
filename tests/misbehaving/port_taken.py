"""Its port is held by another process, and it lingers after the failed bind (sglang#19008)."""

import socket
import time

from common import PORT, load, say

load()
try:
    socket.create_server(("127.0.0.1", PORT))
except OSError as error:
    say(f"ERROR: {error}")
time.sleep(600)
