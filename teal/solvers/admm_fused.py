"""Compiled ADMM: the iteration of :mod:`teal.solvers.admm` as one scan of the packed paths.

Per source: prices down the trie, the K x K problem of every demand, loads up the trie, instead of
several reads of padded (B, D, K) tensors.  Entry point: :func:`solve`.  Symbols: table in
:mod:`teal.solvers.admm`.
"""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from teal.network.packed import PathScan, num_ranges
from teal.pathops.padding import pack_paths, pad_paths
from teal.problem import Problem
from teal.runtime.arrays import FloatArray, Int64Array
from teal.runtime.parallel import (
    inlined_kernel,
    parallel_kernel,
    threads_for,
)
from teal.solvers import admm

_MIN_BLOCK_WORK = 20_000  # smallest number of trie nodes and paths in a block of sources
_MAX_BLOCKS = 16  # largest number of blocks of sources; each stores loads
# Scalar operations per trie node or path in an iteration, approximately; sets the threads.
_OPERATIONS_PER_ENTRY = 20
_MIN_COUPLING = 1e-30  # lower limit of h and eta, as in :mod:`teal.solvers.admm`


class _Program(NamedTuple):
    """Rates, values, costs and inverse capacities of B programs, which every iteration reads.

    Attributes:
        rate: (B, D) Gbit/s.
        value: (B, D) value of a Gbit/s of each demand over the penalty.
        cost: (B, E) cost of a Gbit/s on each link over the penalty.
        reciprocal_capacity: (B, E) 1 / c, infinite for a failed link.
        carries_all: whether all demand must be served.
    """

    rate: FloatArray
    value: FloatArray
    cost: FloatArray
    reciprocal_capacity: FloatArray
    carries_all: bool


@inlined_kernel
def _solve_demand(rhs, diagonal, coupling, order, solution, num_paths):
    """Solve the K x K problem of one demand of K paths exactly, for x >= 0:

        h[k] x[k] + eta sum(x) = b[k] where x[k] > 0.

    Hence x[k] = max(0, b[k] - eta total) / h[k] with the total sum(x).  The positive x[k] have the
    largest b[k]: of all prefixes of the descending order of b, the active set has the largest
    total, sum(b / h) / (1 + eta sum(1 / h)).

    Args:
        rhs: right-hand side b; -inf for a dead path, which gets 0.
        diagonal: diagonal h > 0.
        coupling: factor eta > 0 of sum(x).
        order: scratch, indices of the paths by descending b (written).
        solution: solution x (written).
        num_paths: number of paths, K; the arrays have at least K entries.
    """
    # Insertion sort of the paths by descending right-hand side.
    for k in range(num_paths):
        order[k] = k
    for k in range(1, num_paths):
        j = k
        while j > 0 and rhs[order[j]] > rhs[order[j - 1]]:
            order[j], order[j - 1] = order[j - 1], order[j]
            j -= 1
    # Total of each prefix of the order; the largest one is the total of the solution.
    weighted_sum = 0.0
    reciprocal_sum = 0.0
    largest_total = 0.0
    for k in range(num_paths):
        if rhs[order[k]] > -np.inf:
            weighted_sum += rhs[order[k]] / diagonal[order[k]]
            reciprocal_sum += 1 / diagonal[order[k]]
            largest_total = max(largest_total, weighted_sum / (1 + coupling * reciprocal_sum))
    # Solution for this total.
    for k in range(num_paths):
        solution[k] = (
            max(0.0, rhs[k] - coupling * largest_total) / diagonal[k] if rhs[k] > -np.inf else 0.0
        )


