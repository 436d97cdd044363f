"""PDHG search for two-segment routing: starting point, restarted PDHG, and dual bounds over all
midpoints.

The start runs Frank-Wolfe-like rounds with soft-maximum prices; then primal-dual hybrid gradient
with adaptive restarts and step weights (Applegate et al. 2021) iterates.  Every ``CHECK_EVERY``
iterations a check prices all midpoints, which proves a dual bound, and stores the cheapest midpoint
of each demand in one of its slots.  Entry point: :func:`solve`.

Axis letters: D demands, K slots (midpoints of a demand in memory), E links, N nodes.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

import numpy as np

from teal.problem.bounds import gap_between
from teal.runtime.arrays import FloatArray, IntArray
from teal.runtime.interruptible import Deadline
from teal.runtime.parallel import threads_for
from teal.solvers.result import Solution, Stop
from teal_ip.segments.kernels import OPERATIONS_PER_SLOT, step, take_midpoints
from teal_ip.segments.problem import SegmentProblem

# Midpoints per demand at the start; optima use at most 4 besides the shortest path.
SLOTS = 4
_MAX_SLOTS = 32
# Rounds of soft-maximum prices with a line search, before PDHG.
_STARTING_ROUNDS = 8
# Exponent of the soft maximum: exp(10 u / largest u).
_SHARPNESS = 10.0
# Number of PDHG iterations between two checks, which compute value and dual bound.
CHECK_EVERY = 25
# Number of checks within which the gap must fall by the fraction _STALL_SHARE; otherwise the slots
# are doubled.
_PATIENCE = 8
_STALL_SHARE = 0.2
# Largest number of demands for which column generation finishes sooner than more slots would.
_FEW_DEMANDS = 10_000
# Restart when the gap has fallen to this fraction of the gap at the last restart.
_RESTART_AT = 0.5
# Floor of a link's utilisation in the dual step sizes, as a fraction of the largest utilisation.
_MIN_UTILISATION = 0.05
# Split ratio that is added to the shortest paths of each demand in the dual step sizes, so that
# demands without flow count, too.
_MIN_CARRIED = 1e-3
# Number of rounds of :func:`feasible`; each one admits flow that fits the residual capacity.
_ADMISSION_ROUNDS = 3


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SegmentResult(Solution):
    """Solution over two-segment lists.

    The value and its certified bound are the largest link utilisation (theta), or the total flow in
    Gbit/s.

    Attributes:
        mid: (D, K) midpoints; -1 for an empty slot, the target itself for the shortest paths.
        share: (D, K) split ratios of each demand.
        prices: (E,) dual prices of links: value or utilisation per Gbit/s.
        free_bound: bound on the optimum over any paths, from the same prices.
    """

    mid: IntArray
    share: FloatArray
    prices: FloatArray
    free_bound: float


def solve(
    problem: SegmentProblem,
    gap: float = 0.01,
    deadline: Deadline | None = None,
    max_iterations: int = 20_000,
    report: Callable[[int, float], None] | None = None,
) -> SegmentResult:
    """Solve the two-segment program to a certified gap.

    Args:
        problem: routing of one matrix over lists with at most one midpoint.
        gap: certified gap at which to stop.
        deadline: time limit, after which the incumbent is returned.
        max_iterations: largest number of PDHG iterations.
        report: called with the number of iterations and the gap after each check.
    """
    # State of the search, and the criterion that stopped it.
    begin = time.perf_counter()
    search = _Search(problem)
    deadline = deadline or Deadline(math.inf)
    stopped_by: Stop | None = None
    # Iterate until the gap is closed, with a check of value and bound every CHECK_EVERY iterations.
    search.initialise()
    while stopped_by is None:
        search.certify()
        if report is not None:
            report(search.iterations, search.gap)
        if search.gap <= gap:
            stopped_by = Stop.GAP
        elif deadline.is_over:
            stopped_by = Stop.DEADLINE
        elif search.has_stalled:
            stopped_by = Stop.STALLED
        elif search.iterations >= max_iterations:
            stopped_by = Stop.ITERATIONS
        else:
            search.iterate(CHECK_EVERY)
    # The best value and the best bound may come from different iterations.
    mid, share = search.best_allocation
    return SegmentResult(
        mid=mid,
        share=share,
        prices=search.best_prices,
        value=search.value,
        bound=search.bound,
        sense=problem.sense,
        free_bound=problem.free_bound(search.best_prices),
        iterations=search.iterations,
        solve_s=time.perf_counter() - begin,
        stopped_by=stopped_by,
    )


class _Search:
    """State of the PDHG iteration.

    Primal variables are the split ratios x, dual variables y = capacity times link price.

    Args:
        problem: routing of one matrix over lists with at most one midpoint.

    Attributes:
        mid: (D, K) midpoints of the slots; slot 0 has the shortest paths, -1 is an empty slot.
        share: (D, K) current split ratios x.
        y: (E,) current dual point; its sum is 1 if theta is minimised.
        path_length: (D,) length of the shortest paths in 1 / capacity, which scales primal steps.
        tau: (D,) primal step sizes, 1 / (2 path_length).
        sigma: (E,) dual step sizes, 1 / row sums.
        omega: primal weight.
        share_total, y_total: sums of the iterates since the last restart.
        num_averaged: number of those iterates.
        restart_share, restart_y: point of the last restart.
        restart_gap: gap at the last restart.
        stall_gap: gap at the last test for a stall.
        num_certificates: number of checks of value and bound.
        iterations: number of PDHG iterations.
        sign: 1 for a minimum (utilisation), -1 for a maximum (flow).
        value: best value so far.
        bound: best dual bound so far.
        best_allocation: midpoints and split ratios of the best value.
        best_prices: (E,) link prices of the best bound.
    """

    def __init__(self, problem: SegmentProblem) -> None:
        """Start with all demands on their shortest paths, and dual prices of 0."""
        self.problem = problem
        demands = len(problem.demand)
        # Slot 0 has the shortest paths; the other slots are empty (-1).
        self.mid = np.full((demands, SLOTS), -1, dtype=np.int32)
        self.mid[:, 0] = problem.target
        self.share = np.zeros((demands, SLOTS))
        self.share[:, 0] = 1.0
        # Length (D,) of the shortest paths in 1 / capacity; primal step sizes.
        segment_length = problem.segment_prices(problem.inverse_capacity)
        self.path_length = segment_length[problem.target, problem.source]
        self.tau = 1 / (2 * self.path_length)
        # Best value, bound, allocation and link prices so far; current dual point; and gaps at the
        # last restart and at the last test for a stall.
        self.iterations = 0
        self.sign = 1.0 if problem.minimises_utilisation else -1.0
        self.value = math.inf * self.sign
        self.bound = -math.inf * self.sign
        self.best_allocation = self.mid.copy(), self.share.copy()
        self.best_prices = problem.inverse_capacity / max(1, len(problem.capacity))
        self.y = np.zeros(len(problem.capacity))
        self.restart_gap = math.inf
        self.stall_gap = math.inf
        self.num_certificates = 0
        self._reset_averages()

    def _reset_averages(self) -> None:
        """Reset the averages of the iterates, and make the current point the restart point."""
        self.share_total = np.zeros_like(self.share)
        self.y_total = np.zeros_like(self.y)
        self.num_averaged = 0
        self.restart_share = self.share.copy()
        self.restart_y = self.y.copy()

    @property
    def gap(self) -> float:
        """Relative gap between the best value and the best bound so far."""
        return gap_between(self.value, self.bound, self.problem.sense)

    def initialise(self) -> None:
        """Compute the starting point, step sizes and primal weight.

        If theta is minimised, rounds on the soft maximum of the utilisations u come first: with
        prices proportional to exp(_SHARPNESS * u / max u) / c, a step moves the same share of every
        demand to its cheapest midpoint, and a line search chooses the share.
        """
        # Frank-Wolfe-like rounds on the soft maximum; each one proves a bound, too.
        problem = self.problem
        load = problem.loads(self.mid, self.share)
        for _ in range(_STARTING_ROUNDS if problem.minimises_utilisation else 0):
            u = load * problem.inverse_capacity
            prices = np.exp(_SHARPNESS * (u / u.max() - 1)) * problem.inverse_capacity
            prices /= (problem.capacity * prices).sum()
            segment_price = problem.segment_prices(prices)
            cheapest_mid, cost = problem.cheapest(segment_price)
            self._update_bound(prices, problem.bound(prices, cost))
            cheapest_slot = np.ascontiguousarray(cheapest_mid[:, None])
            cheapest_load = problem.loads(cheapest_slot, np.ones((len(cheapest_mid), 1)))
            step_size = _line_search(
                load * problem.inverse_capacity, cheapest_load * problem.inverse_capacity
            )
            if step_size <= 0:
                break
            self._mix(segment_price, cheapest_mid, cost, step_size)
            load = (1 - step_size) * load + step_size * cheapest_load
        # Dual start from the soft maximum of the final loads.
        load = problem.loads(self.mid, self.share)
        u = load * problem.inverse_capacity
        self.y = np.exp(_SHARPNESS * (u / u.max() - 1)) * (problem.capacity > 0)
        self.y /= self.y.sum()
        if not problem.minimises_utilisation:
            # Scale the prices so that the shortest paths of a Gbit/s cost its utility of 1 on
            # average; lower prices if the largest utilisation is below 2.
            mean_cost = (problem.demand * self._direct_cost(self.y)).sum() / problem.demand.sum()
            self.y *= min(1.0, max(0.0, u.max() - 1)) / max(mean_cost, 1e-300)
        # Dual step sizes; primal weight: ratio of the weighted norms of dual and primal point.
        row_sums = self._row_sums()
        self.sigma = 1 / row_sums
        primal_norm = max(float((problem.demand * self.path_length).sum()), 1e-300)
        dual_norm = float((row_sums * self.y**2).sum())
        self.omega = math.sqrt(dual_norm / primal_norm) if dual_norm > 0 else 1e-2
        self._reset_averages()

    def _direct_cost(self, y: FloatArray) -> FloatArray:
        """Return the cost (D,) of each demand's shortest paths at a dual point (E,)."""
        segment_price = self.problem.segment_prices(y * self.problem.inverse_capacity)
        return segment_price[self.problem.target, self.problem.source]

    def _mix(
        self, segment_price: FloatArray, cheapest_mid: IntArray, cost: FloatArray, step_size: float
    ) -> None:
        """Move a share ``step_size`` of each demand to its cheapest midpoint: x <- (1 - step) x +
        step e.

        Args:
            segment_price: (N, N) prices of segments, destination first.
            cheapest_mid: (D,) cheapest midpoint of each demand.
            cost: (D,) cost of the list over that midpoint.
            step_size: share of each demand that moves.
        """
        # Each cheapest midpoint takes a slot, the least used one if none is free.  The current
        # split ratios stand for the running averages, which have not started yet.
        average = self.share.copy()
        take_midpoints(
            segment_price,
            np.ascontiguousarray(segment_price.T),
            self.problem.source,
            self.problem.target,
            cheapest_mid,
            cost,
            self.mid,
            self.share,
            average,
        )
        # (D, K) slots of the cheapest midpoints; demands without such a slot stay.
        is_cheapest = self.mid == cheapest_mid[:, None]
        has_slot = is_cheapest.any(1)
        self.share[has_slot] = (1 - step_size) * self.share[has_slot] + step_size * is_cheapest[
            has_slot
        ]

    def iterate(self, num_iterations: int) -> None:
        """Run iterations of PDHG:

            x' = proj(x + tau / omega (v - cost of the list at the prices y / c))
            y' = proj(y + omega sigma (u(2 x' - x) - v))

        where tau and sigma are step sizes, omega is the primal weight, c are capacities, and u(x)
        are the link utilisations under split ratios x.  v is 1 and y >= 0 if the flow is maximised;
        v is 0 and y is on the simplex if theta is minimised.

        Args:
            num_iterations: number of iterations.
        """
        problem = self.problem
        # Utility of a Gbit/s.
        flow_value = 0.0 if self.problem.minimises_utilisation else 1.0
        # (D, K) extrapolated split ratios 2 x' - x.
        extrapolated = np.zeros_like(self.share)
        for _ in range(num_iterations):
            # Primal step at the prices of the current dual point.
            segment_price = problem.segment_prices(self.y * problem.inverse_capacity)
            with threads_for(OPERATIONS_PER_SLOT * self.share.size):
                step(
                    segment_price,
                    np.ascontiguousarray(segment_price.T),
                    problem.target,
                    *problem.by_source,
                    self.mid,
                    self.tau,
                    self.omega,
                    flow_value,
                    self.share,
                    extrapolated,
                    self.share_total,
                )
            # Dual step at the extrapolated loads.
            u = problem.loads(self.mid, extrapolated) * problem.inverse_capacity
            ascended = self.y + self.omega * self.sigma * (
                u if problem.minimises_utilisation else u - 1
            )
            self.y = (
                _project_onto_simplex(ascended, self.sigma * (problem.capacity > 0))
                if problem.minimises_utilisation
                else np.maximum(0, ascended)
            )
            self.y_total += self.y
            self.num_averaged += 1
        self.iterations += num_iterations

    def certify(self) -> None:
        """Compute value and dual bound of the current and the average point, update the best ones,
        restart if due, and store the cheapest midpoints in slots.
        """
        # Pricing of all midpoints: dual bound, and value after a repair, of both points.
        problem = self.problem
        candidates = [(self.share, self.y)]
        if self.num_averaged:
            candidates.append(
                (self.share_total / self.num_averaged, self.y_total / self.num_averaged)
            )
        gaps = []
        pricings = []
        for share, y in candidates:
            prices = y * problem.inverse_capacity
            segment_price = problem.segment_prices(prices)
            cheapest_mid, cost = problem.cheapest(segment_price)
            bound = problem.bound(prices, cost)
            value = self._update_incumbent(share)
            self._update_bound(prices, bound)
            gaps.append(gap_between(value, bound, problem.sense))
            pricings.append((segment_price, cheapest_mid, cost))
        # Restart from the point with the smaller gap, if the gap has fallen enough since the last
        # restart, or if the averages span 40% of all iterations and 200 more.
        best_index = int(np.argmin(gaps))
        if self.num_averaged and (
            gaps[best_index] <= _RESTART_AT * self.restart_gap
            or self.num_averaged >= 0.4 * self.iterations + 200
        ):
            self._restart(*candidates[best_index], gaps[best_index])
        # Each demand gets a slot for its cheapest midpoint, if the flow over it costs less than its
        # utility of 1; otherwise the shortest paths, which have a slot already.
        segment_price, cheapest_mid, cost = pricings[best_index]
        average = self.share_total if self.num_averaged else self.share.copy()
        is_profitable = (
            np.ones(len(cost), dtype=bool) if problem.minimises_utilisation else cost < 1
        )
        take_midpoints(
            segment_price,
            np.ascontiguousarray(segment_price.T),
            problem.source,
            problem.target,
            np.where(is_profitable, cheapest_mid, problem.target).astype(np.int32),
            cost,
            self.mid,
            self.share,
            average,
        )
        self._widen_if_stalled()

    def _restart(self, share: FloatArray, y: FloatArray, gap: float) -> None:
        """Restart from a point: new averages, dual step sizes and primal weight.

        The primal weight omega is smoothed towards the ratio of the distances dy and dx that dual
        and primal point moved since the last restart (Applegate et al. 2021):

            log omega <- (log(dy / dx) + log omega) / 2

        Args:
            share: (D, K) split ratios of the point.
            y: (E,) its dual point.
            gap: its gap.
        """
        # Squared distances of the primal and the dual point from the last restart, in their norms.
        squared_share_step = float(
            (
                self.problem.demand * self.path_length * ((share - self.restart_share) ** 2).sum(1)
            ).sum()
        )
        squared_dual_step = float(((y - self.restart_y) ** 2 / self.sigma).sum())
        if squared_share_step > 1e-20 and squared_dual_step > 1e-20:
            self.omega = math.exp(
                0.5 * math.log(math.sqrt(squared_dual_step / squared_share_step))
                + 0.5 * math.log(self.omega)
            )
        self.share = share.copy()
        self.y = y.copy()
        self.restart_gap = gap
        self.sigma = 1 / self._row_sums()
        self._reset_averages()

    def _row_sums(self) -> FloatArray:
        """Return the row sums (E,) for the dual step sizes: link utilisations if all demand were
        carried with the current split ratios, at least a fraction of the largest one.
        """
        # A demand without flow counts as if it followed its shortest paths.
        share = self.share.copy()
        if not self.problem.minimises_utilisation:
            share[:, 0] += _MIN_CARRIED
        share /= share.sum(1, keepdims=True)
        u = self.problem.loads(self.mid, share) * self.problem.inverse_capacity
        return np.maximum(u, _MIN_UTILISATION * u.max())

    @property
    def has_stalled(self) -> bool:
        """Whether the gap stopped falling with doubled slots, so that column generation
        finishes sooner.
        """
        # Slots are doubled when the gap falls too slowly.  With few demands the search has stalled
        # after one doubling, else after two.
        max_slots = SLOTS if len(self.mid) <= _FEW_DEMANDS else 2 * SLOTS
        return self.mid.shape[1] > max_slots and self.num_certificates % _PATIENCE == 0

    def _widen_if_stalled(self) -> None:
        """Count a check; double the slots of all demands if the gap has not fallen enough over the
        last _PATIENCE checks.
        """
        self.num_certificates += 1
        if self.num_certificates % _PATIENCE:
            return
        if self.gap > (1 - _STALL_SHARE) * self.stall_gap and self.mid.shape[1] < _MAX_SLOTS:
            num_new = self.mid.shape[1]
            self.mid = np.hstack([self.mid, np.full((len(self.mid), num_new), -1, dtype=np.int32)])
            empty = np.zeros((len(self.mid), num_new))
            self.share, self.share_total, self.restart_share = (
                np.hstack([a, empty]) for a in (self.share, self.share_total, self.restart_share)
            )
        self.stall_gap = self.gap

    def _update_incumbent(self, share: FloatArray) -> float:
        """Repair split ratios to feasibility, and return their value; update the incumbent.

        Args:
            share: (D, K) split ratios of the current slots.
        """
        problem = self.problem
        if problem.minimises_utilisation:
            share = share / share.sum(1, keepdims=True)
            value = problem.utilisation(problem.loads(self.mid, share))
        else:
            share = feasible(problem, self.mid, share)
            value = float((problem.demand * share.sum(1)).sum())
        # Better is lower for a minimum (sign 1), higher for a maximum.
        if (value - self.value) * self.sign < 0:
            self.value = value
            self.best_allocation = (self.mid.copy(), share.copy())
        return value

    def _update_bound(self, prices: FloatArray, bound: float) -> None:
        """Update the best bound and its link prices (E,) if a bound is finite and better."""
        if math.isfinite(bound) and (bound - self.bound) * self.sign > 0:
            self.bound = bound
            self.best_prices = prices.copy()


