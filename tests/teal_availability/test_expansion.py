"""Purchases for promises, against all choices on small networks and all states of their
components."""

from __future__ import annotations

import csv
import itertools
import json
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import teal
import teal_availability
from teal.cli import main
from teal.problem import Problem
from teal.testing import make_topology
from teal_availability.expansion import LinkPairs, _improve_by_moves, bound_by_prices, expansion
from teal_availability.protection_options import Request, all_feasible_options, option_loads
from teal_availability.survival import survival_probabilities
from tests.teal_availability.brute import load_of_option, random_case, time_of_option


def _requests(problem: Problem, seed: int, count: int) -> list[Request]:
    rng, names = np.random.default_rng(seed), problem.topology.node_names
    scale = float(problem.topology.capacity.mean())
    return [
        Request(
            names[s], names[t], float(scale * rng.uniform(0.2, 3)), float(rng.choice([0.6, 0.9])), 1
        )
        for s, t in problem.paths.pairs[rng.choice(len(problem.paths.pairs), count)].tolist()
    ]


@given(seed=st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_no_choice_of_options_is_cheaper_and_guarantees_hold(seed: int) -> None:
    problem, components = random_case(seed, nodes=4, count=6)
    patterns = survival_probabilities(problem, components)
    requests = _requests(problem, seed, 3)
    rng = np.random.default_rng(seed)
    links = problem.topology.link_pairs()
    cost = rng.uniform(0.5, 3, len(links))
    found = expansion(problem, patterns, requests, LinkPairs.from_links(links, cost))

    options = all_feasible_options(problem, patterns, requests)
    capacity = problem.topology.capacity
    of_request = [
        [option for option in options if option.request_index == j] for j in range(len(requests))
    ]
    possible = [own for own in of_request if own]
    least = np.inf
    for chosen in itertools.product(*possible):
        missing = sum(
            (load_of_option(problem, requests[option.request_index], option) for option in chosen),
            -capacity,
        )
        least = min(
            least,
            sum(
                price * max(0.0, *(missing[link] for link in pair))
                for price, pair in zip(cost, links, strict=True)
            ),
        )
    assert found.cost == pytest.approx(least, rel=1e-6, abs=1e-9 * capacity.sum())
    assert found.bound <= least * (1 + 1e-9)
    assert found.bound == pytest.approx(found.cost, rel=1e-5, abs=1e-6 * capacity.sum())

    new = capacity.copy()
    for amount, pair in zip(found.added_capacity, links, strict=True):
        new[pair] += amount
    kept = [option for option in found.option if option is not None]
    assert (
        sum(
            (load_of_option(problem, requests[option.request_index], option) for option in kept),
            -new,
        )
        <= 1e-9 * new.max()
    ).all()
    assert [option is not None for option in found.option] == [bool(own) for own in of_request]
    for option in kept:
        request = requests[option.request_index]
        assert time_of_option(problem, components, request, option) >= request.availability - 1e-9

    # Any numbers as prices prove no more than what is true.
    if options:
        loads, request_of = (
            option_loads(problem, requests, options),
            np.array([w.request_index for w in options]),
        )
        prices = rng.lognormal(0, 2, len(capacity)) * (rng.random(len(capacity)) < 0.7)
        bound = bound_by_prices(
            request_of, loads, capacity, LinkPairs.from_links(links, cost), prices
        )
        assert bound <= least * (1 + 1e-9)


def _triangle() -> teal.Topology:
    return make_topology([(0, 1, 10.0), (0, 2, 10.0), (2, 1, 10.0)], both=True)


def test_a_copy_on_the_other_route_of_a_triangle(tmp_path: Path) -> None:
    """12 Gbit/s for 99.99% of the time need a copy, since a cable is up for 99.9%: 2 more on each of
    the three cables of 10.  For 99.8% the route of one cable is enough, and for 99% half on
    each route, of which both are up for 99.7%."""
    report = teal_availability.expand(_triangle(), (Request("n0", "n1", 12.0, 0.9999, 1.0),))
    assert [row.bought for row in report.purchases] == pytest.approx([2, 2, 2])
    assert [row.capacity for row in report.purchases] == [10, 10, 10]
    assert report.cost == pytest.approx(6)
    assert report.bound == pytest.approx(6)
    assert report.upgraded.capacity == pytest.approx(np.full(6, 12.0))
    kept = report.reservations[0]
    assert kept.way == "1 of 2: n0|n1 n0|n2|n1"
    assert kept.kept == pytest.approx(1 - 0.001 * (1 - 0.999**2))
    report.save(tmp_path)
    again = teal.load_topology(str(tmp_path / "topology.json"))
    assert again.capacity == pytest.approx(np.full(6, 12.0))
    sold = Request("n0", "n1", 12.0, 0.9999, 1.0, is_sold=True)
    assert teal_availability.admit(again, [sold]).rows[0].status == "sold"

    cheap = teal_availability.expand(_triangle(), (Request("n0", "n1", 12.0, 0.998, 1.0),))
    assert cheap.cost == pytest.approx(2)
    nothing = teal_availability.expand(_triangle(), (Request("n0", "n1", 12.0, 0.99, 1.0),))
    assert "Nothing is to be bought" in nothing.answer
    assert nothing.gap == 0


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_costs_and_units_of_any_size_give_the_same_purchase(scale: float) -> None:
    """Thirty random cases, solved as integer programs with costs of 1 and of ``scale``."""
    for seed in range(30):
        problem, components = random_case(seed, nodes=4, count=6)
        patterns = survival_probabilities(problem, components)
        requests = _requests(problem, seed, 4)
        links = problem.topology.link_pairs()
        cost = np.random.default_rng(seed).uniform(0.5, 3, len(links))
        one = expansion(problem, patterns, requests, LinkPairs.from_links(links, cost))
        other = expansion(problem, patterns, requests, LinkPairs.from_links(links, scale * cost))
        assert other.cost == pytest.approx(scale * one.cost, rel=1e-5, abs=1e-9 * scale)
        assert other.bound == pytest.approx(scale * one.bound, rel=1e-5, abs=1e-6 * scale)


def test_sums_of_rates_that_just_fit_buy_nothing_and_small_purchases_are_listed(
    tmp_path: Path,
) -> None:
    """0.1 + 0.2 is more than 0.3 by rounding; 3 Gbit/s over a link of 1, beside one of 1e10."""
    link = make_topology([(0, 1, 0.3)], both=True)
    requests = tuple(Request("n0", "n1", rate, 0.9, 1.0) for rate in (0.1, 0.2))
    report = teal_availability.expand(link, requests)
    assert report.cost == report.gap == 0
    report.save(tmp_path)
    assert (tmp_path / "purchases.csv").read_text().splitlines() == [
        "source,target,capacity,bought,cost"
    ]
    wide = make_topology([(0, 1, 1.0), (1, 2, 1e10)], both=True)
    (row,) = teal_availability.expand(wide, (Request("n0", "n1", 3.0, 0.9, 1.0),)).purchases
    assert row.bought == pytest.approx(2)


@pytest.mark.parametrize("seed", range(20))
def test_no_promise_gains_by_moving_alone(seed: int) -> None:
    """After the local search each request has its cheapest option beside all others."""
    rng = np.random.default_rng(seed)
    promises, options, links = 6, 4, 8
    loads = rng.exponential(1, (promises * options, links)) * (rng.random((24, links)) < 0.4)
    capacity = 0.3 * loads.sum(0) / options * rng.uniform(0.5, 1.5, links)
    pairs = LinkPairs.from_links([[link] for link in range(links)], rng.uniform(0.5, 3, links))
    own = np.arange(promises * options).reshape(promises, options)

    def cost(chosen: np.ndarray) -> float:
        missing = np.maximum(loads[chosen].sum(0) - capacity, 0)
        return float(missing @ pairs.cost)

    start = own[:, 0]
    priced = loads @ pairs.cost
    chosen = _improve_by_moves(
        list(own), start, sp.csr_array(loads), capacity, pairs, priced, time.perf_counter() + 60
    )
    assert cost(chosen) < cost(start)
    for number, of_promise in enumerate(own):
        for option in of_promise.tolist():
            other = chosen.copy()
            other[number] = option
            assert cost(other) >= cost(chosen) * (1 - 1e-6)


def test_a_promise_that_no_capacity_keeps_is_named() -> None:
    requests = (Request("n0", "n1", 5.0, 0.9999999, 1.0), Request("n0", "n2", 15.0, 0.998, 1.0))
    report = teal_availability.expand(_triangle(), requests)
    assert "1 are impossible: no protection option" in report.answer
    assert [row.way for row in report.reservations] == ["", "1 of 1: n0|n2"]
    assert report.cost == pytest.approx(5)


def test_the_command_takes_the_peaks_of_traffic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["expand", "--topology", "b4", "--traffic", "gravity:seed=0,count=2,load=3"]
    command += ["--availability", "0.999", "--out", str(tmp_path / "out"), "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bound"] <= found["cost"]
    assert found["gap"] < 0.01
    with (tmp_path / "out" / "purchases.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert sum(float(row["cost"]) for row in rows) == pytest.approx(found["cost"])
    topology = teal.load_topology("b4")
    traffic = teal.load_traffic("gravity:seed=0,count=2,load=3", topology)
    peaks = teal_availability.peak_requests(topology, traffic, 0.999)
    peak = traffic.read(slice(None)).max(0)
    assert [one.rate for one in peaks] == pytest.approx(peak[peak > 0])
    assert main(command) == 2, "not replaced"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "set either --promises or --traffic"),
        (["--traffic", "gravity:", "--availability", "99"], "a share of the time"),
        (["--traffic", "gravity:", "--num-paths", "0"], "1 to 8"),
        (["--promises", "p.csv", "--availability", "0.9"], "no effect with --promises"),
        (["--promises", "p.csv", "--traffic-unit", "Mbit/s"], "no effect with --promises"),
    ],
)
def test_faults_of_settings_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert main(["expand", "--topology", "b4", "--out", str(tmp_path / "out"), *options]) == 2
    assert words in capsys.readouterr().err


def test_costs_by_length_are_latencies() -> None:
    requests = (Request("n0", "n1", 12.0, 0.99, 1.0),)
    long = make_topology([(0, 1, 10.0)], latency=5.0, both=True)
    assert teal_availability.expand(long, requests, cost="length").cost == pytest.approx(10)
