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
from teal.runtime.arrays import FloatArray, Int64Array, IntArray
from teal.runtime.interruptible import Deadline, Steps
from teal.solvers.interior.columns import (
    cheaper_paths,
    column_loads,
    path_maxima,
    path_sums,
    replace_columns,
    tree_loads,
)
from teal.solvers.interior.presolve import NO_TERMS, presolve
from teal.solvers.interior.search import solve_on_threads
from teal.solvers.interior.starts import COLD, Start
from teal.solvers.interior.stops import ends_at

# Multiplicative weights: number of rounds, and the price expm1(steepness (utilisation - free load))
# of a link, with a largest exponent.
_WEIGHT_ROUNDS = 12
_STEEPNESS = 4.0
_FREE_UTILISATION = 0.9
_MAX_EXPONENT = 20.0
# Utilisation at which a link gets a row of the master, after the weights and after each solve.
_INITIAL_ROW_UTILISATION = 0.7
_ROW_UTILISATION = 0.95
# Gap to which a master is solved: part of the present gap, but no smaller than a part of the
# target.
_MASTER_GAP_FACTOR = 0.1
_MASTER_TARGET_FACTOR = 0.25
# Warm start of a master: initial mu, and weight of the central shares (mix), over the present gap;
# their largest values.
_MU_PER_GAP = 5.0
_MIX_PER_GAP = 20.0
_MAX_MU = 0.03
_MAX_MIX = 0.15
# Columns with less than this share of their demand may be dropped.
_MIN_SHARE = 1e-2
# Columns of a warm start with more than this share of their demand are kept, and the largest one.
_LARGE_SHARE = 0.1
# Smallest gap that counts for a warm start.
_MIN_START_GAP = 1e-9
# The gap of a cost is relative to the cost, but at least to this part of the cost of shedding all
# demand.
_MIN_RELATIVE_COST = 1e-9
# Columns are dropped only after a round that has reduced the gap to at most this part.
_DROPPING_GAP_RATIO = 0.6
# Relative overload of a link that counts as rounding.
_ROUNDING = 1e-9
_MAX_ROUNDS = 100
_MAX_ITERATIONS = 200


@dataclasses.dataclass(frozen=True)
class Demands:
    """Demands, values, costs and capacities of one matrix, for a program over all paths.

    Attributes:
        topology: the network.
        pairs: (D, 2) source and target of each demand.
        rate: (D,) Gbit/s; 0 for a demand to ignore.
        unit_value: (D,) value of a Gbit/s over a path that costs nothing; where all demand must be
            served, the cost of an unserved Gbit/s.
        cost: (E,) cost of a Gbit/s on each link.
        capacity: (E,) Gbit/s; 0 where a link has failed.
        serves_all: whether all demand must be served, at the least cost.
        minimises_utilisation: whether all demand must be served, at the smallest maximum link
            utilisation; unit_value and cost are then unused.
    """

    topology: Topology
    pairs: IntArray
    rate: FloatArray
    unit_value: FloatArray
    cost: FloatArray
    capacity: FloatArray
    serves_all: bool = False
    minimises_utilisation: bool = False

    @property
    def needs_paths(self) -> bool:
        """Whether every demand needs a path at any price, because all must be served."""
        return self.serves_all or self.minimises_utilisation


class Round(NamedTuple):
    """Solution and certified gap after a round of column generation.

    Attributes:
        columns: P paths of the master.
        share: (P,) share of its demand on each path; the loads of the last round fit the
            capacities.
        price: (E,) dual prices of the best bound, value per Gbit/s.
        bound: smallest upper bound so far, over all paths: on the sum of value less cost over the
            flow, or on minus the largest link utilisation.
        gap: (bound - value) / bound; where all demand is served, over the cost or the utilisation.
        num_new_columns: number of paths that the next round has in addition.
        serves_all: whether all demand is served within the capacities; false if not examined.
    """

    columns: PathLinks
    share: FloatArray
    price: FloatArray
    bound: float
    gap: float
    num_new_columns: int
    serves_all: bool


