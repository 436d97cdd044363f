"""The three kinds of failure: the user's data, a solver, and our own mistakes.

An :class:`InputError` is the only one that a user is meant to act on; the command line turns it
into one line and exit code 2.  Anything that is neither of the first two is a bug.
"""

from __future__ import annotations


class TealError(Exception):
    """Base of every error that Teal raises on purpose."""


class InputError(TealError):
    """Something the user gave us is not what it must be.

    Args:
        where: the file, name or option that holds the fault.
        field: the part of it that is wrong, ``""`` if it is the whole.
        expected: what would have been accepted.
        found: what was there.
    """

    def __init__(self, where: str, field: str, expected: str, found: object) -> None:
        self.where, self.field, self.expected, self.found = where, field, expected, str(found)
        place = f"{where}: {field}" if field else where
        super().__init__(f"{place}: expected {expected}, found {self.found}")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str, str]]:
        """Errors travel between processes."""
        return type(self), (self.where, self.field, self.expected, self.found)


class SolverError(TealError):
    """A solver could not do what was asked: not installed, no licence, model too large."""
