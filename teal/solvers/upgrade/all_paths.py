"""What a purchase is certified to cost over all paths of the network, and the paths that would make it cheaper.

The cuts of a purchase hold for all paths if ``needed`` is computed with the shortest path of the network under the
prices of each cut, in the place of the cheapest candidate path.  Only cuts with a positive dual matter: as many as
cables are bought.
"""

from __future__ import annotations

import numpy as np

from teal.network import PathSet
from teal.network.extension import paths_in_trees, with_more_paths
from teal.network.shortest import shortest_trees
from teal.runtime.arrays import FloatArray, Int64Array, IntArray
from teal.solvers.upgrade.cuts import Cuts
from teal.solvers.upgrade.scenarios import Scenarios

_TIE_WEIGHT = 1e-6  # x the largest price, added per link: of equally cheap paths the one with fewer links is taken
_ROUNDING = 1e-12  # of the duals
_CHEAPER = 1e-6  # relative, by which a path must be cheaper than all candidates to be added


def bound_over_all_paths(scenarios: Scenarios, cuts: Cuts, dual: FloatArray) -> float:
    """What every purchase costs at least, whichever paths are used.

    Args:
        scenarios: that the cuts are of; demands without a live candidate path are not in them.
        cuts: of a purchase.
        dual: (n,) at least 0, with coefficient' dual <= cost, of the first n cuts: later searches add cuts behind them.
    """
    used = np.flatnonzero(dual > 0)
    needed = np.array([_needed(scenarios, cuts, int(i))[0] for i in used])
    excess = np.maximum(dual @ cuts.coefficient[: len(dual)] - scenarios.cost, 0.0)
    limits = np.where(excess > _ROUNDING, scenarios.most, 0.0)
    return float(dual[used] @ (needed - cuts.existing[used])) - float(
        np.where(np.isfinite(limits), limits, 0.0) @ excess
    )


def with_missing_paths(scenarios: Scenarios, cuts: Cuts, dual: FloatArray) -> PathSet:
    """The candidate paths, and for each cut with a positive dual the shortest path of each demand under its prices.

    A path is added where it is cheaper than all live candidates; no path is added twice.
    """
    paths = scenarios.problem.paths
    for i in np.flatnonzero(dual > 0):
        _, ptr, links = _needed(scenarios.with_paths(paths), cuts, int(i), find=True)
        if len(links):
            paths = with_more_paths(paths, ptr, links)
    return paths


def _needed(scenarios: Scenarios, cuts: Cuts, number: int, find: bool = False) -> tuple[float, Int64Array, IntArray]:
    """``needed`` of a cut over all paths; with ``find`` also the paths that are cheaper than all candidates."""
    problem, row = scenarios.problem, int(cuts.row[number])
    topology, pairs = problem.topology, problem.paths.pairs
    prices = cuts.prices[number]
    weight = np.where(scenarios.live[row], prices, np.inf)
    sources, source_row = np.unique(pairs[:, 0], return_inverse=True)
    ends = topology.num_nodes, topology.link_source, topology.link_target
    distance, _ = shortest_trees(*ends, weight, sources)
    shortest, demand = distance[source_row, pairs[:, 1]], scenarios.demand[row]
    wanted = demand > 0
    needed = float(demand[wanted] @ shortest[wanted])
    nothing, no_links = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
    if not find:
        return needed, nothing, no_links
    one = scenarios.batch(np.array([row]), np.zeros(scenarios.num_cables))
    import torch

    cheapest = one.cheapest_path_cost(one.ops.path_sum(torch.from_numpy(prices[None].copy())))[0].numpy()
    chosen = np.flatnonzero(wanted & (shortest < cheapest * (1 - _CHEAPER)))
    if not len(chosen):
        return needed, nothing, no_links
    tie_weight = _TIE_WEIGHT * float(prices.max(initial=0.0)) or 1.0
    _, into = shortest_trees(*ends, weight + tie_weight, sources)
    ptr, links = paths_in_trees(chosen, pairs, source_row, into, topology.link_source)
    return needed, ptr, links


__all__ = ["bound_over_all_paths", "with_missing_paths"]
