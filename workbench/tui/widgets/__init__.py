"""Widgets that more than one mode uses."""
