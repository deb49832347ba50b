"""Answers 503 while it works through a long prefill and many tokens (sglang#22511)."""

import time

from common import load, say, serve


def beat() -> None:
    say("Decode batch, #running-req: 8, #token: 4096, token usage: 0.12, gen throughput (token/s): 412.3")
    time.sleep(0.3)


load()
say("The server is fired up and ready to roll!")
serve(lambda: 503, lambda: False, beat)
