"""The CUDA path operations against the torch reference; without a GPU, in numba-cuda's
simulator."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from teal.network import compute_paths
from teal.pathops import PathOps, make_path_ops
from teal.pathops.cuda_backend import CudaBackend
from teal.pathops.cuda_kernels import IN_SHARED_MEMORY
from teal.runtime import cuda
from teal.testing import make_topology, random_topology

pytestmark = pytest.mark.usefixtures("quick_simulator")

DEVICE = torch.device("cpu" if cuda.SIMULATED else "cuda")


def _both(seed: int, nodes: int = 5) -> tuple[PathOps, PathOps]:
    paths = compute_paths(random_topology(seed, nodes=nodes), num_paths=3, cache=False)
    return make_path_ops(paths, DEVICE, "cuda"), make_path_ops(paths, DEVICE, "torch")


def _disable_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "SHARED_BYTES", cuda.RESERVED_BYTES)


@pytest.mark.parametrize(
    ("seed", "batch", "features", "in_shared", "dtype"),
    [
        (0, 2, 3, True, torch.float32),
        (1, 1, 1, True, torch.float64),
        (2, 1, 6, False, torch.float64),
        (3, 2, 1, False, torch.float32),
        (4, 1, 7, True, torch.float64),
    ],
)
def test_cuda_path_operations_equal_the_torch_reference(
    seed: int,
    batch: int,
    features: int,
    in_shared: bool,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not in_shared:
        _disable_shared_memory(monkeypatch)
    ops, plain = _both(seed)
    assert isinstance(ops.backend, CudaBackend)
    assert (ops.backend.layout(dtype, 1).memory.space == IN_SHARED_MEMORY) is in_shared
    generator = torch.Generator().manual_seed(seed)
    links = torch.rand(batch, ops.paths.num_links, features, generator=generator, dtype=dtype).to(
        DEVICE
    )
    flows = torch.rand(batch, *ops.mask.shape, features, generator=generator, dtype=dtype).to(
        DEVICE
    )
    torch.testing.assert_close(ops.path_sum(links), plain.path_sum(links))
    torch.testing.assert_close(ops.link_sum(flows), plain.link_sum(flows))
    rounded = (links[..., 0] * 4).round()  # many equal links: the first on the path must be named
    for actual, expected in zip(ops.path_max(rounded), plain.path_max(rounded), strict=True):
        assert torch.equal(actual, expected)


def test_cuda_link_sum_over_links_with_many_trie_nodes_equals_the_torch_reference() -> None:
    """A star, whose links each have as many trie nodes as there are leaves."""
    leaves = 12 if cuda.SIMULATED else 600
    topology = make_topology([(0, i, 1.0) for i in range(1, leaves + 1)], both=True)
    pairs = np.array(
        [[1, i] for i in range(2, leaves + 1)] + [[i, 1] for i in range(2, leaves + 1)], np.int32
    )
    paths = compute_paths(topology, pairs[np.lexsort(pairs.T[::-1])], num_paths=1, cache=False)
    ops, plain = make_path_ops(paths, DEVICE, "cuda"), make_path_ops(paths, DEVICE, "torch")
    flows = torch.rand(
        1, *ops.mask.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).to(DEVICE)
    torch.testing.assert_close(ops.link_sum(flows), plain.link_sum(flows))


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_cuda_link_sum_by_any_number_of_threads_a_link_equals_the_torch_reference(
    threads: int,
) -> None:
    ops, plain = _both(3)
    assert isinstance(ops.backend, CudaBackend)
    ops.backend.threads_per_link = threads
    flows = torch.rand(
        1, *ops.mask.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).to(DEVICE)
    torch.testing.assert_close(ops.link_sum(flows), plain.link_sum(flows))


def test_cuda_link_sum_repeats_bit_by_bit() -> None:
    ops, _ = _both(3)
    flows = torch.rand(1, *ops.mask.shape, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    assert torch.equal(ops.link_sum(flows), ops.link_sum(flows))


def test_gradients_of_cuda_path_operations_equal_the_transposed_operations() -> None:
    ops, _ = _both(5, nodes=3)
    generator = torch.Generator().manual_seed(0)
    links = torch.rand(1, ops.paths.num_links, 2, generator=generator, dtype=torch.float64)
    flows = torch.rand(1, *ops.mask.shape, 2, generator=generator, dtype=torch.float64)
    links, flows = (x.to(DEVICE).requires_grad_() for x in (links, flows))
    path_weight = torch.rand_like(ops.path_sum(links))
    (ops.path_sum(links) * path_weight).sum().backward()
    torch.testing.assert_close(links.grad, ops.link_sum(path_weight))
    link_weight = torch.rand_like(links)
    (ops.link_sum(flows) * link_weight).sum().backward()
    expected = ops.path_sum(link_weight)
    torch.testing.assert_close(flows.grad, torch.where(ops.mask[..., None], expected, 0))


def test_cuda_path_operations_without_any_path_give_zeros() -> None:
    topology = make_topology([(0, 1, 1.0)])
    paths = compute_paths(topology, np.array([[1, 0]], np.int32), cache=False)
    ops = make_path_ops(paths, DEVICE, "cuda")
    assert ops.path_sum(torch.ones(1, 1, device=DEVICE)).sum() == 0
    assert ops.link_sum(torch.ones(1, *ops.mask.shape, device=DEVICE)).sum() == 0
    assert (ops.path_max(torch.ones(1, 1, device=DEVICE))[1] == -1).all()


def test_extremes_of_rows_are_those_of_numpy_over_several_pieces() -> None:
    backend = _both(0)[0].backend
    assert isinstance(backend, CudaBackend)
    rng = np.random.default_rng(0)
    shapes = [(2, 3 * cuda.THREADS), (1, 5), (3, 70 * cuda.THREADS + 1), (1, 1)]
    rows = [rng.normal(0, 1, shape) for shape in shapes]
    found = backend.extremes(*(torch.from_numpy(one).to(DEVICE) for one in rows))
    for own, numbers in zip(found, rows, strict=True):
        positive = np.where(numbers > 0, numbers, np.inf).min(1)
        expected = np.stack([numbers.min(1), numbers.max(1), numbers.sum(1), positive], 1)
        np.testing.assert_allclose(own, expected, rtol=1e-12)
