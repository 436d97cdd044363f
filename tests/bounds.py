"""Counts of the cases in which a bound says something: a trivial bound holds whatever the code does."""

from __future__ import annotations


class Cases:
    """The cases of a test of bounds."""

    def __init__(self) -> None:
        self._all = self._tight = 0

    def add(self, excludes: bool) -> None:
        """Count a case, and whether its bound excludes what the trivial bound does not."""
        self._all += 1
        self._tight += excludes

    def require_most(self) -> None:
        """Fail unless the bound excludes something in more than half of the cases."""
        assert self._tight > self._all / 2 > 5, f"{self._tight} of {self._all} bounds say something"
