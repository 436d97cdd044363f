"""ADMM in compiled passes over the paths: the iteration of :mod:`teal.solvers.admm`, whose symbols
it uses.

That form keeps splits, sums and masks in padded (B, D, K) tensors and reads each several times in
an iteration; here an iteration is one scan of the packed paths: prices down a source's trie, the K
x K problem of every demand, loads back up.
"""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from teal.network.packed import PathScan
from teal.pathops.padding import pack_paths, pad_paths
from teal.problem import Problem
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.parallel import (
    as_int64,
    inlined_kernel,
    inner_kernel,
    parallel_kernel,
    prange,
    threads_for,
)
from teal.solvers import admm

_MIN_BLOCK_WORK = 20_000  # trie nodes and paths of a block of sources, at least
_MAX_BLOCKS = 16  # blocks of sources, each with loads of its own
_OPERATIONS_PER_ENTRY = (
    20  # scalar operations that a trie node or path takes in an iteration, approximately
)
_MIN_COUPLING = 1e-30  # of h, as in :mod:`teal.solvers.admm`


class _Program(NamedTuple):
    """The arrays of B programs that an iteration reads.

    Attributes:
        rate: (B, D) Gbit/s.
        value: (B, D) value of a Gbit/s of each demand over the penalty.
        cost: (B, E) cost of a Gbit/s on each link over the penalty.
        inverse: (B, E) 1 / c, infinite for a failed link.
        carries_all: whether nothing may be shed.
    """

    rate: FloatArray
    value: FloatArray
    cost: FloatArray
    inverse: FloatArray
    carries_all: bool


@inlined_kernel
def _solve_demand(linear, diagonal, coupling, order, x, n):
    """X >= 0 with diagonal[k] x[k] + coupling sum(x) = linear[k] where x[k] > 0: the prefix of the
    largest ``linear`` whose total is largest.
    """
    for k in range(n):
        order[k] = k
    for k in range(1, n):
        j = k
        while j > 0 and linear[order[j]] > linear[order[j - 1]]:
            order[j], order[j - 1] = order[j - 1], order[j]
            j -= 1
    gain, weight, best = 0.0, 0.0, 0.0
    for k in range(n):
        if linear[order[k]] > -np.inf:
            gain += linear[order[k]] / diagonal[order[k]]
            weight += 1 / diagonal[order[k]]
            best = max(best, gain / (1 + coupling * weight))
    for k in range(n):
        x[k] = max(0.0, linear[k] - coupling * best) / diagonal[k] if linear[k] > -np.inf else 0.0


@inner_kernel
def _iterate_block(
    block,
    program,
    price,
    scan,
    block_ptr,
    max_slots,
    splits,
    demand_dual,
    loads,
    is_first,
):
    """The part of :func:`_iterate` that one block of sources takes."""
    along, spent = np.zeros(max_slots), np.zeros(max_slots)
    flow, full = np.empty(max_slots), np.empty(max_slots)
    linear, diagonal, x = np.empty(256), np.empty(256), np.empty(256)
    order = np.empty(256, dtype=np.int64)
    for s in range(block_ptr[block], block_ptr[block + 1]):
        first, nodes = scan.node_ptr[s], scan.node_ptr[s + 1] - scan.node_ptr[s]
        for b in range(len(splits)):
            for i in range(nodes):
                above, e = scan.parent[first + i], scan.link[first + i]
                along[i + 1] = along[above] + program.inverse[b, e]
                spent[i + 1] = spent[above] + price[b, e] + program.cost[b, e]
            flow[: nodes + 1] = 0
            full[: nodes + 1] = 0
            path = scan.path_ptr[s]
            for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                n, rate = np.int64(scan.path_count[d]), program.rate[b, d]
                if not is_first:
                    total, coupling, live = 0.0, 0.0, 0
                    for k in range(n):
                        total += splits[b, path + k]
                        if along[scan.end_node[path + k]] < np.inf:
                            coupling += max(along[scan.end_node[path + k]], _MIN_COUPLING)
                            live += 1
                    coupling = max(coupling / max(live, 1), _MIN_COUPLING)
                    before = demand_dual[b, d]
                    dual, slack = before + total - 1, 0.0
                    if not program.carries_all:
                        dual, slack = max(0.0, dual), max(0.0, 1 - total - before)
                    demand_dual[b, d] = dual
                    pull = coupling * (1 - slack - dual) + program.value[b, d]
                    for k in range(n):
                        h = along[scan.end_node[path + k]]
                        linear[k], diagonal[k] = -np.inf, 1.0
                        if h < np.inf:
                            diagonal[k] = max(h, _MIN_COUPLING)
                            linear[k] = (
                                diagonal[k] * splits[b, path + k]
                                - spent[scan.end_node[path + k]]
                                + pull
                            )
                    _solve_demand(linear, diagonal, coupling, order, x, n)
                    for k in range(n):
                        splits[b, path + k] = x[k]
                for k in range(n):
                    node = scan.end_node[path + k]
                    if along[node] < np.inf:
                        flow[node], full[node] = rate * splits[b, path + k], rate
                    else:
                        splits[b, path + k] = 0
                path += n
            for j in range(nodes):
                i = nodes - 1 - j
                e, above = scan.link[first + i], scan.parent[first + i]
                loads[block, b, 0, e] += flow[i + 1]
                flow[above] += flow[i + 1]
                if is_first:
                    loads[block, b, 1, e] += full[i + 1]
                    full[above] += full[i + 1]


