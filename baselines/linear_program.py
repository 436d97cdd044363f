"""Linear programs as sparse arrays, solved by HiGHS or Gurobi without a modelling layer, for
schemes with many LPs.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import scipy.sparse as sp

from baselines.matrix import Array, power_of_two
from teal.errors import InputError, SolverError
from teal.problem.allocation import Status
from teal.spec import Spec

SOLVERS = ("highs", "gurobi")
METHODS = ("auto", "simplex", "ipm")
_MAX_SIMPLEX_VARIABLES = (
    10_000  # above this, the interior-point method of HiGHS is faster than its simplex method
)
_GUROBI_SIZE_LIMIT = 10010  # gurobipy.GRB.Error.SIZE_LIMIT_EXCEEDED
_GUROBI_METHODS = {"auto": -1, "simplex": 1, "ipm": 2}  # option -> Gurobi's parameter Method


@dataclasses.dataclass(frozen=True)
class LpSettings:
    """Solver, method and time limit of linear programs.

    Attributes:
        solver: ``highs`` or ``gurobi``.
        method: ``simplex``, ``ipm`` (interior point) or ``auto``: for HiGHS simplex up to 10,000
            variables and interior point above, for Gurobi its own choice.
        time_limit: s for each program; 0 for none.
        threads: of the solver; 0 for its own choice.

    Raises:
        InputError: an unknown solver or method, or a negative time limit.
    """

    solver: str = "highs"
    method: str = "auto"
    time_limit: float = 0.0
    threads: int = 0

    def __post_init__(self) -> None:
        if self.solver not in SOLVERS:
            raise InputError("solver", "", " or ".join(SOLVERS), repr(self.solver))
        if self.method not in METHODS:
            raise InputError("method", "", " or ".join(METHODS), repr(self.method))
        if not self.time_limit >= 0:
            raise InputError("time_limit", "", "a number of seconds >= 0", self.time_limit)
        if self.threads < 0:
            raise InputError("threads", "", "a number >= 0", self.threads)


@dataclasses.dataclass(frozen=True, eq=False)
class LpSolution:
    """The solution of a program with n variables.

    Attributes:
        x: (n,) values of the variables; 0 unless ``status`` is optimal.
        dual: (rows of a_ub,) multipliers of a_ub x <= b_ub, >= 0; 0 unless ``status`` is optimal.
        status: optimal, infeasible, time_limit or failed.
        seconds: s that the solver took.
    """

    x: Array
    dual: Array
    status: Status
    seconds: float


@dataclasses.dataclass(frozen=True, eq=False)
class LinearProgram:
    """Minimise cost x  subject to  a_ub x <= b_ub,  a_eq x = b_eq,  0 <= x <= upper.

    Attributes:
        cost: (n,) coefficients of the objective.
        a_ub: (m, n) rows of the inequalities.
        b_ub: (m,) right-hand sides of the inequalities.
        a_eq: (q, n) rows of the equations; None for no equations.
        b_eq: (q,) right-hand sides of the equations; None for no equations.
        upper: (n,) upper bounds of the variables; None for no bounds.
        size: (n,) largest magnitude that each variable needs to have.  The program is solved with
            variables in these units, rows divided by their largest coefficient, and the objective
            by its largest; None for no scaling.
    """

    cost: Array
    a_ub: sp.csr_array
    b_ub: Array
    a_eq: sp.csr_array | None = None
    b_eq: Array | None = None
    upper: Array | None = None
    size: Array | None = None

    def scaled(self, size: Array) -> tuple[LinearProgram, Array, Array]:
        """The scaled program, the units of its variables (n,) and of its inequalities (m,), all
        powers of two.

        Args:
            size: (n,) of the variables; 0 where it is not known.
        """
        units = power_of_two(np.where(size > 0, size, 1.0))
        a_ub, row_units = _divided_rows(sp.csr_array(self.a_ub @ sp.diags_array(units)))
        a_eq, b_eq = None, None
        if self.a_eq is not None and self.b_eq is not None:
            a_eq, equation_units = _divided_rows(sp.csr_array(self.a_eq @ sp.diags_array(units)))
            b_eq = self.b_eq / equation_units
        cost = self.cost * units
        upper = None if self.upper is None else self.upper / units
        scaled = LinearProgram(
            cost / self.cost_unit(units), a_ub, self.b_ub / row_units, a_eq, b_eq, upper
        )
        return scaled, units, row_units

    def cost_unit(self, units: Array) -> float:
        """Largest coefficient of the objective with variables in ``units``; 1 if all are 0."""
        return float(np.abs(self.cost * units).max(initial=0)) or 1.0


def _divided_rows(matrix: sp.csr_array) -> tuple[sp.csr_array, Array]:
    """The rows of a matrix divided by powers of two next to their largest magnitudes, and these."""
    largest = abs(matrix).max(1).toarray().reshape(-1) if matrix.nnz else np.zeros(matrix.shape[0])
    units = power_of_two(np.where(largest > 0, largest, 1.0))
    return sp.csr_array(sp.diags_array(1 / units) @ matrix), units


def solve_program(program: LinearProgram, settings: LpSettings) -> LpSolution:
    """Solve a program; where no optimum is found, the status says why, and x and the multipliers
    are 0.

    Raises:
        SolverError: the solver is not installed, or its licence does not cover the program.
    """
    if not len(program.cost):
        return LpSolution(np.zeros(0), np.zeros(len(program.b_ub)), Status.OPTIMAL, 0.0)
    begin = time.perf_counter()
    solve = _by_gurobi if settings.solver == "gurobi" else _by_highs
    if program.size is None:
        x, dual, status = solve(program, settings)
    else:
        scaled, units, row_units = program.scaled(program.size)
        x, dual, status = solve(scaled, settings)
        x, dual = x * units, dual * program.cost_unit(units) / row_units
    return LpSolution(x, dual, status, time.perf_counter() - begin)


def solver_options(
    spec: Spec, **defaults: int | float | str | bool
) -> tuple[dict[str, Any], LpSettings]:
    """The options of a scheme, and LpSettings from its options ``solver``, ``method``,
    ``time_limit`` and ``threads``.

    Args:
        spec: of the scheme.
        **defaults: the scheme's own options with their defaults.

    Raises:
        InputError: an unknown option or a wrong value.
    """
    options: dict[str, Any] = spec.parse_options(**defaults, **dataclasses.asdict(LpSettings()))
    settings = LpSettings(
        **{field.name: options.pop(field.name) for field in dataclasses.fields(LpSettings)}
    )
    return options, settings


def _by_highs(program: LinearProgram, settings: LpSettings) -> tuple[Array, Array, Status]:
    """x, multipliers and status by HiGHS; on small programs its interface takes a third of the time
    of SciPy's.
    """
    try:
        import highspy
    except ImportError as error:
        raise SolverError("highspy is not installed: pip install 'teal-te[baselines]'") from error
    columns, matrix, limit = len(program.cost), sp.csr_array(program.a_ub), program.b_ub
    least = np.full(len(limit), -np.inf)
    if program.a_eq is not None and program.b_eq is not None:
        matrix = sp.csr_array(sp.vstack([matrix, program.a_eq], format="csr"))
        least, limit = np.concatenate([least, program.b_eq]), np.concatenate([limit, program.b_eq])
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = columns, len(limit)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = (
        program.cost,
        np.zeros(columns),
        _upper_bounds(program),
    )
    lp.row_lower_, lp.row_upper_ = least, limit
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = (
        matrix.indptr,
        matrix.indices,
        matrix.data,
    )
    automatic = "simplex" if columns <= _MAX_SIMPLEX_VARIABLES else "ipm"
    options: dict[str, Any] = {
        "solver": automatic if settings.method == "auto" else settings.method
    }
    if settings.time_limit:
        options["time_limit"] = settings.time_limit
    if settings.threads:
        highspy.Highs.resetGlobalScheduler(True)  # which else refuses another number of threads
        options["threads"] = settings.threads
    solver = highspy.Highs()
    solver.silent()
    for name, value in options.items():
        solver.setOptionValue(name, value)
    solver.passModel(lp)
    solver.run()
    ended = solver.getModelStatus()
    if ended != highspy.HighsModelStatus.kOptimal:
        statuses = {
            highspy.HighsModelStatus.kTimeLimit: Status.TIME_LIMIT,
            highspy.HighsModelStatus.kInfeasible: Status.INFEASIBLE,
        }
        status = statuses.get(ended, Status.FAILED)
        return np.zeros(columns), np.zeros(len(program.b_ub)), status
    solution = solver.getSolution()
    dual = -np.asarray(solution.row_dual)[: len(program.b_ub)]
    return np.maximum(solution.col_value, 0), np.maximum(dual, 0), Status.OPTIMAL


def _upper_bounds(program: LinearProgram) -> Array:
    """(n,) upper bounds of the variables, infinite where there are none."""
    return np.full(len(program.cost), np.inf) if program.upper is None else program.upper


def _by_gurobi(program: LinearProgram, settings: LpSettings) -> tuple[Array, Array, Status]:
    """x, multipliers and status by Gurobi."""
    try:
        import gurobipy
    except ImportError as error:
        raise SolverError("gurobipy is not installed: pip install 'teal-te[baselines]'") from error
    parameters: dict[str, Any] = {"OutputFlag": 0, "Method": _GUROBI_METHODS[settings.method]}
    if settings.threads:
        parameters["Threads"] = settings.threads
    if settings.time_limit:
        parameters["TimeLimit"] = settings.time_limit
    columns, rows = len(program.cost), len(program.b_ub)
    try:
        with gurobipy.Env(params=parameters) as env, gurobipy.Model(env=env) as model:
            x = model.addMVar(columns, ub=_upper_bounds(program))
            constraints = model.addConstr(program.a_ub @ x <= program.b_ub)
            if program.a_eq is not None:
                rows += len(program.b_eq)  # type: ignore[arg-type]
                model.addConstr(program.a_eq @ x == program.b_eq)
            model.setObjective(program.cost @ x)
            model.optimize()
            if model.Status == gurobipy.GRB.OPTIMAL:
                return np.maximum(x.X, 0), np.maximum(-constraints.Pi, 0), Status.OPTIMAL
            statuses = {
                gurobipy.GRB.TIME_LIMIT: Status.TIME_LIMIT,
                gurobipy.GRB.INFEASIBLE: Status.INFEASIBLE,
            }
            status = statuses.get(model.Status, Status.FAILED)
            return np.zeros(columns), np.zeros(len(program.b_ub)), status
    except gurobipy.GurobiError as error:
        remedy = "use solver=highs, or install a full licence"
        if error.errno == _GUROBI_SIZE_LIMIT:
            raise SolverError(
                "the installed Gurobi licence covers up to 2,000 variables and 2,000 constraints, "
                f"the program has {columns:,} and {rows:,}: {remedy}"
            ) from None
        raise SolverError(f"Gurobi failed: {error}: {remedy}") from None
