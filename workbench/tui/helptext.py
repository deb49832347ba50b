"""The help of a view, made from the list of actions and the keys that are really bound."""

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from workbench.tui.actions import MODES, Action, of_mode

EVERYWHERE = (
    ("1 to 6", "go to a mode; a click on its name too"),
    ("tab", "the next part of the view"),
    ("j k g G", "down, up, top, bottom, beside the arrows"),
    ("esc", "one level back"),
    ("ctrl+c", "copy what the mouse selected"),
    ("ctrl+p", "the palette, as : does"),
)


def help_of(mode: str, keymap: Mapping[str, str]) -> RenderableType:
    """Keys and what they do.

    Args:
        mode: The view.
        keymap: Id of an action → the key that the config file gives it.
    """
    about = next(one for one in MODES if one.name == mode)
    own, everywhere = _grid(), _grid()
    for grid, actions in ((own, of_mode(mode)), (everywhere, of_mode(""))):
        for action in actions:
            grid.add_row(shown_key(keymap.get(action.id, action.key)), _words(action))
    for key, words in EVERYWHERE:
        everywhere.add_row(key, words)
    return Group(Text(f"{about.help}\n", style="italic"), own, Text(), everywhere)


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", min_width=9)
    grid.add_column()
    return grid


def shown_key(key: str) -> str:
    """A key as it is printed on the keyboard."""
    names = {"slash": "/", "question_mark": "?", "colon": ":"}
    return ", ".join(names.get(one.strip(), one.strip()) for one in key.split(","))


def _words(action: Action) -> Text:
    """Text, since a string in a table is markup."""
    return Text(action.help + (" (changes something)" if action.changes else ""))
