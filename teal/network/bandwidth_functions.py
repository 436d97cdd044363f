r"""Bandwidth functions: the value of each demand as a piecewise linear, concave function of its
rate.

The program is max sum over d of U[d](x[d]), with x[d] the Gbit/s that are carried.  A function has
C pieces: a Gbit/s between end[d, c - 1] and end[d, c] is worth slope[d, c], and slopes fall.  So
what a network operator says about an application, "the first 2 Gbit/s are worth 10 each, the next 8
are worth 1", is a function of two pieces.  Weighted flow is one piece; more pieces come as close as
wanted to any concave utility.

Google's BwE (Kumar et al., SIGCOMM 2015, section 3.3) gives such functions to applications, as the
bandwidth at each fair share, and fills them by max-min fairness.  Here the sum of the values is
maximised, which has a bound from link prices; where each piece is worth several times the next one
of any demand, the order in which demands are served is that of BwE.

Engines solve it as a value that falls in steps (:mod:`teal.problem.steps`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from teal.errors import InputError
from teal.runtime.arrays import FloatArray, Int64Array

_SLOPE_ROUNDING = (
    1e-9  # share by which a slope may exceed the one before it: points in decimals are rounded
)
Points = Sequence[tuple[float, float]]  # rate, Gbit/s or share of the demand, and value there


@dataclasses.dataclass(frozen=True, eq=False)
class BandwidthFunctions:
    """The functions of D demands, of at most C pieces each.

    Attributes:
        slope: (D, C) value of a Gbit/s in each piece; falling, above 0 in the first piece, and 0 in
            the last one.
        end: (D, C) where each piece ends, Gbit/s, or as a share of the demand; infinite for the
            last piece.
        by_share: whether ``end`` is a share of the demand.
    """

    slope: FloatArray
    end: FloatArray
    by_share: bool = False

    @classmethod
    def of_points(
        cls,
        functions: Sequence[Points],
        of_demand: Int64Array | Sequence[int],
        *,
        by_share: bool = False,
    ) -> BandwidthFunctions:
        """Functions through (0, 0) and the given points, constant beyond the last one.

        Args:
            functions: the points of each function: rate, and value there.
            of_demand: (D,) which function each demand has.
            by_share: whether rates are shares of the demand; values are then for each Gbit/s of
                demand.

        Raises:
            InputError: no points, rates that do not rise, a value that does not rise at first or
                falls later, slopes that rise.
        """
        pieces = max(map(len, functions), default=0) + 1
        slope, end = np.zeros((len(functions), pieces)), np.full((len(functions), pieces), np.inf)
        for number, points in enumerate(functions):
            along = np.array([(0.0, 0.0), *points], dtype=np.float64)
            where, (rates, values) = f"function {number}", along.T
            if len(along) < 2 or not np.isfinite(along).all() or not (np.diff(rates) > 0).all():
                raise InputError(where, "rates", "finite numbers above 0 that rise", list(points))
            own = np.diff(values) / np.diff(rates)
            if not own[0] > 0:
                raise InputError(where, "values", "above 0 at the first point", values[1])
            if (own < 0).any() or (own[1:] > own[:-1] * (1 + _SLOPE_ROUNDING)).any():
                raise InputError(
                    where, "values", "a concave function that does not fall", list(points)
                )
            slope[number, : len(own)] = np.minimum.accumulate(own)
            end[number, : len(own)] = rates[1:]
        chosen = np.asarray(of_demand, dtype=np.int64)
        return cls(slope[chosen], end[chosen], by_share)

    @property
    def weight(self) -> FloatArray:
        """(D,) value of a Gbit/s in the first piece."""
        return np.ascontiguousarray(self.slope[:, 0])
