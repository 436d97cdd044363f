"""Water-filling under linear limits on rates, against bisection over dense rows and lists of
links."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from teal.problem import Problem
from teal.runtime.arrays import FloatArray
from teal.solvers.sequences.rate_cuts import CutFilling, RateCut, cut_of, single_link_cuts
from teal.testing import random_problem


def _fair_by_bisection(
    a: FloatArray, b: FloatArray, weight: FloatArray, demand: FloatArray
) -> FloatArray:
    """Max-min fair rates with a @ f <= b and 0 <= f <= demand: all open levels rise until a row is
    full."""
    held = np.full(len(demand), np.nan)
    while np.isnan(held).any():
        low = 0.0
        high = float((demand / weight).max())
        for _ in range(200):
            middle = (low + high) / 2
            fits = (
                a @ np.where(np.isnan(held), np.minimum(middle * weight, demand), held) <= b
            ).all()
            low, high = (middle, high) if fits else (low, middle)
        rate = np.where(np.isnan(held), np.minimum(low * weight, demand), held)
        is_full = a @ rate >= b * (1 - 1e-9)
        stuck = (rate >= demand * (1 - 1e-9)) | (a[is_full] > 0).any(0)
        assert (stuck & np.isnan(held)).any()
        held = np.where(np.isnan(held) & stuck, rate, held)
    return held


def _problem(seed: int, failed: int = 0) -> Problem:
    return random_problem(seed, nodes=8, batch=1, failed=failed).to(torch.float64)


@pytest.mark.parametrize("seed", range(6))
def test_rates_under_cuts_are_those_of_bisection(seed: int) -> None:
    problem = _problem(seed)
    rng = np.random.default_rng(seed)
    demand = problem.demand[0].numpy()
    weight = rng.uniform(0.5, 2, len(demand))
    filling = CutFilling(problem, weight)
    for _ in range(4):
        filling.add(
            cut_of(
                problem, torch.from_numpy(rng.exponential(1, problem.topology.num_links).round())
            )
        )
    rates, levels = filling.rates()
    a = np.zeros((len(filling.cuts), len(demand)))
    b = np.array([cut.right_hand_side for cut in filling.cuts])
    for row, cut in zip(a, filling.cuts, strict=True):
        row[cut.demands] = cut.demand_price
        assert cut.excess(rates) <= 1e-9 * cut.right_hand_side
    assert [level.level for level in levels] == sorted(level.level for level in levels)
    routable = problem.routable[0].numpy()
    expected = _fair_by_bisection(a[:, routable], b, weight[routable], demand[routable])
    np.testing.assert_allclose(rates[routable], expected, rtol=1e-5)


@pytest.mark.parametrize("failed", [0, 2])
@pytest.mark.parametrize("seed", range(4))
def test_single_link_cuts_hold_the_demands_without_a_path_around_the_link(
    seed: int, failed: int
) -> None:
    problem = _problem(seed, failed)
    cuts = {int(np.flatnonzero(cut.prices)[0]): cut for cut in single_link_cuts(problem)}
    live = problem.path_mask[0].numpy()
    capacity = problem.capacity[0].numpy()
    for link in range(problem.topology.num_links):
        confined = [
            d
            for d in range(problem.paths.num_demands)
            if live[d].any()
            and all(link in problem.paths.links_of(d, int(k)) for k in np.flatnonzero(live[d]))
        ]
        can_fill = capacity[link] > 0 and problem.demand[0].numpy()[confined].sum() > capacity[link]
        assert (link in cuts) == can_fill
        if can_fill:
            assert cuts[link].demands.tolist() == confined
            assert cuts[link].right_hand_side == capacity[link]


def test_prices_beyond_the_range_of_sums_are_cuts_in_another_unit() -> None:
    problem = _problem(1)
    prices = torch.linspace(0.1, 1, problem.topology.num_links, dtype=torch.float64)
    filling, plain = (CutFilling(problem, np.ones(problem.paths.num_demands)) for _ in "ab")
    filling.add(cut_of(problem, 1e308 * prices))
    plain.add(cut_of(problem, prices))
    np.testing.assert_allclose(filling.rates()[0], plain.rates()[0], rtol=1e-9)


def test_a_demand_that_is_carried_whole_leaves_the_rest_to_the_others() -> None:
    """Three demands of 1, 5 and 9 Gbit/s on 10 Gbit/s: the first fits whole, the others get 4.5
    each."""
    problem = _problem(0)
    demand = torch.full_like(problem.demand, 1e-3)
    demand[0, :3] = torch.tensor([1.0, 5.0, 9.0])
    filling = CutFilling(problem.with_demand(demand), np.ones(demand.shape[1]))
    filling.add(
        RateCut(np.array([0, 1, 2]), np.ones(3), 10.0, np.zeros(problem.topology.num_links))
    )
    for limit in (30.0, 20.0):  # limits that are never reached
        filling.add(
            RateCut(np.array([0, 1, 2]), np.ones(3), limit, np.zeros(problem.topology.num_links))
        )
    rates, levels = filling.rates()
    np.testing.assert_allclose(rates[:3], [1.0, 4.5, 4.5])
    assert [
        level.fixed_demands.tolist() for level in levels if level.level == pytest.approx(4.5)
    ] == [[1, 2]]
