"""The gate over hedges: it begins as the mixture, stays on live paths, and serves any list of
hedges."""

from __future__ import annotations

import pytest
import torch

from teal.nn.hedge_gate import SCENARIO_SETS, GateInputs, HedgeGate, HedgeGateConfig, gate_inputs
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.testing import random_problem


def _inputs(
    seed: int, hedges: int, failed: int = 0
) -> tuple[Problem, GateInputs, torch.Tensor, torch.Tensor]:
    problem = random_problem(
        seed, objective=ObjectiveName.MAX_LINK_UTILISATION, batch=1, failed=failed
    )
    problem = problem.to(torch.float32)
    generator = torch.Generator().manual_seed(seed)
    recent = problem.demand * torch.rand(20, problem.demand.shape[1], generator=generator)
    live = problem.path_mask[0]
    raw = torch.rand(hedges, *live.shape, generator=generator) * live
    decisions = raw / raw.sum(-1, keepdim=True).clamp(min=1e-9)
    weights = torch.rand(hedges, generator=generator)
    weights /= weights.sum()
    sets = [recent[-1:], recent[-3:], recent[-9:], recent]
    return (
        problem,
        gate_inputs(problem, recent, sets, decisions, weights, weights / 10),
        decisions,
        weights,
    )


@pytest.mark.parametrize("failed", [0, 2])
@pytest.mark.parametrize("hedges", [1, 4])
def test_before_training_it_is_the_mixture(hedges: int, failed: int) -> None:
    _, inputs, decisions, weights = _inputs(3, hedges, failed)
    mixture = torch.einsum("h,hdk->dk", weights, decisions)
    torch.testing.assert_close(
        HedgeGate(HedgeGateConfig(8))(inputs, decisions).detach(), mixture, atol=1e-6, rtol=1e-5
    )


def test_with_any_weights_splits_are_shares_of_live_paths() -> None:
    problem, inputs, decisions, _ = _inputs(3, 3, failed=2)
    torch.manual_seed(0)
    model = HedgeGate(HedgeGateConfig(8))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    splits = model(inputs, decisions).detach()
    live = problem.path_mask[0]
    assert float(splits[~live].abs().sum()) == 0
    torch.testing.assert_close(splits.sum(-1)[live.any(-1)], torch.ones(int(live.any(-1).sum())))
    assert bool((splits >= 0).all())
    order = torch.tensor([2, 0, 1])
    shuffled = inputs._replace(gate=inputs.gate[order], log_weights=inputs.log_weights[order])
    torch.testing.assert_close(model(shuffled, decisions[order]).detach(), splits)


def test_a_step_against_the_prices_lowers_the_largest_utilisation() -> None:
    """The prices of a set of one matrix are a descent direction of its largest utilisation."""
    problem, inputs, decisions, weights = _inputs(5, 3)
    recent_alone = [problem.demand] * SCENARIO_SETS
    inputs = gate_inputs(
        problem, problem.demand.expand(4, -1), recent_alone, decisions, weights, weights
    )
    model = HedgeGate(HedgeGateConfig(8))
    mixture = model(inputs, decisions)
    with torch.no_grad():
        model.step[-1].bias += 0.02  # type: ignore[index]
    moved = model(inputs, decisions)
    before, after = (
        float(problem.utilisation(one.detach()[None]).amax()) for one in (mixture, moved)
    )
    assert after < before


def test_the_model_sees_how_far_the_newest_total_is_above_the_mean_total() -> None:
    """Of totals that go from 1/2 over 1 to 3/2 of their mean, it sees 1/2, for every demand."""
    problem, _, decisions, weights = _inputs(3, 2)
    first = problem.demand
    recent = torch.cat([first, 2 * first, 3 * first])
    inputs = gate_inputs(problem, recent, [recent] * SCENARIO_SETS, decisions, weights, weights)
    place = 8  # after six inputs of the demand and two of the series
    torch.testing.assert_close(inputs.step[:, place], torch.full_like(inputs.step[:, place], 0.5))
    torch.testing.assert_close(
        inputs.gate[..., place], torch.full_like(inputs.gate[..., place], 0.5)
    )
