"""Worst-case demands of a hose for a network: lower and upper bounds.

With matrices x in the hose, splits w, link capacities c, link prices y, and pi_d the price of
demand d's cheapest path under y, the worst case is

    utilisation    max over x of the largest link utilisation under the best splits w
                   = max over x, y of sum_d x_d pi_d,   c'y = 1
    dropped        max over x of (sum of x - the largest total flow)
                   = max over x, y of sum_d x_d pi_d - c'y,   pi <= 1

The product of x and pi is replaced by the dual of the hose, whose optimality conditions (KKT) need
a binary variable for each demand and each limit (as MetaOpt does for heuristics; Namyar et al.,
NSDI 2024): with a_i >= 0 of the limits l of sums (R x)_i, and z, v binary,

    max l'a (- c'y)
    s.t.  x <= X z,   R'a - pi <= 2 A (1 - z),   R'a >= pi,   a <= A v,   l - R x <= l (1 - v),

where X and A are largest values of x and a.  HiGHS solves it, and its bound holds at any time
limit.
:func:`teal_ip.purchases.hose.static_limit` is another upper bound, without binary variables.  Entry
point: :func:`worst_demands`.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import scipy.sparse as sp
import torch

from teal.errors import SolverError
from teal.objectives import Objective
from teal.problem import Problem
from teal.runtime.arrays import FloatArray
from teal.runtime.lp import RangeConstraint, solve_milp
from teal.solvers.pipeline import solve
from teal_ip.purchases.hose import Hose, static_limit, worst_matrices

Measure = Literal["utilisation", "dropped"]
# Maximum number of demands of the integer program; above it only static splits bound the worst
# case.
_MAX_DEMANDS = 1000
# Relative gap of both bounds at which the integer program is skipped.
_CLOSED = 5e-3


@dataclasses.dataclass(frozen=True, eq=False)
class WorstDemands:
    """Worst matrix found, and a bound on the worst case of the hose.

    Attributes:
        matrix: (D,) Gbit/s.
        value: largest utilisation, or Gbit/s that do not fit: certified lower bound for the matrix.
        limit: certified upper bound for any matrix of the hose.
    """

    matrix: FloatArray
    value: float
    limit: float


def worst_demands(
    network: Problem, hose: Hose, *, measure: Measure = "utilisation", seconds: float = 60.0
) -> WorstDemands:
    """Search for the worst demands of a hose for one network, and bound the worst case.

    Args:
        network: B = 1, with the current capacities; its demand and its objective are ignored.
        hose: limits of what each node sends and receives; the set of matrices within them.
        measure: what is maximised: ``utilisation``, or ``dropped`` (Gbit/s that do not fit).
        seconds: time limit of the integer program.

    Raises:
        InputError: a network too large for the program of static splits.
        SolverError: HiGHS failed.
    """
    # Lower bound by alternation of matrix and prices; upper bound by static splits.
    min_max_problem = dataclasses.replace(network, objective=Objective("max_link_utilisation"))
    alternation = worst_matrices(min_max_problem, hose)
    # Row 0: the network has a single failure state.
    matrix = alternation.matrix[0]
    value = float(alternation.utilisation[0])
    limit = static_limit(min_max_problem, hose)[0]
    if measure == "dropped":
        # A matrix with utilisation u under its best splits fits when divided by u: at most the
        # fraction 1 - 1 / u of it is dropped.
        max_total_demand = float(
            hose.max_weight_matrix(min_max_problem.routable[0].numpy().astype(np.float64)).sum()
        )
        limit = max_total_demand * max(0.0, 1.0 - 1.0 / limit) if limit > 0 else 0.0
    # Integer program, if the gap is open.
    is_closed = measure == "utilisation" and limit <= value * (1 + _CLOSED)
    if len(hose.pairs) <= _MAX_DEMANDS and not is_closed:
        program_matrix, bound = _integer_program(min_max_problem, hose, measure, seconds)
        limit = min(limit, bound)
        if program_matrix is not None and measure == "dropped":
            matrix = program_matrix
        elif program_matrix is not None:
            # Certify the utilisation of the program's matrix under its best splits.
            solution = solve(
                min_max_problem.with_demand(program_matrix[None]).with_capacity(
                    min_max_problem.capacity
                ),
                gap=1e-4,
            )
            if float(solution.bound[0]) > value:
                matrix = program_matrix
                value = float(solution.bound[0])
    # Dropped traffic of the matrix: its sum less the upper bound on its total flow.
    if measure == "dropped":
        flow_problem = dataclasses.replace(
            min_max_problem,
            objective=Objective("total_flow"),
            demand_value=torch.ones_like(min_max_problem.demand_value),
            demand=torch.from_numpy(matrix[None]).to(min_max_problem.demand),
        )
        value = max(0.0, float(matrix.sum()) - float(solve(flow_problem, gap=1e-5).bound[0]))
    return WorstDemands(matrix, value, max(limit, value))


def _integer_program(
    network: Problem, hose: Hose, measure: Measure, seconds: float
) -> tuple[FloatArray | None, float]:
    """Solve the integer program of the worst demands.

    Args:
        network: B = 1, with the current capacities.
        hose: limits of what each node sends and receives; the set of matrices within them.
        measure: ``utilisation`` or ``dropped``.
        seconds: time limit of HiGHS.

    Returns:
        the matrix (D,), None if HiGHS found none, and the upper bound on the worst case.

    Raises:
        SolverError: HiGHS failed.
    """
    program = _KktProgram(network, hose, is_dropped=measure == "dropped")
    cost, upper_bounds, integrality = program.variables()
    result = solve_milp(
        cost,
        program.constraints(),
        integrality,
        high=upper_bounds,
        seconds=max(1.0, seconds),
        relative_gap=1e-4,
    )
    if not np.isfinite(result.bound):
        raise SolverError(f"worst demands: HiGHS found no bound: {result.message}")
    if result.x is None:
        return None, -result.bound
    return program.matrix(result.x), -result.bound


class _KktProgram:
    """Integer program of the worst demands, by the optimality conditions (KKT) of the hose.

    Variables, in this order, for D' routable demands, E links and 2 N limits l of sums R x:

        x_d   (D')    Gbit/s of demand d
        pi_d  (D')    price of its cheapest path
        y_e   (E)     price of link e
        a_i   (2 N)   dual of limit i
        z_d   (D')    binary: x_d may be above 0
        v_i   (2 N)   binary: a_i may be above 0

    The objective is max l'a for the utilisation, max l'a - c'y for dropped traffic.

    Args:
        network: B = 1, with the current capacities.
        hose: limits of what each node sends and receives; the set of matrices within them.
        is_dropped: whether the dropped traffic is maximised, not the utilisation.
    """

    def __init__(self, network: Problem, hose: Hose, *, is_dropped: bool) -> None:
        """Set up the sparse matrices of the program, its big-M constants, and the sizes of the
        blocks of variables.

        Variables: rates x and path prices pi of demands, link prices y, duals a of the hose limits,
        and binaries z (x may be above 0) and v (a may be above 0).
        """
        self._is_dropped = is_dropped
        # Routable demands (D',), rows (2 N, D') of the sums with their limits (2 N,), and the
        # demand and links of each live path.
        self._capacity = network.capacity[0].numpy()
        is_live_path = network.path_mask[0].numpy()
        self._demands = np.flatnonzero(is_live_path.any(1))
        self._num_pairs = len(hose.pairs)
        self._hose_rows = hose.rows.tocsc()[:, self._demands].tocsr()
        self._limits = hose.limits
        incidence = network.ops.incidence(network.topology.num_links).tocsc()
        live_paths = np.flatnonzero(is_live_path.reshape(-1))
        self._path_demand = np.searchsorted(self._demands, live_paths // network.paths.num_paths)
        self._links_of_path = sp.csr_array(incidence[:, live_paths].T)
        # Largest values X, P and A of x, pi and a (big-M constants).  A path price is at most 1 for
        # dropped traffic; if c'y = 1, at most 1 / the capacity of the demand's best path, where the
        # capacity of a path is that of its smallest link.
        bottleneck_capacity = np.array(
            [self._capacity[incidence[:, [p]].nonzero()[0]].min() for p in live_paths]
        )
        num_demands = len(self._demands)
        best_bottleneck = np.zeros(num_demands)
        np.maximum.at(best_bottleneck, self._path_demand, bottleneck_capacity)
        self._max_price = (
            np.ones(num_demands) if is_dropped else 1 / np.maximum(best_bottleneck, 1e-300)
        )
        ends = hose.pairs[self._demands]
        self._max_flow = np.minimum(
            self._limits[ends[:, 0]], self._limits[len(hose.out) + ends[:, 1]]
        )
        # Optimal duals of the hose limits need not exceed the largest path price.
        self._max_dual = float(self._max_price.max(initial=0.0))
        # Number of variables of each block, in the order of the variables.
        num_limits = len(self._limits)
        self._block_sizes = {
            "x": num_demands,
            "pi": num_demands,
            "y": len(self._capacity),
            "a": num_limits,
            "z": num_demands,
            "v": num_limits,
        }

    def variables(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return costs, upper bounds and integrality of all variables, (n,) each; HiGHS
        minimises.
        """
        # Costs: -l'a, and c'y if the dropped traffic is maximised.
        num_limits = len(self._limits)
        num_demands = len(self._demands)
        cost_by_block = {
            **{name: np.zeros(size) for name, size in self._block_sizes.items()},
            "a": -self._limits,
        }
        if self._is_dropped:
            cost_by_block["y"] = self._capacity
        # Upper bounds, in the order of the blocks x, pi, y, a, z, v; links without capacity have a
        # price of 0.
        max_link_price = 1.0 if self._is_dropped else 1 / np.maximum(self._capacity, 1e-300)
        upper_bounds = [
            self._max_flow,
            self._max_price,
            np.where(self._capacity > 0, max_link_price, 0.0),
            np.full(num_limits, self._max_dual),
            np.ones(num_demands),
            np.ones(num_limits),
        ]
        # z and v are binary.
        integrality = [
            np.full(size, float(name in ("z", "v"))) for name, size in self._block_sizes.items()
        ]
        return (
            np.concatenate(list(cost_by_block.values())),
            np.concatenate(upper_bounds),
            np.concatenate(integrality),
        )

    def constraints(self) -> list[RangeConstraint]:
        """Return the constraints of the integer program.

        With x_d Gbit/s and pi_d the path price of demand d, y_e link prices, a_i duals of the
        hose limits R x <= l, big-M constants X and A, and z_d and v_i binary:

            pi_d <= sum over e in p of y_e      for each live path p of demand d
            R x <= l,   R'a >= pi               x is in the hose, and a is feasible for its dual
            x <= X z,   R'a - pi <= 2 A (1 - z) x_d is 0, or its dual constraint is tight
            a <= A v,   l - R x <= l (1 - v)    a_i is 0, or its limit is tight
            c'y = 1                             if the utilisation is maximised

        The conditions on z and v are complementary slackness: x is optimal for the prices.
        """
        num_demands = len(self._demands)
        num_limits = len(self._limits)
        num_paths = len(self._path_demand)
        demand_identity = sp.eye_array(num_demands, format="csr")
        limit_identity = sp.eye_array(num_limits, format="csr")
        dual_sums = sp.csr_array(self._hose_rows.T)
        path_demand_rows = sp.csr_array(
            (np.ones(num_paths), (np.arange(num_paths), self._path_demand)),
            shape=(num_paths, num_demands),
        )
        max_price_gap = np.full(num_demands, 2 * self._max_dual)
        constraints = [
            # pi is at most the price of each path.
            RangeConstraint(
                self._constraint_rows(pi=path_demand_rows, y=-self._links_of_path),
                high=np.zeros(num_paths),
            ),
            # x is in the hose, and its dual is feasible.
            RangeConstraint(self._constraint_rows(x=self._hose_rows), high=self._limits),
            RangeConstraint(
                self._constraint_rows(a=dual_sums, pi=-demand_identity), low=np.zeros(num_demands)
            ),
            # x is 0, or its dual constraint is tight.
            RangeConstraint(
                self._constraint_rows(x=demand_identity, z=-sp.diags_array(self._max_flow).tocsr()),
                high=np.zeros(num_demands),
            ),
            RangeConstraint(
                self._constraint_rows(
                    a=dual_sums, pi=-demand_identity, z=sp.diags_array(max_price_gap).tocsr()
                ),
                high=max_price_gap,
            ),
            # a is 0, or its limit is tight.
            RangeConstraint(
                self._constraint_rows(a=limit_identity, v=-self._max_dual * limit_identity),
                high=np.zeros(num_limits),
            ),
            RangeConstraint(
                self._constraint_rows(x=-self._hose_rows, v=sp.diags_array(self._limits).tocsr()),
                high=np.zeros(num_limits),
            ),
        ]
        # The prices are scaled: c'y = 1.
        if not self._is_dropped:
            capacity_row = sp.csr_array(self._capacity[None])
            constraints.append(
                RangeConstraint(self._constraint_rows(y=capacity_row), low=1.0, high=1.0)
            )
        return constraints

    def _constraint_rows(self, **blocks: sp.sparray) -> sp.csr_array:
        """Return constraint rows over all variables, 0 outside the given blocks.

        Args:
            blocks: coefficients (rows, size of the block) by name of the block of variables.
        """
        num_rows = next(iter(blocks.values())).shape[0]
        return sp.csr_array(
            sp.hstack(
                [
                    blocks.get(name, sp.csr_array((num_rows, size)))
                    for name, size in self._block_sizes.items()
                ]
            )
        )

    def matrix(self, solution: FloatArray) -> FloatArray:
        """Return the matrix (D,), Gbit/s, of a solution, the values of all variables."""
        matrix = np.zeros(self._num_pairs)
        matrix[self._demands] = np.maximum(solution[: len(self._demands)], 0.0)
        return matrix
