"""Linear programs as sparse arrays without a modelling layer, and the settings of their solvers.

:mod:`baselines.lp_solver` solves them.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

import numpy as np
import scipy.sparse as sp

from baselines.matrix import Array, power_of_two
from teal.errors import InputError, SolverError
from teal.problem.allocation import Status
from teal.spec import Spec

SOLVERS = ("highs", "gurobi")
METHODS = ("auto", "simplex", "primal-simplex", "ipm")


@dataclasses.dataclass(frozen=True)
class LpSettings:
    """Solver, method and time limit of linear programs.

    Attributes:
        solver: ``highs`` or ``gurobi``.
        method: ``simplex`` (dual simplex), ``primal-simplex``, ``ipm`` (interior points), or
            ``auto``: for HiGHS the one that is predicted to be the fastest, for Gurobi its own
            choice.
        crossover: whether interior points are followed by a crossover to a vertex; without it the
            solution keeps all rows to the solver's tolerance only.
        presolve: whether the solver may simplify a program first.
        time_limit: s for each program; 0 for none.
        threads: threads of the solver; 0 for its own choice.

    Raises:
        InputError: an unknown solver or method, or a negative time limit.
    """

    solver: str = "highs"
    method: str = "auto"
    crossover: bool = True
    presolve: bool = True
    time_limit: float = 0.0
    threads: int = 0

    def __post_init__(self) -> None:
        if self.solver not in SOLVERS:
            raise InputError("solver", "", " or ".join(SOLVERS), repr(self.solver))
        if self.method not in METHODS:
            raise InputError("method", "", ", ".join(METHODS), repr(self.method))
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
        seconds: time to scale the program, pass it to the solver and solve it, s.
        solver_s: the part of this time after the scaling, s.
    """

    x: Array
    dual: Array
    status: Status
    seconds: float
    solver_s: float = 0.0


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
        size: (n,) expected magnitude of each variable.  The program is solved with variables in
            these units, and with rows and objective divided by their largest coefficients; None for
            no scaling.
    """

    cost: Array
    a_ub: sp.csr_array
    b_ub: Array
    a_eq: sp.csr_array | None = None
    b_eq: Array | None = None
    upper: Array | None = None
    size: Array | None = None

    def scaled(self, size: Array) -> tuple[LinearProgram, Array, Array]:
        """Return the scaled program, with the units of its variables (n,) and inequalities (m,).

        All units are powers of two.

        Args:
            size: (n,) expected magnitude of each variable; 0 where it is not known.
        """
        # With x = units x', multiply the columns by the units; then divide each row by its own.
        units = power_of_two(np.where(size > 0, size, 1.0))
        a_ub, row_units = _divided_rows(sp.csr_array(self.a_ub @ sp.diags_array(units)))
        a_eq = None
        b_eq = None
        if self.a_eq is not None and self.b_eq is not None:
            a_eq, equation_units = _divided_rows(sp.csr_array(self.a_eq @ sp.diags_array(units)))
            b_eq = self.b_eq / equation_units
        cost = self.cost * units
        upper = None if self.upper is None else self.upper / units
        scaled = LinearProgram(
            cost / self.cost_unit(units), a_ub, self.b_ub / row_units, a_eq, b_eq, upper
        )
        return scaled, units, row_units

    @property
    def num_rows(self) -> int:
        """Number of rows: inequalities and equations together."""
        return len(self.b_ub) + (0 if self.b_eq is None else len(self.b_eq))

    @property
    def upper_bounds(self) -> Array:
        """Upper bounds of the variables, (n,), infinite for a program without bounds."""
        return np.full(len(self.cost), np.inf) if self.upper is None else self.upper

    def cost_unit(self, units: Array) -> float:
        """Return the largest absolute coefficient of the objective for variables in ``units`` (n,);
        1 if all coefficients are 0.
        """
        return float(np.abs(self.cost * units).max(initial=0)) or 1.0


def _divided_rows(matrix: sp.csr_array) -> tuple[sp.csr_array, Array]:
    """Divide each row by the power of two nearest to its largest absolute coefficient.

    Returns:
        the divided rows, and the powers of two (m,).
    """
    largest = abs(matrix).max(1).toarray().reshape(-1) if matrix.nnz else np.zeros(matrix.shape[0])
    units = power_of_two(np.where(largest > 0, largest, 1.0))
    return sp.csr_array(sp.diags_array(1 / units) @ matrix), units


def import_solver(module: str) -> Any:
    """Import the Python module of a solver, and return it.

    Args:
        module: name of the module, such as ``highspy``.

    Raises:
        SolverError: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SolverError(
            f"{module} is not installed; run pip install 'teal-te[baselines]'"
        ) from error


def solver_options(
    spec: Spec, **defaults: int | float | str | bool
) -> tuple[dict[str, Any], LpSettings]:
    """Parse a scheme's options; return those of the scheme by name, and the settings of its LP
    solver.

    Args:
        spec: specification of the scheme.
        **defaults: the scheme's further options with their defaults.

    Raises:
        InputError: an unknown option or a wrong value.
    """
    options: dict[str, Any] = spec.parse_options(**defaults, **dataclasses.asdict(LpSettings()))
    settings = LpSettings(
        **{field.name: options.pop(field.name) for field in dataclasses.fields(LpSettings)}
    )
    return options, settings
