"""Path operations of every backend against the explicit incidence matrix and finite differences."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from teal.errors import InputError
from teal.network import PathSet, compute_paths
from teal.pathops import make_path_ops
from teal.testing import make_topology, random_topology

BACKENDS = ("torch", "numba")


def _incidence(paths: PathSet) -> sp.csr_array:
    rows, columns = paths.incidences()
    return sp.csr_array(
        (np.ones(len(rows)), (rows, columns)), shape=(paths.leaf.size, paths.num_links)
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(seed=st.integers(0, 10_000), batch=st.integers(1, 3), features=st.integers(1, 3))
def test_path_operations_equal_products_with_the_incidence_matrix(
    backend: str, dtype: torch.dtype, seed: int, batch: int, features: int
) -> None:
    topology = random_topology(seed)
    paths = compute_paths(topology, cache=False)
    ops, matrix = make_path_ops(paths, backend=backend), _incidence(paths)
    generator = torch.Generator().manual_seed(seed)
    links = torch.rand(batch, topology.num_links, features, generator=generator, dtype=dtype)
    flows = torch.rand(batch, *paths.leaf.shape, features, generator=generator, dtype=dtype)
    for b in range(batch):
        sums = torch.from_numpy(matrix @ links[b].double().numpy()).view(
            *paths.leaf.shape, features
        )
        torch.testing.assert_close(ops.path_sum(links)[b], sums.to(dtype))
        loads = torch.from_numpy(matrix.T @ flows[b].double().flatten(0, 1).numpy())
        torch.testing.assert_close(ops.link_sum(flows)[b], loads.to(dtype))
        maximum, first_link = ops.path_max(links[..., 0])
        for d in range(paths.num_demands):
            for k in range(paths.num_paths):
                on_path = paths.links_of(d, k)
                if not on_path:
                    assert (float(maximum[b, d, k]), int(first_link[b, d, k])) == (0, -1)
                    continue
                values = links[b, on_path, 0]
                assert maximum[b, d, k] == values.max()
                assert first_link[b, d, k] == on_path[int(values.argmax())]


@pytest.mark.parametrize("backend", BACKENDS)
def test_path_max_names_the_first_of_equal_links(backend: str) -> None:
    topology = make_topology([(0, 1, 1.0), (1, 2, 1.0), (2, 3, 1.0)])
    ops = make_path_ops(
        compute_paths(topology, np.array([[0, 3]], np.int32), num_paths=1, cache=False),
        backend=backend,
    )
    maximum, first_link = ops.path_max(torch.tensor([[-3.0, -2.0, -2.0]]))
    assert (maximum.item(), first_link.item()) == (-2.0, 1), "values may be negative"


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_path_operations_equal_finite_differences(backend: str) -> None:
    topology = random_topology(5, nodes=5)
    ops = make_path_ops(compute_paths(topology, num_paths=2, cache=False), backend=backend)
    generator = torch.Generator().manual_seed(0)
    links = torch.rand(
        2, topology.num_links, 2, generator=generator, dtype=torch.float64, requires_grad=True
    )
    flows = torch.rand(
        2, *ops.mask.shape, 2, generator=generator, dtype=torch.float64, requires_grad=True
    )
    assert torch.autograd.gradcheck(ops.path_sum, links)
    assert torch.autograd.gradcheck(ops.link_sum, flows)
    assert torch.autograd.gradgradcheck(ops.path_sum, links)
    assert torch.autograd.gradcheck(
        lambda x: ops.path_max(x)[0], links[..., 0].detach().requires_grad_()
    )


def test_link_sum_does_not_depend_on_the_number_of_threads() -> None:
    topology = random_topology(2, nodes=30, density=0.15)
    ops = make_path_ops(compute_paths(topology, cache=False))
    flows = torch.rand(
        60, *ops.mask.shape, generator=torch.Generator().manual_seed(0)
    )  # enough for two threads
    before, results = numba.get_num_threads(), []
    try:
        for threads in (1, numba.config.NUMBA_NUM_THREADS):
            numba.set_num_threads(threads)
            results.append(ops.link_sum(flows))
    finally:
        numba.set_num_threads(before)
    assert all(torch.equal(results[0], other) for other in results)


@pytest.mark.parametrize("backend", BACKENDS)
def test_path_operations_without_any_path_give_zeros(backend: str) -> None:
    topology = make_topology([(0, 1, 1.0)], min_nodes=3)
    ops = make_path_ops(
        compute_paths(topology, np.array([[1, 0], [2, 0]], np.int32), cache=False), backend=backend
    )
    assert ops.path_sum(torch.ones(1, 1)).eq(0).all()
    assert ops.link_sum(torch.ones(1, 2, 4)).eq(0).all()
    assert ops.path_max(torch.ones(1, 1))[1].eq(-1).all()


def test_unknown_backends_of_path_operations_are_refused() -> None:
    paths = compute_paths(random_topology(0), cache=False)
    with pytest.raises(InputError, match="auto, torch, numba or cuda"):
        make_path_ops(paths, backend="cupy")
