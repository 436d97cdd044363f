"""Local search for split tables: whole-number weights that carry more than the rounded splits.

The tables of the demands are visited in turn.  The flow of demand d is taken off its links; of its
table, and of every table that differs from it by one entry on another path, the one with the
largest

    v . flow - relief * (sum of price[e] flow[e]),
    flow as much of the demand as the remaining capacities take,

is installed.  The prices are those of the program without tables, at a wide gap: they say what a
Gbit/s on a link is worth to others.  Prices of the exact optimum are 0 on links that tables fill
although the optimum leaves them room, and end at poorer tables (docs/learning.md).  With a relief
of 0 no visit lowers the value; larger ones leave room for demands that come later.  ``relief``
falls from visit to visit of all demands, and the best tables seen are kept; then the search is
repeated from them with prices that are wrong at random, which leads elsewhere.  This is the greedy
local search for unsplittable flow (Kolliopoulos & Stein, "Approximation algorithms for
single-source unsplittable flow", 2001, review such methods), with prices in place of a bound on
congestion.
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
from teal.solvers import pdhg
from teal.solvers.split_table import admit, without_small

# Relief of each round over all demands: first from the tables given, then, with other prices and in
# another order each time, from the best ones.
_FIRST_RELIEFS, _LATER_RELIEFS = (1.0, 0.5, 0.25, 0.1, 0.0, 0.0), (0.5, 0.2, 0.0, 0.0)
_PRICE_NOISE = 1.0  # standard deviation of the logarithm of the factors by which prices differ
_MAX_SEARCHES = (
    60  # from the best tables: with the rounding about ten times as long as the rounding alone
)
_MAX_TRIALS = 50_000_000  # links of tables that are tried in all searches, about half a second
_PRICE_GAP = 0.05  # certified, at which the prices are taken
_MAX_PRICE_ITERATIONS = (
    100  # after which they are taken at whatever gap there is; most networks need 10 to 50
)
_SEED = 20_250_103  # of orders and prices


class _Tables(NamedTuple):
    """One matrix, and the tables of its demands.

    Attributes:
        demand: (D,) Gbit/s.
        value: (D, K) value of a Gbit/s.
        price: (E,) value per Gbit/s.
        node: (D, K) trie node where a live path ends, -1 for none.
        parent: (T,) trie node before each, -1 for none.
        link: (T,) into each trie node.
        weight: (D, K) whole numbers.
        rate: (D,) Gbit/s admitted.
        residual: (E,) Gbit/s.
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
def _spread(tables, d, weight, share, amount):
    """Add ``amount`` times the share of each path of ``d`` to the links of ``share``."""
    for k in range(len(weight)):
        if weight[k] > 0:
            node = tables.node[d, k]
            while node >= 0:
                share[tables.link[node]] += amount * weight[k]
                node = tables.parent[node]


@inlined_kernel
def _rated(tables, d, weight, entries, share, relief):
    """The rate that the remaining capacities take of demand ``d`` by the table ``weight``, and its
    score.
    """
    _spread(tables, d, weight, share, 1.0 / entries)
    rate, worth, cost = tables.demand[d], 0.0, 0.0
    for k in range(len(weight)):
        if weight[k] > 0:
            part = weight[k] / entries
            worth += part * tables.value[d, k]
            node = tables.node[d, k]
            while node >= 0:
                e = tables.link[node]
                rate = min(rate, max(0.0, tables.residual[e]) / share[e])
                cost += part * tables.price[e]
                node = tables.parent[node]
    for k in range(len(weight)):
        if weight[k] > 0:
            node = tables.node[d, k]
            while node >= 0:
                share[tables.link[node]] = 0.0
                node = tables.parent[node]
    return rate, rate * (worth - relief * cost)


@kernel
def _search(
    tables: _Tables, order: Int64Array, reliefs: FloatArray, entries: int
) -> tuple[Int64Array, FloatArray]:
    """The best weights (D, K) seen, and their rates (D,); ``tables`` is changed."""
    num_paths = tables.weight.shape[1]
    share = np.zeros(len(tables.residual))
    trial, best = np.zeros(num_paths, np.int64), np.zeros(num_paths, np.int64)
    best_weight, best_rate, best_value = tables.weight.copy(), tables.rate.copy(), -np.inf
    for turn in range(len(reliefs) + 1):
        value = 0.0
        for d in range(len(tables.demand)):
            for k in range(num_paths):
                value += tables.rate[d] * tables.weight[d, k] / entries * tables.value[d, k]
        if value > best_value:
            best_value = value
            best_weight[:] = tables.weight
            best_rate[:] = tables.rate
        if turn == len(reliefs):
            break
        for d in order:
            if tables.demand[d] <= 0:
                continue
            _spread(tables, d, tables.weight[d], tables.residual, tables.rate[d] / entries)
            trial[:] = tables.weight[d]
            best[:] = trial
            rate, score = _rated(tables, d, trial, entries, share, reliefs[turn])
            for i in range(num_paths):
                if tables.weight[d, i] == 0:
                    continue
                for j in range(num_paths):
                    if j == i or tables.node[d, j] < 0:
                        continue
                    trial[i] -= 1
                    trial[j] += 1
                    other_rate, other_score = _rated(
                        tables, d, trial, entries, share, reliefs[turn]
                    )
                    if other_score > score + 1e-12 * abs(score):
                        rate, score = other_rate, other_score
                        best[:] = trial
                    trial[i] += 1
                    trial[j] -= 1
            tables.weight[d] = best
            tables.rate[d] = rate if score > 0 or reliefs[turn] == 0 else 0.0
            _spread(tables, d, best, tables.residual, -tables.rate[d] / entries)
    return best_weight, best_rate


