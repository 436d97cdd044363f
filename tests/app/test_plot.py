"""Plots for notebooks: what is drawn is what was given."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.collections import LineCollection

import teal
from teal.problem import Allocation
from teal.solvers import pipeline
from teal.testing import random_problem

mpl.use("Agg")


def test_the_network_is_drawn_with_its_utilisation() -> None:
    problem = random_problem(3, batch=2)
    result = pipeline.solve(problem)
    axes = teal.plot.network(problem, Allocation.of_batch(result.splits, None, 0.0), row=1)
    lines = next(part for part in axes.collections if isinstance(part, LineCollection))
    expected = 100 * problem.utilisation(result.splits)[1].numpy()
    np.testing.assert_allclose(np.asarray(lines.get_array()), expected)
    assert len(teal.plot.network(problem).texts) == problem.topology.num_nodes


def test_gaps_are_drawn_over_time() -> None:
    points: list[tuple[float, float]] = []
    teal.solve(
        random_problem(3, batch=1), gap=1e-6, report=lambda n, gap: points.append((n / 1e3, gap))
    )
    axes = teal.plot.gap_over_time({"PDHG": points, "nothing": []})
    (line,) = axes.lines
    assert np.asarray(line.get_ydata()).tolist() == pytest.approx([100 * gap for _, gap in points])
    assert axes.get_xscale() == axes.get_yscale() == "log"
