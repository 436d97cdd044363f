"""PDHG search for two-segment routing: warm start, restarted PDHG, certificates over all midpoints.

The start runs Frank-Wolfe-like rounds with soft-maximum prices; then primal-dual hybrid gradient
with adaptive restarts and step weights (Applegate et al. 2021) iterates, and every ``CHECK_EVERY``
iterations prices all midpoints, which proves a bound and refills the slots.  Entry point:
:func:`solve`.
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
# Iterations between certificates.
CHECK_EVERY = 25
# Certificates within which the gap must fall by _STALL_SHARE; otherwise the slots are doubled.
_PATIENCE = 8
_STALL_SHARE = 0.2
# Largest number of demands for which column generation finishes sooner than more slots would.
_FEW_DEMANDS = 10_000
# Restart when the gap has fallen to this share of the gap at the last restart.
_RESTART_AT = 0.5
# Floor of a link's utilisation in the dual step sizes, as a share of the largest utilisation.
_MIN_UTILISATION = 0.05
# Floor of the share of each demand on its shortest paths, in the dual step sizes.
_MIN_CARRIED = 1e-3
# Rounds in which flow that was cut for feasibility takes up residual capacity.
_REFILL_ROUNDS = 3


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SegmentResult(Solution):
    """Solution over two-segment lists: shares, prices, value (theta, or Gbit/s) and proven bound.

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
        problem: one matrix.
        gap: certified gap at which to stop.
        deadline: time limit, after which the incumbent is returned.
        max_iterations: iterations of PDHG.
        report: called with iterations and gap after each certificate.
    """
    begin = time.perf_counter()
    search = _Search(problem)
    deadline = deadline or Deadline(math.inf)
    stopped_by: Stop | None = None
    # Iterate until the gap is closed, with a certificate after every few iterations.
    search.start()
    while stopped_by is None:
        search.check()
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
    """State of the PDHG iteration; symbols as in the package docstring."""

    def __init__(self, problem: SegmentProblem) -> None:
        self.p = problem
        demands = len(problem.demand)
        self.mid = np.full((demands, SLOTS), -1, dtype=np.int32)
        self.mid[:, 0] = problem.target
        self.share = np.zeros((demands, SLOTS))
        self.share[:, 0] = 1.0
        # Segment lengths in 1 / capacity, h, which scale the primal steps.
        length = problem.segment_prices(problem.inverse_capacity)
        self.h = length[problem.target, problem.source]
        self.tau = 1 / (2 * self.h)
        self.iterations = 0
        self.sign = 1.0 if problem.balances else -1.0
        self.value = math.inf * self.sign
        self.bound = -math.inf * self.sign
        self.best_allocation = self.mid.copy(), self.share.copy()
        self.best_prices = problem.inverse_capacity / max(1, len(problem.capacity))
        self.y = np.zeros(len(problem.capacity))
        self.cycle_gap = math.inf
        self.stall_gap = math.inf
        self.checks = 0
        self._averages()

    def _averages(self) -> None:
        self.total = np.zeros_like(self.share)
        self.y_total = np.zeros_like(self.y)
        self.count = 0
        self.start_share = self.share.copy()
        self.start_y = self.y.copy()

    @property
    def gap(self) -> float:
        """Relative gap between the incumbent value and the best bound."""
        return gap_between(self.value, self.bound, self.p.sense)

    def start(self) -> None:
        """Compute the starting point: rounds of soft-maximum prices, each of which moves a share of
        every demand to its cheapest midpoint by a line search.
        """
        # Frank-Wolfe-like rounds on the soft maximum of the utilisations.
        p = self.p
        load = p.loads(self.mid, self.share)
        for _ in range(_STARTING_ROUNDS if p.balances else 0):
            u = load * p.inverse_capacity
            prices = np.exp(_SHARPNESS * (u / u.max() - 1)) * p.inverse_capacity
            prices /= (p.capacity * prices).sum()
            pi = p.segment_prices(prices)
            best, cost = p.cheapest(pi)
            self._update_bound(prices, p.bound(prices, cost))
            best_slot = np.ascontiguousarray(best[:, None])
            best_load = p.loads(best_slot, np.ones((len(best), 1)))
            step_size = _line_search(load * p.inverse_capacity, best_load * p.inverse_capacity)
            if step_size <= 0:
                break
            self._mix(pi, best, cost, step_size)
            load = (1 - step_size) * load + step_size * best_load
        # Dual start from the soft maximum of the final loads.
        load = p.loads(self.mid, self.share)
        u = load * p.inverse_capacity
        self.y = np.exp(_SHARPNESS * (u / u.max() - 1)) * (p.capacity > 0)
        self.y /= self.y.sum()
        if not p.balances:
            # Scale the prices so that a Gbit/s of the mean demand is just worth its capacity.
            mean_cost = (p.demand * self._direct_cost(self.y)).sum() / p.demand.sum()
            self.y *= min(1.0, max(0.0, u.max() - 1)) / max(mean_cost, 1e-300)
        # Step sizes and primal weight.
        rows = self._row_sums()
        self.sigma = 1 / rows
        primal = max(float((p.demand * self.h).sum()), 1e-300)
        dual = float((rows * self.y**2).sum())
        self.omega = math.sqrt(dual / primal) if dual > 0 else 1e-2
        self._averages()

    def _direct_cost(self, y: FloatArray) -> FloatArray:
        pi = self.p.segment_prices(y * self.p.inverse_capacity)
        return pi[self.p.target, self.p.source]

    def _mix(self, pi: FloatArray, best: IntArray, cost: FloatArray, step_size: float) -> None:
        """Move a share ``step_size`` of each demand to its best midpoint."""
        # Each best midpoint takes a slot, the least used one if none is free; the shares stand for
        # the running averages, which have not started yet.
        average = self.share.copy()
        take_midpoints(
            pi,
            np.ascontiguousarray(pi.T),
            self.p.source,
            self.p.target,
            best,
            cost,
            self.mid,
            self.share,
            average,
        )
        is_best = self.mid == best[:, None]
        has_slot = is_best.any(1)
        self.share[has_slot] = (1 - step_size) * self.share[has_slot] + step_size * is_best[
            has_slot
        ]

    def iterate(self, count: int) -> None:
        """Run ``count`` iterations of PDHG."""
        p = self.p
        value = 0.0 if self.p.balances else 1.0
        extrapolated = np.zeros_like(self.share)
        for _ in range(count):
            # Primal step at the prices of the current dual point.
            pi = p.segment_prices(self.y * p.inverse_capacity)
            with threads_for(OPERATIONS_PER_SLOT * self.share.size):
                step(
                    pi,
                    np.ascontiguousarray(pi.T),
                    p.target,
                    *p.by_source,
                    self.mid,
                    self.tau,
                    self.omega,
                    value,
                    self.share,
                    extrapolated,
                    self.total,
                )
            # Dual step at the extrapolated loads.
            u = p.loads(self.mid, extrapolated) * p.inverse_capacity
            moved = self.y + self.omega * self.sigma * (u if p.balances else u - 1)
            self.y = (
                _on_simplex(moved, self.sigma * (p.capacity > 0))
                if p.balances
                else np.maximum(0, moved)
            )
            self.y_total += self.y
            self.count += 1
        self.iterations += count

    def check(self) -> None:
        """Certify the current and the average point, add midpoints, and restart if due."""
        # Bound and feasible value of both points.
        p = self.p
        points = [(self.share, self.y)]
        if self.count:
            points.append((self.total / self.count, self.y_total / self.count))
        gaps = []
        duals = []
        for share, y in points:
            prices = y * p.inverse_capacity
            pi = p.segment_prices(prices)
            best, cost = p.cheapest(pi)
            bound = p.bound(prices, cost)
            value = self._update_incumbent(share)
            self._update_bound(prices, bound)
            gaps.append(gap_between(value, bound, p.sense))
            duals.append((pi, best, cost))
        # Restart from the better point.
        chosen = int(np.argmin(gaps))
        if self.count and (
            gaps[chosen] <= _RESTART_AT * self.cycle_gap
            or self.count >= 0.4 * self.iterations + 200
        ):
            self._restart(*points[chosen], gaps[chosen])
        # Give each demand its cheapest midpoint.
        pi, best, cost = duals[chosen]
        average = self.total if self.count else self.share.copy()
        is_profitable = np.ones(len(cost), dtype=bool) if p.balances else cost < 1
        take_midpoints(
            pi,
            np.ascontiguousarray(pi.T),
            p.source,
            p.target,
            np.where(is_profitable, best, p.target).astype(np.int32),
            cost,
            self.mid,
            self.share,
            average,
        )
        self._widen()

    def _restart(self, share: FloatArray, y: FloatArray, gap: float) -> None:
        moved = float((self.p.demand * self.h * ((share - self.start_share) ** 2).sum(1)).sum())
        moved_y = float(((y - self.start_y) ** 2 / self.sigma).sum())
        if moved > 1e-20 and moved_y > 1e-20:
            self.omega = math.exp(
                0.5 * math.log(math.sqrt(moved_y / moved)) + 0.5 * math.log(self.omega)
            )
        self.share = share.copy()
        self.y = y.copy()
        self.cycle_gap = gap
        self.sigma = 1 / self._row_sums()
        self._averages()

    def _row_sums(self) -> FloatArray:
        """Row sums (E,) for the dual step sizes: link utilisations if all demand were carried with
        the current split ratios.
        """
        share = self.share.copy()
        if not self.p.balances:
            share[:, 0] += _MIN_CARRIED
        share /= share.sum(1, keepdims=True)
        u = self.p.loads(self.mid, share) * self.p.inverse_capacity
        return np.maximum(u, _MIN_UTILISATION * u.max())

    @property
    def has_stalled(self) -> bool:
        """Whether the gap stopped falling with doubled slots, so that column generation
        finishes sooner.
        """
        max_slots = SLOTS if len(self.mid) <= _FEW_DEMANDS else 2 * SLOTS
        return self.mid.shape[1] > max_slots and self.checks % _PATIENCE == 0

    def _widen(self) -> None:
        """Double the slots if the gap has stalled."""
        self.checks += 1
        if self.checks % _PATIENCE:
            return
        if self.gap > (1 - _STALL_SHARE) * self.stall_gap and self.mid.shape[1] < _MAX_SLOTS:
            num_new = self.mid.shape[1]
            self.mid = np.hstack([self.mid, np.full((len(self.mid), num_new), -1, dtype=np.int32)])
            empty = np.zeros((len(self.mid), num_new))
            self.share, self.total, self.start_share = (
                np.hstack([a, empty]) for a in (self.share, self.total, self.start_share)
            )
        self.stall_gap = self.gap

    def _update_incumbent(self, share: FloatArray) -> float:
        """Return the value of the shares after a repair to feasibility; update the incumbent."""
        p = self.p
        if p.balances:
            share = share / share.sum(1, keepdims=True)
            value = p.utilisation(p.loads(self.mid, share))
        else:
            share = feasible(p, self.mid, share)
            value = float((p.demand * share.sum(1)).sum())
        if (value - self.value) * self.sign < 0:
            self.value = value
            self.best_allocation = (self.mid.copy(), share.copy())
        return value

    def _update_bound(self, prices: FloatArray, bound: float) -> None:
        if math.isfinite(bound) and (bound - self.bound) * self.sign > 0:
            self.bound = bound
            self.best_prices = prices.copy()


def _line_search(u: FloatArray, towards: FloatArray) -> float:
    """Return the step t in [0, 1] that minimises max((1 - t) u + t towards), by ternary search."""
    low = 0.0
    high = 1.0
    for _ in range(40):
        a = low + (high - low) / 3
        b = high - (high - low) / 3
        if ((1 - a) * u + a * towards).max() <= ((1 - b) * u + b * towards).max():
            high = b
        else:
            low = a
    return (low + high) / 2


def _on_simplex(y: FloatArray, sigma: FloatArray) -> FloatArray:
    """Project ``y`` onto the simplex sum y = 1, y >= 0 in the norm sum (dy)^2 / sigma; entries with
    sigma = 0 become 0.
    """
    live = sigma > 0
    values = y[live]
    weights = sigma[live]
    order = np.argsort(-values / weights)
    sums = np.cumsum(weights[order])
    total = np.cumsum(values[order])
    levels = (total - 1) / sums
    last = np.flatnonzero(values[order] / weights[order] > levels)[-1]
    result = np.zeros_like(y)
    result[live] = np.maximum(0, values - levels[last] * weights)
    return result


def feasible(p: SegmentProblem, mid: IntArray, share: FloatArray) -> FloatArray:
    """Scale shares down until no link is overloaded, then refill residual capacity."""
    requested = np.maximum(share, 0)
    requested = requested / np.maximum(1, requested.sum(1, keepdims=True))
    granted = np.zeros_like(requested)
    residual = p.capacity.copy()
    for _ in range(_REFILL_ROUNDS):
        ungranted = requested - granted
        load = p.loads(mid, ungranted)
        overload = np.where(load > 0, load / np.maximum(residual, 1e-12 * p.capacity + 1e-300), 0)
        if overload.max() == 0:
            break
        worst = p.passes.segment_max(overload[None])[0][0]
        node = np.maximum(mid, 0)
        cut = np.maximum(worst[node, p.source[:, None]], worst[p.target[:, None], node])
        granted = granted + np.where(mid >= 0, ungranted / np.maximum(1, cut), 0)
        residual = np.maximum(0, p.capacity - p.loads(mid, granted))
    return np.asarray(granted / max(1.0, p.utilisation(p.loads(mid, granted))))
