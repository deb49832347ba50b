"""Key bindings made from the list of actions; their ids are what a keymap names."""

from textual.binding import Binding, BindingType

from workbench.tui.actions import of_mode


def bindings_of(mode: str) -> list[BindingType]:
    """The bindings of one mode's screen; of the app for the empty name."""
    return [
        Binding(
            action.key,
            f"do('{action.id}')",
            action.label,
            show=action.shown,
            tooltip=action.help,
            id=action.id,
        )
        for action in of_mode(mode)
    ]
