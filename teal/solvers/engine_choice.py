"""Choice of engines for one program, by their predicted times.

:func:`choose_engines` returns the engines in the order in which they solve a program: the one with
the shortest predicted time (:mod:`teal.solvers.cost_model`) first, then others for the matrices
that it leaves above the target gap.  This module makes every choice between engines of a program
over given paths.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable

import torch

from teal.errors import InputError
from teal.problem import Problem
from teal.runtime.kernel_cache import is_interpreting
from teal.solvers import cost_model
from teal.solvers.certified import Certified, WarmStart
from teal.solvers.contract import Engine, Limits, Start
from teal.solvers.highs import Highs
from teal.solvers.interior.engine import (
    MAX_ITERATIONS,
    SMALL_SCAN,
    FirstMatrixProgram,
    InteriorPoints,
)
from teal.solvers.pdhg.reduction import spans_decades
from teal.solvers.pdhg.solver import Pdhg, iteration_dtype
from teal.solvers.simplex.engine import DualSimplex
from teal.spec import Registry

ENGINES = ("auto", "interior", "simplex", "fused", "plain")
# Engines of packages: a function that makes one for a solve, by name.
_OTHER_ENGINES: Registry[Callable[[], Engine]] = Registry("engine", "teal.engines")


def register_engine(name: str, make: Callable[[], Engine], *, replace: bool = False) -> None:
    """Register an engine under a name, for ``engine=NAME`` and ``--engine NAME`` in this process.

    An installed package announces it by an entry point in the group ``teal.engines``.

    Args:
        name: name of the engine.
        make: returns the engine for one solve (:class:`teal.solvers.contract.Engine`).
        replace: whether to replace an engine of that name.

    Raises:
        InputError: the name is taken.
    """
    _OTHER_ENGINES.add(name, make, replace=replace, reserved=(*ENGINES, "equilibrated"))


def is_engine(name: str) -> bool:
    """Return whether an engine has this name; built-in ones are found without entry points."""
    return name in ENGINES or name in _OTHER_ENGINES


def engine_names() -> tuple[str, ...]:
    """Return the names of all engines, those of packages last."""
    return (*ENGINES, *_OTHER_ENGINES.names())


def current_engine(name: str) -> str:
    """Return the present name of an engine: "auto" for the deprecated "equilibrated"."""
    if name != "equilibrated":
        return name
    message = "engine equilibrated is deprecated: use auto, which selects interior points there"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return "auto"


@dataclasses.dataclass(frozen=True, eq=False)
class EngineRun:
    """Turn of an engine.

    Attributes:
        engine: the engine.
        start: start of the turn; None to continue from the best splits and prices so far, or
            where these are far from the optimum from nothing.
        max_iterations: iteration limit of the turn; None for all that remain.
    """

    engine: Engine
    start: Start | None
    max_iterations: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
    """Engines of a program, in the order of their turns.

    Attributes:
        runs: turns of the engines; each solves the matrices that are left above the target gap.
        predicted_s: predicted seconds of each engine and start that was compared.
        reason: why the first engine was chosen.
    """

    runs: tuple[EngineRun, ...]
    predicted_s: dict[str, float]
    reason: str


def choose_engines(
    problem: Problem,
    start: Start,
    limits: Limits,
    name: str,
    dtype: torch.dtype | None,
    *,
    may_span_decades: bool,
) -> Choice:
    """Choose the engines of a program and their order.

    Args:
        problem: B matrices of one program, presolved, without side conditions.
        start: start of the solve.
        limits: target and limits.
        name: name of an engine, or "auto" for the one with the shortest predicted time.
        dtype: type of the splits in the iteration of PDHG; None to choose by the target gap.
        may_span_decades: whether magnitudes may be too far apart for one step size per demand.
    """
    if name == "interior":
        return Choice((EngineRun(InteriorPoints(), start),), {}, "named by the caller")
    if name == "simplex":
        return Choice((EngineRun(DualSimplex(), start),), {}, "named by the caller")
    if name not in ENGINES:
        engine = Certified(_OTHER_ENGINES[name]())
        if not engine.accepts(problem):
            raise InputError.invalid(
                "solve",
                "engine",
                f"{name} does not support this program of {problem.objective.name}",
                "use auto",
            )
        return Choice((EngineRun(engine, start),), {}, "named by the caller")
    if name != "auto":
        return Choice((EngineRun(Pdhg(name, dtype), start),), {}, "named by the caller")
    # Before compilation HiGHS is faster than the interpreter.
    if Highs().accepts(problem):
        runs = (EngineRun(Highs(), start), *_pdhg_runs(problem, start, limits.gap, dtype))
        return Choice(runs, {}, "the kernels are not compiled")
    if not may_use_interior_points(problem):
        return Choice(
            _pdhg_runs(problem, start, limits.gap, dtype),
            {},
            "interior points do not support the program",
        )
    # PDHG has one step size per demand, which suits its narrowest path.
    if may_span_decades and problem.is_linear and bool(spans_decades(problem).any()):
        runs = (
            EngineRun(InteriorPoints(), start),
            *_pdhg_runs(problem, start, limits.gap, torch.float64),
        )
        return Choice(runs, {}, "magnitudes span more than four decades")
    # A caller that asks for float32 or few iterations asks for PDHG.
    if dtype not in (None, torch.float64) or limits.max_iterations < MAX_ITERATIONS:
        return Choice(
            _pdhg_runs(problem, start, limits.gap, dtype),
            {},
            "float32 or few iterations are asked for",
        )
    # From the basis of a similar matrix a small network takes a few pivots.
    if may_use_simplex(problem, is_warm=start.state is not None, gap=limits.gap):
        simplex = DualSimplex()
        simplex_s = simplex.predict_seconds(problem, start, limits.gap)
        # Like interior points, it must fit half of the time.
        if simplex_s <= limits.deadline.remaining_s / 2:
            runs = (
                EngineRun(simplex, start),
                EngineRun(InteriorPoints(), None),
                EngineRun(Pdhg("auto", torch.float64), None),
            )
            predicted_s = {simplex.name: simplex_s}
            return Choice(runs, predicted_s, "a small network, and a basis of a similar matrix")
    return _choose_by_time(problem, start, limits, dtype)


def may_use_simplex(problem: Problem, *, is_warm: bool, gap: float) -> bool:
    """Return whether the dual simplex method supports a program and is predicted to be the fastest.

    Args:
        problem: B matrices of one program.
        is_warm: whether the search has a warm start.
        gap: target gap.
    """
    return (
        not is_interpreting()
        and DualSimplex().accepts(problem)
        and cost_model.favours_simplex(problem, is_warm=is_warm, gap=gap)
    )


def may_use_interior_points(problem: Problem) -> bool:
    """Return whether interior points may solve a program: they support it, their kernels are
    compiled, and its path set is not too large for them.
    """
    is_small = problem.paths.scan_size <= cost_model.max_interior_scan()
    return is_small and not is_interpreting() and InteriorPoints().accepts(problem)


def _choose_by_time(
    problem: Problem, start: Start, limits: Limits, dtype: torch.dtype | None
) -> Choice:
    """Choose between interior points and PDHG by their predicted times.

    Args:
        problem: B matrices of a program that interior points support.
        start: start of the solve.
        limits: target and limits.
        dtype: type of the splits in the iteration of PDHG; None to choose by the target gap.
    """
    first_program = FirstMatrixProgram(problem)
    interior_engine = InteriorPoints(first_program)
    pdhg_engine = Pdhg("auto", dtype, first_program, may_stall=True)
    # Each engine with each start that it may use: none, the warm start, the model.
    start_by_kind = {"cold": Start()}
    if start.state is not None:
        start_by_kind["warm"] = Start(start.state)
    elif start.model is not None and cost_model.may_benefit_from_model(problem):
        start_by_kind["model"] = Start(model=start.model)
    interior_s = {
        start_kind: interior_engine.predict_seconds(problem, candidate_start, limits.gap)
        for start_kind, candidate_start in start_by_kind.items()
    }
    pdhg_s = pdhg_engine.predict_seconds(problem, start, limits.gap)
    best_start_kind = min(interior_s, key=interior_s.__getitem__)
    best_interior_s = interior_s[best_start_kind]
    predicted_s = {f"interior, {start_kind}": seconds for start_kind, seconds in interior_s.items()}
    predicted_s["pdhg"] = pdhg_s
    # An interrupted interior-point solve is worth little: it must fit half of the time.
    fits_half_of_time = best_interior_s <= limits.deadline.remaining_s / 2
    if not fits_half_of_time:
        reason = "interior points are predicted to take more than half of the time limit"
        return Choice(_pdhg_runs(problem, start, limits.gap, dtype), predicted_s, reason)
    if best_interior_s <= pdhg_s:
        pdhg_start = None if start.state is None else Start(start.state)
        runs = [
            EngineRun(interior_engine, start_by_kind[best_start_kind]),
            EngineRun(Pdhg("auto", dtype), pdhg_start),
        ]
        # Certify the warm start first, as it may meet the target gap already; not for one small
        # matrix, or one that interior points start from it: they find this out themselves.
        is_one_small_matrix = problem.batch == 1 and problem.paths.scan_size <= SMALL_SCAN
        starts_warm = problem.batch == 1 and best_start_kind == "warm"
        if start.state is not None and not is_one_small_matrix and not starts_warm:
            runs.insert(0, EngineRun(WarmStart(), start))
        return Choice(tuple(runs), predicted_s, "shortest predicted time")
    # PDHG may need many times its predicted iterations: limit it to the predicted time of interior
    # points, which then continue.
    is_warm = start.state is not None
    pdhg_factor = cost_model.calibration_factor(
        "pdhg", first_program.features(limits.gap), is_warm=is_warm
    )
    max_iterations = cost_model.pdhg_iterations_within(problem, best_interior_s / pdhg_factor)
    pdhg_turns = (
        EngineRun(pdhg_engine, start, max_iterations),
        EngineRun(interior_engine, None),
        EngineRun(Pdhg("auto", torch.float64, may_replace_start=False), None),
    )
    return Choice(pdhg_turns, predicted_s, "shortest predicted time")


def _pdhg_runs(
    problem: Problem, start: Start, gap: float, dtype: torch.dtype | None
) -> tuple[EngineRun, ...]:
    """Return the turns of PDHG alone: in float64 for matrices that stalled in float32.

    Args:
        problem: B matrices of the program.
        start: start of the solve.
        gap: target gap.
        dtype: type of the splits in the iteration; None to choose by the target gap.
    """
    if dtype is not None or iteration_dtype(problem, gap, None) is torch.float64:
        return (EngineRun(Pdhg("auto", dtype), start),)
    float64_engine = Pdhg("auto", torch.float64, may_replace_start=False)
    return EngineRun(Pdhg("auto", may_stall=True), start), EngineRun(float64_engine, None)
