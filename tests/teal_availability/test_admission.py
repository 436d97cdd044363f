"""Admission of promises, against all choices on small networks and all states of their
components."""

from __future__ import annotations

import dataclasses
import itertools
import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import teal_availability
from teal.cli import main
from teal.errors import InputError
from teal.network import all_pairs, compute_paths
from teal.objectives import Objective
from teal.problem import Problem
from teal.testing import make_topology
from teal_availability import admission as module
from teal_availability.admission import select_guarantees
from teal_availability.components import components_of
from teal_availability.protection_options import (
    ProtectionOption,
    Request,
    feasible_options,
    read_requests,
)
from teal_availability.survival import SurvivalStates, survival_probabilities
from tests.teal_availability.brute import load_of_option, random_case, time_of_option


def _requests(problem: Problem, seed: int, count: int, size: float = 1.0) -> list[Request]:
    rng, names = np.random.default_rng(seed), problem.topology.node_names
    pairs = problem.paths.pairs[rng.choice(len(problem.paths.pairs), count)]
    scale = float(problem.topology.capacity.mean())
    return [
        Request(
            names[s],
            names[t],
            float(size * scale * rng.uniform(0.2, 1.5)),
            float(rng.choice([0.6, 0.8, 0.9])),
            float(rng.uniform(1, 5)),
        )
        for s, t in pairs.tolist()
    ]


