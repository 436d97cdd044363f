"""Local search for split tables: integer weights of higher value than rounded splits.

The search visits the demands in turn, removes the flow of demand d, and installs the best neighbour
of its table (one entry moved to another path), by the score

    v . flow - price_factor * (sum of price[e] flow[e]),
    flow as large as the demand and the residual capacities allow.

The prices are dual prices of the program without tables, at a wide gap: the value of a Gbit/s on a
link to other demands.  Exact dual prices are 0 on links that tables fill although the optimum does
not, and give poorer tables (docs/learning.md).  With a price factor of 0 no visit lowers the value;
larger values reserve capacity for later demands.  The factor decreases from round to round, and the
incumbent tables are stored; further searches restart from them with randomly perturbed prices.
This is the greedy local search for unsplittable flow (reviewed by Kolliopoulos & Stein,
"Approximation algorithms for single-source unsplittable flow", 2001), with prices instead of a
congestion bound. Entry points: :func:`round_to_tables`, :func:`installable`.
"""

# mypy cannot see through Numba's types.
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from teal.problem import Problem
from teal.runtime.arrays import AnyArray, FloatArray, Int64Array
from teal.runtime.parallel import inlined_kernel, kernel
from teal.solvers import pipeline
from teal.solvers.split_table import feasible_tables, without_small

# Price factor of each round over all demands: of the first search, and of the later searches, which
# start from the incumbent tables, with perturbed prices and in random order.
_FIRST_PRICE_FACTORS = (1.0, 0.5, 0.25, 0.1, 0.0, 0.0)
_LATER_PRICE_FACTORS = (0.5, 0.2, 0.0, 0.0)
_PRICE_NOISE = 1.0  # standard deviation of the logarithm of the perturbation of prices
# Searches from the incumbent tables: in total about ten times as long as the rounding alone.
_MAX_SEARCHES = 60
_MAX_LINK_VISITS = 50_000_000  # link visits of all searches, about half a second
_PRICE_GAP = 0.05  # target gap of the program whose prices are used
# Iteration limit of that program; most networks need 10 to 50.
_MAX_PRICE_ITERATIONS = 100
_SEED = 20_250_103  # seed of orders and perturbations


class _Tables(NamedTuple):
    """Demands, values and prices of one matrix, with the split tables and rates of its demands.

    K paths of each of D demands, E links, T trie nodes.

    Attributes:
        demand: (D,) Gbit/s.
        value: (D, K) value per Gbit/s of each path.
        price: (E,) dual price of each link, value per Gbit/s.
        node: (D, K) last trie node of a live path, -1 for a missing or dead path.
        parent: (T,) parent of each trie node, -1 for the root.
        link: (T,) link into each trie node.
        weight: (D, K) integer number of table entries of each path.
        rate: (D,) admitted rate, Gbit/s.
        residual: (E,) residual capacity, Gbit/s.
    """

    demand: FloatArray
    value: FloatArray
    price: FloatArray
    node: Int64Array
    parent: AnyArray
    link: AnyArray
    weight: Int64Array
    rate: FloatArray
    residual: FloatArray


@inlined_kernel
def _add_flow(tables, d, weight, link_sum, amount):
    """Add ``amount`` times the weight of each path of demand ``d`` to the links of the path.

    Args:
        tables: the matrix and its tables.
        d: index of the demand.
        weight: (K,) integer weights of a table.
        link_sum: (E,) sums (added to).
        amount: factor, such as the rate per table entry in Gbit/s.
    """
    for k in range(len(weight)):
        if weight[k] > 0:
            node = tables.node[d, k]
            while node >= 0:
                link_sum[tables.link[node]] += amount * weight[k]
                node = tables.parent[node]


@inlined_kernel
def _score(tables, d, weight, table_size, link_share, price_factor):
    """Return the largest feasible rate of a demand under a table, and the score of the table.

    rate = min(demand, min over links of residual / share) and score = rate (value - price_factor *
    price), with the mean value and the mean price of the paths, weighted by their shares.

    Args:
        tables: the matrix and its tables; the flow of demand ``d`` is not in ``residual``.
        d: index of the demand.
        weight: (K,) integer weights with the sum ``table_size``.
        table_size: entries of a table.
        link_share: (E,) scratch, zeros before and after: share of the demand on each link.
        price_factor: factor on the prices of links, which reserves capacity for other demands.
    """
    # Share of the demand on each link; then the bottleneck, value and price over all used paths.
    _add_flow(tables, d, weight, link_share, 1.0 / table_size)
    rate = tables.demand[d]
    mean_value = 0.0
    mean_price = 0.0
    for k in range(len(weight)):
        if weight[k] > 0:
            path_share = weight[k] / table_size
            mean_value += path_share * tables.value[d, k]
            node = tables.node[d, k]
            while node >= 0:
                e = tables.link[node]
                rate = min(rate, max(0.0, tables.residual[e]) / link_share[e])
                mean_price += path_share * tables.price[e]
                node = tables.parent[node]
    # Clear the scratch for the next call.
    for k in range(len(weight)):
        if weight[k] > 0:
            node = tables.node[d, k]
            while node >= 0:
                link_share[tables.link[node]] = 0.0
                node = tables.parent[node]
    return rate, rate * (mean_value - price_factor * mean_price)


