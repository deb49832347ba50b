"""Fixtures shared by the unit tests."""

from tests.trees import release, releases, tree

__all__ = ["release", "releases", "tree"]
