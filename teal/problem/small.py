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
_CARRIED, _VALUE, _EXCESS, _BELOW, _MISPLACED, _FIRST_BOUND = range(6)  # entries of the figures


class Measured(NamedTuple):
    """Figures of B matrices.

    Attributes:
        carried: (B,) Gbit/s.
        value: (B,) of the objective.
        demand: (B,) violation of the rates; see :class:`teal.problem.feasibility.Violations`.
        sign: (B,) largest negative split, sign reversed.
        mask: (B,) largest share on a path that is not live.
        load: (B, E) Gbit/s.
        score: (B,) bound on the program as a maximum, the best of all multiples of the prices.
    """

    carried: Tensor
    value: Tensor
    demand: Tensor
    sign: Tensor
    mask: Tensor
    load: Tensor
    score: Tensor


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


def measured(problem: Problem, splits: Tensor, prices: Tensor, scales: Tensor) -> Measured:
    """Measure splits and prices of a problem that :func:`is_small` takes.

    Args:
        problem: B matrices.
        splits: (B, D, K), without NaN.
        prices: (B, E) at least 0 and finite.
        scales: (m,) multiples of the prices.
    """
    batch, links = problem.capacity.shape
    figures = np.zeros((batch, _FIRST_BOUND + len(scales)))
    load = np.zeros((batch, links))
    _measure(
        path_links_of(problem.paths),
        problem.demand.contiguous().numpy(),
        problem.capacity.contiguous().numpy(),
        problem.path_value.contiguous().numpy(),
        problem.objective.rules.carries_all,
        splits.contiguous().numpy(),
        prices.contiguous().numpy(),
        scales.numpy(),
        load,
        figures,
    )
    table, loads = torch.from_numpy(figures), torch.from_numpy(load)
    value = table[:, _VALUE]
    if problem.objective.rules.carries_all:
        value = problem.utilisation_of(loads).amax(1)
    score = table[:, _FIRST_BOUND:].amin(1)
    return Measured(
        carried=table[:, _CARRIED],
        value=value,
        demand=table[:, _EXCESS].clamp(min=0),
        sign=table[:, _BELOW],
        mask=table[:, _MISPLACED],
        load=loads,
        score=torch.where(score.isfinite(), score, torch.inf),
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


@kernel
def _measure(
    paths: PathLinks,
    demand: FloatArray,
    capacity: FloatArray,
    value: FloatArray,
    balances: bool,
    splits: FloatArray,
    prices: FloatArray,
    scales: FloatArray,
    load: FloatArray,
    figures: FloatArray,
) -> None:
    """Fill loads (B, E) and figures (B, 5 + m): Gbit/s carried, their value, violations of rates,
    signs and paths, and a bound for each multiple of the prices.
    """
    demands, num_paths = value.shape
    best = np.empty(len(scales))
    for b in range(len(demand)):
        of, room = figures[b], 0.0
        of[_EXCESS] = -1.0
        for e in range(capacity.shape[1]):
            room += capacity[b, e] * prices[b, e]
        for m in range(len(scales)):
            of[_FIRST_BOUND + m] = 0.0 if balances else scales[m] * room
        unit = 1.0
        if balances:
            unit = 1.0 / room if room > 0 else 0.0
        for d in range(demands):
            first, end = paths.path_ptr[d], paths.path_ptr[d + 1]
            rate, total, is_routable = demand[b, d], 0.0, False
            for m in range(len(scales)):
                best[m] = -np.inf
            for k in range(end - first):
                p = first + k
                share = splits[b, d, k] if rate > 0 else 0.0
                total += share
                of[_BELOW] = max(of[_BELOW], -share)
                price = 0.0
                for i in range(paths.link_ptr[p], paths.link_ptr[p + 1]):
                    price += prices[b, paths.link[i]]
                    load[b, paths.link[i]] += rate * share
                of[_VALUE] += value[d, k] * rate * share
                if not _is_live(paths, p, capacity[b]):
                    of[_MISPLACED] = max(of[_MISPLACED], abs(share))
                    continue
                is_routable = True
                for m in range(len(scales)):
                    own = 0.0 if balances else value[d, k]
                    best[m] = max(best[m], own - scales[m] * unit * price)
            for k in range(end - first, num_paths):
                share = splits[b, d, k] if rate > 0 else 0.0
                total += share
                of[_BELOW] = max(of[_BELOW], -share)
                of[_MISPLACED] = max(of[_MISPLACED], abs(share))
            of[_CARRIED] += rate * total
            excess = total - 1.0
            if balances:
                excess = abs(excess) if is_routable and rate > 0 else total
            of[_EXCESS] = max(of[_EXCESS], excess)
            if is_routable:
                for m in range(len(scales)):
                    gain = best[m] if balances else max(best[m], 0.0)
                    of[_FIRST_BOUND + m] += rate * gain


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
