"""Turns of engines: what one leaves is solved by the next, whatever the type of the numbers."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from teal.errors import InputError
from teal.objectives import ObjectiveName
from teal.problem import Problem, violations
from teal.runtime.interruptible import Deadline, Steps, complete
from teal.solvers import engine_choice
from teal.solvers.certified import WarmStart
from teal.solvers.contract import Limits, Start
from teal.solvers.engine_choice import EngineRun
from teal.solvers.interior.engine import InteriorPoints
from teal.solvers.pdhg.solver import Pdhg
from teal.solvers.pipeline import iterate, solve
from teal.solvers.result import SolveResult, SolveState, Stop
from teal.spec import Registry
from teal.testing import random_problem

_GAP = 1e-4
_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9}


def _after_runs(problem: Problem, *runs: EngineRun) -> SolveResult:
    result, trace = complete(iterate(problem, runs, Limits(_GAP, Deadline(), 10_000)))
    return dataclasses.replace(result, trace=tuple(trace))


def _partly_solved(problem: Problem) -> Start:
    """The optimum of the first and last matrix; half of the splits of the second one."""
    state = solve(problem, gap=1e-6).state
    factor = torch.tensor([1.0, 0.5, 1.0], dtype=state.splits.dtype)
    return Start(SolveState(state.splits * factor[:, None, None], state.prices))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_warm_start_is_certified_matrix_by_matrix(dtype: torch.dtype) -> None:
    problem = random_problem(4, batch=3).to(dtype)
    start = _partly_solved(problem)
    alone = _after_runs(problem, EngineRun(WarmStart(), start))
    assert [stop is Stop.GAP for stop in alone.stopped_by] == [True, False, True]
    assert alone.splits.dtype == dtype
    together = _after_runs(
        problem, EngineRun(WarmStart(), start), EngineRun(InteriorPoints(), Start())
    )
    assert together.stopped_by == (Stop.GAP,) * 3
    assert together.splits.dtype == dtype
    assert [stage.matrices for stage in together.trace] == [3, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pdhg_continues_what_interior_points_leave(dtype: torch.dtype) -> None:
    problem = random_problem(4, batch=3).to(dtype)
    first = EngineRun(InteriorPoints(), Start(), max_iterations=1)
    alone = _after_runs(problem, first)
    assert any(stop is not Stop.GAP for stop in alone.stopped_by)
    result = _after_runs(problem, first, EngineRun(Pdhg(), None))
    assert result.stopped_by == (Stop.GAP,) * 3
    assert float(violations(problem, result.splits).largest.max()) <= _TOLERANCE[dtype]


def _inputs(problem: Problem, start: SolveState) -> dict[str, torch.Tensor]:
    """Copies of all tensors that a solve is given."""
    fields = {name: value for name, value in vars(problem).items() if torch.is_tensor(value)}
    fields |= {"splits": start.splits, "prices": start.prices}
    return {name: value.clone() for name, value in fields.items()}


_CASES = [
    (objective, engine)
    for objective in (
        ObjectiveName.TOTAL_FLOW,
        ObjectiveName.MAX_LINK_UTILISATION,
        ObjectiveName.MAX_CONCURRENT_FLOW,
        ObjectiveName.PROPORTIONAL_FAIR,
    )
    for engine in ("auto", "interior", "fused", "plain")
]
_CASES.append((ObjectiveName.MAX_MIN, "auto"))


@pytest.mark.parametrize("nodes", [5, 14])  # with the compiled kernels of small problems, without
@pytest.mark.parametrize(("objective", "engine"), _CASES)
def test_a_solve_leaves_its_problem_and_its_warm_start_unchanged(
    objective: ObjectiveName, engine: str, nodes: int
) -> None:
    problem = random_problem(4, objective=objective, nodes=nodes)
    # The optimum of half the demands, and a quarter of the links smaller than it knows.
    before = dataclasses.replace(problem, demand=problem.demand / 2)
    start = solve(before, gap=1e-4).state
    capacity = problem.capacity.clone()
    capacity[:, ::4] *= 0.3
    problem = problem.with_capacity(capacity)
    given = _inputs(problem, start)
    assert {"demand", "capacity", "splits", "prices"} <= set(given)
    solve(problem, gap=1e-3, engine=engine, warm_start=start, max_iterations=5000)
    after = _inputs(problem, start)
    for name, tensor in given.items():
        assert torch.equal(after[name], tensor), name


class _Boaster:
    """An engine that states twice the capacity, a bound of nothing and the target gap."""

    name = "boaster"

    def accepts(self, problem: Problem) -> bool:
        return True

    def predict_seconds(self, problem: Problem, start: Start, gap: float) -> float:
        return 0.0

    def solve(self, problem: Problem, start: Start, limits: Limits) -> Steps[SolveResult]:
        yield
        splits = torch.full((problem.batch, *problem.paths.mask.shape), 2.0)
        prices = torch.full_like(problem.capacity, -1.0)
        prices[:, 0] = torch.nan
        zeros = torch.zeros(problem.batch)
        return SolveResult(
            splits=splits,
            prices=prices,
            value=zeros + 1e9,
            bound=zeros,
            gap=zeros,
            iterations=1,
            solve_s=0.0,
            state=SolveState(splits, prices),
            stopped_by=(Stop.GAP,) * problem.batch,
        )


@pytest.mark.parametrize(
    "objective", [ObjectiveName.TOTAL_FLOW, ObjectiveName.MAX_LINK_UTILISATION]
)
@pytest.mark.parametrize("nodes", [5, 14])
def test_what_an_engine_of_a_package_states_is_computed_anew(
    objective: ObjectiveName, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_choice, "_OTHER_ENGINES", Registry("engine", "teal.engines"))
    engine_choice.register_engine("boaster", _Boaster)
    problem = random_problem(4, objective=objective, nodes=nodes)
    optimum = solve(problem, gap=1e-6)
    result = solve(problem, gap=1e-6, engine="boaster")
    sense = problem.objective.rules.sense
    assert float(violations(problem, result.splits).largest.max()) <= 1e-9
    torch.testing.assert_close(result.value, problem.value(result.splits))
    assert (sense * (result.bound - optimum.value) >= -1e-6 * optimum.value.abs()).all()
    assert (sense * (optimum.value - result.value) >= -1e-6 * optimum.value.abs()).all()
    assert result.stopped_by == (Stop.ITERATIONS,) * 3
    with pytest.raises(InputError, match="another entry has the name"):
        engine_choice.register_engine("fused", _Boaster)
