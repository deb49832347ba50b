"""Watching a server from outside: samples of what it does, and one verdict with its evidence."""
