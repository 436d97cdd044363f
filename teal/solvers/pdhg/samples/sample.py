"""A start from a sample of the demands: link prices from few demands, then the response of all of
them.

What couples demands are E link prices.  Demand d is drawn with probability

    pi[d] = min(1, a demand[d]),    a such that n demands are expected,

at the rate demand[d] / pi[d], so that expected loads are those of all demands (Horvitz & Thompson
1952); the sample is solved, and every demand responds to its prices: it sends the share

    w[d, k] = exp(q (v[d, k] - price(d, k))) / (1 + sum_j exp(q (v[d, j] - price(d, j))))

over path k (in a balanced program without the 1, which stands for what is rejected; where values
fall in steps, the sum over the steps of their part of the demand times this share; of a concave
utility, the share that is best at the price of the cheapest path, divided in these proportions).
Demands that were certain to be drawn keep the splits of the sample's solution, since they count too
much to be left to an average.  By weak duality the sample's prices bound the optimum of the whole
program, whatever they are.

The response of light demands to prices from few of them leaves some links above capacity and others
unused.  Where that costs too much, prices take Newton steps, one a link, with the elasticity of all
demands that respond:

    p[e] <- max(0, p[e] + 0.8 (load[e] - c[e]) / elasticity[e]),
    elasticity[e] = sum of q demand w (1 - w),

the sum over the paths through e, and each step at most 0.3 times the mean value of a demanded
Gbit/s.

The draw is systematic (Madow 1949): one random number for each matrix, from a fixed seed, and every
demand at which the sum of pi passes it plus a whole number.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from teal.network import subset
from teal.network.packed import PathScan
from teal.network.path_set import PathSet
from teal.pathops import make_path_ops
from teal.pathops.response import exponentials
from teal.problem import Problem
from teal.runtime.arrays import AnyArray, BoolArray, Float32Array, FloatArray, Int64Array
from teal.runtime.lanes import load, store
from teal.runtime.parallel import inner_kernel, kernel, partitioned_kernel
from teal.solvers.pdhg.fused.curves import CurveRows
from teal.solvers.pdhg.fused.demand_value import DemandValue

_SEED = 20_250_101  # of the random numbers of all draws
# Differences of a path's profit that matter, over the mean value of a demanded Gbit/s: 0.05 carries
# up to 2% less where most demand is shed, 0.0015 no more.
TEMPERATURE = 0.005
_NEVER_CERTAIN = 0.1  # x total demand over n: smaller demands are hardly ever certain to be drawn
# Of Newton's steps; the second over the mean value of a demanded Gbit/s.
_DAMPING = 0.8
_LONGEST_STEP = 0.3
_SHARPEST = 1e20  # q at most: q times a profit is float32
_REJECTED = np.float32(
    80
)  # a step whose exponent is this much larger than that of every path carries nothing
_MAX_PASSES = 8  # over the demands, in which the set of certain demands settles


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """The sampled demands of one matrix.

    Attributes:
        demands: (n,) demand numbers, ascending.
        is_certain: (n,) whether pi = 1.
        problem: problem of the sampled demands at their raised rates, B = 1; max_concurrent_flow as
            max_link_utilisation.
    """

    demands: Int64Array
    is_certain: BoolArray
    problem: Problem


@dataclasses.dataclass(frozen=True, eq=False)
class SampleAnswer:
    """The prices of a sample's solution, for all demands of its matrix.

    Attributes:
        prices: (E,) value per Gbit/s; 1/(Gbit/s) for a balanced program.
        sharpness: q, the inverse of the unit of path prices that makes a difference.
        kept: (m,) numbers of the demands that keep their splits, ascending.
        kept_splits: (m, K) these splits.
    """

    prices: FloatArray
    sharpness: float
    kept: Int64Array
    kept_splits: AnyArray

    def corrected(
        self, link_load: FloatArray, elasticity: FloatArray, capacity: FloatArray
    ) -> SampleAnswer:
        """The answer after one Newton step of the prices.

        Args:
            link_load: (E,) of the response to these prices, Gbit/s.
            elasticity: (E,) of the load, Gbit/s for each value per Gbit/s; 0 where no demand
                responds.
            capacity: (E,) Gbit/s.
        """
        longest = _LONGEST_STEP / (TEMPERATURE * self.sharpness)
        step = _DAMPING * (link_load - capacity) / np.maximum(elasticity, 1e-300)
        prices = np.maximum(0, self.prices + np.clip(step, -longest, longest))
        return dataclasses.replace(self, prices=np.where(elasticity > 0, prices, self.prices))


def no_answer(problem: Problem) -> SampleAnswer:
    """The answer of a matrix without demand: prices of 0."""
    nothing, splits = np.zeros(0, np.int64), np.zeros((0, problem.paths.num_paths))
    return SampleAnswer(np.zeros(problem.topology.num_links), 1.0, nothing, splits)


def answer(sample: Sample, splits: Tensor, prices: Tensor) -> SampleAnswer:
    """The answer of a solved sample.

    Args:
        sample: sample that was solved.
        splits: (1, n, K) of its solution.
        prices: (1, E) of its solution.
    """
    problem, sample_prices = sample.problem, prices[0].numpy()
    total = float(problem.demand.sum())
    if problem.price_set.on_simplex:  # the mean price of a demanded Gbit/s is at most theta / total
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
    size = TEMPERATURE * optimum_scale / total if total > 0 else 0.0
    sharpness = min(1 / size, _SHARPEST) if size > 0 else 1.0
    return SampleAnswer(
        sample_prices,
        sharpness,
        sample.demands[sample.is_certain],
        splits[0].numpy()[sample.is_certain],
    )


def draw(problem: Problem, size: int, row: int = 0, stream: int | None = None) -> Sample:
    """Sample about ``size`` demands of matrix ``row``.

    Args:
        problem: on the CPU.
        size: n, expected number.
        row: number of the matrix.
        stream: number of the random stream; None for ``row``.
    """
    demand = problem.demand[row].to(torch.float64).numpy()
    demands, chance = choose(demand, size, row if stream is None else stream)
    of_row, rows = problem.row(row), torch.from_numpy(demands)
    if of_row.steps is not None:
        of_row = dataclasses.replace(of_row, steps=of_row.steps.demands(rows))
    paths = subset.of_demands(problem.paths, demands)
    return of_chosen(of_row, demands, chance, demand[demands], problem.demand_value[rows], paths)


def choose(demand: FloatArray, size: int, row: int = 0) -> tuple[Int64Array, FloatArray]:
    """The numbers (n,), ascending, of the demands that are drawn, and their probabilities pi.

    Args:
        demand: (D,) Gbit/s.
        size: n, expected number.
        row: number of the random stream.
    """
    factor = _factor(demand, size)
    offset = np.random.default_rng([_SEED, row]).random()
    demands = np.flatnonzero(_select(demand, factor, offset))
    return demands, np.minimum(1.0, factor * demand[demands])


def of_chosen(
    problem: Problem,
    demands: Int64Array,
    chance: FloatArray,
    rates: FloatArray,
    value: Tensor,
    paths: PathSet,
) -> Sample:
    """The sample of the chosen demands.

    Args:
        problem: for network, objective, capacities, costs and the steps of the chosen demands'
            values; B = 1.
        demands: (n,) numbers.
        chance: (n,) probabilities pi.
        rates: (n,) Gbit/s.
        value: (n,) per Gbit/s.
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
    """The a for which the sum of min(1, a demand) is ``size``; infinite if there are fewer demands
    above 0.

    Demands that are certain to be drawn are among the large ones, so that only the first passes
    visit all demands.
    """
    total, positive = 0.0, 0
    for d in range(len(demand)):
        total += demand[d]
        positive += demand[d] > 0
    if positive <= size:
        return np.inf
    all_large = _NEVER_CERTAIN * total / size
    large = demand[demand > all_large]
    factor, threshold = size / total, total / size
    for _ in range(_MAX_PASSES):
        if threshold < all_large:
            large, all_large = demand, 0.0
        rest, certain = total, 0
        for rate in large:
            if rate >= threshold:
                rest -= rate
                certain += 1
        if certain >= size or rest <= 0:
            break
        new = (size - certain) / rest
        if new <= factor * (1 + 1e-9):
            break
        factor, threshold = new, 1 / new
    return factor


