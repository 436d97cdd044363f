"""Registry of hedges by name.  A hedge allocates for an interval whose matrix is unknown.

Names come from the package entry points ``teal.hedges`` and from :func:`register_hedge`; any scheme
is a hedge, too, by its allocation for the newest known matrix.  Entry point: :func:`make_hedge`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from teal.errors import InputError
from teal.network import AnyPaths
from teal.schemes.past import Hedge, Past
from teal.schemes.registry import Scheme, make_scheme, names_a_module, scheme_names
from teal.spec import Registry, Spec, parse_spec

HedgeFactory = Callable[[Spec, Path | None], Hedge]
"""Function that creates a hedge from its specification and the folder of a model (None for no
model)."""

_HEDGES: Registry[HedgeFactory] = Registry("hedge", "teal.hedges")


def register_hedge(name: str, factory: HedgeFactory, *, replace: bool = False) -> None:
    """Make ``factory`` available as ``--scheme name`` of ``teal next-interval`` in this process.

    Raises:
        InputError: another hedge has the name, and ``replace`` is false.
    """
    _HEDGES.add(name, factory, replace=replace)


def hedge_names() -> list[str]:
    """Return the names of all registered hedges, without those of schemes."""
    return _HEDGES.names()


def make_hedge(text: str, model: Path | str | None = None) -> Hedge:
    """Create the hedge that ``text`` specifies.

    If ``text`` specifies a scheme, the hedge is its allocation for the newest known matrix.  A name
    may end with its window: ``saa36`` is ``saa:window=36``.

    Args:
        text: name and options, such as ``saa:window=36``.
        model: folder of a trained model, for schemes that use one.

    Raises:
        InputError: an unknown name or option.
    """
    model = None if model is None else Path(model)
    if names_a_module(text):
        return OfLastMatrix(make_scheme(text, model))
    # A number at the end of a hedge's name is its window.
    spec = parse_spec(text)
    match = re.fullmatch(r"([a-z]+)(\d+)", spec.name)
    if match and match[1] in _HEDGES:
        spec = Spec(text, match[1], {"window": match[2], **spec.options})
    if spec.name in _HEDGES:
        return _HEDGES[spec.name](spec, model)
    if spec.name not in scheme_names():
        raise InputError(
            text,
            "scheme",
            "one of: " + ", ".join(sorted({*hedge_names(), *scheme_names()})),
            spec.name,
        )
    return OfLastMatrix(make_scheme(text, model))


class OfLastMatrix:
    """Hedge that allocates for the newest known matrix by a scheme.

    Args:
        scheme: the scheme.

    Attributes:
        paths: paths of the last splits; None for the candidate paths of the network.
    """

    def __init__(self, scheme: Scheme) -> None:
        self._scheme = scheme
        self.paths: AnyPaths | None = None

    def allocate(self, past: Past) -> Tensor:
        """Return the splits (D, K) of the scheme for the newest known matrix."""
        # A min-max program as it is; otherwise the matrix under the network's objective.
        problem = past.last(1)
        if not past.network.demand_set.carries_all:
            problem = past.network.with_demand(problem.demand)
        allocation = self._scheme.solve(problem)
        self.paths = allocation.paths
        return allocation.splits[0].to(problem.demand)
