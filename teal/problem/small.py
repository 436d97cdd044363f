"""Compiled kernels that assess and project allocations of small problems over paths.

Assessment computes loads, violations, value and bounds.  Torch takes about 20 microseconds for each
operation, whereas a network of ten nodes is solved in less than half a millisecond. The formulas
are those of :func:`teal.solvers.projection.project`, :mod:`teal.problem.feasibility` and
:mod:`teal.problem.bounds`. Entry points: :func:`is_small`, :func:`measured`, :func:`projected`.
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

# Largest number of scan entries (path trie nodes and path slots); larger networks gain from
# threads.
MAX_SCAN = 20_000
# Smallest sum of a demand's splits; a smaller sum counts as 0.
_MIN_SPLIT_SUM = 1e-12
# Smallest capacity in Gbit/s that scales a load on a failed link.
_MIN_CAPACITY_SCALE = 1e-30
_MAX_FLOAT = float(np.finfo(np.float64).max)
# Columns of the metrics array; the last ones hold a bound for each multiple of the prices.
_DEMAND, _CARRIED, _VALUE, _MAX_UTILISATION, _VIOLATION, _FIRST_BOUND = range(6)


class Measured(NamedTuple):
    """Metrics of B allocations, as the compiled kernel computes them.

    Attributes:
        demand: (B,) total demand, Gbit/s.
        carried: (B,) total flow that is carried, Gbit/s.
        value: (B,) value of the objective.
        max_link_utilisation: (B,) largest load over capacity.
        violation: (B,) largest violation of all rules (capacity, sum and sign of the splits, failed
            paths), relative to a capacity or demand; infinite where a split is NaN.
        utilisation: (B, E) load over capacity; infinite where a failed link carries traffic.
        score: (B,) upper bound on the optimum of the program as a maximisation (of minus the
            utilisation where it is minimised), the smallest over all multiples of the prices.
    """

    demand: FloatArray
    carried: FloatArray
    value: FloatArray
    max_link_utilisation: FloatArray
    violation: FloatArray
    utilisation: FloatArray
    score: FloatArray


def is_small(problem: Problem) -> bool:
    """Return whether the compiled kernels support a problem.

    The problem must have at most :data:`MAX_SCAN` scan entries and no side conditions, be on the
    CPU in float64, and have an objective that is one program: linear in flow, or
    max_link_utilisation.
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
        and (rules.minimises_utilisation if rules.carries_all else type(rules).value is Rules.value)
        and (rules.carries_all or type(problem.demand_set) is AtMostOne)
        and problem.objective.may_shed != rules.carries_all
        and not is_interpreting()
    )


def measured(
    problem: Problem, splits: Tensor, prices: Tensor, price_multiples: FloatArray
) -> Measured:
    """Compute loads, violations, value and dual bounds of a problem that :func:`is_small` accepts.

    Args:
        problem: B matrices.
        splits: (B, D, K) share of each demand on each path.
        prices: (B, E) dual price of each link, finite and at least 0.
        price_multiples: (m,) multiples of the prices, each of which gives a bound.
    """
    batch, num_links = problem.capacity.shape
    rules = problem.objective.rules
    # (B, 5 + m): five metrics, then a bound for each multiple.
    metrics = np.empty((batch, _FIRST_BOUND + len(price_multiples)))
    utilisation = np.empty((batch, num_links))
    _compute_metrics(
        path_links_of(problem.paths),
        problem.demand.contiguous().numpy(),
        problem.capacity.contiguous().numpy(),
        problem.path_value.contiguous().numpy(),
        rules.carries_all,
        rules.holds_capacity,
        rules.capacity_share,
        splits.contiguous().numpy(),
        prices.contiguous().numpy(),
        price_multiples,
        utilisation,
        metrics,
    )
    # The best bound of all multiples.
    score = metrics[:, _FIRST_BOUND:].min(1)
    return Measured(
        demand=metrics[:, _DEMAND],
        carried=metrics[:, _CARRIED],
        value=metrics[:, _MAX_UTILISATION if rules.carries_all else _VALUE],
        max_link_utilisation=metrics[:, _MAX_UTILISATION],
        violation=metrics[:, _VIOLATION],
        utilisation=utilisation,
        score=np.where(np.isfinite(score), score, np.inf),
    )


def projected(problem: Problem, splits: FloatArray) -> Tensor:
    """Make splits feasible, for a problem that :func:`is_small` accepts; return them (B, D, K).

    Splits are clipped to [0, 1] and normalised; each path is scaled down by its most overloaded
    link.  Capacity that becomes free is not used again.

    Args:
        problem: problem of B matrices.
        splits: (B, D K) share of each demand on each path; not changed.
    """
    feasible = splits.copy()
    _project(
        path_links_of(problem.paths),
        problem.demand.contiguous().numpy(),
        problem.capacity.contiguous().numpy(),
        problem.objective.rules.carries_all,
        feasible,
    )
    return torch.from_numpy(feasible).reshape(problem.batch, *problem.paths.mask.shape)


