r"""Weighted max-min fair rates over several paths a demand, by an iteration over levels of links.

An allocation is max-min fair if no rate f[d] / w[d] can be raised without lowering one that is not
larger (Bertsekas & Gallager, Data Networks, 6.5.2).  The iteration keeps a level r[e] for each
link, the rate per weight that it grants:

    level(d, k) = least r[e] along the path,      best(d) = max over k of level(d, k),
    f[d] = min(demand[d], w[d] best(d)),  divided among its paths in the ratio (level(d, k) / best(d))^q,  q rising,
    r[e] <- r[e] (load[e] / c[e])^-gamma,         gamma falling.

A link that is overloaded lowers the level of all demands for which it is the bottleneck, a link
with room raises it, so that at a fixed point every demand that is not carried whole crosses on each
of its best paths a full link where nobody has a higher level: the condition of a bottleneck. One
iteration is a scan for the least level along the paths and one for the loads. The rates of the
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

# Iterations where the caller gives none: on small networks, where they take 20 ms, the rates are
# closer with more.
# Paths up to which a network is small.
_SMALL_NETWORK_PATHS = 20_000
_ITERATIONS_SMALL = 150
_ITERATIONS = 100
# Exponent of levels in the division of a demand among its paths, in the first and the last
# iteration: sharp ones send a demand over its best paths alone, as max-min fairness asks, but
# oscillate at first.
_LEVEL_EXPONENTS = (5.0, 60.0)
# First exponent of a level's change, and share of the iterations in which it halves.
_FIRST_CHANGE_EXPONENT = 0.3
_HALVING_SHARE = 1 / 8
_MAX_CHANGE = 4.0  # of a link's utilisation, up or down, that an iteration answers
_AVERAGED_FROM = 0.5  # share of the iterations before the average begins
_MIN_DIVISOR = 1e-30  # instead of 0 as a divisor


def require_shedding(scheme: str, objective: Objective) -> None:
    """Raise InputError for a program that must carry all demand, where rates have nothing to be
    fair about.
    """
    if not objective.may_shed:
        raise InputError(scheme, "objective", "one that may shed demand", objective.name)


def weights_of(problem: Problem, weight: Tensor | None) -> Tensor:
    """(B, D) w, of (D,) or (B, D) weights; for None those of the objective max_min, 1 each under
    another one.
    """
    if weight is None and problem.objective.name == ObjectiveName.MAX_MIN:
        weight = problem.demand_value
    return (
        torch.ones_like(problem.demand)
        if weight is None
        else weight.to(problem.demand).expand_as(problem.demand)
    )


def usual_iterations(problem: Problem) -> int:
    """Iterations over the levels of links that suit a network."""
    return _ITERATIONS_SMALL if problem.paths.mask.size <= _SMALL_NETWORK_PATHS else _ITERATIONS


def fair_flows(
    problem: Problem, weight: Tensor | None, iterations: int, deadline: Deadline | None = None
) -> Steps[Tensor]:
    """(B, D, K) Gbit/s of the iteration, which may overload links by a few per cent; pauses after
    each iteration.

    Args:
        problem: B matrices; its type is that of the numbers, of which float32 is precise enough.
        weight: (D,) or (B, D) w, above 0; None as in :func:`weights_of`.
        iterations: number of them.
        deadline: after which no further iteration begins; None for none.
    """
    weight = weights_of(problem, weight)
    highest = (problem.demand / weight).amax(1, keepdim=True).clamp(min=_MIN_DIVISOR)
    level = highest.expand_as(problem.capacity)
    total, count, flows = torch.zeros_like(problem.even_splits), 0, problem.even_splits
    for number in range(iterations):
        if number and deadline is not None and deadline.is_over:
            return total / count if count else flows
        of_path = torch.where(problem.path_mask, -problem.ops.path_max(-level)[0], 0)
        best = of_path.amax(-1, keepdim=True)
        sharpness = _LEVEL_EXPONENTS[0] * (_LEVEL_EXPONENTS[1] / _LEVEL_EXPONENTS[0]) ** (
            number / iterations
        )
        share = torch.where(
            problem.path_mask, (of_path / best.clamp(min=_MIN_DIVISOR)) ** sharpness, 0
        )
        rate = torch.minimum(problem.demand, weight * best[..., 0])
        flows = rate[..., None] * share / share.sum(-1, keepdim=True).clamp(min=_MIN_DIVISOR)
        if number >= _AVERAGED_FROM * iterations:
            total, count = total + flows, count + 1
        utilisation = problem.ops.link_sum(flows) * problem.inverse_capacity
        change = utilisation.clamp(min=1 / _MAX_CHANGE, max=_MAX_CHANGE) ** (
            -_FIRST_CHANGE_EXPONENT / (1 + number / (_HALVING_SHARE * iterations))
        )
        level = torch.minimum(level * change, highest)
        yield
    return total / max(1, count)


def is_bottlenecked(
    problem: Problem, splits: Tensor, weight: Tensor | None = None, tolerance: float = 0.05
) -> Bool[Tensor, "B D"]:
    """(B, D) whether a demand has its bottleneck: it is carried whole, or every live path crosses a
    full link.

    A link counts as full from 1 - ``tolerance`` of its capacity on, and only if no demand that
    sends more than ``tolerance`` of its rate over it has a rate per weight above the demand's own
    by more than ``tolerance``.  The condition is that of max-min fairness for one path a demand,
    checked without the iteration.

    Args:
        problem: B matrices.
        splits: (B, D, K).
        weight: as in :func:`weights_of`.
        tolerance: relative.
    """
    problem = problem.to(torch.float64)
    flows = problem.flows(splits.to(problem.demand))
    rates = flows.sum(-1)
    level = rates / weights_of(problem, weight)
    full = problem.loads(splits.to(problem.demand)) >= (1 - tolerance) * problem.capacity
    path, link = (torch.from_numpy(part) for part in problem.paths.incidences())
    demand = torch.div(path, problem.paths.num_paths, rounding_mode="floor")
    result = rates >= (1 - tolerance) * problem.demand
    for b in range(problem.batch):
        sends = flows[b].reshape(-1)[path] > tolerance * rates[b][demand]
        highest = torch.zeros_like(problem.capacity[b])
        highest.scatter_reduce_(0, link[sends], level[b][demand[sends]], "amax")
        stops = full[b][link] & (level[b][demand] >= (1 - tolerance) * highest[link])
        stopped = torch.zeros(problem.paths.leaf.size, dtype=torch.bool)
        stopped[path[stops]] = True
        every = (stopped.view(problem.paths.leaf.shape) | ~problem.path_mask[b]).all(-1)
        result[b] |= every
    return result


def fairness(rates: Tensor, reference: Tensor, least: float) -> Tensor:
    """(B,) geometric mean over the demands of min(f / g, g / f), with f and g at least ``least``.

    The measure of Namyar et al., "Solving Max-Min Fair Resource Allocations Quickly on Large
    Graphs" (NSDI 2024).

    Args:
        rates: (B, D) f, Gbit/s.
        reference: (B, D) g, max-min fair rates.
        least: Gbit/s below which differences do not count.
    """
    f, g = rates.clamp(min=least), reference.clamp(min=least)
    return torch.minimum(f / g, g / f).log().mean(-1).exp()
