r"""Max-min fair rates under linear limits on the rates: prices of links that no feasible rates can
exceed.

For link prices p[e] >= 0, with price(d) the least sum of p along a live path of demand d, all
feasible rates f have

    sum_d price(d) f[d] <= sum_e c[e] p[e],

a *cut*.  A price on one link alone is the cut of the demands that have no path around it.  Under
some cuts, the max-min fair rates are those of water-filling (Bertsekas & Gallager, Data Networks,
6.5.2): all levels f[d] / w[d] rise together until a cut is tight, at the t with

    sum over open d of price(d) min(t w[d], demand[d]) + sum over held d of price(d) f[d]
        = sum_e c[e] p[e];

its open demands are then held there.  Held demands leave room to other cuts, so that a cut's t
never falls: those that are not the least are computed again only when their turn comes.
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

_ROUNDING = 1e-12  # relative, within which a cut counts as tight, and two levels as equal


@dataclasses.dataclass(frozen=True, eq=False)
class RateCut:
    """A limit on a weighted sum of rates.

    Attributes:
        demands: (n,) numbers of the demands with a price.
        price: (n,) of their cheapest path, above 0.
        value: sum_e c[e] p[e].
        prices: (E,) p.
    """

    demands: Int64Array
    price: FloatArray
    value: float
    prices: FloatArray

    def excess(self, rate: FloatArray) -> float:
        """By how much the sum of rates (D,) exceeds the limit, in units of value."""
        return float((self.price * rate[self.demands]).sum() - self.value)


@dataclasses.dataclass(frozen=True, eq=False)
class HeldLevel:
    """A level of rates.

    Attributes:
        level: t, rate per weight.
        held: (n,) numbers of the demands that stay there, below their volume.
        prices: (E,) of the cut that holds them.
    """

    level: float
    held: Int64Array
    prices: FloatArray


class CutFilling:
    """Water-filling under cuts, to which others can be added.

    Args:
        problem: B = 1, of flows.
        weight: (D,) w, above 0.
    """

    def __init__(self, problem: Problem, weight: FloatArray) -> None:
        self._weight, self._demand = weight, problem.demand[0].cpu().numpy()
        self._routable = problem.routable[0].cpu().numpy()
        self._cuts: list[RateCut] = []
        self._first: list[
            float
        ] = []  # of each cut the level at which it is tight if none holds a demand
        for cut in single_link_cuts(problem):
            self.add(cut)

    @property
    def cuts(self) -> Sequence[RateCut]:
        """All cuts."""
        return self._cuts

    def add(self, cut: RateCut) -> None:
        """Take another cut into account."""
        self._cuts.append(cut)
        nothing = np.zeros_like(self._demand)
        self._first.append(self._tight_level(cut, nothing, self._routable, 0.0))

    def _tight_level(
        self, cut: RateCut, rate: FloatArray, is_open: BoolArray, level: float
    ) -> float:
        return tight_level(
            cut.demands, cut.price, cut.value, rate, is_open, self._weight, self._demand, level
        )

    def rates(self) -> tuple[FloatArray, list[HeldLevel]]:
        """(D,) Gbit/s, the max-min fair rates under the cuts, and the levels at which demands are
        held, ascending.
        """
        rate, is_open, levels = (
            np.zeros_like(self._demand),
            self._routable.copy(),
            list[HeldLevel](),
        )
        queue = [
            (level, number) for number, level in enumerate(self._first) if math.isfinite(level)
        ]
        heapq.heapify(queue)
        level = 0.0
        while queue:
            _, number = heapq.heappop(queue)
            cut = self._cuts[number]
            tight = self._tight_level(cut, rate, is_open, level)
            if not math.isfinite(tight):
                continue
            if queue and tight > queue[0][0] * (1 + _ROUNDING):
                heapq.heappush(queue, (tight, number))
                continue
            level = tight
            open_ones = is_open[cut.demands]
            held = cut.demands[
                open_ones & (cut.price > HELD_PRICE_SHARE * cut.price[open_ones].max())
            ]
            rate[held] = np.minimum(self._demand[held], level * self._weight[held])
            is_open[held] = False
            below = held[self._demand[held] > level * self._weight[held]]
            if len(below):
                levels.append(HeldLevel(level, below, cut.prices))
        rate[is_open] = self._demand[is_open]
        return rate, levels


@functools.cache
def rehearse() -> None:
    """Call the kernels once, so that they are compiled before a clock starts."""
    one, number = np.ones(1), np.zeros(1, np.int64)
    tight_level(number, one, 0.5, np.zeros(1), np.ones(1, np.bool_), one, one, 0.0)
    node = np.zeros((1, 1), np.int32)
    arrays, live = (
        (node, np.full(1, -1, np.int32), np.zeros(1, np.int32)),
        np.ones((1, 1), np.bool_),
    )
    count, _ = _count_unavoidable(*arrays, live, one, 1)
    _list_unavoidable(*arrays, live, count, np.zeros(1, np.int64), np.empty(1, np.int64))


@kernel
def tight_level(  # type: ignore[no-untyped-def]
    demands, price, value, rate, is_open, weight, demand, level
) -> float:
    """The t of the module at which a cut is tight, at least ``level``; infinite if its open demands
    fit whole.

    The sum is concave in t, so that Newton's steps from below end at its last piece.

    Args:
        demands, price, value: as in :class:`RateCut`.
        rate: (D,) Gbit/s of the held demands.
        is_open: (D,) true for the others.
        weight: (D,) w.
        demand: (D,) Gbit/s.
        level: to start from.
    """
    room, most = value, 0.0
    for i in range(len(demands)):
        d = demands[i]
        if is_open[d]:
            most += price[i] * demand[d]
        else:
            room -= price[i] * rate[d]
    if not (
        most > room * (1 + _ROUNDING) and most > 0
    ):  # in this form numbers that are NaN end it too
        return np.inf
    t = level
    while True:
        used, slope = 0.0, 0.0
        for i in range(len(demands)):
            d = demands[i]
            if is_open[d]:
                if demand[d] <= t * weight[d]:
                    used += price[i] * demand[d]
                else:
                    used += price[i] * t * weight[d]
                    slope += price[i] * weight[d]
        if not (used < room * (1 - _ROUNDING) and slope > 0):
            return t
        t += (room - used) / slope


def single_link_cuts(problem: Problem) -> list[RateCut]:
    """The cuts of single links that the demands without a path around them can fill.

    Args:
        problem: B = 1.  Over other columns than whole paths, such as segment lists, there are none.
    """
    if not problem.ops.counts_once:
        return []
    paths, demand = problem.paths, problem.demand[0].cpu().numpy()
    capacity, live = problem.capacity[0].cpu().numpy(), problem.path_mask[0].cpu().numpy()
    count, volume = _count_unavoidable(*_arrays(paths), live, demand, len(capacity))
    count[(volume <= capacity) | (capacity <= 0)] = 0
    ptr = np.concatenate([[0], count.cumsum()])
    members = np.empty(int(ptr[-1]), np.int64)
    _list_unavoidable(*_arrays(paths), live, count, ptr[:-1].copy(), members)
    cuts = []
    for link in np.flatnonzero(count):
        demands, prices = members[ptr[link] : ptr[link + 1]], np.zeros_like(capacity)
        prices[link] = 1.0
        cuts.append(RateCut(demands, np.ones(len(demands)), float(capacity[link]), prices))
    return cuts


def _arrays(paths: PathSet) -> tuple[IntArray, IntArray, IntArray]:
    """(D, K) last trie node of each path, and of each trie node the one before it and its link."""
    return paths.leaf, paths.trie.parent, paths.trie.link


@inner_kernel
def _unavoidable(leaf, live, parent, link, d, times, stamp, out):  # type: ignore[no-untyped-def]
    """Number of links that every live path of demand ``d`` crosses; ``out`` receives them.

    Args:
        leaf, live: (D, K).
        parent, link: arrays of trie nodes.
        d: number of the demand.
        times: (E,) memory: live paths of the demand that cross the link.
        stamp: (E,) memory: the demand for which ``times`` was counted.
        out: (E,) receives the links.
    """
    paths = 0
    for k in range(leaf.shape[1]):
        if live[d, k]:
            node = leaf[d, k]
            while node >= 0:
                e = link[node]
                if paths == 0:
                    stamp[e], times[e] = d, 1
                elif stamp[e] == d:
                    times[e] += 1
                node = parent[node]
            paths += 1
    count = 0
    if paths:
        for k in range(leaf.shape[1]):
            if live[d, k]:
                node = leaf[d, k]
                while node >= 0:
                    if stamp[link[node]] == d and times[link[node]] == paths:
                        out[count] = link[node]
                        count += 1
                    node = parent[node]
                break
    return count


@kernel
def _count_unavoidable(leaf, parent, link, live, demand, links):  # type: ignore[no-untyped-def]
    """The number of demands of each link without a path around it (E,), and their Gbit/s (E,)."""
    count, volume = np.zeros(links, np.int64), np.zeros(links)
    times, stamp, own = np.zeros(links, np.int64), np.full(links, -1), np.empty(links, np.int64)
    for d in range(len(demand)):
        for i in range(_unavoidable(leaf, live, parent, link, d, times, stamp, own)):
            count[own[i]] += 1
            volume[own[i]] += demand[d]
    return count, volume


@kernel
def _list_unavoidable(leaf, parent, link, live, count, at, members):  # type: ignore[no-untyped-def]
    """Write the demands of :func:`_count_unavoidable`, link by link, for the links whose ``count``
    is not 0.

    Args:
        leaf, parent, link, live: as in :func:`_unavoidable`.
        count: (E,) of demands.
        at: (E,) first place of each link in ``members``; overwritten.
        members: receives the numbers of the demands.
    """
    links = len(count)
    times, stamp, own = np.zeros(links, np.int64), np.full(links, -1), np.empty(links, np.int64)
    for d in range(len(leaf)):
        for i in range(_unavoidable(leaf, live, parent, link, d, times, stamp, own)):
            e = own[i]
            if count[e] > 0:
                members[at[e]] = d
                at[e] += 1


def cut_of(problem: Problem, prices: torch.Tensor, demands: Int64Array | None = None) -> RateCut:
    """The cut of link prices (E,).

    Args:
        problem: B = 1; of all demands, or of some.
        prices: at least 0, in any unit: those of the cut are at most 1, so that sums stay finite.
        demands: numbers of the demands of ``problem``; None for all.
    """
    largest = prices.max()
    prices = prices / largest if bool(largest > 0) else prices
    price = problem.cheapest_path_cost(problem.ops.path_sum(prices[None]))[0].cpu().numpy()
    has_price = np.flatnonzero(price > 0)
    value = float((problem.capacity[0] * prices).sum())
    return RateCut(
        has_price if demands is None else demands[has_price],
        price[has_price],
        value,
        prices.cpu().numpy(),
    )
