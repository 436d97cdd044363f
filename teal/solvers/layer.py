r"""Differentiable optimisation layers: the optimum as a torch function of demands and capacities.

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
from teal.solvers.pipeline import solve

_START_GAP = 1e-2  # gap of the linear program whose prices start Newton's method
# Continuation in the temperature: larger temperatures first, each warm-started from the last one.
_FIRST_TEMPERATURE = 0.1
_COOLING = 0.4
_MAX_STEPS = 100
_MAX_HALVINGS = 40
_MAX_CONJUGATE_STEPS = 1000
# Relative error of a load on a link with a price: of convergence, and the largest accepted one.
_TOLERANCE = 1e-9
_MAX_ERROR = 1e-6
# Relative residual of conjugate gradients: for a Newton step, and for a gradient.
_STEP_RESIDUAL = 1e-4
_GRADIENT_RESIDUAL = 1e-12
_MAX_MOVE = 4.0  # approximate limit of a price step, as a multiple of t
# Armijo's sufficient decrease, as a share of the decrease predicted by the slope.
_SUFFICIENT_DECREASE = 1e-4
# Regularisation of H for a gradient, in units of capacity over mean value, for links whose loads do
# not depend on prices.
_DAMPING = 1e-12


class OptimalValue(NamedTuple):
    """Optimal values of B pairs of demands and capacities, differentiable in both.

    Attributes:
        value: (B,) value of the allocation, with the gradient of the dual bound at ``prices``.
        error: (B,) certified distance between value and bound, absolute.
        splits: (B, D, K) splits of the allocation, without a gradient.
        prices: (B, E) prices of the bound, without a gradient.
    """

    value: Tensor
    error: Tensor
    splits: Tensor
    prices: Tensor


def optimal_value(
    problem: Problem, demand: Tensor, capacity: Tensor | None = None, *, gap: float = 1e-3
) -> OptimalValue:
    """Compute the optimum under other demands and capacities, differentiable in both.

    The gradient is the gradient of the dual bound at the prices of the solution: the link price by
    capacity, and the profit of the best path, max(0, max_k (v[d, k] - price(d, k))), by demand.

    Args:
        problem: network, paths and objective; its demands are ignored.
        demand: (B, D) Gbit/s.
        capacity: (E,) or (B, E) Gbit/s; None for the capacities of the first matrix of ``problem``.
        gap: target gap.

    Raises:
        InputError: demands or capacities of another shape, negative or not finite; an objective
            that is not one linear program over paths; a side condition.
    """
    problem = _problem_under("optimal_value", problem, demand, capacity)
    if problem.objective.rules.is_sequence or not problem.is_linear:
        raise InputError(
            "optimal_value",
            "problem",
            "an objective that is one linear program",
            problem.objective.name,
        )
    # Solve without gradients; then the bound as a differentiable function at the optimal prices.
    result = solve(_detached(problem), gap=gap)
    prices = usable_prices(problem, result.prices)
    bound = from_score(problem, problem.program.bound(prices))
    error = (bound - result.value).abs().detach()
    # Its value is that of the allocation, its gradient that of the bound.
    return OptimalValue(
        bound + (result.value - bound).detach(), error, result.splits, result.prices
    )


def smooth_splits(
    problem: Problem, demand: Tensor, capacity: Tensor | None = None, *, temperature: float = 0.02
) -> Tensor:
    """Compute optimal splits (B, D, K) of the program with entropy, differentiable in demands and
    capacities.

        max <v, x> + t sum_d demand[d] entropy(w[d])   s.t.   loads <= c,   x[d] = demand[d] w[d],

    where w[d] are the splits of demand d, x its flows, v the value of a Gbit/s on each path, and c
    the capacities.

    Args:
        problem: network, paths and an objective that maximises a linear value; its demands are
            ignored.
        demand: (B, D) Gbit/s.
        capacity: (E,) or (B, E) Gbit/s; None for the capacities of the first matrix of ``problem``.
        temperature: t over the mean value of a Gbit/s.  A smaller one is closer to the linear
            program, with larger gradients in fewer places.

    Raises:
        InputError: demands or capacities of another shape, negative or not finite; another
            objective; a side condition; a temperature of 0 or below.
        SolverError: a temperature too small for float64.
    """
    problem = _problem_under("smooth_splits", problem, demand, capacity)
    if not isinstance(problem.demand_set, AtMostOne) or problem.objective.rules.is_sequence:
        expected = "an objective that maximises a linear value"
        raise InputError("smooth_splits", "problem", expected, problem.objective.name)
    if not 0 < temperature < float("inf"):
        raise InputError("smooth_splits", "temperature", "a number above 0", temperature)
    return cast(
        Tensor,
        _SmoothSplits.apply(problem.demand, problem.capacity, _detached(problem), temperature),
    )


def _problem_under(
    caller: str, problem: Problem, demand: Tensor, capacity: Tensor | None
) -> Problem:
    """Return a float64 problem with other demands and capacities, which keep their gradients.

    Args:
        caller: name of the calling function, for messages.
        problem: network, paths and objective.
        demand: (B, D) Gbit/s.
        capacity: (E,) or (B, E) Gbit/s; None for the capacities of the first matrix of ``problem``.

    Raises:
        InputError: a side condition, or arrays of another shape, negative or not finite.
    """
    if problem.conditions or problem.max_share is not None:
        condition_names = [type(condition).__name__ for condition in problem.conditions] or [
            "a largest share"
        ]
        raise InputError(caller, "problem", "no side conditions", ", ".join(condition_names))
    checked("demand", demand.detach().cpu().numpy(), problem.paths.num_demands)
    problem = problem.to(torch.float64).with_demand(demand)
    if capacity is None:
        return problem
    capacity_rows = checked(
        "capacity", torch.atleast_2d(capacity.detach()).cpu().numpy(), problem.topology.num_links
    )
    if len(capacity_rows) not in (1, len(demand)):
        raise InputError(
            "problem",
            "capacity",
            f"1 row, or {len(demand)} rows like demand",
            f"{len(capacity_rows)} rows",
        )
    return problem.with_capacity(capacity)


def _detached(problem: Problem) -> Problem:
    """Return the problem with demands and capacities detached from the gradient."""
    capacity = problem.capacity.detach()
    return dataclasses.replace(problem.with_demand(problem.demand.detach()), capacity=capacity)


class _SmoothSplits(torch.autograd.Function):
    """Splits (B, D, K) as an autograd function of demands (B, D) and capacities (B, E).

    Forward: softmax splits at the prices that minimise the smoothed dual function.  Backward: the
    implicit function theorem at the optimum, one linear system per gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, demand: Tensor, capacity: Tensor, problem: Problem, temperature: float
    ) -> Tensor:
        """Minimise the smoothed dual over prices; return its softmax splits (B, D, K).

        Args:
            ctx: autograd context; keeps the dual function, the prices (B, E) and the splits.
            demand: (B, D) Gbit/s.
            capacity: (B, E) Gbit/s.
            problem: the problem with these demands and capacities, without gradients.
            temperature: t over the mean value of a Gbit/s.
        """
        # Autograd needs demand and capacity as arguments; ``problem`` has both values.
        del demand, capacity
        ctx.dual = _SmoothedDual(problem, temperature)
        ctx.prices = _optimal_prices(problem, temperature)
        ctx.splits = ctx.dual.splits(ctx.prices)
        return cast(Tensor, ctx.splits)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the gradients by demands (B, D) and capacities (B, E).

        The incoming gradient g (B, D, K) is by the splits w.  With the incidence A of paths and
        links, J[d] = diag(w[d]) - w[d] w[d]' and the Hessian H of the smoothed dual, solve H s =
        -A' J g / t on the links with a price; then the gradient is sum_k w[d, k] pathsum(s) by
        demand[d], and -s by the capacities.
        """
        dual: _SmoothedDual = ctx.dual
        has_price = ctx.prices > 0
        # Right-hand side -A' J g / t, and the solution s of the linear system.
        rhs = -dual.ops.link_sum(dual.slope(ctx.splits, grads[0]))
        price_change = dual.solve_for_prices(ctx.splits, has_price, rhs)
        return (ctx.splits * dual.ops.path_sum(price_change)).sum(-1), -price_change, None, None


def _optimal_prices(problem: Problem, temperature: float) -> Tensor:
    """Return the prices (B, E) that minimise the smoothed dual, by continuation in the temperature.

    Newton's method starts from prices of the linear program at a high temperature, and each lower
    temperature from the last prices.

    Args:
        problem: B matrices, float64.
        temperature: t over the mean value of a Gbit/s.

    Raises:
        SolverError: the load error exceeds 1e-6 of a capacity, the limit of float64.
    """
    prices = usable_prices(problem, solve(problem, gap=_START_GAP).prices, max_ratio=1.0)
    prices = torch.where(problem.capacity > 0, prices, 0)
    # Higher temperatures, where the splits change less abruptly with the prices, come first.
    higher_temperature = _FIRST_TEMPERATURE
    while higher_temperature > temperature:
        prices, _ = _SmoothedDual(problem, higher_temperature).minimise(prices, _MAX_ERROR)
        higher_temperature *= _COOLING
    prices, error = _SmoothedDual(problem, temperature).minimise(prices, _TOLERANCE)
    if not error <= _MAX_ERROR:
        raise SolverError(
            f"smooth_splits: load error {error:.1e} of a capacity at temperature "
            f"{temperature:g}; try a larger temperature"
        )
    return prices


class _SmoothedDual:
    """Smoothed dual F of B pairs of demands and capacities, float64.

    F(p) = sum_e c[e] p[e] + t sum_d demand[d] log(1 + sum_k exp((v[d, k] - price(d, k)) / t)),
    with link prices p, capacities c, temperature t, and the value v[d, k] of a Gbit/s and the price
    of path k of demand d.

    Args:
        problem: B matrices.
        temperature: t over the mean value of a Gbit/s.
    """

    def __init__(self, problem: Problem, temperature: float) -> None:
        self._problem = problem
        self.ops = problem.ops
        self._value_unit = mean_value(problem).clamp(min=1e-30)
        self._temperature = temperature * self._value_unit
        self._is_live = problem.capacity > 0

    def _logits(self, prices: Tensor) -> Tensor:
        """Return (B, D, K + 1) profit over temperature of each path at prices (B, E).

        Dead paths have -inf; the last entry of each demand, 0, stands for rejection.
        """
        profit = self._problem.path_value - self.ops.path_sum(prices)
        logits = torch.where(self._problem.path_mask, profit / self._temperature, -torch.inf)
        return torch.cat([logits, torch.zeros_like(logits[..., :1])], -1)

    def splits(self, prices: Tensor) -> Tensor:
        """Return (B, D, K) softmax splits w at prices (B, E)."""
        return self._logits(prices).softmax(-1)[..., :-1]

    def value(self, prices: Tensor) -> Tensor:
        """Return (B,) the smoothed dual value F at prices (B, E)."""
        smoothed_profit = self._temperature * self._logits(prices).logsumexp(-1)
        return self._problem.capacity_value(prices) + (self._problem.demand * smoothed_profit).sum(
            1
        )

    def slope(self, splits: Tensor, change: Tensor) -> Tensor:
        """Return (B, D, K) the derivative of the splits along a change of the profits.

        It is J change / t with J[d] = diag(w[d]) - w[d] w[d]', the Jacobian of the softmax at the
        splits w, and the temperature t.

        Args:
            splits: (B, D, K) softmax splits w.
            change: (B, D, K) change of the profits.
        """
        return splits * (change - (splits * change).sum(-1, keepdim=True)) / self._temperature

    def minimise(self, prices: Tensor, tolerance: float) -> tuple[Tensor, float]:
        """Minimise the smoothed dual F by Newton steps projected onto p >= 0 (Bertsekas 1982).

        A step changes the prices of free links only: links whose price is positive or would rise.

        Args:
            prices: (B, E) start.
            tolerance: relative error of the load of every free link at which to stop.

        Returns:
            prices (B, E), and the largest relative error of a load.
        """
        problem = self._problem
        capacity = self._problem.capacity
        value = self.value(prices)
        load_error = torch.full((problem.batch,), torch.inf)
        for _ in range(_MAX_STEPS):
            # Gradient c - load; stop where it vanishes on all free links.
            splits = self.splits(prices)
            gradient = torch.where(self._is_live, capacity - problem.loads(splits), 0)
            is_free = self._is_live & ((prices > 0) | (gradient < 0))
            load_error = torch.where(is_free, gradient.abs() / capacity.clamp(min=1e-30), 0).amax(1)
            is_unconverged = load_error > tolerance
            if not bool(is_unconverged.any()):
                break
            # Newton step.  H is almost 0 where no demand responds to the price; damping then limits
            # steps to a few t.
            damping = gradient.abs() / (_MAX_MOVE * self._temperature)
            newton_step = self._solve_system(
                splits, is_free, torch.where(is_free, -gradient, 0), damping, _STEP_RESIDUAL
            )
            prices, value = self._line_search(prices, value, gradient, newton_step, is_unconverged)
        return prices, float(load_error.amax())

    def _line_search(
        self,
        prices: Tensor,
        value: Tensor,
        gradient: Tensor,
        newton_step: Tensor,
        is_unconverged: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Halve each matrix's step until the smoothed dual F decreases sufficiently (Armijo).

        Args:
            prices: (B, E) present prices.
            value: (B,) F at these prices.
            gradient: (B, E) gradient of F.
            newton_step: (B, E) Newton step.
            is_unconverged: (B,) bool, matrices that are not yet optimal.

        Returns:
            prices (B, E), unchanged where no step is accepted, and F (B,).
        """
        # (B,) step length: first 1 for matrices that have not converged, and 0 for the others.
        step_length = is_unconverged.to(value)
        for _ in range(_MAX_HALVINGS):
            new_prices = (prices + step_length[:, None] * newton_step).clamp(min=0)
            new_value = self.value(new_prices)
            predicted_decrease = (gradient * (new_prices - prices)).sum(1)
            # Near the minimum the decrease is smaller than the rounding of F.
            rounding = 1e-14 * value.abs()
            is_accepted = new_value <= value + _SUFFICIENT_DECREASE * predicted_decrease + rounding
            if bool(is_accepted.all()):
                break
            step_length = torch.where(is_accepted, step_length, step_length / 2)
        return torch.where(is_accepted[:, None], new_prices, prices), torch.where(
            is_accepted, new_value, value
        )

    def solve_for_prices(self, splits: Tensor, has_price: Tensor, rhs: Tensor) -> Tensor:
        """Return (B, E) the solution of H s = ``rhs`` on links with a price, and 0 on other links.

        H is the Hessian of the smoothed dual at the optimum.

        Args:
            splits: (B, D, K) splits at the optimum.
            has_price: (B, E) bool, links with a positive price.
            rhs: (B, E) right-hand side.
        """
        damping = _DAMPING * self._problem.capacity / self._value_unit
        return self._solve_system(
            splits, has_price, torch.where(has_price, rhs, 0), damping, _GRADIENT_RESIDUAL
        )

    def _solve_system(
        self, splits: Tensor, is_free: Tensor, rhs: Tensor, damping: Tensor, tolerance: float
    ) -> Tensor:
        """Solve (H + damping) s = ``rhs`` on the free links by conjugate gradients; s is 0
        elsewhere.

        H = A' (demand J / t) A is the Hessian of the smoothed dual, with the incidence A of paths
        and links, and J[d] = diag(w[d]) - w[d] w[d]' for the splits w.

        Args:
            splits: (B, D, K) splits w.
            is_free: (B, E) bool, free links.
            rhs: (B, E) right-hand side, 0 on other links.
            damping: (B, E) diagonal regularisation.
            tolerance: relative residual at which to stop.
        """
        # Diagonal of the matrix, for the Jacobi preconditioner.
        demand_column = self._problem.demand[..., None]
        diagonal = (
            self.ops.link_sum(demand_column * splits * (1 - splits)) / self._temperature + damping
        )

        def apply_matrix(price_change: Tensor) -> Tensor:
            product = self.ops.link_sum(
                demand_column * self.slope(splits, self.ops.path_sum(price_change))
            )
            return torch.where(is_free, product + damping * price_change, 0)

        return _conjugate_gradients(
            apply_matrix,
            rhs,
            torch.where(diagonal > 0, 1 / diagonal.clamp(min=1e-300), 0),
            tolerance,
        )


