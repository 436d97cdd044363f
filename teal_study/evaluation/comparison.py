"""Comparison of schemes on one case: the best dual bound of all schemes, gaps by the prices of the
best scheme, and fairness of rates.
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
    class_certificates,
)
from teal.problem.bounds import gap
from teal.problem.fair_levels import fair_certificates
from teal.solvers.projection import CutOnly
from teal.solvers.sequences.fairness import fairness

# Rates below this fraction of the largest capacity count as equal (as in the paper that defines the
# fairness metric).
_MIN_RATE = 1e-4


@dataclasses.dataclass(frozen=True, eq=False)
class SchemeResult:
    """Allocation of a scheme for one case, and its assessment.

    Attributes:
        allocation: B = 1; of status failed if the scheme failed.
        assessment: assessment of the allocation.
        note: reason for which the scheme failed; ``""`` if it did not.
        wall_s: seconds by the clock of the evaluation; NaN if the scheme failed.
        model_alone: metrics of the splits of a scheme's model, which are only scaled down to fit
            the capacities; None for a scheme without a model.
        proved_gap: gap that the checker of proofs computed; NaN if no proof was requested.
    """

    allocation: Allocation
    assessment: Assessment
    note: str = ""
    wall_s: float = float("nan")
    model_alone: CutOnly | None = None
    proved_gap: float = float("nan")


def best_bounds(problem: Problem, results: Mapping[str, SchemeResult]) -> tuple[Tensor, Tensor]:
    """Return the best dual bound of all schemes over the candidate paths, and the bound that the
    prices of this scheme prove over all paths of the network.

    Args:
        problem: problem of the case, B = 1.
        results: result of each scheme, by name.

    Returns:
        two tensors (1,).  The second is NaN unless a scheme has its own paths; both are NaN if no
        scheme has a bound.
    """
    # Bounds by scheme with candidate paths: the smallest for a maximum, the largest for a minimum.
    unknown_bound = torch.full((1,), float("nan"), dtype=torch.float64)
    bounds = {
        name: result.assessment.bound
        for name, result in results.items()
        if result.allocation.paths is None and not bool(result.assessment.bound.isnan())
    }
    best_bound = unknown_bound
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
    return best_bound, unknown_bound


def gaps_of_sequence(problem: Problem, results: Mapping[str, SchemeResult]) -> dict[str, float]:
    """Return ``gap_known`` of each scheme under priority and max_min, whose bounds depend on the
    allocation.

    It is the smaller one of two gaps: by the scheme's own prices, and by the prices of the best
    scheme, which has an optimum or the smallest gap.  Under priority it is the widest gap of a
    class.

    Args:
        problem: problem of the case, B = 1.
        results: result of each scheme, by name.

    Returns:
        gaps by scheme; {} under another objective, or if no scheme has prices of the sequence.
    """
    best_scheme = _best_scheme(problem, results)
    if best_scheme is None:
        return {}
    prices = results[best_scheme].allocation.program_prices
    assert prices is not None
    gaps = {}
    for name, result in results.items():
        if result.assessment.status[0].usable and result.allocation.paths is None:
            gaps[name] = min(
                _gap_by_prices(problem, result, prices), float(result.assessment.gap[0])
            )
    return gaps


def fairness_of(problem: Problem, results: Mapping[str, SchemeResult]) -> dict[str, float]:
    """Return the fairness of each scheme's rates against those of the scheme with the smallest gap.

    Args:
        problem: problem of the case, B = 1.
        results: result of each scheme, by name.

    Returns:
        fairness by scheme under max_min; {} under another objective.
    """
    best_scheme = _best_scheme(problem, results)
    if best_scheme is None or problem.objective.name != ObjectiveName.MAX_MIN:
        return {}
    rates = {
        name: problem.flows(result.allocation.splits.to(problem.demand)).sum(-1)
        for name, result in results.items()
        if result.assessment.status[0].usable
    }
    min_rate = _MIN_RATE * float(problem.topology.capacity.max())
    return {
        name: float(fairness(rate, rates[best_scheme], min_rate)[0]) for name, rate in rates.items()
    }


def _best_scheme(problem: Problem, results: Mapping[str, SchemeResult]) -> str | None:
    """Return the name of the best scheme with prices for every program of the objective's sequence:
    one with an optimum, else the one with the smallest gap.

    None is returned under an objective with a single program, and without such a scheme.

    Args:
        problem: problem of the case, B = 1.
        results: result of each scheme, by name.
    """
    if not problem.objective.rules.is_sequence:
        return None
    sort_keys = {
        name: (result.assessment.status[0] is not Status.OPTIMAL, float(result.assessment.gap[0]))
        for name, result in results.items()
        if result.assessment.status[0].usable and result.allocation.program_prices is not None
    }
    return min(sort_keys, key=lambda name: sort_keys[name], default=None)


def _gap_by_prices(problem: Problem, result: SchemeResult, prices: ProgramPrices) -> float:
    """Return the gap of an allocation by the prices of another scheme.

    Under priority each class gets the better of that bound and its own, and the widest gap counts.

    Args:
        problem: problem of the case, B = 1.
        result: the allocation.
        prices: prices of the other scheme for each program of the sequence.
    """
    # Priority classes; else the levels of max_min, whose limits sum to the bound.
    splits = result.allocation.splits
    class_bounds = result.assessment.classes
    if class_bounds is not None:
        certificates = class_certificates(problem, splits, prices.prices)
        return float(
            dataclasses.replace(
                certificates, bound=torch.minimum(certificates.bound, class_bounds.bound)
            ).gap.max()
        )
    level_limits = fair_certificates(problem, splits, prices).limit
    return float(gap(problem, result.assessment.value, level_limits.sum(1))[0])
