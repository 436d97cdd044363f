"""FFC (Liu et al., SIGCOMM 2014) by one linear program: the reference of
:mod:`teal.problem.protection`.

With a[d, k] reserved on each path and b[d] promised (Gbit/s), L(d, g) the paths of d that survive
group g:

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
    """The scheme `ffc`: largest promises by one linear program.

    Attributes:
        settings: settings of the LP solver.
        groups: file of groups (see :mod:`teal.formats.groups`); "" for those of the problem, else
            every cable.
    """

    settings: LpSettings
    groups: str = ""

    def solve(self, problem: Problem) -> Allocation:
        """Largest promises of every matrix.

        Raises:
            InputError: another objective than total_flow.
        """
        require_objective("ffc", problem.objective, ObjectiveName.TOTAL_FLOW)
        guaranteed = promises(problem, groups_to_survive(problem, self.groups), self.settings)
        return dataclasses.replace(
            guaranteed, prices=None, status=tuple(map(heuristic_status, guaranteed.status))
        )


def promises(problem: Problem, groups: Sequence[Sequence[int]], settings: LpSettings) -> Allocation:
    """Largest promises of every matrix, and the prices of links in their programs.

    Args:
        problem: problem under total_flow or weighted_flow.
        groups: link indices of each group.
        settings: settings of the LP solver.
    """
    survives = np.concatenate(
        [
            np.ones((1, *problem.paths.mask.shape), dtype=bool),
            ~failed_paths(problem.ops, problem.topology.num_links, groups),
        ]
    )
    return per_matrix(problem, lambda matrix: _promises(matrix, survives, settings))


def _promises(matrix: Matrix, survives: np.ndarray, settings: LpSettings) -> MatrixResult:
    """Solve one matrix.

    Args:
        matrix: demands, live paths and capacities.
        survives: (G + 1, D, K) true for the paths that survive no failure, and each group.
        settings: settings of the LP solver.
    """
    # Variables: reserved flow of each path, then the promise of each demand.
    variables = matrix.path_variables(matrix.routable)
    width = len(variables.path)
    count = len(variables.demands)
    # Build and solve the program.
    loads = variables.link_incidence(len(matrix.capacity))
    promised = _promise_rows(variables, survives)
    a_ub = sp.vstack(
        [sp.hstack([loads, sp.csr_array((len(matrix.capacity), count))]), promised], format="csr"
    )
    value = matrix.network.problem.demand_value.double().cpu().numpy()[variables.demands]
    program = LinearProgram(
        np.concatenate([np.zeros(width), -value]),
        sp.csr_array(a_ub),
        np.concatenate([matrix.capacity, np.zeros(promised.shape[0])]),
        upper=np.concatenate([np.full(width, np.inf), matrix.demand[variables.demands]]),
    )
    solution = solve_program(program, settings)
    # Split each promise in proportion to the reserved flows.
    reserved = solution.x[:width]
    promise = solution.x[width:]
    total = np.bincount(variables.demand_row, reserved, minlength=count)
    share = np.divide(promise, total, out=np.zeros(count), where=total > 0)
    flow = np.zeros(matrix.mask.shape)
    flow.reshape(-1)[variables.path] = reserved * np.minimum(share, 1)[variables.demand_row]
    prices = solution.dual[: len(matrix.capacity)]
    return MatrixResult(flow, prices, status=solution.status, solve_s=solution.seconds)


def _promise_rows(variables: PathVariables, survives: np.ndarray) -> sp.csr_array:
    """Rows b[d] - sum over the surviving paths of a[d, k] <= 0: one for each set of paths that
    survive together.

    Args:
        variables: paths of the demands.
        survives: (G + 1, D, K) true for the paths that survive no failure, and each group.
    """
    width = len(variables.path)
    count = len(variables.demands)
    num_paths = survives.shape[2]
    rows = []
    columns = []
    signs = []
    num_rows = 0
    first = np.searchsorted(variables.demand_row, np.arange(count))
    for row, d in enumerate(variables.demands.tolist()):
        path_columns = (
            variables.path[first[row] : first[row + 1] if row + 1 < count else None] % num_paths
        )
        for live in np.unique(survives[:, d][:, path_columns], axis=0):
            column = first[row] + np.flatnonzero(live)
            rows += [num_rows] * (len(column) + 1)
            columns += [*column.tolist(), width + row]
            signs += [-1.0] * len(column) + [1.0]
            num_rows += 1
    return sp.csr_array((signs, (rows, columns)), shape=(num_rows, width + count))


def make(spec: Spec, model: Path | None) -> Ffc:
    """``ffc[:groups=FILE,solver=highs|gurobi,method=auto|simplex|ipm,time_limit=0]``."""
    options, settings = solver_options(spec, groups="")
    return Ffc(settings, str(options["groups"]))
