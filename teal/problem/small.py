"""Compiled kernels for small problems over paths: assessment (loads, violations, value, bounds) and
projection.

Torch takes about 20 microseconds for each operation, whereas a network of ten nodes is solved in
less than half a millisecond. The formulas are those of :func:`teal.solvers.projection.project`,
:mod:`teal.problem.feasibility` and :mod:`teal.problem.bounds`. Entry points: :func:`is_small`,
:func:`measured`, :func:`projected`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from teal.network.path_links import PathLinks, path_links_of
from teal.network.path_set import PathSet
from teal.objectives import Rules
from teal.problem.problem import Problem
from teal.problem.sets import AtMostOne
from teal.runtime.arrays import FloatArray
from teal.runtime.kernel_cache import is_interpreting
from teal.runtime.parallel import inner_kernel, kernel

# Largest number of path entries; a larger network gains from threads and from the trie.
MAX_SCAN = 20_000
# Smallest sum of a demand's splits; a smaller sum counts as 0.
_MIN_SPLIT_SUM = 1e-12
# Smallest capacity in Gbit/s that scales a load on a failed link.
_MIN_CAPACITY_SCALE = 1e-30
_MAX_FLOAT = float(np.finfo(np.float64).max)
# Columns of the figures.
_DEMAND, _CARRIED, _VALUE, _LARGEST_UTILISATION, _VIOLATION, _FIRST_BOUND = range(6)


class Measured(NamedTuple):
    """Figures of B matrices.

    Attributes:
        demand: (B,) total demand, Gbit/s.
        carried: (B,) total flow, Gbit/s.
        value: (B,) value of the objective.
        max_link_utilisation: (B,).
        violation: (B,) largest violation of all rules; see
            :class:`teal.problem.feasibility.Violations`. Infinite where a split is NaN.
        utilisation: (B, E) load over capacity; see :meth:`Problem.utilisation_of`.
        score: (B,) bound on the program as a maximum, the best of all multiples of the prices.
    """

    demand: FloatArray
    carried: FloatArray
    value: FloatArray
    max_link_utilisation: FloatArray
    violation: FloatArray
    utilisation: FloatArray
    score: FloatArray


def is_small(problem: Problem) -> bool:
    """Return whether the kernels support a problem: few paths, on the CPU, in float64; one program
    linear in flow, or max_link_utilisation, without conditions.
    """
    rules = problem.objective.rules
    return (
        problem.demand.dtype == torch.float64
        and problem.ops.device.type == "cpu"
        and problem.ops.backend.name != "cuda"
        and isinstance(problem.paths, PathSet)
        and problem.paths.scan_size <= MAX_SCAN
        and problem.ops.is_over_paths
        and not problem.conditions
        and not rules.is_sequence
        and (rules.balances if rules.carries_all else type(rules).value is Rules.value)
        and (rules.carries_all or type(problem.demand_set) is AtMostOne)
        and problem.objective.may_shed != rules.carries_all
        and not is_interpreting()
    )


def measured(problem: Problem, splits: Tensor, prices: Tensor, scales: FloatArray) -> Measured:
    """Measure splits and prices of a small problem (:func:`is_small`).

    Args:
        problem: B matrices.
        splits: (B, D, K).
        prices: (B, E) at least 0 and finite.
        scales: (m,) multiples of the prices.
    """
    batch, num_links = problem.capacity.shape
    rules = problem.objective.rules
    figures = np.empty((batch, _FIRST_BOUND + len(scales)))
    utilisation = np.empty((batch, num_links))
    _measure(
        path_links_of(problem.paths),
        problem.demand.contiguous().numpy(),
        problem.capacity.contiguous().numpy(),
        problem.path_value.contiguous().numpy(),
        rules.carries_all,
        rules.holds_capacity,
        rules.capacity_share,
        splits.contiguous().numpy(),
        prices.contiguous().numpy(),
        scales,
        utilisation,
        figures,
    )
    score = figures[:, _FIRST_BOUND:].min(1)
    return Measured(
        demand=figures[:, _DEMAND],
        carried=figures[:, _CARRIED],
        value=figures[:, _LARGEST_UTILISATION if rules.carries_all else _VALUE],
        max_link_utilisation=figures[:, _LARGEST_UTILISATION],
        violation=figures[:, _VIOLATION],
        utilisation=utilisation,
        score=np.where(np.isfinite(score), score, np.inf),
    )


def projected(problem: Problem, splits: FloatArray) -> Tensor:
    """Project splits (B, D, K) of a small problem (:func:`is_small`) to feasible ones, without
    refills.

    Args:
        problem: B matrices.
        splits: (B, D K), changed in place.
    """
    _project(
        path_links_of(problem.paths),
        problem.demand.contiguous().numpy(),
        problem.capacity.contiguous().numpy(),
        problem.objective.rules.carries_all,
        splits,
    )
    return torch.from_numpy(splits).reshape(problem.batch, *problem.paths.mask.shape)


@inner_kernel
def _is_live(paths: PathLinks, p: int, capacity: FloatArray) -> bool:
    """Return whether all links of path p have capacity."""
    live = True
    for i in range(paths.link_ptr[p], paths.link_ptr[p + 1]):
        live = live and capacity[paths.link[i]] > 0
    return live


@inner_kernel
def _finite(share: float) -> float:
    """Return a split without NaN and infinities, as :func:`torch.nan_to_num`."""
    if np.isnan(share):
        return 0.0
    return min(max(share, -_MAX_FLOAT), _MAX_FLOAT)


@kernel
def _measure(
    paths: PathLinks,
    demand: FloatArray,
    capacity: FloatArray,
    value: FloatArray,
    balances: bool,
    holds_capacity: bool,
    capacity_share: float,
    splits: FloatArray,
    prices: FloatArray,
    scales: FloatArray,
    utilisation: FloatArray,
    figures: FloatArray,
) -> None:
    """Fill utilisations (B, E) and figures (B, 5 + m): Gbit/s, carried Gbit/s, their value, the
    largest utilisation, the largest violation, and a bound for each multiple of the prices.
    """
    num_demands, num_paths = value.shape
    num_links = capacity.shape[1]
    path_price = np.empty(num_paths)
    load = np.empty(num_links)
    for b in range(len(demand)):
        row_figures = figures[b]
        capacity_value = 0.0
        violation = 0.0
        has_nan = False
        has_failures = False
        # Value of all capacity at the prices.
        for i in range(len(row_figures)):
            row_figures[i] = 0.0
        for e in range(num_links):
            capacity_value += capacity[b, e] * prices[b, e]
            load[e] = 0.0
            has_failures = has_failures or capacity[b, e] <= 0
        for m in range(len(scales)):
            row_figures[_FIRST_BOUND + m] = 0.0 if balances else scales[m] * capacity_value
        price_scale = 1.0
        if balances:
            price_scale = 1.0 / capacity_value if capacity_value > 0 else 0.0
        # Demands: flow, value and price of each path.
        for d in range(num_demands):
            first = paths.path_ptr[d]
            end = paths.path_ptr[d + 1]
            rate = demand[b, d]
            total = 0.0
            is_routable = False
            has_one_value = True
            cheapest = np.inf
            for k in range(end - first):
                p = first + k
                has_nan = has_nan or np.isnan(splits[b, d, k])
                share = _finite(splits[b, d, k]) if rate > 0 else 0.0
                total += share
                violation = max(violation, -share)
                price = 0.0
                for i in range(paths.link_ptr[p], paths.link_ptr[p + 1]):
                    price += prices[b, paths.link[i]]
                    load[paths.link[i]] += rate * share
                row_figures[_VALUE] += value[d, k] * rate * share
                path_price[k] = np.inf
                if has_failures and not _is_live(paths, p, capacity[b]):
                    violation = max(violation, abs(share))
                    continue
                is_routable = True
                path_price[k] = price_scale * price
                cheapest = min(cheapest, path_price[k])
                has_one_value = has_one_value and (balances or value[d, k] == value[d, 0])
            for k in range(end - first, num_paths):
                has_nan = has_nan or np.isnan(splits[b, d, k])
                share = _finite(splits[b, d, k]) if rate > 0 else 0.0
                total += share
                violation = max(violation, abs(share))
            row_figures[_DEMAND] += rate
            row_figures[_CARRIED] += rate * total
            excess = total - 1.0
            if balances:
                excess = abs(excess) if is_routable and rate > 0 else total
            violation = max(violation, excess)
            if not is_routable:
                continue
            for m in range(len(scales)):
                best_profit = -scales[m] * cheapest
                if not balances:
                    best_profit += value[d, 0]
                if not has_one_value:
                    best_profit = -np.inf
                    for k in range(end - first):
                        if path_price[k] < np.inf:
                            best_profit = max(best_profit, value[d, k] - scales[m] * path_price[k])
                row_figures[_FIRST_BOUND + m] += rate * (
                    best_profit if balances else max(best_profit, 0.0)
                )
        # Links: utilisation and overload.
        max_capacity = _MIN_CAPACITY_SCALE
        for e in range(num_links):
            max_capacity = max(max_capacity, capacity[b, e])
        for e in range(num_links):
            capacity_value = capacity[b, e]
            is_open = capacity_value > 0
            utilisation[b, e] = capacity_share * load[e] / capacity_value if is_open else 0.0
            if not is_open and load[e] > 0:
                utilisation[b, e] = np.inf
            row_figures[_LARGEST_UTILISATION] = max(
                row_figures[_LARGEST_UTILISATION], utilisation[b, e]
            )
            if load[e] > 0 and (holds_capacity or not is_open):
                excess = (
                    (load[e] - capacity_value) / capacity_value
                    if is_open
                    else load[e] / max_capacity
                )
                violation = max(violation, excess)
        row_figures[_VIOLATION] = np.inf if has_nan else violation


@kernel
def _project(
    paths: PathLinks, demand: FloatArray, capacity: FloatArray, balances: bool, splits: FloatArray
) -> None:
    """Make splits (B, D K) feasible, in place: non-negative, of live paths, with sums of at most 1
    (of 1 where utilisation is balanced), and scaled down on overloaded paths.
    """
    num_demands = demand.shape[1]
    num_paths = splits.shape[1] // max(1, num_demands)
    utilisation = np.empty(capacity.shape[1])
    for b in range(len(demand)):
        for e in range(len(utilisation)):
            utilisation[e] = 0.0
        # Normalise the splits of each demand, and sum the loads.
        for d in range(num_demands):
            first = paths.path_ptr[d]
            end = paths.path_ptr[d + 1]
            total = 0.0
            num_live = 0
            for k in range(num_paths):
                split_index = d * num_paths + k
                share = splits[b, split_index]
                is_live = first + k < end and _is_live(paths, first + k, capacity[b])
                num_live += is_live
                if not is_live or np.isnan(share) or share < 0:
                    share = 0.0
                splits[b, split_index] = min(share, 1.0) if np.isinf(share) else share
                total += splits[b, split_index]
            for k in range(end - first):
                split_index = d * num_paths + k
                p = first + k
                if balances and total <= _MIN_SPLIT_SUM:
                    splits[b, split_index] = (
                        1.0 / num_live if _is_live(paths, p, capacity[b]) else 0.0
                    )
                elif balances or total > 1:
                    splits[b, split_index] /= total
                for i in range(paths.link_ptr[p], paths.link_ptr[p + 1]):
                    utilisation[paths.link[i]] += demand[b, d] * splits[b, split_index]
        # Scale each path down by its most utilised link.
        if balances:
            continue
        for e in range(len(utilisation)):
            utilisation[e] = utilisation[e] / capacity[b, e] if utilisation[e] > 0 else 0.0
        for d in range(num_demands):
            first = paths.path_ptr[d]
            for k in range(paths.path_ptr[d + 1] - first):
                max_utilisation = 1.0
                for i in range(paths.link_ptr[first + k], paths.link_ptr[first + k + 1]):
                    max_utilisation = max(max_utilisation, utilisation[paths.link[i]])
                split_index = d * num_paths + k
                splits[b, split_index] = (
                    splits[b, split_index] / max_utilisation if demand[b, d] > 0 else 0.0
                )
