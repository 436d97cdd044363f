"""What a trained model reached on the validation matrices: alone, and with the repair of its scheme."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import torch

from teal.nn.checkpoint import PRICE_GNN_KIND, kind_of, load_flow_gnn, load_price_gnn, note_in_card
from teal.problem import Problem, assess
from teal.runtime.arrays import Int64Array
from teal.schemes.flow_gnn import FlowGnnScheme
from teal.schemes.price_gnn import PriceGnnScheme
from teal.solvers.cut_only import cut_only


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


def measure_reached(folder: Path, rows: Int64Array, problem_of: Callable[[Int64Array], Problem]) -> Reached:
    """Measure the checkpoint in ``folder``, and note it under ``training`` in its card.

    Args:
        folder: of the checkpoint.
        rows: numbers of the matrices.
        problem_of: the problem of such numbers.
    """
    scheme: FlowGnnScheme | PriceGnnScheme
    if kind_of(folder) == PRICE_GNN_KIND:
        scheme = PriceGnnScheme(load_price_gnn(folder)[0])
    else:
        scheme = FlowGnnScheme(load_flow_gnn(folder)[0])
    sums = torch.zeros(4, dtype=torch.float64)
    for row in range(len(rows)):
        problem = problem_of(rows[row : row + 1])
        scheme.model.to(problem.demand.device)
        alone, repaired = cut_only(problem, *scheme.start(problem)), assess(problem, scheme.solve(problem))
        sums += torch.stack([alone.satisfied_demand, alone.gap, repaired.satisfied_demand, repaired.gap])[:, 0].cpu()
    reached = Reached(*(sums / len(rows)).tolist())
    figures = dataclasses.asdict(reached)
    note_in_card(folder, "reached", {name: one if math.isfinite(one) else None for name, one in figures.items()})
    return reached
