"""LP-all: the whole program at once, in path form, by an LP solver through cvxpy.  The yardstick.

Value maximisation: max sum v x s.t. sum_k x[d, k] <= demand[d], load[e] <= c[e], x >= 0.
max_link_utilisation: min theta s.t. sum_k x[d, k] = demand[d], load[e] <= theta c[e]; theta is not
capped, so an overloaded matrix has an optimum like any other.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from teal.errors import InputError, SolverError
from teal.problem import Problem
from teal.problem.allocation import Allocation, Status
from teal.spec import Spec

SOLVERS = {"highs": "HIGHS", "gurobi": "GUROBI", "cuopt": "CUOPT"}
_INSTALL = {"cuopt": "NVIDIA cuOpt, which needs a GPU"}
_CUOPT_METHODS = {"simplex": "DualSimplex", "ipm": "Barrier", "auto": "Barrier"}
METHODS = ("auto", "simplex", "ipm")
_SIMPLEX_UP_TO = 10_000  # variables; past that HiGHS is sooner done by interior point
_GUROBI_SIZE_LIMIT = 10010  # gurobipy.GRB.Error.SIZE_LIMIT_EXCEEDED


@dataclass(frozen=True)
class LpAll:
    """LP-all as a scheme.

    Attributes:
        solver: ``highs``, ``gurobi``, or ``cuopt`` where NVIDIA's cuOpt is installed (never tried here).
        method: of HiGHS and cuOpt: ``simplex``, ``ipm`` (interior point with crossover), or ``auto``, of HiGHS simplex
            up to 10,000 path variables, of cuOpt interior point.
        time_limit: seconds a matrix; 0 for none.  A solver that stops there has no allocation.
        threads: of the solver; 0 for its own choice.
    """

    solver: str = "highs"
    method: str = "auto"
    time_limit: float = 0.0
    threads: int = 0

    def solve(self, problem: Problem) -> Allocation:
        """Solve every matrix, exactly.

        Raises:
            SolverError: cvxpy or the solver is not installed, or its licence does not cover the model.
        """
        cvxpy = _import_cvxpy()
        if SOLVERS[self.solver] not in cvxpy.installed_solvers():
            how = _INSTALL.get(self.solver, "pip install 'teal-te[baselines]'")
            raise SolverError(f"lp-all: the solver {self.solver} is not installed: {how}")
        problem = problem.to(torch.float64)
        splits = np.zeros((problem.batch, *problem.ops.mask.shape))
        prices = np.zeros((problem.batch, problem.topology.num_links))
        model, status, build_s, solve_s = None, [], [], []
        for b in range(problem.batch):
            begin = time.perf_counter()
            one = problem.row(b)
            if model is None or not torch.equal(one.capacity, problem.capacity[b - 1 : b]):
                model = _Model(cvxpy, one)
            model.demand.value = one.demand[0].cpu().numpy()[model.rows]
            reached, seconds = self._run(cvxpy, model)
            status.append(reached)
            solve_s.append(seconds)
            build_s.append(time.perf_counter() - begin - seconds)
            if reached.usable:
                splits[b], prices[b] = model.solution(one)
        return Allocation(
            torch.from_numpy(splits).to(problem.demand),
            torch.from_numpy(prices).to(problem.demand),
            tuple(status),
            tuple(build_s),
            tuple(solve_s),
        )

    def _options(self, variables: int) -> dict[str, Any]:
        if self.solver == "gurobi":
            limits = {"TimeLimit": self.time_limit} if self.time_limit else {}
            return limits | ({"Threads": self.threads} if self.threads else {})
        if self.solver == "cuopt":
            limits = {"time_limit": self.time_limit} if self.time_limit else {}
            threads = {"num_cpu_threads": self.threads} if self.threads else {}
            return {"solver_method": _CUOPT_METHODS[self.method], **limits, **threads}
        automatic = "simplex" if variables <= _SIMPLEX_UP_TO else "ipm"
        options: dict[str, Any] = {"solver": automatic if self.method == "auto" else self.method}
        if self.time_limit:
            options["time_limit"] = self.time_limit
        if self.threads:
            options["threads"] = self.threads
        return {"highs_options": options}

    def _run(self, cvxpy: Any, model: _Model) -> tuple[Status, float]:
        options = self._options(len(model.paths))
        begin = time.perf_counter()
        try:
            with warnings.catch_warnings():
                # cvxpy warns of "inaccurate" results; the status below says the same.
                warnings.simplefilter("ignore")
                model.program.solve(solver=SOLVERS[self.solver], warm_start=False, **options)
        except cvxpy.SolverError as error:
            reason = _licence_fault(model) if self.solver == "gurobi" else ""
            if reason:
                raise SolverError(reason) from error
            return Status.FAILED, time.perf_counter() - begin
        stats = model.program.solver_stats
        seconds = stats.solve_time if stats and stats.solve_time else time.perf_counter() - begin
        reached = {"optimal": Status.OPTIMAL, "user_limit": Status.TIME_LIMIT}
        if self.time_limit:
            reached["infeasible_inaccurate"] = Status.TIME_LIMIT  # Gurobi, stopped before it had anything
        return reached.get(model.program.status, Status.FAILED), float(seconds)


@dataclass
class _Model:
    """The program of one network with the demands as parameters, so that it is compiled once."""

    cvxpy: Any
    problem: Problem
    demand: Any = field(init=False)
    program: Any = field(init=False)

    def __post_init__(self) -> None:
        cvxpy, problem = self.cvxpy, self.problem
        mask = problem.path_mask[0].cpu().numpy()
        self.paths = np.flatnonzero(mask.reshape(-1))  # the variables, as d * K + k
        self.rows, row_of = np.unique(self.paths // mask.shape[1], return_inverse=True)
        path, link = problem.paths.incidences()
        keep = mask.reshape(-1)[path]
        column = np.searchsorted(self.paths, path[keep])
        ones, shape = np.ones(len(column)), (problem.topology.num_links, len(self.paths))
        incidence = sp.csr_array((ones, (link[keep], column)), shape=shape)
        self.links = np.flatnonzero(np.diff(incidence.indptr))
        by_demand = sp.csr_array(
            (np.ones(len(self.paths)), (row_of, np.arange(len(self.paths)))), shape=(len(self.rows), len(self.paths))
        )
        capacity = problem.capacity[0].cpu().numpy()[self.links]
        self.flow = cvxpy.Variable(max(1, len(self.paths)), nonneg=True)
        self.demand = cvxpy.Parameter(len(self.rows), nonneg=True)
        if not len(self.paths):  # nothing can be routed
            self.program = cvxpy.Problem(cvxpy.Minimize(0), [self.flow == 0])
            self.capacity_rows = None
            return
        # Rows over c: loads relative to capacity keep the coefficients near 1.
        loads = sp.csr_array(incidence[self.links].multiply(1 / capacity[:, None])) @ self.flow
        rows: list[Any] = []
        if problem.objective.maximises_value:
            value = problem.path_value.cpu().numpy().reshape(-1)[self.paths]
            goal = cvxpy.Maximize(value @ self.flow)
            self.capacity_rows = loads <= 1
            served = by_demand @ self.flow <= self.demand
        elif problem.objective.may_shed:
            alpha = cvxpy.Variable(nonneg=True)
            goal = cvxpy.Maximize(alpha)
            self.capacity_rows = loads <= 1
            least = by_demand @ self.flow >= cvxpy.multiply(self.demand, alpha * np.ones(len(self.rows)))
            served = by_demand @ self.flow <= self.demand
            rows = [least, alpha <= 1]
        else:
            theta = cvxpy.Variable(nonneg=True)
            goal = cvxpy.Minimize(theta)
            self.capacity_rows = loads <= theta
            served = by_demand @ self.flow == self.demand
        self.capacity = capacity
        self.program = cvxpy.Problem(goal, [self.capacity_rows, served, *rows])

    def solution(self, problem: Problem) -> tuple[np.ndarray, np.ndarray]:
        """Splits (D, K) and prices (E,)."""
        splits = np.zeros(problem.ops.mask.numel())
        prices = np.zeros(problem.topology.num_links)
        if self.capacity_rows is not None:
            demand = np.repeat(problem.demand[0].cpu().numpy(), problem.paths.num_paths)[self.paths]
            flow = np.maximum(self.flow.value, 0)
            splits[self.paths] = np.divide(flow, demand, out=np.zeros_like(flow), where=demand > 0)
            prices[self.links] = np.abs(self.capacity_rows.dual_value) / self.capacity
        return splits.reshape(problem.ops.mask.shape), prices


def _import_cvxpy() -> Any:
    try:
        import cvxpy
    except ImportError as error:
        raise SolverError("lp-all: cvxpy is not installed: pip install 'teal-te[baselines]'") from error
    return cvxpy


def _licence_fault(model: _Model) -> str:
    """What is wrong with Gurobi's licence, "" if nothing: cvxpy hides it, so ask with an empty model of the size."""
    import gurobipy

    size = model.program.size_metrics
    variables, rows = size.num_scalar_variables, size.num_scalar_leq_constr + size.num_scalar_eq_constr
    alternatives = "use lp-all:solver=highs, or a full licence"
    try:
        with gurobipy.Env(params={"OutputFlag": 0}) as env, gurobipy.Model(env=env) as probe:
            x = probe.addMVar(variables)
            probe.addConstr(x <= 1)
            probe.optimize()
    except gurobipy.GurobiError as error:
        if error.errno == _GUROBI_SIZE_LIMIT:
            return (
                f"lp-all: Gurobi's licence here takes up to 2,000 variables and 2,000 constraints, "
                f"the model has {variables:,} and {rows:,}: {alternatives}"
            )
        return f"lp-all: Gurobi says: {error}: {alternatives}"
    return ""


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
