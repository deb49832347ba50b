"""A form for one command: its fields, and the command line that they come to, as it would be typed."""

import shlex
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.suggester import SuggestFromList
from textual.widgets import Button, Input, Select, Switch

from workbench.tui.glyphs import plain
from workbench.tui.widgets.plain import Plain


class Field(NamedTuple):
    """One option of the command.

    With `choices` it is a list to choose from, whose first entry stands for leaving the option out if it is empty;
    with `switch` it is on or off, and `value` is "on" when it begins on. A field without a `flag` is an argument;
    `rest` are SGLang's own flags, which come after ``--``.
    """

    name: str
    flag: str = ""
    value: str = ""
    hint: str = ""
    choices: tuple[str, ...] = ()
    switch: bool = False
    rest: bool = False
    suggestions: tuple[str, ...] = ()
    required: bool = False


class CommandForm(ModalScreen[tuple[str, ...] | None]):
    """Answers with the arguments of `hsbench`, or None.

    Args:
        title: What will be done.
        command: Such as ``("serve",)``.
        fields: From top to bottom.
    """

    BINDINGS: ClassVar = [
        Binding("escape", "cancel", "cancel"),
        Binding("ctrl+r", "go", "run"),
        # At once, so that letters typed right after it go to the next field.
        Binding("tab", "app.focus_next", show=False, priority=True),
        Binding("shift+tab", "app.focus_previous", show=False, priority=True),
    ]

    def __init__(self, title: str, command: Sequence[str], fields: Sequence[Field]) -> None:
        super().__init__(classes="dialog")
        self.name_of_form, self.command, self.fields = title, tuple(command), tuple(fields)

    def compose(self) -> ComposeResult:
        """Fields, the command, the buttons."""
        with Vertical(classes="dialog-box form") as box:
            box.border_title = Content(plain(self.name_of_form))
            with VerticalScroll(classes="fields"):
                for number, field in enumerate(self.fields):
                    with Horizontal(classes="field"):
                        yield Plain(field.name + (" *" if field.required else ""), classes="field-name")
                        yield self._widget(number, field)
            yield Plain(id="command")
            with Horizontal(classes="buttons"):
                yield Button("Run (ctrl+r)", id="go", variant="primary", compact=True)
                yield Button("Cancel (esc)", id="cancel", compact=True)

    def _widget(self, number: int, field: Field) -> Input | Switch | Select[str]:
        name = f"field-{number}"
        if field.switch:
            return Switch(field.value == "on", id=name)
        if field.choices:
            options = [(choice or "(default)", choice) for choice in field.choices]
            chosen = field.value if field.value in field.choices else field.choices[0]
            return Select(options, value=chosen, allow_blank=False, id=name, compact=True)
        suggester = SuggestFromList(field.suggestions, case_sensitive=True) if field.suggestions else None
        return Input(field.value, placeholder=field.hint, id=name, suggester=suggester, compact=True)

    def on_mount(self) -> None:
        """Begin in the first field."""
        self._tell()
        self.query_one("#field-0").focus()

    def argv(self) -> tuple[str, ...]:
        """The command's arguments as the fields stand.

        Raises:
            ValueError: a quote in SGLang's flags is not closed.
        """
        options: list[str] = []
        positional: list[str] = []
        rest: list[str] = []
        for number, field in enumerate(self.fields):
            value = self._value(number, field)
            if not value:
                continue
            if field.rest:
                rest += shlex.split(value)
            elif field.switch:
                options.append(field.flag)
            elif field.flag:
                options += [field.flag, value]
            else:
                positional.append(value)
        tail = ["--", *rest] if rest else []
        return (*self.command, *positional, *options, *tail)

    def _value(self, number: int, field: Field) -> str:
        widget = self.query_one(f"#field-{number}")
        if isinstance(widget, Switch):
            return "on" if widget.value else ""
        assert isinstance(widget, Input | Select)
        return str(widget.value).strip()

    def _tell(self) -> None:
        try:
            text = f"$ hsbench {shlex.join(self.argv())}"
        except ValueError as error:
            text = f"SGLang's flags: {error}"
        self.query_one("#command", Plain).show(text)

    def on_input_changed(self) -> None:
        """The command follows the fields."""
        self._tell()

    def on_switch_changed(self) -> None:
        """The command follows the fields."""
        self._tell()

    def on_select_changed(self) -> None:
        """The command follows the fields."""
        self._tell()

    def on_input_submitted(self) -> None:
        """Enter goes to the next field, as in every form."""
        self.focus_next()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Run or leave."""
        if event.button.id == "go":
            self.action_go()
        else:
            self.action_cancel()

    def action_go(self) -> None:
        """Close with the command, if it is whole."""
        for number, field in enumerate(self.fields):
            if field.required and not self._value(number, field):
                self.notify(f"{field.name} is needed", severity="warning")
                self.query_one(f"#field-{number}").focus()
                return
        try:
            self.dismiss(self.argv())
        except ValueError as error:
            self.notify(f"SGLang's flags: {error}", severity="warning")

    def action_cancel(self) -> None:
        """Close without one."""
        self.dismiss(None)
