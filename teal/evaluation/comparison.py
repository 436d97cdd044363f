"""Schemes on one case, compared: by the best bound of all of them, by each other's prices, by their
rates.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from teal.objectives import ObjectiveName
from teal.problem import (
    Allocation,
    Assessment,
    Problem,
    ProgramPrices,
    Status,
    all_paths_bound,
    class_figures,
)
from teal.problem.bounds import gap
from teal.problem.fair_levels import fair_figures
from teal.solvers.projection import CutOnly
from teal.solvers.sequences.fairness import fairness

# Share of the largest capacity below which differences of rates do not count, as in the paper of
# the measure.
_MIN_RATE = 1e-4


@dataclasses.dataclass(frozen=True, eq=False)
class SchemeResult:
    """The allocation of a scheme for one case, and its assessment.

    Attributes:
        allocation: B = 1; of status failed if the scheme failed.
        assessment: assessment of the allocation.
        note: why the scheme failed; ``""`` if it did not.
        wall_s: seconds by the clock of the evaluation; NaN if the scheme failed.
        model_alone: what the splits of a scheme's model carry when they are cut to fit; None for a
            scheme without a model.
        proved_gap: gap that the checker of proofs found; NaN where no proof was asked for.
    """

    allocation: Allocation
    assessment: Assessment
    note: str = ""
    wall_s: float = float("nan")
    model_alone: CutOnly | None = None
    proved_gap: float = float("nan")


def best_bounds(problem: Problem, results: Mapping[str, SchemeResult]) -> tuple[Tensor, Tensor]:
    """(1,) the best bound over the candidate paths, and the bound of the same prices over all paths
    of the network.

    The second is NaN unless a scheme has paths of its own, and both are NaN if no scheme has a
    bound.
    """
    unknown = torch.full((1,), float("nan"), dtype=torch.float64)
    bounds = {
        name: result.assessment.bound
        for name, result in results.items()
        if result.allocation.paths is None and not bool(result.assessment.bound.isnan())
    }
    best_bound = unknown
    prices = torch.zeros_like(problem.capacity)
    if bounds:
        best_scheme = min(
            bounds, key=lambda name: problem.objective.rules.sense * float(bounds[name])
        )
        best_bound = bounds[best_scheme]
        best_prices = results[best_scheme].allocation.prices
        prices = prices if best_prices is None else best_prices
    if any(result.allocation.paths is not None for result in results.values()):
        return best_bound, all_paths_bound(problem, prices)
    return best_bound, unknown


def gaps_of_sequence(problem: Problem, results: Mapping[str, SchemeResult]) -> dict[str, float]:
    """``gap_known`` of each scheme under priority and max_min, whose bounds depend on the
    allocation.

    It is by the scheme's own prices or by those of the scheme with the smallest gap, whichever
    prove more; under priority that of the class with the widest one.  {} under another objective,
    or where no scheme has prices of the sequence.
    """
    best = _best(problem, results)
    if best is None:
        return {}
    prices = results[best].allocation.program_prices
    assert prices is not None
    gaps = {}
    for name, result in results.items():
        if result.assessment.status[0].usable and result.allocation.paths is None:
            gaps[name] = min(_gap(problem, result, prices), float(result.assessment.gap[0]))
    return gaps


def fairness_of(problem: Problem, results: Mapping[str, SchemeResult]) -> dict[str, float]:
    """Under max_min the fairness of each scheme's rates against those of the scheme with the
    smallest gap; else {}.
    """
    best = _best(problem, results)
    if best is None or problem.objective.name != ObjectiveName.MAX_MIN:
        return {}
    rates = {
        name: problem.flows(result.allocation.splits.to(problem.demand)).sum(-1)
        for name, result in results.items()
        if result.assessment.status[0].usable
    }
    min_rate = _MIN_RATE * float(problem.topology.capacity.max())
    return {name: float(fairness(rate, rates[best], min_rate)[0]) for name, rate in rates.items()}


def _best(problem: Problem, results: Mapping[str, SchemeResult]) -> str | None:
    """The scheme with prices of the sequence that has an optimum, else the one with the smallest
    gap.
    """
    if not problem.objective.rules.is_sequence:
        return None
    candidates = {
        name: (result.assessment.status[0] is not Status.OPTIMAL, float(result.assessment.gap[0]))
        for name, result in results.items()
        if result.assessment.status[0].usable and result.allocation.program_prices is not None
    }
    return min(candidates, key=lambda name: candidates[name], default=None)


def _gap(problem: Problem, result: SchemeResult, prices: ProgramPrices) -> float:
    """The gap of an allocation by the prices of another scheme; of each class by the better
    ones.
    """
    splits = result.allocation.splits
    class_bounds = result.assessment.classes
    if class_bounds is not None:
        figures = class_figures(problem, splits, prices.prices)
        return float(
            dataclasses.replace(
                figures, bound=torch.minimum(figures.bound, class_bounds.bound)
            ).gap.max()
        )
    limit = fair_figures(problem, splits, prices).limit
    return float(gap(problem, result.assessment.value, limit.sum(1))[0])
