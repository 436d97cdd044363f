"""The one result, for learned and LP schemes alike."""

from __future__ import annotations

import dataclasses
from enum import StrEnum

from torch import Tensor

from teal.network import PathSet


class Status(StrEnum):
    """What became of a matrix.  Only the first two carry an allocation that one may install."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"  # said by the validator, of a scheme that claimed otherwise
    TIME_LIMIT = "time_limit"
    FAILED = "failed"

    @property
    def usable(self) -> bool:
        """Whether there is an allocation to look at."""
        return self in (Status.OPTIMAL, Status.FEASIBLE)


@dataclasses.dataclass(frozen=True, eq=False)
class Allocation:
    """Splits for B matrices, and how they came about.

    Attributes:
        splits: (B, D, K) share of each demand on each of its paths; 0 where ``status`` is not usable.
        prices: (B, E) value of one more Gbit/s on each link, as far as the scheme knows; any
            non-negative numbers certify a bound (see :mod:`teal.bounds`), good ones a close one.
        status: B statuses.
        build_s: B times in seconds to set the matrix up (build a model, encode).
        solve_s: B times in seconds to solve it.
        parallel_s: B times in seconds that both would take if every independent subproblem had a processor of its
            own; None where a scheme has no such parts.
        paths: over which the splits are, if not the problem's candidates.
    """

    splits: Tensor
    prices: Tensor | None
    status: tuple[Status, ...]
    build_s: tuple[float, ...]
    solve_s: tuple[float, ...]
    parallel_s: tuple[float | None, ...] = ()
    paths: PathSet | None = None

    @classmethod
    def of_batch(cls, splits: Tensor, prices: Tensor | None, seconds: float) -> Allocation:
        """Feasible answers of matrices that were solved together: the time is divided evenly."""
        count = len(splits)
        return cls(splits, prices, (Status.FEASIBLE,) * count, (0.0,) * count, (seconds / count,) * count)
