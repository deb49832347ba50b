"""Repeats one line for ever, its numbers changing, while nothing gets on (vllm#18260)."""

import time

from common import load, say

load()
for number in range(100000):
    say(f"Waiting for 1 core engine to come up, {number} s so far, attempt {number}/100000")
    time.sleep(0.3)
