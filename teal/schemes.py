"""Schemes by name: whatever turns a problem into an allocation, learned or not.

A scheme is found by its kebab-case name among the package entry points ``teal.schemes`` and what
:func:`register_scheme` was given, and may carry options: ``teal:repair=admm,iterations=5``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import Tensor

from teal.allocation import Allocation
from teal.errors import InputError
from teal.problem import Problem
from teal.spec import Spec, parse_spec

ENTRY_POINTS = "teal.schemes"


class Scheme(Protocol):
    """Anything that solves problems."""

    def solve(self, problem: Problem) -> Allocation:
        """Allocate every matrix of ``problem``."""
        ...


@runtime_checkable
class Starter(Scheme, Protocol):
    """A scheme that PDHG may start from before its answer is finished."""

    def start(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """Splits (B, D, K), which need not be feasible, and prices (B, E)."""
        ...


@runtime_checkable
class Follower(Scheme, Protocol):
    """A scheme that starts from what it knew an interval before."""

    def follow(self, before: Problem | None) -> None:
        """Be as after ``before``, the interval before the next problem, None if there was none; nobody's time."""
        ...


SchemeFactory = Callable[[Spec, Path | None], Scheme]
"""Makes a scheme from its specification and the folder of the trained model, if one was given."""

_registered: dict[str, SchemeFactory] = {}


def register_scheme(name: str, factory: SchemeFactory) -> None:
    """Make ``factory`` available as ``--scheme name`` in this process.

    Packages announce theirs without being imported, by an entry point in the group ``teal.schemes``.
    """
    _registered[name] = factory


def scheme_names() -> list[str]:
    """All names that :func:`make_scheme` knows."""
    return sorted({*_registered, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def make_scheme(text: str, model: Path | None = None) -> Scheme:
    """Build the scheme that ``text`` specifies.

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
