"""The application: command line, server supervision, probing, rendering."""

__version__ = "0.1.0"