@inner_kernel
def _is_live(paths: PathLinks, p: int, capacity: FloatArray) -> bool:
    """Return whether all links of path p have capacity."""
    live = True
    for i in range(paths.link_ptr[p], paths.link_ptr[p + 1]):
        live = live and capacity[paths.link[i]] > 0
    return live


@inner_kernel
def _replace_non_finite(share: float) -> float:
    """Return a split with NaN replaced by 0, and infinities by the largest float64."""
    if np.isnan(share):
        return 0.0
    return min(max(share, -_MAX_FLOAT), _MAX_FLOAT)


@kernel
def _compute_metrics(
    paths: PathLinks,
    demand: FloatArray,
    capacity: FloatArray,
    value: FloatArray,
    minimises_utilisation: bool,
    holds_capacity: bool,
    capacity_share: float,
    splits: FloatArray,
    prices: FloatArray,
    price_multiples: FloatArray,
    utilisation: FloatArray,
    metrics: FloatArray,
) -> None:
    """Compute link utilisations, and the metrics of each matrix.

    Columns of ``metrics``: total demand and total flow in Gbit/s, value, largest utilisation,
    largest violation, then one dual bound for each multiple s of the prices:

        value maximisation:  s c' y + sum of demand * max(0, max over paths of value - s * price),
        utilisation (negated):  -sum of demand * (min over paths of price) / c' y, for any s.

    Args:
        paths: P paths of D demands in CSR form: paths of demand d are path_ptr[d]:path_ptr[d + 1],
            links of path p are link[link_ptr[p]:link_ptr[p + 1]].
        demand: (B, D) Gbit/s.
        capacity: (B, E) usable capacity c, Gbit/s; 0 for failed links.
        value: (D, K) value of a Gbit/s on each path.
        minimises_utilisation: whether the largest utilisation is minimised.
        holds_capacity: whether loads must stay within capacities.
        capacity_share: usable share of each link's full capacity.
        splits: (B, D, K) share of each demand on each path.
        prices: (B, E) dual price y of each link, value per Gbit/s.
        price_multiples: (m,) multiples of the prices.
        utilisation: (B, E) load over full capacity (written).
        metrics: (B, 5 + m) (written).
    """
    num_demands, num_paths = value.shape
    num_links = capacity.shape[1]
    # (K,) price of each path of one demand, infinite for failed paths; (E,) link loads, Gbit/s.
    path_price = np.empty(num_paths)
    load = np.empty(num_links)
    for b in range(len(demand)):
        row_metrics = metrics[b]
        capacity_value = 0.0
        violation = 0.0
        has_nan = False
        has_failures = False
        for i in range(len(row_metrics)):
            row_metrics[i] = 0.0
        # Value c' y of all capacity at the prices.
        for e in range(num_links):
            capacity_value += capacity[b, e] * prices[b, e]
            load[e] = 0.0
            has_failures = has_failures or capacity[b, e] <= 0
        for m in range(len(price_multiples)):
            row_metrics[_FIRST_BOUND + m] = (
                0.0 if minimises_utilisation else price_multiples[m] * capacity_value
            )
        # Prices are scaled to c' y = 1 where the utilisation is minimised.
        price_scale = 1.0
        if minimises_utilisation:
            price_scale = 1.0 / capacity_value if capacity_value > 0 else 0.0
        # Demands: flow, value and price of each path.
        for d in range(num_demands):
            first_path = paths.path_ptr[d]
            end_path = paths.path_ptr[d + 1]
            rate = demand[b, d]
            total_share = 0.0
            is_routable = False
            has_one_value = True
            cheapest_price = np.inf
            for k in range(end_path - first_path):
                p = first_path + k
                has_nan = has_nan or np.isnan(splits[b, d, k])
                share = _replace_non_finite(splits[b, d, k]) if rate > 0 else 0.0
                total_share += share
                violation = max(violation, -share)
                price = 0.0
                for i in range(paths.link_ptr[p], paths.link_ptr[p + 1]):
                    price += prices[b, paths.link[i]]
                    load[paths.link[i]] += rate * share
                row_metrics[_VALUE] += value[d, k] * rate * share
                path_price[k] = np.inf
                if has_failures and not _is_live(paths, p, capacity[b]):
                    violation = max(violation, abs(share))
                    continue
                is_routable = True
                path_price[k] = price_scale * price
                cheapest_price = min(cheapest_price, path_price[k])
                has_one_value = has_one_value and (
                    minimises_utilisation or value[d, k] == value[d, 0]
                )
            # Slots without a path must have no traffic.
            for k in range(end_path - first_path, num_paths):
                has_nan = has_nan or np.isnan(splits[b, d, k])
                share = _replace_non_finite(splits[b, d, k]) if rate > 0 else 0.0
                total_share += share
                violation = max(violation, abs(share))
            # Sum of the splits: at most 1; exactly 1 where all demand must be served.
            row_metrics[_DEMAND] += rate
            row_metrics[_CARRIED] += rate * total_share
            excess = total_share - 1.0
            if minimises_utilisation:
                excess = abs(excess) if is_routable and rate > 0 else total_share
            violation = max(violation, excess)
            if not is_routable:
                continue
            # Dual bounds: the cheapest path has the best profit if all paths have one value.
            for m in range(len(price_multiples)):
                best_profit = -price_multiples[m] * cheapest_price
                if not minimises_utilisation:
                    best_profit += value[d, 0]
                if not has_one_value:
                    best_profit = -np.inf
                    for k in range(end_path - first_path):
                        if path_price[k] < np.inf:
                            best_profit = max(
                                best_profit, value[d, k] - price_multiples[m] * path_price[k]
                            )
                row_metrics[_FIRST_BOUND + m] += rate * (
                    best_profit if minimises_utilisation else max(best_profit, 0.0)
                )
        # Links: utilisation and overload.
        max_capacity = _MIN_CAPACITY_SCALE
        for e in range(num_links):
            max_capacity = max(max_capacity, capacity[b, e])
        for e in range(num_links):
            # Capacity of this link; the value of all capacity is not needed any more.
            capacity_value = capacity[b, e]
            has_capacity = capacity_value > 0
            utilisation[b, e] = capacity_share * load[e] / capacity_value if has_capacity else 0.0
            if not has_capacity and load[e] > 0:
                utilisation[b, e] = np.inf
            row_metrics[_MAX_UTILISATION] = max(row_metrics[_MAX_UTILISATION], utilisation[b, e])
            if load[e] > 0 and (holds_capacity or not has_capacity):
                excess = (
                    (load[e] - capacity_value) / capacity_value
                    if has_capacity
                    else load[e] / max_capacity
                )
                violation = max(violation, excess)
        row_metrics[_VIOLATION] = np.inf if has_nan else violation


