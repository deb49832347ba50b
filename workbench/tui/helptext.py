"""The help of a view, made from the list of actions and the keys that are really bound."""

from collections.abc import Mapping

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


def help_of(mode: str, keymap: Mapping[str, str]) -> Text:
    """Keys and what they do.

    Args:
        mode: The view.
        keymap: Id of an action → the key that the config file gives it.
    """
    about = next(one for one in MODES if one.name == mode)
    text = Text().append(f"{about.help}\n\n", style="italic")
    for action in of_mode(mode):
        _line(text, shown_key(keymap.get(action.id, action.key)), _words(action))
    text.append("\n")
    for action in of_mode(""):
        _line(text, shown_key(keymap.get(action.id, action.key)), _words(action))
    for key, words in EVERYWHERE:
        _line(text, key, words)
    return text


def shown_key(key: str) -> str:
    """A key as it is printed on the keyboard."""
    names = {"slash": "/", "question_mark": "?", "colon": ":"}
    return ", ".join(names.get(one.strip(), one.strip()) for one in key.split(","))


def _words(action: Action) -> str:
    return action.help + (" [changes something]" if action.changes else "")


def _line(text: Text, key: str, words: str) -> None:
    text.append(f"  {key:<10}", style="bold")
    text.append(f" {words}\n")
