"""Screens that lie over a mode and answer a question."""
