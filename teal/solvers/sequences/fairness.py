r"""Approximate weighted max-min fair rates over several paths per demand, by link levels.

An allocation is max-min fair if no rate f[d] / w[d] can be raised without lowering one that is not
larger (Bertsekas & Gallager, Data Networks, 6.5.2).  The iteration (:func:`fair_flows`) has a level
r[e] for each link, the rate per weight that it grants:

    level(d, k) = least r[e] along the path,      best(d) = max over k of level(d, k),
    f[d] = min(demand[d], w[d] best(d)),  divided among its paths in the ratio (level(d, k) /
    best(d))^q,  q rising, r[e] <- r[e] (load[e] / c[e])^-gamma,         gamma falling.

An overloaded link lowers the level of all demands for which it is the bottleneck, a link with
unused capacity raises it.  At a fixed point every demand that is not fully served crosses, on each
of its best paths, a full link where no demand has a higher level: the bottleneck condition.  One
iteration is a scan for the smallest level along the paths and one for the loads.  The rates of the
later iterations are averaged; they may overload links by a few per cent, which
:mod:`teal.solvers.sequences.max_min` removes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from teal.errors import InputError
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.runtime.interruptible import Deadline, Steps
from teal.runtime.shapes import Bool

# Default iterations: small networks, where they take 20 ms, gain accuracy from more.
_SMALL_NETWORK_PATHS = 20_000  # largest number of paths of a small network
_ITERATIONS_SMALL = 150
_ITERATIONS = 100
# Exponent q in the first and the last iteration: a large one uses the best paths only, as max-min
# fairness requires, but oscillates at first.
_LEVEL_EXPONENTS = (5.0, 60.0)
# First exponent gamma, and share of the iterations in which it halves.
_FIRST_CHANGE_EXPONENT = 0.3
_HALVING_SHARE = 1 / 8
_MAX_CHANGE = 4.0  # limit of the utilisation, and of its inverse, in an update of levels
_AVERAGED_FROM = 0.5  # share of the iterations before the average begins
_MIN_DIVISOR = 1e-30  # replaces 0 as a divisor


def require_may_shed(scheme: str, objective: Objective) -> None:
    """Raise InputError if an objective must serve all demand.

    Rates are then fixed by the demands, and cannot be fair shares.

    Args:
        scheme: name of the scheme, for the message.
        objective: the objective.
    """
    if not objective.may_shed:
        raise InputError(scheme, "objective", "an objective that may shed demand", objective.name)


def weights_of(problem: Problem, weight: Tensor | None) -> Tensor:
    """Return (B, D) fairness weights w.

    Args:
        problem: B matrices.
        weight: (D,) or (B, D) weights; None for the weights of max_min, or 1 each under another
            objective.
    """
    if weight is None and problem.objective.name == ObjectiveName.MAX_MIN:
        weight = problem.demand_value
    return (
        torch.ones_like(problem.demand)
        if weight is None
        else weight.to(problem.demand).expand_as(problem.demand)
    )


def usual_iterations(problem: Problem) -> int:
    """Return the default number of iterations over link levels: more for small networks."""
    return _ITERATIONS_SMALL if problem.paths.mask.size <= _SMALL_NETWORK_PATHS else _ITERATIONS


def fair_flows(
    problem: Problem, weight: Tensor | None, iterations: int, deadline: Deadline | None = None
) -> Steps[Tensor]:
    """Compute (B, D, K) approximately fair flows, Gbit/s, pausing after each iteration.

    The iteration is over link levels r[e], the rates per weight that the links grant:

        level(d, k) = smallest r[e] along the path,     best(d) = max over k of level(d, k),
        f[d] = min(demand[d], w[d] best(d)), divided among paths in the ratio (level / best)^q,
        r[e] <- r[e] (load[e] / c[e])^-gamma.

    Here w are the weights, c the capacities, and q and gamma exponents that rise and fall.  The
    flows are averages over the later iterations and may overload links by a few per cent.

    Args:
        problem: B matrices; the iteration uses their dtype, float32 suffices.
        weight: (D,) or (B, D) positive weights w; None for the weights of max_min, or 1 each under
            another objective.
        iterations: number of iterations.
        deadline: deadline of the last iteration; None for no limit.
    """
    # (B, E) link levels, at first the largest useful one; sum of the flows to average.
    weight = weights_of(problem, weight)
    max_level = (problem.demand / weight).amax(1, keepdim=True).clamp(min=_MIN_DIVISOR)
    level = max_level.expand_as(problem.capacity)
    flow_sum = torch.zeros_like(problem.even_splits)
    num_averaged = 0
    flows = problem.even_splits
    for iteration in range(iterations):
        if iteration and deadline is not None and deadline.is_over:
            return flow_sum / num_averaged if num_averaged else flows
        # Level of each path: the smallest level of its links, as minus the largest of -level.
        path_level = torch.where(problem.path_mask, -problem.ops.path_max(-level)[0], 0)
        best_level = path_level.amax(-1, keepdim=True)
        # Exponent q, rising geometrically; unscaled weights of the paths of a demand.
        exponent = _LEVEL_EXPONENTS[0] * (_LEVEL_EXPONENTS[1] / _LEVEL_EXPONENTS[0]) ** (
            iteration / iterations
        )
        path_weight = torch.where(
            problem.path_mask, (path_level / best_level.clamp(min=_MIN_DIVISOR)) ** exponent, 0
        )
        # Rates, divided among the best paths, and their average.
        rate = torch.minimum(problem.demand, weight * best_level[..., 0])
        flows = (
            rate[..., None]
            * path_weight
            / path_weight.sum(-1, keepdim=True).clamp(min=_MIN_DIVISOR)
        )
        if iteration >= _AVERAGED_FROM * iterations:
            flow_sum = flow_sum + flows
            num_averaged = num_averaged + 1
        # Lower the levels of overloaded links, raise those of others.
        utilisation = problem.ops.link_sum(flows) * problem.inverse_capacity
        # The exponent -gamma approaches 0 with the iterations.
        level_factor = utilisation.clamp(min=1 / _MAX_CHANGE, max=_MAX_CHANGE) ** (
            -_FIRST_CHANGE_EXPONENT / (1 + iteration / (_HALVING_SHARE * iterations))
        )
        level = torch.minimum(level * level_factor, max_level)
        yield
    return flow_sum / max(1, num_averaged)


def is_bottlenecked(
    problem: Problem, splits: Tensor, weight: Tensor | None = None, tolerance: float = 0.05
) -> Bool[Tensor, "B D"]:
    """Return (B, D) whether each demand is fully served or has a bottleneck on every live path.

    A bottleneck of a demand is loaded to at least 1 - ``tolerance`` of its capacity, and no demand
    that sends more than ``tolerance`` of its rate over it has a rate per weight larger by more than
    ``tolerance``.  This is the condition of max-min fairness for one path per demand, an
    independent check of the iteration.

    Args:
        problem: B matrices.
        splits: (B, D, K) splits.
        weight: (D,) or (B, D) weights w; None for the weights of max_min, or 1 each under another
            objective.
        tolerance: relative tolerance.
    """
    problem = problem.to(torch.float64)
    flows = problem.flows(splits.to(problem.demand))
    rates = flows.sum(-1)
    level = rates / weights_of(problem, weight)
    is_full = problem.loads(splits.to(problem.demand)) >= (1 - tolerance) * problem.capacity
    # Pairs of a path and a link that it uses, with the demand of the path.
    path_index, link_index = (torch.from_numpy(array) for array in problem.paths.incidences())
    demand_index = torch.div(path_index, problem.paths.num_paths, rounding_mode="floor")
    # Fully served demands, then demands with a bottleneck on every live path.
    is_served_or_limited = rates >= (1 - tolerance) * problem.demand
    for b in range(problem.batch):
        # Largest level of the demands that use each link.
        is_used = flows[b].reshape(-1)[path_index] > tolerance * rates[b][demand_index]
        max_level = torch.zeros_like(problem.capacity[b])
        max_level.scatter_reduce_(0, link_index[is_used], level[b][demand_index[is_used]], "amax")
        # Full links where the demand of the pair has the largest level.
        is_bottleneck = is_full[b][link_index] & (
            level[b][demand_index] >= (1 - tolerance) * max_level[link_index]
        )
        is_path_limited = torch.zeros(problem.paths.leaf.size, dtype=torch.bool)
        is_path_limited[path_index[is_bottleneck]] = True
        is_demand_limited = (
            is_path_limited.view(problem.paths.leaf.shape) | ~problem.path_mask[b]
        ).all(-1)
        is_served_or_limited[b] |= is_demand_limited
    return is_served_or_limited


def fairness(rates: Tensor, reference: Tensor, min_rate: float) -> Tensor:
    """Return (B,) the fairness of rates f against reference rates g.

    It is the geometric mean over the demands of min(f / g, g / f), with both rates raised to at
    least ``min_rate``: the metric of Namyar et al., "Solving Max-Min Fair Resource Allocations
    Quickly on Large Graphs" (NSDI 2024).

    Args:
        rates: (B, D) rates f, Gbit/s.
        reference: (B, D) max-min fair rates g, Gbit/s.
        min_rate: rate below which differences are ignored, Gbit/s.
    """
    f = rates.clamp(min=min_rate)
    g = reference.clamp(min=min_rate)
    return torch.minimum(f / g, g / f).log().mean(-1).exp()
