r"""Progressive filling (water-filling) of rates under cuts, linear limits from link prices.

For link prices p[e] >= 0, with price(d) the smallest sum of p along a live path of demand d, all
feasible rates f satisfy

    sum_d price(d) f[d] <= sum_e c[e] p[e],

a *cut*.  A price on one link alone is the cut of the demands without a path around it.  Under given
cuts, the max-min fair rates are those of progressive filling (Bertsekas & Gallager, Data Networks,
6.5.2): all levels f[d] / w[d] rise together until a cut is tight, at the t with

    sum over open d of price(d) min(t w[d], demand[d]) + sum over held d of price(d) f[d]
        = sum_e c[e] p[e];

its open demands are then held there.  Held demands relax other cuts, so that a cut's t never
decreases: a priority queue recomputes t lazily, for the cut with the smallest one.  Entry points:
:class:`CutFilling`, :func:`cut_of`.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import math
from collections.abc import Sequence

import numpy as np
import torch

from teal.network import PathSet
from teal.problem import Problem
from teal.problem.fair_levels import HELD_PRICE_SHARE
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array, IntArray
from teal.runtime.parallel import inner_kernel, kernel

_ROUNDING = 1e-12  # relative tolerance of tight cuts and equal levels


@dataclasses.dataclass(frozen=True, eq=False)
class RateCut:
    """Linear limit on rates f from link prices p, which all feasible rates satisfy.

        sum over demands d of price(d) f[d] <= sum over links e of c[e] p[e],

    with price(d) the smallest price of a live path of demand d, and the link capacities c.

    Attributes:
        demands: (n,) indices of the demands with a positive price.
        demand_price: (n,) price of the cheapest live path of each of these demands.
        right_hand_side: limit, the value of the capacities at the link prices: sum over e of c[e]
            p[e].
        prices: (E,) link prices p.
    """

    demands: Int64Array
    demand_price: FloatArray
    right_hand_side: float
    prices: FloatArray

    def excess(self, rate: FloatArray) -> float:
        """Return by how much rates (D,) in Gbit/s exceed the limit; at most 0 if the cut holds."""
        return float((self.demand_price * rate[self.demands]).sum() - self.right_hand_side)


@dataclasses.dataclass(frozen=True, eq=False)
class HeldLevel:
    """Level of progressive filling at which a tight cut fixes the rates of demands.

    Attributes:
        level: rate per weight.
        fixed_demands: (n,) indices of the demands that are held below their full rate.
        prices: (E,) link prices of the tight cut.
    """

    level: float
    fixed_demands: Int64Array
    prices: FloatArray


class CutFilling:
    """Max-min fair rates by progressive filling, under a growing set of cuts.

    Args:
        problem: B = 1, under total_flow.
        weight: (D,) positive weights w.
    """

    def __init__(self, problem: Problem, weight: FloatArray) -> None:
        self._weight = weight
        self._demand = problem.demand[0].cpu().numpy()
        self._routable = problem.routable[0].cpu().numpy()
        self._cuts: list[RateCut] = []
        # Level at which each cut is tight without held demands.
        self._initial_levels: list[float] = []
        for cut in single_link_cuts(problem):
            self.add(cut)

    @property
    def cuts(self) -> Sequence[RateCut]:
        """All cuts so far, the cuts of single links first."""
        return self._cuts

    def add(self, cut: RateCut) -> None:
        """Add a cut, and store the level at which it is tight if no demand is held yet."""
        self._cuts.append(cut)
        zero_rates = np.zeros_like(self._demand)
        self._initial_levels.append(self._tight_level(cut, zero_rates, self._routable, 0.0))

    def _tight_level(
        self, cut: RateCut, rate: FloatArray, is_open: BoolArray, level: float
    ) -> float:
        """Return the level at which a cut is tight, infinite if it cannot become tight.

        Args:
            cut: the cut.
            rate: (D,) rates of the held demands, Gbit/s.
            is_open: (D,) bool, demands that are not held.
            level: present level; the result is not below it.
        """
        return tight_level(
            cut.demands,
            cut.demand_price,
            cut.right_hand_side,
            rate,
            is_open,
            self._weight,
            self._demand,
            level,
        )

    def rates(self) -> tuple[FloatArray, list[HeldLevel]]:
        """Compute max-min fair rates under the cuts by progressive filling.

        All levels rise together until a cut is tight, which holds its open demands.  A priority
        queue orders the cuts by a lower bound of the level at which they are tight.

        Returns:
            (D,) rates, Gbit/s, and the levels of held demands, ascending.
        """
        # Rates of held demands, demands that are not held yet, and the queue of cuts by level.
        rate = np.zeros_like(self._demand)
        is_open = self._routable.copy()
        levels = list[HeldLevel]()
        queue = [
            (level, cut_index)
            for cut_index, level in enumerate(self._initial_levels)
            if math.isfinite(level)
        ]
        heapq.heapify(queue)
        level = 0.0
        while queue:
            _, cut_index = heapq.heappop(queue)
            cut = self._cuts[cut_index]
            next_level = self._tight_level(cut, rate, is_open, level)
            if not math.isfinite(next_level):
                continue
            # Holding demands has relaxed the cut: put it back behind cuts that are tight earlier.
            if queue and next_level > queue[0][0] * (1 + _ROUNDING):
                heapq.heappush(queue, (next_level, cut_index))
                continue
            # Hold the open demands of the cut at this level, except those whose price is
            # negligible.
            level = next_level
            is_member_open = is_open[cut.demands]
            fixed_demands = cut.demands[
                is_member_open
                & (cut.demand_price > HELD_PRICE_SHARE * cut.demand_price[is_member_open].max())
            ]
            rate[fixed_demands] = np.minimum(
                self._demand[fixed_demands], level * self._weight[fixed_demands]
            )
            is_open[fixed_demands] = False
            # Record the level with the demands that it leaves partly unserved.
            partly_served = fixed_demands[
                self._demand[fixed_demands] > level * self._weight[fixed_demands]
            ]
            if len(partly_served):
                levels.append(HeldLevel(level, partly_served, cut.prices))
        # Demands in no tight cut are fully served.
        rate[is_open] = self._demand[is_open]
        return rate, levels


@functools.cache
def warm_up_kernels() -> None:
    """Compile the kernels of this module on arrays of one entry, before a time limit begins."""
    ones = np.ones(1)
    index = np.zeros(1, np.int64)
    tight_level(index, ones, 0.5, np.zeros(1), np.ones(1, np.bool_), ones, ones, 0.0)
    leaf = np.zeros((1, 1), np.int32)
    arrays = (leaf, np.full(1, -1, np.int32), np.zeros(1, np.int32))
    is_live = np.ones((1, 1), np.bool_)
    count, _ = _count_unavoidable(*arrays, is_live, ones, 1)
    _list_unavoidable(*arrays, is_live, count, np.zeros(1, np.int64), np.empty(1, np.int64))


@kernel
def tight_level(  # type: ignore[no-untyped-def]
    demands, demand_price, right_hand_side, rate, is_open, weight, demand, level
) -> float:
    """Return the level t at which a cut is tight; infinite if all of its open demands fit.

    At the level t an open demand d of weight w[d] has the rate min(t w[d], demand[d]), and a held
    one its rate f[d].  The cut is tight where the sum of price times rate over its demands is
    ``right_hand_side``.  The sum is concave and piecewise linear in t, so that Newton's method from
    below is finite.

    Args:
        demands: (n,) indices of the demands of the cut.
        demand_price: (n,) price of the cheapest path of each.
        right_hand_side: limit of the cut on the sum of price times rate.
        rate: (D,) rates f of the held demands, Gbit/s.
        is_open: (D,) bool, demands that are not held.
        weight: (D,) weights w.
        demand: (D,) Gbit/s.
        level: level at which the search starts; the result is not below it.
    """
    # Right-hand side minus the held demands, and largest use by the open ones.
    slack = right_hand_side
    max_use = 0.0
    for i in range(len(demands)):
        d = demands[i]
        if is_open[d]:
            max_use += demand_price[i] * demand[d]
        else:
            slack -= demand_price[i] * rate[d]
    # The cut cannot become tight.  This form of the condition also returns for NaN.
    if not (max_use > slack * (1 + _ROUNDING) and max_use > 0):
        return np.inf
    # Newton's method: use of the open demands at the level t, and its slope in t.
    t = level
    while True:
        open_use = 0.0
        slope = 0.0
        for i in range(len(demands)):
            d = demands[i]
            if is_open[d]:
                if demand[d] <= t * weight[d]:
                    open_use += demand_price[i] * demand[d]
                else:
                    open_use += demand_price[i] * t * weight[d]
                    slope += demand_price[i] * weight[d]
        if not (open_use < slack * (1 - _ROUNDING) and slope > 0):
            return t
        t += (slack - open_use) / slope


def single_link_cuts(problem: Problem) -> list[RateCut]:
    """Return the cuts of single links that rates can violate.

    The cut of a link limits the sum of the demands without a path around it to its capacity; it is
    returned if these demands exceed the capacity.

    Args:
        problem: B = 1; columns other than paths, such as segment lists, have no such cuts.
    """
    if not problem.ops.counts_once:
        return []
    paths = problem.paths
    demand = problem.demand[0].cpu().numpy()
    capacity = problem.capacity[0].cpu().numpy()
    is_live = problem.path_mask[0].cpu().numpy()
    # Demands without a path around each link e, at members[ptr[e]:ptr[e + 1]]; none for links that
    # all of them fit.
    num_demands, demand_sum = _count_unavoidable(
        *_path_arrays(paths), is_live, demand, len(capacity)
    )
    num_demands[(demand_sum <= capacity) | (capacity <= 0)] = 0
    ptr = np.concatenate([[0], num_demands.cumsum()])
    members = np.empty(int(ptr[-1]), np.int64)
    _list_unavoidable(*_path_arrays(paths), is_live, num_demands, ptr[:-1].copy(), members)
    cuts = []
    for link in np.flatnonzero(num_demands):
        demands = members[ptr[link] : ptr[link + 1]]
        prices = np.zeros_like(capacity)
        prices[link] = 1.0
        cuts.append(RateCut(demands, np.ones(len(demands)), float(capacity[link]), prices))
    return cuts


def _path_arrays(paths: PathSet) -> tuple[IntArray, IntArray, IntArray]:
    """Return the last trie node (D, K) of each path, and parent and link (T,) of each trie node."""
    return paths.leaf, paths.trie.parent, paths.trie.link


@inner_kernel
def _unavoidable_links(leaf, is_live, parent, link, d, path_count, counted_demand, out):  # type: ignore[no-untyped-def]
    """Write the links that lie on every live path of demand ``d``; return their number.

    Args:
        leaf: (D, K) last trie node of each path.
        is_live: (D, K) bool, live paths.
        parent: (T,) parent of each trie node, -1 for the root.
        link: (T,) link into each trie node.
        d: index of the demand.
        path_count: (E,) scratch: number of live paths of the demand that cross the link.
        counted_demand: (E,) scratch: index of the demand to which the count in ``path_count``
            belongs.
        out: (E,) the links, packed at the front (written).
    """
    # Count the live paths over each link of the first live path; other links cannot be on all.
    num_live = 0
    for k in range(leaf.shape[1]):
        if is_live[d, k]:
            node = leaf[d, k]
            while node >= 0:
                e = link[node]
                if num_live == 0:
                    counted_demand[e] = d
                    path_count[e] = 1
                elif counted_demand[e] == d:
                    path_count[e] += 1
                node = parent[node]
            num_live += 1
    # Links of the first live path that all live paths cross.
    count = 0
    if num_live:
        for k in range(leaf.shape[1]):
            if is_live[d, k]:
                node = leaf[d, k]
                while node >= 0:
                    if counted_demand[link[node]] == d and path_count[link[node]] == num_live:
                        out[count] = link[node]
                        count += 1
                    node = parent[node]
                break
    return count


@kernel
def _count_unavoidable(leaf, parent, link, is_live, demand, links):  # type: ignore[no-untyped-def]
    """Return the number (E,) and the sum (E,) in Gbit/s of the demands that must cross each link.

    These are the demands all of whose live paths cross the link.

    Args:
        leaf: (D, K) last trie node of each path.
        parent: (T,) parent of each trie node, -1 for the root.
        link: (T,) link into each trie node.
        is_live: (D, K) bool, live paths.
        demand: (D,) Gbit/s.
        links: number of links, E.
    """
    num_demands = np.zeros(links, np.int64)
    demand_sum = np.zeros(links)
    # Scratch of _unavoidable_links, and the links on every live path of a demand.
    path_count = np.zeros(links, np.int64)
    counted_demand = np.full(links, -1)
    unavoidable_links = np.empty(links, np.int64)
    for d in range(len(demand)):
        for i in range(
            _unavoidable_links(
                leaf, is_live, parent, link, d, path_count, counted_demand, unavoidable_links
            )
        ):
            num_demands[unavoidable_links[i]] += 1
            demand_sum[unavoidable_links[i]] += demand[d]
    return num_demands, demand_sum


@kernel
def _list_unavoidable(leaf, parent, link, is_live, num_demands, next_index, members):  # type: ignore[no-untyped-def]
    """Write the demands that must cross each link with a positive ``num_demands``, link by link.

    Args:
        leaf: (D, K) last trie node of each path.
        parent: (T,) parent of each trie node, -1 for the root.
        link: (T,) link into each trie node.
        is_live: (D, K) bool, live paths.
        num_demands: (E,) number of demands of each link; 0 to skip the link.
        next_index: (E,) first index of each link in ``members`` (overwritten).
        members: indices of the demands (written).
    """
    links = len(num_demands)
    # Scratch of _unavoidable_links, and the links on every live path of a demand.
    path_count = np.zeros(links, np.int64)
    counted_demand = np.full(links, -1)
    unavoidable_links = np.empty(links, np.int64)
    for d in range(len(leaf)):
        for i in range(
            _unavoidable_links(
                leaf, is_live, parent, link, d, path_count, counted_demand, unavoidable_links
            )
        ):
            e = unavoidable_links[i]
            if num_demands[e] > 0:
                members[next_index[e]] = d
                next_index[e] += 1


def cut_of(problem: Problem, prices: torch.Tensor, demands: Int64Array | None = None) -> RateCut:
    """Return the cut of link prices: price(d) is the smallest price of a live path of demand d.

    Args:
        problem: B = 1, with all demands or some.
        prices: (E,) prices >= 0 in any unit; scaled to at most 1, so that sums stay finite.
        demands: indices of the demands of ``problem``; None for all.
    """
    largest = prices.max()
    prices = prices / largest if bool(largest > 0) else prices
    demand_price = problem.cheapest_path_cost(problem.ops.path_sum(prices[None]))[0].cpu().numpy()
    priced_demands = np.flatnonzero(demand_price > 0)
    right_hand_side = float((problem.capacity[0] * prices).sum())
    return RateCut(
        priced_demands if demands is None else demands[priced_demands],
        demand_price[priced_demands],
        right_hand_side,
        prices.cpu().numpy(),
    )
