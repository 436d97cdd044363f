"""Engine of the scenario program of dropped flow: shared splits with the smallest loss.

:class:`DroppedFlowEngine` is PDHG for it.  With S scenarios of demand D_s and shared splits x,
sum_k x[d, k] <= 1, the loss of scenario s is the demand shed at sources plus the excess over
capacities,

    loss_s(x) = sum_d D_s[d] (1 - sum_k x[d, k]) + sum_e max(0, load_s[e](x) - c[e])      Gbit/s,

and the program is min over x of max over q of sum_s q[s] loss_s(x), 0 <= q[s] <= limit[s], sum_s
q[s] = 1, as in :mod:`solver`.  If each path delivers the smallest share min(1, c / load) of its
links, at most loss_s is lost; one scenario is total_flow, since prices above the value of a Gbit/s
are not needed.  As a saddle point, with prices y,

    min over x, max over (y, q) of
        sum_s [ q[s] V_s - sum_d D_s[d] sum_k x[d, k] (q[s] - price_s(d, k)) - sum_e c[e] y_s[e] ],
    0 <= y_s[e] <= q[s],      V_s = sum_d D_s[d],      price_s(d, k) = sum over the links e of the
    path of y_s[e].

Any feasible (y, q) give the dual bound

    sum_s (q[s] V_s - sum_e c[e] y_s[e]) - sum_d max(0, max_k sum_s D_s[d] (q[s] - price_s(d, k))),

also if the q sum to less than 1, since losses are not negative.  Demand without a live path is
excluded.  The iteration is that of the plain engine; step sizes are those of Pock & Chambolle
(2011, lemma 2), with the q and y of a scenario scaled by its limit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from typing_extensions import override

from teal.problem import Problem
from teal.problem.prox import project_splits
from teal.runtime.arrays import FloatArray
from teal.runtime.parallel import inner_kernel, kernel
from teal.solvers.pdhg.dense import DenseEngine, Point
from teal.solvers.pdhg.plain import PlainEngine
from teal.solvers.result import SolveState

_MIN_DIVISOR = 1e-300  # replaces 0 as a divisor
_SUM_ROUNDING = 1e-13  # rounding of sums of flows in float64, as a share of all demand
_MAX_BISECTIONS = 200  # limit of bisection steps; 60 reduce an interval to the last bit


class DroppedFlowEngine(PlainEngine):
    """PDHG for dropped flow, a :class:`teal.solvers.pdhg.engine.PdhgEngine` of one program of S
    scenarios: B = 1, prices (1, S, E).

    The dual variables of an iterate are (1, S (E + 1)): for each scenario y of the links, then q.

    Args:
        problem: S matrices with equal capacities, float64 on the CPU.
        limits: (S,) largest weight of each scenario, positive, with a sum of at least 1.
        state: warm start, splits (1, D, K) and prices (S, E); None for zero splits and prices.
    """

    def __init__(self, problem: Problem, limits: FloatArray, state: SolveState | None) -> None:
        # Saddle point: min over splits x, max over link prices y and scenario weights q, with
        # 0 <= y_s[e] <= q[s] <= limit[s] and sum q = 1.
        # Demand of each scenario: (S, D) and its sum (S,), Gbit/s.
        problem = problem.to(torch.float64)
        DenseEngine.__init__(self, problem, torch.ones(1, 1))
        self._max_weights = torch.from_numpy(limits)
        self._routable_demand = problem.routable_demand
        self._total_demand = self._routable_demand.sum(1)
        mask = problem.path_mask[:1]
        demand = self._routable_demand
        # Inverse step sizes: sums of the magnitudes of a variable's coefficients.  For the splits,
        # (1, D, 1), they are equal for all paths of a demand, so that the prox is the Euclidean
        # projection.
        # A split has one coefficient of a y for each link of its path, and one of q.
        hops = problem.ops.path_sum(torch.ones_like(problem.capacity[:1]))
        # Demand in each scenario times its largest weight, summed over the scenarios.
        max_weighted_demand = (self._max_weights @ demand)[None, :, None].clamp(min=_MIN_DIVISOR)
        self._inverse_primal_step = (
            max_weighted_demand * torch.where(mask, hops + 1, 0).amax(-1, keepdim=True)
        ).clamp(min=_MIN_DIVISOR)
        # For y and q, (S, E + 1): the same sums, divided by the limit of the scenario.
        coefficient_sum_y = problem.with_demand(demand).loads(
            mask.to(demand).expand(problem.batch, -1, -1)
        )
        coefficient_sum_q = (demand * mask[0].sum(-1)).sum(1, keepdim=True)
        self._inverse_dual_step = (
            torch.cat([coefficient_sum_y, coefficient_sum_q], 1) / self._max_weights[:, None]
        ).clamp(min=_MIN_DIVISOR)
        # A link that can carry all its paths at once has a price of 0.
        self._is_priced = (problem.capacity > 0) & (coefficient_sum_y > problem.capacity)
        # First iterate: zero flow and prices, or the warm start made feasible.
        splits = torch.zeros_like(problem.even_splits[:1])
        prices = torch.zeros_like(problem.capacity)
        weights = self._max_weights / self._max_weights.sum()
        if state is not None:
            live_splits = torch.where(mask, state.splits.to(splits).clamp(min=0), 0)
            splits = live_splits / live_splits.sum(-1, keepdim=True).clamp(min=1)
            prices = state.prices.to(prices).clamp(min=0)
            # Feasible weights are at least the prices of their scenario.
            weights = weights.maximum(prices.amax(1))
        # Unit step sizes: the Euclidean projection.
        first_point = Point(
            splits,
            self._feasible(
                torch.cat([prices, weights[:, None]], 1), torch.ones_like(self._inverse_dual_step)
            ),
        )
        self._init_iterates(first_point, torch.ones(1, dtype=torch.float64))

    def _feasible(self, dual: Tensor, step: Tensor) -> Tensor:
        """Project prices y and scenario weights q onto their feasible set, in the steps' metric.

        The set is {0 <= y_s[e] <= q[s] <= limit[s], sum of q = 1}.

        Args:
            dual: (S, E + 1) y of each scenario s and, in the last column, q.
            step: (S, E + 1) step sizes.

        Returns:
            (1, S (E + 1)) projected y and q, flat.
        """
        dual = dual.contiguous().clone()
        dual[:, :-1] = torch.where(self._is_priced, dual[:, :-1], 0)
        project_prices(dual.numpy(), step.contiguous().numpy(), self._max_weights.numpy())
        return dual.view(1, -1)

    def _prices_and_weights(self, dual: Tensor) -> tuple[Tensor, Tensor]:
        """Split dual variables (1, S (E + 1)) into the prices y (S, E) and the weights q (S,)."""
        rows = dual.view(self._exact.batch, -1)
        return rows[:, :-1], rows[:, -1]

    def _profit(self, prices: Tensor, weights: Tensor) -> Tensor:
        """Return (1, D, K) the profit of each path: the sum over the scenarios s of its demand D_s
        times q[s] minus the path's price.

        Args:
            prices: (S, E) y.
            weights: (S,) q.
        """
        path_price = self._exact.ops.path_sum(prices)
        return torch.einsum(
            "sd,sdk->dk", self._routable_demand, weights[:, None, None] - path_price
        )[None]

    def _excess(self, splits: Tensor) -> Tensor:
        """Return (1, S (E + 1)) the gradient of the dual variables: load - c of each link, and shed
        demand.
        """
        excess, shed = excess_and_shed(self._exact, splits)
        return torch.cat([excess, shed[:, None]], 1).view(1, -1)

    def _step(self, point: Point, primal_weight: Tensor) -> Point:
        """Compute one PDHG step T(z) = (x', y', q') from splits x, prices y and scenario weights q.

        x' = Proj(x + profit / (omega r)), (y', q') = Proj((y, q) + omega excess / r'), with the
        inverse step sizes r of the splits and r' of the dual variables.  The excess is load -
        capacity of each link, and the shed demand, at the splits 2 x' - x.

        Args:
            point: iterate: splits (1, D, K) and dual variables (1, S (E + 1)).
            primal_weight: (1,) omega.
        """
        omega = float(primal_weight)
        # Primal step and projection onto {x >= 0, sum <= 1}.
        unprojected = point.splits + self._profit(*self._prices_and_weights(point.dual)) / (
            omega * self._inverse_primal_step
        )
        splits = project_splits(
            unprojected, self._exact.path_mask[:1], carries_all=False, slope=None
        )
        # Dual step at the extrapolated splits.
        dual_step = omega / self._inverse_dual_step
        dual = point.dual.view_as(dual_step) + dual_step * self._excess(
            2 * splits - point.splits
        ).view_as(dual_step)
        return Point(splits, self._feasible(dual, dual_step))

    def _distances(self, a: Point, b: Point) -> tuple[Tensor, Tensor, Tensor]:
        """Return the squared distances of the splits and of the dual variables of two points in the
        metric of the step sizes, and twice <dual difference, excess difference>; (1,) each.
        """
        split_change = a.splits - b.splits
        dual_change = a.dual - b.dual
        coupling = (dual_change * (self._excess(a.splits) - self._excess(b.splits))).sum(1)
        primal = (self._inverse_primal_step * split_change.square()).sum((1, 2))
        return (
            primal,
            (self._inverse_dual_step.view(1, -1) * dual_change.square()).sum(1),
            2 * coupling,
        )

    def _bound(self, dual: Tensor) -> Tensor:
        """Return (1,) the dual bound of prices y and scenario weights q, made feasible by division.

        With the demand V_s of scenario s and the capacities c, it is sum_s (q[s] V_s -
        sum_e c[e] y_s[e]) - sum_d max(0, max_k profit[d, k]), over the factor by which q exceeds
        its limits or a sum of 1.

        Args:
            dual: (1, S (E + 1)) prices y and weights q of each scenario.
        """
        prices, weights = self._prices_and_weights(dual)
        # Rounding of the projection may leave a price above its weight.
        weights = weights.maximum(prices.amax(1))
        divisor = max(1.0, float(weights.sum()), float((weights / self._max_weights).max()))
        # Demands' part: the best path's profit, at least 0.
        profit = (
            torch.where(self._exact.path_mask[0], self._profit(prices, weights)[0], 0)
            .amax(-1)
            .clamp(min=0)
            .sum()
        )
        constant = (weights * self._total_demand).sum() - (prices * self._exact.capacity).sum()
        return ((constant - profit) / divisor)[None]

    @override
    def trivial_bound(self) -> Tensor:
        return torch.zeros(1, dtype=torch.float64)

    @override
    def check(self, refill: int = 0, sufficient_ratio: float = math.inf) -> tuple[Tensor, Tensor]:
        # Any splits are feasible: what exceeds the capacities counts as dropped.
        self._projected_splits = self._stepped.splits
        return tail_mean(dropped_flow(self._exact, self._projected_splits), self._max_weights)[
            None
        ], self.certify()

    def _prices(self, dual: Tensor) -> Tensor:
        """Return the (1, S, E) prices y of dual variables (1, S (E + 1))."""
        return self._prices_and_weights(dual)[0][None]


def dropped_flow(problem: Problem, splits: Tensor) -> Tensor:
    """Return (S,) the dropped flow of splits (1, D, K) in each matrix, Gbit/s, for routable demand.

    loss_s = shed demand + sum_e max(0, load_s[e] - c[e]).  Losses within rounding of the demand
    count as 0, since a bound of 0 would make them a gap of 100%.
    """
    excess, shed = excess_and_shed(problem, splits)
    loss = shed.clamp(min=0) + excess.clamp(min=0).sum(1)
    return torch.where(loss > _SUM_ROUNDING * problem.routable_demand.sum(1), loss, 0)


def excess_and_shed(problem: Problem, splits: Tensor) -> tuple[Tensor, Tensor]:
    """Return load - capacity of links (S, E) and shed demand (S,), Gbit/s, of routable demand.

    Args:
        problem: S matrices.
        splits: (S, D, K), or (1, D, K) shared splits.
    """
    demand = problem.routable_demand
    loads = problem.ops.link_sum(demand[..., None] * splits)
    return loads - problem.capacity, (demand * (1 - splits.sum(-1))).sum(1)


def tail_mean(losses: Tensor, limits: Tensor) -> Tensor:
    """Return () the largest sum_s q[s] losses[s] over weights 0 <= q <= ``limits`` with the sum 1.

    Greedy: the largest losses get their limits until the q sum to 1.

    Args:
        losses: (S,) loss of each scenario.
        limits: (S,) largest weight of each scenario; their sum is at least 1, up to rounding.
    """
    order = torch.argsort(losses, descending=True)
    # q of each scenario, from the worst one on, is the increase of their clamped sum.
    cumulative_weight = limits[order].cumsum(0).clamp(max=1)
    return (
        losses[order] * cumulative_weight.diff(prepend=cumulative_weight.new_zeros(1))
    ).sum() / cumulative_weight[-1]


@kernel
def project_prices(dual: FloatArray, step: FloatArray, limits: FloatArray) -> None:
    """Project link prices y' and scenario weights q' onto their feasible set, in place.

    The set is {0 <= y_s[e] <= q[s] <= limit[s] for scenario s and link e, sum of q = 1}.

    The projection of y' for given q is min(max(y', 0), q), so that q[s] minimises, for a multiplier
    t of the sum,

        (q - q'[s])^2 / (2 step_q) + sum over e of max(0, y'[e] - q)^2 / (2 step_e) + t q

    over [0, limit[s]], with the step sizes step_q of q[s] (last column of ``step``) and step_e of
    y'[e]; t is found by bisection, q by bisection on the derivative, which increases.

    Args:
        dual: (S, E + 1) y' and, in the last column, q' (written).
        step: (S, E + 1) step sizes.
        limits: (S,) limits with a sum of at least 1.
    """
    num_scenarios = dual.shape[0]
    num_links = dual.shape[1] - 1
    # q of each scenario.  Limits with a sum of 1, up to rounding, leave no choice.
    weights = limits.copy()
    if limits.sum() > 1 + 1e-12:
        # Bracket the multiplier t, then bisect: the sum of q decreases in t.
        low = -1.0
        high = 1.0
        while _weight_sum(low, dual, step, limits, weights) < 1 and low > -1e300:
            low *= 4
        while _weight_sum(high, dual, step, limits, weights) > 1 and high < 1e300:
            high *= 4
        for _ in range(_MAX_BISECTIONS):
            middle = (low + high) / 2
            if not low < middle < high:
                break
            if _weight_sum(middle, dual, step, limits, weights) > 1:
                low = middle
            else:
                high = middle
        # Write q at the multiplier found: high, where the sum is at most 1.
        _weight_sum(high, dual, step, limits, weights)
    # Clamp y to [0, q].
    for s in range(num_scenarios):
        for e in range(num_links):
            dual[s, e] = min(max(dual[s, e], 0.0), weights[s])
        dual[s, num_links] = weights[s]


@inner_kernel
def _weight_sum(
    t: float, dual: FloatArray, step: FloatArray, limits: FloatArray, weights: FloatArray
) -> float:
    """Compute the weight q of each scenario for a multiplier t of their sum; return the sum of q.

    q[s] is the root in [0, limit[s]] of the increasing derivative
    (q - q'[s]) / step_q + t - sum over links e of max(0, y'[e] - q) / step_e, with unprojected
    weights q' and prices y', and their step sizes.

    Args:
        t: multiplier.
        dual: (S, E + 1) y' and, in the last column, q'.
        step: (S, E + 1) step sizes.
        limits: (S,) largest q.
        weights: (S,) q (written).
    """
    num_links = dual.shape[1] - 1
    weight_sum = 0.0
    for s in range(len(limits)):
        low = 0.0
        high = limits[s]
        unprojected_weight = dual[s, num_links]
        weight_step = step[s, num_links]
        # Bisection on the derivative, which is negative below the root.
        for _ in range(_MAX_BISECTIONS):
            q = (low + high) / 2
            if not low < q < high:
                break
            derivative = (q - unprojected_weight) / weight_step + t
            for e in range(num_links):
                if dual[s, e] > q:
                    derivative -= (dual[s, e] - q) / step[s, e]
            if derivative > 0:
                high = q
            else:
                low = q
        weights[s] = (low + high) / 2
        weight_sum += weights[s]
    return weight_sum
