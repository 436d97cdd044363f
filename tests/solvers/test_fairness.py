"""Max-min fair rates, against networks solved by hand and against water-filling by linear programs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import teal
from teal.solvers.fairness import fair_flows, fairness, is_bottlenecked, max_min
from teal.testing import make_topology, random_problem


def _line(demand: list[float]) -> teal.Problem:
    """n0 -> n1 (9 Gbit/s) -> n2 (4 Gbit/s): demands 0 to 1, 0 to 2, 1 to 2, each with its one path."""
    topology = make_topology([(0, 1, 9.0), (1, 2, 4.0)])
    paths = teal.compute_paths(topology, np.array([[0, 1], [0, 2], [1, 2]], np.int32), num_paths=1, cache=False)
    return teal.Problem.create(topology, paths, teal.Objective(), np.array(demand))


def test_a_line_by_hand() -> None:
    # The second link gives 2 to each of its two demands; the first one is left with 7 for the demand that it has alone.
    np.testing.assert_allclose(max_min(_line([10.0, 10.0, 10.0]), iterations=400).rates[0], [7, 2, 2], rtol=0.01)
    # With weights 3 and 1 on the second link: 3 and 1.
    weight = torch.tensor([1.0, 3.0, 1.0])
    weighted = max_min(_line([10.0, 10.0, 10.0]), weight, iterations=400)
    np.testing.assert_allclose(weighted.rates[0], [6, 3, 1], rtol=0.02)
    # A demand of 0.5 is carried whole, and the other one gets the rest.
    np.testing.assert_allclose(max_min(_line([1.0, 10.0, 0.5]), iterations=400).rates[0], [1, 3.5, 0.5], rtol=0.01)


def test_rates_are_nearer_to_those_of_the_linear_programs_than_those_of_other_schemes() -> None:
    measured: dict[str, list[float]] = {"max-min": [], "adaptive-waterfiller": [], "geometric-binner": []}
    for seed in range(6):
        problem = random_problem(seed, nodes=8, density=0.5, batch=1, failed=1)
        problem = problem.with_demand(problem.demand * 4)
        exact = teal.make_scheme("max-min-lp").solve(problem)
        assert bool(is_bottlenecked(problem, exact.splits, tolerance=1e-3)[problem.routable].all())
        fair, least = problem.flows(exact.splits).sum(-1), 1e-3 * float(problem.capacity.max())
        for name, values in measured.items():
            rates = problem.flows(teal.make_scheme(name).solve(problem).splits).sum(-1)
            values.append(float(fairness(rates, fair, least)))
        found = max_min(problem)
        assert bool((teal.violations(problem, found.splits).largest <= 1e-9).all())
        assert bool((found.granted <= found.common_growth * (1 + 1e-6)).all())
    means = {name: float(np.mean(values)) for name, values in measured.items()}
    assert min(measured["max-min"]) > 0.92
    assert means["max-min"] > 0.96
    assert means["max-min"] > max(means["adaptive-waterfiller"], means["geometric-binner"])


def test_measured_shares_are_fair_if_weights_are_the_demands() -> None:
    problem = random_problem(11, nodes=6, density=0.6, num_paths=1, batch=1, idle=0.0)
    problem = problem.with_demand(problem.demand * 20)
    found = max_min(problem, problem.demand, iterations=400)
    share = found.rates / problem.demand
    lowest = share[problem.routable].min()
    concurrent = teal.Problem.create(
        problem.topology, problem.paths, teal.Objective(teal.ObjectiveName.MAX_CONCURRENT_FLOW), problem.demand.numpy()
    )
    assert float(lowest) >= 0.95 * float(teal.solve(concurrent, gap=1e-4).value[0])


def test_bottlenecks_are_told_from_room() -> None:
    problem = _line([10.0, 10.0, 10.0])
    fair = torch.tensor([[[0.7], [0.2], [0.2]]], dtype=torch.float64)
    assert is_bottlenecked(problem, fair).tolist() == [[True, True, True]]
    # Of the second link the long demand has more than the short one, which thus has no bottleneck, and the first link
    # has room, so that the demand on it alone has none either.
    unfair = torch.tensor([[[0.5], [0.3], [0.1]]], dtype=torch.float64)
    assert is_bottlenecked(problem, unfair).tolist() == [[False, True, False]]


def test_batches_are_solved_like_single_matrices() -> None:
    problem = random_problem(2, batch=3)
    together = fair_flows(problem, None, 50)
    for row in range(3):
        np.testing.assert_allclose(
            together[row : row + 1], fair_flows(problem.row(row), None, 50), rtol=1e-9, atol=1e-12
        )


def test_the_measure_of_fairness() -> None:
    rates = torch.tensor([[1.0, 2.0, 0.0]])
    assert float(fairness(rates, rates, 1e-3)) == pytest.approx(1.0)
    other = torch.tensor([[2.0, 1.0, 0.0]])
    assert float(fairness(rates, other, 1e-3)) == pytest.approx(0.25 ** (1 / 3))


def test_wrong_options_are_refused() -> None:
    for text in ("max-min:by=x", "max-min:iterations=-1", "max-min:gap=0", "adaptive-waterfiller:iterations=0"):
        with pytest.raises(teal.InputError):
            teal.make_scheme(text)
    for text in ("geometric-binner:ratio=1", "geometric-binner:decay=1"):
        with pytest.raises(teal.InputError):
            teal.make_scheme(text)
    balanced = random_problem(1, objective=teal.ObjectiveName.MAX_LINK_UTILISATION)
    for name in ("max-min", "max-min-lp", "geometric-binner", "adaptive-waterfiller"):
        with pytest.raises(teal.InputError, match="shed"):
            teal.make_scheme(name).solve(balanced)
    assert teal.make_scheme("max-min:by=demand").solve(random_problem(1)).status[0].usable
