"""Gain of a training run: the trained model compared with its initial model and with controls, on
matrices used neither for training nor for selecting the weights.

Controls: random weights, the shortest path, and zero splits with repair alone.  The upper limit is
the optimum.  Entry point: :func:`measure_gain`.
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
from teal.solvers import pipeline
from teal.solvers.projection import cut_only, project, share_of_value
from teal.solvers.result import Starter

TRAINED = "trained"
START = "start"
RANDOM = "random weights"
SHORTEST = "shortest path"
NULL = "null (repair alone)"
OPTIMUM = "optimum"
# Target gap of the optimum, and time limit per matrix in seconds, after which the incumbent counts.
_OPTIMUM_GAP = 1e-5
_OPTIMUM_S = 60.0
# Minimum number of matrices of a paired comparison; the interval over fewer is too narrow.
MIN_MATRICES = 4
# Metrics in which the trained model and its initial model are compared.
_MEASURES = ("cut", "repaired", "gap", "repaired_gap")


@dataclasses.dataclass(frozen=True)
class Carried:
    """Metrics of a model, a control or the optimum: means over the matrices.

    Attributes:
        name: name of the model or control.
        cut: carried share of the value of all demand, with flows scaled down to the capacities and
            without repair (:func:`teal.solvers.projection.share_of_value`).
        of_optimum: ``cut`` as a share of the optimum's.
        repaired: carried share after the repair: ADMM in the scheme ``teal``, else the projection,
            which also allocates unused capacity to unserved demand.
        gap: certified gap of ``cut`` at the prices of the model; NaN without prices.
        repaired_gap: certified gap of ``repaired`` at the prices of the scheme; NaN without prices.
    """

    name: str
    cut: float
    of_optimum: float
    repaired: float
    gap: float
    repaired_gap: float


@dataclasses.dataclass(frozen=True)
class Gain:
    """Comparison of a trained model with its initial model, controls and the optimum.

    Attributes:
        part: part of the traffic, ``test`` or ``validation``.
        matrices: number of matrices.
        kept_start: whether the initial weights were kept, since no validation was significantly
            better.
        rows: metrics of each model and control.
        differences: trained model minus initial model by metric: mean and 95% interval over the
            same matrices (:mod:`teal.runtime.bootstrap`).
    """

    part: str
    matrices: int
    kept_start: bool
    rows: tuple[Carried, ...]
    differences: dict[str, Interval]

    @property
    def verdict(self) -> str:
        """Sentence on whether training helped: the model alone, and the scheme with its repair."""
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
        """Table of the metrics: a row per model or control, with the verdict as its caption."""
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
    """Describe the differences of carried share and gap in words.

    Args:
        carried: mean and interval of the difference of the carried share.
        gap: mean and interval of the difference of the gap; mentioned only if significant.
    """
    if carried.low > 0:
        comparison_words = "better than"
    elif carried.high < 0:
        comparison_words = "worse than"
    else:
        comparison_words = "no better than"
    text = f"{comparison_words} the start: it carries {_points_text(carried, 'more', 'less')}"
    if gap.high < 0 or gap.low > 0:
        return f"{text}, and its gap is {_points_text(gap, 'wider', 'narrower')}"
    return text


def _points_text(difference: Interval, larger: str, smaller: str) -> str:
    """Format a difference in percentage points: size, a word for its sign, signed interval.

    Args:
        difference: mean difference of two shares, and its interval.
        larger: word for a difference of at least 0.
        smaller: word for a negative difference.
    """
    mean, low, high = (100 * value for value in difference[:3])
    return f"{abs(mean):.2f} points {larger if mean >= 0 else smaller} ({low:+.2f} to {high:+.2f})"


class _Metrics(NamedTuple):
    """Metrics of one model or control on one matrix.

    Attributes:
        cut: carried share of the value of all demand, with flows scaled down to the capacities.
        repaired: carried share after the repair.
        gap: certified gap of ``cut``; NaN without prices.
        repaired_gap: certified gap of ``repaired``; NaN without prices.
    """

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
    make_problem: Callable[[Int64Array], Problem],
    kept_start: bool,
    show: bool = True,
) -> Gain:
    """Compare a checkpoint with its initial model, controls and the optimum.

    Args:
        folder: folder of the checkpoint.
        scheme_name: name of the scheme that uses the model, ``teal`` or ``price-gnn``.
        start: initial model of the training; ``none`` for random weights.
        seed: seed of the random initial weights.
        part: part of the traffic, ``test`` or ``validation``.
        rows: indices of the matrices.
        make_problem: returns the problem of matrices, given their indices.
        kept_start: whether the checkpoint has the initial weights.
        show: whether to show a progress bar.
    """
    schemes = _schemes_to_compare(folder, scheme_name, start, seed)
    # Measure each matrix under the models, the controls and the optimum.
    metrics_by_model: dict[str, list[_Metrics]] = {}
    for position in progress_bar(
        range(len(rows)), desc="comparing", unit="matrix", disable=not show
    ):
        problem = make_problem(rows[position : position + 1])
        for name, scheme in schemes.items():
            metrics_by_model.setdefault(name, []).append(_model_metrics(problem, scheme))
        # Shortest path: splits of 1 on the first live path of each demand.
        first_path_splits = problem.path_mask & (problem.path_mask.cumsum(-1) == 1)
        for name, splits in (
            (SHORTEST, first_path_splits),
            (NULL, torch.zeros_like(first_path_splits)),
        ):
            metrics_by_model.setdefault(name, []).append(
                _splits_metrics(problem, splits.to(problem.demand))
            )
        metrics_by_model.setdefault(OPTIMUM, []).append(_optimum_metrics(problem))
    # Compare the trained model with its initial model, the first two of the schemes.
    optimum_metrics = metrics_by_model[OPTIMUM]
    trained_metrics, initial_metrics = list(metrics_by_model.values())[:2]
    return Gain(
        part,
        len(rows),
        kept_start,
        tuple(_means(name, metrics, optimum_metrics) for name, metrics in metrics_by_model.items()),
        _metric_differences(rows, trained_metrics, initial_metrics),
    )


def _schemes_to_compare(folder: Path, scheme_name: str, start: str, seed: int) -> dict[str, Scheme]:
    """Return the schemes to compare, by name: trained model, initial model, random weights.

    Args:
        folder: folder of the checkpoint.
        scheme_name: name of the scheme that uses the model.
        start: initial model of the training; ``none`` for random weights.
        seed: seed of the random initial weights.
    """
    schemes: dict[str, Scheme] = {TRAINED: make_scheme(scheme_name, folder)}
    if start == "none":
        seeded_spec = f"{scheme_name}:weights=random,seed={seed}"
        schemes[f"{START} ({RANDOM})"] = make_scheme(seeded_spec, folder)
    else:
        schemes[START] = make_scheme(scheme_name, Path(start))
        schemes[RANDOM] = make_scheme(f"{scheme_name}:weights=random", folder)
    return schemes


def _metric_differences(
    rows: Int64Array, trained: Sequence[_Metrics], initial: Sequence[_Metrics]
) -> dict[str, Interval]:
    """Return mean and 95% interval of trained model minus initial model, by metric.

    Args:
        rows: indices of the matrices.
        trained: metrics of the trained model, one entry per matrix.
        initial: metrics of the initial model, one entry per matrix.
    """
    return {
        measure: interval_of_mean(
            [
                (row, getattr(trained_metrics, measure) - getattr(initial_metrics, measure))
                for row, trained_metrics, initial_metrics in zip(
                    rows.tolist(), trained, initial, strict=True
                )
            ]
        )
        for measure in _MEASURES
    }


def _model_metrics(problem: Problem, scheme: Scheme) -> _Metrics:
    """Measure a model on one matrix: alone, and with the repair of its scheme."""
    assert isinstance(scheme, Starter)
    cut_result = cut_only(problem, *scheme.start(problem))
    assessment = assess(problem, scheme.solve(problem))
    repaired_share = share_of_value(problem, assessment.value)
    return _Metrics(
        float(cut_result.share), float(repaired_share), float(cut_result.gap), float(assessment.gap)
    )


def _splits_metrics(problem: Problem, splits: Tensor) -> _Metrics:
    """Measure splits (1, D, K) without prices: scaled down to the capacities, and with the repair,
    which allocates unused capacity to unserved demand.
    """
    return _Metrics(
        _value_share(problem, project(problem, splits, refill=0)),
        _value_share(problem, project(problem, splits)),
        math.nan,
        math.nan,
    )


def _optimum_metrics(problem: Problem) -> _Metrics:
    """Solve one matrix to a gap of 0.001%, or for at most a minute, and measure the result."""
    result = pipeline.solve(problem, gap=_OPTIMUM_GAP, deadline=_OPTIMUM_S)
    share = _value_share(problem, result.splits)
    certified_gap = gap(problem, problem.value(result.splits.to(problem.demand)), result.bound)
    return _Metrics(share, share, float(certified_gap), float(certified_gap))


def _value_share(problem: Problem, splits: Tensor) -> float:
    """Return the value of splits (1, D, K) as a share of the value of all demand."""
    return float(share_of_value(problem, problem.value(splits.to(problem.demand))))


def _means(name: str, metrics: list[_Metrics], optimum_metrics: list[_Metrics]) -> Carried:
    """Return the mean metrics of a model or control over the matrices.

    Args:
        name: name of the model or control.
        metrics: its metrics, one entry per matrix.
        optimum_metrics: metrics of the optimum, one entry per matrix.
    """
    means = _Metrics(*torch.tensor(metrics, dtype=torch.float64).mean(0).tolist())
    optimum_shares = [
        matrix_metrics.cut / optimum.cut if optimum.cut > 0 else 1.0
        for matrix_metrics, optimum in zip(metrics, optimum_metrics, strict=True)
    ]
    mean_of_optimum = sum(optimum_shares) / len(optimum_shares)
    return Carried(name, means.cut, mean_of_optimum, means.repaired, means.gap, means.repaired_gap)
