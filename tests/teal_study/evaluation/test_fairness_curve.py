"""What fairness costs: a network with optima in closed form, and results and report of an
evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import teal
from teal.cli import main
from teal.problem import Problem
from teal_study.evaluation.fairness_curve import fairness_curve
from teal_study.evaluation.record import Record
from teal_study.evaluation.report import figures_of


def _line_network() -> Problem:
    """a -> b -> c, links of 1 Gbit/s, demands of 1 Gbit/s from a to b, a to c and b to c; c reaches
    nobody."""
    topology = teal.Topology(
        "line",
        ("a", "b", "c"),
        np.array([0, 1]),
        np.array([1, 2]),
        np.ones(2),
        np.ones(2),
        np.zeros((3, 2)),
    )
    pairs = np.array([[0, 1], [0, 2], [1, 2], [2, 0]])
    paths = teal.compute_paths(topology, pairs, num_paths=2, cache=False)
    return Problem.create(topology, paths, "total_flow", np.ones((1, 4)))


def test_each_alpha_has_the_shares_of_the_optimum_in_closed_form() -> None:
    """With x the share of a to c the others have 1 - x, and x = 1 / (1 + 2^(1 / alpha)) maximises
    the sum."""
    *points, most = fairness_curve(_line_network())
    for point in points:
        alpha = float(point.objective.rpartition("=")[2])
        share = 1 / (1 + 2 ** (1 / alpha)) if alpha else 0.0
        assert point.least_share == pytest.approx(share, abs=5e-3)
        assert point.total_share == pytest.approx(
            (2 - share) / 4, abs=2e-3
        )  # the fourth demand has no path
        assert point.gap <= 1e-3
    assert most.objective == "max_concurrent_flow"
    assert most.least_share == pytest.approx(0.5, abs=1e-3)


def test_a_matrix_without_a_routable_demand_has_no_curve() -> None:
    problem = _line_network()
    assert fairness_curve(problem.with_demand(problem.demand * 0)) == []


@pytest.mark.slow
def test_an_evaluation_under_a_utility_draws_the_curve_and_the_schemes(tmp_path: Path) -> None:
    words = [
        "evaluate",
        "--topology",
        "b4",
        "--traffic",
        "gravity:seed=0,count=2,load=6",
        "--split",
        "all",
        "--quiet",
    ]
    assert (
        main(
            [
                *words,
                "--objective",
                "proportional_fair",
                "--scheme",
                "pdhg",
                "--out",
                str(tmp_path / "fair"),
            ]
        )
        == 0
    )
    record = Record.load([tmp_path / "fair"])
    assert len(record.networks[0].fairness) == 8
    (chart,) = (
        chart
        for charts in figures_of(record).values()
        for chart in charts
        if chart.name == "fairness"
    )
    curve, scheme = chart.series
    assert list(curve.x) == [100 * point.least_share for point in record.networks[0].fairness]
    assert scheme.x == pytest.approx([100 * np.mean([row.least_share for row in record.rows])])
    first = record.networks[0].fairness[2]  # of alpha 1, the objective of the run
    assert record.rows[0].least_share == pytest.approx(first.least_share, abs=0.02)
    assert (
        main(
            [
                *words,
                "--objective",
                "total_flow",
                "--scheme",
                "pdhg",
                "--out",
                str(tmp_path / "flow"),
            ]
        )
        == 0
    )
    flow = Record.load([tmp_path / "flow"])
    assert not flow.networks[0].fairness
    assert all(chart.name != "fairness" for charts in figures_of(flow).values() for chart in charts)
