"""Predicted times: the polynomial by its definition, and what the prediction must obey."""

from __future__ import annotations

import math

import pytest

import teal
from teal.solvers import cost_model, pipeline
from teal.solvers.cost_model import FEATURES, Features, features, monomials
from teal.testing import random_problem

# One feature after the other: a + b . x + sum of c_ij x_i x_j, with all coefficients known.
_MODEL = {
    "range": [[0.0] * 6, [10.0] * 6],
    "log_seconds": {
        "interior": {
            "shed": {
                "cold": [float(index) / 100 for index in range(28)],
                "warm": [float(index) / 50 for index in range(28)],
            }
        }
    },
}


def _by_definition(coefficients: list[float], x: tuple[float, ...]) -> float:
    """The polynomial, term by term."""
    total = coefficients[0]
    total += sum(coefficients[1 + i] * x[i] for i in range(6))
    index = 7
    for i in range(6):
        for j in range(i, 6):
            total += coefficients[index] * x[i] * x[j]
            index += 1
    assert index == len(coefficients)
    return total


def test_the_prediction_is_the_polynomial_of_the_features() -> None:
    x = (0.5, 0.1, 0.7, 0.2, 0.0, 0.3)
    assert monomials(x)[:7] == (1.0, *x)
    shed = _MODEL["log_seconds"]["interior"]["shed"]  # type: ignore[index]
    for start in ("cold", "warm"):
        expected = math.exp(_by_definition(shed[start], x))
        assert cost_model.predict(_MODEL, "interior", "shed", start, x) == pytest.approx(expected)
    # Outside the measured range the features are those at its border.
    low = (-1.0, *x[1:])
    assert cost_model.predict(_MODEL, "interior", "shed", "cold", low) == pytest.approx(
        cost_model.predict(_MODEL, "interior", "shed", "cold", (0.0, *x[1:]))
    )


def test_batches_above_the_measured_ones_take_time_in_proportion() -> None:
    def predicted(batch: int) -> float:
        program = Features(
            "shed", features(20, 400, 5_000, 2_000, batch, 1e-2), 2_000, batch, False, True
        )
        return cost_model.seconds("pdhg", program, is_warm=False)

    assert predicted(40 * 256) == pytest.approx(40 * predicted(256), rel=1e-9)


def test_features_are_logarithms_of_the_sizes() -> None:
    values = dict(zip(FEATURES, features(3, 7, 31, 100, 16, 1e-4), strict=True))
    assert values["log_rows"] == pytest.approx(math.log(4))
    assert values["log_columns"] == pytest.approx(math.log(8))
    assert values["log_updates"] == pytest.approx(math.log(32))
    assert values["log_scan"] == pytest.approx(math.log(100))
    assert values["log_batch"] == pytest.approx(math.log(16))
    assert values["digits"] == pytest.approx(4)


@pytest.mark.parametrize("objective", ["total_flow", "max_link_utilisation", "proportional_fair"])
def test_every_kind_of_program_has_a_finite_prediction(objective: str) -> None:
    problem = random_problem(3, batch=3)
    problem = teal.Problem.create(
        problem.topology, problem.paths, objective, problem.demand.numpy()
    )
    result = pipeline.solve(problem, gap=1e-2)
    stages = {stage.name: stage for stage in result.trace}
    predicted = stages["choose engines"].predicted_s
    assert set(predicted) == {"interior, cold", "pdhg"}
    assert all(0 < seconds < math.inf for seconds in predicted.values())
    assert any(name.startswith("iterate: ") for name in stages)


def test_the_trace_of_a_sequence_has_the_stages_of_all_programs() -> None:
    problem = random_problem(5, objective="max_min", batch=3)
    trace = pipeline.solve(problem, gap=1e-2).trace
    assert sum(stage.name.startswith("iterate: ") for stage in trace) >= 1
    assert "ms" in trace[0].describe()
