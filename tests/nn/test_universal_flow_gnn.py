"""The universal FlowGNN: compiled passes against torch, and what its outputs must not depend on."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from teal.errors import InputError
from teal.network.path_changes import first_paths_of_each
from teal.nn import flow_passes_fused
from teal.nn.flow_gnn_config import UNIVERSAL_WIDTHS, FlowGnnConfig
from teal.nn.flow_passes import TorchPasses
from teal.nn.flow_passes_fused import CompiledPasses
from teal.nn.universal_flow_gnn import LOGIT_CLAMP, UniversalFlowGnn, _LinkFeatures
from teal.objectives import SINGLE_PROGRAMS, ObjectiveName
from teal.testing import random_problem
from teal_study.learning.losses import bound_loss, reward


def _model(width: int = 8, layers: int = 3, seed: int = 0) -> UniversalFlowGnn:
    """Random weights, larger than those that training begins with, so that every part matters."""
    torch.manual_seed(seed)
    model = UniversalFlowGnn(FlowGnnConfig(layers=layers, width=width))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "action" in name or name.startswith("price"):
                weight.add_(0.3 * torch.randn_like(weight))
    return model.eval()


@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(SINGLE_PROGRAMS),
    num_paths=st.integers(1, 5),
    density=st.sampled_from([0.1, 0.3, 0.7]),
    failed=st.sampled_from([0, 1, 4, 99]),
    idle=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_compiled_passes_equal_those_in_torch(
    seed: int, objective: ObjectiveName, num_paths: int, density: float, failed: int, idle: float
) -> None:
    """Failed links (all of them too), zero demands, unreachable pairs, one path, costs of links,
    batches."""
    problem = random_problem(
        seed, objective=objective, num_paths=num_paths, density=density, failed=failed, idle=idle
    )
    problem, model = problem.to(torch.float32), _model()
    assert CompiledPasses.accepts(problem, 8)
    splits, prices = model.allocate(problem)
    with torch.no_grad():
        means, reference_prices = model(problem)
    torch.testing.assert_close(splits, model.splits(means, problem), atol=2e-4, rtol=0)
    torch.testing.assert_close(prices, reference_prices, atol=2e-4, rtol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("width", UNIVERSAL_WIDTHS)
def test_compiled_passes_of_every_width_equal_those_in_torch(width: int) -> None:
    problem, model = random_problem(3, failed=1, batch=3).to(torch.float32), _model(width)
    splits, _ = model.allocate(problem)
    with torch.no_grad():
        torch.testing.assert_close(
            splits, model.splits(model(problem)[0], problem), atol=1e-4, rtol=0
        )


@pytest.mark.parametrize(
    "objective", [ObjectiveName.TOTAL_FLOW, ObjectiveName.MAX_LINK_UTILISATION]
)
def test_a_path_set_with_empty_columns_gives_the_same_splits(objective: ObjectiveName) -> None:
    """The weights are those of any K: padding every demand to more paths changes nothing."""
    problem = random_problem(2, objective=objective, num_paths=3)
    wider = problem.with_paths(first_paths_of_each(problem.paths, 6))
    model = _model().double()
    (means, prices), (wide_means, wide_prices) = model(problem), model(wider)
    mask = problem.path_mask
    torch.testing.assert_close(
        torch.where(mask, wide_means[..., :3], 0), torch.where(mask, means, 0)
    )
    torch.testing.assert_close(prices, wide_prices)


@pytest.mark.parametrize("objective", SINGLE_PROGRAMS)
def test_scaling_capacities_and_demands_together_changes_nothing(objective: ObjectiveName) -> None:
    problem = random_problem(5, objective=objective, failed=1)
    larger = dataclasses.replace(
        problem, demand=1000 * problem.demand, capacity=1000 * problem.capacity
    )
    model = _model().double()
    mask = problem.path_mask
    means, scaled = (torch.where(mask, model(one)[0], 0) for one in (problem, larger))
    torch.testing.assert_close(means, scaled)


def test_scaling_all_values_scales_the_prices_alone() -> None:
    problem = random_problem(5, objective=ObjectiveName.LATENCY_PENALISED_FLOW)
    factor = 1000.0
    dearer = dataclasses.replace(
        problem, demand_value=factor * problem.demand_value, link_cost=factor * problem.link_cost
    )
    model = _model().double()
    (means, prices), (other_means, other_prices) = model(problem), model(dearer)
    torch.testing.assert_close(means, other_means)
    torch.testing.assert_close(factor * prices, other_prices)


@pytest.mark.parametrize("objective", SINGLE_PROGRAMS)
def test_every_weight_has_a_gradient(objective: ObjectiveName) -> None:
    problem, model = random_problem(1, objective=objective, failed=1), _model().double().train()
    actions, prices = model.tentative(problem)
    assert len(actions) == model.config.layers + 1
    (
        bound_loss(problem, prices) - reward(problem, model.splits(actions[-1], problem))
    ).sum().backward()
    for name, weight in model.named_parameters():
        if name != "log_sharpness":  # of the other kind of program it is not used
            assert weight.grad is not None, name
            assert torch.isfinite(weight.grad).all(), name
            # A bias that all paths of a demand share cancels where nothing can be rejected.
            cancels = name.endswith("action.bias") and not problem.objective.maximises_value
            assert cancels or weight.grad.abs().max() > 0, name


def test_a_width_that_compiled_code_does_not_take_is_refused() -> None:
    with pytest.raises(InputError, match="width"):
        FlowGnnConfig(width=5)


def test_in_a_balanced_program_what_links_see_of_the_paths_does_not_depend_on_the_unit_of_demands() -> (
    None
):
    """Utilisations and elasticities are over the largest utilisation, however heavily the network
    is loaded."""
    problem = random_problem(5, objective=ObjectiveName.MAX_LINK_UTILISATION, failed=1)
    generator = torch.Generator().manual_seed(0)
    price = torch.rand(problem.capacity.shape, generator=generator, dtype=torch.float64)
    sums = torch.rand(*price.shape, 10, generator=generator, dtype=torch.float64)
    seen = []
    for factor in (1, 1000):
        scaled = problem.with_demand(factor * problem.demand)
        links = _LinkFeatures(scaled, TorchPasses(scaled, LOGIT_CLAMP))
        links.set_sums(
            price, factor * sums
        )  # load, elasticity and sums of states, all of them weighted by demand
        seen.append(torch.cat([links.static, links.dynamic_features(), links.mean_path_states], -1))
    torch.testing.assert_close(seen[0], seen[1])


@pytest.mark.parametrize(
    "objective", [ObjectiveName.TOTAL_FLOW, ObjectiveName.MAX_LINK_UTILISATION]
)
def test_compiled_passes_over_several_blocks_of_sources_equal_those_in_torch(
    objective: ObjectiveName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_passes_fused, "_MIN_BLOCK_WORK", 1)
    problem, model = random_problem(3, objective=objective, batch=3).to(torch.float32), _model()
    assert len(problem.paths.packed.blocks(1, flow_passes_fused._MAX_BLOCKS)) > 3, (
        "there are several blocks"
    )
    splits, prices = model.allocate(problem)
    with torch.no_grad():
        means, reference_prices = model(problem)
    torch.testing.assert_close(splits, model.splits(means, problem), atol=1e-4, rtol=0)
    torch.testing.assert_close(prices, reference_prices, atol=1e-4, rtol=1e-4)


def test_prices_near_zero_are_learnt_again() -> None:
    """At a raw price of -30 softplus is flat: with its own gradient the bound would stay that of
    zero prices, the value of all demand."""
    problem = random_problem(0)
    problem = problem.with_demand(10 * problem.demand)
    model = _model().double().train()
    last = model.bound_price[-1]
    assert isinstance(last, torch.nn.Linear)
    torch.nn.init.constant_(last.bias, -30.0)
    optimiser = torch.optim.Adam(model.parameters(), 0.01)
    bounds = []
    for _ in range(60):
        bound = bound_loss(problem, model(problem)[1]).mean()
        optimiser.zero_grad()
        bound.backward()
        optimiser.step()
        bounds.append(bound.item())
    assert bounds[0] > 0.999
    assert bounds[-1] < 0.8