def _conjugate_gradients(
    apply_matrix: Callable[[Tensor], Tensor],
    rhs: Tensor,
    inverse_diagonal: Tensor,
    tolerance: float,
) -> Tensor:
    """Return the solutions (B, E) of B positive definite systems, by preconditioned conjugate
    gradients.

    Args:
        apply_matrix: product of the matrices with (B, E) vectors.
        rhs: (B, E) right-hand sides.
        inverse_diagonal: (B, E) Jacobi preconditioner.
        tolerance: relative residual at which a system is solved.
    """
    # Norms are those of the residual in the metric of the preconditioner, (B,).
    solution = torch.zeros_like(rhs)
    residual = rhs
    preconditioned = inverse_diagonal * residual
    direction = preconditioned
    squared_norm = (residual * preconditioned).sum(1)
    squared_tolerance = tolerance**2 * squared_norm
    for _ in range(_MAX_CONJUGATE_STEPS):
        if bool((squared_norm <= squared_tolerance).all()):
            break
        # Step lengths along the directions; 0 for solved systems.
        product = apply_matrix(direction)
        curvature = (direction * product).sum(1)
        step_length = torch.where(
            (squared_norm > squared_tolerance) & (curvature > 0),
            squared_norm / curvature.clamp(min=1e-300),
            0,
        )[:, None]
        solution = solution + step_length * direction
        residual = residual - step_length * product
        # Next conjugate directions.
        preconditioned = inverse_diagonal * residual
        last_squared_norm = squared_norm
        squared_norm = (residual * preconditioned).sum(1)
        direction = (
            preconditioned
            + (squared_norm / last_squared_norm.clamp(min=1e-300))[:, None] * direction
        )
    return solution
