"""One of two schedulers is killed while the parent lives and notices nothing (sglang#21486)."""

import os
import signal
import threading
import time

from common import child, load

load()
first = child("sglang::schedul", lambda: time.sleep(600))
child("sglang::schedul", lambda: time.sleep(600))


def collect() -> None:
    time.sleep(2.5)
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)


threading.Thread(target=collect).start()
time.sleep(600)
