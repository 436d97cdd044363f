"""Array types shared by the kernels of the fused engine: D demands, E links, P paths, L lanes.

Arrays are flat: a shape (n, L) stands for (n * L,). Symbols: table in :mod:`teal.solvers.pdhg`.
"""

from __future__ import annotations

from typing import NamedTuple

from teal.runtime.arrays import AnyArray, FloatArray

# m of a link without a path: positive, since steps of y divide by m.
NO_UTILISATION = 1e-30


class DemandRows(NamedTuple):
    """Arrays over demands of the scaled program of L matrices.

    Attributes:
        demand: (D, L) Gbit/s, 0 where no path is live.
        inverse_capacity_sum: (D, L) h, 1/(Gbit/s), or (D, 1) if all matrices have the same
            capacities.
    """

    demand: AnyArray
    inverse_capacity_sum: AnyArray


class ScaledProgram(NamedTuple):
    """Arrays over links of the scaled program of L matrices.

    Attributes:
        scaled_cost: (E, L) cost of each link over S, 1/(Gbit/s).
        inverse_capacity: (E, L) 1 / c, 1/(Gbit/s); 0 where the link has failed.
        load_factor: (E, L) factor from load to utilisation: 1 / c (over S for a balanced program).
        live: (E, L) 1 where the link works, else 0.
        full_path_utilisation: (E, L) m.
        inverse_scale: (L,) 1 / S.
        carries_all: whether all demand must be carried.
        on_simplex: whether the y lie on the simplex.
        limits: (S,) limit on the sum of y of each scenario; (0,) without scenarios.
        scenario_width: number of scenarios in one row of links.
    """

    scaled_cost: FloatArray
    inverse_capacity: FloatArray
    load_factor: FloatArray
    live: FloatArray
    full_path_utilisation: FloatArray
    inverse_scale: FloatArray
    carries_all: bool
    on_simplex: bool
    limits: FloatArray
    scenario_width: int


class Primal(NamedTuple):
    """Splits (P, L) of z, z_0 and T(z)."""

    current: AnyArray
    anchor: AnyArray
    stepped: AnyArray


class Dual(NamedTuple):
    """Dual variables y (E, L) of z, z_0 and T(z), and the loads of their splits times
    ``load_factor``.
    """

    current: FloatArray
    anchor: FloatArray
    stepped: FloatArray
    current_load: FloatArray
    anchor_load: FloatArray
    stepped_load: FloatArray


class Control(NamedTuple):
    """State (L,) of each matrix.

    Attributes:
        primal_weight: omega.
        first_primal_weight: omega of the first iteration.
        cycle_iterations: n.
        total_iterations: iterations since the start.
        first_error: fixed-point error of the first iteration of the cycle; -1 before it is known.
        last_error: fixed-point error of the last iteration.
        restart_due: 1 if the next iteration restarts, else 0.
        bound: dual bound at the y before the last iteration; up to rounding.
    """

    primal_weight: FloatArray
    first_primal_weight: FloatArray
    cycle_iterations: FloatArray
    total_iterations: FloatArray
    first_error: FloatArray
    last_error: FloatArray
    restart_due: FloatArray
    bound: FloatArray


class Scratch(NamedTuple):
    """Work arrays of an iteration.

    Attributes:
        price: (E, L) scaled prices.
        halpern: (4, L) weights of T(z), z and z_0 in the next iterate; last row 1 at a restart.
        inverse_weight: (L,) 1 / omega.
        block_load: (blocks, E, L) load of the new splits of each block, Gbit/s.
        block_sums: (blocks, 3, L) sums over the demands: demand times best profit, and the squared
            distances from the new splits to z and to z_0.
    """

    price: AnyArray
    halpern: AnyArray
    inverse_weight: AnyArray
    block_load: AnyArray
    block_sums: AnyArray
