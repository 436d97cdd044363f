"""Column generation over all paths of a network, with an interior-point master program.

The restricted master has the paths generated so far.  Interior points return central dual prices
instead of a vertex, and central prices generate good paths, so that few rounds are needed (Gondzio,
Gonzalez-Brevis and Munari, European J. Operational Research 224, 2013):

1. A few rounds of multiplicative weights give each demand its first paths: with loads averaged over
   the rounds, a link costs its cost and unit * expm1(4 (load / capacity - 0.9)), at least 0.
2. The master is solved to a tenth of the present gap, from the shares and prices of the previous
   round, over the links that may bind; the others join when a solution fills them.
3. Pricing: shortest paths by cost and dual price give a Lagrangian bound over all paths, and a new
   path to each demand whose columns are dearer.  Paths with negligible shares are dropped.

Minimising the cost of serving all demand is solved with shedding at a price above that of any path;
once the gap is small the last master must serve all.  Entry point: :class:`Master`.
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
    cheaper_paths,
    column_loads,
    path_sums,
    replace_columns,
    tree_loads,
)
from teal.solvers.interior.presolve import NO_TERMS, presolve
from teal.solvers.interior.search import solve_on_threads
from teal.solvers.interior.starts import COLD, Start
from teal.solvers.interior.stops import ends_at

# Multiplicative weights: rounds, and the price expm1(steepness (load - free load)) of a link's
# utilisation, with a largest exponent.
_WEIGHT_ROUNDS = 12
_STEEPNESS = 4.0
_FREE_LOAD = 0.9
_MAX_EXPONENT = 20.0
# Utilisation at which a link gets a row of the master, after the weights and after each solve.
_INITIAL_JOIN_LOAD = 0.7
_JOIN_LOAD = 0.95
# Gap to which a master is solved: part of the present gap, but no smaller than a part of the
# target.
_GAP_FACTOR = 0.1
_TARGET_FACTOR = 0.25
# Warm start of a master: initial mu and mix over the present gap, and their largest values.
_MU_PER_GAP = 5.0
_MIX_PER_GAP = 20.0
_MAX_MU = 0.03
_MAX_MIX = 0.15
# Columns with less than this share of their demand may be dropped.
_MIN_SHARE = 1e-2
# Smallest gap that counts for a warm start.
_MIN_START_GAP = 1e-9
# Gaps of costs are relative to at least this part of the cost of leaving all demand unserved.
_MIN_RELATIVE_COST = 1e-9
# Columns are dropped after a round that has reduced the gap to this part.
_FAST_DECREASE = 0.6
# Relative overload of a link that counts as rounding.
_ROUNDING = 1e-9
_MAX_ROUNDS = 100
_MAX_ITERATIONS = 200


@dataclasses.dataclass(frozen=True)
class Demands:
    """Program over all paths of a network, for one matrix.

    Attributes:
        topology: the network.
        pairs: (D, 2) source and target of each demand.
        rate: (D,) Gbit/s; 0 for a demand to ignore.
        unit_value: (D,) value of a Gbit/s over a path that costs nothing.
        cost: (E,) cost of a Gbit/s on each link.
        capacity: (E,) Gbit/s; 0 where a link has failed.
        is_whole: whether all demand is served, at the least cost.
        balances: whether all demand is served, at the least maximum link utilisation; unit_value
            and cost are then unused.
    """

    topology: Topology
    pairs: IntArray
    rate: FloatArray
    unit_value: FloatArray
    cost: FloatArray
    capacity: FloatArray
    is_whole: bool = False
    balances: bool = False

    @property
    def carries_all(self) -> bool:
        """Whether every demand needs a path, at any price."""
        return self.is_whole or self.balances


class Round(NamedTuple):
    """State after a round of column generation.

    Attributes:
        columns: paths of the master.
        share: (P,) share of its demand on each; loads fit the capacities at the end.
        price: (E,) dual prices of the best bound, value per Gbit/s.
        bound: least upper bound so far, over all paths, on the sum of value less cost over the
            flow, or on minus the largest link utilisation.
        gap: difference of bound and value, over the bound; over cost or utilisation where all
            demand is served.
        added: number of new paths in the next round.
        is_whole: whether all demand is served.
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
    """Column generation of one program.

    Args:
        demands: the program.
        columns: first paths; a demand may have none.
        weight_rounds: rounds of multiplicative weights.

    Attributes:
        iterations: interior-point iterations so far.
    """

    def __init__(
        self, demands: Demands, columns: PathLinks, weight_rounds: int = _WEIGHT_ROUNDS
    ) -> None:
        self._demands = demands
        self._columns = columns
        self._sources, self._source_row = np.unique(demands.pairs[:, 0], return_inverse=True)
        self._share = np.zeros(len(columns.slot))
        self._price = np.zeros(len(demands.cost))
        self._best_price = self._price
        self._is_row = np.full(len(demands.cost), weight_rounds == 0)
        self._weight_rounds = weight_rounds
        self._bound = math.inf
        self.iterations = 0
        self._last_round: Round | None = None
        self._may_drop_columns = True
        # Mean load and price unit of the multiplicative weights.
        self._mean_load = np.zeros(len(demands.cost))
        self._unit = 0.0
        self._last_trees: tuple[FloatArray, _Trees] | None = None

    def improving(
        self,
        target: float,
        deadline: Deadline,
        max_rounds: int = _MAX_ROUNDS,
        report: Callable[[Round], None] | None = None,
    ) -> Steps[Round]:
        """Run rounds until the gap is at most ``target``, or time or rounds are used up."""
        if self._last_round is None:
            for index in range(self._weight_rounds):
                self._multiplicative_weights_round(index)
                yield
                if deadline.is_over:
                    break
        gap = 1.0
        previous_gap = math.inf
        latest = None
        if self._last_round is not None:
            gap = self._last_round.gap
        for index in range(max_rounds):
            master_gap = max(_TARGET_FACTOR * target, _GAP_FACTOR * gap)
            value = self._solve(master_gap, False, deadline)
            yield
            is_over = deadline.is_over or index == max_rounds - 1
            latest = self._last_round = self._certified_round(value)
            gap = latest.gap
            is_feasible = self._add_filled_rows(latest.share)
            # A gap that grows shows that dropped columns are missing.
            self._may_drop_columns &= gap <= previous_gap
            is_fast = index > 0 and gap < _FAST_DECREASE * previous_gap
            previous_gap = gap
            ends = is_over or (gap <= target and is_feasible)
            if not ends:
                latest = latest._replace(
                    added=self._exchange_columns(is_fast and self._may_drop_columns)
                )
            if report is not None:
                report(latest)
            is_finest = master_gap <= _TARGET_FACTOR * target
            if ends or (is_finest and is_feasible and not latest.added):
                break
        assert latest is not None
        return latest

    def carrying_all(self, target: float, deadline: Deadline) -> Round:
        """Return a round that serves all demand over the present paths, if these allow it."""
        for _ in range(_MAX_ROUNDS):
            # The shares of the last round stay as they are.
            self._share = self._share.copy()
            value = self._solve(_TARGET_FACTOR * target, True, deadline)
            if self._add_filled_rows(self._share) or deadline.is_over:
                break
        final = self._certified_round(value)
        carried = np.add.reduceat(np.append(self._share, 0.0), self._columns.path_ptr[:-1])
        is_whole = bool((carried[self._demands.rate > 0] > 1 - _ROUNDING).all())
        return final._replace(is_whole=is_whole and self._is_within(self._share))

    def raise_worth(self, factor: float) -> None:
        """Multiply the price of unserved demand by a factor.

        The bound is raised by the cost of all demand, so that it stays valid.
        """
        unit_value = self._demands.unit_value * factor
        self._bound += float(self._demands.rate @ (unit_value - self._demands.unit_value))
        self._demands = dataclasses.replace(self._demands, unit_value=unit_value)

    def _trees(self, weight: FloatArray) -> _Trees:
        """Return the shortest-path trees from all sources over links that work."""
        demands = self._demands
        usable_weight = np.where(demands.capacity > 0, weight, np.inf)
        return _Trees(
            *shortest_trees(
                demands.topology.num_nodes,
                demands.topology.link_source,
                demands.topology.link_target,
                usable_weight,
                self._sources,
                demands.topology.no_transit,
            )
        )

    def _distance(self, trees: _Trees) -> FloatArray:
        """Return the length (D,) of the shortest path of each demand."""
        return np.asarray(trees.distance[self._source_row, self._demands.pairs[:, 1]])

    def _bound_of(self, distance: FloatArray, price: FloatArray) -> float:
        """Return the Lagrangian bound of prices over all paths (:class:`Round`)."""
        demands = self._demands
        if demands.balances:
            capacity_price = float(demands.capacity @ price)
            paid = demands.rate @ np.where(np.isfinite(distance), distance, 0.0)
            return -float(paid) / capacity_price if capacity_price > 0 else 0.0
        profit = np.where(np.isfinite(distance), demands.unit_value - distance, 0.0)
        if not demands.is_whole:
            profit = np.maximum(profit, 0.0)
        return float(demands.capacity @ price + demands.rate @ profit)

    def _update_bound(self, distance: FloatArray) -> None:
        """Update the best bound and its prices from the present prices."""
        bound = self._bound_of(distance, self._price)
        if bound <= self._bound:
            self._bound = bound
            self._best_price = self._price.copy()

    def _multiplicative_weights_round(self, index: int) -> None:
        """Run one round of multiplicative weights."""
        demands = self._demands
        weight = demands.cost + self._price
        trees = self._trees(weight)
        distance = self._distance(trees)
        self._update_bound(distance)
        self._add_columns(trees, weight, distance)
        rate = np.where(np.isfinite(distance), demands.rate, 0.0)
        load = tree_loads(
            demands.pairs,
            self._source_row,
            trees.into,
            demands.topology.link_source,
            rate,
            len(demands.cost),
        )
        if index == 0:
            unit_value = np.where(
                rate > 0, distance if demands.is_whole else demands.unit_value, 0.0
            )
            self._unit = float(rate @ unit_value) / max(float(load.sum()), 1e-300)
        self._mean_load += (load - self._mean_load) / (index + 1)
        utilisation = _utilisation(self._mean_load, demands.capacity)
        self._is_row = utilisation > _INITIAL_JOIN_LOAD
        exponent = np.minimum(_STEEPNESS * (utilisation - _FREE_LOAD), _MAX_EXPONENT)
        self._price = np.maximum(self._unit * np.expm1(exponent), 0.0)

    def _add_columns(self, trees: _Trees, weight: FloatArray, distance: FloatArray) -> int:
        """Add to each demand its shortest path, if it is cheaper than its columns.

        Returns:
            number of new columns.
        """
        demands = self._demands
        max_price = np.where(
            demands.rate > 0, np.inf if demands.carries_all else demands.unit_value, -np.inf
        )
        ptr, links = cheaper_paths(
            self._columns,
            demands.pairs,
            self._source_row,
            trees.distance,
            trees.into,
            demands.topology.link_source,
            np.where(demands.capacity > 0, weight, np.inf),
            np.where(np.isfinite(distance), max_price, -np.inf),
        )
        keep = np.ones(len(self._share), np.bool_)
        self._columns, self._share = replace_columns(self._columns, self._share, keep, ptr, links)
        return int((np.diff(ptr) > 0).sum())

    def _solve(self, target_gap: float, must_carry_all: bool, deadline: Deadline) -> float:
        """Solve the master; :attr:`_share` and :attr:`_price` receive the solution.

        Returns:
            value of the shares.
        """
        demands = self._demands
        columns = self._columns
        value = np.zeros(len(columns.slot))
        if not demands.balances:
            value = np.repeat(demands.unit_value, np.diff(columns.path_ptr)) - path_sums(
                columns, demands.cost
            )
        capacity = np.where(self._is_row | (demands.capacity <= 0), demands.capacity, np.inf)
        unit_value = float(demands.unit_value.max(initial=0.0)) if demands.is_whole else 0.0
        sheds = not demands.balances
        program = presolve(
            columns, NO_TERMS, demands.rate, capacity, value, sheds, unit_value, self._share
        )
        stop = np.zeros(1, np.bool_)
        with ends_at(deadline, stop):
            self.iterations += solve_on_threads(
                program,
                sheds,
                must_carry_all,
                target_gap,
                _MAX_ITERATIONS,
                self._share,
                self._price,
                self._start(),
                stop,
            )
        if demands.balances:
            return -float(self._link_utilisation(self._share).max(initial=0.0))
        rates = np.repeat(demands.rate, np.diff(columns.path_ptr))
        return float((rates * self._share) @ value)

    def _start(self) -> Start:
        """Return the warm start: the smaller the last gap, the nearer to the last solution."""
        if self._last_round is None:
            return COLD
        gap = max(self._last_round.gap, _MIN_START_GAP)
        return Start(True, min(_MAX_MU, _MU_PER_GAP * gap), min(_MAX_MIX, _MIX_PER_GAP * gap))

    def _certified_round(self, value: float) -> Round:
        """Return the state of a round: bound and gap of the present prices."""
        demands = self._demands
        weight = self._price if demands.balances else demands.cost + self._price
        trees = self._trees(weight)
        self._last_trees = weight, trees
        self._update_bound(self._distance(trees))
        reference = self._bound
        if demands.carries_all:
            reference = (
                float(demands.rate @ demands.unit_value) if demands.is_whole else 0.0
            ) - value
        if demands.is_whole:
            reference = max(
                reference, _MIN_RELATIVE_COST * float(demands.rate @ demands.unit_value)
            )
        gap = (self._bound - value) / reference if reference > 0 else 0.0
        return Round(
            self._columns,
            self._share,
            self._best_price,
            self._bound,
            gap,
            0,
            False,
        )

    def _add_filled_rows(self, share: FloatArray) -> bool:
        """Add rows for links that shares fill; return whether no link outside is overloaded."""
        utilisation = self._link_utilisation(share)
        overloaded = (utilisation > 1 + _ROUNDING) & ~self._is_row
        self._is_row |= utilisation > _JOIN_LOAD
        return not bool(overloaded.any())

    def _link_utilisation(self, share: FloatArray) -> FloatArray:
        load = column_loads(self._columns, self._demands.rate, share, len(self._demands.cost))
        return _utilisation(load, self._demands.capacity)

    def _is_within(self, share: FloatArray) -> bool:
        return bool((self._link_utilisation(share) <= 1 + _ROUNDING).all())

    def _exchange_columns(self, may_drop: bool) -> int:
        """Drop columns with negligible shares if allowed, and add cheaper ones.

        Returns:
            number of new columns.
        """
        assert self._last_trees is not None
        if may_drop:
            no_columns = np.zeros(len(self._demands.rate) + 1, np.int64), np.zeros(0, np.int32)
            keep = self._share > _MIN_SHARE
            self._columns, self._share = replace_columns(
                self._columns, self._share, keep, *no_columns
            )
        weight, trees = self._last_trees
        return self._add_columns(trees, weight, self._distance(trees))


def _utilisation(load: FloatArray, capacity: FloatArray) -> FloatArray:
    """Return load over capacity (E,); 0 for failed links, which no path uses."""
    return np.divide(load, capacity, out=np.zeros_like(load), where=capacity > 0)
