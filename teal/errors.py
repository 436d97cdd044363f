"""The errors that Teal raises: faults in the user's input, and failures of a solver.

The command line turns an :class:`InputError` into one line and exit code 2, a :class:`SolverError`
into one line and exit code 1.  Any other exception is a bug in Teal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# opens a note that --quiet does not hide, since a result may be wrong without the user's look
WARNING = "Warning: "


class TealError(Exception):
    """Base of every error that Teal raises on purpose."""


class InputError(TealError):
    """A fault in the user's input.

    Args:
        where: the file, name or option with the fault.
        field: the part of it that is wrong; ``""`` for the whole.
        expected: what would have been accepted.
        actual: what was there.
    """

    def __init__(self, where: str, field: str, expected: str, actual: object) -> None:
        self.where, self.field, self.expected, self.actual = where, field, expected, str(actual)
        place = f"{where}: {field}" if field else where
        super().__init__(f"{place}: expected {expected}, found {self.actual}")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str, str]]:
        """How to pickle the error, which Ray passes between processes."""
        return type(self), (self.where, self.field, self.expected, self.actual)


class InputWarning(UserWarning):
    """A part of the user's input is ignored or doubtful; the result is computed all the same.

    The command line prints it as a line that ``--quiet`` does not hide.
    """


class SolverError(TealError):
    """A solver failed: it is not installed, has no licence, or the model is too large."""


def did_you_mean(typed: str, known: Iterable[str]) -> str:
    """``; did you mean NAME?`` with the nearest of the known names, whatever their case; ``""`` if
    none is near.
    """
    import difflib  # only where something is wrong

    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(typed.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first ``most`` names, and how many more there are: ``a, b and 3 more``."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
