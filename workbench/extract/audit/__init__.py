"""Auditing a finished data set: structure, files, statistics, source, and against a server or a reference."""
