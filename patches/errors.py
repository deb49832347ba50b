"""Errors of the engine side. `workbench.errors.PatchRefused` shows them to the user."""


class PatchError(Exception):
    """A source tree cannot be patched, verified or reverted as asked.

    Args:
        message: One line; what is wrong, with the file and what was looked for.
        next_step: One line; what to do about it.
    """

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step


class NoTree(PatchError):
    """No SGLang source tree where one was looked for."""
