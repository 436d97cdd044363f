"""The passes of a universal FlowGNN over the paths, compiled, for inference:
:class:`teal.nn.flow_passes.PathPasses`.

The same numbers as :class:`teal.nn.flow_passes.TorchPasses` to rounding.  Paths are visited source
by source in the packed layout, without padded slots.  A layer is one pass: it reads what the links
say, moves the states, and adds up what the links are told.

The kernels say what a pass does with the paths of each source, and hold their arrays.

A state is a row of F float32 numbers, which the processor adds and multiplies at once
(:mod:`teal.runtime.lanes`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from teal.network.packed import PathScan, num_ranges
from teal.nn.flow_gnn_config import UNIVERSAL_WIDTHS
from teal.nn.flow_passes import UTILISATION_OFFSET, PathEncoder, PathUpdate
from teal.pathops.padding import pad_paths
from teal.pathops.response import FAILED_WEIGHT, exponentials
from teal.problem import Problem
from teal.problem.problem import mean_value
from teal.runtime.arrays import Float32Array, Int64Array
from teal.runtime.lanes import (
    exponential,
    fill,
    load,
    plus_product,
    spread,
    store,
    total,
    where_above,
)
from teal.runtime.parallel import inlined_kernel, inner_kernel, partitioned_kernel, threads_for

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"


_DEAD = np.float32(FAILED_WEIGHT / 2)  # a path with a larger price has a failed link


class Demands(NamedTuple):
    """The demands and paths of B matrices, as a pass reads them.

    Attributes:
        rate: (B, D) Gbit/s.
        value: (D,) over the mean value; 0 in a balanced program.
        cost: (E,) of a link over the mean value.
        rejects: whether a demand may be rejected.
    """

    rate: Float32Array
    value: Float32Array
    cost: Float32Array
    rejects: bool


class Answers(NamedTuple):
    """The arrays that a pass writes.

    Attributes:
        state: (B, P F) g.
        share: (B, P) splits.
        pair: (blocks, B, 2 E) load and elasticity of every link, Gbit/s, to be summed over the
            blocks.
        states: (blocks, B, E F) sum of demand g over the live paths through a link, likewise.
    """

    state: Float32Array
    share: Float32Array
    pair: Float32Array
    states: Float32Array


class LinkInputs(NamedTuple):
    """The messages of links to the paths in a pass.

    Attributes:
        price: (B, E) over the unit of values; ``FAILED_WEIGHT`` on a failed link.
        logarithm: (B, E) of utilisation + 0.01.
        excess: (B, E) 1 - 1 / max(utilisation, 1).
        message: (B, E F) V h.
    """

    price: Float32Array
    logarithm: Float32Array
    excess: Float32Array
    message: Float32Array


class Weights(NamedTuple):
    """Weights of a layer, (inputs, F) in rows.

    Attributes:
        own: (F F,) A.
        demand: (F F,) B.
        features: (4 F,) C.
        bias: (F,) of A.
        action: (F,) u.
        action_bias: added to the action.
        sharpness: q.
    """

    own: Float32Array
    demand: Float32Array
    features: Float32Array
    bias: Float32Array
    action: Float32Array
    action_bias: np.float32
    sharpness: np.float32


@inlined_kernel
def _bounded(profit):
    return profit / (np.float32(1) - profit / np.float32(3)) if profit < 0 else profit


@inlined_kernel
def _activated(row, lanes):
    """X / (1 + exp(-x)), lane by lane."""
    zero = fill(np.float32(0), lanes)
    ones = fill(np.float32(1), lanes)
    power = exponential(where_above(row, zero, zero - row, row))
    return where_above(row, zero, row, row * power) / (ones + power)


@inlined_kernel
def _action(row, profit, weights, clamp, lanes):
    """The action of a path with state ``row``."""
    action = total(row * load(weights.action, 0, lanes)) + weights.action_bias
    return min(max(action + weights.sharpness * profit, -clamp), clamp)


@inlined_kernel
def _encode(
    first,
    nodes,
    b,
    s,
    scan,
    demands,
    links,
    capacity,
    state,
    price,
    worst,
    scratch,
    hops,
    actions,
    weights,
    clamp,
    lanes,
):
    """The first states and actions of the paths of source ``s``; a dead path has the action minus
    infinity.
    """
    price[0] = 0
    worst[0] = -np.inf
    scratch[0] = np.inf
    hops[0] = 0
    cost = np.zeros(nodes + 1, dtype=np.float32)
    for i in range(nodes):
        above = scan.parent[first + i]
        e = scan.link[first + i]
        price[i + 1] = price[above] + links.price[b, e]
        cost[i + 1] = cost[above] + demands.cost[e]
        worst[i + 1] = max(worst[above], links.logarithm[b, e])
        scratch[i + 1] = min(scratch[above], capacity[b, e])
        hops[i + 1] = hops[above] + np.float32(1)
    path = scan.path_ptr[s]
    unit = np.float32(1) if demands.rejects else np.float32(0)
    for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
        for _ in range(scan.path_count[d]):
            node = scan.end_node[path]
            i = path - scan.path_ptr[s]
            row = fill(np.float32(0), lanes)
            action = np.float32(-np.inf)
            if price[node] < _DEAD:
                size = np.float32(math.log1p(np.float32(10) * demands.rate[b, d] / scratch[node]))
                value = demands.value[d] - cost[node]
                length = np.float32(math.log(hops[node])) - np.float32(2)
                row = load(weights.bias, 0, lanes)
                row = plus_product(row, fill(size, lanes), load(weights.features, 0, lanes))
                row = plus_product(row, fill(worst[node], lanes), load(weights.features, 1, lanes))
                row = plus_product(row, fill(value - unit, lanes), load(weights.features, 2, lanes))
                row = plus_product(row, fill(length, lanes), load(weights.features, 3, lanes))
                row = _activated(row, lanes)
                action = _action(row, _bounded(value - price[node]), weights, clamp, lanes)
            store(state, path, row)
            actions[i] = action
            path += 1


@inlined_kernel
def _update(
    first,
    nodes,
    b,
    s,
    scan,
    demands,
    links,
    state,
    share,
    price,
    worst,
    scratch,
    hops,
    along,
    actions,
    mean_row,
    weights,
    clamp,
    lanes,
):
    """The next states and actions of the paths of source ``s``; a dead path has the action minus
    infinity.
    """
    width = len(lanes)
    nothing = fill(np.float32(0), lanes)
    price[0] = 0
    worst[0] = -np.inf
    scratch[0] = -np.inf
    hops[0] = 0
    store(along, 0, nothing)
    for i in range(nodes):
        above = np.int64(scan.parent[first + i])
        e = np.int64(scan.link[first + i])
        price[i + 1] = price[above] + links.price[b, e] + demands.cost[e]
        worst[i + 1] = max(worst[above], links.logarithm[b, e])
        scratch[i + 1] = max(scratch[above], links.excess[b, e])
        hops[i + 1] = hops[above] + np.float32(1)
        store(along, i + 1, load(along, above, lanes) + load(links.message[b], e, lanes))
    path = scan.path_ptr[s]
    for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
        mean = nothing
        count = np.float32(0)
        for k in range(scan.path_count[d]):
            mean = mean + load(state, path + k, lanes)
            if price[scan.end_node[path + k]] < _DEAD:
                count += np.float32(1)
        store(mean_row, 0, mean * fill(np.float32(1) / max(count, np.float32(1)), lanes))
        of_demand = load(weights.bias, 0, lanes)
        second = nothing
        for j in range(0, width, 2):
            of_demand = plus_product(
                of_demand, spread(mean_row, j, lanes), load(weights.demand, j, lanes)
            )
            second = plus_product(
                second, spread(mean_row, j + 1, lanes), load(weights.demand, j + 1, lanes)
            )
        of_demand = of_demand + second
        for _ in range(scan.path_count[d]):
            node = np.int64(scan.end_node[path])
            i = path - scan.path_ptr[s]
            action = np.float32(-np.inf)
            if price[node] < _DEAD:
                profit = _bounded(demands.value[d] - price[node])
                row = plus_product(
                    of_demand, load(along, node, lanes), fill(np.float32(1) / hops[node], lanes)
                )
                second = fill(worst[node], lanes) * load(weights.features, 0, lanes)
                row = plus_product(
                    row, fill(scratch[node], lanes), load(weights.features, 1, lanes)
                )
                second = plus_product(second, fill(profit, lanes), load(weights.features, 2, lanes))
                row = plus_product(row, fill(share[path], lanes), load(weights.features, 3, lanes))
                for j in range(0, width, 2):
                    at = path * width + j
                    row = plus_product(row, spread(state, at, lanes), load(weights.own, j, lanes))
                    second = plus_product(
                        second, spread(state, at + 1, lanes), load(weights.own, j + 1, lanes)
                    )
                row = load(state, path, lanes) + _activated(row + second, lanes)
                store(state, path, row)
                action = _action(row, profit, weights, clamp, lanes)
            actions[i] = action
            path += 1


@inlined_kernel
def _divide(s, scan, rejects, actions, shares, work, bits):
    """The shares of the paths of source ``s`` from their actions."""
    position = 0
    path = scan.path_ptr[s]
    begin = path
    for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
        largest = np.float32(0) if rejects else np.float32(-np.inf)
        n = scan.path_count[d]
        for k in range(n):
            largest = max(largest, actions[path + k - begin])
        if largest == -np.inf:
            largest = np.float32(0)
        work[position] = -largest if rejects else np.float32(-np.inf)
        for k in range(n):
            work[position + 1 + k] = actions[path + k - begin] - largest
        position += n + 1
        path += n
    exponentials(work, bits, position)
    position = 0
    path = begin
    for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
        n = scan.path_count[d]
        total = np.float32(0)
        for k in range(n + 1):
            total += work[position + k]
        scale = np.float32(1) / total if total > 0 else np.float32(0)
        for k in range(n):
            shares[path + k] = work[position + 1 + k] * scale
        position += n + 1
        path += n


@inlined_kernel
def _tell(
    first,
    nodes,
    s,
    b,
    scan,
    demands,
    state,
    shares,
    sharpness,
    of_pair,
    of_state,
    pair,
    states,
    lanes,
):
    """Add what the paths of a source put on links to the sums of a block."""
    of_pair[: 2 * (nodes + 1)] = 0
    of_state[: len(lanes) * (nodes + 1)] = 0
    path = scan.path_ptr[s]
    for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
        rate = demands.rate[b, d]
        for _ in range(scan.path_count[d]):
            node = np.int64(scan.end_node[path])
            part = shares[path]
            of_pair[2 * node] = rate * part
            of_pair[2 * node + 1] = sharpness * rate * part * (np.float32(1) - part)
            store(of_state, node, fill(rate, lanes) * load(state, path, lanes))
            path += 1
    for j in range(nodes):
        i = nodes - 1 - j
        e = np.int64(scan.link[first + i])
        above = np.int64(scan.parent[first + i])
        passing = load(of_pair, i + 1, (0, 0))
        store(pair, e, load(pair, e, (0, 0)) + passing)
        store(of_pair, above, load(of_pair, above, (0, 0)) + passing)
        row = load(of_state, i + 1, lanes)
        store(states, e, load(states, e, lanes) + row)
        store(of_state, above, load(of_state, above, lanes) + row)


@inner_kernel
def _pass_over_block(
    block,
    is_first,
    demands,
    links,
    capacity,
    weights,
    clamp,
    scan,
    block_ptr,
    max_slots,
    max_paths,
    max_shares,
    answers,
    lanes,
):
    """The part of :func:`one_pass` that one block of sources takes."""
    width = len(lanes)
    batch = len(demands.rate)
    all_pairs = answers.pair
    all_states = answers.states
    price = np.empty(max_slots, dtype=np.float32)
    worst = np.empty(max_slots, dtype=np.float32)
    scratch = np.empty(max_slots, dtype=np.float32)
    hops = np.empty(max_slots, dtype=np.float32)
    along = np.empty(max_slots * width, dtype=np.float32)
    of_pair = np.empty(max_slots * 2, dtype=np.float32)
    actions = np.empty(max_paths, dtype=np.float32)
    mean_row = np.empty(width, dtype=np.float32)
    work = np.empty(max_shares, dtype=np.float32)
    bits = np.empty(max_shares, dtype=np.int32)
    for s in range(block_ptr[block], block_ptr[block + 1]):
        first = scan.node_ptr[s]
        nodes = scan.node_ptr[s + 1] - scan.node_ptr[s]
        for b in range(batch):
            state = answers.state[b]
            shares = answers.share[b]
            if is_first:
                _encode(
                    first,
                    nodes,
                    b,
                    s,
                    scan,
                    demands,
                    links,
                    capacity,
                    state,
                    price,
                    worst,
                    scratch,
                    hops,
                    actions,
                    weights,
                    clamp,
                    lanes,
                )
            else:
                _update(
                    first,
                    nodes,
                    b,
                    s,
                    scan,
                    demands,
                    links,
                    state,
                    shares,
                    price,
                    worst,
                    scratch,
                    hops,
                    along,
                    actions,
                    mean_row,
                    weights,
                    clamp,
                    lanes,
                )
            _divide(s, scan, demands.rejects, actions, shares, work, bits)
            _tell(
                first,
                nodes,
                s,
                b,
                scan,
                demands,
                state,
                shares,
                weights.sharpness,
                of_pair,
                along,
                all_pairs[block, b],
                all_states[block, b],
                lanes,
            )


@partitioned_kernel("block_ptr", num_ranges)
def one_pass(
    begin: int,
    end: int,
    is_first: bool,
    demands: Demands,
    links: LinkInputs,
    capacity: Float32Array,
    weights: Weights,
    clamp: np.float32,
    scan: PathScan,
    block_ptr: Int64Array,
    max_slots: int,
    max_paths: int,
    max_shares: int,
    answers: Answers,
    lanes: tuple[int, ...],
) -> None:
    """One pass over the paths of all sources: states, shares, and the sums of the links.

    Args:
        is_first: whether the pass is the encoder's, else that of a layer.
        demands: demands and paths of B matrices.
        links: what they say.
        capacity: (B, E) Gbit/s, which the encoder reads.
        weights: weights of the encoder or the layer.
        clamp: largest absolute value of an action.
        scan: the paths.
        block_ptr: (blocks + 1,) the sources of each block.
        max_slots: node numbers that a source needs, at most.
        max_paths: paths of a source, at most.
        max_shares: paths and demands of a source, at most.
        answers: read and written.
        lanes: as many zeros as a state has numbers.
    """
    for block in range(begin, end):
        _pass_over_block(
            block,
            is_first,
            demands,
            links,
            capacity,
            weights,
            clamp,
            scan,
            block_ptr,
            max_slots,
            max_paths,
            max_shares,
            answers,
            lanes,
        )


@inner_kernel
def _even_loads_of_block(
    block,
    rate,
    failed,
    scan,
    block_ptr,
    max_slots,
    sums,
):
    """The part of :func:`even_loads` that one block of sources takes."""
    dead = np.zeros(max_slots, dtype=np.float32)
    flow = np.empty(2 * max_slots, dtype=np.float32)
    for s in range(block_ptr[block], block_ptr[block + 1]):
        first = scan.node_ptr[s]
        nodes = scan.node_ptr[s + 1] - scan.node_ptr[s]
        for b in range(len(rate)):
            for i in range(nodes):
                dead[i + 1] = dead[scan.parent[first + i]] + failed[b, scan.link[first + i]]
            flow[: 2 * (nodes + 1)] = 0
            path = scan.path_ptr[s]
            for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
                n = scan.path_count[d]
                live = 0
                for k in range(n):
                    live += dead[scan.end_node[path + k]] == 0
                for k in range(n):
                    node = scan.end_node[path + k]
                    if dead[node] == 0:
                        flow[2 * node] = rate[b, d] / np.float32(live)
                        flow[2 * node + 1] = rate[b, d]
                path += n
            for j in range(nodes):
                i = nodes - 1 - j
                e = np.int64(scan.link[first + i])
                above = np.int64(scan.parent[first + i])
                passing = load(flow, i + 1, (0, 0))
                store(sums[block, b], e, load(sums[block, b], e, (0, 0)) + passing)
                store(flow, above, load(flow, above, (0, 0)) + passing)


@partitioned_kernel("block_ptr", num_ranges)
def even_loads(
    begin: int,
    end: int,
    rate: Float32Array,
    failed: Float32Array,
    scan: PathScan,
    block_ptr: Int64Array,
    max_slots: int,
    sums: Float32Array,
) -> None:
    """Sums (blocks, B, 2 E): load of even splits over live paths, and load if every live path
    carried its demand.
    """
    for block in range(begin, end):
        _even_loads_of_block(
            block,
            rate,
            failed,
            scan,
            block_ptr,
            max_slots,
            sums,
        )


_MIN_BLOCK_WORK = 20_000  # trie nodes and paths of a block of sources, at least
_MAX_BLOCKS = 16  # blocks of sources, each with sums of its own
_OPERATIONS_PER_NUMBER = 20  # scalar operations for each number of a state in a pass, approximately


class CompiledPasses:
    """Compiled passes: a :class:`teal.nn.flow_passes.PathPasses`.

    Args:
        problem: B matrices, for which :meth:`accepts` is true.
        clamp: largest absolute value of an action.
    """

    def __init__(self, problem: Problem, clamp: float) -> None:
        self._problem = problem
        self._packed = problem.paths.packed
        self._clamp = np.float32(clamp)
        scan = self._packed.scan
        packed = self._packed
        batch = problem.batch
        self._block_ptr = packed.blocks(_MIN_BLOCK_WORK, _MAX_BLOCKS)
        self._max_paths = int(np.diff(scan.path_ptr).max(initial=0))
        self._max_shares = int(np.diff(scan.path_ptr + scan.demand_ptr).max(initial=0))
        rejects = not problem.demand_set.carries_all
        unit = mean_value(problem).clamp(min=1e-30) if rejects else torch.ones(())
        value = problem.demand_value / unit if rejects else torch.zeros_like(problem.demand_value)
        cost = problem.link_cost / unit if rejects else torch.zeros_like(problem.link_cost)
        self._demands = Demands(_array(problem.demand), _array(value), _array(cost), rejects)
        self._is_dead = problem.capacity <= 0
        blocks = len(self._block_ptr) - 1
        sums = np.zeros((blocks, batch, 2 * packed.num_links), np.float32)
        with threads_for(2 * batch * (packed.num_nodes + packed.num_paths)):
            even_loads(
                self._demands.rate,
                _array(self._is_dead.to(torch.float32)),
                scan,
                self._block_ptr,
                packed.max_slots,
                sums,
            )
        even = torch.from_numpy(sums.sum(0))
        self.even_load = even[:, ::2]
        self.full_load = even[:, 1::2]
        self._answers: Answers | None = None
        self.sums = torch.zeros(0)

    @staticmethod
    def accepts(problem: Problem, width: int) -> bool:
        """Whether problem and width of the states are those that the kernels take."""
        on_cpu = problem.ops.backend.name == "numba" and problem.demand.dtype == torch.float32
        return on_cpu and problem.ops.is_over_paths and width in UNIVERSAL_WIDTHS

    @property
    def splits(self) -> Tensor:
        """(B, D, K) of the last pass."""
        assert self._answers is not None
        splits = torch.zeros(self._problem.batch, *self._problem.paths.leaf.shape)
        with threads_for(self._packed.num_paths * self._problem.batch):
            pad_paths(self._answers.share, self._packed.scan, splits.numpy())
        return splits

    def encode(
        self, weights: PathEncoder, price: Tensor, sharpness: Tensor, utilisation: Tensor
    ) -> None:
        """First states of the paths, as in :meth:`PathPasses.encode`."""
        width = weights.features.out_features
        batch = self._problem.batch
        packed = self._packed
        blocks = len(self._block_ptr) - 1
        self._answers = Answers(
            np.zeros((batch, packed.num_paths * width), np.float32),
            np.zeros((batch, packed.num_paths), np.float32),
            np.empty((blocks, batch, packed.num_links * 2), np.float32),
            np.empty((blocks, batch, packed.num_links * width), np.float32),
        )
        none = np.zeros(0, np.float32)
        layer = Weights(
            none,
            none,
            _rows(weights.features),
            _array(weights.features.bias),
            _array(weights.action.weight)[0],
            np.float32(float(weights.action.bias)),
            np.float32(float(sharpness)),
        )
        self._run(True, layer, price, np.zeros((batch, 0), np.float32), utilisation, width)

    def update(
        self,
        weights: PathUpdate,
        price: Tensor,
        sharpness: Tensor,
        message: Tensor,
        utilisation: Tensor,
    ) -> None:
        """States after a layer, as in :meth:`PathPasses.update`."""
        layer = Weights(
            _rows(weights.own),
            _rows(weights.demand),
            _rows(weights.features),
            _array(weights.own.bias),
            _array(weights.action.weight)[0],
            np.float32(float(weights.action.bias)),
            np.float32(float(sharpness)),
        )
        self._run(
            False, layer, price, _array(message.flatten(1)), utilisation, weights.own.out_features
        )

    def _run(
        self,
        is_first: bool,
        layer: Weights,
        price: Tensor,
        message: Float32Array,
        utilisation: Tensor,
        width: int,
    ) -> None:
        answers = self._answers
        packed = self._packed
        assert answers is not None
        links = LinkInputs(
            _array(torch.where(self._is_dead, FAILED_WEIGHT, price)),
            _array((utilisation + UTILISATION_OFFSET).log()),
            _array(1 - 1 / utilisation.clamp(min=1)),
            message,
        )
        answers.pair[:] = 0
        answers.states[:] = 0
        with threads_for(_OPERATIONS_PER_NUMBER * packed.num_paths * width * self._problem.batch):
            one_pass(
                is_first,
                self._demands,
                links,
                _array(self._problem.capacity),
                layer,
                self._clamp,
                packed.scan,
                self._block_ptr,
                packed.max_slots,
                self._max_paths,
                self._max_shares,
                answers,
                (0,) * width,
            )
        shape = (self._problem.batch, packed.num_links, -1)
        both = (
            torch.from_numpy(part.sum(0)).view(shape) for part in (answers.pair, answers.states)
        )
        self.sums = torch.cat(list(both), -1)


def _array(values: Tensor) -> Float32Array:
    return values.detach().to(torch.float32).contiguous().numpy()


def _rows(layer: nn.Linear) -> Float32Array:
    """Weights (inputs, outputs), flat."""
    return np.ascontiguousarray(_array(layer.weight).T).ravel()
