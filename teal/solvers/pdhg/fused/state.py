"""The arrays that the kernels of the fused engine share, for D demands, E links, P paths and L
matrices in lanes.

Symbols are those of the table in :mod:`teal.solvers.pdhg`.  Arrays are flat: (n, L) stands for (n *
L,).
"""

from __future__ import annotations

from typing import NamedTuple

from teal.runtime.arrays import AnyArray, FloatArray

NO_UTILISATION = 1e-30  # m of a link without a path: never 0, since y is divided by it


class DemandRows(NamedTuple):
    """The arrays of the size of the demands in the scaled program of L matrices.

    Attributes:
        demand: (D, L) Gbit/s, 0 where no path is live.
        inverse_capacity_sum: (D, L) h, 1/(Gbit/s), or (D, 1) if all matrices have the same
            capacities.
    """

    demand: AnyArray
    inverse_capacity_sum: AnyArray


class ScaledProgram(NamedTuple):
    """The arrays of the size of the links in the scaled program of L matrices.

    Attributes:
        scaled_cost: (E, L) cost of each link over S, 1/(Gbit/s).
        inverse_capacity: (E, L) 1 / c, 1/(Gbit/s); 0 where the link has failed.
        load_factor: (E, L) by which loads are multiplied: 1 / c (over S for a balanced program).
        live: (E, L) 1 where the link works, else 0.
        full_path_utilisation: (E, L) m.
        inverse_scale: (L,) 1 / S.
        carries_all: whether all demand must be carried.
        on_simplex: whether the y lie on the simplex.
        limits: (S,) largest sum of the y of each scenario; (0,) for a program of one matrix.
        scenario_width: number of scenarios whose links stand side by side.
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
    """(P, L) splits of z, z_0 and T(z)."""

    current: AnyArray
    anchor: AnyArray
    stepped: AnyArray


class Dual(NamedTuple):
    """(E, L) dual variables y of z, z_0 and T(z), and the loads of their splits times
    ``load_factor``.
    """

    current: FloatArray
    anchor: FloatArray
    stepped: FloatArray
    current_load: FloatArray
    anchor_load: FloatArray
    stepped_load: FloatArray


class Control(NamedTuple):
    """(L,) state of each matrix.

    Attributes:
        primal_weight: omega.
        first_primal_weight: omega of the first iteration.
        cycle_iterations: n.
        total_iterations: iterations since the start.
        first_error: fixed-point error of the first iteration of the cycle; -1: there was none yet.
        last_error: fixed-point error of the last iteration.
        restart_due: 1 if the next iteration restarts, else 0.
        bound: on the optimum, of the y where the last iteration started; up to rounding.
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
    """Memory of an iteration.

    Attributes:
        price: (E, L) scaled prices.
        halpern: (4, L) weights of T(z), z and z_0 in the next iterate, and 1 where the iteration
            restarts.
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