@kernel
def _search(
    tables: _Tables, order: Int64Array, price_factors: FloatArray, table_size: int
) -> tuple[Int64Array, FloatArray]:
    """Run a local search over the tables of all demands, one round for each price factor.

    A round visits the demands in order, removes the flow of a demand, and installs its best table
    among the present one and all tables with one entry moved to another path.

    Args:
        tables: the matrix and its tables (modified).
        order: (D,) demands in the order of their visits.
        price_factors: (rounds,) factor on link prices in the score; larger ones reserve capacity
            for other demands.
        table_size: number of entries of a demand's table.

    Returns:
        weights (D, K) and admitted rates (D,), Gbit/s, of the largest value found.
    """
    num_paths = tables.weight.shape[1]
    # (E,) scratch of _score; (K,) table under trial and best table of one demand; incumbent weights
    # and rates of all demands.
    link_share = np.zeros(len(tables.residual))
    trial_table = np.zeros(num_paths, np.int64)
    best_table = np.zeros(num_paths, np.int64)
    best_weight = tables.weight.copy()
    best_rate = tables.rate.copy()
    best_value = -np.inf
    for round_index in range(len(price_factors) + 1):
        # Update the incumbent, also after the last round.
        total_value = 0.0
        for d in range(len(tables.demand)):
            for k in range(num_paths):
                total_value += (
                    tables.rate[d] * tables.weight[d, k] / table_size * tables.value[d, k]
                )
        if total_value > best_value:
            best_value = total_value
            best_weight[:] = tables.weight
            best_rate[:] = tables.rate
        if round_index == len(price_factors):
            break
        for d in order:
            if tables.demand[d] <= 0:
                continue
            # Remove the flow of the demand.
            _add_flow(tables, d, tables.weight[d], tables.residual, tables.rate[d] / table_size)
            # Best neighbour: move one entry from path i to path j.
            trial_table[:] = tables.weight[d]
            best_table[:] = trial_table
            best_table_rate, best_table_score = _score(
                tables, d, trial_table, table_size, link_share, price_factors[round_index]
            )
            for i in range(num_paths):
                if tables.weight[d, i] == 0:
                    continue
                for j in range(num_paths):
                    if j == i or tables.node[d, j] < 0:
                        continue
                    trial_table[i] -= 1
                    trial_table[j] += 1
                    trial_rate, trial_score = _score(
                        tables, d, trial_table, table_size, link_share, price_factors[round_index]
                    )
                    # Better by more than rounding.
                    if trial_score > best_table_score + 1e-12 * abs(best_table_score):
                        best_table_rate = trial_rate
                        best_table_score = trial_score
                        best_table[:] = trial_table
                    # Move the entry back.
                    trial_table[i] += 1
                    trial_table[j] -= 1
            # Install it; at a positive price factor reject the demand if its score is not positive.
            tables.weight[d] = best_table
            tables.rate[d] = (
                best_table_rate if best_table_score > 0 or price_factors[round_index] == 0 else 0.0
            )
            _add_flow(tables, d, best_table, tables.residual, -tables.rate[d] / table_size)
    return best_weight, best_rate


def improved(problem: Problem, splits: Tensor, prices: Tensor, table_size: int) -> Tensor:
    """Improve splits in table ratios by local search, without lowering the value.

    Returns splits (B, D, K) in the ratios of tables.

    Args:
        problem: B matrices of a program that maximises value.
        splits: (B, D, K) feasible splits in the ratios of tables.
        prices: (B, E) dual prices of the program without tables, value per Gbit/s.
        table_size: number of entries of a demand's table.
    """
    improved_splits = torch.zeros_like(splits, dtype=torch.float64)
    for row in range(problem.batch):
        row_problem = problem.row(row).to(torch.float64)
        improved_splits[row] = _improve_row(
            row_problem, splits[row].to(torch.float64), prices[row].to(torch.float64), table_size
        )
    return improved_splits


