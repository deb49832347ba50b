"""Stub."""

from typing import Any, ClassVar

from textual.app import ComposeResult

from workbench.tui.bindings import bindings_of
from workbench.tui.screens.base import ModeScreen
from workbench.tui.widgets.panel import Panel
from workbench.tui.widgets.plain import Plain


class ServerScreen(ModeScreen):
    """Stub."""

    MODE = "server"
    BINDINGS: ClassVar = bindings_of("server")

    def body(self) -> ComposeResult:
        """Stub."""
        with Panel(title="server"):
            yield Plain("not yet")

    def show(self, snapshot: Any) -> None:
        """Stub."""
