"""Path-form programs solved by NVIDIA cuOpt through cvxpy; not tested, since it needs a GPU.

The demands are parameters, so that cvxpy compiles a program once for many matrices.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from baselines.linear_program import LpSettings
from teal.errors import InputError, SolverError
from teal.problem import Problem
from teal.problem.allocation import Allocation, Status

# Name of the solver cuOpt in cvxpy.
_CUOPT = "CUOPT"
# Option method -> solver_method of cuOpt.
_METHODS = {"simplex": "DualSimplex", "ipm": "Barrier", "auto": "Barrier"}


def import_cvxpy() -> Any:
    """Import the module cvxpy, and return it.

    Raises:
        SolverError: cvxpy is not installed.
    """
    try:
        import cvxpy
    except ImportError as error:
        raise SolverError(
            "lp-all: cvxpy is not installed; run pip install 'teal-te[baselines]'"
        ) from error
    return cvxpy


def solve_by_cuopt(problem: Problem, settings: LpSettings) -> Allocation:
    """Solve every matrix to optimality by NVIDIA cuOpt.

    Args:
        problem: B matrices of one linear program without side conditions.
        settings: method, time limit and threads.

    Raises:
        InputError: a method that cuOpt does not have.
        SolverError: cvxpy or cuOpt is not installed.
    """
    if settings.method not in _METHODS:
        raise InputError("lp-all", "method", ", ".join(_METHODS), settings.method)
    cvxpy = import_cvxpy()
    if _CUOPT not in cvxpy.installed_solvers():
        raise SolverError(
            "lp-all: NVIDIA cuOpt is not installed; it needs a GPU; use solver=highs or gurobi"
        )
    # Solve the matrices in turn; matrices with equal capacities share a compiled program.
    splits = np.zeros((problem.batch, *problem.ops.mask.shape))
    prices = np.zeros((problem.batch, problem.topology.num_links))
    model = None
    statuses = []
    build_s = []
    solve_s = []
    for b in range(problem.batch):
        begin = time.perf_counter()
        matrix_problem = problem.row(b)
        if model is None or not torch.equal(matrix_problem.capacity, problem.capacity[b - 1 : b]):
            model = _Model(cvxpy, matrix_problem)
        # Set the demands, solve, and read splits and prices.
        model.demand.value = matrix_problem.demand[0].cpu().numpy()[model.demands]
        status, seconds = _solve_model(cvxpy, model, settings)
        statuses.append(status)
        solve_s.append(seconds)
        build_s.append(time.perf_counter() - begin - seconds)
        if status.usable:
            splits[b], prices[b] = model.solution(matrix_problem)
    return Allocation(
        torch.from_numpy(splits).to(problem.demand),
        torch.from_numpy(prices).to(problem.demand),
        tuple(statuses),
        tuple(build_s),
        tuple(solve_s),
    )


def _solve_model(cvxpy: Any, model: _Model, settings: LpSettings) -> tuple[Status, float]:
    """Solve a model; return its status, and the time of the solver in s.

    Args:
        cvxpy: the imported module.
        model: program of the network, with its demands set.
        settings: method, time limit and threads.
    """
    options: dict[str, Any] = {"solver_method": _METHODS[settings.method]}
    if settings.time_limit:
        options["time_limit"] = settings.time_limit
    if settings.threads:
        options["num_cpu_threads"] = settings.threads
    begin = time.perf_counter()
    try:
        with warnings.catch_warnings():
            # cvxpy warns of inaccurate results; the status below reports them as failed.
            warnings.simplefilter("ignore")
            model.program.solve(solver=_CUOPT, warm_start=False, **options)
    except cvxpy.SolverError:
        return Status.FAILED, time.perf_counter() - begin
    stats = model.program.solver_stats
    seconds = stats.solve_time if stats and stats.solve_time else time.perf_counter() - begin
    statuses = {"optimal": Status.OPTIMAL, "user_limit": Status.TIME_LIMIT}
    return statuses.get(model.program.status, Status.FAILED), float(seconds)


def _incidence(problem: Problem, mask: np.ndarray, paths: np.ndarray) -> sp.csr_array:
    """Return the matrix (E, n) with 1 where a live path uses a link.

    Args:
        problem: network and paths.
        mask: (D, K) true for live paths.
        paths: (n,) path indices d K + k of the live paths, ascending.
    """
    path, link = problem.paths.incidences()
    live = mask.reshape(-1)[path]
    column = np.searchsorted(paths, path[live])
    shape = (problem.topology.num_links, len(paths))
    return sp.csr_array((np.ones(len(column)), (link[live], column)), shape=shape)


@dataclass
class _Model:
    """The program of a network with the demands as parameters, which cvxpy compiles once for many
    matrices.

    Attributes:
        cvxpy: the imported module.
        problem: network, paths, capacities and objective; one matrix, whose demand is ignored.
        demand: cvxpy parameter, (demands,) Gbit/s.
        program: cvxpy problem.
        paths: (n,) path index d * K + k of each variable: the live paths.
        demands: indices of the demands with a live path.
        flow: cvxpy variable, (n,) Gbit/s on each path.
        links: indices of the links on the paths.
        capacity: capacity of each of ``links``, Gbit/s.
        capacity_rows: cvxpy constraint on each of ``links``; None if there is no live path.
    """

    cvxpy: Any
    problem: Problem
    demand: Any = field(init=False)
    program: Any = field(init=False)

    def __post_init__(self) -> None:
        cvxpy = self.cvxpy
        problem = self.problem
        mask = problem.path_mask[0].cpu().numpy()
        self.paths = np.flatnonzero(mask.reshape(-1))
        self.demands, demand_row = np.unique(self.paths // mask.shape[1], return_inverse=True)
        # Incidences of links and paths, and of demands and paths.
        incidence = _incidence(problem, mask, self.paths)
        self.links = np.flatnonzero(np.diff(incidence.indptr))
        demand_incidence = sp.csr_array(
            (np.ones(len(self.paths)), (demand_row, np.arange(len(self.paths)))),
            shape=(len(self.demands), len(self.paths)),
        )
        capacity = problem.capacity[0].cpu().numpy()[self.links]
        # Variable and parameter; without a live path the program is trivial.
        self.flow = cvxpy.Variable(max(1, len(self.paths)), nonneg=True)
        self.demand = cvxpy.Parameter(len(self.demands), nonneg=True)
        if not len(self.paths):
            self.program = cvxpy.Problem(cvxpy.Minimize(0), [self.flow == 0])
            self.capacity_rows = None
            return
        # Rows are divided by c: utilisations instead of loads keep the coefficients near 1.
        utilisation = (
            sp.csr_array(incidence[self.links].multiply(1 / capacity[:, None])) @ self.flow
        )
        self.capacity = capacity
        goal, self.capacity_rows, rows = self._objective(utilisation, demand_incidence)
        self.program = cvxpy.Problem(goal, [self.capacity_rows, *rows])

    def _objective(
        self, utilisation: Any, demand_incidence: sp.csr_array
    ) -> tuple[Any, Any, list[Any]]:
        """Return objective, capacity constraints and all other constraints, for cvxpy.

        Args:
            utilisation: (links,) cvxpy expression, utilisation of each of ``links``.
            demand_incidence: (demands, n) 1 where a path belongs to a demand.
        """
        cvxpy = self.cvxpy
        problem = self.problem
        # Value maximisation.
        if problem.objective.maximises_value:
            value = problem.path_value.cpu().numpy().reshape(-1)[self.paths]
            goal = cvxpy.Maximize(value @ self.flow)
            return goal, utilisation <= 1, [demand_incidence @ self.flow <= self.demand]
        # Max-concurrent flow: every demand gets at least the share alpha.
        if problem.objective.may_shed:
            alpha = cvxpy.Variable(nonneg=True)
            goal = cvxpy.Maximize(alpha)
            capacity_rows = utilisation <= 1
            min_served = demand_incidence @ self.flow >= cvxpy.multiply(
                self.demand, alpha * np.ones(len(self.demands))
            )
            demand_constraint = demand_incidence @ self.flow <= self.demand
            return goal, capacity_rows, [demand_constraint, min_served, alpha <= 1]
        # Min-max link utilisation.
        theta = cvxpy.Variable(nonneg=True)
        goal = cvxpy.Minimize(theta)
        return goal, utilisation <= theta, [demand_incidence @ self.flow == self.demand]

    def solution(self, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
        """Return splits (D, K) and dual prices (E,), value per Gbit/s, of the solved program.

        Args:
            problem: problem of the matrix that was solved.
        """
        splits = np.zeros(problem.ops.mask.numel())
        prices = np.zeros(problem.topology.num_links)
        if self.capacity_rows is not None:
            demand = np.repeat(problem.demand[0].cpu().numpy(), problem.paths.num_paths)[self.paths]
            flow = np.maximum(self.flow.value, 0)
            splits[self.paths] = np.divide(flow, demand, out=np.zeros_like(flow), where=demand > 0)
            # Rows are divided by the capacities, so their duals are, too.
            prices[self.links] = np.abs(self.capacity_rows.dual_value) / self.capacity
        return splits.reshape(problem.ops.mask.shape), prices
