"""The validator of allocations against one violation of each rule."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from teal.network import compute_paths
from teal.objectives import Objective, ObjectiveName
from teal.problem import Allocation, Problem, Status, assess
from teal.problem.feasibility import TOLERANCE, violations
from teal.testing import make_topology


def _problem(objective: ObjectiveName = ObjectiveName.TOTAL_FLOW, failed: bool = False) -> Problem:
    """Demands a->b (8) over links of 4 and 2, b->a (1) without a path."""
    topology = make_topology([(0, 1, 4.0), (0, 1, 2.0)])
    paths = compute_paths(topology, np.array([[0, 1], [1, 0]], np.int32), num_paths=3, cache=False)
    capacity = np.array([4.0, 0.0]) if failed else None
    return Problem.create(
        topology, paths, Objective(objective), np.array([8.0, 1.0]), capacity=capacity
    )


def _splits(*first: float) -> torch.Tensor:
    return torch.tensor([[[*first], [0.0, 0.0, 0.0]]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("splits", "rule", "size"),
    [
        (_splits(0.5, 0.25, 0), "", 0.0),
        (_splits(0.75, 0.25, 0), "capacity", 0.5),
        (_splits(0.5, 0.375, 0), "capacity", 0.5),
        (_splits(-0.1, 0.1, 0), "sign", 0.1),
        (_splits(0.4, 0.2, 0.3), "mask", 0.3),
        (_splits(0.9, 0.2, 0), "demand", 0.1),
    ],
)
def test_the_validator_measures_a_violation_of_each_rule(
    splits: torch.Tensor, rule: str, size: float
) -> None:
    measured = violations(_problem(), splits)
    if rule:
        assert getattr(measured, rule).item() == pytest.approx(size)
    else:
        assert measured.largest.item() == 0.0


def test_flow_over_a_failed_link_violates_capacity_and_mask() -> None:
    measured = violations(_problem(failed=True), _splits(0.5, 0.25, 0))
    assert measured.capacity.item() == pytest.approx(2.0 / 4.0)
    assert measured.mask.item() == pytest.approx(0.25)


def test_max_link_utilisation_requires_all_routable_demand_and_may_overload() -> None:
    problem = _problem(ObjectiveName.MAX_LINK_UTILISATION)
    assert violations(problem, _splits(0.6, 0.4, 0)).largest.item() == pytest.approx(0.0)
    assert violations(problem, _splits(0.5, 0.4, 0)).demand.item() == pytest.approx(0.1)
    assert problem.value(_splits(0.6, 0.4, 0)).item() == pytest.approx(1.6)


def test_splits_with_nan_or_a_wrong_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="NaN"):
        violations(_problem(), _splits(float("nan"), 0, 0))
    with pytest.raises(ValueError, match="splits must be"):
        violations(_problem(), torch.zeros(1, 2, 2))


@pytest.mark.parametrize("factor", [0.5, 2.0, 50.0])
def test_feasible_ends_at_the_tolerance(factor: float) -> None:
    """4 Gbit/s on a link of 4 and a share of that above it: from both sides of the tolerance."""
    splits = _splits(0.5 * (1 + factor * TOLERANCE), 0.25, 0)
    (status,) = assess(_problem(), Allocation.of_batch(splits, None, 0.0)).status
    assert (status is Status.FEASIBLE) == (factor < 1)


def test_under_max_link_utilisation_load_on_a_failed_link_violates_capacity_too() -> None:
    measured = violations(
        _problem(ObjectiveName.MAX_LINK_UTILISATION, failed=True), _splits(0.75, 0.25, 0)
    )
    assert measured.capacity.item() == pytest.approx(2.0 / 4.0)
    assert measured.mask.item() == pytest.approx(0.25)
    on_live = violations(
        _problem(ObjectiveName.MAX_LINK_UTILISATION, failed=True), _splits(1.0, 0, 0)
    )
    assert on_live.largest.item() == 0, "more than the capacity of a link that works is allowed"
