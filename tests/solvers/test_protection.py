"""Promises under failures, against a network solved by hand, linear programs, and a simulation of
every failure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import teal
from teal.errors import InputError
from teal.solvers.protection import protect, under_failures
from teal.testing import make_topology, random_problem


def _three_paths(demand: float) -> teal.Problem:
    """a to b over three nodes, 4, 3 and 1 Gbit/s."""
    links = [(0, 2, 4.0), (2, 1, 4.0), (0, 3, 3.0), (3, 1, 3.0), (0, 4, 1.0), (4, 1, 1.0)]
    topology = make_topology(links)
    paths = teal.compute_paths(topology, np.array([[0, 1]], np.int32), num_paths=3, cache=False)
    return teal.Problem.create(topology, paths, teal.Objective(), np.array([demand]))


def test_three_disjoint_paths_by_hand() -> None:
    # Without the widest path 3 + 1 = 4 are left, and 4 can be promised; unprotected it would be 8.
    result = protect(_three_paths(10.0), gap=1e-4)
    assert float(result.result.value) == pytest.approx(4.0, rel=1e-3)
    assert float(result.result.bound) == pytest.approx(4.0, rel=1e-3)
    assert float(protect(_three_paths(2.0), gap=1e-4).result.value) == pytest.approx(2.0, rel=1e-3)
    # If the first two paths share a risk, one is left, of 1 Gbit/s.
    shared = [[0, 2], [4]]
    assert float(protect(_three_paths(10.0), shared, gap=1e-4).result.value) == pytest.approx(
        1.0, rel=1e-3
    )
    everything = protect(_three_paths(10.0), [[0, 2, 4]])
    assert float(everything.result.value) == 0.0
    assert float(everything.unprotected) == 1.0


@pytest.mark.parametrize("seed", range(6))
def test_promises_are_those_of_the_linear_program_and_hold_under_every_failure(seed: int) -> None:
    base = random_problem(seed, nodes=7, density=0.6, num_paths=4, batch=3)
    rng = np.random.default_rng(seed)
    cables = base.topology.cables()
    groups = [
        *cables[: len(cables) // 2],
        [*cables[0], *cables[-1]],
        rng.permutation(base.topology.num_links)[:3].tolist(),
    ]
    solution = protect(base, groups, gap=1e-3)
    used = protect(base, gap=1e-3)
    optimum = base.value(teal.make_scheme("ffc").solve(base).splits)
    assert bool((used.result.value <= optimum * (1 + 1e-6) + 1e-9).all())
    assert bool((used.result.bound >= optimum * (1 - 1e-6) - 1e-9).all())
    assert bool((used.result.gap <= 1e-3).all())
    for result, failing in ((solution.result, groups), (used.result, None)):
        utilisation, lost = under_failures(base, result.splits, failing)
        assert float(utilisation.max()) <= 1 + 1e-9
        assert float(lost.max()) <= 1e-9 * float(base.demand.sum())
        assert bool((teal.violations(base, result.splits).largest <= 1e-9).all())
    plain = teal.solve(base, gap=1e-3)
    utilisation, lost = under_failures(base, plain.splits)
    assert float(utilisation.max()) > 1.01 or float(lost.max()) > 0, (
        "without protection something breaks"
    )


def test_groups_may_come_from_a_file(tmp_path: Path) -> None:
    problem = _three_paths(10.0)
    (tmp_path / "g.json").write_text(
        '{"duct": [["n0", "n2"], ["n0", "n3"]], "other": [["n0", "n4"]]}'
    )
    for scheme in ("protected", "ffc"):
        allocation = teal.make_scheme(f"{scheme}:groups={tmp_path}/g.json").solve(problem)
        assert float(problem.value(allocation.splits)) == pytest.approx(1.0, rel=2e-3)


def test_wrong_problems_are_refused() -> None:
    with pytest.raises(InputError, match="not max_link_utilisation"):
        protect(random_problem(1, objective=teal.ObjectiveName.MAX_LINK_UTILISATION))
    with pytest.raises(InputError, match="gap"):
        teal.make_scheme("protected:gap=2")
