"""Exceptions that Teal raises: invalid user input, and failures of a solver.

The command line turns an :class:`InputError` into one line and exit code 2, a :class:`SolverError`
into one line and exit code 1.  Any other exception is a bug in Teal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# Prefix of notes that --quiet does not hide, since the result may be wrong.
WARNING = "Warning: "


class TealError(Exception):
    """Base of every error that Teal raises on purpose."""


class InputError(TealError):
    """Invalid user input.

    Args:
        where: file, name or option with the fault.
        field: field of it that is wrong; ``""`` for the whole.
        expected: accepted values.
        actual: value that was read.
    """

    def __init__(self, where: str, field: str, expected: str, actual: object) -> None:
        self.where = where
        self.field = field
        self.expected = expected
        self.actual = str(actual)
        location = f"{where}: {field}" if field else where
        super().__init__(f"{location}: expected {expected}, found {self.actual}")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str, str]]:
        """Support pickling, since Ray passes errors between processes."""
        return type(self), (self.where, self.field, self.expected, self.actual)


class InputWarning(UserWarning):
    """Part of the user's input is ignored or doubtful; the result is computed anyway.

    The command line prints it as a line that ``--quiet`` does not hide.
    """


class SolverError(TealError):
    """A solver failed: it is not installed, has no licence, or the model is too large."""


def did_you_mean(typed: str, known_names: Iterable[str]) -> str:
    """Return ``; did you mean NAME?`` with the known name closest to ``typed``, ignoring case;
    ``""`` if none is close.
    """
    # Imported here, since only errors need it.
    import difflib

    by_lower = {name.lower(): name for name in known_names}
    close_matches = difflib.get_close_matches(typed.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[close_matches[0]]}?" if close_matches else ""


def listed(names: Sequence[str], max_names: int = 5) -> str:
    """Join the first ``max_names`` names and count the others: ``a, b and 3 more``."""
    suffix = f" and {len(names) - max_names:,} more" if len(names) > max_names else ""
    return ", ".join(names[:max_names]) + suffix
