"""Mode → screen; a mode's module is loaded when it is first gone to."""

import importlib
from collections.abc import Callable
from typing import Any

from textual.screen import Screen

from workbench.tui.actions import MODES


def _opener(mode: str) -> Callable[[], Screen[Any]]:
    def make() -> Screen[Any]:
        module = importlib.import_module(f"workbench.tui.screens.{mode}")
        screen: Screen[Any] = getattr(module, f"{mode.capitalize()}Screen")()
        return screen

    return make


SCREENS: dict[str, str | Callable[[], Screen[Any]]] = {mode.name: _opener(mode.name) for mode in MODES}
