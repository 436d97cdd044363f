"""Calibration against LP-all: the scaled median matrix is satisfied to the requested share."""

from __future__ import annotations

import numpy as np
import pytest

from baselines.lp_all import LpAll
from teal.app.instance import calibration_factor
from teal.errors import InputError, SolverError
from teal.formats import load_topology, load_traffic
from teal.network import all_pairs, compute_paths
from teal.objectives import Objective
from teal.problem import Problem
from teal.problem.assessment import assess
from teal.runtime.interruptible import Deadline
from teal.testing import make_topology


@pytest.mark.parametrize("share", [0.6, 0.9, 0.97])
@pytest.mark.parametrize("name", ["b4", "topohub:sndlib/geant"])
def test_lp_all_satisfies_the_calibrated_share_of_the_median_matrix(
    name: str, share: float
) -> None:
    topology = load_topology(name)
    traffic = load_traffic("gravity:seed=2,count=9,load=1", topology)
    paths = compute_paths(topology, traffic.pairs)
    factor = calibration_factor(topology, paths, traffic, np.arange(9), share)
    problem = Problem.create(topology, paths, Objective(), traffic.scaled(factor).read(slice(None)))
    satisfied = assess(problem, LpAll().solve(problem)).satisfied_demand
    assert satisfied.median().item() == pytest.approx(share, abs=2e-3)


def test_calibration_to_a_share_that_cannot_be_routed_is_refused() -> None:
    topology = make_topology(
        [(0, 1, 1.0), (1, 0, 1.0), (0, 2, 1.0)]
    )  # nothing leads away from node 2
    traffic = load_traffic("gravity:count=3", topology)
    paths = compute_paths(topology, all_pairs(topology))
    with pytest.raises(InputError, match="fraction of the demand with a path"):
        calibration_factor(topology, paths, traffic, np.arange(3), 0.999)
    for share in (0.0, 1.0, -1.0):
        with pytest.raises(InputError, match="a share between 0 and 1"):
            calibration_factor(topology, paths, traffic, np.arange(3), share)


def test_a_deadline_that_is_over_is_said_as_that() -> None:
    topology = load_topology("b4")
    traffic = load_traffic("gravity:seed=2,count=3,load=1", topology)
    paths = compute_paths(topology, traffic.pairs)
    with pytest.raises(SolverError, match="before the deadline"):
        calibration_factor(topology, paths, traffic, np.arange(3), 0.9, Deadline.after(-1.0))
