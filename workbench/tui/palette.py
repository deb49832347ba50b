"""The palette: every action of every mode by name."""

from functools import partial
from typing import TYPE_CHECKING, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

from workbench.tui.actions import ACTIONS, MODES, Action

if TYPE_CHECKING:
    from workbench.tui.app import WorkbenchApp

TITLES = {mode.name: mode.title for mode in MODES}


def name_of(action: Action) -> str:
    """Such as `Server: stop`."""
    return f"{TITLES[action.mode]}: {action.label}" if action.mode else action.label


class Actions(Provider):
    """Finds actions and modes."""

    async def discover(self) -> Hits:
        """What is offered before a letter is typed: the actions of the present mode first."""
        app = cast("WorkbenchApp", self.app)
        for action in sorted(ACTIONS, key=lambda one: one.mode != app.current_mode):
            yield DiscoveryHit(name_of(action), partial(app.perform, action.id), help=action.help)
        for mode in MODES:
            yield DiscoveryHit(f"Go to {mode.title}", partial(app.go, mode.name), help=mode.help)

    async def search(self, query: str) -> Hits:
        """Fuzzy, best first."""
        app = cast("WorkbenchApp", self.app)
        matcher = self.matcher(query)
        found = [(name_of(one), partial(app.perform, one.id), one.help) for one in ACTIONS]
        found += [(f"Go to {mode.title}", partial(app.go, mode.name), mode.help) for mode in MODES]
        for name, command, help_text in found:
            if (score := matcher.match(name)) > 0:
                yield Hit(score, matcher.highlight(name), command, help=help_text)
