"""The search: a start by soft maxima, PDHG with restarts, certificates with all midpoints."""

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

SLOTS = (
    4  # midpoints held for a demand at first; at most 4 besides the direct way are used in optima
)
_MAX_SLOTS = 32
_STARTING_ROUNDS = 8  # of soft-maximum prices with a line search
_SHARPNESS = 10.0  # of the soft maximum: exp(10 u / largest u)
CHECK_EVERY = 25  # iterations between certificates
_PATIENCE = (
    8  # certificates in which the gap must fall by _STALL_SHARE, else more midpoints are held
)
_STALL_SHARE = 0.2
_FEW_DEMANDS = 10_000  # up to so many column generation ends a search sooner than more midpoints do
_RESTART_AT = 0.5  # of the gap at the last restart
_MIN_UTILISATION = 0.05  # of the largest one, in step sizes of links that carry less
_MIN_CARRIED = (
    1e-3  # share of a demand that counts as carried straight to its target, in step sizes
)
_REFILL_ROUNDS = 3  # in which flow that was cut to be feasible takes up capacity that is left


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SegmentResult(Solution):
    """Shares and prices, and the value (theta, or Gbit/s) and the bound over lists of two segments
    that they prove.

    Attributes:
        mid: (D, K) midpoints; -1 for none, the target itself for the direct way.
        share: (D, K) of each demand.
        prices: (E,) of links, value or utilisation per Gbit/s.
        free_bound: bound on the optimum over any paths, by the same prices.
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
    """Solve to a certified gap.

    Args:
        problem: one matrix.
        gap: certified gap at which to stop.
        deadline: after which to stop with the best so far.
        max_iterations: iterations of PDHG.
        report: called with iterations and gap after each certificate.
    """
    begin = time.perf_counter()
    search = _Search(problem)
    deadline = deadline or Deadline(math.inf)
    stopped_by: Stop | None = None
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
    """State of the iteration.  Symbols as in the package."""

    def __init__(self, problem: SegmentProblem) -> None:
        self.p = problem
        demands = len(problem.demand)
        self.mid = np.full((demands, SLOTS), -1, dtype=np.int32)
        self.mid[:, 0] = problem.target
        self.share = np.zeros((demands, SLOTS))
        self.share[:, 0] = 1.0
        length = problem.segment_prices(problem.inverse_capacity)  # h of each segment
        self.h = length[problem.target, problem.source]
        self.tau = 1 / (2 * self.h)
        self.iterations = 0
        self.sign = 1.0 if problem.balances else -1.0
        self.value = math.inf * self.sign
        self.bound = -math.inf * self.sign
        self.best_allocation = self.mid.copy(), self.share.copy()
        self.best_prices = problem.inverse_capacity / max(1, len(problem.capacity))
        self.y = np.zeros(len(problem.capacity))
        self.cycle_gap, self.stall_gap, self.checks = math.inf, math.inf, 0
        self._averages()

    def _averages(self) -> None:
        self.total, self.y_total, self.count = np.zeros_like(self.share), np.zeros_like(self.y), 0
        self.start_share, self.start_y = self.share.copy(), self.y.copy()

    @property
    def gap(self) -> float:
        """The gap between the best value and the best bound."""
        return gap_between(self.value, self.bound, self.p.sense)

    def start(self) -> None:
        """Rounds of soft-maximum prices, each sending a part over the cheapest midpoints by a line
        search.
        """
        p = self.p
        load = p.loads(self.mid, self.share)
        for _ in range(_STARTING_ROUNDS if p.balances else 0):
            u = load * p.inverse_capacity
            prices = np.exp(_SHARPNESS * (u / u.max() - 1)) * p.inverse_capacity
            prices /= (p.capacity * prices).sum()
            pi = p.segment_prices(prices)
            best, cost = p.cheapest(pi)
            self._keep_bound(prices, p.bound(prices, cost))
            one = np.ascontiguousarray(best[:, None])
            towards = p.loads(one, np.ones((len(best), 1)))
            part = _line_search(load * p.inverse_capacity, towards * p.inverse_capacity)
            if part <= 0:
                break
            self._mix(pi, best, cost, part)
            load = (1 - part) * load + part * towards
        load = p.loads(self.mid, self.share)
        u = load * p.inverse_capacity
        self.y = np.exp(_SHARPNESS * (u / u.max() - 1)) * (p.capacity > 0)
        self.y /= self.y.sum()
        if (
            not p.balances
        ):  # a price at which a Gbit/s on the mean demand is just worth its capacity
            mean_cost = (p.demand * self._direct_cost(self.y)).sum() / p.demand.sum()
            self.y *= min(1.0, max(0.0, u.max() - 1)) / max(mean_cost, 1e-300)
        rows = self._row_sums()
        self.sigma = 1 / rows
        primal = max(float((p.demand * self.h).sum()), 1e-300)
        dual = float((rows * self.y**2).sum())
        self.omega = math.sqrt(dual / primal) if dual > 0 else 1e-2
        self._averages()

    def _direct_cost(self, y: FloatArray) -> FloatArray:
        pi = self.p.segment_prices(y * self.p.inverse_capacity)
        return pi[self.p.target, self.p.source]

    def _mix(self, pi: FloatArray, best: IntArray, cost: FloatArray, part: float) -> None:
        """Send a part of each demand by its best midpoint."""
        # Each best midpoint takes a slot, that of the least used one where none is free; the shares
        # stand for the running averages, which are not begun yet.
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
        found = is_best.any(1)
        self.share[found] = (1 - part) * self.share[found] + part * is_best[found]

    def iterate(self, count: int) -> None:
        """So many iterations of PDHG."""
        p, value = self.p, 0.0 if self.p.balances else 1.0
        extrapolated = np.zeros_like(self.share)
        for _ in range(count):
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
        """Certificates of the current and the average point, new midpoints, and a restart where it
        is due.
        """
        p = self.p
        points = [(self.share, self.y)]
        if self.count:
            points.append((self.total / self.count, self.y_total / self.count))
        gaps, duals = [], []
        for share, y in points:
            prices = y * p.inverse_capacity
            pi = p.segment_prices(prices)
            best, cost = p.cheapest(pi)
            bound, value = p.bound(prices, cost), self._value_of(share)
            self._keep_bound(prices, bound)
            gaps.append(gap_between(value, bound, p.sense))
            duals.append((pi, best, cost))
        chosen = int(np.argmin(gaps))
        if self.count and (
            gaps[chosen] <= _RESTART_AT * self.cycle_gap
            or self.count >= 0.4 * self.iterations + 200
        ):
            self._restart(*points[chosen], gaps[chosen])
        pi, best, cost = duals[chosen]
        average = self.total if self.count else self.share.copy()
        is_worth = np.ones(len(cost), dtype=bool) if p.balances else cost < 1
        take_midpoints(
            pi,
            np.ascontiguousarray(pi.T),
            p.source,
            p.target,
            np.where(is_worth, best, p.target).astype(np.int32),
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
        self.share, self.y, self.cycle_gap = share.copy(), y.copy(), gap
        self.sigma = 1 / self._row_sums()
        self._averages()

    def _row_sums(self) -> FloatArray:
        """(E,) for step sizes: the utilisation if all demand were carried in the present
        proportions.
        """
        share = self.share.copy()
        if not self.p.balances:
            share[:, 0] += _MIN_CARRIED
        share /= share.sum(1, keepdims=True)
        u = self.p.loads(self.mid, share) * self.p.inverse_capacity
        return np.maximum(u, _MIN_UTILISATION * u.max())

    @property
    def has_stalled(self) -> bool:
        """Whether the gap has stopped to fall although many midpoints are held: column generation
        then ends sooner.
        """
        most = SLOTS if len(self.mid) <= _FEW_DEMANDS else 2 * SLOTS
        return self.mid.shape[1] > most and self.checks % _PATIENCE == 0

    def _widen(self) -> None:
        """Hold more midpoints if the gap does not fall."""
        self.checks += 1
        if self.checks % _PATIENCE:
            return
        if self.gap > (1 - _STALL_SHARE) * self.stall_gap and self.mid.shape[1] < _MAX_SLOTS:
            more = self.mid.shape[1]
            self.mid = np.hstack([self.mid, np.full((len(self.mid), more), -1, dtype=np.int32)])
            empty = np.zeros((len(self.mid), more))
            self.share, self.total, self.start_share = (
                np.hstack([a, empty]) for a in (self.share, self.total, self.start_share)
            )
        self.stall_gap = self.gap

    def _value_of(self, share: FloatArray) -> float:
        """The value of a point after it was made feasible; the best is kept."""
        p = self.p
        if p.balances:
            share = share / share.sum(1, keepdims=True)
            value = p.utilisation(p.loads(self.mid, share))
        else:
            share = feasible(p, self.mid, share)
            value = float((p.demand * share.sum(1)).sum())
        if (value - self.value) * self.sign < 0:
            self.value, self.best_allocation = value, (self.mid.copy(), share.copy())
        return value

    def _keep_bound(self, prices: FloatArray, bound: float) -> None:
        if math.isfinite(bound) and (bound - self.bound) * self.sign > 0:
            self.bound, self.best_prices = bound, prices.copy()


def _line_search(u: FloatArray, towards: FloatArray) -> float:
    """The part t in [0, 1] with the least max of (1 - t) u + t towards, by thirds of a convex
    function.
    """
    low, high = 0.0, 1.0
    for _ in range(40):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        if ((1 - a) * u + a * towards).max() <= ((1 - b) * u + b * towards).max():
            high = b
        else:
            low = a
    return (low + high) / 2


def _on_simplex(y: FloatArray, sigma: FloatArray) -> FloatArray:
    """The point of sum y = 1, y >= 0 nearest to ``y`` in the norm sum (dy)^2 / sigma; 0 where sigma
    is 0.
    """
    live = sigma > 0
    values, weights = y[live], sigma[live]
    order = np.argsort(-values / weights)
    sums, total = np.cumsum(weights[order]), np.cumsum(values[order])
    levels = (total - 1) / sums
    last = np.flatnonzero(values[order] / weights[order] > levels)[-1]
    result = np.zeros_like(y)
    result[live] = np.maximum(0, values - levels[last] * weights)
    return result


def feasible(p: SegmentProblem, mid: IntArray, share: FloatArray) -> FloatArray:
    """Shares cut so that no link is overloaded, then raised again where capacity is left."""
    wanted = np.maximum(share, 0)
    wanted = wanted / np.maximum(1, wanted.sum(1, keepdims=True))
    granted = np.zeros_like(wanted)
    left = p.capacity.copy()
    for _ in range(_REFILL_ROUNDS):
        rest = wanted - granted
        load = p.loads(mid, rest)
        over = np.where(load > 0, load / np.maximum(left, 1e-12 * p.capacity + 1e-300), 0)
        if over.max() == 0:
            break
        worst = p.passes.segment_max(over[None])[0][0]
        at = np.maximum(mid, 0)
        factor = np.maximum(worst[at, p.source[:, None]], worst[p.target[:, None], at])
        granted = granted + np.where(mid >= 0, rest / np.maximum(1, factor), 0)
        left = np.maximum(0, p.capacity - p.loads(mid, granted))
    return np.asarray(granted / max(1.0, p.utilisation(p.loads(mid, granted))))
