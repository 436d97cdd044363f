"""Column generation over all paths of a network, with an interior-point master.

The master is the program over the paths found so far.  Interior points end near the centre of the
best prices, not at a corner, and central prices find good paths, so that few rounds are needed
(Gondzio, Gonzalez-Brevis and Munari, European J. Operational Research 224, 2013):

1. A few rounds of multiplicative weights give each demand its first paths: with loads averaged over
   the rounds, a link costs its cost and unit * expm1(4 (load / capacity - 0.9)), at least 0.
2. The master is solved to a tenth of the gap so far, from the shares and prices of the round
   before, over the links that may bind; the others join when a solution fills them.
3. Shortest paths by cost and price give a bound over all paths, and a path to each demand that has
   none as cheap.  Paths that carry next to nothing leave.

A program that carries all demand at the least cost is solved as one that may leave demand, each
Gbit/s of it at a price above that of any path; once the gap is small the last master must carry
all.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from teal.network.path_links import PathLinks
from teal.network.shortest import shortest_trees
from teal.network.topology import Topology
from teal.runtime.arrays import FloatArray, IntArray
from teal.runtime.interruptible import Deadline, Steps
from teal.solvers.interior.columns import (
    changed,
    cheaper_paths,
    column_loads,
    path_sums,
    tree_loads,
)
from teal.solvers.interior.reduction import PLAIN, reduced
from teal.solvers.interior.search import solve_on_threads
from teal.solvers.interior.starts import COLD, Start
from teal.solvers.interior.stops import ends_at

_WEIGHT_ROUNDS = 12  # of multiplicative weights
_STEEPNESS, _FREE_LOAD, _MOST_EXPONENT = 4.0, 0.9, 20.0  # of the price of a link in these rounds
_MAY_BIND, _FILLED = 0.7, 0.95  # loads over capacities at which a link joins the master
_PART_OF_GAP = 0.1  # of the gap so far, to which a master is solved
_PART_OF_TARGET = 0.25  # of the target, below which no master is solved
_TARGET, _MIX = 5.0, 20.0  # x the gap so far, first mu and mix of a master near the one before
_MOST_TARGET, _MOST_MIX = 0.03, 0.15  # of these
_LEAST_SHARE = 1e-2  # of its demand; a path that carries less leaves the master
_LEAST_GAP = 1e-9  # from which a master starts near the one before, however small the gap was
_LEAST_COST = 1e-9  # of what leaving all demand costs; a gap is relative to at least that
_FAST = 0.6  # of the gap before, to which a round must bring it for paths to leave after it
_ROUNDING = 1e-9  # of a capacity, by which sums of flows may exceed it
_MAX_ROUNDS, _MAX_ITERATIONS = 100, 200


@dataclasses.dataclass(frozen=True)
class Demands:
    """A program over all paths of a network, of one matrix.

    Attributes:
        topology: the network.
        pairs: (D, 2) source and target of each demand.
        rate: (D,) Gbit/s; 0 for a demand that is left out.
        worth: (D,) value of a Gbit/s over a path that costs nothing.
        cost: (E,) of a Gbit/s on each link.
        capacity: (E,) Gbit/s; 0 where a link has failed.
        is_whole: whether all demand is carried, at the least cost.
        balances: whether all demand is carried, at the least utilisation of the fullest link;
            worth and cost are then unused.
    """

    topology: Topology
    pairs: IntArray
    rate: FloatArray
    worth: FloatArray
    cost: FloatArray
    capacity: FloatArray
    is_whole: bool = False
    balances: bool = False

    @property
    def carries_all(self) -> bool:
        """Whether every demand needs a path, however dear."""
        return self.is_whole or self.balances


class Round(NamedTuple):
    """The state after a round.

    Attributes:
        columns: paths of the master.
        share: (P,) of its demand on each; loads are within capacities at the end.
        price: (E,) value per Gbit/s, that prove the bound.
        bound: least upper bound so far, of all paths, on the sum of worth less cost over the flow,
            or on the utilisation of the fullest link with its sign reversed.
        gap: difference of bound and value, over the bound; over cost or utilisation where all
            demand is carried.
        added: paths that the next round has more.
        is_whole: whether all demand is carried.
    """

    columns: PathLinks
    share: FloatArray
    price: FloatArray
    bound: float
    gap: float
    added: int
    is_whole: bool


class _Trees(NamedTuple):
    distance: FloatArray
    into: IntArray


class Master:
    """The rounds of one program.

    Args:
        demands: the program.
        columns: paths to begin with, of which each demand may have none.
        weight_rounds: rounds of multiplicative weights.

    Attributes:
        iterations: iterations of interior points so far.
    """

    def __init__(
        self, demands: Demands, columns: PathLinks, weight_rounds: int = _WEIGHT_ROUNDS
    ) -> None:
        self._of, self._columns = demands, columns
        self._sources, self._source_row = np.unique(demands.pairs[:, 0], return_inverse=True)
        self._share = np.zeros(len(columns.slot))
        self._price = np.zeros(len(demands.cost))
        self._best_price = self._price
        self._joined = np.full(len(demands.cost), weight_rounds == 0)
        self._weight_rounds = weight_rounds
        self._bound, self.iterations = math.inf, 0
        self._last: Round | None = None
        self._may_leave = True
        self._load, self._unit = np.zeros(len(demands.cost)), 0.0  # of the rounds of weights
        self._trees_at: tuple[FloatArray, _Trees] | None = None

    def improving(
        self,
        target: float,
        deadline: Deadline,
        max_rounds: int = _MAX_ROUNDS,
        report: Callable[[Round], None] | None = None,
    ) -> Steps[Round]:
        """Rounds until the gap is at most ``target``, or time or rounds are used up."""
        if self._last is None:
            for number in range(self._weight_rounds):
                self._weigh(number)
                yield
                if deadline.is_over:
                    break
        gap, before, last = 1.0, math.inf, None
        if self._last is not None:
            gap = self._last.gap
        for number in range(max_rounds):
            aim = max(_PART_OF_TARGET * target, _PART_OF_GAP * gap)
            value = self._solve(aim, False, deadline)
            yield
            is_over = deadline.is_over or number == max_rounds - 1
            last = self._last = self._round(value)
            gap = last.gap
            is_feasible = self._joined_none(last.share)
            self._may_leave &= gap <= before  # else those that have left are missing
            is_fast = number > 0 and gap < _FAST * before
            before = gap
            ends = is_over or (gap <= target and is_feasible)
            if not ends:
                last = last._replace(added=self._change(is_fast and self._may_leave))
            if report is not None:
                report(last)
            is_finest = aim <= _PART_OF_TARGET * target
            if ends or (is_finest and is_feasible and not last.added):
                break
        assert last is not None
        return last

    def carrying_all(self, target: float, deadline: Deadline) -> Round:
        """A round that carries all demand over the paths of the last one, if these allow that."""
        for _ in range(_MAX_ROUNDS):
            self._share = self._share.copy()  # the last round's stays as it is
            value = self._solve(_PART_OF_TARGET * target, True, deadline)
            if self._joined_none(self._share) or deadline.is_over:
                break
        found = self._round(value)
        carried = np.add.reduceat(np.append(self._share, 0.0), self._columns.path_ptr[:-1])
        is_whole = bool((carried[self._of.rate > 0] > 1 - _ROUNDING).all())
        return found._replace(is_whole=is_whole and self._is_within(self._share))

    def raise_worth(self, factor: float) -> None:
        """Let a Gbit/s that is not carried cost more; bounds count on all demand."""
        worth = self._of.worth * factor
        self._bound += float(self._of.rate @ (worth - self._of.worth))
        self._of = dataclasses.replace(self._of, worth=worth)

    def _trees(self, weight: FloatArray) -> _Trees:
        of = self._of
        closed = np.where(of.capacity > 0, weight, np.inf)
        return _Trees(
            *shortest_trees(
                of.topology.num_nodes,
                of.topology.link_source,
                of.topology.link_target,
                closed,
                self._sources,
                of.topology.no_transit,
            )
        )

    def _distance(self, trees: _Trees) -> FloatArray:
        """(D,) of the cheapest path of each demand."""
        return np.asarray(trees.distance[self._source_row, self._of.pairs[:, 1]])

    def _bound_of(self, distance: FloatArray, price: FloatArray) -> float:
        """The bound of prices over all paths (:class:`Round`)."""
        of = self._of
        if of.balances:
            room = float(of.capacity @ price)
            paid = of.rate @ np.where(np.isfinite(distance), distance, 0.0)
            return -float(paid) / room if room > 0 else 0.0
        profit = np.where(np.isfinite(distance), of.worth - distance, 0.0)
        if not of.is_whole:
            profit = np.maximum(profit, 0.0)
        return float(of.capacity @ price + of.rate @ profit)

    def _keep_bound(self, distance: FloatArray) -> None:
        """Keep the bound of the prices of the moment, and the prices, if none was lower."""
        bound = self._bound_of(distance, self._price)
        if bound <= self._bound:
            self._bound, self._best_price = bound, self._price.copy()

    def _weigh(self, number: int) -> None:
        """A round of multiplicative weights."""
        of = self._of
        weight = of.cost + self._price
        trees = self._trees(weight)
        distance = self._distance(trees)
        self._keep_bound(distance)
        self._append(trees, weight, distance)
        rate = np.where(np.isfinite(distance), of.rate, 0.0)
        load = tree_loads(
            of.pairs, self._source_row, trees.into, of.topology.link_source, rate, len(of.cost)
        )
        if number == 0:
            worth = np.where(rate > 0, distance if of.is_whole else of.worth, 0.0)
            self._unit = float(rate @ worth) / max(float(load.sum()), 1e-300)
        self._load += (load - self._load) / (number + 1)
        usage = _over(self._load, of.capacity)
        self._joined = usage > _MAY_BIND
        exponent = np.minimum(_STEEPNESS * (usage - _FREE_LOAD), _MOST_EXPONENT)
        self._price = np.maximum(self._unit * np.expm1(exponent), 0.0)

    def _append(self, trees: _Trees, weight: FloatArray, distance: FloatArray) -> int:
        """Give each demand its cheapest path, where that is cheaper than those that it has."""
        of = self._of
        limit = np.where(of.rate > 0, np.inf if of.carries_all else of.worth, -np.inf)
        ptr, links = cheaper_paths(
            self._columns,
            of.pairs,
            self._source_row,
            trees.distance,
            trees.into,
            of.topology.link_source,
            np.where(of.capacity > 0, weight, np.inf),
            np.where(np.isfinite(distance), limit, -np.inf),
        )
        keep = np.ones(len(self._share), np.bool_)
        self._columns, self._share = changed(self._columns, self._share, keep, ptr, links)
        return int((np.diff(ptr) > 0).sum())

    def _solve(self, aim: float, must_carry_all: bool, deadline: Deadline) -> float:
        """Solve the master; the value of its shares, of which :attr:`_share` and :attr:`_price`
        receive what was found.
        """
        of, columns = self._of, self._columns
        value = np.zeros(len(columns.slot))
        if not of.balances:
            value = np.repeat(of.worth, np.diff(columns.path_ptr)) - path_sums(columns, of.cost)
        capacity = np.where(self._joined | (of.capacity <= 0), of.capacity, np.inf)
        worth = float(of.worth.max(initial=0.0)) if of.is_whole else 0.0
        sheds = not of.balances
        program = reduced(columns, PLAIN, of.rate, capacity, value, sheds, worth, self._share)
        stop = np.zeros(1, np.bool_)
        with ends_at(deadline, stop):
            self.iterations += solve_on_threads(
                program,
                sheds,
                must_carry_all,
                aim,
                _MAX_ITERATIONS,
                self._share,
                self._price,
                self._start(),
                stop,
            )
        if of.balances:
            return -float(self._usage(self._share).max(initial=0.0))
        rates = np.repeat(of.rate, np.diff(columns.path_ptr))
        return float((rates * self._share) @ value)

    def _start(self) -> Start:
        """The nearer to the round before, the smaller its gap was."""
        if self._last is None:
            return COLD
        gap = max(self._last.gap, _LEAST_GAP)
        return Start(True, min(_MOST_TARGET, _TARGET * gap), min(_MOST_MIX, _MIX * gap))

    def _round(self, value: float) -> Round:
        """Bound and gap of the prices."""
        of = self._of
        weight = self._price if of.balances else of.cost + self._price
        trees = self._trees(weight)
        self._trees_at = weight, trees
        self._keep_bound(self._distance(trees))
        most = self._bound
        if of.carries_all:
            most = (float(of.rate @ of.worth) if of.is_whole else 0.0) - value
        if of.is_whole:
            most = max(most, _LEAST_COST * float(of.rate @ of.worth))
        gap = (self._bound - value) / most if most > 0 else 0.0
        return Round(
            self._columns,
            self._share,
            self._best_price,
            self._bound,
            gap,
            0,
            False,
        )

    def _joined_none(self, share: FloatArray) -> bool:
        """Let links join that shares fill; whether none is overloaded."""
        usage = self._usage(share)
        overloaded = (usage > 1 + _ROUNDING) & ~self._joined
        self._joined |= usage > _FILLED
        return not bool(overloaded.any())

    def _usage(self, share: FloatArray) -> FloatArray:
        load = column_loads(self._columns, self._of.rate, share, len(self._of.cost))
        return _over(load, self._of.capacity)

    def _is_within(self, share: FloatArray) -> bool:
        return bool((self._usage(share) <= 1 + _ROUNDING).all())

    def _change(self, may_leave: bool) -> int:
        """Columns that carry next to nothing may leave, and cheaper ones come; how many come."""
        assert self._trees_at is not None
        if may_leave:
            nothing = np.zeros(len(self._of.rate) + 1, np.int64), np.zeros(0, np.int32)
            keep = self._share > _LEAST_SHARE
            self._columns, self._share = changed(self._columns, self._share, keep, *nothing)
        weight, trees = self._trees_at
        return self._append(trees, weight, self._distance(trees))


def _over(load: FloatArray, capacity: FloatArray) -> FloatArray:
    """(E,) load over capacity; 0 for links that have failed, which no path uses."""
    return np.divide(load, capacity, out=np.zeros_like(load), where=capacity > 0)
