"""Linear programs solved by HiGHS through its own Python interface.

One program from a cold start, or a sequence of programs by dual simplex, each from the optimal
basis of the previous one.

Reference: Huangfu, Hall, "Parallelizing the dual revised simplex method", Math. Prog. Comp. 10
(2018).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from baselines.linear_program import LinearProgram, LpSettings, import_solver
from baselines.matrix import Array
from teal.problem.allocation import Status

# Values of HiGHS's option simplex_strategy.
DUAL = 1
PRIMAL = 4
# Largest number of variables for which primal simplex without presolve is faster than interior
# points where x = 0 is feasible (benchmarks/lp_methods.py).
MAX_PRIMAL_SIMPLEX_VARIABLES = 2_000
# Largest number of variables for which dual simplex is faster than interior points where x = 0 is
# infeasible.
MAX_DUAL_SIMPLEX_VARIABLES = 50_000


class Algorithm(NamedTuple):
    """Options of HiGHS that select its algorithm for a program.

    Attributes:
        solver: HiGHS option ``solver``: ``simplex`` or ``ipm``.
        simplex_strategy: HiGHS option ``simplex_strategy``: :data:`DUAL` or :data:`PRIMAL`.
        presolve: whether HiGHS may simplify the program first.
    """

    solver: str
    simplex_strategy: int = DUAL
    presolve: bool = True


def fastest_algorithm(program: LinearProgram) -> Algorithm:
    """Return the algorithm that is predicted to be the fastest for a path-form program.

    Where x = 0 is feasible, primal simplex starts there and takes few iterations on small programs;
    dual simplex is the slowest.  Where all demand must be carried, x = 0 is infeasible, and dual
    simplex is the fastest.
    """
    zero_is_feasible = program.a_eq is None and bool((program.b_ub >= 0).all())
    num_variables = len(program.cost)
    if zero_is_feasible and num_variables <= MAX_PRIMAL_SIMPLEX_VARIABLES:
        return Algorithm("simplex", PRIMAL, presolve=False)
    if not zero_is_feasible and num_variables <= MAX_DUAL_SIMPLEX_VARIABLES:
        return Algorithm("simplex", DUAL)
    return Algorithm("ipm")


def select_algorithm(program: LinearProgram, settings: LpSettings) -> Algorithm:
    """Return the algorithm that the settings name; for the method ``auto`` the one that is
    predicted to be the fastest for the program.
    """
    named = {
        "simplex": Algorithm("simplex", DUAL),
        "primal-simplex": Algorithm("simplex", PRIMAL),
        "ipm": Algorithm("ipm"),
    }
    algorithm = named.get(settings.method) or fastest_algorithm(program)
    return algorithm if settings.presolve else algorithm._replace(presolve=False)


def solve_by_highs(program: LinearProgram, settings: LpSettings) -> tuple[Array, Array, Status]:
    """Solve one linear program with n variables and m inequalities.

    Returns:
        x (n,), multipliers (m,) of the inequalities, >= 0, and the status; x and the multipliers
        are 0 unless the status is optimal.
    """
    return HighsModel(settings).solve(program)


class HighsModel:
    """A solver of HiGHS that keeps its program: the next program starts from the optimal basis.

    If only right-hand sides and upper bounds differ, they alone are changed, and dual simplex
    continues from the factored basis, which stays dual feasible.

    Args:
        settings: method, presolve, crossover, threads and time limit.
    """

    def __init__(self, settings: LpSettings) -> None:
        self._highspy = import_solver("highspy")
        self._settings = settings
        self._solver: Any = None
        self._program: LinearProgram | None = None

    def solve(
        self, program: LinearProgram, kept_rows: Array | None = None
    ) -> tuple[Array, Array, Status]:
        """Solve a program from the optimal basis of the previous one, if there is any.

        Args:
            program: program with the variables of the previous one: n variables, m inequalities.
            kept_rows: position in this program of each row of the previous one; None for the same
                rows.

        Returns:
            x (n,), multipliers (m,) of the inequalities, >= 0, and the status; x and the
            multipliers are 0 unless the status is optimal.
        """
        previous = self._program
        self._program = program
        if previous is None or self._solver is None:
            self._start(program)
        elif kept_rows is None and _differs_in_bounds_only(previous, program):
            self._change_bounds(previous, program)
        else:
            self._replace(program, kept_rows)
        self._solver.run()
        x, dual, status = self._solution(program)
        if not status.usable:
            self._solver = None
        return x, dual, status

    def _start(self, program: LinearProgram) -> None:
        """Pass the program to a new solver, with the options of the settings."""
        settings = self._settings
        highspy = self._highspy
        algorithm = select_algorithm(program, settings)
        options: dict[str, Any] = {
            "solver": algorithm.solver,
            "simplex_strategy": algorithm.simplex_strategy,
            "run_crossover": "on" if settings.crossover else "off",
        }
        if not algorithm.presolve:
            options["presolve"] = "off"
        if settings.time_limit:
            options["time_limit"] = settings.time_limit
        if settings.threads:
            # Without a reset the scheduler of HiGHS refuses another number of threads.
            highspy.Highs.resetGlobalScheduler(True)
            options["threads"] = settings.threads
        self._solver = highspy.Highs()
        self._solver.silent()
        for name, value in options.items():
            self._solver.setOptionValue(name, value)
        self._solver.passModel(self._model(program))

    def _replace(self, program: LinearProgram, kept_rows: Array | None) -> None:
        """Pass another program to the solver, with the basis of the previous one; new rows are
        basic.

        Args:
            program: the next program.
            kept_rows: position in the next program of each row of the previous one; None if the
                rows are the same.
        """
        basis = self._solver.getBasis()
        if kept_rows is not None:
            num_rows = program.num_rows
            # Rows that are new start as basic; the others keep their status.
            statuses = [self._highspy.HighsBasisStatus.kBasic] * num_rows
            for row, status in zip(kept_rows, basis.row_status, strict=True):
                statuses[row] = status
            basis.row_status = statuses
        self._solver.passModel(self._model(program))
        self._solver.setBasis(basis)
        self._use_dual_simplex()

    def _change_bounds(self, previous: LinearProgram, program: LinearProgram) -> None:
        """Change the bounds of rows and columns in the solver to those of the next program."""
        lower, upper = _row_bounds(program)
        rows = np.arange(len(upper), dtype=np.int32)
        self._solver.changeRowsBounds(len(rows), rows, lower, upper)
        if not np.array_equal(previous.upper_bounds, program.upper_bounds):
            columns = np.arange(len(program.cost), dtype=np.int32)
            zeros = np.zeros(len(columns))
            self._solver.changeColsBounds(len(columns), columns, zeros, program.upper_bounds)
        self._use_dual_simplex()

    def _use_dual_simplex(self) -> None:
        """Continue by dual simplex, without presolve, which would discard the basis."""
        self._solver.setOptionValue("solver", "simplex")
        self._solver.setOptionValue("simplex_strategy", DUAL)
        self._solver.setOptionValue("presolve", "off")
        if self._settings.time_limit:
            # The clock of a solver runs over all of its programs.
            clock_limit_s = self._solver.getRunTime() + self._settings.time_limit
            self._solver.setOptionValue("time_limit", clock_limit_s)

    def _model(self, program: LinearProgram) -> Any:
        """Return the program as a HighsLp: rows are the inequalities, then the equations."""
        highspy = self._highspy
        matrix = sp.csr_array(program.a_ub)
        if program.a_eq is not None:
            matrix = sp.csr_array(sp.vstack([matrix, program.a_eq], format="csr"))
        lower, upper = _row_bounds(program)
        lp = highspy.HighsLp()
        lp.num_col_ = len(program.cost)
        lp.num_row_ = len(upper)
        lp.col_cost_ = program.cost
        lp.col_lower_ = np.zeros(len(program.cost))
        lp.col_upper_ = program.upper_bounds
        lp.row_lower_ = lower
        lp.row_upper_ = upper
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = matrix.indptr
        lp.a_matrix_.index_ = matrix.indices
        lp.a_matrix_.value_ = matrix.data
        return lp

    def _solution(self, program: LinearProgram) -> tuple[Array, Array, Status]:
        """Return x (n,), multipliers (m,) of the inequalities, and the status, from the solver."""
        highspy = self._highspy
        model_status = self._solver.getModelStatus()
        if model_status != highspy.HighsModelStatus.kOptimal:
            statuses = {
                highspy.HighsModelStatus.kTimeLimit: Status.TIME_LIMIT,
                highspy.HighsModelStatus.kInfeasible: Status.INFEASIBLE,
            }
            status = statuses.get(model_status, Status.FAILED)
            return np.zeros(len(program.cost)), np.zeros(len(program.b_ub)), status
        solution = self._solver.getSolution()
        # HiGHS gives the rows a_ub x <= b_ub multipliers of at most 0: change their sign.
        dual = -np.asarray(solution.row_dual)[: len(program.b_ub)]
        # Bounds are kept to a tolerance only; a path that has failed must carry nothing at all.
        x = np.clip(solution.col_value, 0, program.upper_bounds)
        return x, np.maximum(dual, 0), Status.OPTIMAL


def _row_bounds(program: LinearProgram) -> tuple[Array, Array]:
    """Return the lower and the upper bounds (m + q,) of the m inequalities and then q equations."""
    lower = np.full(len(program.b_ub), -np.inf)
    upper = program.b_ub
    if program.b_eq is None:
        return lower, upper
    return np.concatenate([lower, program.b_eq]), np.concatenate([upper, program.b_eq])


def _differs_in_bounds_only(previous: LinearProgram, program: LinearProgram) -> bool:
    """Return whether cost and matrices of two programs are the same objects (by identity)."""
    return (
        previous.cost is program.cost
        and previous.a_ub is program.a_ub
        and previous.a_eq is program.a_eq
    )