def improved(problem: Problem, splits: Tensor, prices: Tensor, entries: int) -> Tensor:
    """Feasible splits (B, D, K) in the ratios of tables, that carry at least as much as ``splits``.

    Args:
        problem: B matrices of a program that maximises value.
        splits: (B, D, K) in the ratios of tables, feasible.
        prices: (B, E) value per Gbit/s, of the program without tables.
        entries: N, of a demand's table.
    """
    result = torch.zeros_like(splits, dtype=torch.float64)
    for row in range(problem.batch):
        one = problem.row(row).to(torch.float64)
        result[row] = _improved_row(
            one, splits[row].to(torch.float64), prices[row].to(torch.float64), entries
        )
    return result


def _searches(problem: Problem) -> int:
    """How many searches from the best tables are affordable."""
    trials = int(problem.ops.hops.sum()) * problem.paths.num_paths * len(_LATER_RELIEFS)
    return min(_MAX_SEARCHES, _MAX_TRIALS // max(1, trials))


def _residual(problem: Problem, weight: Int64Array, rate: FloatArray, entries: int) -> FloatArray:
    """(E,) Gbit/s that these tables leave."""
    flow = torch.from_numpy(weight * (rate / entries)[:, None])[None]
    left: FloatArray = (problem.capacity - problem.ops.link_sum(flow))[0].numpy().copy()
    return left


def _improved_row(problem: Problem, splits: Tensor, prices: Tensor, entries: int) -> Tensor:
    total = splits.sum(-1, keepdim=True)
    mask = problem.path_mask[0]
    weight = (
        torch.where(total > 0, splits / total.clamp(min=1e-300) * entries, 0)
        .round()
        .to(torch.int64)
    )
    cheapest = torch.where(
        mask, problem.path_value - problem.ops.path_sum(prices[None])[0], -torch.inf
    ).argmax(-1)
    is_idle = (total[:, 0] <= 0) & mask.any(-1)
    weight[is_idle] = torch.nn.functional.one_hot(cheapest[is_idle], mask.shape[1]) * entries
    rate = problem.demand[0] * total[:, 0]
    trie = problem.paths.trie
    tables = _Tables(
        problem.demand[0].numpy(),
        problem.path_value.numpy().astype(np.float64),
        prices.numpy(),
        np.where(mask.numpy(), problem.paths.leaf, -1).astype(np.int64),
        np.asarray(trie.parent),
        np.asarray(trie.link),
        weight.numpy().copy(),
        rate.numpy().copy(),
        (problem.capacity - problem.loads(splits[None]))[0].numpy().copy(),
    )
    order = np.argsort(-tables.demand, kind="stable")
    best, rates = _search(tables, order, np.array(_FIRST_RELIEFS), entries)
    rng = np.random.default_rng(_SEED)
    for _ in range(_searches(problem)):
        factor = np.exp(rng.normal(0, _PRICE_NOISE, len(tables.price)))
        residual = _residual(problem, best, rates, entries)
        again = tables._replace(
            price=tables.price * factor, weight=best, rate=rates, residual=residual
        )
        best, rates = _search(again, rng.permutation(order), np.array(_LATER_RELIEFS), entries)
    share = torch.from_numpy(rates / np.maximum(tables.demand, 1e-300)).clamp(max=1)
    return torch.from_numpy(best).to(torch.float64) / entries * share[:, None]


def in_tables(problem: Problem, splits: Tensor, entries: int) -> Tensor:
    """A feasible allocation (B, D, K) in the ratios of tables: rounded splits, improved by the
    search where it applies.

    It applies to single programs that maximise a value linear in flow, without classes and side
    conditions, on the CPU. Its prices are those of a short run of PDHG, from nothing.

    Args:
        problem: B matrices.
        splits: (B, D, K) to round.
        entries: N, of a demand's table.
    """
    rounded = admit(problem, splits, entries)
    is_plain = problem.classes is None and problem.is_linear and not problem.conditions
    is_single = problem.objective.may_shed and not problem.objective.rules.is_sequence
    if problem.demand_set.carries_all or not (is_plain and is_single) or splits.is_cuda:
        return rounded
    coarse = pdhg.solve(
        problem.to(torch.float64), gap=_PRICE_GAP, max_iterations=_MAX_PRICE_ITERATIONS
    )
    return improved(problem, rounded, coarse.prices, entries)


def installable(problem: Problem, splits: Tensor, min_split: float, entries: int) -> Tensor:
    """Splits (B, D, K) without those below ``min_split`` and in the ratios of tables of so many
    ``entries``, if any.

    Args:
        problem: B matrices.
        splits: (B, D, K), feasible.
        min_split: least share of a demand on a path; 0 for none.
        entries: entries of a demand's table; 0 for none.
    """
    if min_split:
        splits = without_small(problem, splits, min_split)
        return (
            admit(problem, splits, entries) if entries else splits
        )  # the search knows no least share
    return in_tables(problem, splits, entries) if entries else splits