def _line_search(start_utilisation: FloatArray, end_utilisation: FloatArray) -> float:
    """Return the step t in [0, 1] between two points at which the largest link utilisation is
    least, by ternary search.

    Args:
        start_utilisation: (E,) link utilisations at the current point.
        end_utilisation: (E,) link utilisations at the other end of the segment.
    """
    low = 0.0
    high = 1.0
    # 40 steps shrink the interval by a factor of (2/3)^40, about 1e-7.
    for _ in range(40):
        first_third = low + (high - low) / 3
        second_third = high - (high - low) / 3
        if ((1 - first_third) * start_utilisation + first_third * end_utilisation).max() <= (
            (1 - second_third) * start_utilisation + second_third * end_utilisation
        ).max():
            high = second_third
        else:
            low = first_third
    return (low + high) / 2


def _project_onto_simplex(y: FloatArray, sigma: FloatArray) -> FloatArray:
    """Project onto the simplex sum y = 1, y >= 0 in the norm sum (dy)^2 / sigma.

    The projection is y'[e] = max(0, y[e] - level sigma[e]), where the level makes the sum 1.
    Entries are sorted by y / sigma, so that the positive ones come first.

    Args:
        y: (E,) dual point.
        sigma: (E,) dual step sizes; entries with sigma = 0 become 0.
    """
    # Level at which the k largest entries of y / sigma alone sum to 1, for each k; the last entry
    # that stays positive at its level gives the level of the projection.
    is_live = sigma > 0
    values = y[is_live]
    weights = sigma[is_live]
    descending = np.argsort(-values / weights)
    weight_sums = np.cumsum(weights[descending])
    value_sums = np.cumsum(values[descending])
    levels = (value_sums - 1) / weight_sums
    last_positive = np.flatnonzero(values[descending] / weights[descending] > levels)[-1]
    result = np.zeros_like(y)
    result[is_live] = np.maximum(0, values - levels[last_positive] * weights)
    return result


