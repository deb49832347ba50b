"""A test hook inside the engine: the first forward pass, which is the warm-up's, never ends.

Python imports this module at start-up when its folder is on PYTHONPATH; `HS_TEST_SPIN` switches the hook on.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

RUNNER = "sglang.srt.model_executor.model_runner"


def spin_in_the_warm_up(*_: Any, **__: Any) -> Any:
    """As a collective does whose peer never comes."""
    while True:
        pass


class AfterImport(importlib.abc.MetaPathFinder):
    """Lets the model runner load as usual, then replaces its forward pass."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != RUNNER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_plant(module: ModuleType) -> None:
            load(module)
            module.ModelRunner.forward = spin_in_the_warm_up

        spec.loader.exec_module = load_and_plant  # type: ignore[method-assign]
        return spec


if "HS_TEST_SPIN" in os.environ:
    sys.meta_path.insert(0, AfterImport())
