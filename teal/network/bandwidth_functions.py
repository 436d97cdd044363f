"""Bandwidth functions: each demand's value as a piecewise linear, concave function of its rate.

The program is max sum over d of U[d](x[d]), with x[d] the served Gbit/s.  A function has C pieces:
a Gbit/s between end[d, c - 1] and end[d, c] has the value slope[d, c], and slopes decrease.  A
requirement such as "the first 2 Gbit/s are worth 10 each, the next 8 are worth 1" is a function of
two pieces.  Weighted flow has one piece; more pieces approximate any concave utility.

Google's BwE (Kumar et al., SIGCOMM 2015, section 3.3) assigns such functions to applications, as
the bandwidth at each fair share, and allocates by max-min fairness.  Here the sum of the values is
maximised, which has a bound from link prices; where each piece has several times the value of the
next one of any demand, the demands are served in the order of BwE.

Engines solve it as a value with steps (:mod:`teal.problem.steps`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from teal.errors import InputError
from teal.runtime.arrays import FloatArray, Int64Array

# Maximum relative excess of a slope over the previous one: points in decimals are rounded.
_SLOPE_ROUNDING = 1e-9
# Points (rate, value) of a function; the rate is in Gbit/s, or a share of the demand.
Points = Sequence[tuple[float, float]]


@dataclasses.dataclass(frozen=True, eq=False)
class BandwidthFunctions:
    """Bandwidth functions of D demands, with at most C pieces each.

    Attributes:
        slope: (D, C) value of a Gbit/s in each piece; decreasing, positive in the first piece, and
            0 in the last one.
        end: (D, C) end of each piece, Gbit/s, or as a share of the demand; infinite for the last
            piece.
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
        """Build piecewise linear functions through (0, 0) and the given points, constant beyond the
        last one.

        Args:
            functions: points of each function: rates, and values there.
            of_demand: (D,) function index of each demand.
            by_share: whether rates are shares of the demand; values are then per Gbit/s of demand.

        Raises:
            InputError: no points, rates that do not increase, a value that does not increase at
                first or decreases later, or increasing slopes.
        """
        num_pieces = max(map(len, functions), default=0) + 1
        slope = np.zeros((len(functions), num_pieces))
        end = np.full((len(functions), num_pieces), np.inf)
        for index, points in enumerate(functions):
            # Points of the function with the origin, and the slopes between them.
            curve = np.array([(0.0, 0.0), *points], dtype=np.float64)
            where = f"function {index}"
            (rates, values) = curve.T
            if len(curve) < 2 or not np.isfinite(curve).all() or not (np.diff(rates) > 0).all():
                raise InputError(where, "rates", "increasing finite rates above 0", list(points))
            slopes = np.diff(values) / np.diff(rates)
            if not slopes[0] > 0:
                raise InputError(where, "values", "a value above 0 at the first point", values[1])
            if (slopes < 0).any() or (slopes[1:] > slopes[:-1] * (1 + _SLOPE_ROUNDING)).any():
                raise InputError(
                    where, "values", "a concave, non-decreasing function", list(points)
                )
            # A slope that rises by rounding is lowered to the previous one.
            slope[index, : len(slopes)] = np.minimum.accumulate(slopes)
            end[index, : len(slopes)] = rates[1:]
        function_index = np.asarray(of_demand, dtype=np.int64)
        return cls(slope[function_index], end[function_index], by_share)

    @property
    def weight(self) -> FloatArray:
        """The value (D,) of a Gbit/s of each demand in the first piece of its function."""
        return np.ascontiguousarray(self.slope[:, 0])
