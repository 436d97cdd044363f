"""Linear programs solved by HiGHS through its own Python interface: one program from a cold start,
or a sequence of programs by dual simplex, each from the optimal basis of the one before.

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
    """How HiGHS solves a program.

    Attributes:
        solver: its option of this name: ``simplex`` or ``ipm``.
        simplex_strategy: its option of this name: :data:`DUAL` or :data:`PRIMAL`.
        presolve: whether it may simplify the program first.
    """

    solver: str
    simplex_strategy: int = DUAL
    presolve: bool = True


def fastest_algorithm(program: LinearProgram) -> Algorithm:
    """Return the algorithm that is expected to solve a path-form program first.

    Where x = 0 is feasible, primal simplex begins there, and ends after few iterations on small
    programs; dual simplex is the slowest of all.  Where all demand must be carried, x = 0 is
    infeasible, and dual simplex is the fastest.
    """
    zero_is_feasible = program.a_eq is None and bool((program.b_ub >= 0).all())
    num_variables = len(program.cost)
    if zero_is_feasible and num_variables <= MAX_PRIMAL_SIMPLEX_VARIABLES:
        return Algorithm("simplex", PRIMAL, presolve=False)
    if not zero_is_feasible and num_variables <= MAX_DUAL_SIMPLEX_VARIABLES:
        return Algorithm("simplex", DUAL)
    return Algorithm("ipm")


def algorithm_of(program: LinearProgram, settings: LpSettings) -> Algorithm:
    """Return the algorithm that the settings name for a program."""
    named = {
        "simplex": Algorithm("simplex", DUAL),
        "primal-simplex": Algorithm("simplex", PRIMAL),
        "ipm": Algorithm("ipm"),
    }
    algorithm = named.get(settings.method) or fastest_algorithm(program)
    return algorithm if settings.presolve else algorithm._replace(presolve=False)


def solve_by_highs(program: LinearProgram, settings: LpSettings) -> tuple[Array, Array, Status]:
    """Return x, the multipliers of the inequalities and the status of one program."""
    return HighsModel(settings).solve(program)


class HighsModel:
    """A program in HiGHS; the next program starts from its optimal basis.

    Where only right-hand sides and upper bounds differ, they alone are changed, and dual simplex
    goes on from the basis and its factors: it stays dual feasible.
    """

    def __init__(self, settings: LpSettings) -> None:
        self._highspy = import_solver("highspy")
        self._settings = settings
        self._solver: Any = None
        self._program: LinearProgram | None = None

    def solve(
        self, program: LinearProgram, kept_rows: Array | None = None
    ) -> tuple[Array, Array, Status]:
        """Return x, the multipliers of the inequalities and the status; both 0 unless optimal.

        Args:
            program: with the variables of the one before.
            kept_rows: position in this program of each row of the one before; None for the same
                rows.
        """
        before = self._program
        self._program = program
        if before is None or self._solver is None:
            self._start(program)
        elif kept_rows is None and _differs_in_bounds_only(before, program):
            self._change_bounds(before, program)
        else:
            self._replace(program, kept_rows)
        self._solver.run()
        x, dual, status = self._solution(program)
        if not status.usable:
            self._solver = None
        return x, dual, status

    def _start(self, program: LinearProgram) -> None:
        """Pass the program to a new solver."""
        settings = self._settings
        highspy = self._highspy
        algorithm = algorithm_of(program, settings)
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
            # Its scheduler would otherwise refuse another number of threads.
            highspy.Highs.resetGlobalScheduler(True)
            options["threads"] = settings.threads
        self._solver = highspy.Highs()
        self._solver.silent()
        for name, value in options.items():
            self._solver.setOptionValue(name, value)
        self._solver.passModel(self._model(program))

    def _replace(self, program: LinearProgram, kept_rows: Array | None) -> None:
        """Pass another program to the solver, with the basis of the one before.

        New rows are basic.
        """
        basis = self._solver.getBasis()
        if kept_rows is not None:
            num_rows = program.num_rows
            statuses = [self._highspy.HighsBasisStatus.kBasic] * num_rows
            for row, status in zip(kept_rows, basis.row_status, strict=True):
                statuses[row] = status
            basis.row_status = statuses
        self._solver.passModel(self._model(program))
        self._solver.setBasis(basis)
        self._use_dual_simplex()

    def _change_bounds(self, before: LinearProgram, program: LinearProgram) -> None:
        """Change the bounds of rows and columns of the program in the solver."""
        lower, upper = _row_bounds(program)
        rows = np.arange(len(upper), dtype=np.int32)
        self._solver.changeRowsBounds(len(rows), rows, lower, upper)
        if not np.array_equal(before.upper_bounds, program.upper_bounds):
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
            end = self._solver.getRunTime() + self._settings.time_limit
            self._solver.setOptionValue("time_limit", end)

    def _model(self, program: LinearProgram) -> Any:
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
        dual = -np.asarray(solution.row_dual)[: len(program.b_ub)]
        # Bounds are kept to a tolerance only; a path that has failed must carry nothing at all.
        x = np.clip(solution.col_value, 0, program.upper_bounds)
        return x, np.maximum(dual, 0), Status.OPTIMAL


def _row_bounds(program: LinearProgram) -> tuple[Array, Array]:
    """Lower and upper bounds of the rows: of the inequalities, then of the equations."""
    lower = np.full(len(program.b_ub), -np.inf)
    upper = program.b_ub
    if program.b_eq is None:
        return lower, upper
    return np.concatenate([lower, program.b_eq]), np.concatenate([upper, program.b_eq])


def _differs_in_bounds_only(before: LinearProgram, program: LinearProgram) -> bool:
    """Whether cost and matrices of two programs are the same objects: they are not compared."""
    return (
        before.cost is program.cost and before.a_ub is program.a_ub and before.a_eq is program.a_eq
    )
