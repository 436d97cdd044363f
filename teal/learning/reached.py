"""Figures of a trained model on the validation matrices: alone, and with the repair of its scheme."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch

from teal.formats.allocations import finite_only
from teal.nn.checkpoint import note_in_card
from teal.problem import Problem, assess
from teal.runtime.arrays import Int64Array
from teal.schemes import make_scheme
from teal.solvers.cut_only import cut_only
from teal.solvers.result import Starter


@dataclasses.dataclass(frozen=True)
class Reached:
    """Means over the validation matrices.

    Attributes:
        cut_demand: share of the demand that the model's splits carry when they are cut to fit, without any repair.
        cut_gap: certified gap of those, by the model's prices.
        repaired_demand: share of the demand that its scheme carries: ``teal`` by ADMM, ``price-gnn`` by the projection.
        repaired_gap: certified gap of that.
    """

    cut_demand: float
    cut_gap: float
    repaired_demand: float
    repaired_gap: float


def measure_reached(
    folder: Path, scheme_name: str, rows: Int64Array, problem_of: Callable[[Int64Array], Problem]
) -> Reached:
    """Measure the checkpoint in ``folder``, and note it under ``training`` in its card.

    Args:
        folder: of the checkpoint.
        scheme_name: of the scheme that allocates by it, ``teal`` or ``price-gnn``.
        rows: numbers of the matrices.
        problem_of: the problem of such numbers.
    """
    scheme = make_scheme(scheme_name, folder)
    assert isinstance(scheme, Starter)
    sums = torch.zeros(4, dtype=torch.float64)
    for row in range(len(rows)):
        problem = problem_of(rows[row : row + 1])
        alone, repaired = cut_only(problem, *scheme.start(problem)), assess(problem, scheme.solve(problem))
        sums += torch.stack([alone.satisfied_demand, alone.gap, repaired.satisfied_demand, repaired.gap])[:, 0].cpu()
    reached = Reached(*(sums / len(rows)).tolist())
    note_in_card(folder, "reached", finite_only(dataclasses.asdict(reached)))
    return reached
