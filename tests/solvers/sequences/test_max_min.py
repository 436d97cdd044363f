"""Max-min fair allocations, against networks solved by hand and against water-filling by linear
programs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import teal
from teal.errors import InputError
from teal.runtime.interruptible import complete
from teal.solvers import pipeline
from teal.solvers.result import Stop
from teal.solvers.sequences import max_min
from teal.solvers.sequences.fairness import fairness, is_bottlenecked
from teal.solvers.sequences.task import run_tasks
from teal.testing import make_topology, random_problem


def _line(
    demand: list[float] | list[list[float]], weight: list[float] | None = None
) -> teal.Problem:
    """n0 -> n1 (9 Gbit/s) -> n2 (4 Gbit/s): demands 0 to 1, 0 to 2, 1 to 2, each with its one
    path."""
    topology = make_topology([(0, 1, 9.0), (1, 2, 4.0)])
    paths = teal.compute_paths(
        topology, np.array([[0, 1], [0, 2], [1, 2]], np.int32), num_paths=1, cache=False
    )
    weights = None if weight is None else np.array(weight)
    return teal.Problem.create(
        topology,
        paths,
        teal.Objective(teal.ObjectiveName.MAX_MIN),
        np.array(demand),
        weight=weights,
    )


def _rates(problem: teal.Problem, splits: torch.Tensor) -> torch.Tensor:
    return problem.flows(splits.to(problem.demand)).sum(-1)


def test_a_line_by_hand() -> None:
    # The second link gives 2 to each of its two demands; the first one is left with 7 for the
    # demand that it has alone. A demand of 0.5 is carried whole, and the other one gets the rest.
    problem = _line([[10.0, 10.0, 10.0], [1.0, 10.0, 0.5], [0.0, 0.0, 0.0]])
    result = teal.solve(problem, gap=1e-3)
    expected = np.array([[7.0, 2.0, 2.0], [1.0, 3.5, 0.5], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(_rates(problem, result.splits), expected, rtol=2e-3, atol=1e-9)
    assert result.fair is not None
    assert [[level.demands for level in own] for own in result.fair.levels] == [[2, 1], [1], []]
    assert result.fair.held == result.fair.open == (3, 1, 0)
    assert result.gap.tolist() == pytest.approx([0.0, 0.0, 0.0], abs=2e-3)


def test_weights_by_hand() -> None:
    """With weights 3 and 1 on the second link: 3 and 1, and the first link has 6 left."""
    problem = _line([10.0, 10.0, 10.0], [1.0, 3.0, 1.0])
    for scheme in ("pdhg", "lp-all", "max-min:iterations=400"):
        rates = _rates(problem, teal.make_scheme(scheme).solve(problem).splits)
        np.testing.assert_allclose(rates, [[6.0, 3.0, 1.0]], rtol=0.02, err_msg=scheme)
    unweighted = _line([10.0, 10.0, 10.0])
    tasks = max_min.level_tasks(unweighted, 1e-3, torch.tensor([1.0, 3.0, 1.0]))
    given = complete(run_tasks(tasks, pipeline.solving))
    np.testing.assert_allclose(_rates(unweighted, given.splits), [[6.0, 3.0, 1.0]], rtol=0.02)
    with pytest.raises(InputError, match="above 0"):
        _line([1.0, 1.0, 1.0], [1.0, 0.0, 1.0])


@pytest.mark.system
def test_rates_are_those_of_the_linear_programs_and_certified() -> None:
    measured = []
    for seed in range(12):
        problem = random_problem(
            seed,
            nodes=7,
            density=0.5,
            batch=3,
            failed=seed % 3,
            objective=teal.ObjectiveName.MAX_MIN,
        )
        problem = problem.with_demand(problem.demand * (1.0, 4.0, 30.0)[seed % 3])
        exact = teal.make_scheme("lp-all").solve(problem)
        result = teal.solve(problem, gap=5e-3)
        assert bool((teal.violations(problem, result.splits).largest <= 1e-9).all())
        least = 1e-3 * float(problem.capacity.max())
        measured += fairness(
            _rates(problem, result.splits), _rates(problem, exact.splits), least
        ).tolist()
        torch.testing.assert_close(result.value, problem.value(exact.splits), rtol=0.05, atol=0)
        certified = teal.assess(problem, exact)
        assert certified.fair is not None
        assert certified.fair.held == certified.fair.open, "the prices of the LPs hold every demand"
        assert float(certified.gap.max()) < 1e-6
    assert min(measured) > 0.95
    assert np.mean(measured) > 0.995


def test_the_certificate_does_not_depend_on_who_made_it() -> None:
    """The exact allocation loses its certificate without prices, and the levels of another
    allocation grow."""
    problem = _line([10.0, 10.0, 10.0])
    fair = teal.solve(problem, gap=1e-4)
    unfair = torch.tensor([[[0.8], [0.1], [0.3]]], dtype=torch.float64)
    assessed = teal.assess(
        problem, teal.Allocation.of_batch(unfair, None, 0.0, fair.program_prices)
    )
    assert float(assessed.gap[0]) > 0.1
    without = teal.assess(problem, teal.Allocation.of_batch(fair.splits, None, 0.0))
    assert float(without.gap[0]) == pytest.approx(1 - 11 / 30, abs=1e-3), (
        "each demand could be carried whole"
    )


def test_a_deadline_leaves_levels_out_and_the_gap_says_so() -> None:
    problem = random_problem(4, nodes=8, density=0.5, batch=3, objective=teal.ObjectiveName.MAX_MIN)
    problem = problem.with_demand(problem.demand * 30)
    result = teal.solve(problem, gap=1e-3, deadline=0.0)
    assert bool((teal.violations(problem, result.splits).largest <= 1e-9).all())
    assert result.stopped_by == (Stop.DEADLINE,) * 3
    assert float(result.gap.min()) > 0.05
    assert float(result.value.min()) > 0


def test_rates_are_nearer_to_those_of_the_linear_programs_than_those_of_other_schemes() -> None:
    measured: dict[str, list[float]] = {
        "max-min": [],
        "adaptive-waterfiller": [],
        "geometric-binner": [],
    }
    for seed in range(6):
        problem = random_problem(seed, nodes=8, density=0.5, batch=1, failed=1)
        problem = problem.with_demand(problem.demand * 4)
        exact = teal.make_scheme("max-min-lp").solve(problem)
        assert bool(is_bottlenecked(problem, exact.splits, tolerance=1e-3)[problem.routable].all())
        fair = problem.flows(exact.splits).sum(-1)
        least = 1e-3 * float(problem.capacity.max())
        for name, values in measured.items():
            rates = problem.flows(teal.make_scheme(name).solve(problem).splits).sum(-1)
            values.append(float(fairness(rates, fair, least)))
        result = complete(run_tasks(max_min.level_tasks(problem, 5e-3), pipeline.solving))
        assert bool((teal.violations(problem, result.splits).largest <= 1e-9).all())
    means = {name: float(np.mean(values)) for name, values in measured.items()}
    assert min(measured["max-min"]) > 0.92
    assert means["max-min"] > 0.96
    assert means["max-min"] > max(means["adaptive-waterfiller"], means["geometric-binner"])


def test_measured_shares_are_fair_if_weights_are_the_demands() -> None:
    problem = random_problem(11, nodes=6, density=0.6, num_paths=1, batch=1, idle=0.0)
    problem = problem.with_demand(problem.demand * 20)
    result = complete(
        run_tasks(
            max_min.level_tasks(problem, 5e-3, problem.demand, iterations=400), pipeline.solving
        )
    )
    share = _rates(problem, result.splits) / problem.demand
    lowest = share[problem.routable].min()
    concurrent = teal.Problem.create(
        problem.topology,
        problem.paths,
        teal.Objective(teal.ObjectiveName.MAX_CONCURRENT_FLOW),
        problem.demand.numpy(),
    )
    assert float(lowest) >= 0.95 * float(teal.solve(concurrent, gap=1e-4).value[0])


def test_the_scheme_takes_the_form() -> None:
    problem = random_problem(3, batch=1)
    result = teal.make_scheme("max-min:form=filling").solve(problem)
    torch.testing.assert_close(
        result.splits, complete(run_tasks(max_min.tasks(problem, 5e-3), pipeline.solving)).splits
    )
    with pytest.raises(InputError, match="form"):
        teal.make_scheme("max-min:form=best")


def test_what_paths_cannot_carry_is_no_part_of_the_gap() -> None:
    base = random_problem(7, nodes=8, batch=3, failed=1)
    problem = teal.Problem.create(
        base.topology,
        base.paths,
        teal.Objective("max_min"),
        1000 * base.demand.numpy(),
        capacity=base.capacity.numpy(),
    )
    result = teal.solve(problem, gap=2e-3)
    assert bool((result.gap <= 2e-3).all())
