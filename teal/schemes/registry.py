"""Schemes by name.  A scheme turns a problem into an allocation, by a model, an LP or anything else.

A scheme is found by its kebab-case name among the package entry points ``teal.schemes`` and the schemes given to
:func:`register_scheme`, and may have options: ``teal:repair=admm,iterations=5``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol, runtime_checkable

from teal.errors import InputError
from teal.problem import Allocation, Problem
from teal.spec import Spec, parse_spec

ENTRY_POINTS = "teal.schemes"  # group of the package entry points


class Scheme(Protocol):
    """A way to solve problems."""

    def solve(self, problem: Problem) -> Allocation:
        """Allocate every matrix of ``problem``."""
        ...


@runtime_checkable
class Follower(Scheme, Protocol):
    """A scheme that starts from the state after the interval before."""

    def follow(self, before: Problem | None) -> None:
        """Set the state that this scheme would have after solving ``before``.  Not timed.

        Args:
            before: the problem of the interval before the next one; None if there is no earlier interval.
        """
        ...


SchemeFactory = Callable[[Spec, Path | None], Scheme]
"""Makes a scheme from its specification and the folder of the trained model, None if no model was given."""

_registered: dict[str, SchemeFactory] = {}


def register_scheme(name: str, factory: SchemeFactory) -> None:
    """Make ``factory`` available as ``--scheme name`` in this process.

    A package announces its schemes without being imported, by entry points in the group ``teal.schemes``.
    """
    _registered[name] = factory


def scheme_names() -> list[str]:
    """All names that :func:`make_scheme` knows."""
    return sorted({*_registered, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def make_scheme(text: str, model: Path | None = None) -> Scheme:
    """Make the scheme that ``text`` specifies.

    Args:
        text: name and options, such as ``lp-all:solver=highs``.
        model: folder of a trained model, for schemes that take one.

    Raises:
        InputError: an unknown name or option, or a scheme that needs a model and got none.
    """
    spec = parse_spec(text)
    if spec.name in _registered:
        return _registered[spec.name](spec, model)
    for point in entry_points(group=ENTRY_POINTS, name=spec.name):
        factory: SchemeFactory = point.load()
        return factory(spec, model)
    raise InputError(text, "scheme", "one of: " + ", ".join(scheme_names()), repr(spec.name))
