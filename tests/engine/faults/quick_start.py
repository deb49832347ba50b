"""A server's start at half of its cost, for tests that are not about the start.

SGLang's server imports the same seven thousand modules in three processes, for ten seconds each. Here its children
are forks, which have them already, and the collector of cycles, which finds next to none in modules, looks seldom.
"""

import gc
from typing import Any

SELDOM = (200_000, 50, 100)


def plant(context: Any) -> None:
    """Let spawn mean fork in `multiprocessing.context`. SGLang starts its children before it uses threads."""
    gc.set_threshold(*SELDOM)
    choose = context.DefaultContext.set_start_method

    def fork(self: Any, method: str | None, force: bool = False) -> None:
        choose(self, "fork" if method == "spawn" else method, force)

    context.DefaultContext.set_start_method = fork
