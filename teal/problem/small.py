"""Small problems over paths, measured by one kernel: projection, loads, violations, value and
bounds.

Torch takes about 20 microseconds for each operation, and a solve of a network of ten nodes less
than half a millisecond.  The references are :func:`teal.solvers.projection.project`,
:mod:`teal.problem.feasibility` and :mod:`teal.problem.bounds`, whose formulas these are.
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

MAX_SCAN = 20_000  # entries of a scan; a larger network gains from threads and from the trie
_LEAST_SUM = 1e-12  # of a demand's splits; those of a smaller sum count as none
_LEAST_SCALE = 1e-30  # Gbit/s, of a load on a link without capacity
_LARGEST = float(np.finfo(np.float64).max)
# Entries of the figures.
_DEMAND, _CARRIED, _VALUE, _LARGEST_UTILISATION, _VIOLATION, _FIRST_BOUND = range(6)


class Measured(NamedTuple):
    """Figures of B matrices.

    Attributes:
        demand: (B,) Gbit/s of all demands.
        carried: (B,) Gbit/s.
        value: (B,) of the objective.
        max_link_utilisation: (B,).
        violation: (B,) the largest of all rules; see
            :class:`teal.problem.feasibility.Violations`.  Infinite where a split is NaN.
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
    """Whether the kernels take a problem: few paths, on the CPU, in float64; one program linear in
    flow, or max_link_utilisation, without conditions.
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
    """Measure splits and prices of a problem that :func:`is_small` takes.

    Args:
        problem: B matrices.
        splits: (B, D, K).
        prices: (B, E) at least 0 and finite.
        scales: (m,) multiples of the prices.
    """
    batch, links = problem.capacity.shape
    rules = problem.objective.rules
    figures = np.empty((batch, _FIRST_BOUND + len(scales)))
    utilisation = np.empty((batch, links))
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
    """Splits (B, D, K) of a problem that :func:`is_small` takes, feasible: the projection without
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
    live = True
    for i in range(paths.link_ptr[p], paths.link_ptr[p + 1]):
        live = live and capacity[paths.link[i]] > 0
    return live


@inner_kernel
def _finite(share: float) -> float:
    """A split without NaN and infinities, as :func:`torch.nan_to_num` has them."""
    if np.isnan(share):
        return 0.0
    return min(max(share, -_LARGEST), _LARGEST)


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
    """Fill utilisations (B, E) and figures (B, 5 + m): Gbit/s, Gbit/s carried, their value, the
    largest utilisation, the largest violation, and a bound for each multiple of the prices.
    """
    demands, num_paths = value.shape
    links = capacity.shape[1]
    path_price, load = np.empty(num_paths), np.empty(links)
    for b in range(len(demand)):
        of, room, violation = figures[b], 0.0, 0.0
        has_nan, has_failures = False, False
        for i in range(len(of)):
            of[i] = 0.0
        for e in range(links):
            room += capacity[b, e] * prices[b, e]
            load[e] = 0.0
            has_failures = has_failures or capacity[b, e] <= 0
        for m in range(len(scales)):
            of[_FIRST_BOUND + m] = 0.0 if balances else scales[m] * room
        unit = 1.0
        if balances:
            unit = 1.0 / room if room > 0 else 0.0
        for d in range(demands):
            first, end = paths.path_ptr[d], paths.path_ptr[d + 1]
            rate, total, is_routable = demand[b, d], 0.0, False
            has_one_value, cheapest = True, np.inf
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
                of[_VALUE] += value[d, k] * rate * share
                path_price[k] = np.inf
                if has_failures and not _is_live(paths, p, capacity[b]):
                    violation = max(violation, abs(share))
                    continue
                is_routable = True
                path_price[k] = unit * price
                cheapest = min(cheapest, path_price[k])
                has_one_value = has_one_value and (balances or value[d, k] == value[d, 0])
            for k in range(end - first, num_paths):
                has_nan = has_nan or np.isnan(splits[b, d, k])
                share = _finite(splits[b, d, k]) if rate > 0 else 0.0
                total += share
                violation = max(violation, abs(share))
            of[_DEMAND] += rate
            of[_CARRIED] += rate * total
            excess = total - 1.0
            if balances:
                excess = abs(excess) if is_routable and rate > 0 else total
            violation = max(violation, excess)
            if not is_routable:
                continue
            for m in range(len(scales)):
                best = -scales[m] * cheapest
                if not balances:
                    best += value[d, 0]
                if not has_one_value:
                    best = -np.inf
                    for k in range(end - first):
                        if path_price[k] < np.inf:
                            best = max(best, value[d, k] - scales[m] * path_price[k])
                of[_FIRST_BOUND + m] += rate * (best if balances else max(best, 0.0))
        largest = _LEAST_SCALE
        for e in range(links):
            largest = max(largest, capacity[b, e])
        for e in range(links):
            room = capacity[b, e]
            is_open = room > 0
            utilisation[b, e] = capacity_share * load[e] / room if is_open else 0.0
            if not is_open and load[e] > 0:
                utilisation[b, e] = np.inf
            of[_LARGEST_UTILISATION] = max(of[_LARGEST_UTILISATION], utilisation[b, e])
            if load[e] > 0 and (holds_capacity or not is_open):
                excess = (load[e] - room) / room if is_open else load[e] / largest
                violation = max(violation, excess)
        of[_VIOLATION] = np.inf if has_nan else violation


@kernel
def _project(
    paths: PathLinks, demand: FloatArray, capacity: FloatArray, balances: bool, splits: FloatArray
) -> None:
    """Make splits (B, D K) feasible, in place."""
    demands = demand.shape[1]
    num_paths = splits.shape[1] // max(1, demands)
    usage = np.empty(capacity.shape[1])
    for b in range(len(demand)):
        for e in range(len(usage)):
            usage[e] = 0.0
        for d in range(demands):
            first, end, total, live = paths.path_ptr[d], paths.path_ptr[d + 1], 0.0, 0
            for k in range(num_paths):
                at = d * num_paths + k
                share = splits[b, at]
                is_live = first + k < end and _is_live(paths, first + k, capacity[b])
                live += is_live
                if not is_live or np.isnan(share) or share < 0:
                    share = 0.0
                splits[b, at] = min(share, 1.0) if np.isinf(share) else share
                total += splits[b, at]
            for k in range(end - first):
                at, p = d * num_paths + k, first + k
                if balances and total <= _LEAST_SUM:
                    splits[b, at] = 1.0 / live if _is_live(paths, p, capacity[b]) else 0.0
                elif balances or total > 1:
                    splits[b, at] /= total
                for i in range(paths.link_ptr[p], paths.link_ptr[p + 1]):
                    usage[paths.link[i]] += demand[b, d] * splits[b, at]
        if balances:
            continue
        for e in range(len(usage)):
            usage[e] = usage[e] / capacity[b, e] if usage[e] > 0 else 0.0
        for d in range(demands):
            first = paths.path_ptr[d]
            for k in range(paths.path_ptr[d + 1] - first):
                most = 1.0
                for i in range(paths.link_ptr[first + k], paths.link_ptr[first + k + 1]):
                    most = max(most, usage[paths.link[i]])
                at = d * num_paths + k
                splits[b, at] = splits[b, at] / most if demand[b, d] > 0 else 0.0
