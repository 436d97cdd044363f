"""What to buy against the whole linear program and integer program by HiGHS, and a network solved
by hand."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

import teal
from teal.errors import InputError, SolverError
from teal.network import all_pairs
from teal.runtime.arrays import FloatArray
from teal.runtime.interruptible import Deadline
from teal.solvers.pipeline import solve
from teal.testing import make_topology, random_topology
from teal_ip.purchases import testing
from teal_ip.purchases.benders import expand_capacity, expand_in_modules, needs
from teal_ip.purchases.cuts import Cuts, cheapest_expansion
from teal_ip.purchases.scenarios import Scenarios, scenarios_of


def _scenarios(seed: int, limit: float = 0.9) -> Scenarios:
    topology = random_topology(seed, 7)

    pairs = all_pairs(topology)
    paths = teal.compute_paths(topology, pairs, num_paths=3, method="survivable", cache=False)
    rng = np.random.default_rng(seed)
    matrices = rng.exponential(float(topology.capacity.mean()) / 12, (3, len(pairs)))
    problem = teal.Problem.create(
        topology, paths, teal.Objective("max_link_utilisation"), matrices[:1]
    )
    cost = rng.uniform(1, 3, len(topology.cables()))
    return scenarios_of(problem, matrices, topology.cables(), cost, limit, growth=1.3)[0]


def _whole(
    scenarios: Scenarios,
) -> tuple[FloatArray, sp.csr_array, FloatArray, sp.csr_array, FloatArray]:
    """Cost, inequality rows, equality rows over the purchase and then the flows of all
    scenarios."""
    problem = scenarios.problem
    paths, cables = problem.paths, scenarios.num_cables
    links = problem.topology.num_links
    incidence = problem.ops.incidence(links).toarray()
    existing_capacity = problem.capacity[0].numpy()
    blocks, right, sums, wanted = [], [], [], []
    for s, demand in enumerate(scenarios.demand):
        dead = incidence[~scenarios.live[s]].sum(0) > 0
        column = np.flatnonzero(
            paths.mask.reshape(-1) & ~dead & (np.repeat(demand, paths.num_paths) > 0)
        )
        rows = incidence[:, column]
        before = np.zeros((links, cables))
        before[np.arange(links), scenarios.cable] = -scenarios.max_utilisation
        live = scenarios.live[s]
        blocks.append((before[live], rows[live]))
        right.append(scenarios.max_utilisation * existing_capacity[live])
        own = np.zeros((paths.num_demands, len(column)))
        own[column // paths.num_paths, np.arange(len(column))] = 1
        has = own.any(1)
        sums.append(own[has])
        wanted.append(demand[has])
    upper = sp.hstack(
        [
            sp.csr_array(np.vstack([b for b, _ in blocks])),
            sp.block_diag([sp.csr_array(r) for _, r in blocks]),
        ]
    )
    equal = sp.hstack(
        [
            sp.csr_array((sum(map(len, wanted)), cables)),
            sp.block_diag(list(map(sp.csr_array, sums))),
        ]
    )
    cost = np.concatenate([scenarios.cost, np.zeros(upper.shape[1] - cables)])
    return (
        cost,
        sp.csr_array(upper),
        np.concatenate(right),
        sp.csr_array(equal),
        np.concatenate(wanted),
    )


@pytest.mark.parametrize("seed", range(4))
def test_cost_and_bound_enclose_the_optimum_of_the_whole_program(seed: int) -> None:
    scenarios = _scenarios(seed)
    cost, upper, right, equal, wanted = _whole(scenarios)
    optimum = linprog(cost, upper, right, equal, wanted, bounds=(0, None)).fun
    found, _ = expand_capacity(scenarios, gap=1e-3)
    assert found.reached
    assert optimum > 0
    assert found.bound <= optimum * (1 + 1e-7)
    assert found.cost >= optimum * (1 - 1e-7)
    assert found.gap <= 1e-3
    assert float(found.utilisation.max()) <= scenarios.max_utilisation * (1 + 1e-9)
    # replayed: every scenario solved anew fits
    rows = np.arange(len(scenarios.demand))
    problem = scenarios.problem.with_demand(scenarios.demand).with_capacity(
        scenarios.capacity(found.bought, rows)
    )
    replayed = teal.solve(problem, gap=1e-4).value
    assert float(replayed.max()) <= scenarios.max_utilisation * (1 + 2e-4)


@pytest.mark.parametrize("more", [1.0, 10.0])
def test_a_purchase_that_is_small_beside_the_capacities_reaches_its_gap(more: float) -> None:
    # Nodes 0 to 4; some cut has 28,100 Gbit/s for the first demand beside the others, and is full
    # at more = 0.
    ends = [
        (0, 1, 1e4),
        (0, 2, 1e4),
        (2, 1, 1e4),
        (1, 3, 2e4),
        (3, 4, 1e2),
        (4, 0, 1e4),
        (3, 0, 1e4),
        (2, 3, 5e3),
    ]
    topology, pairs = make_topology(ends, both=True), np.array([[0, 1], [2, 3], [3, 1], [4, 2]])
    matrices = np.array([[28_100 + more, 1_000, 1_000, 2_000]])
    paths = teal.compute_paths(topology, pairs, num_paths=6, cache=False)
    problem = teal.Problem.create(topology, paths, teal.Objective("max_link_utilisation"), matrices)
    scenarios, _ = scenarios_of(problem, matrices, [], np.ones(8), 1.0)
    cost, upper, right, equal, wanted = _whole(scenarios)
    optimum = linprog(cost, upper, right, equal, wanted, bounds=(0, None)).fun
    found, _ = expand_capacity(scenarios, gap=1e-2)
    assert found.reached
    assert found.bound <= optimum * (1 + 1e-6)
    assert found.cost >= optimum * (1 - 1e-6)
    assert found.gap <= 1e-2


@pytest.mark.parametrize("seed", range(2))
def test_modules_cost_what_the_whole_integer_program_says(seed: int) -> None:
    scenarios = _scenarios(seed)
    _, cuts = expand_capacity(scenarios, gap=1e-2)
    size = float(scenarios.problem.topology.capacity.mean()) / 2
    found = expand_in_modules(scenarios, cuts, [(size, 1.0)])
    cost, upper, right, equal, wanted = _whole(scenarios)
    cables = scenarios.num_cables
    scaled = upper.tolil()
    scaled[:, :cables] *= size
    whole = milp(
        np.concatenate([scenarios.cost, cost[cables:]]),
        constraints=[
            LinearConstraint(sp.csr_array(scaled), ub=right),
            LinearConstraint(equal, wanted, wanted),
        ],
        integrality=np.concatenate([np.ones(cables), np.zeros(len(cost) - cables)]),
        bounds=Bounds(0, np.inf),
    )
    assert found.cost == pytest.approx(whole.fun, rel=1e-6)
    assert found.bound <= whole.fun * (1 + 1e-6)
    assert found.reached
    assert np.allclose(found.bought / size, np.round(found.bought / size))
    # Without a cut the first modules do not fit: no gap is closed before some do.
    no_cuts = needs(scenarios, np.zeros(cables))
    near = expand_in_modules(scenarios, no_cuts, [(size, 1.0)], gap=0.1)
    assert near.reached
    assert near.bound <= whole.fun * (1 + 1e-6)
    assert near.cost <= whole.fun / 0.9 * (1 + 1e-6)


def test_a_triangle_by_hand() -> None:
    # 12 Gbit/s from 0 to 1; each cable has 10.  If 0 - 1 fails, 2 more are needed on 0 - 2 and on 2
    # - 1; if one of them fails, 2 more on 0 - 1.
    topology = make_topology([(0, 1, 10), (0, 2, 10), (2, 1, 10)], both=True)
    paths = teal.compute_paths(topology, np.array([[0, 1]]), num_paths=2, cache=False)
    problem = teal.Problem.create(
        topology, paths, teal.Objective("max_link_utilisation"), np.array([[12.0]])
    )
    scenarios, cut_off = scenarios_of(
        problem, np.array([[12.0]]), topology.cables(), np.ones(3), 1.0
    )
    assert not cut_off
    found, cuts = expand_capacity(scenarios, gap=1e-6)
    np.testing.assert_allclose(found.bought, [2.0, 2.0, 2.0], rtol=1e-4)
    assert expand_in_modules(scenarios, cuts, [(5.0, 5.0), (10.0, 7.0)]).cost == pytest.approx(15.0)
    nothing, _ = expand_capacity(
        scenarios_of(problem, np.array([[5.0]]), topology.cables(), np.ones(3), 1.0)[0]
    )
    assert nothing.cost == nothing.bound == nothing.gap == 0


def test_demands_that_a_failure_cuts_off_are_named_and_left_out() -> None:
    topology = make_topology([(0, 1, 10), (1, 2, 10), (2, 1, 10), (1, 0, 10)])
    paths = teal.compute_paths(
        topology, np.array([[0, 1], [0, 2], [1, 2]]), num_paths=2, cache=False
    )
    problem = teal.Problem.create(
        topology, paths, teal.Objective("max_link_utilisation"), np.array([[8.0, 4.0, 1.0]])
    )
    failures = topology.cables()
    scenarios, cut_off = scenarios_of(
        problem, np.array([[8.0, 4.0, 1.0]]), failures, np.ones(2), 1.0
    )
    assert {failure: sorted(demands) for failure, demands in cut_off.items()} == {
        0: [0, 1],
        1: [1, 2],
    }
    found, _ = expand_capacity(scenarios, gap=1e-4)
    assert found.cost == pytest.approx(2.0, rel=1e-3), "12 Gbit/s on 0 - 1 without failure"


def test_wrong_costs_and_sizes_are_refused_and_time_is_kept() -> None:
    scenarios = _scenarios(0)

    with pytest.raises(InputError, match="cost"):
        expand_capacity(dataclasses.replace(scenarios, cost=np.zeros(scenarios.num_cables)))
    found, cuts = expand_capacity(scenarios, gap=0.0, deadline=Deadline.after(0.0))
    assert found.rounds == 2, "the first cut ones alone, then all"
    assert not found.reached
    assert found.bound <= found.cost
    with pytest.raises(InputError, match="modules"):
        expand_in_modules(scenarios, cuts, [])
    with pytest.raises((SolverError, InputError)):
        expand_in_modules(scenarios, cuts, [(-1.0, 1.0)])


@pytest.mark.parametrize("seed", [0, 1, 7, 8])
def test_under_limits_of_cables_cost_and_bound_enclose_the_optimum_and_no_limit_is_passed(
    seed: int,
) -> None:
    scenarios = _scenarios(seed)
    free, _ = expand_capacity(scenarios, gap=1e-3)
    cost, upper, right, equal, wanted = _whole(scenarios)
    for cable in np.argsort(
        -free.bought * scenarios.cost
    ):  # the first one that may have less, at a higher cost
        most = np.full(scenarios.num_cables, np.inf)
        most[cable] = 0.9 * free.bought[cable]
        bounds = [(0, None if np.isinf(one) else one) for one in most] + [(0, None)] * (
            len(cost) - len(most)
        )
        whole = linprog(cost, upper, right, equal, wanted, bounds=bounds)
        if whole.status == 0 and whole.fun > 1.0005 * free.cost:
            break
    else:
        pytest.fail("no limit of a single cable binds on this network")
    limited = dataclasses.replace(scenarios, max_added=most)
    for gap in (
        0.3,
        1e-2,
        1e-3,
    ):  # a search that stops early returns a bound that has met fewer cuts
        found, cuts = expand_capacity(limited, gap=gap)
        assert found.bound <= whole.fun * (1 + 1e-7)
        assert found.cost >= whole.fun * (1 - 1e-7)
        assert (found.bought <= most * (1 + 1e-9)).all()
        # What the search itself keeps below its cost must be proved by the duals alone.
        _, bound, _ = cheapest_expansion(limited, cuts)
        assert bound <= whole.fun * (1 + 1e-7)
    assert found.reached


def test_the_bound_of_a_limited_cable_by_hand() -> None:
    # x + y >= 5, x <= 2, at 1 and 3: 2 and 3 for 11.  The dual of the cut is 3; the limit of x
    # takes 2 (3 - 1) off 15.
    cuts = Cuts(2, 2)
    cuts.coefficient, cuts.prices = np.ones((1, 2)), np.ones((1, 2))
    cuts.needed, cuts.existing, cuts.row = np.array([5.0]), np.zeros(1), np.zeros(1, dtype=np.int64)
    limited = SimpleNamespace(
        cost=np.array([1.0, 3.0]), max_added=np.array([2.0, np.inf]), num_cables=2
    )
    point, bound, _ = cheapest_expansion(limited, cuts)  # type: ignore[arg-type]
    np.testing.assert_allclose(point, [2.0, 3.0])
    assert bound == pytest.approx(11.0)


def test_a_purchase_beyond_the_limits_is_none() -> None:
    # As above, 30 Gbit/s from 0 to 1, all of which need 5 of each cable; the first test of all
    # passes the limit of 2.
    topology = make_topology([(0, 1, 10), (0, 2, 10), (2, 1, 10)], both=True)
    paths = teal.compute_paths(topology, np.array([[0, 1]]), num_paths=2, cache=False)
    problem = teal.Problem.create(
        topology, paths, teal.Objective("max_link_utilisation"), np.array([[30.0]])
    )
    most = np.array([2.0, np.inf, np.inf])
    scenarios, _ = scenarios_of(problem, np.array([[30.0]]), [], np.ones(3), 1.0, max_added=most)
    with pytest.raises(SolverError, match="within the limits"):
        expand_capacity(scenarios, deadline=Deadline.after(0.0))
    assert (expand_capacity(scenarios, gap=1e-4)[0].bought <= most * (1 + 1e-9)).all()


@pytest.mark.parametrize("seed", range(3))
def test_parallel_links_cost_what_one_link_of_their_sum_costs(seed: int) -> None:
    """Against the whole program of the network whose cables are single links, over all simple
    paths."""
    rng = np.random.default_rng(seed)
    ends = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]
    links = [
        (a, b, float(rng.uniform(1, 5))) for a, b in ends for _ in range(int(rng.integers(1, 3)))
    ]
    single = [(a, b, sum(c for s, t, c in links if (s, t) == (a, b))) for a, b in ends]
    cost, matrices = rng.uniform(1, 3, len(ends)), rng.exponential(2.0, (2, 12))
    found = []
    for one in (links, single):
        topology = make_topology(one, both=True)
        paths = teal.compute_paths(
            topology, all_pairs(topology), num_paths=60, method="yen", cache=False
        )
        problem = teal.Problem.create(
            topology, paths, teal.Objective("max_link_utilisation"), matrices[:1]
        )
        each = [
            cost[ends.index((a, b) if (a, b) in ends else (b, a))] for a, b in _first_ends(topology)
        ]
        found.append(scenarios_of(problem, matrices, topology.cables(), np.array(each), 0.9)[0])
    optimum, upper, right, equal, wanted = _whole(found[1])
    least = linprog(optimum, upper, right, equal, wanted, bounds=(0, None)).fun
    upgrade, _ = expand_capacity(found[0], gap=1e-3)
    assert least > 0
    assert upgrade.bound <= least * (1 + 1e-7)
    assert least * (1 - 1e-7) <= upgrade.cost <= least * (1 + 2e-3)


def _first_ends(topology: teal.Topology) -> list[tuple[int, int]]:
    """Ends of the first link of each pair of links."""
    return [
        (int(topology.link_source[p[0]]), int(topology.link_target[p[0]]))
        for p in topology.link_pairs()
    ]


def test_no_test_of_scenarios_outlasts_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    scenarios, seconds = _scenarios(0), list[float]()

    def recorded(*arguments: Any, deadline: float = math.inf, **options: Any) -> Any:
        seconds.append(deadline)
        return solve(*arguments, deadline=deadline, **options)

    monkeypatch.setattr(testing, "solve", recorded)
    end = Deadline.after(0.0)
    upgrade, cuts = expand_capacity(scenarios, deadline=end)
    whole = expand_in_modules(scenarios, cuts, [(10.0, 1.0)], deadline=end)
    assert upgrade.bound <= upgrade.cost < math.inf
    assert float(upgrade.utilisation.max()) <= scenarios.max_utilisation * (1 + 1e-6)
    assert float(whole.utilisation.max()) <= scenarios.max_utilisation * (1 + 1e-6)
    assert seconds
    assert max(seconds) <= 0
