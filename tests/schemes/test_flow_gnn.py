"""The scheme `teal` with any weights against the validator and the certified bound."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from teal.network.path_changes import first_paths_of_each
from teal.nn.checkpoint import new_flow_model
from teal.nn.flow_gnn_config import FORMS, FlowGnnConfig
from teal.nn.flow_models import FlowModel
from teal.objectives import SINGLE_PROGRAMS, ObjectiveName
from teal.problem.allocation import Allocation, Status
from teal.problem.assessment import assess
from teal.schemes.flow_gnn import FlowGnnScheme, FlowGnnSchemeConfig
from teal.testing import assert_batch_equals_loop, assert_feasible, random_problem


def _model(num_paths: int, seed: int = 0, form: str = "feedback") -> FlowModel:
    """A model with random weights; two layers keep the tests quick."""
    torch.manual_seed(seed)
    return new_flow_model(FlowGnnConfig(num_paths, layers=2, form=form)).eval()


@pytest.mark.slow
@given(
    seed=st.integers(0, 10_000),
    objective=st.sampled_from(SINGLE_PROGRAMS),
    num_paths=st.integers(1, 4),
    density=st.sampled_from([0.1, 0.3, 0.7]),
    failed=st.sampled_from([0, 1, 4, 99]),
    idle=st.sampled_from([0.0, 0.5, 1.0]),
    form=st.sampled_from(FORMS),
)
def test_teal_with_any_weights_is_feasible_and_certified(
    seed: int,
    objective: ObjectiveName,
    num_paths: int,
    density: float,
    failed: int,
    idle: float,
    form: str,
) -> None:
    """Failed links (all of them too), zero demands, unreachable pairs, one path, disconnected
    graphs."""
    problem = random_problem(
        seed, objective=objective, num_paths=num_paths, density=density, failed=failed, idle=idle
    )
    allocation = FlowGnnScheme(_model(num_paths, seed, form)).solve(problem)
    assert_feasible(problem, allocation)
    measured = assess(problem, allocation)
    assert all(status is Status.FEASIBLE for status in measured.status)
    assert torch.isfinite(measured.value).all()
    assert (measured.gap >= -1e-9).all(), "no allocation is better than the bound"


@pytest.mark.parametrize("model_paths", [2, 6])
def test_a_model_for_another_number_of_paths_uses_the_first_ones(model_paths: int) -> None:
    problem = random_problem(3, num_paths=4)
    splits, _ = FlowGnnScheme(_model(model_paths), FlowGnnSchemeConfig(repair="none")).start(
        problem
    )
    assert splits.shape == problem.path_mask.shape
    assert not splits[..., model_paths:].any()
    same = random_problem(3, num_paths=4).with_paths(
        first_paths_of_each(problem.paths, model_paths)
    )
    expected, _ = FlowGnnScheme(_model(model_paths), FlowGnnSchemeConfig(repair="none")).start(same)
    both = min(model_paths, 4)
    torch.testing.assert_close(splits[..., :both], expected[..., :both])
    allocation = FlowGnnScheme(
        _model(model_paths), FlowGnnSchemeConfig(repair="pdhg", gap=1e-3)
    ).solve(problem)
    assert_feasible(problem, allocation)
    assert (assess(problem, allocation).gap <= 1.1e-3).all(), "the repair uses all paths"


@pytest.mark.parametrize(
    "config",
    [
        FlowGnnSchemeConfig(),
        FlowGnnSchemeConfig(repair="none"),
        FlowGnnSchemeConfig(iterations=20),
        FlowGnnSchemeConfig(repair="pdhg", iterations=40, gap=0.0),
    ],
)
@pytest.mark.parametrize("objective", SINGLE_PROGRAMS)
def test_teal_on_a_batch_equals_its_matrices_and_repair_never_lowers_the_value(
    config: FlowGnnSchemeConfig, objective: ObjectiveName
) -> None:
    problem = random_problem(3, objective=objective, batch=3, failed=2)
    model = _model(3).double()  # float32 sums differ between batch sizes in the last digits
    allocator = FlowGnnScheme(model, config)
    assert_batch_equals_loop(allocator, problem)
    measured = assess(problem, allocator.solve(problem))
    plain = assess(
        problem, FlowGnnScheme(model, dataclasses.replace(config, repair="none")).solve(problem)
    )
    sign = problem.objective.rules.sense
    assert (sign * (measured.value - plain.value) >= -1e-9).all()
    assert (sign * (plain.bound - measured.bound) >= -1e-9).all()


def test_assessment_replaces_the_claimed_status_of_an_infeasible_allocation() -> None:
    """Overload, NaN and a failed scheme: the measured status replaces the claimed one, and there is
    no value."""
    problem = random_problem(1, batch=3)
    splits = torch.where(problem.path_mask, 1.0, 0.0).double()
    splits[1] = float("nan")
    claimed = (Status.OPTIMAL, Status.FEASIBLE, Status.FAILED)
    measured = assess(problem, Allocation(splits, None, claimed, (0.0,) * 3, (0.0,) * 3))
    assert measured.status == (Status.INFEASIBLE, Status.INFEASIBLE, Status.FAILED)
    assert measured.value.isnan().all()
    assert measured.max_violation[0] > 0.1
    assert measured.max_violation[1] == torch.inf
