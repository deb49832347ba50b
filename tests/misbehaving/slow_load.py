"""Reads a big file slowly, with a processor busy converting it, and says nothing (sglang#7469)."""

import os
import time

from common import FOLDER, say

say("server_args={'model_path': '/m'}")
say("Load weight begin. avail mem=20.60 GB")
path = os.path.join(FOLDER, "model.safetensors")
with open(path, "wb") as file:
    file.write(os.urandom(1 << 20))
while True:
    with open(path, "rb", buffering=0) as file:
        while data := file.read(1 << 16):
            end = time.monotonic() + 0.02
            while time.monotonic() < end:
                hash(data)
