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
    """Invalid user input: ``WHERE: FIELD: expected EXPECTED, found ACTUAL``.

    :meth:`invalid` states a fault that is not a comparison of two values.

    Args:
        where: file, name or option with the fault.
        field: wrong field of it; ``""`` for the whole.
        expected: accepted values.
        actual: value that was read.
    """

    def __init__(self, where: str, field: str, expected: str, actual: object) -> None:
        self.expected = expected
        self.actual = str(actual)
        self._set_message(where, field, f"expected {expected}, found {self.actual}")

    @classmethod
    def invalid(cls, where: str, field: str, problem: str, remedy: str = "") -> InputError:
        """Return the error ``WHERE: FIELD: PROBLEM; REMEDY``.

        Its ``expected`` and ``actual`` are empty: re-raise it with :meth:`relocated`.

        Args:
            where: file, name or option with the fault.
            field: field of it that is wrong; ``""`` for the whole.
            problem: what is wrong, as a clause: "the matrix has no demand above 0".
            remedy: what to do about it, as an imperative; ``""`` where it is obvious.
        """
        error = cls(where, field, "", "")
        error._set_message(where, field, f"{problem}; {remedy}" if remedy else problem)
        return error

    def relocated(self, where: str, field: str = "") -> InputError:
        """Return an error with the same fault at another location.

        Args:
            where: file, name or option with the fault.
            field: field of it that is wrong; ``""`` for the whole.
        """
        error = type(self)(where, field, self.expected, self.actual)
        error._set_message(where, field, self._fault)
        return error

    def _set_message(self, where: str, field: str, fault: str) -> None:
        """Set location and message of the error: ``WHERE: FIELD: FAULT``."""
        self.where = where
        self.field = field
        self._fault = fault
        location = f"{where}: {field}" if field else where
        self.args = (f"{location}: {fault}",)

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str, str], dict[str, object]]:
        """Support pickling, since Ray passes errors between processes."""
        state: dict[str, object] = {"args": self.args, "_fault": self._fault}
        return type(self), (self.where, self.field, self.expected, self.actual), state


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
