"""Starts a scheduler and dies: the scheduler stays, with process 1 or a reaper as its parent (sglang#31645)."""

import os
import time

from common import FOLDER, child, load


def stay() -> None:
    time.sleep(600)


load()
pid = child("sglang::schedul", stay)
with open(os.path.join(FOLDER, "orphan.tmp"), "w", encoding="utf-8") as file:
    file.write(str(pid))
os.rename(os.path.join(FOLDER, "orphan.tmp"), os.path.join(FOLDER, "orphan"))
time.sleep(0.5)
os._exit(0)
