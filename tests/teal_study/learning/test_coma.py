"""COMA* against brute-force advantages and enumerated optima on a network of three nodes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from teal.network import compute_paths
from teal.nn.policy import action_splits
from teal.objectives import SINGLE_PROGRAMS, Objective, ObjectiveName
from teal.problem import Problem
from teal.testing import make_topology, random_problem
from teal_study.learning.coma import Exploration, advantages, coma_loss, sample_actions
from teal_study.learning.losses import bound_loss, reward, total_demand_value
from teal_study.learning.noise import Stream

SAMPLES = 5


def _three_nodes(load: float, objective: ObjectiveName = ObjectiveName.TOTAL_FLOW) -> Problem:
    topology = make_topology([(0, 1, 3.0), (1, 2, 4.0), (0, 2, 5.0)], both=True)
    paths = compute_paths(topology, num_paths=2, cache=False)
    demand = load * np.array([2.0, 3.0, 1.0, 2.5, 1.5, 2.0])
    return Problem.create(topology, paths, Objective(objective), demand)


def _brute_force(
    problem: Problem,
    means: torch.Tensor,
    actions: torch.Tensor,
    exploration: Exploration,
    seed: int,
) -> torch.Tensor:
    """R(a) minus the mean of R(a_-i, a_i') over the same draws: one reward for each agent and
    sample."""
    noise, cut_demands_whole = Stream(seed), exploration.entries > 0
    executed = exploration.execute(problem, actions)
    expected = torch.zeros_like(problem.demand)
    for _ in range(SAMPLES):
        resampled = exploration.execute(problem, sample_actions(means, exploration.std, noise))
        for i in range(problem.paths.num_demands):
            changed = executed.clone()
            changed[:, i] = resampled[:, i]
            expected[:, i] += (
                reward(problem, changed, cut_demands_whole=cut_demands_whole) / SAMPLES
            )
    return reward(problem, executed, cut_demands_whole=cut_demands_whole)[:, None] - expected


def _both(
    problem: Problem, std: float, seed: int, entries: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    exploration = Exploration(std, SAMPLES, 1, entries)
    means = torch.randn(
        problem.path_mask.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    actions = sample_actions(means, std, Stream(seed + 1))
    estimate = advantages(problem, means, actions, exploration, Stream(seed + 2))
    return estimate, _brute_force(problem, means, actions, exploration, seed + 2)


@pytest.mark.parametrize("entries", [0, 4])
@pytest.mark.parametrize("std", [0.1, 1.0])
def test_coma_advantages_without_congestion_are_exact(std: float, entries: int) -> None:
    """Without congestion the reward is linear in the flows, so the first-order estimate has no
    error."""
    estimate, truth = _both(_three_nodes(load=0.5), std, 0, entries)
    assert truth.abs().max() > 1e-3
    torch.testing.assert_close(estimate, truth)


BALANCED = [ObjectiveName.MAX_LINK_UTILISATION, ObjectiveName.MAX_CONCURRENT_FLOW]


@pytest.mark.parametrize("objective", BALANCED)
@pytest.mark.parametrize("entries", [0, 1, 4])
def test_coma_advantages_of_balanced_programs_are_exact(
    objective: ObjectiveName, entries: int
) -> None:
    """Also with the paper's standard deviation of 1, and with split tables."""
    for seed in range(5):
        estimate, truth = _both(_three_nodes(load=3.0, objective=objective), 1.0, seed, entries)
        torch.testing.assert_close(estimate, truth)
    for seed in range(3):
        problem = random_problem(seed, objective=objective, nodes=8, failed=1)
        estimate, truth = _both(problem, 1.0, seed, entries)
        torch.testing.assert_close(estimate, truth)


@pytest.mark.parametrize(
    "objective", [ObjectiveName.TOTAL_FLOW, ObjectiveName.MAX_LINK_UTILISATION]
)
def test_error_of_coma_advantages_under_congestion_is_of_second_order(
    objective: ObjectiveName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tenth of the exploration the error falls to a hundredth, as that of a first-order
    estimate does."""
    monkeypatch.setattr("teal_study.learning.coma._MAX_EXPONENTIALS", 0)  # as on large networks
    problem, errors, sizes = _three_nodes(load=3.0, objective=objective), [], []
    for std in (1e-2, 1e-3):
        pairs = [_both(problem, std, seed) for seed in range(20)]
        errors.append(float(torch.stack([(e - t).abs().max() for e, t in pairs]).median()))
        sizes.append(float(torch.stack([t.abs().max() for _, t in pairs]).median()))
    assert errors[0] < 0.1 * sizes[0]
    assert errors[1] / errors[0] == pytest.approx(0.01, rel=0.5)
    assert sizes[1] / sizes[0] == pytest.approx(0.1, rel=0.5)


@pytest.mark.system
@pytest.mark.parametrize("load", [1.5, 3.0, 6.0])
@pytest.mark.parametrize(("std", "least"), [(0.2, 0.98), (1.0, 0.95)])
def test_coma_advantages_under_congestion_correlate_with_brute_force(
    load: float, std: float, least: float
) -> None:
    """Also at the paper's standard deviation of 1, where a demand's own cut changes with every
    draw."""
    problem = _three_nodes(load=load)
    pairs = [_both(problem, std, seed) for seed in range(100)]
    estimate, truth = (torch.cat(side).flatten() for side in zip(*pairs, strict=True))
    assert torch.corrcoef(torch.stack([estimate, truth]))[0, 1] > least


@pytest.mark.slow
def test_coma_advantages_on_random_networks_correlate_with_brute_force() -> None:
    pairs = [_both(random_problem(seed, nodes=8, batch=1), 1.0, seed) for seed in range(15)]
    estimate, truth = (
        torch.cat([part.flatten() for part in side]) for side in zip(*pairs, strict=True)
    )
    assert torch.corrcoef(torch.stack([estimate, truth]))[0, 1] > 0.95


@pytest.mark.system
def test_policy_gradient_of_coma_approaches_the_optimum() -> None:
    """Free means in place of a neural network: 300 steps of COMA* reach 97% of the optimum."""
    problem = _three_nodes(load=2.0)
    means = torch.zeros(problem.path_mask.shape, dtype=torch.float64, requires_grad=True)
    optimiser, noise = torch.optim.Adam([means], lr=0.05), Stream(0)
    before = reward(problem, action_splits(means, problem.path_mask, maximises_value=True))
    for _ in range(300):
        optimiser.zero_grad()
        coma_loss(problem, means, Exploration(0.2, SAMPLES, 4), noise).sum().backward()
        optimiser.step()
    after = reward(problem, action_splits(means, problem.path_mask, maximises_value=True))
    from baselines.lp_all import LpAll
    from teal.problem.assessment import assess

    optimum = assess(problem, LpAll().solve(problem)).satisfied_demand
    assert before.item() < 0.9 * optimum.item()
    assert after.item() > 0.97 * optimum.item()


def test_coma_learns_split_tables_though_rounding_has_no_gradient() -> None:
    """Each demand on one of two paths: the executed splits have a gradient of 0, and COMA* still
    improves them."""
    problem, exploration = _three_nodes(load=2.0), Exploration(0.5, SAMPLES, 4, entries=1)
    start = (
        0.1
        * torch.randn(problem.path_mask.shape, generator=torch.Generator().manual_seed(3)).double()
    )
    means = start.clone().requires_grad_()
    optimiser, noise = torch.optim.Adam([means], lr=0.1), Stream(0)
    for _ in range(120):
        optimiser.zero_grad()
        coma_loss(problem, means, exploration, noise).sum().backward()
        optimiser.step()
    before, after = (
        reward(problem, exploration.execute(problem, m.detach()), cut_demands_whole=True).item()
        for m in (start, means)
    )
    max_reward = 0.0  # largest reward of all 2^6 choices of a path per demand
    for number in range(2**6):
        choice = torch.tensor([[number >> d & 1 for d in range(6)]])
        splits = torch.nn.functional.one_hot(choice, 2) * problem.path_mask
        max_reward = max(
            max_reward, reward(problem, splits.double(), cut_demands_whole=True).item()
        )
    assert before < 0.9 * max_reward
    assert after > 0.95 * max_reward


@pytest.mark.parametrize("objective", SINGLE_PROGRAMS)
def test_bound_loss_and_reward_equal_certified_bound_and_value(objective: ObjectiveName) -> None:
    """The bound loss equals the certified bound; the reward of feasible splits equals their
    value."""
    from teal.problem.bounds import dual_bound, from_score

    problem = random_problem(3, objective=objective)
    prices = torch.rand(problem.capacity.shape, generator=torch.Generator().manual_seed(0)).double()
    loss, bound = bound_loss(problem, prices), dual_bound(problem, prices)
    if not problem.objective.maximises_value:
        torch.testing.assert_close(from_score(problem, loss), bound)
        uniform = problem.path_mask / problem.path_mask.sum(-1, keepdim=True).clamp(min=1)
        soft, hard = -reward(problem, uniform), problem.utilisation(uniform).amax(1)
        assert (soft >= hard).all(), "the soft maximum is at least the maximum"
        assert (soft <= hard * (1 + np.log(problem.topology.num_links) / 20) + 1e-9).all()
        return
    torch.testing.assert_close(loss * total_demand_value(problem), bound)
    small = 1e-3 * problem.path_mask.double()
    torch.testing.assert_close(
        reward(problem, small) * total_demand_value(problem), problem.value(small)
    )


def test_paths_that_do_not_exist_have_no_gradient() -> None:
    problem = random_problem(3)
    assert not problem.path_mask.all()
    means = torch.zeros(problem.path_mask.shape, dtype=torch.float64, requires_grad=True)
    coma_loss(problem, means, Exploration(0.5, 2, 1), Stream(0)).sum().backward()
    assert means.grad is not None
    assert (means.grad[~problem.path_mask] == 0).all()
    assert (means.grad[problem.path_mask] != 0).any()