@parallel_kernel("block_ptr", num_ranges)
def _iterate(
    block: int,
    program: _Program,
    extrapolated_price: FloatArray,
    scan: PathScan,
    block_ptr: Int64Array,
    max_trie_nodes: int,
    splits: FloatArray,
    demand_dual: FloatArray,
    loads: FloatArray,
    is_first: bool,
) -> None:
    """Run one ADMM iteration on the demands of a block of sources, and add up their link loads.

    Per demand with the splits x, the multiplier u of its row, slack s = max(0, 1 - sum x - u_old),
    and u = max(0, u_old + sum x - 1) (without the max and slack if all demand must be served):

        h_k (x_k - x_old) + path price - v / rho + eta (sum x - (1 - s - u)) = 0 where x_k > 0,

    with v the value of a Gbit/s, rho the penalty, h_k the sum of 1 / c along path k with the
    capacities c, and eta its mean over live paths.  The first call only clears splits of dead paths
    and sums loads.

    Args:
        block: index of the block.
        program: rates, values, costs and inverse capacities of B programs.
        extrapolated_price: (B, E) (2 y - y_old) / c with the multipliers y of the capacity rows,
            1/(Gbit/s).
        scan: tries and paths; the demands of source s are demand_ptr[s]:demand_ptr[s + 1].
        block_ptr: (blocks + 1,) the sources of block i are block_ptr[i]:block_ptr[i + 1].
        max_trie_nodes: largest number of trie nodes of a source, plus one for the source itself.
        splits: (B, P) x of the P paths in scan order (updated).
        demand_dual: (B, D) u (updated).
        loads: (blocks, B, 2, E) link loads of each block in Gbit/s, added to: at [..., 0, :] those
            of x, at [..., 1, :] in the first call those with all demand on every live path.
        is_first: whether this is the first call.
    """
    # Scratch of one source, per trie node: sum of 1 / c and price from the source; flow of x and of
    # all demand through the node.
    inverse_capacity_sum = np.zeros(max_trie_nodes)
    path_price = np.zeros(max_trie_nodes)
    flow = np.empty(max_trie_nodes)
    full_flow = np.empty(max_trie_nodes)
    # Scratch of one demand, which has at most 255 paths: right-hand side, diagonal, solution and
    # sorting order of each path.
    rhs = np.empty(256)
    diagonal = np.empty(256)
    new_splits = np.empty(256)
    order = np.empty(256, dtype=np.int64)
    # Node 0 of a source's trie is the source itself; node i + 1 has the entry i of its arrays.
    for s in range(block_ptr[block], block_ptr[block + 1]):
        first_node = scan.node_ptr[s]
        num_nodes = scan.node_ptr[s + 1] - scan.node_ptr[s]
        for b in range(len(splits)):
            # h and price of the path to each node.
            for i in range(num_nodes):
                parent_node = scan.parent[first_node + i]
                e = scan.link[first_node + i]
                inverse_capacity_sum[i + 1] = (
                    inverse_capacity_sum[parent_node] + program.reciprocal_capacity[b, e]
                )
                path_price[i + 1] = (
                    path_price[parent_node] + extrapolated_price[b, e] + program.cost[b, e]
                )
            flow[: num_nodes + 1] = 0
            full_flow[: num_nodes + 1] = 0
            first_path = scan.path_ptr[s]
            for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                num_paths = np.int64(scan.path_count[d])
                rate = program.rate[b, d]
                # After the first call: multiplier and slack of the demand row, then the splits.
                if not is_first:
                    # Sum of the splits, and eta over the live paths.
                    split_sum = 0.0
                    coupling = 0.0
                    num_live = 0
                    for k in range(num_paths):
                        split_sum += splits[b, first_path + k]
                        if inverse_capacity_sum[scan.end_node[first_path + k]] < np.inf:
                            coupling += max(
                                inverse_capacity_sum[scan.end_node[first_path + k]], _MIN_COUPLING
                            )
                            num_live += 1
                    coupling = max(coupling / max(num_live, 1), _MIN_COUPLING)
                    # Multiplier u and slack s of the demand row.
                    last_demand_dual = demand_dual[b, d]
                    next_demand_dual = last_demand_dual + split_sum - 1
                    slack = 0.0
                    if not program.carries_all:
                        next_demand_dual = max(0.0, next_demand_dual)
                        slack = max(0.0, 1 - split_sum - last_demand_dual)
                    demand_dual[b, d] = next_demand_dual
                    # Right-hand sides and diagonal of the K x K problem; dead paths get no flow.
                    common_rhs = coupling * (1 - slack - next_demand_dual) + program.value[b, d]
                    for k in range(num_paths):
                        h = inverse_capacity_sum[scan.end_node[first_path + k]]
                        rhs[k] = -np.inf
                        diagonal[k] = 1.0
                        if h < np.inf:
                            diagonal[k] = max(h, _MIN_COUPLING)
                            rhs[k] = (
                                diagonal[k] * splits[b, first_path + k]
                                - path_price[scan.end_node[first_path + k]]
                                + common_rhs
                            )
                    _solve_demand(rhs, diagonal, coupling, order, new_splits, num_paths)
                    for k in range(num_paths):
                        splits[b, first_path + k] = new_splits[k]
                # Flow at the end of each live path; dead paths carry none.
                for k in range(num_paths):
                    node = scan.end_node[first_path + k]
                    if inverse_capacity_sum[node] < np.inf:
                        flow[node] = rate * splits[b, first_path + k]
                        full_flow[node] = rate
                    else:
                        splits[b, first_path + k] = 0
                first_path += num_paths
            # Link loads: pass the flow through each node up to its parent, from the last node
            # to the first, as children come after their parents.
            for j in range(num_nodes):
                i = num_nodes - 1 - j
                e = scan.link[first_node + i]
                parent_node = scan.parent[first_node + i]
                loads[block, b, 0, e] += flow[i + 1]
                flow[parent_node] += flow[i + 1]
                if is_first:
                    loads[block, b, 1, e] += full_flow[i + 1]
                    full_flow[parent_node] += full_flow[i + 1]


