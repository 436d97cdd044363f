"""Operations over bundles against those over paths."""

from __future__ import annotations

import numpy as np
import torch

from teal.pathops.columns import BundleOps
from teal.testing import random_problem


def _ops(seed: int) -> tuple[BundleOps, torch.Tensor]:
    problem = random_problem(seed)
    rng = np.random.default_rng(seed)
    weight = rng.random((problem.paths.num_demands, 5, problem.paths.num_paths)) * rng.integers(
        0, 2, (1, 5, 1)
    )
    bundles = torch.from_numpy(weight * problem.paths.mask[:, None, :])
    return BundleOps(problem.ops, bundles), torch.from_numpy(
        rng.random((2, problem.topology.num_links))
    )


def test_prices_and_loads_are_adjoint_and_those_of_the_paths() -> None:
    ops, prices = _ops(1)
    of_path = ops.ops.path_sum(prices)
    expected = (ops.weight[None] * of_path[:, :, None]).sum(-1)
    np.testing.assert_allclose(ops.path_sum(prices), expected)
    flows = torch.rand(2, *ops.mask.shape, dtype=torch.float64)
    np.testing.assert_allclose(
        (flows * ops.path_sum(prices)).sum((1, 2)), (ops.link_sum(flows) * prices).sum(1)
    )


def test_the_largest_value_and_its_link_are_on_a_path_of_the_bundle() -> None:
    ops, values = _ops(2)
    largest, links = ops.path_max(values)
    for d in range(ops.mask.shape[0]):
        for j in range(ops.mask.shape[1]):
            along = [
                e
                for k in np.flatnonzero(ops.weight[d, j] > 0)
                for e in ops.paths.links_of(d, int(k))
            ]
            for b in range(2):
                if along:
                    assert float(largest[b, d, j]) == max(float(values[b, e]) for e in along)
                    assert float(values[b, links[b, d, j]]) == float(largest[b, d, j])
                else:
                    assert (float(largest[b, d, j]), int(links[b, d, j])) == (0.0, -1)