@given(seed=st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_many_small_promises_do_not_overbook_a_link(seed: int) -> None:
    """Most of them move to cheaper options beside each other, after the choice."""
    problem, components = random_case(seed, nodes=4, count=6)
    patterns = survival_probabilities(problem, components)
    requests = _requests(problem, seed, 8, size=0.4)
    found = select_guarantees(problem, patterns, requests)
    kept = [option for option in found.option if option is not None]
    loads = [load_of_option(problem, requests[option.request_index], option) for option in kept]
    if loads:
        assert (sum(loads) <= problem.topology.capacity * (1 + 1e-8)).all()


@given(seed=st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_no_choice_is_better_and_what_is_promised_is_kept(seed: int) -> None:
    """Five promises on a small network: all choices of options, one by one; and every state."""
    problem, components = random_case(seed, nodes=4, count=6)
    patterns = survival_probabilities(problem, components)
    requests = _requests(problem, seed, 4)
    found = select_guarantees(problem, patterns, requests)
    names = problem.topology.node_names
    number = {(names[s], names[t]): d for d, (s, t) in enumerate(problem.paths.pairs.tolist())}

    def load(option: ProtectionOption) -> np.ndarray:
        return load_of_option(problem, requests[option.request_index], option)

    capacity = problem.topology.capacity
    kept = [option for option in found.option if option is not None]
    if kept:
        assert (sum(load(option) for option in kept) <= capacity * (1 + 1e-8)).all()
    assert found.value == pytest.approx(
        sum(requests[option.request_index].value for option in kept)
    )

    for option in kept:
        request = requests[option.request_index]
        time = time_of_option(problem, components, request, option)
        assert time == pytest.approx(option.availability, abs=1e-12)
        assert time >= request.availability - 1e-9

    options: list[list[ProtectionOption | None]] = []
    for i, request in enumerate(requests):
        d = number[request.source, request.target]
        live = np.flatnonzero(problem.path_mask[0, d].numpy()).tolist()
        own = list(feasible_options(i, request, patterns.probability[d], live))
        assert (found.status[i] == module.IMPOSSIBLE) == (not own)
        options.append([None, *own])
    best = 0.0
    for choice in itertools.product(*options):
        taken = [option for option in choice if option is not None]
        if not taken or (sum(load(option) for option in taken) <= capacity).all():
            best = max(best, sum(requests[option.request_index].value for option in taken))
    assert found.value == pytest.approx(best, rel=1e-6)
    assert found.bound >= best * (1 - 1e-9)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_large_programs_are_rounded_within_their_bound(seed: int) -> None:
    """Programs above the size limit of integer programs."""
    problem, components = random_case(seed)
    patterns = survival_probabilities(problem, components)
    requests = _requests(problem, seed, 8)
    exact = select_guarantees(problem, patterns, requests)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_INTEGER_OPTIONS", 0)
        rounded = select_guarantees(problem, patterns, requests)
    assert rounded.value <= exact.value + 1e-9
    assert exact.value <= rounded.bound + 1e-9


def test_a_protection_option_of_each_kind_by_hand() -> None:
    """Three paths that survive in 90% of the time each, independently: one for 90%, a copy for 99%,
    two of three for 97.2%, one of three for 99.9%."""
    probability = np.array(
        [np.prod([0.9 if (number >> k) & 1 else 0.1 for k in range(3)]) for number in range(8)]
    )

    def needed(availability: float) -> set[tuple[int, int]]:
        request = Request("a", "b", 1.0, availability, 1.0)
        found = feasible_options(0, request, probability, [0, 1, 2])
        return {(option.min_surviving, len(option.paths)) for option in found}

    assert needed(0.7) == {(1, 1), (2, 2), (3, 3)}
    assert needed(0.9) == {(1, 1), (2, 3)}
    assert needed(0.97) == {(1, 2), (2, 3)}
    assert needed(0.99) == {(1, 2)}
    assert needed(0.999) == {(1, 3)}
    assert needed(0.9995) == set()


_FILE = "source,target,rate,availability,value,sold\n"


def test_sold_promises_are_kept_and_a_further_one_has_a_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One cable of 10 Gbit/s: 6 are sold, 3 are worth 5, and 4 worth 6 do not fit beside them."""
    network = {
        "directed": True,
        "nodes": [{"id": "a"}, {"id": "b"}],
        "links": [
            {"source": "a", "target": "b", "capacity": 10},
            {"source": "b", "target": "a", "capacity": 10},
        ],
    }
    (tmp_path / "two.json").write_text(json.dumps(network))
    rows = ["a,b,6,0.99,1,yes", "a,b,3,0.99,5,no", "a,b,4,0.99,6,", "a,b,1,0.9999,9,"]
    (tmp_path / "p.csv").write_text(_FILE + "\n".join(rows) + "\n")
    command = ["admit", "--topology", str(tmp_path / "two.json"), "--json", "--quiet"]
    command += ["--promises", str(tmp_path / "p.csv"), "--out", str(tmp_path / "answers.csv")]
    assert main(command) == 0
    said = json.loads(capsys.readouterr().out)
    statuses = [row["status"] for row in said["promises"]]
    assert statuses == ["sold", "refused", "accepted", "impossible"]
    assert said["value"] == 7
    assert said["promises"][0]["way"] == "1 of 1: a|b"
    assert said["promises"][3]["price"] is None or said["promises"][3]["price"] == "inf"
    assert (tmp_path / "answers.csv").read_text().count("\n") == 5

    (tmp_path / "p.csv").write_text(_FILE + "a,b,6,0.99,1,yes\na,b,6,0.99,1,yes\n")
    assert main([*command, "--overwrite"]) == 2
    assert "cannot all be kept" in capsys.readouterr().err
    (tmp_path / "p.csv").write_text(_FILE + "a,b,6,0.9999,1,yes\n")
    assert main([*command, "--overwrite"]) == 2
    assert "no protection option on the candidate paths reaches" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("a,z,1,0.99,,", "a node of"),
        ("a,a,1,0.99,,", "source and target are the same node"),
        ("a,b,-1,0.99,,", "rate: expected a number above 0"),
        ("a,b,nan,0.99,,", "rate: expected a rate such as 10"),
        ("a,b,1,99,,", r"a share of the time in \(0, 1 - 1e-14\]; 99% is 0.99"),
        ("a,b,1,0.9,,maybe", "yes or no"),
    ],
)
def test_faults_of_a_table_of_promises_are_one_line(tmp_path: Path, row: str, words: str) -> None:
    import dataclasses

    from teal.testing import make_topology

    topology = dataclasses.replace(make_topology([(0, 1, 1.0)]), node_names=("a", "b"))
    (tmp_path / "p.csv").write_text(_FILE + row + "\n")
    with pytest.raises(InputError, match=words):
        read_requests(tmp_path / "p.csv", topology)


def _three_routes(scale: float) -> tuple[Problem, SurvivalStates]:
    """Three routes of 10 Gbit/s, times ``scale``, between two nodes."""
    both = [(0, 1, 10.0), (0, 2, 10.0), (2, 1, 10.0), (0, 3, 10.0), (3, 1, 10.0)]
    topology = make_topology([(a, b, scale * capacity) for a, b, capacity in both])
    paths = compute_paths(topology, all_pairs(topology), num_paths=3, cache=False)
    problem = Problem.create(topology, paths, Objective(), np.ones((1, paths.num_demands)))
    return problem, survival_probabilities(problem, components_of(topology))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_sold_promises_that_just_fit_are_kept_in_any_unit(scale: float) -> None:
    """Ten rates that fill three routes, 30 Gbit/s, exactly: 10 = 6 + 4 = 5 + 3 + 2 = 4 + 3 + 2 + 1."""
    problem, patterns = _three_routes(scale)
    rates = [6, 4, 5, 3, 2, 4, 3, 2, 1]
    requests = [Request("n0", "n1", scale * rate, 0.9, 1.0, True) for rate in rates]
    found = select_guarantees(problem, patterns, requests)
    assert set(found.status) == {module.SOLD}
    assert found.value == len(rates)
    with pytest.raises(InputError, match="cannot all be kept"):
        select_guarantees(problem, patterns, [*requests, requests[0]])
    huge = Request("n0", "n1", 1e15 * scale, 0.9, 1.0)
    assert select_guarantees(problem, patterns, [huge]).status == (module.REFUSED,)
    with pytest.raises(InputError, match="fits into an empty network"):
        select_guarantees(problem, patterns, [dataclasses.replace(huge, is_sold=True)])


def test_promises_of_python_are_checked_and_units_of_a_table_are_read(tmp_path: Path) -> None:
    topology = make_topology([(0, 1, 10.0), (1, 0, 10.0)])
    (tmp_path / "p.csv").write_text("source,target,rate (Mbps),availability\nn0,n1,500,0.9\n")
    report = teal_availability.admit(topology, tmp_path / "p.csv")
    assert report.rows[0].rate == 0.5
    again = teal_availability.admit(topology, (Request("n0", "n1", 0.5, 0.9, 0.5),))
    assert again.rows == report.rows
    for wrong in (
        Request("n0", "n9", 1.0, 0.9, 1.0),
        Request("n0", "n0", 1.0, 0.9, 1.0),
        Request("n0", "n1", -3.0, 0.9, 1.0),
        Request("n0", "n1", 1.0, 1.5, 1.0),
    ):
        with pytest.raises(InputError, match="promise 0"):
            teal_availability.admit(topology, [wrong])
    with pytest.raises(InputError, match="no promise"):
        teal_availability.admit(topology, [])


@pytest.mark.slow
@given(
    capacity=st.decimals("0.1", "30", places=2),
    rates=st.lists(st.decimals("0.01", "20", places=2), min_size=1, max_size=4),
    shared=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_what_was_bought_for_promises_keeps_them(
    capacity: Decimal, rates: list[Decimal], shared: bool
) -> None:
    """expand, then admit on the network with the purchase: nothing is refused, whatever sums of
    decimal numbers are in floating point."""
    ends = [(0, 1), (1, 3), (0, 2), (2, 3)] if shared else [(0, 1)]
    topology = make_topology([(a, b, float(capacity)) for a, b in ends], both=True)
    target = "n3" if shared else "n1"
    requests = [Request("n0", target, float(rate), 0.9, float(rate)) for rate in rates]
    bought = teal_availability.expand(topology, requests, cable_availability=0.99)
    admitted = teal_availability.admit(bought.upgraded, requests, cable_availability=0.99)
    assert [row.status for row in admitted.rows] == ["accepted"] * len(rates)
    assert admitted.value == pytest.approx(sum(map(float, rates)))
    assert admitted.bound >= admitted.value * (1 - 1e-12)


def test_values_of_very_different_sizes_are_all_in_value_and_bound() -> None:
    """6 of 10 Gbit/s for a value of 1e8 leave 4 for one of 1: both are kept, and the bound has
    both."""
    topology = make_topology([(0, 1, 10.0)], both=True)
    requests = [
        Request("n0", "n1", 6.0, 0.5, 1e8),
        Request("n0", "n1", 4.0, 0.5, 1.0),
        Request("n0", "n1", 6.0, 0.5, 1e7),
    ]
    for order in itertools.permutations(requests):
        found = teal_availability.admit(topology, order, cable_availability=0.9)
        accepted = {row.value for row in found.rows if row.status == "accepted"}
        assert accepted == {1e8, 1.0}
        assert found.value == 1e8 + 1
        assert found.bound >= (1e8 + 1) * (1 - 1e-12)


def test_a_stub_behind_one_cable_has_two_paths_over_it() -> None:
    """5 on each of two paths that share the last cable: up for (1 - 0.19^2) 0.9 of the time."""
    ring = [(0, 1, 10.0), (1, 3, 10.0), (0, 2, 10.0), (2, 3, 10.0), (3, 4, 10.0)]
    topology = make_topology(ring, both=True)
    up = (1 - 0.19**2) * 0.9
    for needed, status in ((up - 1e-6, "accepted"), (up + 1e-6, "impossible")):
        request = Request("n0", "n4", 5.0, needed, 5.0)
        found = teal_availability.admit(topology, [request], cable_availability=0.9)
        assert found.rows[0].status == status


@pytest.mark.parametrize("missed", [1e-6, 1e-9, 1e-12, 1e-13])
def test_availabilities_next_to_one_are_told_apart(missed: float) -> None:
    """A cable that is down for ``missed`` of the time keeps a promise for 1 - 2 missed, not one for
    1 - missed / 2."""
    topology = make_topology([(0, 1, 10.0)], both=True)
    for share, status in ((2 * missed, "accepted"), (missed / 2, "impossible")):
        request = Request("n0", "n1", 5.0, 1 - share, 5.0)
        found = teal_availability.admit(topology, [request], cable_availability=1 - missed)
        assert found.rows[0].status == status
    request = Request("n0", "n1", 5.0, 1 - 2e-16, 5.0)
    with pytest.raises(InputError, match=r"\(0, 1 - 1e-14\]"):
        teal_availability.admit(topology, [request], cable_availability=0.9)


def test_the_price_of_a_promise_is_what_its_capacity_is_worth_to_others() -> None:
    """Of two promises of 6 Gbit/s over one link of 10, the one that is worth 12, and fits in part,
    makes a Gbit/s worth 2."""
    topology = make_topology([(0, 1, 10.0)], both=True)
    traffic = np.array([[0, 1]], np.int32)
    paths = compute_paths(topology, traffic, num_paths=1, cache=False)
    problem = Problem.create(topology, paths, Objective(), np.array([[12.0]]))
    patterns = survival_probabilities(problem, components_of(topology, cable_availability=0.99))
    a, b = topology.node_names
    requests = [Request(a, b, 6.0, 0.9, value) for value in (30.0, 12.0)]
    found = select_guarantees(problem, patterns, requests)
    assert list(found.price) == pytest.approx([12.0, 12.0])
    assert found.value == pytest.approx(30)
    assert found.bound >= 30
