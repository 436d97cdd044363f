"""The result of every scheme, learned or LP."""

from __future__ import annotations

import dataclasses
from enum import StrEnum

from torch import Tensor

from teal.network import PathSet
from teal.runtime.shapes import Float


class Status(StrEnum):
    """How a matrix ended.  Only the first two come with an allocation that may be installed."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"  # the validator's verdict on an allocation that its scheme called usable
    TIME_LIMIT = "time_limit"
    FAILED = "failed"

    @property
    def usable(self) -> bool:
        """Whether there is an allocation that may be installed."""
        return self in (Status.OPTIMAL, Status.FEASIBLE)


@dataclasses.dataclass(frozen=True, eq=False)
class Allocation:
    """Splits for B matrices, and how they were obtained.

    Attributes:
        splits: (B, D, K) share of each demand on each of its paths; 0 where ``status`` is not usable.
        prices: (B, E) value of one more Gbit/s of capacity on each link, or None if the scheme has none; any
            non-negative numbers certify a bound (see :mod:`teal.problem.bounds`), good ones a close bound.
        status: of each of the B matrices.
        build_s: of each matrix, seconds to set it up (build a model, encode).
        solve_s: of each matrix, seconds to solve it.
        parallel_s: of each matrix, seconds that both would take if every independent subproblem had a processor
            to itself; None where a scheme has no such subproblems.
        paths: the paths that the splits are over, if they are not the problem's candidates.
    """

    splits: Float[Tensor, "B D K"]
    prices: Float[Tensor, "B E"] | None
    status: tuple[Status, ...]
    build_s: tuple[float, ...]
    solve_s: tuple[float, ...]
    parallel_s: tuple[float | None, ...] = ()
    paths: PathSet | None = None

    @classmethod
    def of_batch(cls, splits: Tensor, prices: Tensor | None, seconds: float) -> Allocation:
        """Feasible allocations of matrices that were solved together: ``seconds`` is divided evenly among them."""
        count = len(splits)
        return cls(splits, prices, (Status.FEASIBLE,) * count, (0.0,) * count, (seconds / count,) * count)
