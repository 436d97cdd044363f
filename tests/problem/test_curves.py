"""Concave utilities: the curve, its conjugate and projection against plain searches, and
certificates on networks."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar

from baselines.lp_all import LpAll
from teal.cli import main
from teal.errors import InputError
from teal.network import all_pairs, compute_paths
from teal.objectives import Objective
from teal.problem import Problem, assess, dual_bound, violations
from teal.problem.bounds import all_paths_bound
from teal.problem.curves import Concave, Curve, project_concave, project_concave_box
from teal.runtime.arrays import FloatArray
from teal.solvers.columns import generate_columns
from teal.solvers.pipeline import solve
from teal.testing import make_topology, random_problem

ALPHAS = [0.0, 0.5, 1.0, 2.0, 4.0, 16.0]


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_share_of_a_utility_is_its_inverse_and_the_slope_at_1_is_1(alpha: float) -> None:
    curve, share = Curve(alpha), torch.tensor([1e-3, 0.1, 0.5, 0.999, 1.0], dtype=torch.float64)
    torch.testing.assert_close(curve.share_of(curve.utility(share)), share, rtol=1e-9, atol=0)
    assert float(curve.utility(share)[-1]) == 0
    slope = (0 - float(curve.utility(torch.tensor(1 - 1e-7, dtype=torch.float64)))) / 1e-7
    assert slope == pytest.approx(1, rel=1e-5)


@given(
    alpha=st.sampled_from(ALPHAS),
    points=st.lists(st.floats(-3, 3), min_size=1, max_size=4),
    strength=st.floats(1e-6, 10),
    closed=st.integers(0, 3),
)
def test_the_projection_is_the_minimum(
    alpha: float, points: list[float], strength: float, closed: int
) -> None:
    """By the sum z of the shares, of which the nearest point is a projection onto a simplex, and a
    search for z."""
    live = torch.ones(len(points), dtype=torch.bool)
    if len(points) > 1:
        live[closed % len(points)] = False
    point = torch.tensor(points, dtype=torch.float64)
    found = project_concave(
        point[None, None],
        live[None, None],
        torch.tensor([[[strength]]], dtype=torch.float64),
        alpha,
    )[0, 0]
    assert bool((found >= 0).all())
    assert bool((found[~live] == 0).all())
    assert float(found.sum()) <= 1 + 1e-12
    own = point[live].numpy()

    def at(total: float) -> float:
        order = np.sort(own)[::-1]
        shift = max((order[: j + 1].sum() - total) / (j + 1) for j in range(len(order)))
        return cost(np.maximum(own - shift, 0))

    def cost(shares: np.ndarray) -> float:
        total = max(float(shares.sum()), 1e-300)
        utility = math.log(total) if alpha == 1 else (total ** (1 - alpha) - 1) / (1 - alpha)
        return float(((shares - own) ** 2).sum() / 2 - strength * utility)

    best = min(
        minimize_scalar(at, bounds=(1e-9, 1), method="bounded", options={"xatol": 1e-12}).fun,
        at(1.0),
    )
    assert cost(found[live].numpy()) <= best + 1e-7 * (1 + abs(best))


@given(alpha=st.sampled_from(ALPHAS), price=st.floats(0, 100), unit_value=st.floats(0.01, 10))
def test_the_support_is_the_largest_profit_of_a_share(
    alpha: float, price: float, unit_value: float
) -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    concave = Concave(Curve(alpha), unit_value * one, one, one[0])
    share = np.concatenate([np.linspace(1e-6, 1, 20_001), np.geomspace(1e-12, 1, 2001)])
    utility = np.log(share) if alpha == 1 else (share ** (1 - alpha) - 1) / (1 - alpha)
    expected = float((unit_value * (utility + 1) - price * share).max())
    if alpha == 0:
        expected = max(expected, 0.0)
    assert float(concave.support_of_best(1 - price * one)) == pytest.approx(
        expected, rel=1e-5, abs=1e-5 * unit_value
    )


def test_a_network_solved_by_hand() -> None:
    """Two demands of 2 and 4 over a link of 3: log by demand gives both half, log alike 0.75 and
    0.375."""
    topology = make_topology([(0, 1, 3.0), (2, 0, 9.0)])
    paths = compute_paths(topology, np.array([[0, 1], [2, 1]]), num_paths=1, cache=False)
    for spec, shares in (
        ("proportional_fair", [0.5, 0.5]),
        ("proportional_fair:weight=1", [0.75, 0.375]),
    ):
        problem = Problem.create(topology, paths, spec, np.array([[2.0, 4.0]]))
        best = torch.tensor(shares, dtype=torch.float64)[None, :, None]
        weight = (
            torch.tensor([2.0, 4.0], dtype=torch.float64) / 6
            if spec == "proportional_fair"
            else torch.tensor([0.5, 0.5])
        )
        expected = math.exp(
            sum(w * math.log(s) for w, s in zip(weight.tolist(), shares, strict=True))
        )
        assert float(problem.value(best)) == pytest.approx(expected, rel=1e-12)
        # At the optimum the price of the link is w / share of every demand: the bound meets the
        # value.
        assert problem.utility is not None
        price = problem.utility.unit_value[0, 0] / shares[0]
        prices = torch.tensor([[float(price), 0.0]], dtype=torch.float64)
        assert float(dual_bound(problem, prices)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "spec", ["proportional_fair", "alpha_fair:alpha=0.5,weight=1", "alpha_fair:alpha=4"]
)
def test_any_prices_bound_any_allocation(seed: int, spec: str) -> None:
    base = random_problem(seed, batch=3, failed=seed)
    problem = Problem.create(
        base.topology, base.paths, spec, base.demand.numpy(), capacity=base.capacity.numpy()
    )
    rng = np.random.default_rng(seed)
    splits = torch.from_numpy(rng.dirichlet(np.ones(problem.paths.num_paths), problem.demand.shape))
    splits = torch.where(problem.path_mask, splits, 0)
    splits = splits / problem.utilisation(splits).amax(1).clamp(min=1)[:, None, None]
    value = problem.value(splits)
    assert bool(((value >= 0) & (value <= 1)).all())
    for scale in (0.0, 0.1, 1.0, 30.0):
        prices = torch.from_numpy(rng.exponential(scale, problem.capacity.shape))
        assert bool((dual_bound(problem, prices) >= value * (1 - 1e-12)).all())
        assert bool(
            (all_paths_bound(problem, prices) >= dual_bound(problem, prices) * (1 - 1e-12)).all()
        )


def test_alpha_0_is_total_flow() -> None:
    fair = random_problem(3, batch=3, idle=0.0)
    problem = Problem.create(fair.topology, fair.paths, "alpha_fair:alpha=0", fair.demand.numpy())
    splits = problem.first_path_splits * 0.1
    routable = problem.routable_demand.sum(1)
    torch.testing.assert_close(problem.value(splits), problem.flows(splits).sum((1, 2)) / routable)


def test_demands_without_weight_count_for_nothing() -> None:
    topology = make_topology([(0, 1, 3.0), (1, 0, 3.0)], min_nodes=3)
    paths = compute_paths(topology, all_pairs(topology), num_paths=1, cache=False)
    demand = np.zeros((1, paths.num_demands))
    demand[0, [0, 1]] = 1.0  # from node 0 to 1, which has a path, and to 2, which has none
    problem = Problem.create(topology, paths, "proportional_fair:weight=1", demand)
    assert float(problem.value(problem.even_splits)) == 1
    nothing = Problem.create(topology, paths, "proportional_fair", np.zeros_like(demand))
    assert float(nothing.value(nothing.even_splits)) == 1
    assert float(dual_bound(nothing, torch.zeros_like(nothing.capacity))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "alpha_fair:alpha=-1",
        "alpha_fair:alpha=65",
        "alpha_fair:alpha=x",
        "alpha_fair:weight=2",
        "alpha_fair:beta=1",
        "proportional_fair:alpha=2",
        "total_flow:alpha=2",
    ],
)
def test_wrong_options_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="objective"):
        Objective(text)


def test_the_gap_of_the_loss() -> None:
    rules = Objective("alpha_fair:alpha=2").rules
    assert rules.loss_gap(0.5, 0.75) == pytest.approx(
        (1 - 1 / 0.75 + 1) / 1, rel=1e-12
    )  # u = 1 - 1 / s
    assert Objective("proportional_fair").rules.loss_gap(0.5, 1.0) == 1
    assert Objective("proportional_fair").rules.loss_gap(1.0, 1.0) == 0
    assert Objective().rules.loss_gap(1.0, 2.0) is None


FAIR = (
    "proportional_fair",
    "proportional_fair:weight=1",
    "alpha_fair:alpha=0.5",
    "alpha_fair:alpha=2",
)


def _churn(problem: Problem) -> Problem:
    return problem.with_churn_limit(problem.first_path_splits[0] * 0.7, 0.2)


def _promises(problem: Problem) -> Problem:
    """Promises that survive the failure of some two links, each alone, that cut no demand off."""
    for first in range(problem.topology.num_links):
        promised = problem.with_protection([[first], [(first + 3) % problem.topology.num_links]])
        if bool(promised.rewritten.program.live.any(-1)[problem.demand > 0].all()):
            return promised
    raise AssertionError("every failure cuts a demand of this network off: choose another seed")


@pytest.mark.parametrize("under", [_churn, _promises])
@pytest.mark.parametrize("objective", FAIR)
@pytest.mark.parametrize("seed", [1, 3, 5])
def test_shares_under_conditions_are_those_of_clarabel(
    seed: int, objective: str, under: Callable[[Problem], Problem]
) -> None:
    base = random_problem(seed, batch=3, idle=0.2)
    problem = under(Problem.create(base.topology, base.paths, objective, 3 * base.demand.numpy()))
    result = solve(problem, gap=1e-4, max_iterations=20_000)
    assert not any(
        bool((broken > 1e-6).any())
        for broken in violations(problem, result.splits).conditions.values()
    )
    reference = LpAll().solve(problem)
    best = assess(problem, reference)
    assert bool((best.max_violation < 1e-6).all())
    assert bool((result.value <= best.value * (1 + 1e-6)).all())
    assert bool((result.bound >= best.value * (1 - 1e-6)).all())
    assert bool((result.gap <= 1e-4).all())
    assert bool((best.gap <= 1e-3).all()), "Clarabel's prices of links alone prove as much"


def test_a_limit_that_leaves_a_demand_without_a_share_is_refused() -> None:
    base = random_problem(1, batch=1, idle=0.0)
    problem = Problem.create(base.topology, base.paths, "proportional_fair", base.demand.numpy())
    with pytest.raises(InputError, match="a share of every demand"):
        solve(problem.with_churn_limit(torch.zeros_like(problem.even_splits[0]), 0.0), gap=0.01)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 3.0])
def test_the_projection_with_limits_is_the_nearest_point(alpha: float) -> None:
    """Against scipy's minimiser of the same function."""
    rng = np.random.default_rng(int(10 * alpha))
    point, largest = rng.normal(0.2, 0.4, (1, 6, 3)), rng.uniform(0, 0.6, (1, 6, 3))
    slope, strength = rng.uniform(0.3, 1, (1, 6, 3)), rng.uniform(0.01, 0.5, (1, 6, 1))
    of_torch = [torch.from_numpy(array) for array in (point, largest, slope, strength)]
    found = project_concave_box(of_torch[0], of_torch[1], of_torch[2], of_torch[3], alpha)[
        0
    ].numpy()
    curve = Curve(alpha)

    def value(w: FloatArray, d: int) -> float:
        total = torch.tensor(max(float(w.sum()), 1e-12), dtype=torch.float64)
        return float(
            ((w - point[0, d]) ** 2 / (2 * slope[0, d])).sum()
            - strength[0, d, 0] * float(curve.utility(total))
        )

    for d in range(6):
        assert (found[d] >= 0).all()
        assert (found[d] <= largest[0, d] + 1e-12).all()
        assert found[d].sum() <= 1 + 1e-9
        best = minimize(
            value,
            np.minimum(largest[0, d], 0.3),
            (d,),
            method="SLSQP",
            bounds=[(0, m) for m in largest[0, d]],
            constraints={"type": "ineq", "fun": lambda w: 1 - w.sum()},
            options={"ftol": 1e-14, "maxiter": 500},
        )
        assert value(found[d], d) <= best.fun + 1e-8