@parallel_kernel
def _iterate(
    program: _Program,
    price: FloatArray,
    scan: PathScan,
    block_ptr: Int64Array,
    max_slots: int,
    splits: FloatArray,
    demand_dual: FloatArray,
    loads: FloatArray,
    is_first: bool,
) -> None:
    """One iteration; the first call only clears splits of dead paths and adds up loads.

    Args:
        price: (B, E) (2 y - y_old) / c.
        splits: (B, P) x, in place.
        demand_dual: (B, D) u, in place.
        loads: (blocks, B, 2, E) receives the loads of x, and those if every live path carried its
            whole demand.
    """
    for block in prange(len(block_ptr) - 1):
        _iterate_block(
            as_int64(block),
            program,
            price,
            scan,
            block_ptr,
            max_slots,
            splits,
            demand_dual,
            loads,
            is_first,
        )


def accepts(problem: Problem) -> bool:
    """Whether the compiled passes take the program: paths over links, on the CPU."""
    return problem.ops.backend.name == "numba" and problem.ops.is_over_paths


def solve(
    problem: Problem,
    splits: Tensor,
    iterations: int,
    rho: float = admm.DEFAULT_RHO,
    prices: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`teal.solvers.admm.repaired`: splits (B, D, K) and prices (B, E),
    float64.

    Args:
        problem: B matrices in float64, for which :func:`accepts` is true.
        splits: (B, D, K) to start from.
        iterations: number of them.
        rho: relative penalty.
        prices: (B, E) to start from; None for 0.
    """
    packed, batch = problem.paths.packed, problem.batch
    scan, links = packed.scan, packed.num_links
    penalty = admm.penalty_of(problem, rho)
    program = _Program(
        problem.demand.numpy(),
        (problem.demand_value / penalty).numpy(),
        (problem.link_cost / penalty).expand(batch, links).contiguous().numpy(),
        torch.where(problem.capacity > 0, problem.inverse_capacity, torch.inf).numpy(),
        problem.demand_set.carries_all,
    )
    block_ptr = packed.blocks(_MIN_BLOCK_WORK, _MAX_BLOCKS)
    loads = np.zeros((len(block_ptr) - 1, batch, 2, links))
    share, demand_dual = (
        np.zeros((batch, packed.num_paths)),
        np.zeros((batch, problem.paths.num_demands)),
    )
    dual = admm.first_link_dual(problem, penalty, prices)
    price, full = torch.zeros_like(dual), torch.zeros_like(dual)
    with threads_for(_OPERATIONS_PER_ENTRY * batch * (packed.num_nodes + packed.num_paths)):
        pack_paths(splits.contiguous().numpy(), scan, share)
        for iteration in range(iterations + 1):
            is_first = iteration == 0
            loads[:] = 0
            _iterate(
                program,
                price.numpy(),
                scan,
                block_ptr,
                packed.max_slots,
                share,
                demand_dual,
                loads,
                is_first,
            )
            if is_first:
                full = torch.from_numpy(loads[:, :, 1].sum(0)) * problem.inverse_capacity
            if iteration == iterations:
                break
            utilisation = torch.from_numpy(loads[:, :, 0].sum(0)) * problem.inverse_capacity
            before, dual = dual, admm.next_link_dual(problem, penalty, full, utilisation, dual)
            price = (2 * dual - before) * problem.inverse_capacity
        result = torch.zeros_like(problem.path_mask, dtype=torch.float64)
        pad_paths(share, scan, result.numpy())
    return result, penalty * dual * problem.inverse_capacity
