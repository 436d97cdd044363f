r"""The optimum as a function of demands and capacities, differentiable in torch: for learning
through the optimisation.

**Value** (:func:`optimal_value`).  The certified bound of prices p (:mod:`teal.problem.bounds`),

    bound(demand, capacity; p)
        = sum_e c[e] p[e] + sum_d demand[d] max(0, max_k (v[d, k] - price(d, k))),

is at least the optimum of *every* pair of demands and capacities, and is linear in both.  At prices
whose gap at the given pair is eps its gradient g is therefore an eps-supergradient of the optimum
V,

    V(demand', capacity') <= V(demand, capacity) + <g, change> + eps,

for capacities that are 0 where c is 0 (the maxima are over live paths), and at eps = 0 its gradient
(Danskin 1966): the price of each link, and the profit of each demand.  The layer returns
the value of the allocation with this gradient, and eps beside it.  The bound of
max_link_utilisation is linear in the demands alone: with reversed signs the statement holds for
changes of them.  That of max_concurrent_flow is not linear: its gradient is that of the bound,
without the statement.

**Splits** (:func:`smooth_splits`).  The splits of a linear program jump as demands change.  With
the entropy of each demand's splits and of the share w[d, 0] that it rejects,

    max   <v, x> + t sum_d demand[d] entropy(w[d])
    s.t.  loads <= c,   x[d] = demand[d] w[d],   sum_k w[d, k] <= 1,

they are unique, and smooth while the same links have prices: w[d, k] is the softmax of (v[d, k] -
price(d, k)) / t over the paths and over rejecting, which has profit 0, at the prices that minimise
the convex dual

    F(p) = sum_e c[e] p[e] + t sum_d demand[d] log(1 + sum_k exp((v[d, k] - price(d, k)) / t)),
    p >= 0.

F is minimised by Newton's method projected onto p >= 0 (Bertsekas 1982), with conjugate gradients
for its steps.  The gradient is that of the implicit function: with A the incidence of paths and
links, J[d] = diag(w[d]) - w[d] w[d]', and H = A' (demand J / t) A on the links with p > 0,

    dw = -J A dp / t,      H dp = A'(w d demand) - dc,

so that one more linear system gives the gradient in all demands and capacities.  The value of these
splits is below the optimum by at most t sum_d demand[d] log(1 + K).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from teal.errors import InputError, SolverError
from teal.problem import Problem
from teal.problem.bounds import from_score, usable_prices
from teal.problem.problem import checked, mean_value
from teal.problem.sets import AtMostOne
from teal.solvers.pdhg import solve

_START_GAP = 1e-2  # of the prices of the linear program that Newton's method starts from
# Temperatures above that of the call are solved first, each from the prices of the one before.
_FIRST_TEMPERATURE, _COOLING = 0.1, 0.4
_MAX_STEPS, _MAX_HALVINGS, _MAX_CONJUGATE_STEPS = 100, 40, 1000
# Relative error of a load on a link with a price: at which prices are taken for exact, and the
# largest accepted one.
_TOLERANCE, _MAX_ERROR = 1e-9, 1e-6
# Residual of a linear system over that of the solution 0: for a step of Newton's method, and for a
# gradient.
_STEP_RESIDUAL, _GRADIENT_RESIDUAL = 1e-4, 1e-12
_MAX_MOVE = 4.0  # x t, by which a price moves in a step, approximately
_SUFFICIENT_FALL = (
    1e-4  # share of the fall that the slope foretells which a step must reach (Armijo)
)
# Added to H for a gradient, in units of capacity over mean value: for links whose loads no price
# changes.
_DAMPING = 1e-12


class OptimalValue(NamedTuple):
    """The optimum of B pairs of demands and capacities.

    Attributes:
        value: (B,) of the allocation, with the gradient of the module.
        error: (B,) eps of the module, absolute: the certified distance between value and bound.
        splits: (B, D, K) of the allocation, without a gradient.
        prices: (B, E) of the bound, without a gradient.
    """

    value: Tensor
    error: Tensor
    splits: Tensor
    prices: Tensor


def optimal_value(
    problem: Problem, demand: Tensor, capacity: Tensor | None = None, *, gap: float = 1e-3
) -> OptimalValue:
    """The optimum under other demands and capacities, differentiable in both (equations in the
    module).

    Args:
        problem: network, paths and objective; its own matrices do not matter.
        demand: (B, D) Gbit/s.
        capacity: (E,) or (B, E) Gbit/s; None for the capacities of the first matrix of ``problem``.
        gap: certified relative gap at which the search ends.

    Raises:
        InputError: demands or capacities of another shape, or not finite numbers >= 0; an objective
            that is not one linear program over paths, or a side condition.
    """
    problem = _at("optimal_value", problem, demand, capacity)
    if problem.objective.rules.is_sequence or not problem.is_linear:
        raise InputError(
            "optimal_value",
            "problem",
            "an objective that is one linear program",
            problem.objective.name,
        )
    result = solve(_detached(problem), gap=gap)
    prices = usable_prices(problem, result.prices)
    bound = from_score(problem, problem.program.bound(prices))
    error = (bound - result.value).abs().detach()
    return OptimalValue(
        bound + (result.value - bound).detach(), error, result.splits, result.prices
    )


def smooth_splits(
    problem: Problem, demand: Tensor, capacity: Tensor | None = None, *, temperature: float = 0.02
) -> Tensor:
    """(B, D, K) optimal splits of the program with entropy, differentiable in demands and
    capacities (module).

    Args:
        problem: network, paths and objective, one that maximises a linear value; its own matrices
            do not matter.
        demand: (B, D) Gbit/s.
        capacity: as of :func:`optimal_value`.
        temperature: t over the mean value of a Gbit/s.  A smaller one is nearer to the linear
            program, and its gradients are larger, in fewer places.

    Raises:
        InputError: as of :func:`optimal_value`; another objective; a temperature that is not above
            0.
        SolverError: a temperature too small for float64.
    """
    problem = _at("smooth_splits", problem, demand, capacity)
    if not isinstance(problem.demand_set, AtMostOne) or problem.objective.rules.is_sequence:
        expected = "an objective that maximises a linear value"
        raise InputError("smooth_splits", "problem", expected, problem.objective.name)
    if not 0 < temperature < float("inf"):
        raise InputError("smooth_splits", "temperature", "a number above 0", temperature)
    return cast(
        Tensor,
        _SmoothSplits.apply(problem.demand, problem.capacity, _detached(problem), temperature),
    )


def _at(where: str, problem: Problem, demand: Tensor, capacity: Tensor | None) -> Problem:
    """The checked problem under these demands and capacities, float64, with their gradients."""
    if problem.conditions or problem.largest_share is not None:
        kinds = [type(condition).__name__ for condition in problem.conditions] or [
            "a largest share"
        ]
        raise InputError(where, "problem", "no side conditions", ", ".join(kinds))
    checked("demand", demand.detach().cpu().numpy(), problem.paths.num_demands)
    problem = problem.to(torch.float64).with_demand(demand)
    if capacity is None:
        return problem
    rows = checked(
        "capacity", torch.atleast_2d(capacity.detach()).cpu().numpy(), problem.topology.num_links
    )
    if len(rows) not in (1, len(demand)):
        raise InputError("problem", "capacity", f"1 row, or {len(demand)} as in demand", len(rows))
    return problem.with_capacity(capacity)


def _detached(problem: Problem) -> Problem:
    capacity = problem.capacity.detach()
    return dataclasses.replace(problem.with_demand(problem.demand.detach()), capacity=capacity)


class _SmoothSplits(torch.autograd.Function):
    """Splits (B, D, K) of demands (B, D) and capacities (B, E), with the gradient of the implicit
    function.
    """

    @staticmethod
    def forward(
        ctx: Any, demand: Tensor, capacity: Tensor, problem: Problem, temperature: float
    ) -> Tensor:
        del demand, capacity  # for their gradients alone: ``problem`` has both
        ctx.dual = _SmoothedDual(problem, temperature)
        ctx.prices = _least_prices(problem, temperature)
        ctx.splits = ctx.dual.splits(ctx.prices)
        return cast(Tensor, ctx.splits)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        dual: _SmoothedDual = ctx.dual
        has_price = ctx.prices > 0
        of_price = -dual.ops.link_sum(dual.slope(ctx.splits, grads[0]))
        effect = dual.effect(ctx.splits, has_price, of_price)
        return (ctx.splits * dual.ops.path_sum(effect)).sum(-1), -effect, None, None


def _least_prices(problem: Problem, temperature: float) -> Tensor:
    """(B, E) the prices that minimise F.

    Raises:
        SolverError: a load still differs by more than 1e-6 of its capacity from the one at which
            the prices are least: float64 has no more digits.
    """
    prices = usable_prices(problem, solve(problem, gap=_START_GAP).prices, most=1.0)
    prices = torch.where(problem.capacity > 0, prices, 0)
    warmer = _FIRST_TEMPERATURE
    while warmer > temperature:
        prices, _ = _SmoothedDual(problem, warmer).least(prices, _MAX_ERROR)
        warmer *= _COOLING
    prices, error = _SmoothedDual(problem, temperature).least(prices, _TOLERANCE)
    if not error <= _MAX_ERROR:
        raise SolverError(
            f"smooth_splits: a load is wrong by {error:.1e} of its capacity at temperature "
            f"{temperature:g}: try a "
            "larger one"
        )
    return prices


class _SmoothedDual:
    """F of the module for B pairs of demands and capacities, float64."""

    def __init__(self, problem: Problem, temperature: float) -> None:
        self._problem, self.ops = problem, problem.ops
        self._unit = mean_value(problem).clamp(min=1e-30)
        self._temperature = temperature * self._unit
        self._is_live = problem.capacity > 0

    def _logits(self, prices: Tensor) -> Tensor:
        """(B, D, K + 1) profit over temperature of each path, -inf where it cannot be used, and 0
        for rejecting.
        """
        profit = self._problem.path_value - self.ops.path_sum(prices)
        logits = torch.where(self._problem.path_mask, profit / self._temperature, -torch.inf)
        return torch.cat([logits, torch.zeros_like(logits[..., :1])], -1)

    def splits(self, prices: Tensor) -> Tensor:
        """(B, D, K) w of the module at prices (B, E)."""
        return self._logits(prices).softmax(-1)[..., :-1]

    def value(self, prices: Tensor) -> Tensor:
        """(B,) F."""
        profit = self._temperature * self._logits(prices).logsumexp(-1)
        return self._problem.capacity_value(prices) + (self._problem.demand * profit).sum(1)

    def slope(self, splits: Tensor, change: Tensor) -> Tensor:
        """(B, D, K) J change / t: the change of splits by a change of profits, and its own
        transpose.
        """
        return splits * (change - (splits * change).sum(-1, keepdim=True)) / self._temperature

    def least(self, prices: Tensor, tolerance: float) -> tuple[Tensor, float]:
        """(B, E) prices that minimise F, from others, and the largest relative error of a load."""
        problem, capacity = self._problem, self._problem.capacity
        value, error = self.value(prices), torch.full((problem.batch,), torch.inf)
        for _ in range(_MAX_STEPS):
            splits = self.splits(prices)
            gradient = torch.where(self._is_live, capacity - problem.loads(splits), 0)
            is_free = self._is_live & ((prices > 0) | (gradient < 0))
            error = torch.where(is_free, gradient.abs() / capacity.clamp(min=1e-30), 0).amax(1)
            is_open = error > tolerance
            if not bool(is_open.any()):
                break
            # Where all demands reject a link, or none does, H is next to 0: no price moves by more
            # than a few t.
            damping = gradient.abs() / (_MAX_MOVE * self._temperature)
            step = self._solved(
                splits, is_free, torch.where(is_free, -gradient, 0), damping, _STEP_RESIDUAL
            )
            prices, value = self._searched(prices, value, gradient, step, is_open)
        return prices, float(error.amax())

    def _searched(
        self, prices: Tensor, value: Tensor, gradient: Tensor, step: Tensor, is_open: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Prices (B, E) after the first halving of each row's step that lets F fall enough, and F
        (B,).
        """
        size = is_open.to(value)
        for _ in range(_MAX_HALVINGS):
            tried = (prices + size[:, None] * step).clamp(min=0)
            reached, foretold = self.value(tried), (gradient * (tried - prices)).sum(1)
            # Near the least value the fall is smaller than the rounding of F.
            rounding = 1e-14 * value.abs()
            is_enough = reached <= value + _SUFFICIENT_FALL * foretold + rounding
            if bool(is_enough.all()):
                break
            size = torch.where(is_enough, size, size / 2)
        return torch.where(is_enough[:, None], tried, prices), torch.where(
            is_enough, reached, value
        )

    def effect(self, splits: Tensor, has_price: Tensor, of_price: Tensor) -> Tensor:
        """(B, E) H^-1 ``of_price`` on the links with a price, and 0 on the others."""
        damping = _DAMPING * self._problem.capacity / self._unit
        return self._solved(
            splits, has_price, torch.where(has_price, of_price, 0), damping, _GRADIENT_RESIDUAL
        )

    def _solved(
        self, splits: Tensor, is_free: Tensor, right: Tensor, damping: Tensor, residual: float
    ) -> Tensor:
        """(B, E) s with (H + damping) s = ``right`` on the free links, to a relative residual, and
        0 on the others.
        """
        weight = self._problem.demand[..., None]
        own = self.ops.link_sum(weight * splits * (1 - splits)) / self._temperature + damping

        def times(s: Tensor) -> Tensor:
            through = self.ops.link_sum(weight * self.slope(splits, self.ops.path_sum(s)))
            return torch.where(is_free, through + damping * s, 0)

        return _conjugate_gradients(
            times, right, torch.where(own > 0, 1 / own.clamp(min=1e-300), 0), residual
        )


def _conjugate_gradients(
    times: Callable[[Tensor], Tensor], right: Tensor, inverse: Tensor, tolerance: float
) -> Tensor:
    """(B, E) solutions of B positive definite systems, preconditioned by ``inverse`` (B, E) of the
    diagonals.
    """
    solution, residual = torch.zeros_like(right), right
    scaled = inverse * residual
    direction, size = scaled, (residual * scaled).sum(1)
    end = tolerance**2 * size
    for _ in range(_MAX_CONJUGATE_STEPS):
        if bool((size <= end).all()):
            break
        product = times(direction)
        curvature = (direction * product).sum(1)
        length = torch.where((size > end) & (curvature > 0), size / curvature.clamp(min=1e-300), 0)[
            :, None
        ]
        solution, residual = solution + length * direction, residual - length * product
        scaled = inverse * residual
        before, size = size, (residual * scaled).sum(1)
        direction = scaled + (size / before.clamp(min=1e-300))[:, None] * direction
    return solution