def accepts(problem: Problem) -> bool:
    """Return whether the compiled iteration supports a problem: paths over links, on the CPU."""
    return problem.ops.backend.name == "numba" and problem.ops.is_over_paths


def solve(
    problem: Problem,
    splits: Tensor,
    iterations: int,
    rho: float = admm.DEFAULT_RHO,
    prices: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run ADMM iterations in compiled passes over the paths.

    Args:
        problem: B matrices in float64, for which :func:`accepts` is true.
        splits: (B, D, K) first splits.
        iterations: number of iterations.
        rho: penalty as a multiple of mean capacity * mean value.
        prices: (B, E) first link prices, value per Gbit/s; None for 0.

    Returns:
        splits (B, D, K), possibly over capacity, and link prices (B, E), both float64.
    """
    packed = problem.paths.packed
    batch = problem.batch
    scan = packed.scan
    num_links = packed.num_links
    # The program in units of the penalty.
    penalty = admm.penalty_of(problem, rho)
    program = _Program(
        problem.demand.numpy(),
        (problem.demand_value / penalty).numpy(),
        (problem.link_cost / penalty).expand(batch, num_links).contiguous().numpy(),
        torch.where(problem.capacity > 0, problem.inverse_capacity, torch.inf).numpy(),
        problem.demand_set.carries_all,
    )
    block_ptr = packed.blocks(_MIN_BLOCK_WORK, _MAX_BLOCKS)
    # Loads of x, and with all demand on every live path; splits x of the packed paths; multipliers
    # u of the demand rows; for each link the multiplier y, the price (2 y - y_old) / c, and the
    # utilisation m if every path carried all of its demand.
    loads = np.zeros((len(block_ptr) - 1, batch, 2, num_links))
    packed_splits = np.zeros((batch, packed.num_paths))
    demand_dual = np.zeros((batch, problem.paths.num_demands))
    link_dual = admm.first_link_dual(problem, penalty, prices)
    extrapolated_price = torch.zeros_like(link_dual)
    full_path_utilisation = torch.zeros_like(link_dual)
    with threads_for(_OPERATIONS_PER_ENTRY * batch * (packed.num_nodes + packed.num_paths)):
        pack_paths(splits.contiguous().numpy(), scan, packed_splits)
        # The first pass only computes loads; each further pass is one iteration.
        for iteration in range(iterations + 1):
            is_first = iteration == 0
            loads[:] = 0
            _iterate(
                program,
                extrapolated_price.numpy(),
                scan,
                block_ptr,
                packed.max_trie_nodes,
                packed_splits,
                demand_dual,
                loads,
                is_first,
            )
            # The first pass also gives the constant m.
            if is_first:
                full_path_utilisation = (
                    torch.from_numpy(loads[:, :, 1].sum(0)) * problem.inverse_capacity
                )
            if iteration == iterations:
                break
            # Next multipliers y of the links, and the prices for the next iteration.
            utilisation = torch.from_numpy(loads[:, :, 0].sum(0)) * problem.inverse_capacity
            last_link_dual = link_dual
            link_dual = admm.next_link_dual(
                problem, penalty, full_path_utilisation, utilisation, link_dual
            )
            extrapolated_price = (2 * link_dual - last_link_dual) * problem.inverse_capacity
        # From the packed paths back to the padded layout (B, D, K).
        padded_splits = torch.zeros_like(problem.path_mask, dtype=torch.float64)
        pad_paths(packed_splits, scan, padded_splits.numpy())
    return padded_splits, penalty * link_dual * problem.inverse_capacity
