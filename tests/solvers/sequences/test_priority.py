"""Priority classes by PDHG, against the sequence of linear programs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import teal
from baselines.linear_program import LpSettings
from baselines.lp_priority import solve_in_order
from teal.errors import InputError
from teal.problem.priority import priority_problem
from teal.runtime.interruptible import complete
from teal.solvers import pipeline
from teal.solvers.sequences.priority import residual_tasks
from teal.solvers.sequences.task import run_tasks
from teal.testing import assert_feasible, random_problem


def _problem(
    name: str, load: float, shares: tuple[float, ...] = (0.1, 0.3, 0.6), count: int = 2
) -> teal.Problem:
    topology = teal.load_topology(name)
    traffic = teal.load_traffic(f"gravity:seed=1,count={count},load={load}", topology)
    paths = teal.compute_paths(topology, traffic.pairs, cache=False)
    demand = traffic.read(slice(None))
    return teal.priority_problem(
        topology, paths, {f"class {i}": share * demand for i, share in enumerate(shares)}
    )


@pytest.mark.parametrize(
    ("name", "load"),
    [("b4", 3.0), ("b4", 10.0), ("topohub:sndlib/abilene", 5.0), ("topohub:sndlib/geant", 8.0)],
)
def test_every_class_is_at_its_optimum(name: str, load: float) -> None:
    problem = _problem(name, load)
    exact = solve_in_order(problem, LpSettings())
    optimum = teal.assess(problem, exact).classes
    result = teal.solve(problem, gap=1e-3)
    assert result.classes is not None
    assert optimum is not None
    assert bool((result.gap <= 1e-3).all())
    assert set(result.stopped_by) == {"gap"}
    # The first class may miss its optimum by the gap; what it then leaves is what the others may
    # gain.
    short = (optimum.value - result.classes.value).clamp(min=0)
    assert bool((short <= 1.001e-3 * optimum.value + 1e-6).all())
    assert bool((teal.violations(problem, result.splits).largest <= 1e-9).all())


def test_two_equal_classes_share_what_one_class_would_get() -> None:
    """All demand in the first class: the program of one class."""
    problem = _problem("b4", 6.0, (1.0, 0.0))
    result = teal.solve(problem, gap=1e-4)
    one = teal.Problem.create(
        problem.topology,
        teal.compute_paths(problem.topology, cache=False),
        teal.Objective(),
        problem.demand[:, : problem.paths.num_demands // 2].numpy(),
    )
    assert result.classes is not None
    np.testing.assert_allclose(
        result.classes.value[:, 0], teal.solve(one, gap=1e-4).value, rtol=2e-4
    )
    np.testing.assert_allclose(result.classes.value[:, 1], 0)


def test_the_residual_form_keeps_higher_classes_and_costs_lower_ones() -> None:
    problem = _problem("topohub:sndlib/geant", 8.0)
    joint = teal.solve(problem, gap=1e-3).classes
    splits = complete(run_tasks(residual_tasks(problem, 1e-4), pipeline.solving)).splits
    assert bool((teal.violations(problem, splits).largest <= 1e-9).all())
    scheme = teal.make_scheme("pdhg:form=residual,gap=0.0001").solve(problem)
    residual = teal.assess(problem, scheme).classes
    assert residual is not None
    assert joint is not None
    np.testing.assert_allclose(residual.value[:, 0], joint.value[:, 0], rtol=2e-3)
    assert bool((residual.value[:, 1:].sum(1) < joint.value[:, 1:].sum(1)).all())
    base = teal.Problem.create(
        problem.topology, problem.paths, teal.Objective(), problem.demand.numpy()
    )
    with pytest.raises(InputError, match="the objective priority"):
        teal.make_scheme("pdhg:form=residual").solve(base)


def test_a_deadline_ends_the_search_with_a_certified_allocation() -> None:
    result = teal.solve(_problem("b4", 10.0), gap=0.0, deadline=0.0)
    assert set(result.stopped_by) == {"deadline"}
    assert result.classes is not None
    assert bool((result.classes.bound >= result.classes.value * (1 - 1e-9)).all())
    assert bool(torch.isfinite(result.gap).all())


@pytest.mark.parametrize(("gold", "bronze"), [(1e4, 1e-4), (1e-4, 1e4), (1e6, 1.0)])
@pytest.mark.parametrize("seed", range(4))
def test_classes_of_volumes_that_differ_by_decades_have_their_gaps(
    seed: int, gold: float, bronze: float
) -> None:
    base = random_problem(seed, batch=3)
    demand = base.demand.numpy()
    problem = priority_problem(
        base.topology, base.paths, {"gold": gold * demand, "bronze": bronze * demand}
    )
    result = pipeline.solve(problem, gap=1e-2)
    exact = teal.assess(problem, solve_in_order(problem, LpSettings()))
    assert (result.gap <= 1e-2).all()
    allocation = teal.Allocation.of_batch(result.splits, result.prices, 0.0, result.program_prices)
    assert_feasible(problem, allocation, 1e-9)
    torch.testing.assert_close(
        teal.assess(problem, allocation).gap, result.gap, rtol=1e-6, atol=1e-9
    )
    assert exact.classes is not None
    assert result.classes is not None
    torch.testing.assert_close(
        result.classes.value[:, 0], exact.classes.value[:, 0], rtol=1.1e-2, atol=1e-9
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("objective", ["priority", "max_min"])
def test_sequences_start_from_an_earlier_solution_and_from_nonsense(
    objective: str, seed: int
) -> None:
    base = random_problem(seed, nodes=9, batch=3)
    shares = {"gold": 0.2, "bronze": 0.8}
    demand = 3 * base.demand.numpy()
    if objective == "priority":
        problem = priority_problem(
            base.topology, base.paths, {name: x * demand for name, x in shares.items()}
        )
    else:
        problem = teal.Problem.create(base.topology, base.paths, teal.Objective(objective), demand)
    cold = teal.solve(problem, gap=5e-3, engine="fused")
    warm = teal.solve(problem, gap=5e-3, warm_start=cold, engine="fused")
    by_both = teal.solve(problem, gap=5e-3, warm_start=cold)
    for result in (cold, warm, by_both):
        assert bool((result.gap <= 5e-3).all())
    if objective == "priority":
        assert warm.iterations < cold.iterations
    rng = np.random.default_rng(seed)
    splits = torch.from_numpy(rng.exponential(1, tuple(problem.path_mask.shape)) - 0.2)
    nonsense = splits, torch.from_numpy(rng.normal(0, 10, tuple(problem.capacity.shape)))
    assert bool((teal.solve(problem, gap=5e-3, warm_start=nonsense).gap <= 5e-3).all())
