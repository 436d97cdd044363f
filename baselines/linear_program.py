"""Linear programs by solver name, without a modelling layer: for schemes that solve many small ones."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from baselines.matrix import Array
from teal.errors import InputError, SolverError
from teal.problem.allocation import Status
from teal.spec import Spec

SOLVERS = ("highs", "gurobi")
METHODS = {"auto": "", "simplex": "highs-ds", "ipm": "highs-ipm"}
_SIMPLEX_UP_TO = 10_000  # variables; past that HiGHS is sooner done by interior point
_GUROBI_SIZE_LIMIT = 10010  # gurobipy.GRB.Error.SIZE_LIMIT_EXCEEDED
_GUROBI_METHODS = {"auto": -1, "simplex": 1, "ipm": 2}


@dataclasses.dataclass(frozen=True)
class LpSettings:
    """Which solver, and how.

    Attributes:
        solver: ``highs`` or ``gurobi``.
        method: ``simplex``, ``ipm`` or ``auto``: of HiGHS simplex up to 10,000 variables.
        time_limit: seconds a program; 0 for none.

    Raises:
        InputError: a name or number that there is not.
    """

    solver: str = "highs"
    method: str = "auto"
    time_limit: float = 0.0

    def __post_init__(self) -> None:
        if self.solver not in SOLVERS:
            raise InputError("solver", "", " or ".join(SOLVERS), repr(self.solver))
        if self.method not in METHODS:
            raise InputError("method", "", " or ".join(METHODS), repr(self.method))
        if not self.time_limit >= 0:
            raise InputError("time_limit", "", "a number >= 0", self.time_limit)


@dataclasses.dataclass(frozen=True, eq=False)
class LpSolution:
    """What came of a program: x, multipliers (>= 0) of the rows of a_ub, how it ended, seconds."""

    x: Array
    dual: Array
    status: Status
    seconds: float


@dataclasses.dataclass(frozen=True, eq=False)
class LinearProgram:
    """min cost x  s.t.  a_ub x <= b_ub,  a_eq x = b_eq,  0 <= x <= upper; None for no such rows or limits."""

    cost: Array
    a_ub: sp.csr_array
    b_ub: Array
    a_eq: sp.csr_array | None = None
    b_eq: Array | None = None
    upper: Array | None = None


def solve_program(program: LinearProgram, how: LpSettings) -> LpSolution:
    """Solve it; x and multipliers are 0 where there is no optimum.

    Raises:
        SolverError: the solver is not installed, or its licence does not cover the program.
    """
    if not len(program.cost):
        return LpSolution(np.zeros(0), np.zeros(len(program.b_ub)), Status.OPTIMAL, 0.0)
    begin = time.perf_counter()
    x, dual, status = (_by_gurobi if how.solver == "gurobi" else _by_highs)(program, how)
    return LpSolution(x, dual, status, time.perf_counter() - begin)


def solver_options(spec: Spec, **defaults: int | float | str | bool) -> tuple[dict[str, Any], LpSettings]:
    """The options of a scheme, and its ``solver``, ``method`` and ``time_limit``."""
    options: dict[str, Any] = spec.parse_options(**defaults, **dataclasses.asdict(LpSettings()))
    how = LpSettings(**{field.name: options.pop(field.name) for field in dataclasses.fields(LpSettings)})
    return options, how


def _by_highs(program: LinearProgram, how: LpSettings) -> tuple[Array, Array, Status]:
    columns = len(program.cost)
    method = METHODS[how.method] or ("highs-ds" if columns <= _SIMPLEX_UP_TO else "highs-ipm")
    options = {"time_limit": how.time_limit} if how.time_limit else {}
    bounds = np.column_stack([np.zeros(columns), _upper(program)])
    found = linprog(
        program.cost, program.a_ub, program.b_ub, program.a_eq, program.b_eq, bounds, method=method, options=options
    )
    if found.status != 0:
        ended = Status.TIME_LIMIT if found.status == 1 else Status.FAILED
        return np.zeros(columns), np.zeros(len(program.b_ub)), ended
    return np.maximum(found.x, 0), np.maximum(-found.ineqlin.marginals, 0), Status.OPTIMAL


def _upper(program: LinearProgram) -> Array:
    return np.full(len(program.cost), np.inf) if program.upper is None else program.upper


def _by_gurobi(program: LinearProgram, how: LpSettings) -> tuple[Array, Array, Status]:
    try:
        import gurobipy
    except ImportError as error:
        raise SolverError("gurobipy is not installed: pip install 'teal-te[baselines]'") from error
    parameters: dict[str, Any] = {"OutputFlag": 0, "Method": _GUROBI_METHODS[how.method]}
    if how.time_limit:
        parameters["TimeLimit"] = how.time_limit
    columns, rows = len(program.cost), len(program.b_ub)
    try:
        with gurobipy.Env(params=parameters) as env, gurobipy.Model(env=env) as model:
            x = model.addMVar(columns, ub=_upper(program))
            constraints = model.addConstr(program.a_ub @ x <= program.b_ub)
            if program.a_eq is not None:
                rows += len(program.b_eq)  # type: ignore[arg-type]
                model.addConstr(program.a_eq @ x == program.b_eq)
            model.setObjective(program.cost @ x)
            model.optimize()
            if model.Status == gurobipy.GRB.OPTIMAL:
                return np.maximum(x.X, 0), np.maximum(-constraints.Pi, 0), Status.OPTIMAL
            ended = Status.TIME_LIMIT if model.Status == gurobipy.GRB.TIME_LIMIT else Status.FAILED
            return np.zeros(columns), np.zeros(len(program.b_ub)), ended
    except gurobipy.GurobiError as error:
        alternatives = "use solver=highs, or a full licence"
        if error.errno == _GUROBI_SIZE_LIMIT:
            raise SolverError(
                "Gurobi's licence here takes up to 2,000 variables and 2,000 constraints, "
                f"the model has {columns:,} and {rows:,}: {alternatives}"
            ) from None
        raise SolverError(f"Gurobi says: {error}: {alternatives}") from None
