"""The gain of a training: the trained model beside its start and beside controls, on matrices
that neither the training nor the choice of the weights has seen.

The controls are random weights, the shortest path, and no splits at all, of which the repair makes
what it can; the ceiling is the optimum.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from teal.app.table import Column, Table
from teal.app.text import percent
from teal.problem import Problem, assess
from teal.problem.bounds import gap
from teal.runtime.arrays import Int64Array
from teal.runtime.bootstrap import Interval, interval_of_mean
from teal.runtime.progress import progress_bar
from teal.schemes import Scheme, make_scheme
from teal.solvers import pdhg
from teal.solvers.projection import cut_only, project, share_of_value
from teal.solvers.result import Starter

TRAINED = "trained"
START = "start"
RANDOM = "random weights"
SHORTEST = "shortest path"
NULL = "null (repair alone)"
OPTIMUM = "optimum"
_OPTIMUM_GAP = 1e-5
_OPTIMUM_S = 60.0  # seconds for the optimum of a matrix, after which the best so far is taken
MIN_MATRICES = 4  # of a paired comparison; the interval over fewer is too narrow
# Measures in which the trained model and its start are compared.
_MEASURES = ("cut", "repaired", "gap", "repaired_gap")


@dataclasses.dataclass(frozen=True)
class Carried:
    """Means of one allocation over the matrices.

    Attributes:
        name: a model, a control, or the optimum.
        cut: share of the value of all demand that the splits carry when they are cut to fit,
            without any repair (:func:`teal.solvers.projection.share_of_value`).
        of_optimum: the same as a share of what the optimum carries.
        repaired: share that is carried after the repair: ADMM of the scheme ``teal``; the
            projection, which refills, of others.
        gap: certified gap of ``cut``, by the prices of the model alone; NaN without prices.
        repaired_gap: certified gap of ``repaired``, by the prices of the scheme; NaN without
            prices.
    """

    name: str
    cut: float
    of_optimum: float
    repaired: float
    gap: float
    repaired_gap: float


@dataclasses.dataclass(frozen=True)
class Gain:
    """The table of a training.

    Attributes:
        part: part of the matrices that was measured, ``test`` or ``validation``.
        matrices: number of them.
        kept_start: whether no validation was significantly better than the start, so that its
            weights were kept.
        rows: means of each allocation.
        differences: the trained model less its start in each measure: mean and 95% interval over
            the same matrices (:mod:`teal.runtime.bootstrap`).
    """

    part: str
    matrices: int
    kept_start: bool
    rows: tuple[Carried, ...]
    differences: dict[str, Interval]

    @property
    def verdict(self) -> str:
        """Whether the training helped: the model alone, and the scheme with its repair."""
        if self.kept_start:
            return (
                f"no better than the start: no validation of at least {MIN_MATRICES} matrices was "
                "significantly better, so that the weights of the start were kept"
            )
        if self.matrices < MIN_MATRICES:
            return f"{self.matrices} matrices are too few to tell whether training helped"
        alone = _comparison(self.differences["cut"], self.differences["gap"])
        scheme = _comparison(self.differences["repaired"], self.differences["repaired_gap"])
        return f"The model alone is {alone}. After the repair, the scheme is {scheme}."

    @property
    def table(self) -> Table:
        """The rows, for a terminal."""
        columns = (
            Column("", "name"),
            Column("carried, cut only", "cut", percent, most_is_best=True),
            Column("of the optimum", "of_optimum", percent, most_is_best=True),
            Column("carried, repaired", "repaired", percent, most_is_best=True),
            Column("own gap", "gap", percent),
            Column("gap, repaired", "repaired_gap", percent),
        )
        title = f"means over {self.matrices} {self.part} matrices"
        return Table(title, columns, self.rows, caption=self.verdict)


def _comparison(carried: Interval, gap: Interval) -> str:
    """Compare two allocations by the intervals of their differences; the gap only where it differs
    significantly.
    """
    if carried.low > 0:
        rank = "better than"
    elif carried.high < 0:
        rank = "worse than"
    else:
        rank = "no better than"
    text = f"{rank} the start: it carries {_points(carried, 'more', 'less')}"
    if gap.high < 0 or gap.low > 0:
        return f"{text}, and its gap is {_points(gap, 'wider', 'narrower')}"
    return text


def _points(difference: Interval, larger: str, smaller: str) -> str:
    """The size of a difference, a word for its sign, and its signed interval."""
    mean, low, high = (100 * number for number in difference[:3])
    return f"{abs(mean):.2f} points {larger if mean >= 0 else smaller} ({low:+.2f} to {high:+.2f})"


class _Measured(NamedTuple):
    """One matrix under one allocation; attributes as of :class:`Carried`."""

    cut: float
    repaired: float
    gap: float
    repaired_gap: float


def measure_gain(
    folder: Path,
    scheme_name: str,
    start: str,
    seed: int,
    *,
    part: str,
    rows: Int64Array,
    problem_of: Callable[[Int64Array], Problem],
    kept_start: bool,
    show: bool = True,
) -> Gain:
    """Measure the checkpoint in ``folder`` beside its start and the controls.

    Args:
        folder: folder of the checkpoint.
        scheme_name: name of the scheme that allocates by it, ``teal`` or ``price-gnn``.
        start: model that the training began from; ``none`` for random weights.
        seed: seed of the random weights.
        part: part of the matrices, ``test`` or ``validation``.
        rows: indices of the matrices.
        problem_of: returns the problem of matrices, by their indices.
        kept_start: whether the checkpoint has the weights of the start.
        show: whether to show progress.
    """
    schemes = _schemes(folder, scheme_name, start, seed)
    # Measure each matrix under the models, the controls and the optimum.
    measured_by_case: dict[str, list[_Measured]] = {}
    for row in progress_bar(range(len(rows)), desc="comparing", unit="matrix", disable=not show):
        problem = problem_of(rows[row : row + 1])
        for name, scheme in schemes.items():
            measured_by_case.setdefault(name, []).append(_of_model(problem, scheme))
        shortest = problem.path_mask & (problem.path_mask.cumsum(-1) == 1)
        for name, splits in ((SHORTEST, shortest), (NULL, torch.zeros_like(shortest))):
            measured_by_case.setdefault(name, []).append(
                _of_splits(problem, splits.to(problem.demand))
            )
        measured_by_case.setdefault(OPTIMUM, []).append(_optimum(problem))
    # Compare the trained model with its start.
    best = measured_by_case[OPTIMUM]
    trained, first = list(measured_by_case.values())[:2]
    return Gain(
        part,
        len(rows),
        kept_start,
        tuple(_carried(name, measured, best) for name, measured in measured_by_case.items()),
        _differences(rows, trained, first),
    )


def _schemes(folder: Path, scheme_name: str, start: str, seed: int) -> dict[str, Scheme]:
    """Schemes to compare, by name: the trained model, its start, and random weights.

    Args:
        folder: folder of the checkpoint.
        scheme_name: name of the scheme that allocates by it.
        start: model that the training began from; ``none`` for random weights.
        seed: seed of the random weights that the training began from.
    """
    schemes: dict[str, Scheme] = {TRAINED: make_scheme(scheme_name, folder)}
    if start == "none":
        seeded = f"{scheme_name}:weights=random,seed={seed}"
        schemes[f"{START} ({RANDOM})"] = make_scheme(seeded, folder)
    else:
        schemes[START] = make_scheme(scheme_name, Path(start))
        schemes[RANDOM] = make_scheme(f"{scheme_name}:weights=random", folder)
    return schemes


def _differences(
    rows: Int64Array, trained: Sequence[_Measured], first: Sequence[_Measured]
) -> dict[str, Interval]:
    """Mean and 95% interval of the trained model less its start, by measure.

    Args:
        rows: indices of the matrices.
        trained: measures of the trained model, by matrix.
        first: measures of its start, by matrix.
    """
    return {
        measure: interval_of_mean(
            [
                (row, getattr(trained_value, measure) - getattr(first_value, measure))
                for row, trained_value, first_value in zip(
                    rows.tolist(), trained, first, strict=True
                )
            ]
        )
        for measure in _MEASURES
    }


def _of_model(problem: Problem, scheme: Scheme) -> _Measured:
    assert isinstance(scheme, Starter)
    alone = cut_only(problem, *scheme.start(problem))
    assessment = assess(problem, scheme.solve(problem))
    repaired = share_of_value(problem, assessment.value)
    return _Measured(float(alone.share), float(repaired), float(alone.gap), float(assessment.gap))


def _of_splits(problem: Problem, splits: Tensor) -> _Measured:
    """Splits without prices, cut and refilled by the projection."""
    return _Measured(
        _share(problem, project(problem, splits, refill=0)),
        _share(problem, project(problem, splits)),
        math.nan,
        math.nan,
    )


def _optimum(problem: Problem) -> _Measured:
    result = pdhg.solve(problem, gap=_OPTIMUM_GAP, deadline=_OPTIMUM_S)
    share = _share(problem, result.splits)
    own_gap = gap(problem, problem.value(result.splits.to(problem.demand)), result.bound)
    return _Measured(share, share, float(own_gap), float(own_gap))


def _share(problem: Problem, splits: Tensor) -> float:
    return float(share_of_value(problem, problem.value(splits.to(problem.demand))))


def _carried(name: str, measured: list[_Measured], best: list[_Measured]) -> Carried:
    means = _Measured(*torch.tensor(measured, dtype=torch.float64).mean(0).tolist())
    of_optimum = [
        value.cut / optimum.cut if optimum.cut > 0 else 1.0
        for value, optimum in zip(measured, best, strict=True)
    ]
    mean_of_optimum = sum(of_optimum) / len(of_optimum)
    return Carried(name, means.cut, mean_of_optimum, means.repaired, means.gap, means.repaired_gap)
