"""Captures graphs: a bar that rewrites its line, with a busy processor (must never look hung)."""

import os
import time

from common import load, say

load()
say("Capture decode CUDA graph begin. backend=full, avail mem=16.10 GB")
for step in range(100000):
    os.write(2, f"\rCapturing batches (bs={step % 50} avail_mem=16.1 GB): {step}/100000".encode())
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        pass