def test_the_support_with_limits_is_the_best_of_many_shares() -> None:
    base = random_problem(3, batch=1, idle=0.0)
    problem = Problem.create(base.topology, base.paths, "alpha_fair:alpha=2", base.demand.numpy())
    limited = problem.with_churn_limit(
        problem.first_path_splits[0] * 0.5, 0.5
    ).rewritten.program.demand_set
    assert isinstance(limited, Concave)
    assert limited.max_share is not None
    rng, live = np.random.default_rng(0), limited.max_share > 0
    profit = torch.from_numpy(1 - rng.exponential(1.5, tuple(live.shape)))
    support = limited.support(profit, live)
    price = (1 - profit).clamp(min=0)
    for _ in range(300):
        shares = (
            torch.from_numpy(rng.uniform(size=tuple(live.shape))) ** 3 * limited.max_share * live
        )
        shares = shares / shares.sum(-1, keepdim=True).clamp(min=1)
        total = shares.sum(-1).clamp(min=1e-9)
        unit_value = limited.unit_value * (limited.curve.utility(total) + 1) - (price * shares).sum(
            -1
        )
        assert bool((torch.where(limited.unit_value > 0, unit_value, 0) <= support + 1e-9).all())


@pytest.mark.parametrize("command", ["plan", "next-interval", "certify --allocation x.csv"])
def test_commands_that_measure_flow_refuse_shares(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if command == "next-interval":
        pytest.importorskip("teal_next", reason="needs the package teal_next")
    words = command.split()
    network = ["--topology", "b4", "--traffic", "gravity:seed=0,count=4", "--out", "x"]
    assert main([*words, *network, "--objective", "alpha_fair:alpha=2"]) == 2
    assert "is not linear in the flows" in capsys.readouterr().err


def test_a_demand_that_only_the_network_connects_gets_its_first_path() -> None:
    """Its candidate path has failed: until it has another one, no bound over all paths is below
    1."""
    topology = make_topology([(0, 1, 10.0), (0, 2, 10.0), (2, 1, 10.0)])
    pairs = np.array([[0, 1], [0, 2]], dtype=np.int32)
    paths = compute_paths(topology, pairs, num_paths=1, cache=False)
    capacity = topology.with_failed_links(topology.find_links("n0", "n1")[:1]).capacity
    problem = Problem.create(
        topology, paths, "proportional_fair:weight=1", np.array([[5.0, 20.0]]), capacity=capacity
    )
    alone = solve(problem, gap=1e-6)
    assert float(all_paths_bound(problem, alone.prices)[0]) == 1
    found = generate_columns(problem, target=1e-5)
    assert int(found.paths.mask.sum()) == 3
    # Both share 10 Gbit/s: log x + log y is largest at 5 each, which are shares of 1 and 1/4.
    assert float(found.result.value[0]) == pytest.approx(0.5, rel=1e-4)
    assert float(found.bound_all_paths[0]) >= 0.5 * (1 - 1e-9)
