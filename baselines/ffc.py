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
from baselines.matrix import Matrix, MatrixResult, heuristic_status, per_matrix, require_objective
from teal.objectives import ObjectiveName
from teal.problem import Allocation, Problem
from teal.problem.protection import failed_paths
from teal.solvers.protection import groups_to_survive
from teal.spec import Spec


@dataclasses.dataclass(frozen=True)
class Ffc:
    """The scheme `ffc`: largest promises by one linear program.

    Attributes:
        settings: of the LP solver.
        groups: file of groups (see :mod:`teal.formats.groups`); "" for those of the problem, else
            every cable.
    """

    settings: LpSettings
    groups: str = ""

    def solve(self, problem: Problem) -> Allocation:
        """The largest promises of every matrix.

        Raises:
            InputError: another objective than total_flow.
        """
        require_objective("ffc", problem.objective, ObjectiveName.TOTAL_FLOW)
        guaranteed = promises(problem, groups_to_survive(problem, self.groups), self.settings)
        return dataclasses.replace(
            guaranteed, prices=None, status=tuple(map(heuristic_status, guaranteed.status))
        )


def promises(problem: Problem, groups: Sequence[Sequence[int]], settings: LpSettings) -> Allocation:
    """The largest promises of every matrix, and the prices of links in their programs.

    Args:
        problem: under total_flow or weighted_flow.
        groups: numbers of the links of each.
        settings: of the LP solver.
    """
    survives = np.concatenate(
        [
            np.ones((1, *problem.paths.mask.shape), dtype=bool),
            ~failed_paths(problem.ops, problem.topology.num_links, groups),
        ]
    )
    return per_matrix(problem, lambda matrix: _promises(matrix, survives, settings))


def _promises(matrix: Matrix, survives: np.ndarray, settings: LpSettings) -> MatrixResult:
    """One matrix; ``survives`` is (G + 1, D, K), true for the paths that no failure and each group
    leave.
    """
    variables = matrix.path_variables(matrix.routable)
    width = len(variables.path)
    count = len(variables.demands)
    paths = matrix.mask.shape[1]
    loads = variables.link_incidence(len(matrix.capacity))
    rows = []
    columns = []
    signs = []
    number = 0
    first = np.searchsorted(variables.demand_row, np.arange(count))
    for row, d in enumerate(variables.demands.tolist()):
        path_columns = (
            variables.path[first[row] : first[row + 1] if row + 1 < count else None] % paths
        )
        for live in np.unique(survives[:, d][:, path_columns], axis=0):
            column = first[row] + np.flatnonzero(live)
            rows += [number] * (len(column) + 1)
            columns += [*column.tolist(), width + row]
            signs += [-1.0] * len(column) + [1.0]
            number += 1
    promised = sp.csr_array((signs, (rows, columns)), shape=(number, width + count))
    a_ub = sp.vstack(
        [sp.hstack([loads, sp.csr_array((len(matrix.capacity), count))]), promised], format="csr"
    )
    value = matrix.network.problem.demand_value.double().cpu().numpy()[variables.demands]
    program = LinearProgram(
        np.concatenate([np.zeros(width), -value]),
        sp.csr_array(a_ub),
        np.concatenate([matrix.capacity, np.zeros(number)]),
        upper=np.concatenate([np.full(width, np.inf), matrix.demand[variables.demands]]),
    )
    solution = solve_program(program, settings)
    reserved = solution.x[:width]
    promise = solution.x[width:]
    total = np.bincount(variables.demand_row, reserved, minlength=count)
    share = np.divide(promise, total, out=np.zeros(count), where=total > 0)
    flow = np.zeros(matrix.mask.shape)
    flow.reshape(-1)[variables.path] = reserved * np.minimum(share, 1)[variables.demand_row]
    prices = solution.dual[: len(matrix.capacity)]
    return MatrixResult(flow, prices, status=solution.status, solve_s=solution.seconds)


def make(spec: Spec, model: Path | None) -> Ffc:
    """``ffc[:groups=FILE,solver=highs|gurobi,method=auto|simplex|ipm,time_limit=0]``."""
    options, settings = solver_options(spec, groups="")
    return Ffc(settings, str(options["groups"]))