class MasterStart(NamedTuple):
    """Solution of a similar program over all paths, from which the rounds start.

    Attributes:
        share: (P,) share of its demand on each of the first paths.
        price: (E,) dual price of each link, value per Gbit/s.
    """

    share: FloatArray
    price: FloatArray


class _Trees(NamedTuple):
    """Shortest-path trees from each source of a demand, in the order of the source nodes.

    Attributes:
        distance: (sources, N) length of the shortest path to each node, infinite for none.
        pred_link: (sources, N) last link of that path, -1 for none.
    """

    distance: FloatArray
    pred_link: IntArray


class Master:
    """Column generation of one program over all paths, with an interior-point master.

    Args:
        demands: the matrix, with values, costs and capacities.
        columns: first paths; a demand may have none.
        weight_rounds: rounds of multiplicative weights before the first master.
        start: warm start, over the first paths, in place of these rounds; None for a cold start.

    Attributes:
        iterations: interior-point iterations so far.
    """

    def __init__(
        self,
        demands: Demands,
        columns: PathLinks,
        weight_rounds: int = _WEIGHT_ROUNDS,
        start: MasterStart | None = None,
    ) -> None:
        self._demands = demands
        self._columns = columns
        # Source nodes of the demands, and (D,) the index of each demand's source among them.
        self._sources, self._source_row = np.unique(demands.pairs[:, 0], return_inverse=True)
        # (P,) share of its demand on each column, and (E,) dual price of each link.
        self._share = np.zeros(len(columns.slot))
        self._price = np.zeros(len(demands.cost))
        self._best_price = self._price
        # (E,) whether each link has a capacity row in the master.
        self._has_row = np.full(len(demands.cost), weight_rounds == 0)
        self._num_weight_rounds = weight_rounds
        self._start = start
        self._bound = math.inf
        self.iterations = 0
        self._last_round: Round | None = None
        self._may_drop_columns = True
        # Multiplicative weights: (E,) mean load so far, Gbit/s, and factor of the prices.
        self._mean_load = np.zeros(len(demands.cost))
        self._price_unit = 0.0
        # (E,) link weights of the last pricing, and their shortest-path trees.
        self._priced_trees: tuple[FloatArray, _Trees] | None = None

    def run_rounds(
        self,
        target: float,
        deadline: Deadline,
        max_rounds: int = _MAX_ROUNDS,
        report: Callable[[Round], None] | None = None,
    ) -> Steps[Round]:
        """Run rounds of column generation until the gap is at most ``target``.

        The first call begins with the warm start, or with rounds of multiplicative weights.  Each
        round solves the master, prices new paths and exchanges columns; the generator pauses after
        each solution of a master.

        Args:
            target: target gap.
            deadline: time after which no round begins.
            max_rounds: largest number of rounds.
            report: called after each round.
        """
        if self._last_round is None and self._start is not None:
            first_round = self._certified_start(self._start)
            yield
            # The start may have the target gap already.  A utilisation counts only if all demand is
            # served, since unserved demand would lower it.
            is_valid_start = not self._demands.minimises_utilisation or self._all_served()
            if first_round.gap <= target and is_valid_start:
                if report is not None:
                    report(first_round)
                return first_round
            # Else the first master is over the columns with large shares, and cheaper paths.
            self._keep_large_shares()
            self._drop_and_add_columns(False)
        elif self._last_round is None:
            for index in range(self._num_weight_rounds):
                self._multiplicative_weights_round(index)
                yield
                if deadline.is_over:
                    break
        # Gap before the first round: that of an earlier call, or 1.
        gap = 1.0
        previous_gap = math.inf
        last_round = None
        if self._last_round is not None:
            gap = self._last_round.gap
        for index in range(max_rounds):
            # Solve the master to a part of the present gap; not all demand need be served.
            master_gap = max(_MASTER_TARGET_FACTOR * target, _MASTER_GAP_FACTOR * gap)
            value = self._solve_master(master_gap, False, deadline)
            yield
            is_out_of_budget = deadline.is_over or index == max_rounds - 1
            last_round = self._last_round = self._certified_round(value)
            gap = last_round.gap
            # Nearly full links get capacity rows in the next master; an overloaded link without a
            # row makes this solution infeasible.
            is_feasible = self._add_capacity_rows(last_round.share)
            # A larger gap than before means that dropped columns are missing: drop no more.
            self._may_drop_columns &= gap <= previous_gap
            has_fallen_fast = index > 0 and gap < _DROPPING_GAP_RATIO * previous_gap
            previous_gap = gap
            is_last = is_out_of_budget or (gap <= target and is_feasible)
            if not is_last:
                last_round = last_round._replace(
                    num_new_columns=self._drop_and_add_columns(
                        has_fallen_fast and self._may_drop_columns
                    )
                )
            if report is not None:
                report(last_round)
            # Stop without a new path if the master had its smallest gap: nothing would change.
            is_smallest_gap = master_gap <= _MASTER_TARGET_FACTOR * target
            if is_last or (is_smallest_gap and is_feasible and not last_round.num_new_columns):
                break
        assert last_round is not None
        return last_round

    def _certified_start(self, start: MasterStart) -> Round:
        """Certify a warm start as if it were the solution of a master, over its columns.

        Links with a price or a high load get rows.
        """
        self._share = start.share.copy()
        if self._demands.minimises_utilisation:
            # Scale the shares of each demand to a sum of 1.
            self._share *= (
                1 / np.maximum(self._demand_totals(self._share), _ROUNDING)[self._column_demand]
            )
        self._price = start.price.copy()
        # Capacity rows for links with a price or a high load; then shares that fit all capacities.
        utilisation = self._link_utilisation(self._share)
        self._has_row = (self._price > 0) | (utilisation > _INITIAL_ROW_UTILISATION)
        self._fit_capacities()
        self._last_round = self._certified_round(self._objective_value(self._column_value()))
        return self._last_round

    @property
    def _column_demand(self) -> Int64Array:
        """Demand (P,) of each column."""
        count = np.diff(self._columns.path_ptr)
        return np.repeat(np.arange(len(count)), count)

    def _demand_totals(self, share: FloatArray) -> FloatArray:
        """Return the sum (D,) of the shares (P,) of the columns of each demand."""
        totals = np.zeros(len(self._demands.rate))
        np.add.at(totals, self._column_demand, share)
        return totals

    def _all_served(self) -> bool:
        """Return whether the shares of every demand sum to 1, up to rounding."""
        totals = self._demand_totals(self._share)
        return bool((totals[self._demands.rate > 0] > 1 - _ROUNDING).all())

    def _fit_capacities(self) -> None:
        """Scale each path down by its most overloaded link, where demand may be unserved."""
        if not self._demands.minimises_utilisation:
            utilisation = self._link_utilisation(self._share)
            self._share /= path_maxima(self._columns, np.maximum(utilisation, 1.0))

    def _keep_large_shares(self) -> None:
        """Drop the columns with small shares, and scale up the other columns of the same demand.

        An interior-point solution spreads flow over all paths of equal cost; the master problem
        over fewer paths is solved sooner.  Demands without flow keep all their columns.
        """
        # Keep the largest column of each demand, and those with a large share of it.
        count = np.diff(self._columns.path_ptr)
        column_demand = self._column_demand
        largest_share = np.zeros(len(count))
        np.maximum.at(largest_share, column_demand, self._share)
        is_kept = (self._share == largest_share[column_demand]) | (self._share > _LARGE_SHARE)
        # Scale the kept shares up to the sum of all shares of the demand.
        total_share = self._demand_totals(self._share)
        total_kept_share = self._demand_totals(np.where(is_kept, self._share, 0.0))
        scale = np.divide(
            total_share, total_kept_share, out=np.ones(len(count)), where=total_kept_share > 0
        )
        # Drop columns and add none.
        no_columns = np.zeros(len(count) + 1, np.int64), np.zeros(0, np.int32)
        self._columns, self._share = replace_columns(
            self._columns, self._share * scale[column_demand], is_kept, *no_columns
        )
        # The scaled shares may overload links: make them feasible, and compute their gap.
        self._fit_capacities()
        self._last_round = self._round_with_gap(self._objective_value(self._column_value()))

    def serve_all(self, target: float, deadline: Deadline) -> Round:
        """Solve the master with all demand served, over the present paths.

        Returns:
            the certified round; ``serves_all`` says whether all demand is served within the
            capacities.
        """
        for _ in range(_MAX_ROUNDS):
            # The last round keeps its shares: the solver overwrites a copy.
            self._share = self._share.copy()
            value = self._solve_master(_MASTER_TARGET_FACTOR * target, True, deadline)
            # Repeat while links without a row are overloaded: they get rows.
            if self._add_capacity_rows(self._share) or deadline.is_over:
                break
        certified_round = self._certified_round(value)
        serves_all = self._all_served() and self._is_feasible(self._share)
        return certified_round._replace(serves_all=serves_all)

    def raise_unserved_cost(self, factor: float) -> None:
        """Multiply the cost of unserved demand by a factor.

        The value of serving all demand rises by the same amount as the bound, which stays valid.
        """
        unit_value = self._demands.unit_value * factor
        self._bound += float(self._demands.rate @ (unit_value - self._demands.unit_value))
        self._demands = dataclasses.replace(self._demands, unit_value=unit_value)

    def _trees(self, weight: FloatArray) -> _Trees:
        """Return the shortest-path trees from all sources, by weights (E,) of working links."""
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
        """Return the length (D,) of the path of each demand in shortest-path trees."""
        return np.asarray(trees.distance[self._source_row, self._demands.pairs[:, 1]])

    def _lagrangian_bound(self, distance: FloatArray, price: FloatArray) -> float:
        """Return the Lagrangian bound of the link prices y over all paths, with link capacities c.

        Value less cost: c' y + sum of rate * max(0, unit value - distance), without max(0, ...)
        where all demand must be served.  Minus the utilisation: -(sum of rate * distance) / c' y.
        Demands without a path do not count.

        Args:
            distance: (D,) length of the shortest path of each demand by cost and price, or by price
                for the utilisation.
            price: (E,) dual price y of each link, value per Gbit/s.
        """
        # Bound on minus the largest utilisation; below, on value less cost.
        demands = self._demands
        if demands.minimises_utilisation:
            capacity_price = float(demands.capacity @ price)
            total_path_price = demands.rate @ np.where(np.isfinite(distance), distance, 0.0)
            return -float(total_path_price) / capacity_price if capacity_price > 0 else 0.0
        profit = np.where(np.isfinite(distance), demands.unit_value - distance, 0.0)
        if not demands.serves_all:
            profit = np.maximum(profit, 0.0)
        return float(demands.capacity @ price + demands.rate @ profit)

    def _update_bound(self, distance: FloatArray) -> None:
        """Update the best bound and its prices from the present prices.

        Args:
            distance: (D,) length of each demand's shortest path at these prices.
        """
        bound = self._lagrangian_bound(distance, self._price)
        if bound <= self._bound:
            self._bound = bound
            self._best_price = self._price.copy()

    def _multiplicative_weights_round(self, index: int) -> None:
        """Run one round of multiplicative weights.

        Every demand takes its shortest path by cost and price; with the mean utilisation u of all
        rounds, a link then has the price unit * max(0, expm1(4 (u - 0.9))).

        Args:
            index: number of earlier rounds.
        """
        demands = self._demands
        # Shortest paths give a bound and new columns.
        weight = demands.cost + self._price
        trees = self._trees(weight)
        distance = self._distance(trees)
        self._update_bound(distance)
        self._add_columns(trees, weight, distance)
        # Load if every demand with a path takes its shortest one.
        rate = np.where(np.isfinite(distance), demands.rate, 0.0)
        load = tree_loads(
            demands.pairs,
            self._source_row,
            trees.pred_link,
            demands.topology.link_source,
            rate,
            len(demands.cost),
        )
        # Factor of the prices: value of all demand (or its cost on shortest paths) over the sum of
        # the link loads.
        if index == 0:
            unit_value = np.where(
                rate > 0, distance if demands.serves_all else demands.unit_value, 0.0
            )
            self._price_unit = float(rate @ unit_value) / max(float(load.sum()), 1e-300)
        # Running mean of the loads, and the prices of the mean utilisation.
        self._mean_load += (load - self._mean_load) / (index + 1)
        utilisation = _utilisation(self._mean_load, demands.capacity)
        self._has_row = utilisation > _INITIAL_ROW_UTILISATION
        exponent = np.minimum(_STEEPNESS * (utilisation - _FREE_UTILISATION), _MAX_EXPONENT)
        self._price = np.maximum(self._price_unit * np.expm1(exponent), 0.0)

    def _add_columns(self, trees: _Trees, weight: FloatArray, distance: FloatArray) -> int:
        """Add to each demand its shortest path, if it is cheaper than its columns.

        Args:
            trees: shortest-path trees of the link weights.
            weight: (E,) cost and dual price of each link.
            distance: (D,) length of each demand's shortest path, infinite for none.

        Returns:
            number of new columns.
        """
        demands = self._demands
        # A new path must cost less than its value, unless all demand must be served.
        max_price = np.where(
            demands.rate > 0, np.inf if demands.needs_paths else demands.unit_value, -np.inf
        )
        # Pointers (D + 1,) and links of the new paths, at most one for each demand.
        ptr, links = cheaper_paths(
            self._columns,
            demands.pairs,
            self._source_row,
            trees.distance,
            trees.pred_link,
            demands.topology.link_source,
            np.where(demands.capacity > 0, weight, np.inf),
            np.where(np.isfinite(distance), max_price, -np.inf),
        )
        # All present columns stay.
        keep = np.ones(len(self._share), np.bool_)
        self._columns, self._share = replace_columns(self._columns, self._share, keep, ptr, links)
        return int((np.diff(ptr) > 0).sum())

    def _solve_master(self, target_gap: float, must_serve_all: bool, deadline: Deadline) -> float:
        """Solve the master; ``self._share`` (P,) and ``self._price`` (E,) receive the solution.

        Args:
            target_gap: target of the certified gap over the present columns.
            must_serve_all: whether all demand must be served.
            deadline: time after which no iteration begins.

        Returns:
            value less cost of the shares, or minus the largest link utilisation.
        """
        demands = self._demands
        columns = self._columns
        column_value = self._column_value()
        # Links without a row have infinite capacity in the master.
        capacity = np.where(self._has_row | (demands.capacity <= 0), demands.capacity, np.inf)
        # Value of a Gbit/s that costs nothing, where the cost of serving all demand is minimised.
        cost_base = float(demands.unit_value.max(initial=0.0)) if demands.serves_all else 0.0
        may_shed = not demands.minimises_utilisation
        program = presolve(
            columns,
            NO_TERMS,
            demands.rate,
            capacity,
            column_value,
            may_shed,
            cost_base,
            self._share,
        )
        # Search until the gap is reached, or the deadline sets the flag.
        stop = np.zeros(1, np.bool_)
        with ends_at(deadline, stop):
            self.iterations += solve_on_threads(
                program,
                may_shed,
                must_serve_all,
                target_gap,
                _MAX_ITERATIONS,
                self._share,
                self._price,
                self._warm_start(),
                stop,
            )
        return self._objective_value(column_value)

    def _column_value(self) -> FloatArray:
        """Return the value (P,) of a Gbit/s on each column.

        It is the unit value less the cost of the links; 0 where the largest utilisation is
        minimised.
        """
        demands = self._demands
        columns = self._columns
        if demands.minimises_utilisation:
            return np.zeros(len(columns.slot))
        unit_values = np.repeat(demands.unit_value, np.diff(columns.path_ptr))
        return unit_values - path_sums(columns, demands.cost)

    def _objective_value(self, column_value: FloatArray) -> float:
        """Return the objective value of the shares.

        It is value less cost; where the largest utilisation is minimised, minus this utilisation.

        Args:
            column_value: (P,) value of a Gbit/s on each column.
        """
        if self._demands.minimises_utilisation:
            return -float(self._link_utilisation(self._share).max(initial=0.0))
        rates = np.repeat(self._demands.rate, np.diff(self._columns.path_ptr))
        return float((rates * self._share) @ column_value)

    def _warm_start(self) -> Start:
        """Return the warm start of a master: mu and mix shrink with the gap of the last round."""
        if self._last_round is None:
            return COLD
        gap = max(self._last_round.gap, _MIN_START_GAP)
        return Start(True, min(_MAX_MU, _MU_PER_GAP * gap), min(_MAX_MIX, _MIX_PER_GAP * gap))

    def _certified_round(self, value: float) -> Round:
        """Return the state of a round: bound and gap of the present prices and shares.

        Args:
            value: value of the shares, value less cost or minus the largest utilisation.
        """
        demands = self._demands
        # Pricing: shortest paths by cost and price give the Lagrangian bound.
        weight = self._price if demands.minimises_utilisation else demands.cost + self._price
        trees = self._trees(weight)
        self._priced_trees = weight, trees
        self._update_bound(self._distance(trees))
        return self._round_with_gap(value)

    def _round_with_gap(self, value: float) -> Round:
        """Return the present columns and shares, with their gap to the best bound so far.

        Args:
            value: value of the shares, value less cost or minus the largest utilisation.
        """
        demands = self._demands
        # The gap is relative to the bound; where all demand is served, to the cost (value of
        # serving all at no cost, less the value) or to the utilisation (minus the value).
        reference = self._bound
        if demands.needs_paths:
            reference = (
                float(demands.rate @ demands.unit_value) if demands.serves_all else 0.0
            ) - value
        if demands.serves_all:
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
            # Number of new columns, and whether all demand is served: the caller sets them.
            0,
            False,
        )

    def _add_capacity_rows(self, share: FloatArray) -> bool:
        """Add rows for nearly full links; return whether all links without a row fit their loads.

        Args:
            share: (P,) share of its demand on each column.

        Returns:
            False if a link that had no row was overloaded.
        """
        utilisation = self._link_utilisation(share)
        overloaded = (utilisation > 1 + _ROUNDING) & ~self._has_row
        self._has_row |= utilisation > _ROW_UTILISATION
        return not bool(overloaded.any())

    def _link_utilisation(self, share: FloatArray) -> FloatArray:
        """Return the utilisation (E,) of each link under the shares (P,) of the columns."""
        load = column_loads(self._columns, self._demands.rate, share, len(self._demands.cost))
        return _utilisation(load, self._demands.capacity)

    def _is_feasible(self, share: FloatArray) -> bool:
        """Return whether the shares (P,) of the columns fit all capacities, up to rounding."""
        return bool((self._link_utilisation(share) <= 1 + _ROUNDING).all())

    def _drop_and_add_columns(self, may_drop: bool) -> int:
        """Drop columns with negligible shares if allowed, and add cheaper paths.

        Args:
            may_drop: whether columns may be dropped.

        Returns:
            number of new columns.
        """
        assert self._priced_trees is not None
        if may_drop:
            # Pointers and links of new columns: none.
            no_columns = np.zeros(len(self._demands.rate) + 1, np.int64), np.zeros(0, np.int32)
            keep = self._share > _MIN_SHARE
            self._columns, self._share = replace_columns(
                self._columns, self._share, keep, *no_columns
            )
        weight, trees = self._priced_trees
        return self._add_columns(trees, weight, self._distance(trees))


def _utilisation(load: FloatArray, capacity: FloatArray) -> FloatArray:
    """Return load over capacity (E,); 0 for failed links, which no path uses."""
    return np.divide(load, capacity, out=np.zeros_like(load), where=capacity > 0)
