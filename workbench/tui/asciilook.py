"""What textual draws by itself, in ASCII: scroll bars, the edges of messages, lists and switches."""

from typing import ClassVar

from textual.scrollbar import ScrollBar, ScrollBarRender


class AsciiBars(ScrollBarRender):
    """A bar that ends at whole cells."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "] * 8
    HORIZONTAL_BARS: ClassVar[list[str]] = [" "] * 8
    BLANK_GLYPH: ClassVar[str] = " "


def scroll_bars(ascii_only: bool) -> None:
    """Draw scroll bars so from now on."""
    ScrollBar.renderer = AsciiBars if ascii_only else ScrollBarRender


STYLES = """
.-ascii Toast { border: none; }
.-ascii Select > SelectCurrent { border: none; }
.-ascii Select > SelectOverlay { border: ascii $primary; }
.-ascii SelectCurrent .arrow { display: none; }
.-ascii CommandPalette #--input, .-ascii CommandPalette LoadingIndicator { border: none; }
.-ascii CommandList, .-ascii CommandList:focus { border: none; }
.-ascii CommandPalette SearchIcon { display: none; }
"""
