"""Array types shared by the kernels of the fused engine: D demands, E links, P paths, L lanes.

Arrays are flat: a shape (n, L) stands for (n * L,). Symbols: table in :mod:`teal.solvers.pdhg`.
"""

from __future__ import annotations

from typing import NamedTuple

from teal.runtime.arrays import AnyArray, FloatArray

# Utilisation m of a link without a path: positive, since the dual step size is omega / m.
NO_UTILISATION = 1e-30


class DemandRows(NamedTuple):
    """Demands of the scaled program of L matrices, and the primal step sizes.

    omega is the primal weight of a matrix.

    Attributes:
        demand: (D, L) Gbit/s, 0 where no path is live.
        inverse_capacity_sum: (D, L) h, largest sum of 1 / capacity along a path of the demand,
            1/(Gbit/s).  The step size of a demand's splits is 1 / (omega h).
    """

    demand: AnyArray
    inverse_capacity_sum: AnyArray


class ScaledProgram(NamedTuple):
    """Link arrays and scalars of the scaled program of L matrices.

    Its objective is divided by S: the value of all demand, or in a min-max program the largest
    utilisation under even splits.  y are its dual variables, omega the primal weight.

    Attributes:
        scaled_cost: (E, L) cost of a Gbit/s on each link over S, 1/(Gbit/s).
        inverse_capacity: (E, L) 1 / capacity, 1/(Gbit/s); 0 where the link has failed.
        load_factor: (E, L) factor from load to utilisation, 1/(Gbit/s): 1 / capacity, in a min-max
            program over S.
        live: (E, L) 1 where the link works, else 0.
        full_path_utilisation: (E, L) m, utilisation if every path carried all of its demand; the
            step size of y is omega / m.
        inverse_scale: (L,) 1 / S.
        carries_all: whether all demand must be carried.
        on_simplex: whether the dual variables y of a matrix are non-negative with the sum 1, in a
            min-max program, which minimises the largest utilisation.
        limits: (scenarios,) upper bound of the sum of y in each traffic scenario; (0,) without
            scenarios.
        scenario_width: number of scenarios side by side in one row of a link array.
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
    """Splits of all paths, (P, L), as shares of their demands.

    Attributes:
        current: splits of the iterate z.
        anchor: splits of Halpern's anchor z_0.
        stepped: splits of T(z), the result of a PDHG step from z.
    """

    current: AnyArray
    anchor: AnyArray
    stepped: AnyArray


class Dual(NamedTuple):
    """Dual variables y of the links, and the utilisations under the splits, (E, L) each.

    Attributes:
        current: y of the iterate z.
        anchor: y of Halpern's anchor z_0.
        stepped: y of T(z), the result of a PDHG step from z.
        current_load: load of the splits of z times ``ScaledProgram.load_factor``.
        anchor_load: load of the splits of z_0 times ``load_factor``.
        stepped_load: load of the splits of T(z) times ``load_factor``.
    """

    current: FloatArray
    anchor: FloatArray
    stepped: FloatArray
    current_load: FloatArray
    anchor_load: FloatArray
    stepped_load: FloatArray


class Control(NamedTuple):
    """Iteration state of each matrix, (L,) each.

    y are the dual variables; T(z) is the result of a PDHG step from an iterate z.

    Attributes:
        primal_weight: omega, which multiplies the step size of y and divides that of the splits.
        first_primal_weight: omega of the first iteration.
        cycle_iterations: n, iterations since the last restart.
        total_iterations: iterations since the start.
        first_error: fixed-point error ||T(z) - z|| of the first iteration of the restart cycle; -1
            before that iteration.
        last_error: fixed-point error of the last iteration.
        restart_due: 1 if the next iteration restarts, else 0.
        bound: dual bound on the optimal value before the last iteration, with rounding errors.
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
    """Work arrays of an iteration, in the type of the splits.

    z is the iterate with the dual variables y, T(z) the result of a PDHG step from it, z_0
    Halpern's anchor, omega the primal weight, and S the scale of the objective.

    Attributes:
        price: (E, L) link prices of the scaled program, y / capacity + cost / S, 1/(Gbit/s).
        halpern_weights: (4, L) weights of T(z), z and z_0 in the next iterate; the last row is 1
            for matrices that restart, else 0.
        inverse_primal_weight: (L,) 1 / omega.
        block_load: (blocks, E, L) load of the new splits of each block of sources, Gbit/s.
        block_sums: (blocks, 3, L) sums over the demands of each block: demand times best profit,
            and the weighted squared distances from the new splits to those of z and of z_0.
    """

    price: AnyArray
    halpern_weights: AnyArray
    inverse_primal_weight: AnyArray
    block_load: AnyArray
    block_sums: AnyArray
