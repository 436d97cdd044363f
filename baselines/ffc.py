"""FFC (Liu et al., SIGCOMM 2014) by one linear program: exact results to compare Teal's with.

With the reservations a[d, k] on path k of demand d, the promises (guaranteed rates) b[d], both in
Gbit/s, the value v of a guaranteed Gbit/s, the capacities c[e], and L(d, g) the paths of d that
survive the failure of group g:

    max sum v b
    s.t.  load[e](a) <= c[e],  b[d] <= demand[d],
          b[d] <= sum over L(d, g) of a[d, k] for every g,  a, b >= 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from baselines.linear_program import LinearProgram, LpSettings, solver_options
from baselines.lp_solver import solve_program
from baselines.matrix import (
    Matrix,
    MatrixResult,
    PathVariables,
    heuristic_status,
    per_matrix,
    require_objective,
)
from teal.objectives import ObjectiveName
from teal.problem import Allocation, Problem
from teal.problem.protection import failed_paths
from teal.solvers.protection import groups_to_survive
from teal.spec import Spec


@dataclasses.dataclass(frozen=True)
class Ffc:
    """FFC: the largest guaranteed rates ("promises"), by one linear program.

    Attributes:
        settings: settings of the LP solver.
        groups: file of groups of links that fail together (:mod:`teal.formats.groups`); "" for the
            groups of the problem, or every cable if it has none.
    """

    settings: LpSettings
    groups: str = ""

    def solve(self, problem: Problem) -> Allocation:
        """Allocate the largest guaranteed rates for every matrix.

        Raises:
            InputError: another objective than total_flow.
        """
        require_objective("ffc", problem.objective, ObjectiveName.TOTAL_FLOW)
        guaranteed = solve_promises(problem, groups_to_survive(problem, self.groups), self.settings)
        return dataclasses.replace(
            guaranteed, prices=None, status=tuple(map(heuristic_status, guaranteed.status))
        )


def solve_promises(
    problem: Problem, groups: Sequence[Sequence[int]], settings: LpSettings
) -> Allocation:
    """Allocate the largest guaranteed rates for every matrix, with the dual prices of the links.

    Args:
        problem: problem under total_flow or weighted_flow.
        groups: link indices of each group.
        settings: settings of the LP solver.
    """
    # (G + 1, D, K) paths that survive no failure, and each group.
    survives = np.concatenate(
        [
            np.ones((1, *problem.paths.mask.shape), dtype=bool),
            ~failed_paths(problem.ops, problem.topology.num_links, groups),
        ]
    )
    return per_matrix(problem, lambda matrix: _solve_matrix(matrix, survives, settings))


def _solve_matrix(matrix: Matrix, survives: np.ndarray, settings: LpSettings) -> MatrixResult:
    """Solve the LP of one matrix; the flows divide each promise in proportion to the reservations.

    Args:
        matrix: demands, live paths and capacities.
        survives: (G + 1, D, K) true for the paths that survive no failure, and each group.
        settings: settings of the LP solver.
    """
    # Variables: reserved flow of each path, then the promise of each demand.
    variables = matrix.path_variables(matrix.routable)
    num_paths = len(variables.path)
    num_demands = len(variables.demands)
    # Rows: load of each link <= capacity, then promise - surviving reservations <= 0.  The
    # objective is the value of the promises.
    loads = variables.link_incidence(len(matrix.capacity))
    promise_rows = _promise_rows(variables, survives)
    a_ub = sp.vstack(
        [sp.hstack([loads, sp.csr_array((len(matrix.capacity), num_demands))]), promise_rows],
        format="csr",
    )
    value = matrix.network.problem.demand_value.double().cpu().numpy()[variables.demands]
    program = LinearProgram(
        np.concatenate([np.zeros(num_paths), -value]),
        sp.csr_array(a_ub),
        np.concatenate([matrix.capacity, np.zeros(promise_rows.shape[0])]),
        upper=np.concatenate([np.full(num_paths, np.inf), matrix.demand[variables.demands]]),
    )
    solution = solve_program(program, settings)
    # Split each promise in proportion to the reserved flows.
    reserved = solution.x[:num_paths]
    promised_rate = solution.x[num_paths:]
    total_reserved = np.bincount(variables.demand_row, reserved, minlength=num_demands)
    promised_share = np.divide(
        promised_rate, total_reserved, out=np.zeros(num_demands), where=total_reserved > 0
    )
    flow = np.zeros(matrix.mask.shape)
    flow.reshape(-1)[variables.path] = (
        reserved * np.minimum(promised_share, 1)[variables.demand_row]
    )
    prices = solution.dual[: len(matrix.capacity)]
    return MatrixResult(flow, prices, status=solution.status, solve_s=solution.seconds)


def _promise_rows(variables: PathVariables, survives: np.ndarray) -> sp.csr_array:
    """Return the rows that limit each promise to the reservations on the surviving paths.

    With the promise b[d] of demand d and the reservation a[d, k] on its path k, a row is b[d] - sum
    over the surviving paths of a[d, k], which must be at most 0.  There is one for each demand and
    each distinct set of its surviving paths.

    Args:
        variables: paths of the demands; reservations are the first variables, then promises.
        survives: (G + 1, D, K) true for the paths that survive no failure, and each group.
    """
    num_reservations = len(variables.path)
    num_demands = len(variables.demands)
    num_paths = survives.shape[2]
    rows = []
    columns = []
    coefficients = []
    num_rows = 0
    first_column = np.searchsorted(variables.demand_row, np.arange(num_demands))
    for demand_index, d in enumerate(variables.demands.tolist()):
        # Paths of the demand that are variables, and their distinct sets of survivors.
        path_indices = (
            variables.path[
                first_column[demand_index] : first_column[demand_index + 1]
                if demand_index + 1 < num_demands
                else None
            ]
            % num_paths
        )
        for is_survivor in np.unique(survives[:, d][:, path_indices], axis=0):
            # Row: the promise minus the reservations on the surviving paths, at most 0.
            reservation_columns = first_column[demand_index] + np.flatnonzero(is_survivor)
            rows += [num_rows] * (len(reservation_columns) + 1)
            columns += [*reservation_columns.tolist(), num_reservations + demand_index]
            coefficients += [-1.0] * len(reservation_columns) + [1.0]
            num_rows += 1
    return sp.csr_array(
        (coefficients, (rows, columns)), shape=(num_rows, num_reservations + num_demands)
    )


def make(spec: Spec, model: Path | None) -> Ffc:
    """Build the scheme from its specification; the options and their defaults are
    ``ffc[:groups=FILE,solver=highs|gurobi,method=auto|simplex|ipm,time_limit=0]``.
    """
    options, settings = solver_options(spec, groups="")
    return Ffc(settings, str(options["groups"]))
