"""Sampled dual start: link prices from a sample of the demands, and the response of all demands.

:func:`draw` samples, :func:`answer` takes prices from the sample's solution, :func:`respond`
computes splits of all demands at these prices.  Only E link prices couple the demands.  Demand d is
drawn with probability

    pi[d] = min(1, a demand[d]),    a such that n demands are expected,

at the rate demand[d] / pi[d], so that expected loads equal the loads of all demands (Horvitz &
Thompson 1952); the sample is solved, and every demand responds to its prices with a softmax: it
sends the share

    w[d, k] = exp(q (v[d, k] - price(d, k))) / (1 + sum_j exp(q (v[d, j] - price(d, j))))

over path k.  The 1 stands for rejected demand; a min-max program has none.  Piecewise constant
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
from teal.solvers.pdhg.fused.curves import UtilityRows
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
        is_certain: (n,) whether a demand is drawn with probability 1.
        problem: program of the sampled demands at the rates demand / pi, with pi the probability
            of a demand to be drawn; B = 1.  max_concurrent_flow becomes max_link_utilisation.
    """

    demands: Int64Array
    is_certain: BoolArray
    problem: Problem


@dataclasses.dataclass(frozen=True, eq=False)
class SampleAnswer:
    """Prices of a sample's solution, and the fixed splits, for all demands of a matrix.

    Attributes:
        prices: (E,) value per Gbit/s; 1/(Gbit/s) for a min-max program.
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
        """Return the answer after one Newton step on the link prices.

            p[e] <- max(0, p[e] + 0.8 (load[e] - c[e]) / elasticity[e]),

        with the step clamped to 0.3 times the mean value of a demanded Gbit/s.

        Args:
            link_load: (E,) load of the response to the present prices, Gbit/s.
            elasticity: (E,) minus the derivative of the load by the price, (Gbit/s)^2 per value; 0
                where no demand responds, and the price stays.
            capacity: (E,) c, Gbit/s.
        """
        max_price_step = _MAX_NEWTON_STEP / (TEMPERATURE * self.sharpness)
        price_step = _DAMPING * (link_load - capacity) / np.maximum(elasticity, 1e-300)
        prices = np.maximum(0, self.prices + np.clip(price_step, -max_price_step, max_price_step))
        return dataclasses.replace(self, prices=np.where(elasticity > 0, prices, self.prices))


def zero_answer(problem: Problem) -> SampleAnswer:
    """Return the answer of a matrix without demand: zero prices (E,), and no fixed splits."""
    no_demands = np.zeros(0, np.int64)
    splits = np.zeros((0, problem.paths.num_paths))
    return SampleAnswer(np.zeros(problem.topology.num_links), 1.0, no_demands, splits)


def answer(sample: Sample, splits: Tensor, prices: Tensor) -> SampleAnswer:
    """Return prices, softmax temperature and fixed splits from a sample's solution.

    The temperature 1 / q is ``TEMPERATURE`` times the mean value of a demanded Gbit/s.  Demands
    that were certain to be drawn keep their splits.

    Args:
        sample: solved sample, with n demands.
        splits: (1, n, K) splits of the solution.
        prices: (1, E) link prices of the solution, value per Gbit/s.
    """
    problem = sample.problem
    sample_prices = prices[0].numpy()
    total_demand = float(problem.demand.sum())
    # Value of all demand: total times the mean value of a demanded Gbit/s.  In a min-max program,
    # where demand has no value, capacity times price, times the largest utilisation.
    if problem.price_set.on_simplex:
        objective_scale = float((problem.capacity[0] * prices[0]).sum()) * float(
            problem.utilisation(splits).amax()
        )
    else:
        objective_scale = float(
            (
                problem.demand
                * problem.demand_set.support_of_best(problem.demand_value.expand_as(problem.demand))
            ).sum()
        )
    temperature = TEMPERATURE * objective_scale / total_demand if total_demand > 0 else 0.0
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
    demands, probability = draw_demands(demand, size, row if stream is None else stream)
    row_problem = problem.row(row)
    indices = torch.from_numpy(demands)
    if row_problem.steps is not None:
        row_problem = dataclasses.replace(row_problem, steps=row_problem.steps.demands(indices))
    paths = subset.of_demands(problem.paths, demands)
    return make_sample(
        row_problem, demands, probability, demand[demands], problem.demand_value[indices], paths
    )


def draw_demands(demand: FloatArray, size: int, row: int = 0) -> tuple[Int64Array, FloatArray]:
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


def make_sample(
    problem: Problem,
    demands: Int64Array,
    probability: FloatArray,
    rates: FloatArray,
    value: Tensor,
    paths: PathSet,
) -> Sample:
    """Create the program of drawn demands, at the rates rate / pi.

    Args:
        problem: network, objective, capacities, costs and value steps of the drawn demands; B = 1.
        demands: (n,) indices of the drawn demands, ascending.
        probability: (n,) pi, chance of each demand to be drawn.
        rates: (n,) rates of the drawn demands, Gbit/s.
        value: (n,) value per Gbit/s.
        paths: paths of these demands.
    """
    sampled = dataclasses.replace(
        problem.solved,
        paths=paths,
        ops=make_path_ops(paths, problem.ops.device),
        demand=torch.from_numpy(rates / probability)[None],
        capacity=problem.capacity.to(torch.float64),
        demand_value=value.to(torch.float64),
        link_cost=problem.link_cost.to(torch.float64),
    )
    return Sample(demands, probability >= 1, sampled)


@kernel
def _factor(demand: FloatArray, size: int) -> float:
    """Return the factor for which the sum of min(1, factor * demand[d]) is ``size``.

    It is infinite if at most ``size`` demands are positive.  Fixed-point iteration on the set of
    certain demands, those for which factor * demand[d] is at least 1:
    factor <- (size - number of certain demands) / (sum of the other demands).  Certain demands are
    large, so that the first passes visit only demands above ``min_large_rate``.

    Args:
        demand: (D,) Gbit/s.
        size: expected number of drawn demands.
    """
    # Sum of the demands, and number of positive ones.
    total_demand = 0.0
    num_positive = 0
    for d in range(len(demand)):
        total_demand += demand[d]
        num_positive += demand[d] > 0
    if num_positive <= size:
        return np.inf
    min_large_rate = _MIN_CERTAIN_RATE_FACTOR * total_demand / size
    large_demands = demand[demand > min_large_rate]
    # Demands from ``threshold`` = 1 / factor on are certain.
    factor = size / total_demand
    threshold = total_demand / size
    for _ in range(_MAX_PASSES):
        # The list of large demands may lack certain ones: visit all demands.
        if threshold < min_large_rate:
            large_demands = demand
            min_large_rate = 0.0
        # Separate certain demands from the others.
        uncertain_total = total_demand
        num_certain = 0
        for rate in large_demands:
            if rate >= threshold:
                uncertain_total -= rate
                num_certain += 1
        if num_certain >= size or uncertain_total <= 0:
            break
        # Distribute the remaining expected draws over the others; stop when the set is stable.
        new_factor = (size - num_certain) / uncertain_total
        if new_factor <= factor * (1 + 1e-9):
            break
        factor = new_factor
        threshold = 1 / new_factor
    return factor


@kernel
def _select(demand: FloatArray, factor: float, offset: float) -> BoolArray:
    """Return (D,) whether each demand is drawn, by systematic sampling (Madow 1949).

    A demand is drawn when the offset plus the running sum of the probabilities factor * demand[d]
    passes an integer; demands with a probability of 1 or more are drawn and not added.

    Args:
        demand: (D,) Gbit/s.
        factor: probability of a demand over its rate, 1/(Gbit/s).
        offset: random start in [0, 1).
    """
    is_drawn = np.zeros(len(demand), dtype=np.bool_)
    running_sum = offset
    for d in range(len(demand)):
        if demand[d] > 0:
            probability = factor * demand[d]
            if probability >= 1:
                is_drawn[d] = True
            else:
                running_sum += probability
                if running_sum >= 1:
                    running_sum -= 1
                    is_drawn[d] = True
    return is_drawn


@inner_kernel
def _respond_in_block(  # type: ignore[no-untyped-def]
    block,
    scan,
    block_ptr,
    max_trie_nodes,
    max_softmax_weights,
    price_plus_cost,
    demand_value,
    curve,
    sharpness,
    may_reject,
    fixed_demands,
    fixed_ptr,
    fixed_splits,
    demand,
    splits,
    link_sums,
    lane,
    num_lanes,
    pair_lanes,
):
    """Compute the softmax splits of the demands of one block of sources at given link prices.

    Demand d with the value v[d] of a Gbit/s sends the share w[d, k] = exp(q (v[d] - price(d, k))) /
    (u + sum_j exp(q (v[d] - price(d, j)))) over path k, with price(d, k) the price of the path, and
    u = 1 if demand may be rejected and u = 0 otherwise.  Under piecewise constant marginal values,
    w[d, k] is the sum over the value steps, each with its own u and weighted by its part of the
    demand.  Under a concave utility, u = 0 and the splits are scaled to the optimal share at the
    price of the cheapest path.  All exponents are relative to the largest
    exponent of the demand.

    Args:
        block: index of the block; its sources are block_ptr[block]:block_ptr[block + 1].
        scan: tries and paths of all sources, source by source; T trie nodes, P paths, D demands.
        block_ptr: (blocks + 1,) first source of each block.
        max_trie_nodes: largest number of trie nodes of a source, plus one for the source itself.
        max_softmax_weights: largest number of ``softmax_weight`` entries of a source.
        price_plus_cost: (E,) link price plus link cost, value per Gbit/s.
        demand_value: values of the demands, value per Gbit/s, in C steps.
        curve: utility of the demands; None for linear or piecewise linear values.
        sharpness: q, inverse softmax temperature, 1/(value per Gbit/s).
        may_reject: whether a demand may be served in part.
        fixed_demands: (n,) indices of the demands with fixed splits, ascending.
        fixed_ptr: (sources + 1,) the fixed demands of source s are
            fixed_demands[fixed_ptr[s]:fixed_ptr[s + 1]].
        fixed_splits: (n, K) splits of the fixed demands.
        demand: (D * num_lanes,) Gbit/s; demand d of this matrix at d * num_lanes + lane.
        splits: (P * num_lanes,) splits (written); path p of this matrix at p * num_lanes + lane.
        link_sums: (blocks, 2 * E) load in Gbit/s and elasticity of each link, side by side (row
            ``block`` is written); (blocks, 0) for neither.
        lane: index of the matrix among the interleaved matrices.
        num_lanes: number of interleaved matrices.
        pair_lanes: a tuple of length 2, so that load and elasticity are added as two SIMD lanes.
    """
    is_summing = link_sums.shape[1] > 0
    num_steps = demand_value.drop.shape[1]
    has_rejection = may_reject and curve is None
    # Scratch buffers of one source.
    # (nodes + 1,) price plus cost from the source to each trie node; entry 0 is the source.
    node_cost = np.zeros(max_trie_nodes, dtype=np.float32)
    # Exponents, then exponentials: for each demand one entry per value step (its unserved demand),
    # followed by one entry per path.
    softmax_weight = np.empty(max_softmax_weights, dtype=np.float32)
    # Work memory of exponentials().
    exponent_bits = np.empty(max_softmax_weights, dtype=np.int32)
    # (nodes + 1, 2) load (Gbit/s) and elasticity through each trie node, flat.
    node_flow = np.empty(2 * max_trie_nodes, dtype=np.float32)
    block_sums = link_sums[block]
    # Exponent of the cheapest path of each demand; only under a utility.
    max_exponents = np.empty(max_softmax_weights if curve is not None else 0, dtype=np.float32)
    block_sums[:] = 0
    for source in range(block_ptr[block], block_ptr[block + 1]):
        first_node = scan.node_ptr[source]
        num_nodes = scan.node_ptr[source + 1] - scan.node_ptr[source]
        # Price of each trie node: sum along the path from the source.
        for i in range(num_nodes):
            node_cost[i + 1] = (
                node_cost[scan.parent[first_node + i]] + price_plus_cost[scan.link[first_node + i]]
            )
        # Exponents of the softmax, relative to the largest one of each demand; exponentials() below
        # replaces them by the softmax terms.  The entries of a demand: one for each value step,
        # then one for each path.
        weight_offset = 0
        first_path = scan.path_ptr[source]
        for d in range(scan.demand_ptr[source], scan.demand_ptr[source + 1]):
            value = np.float32(demand_value.first[d if len(demand_value.first) > 1 else 0])
            num_paths = scan.path_count[d]
            # -3e38 is below every exponent, within the range of float32.
            max_exponent = np.float32(0) if has_rejection else np.float32(-3e38)
            for k in range(num_paths):
                softmax_term = sharpness * (value - node_cost[scan.end_node[first_path + k]])
                softmax_weight[weight_offset + num_steps + k] = softmax_term
                max_exponent = max(max_exponent, softmax_term)
            for k in range(num_paths):
                softmax_weight[weight_offset + num_steps + k] -= max_exponent
            # Keep the cheapest path's exponent: the optimal share under a utility needs its price.
            if curve is not None:
                max_exponents[d - scan.demand_ptr[source]] = max_exponent
            # Unserved demand of the first value step.  Without rejection its weight is 0, since
            # exponentials() rounds arguments below -80 to 0.
            softmax_weight[weight_offset] = -max_exponent if has_rejection else np.float32(-100)
            # Unserved demand of the later value steps, whose values are lower.
            drop_row = d if demand_value.drop.shape[0] > 1 else 0
            for c in range(1, num_steps):
                exponent = (
                    sharpness * value * np.float32(demand_value.drop[drop_row, c]) - max_exponent
                )
                # Capped within float32: at the cap the paths get no flow in this step.
                softmax_weight[weight_offset + c] = min(exponent, _MAX_EXPONENT)
            weight_offset += num_paths + num_steps
            first_path += num_paths
        exponentials(softmax_weight, exponent_bits, weight_offset)
        # Splits of each demand, and load and elasticity at the last node of each path.
        if is_summing:
            node_flow[: 2 * (num_nodes + 1)] = 0
        weight_offset = 0
        first_path = scan.path_ptr[source]
        next_fixed = fixed_ptr[source]
        for d in range(scan.demand_ptr[source], scan.demand_ptr[source + 1]):
            num_paths = scan.path_count[d]
            # Fixed demands keep their splits and do not respond to prices.
            if next_fixed < fixed_ptr[source + 1] and fixed_demands[next_fixed] == d:
                for k in range(num_paths):
                    splits[(first_path + k) * num_lanes + lane] = fixed_splits[next_fixed, k]
                    if is_summing:
                        node_flow[2 * np.int64(scan.end_node[first_path + k])] = (
                            demand[d * num_lanes + lane] * fixed_splits[next_fixed, k]
                        )
                next_fixed += 1
            else:
                # Normaliser of the softmax, without the unserved demand.
                path_weight_sum = np.float32(0)
                for k in range(num_paths):
                    path_weight_sum += softmax_weight[weight_offset + num_steps + k]
                # Split of a path over its softmax term: 1 / normaliser; under a utility also times
                # the optimal share.
                inverse_normaliser = np.float32(1) / max(
                    softmax_weight[weight_offset] + path_weight_sum, np.float32(1e-30)
                )
                # -d log(share) / d price of the optimal share under a utility.
                utility_elasticity = np.float32(0)
                if curve is not None:
                    # Optimal share at the cheapest path's price: (V / price)^(1 / alpha), at most
                    # 1, with the marginal value V at share 1.
                    value = demand_value.first[d if len(demand_value.first) > 1 else 0]
                    price = value - max_exponents[d - scan.demand_ptr[source]] / sharpness
                    full_share_value = max(curve.full_share_value[d * num_lanes + lane], 1e-300)
                    if price > full_share_value:
                        value_ratio = full_share_value / price
                        alpha = curve.alpha[0]
                        # Skip the slow power where alpha is 1.
                        inverse_normaliser *= np.float32(
                            value_ratio if alpha == 1.0 else value_ratio ** (1.0 / alpha)
                        )
                        utility_elasticity = np.float32(1.0 / (alpha * price))
                # Sums over the value steps of width / normaliser and width / normaliser^2; their
                # product with exponentials gives splits and elasticities.
                inverse_normaliser_square = inverse_normaliser * inverse_normaliser
                if num_steps > 1:
                    inverse_normaliser = np.float32(0)
                    inverse_normaliser_square = np.float32(0)
                    step_start = np.float32(0)
                    for c in range(num_steps):
                        step_end = np.float32(
                            demand_value.end[(d * num_steps + c) * num_lanes + lane]
                        )
                        step_inverse_normaliser = np.float32(1) / max(
                            softmax_weight[weight_offset + c] + path_weight_sum, np.float32(1e-30)
                        )
                        inverse_normaliser = (
                            inverse_normaliser + (step_end - step_start) * step_inverse_normaliser
                        )
                        inverse_normaliser_square = (
                            inverse_normaliser_square
                            + (step_end - step_start)
                            * step_inverse_normaliser
                            * step_inverse_normaliser
                        )
                        step_start = step_end
                # Split of each path: w = softmax term / normaliser.  Elasticity: q rate (w - w^2).
                rate = np.float32(demand[d * num_lanes + lane])
                for k in range(num_paths):
                    softmax_term = softmax_weight[weight_offset + num_steps + k]
                    path_share = softmax_term * inverse_normaliser
                    splits[(first_path + k) * num_lanes + lane] = path_share
                    if is_summing:
                        node = 2 * np.int64(scan.end_node[first_path + k])
                        node_flow[node] = rate * path_share
                        if curve is None:
                            node_flow[node + 1] = (
                                sharpness
                                * rate
                                * (
                                    path_share
                                    - softmax_term * softmax_term * inverse_normaliser_square
                                )
                            )
                        else:
                            # Under a utility the demand's share falls with the price, too.
                            node_flow[node + 1] = (
                                rate
                                * path_share
                                * (
                                    sharpness * (1 - softmax_term / path_weight_sum)
                                    + utility_elasticity
                                )
                            )
            weight_offset += num_paths + num_steps
            first_path += num_paths
        # Add up load and elasticity from the leaves to the source, and add each node's sum to the
        # link that leads into the node.
        if is_summing:
            for j in range(num_nodes):
                i = num_nodes - 1 - j
                e = np.int64(scan.link[first_node + i])
                parent_row = np.int64(scan.parent[first_node + i])
                load_and_elasticity = load(node_flow, i + 1, pair_lanes)
                store(block_sums, e, load(block_sums, e, pair_lanes) + load_and_elasticity)
                store(
                    node_flow,
                    parent_row,
                    load(node_flow, parent_row, pair_lanes) + load_and_elasticity,
                )


@partitioned_kernel("block_ptr", num_ranges)
def respond(
    begin: int,
    end: int,
    scan: PathScan,
    block_ptr: Int64Array,
    max_trie_nodes: int,
    max_softmax_weights: int,
    price_plus_cost: Float32Array,
    demand_value: DemandValue,
    curve: UtilityRows | None,
    sharpness: np.float32,
    may_reject: bool,
    fixed_demands: Int64Array,
    fixed_ptr: Int64Array,
    fixed_splits: AnyArray,
    demand: FloatArray,
    splits: AnyArray,
    link_sums: Float32Array,
    lane: int,
    num_lanes: int,
    pair_lanes: tuple[int, int],
) -> None:
    """Write the response of all demands of one matrix to its link prices into that matrix's lane.

    Demand d sends the softmax share

        w[d, k] = exp(q (v[d] - price(d, k))) / (1 + sum_j exp(q (v[d] - price(d, j))))

    over path k, with the value v[d] of a Gbit/s and price(d, k) the price of the path; without
    rejection, the 1 is 0.  The elasticity of a link is the sum of
    q demand w (1 - w) over the paths through it.

    Args:
        begin, end: range of blocks of this call.
        scan: P paths of all D demands, in their tries.
        block_ptr: (blocks + 1,) the sources of block i are block_ptr[i]:block_ptr[i + 1].
        max_trie_nodes: largest number of trie nodes of a source, plus one for the source itself.
        max_softmax_weights: largest number of paths and value steps of the demands of a source.
        price_plus_cost: (E,) link price plus link cost, value per Gbit/s; ``FAILED_PRICE`` on a
            failed link.
        demand_value: values of the demands.
        curve: utility of the demands; None for linear values.
        sharpness: q, 1/(value per Gbit/s).
        may_reject: whether a demand may be served in part.
        fixed_demands: (n,) indices of the demands with fixed splits, ascending.
        fixed_ptr: (sources + 1,) the fixed demands of source s are
            fixed_demands[fixed_ptr[s]:fixed_ptr[s + 1]].
        fixed_splits: (n, K) splits of these demands.
        demand: (D * num_lanes,) Gbit/s, 0 where no path is live; demand d of this matrix at
            d * num_lanes + lane.
        splits: (P * num_lanes,) splits (written); path p of this matrix at p * num_lanes + lane.
        link_sums: (blocks, 2 * E) load (Gbit/s) and elasticity of each link, side by side, summed
            over the sources of each block (written); (blocks, 0) for neither.
        lane: index of this matrix among the interleaved matrices.
        num_lanes: number of interleaved matrices.
        pair_lanes: a tuple of length 2, so that load and elasticity are added as two SIMD lanes.
    """
    for block in range(begin, end):
        _respond_in_block(
            block,
            scan,
            block_ptr,
            max_trie_nodes,
            max_softmax_weights,
            price_plus_cost,
            demand_value,
            curve,
            sharpness,
            may_reject,
            fixed_demands,
            fixed_ptr,
            fixed_splits,
            demand,
            splits,
            link_sums,
            lane,
            num_lanes,
            pair_lanes,
        )