def feasible(problem: SegmentProblem, mid: IntArray, share: FloatArray) -> FloatArray:
    """Return split ratios that overload no link, and that use residual capacity.

    Flow is admitted in rounds.  Each round admits the remaining flow of each segment list, divided
    by the largest ratio of load to residual capacity of its links if that is above 1.

    Args:
        problem: two-segment program whose flow is maximised.
        mid: (D, K) midpoints of the slots; -1 for an empty slot.
        share: (D, K) split ratios, which may overload links.

    Returns:
        (D, K) split ratios within capacities.
    """
    # Split ratios without negative entries or sums above 1; those admitted so far; and the residual
    # capacity (E,), Gbit/s.
    requested_share = np.maximum(share, 0)
    requested_share = requested_share / np.maximum(1, requested_share.sum(1, keepdims=True))
    admitted_share = np.zeros_like(requested_share)
    residual_capacity = problem.capacity.copy()
    for _ in range(_ADMISSION_ROUNDS):
        # Ratio (E,) of the load that is not yet admitted to the residual capacity.
        remaining_share = requested_share - admitted_share
        load = problem.loads(mid, remaining_share)
        link_overload = np.where(
            load > 0, load / np.maximum(residual_capacity, 1e-12 * problem.capacity + 1e-300), 0
        )
        if link_overload.max() == 0:
            break
        segment_overload = problem.passes.segment_max(link_overload[None])[0][0]
        # Largest load over residual capacity on both segments of a list (D, K).
        midpoint = np.maximum(mid, 0)
        list_overload = np.maximum(
            segment_overload[midpoint, problem.source[:, None]],
            segment_overload[problem.target[:, None], midpoint],
        )
        admitted_share = admitted_share + np.where(
            mid >= 0, remaining_share / np.maximum(1, list_overload), 0
        )
        residual_capacity = np.maximum(0, problem.capacity - problem.loads(mid, admitted_share))
    # Rounding errors: one common factor removes the last overload.
    return np.asarray(
        admitted_share / max(1.0, problem.utilisation(problem.loads(mid, admitted_share)))
    )
