"""Weights are loaded, the log falls silent, the schedulers spin, no port opens (sglang#15608, vllm#51533)."""

import time

from common import child, load, spin


def all_reduce() -> None:
    spin()


load()
child("sglang::schedul", all_reduce)
child("sglang::schedul", all_reduce)
time.sleep(600)
