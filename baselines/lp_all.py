"""LP-all: the path-form program of all demands, solved by an LP solver; the reference optimum.

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

``lp-all:warm=true`` starts from the optimal basis of the previous interval
(:mod:`baselines.warm_lp`).
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from baselines.concave_program import solve_concave
from baselines.conditions_lp import solve_under_conditions
from baselines.cuopt import import_cvxpy, solve_by_cuopt
from baselines.linear_program import METHODS, LpSettings
from baselines.linear_program import SOLVERS as LP_SOLVERS
from baselines.lp_priority import solve_in_order
from baselines.lp_solver import solve_program
from baselines.matrix import Matrix, MatrixResult, per_matrix
from baselines.max_min_lp import ExactMaxMin
from baselines.path_program import path_program, without_overload
from baselines.warm_lp import WarmLp
from teal.errors import InputError, SolverError
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.problem.allocation import Allocation, Status
from teal.runtime.interruptible import Steps, complete
from teal.solvers.pipeline import tasks_of
from teal.solvers.projection import project
from teal.solvers.result import SolveResult, SolveState, Stop
from teal.solvers.sequences.task import run_tasks
from teal.spec import Spec

SOLVERS = (*LP_SOLVERS, "cuopt")
# Target gap of a sequence of programs, each solved as an LP to optimality.
_TASK_GAP = 1e-9


@dataclass(frozen=True)
class LpAll:
    """LP-all: the optimum over the candidate paths, by an LP solver.

    Attributes:
        solver: ``highs``, ``gurobi``, or ``cuopt`` where NVIDIA cuOpt is installed (not tested).
        method: ``simplex`` (dual simplex), ``primal-simplex``, ``ipm`` (interior points), or
            ``auto`` for the one expected to be the fastest; cuOpt has no primal simplex, and
            ``auto`` is ``ipm``.
        crossover: whether interior points are followed by a crossover to a vertex; without it,
            flows are projected to feasible ones.
        presolve: whether the solver may simplify a program first.
        time_limit: time limit for each matrix, s; 0 for none.  A matrix that reaches it has no
            allocation.
        threads: number of threads of the solver; 0 for the solver's own choice.
    """

    solver: str = "highs"
    method: str = "auto"
    crossover: bool = True
    presolve: bool = True
    time_limit: float = 0.0
    threads: int = 0

    @property
    def settings(self) -> LpSettings:
        """The scheme's options as validated settings of the LP solver.

        Raises:
            InputError: an unknown method, or a negative time limit or number of threads.
        """
        options = dataclasses.asdict(self)
        if self.solver not in LP_SOLVERS:
            del options["solver"]
        return LpSettings(**options)

    def solve(self, problem: Problem) -> Allocation:
        """Solve every matrix to optimality; return splits, link prices and times.

        Raises:
            InputError: crossover=false under least_cost, which keeps demands and capacities
                exactly; or cuopt for a sequence of programs or side conditions.
            SolverError: the solver is not installed, or its licence does not cover the program.
        """
        problem = problem.to(torch.float64)
        settings = self.settings
        objective = problem.objective
        if not self.crossover and objective.rules.may_be_infeasible:
            raise InputError.invalid(
                "lp-all",
                "crossover=false",
                f"{objective.name} needs an exact solution",
                "use crossover=true",
            )
        # Concave values, then cuOpt, then HiGHS and Gurobi by the kind of program.
        if not problem.is_linear:
            return solve_concave(import_cvxpy(), problem, self.time_limit)
        is_one_program = not (objective.rules.is_sequence or problem.conditions)
        if self.solver not in LP_SOLVERS:
            if not is_one_program:
                scope = problem.conditions[0].name if problem.conditions else objective.name
                raise InputError.invalid(
                    "lp-all",
                    "solver",
                    f"{self.solver} does not support {scope}",
                    f"use {' or '.join(LP_SOLVERS)}",
                )
            return solve_by_cuopt(problem, settings)
        if is_one_program:
            return _solve_scaled(problem, settings)
        if problem.conditions:
            return solve_under_conditions(problem, settings)
        if objective.name == ObjectiveName.MAX_MIN:
            return ExactMaxMin(settings).solve(problem)
        if objective.name == ObjectiveName.PRIORITY:
            return solve_in_order(problem, settings)
        return _solve_tasks(problem, settings)


def _solve_scaled(problem: Problem, settings: LpSettings) -> Allocation:
    """Solve every matrix by the path-form LP with scaled variables and rows.

    max_concurrent_flow is solved as max_link_utilisation; the splits of an overloaded matrix are
    then divided by its largest utilisation.

    Args:
        problem: problem with one linear program, in float64.
        settings: settings of the LP solver.
    """
    # The equivalent problem: max_link_utilisation for max_concurrent_flow.
    original = problem
    problem = problem.solved

    def solve(matrix: Matrix) -> MatrixResult:
        """Build and solve the LP of one matrix; scaling counts as building."""
        lp = path_program(matrix, matrix.routable, matrix.capacity)
        solution = solve_program(lp.program, settings)
        build_s = lp.build_s + solution.seconds - solution.solver_s
        return MatrixResult(
            lp.flow(solution), lp.prices(solution), solution.status, build_s, solution.solver_s
        )

    try:
        allocation = per_matrix(problem, solve)
    except SolverError as error:
        raise SolverError(
            f"lp-all: {error}".replace("use solver=", "use lp-all:solver=")
        ) from error
    if not settings.crossover:
        splits = project(problem, allocation.splits, refill=0)
        allocation = dataclasses.replace(allocation, splits=splits)
    return allocation if original is problem else without_overload(problem, allocation)


def _solve_tasks(problem: Problem, settings: LpSettings) -> Allocation:
    """Solve an objective that is a sequence of programs, each program as an LP.

    Args:
        problem: problem in float64.
        settings: settings of the LP solver.
    """
    # Time of the solver so far, s.
    solver_s = [0.0]

    # Replaces PDHG as the solver of the programs; a generator that never yields, since an LP solver
    # cannot pause.
    def solve_by_lp(problem: Problem, **_: Any) -> Steps[SolveResult]:
        yield from ()
        solved = _solve_scaled(problem, settings)
        if not all(status.usable for status in solved.status) or solved.prices is None:
            raise SolverError(
                f"lp-all: no optimum of a program of {problem.objective.name}: "
                f"{solved.status[0].value}"
            )
        solver_s[0] += sum(solved.solve_s)
        # The value of an optimum is also its bound, and the gap is 0.
        value = problem.value(solved.splits)
        return SolveResult(
            splits=solved.splits,
            prices=solved.prices,
            value=value,
            bound=value,
            gap=torch.zeros_like(value),
            iterations=0,
            solve_s=0.0,
            state=SolveState(solved.splits, solved.prices),
            stopped_by=(Stop.GAP,) * problem.batch,
        )

    # Run the sequence; time outside of the solver counts as building.
    begin = time.perf_counter()
    result = complete(run_tasks(tasks_of(problem, _TASK_GAP), solve_by_lp))
    build_s = time.perf_counter() - begin - solver_s[0]
    count = problem.batch
    return Allocation(
        result.splits,
        result.prices,
        (Status.OPTIMAL,) * count,
        (build_s / count,) * count,
        (solver_s[0] / count,) * count,
        program_prices=result.program_prices,
    )


def make(spec: Spec, model: Path | None) -> LpAll | WarmLp:
    """Build the scheme from its specification; the options and their defaults are
    ``lp-all[:solver=highs|gurobi|cuopt,method=auto|simplex|primal-simplex|ipm,crossover=true,
    presolve=true,time_limit=0,threads=0,warm=false]``.
    """
    options: Any = spec.parse_options(**dataclasses.asdict(LpAll()), warm=False)
    warm = options.pop("warm")
    scheme = LpAll(**options)
    if scheme.solver not in SOLVERS:
        raise InputError(spec.text, "solver", "highs, gurobi or cuopt", repr(scheme.solver))
    if scheme.method not in METHODS:
        raise InputError(spec.text, "method", ", ".join(METHODS), repr(scheme.method))
    for option in ("time_limit", "threads"):
        if getattr(scheme, option) < 0:
            raise InputError(spec.text, option, "a number >= 0", getattr(scheme, option))
    if warm and scheme.solver != "highs":
        raise InputError.invalid(
            spec.text, "solver", f"warm=true does not support {scheme.solver}", "use solver=highs"
        )
    if warm and not scheme.crossover:
        # Simplex starts from a basis, which interior points have after a crossover only.
        raise InputError.invalid(
            spec.text, "crossover", "warm=true needs a basis", "use crossover=true"
        )
    return WarmLp(scheme.settings) if warm else scheme