def _num_searches(problem: Problem) -> int:
    """Return the number of searches from the incumbent tables, at most 60.

    All searches together visit about 50 million links at most.
    """
    # Link visits of a search, in which every path of a demand is tried in place of another one.
    link_visits = int(problem.ops.hops.sum()) * problem.paths.num_paths * len(_LATER_PRICE_FACTORS)
    return min(_MAX_SEARCHES, _MAX_LINK_VISITS // max(1, link_visits))


def _residual_capacity(
    problem: Problem, weight: Int64Array, rate: FloatArray, table_size: int
) -> FloatArray:
    """Return the capacity (E,) of each link in Gbit/s that the flows of the tables leave unused.

    Args:
        problem: one matrix.
        weight: (D, K) integer weights of the tables.
        rate: (D,) admitted rates, Gbit/s.
        table_size: number of entries of a demand's table.
    """
    flow = torch.from_numpy(weight * (rate / table_size)[:, None])[None]
    residual: FloatArray = (problem.capacity - problem.ops.link_sum(flow))[0].numpy().copy()
    return residual


def _improve_row(problem: Problem, splits: Tensor, prices: Tensor, table_size: int) -> Tensor:
    """Improve the tables of one matrix by local search, and return its splits (D, K).

    Args:
        problem: one matrix.
        splits: (D, K) feasible splits in the ratios of tables.
        prices: (E,) dual price of each link, value per Gbit/s.
        table_size: number of entries of a demand's table.
    """
    # Integer weights of the splits; a demand without flow gets a table of its most profitable path.
    served_share = splits.sum(-1, keepdim=True)
    is_live = problem.path_mask[0]
    weight = (
        torch.where(served_share > 0, splits / served_share.clamp(min=1e-300) * table_size, 0)
        .round()
        .to(torch.int64)
    )
    most_profitable = torch.where(
        is_live, problem.path_value - problem.ops.path_sum(prices[None])[0], -torch.inf
    ).argmax(-1)
    has_no_flow = (served_share[:, 0] <= 0) & is_live.any(-1)
    weight[has_no_flow] = (
        torch.nn.functional.one_hot(most_profitable[has_no_flow], is_live.shape[1]) * table_size
    )
    # Tables of the first search: demands, path values, link prices, end nodes of live paths and
    # trie, then the entry counts, rates and residual capacities that the search changes.
    first_rate = problem.demand[0] * served_share[:, 0]
    trie = problem.paths.trie
    tables = _Tables(
        problem.demand[0].numpy(),
        problem.path_value.numpy().astype(np.float64),
        prices.numpy(),
        np.where(is_live.numpy(), problem.paths.leaf, -1).astype(np.int64),
        np.asarray(trie.parent),
        np.asarray(trie.link),
        weight.numpy().copy(),
        first_rate.numpy().copy(),
        (problem.capacity - problem.loads(splits[None]))[0].numpy().copy(),
    )
    # First search, in the order of falling demand; then searches from the best tables so far, with
    # perturbed prices and in random order.
    demand_order = np.argsort(-tables.demand, kind="stable")
    best_weight, best_rate = _search(
        tables, demand_order, np.array(_FIRST_PRICE_FACTORS), table_size
    )
    rng = np.random.default_rng(_SEED)
    for _ in range(_num_searches(problem)):
        price_noise = np.exp(rng.normal(0, _PRICE_NOISE, len(tables.price)))
        residual = _residual_capacity(problem, best_weight, best_rate, table_size)
        perturbed_tables = tables._replace(
            price=tables.price * price_noise, weight=best_weight, rate=best_rate, residual=residual
        )
        best_weight, best_rate = _search(
            perturbed_tables,
            rng.permutation(demand_order),
            np.array(_LATER_PRICE_FACTORS),
            table_size,
        )
    # Splits: share of the entries times the admitted share of the demand.
    admitted_share = torch.from_numpy(best_rate / np.maximum(tables.demand, 1e-300)).clamp(max=1)
    return torch.from_numpy(best_weight).to(torch.float64) / table_size * admitted_share[:, None]


def round_to_tables(problem: Problem, splits: Tensor, table_size: int) -> Tensor:
    """Return a feasible allocation (B, D, K) in the ratios of split tables.

    Splits are rounded, and then improved by local search if the objective is a single program that
    maximises a value linear in flow, without classes and side conditions, on the CPU.  The prices
    of the search come from a short, cold-started run of PDHG.

    Args:
        problem: B matrices.
        splits: (B, D, K) splits to round.
        table_size: number of entries of a demand's table.
    """
    rounded = feasible_tables(problem, splits, table_size)
    # The local search supports one linear program, where demand may be shed, on the CPU.
    is_plain = problem.classes is None and problem.is_linear and not problem.conditions
    is_single = problem.objective.may_shed and not problem.objective.rules.is_sequence
    if problem.demand_set.carries_all or not (is_plain and is_single) or splits.is_cuda:
        return rounded
    # Prices of the LP relaxation: the program without tables, to a wide gap.
    relaxation = pipeline.solve(
        problem.to(torch.float64), gap=_PRICE_GAP, max_iterations=_MAX_PRICE_ITERATIONS
    )
    return improved(problem, rounded, relaxation.prices, table_size)


def installable(problem: Problem, splits: Tensor, min_split: float, table_size: int) -> Tensor:
    """Return splits (B, D, K) that a device can install: at least ``min_split``, in table ratios.

    Args:
        problem: B matrices.
        splits: (B, D, K) feasible splits.
        min_split: smallest share of a demand on a path that carries flow; 0 for no limit.
        table_size: number of entries of a demand's table; 0 for splits of any ratio.
    """
    if min_split:
        splits = without_small(problem, splits, min_split)
        # The search does not support a smallest share.
        return feasible_tables(problem, splits, table_size) if table_size else splits
    return round_to_tables(problem, splits, table_size) if table_size else splits