@kernel
def _project(
    paths: PathLinks,
    demand: FloatArray,
    capacity: FloatArray,
    minimises_utilisation: bool,
    splits: FloatArray,
) -> None:
    """Make splits feasible, in place.

    Splits become non-negative and 0 on failed paths, with a sum of at most 1 for each demand (of 1
    where utilisation is balanced); then each path is scaled down by its largest link utilisation.

    Args:
        paths: P paths of D demands in CSR form: paths of demand d are path_ptr[d]:path_ptr[d + 1],
            links of path p are link[link_ptr[p]:link_ptr[p + 1]].
        demand: (B, D) Gbit/s.
        capacity: (B, E) Gbit/s; 0 for failed links.
        minimises_utilisation: whether the largest utilisation is minimised, with all demand served.
        splits: (B, D K) share of each demand on each path (updated).
    """
    num_demands = demand.shape[1]
    num_paths = splits.shape[1] // max(1, num_demands)
    # (E,) link loads in Gbit/s, then utilisations.
    utilisation = np.empty(capacity.shape[1])
    for b in range(len(demand)):
        for e in range(len(utilisation)):
            utilisation[e] = 0.0
        # Normalise the splits of each demand, and sum the loads.
        for d in range(num_demands):
            first_path = paths.path_ptr[d]
            end_path = paths.path_ptr[d + 1]
            total_share = 0.0
            num_live = 0
            for k in range(num_paths):
                split_index = d * num_paths + k
                share = splits[b, split_index]
                # Empty slots, failed paths, NaN and negative splits get 0; infinity becomes 1.
                is_live = first_path + k < end_path and _is_live(paths, first_path + k, capacity[b])
                num_live += is_live
                if not is_live or np.isnan(share) or share < 0:
                    share = 0.0
                splits[b, split_index] = min(share, 1.0) if np.isinf(share) else share
                total_share += splits[b, split_index]
            # Divide by the sum; without any traffic, split evenly if all must be served.
            for k in range(end_path - first_path):
                split_index = d * num_paths + k
                p = first_path + k
                if minimises_utilisation and total_share <= _MIN_SPLIT_SUM:
                    splits[b, split_index] = (
                        1.0 / num_live if _is_live(paths, p, capacity[b]) else 0.0
                    )
                elif minimises_utilisation or total_share > 1:
                    splits[b, split_index] /= total_share
                for i in range(paths.link_ptr[p], paths.link_ptr[p + 1]):
                    utilisation[paths.link[i]] += demand[b, d] * splits[b, split_index]
        # Scale each path down by its most utilised link.
        if minimises_utilisation:
            continue
        for e in range(len(utilisation)):
            utilisation[e] = utilisation[e] / capacity[b, e] if utilisation[e] > 0 else 0.0
        for d in range(num_demands):
            first_path = paths.path_ptr[d]
            for k in range(paths.path_ptr[d + 1] - first_path):
                # At least 1: paths are only scaled down.
                max_utilisation = 1.0
                for i in range(paths.link_ptr[first_path + k], paths.link_ptr[first_path + k + 1]):
                    max_utilisation = max(max_utilisation, utilisation[paths.link[i]])
                split_index = d * num_paths + k
                splits[b, split_index] = (
                    splits[b, split_index] / max_utilisation if demand[b, d] > 0 else 0.0
                )
