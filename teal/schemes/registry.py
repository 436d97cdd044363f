"""Schemes by name.  A scheme turns a problem into an allocation, by a model, an LP or anything
else.

A scheme is found by its kebab-case name among the package entry points ``teal.schemes`` and the
schemes given to :func:`register_scheme`, and may have options: ``teal:repair=admm,iterations=5``.
``package.module:factory`` names one of an importable module, or of one in the current folder,
without any announcement; its options follow another colon.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from teal.errors import InputError, did_you_mean
from teal.problem import Allocation, Problem
from teal.spec import Registry, Spec, parse_spec

_IMPORTED = re.compile(r"(?P<module>\w+(\.\w+)*):(?P<factory>\w+)(?P<options>:.*)?")


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
            before: the problem of the interval before the next one; None if there is no earlier
                interval.
        """
        ...


SchemeFactory = Callable[[Spec, Path | None], Scheme]
"""Makes a scheme from its specification and the folder of the trained model, None if no model was
given."""

_SCHEMES: Registry[SchemeFactory] = Registry("scheme", "teal.schemes")


def register_scheme(name: str, factory: SchemeFactory, *, replace: bool = False) -> None:
    """Make ``factory`` available as ``--scheme name`` in this process.

    A package announces its schemes without being imported, by entry points in the group
    ``teal.schemes``.

    Raises:
        InputError: another scheme has the name, and ``replace`` is false.
    """
    _SCHEMES.add(name, factory, replace=replace)


def scheme_names() -> list[str]:
    """All names that :func:`make_scheme` knows."""
    return _SCHEMES.names()


def names_a_module(text: str) -> bool:
    """Whether a scheme is named as ``package.module:factory``."""
    imported = _IMPORTED.fullmatch(text)
    if imported is None:
        return False
    # A module may register a scheme of its own name when it is imported.
    module = sys.modules.get(imported["module"])
    return hasattr(module, imported["factory"]) or imported["module"] not in scheme_names()


def _load_factory(module: str, name: str) -> SchemeFactory:
    """The factory of an importable module, or of one in the current folder.

    Raises:
        InputError: no such module, or nothing of this name that can be called.
    """
    # Commands do not search the current folder; a scheme under development is there.
    sys.path.insert(0, "")
    try:
        attribute = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise InputError(
            f"{module}:{name}", "scheme", "a module that can be imported", str(error)
        ) from None
    finally:
        sys.path.remove("")
    if not callable(attribute):
        raise InputError(
            f"{module}:{name}", "scheme", f"a function {name} in {module}", repr(attribute)
        )
    factory: SchemeFactory = attribute
    return factory


def make_scheme(text: str, model: Path | str | None = None) -> Scheme:
    """Make the scheme that ``text`` specifies.

    Args:
        text: name and options, such as ``lp-all:solver=highs``, or ``package.module:factory``.
        model: folder of a trained model, for schemes that take one.

    Raises:
        InputError: an unknown name or option, or a scheme that needs a model and got none.
    """
    model = None if model is None else Path(model)
    imported = _IMPORTED.fullmatch(text)
    if imported and names_a_module(text):
        return _load_factory(imported["module"], imported["factory"])(
            parse_spec(f"{imported['factory']}{imported['options'] or ''}"), model
        )
    spec = parse_spec(text)
    if spec.name not in _SCHEMES:
        names = scheme_names()
        near = did_you_mean(spec.name, names)
        raise InputError(text, "scheme", "one of: " + ", ".join(names), repr(spec.name) + near)
    return _SCHEMES[spec.name](spec, model)
