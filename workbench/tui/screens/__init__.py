"""One module a mode."""
