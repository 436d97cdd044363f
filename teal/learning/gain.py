"""The gain of a training: the trained model beside its start and beside controls, on matrices
that neither the training nor the choice of the weights has seen.

The controls are random weights, the shortest path, and no splits at all, of which the repair makes
what it can; the ceiling is the optimum.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
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

TRAINED, START, RANDOM, SHORTEST, NULL, OPTIMUM = (
    "trained",
    "start",
    "random weights",
    "shortest path",
    "null (repair alone)",
    "optimum",
)
_OPTIMUM_GAP = 1e-5
_OPTIMUM_S = 60.0  # seconds for the optimum of a matrix, after which the best so far is taken
_LEAST_MATRICES = 4  # over which an interval says something
_MEASURES = ("cut", "repaired", "gap")  # of which the trained model and its start are compared


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
    """

    name: str
    cut: float
    of_optimum: float
    repaired: float
    gap: float


@dataclasses.dataclass(frozen=True)
class Gain:
    """The table of a training.

    Attributes:
        part: part of the matrices that was measured, ``test`` or ``validation``.
        matrices: number of them.
        kept_start: whether no step scored better than the start, so that its weights were kept.
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
        """Whether the training helped, in a sentence."""
        cut, narrower = self.differences["cut"], self.differences["gap"]
        if self.kept_start:
            return "no better than the start: no validation scored higher, so that its weights stay"
        if self.matrices < _LEAST_MATRICES:
            return f"{self.matrices} matrices are too few to tell whether training helped"
        if cut.low > 0:
            text = f"better than the start: alone it carries {_points(cut)} more"
        elif cut.high < 0:
            text = f"worse than the start: alone it carries {_points(cut, -1)} less"
        else:
            text = f"no better than the start: alone it carries {_points(cut)} more"
        if narrower.high < 0:
            return f"{text}; its own gap is {_points(narrower, -1)} narrower"
        if narrower.low > 0:
            return f"{text}; its own gap is {_points(narrower)} wider"
        return text

    @property
    def table(self) -> Table:
        """The rows, for a terminal."""
        columns = (
            Column("", "name"),
            Column("carried, cut only", "cut", percent, most_is_best=True),
            Column("of the optimum", "of_optimum", percent, most_is_best=True),
            Column("carried, repaired", "repaired", percent, most_is_best=True),
            Column("own gap", "gap", percent),
        )
        title = f"means over {self.matrices} {self.part} matrices"
        return Table(title, columns, self.rows, caption=self.verdict)


def _points(interval: Interval, sign: int = 1) -> str:
    low, high = sorted((sign * interval.low, sign * interval.high))
    return f"{100 * sign * interval.mean:+.2f} points ({100 * low:.2f}, {100 * high:.2f})"


class _Measured(NamedTuple):
    """One matrix under one allocation; attributes as of :class:`Carried`."""

    cut: float
    repaired: float
    gap: float


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
        start: the model that the training began from; ``none`` for random weights.
        seed: seed of these.
        part: name of the part that the matrices are of.
        rows: numbers of the matrices.
        problem_of: the problem of such numbers.
        kept_start: whether the checkpoint has the weights of the start.
        show: whether to show progress.
    """
    schemes: dict[str, Scheme] = {TRAINED: make_scheme(scheme_name, folder)}
    if start == "none":
        seeded = f"{scheme_name}:weights=random,seed={seed}"
        schemes[f"{START} ({RANDOM})"] = make_scheme(seeded, folder)
    else:
        schemes[START] = make_scheme(scheme_name, Path(start))
        schemes[RANDOM] = make_scheme(f"{scheme_name}:weights=random", folder)
    found: dict[str, list[_Measured]] = {}
    for row in progress_bar(range(len(rows)), desc="comparing", unit="matrix", disable=not show):
        problem = problem_of(rows[row : row + 1])
        for name, scheme in schemes.items():
            found.setdefault(name, []).append(_of_model(problem, scheme))
        shortest = problem.path_mask & (problem.path_mask.cumsum(-1) == 1)
        for name, splits in ((SHORTEST, shortest), (NULL, torch.zeros_like(shortest))):
            found.setdefault(name, []).append(_of_splits(problem, splits.to(problem.demand)))
        found.setdefault(OPTIMUM, []).append(_optimum(problem))
    best = found[OPTIMUM]
    trained, first = list(found.values())[:2]
    return Gain(
        part,
        len(rows),
        kept_start,
        tuple(_carried(name, measured, best) for name, measured in found.items()),
        {
            measure: interval_of_mean(
                [
                    (row, getattr(one, measure) - getattr(less, measure))
                    for row, one, less in zip(rows.tolist(), trained, first, strict=True)
                ]
            )
            for measure in _MEASURES
        },
    )


def _of_model(problem: Problem, scheme: Scheme) -> _Measured:
    assert isinstance(scheme, Starter)
    alone = cut_only(problem, *scheme.start(problem))
    repaired = share_of_value(problem, assess(problem, scheme.solve(problem)).value)
    return _Measured(float(alone.share), float(repaired), float(alone.gap))


def _of_splits(problem: Problem, splits: Tensor) -> _Measured:
    """Splits without prices, cut and refilled by the projection."""
    return _Measured(
        _share(problem, project(problem, splits, refill=0)),
        _share(problem, project(problem, splits)),
        math.nan,
    )


def _optimum(problem: Problem) -> _Measured:
    result = pdhg.solve(problem, gap=_OPTIMUM_GAP, deadline=_OPTIMUM_S)
    share = _share(problem, result.splits)
    own = gap(problem, problem.value(result.splits.to(problem.demand)), result.bound)
    return _Measured(share, share, float(own))


def _share(problem: Problem, splits: Tensor) -> float:
    return float(share_of_value(problem, problem.value(splits.to(problem.demand))))


def _carried(name: str, measured: list[_Measured], best: list[_Measured]) -> Carried:
    cut, repaired, own_gap = torch.tensor(measured, dtype=torch.float64).mean(0).tolist()
    of_optimum = [
        one.cut / most.cut if most.cut > 0 else 1.0
        for one, most in zip(measured, best, strict=True)
    ]
    return Carried(name, cut, sum(of_optimum) / len(of_optimum), repaired, own_gap)