@kernel
def _select(demand: FloatArray, factor: float, offset: float) -> BoolArray:
    """(D,) true where a demand is drawn."""
    chosen = np.zeros(len(demand), dtype=np.bool_)
    position = offset
    for d in range(len(demand)):
        if demand[d] > 0:
            chance = factor * demand[d]
            if chance >= 1:
                chosen[d] = True
            else:
                position += chance
                if position >= 1:
                    position -= 1
                    chosen[d] = True
    return chosen


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
    kept,
    kept_ptr,
    kept_splits,
    demand,
    out,
    sums,
    lane,
    width,
    pair,
):
    """The part of :func:`respond` that one block of sources takes."""
    is_summing, steps, rejects = (
        sums.shape[1] > 0,
        demand_value.drop.shape[1],
        may_reject and curve is None,
    )
    cost = np.zeros(max_slots, dtype=np.float32)  # of the path to each node
    share, bits = np.empty(max_shares, dtype=np.float32), np.empty(max_shares, dtype=np.int32)
    flow = np.empty(2 * max_slots, dtype=np.float32)  # of each node: load, elasticity
    block_sums, profits = (
        sums[block],
        np.empty(max_shares if curve is not None else 0, dtype=np.float32),
    )
    block_sums[:] = 0
    for s in range(block_ptr[block], block_ptr[block + 1]):
        first, nodes = scan.node_ptr[s], scan.node_ptr[s + 1] - scan.node_ptr[s]
        for i in range(nodes):
            cost[i + 1] = cost[scan.parent[first + i]] + price_plus_cost[scan.link[first + i]]
        place, path = 0, scan.path_ptr[s]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            value = np.float32(demand_value.first[d if len(demand_value.first) > 1 else 0])
            n = scan.path_count[d]
            largest = np.float32(0) if rejects else np.float32(-3e38)
            for k in range(n):
                x = sharpness * (value - cost[scan.end_node[path + k]])
                share[place + steps + k] = x
                largest = max(largest, x)
            for k in range(n):
                share[place + steps + k] -= largest
            if curve is not None:  # the most profitable path, for the share below
                profits[d - scan.demand_ptr[s]] = largest
            share[place] = -largest if rejects else np.float32(-100)  # exponentials below -80 are 0
            row = d if demand_value.drop.shape[0] > 1 else 0
            for c in range(1, steps):
                rejected = sharpness * value * np.float32(demand_value.drop[row, c]) - largest
                share[place + c] = min(rejected, _REJECTED)
            place += n + steps
            path += n
        exponentials(share, bits, place)
        if is_summing:
            flow[: 2 * (nodes + 1)] = 0
        place, path, next_kept = 0, scan.path_ptr[s], kept_ptr[s]
        for d in range(scan.demand_ptr[s], scan.demand_ptr[s + 1]):
            n = scan.path_count[d]
            if next_kept < kept_ptr[s + 1] and kept[next_kept] == d:
                for k in range(n):
                    out[(path + k) * width + lane] = kept_splits[next_kept, k]
                    if is_summing:
                        flow[2 * np.int64(scan.end_node[path + k])] = (
                            demand[d * width + lane] * kept_splits[next_kept, k]
                        )
                next_kept += 1
            else:
                total = np.float32(0)
                for k in range(n):
                    total += share[place + steps + k]
                scale = np.float32(1) / max(share[place] + total, np.float32(1e-30))
                narrowing = np.float32(0)  # elasticity of a demand's share, over its flow
                if curve is not None:
                    value = demand_value.first[d if len(demand_value.first) > 1 else 0]
                    price = value - profits[d - scan.demand_ptr[s]] / sharpness
                    worth = max(curve.worth[d * width + lane], 1e-300)
                    if price > worth:
                        ratio, alpha = worth / price, curve.alpha[0]
                        scale *= np.float32(
                            ratio if alpha == 1.0 else ratio ** (1.0 / alpha)
                        )  # a power takes long
                        narrowing = np.float32(1.0 / (alpha * price))
                squared = (
                    scale * scale
                )  # sums over the steps: of their part times scale, and times its square
                if steps > 1:
                    scale, squared, start = np.float32(0), np.float32(0), np.float32(0)
                    for c in range(steps):
                        end = np.float32(demand_value.end[(d * steps + c) * width + lane])
                        inverse_sum = np.float32(1) / max(
                            share[place + c] + total, np.float32(1e-30)
                        )
                        scale, squared, start = (
                            scale + (end - start) * inverse_sum,
                            squared + (end - start) * inverse_sum * inverse_sum,
                            end,
                        )
                rate = np.float32(demand[d * width + lane])
                for k in range(n):
                    x = share[place + steps + k]
                    part = x * scale
                    out[(path + k) * width + lane] = part
                    if is_summing:
                        node = 2 * np.int64(scan.end_node[path + k])
                        flow[node] = rate * part
                        if curve is None:
                            flow[node + 1] = sharpness * rate * (part - x * x * squared)
                        else:
                            flow[node + 1] = rate * part * (sharpness * (1 - x / total) + narrowing)
            place += n + steps
            path += n
        if is_summing:
            for j in range(nodes):
                i = nodes - 1 - j
                e, above = np.int64(scan.link[first + i]), np.int64(scan.parent[first + i])
                passing = load(flow, i + 1, pair)
                store(block_sums, e, load(block_sums, e, pair) + passing)
                store(flow, above, load(flow, above, pair) + passing)


@partitioned_kernel("block_ptr", lambda block_ptr: len(block_ptr) - 1)
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
    kept: Int64Array,
    kept_ptr: Int64Array,
    kept_splits: AnyArray,
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
        max_slots: node numbers that the source with most nodes needs.
        max_shares: paths and steps of demands of the source that has most.
        price_plus_cost: (E,) value per Gbit/s; ``FAILED_PRICE`` on a failed link.
        demand_value: values of the demands.
        curve: utility of the demands; None for none.
        sharpness: q, 1/(value per Gbit/s).
        may_reject: whether a demand may be carried in part.
        kept: (n,) numbers of the demands that take their splits from ``kept_splits``, ascending.
        kept_ptr: (S + 1,) those of each source.
        kept_splits: (n, K) their splits.
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
            kept,
            kept_ptr,
            kept_splits,
            demand,
            out,
            sums,
            lane,
            width,
            pair,
        )
