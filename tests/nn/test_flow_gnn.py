"""FlowGNN against torch_geometric's message passing, a convolution computed by hand, and its
symmetries."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from teal.network import PathSet
from teal.network.path_changes import first_paths_of_each
from teal.nn.flow_gnn import FlowGNN, IncidenceConv, TealModel, hetero_data
from teal.nn.flow_gnn_config import FEEDBACK, FORMS_OF_K, FlowGnnConfig
from teal.nn.policy import FIRST_RAW_PRICE, action_splits, price_softplus
from teal.objectives import SINGLE_PROGRAMS, ObjectiveName
from teal.problem import Problem
from teal.testing import random_problem


def _with_demands_reversed(problem: Problem) -> tuple[Problem, torch.Tensor]:
    """The problem with its demands in reverse order of their sources, and the (D,) permutation of
    the demands."""
    paths = problem.paths
    blocks = [
        torch.arange(int(a), int(b))
        for a, b in zip(paths.demand_ptr[:-1], paths.demand_ptr[1:], strict=True)
    ]
    order = torch.cat(blocks[::-1])
    reversed_paths = PathSet(
        paths.pairs[order],
        paths.leaf[order],
        paths.trie,
        paths.demand_ptr,
        paths.num_links,
        "reversed",
        paths.topology_key,
    )
    # The other backends scan the trie source by source; only the torch backend accepts unsorted
    # sources.
    from teal.pathops import make_path_ops

    ops = make_path_ops(reversed_paths, backend="torch")
    return Problem(
        problem.topology,
        reversed_paths,
        problem.objective,
        problem.demand[:, order],
        problem.capacity,
        problem.demand_value[order],
        problem.link_cost,
        ops,
    ), order


@pytest.mark.parametrize("form", FORMS_OF_K)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_flow_gnn_over_the_trie_equals_propagate_over_the_edge_index(form: str, seed: int) -> None:
    problem = random_problem(seed, failed=1)
    torch.manual_seed(seed)
    gnn = FlowGNN(3, form=form).double()
    data = hetero_data(problem, scaled=form != "published")
    edge_index = torch.stack(
        [torch.from_numpy(one) for one in problem.paths.incidences()]
    )  # path d K + k, link
    over_trie, over_edges = gnn(data), gnn(data, edge_index)
    for by_trie, by_edges in zip(over_trie, over_edges, strict=True):
        assert by_trie.abs().max() > 0
        torch.testing.assert_close(by_trie, by_edges)


def test_incidence_conv_equals_sums_computed_by_hand() -> None:
    """Two paths over a shared link: sums of features divided by the square roots of both
    degrees."""
    from torch_geometric.nn import MessagePassing

    assert issubclass(IncidenceConv, MessagePassing)
    path_degree, link_degree = torch.tensor([[2.0], [1.0]]), torch.tensor([2.0, 1.0])
    edges = torch.tensor([[0, 0, 1], [0, 1, 0]])  # path 0 over links 0 and 1, path 1 over link 0
    x = torch.tensor([[[[3.0]], [[5.0]]]])  # (B, D, K, F)
    out = IncidenceConv("path_to_link")(x, path_degree, link_degree, edges).flatten()
    torch.testing.assert_close(out, torch.tensor([3 / 2 + 5 / 2**0.5, 3 / 2**0.5]))


def test_published_flow_gnn_has_the_published_widths_and_is_linear_before_the_softmax() -> None:
    problem = random_problem(0)
    model = TealModel(FlowGnnConfig(3, form="published")).double()
    gnn = model.flow_gnn
    linear: list[Any] = [layer.link_linear for layer in gnn.layers]
    assert [layer.in_features for layer in linear] == [1, 2, 3, 4, 5, 6]
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.zeros_(parameter)  # without biases the model is linear, not only affine
    data = hetero_data(problem, scaled=False)
    output = model.policy(gnn(data)[1])
    data["link"].x, data["path"].x = 2 * data["link"].x, 2 * data["path"].x
    torch.testing.assert_close(2 * output, model.policy(gnn(data)[1]))


@pytest.mark.parametrize("form", FORMS_OF_K)
def test_flow_gnn_outputs_are_permuted_like_the_demands(form: str) -> None:
    problem = random_problem(4)
    permuted, order = _with_demands_reversed(problem)
    torch.manual_seed(0)
    model = TealModel(FlowGnnConfig(num_paths=3, form=form)).double()
    (means, prices), (other_means, other_prices) = model(problem), model(permuted)
    torch.testing.assert_close(means[:, order], other_means)
    torch.testing.assert_close(prices, other_prices)


@pytest.mark.parametrize("objective", SINGLE_PROGRAMS)
def test_flow_gnn_is_invariant_to_scaling_capacities_and_demands_together(
    objective: ObjectiveName,
) -> None:
    problem = random_problem(5, objective=objective)
    larger = Problem(
        problem.topology,
        problem.paths,
        problem.objective,
        1000 * problem.demand,
        1000 * problem.capacity,
        problem.demand_value,
        problem.link_cost,
        problem.ops,
    )
    torch.manual_seed(0)
    model = TealModel(FlowGnnConfig(num_paths=3, form=FEEDBACK)).double()
    torch.testing.assert_close(model(problem)[0], model(larger)[0])


@pytest.mark.parametrize("maximises_value", [True, False])
def test_action_splits_are_shares_of_existing_paths(maximises_value: bool) -> None:
    actions = 20 * torch.randn(
        2, 50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    mask = torch.rand(2, 50, 4, generator=torch.Generator().manual_seed(1)) > 0.4
    splits = action_splits(actions, mask, maximises_value=maximises_value)
    assert (splits[~mask] == 0).all()
    assert (splits[mask] > 0).all()
    total = splits.sum(-1)[mask.any(-1)]
    if maximises_value:
        assert (total < 1).all()
        equal_splits = action_splits(
            torch.zeros(1, 1, 4), torch.ones(1, 1, 4, dtype=torch.bool), maximises_value=True
        )
        assert equal_splits.flatten().tolist() == pytest.approx([0.2] * 4), (
            "the reject option takes the fifth equal share"
        )
    else:
        torch.testing.assert_close(total, torch.ones_like(total))


def test_flow_gnn_handles_failed_links_without_retraining() -> None:
    """The same weights with failed links: outputs are finite and no flow uses the failed links."""
    problem = random_problem(6)
    model = TealModel(FlowGnnConfig(num_paths=3, form=FEEDBACK)).double()
    failed = problem.with_capacity(
        problem.capacity[:1] * (torch.arange(problem.topology.num_links) % 3 > 0)
    )
    means, prices = model(failed)
    splits = model.splits(means, failed)
    assert torch.isfinite(means).all()
    assert torch.isfinite(prices).all()
    assert failed.loads(splits)[failed.capacity == 0].eq(0).all()


def test_empty_columns_of_paths_do_not_count_in_the_normalisation() -> None:
    """With the same weights for the columns that have paths, more columns without any change no
    embedding."""
    problem, width = random_problem(2, num_paths=3), 8
    wider = problem.with_paths(first_paths_of_each(problem.paths, 6))
    torch.manual_seed(0)
    wide_gnn, gnn = (FlowGNN(k, layers=2, width=width, form="nonlinear").double() for k in (6, 3))
    weights, inner = wide_gnn.state_dict(), 3 * width
    for name, weight in weights.items():
        if "demand_linear" in name:
            weights[name] = weight[:inner, :inner] if weight.dim() == 2 else weight[:inner]
    gnn.load_state_dict(weights)
    links, paths = gnn(hetero_data(problem, scaled=True))
    wide_links, wide_paths = wide_gnn(hetero_data(wider, scaled=True))
    torch.testing.assert_close(wide_links, links)
    torch.testing.assert_close(wide_paths[..., :3, :], paths)


@pytest.mark.parametrize("maximises_value", [True, False])
def test_prices_are_softplus_with_a_projected_gradient(maximises_value: bool) -> None:
    """Where a price should rise, its slope is at least that of the first prices; under a min-max
    program, and where it should fall, the slope is that of softplus."""
    raw = torch.tensor([-40.0, -10.0, FIRST_RAW_PRICE, 0.0, 3.0], dtype=torch.float64)
    price = price_softplus(raw.requires_grad_(), maximises_value=maximises_value)
    torch.testing.assert_close(price, torch.nn.functional.softplus(raw))
    (rising,) = torch.autograd.grad(price, raw, -torch.ones_like(price), retain_graph=True)
    (falling,) = torch.autograd.grad(price, raw, torch.ones_like(price))
    rising = -rising
    exact = raw.detach().sigmoid()
    lower_limit = exact[2] if maximises_value else 0.0
    torch.testing.assert_close(falling, exact)
    torch.testing.assert_close(rising, exact.clamp(min=lower_limit))
