"""LP-all: the path-form program of all demands at once, solved by an LP solver; the reference
optimum.

With x[d, k] the flow on path k of demand d, in Gbit/s:

Value maximisation: max sum v x  s.t.  sum_k x[d, k] <= demand[d],  load[e] <= c[e],  x >= 0.
least_cost: min sum cost x  s.t.  sum_k x[d, k] = demand[d],  load[e] <= c[e],  x >= 0.
max_link_utilisation: min theta  s.t.  sum_k x[d, k] = demand[d],  load[e] <= theta c[e],  x >= 0;
theta may exceed 1, so an overloaded matrix has an optimum too.
Under side conditions: see :mod:`baselines.conditions_lp`.
proportional_fair, alpha_fair, bandwidth_functions: see :mod:`baselines.concave_program`.
priority, max_min: sequences of programs, see :mod:`baselines.lp_priority` and
:mod:`baselines.max_min_lp`. max_concurrent_flow: max alpha  s.t.  alpha demand[d] <= sum_k x[d, k]
<= demand[d],  load[e] <= c[e],  alpha <= 1, x >= 0.

HiGHS and Gurobi solve the program of :mod:`baselines.path_program`, with scaled variables and rows,
because LP solvers have absolute tolerances of about 1e-7; max_concurrent_flow as
max_link_utilisation, with alpha = min(1, 1 / theta). cuOpt solves the programs above through cvxpy.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from baselines.concave_program import solve_concave
from baselines.conditions_lp import solve_under_conditions
from baselines.linear_program import SOLVERS as LP_SOLVERS
from baselines.linear_program import LpSettings, solve_program
from baselines.lp_priority import solve_in_order
from baselines.matrix import Matrix, MatrixResult, per_matrix
from baselines.max_min_lp import ExactMaxMin
from baselines.path_program import path_program
from teal.errors import InputError, SolverError
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.problem.allocation import Allocation, Status
from teal.runtime.interruptible import Steps, complete
from teal.solvers.pdhg import PdhgResult, PdhgState, Stop, tasks_of
from teal.solvers.sequences.task import carrying_out
from teal.spec import Spec

SOLVERS = ("highs", "gurobi", "cuopt")
METHODS = ("auto", "simplex", "ipm")
_CUOPT = "CUOPT"  # its name in cvxpy
_CUOPT_METHODS = {
    "simplex": "DualSimplex",
    "ipm": "Barrier",
    "auto": "Barrier",
}  # option -> solver_method of cuOpt
_TASK_GAP = 1e-9  # target of a sequence whose programs are solved as LPs


@dataclass(frozen=True)
class LpAll:
    """LP-all, as described in the module.

    Attributes:
        solver: ``highs``, ``gurobi``, or ``cuopt`` where NVIDIA cuOpt is installed (not tested).
        method: for HiGHS and cuOpt: ``simplex``, ``ipm`` (interior point with crossover), or
            ``auto``: for HiGHS simplex up to 10,000 path variables and interior point above, for
            cuOpt interior point.
        time_limit: s for each matrix; 0 for none.  A matrix that reaches it has no allocation.
        threads: of the solver; 0 for its own choice.
    """

    solver: str = "highs"
    method: str = "auto"
    time_limit: float = 0.0
    threads: int = 0

    def solve(self, problem: Problem) -> Allocation:
        """Solve every matrix to optimality.

        Raises:
            SolverError: the solver is not installed, or its licence does not cover the program.
        """
        problem, is_plain = (
            problem.to(torch.float64),
            not (problem.objective.rules.is_sequence or problem.conditions),
        )
        if not problem.is_linear:
            return solve_concave(_import_cvxpy(), problem, self.time_limit)
        if self.solver in LP_SOLVERS:
            settings = LpSettings(self.solver, self.method, self.time_limit, self.threads)
            if is_plain:
                return _solve_scaled(problem, settings)
            if problem.conditions:
                return solve_under_conditions(problem, settings)
            if problem.objective.name == ObjectiveName.MAX_MIN:
                return ExactMaxMin(settings).solve(problem)
            if problem.objective.name == ObjectiveName.PRIORITY:
                return solve_in_order(problem, settings)
            return _solve_tasks(problem, settings)
        if not is_plain:
            under = problem.conditions[0].name if problem.conditions else problem.objective.name
            raise InputError(
                "lp-all", "solver", f"{' or '.join(LP_SOLVERS)} under {under}", self.solver
            )
        cvxpy = _import_cvxpy()
        if _CUOPT not in cvxpy.installed_solvers():
            raise SolverError(
                "lp-all: the solver cuopt is not installed: NVIDIA cuOpt, which needs a GPU"
            )
        splits = np.zeros((problem.batch, *problem.ops.mask.shape))
        prices = np.zeros((problem.batch, problem.topology.num_links))
        model, statuses, build_s, solve_s = None, [], [], []
        for b in range(problem.batch):
            begin = time.perf_counter()
            row = problem.row(b)
            if model is None or not torch.equal(row.capacity, problem.capacity[b - 1 : b]):
                model = _Model(cvxpy, row)
            model.demand.value = row.demand[0].cpu().numpy()[model.demands]
            status, seconds = self._run(cvxpy, model)
            statuses.append(status)
            solve_s.append(seconds)
            build_s.append(time.perf_counter() - begin - seconds)
            if status.usable:
                splits[b], prices[b] = model.solution(row)
        return Allocation(
            torch.from_numpy(splits).to(problem.demand),
            torch.from_numpy(prices).to(problem.demand),
            tuple(statuses),
            tuple(build_s),
            tuple(solve_s),
        )

    def _options(self) -> dict[str, Any]:
        """The options of cuOpt, in its own names, for cvxpy."""
        limits = {"time_limit": self.time_limit} if self.time_limit else {}
        threads = {"num_cpu_threads": self.threads} if self.threads else {}
        return {"solver_method": _CUOPT_METHODS[self.method], **limits, **threads}

    def _run(self, cvxpy: Any, model: _Model) -> tuple[Status, float]:
        """Solve a model; its status, and s that the solver took."""
        begin = time.perf_counter()
        try:
            with warnings.catch_warnings():
                # cvxpy warns of inaccurate results; the status below reports them as failed.
                warnings.simplefilter("ignore")
                model.program.solve(solver=_CUOPT, warm_start=False, **self._options())
        except cvxpy.SolverError:
            return Status.FAILED, time.perf_counter() - begin
        stats = model.program.solver_stats
        seconds = stats.solve_time if stats and stats.solve_time else time.perf_counter() - begin
        statuses = {"optimal": Status.OPTIMAL, "user_limit": Status.TIME_LIMIT}
        return statuses.get(model.program.status, Status.FAILED), float(seconds)


@dataclass
class _Model:
    """The program of a network with the demands as parameters, so that cvxpy compiles it once for
    many matrices.

    Attributes:
        cvxpy: the imported module.
        problem: of one matrix; paths, capacities and objective are taken from it.
        demand: cvxpy parameter, (demands,) Gbit/s.
        program: cvxpy problem.
        paths: (n,) path number d * K + k of each variable: the live paths.
        demands: numbers of the demands with a live path.
        flow: cvxpy variable, (n,) Gbit/s on each path.
        links: numbers of the links on the paths.
        capacity: capacity of each of ``links``, Gbit/s.
        capacity_rows: cvxpy constraint on each of ``links``; None if there is no live path.
    """

    cvxpy: Any
    problem: Problem
    demand: Any = field(init=False)
    program: Any = field(init=False)

    def __post_init__(self) -> None:
        cvxpy, problem = self.cvxpy, self.problem
        mask = problem.path_mask[0].cpu().numpy()
        self.paths = np.flatnonzero(mask.reshape(-1))
        self.demands, demand_row = np.unique(self.paths // mask.shape[1], return_inverse=True)
        path, link = problem.paths.incidences()
        live = mask.reshape(-1)[path]
        column = np.searchsorted(self.paths, path[live])
        ones, shape = np.ones(len(column)), (problem.topology.num_links, len(self.paths))
        incidence = sp.csr_array((ones, (link[live], column)), shape=shape)
        self.links = np.flatnonzero(np.diff(incidence.indptr))
        by_demand = sp.csr_array(
            (np.ones(len(self.paths)), (demand_row, np.arange(len(self.paths)))),
            shape=(len(self.demands), len(self.paths)),
        )
        capacity = problem.capacity[0].cpu().numpy()[self.links]
        self.flow = cvxpy.Variable(max(1, len(self.paths)), nonneg=True)
        self.demand = cvxpy.Parameter(len(self.demands), nonneg=True)
        if not len(self.paths):  # no demand is routable
            self.program = cvxpy.Problem(cvxpy.Minimize(0), [self.flow == 0])
            self.capacity_rows = None
            return
        # Rows are divided by c: utilisations instead of loads keep the coefficients near 1.
        utilisation = (
            sp.csr_array(incidence[self.links].multiply(1 / capacity[:, None])) @ self.flow
        )
        rows: list[Any] = []
        if problem.objective.maximises_value:
            value = problem.path_value.cpu().numpy().reshape(-1)[self.paths]
            goal = cvxpy.Maximize(value @ self.flow)
            self.capacity_rows = utilisation <= 1
            served = by_demand @ self.flow <= self.demand
        elif problem.objective.may_shed:
            alpha = cvxpy.Variable(nonneg=True)
            goal = cvxpy.Maximize(alpha)
            self.capacity_rows = utilisation <= 1
            min_served = by_demand @ self.flow >= cvxpy.multiply(
                self.demand, alpha * np.ones(len(self.demands))
            )
            served = by_demand @ self.flow <= self.demand
            rows = [min_served, alpha <= 1]
        else:
            theta = cvxpy.Variable(nonneg=True)
            goal = cvxpy.Minimize(theta)
            self.capacity_rows = utilisation <= theta
            served = by_demand @ self.flow == self.demand
        self.capacity = capacity
        self.program = cvxpy.Problem(goal, [self.capacity_rows, served, *rows])

    def solution(self, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
        """Splits (D, K) and prices (E,), value per Gbit/s, of the solved program.

        Args:
            problem: of the matrix that was solved.
        """
        splits = np.zeros(problem.ops.mask.numel())
        prices = np.zeros(problem.topology.num_links)
        if self.capacity_rows is not None:
            demand = np.repeat(problem.demand[0].cpu().numpy(), problem.paths.num_paths)[self.paths]
            flow = np.maximum(self.flow.value, 0)
            splits[self.paths] = np.divide(flow, demand, out=np.zeros_like(flow), where=demand > 0)
            prices[self.links] = np.abs(self.capacity_rows.dual_value) / self.capacity
        return splits.reshape(problem.ops.mask.shape), prices


def _solve_scaled(problem: Problem, settings: LpSettings) -> Allocation:
    """LP-all by the scaled program of :mod:`baselines.path_program`."""
    original, problem = problem, problem.solved

    def solve(matrix: Matrix) -> MatrixResult:
        lp = path_program(matrix, matrix.routable, matrix.capacity)
        solution = solve_program(lp.program, settings)
        return MatrixResult(
            lp.flow(solution), lp.prices(solution), solution.status, lp.build_s, solution.seconds
        )

    try:
        allocation = per_matrix(problem, solve)
    except SolverError as error:
        raise SolverError(
            f"lp-all: {error}".replace("use solver=", "use lp-all:solver=")
        ) from error
    if original is not problem:
        utilisation = problem.utilisation(allocation.splits).amax(1).clamp(min=1)
        allocation = dataclasses.replace(
            allocation, splits=allocation.splits / utilisation[:, None, None]
        )
    return allocation


def _solve_tasks(problem: Problem, settings: LpSettings) -> Allocation:
    """Another sequence of programs, each of them solved as an LP."""
    seconds = [0.0]

    def solving(problem: Problem, **_: Any) -> Steps[PdhgResult]:
        yield from ()  # an LP solver cannot pause
        solved = _solve_scaled(problem, settings)
        if not all(status.usable for status in solved.status) or solved.prices is None:
            raise SolverError(
                f"lp-all: a program of {problem.objective.name}: {solved.status[0].value}"
            )
        seconds[0] += sum(solved.solve_s)
        value = problem.value(solved.splits)
        return PdhgResult(
            splits=solved.splits,
            prices=solved.prices,
            value=value,
            bound=value,
            gap=torch.zeros_like(value),
            iterations=0,
            solve_s=0.0,
            state=PdhgState(solved.splits, solved.prices),
            stopped_by=(Stop.GAP,) * problem.batch,
        )

    begin = time.perf_counter()
    result = complete(carrying_out(tasks_of(problem, _TASK_GAP), solving))
    build_s, count = time.perf_counter() - begin - seconds[0], problem.batch
    return Allocation(
        result.splits,
        result.prices,
        (Status.OPTIMAL,) * count,
        (build_s / count,) * count,
        (seconds[0] / count,) * count,
        program_prices=result.program_prices,
    )


def _import_cvxpy() -> Any:
    """The module cvxpy, or SolverError if it is not installed."""
    try:
        import cvxpy
    except ImportError as error:
        raise SolverError(
            "lp-all: cvxpy is not installed: pip install 'teal-te[baselines]'"
        ) from error
    return cvxpy


def make(spec: Spec, model: Path | None) -> LpAll:
    """``lp-all[:solver=highs|gurobi|cuopt,method=auto|simplex|ipm,time_limit=0,threads=0]``."""
    options: Any = spec.parse_options(solver="highs", method="auto", time_limit=0.0, threads=0)
    scheme = LpAll(**options)
    if scheme.solver not in SOLVERS:
        raise InputError(spec.text, "solver", "highs, gurobi or cuopt", repr(scheme.solver))
    if scheme.method not in METHODS:
        raise InputError(spec.text, "method", "auto, simplex or ipm", repr(scheme.method))
    for option in ("time_limit", "threads"):
        if getattr(scheme, option) < 0:
            raise InputError(spec.text, option, "a number >= 0", getattr(scheme, option))
    return scheme
