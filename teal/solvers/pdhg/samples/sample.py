"""Sampled dual start: link prices from a sample of the demands, and the response of all demands.

:func:`draw` samples, :func:`answer` takes prices from the sample's solution, :func:`respond`
computes splits of all demands at these prices.  Only E link prices couple the demands.  Demand d is
drawn with probability

    pi[d] = min(1, a demand[d]),    a such that n demands are expected,

at the rate demand[d] / pi[d], so that expected loads are those of all demands (Horvitz & Thompson
1952); the sample is solved, and every demand responds to its prices with a softmax: it sends the
share

    w[d, k] = exp(q (v[d, k] - price(d, k))) / (1 + sum_j exp(q (v[d, j] - price(d, j))))

over path k.  The 1 stands for rejected demand; a balanced program has none.  Piecewise constant
marginal values: the sum over the steps of their part of the demand times this share.  Concave
utility: the optimal share at the price of the cheapest path, divided in these proportions.  Demands
with pi = 1 keep the splits of the sample's solution, since they are too large for an average.  By
weak duality any prices of a sample bound the optimum of the full program.

The response overloads some links and leaves others unused.  Where that costs too much, prices take
one Newton step per link, with the elasticity of all responding demands:

    p[e] <- max(0, p[e] + 0.8 (load[e] - c[e]) / elasticity[e]),
    elasticity[e] = sum of q demand w (1 - w),

the sum over the paths through e; each step is clamped to 0.3 times the mean value of a demanded
Gbit/s.

The draw is systematic (Madow 1949): one random offset per matrix, from a fixed seed, and every
demand at which the cumulative sum of pi passes the offset plus an integer.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from teal.network import subset
from teal.network.packed import PathScan, num_ranges
from teal.network.path_set import PathSet
from teal.pathops import make_path_ops
from teal.pathops.response import exponentials
from teal.problem import Problem
from teal.runtime.arrays import AnyArray, BoolArray, Float32Array, FloatArray, Int64Array
from teal.runtime.lanes import load, store
from teal.runtime.parallel import inner_kernel, kernel, partitioned_kernel
from teal.solvers.pdhg.fused.curves import CurveRows
from teal.solvers.pdhg.fused.demand_value import DemandValue

_SEED = 20_250_101  # seed of all draws
# Softmax temperature, over the mean value of a demanded Gbit/s: 0.05 serves up to 2% less where
# most demand is shed, 0.0015 no more.
TEMPERATURE = 0.005
# Multiple of total demand over n: smaller demands are hardly ever certain to be drawn.
_MIN_CERTAIN_RATE_FACTOR = 0.1
_DAMPING = 0.8  # factor on Newton steps
_MAX_NEWTON_STEP = 0.3  # limit of a Newton step, over the mean value of a demanded Gbit/s
_MAX_SHARPNESS = 1e20  # largest q: q times a profit fits float32
# Difference of exponents above which the paths of a step get no flow.
_MAX_EXPONENT = np.float32(80)
_MAX_PASSES = 8  # passes over the demands until the set of certain demands is stable


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """Sampled demands of one matrix.

    Attributes:
        demands: (n,) demand indices, ascending.
        is_certain: (n,) whether pi = 1.
        problem: program of the sampled demands at the rates demand / pi, B = 1; max_concurrent_flow
            as max_link_utilisation.
    """

    demands: Int64Array
    is_certain: BoolArray
    problem: Problem


@dataclasses.dataclass(frozen=True, eq=False)
class SampleAnswer:
    """Prices of a sample's solution, and the fixed splits, for all demands of a matrix.

    Attributes:
        prices: (E,) value per Gbit/s; 1/(Gbit/s) for a balanced program.
        sharpness: q, the inverse softmax temperature, 1/(value per Gbit/s).
        fixed_demands: (m,) indices of the demands with fixed splits, ascending.
        fixed_splits: (m, K) splits of these demands.
    """

    prices: FloatArray
    sharpness: float
    fixed_demands: Int64Array
    fixed_splits: AnyArray

    def corrected(
        self, link_load: FloatArray, elasticity: FloatArray, capacity: FloatArray
    ) -> SampleAnswer:
        """Return the answer after one Newton step on the prices.

        Args:
            link_load: (E,) load of the response to these prices, Gbit/s.
            elasticity: (E,) derivative of the load by the price; 0 where no demand responds.
            capacity: (E,) Gbit/s.
        """
        max_step = _MAX_NEWTON_STEP / (TEMPERATURE * self.sharpness)
        step = _DAMPING * (link_load - capacity) / np.maximum(elasticity, 1e-300)
        prices = np.maximum(0, self.prices + np.clip(step, -max_step, max_step))
        return dataclasses.replace(self, prices=np.where(elasticity > 0, prices, self.prices))


def no_answer(problem: Problem) -> SampleAnswer:
    """Return the answer of a matrix without demand: zero prices."""
    no_demands = np.zeros(0, np.int64)
    splits = np.zeros((0, problem.paths.num_paths))
    return SampleAnswer(np.zeros(problem.topology.num_links), 1.0, no_demands, splits)


def answer(sample: Sample, splits: Tensor, prices: Tensor) -> SampleAnswer:
    """Create the answer from a sample's solution.

    Args:
        sample: solved sample.
        splits: (1, n, K) splits of the solution.
        prices: (1, E) prices of the solution.
    """
    problem = sample.problem
    sample_prices = prices[0].numpy()
    total = float(problem.demand.sum())
    # Mean value of a demanded Gbit/s times total; in a balanced program its mean price is at most
    # theta / total.
    if problem.price_set.on_simplex:
        optimum_scale = float((problem.capacity[0] * prices[0]).sum()) * float(
            problem.utilisation(splits).amax()
        )
    else:
        optimum_scale = float(
            (
                problem.demand
                * problem.demand_set.of_best(problem.demand_value.expand_as(problem.demand))
            ).sum()
        )
    temperature = TEMPERATURE * optimum_scale / total if total > 0 else 0.0
    sharpness = min(1 / temperature, _MAX_SHARPNESS) if temperature > 0 else 1.0
    return SampleAnswer(
        sample_prices,
        sharpness,
        sample.demands[sample.is_certain],
        splits[0].numpy()[sample.is_certain],
    )


def draw(problem: Problem, size: int, row: int = 0, stream: int | None = None) -> Sample:
    """Sample about ``size`` demands of matrix ``row``.

    Args:
        problem: B matrices, on the CPU.
        size: n, expected number of demands.
        row: index of the matrix.
        stream: index of the random stream; None for ``row``.
    """
    demand = problem.demand[row].to(torch.float64).numpy()
    demands, chance = choose(demand, size, row if stream is None else stream)
    row_problem = problem.row(row)
    indices = torch.from_numpy(demands)
    if row_problem.steps is not None:
        row_problem = dataclasses.replace(row_problem, steps=row_problem.steps.demands(indices))
    paths = subset.of_demands(problem.paths, demands)
    return sample_of(
        row_problem, demands, chance, demand[demands], problem.demand_value[indices], paths
    )


def choose(demand: FloatArray, size: int, row: int = 0) -> tuple[Int64Array, FloatArray]:
    """Draw demands; return their indices (n,), ascending, and their probabilities pi.

    Args:
        demand: (D,) Gbit/s.
        size: n, expected number of demands.
        row: index of the random stream.
    """
    factor = _factor(demand, size)
    offset = np.random.default_rng([_SEED, row]).random()
    demands = np.flatnonzero(_select(demand, factor, offset))
    return demands, np.minimum(1.0, factor * demand[demands])


def sample_of(
    problem: Problem,
    demands: Int64Array,
    chance: FloatArray,
    rates: FloatArray,
    value: Tensor,
    paths: PathSet,
) -> Sample:
    """Create the sample of drawn demands.

    Args:
        problem: network, objective, capacities, costs and value steps of the drawn demands; B = 1.
        demands: (n,) indices.
        chance: (n,) probabilities pi.
        rates: (n,) Gbit/s.
        value: (n,) value per Gbit/s.
        paths: paths of these demands.
    """
    sampled = dataclasses.replace(
        problem.solved,
        paths=paths,
        ops=make_path_ops(paths, problem.ops.device),
        demand=torch.from_numpy(rates / chance)[None],
        capacity=problem.capacity.to(torch.float64),
        demand_value=value.to(torch.float64),
        link_cost=problem.link_cost.to(torch.float64),
    )
    return Sample(demands, chance >= 1, sampled)


@kernel
def _factor(demand: FloatArray, size: int) -> float:
    """Return the a for which the sum of min(1, a demand) is ``size``; infinite with fewer positive
    demands.

    Certain demands are among the large ones, so that only the first passes visit all demands.
    """
    total = 0.0
    num_positive = 0
    for d in range(len(demand)):
        total += demand[d]
        num_positive += demand[d] > 0
    if num_positive <= size:
        return np.inf
    min_large_rate = _MIN_CERTAIN_RATE_FACTOR * total / size
    large = demand[demand > min_large_rate]
    factor = size / total
    threshold = total / size
    for _ in range(_MAX_PASSES):
        if threshold < min_large_rate:
            large = demand
            min_large_rate = 0.0
        uncertain_total = total
        num_certain = 0
        for rate in large:
            if rate >= threshold:
                uncertain_total -= rate
                num_certain += 1
        if num_certain >= size or uncertain_total <= 0:
            break
        new_factor = (size - num_certain) / uncertain_total
        if new_factor <= factor * (1 + 1e-9):
            break
        factor = new_factor
        threshold = 1 / new_factor
    return factor


@kernel
def _select(demand: FloatArray, factor: float, offset: float) -> BoolArray:
    """Return (D,) whether each demand is drawn."""
    is_drawn = np.zeros(len(demand), dtype=np.bool_)
    position = offset
    for d in range(len(demand)):
        if demand[d] > 0:
            chance = factor * demand[d]
            if chance >= 1:
                is_drawn[d] = True
            else:
                position += chance
                if position >= 1:
                    position -= 1
                    is_drawn[d] = True
    return is_drawn


@inner_kernel
def _respond_in_block(  # type: ignore[no-untyped-def]
    block,
    scan,
    block_ptr,
    max_slots,
    max_shares,
    price_plus_cost,
    demand_value,
    curve,
    sharpness,
    may_reject,
    fixed_demands,
    fixed_ptr,
    fixed_splits,
    demand,
    out,
    sums,
    lane,
    width,
    pair,
):
    """Compute the softmax splits of one block of sources at given prices; arguments as in
    :func:`respond`.

    ``weight`` is one flat buffer for the demands of a source.  Each demand has ``steps`` entries
    for its unserved demand (one for each value step), then one for each path: first the exponents,
    then their exponentials.
    """
    is_summing = sums.shape[1] > 0
    steps = demand_value.drop.shape[1]
    has_rejection = may_reject and curve is None
    cost = np.zeros(max_slots, dtype=np.float32)  # of the path to each node
    weight = np.empty(max_shares, dtype=np.float32)
    bits = np.empty(max_shares, dtype=np.int32)
    flow = np.empty(2 * max_slots, dtype=np.float32)  # of each node: load, elasticity
    block_sums = sums[block]
    profits = np.empty(max_shares if curve is not None else 0, dtype=np.float32)
    block_sums[:] = 0
    for s in range(block_ptr[block], block_ptr[block + 1]):
        first = scan.node_ptr[s]
        nodes = scan.node_ptr[s + 1] - scan.node_ptr[s]
        # Exponents of the softmax, relative to the largest one of each demand.
        for i in range(nodes):
            cost[i + 1] = cost[scan.parent[first + i]] + price_plus_cost[scan.link[first + i]]
        offset = 0
        path = scan.path_ptr[s]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            value = np.float32(demand_value.first[d if len(demand_value.first) > 1 else 0])
            n = scan.path_count[d]
            largest = np.float32(0) if has_rejection else np.float32(-3e38)
            for k in range(n):
                x = sharpness * (value - cost[scan.end_node[path + k]])
                weight[offset + steps + k] = x
                largest = max(largest, x)
            for k in range(n):
                weight[offset + steps + k] -= largest
            # Profit of the cheapest path, for the share of a utility below.
            if curve is not None:
                profits[d - scan.demand_ptr[s]] = largest
            # Exponentials below -80 are 0.
            weight[offset] = -largest if has_rejection else np.float32(-100)
            row = d if demand_value.drop.shape[0] > 1 else 0
            for c in range(1, steps):
                exponent = sharpness * value * np.float32(demand_value.drop[row, c]) - largest
                weight[offset + c] = min(exponent, _MAX_EXPONENT)
            offset += n + steps
            path += n
        exponentials(weight, bits, offset)
        # Splits, flows and elasticities.
        if is_summing:
            flow[: 2 * (nodes + 1)] = 0
        offset = 0
        path = scan.path_ptr[s]
        next_fixed = fixed_ptr[s]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            n = scan.path_count[d]
            if next_fixed < fixed_ptr[s + 1] and fixed_demands[next_fixed] == d:
                for k in range(n):
                    out[(path + k) * width + lane] = fixed_splits[next_fixed, k]
                    if is_summing:
                        flow[2 * np.int64(scan.end_node[path + k])] = (
                            demand[d * width + lane] * fixed_splits[next_fixed, k]
                        )
                next_fixed += 1
            else:
                total = np.float32(0)
                for k in range(n):
                    total += weight[offset + steps + k]
                scale = np.float32(1) / max(weight[offset] + total, np.float32(1e-30))
                share_elasticity = np.float32(0)  # elasticity of a demand's share, over its flow
                if curve is not None:
                    value = demand_value.first[d if len(demand_value.first) > 1 else 0]
                    price = value - profits[d - scan.demand_ptr[s]] / sharpness
                    full_share_value = max(curve.full_share_value[d * width + lane], 1e-300)
                    if price > full_share_value:
                        ratio = full_share_value / price
                        alpha = curve.alpha[0]
                        # Skip the slow power where alpha is 1.
                        scale *= np.float32(ratio if alpha == 1.0 else ratio ** (1.0 / alpha))
                        share_elasticity = np.float32(1.0 / (alpha * price))
                # Sums over the value steps: width / normaliser, and width / normaliser^2.
                scale_of_squares = scale * scale
                if steps > 1:
                    scale = np.float32(0)
                    scale_of_squares = np.float32(0)
                    start = np.float32(0)
                    for c in range(steps):
                        end = np.float32(demand_value.end[(d * steps + c) * width + lane])
                        inverse_sum = np.float32(1) / max(
                            weight[offset + c] + total, np.float32(1e-30)
                        )
                        scale = scale + (end - start) * inverse_sum
                        scale_of_squares = (
                            scale_of_squares + (end - start) * inverse_sum * inverse_sum
                        )
                        start = end
                rate = np.float32(demand[d * width + lane])
                for k in range(n):
                    x = weight[offset + steps + k]
                    path_share = x * scale
                    out[(path + k) * width + lane] = path_share
                    if is_summing:
                        node = 2 * np.int64(scan.end_node[path + k])
                        flow[node] = rate * path_share
                        if curve is None:
                            flow[node + 1] = (
                                sharpness * rate * (path_share - x * x * scale_of_squares)
                            )
                        else:
                            flow[node + 1] = (
                                rate * path_share * (sharpness * (1 - x / total) + share_elasticity)
                            )
            offset += n + steps
            path += n
        # Sum up the trie.
        if is_summing:
            for j in range(nodes):
                i = nodes - 1 - j
                e = np.int64(scan.link[first + i])
                parent_row = np.int64(scan.parent[first + i])
                passing = load(flow, i + 1, pair)
                store(block_sums, e, load(block_sums, e, pair) + passing)
                store(flow, parent_row, load(flow, parent_row, pair) + passing)


@partitioned_kernel("block_ptr", num_ranges)
def respond(
    begin: int,
    end: int,
    scan: PathScan,
    block_ptr: Int64Array,
    max_slots: int,
    max_shares: int,
    price_plus_cost: Float32Array,
    demand_value: DemandValue,
    curve: CurveRows | None,
    sharpness: np.float32,
    may_reject: bool,
    fixed_demands: Int64Array,
    fixed_ptr: Int64Array,
    fixed_splits: AnyArray,
    demand: FloatArray,
    out: AnyArray,
    sums: Float32Array,
    lane: int,
    width: int,
    pair: tuple[int, int],
) -> None:
    """Write the response of all demands of one matrix to its prices into one lane of path rows.

    Args:
        scan: P paths of all D demands.
        block_ptr: (blocks + 1,) sources of each block.
        max_slots: largest number of trie nodes of a source, plus one.
        max_shares: largest number of paths and value steps of the demands of a source.
        price_plus_cost: (E,) value per Gbit/s; ``FAILED_PRICE`` on a failed link.
        demand_value: values of the demands.
        curve: utility of the demands; None for linear values.
        sharpness: q, 1/(value per Gbit/s).
        may_reject: whether a demand may be served in part.
        fixed_demands: (n,) indices of the demands with fixed splits, ascending.
        fixed_ptr: (S + 1,) offsets of the sources in ``fixed_demands``.
        fixed_splits: (n, K) splits of these demands.
        demand: (D * width,) Gbit/s, 0 where no path is live.
        out: (P * width,) receives the splits.
        sums: (blocks, 2 * E) receives load (Gbit/s) and elasticity of each link, side by side;
            (blocks, 0) for neither.
        lane: lane of the matrix.
        width: number of lanes.
        pair: a tuple of length 2, for load and elasticity as two SIMD lanes.
    """
    for block in range(begin, end):
        _respond_in_block(
            block,
            scan,
            block_ptr,
            max_slots,
            max_shares,
            price_plus_cost,
            demand_value,
            curve,
            sharpness,
            may_reject,
            fixed_demands,
            fixed_ptr,
            fixed_splits,
            demand,
            out,
            sums,
            lane,
            width,
            pair,
        )
