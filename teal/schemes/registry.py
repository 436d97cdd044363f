"""Registry of schemes by name.  A scheme turns a problem into an allocation: a model, an LP, ...

Names are in kebab case.  They come from the package entry points ``teal.schemes`` and from
:func:`register_scheme`, and may have options: ``teal:repair=admm,iterations=5``.  An unregistered
factory of an importable module, or of one in the current folder, is ``package.module:factory``; its
options follow another colon.
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

_FACTORY_PATTERN = re.compile(r"(?P<module>\w+(\.\w+)*):(?P<factory>\w+)(?P<options>:.*)?")


class Scheme(Protocol):
    """Method that turns a problem into an allocation: a model, an LP or a heuristic."""

    def solve(self, problem: Problem) -> Allocation:
        """Return the allocation of all matrices of ``problem``."""
        ...


@runtime_checkable
class Follower(Scheme, Protocol):
    """Scheme whose allocation starts from its state after the previous interval."""

    def follow(self, before: Problem | None) -> None:
        """Set the state that this scheme would have after solving ``before``.

        The call does not count as time of the scheme.

        Args:
            before: problem of the previous interval; None if there is none.
        """
        ...


SchemeFactory = Callable[[Spec, Path | None], Scheme]
"""Function that creates a scheme from its specification and the folder of a trained model (None for
no model)."""

_SCHEMES: Registry[SchemeFactory] = Registry("scheme", "teal.schemes")


def register_scheme(name: str, factory: SchemeFactory, *, replace: bool = False) -> None:
    """Make ``factory`` available as ``--scheme name`` in this process.

    Packages can also declare schemes by entry points in the group ``teal.schemes``, without an
    import.

    Raises:
        InputError: another scheme has the name, and ``replace`` is false.
    """
    _SCHEMES.add(name, factory, replace=replace)


def scheme_names() -> list[str]:
    """Return the names of all registered schemes."""
    return _SCHEMES.names()


def names_a_module(text: str) -> bool:
    """Return whether ``text`` specifies a scheme as ``package.module:factory``."""
    factory_match = _FACTORY_PATTERN.fullmatch(text)
    if factory_match is None:
        return False
    # A registered scheme may have the same name as its imported module; the scheme takes precedence
    # unless the module has the factory.
    module = sys.modules.get(factory_match["module"])
    return (
        hasattr(module, factory_match["factory"]) or factory_match["module"] not in scheme_names()
    )


def _load_factory(module: str, name: str) -> SchemeFactory:
    """Import the factory of a scheme from a module on the path or in the current folder.

    Raises:
        InputError: no such module, or no such function in it.
    """
    # Python does not search the current folder, where a user may develop a scheme: add it for the
    # time of the import.
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
    """Create the scheme that ``text`` specifies.

    Args:
        text: name and options, such as ``lp-all:solver=highs``, or ``package.module:factory``.
        model: folder of a trained model, for schemes that use one.

    Raises:
        InputError: an unknown name or option, or a missing model.
    """
    # Factory of a module, whose options follow another colon.
    model = None if model is None else Path(model)
    factory_match = _FACTORY_PATTERN.fullmatch(text)
    if factory_match and names_a_module(text):
        return _load_factory(factory_match["module"], factory_match["factory"])(
            parse_spec(f"{factory_match['factory']}{factory_match['options'] or ''}"), model
        )
    # Registered scheme.
    spec = parse_spec(text)
    if spec.name not in _SCHEMES:
        names = scheme_names()
        suggestion = did_you_mean(spec.name, names)
        raise InputError(
            text, "scheme", "one of: " + ", ".join(names), repr(spec.name) + suggestion
        )
    return _SCHEMES[spec.name](spec, model)
