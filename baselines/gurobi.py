"""Linear programs solved by Gurobi through its matrix interface."""

from __future__ import annotations

from typing import Any

import numpy as np

from baselines.linear_program import LinearProgram, LpSettings, import_solver
from baselines.matrix import Array
from teal.errors import SolverError
from teal.problem.allocation import Status

_SIZE_LIMIT_EXCEEDED = 10010  # gurobipy.GRB.Error.SIZE_LIMIT_EXCEEDED
# Values of Gurobi's parameters Method and Crossover.
_METHODS = {"auto": -1, "primal-simplex": 0, "simplex": 1, "ipm": 2}
_NO_CROSSOVER = 0
_NO_PRESOLVE = 0


def solve_by_gurobi(program: LinearProgram, settings: LpSettings) -> tuple[Array, Array, Status]:
    """Solve a linear program by Gurobi.

    Args:
        program: program with n variables, m inequalities.
        settings: method, crossover, presolve, threads and time limit.

    Returns:
        x (n,), multipliers (m,) of the inequalities, >= 0, and the status; x and the multipliers
        are 0 unless the status is optimal.

    Raises:
        SolverError: Gurobi failed, or its licence does not cover the program.
    """
    gurobipy = import_solver("gurobipy")
    parameters: dict[str, Any] = {"OutputFlag": 0, "Method": _METHODS[settings.method]}
    if not settings.crossover:
        parameters["Crossover"] = _NO_CROSSOVER
    if not settings.presolve:
        parameters["Presolve"] = _NO_PRESOLVE
    if settings.threads:
        parameters["Threads"] = settings.threads
    if settings.time_limit:
        parameters["TimeLimit"] = settings.time_limit
    # Build and solve the program.
    num_variables = len(program.cost)
    num_constraints = len(program.b_ub)
    try:
        with gurobipy.Env(params=parameters) as env, gurobipy.Model(env=env) as model:
            x = model.addMVar(num_variables, ub=program.upper_bounds)
            constraints = model.addConstr(program.a_ub @ x <= program.b_ub)
            if program.a_eq is not None:
                num_constraints += len(program.b_eq)  # type: ignore[arg-type]
                model.addConstr(program.a_eq @ x == program.b_eq)
            model.setObjective(program.cost @ x)
            model.optimize()
            # Gurobi gives the rows a_ub x <= b_ub multipliers of at most 0: change their sign.
            if model.Status == gurobipy.GRB.OPTIMAL:
                return np.maximum(x.X, 0), np.maximum(-constraints.Pi, 0), Status.OPTIMAL
            statuses = {
                gurobipy.GRB.TIME_LIMIT: Status.TIME_LIMIT,
                gurobipy.GRB.INFEASIBLE: Status.INFEASIBLE,
            }
            status = statuses.get(model.Status, Status.FAILED)
            return np.zeros(num_variables), np.zeros(len(program.b_ub)), status
    except gurobipy.GurobiError as error:
        remedy = "use solver=highs, or install a full licence"
        if error.errno == _SIZE_LIMIT_EXCEEDED:
            raise SolverError(
                "the installed Gurobi licence covers up to 2,000 variables and 2,000 constraints; "
                f"the program has {num_variables:,} and {num_constraints:,}; {remedy}"
            ) from None
        raise SolverError(f"Gurobi failed: {error}; {remedy}") from None
