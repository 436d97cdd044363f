"""Proofs of Teal's allocations say what the assessment says, and refuse what breaks a rule."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from teal.errors import InputError
from teal.network import all_pairs, compute_paths
from teal.network.bandwidth_functions import BandwidthFunctions
from teal.objectives import ObjectiveName
from teal.problem import Allocation, Problem
from teal.problem.assessment import assess
from teal.problem.priority import priority_problem
from teal.proofs import check
from teal.proofs.write import GROUPS, MATRIX, NETWORK, PROOF, make_claims, write_proof
from teal.solvers.pipeline import solve
from teal.testing import make_topology, random_problem
from tests.proofs.cases import CASES, Case, problem_of

_ROUNDING = 1e-11  # of claims: 2^-39 of the value


def _numbers(sentence: str) -> tuple[float, float]:
    if ": the cost is from " in sentence:
        low, high = (part.split(" of ")[0] for part in sentence.split(" from ")[1].split(" to "))
        return float(low), float(high)
    low, _, rest = sentence.partition("from ")[2].partition(" to ")
    return float(low), float(rest.partition(",")[0])


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_a_proof_says_what_the_assessment_says(case: Case, seed: int, tmp_path: Path) -> None:
    problem = problem_of(case, seed)
    result = solve(problem, gap=1e-3)
    sentences = write_proof(tmp_path, problem, result.allocation, over_all=case.over_all)
    assessment = assess(problem, result.allocation)
    if case.objective == ObjectiveName.MAX_MIN:
        assert all(_numbers(sentence)[0] == 1 <= _numbers(sentence)[1] for sentence in sentences)
        return
    if assessment.part_certificates is not None:
        expected = [(line.value, line.bound) for line in assessment.part_certificates.of_matrix(0)]
    else:
        expected = [(float(assessment.value[0]), float(assessment.bound[0]))]
    assert len(sentences) == len(expected)
    for sentence, (value, bound) in zip(sentences, expected, strict=True):
        low, high = _numbers(sentence)
        reached, proved = (low, high) if problem.objective.rules.sense > 0 else (high, low)
        assert reached == pytest.approx(value, rel=_ROUNDING, abs=2e-9)
        sense = problem.objective.rules.sense
        if case.over_all:
            assert sense * proved >= sense * value - 1e-6 * abs(value)
        # the assessment tries multiples of the prices too; under priority its bound is at least the
        # value
        else:
            assert proved == pytest.approx(bound, rel=1e-6, abs=1e-6)


def test_the_claim_costs_two_times_1e_12_of_the_value(tmp_path: Path) -> None:
    problem = random_problem(4, batch=1)
    result = solve(problem, gap=1e-6)
    (sentence,) = write_proof(tmp_path, problem, result.allocation)
    assert _numbers(sentence)[0] >= float(result.value[0]) * (1 - 4e-12) - 1e-9


def test_what_breaks_a_rule_is_named_with_its_link_or_demand(tmp_path: Path) -> None:
    topology = make_topology([(0, 1, 2.0), (1, 2, 1.0)])
    paths = compute_paths(topology, all_pairs(topology), num_paths=2, cache=False)
    problem = Problem.create(
        topology, paths, "total_flow", torch.full((1, paths.num_demands), 1.5).numpy()
    )
    full = torch.where(problem.path_mask, 1.0, 0.0).to(torch.float64)
    prices = torch.zeros_like(problem.capacity)
    with pytest.raises(InputError, match=r"link n1->n2.*at most 1.0 Gbit/s"):
        write_proof(tmp_path, problem, Allocation.of_batch(full, prices, 0.0))
    with pytest.raises(InputError, match=r"demand from n0 to n1.*at most 1.5 Gbit/s"):
        write_proof(tmp_path, problem, Allocation.of_batch(1.1 * full, prices, 0.0))
    balanced = Problem.create(topology, paths, "max_link_utilisation", problem.demand.numpy())
    with pytest.raises(InputError, match=r"demand from .*: expected 1.5 Gbit/s"):
        write_proof(tmp_path, balanced, Allocation.of_batch(0.9 * full, prices, 0.0))


def test_flow_on_a_failed_link_is_refused_with_its_link(tmp_path: Path) -> None:
    topology = make_topology([(0, 1, 2.0), (1, 2, 1.0)])
    paths = compute_paths(topology, all_pairs(topology), num_paths=2, cache=False)
    problem = Problem.create(
        topology, paths, "total_flow", torch.full((1, paths.num_demands), 0.5).numpy()
    )
    failed = problem.with_capacity(
        topology.with_failed_links(topology.find_links("n1", "n2")).capacity
    )
    full = torch.where(problem.path_mask, 0.5, 0.0).to(torch.float64)
    with pytest.raises(
        InputError,
        match=r"link n.->n.: the link has capacity 0, but carries 0.25 Gbit/s of the",
    ):
        write_proof(
            tmp_path, failed, Allocation.of_batch(full, torch.zeros_like(problem.capacity), 0.0)
        )
    with pytest.raises(
        InputError, match=r"demand from n0 to n1: expected flows of at least 0, found -0.25"
    ):
        write_proof(
            tmp_path, problem, Allocation.of_batch(-full, torch.zeros_like(problem.capacity), 0.0)
        )


@pytest.mark.parametrize("weight", [None, 3.0])
def test_max_min_without_a_level_that_links_limit_is_proved_by_the_rates(
    weight: float | None, tmp_path: Path
) -> None:
    topology = make_topology([(0, 1, 2.0), (1, 2, 1.0)])
    paths = compute_paths(topology, all_pairs(topology), num_paths=2, cache=False)
    demand = np.full((1, paths.num_demands), 1e-3)
    weights = None if weight is None else np.full(paths.num_demands, weight)
    problem = Problem.create(topology, paths, "max_min", demand, weight=weights)
    (sentence,) = write_proof(tmp_path, problem, solve(problem, gap=1e-3).allocation)
    routable = (weight or 1.0) * float(problem.routable_demand.sum())
    assert "value" in sentence
    assert list(_numbers(sentence)) == pytest.approx([routable, routable], rel=1e-9, abs=2e-9)


def test_what_cannot_be_proved_says_so(tmp_path: Path) -> None:
    problem = random_problem(2, batch=1)
    result = solve(problem, gap=1e-2)
    calm = problem.with_churn_limit(result.splits[0], 0.5)
    with pytest.raises(InputError, match="do not support the condition churn"):
        write_proof(tmp_path, calm, result.allocation)
    problem = problem_of(Case(ObjectiveName.MAX_MIN), 0)
    with pytest.raises(InputError, match="max_min cannot be proved over all paths"):
        write_proof(tmp_path, problem, solve(problem, gap=1e-2).allocation, over_all=True)
    problem = problem_of(Case(ObjectiveName.WEIGHTED_FLOW, protected=True), 0)
    with pytest.raises(InputError, match="promises cannot be proved over all paths"):
        write_proof(tmp_path, problem, solve(problem, gap=1e-2).allocation, over_all=True)


@pytest.mark.parametrize(
    ("links", "ends", "groups", "optimum"),
    [
        # The cable of the only path fails; two paths share a link; the group leaves the link of 3
        # Gbit/s alone; a group that hits nothing; no group; and a demand without a path.
        ([(0, 1, 10.0)], (0, 1), [[0]], 0.0),
        (
            [(0, 1, 9.0), (1, 2, 5.0), (1, 3, 5.0), (2, 4, 5.0), (3, 4, 5.0)],
            (0, 4),
            [[0], [1]],
            0.0,
        ),
        ([(0, 1, 3.0), (0, 2, 5.0), (2, 1, 5.0)], (0, 1), [[1]], 3.0),
        ([(0, 1, 3.0), (1, 0, 3.0)], (0, 1), [[1]], 3.0),
        ([(0, 1, 3.0)], (0, 1), [], 3.0),
        ([(0, 1, 3.0)], (1, 0), [[0]], 0.0),
    ],
)
def test_the_bound_of_a_promise_is_its_optimum(
    links: list[tuple[int, int, float]],
    ends: tuple[int, int],
    groups: list[list[int]],
    optimum: float,
    tmp_path: Path,
) -> None:
    """One demand of 4 Gbit/s: what the worst group leaves of its paths, by hand."""
    topology = make_topology(links)
    paths = compute_paths(topology, np.array([ends], dtype=np.int32), num_paths=4, cache=False)
    problem = Problem.create(topology, paths, "total_flow", np.array([[4.0]])).with_protection(
        groups
    )
    (sentence,) = write_proof(tmp_path, problem, solve(problem, gap=1e-6).allocation)
    assert list(_numbers(sentence)) == pytest.approx([optimum, optimum], abs=1e-5)


def test_without_prices_the_bound_is_all_routable_demand(tmp_path: Path) -> None:
    problem = random_problem(7, batch=1)
    nothing = Allocation.of_batch(torch.zeros_like(problem.even_splits), None, 0.0)
    (sentence,) = write_proof(tmp_path, problem, nothing)
    low, high = _numbers(sentence)
    assert low == 0
    assert high == pytest.approx(float(problem.routable_demand.sum()), rel=1e-9)


def test_a_compressed_proof_is_the_same(tmp_path: Path) -> None:
    problem = random_problem(8, batch=1)
    result = solve(problem, gap=1e-3)
    plain = write_proof(tmp_path / "plain", problem, result.allocation)
    packed = write_proof(tmp_path / "packed", problem, result.allocation, compressed=True)
    assert plain == packed
    assert (tmp_path / "packed" / f"{PROOF}.gz").exists()
    assert not (tmp_path / "packed" / GROUPS).exists()
    assert (
        check.check(*(str(tmp_path / "packed" / name) for name in (NETWORK, MATRIX, f"{PROOF}.gz")))
        == packed
    )


def test_prices_that_were_multiplied_prove_as_much() -> None:
    problem = random_problem(9, batch=1)
    result = solve(problem, gap=1e-4)
    halved = dataclasses.replace(result.allocation, prices=result.prices / 2)
    own, other = (
        make_claims(problem, result.splits, allocation, over_all=False)[0]
        for allocation in (result.allocation, halved)
    )
    assert other.bound == pytest.approx(own.bound, rel=1e-6)


@pytest.mark.parametrize("objective", ["max_link_utilisation", "max_concurrent_flow", "total_flow"])
@pytest.mark.parametrize("size", [0.0, 1.0])
def test_prices_of_0_prove_the_trivial_bound(objective: str, size: float, tmp_path: Path) -> None:
    problem = random_problem(4, objective=ObjectiveName(objective), batch=1)
    problem = problem.with_demand(size * problem.demand)
    allocation = solve(problem, gap=1e-2).allocation
    allocation = dataclasses.replace(allocation, prices=torch.zeros_like(problem.capacity))
    (sentence,) = write_proof(tmp_path, problem, allocation)
    low, high = _numbers(sentence)
    trivial = {"max_link_utilisation": low == 0, "max_concurrent_flow": high == 1}
    assert trivial.get(
        objective,
        high == pytest.approx(size * float(problem.routable_demand.sum()), abs=2e-9) or size,
    )


def test_classes_of_similar_names_are_kept_apart(tmp_path: Path) -> None:
    topology = make_topology([(0, 1, 2.0), (1, 2, 1.0)])
    paths = compute_paths(topology, all_pairs(topology), num_paths=2, cache=False)
    demand = {name: np.full((1, paths.num_demands), 0.7) for name in ("a b", "a_b", "é,\n")}
    problem = priority_problem(topology, paths, demand)
    sentences = write_proof(tmp_path, problem, solve(problem, gap=1e-3).allocation)
    assert [
        sentence.partition("class ")[2].partition(" ")[0].rstrip(":") for sentence in sentences
    ] == ["a%20b", "a_b", "%C3%A9%2C%0A"]


def test_flow_beyond_the_rate_of_a_demand_with_a_function_is_refused(tmp_path: Path) -> None:
    topology = make_topology([(0, 1, 20.0)])
    paths = compute_paths(topology, np.array([[0, 1]], dtype=np.int32), num_paths=1, cache=False)
    functions = BandwidthFunctions.of_points([[(1.0, 5.0), (4.0, 8.0)]], [0])
    problem = Problem.create(
        topology, paths, "bandwidth_functions", np.array([[2.0]]), functions=functions
    )
    too_much = Allocation.of_batch(torch.full_like(problem.even_splits, 1.5), None, 0.0)
    with pytest.raises(
        InputError, match=r"demand from n0 to n1: expected at most 2.0 Gbit/s, found 3.0"
    ):
        write_proof(tmp_path, problem, too_much)
