"""Estimates against a convex solver, repair and alarms against what was put in, worst loads against
enumeration."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linprog, minimize

from teal.errors import InputError
from teal.network import Topology, all_pairs
from teal.network.candidate_lists import CandidateLists
from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentList, SegmentPolicies
from teal.runtime.arrays import FloatArray, IntArray
from teal.testing import make_topology, random_topology
from teal_ip.counters.check import Checker
from teal_ip.counters.estimator import Estimator, History, HistoryPrior, _Bias, gravity, scaled_to
from teal_ip.counters.expected_error import expected_error
from teal_ip.counters.projection import Projection
from teal_ip.counters.repair import repair, repaired_values
from teal_ip.counters.worst_load import worst_load
from teal_ip.readings.readings import Readings
from teal_ip.routing.igp_failures import IgpFailures
from teal_ip.routing.measurements import ecmp_measurements, policy_measurements
from tests.igp_reference import random_metrics, segment_shares


def _network(seed: int, nodes: int = 7) -> tuple[Topology, EcmpDag, IntArray, sp.csr_array]:
    topology = random_topology(seed, nodes)
    dag = EcmpDag.of(topology, random_metrics(topology, seed))
    pairs = all_pairs(topology)
    pairs = pairs[dag.reaches[pairs[:, 1], pairs[:, 0]]]
    return topology, dag, pairs, ecmp_measurements(dag, pairs)


def _series(demands: int, count: int, seed: int) -> FloatArray:
    """(count, D) matrices that rise and fall together, each demand with noise of its own."""
    rng = np.random.default_rng(seed)
    level = 1 + 0.4 * np.sin(np.arange(count) / 20)
    return rng.lognormal(0, 1, demands) * level[:, None] * rng.lognormal(0, 0.2, (count, demands))


@pytest.mark.parametrize("seed", range(3))
def test_measurements_are_the_reference_shares_and_the_ends_of_demands(seed: int) -> None:
    topology, dag, pairs, measured = _network(seed)
    shares = segment_shares(topology, dag.links.metric)
    expected = np.stack([shares[t, s] for s, t in pairs.tolist()], 1)
    ends = np.stack(
        [(pairs[:, i] == n).astype(float) for i in (0, 1) for n in range(topology.num_nodes)]
    )
    np.testing.assert_allclose(measured.toarray(), np.vstack([expected, ends]), atol=1e-12)


def test_measurements_of_installed_lists_are_their_simulated_loads() -> None:
    topology, dag, pairs, _ = _network(1)
    (s, t), demand = pairs[0].tolist(), np.random.default_rng(0).exponential(size=(1, len(pairs)))
    link = int(np.flatnonzero((topology.link_source != t) & (topology.link_target != s))[0])
    end = int(topology.link_target[link])
    policies = SegmentPolicies(
        {(s, t): (SegmentList(0.25, (end,), (link,)), SegmentList(0.75, ()))}
    )
    loads = IgpFailures.of_demands(dag, pairs, demand, policies).load
    found = policy_measurements(dag, pairs, policies) @ demand[0]
    np.testing.assert_allclose(found[: topology.num_links], loads[0], atol=1e-12)
    assert CandidateLists.straight(dag, pairs).num_demands == len(pairs)


@pytest.mark.parametrize("seed", range(3))
def test_the_projection_is_the_minimum_of_its_program(seed: int) -> None:
    _, _, pairs, measured = _network(seed, 5)
    rng = np.random.default_rng(seed)
    truth, prior, phi = (
        rng.exponential(size=len(pairs)),
        rng.exponential(size=len(pairs)) + 0.1,
        0.3,
    )
    counters = measured @ truth * (1 + 0.05 * rng.normal(size=measured.shape[0]))
    counters[1] = np.nan
    projection = Projection(measured)
    deviation = projection.deviations(counters, 0.05)
    known, dense = np.isfinite(counters), measured.toarray()

    def loss(log_x: FloatArray) -> float:
        x = np.exp(log_x)
        misfit = ((counters - dense @ x) / deviation)[known]
        return float((x * np.log(x / prior) - x + prior).sum() / phi + 0.5 * misfit @ misfit)

    reference = minimize(
        loss, np.log(prior), method="BFGS", options={"gtol": 1e-9, "maxiter": 20_000}
    )
    found = projection.project(counters, deviation, prior, phi)
    assert found.converged
    assert loss(np.log(found.matrix)) <= reference.fun * (1 + 1e-9) + 1e-9
    np.testing.assert_allclose(found.matrix, np.exp(reference.x), rtol=2e-3, atol=2e-4)
    assert np.isnan(found.residual[1])
    # the same in another unit of traffic
    scaled = projection.project(1000 * counters, 1000 * deviation, 1000 * prior, 1000 * phi)
    np.testing.assert_allclose(scaled.matrix, 1000 * found.matrix, rtol=1e-6)


def test_the_same_projection_by_conjugate_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, pairs, measured = _network(2)
    rng = np.random.default_rng(0)
    counters = measured @ rng.exponential(size=len(pairs))
    projection, prior = Projection(measured), np.ones(len(pairs))
    deviation = projection.deviations(counters, 0.01)
    factorised = projection.project(counters, deviation, prior, 1.0)
    monkeypatch.setattr("teal_ip.counters.projection._MAX_FACTORISED", 0)
    iterated = projection.project(counters, deviation, prior, 1.0)
    np.testing.assert_allclose(iterated.matrix, factorised.matrix, rtol=1e-4, atol=1e-7)


def test_gravity_is_exact_where_traffic_is_gravity_and_no_traffic_is_no_traffic() -> None:
    topology, _, pairs, measured = _network(0)
    rng = np.random.default_rng(0)
    shares = gravity(
        rng.exponential(size=topology.num_nodes), rng.exponential(size=topology.num_nodes), pairs
    )
    assert shares.sum() == pytest.approx(1)
    counters = measured @ (5 * shares)
    np.testing.assert_allclose(scaled_to(counters, measured, shares), 5 * shares)
    none = Projection(measured).project(
        np.zeros(len(counters)), np.ones(len(counters)), np.zeros(len(pairs)), 1.0
    )
    assert none.matrix.sum() == 0


def test_a_history_more_than_halves_the_error_and_its_intervals_hold() -> None:
    topology, _, pairs, measured = _network(3, 9)
    series, rng = _series(len(pairs), 400, 1), np.random.default_rng(2)
    errors = {}
    for name, history in (("history", series[:300]), ("cold", None)):
        estimator = Estimator(pairs, topology.num_nodes, history=history)
        estimator.route(measured)
        estimator.calibrate()
        rows = []
        for truth in series[300:]:
            one = estimator.estimate(
                measured @ truth * (1 + 0.01 * rng.normal(size=measured.shape[0]))
            )
            holds = ((truth >= one.lower) & (truth <= one.upper)).mean()
            rows.append((np.abs(one.matrix - truth).sum() / truth.sum(), holds))
        errors[name] = np.mean(rows, axis=0)
    assert errors["history"][0] < 0.5 * errors["cold"][0]
    assert 0.86 < errors["history"][1] < 0.97
    assert np.isnan(errors["cold"][1]) or errors["cold"][1] == 0


def test_measured_demands_are_kept_and_matrices_that_arrive_are_learnt() -> None:
    topology, _, pairs, measured = _network(4)
    series = _series(len(pairs), 60, 3)
    estimator = Estimator(pairs, topology.num_nodes)
    estimator.route(measured)
    flows = np.full(len(pairs), np.nan)
    flows[:4] = series[0, :4]
    one = estimator.estimate(measured @ series[0], flows=flows)
    np.testing.assert_allclose(one.matrix[:4], series[0, :4], rtol=0.05, atol=1e-3)
    before = estimator.estimate(measured @ series[59]).matrix
    for matrix in series[:50]:
        estimator.observe(matrix)
    after = estimator.estimate(measured @ series[59])
    assert after.prior == "history"
    assert np.abs(after.matrix - series[59]).sum() < np.abs(before - series[59]).sum()
    partial = np.full(len(pairs), np.nan)
    partial[0] = 1.0
    estimator.observe(partial)
    scenarios = _calibrated(estimator).scenarios(after.matrix, 5)
    assert scenarios.shape == (5, len(pairs))
    assert (scenarios >= 0).all()


def _calibrated(estimator: Estimator) -> Estimator:
    estimator.calibrate()
    return estimator


@pytest.mark.parametrize("seed", range(3))
def test_repair_finds_a_wrong_counter_of_a_link_and_blames_no_good_one(seed: int) -> None:
    topology, _, pairs, measured = _network(seed)
    rng = np.random.default_rng(seed)
    values = measured @ rng.exponential(size=len(pairs))
    links, nodes = topology.num_links, topology.num_nodes
    sent, received = values[:links].copy(), values[:links].copy()
    ingress, egress = values[links : links + nodes], values[links + nodes :]
    wrong = int(np.argmax(sent))
    sent[wrong] *= 0.4
    for expected in (values, None):
        fixed = repair(topology, Readings(sent, received, ingress, egress), expected)
        np.testing.assert_allclose(fixed.values, values, rtol=0.02, atol=0.01)
        assert np.flatnonzero(fixed.blamed_sent).tolist() == [wrong]
        assert fixed.num_blamed == 1
    received[wrong] = (
        np.nan
    )  # the only other counter is missing: conservation and the demands are left
    fixed = repair(topology, Readings(sent, received, ingress, egress), values)
    assert fixed.values[wrong] == pytest.approx(values[wrong], rel=0.05)


@pytest.mark.parametrize("knows_history", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_estimates_from_wrong_interfaces_are_as_good_as_from_right_ones(
    seed: int, knows_history: bool
) -> None:
    """Interfaces whose two counters are silent, half or double; conservation alone leaves some of
    them undecided."""
    topology, _, pairs, measured = _network(seed, 16)
    rng = np.random.default_rng(seed)
    sends, receives = rng.lognormal(0, 0.8, (2, topology.num_nodes))
    mean = sends[pairs[:, 0]] * receives[pairs[:, 1]] * rng.lognormal(0, 0.35, len(pairs))
    series = mean * rng.lognormal(0, 0.05, (40, len(pairs)))
    links, nodes = topology.num_links, topology.num_nodes
    error: dict[str, list[float]] = {"right": [], "wrong": []}
    for name, found in error.items():
        estimator = Estimator(pairs, nodes, history=series[:30] if knows_history else None)
        estimator.route(measured)
        is_wrong = rng.choice(links, max(2, links // 10), replace=False)
        for truth in series[30:]:
            load, ingress, egress = np.split(measured @ truth, [links, links + nodes])
            sent, received = load.copy(), load.copy()
            for number, e in enumerate(is_wrong if name == "wrong" else []):
                back = np.flatnonzero(
                    (topology.link_source == topology.link_target[e])
                    & (topology.link_target == topology.link_source[e])
                )
                sent[e] *= (0.0, 0.5, 2.0)[number % 3]
                received[back] *= (0.0, 0.5, 2.0)[number % 3]
            values, _ = repaired_values(
                estimator, topology, Readings(sent, received, ingress, egress)
            )
            one = estimator.estimate(values, robust=True)
            found.append(float(np.abs(one.matrix - truth).sum() / truth.sum()))
    assert np.mean(error["wrong"]) <= np.mean(error["right"]) + 0.02


def test_what_counters_explain_predicts_a_missing_link_and_teaches_nothing() -> None:
    topology, _, pairs, measured = _network(1)
    values = measured @ np.random.default_rng(0).exponential(size=len(pairs))
    one, other = (Estimator(pairs, topology.num_nodes) for _ in range(2))
    for estimator in (one, other):
        estimator.route(measured)
        estimator.estimate(values)
    partial = values.copy()
    partial[0] = np.nan
    predicted = one.explained(partial)
    assert predicted[0] == pytest.approx(values[0], rel=0.3)
    np.testing.assert_array_equal(one.estimate(values).matrix, other.estimate(values).matrix)


def test_an_alarm_says_that_traffic_is_missing_and_none_is_raised_without() -> None:
    topology, _, pairs, measured = _network(5, 9)
    series = _series(len(pairs), 120, 0)
    checker = Checker(topology, pairs, measured)
    checker.calibrate(series[:100])
    rng = np.random.default_rng(1)
    for truth in series[100:]:
        counters = checker.corrupted_counters(truth, series[0], 0.05, rng)
        clean = checker.check(counters, truth)
        assert not clean.alarm
        assert not clean.unit
        missing = truth.copy()
        missing[pairs[:, 0] == 0] = 0.0
        found = checker.check(counters, missing)
        assert found.alarm
        assert any("n0" in name for name in found.suspects)
        assert "bits" in checker.check(counters, 8 * truth).unit
    with pytest.raises(InputError, match="window"):
        Checker(topology, pairs, measured, window=0)


def test_a_robust_estimate_doubts_wrong_counters_and_leaves_right_ones() -> None:
    topology, _, pairs, measured = _network(5, 9)
    series, rng = _series(len(pairs), 80, 0), np.random.default_rng(1)
    errors: dict[bool, list[float]] = {True: [], False: []}
    for robust, of_kind in errors.items():
        estimator = Estimator(pairs, topology.num_nodes, history=series[:60])
        estimator.route(measured)
        for truth in series[60:]:
            counters = measured @ truth
            exact = estimator.estimate(counters, robust=robust)
            if robust:
                np.testing.assert_allclose(
                    exact.matrix, estimator.estimate(counters).matrix, rtol=0.2, atol=0.2
                )
            wrong = rng.permutation(len(counters))[: len(counters) // 8]
            counters[wrong] *= rng.uniform(1.5, 3, len(wrong))
            found = estimator.estimate(counters, robust=robust).matrix
            of_kind.append(np.abs(found - truth).sum() / truth.sum())
    assert np.mean(errors[True]) < 0.8 * np.mean(errors[False])


def test_counters_that_contradict_each_other_take_a_bounded_number_of_steps() -> None:
    topology, _, pairs, measured = _network(5, 9)
    rng = np.random.default_rng(0)
    for factor in (1.0, 10.0, 1000.0):
        counters = measured @ rng.lognormal(0, 1, len(pairs))
        counters[::2] *= factor
        estimator = Estimator(pairs, topology.num_nodes)
        estimator.route(measured)
        for robust in (False, True):
            assert estimator.estimate(counters, robust=robust).steps <= (80 if robust else 20)


def test_a_window_finds_smaller_faults_that_last() -> None:
    topology, _, pairs, measured = _network(5, 9)
    series, alarms = _series(len(pairs), 160, 0), {}
    for window in (1, 12):
        checker, rng = Checker(topology, pairs, measured, window=window), np.random.default_rng(1)
        checker.calibrate(series[:100])
        alarms[window] = np.zeros(2)
        for part, missing in ((series[100:130], 0.0), (series[130:], 0.03)):
            for truth in part:
                believed = truth * (1 + 0.02 * rng.normal(size=len(truth)))
                believed[np.argsort(-truth)[5]] *= 1 - bool(missing)
                counters = checker.corrupted_counters(truth, series[0], 0.0, rng)
                alarms[window][int(missing > 0)] += checker.check(counters, believed).alarm
    assert alarms[1][0] == alarms[12][0] == 0
    assert alarms[12][1] > alarms[1][1]


def test_the_worst_load_is_the_best_vertex_and_its_bound_is_certified() -> None:
    _, dag, pairs, measured = _network(0, 4)
    topology, rng = dag.topology, np.random.default_rng(0)
    truth = rng.exponential(size=len(pairs))
    counters, links = measured @ truth, topology.num_links
    shares = sp.csr_array(measured[:links][:, rng.permutation(len(pairs))])  # another routing
    found = worst_load(shares, topology.capacity, measured, counters, tolerance=0.02)
    best = 0.0
    rows = np.vstack([measured.toarray(), -measured.toarray()])
    limit = np.concatenate([1.02 * counters, -0.98 * counters])
    for link in range(links):
        cost = shares[[link]].toarray()[0]
        best = max(
            best, -linprog(-cost, rows, limit, bounds=(0, None)).fun / topology.capacity[link]
        )
    assert found.utilisation == pytest.approx(best, rel=1e-6)
    assert best * (1 - 1e-9) <= found.bound <= best * (1 + 1e-6)
    assert (np.abs(measured @ found.matrix - counters) <= 0.02 * counters + 1e-6).all()
    near = worst_load(
        shares, topology.capacity, measured, counters, tolerance=0.02, near=truth, ball=0.05
    )
    assert (shares @ truth / topology.capacity).max() <= near.bound <= found.bound * (1 + 1e-9)
    assert np.abs(near.matrix - truth).sum() <= 0.05 * truth.sum() * (1 + 1e-6)
    with pytest.raises(InputError, match="tolerance"):
        worst_load(
            shares,
            topology.capacity,
            measured,
            counters * rng.uniform(0.5, 2, len(counters)),
            tolerance=1e-3,
        )
    with pytest.raises(InputError, match="together"):
        worst_load(shares, topology.capacity, measured, counters, ball=0.1)


def test_what_estimates_need_is_asked_for() -> None:
    topology, _, pairs, measured = _network(0)
    with pytest.raises(InputError, match="routing"):
        Estimator(pairs, topology.num_nodes).estimate(np.ones(measured.shape[0]))
    with pytest.raises(InputError, match="history"):
        Estimator(pairs, topology.num_nodes, history=np.ones((3, 2)))
    with pytest.raises(InputError, match="level"):
        Estimator(pairs, topology.num_nodes, level=1.5)
    with pytest.raises(InputError, match="traffic"):
        History.of(np.zeros((2, 3)))
    with pytest.raises(InputError, match="measured"):
        Projection(measured).project(
            np.full(measured.shape[0], np.nan), np.ones(measured.shape[0]), np.ones(len(pairs)), 1.0
        )
    assert list(itertools.islice(pairs.tolist(), 1))


def test_intervals_are_wider_for_demands_that_have_grown() -> None:
    """A demand of 0.2 of the total on average has 0.8 of it now: 4 times its mean, and 0.01 x 10 x
    4 to each side."""
    estimator = Estimator(np.array([[0, 1], [1, 0]]), 2)
    estimator._residuals, estimator._half_widths = np.zeros((1, 2)), np.array([0.01, 0.01])
    estimator._mean, estimator._own_quantile_weight = np.array([0.2, 0.8]), 0.0
    low, high = estimator._interval(np.array([8.0, 2.0]))
    np.testing.assert_allclose([low, high], [[7.6, 1.9], [8.4, 2.1]])
    estimator._own_quantile_weight = 1.0  # every width is the demand's own: growth does not count
    np.testing.assert_allclose(estimator._interval(np.array([8.0, 2.0]))[1], [8.1, 2.1])


def test_what_counters_lack_widens_the_intervals_in_proportion_to_the_demands() -> None:
    """One counter of two demands of half the traffic each: a bias of 0.1 is a deviation of 0.1 /
    sqrt(1/4 + 1/4)."""
    bias = _Bias(sp.csr_array(np.array([[1.0, 1.0], [1.0, 0.0]])))
    matrix = np.array([3.0, 3.0])
    assert bias.deviation(matrix) == 0.0
    for _ in range(3):
        bias.add(np.array([0.1, np.nan]))
    assert bias.deviation(matrix) == pytest.approx(0.1 * math.sqrt(2))
    bias.add(np.array([0.1, 0.2]))
    bias.add(np.array([0.1, np.nan]))
    assert bias.deviation(matrix) == pytest.approx(math.sqrt((0.1**2 + 0.2**2) / (1 / 2 + 1 / 4)))
    for interval in range(400):
        bias.add((-1) ** interval * np.array([0.1, 0.2]))  # what alternates is no bias
    assert bias.deviation(matrix) < 0.01


@pytest.mark.parametrize("seed", range(3))
def test_intervals_hold_on_days_that_the_history_does_not_resemble(seed: int) -> None:
    topology, _, pairs, measured = _network(seed, 9)
    rng, series = np.random.default_rng(seed), _series(len(pairs), 160, seed)
    shifted = series[120:] * rng.lognormal(0, 0.4, len(pairs))
    estimator = Estimator(pairs, topology.num_nodes, history=series[:120])
    estimator.route(measured)
    estimator.calibrate()
    held, volume = [], []
    for truth in shifted:
        one = estimator.estimate(measured @ truth)
        is_held = (truth >= one.lower) & (truth <= one.upper)
        held.append(is_held.mean())
        volume.append((is_held * truth).sum() / truth.sum())
    assert np.mean(held) >= 0.9
    assert np.mean(volume) >= 0.9


def test_a_measured_demand_that_the_history_did_not_have_is_kept() -> None:
    topology = make_topology([(0, 1, 10.0), (1, 2, 10.0)], both=True)
    pairs, truth = all_pairs(topology), np.array([4.0, 3.0, 2.0, 5.0, 1.0, 6.0])
    history = truth * np.random.default_rng(0).uniform(0.9, 1.1, (30, 6))
    history[:, 1] = 0
    measured = ecmp_measurements(EcmpDag.of(topology, np.ones(4)), pairs)
    estimator = Estimator(pairs, 3, history=history)
    estimator.route(measured)
    flows = np.array([np.nan, 3.0, np.nan, np.nan, np.nan, np.nan])
    assert estimator.estimate(measured @ truth, flows=flows).matrix[1] == pytest.approx(
        3.0, rel=0.1
    )


def test_gravity_takes_a_missing_counter_for_the_mean_of_the_others() -> None:
    pairs = np.array([[0, 2], [1, 2], [2, 0]])
    shares = gravity(np.array([1.0, np.nan, 3.0]), np.ones(3), pairs)
    np.testing.assert_allclose(shares, np.array([1, 2, 3]) / 6)


def test_counters_as_the_history_has_them_in_the_mean_give_its_mean_although_some_are_missing() -> (
    None
):
    _, _, pairs, measured = _network(2)
    history = History.of(_series(len(pairs), 60, 2))
    prior, mean = HistoryPrior(history, measured, 0.01), history.winsorised.mean(0)
    counters = 700 * (measured @ mean)
    counters[: len(counters) // 2] = np.nan
    known = np.isfinite(counters)
    gaussian = 2 * prior.prior(counters) - prior.analogues(counters, known)
    np.testing.assert_allclose(gaussian, mean, rtol=1e-6)


def test_of_two_ends_a_silent_one_counts_less() -> None:
    """What enters and leaves was not read, so that nothing but the two ends of the link says what
    it carries."""
    topology, unread = make_topology([(0, 1, 10.0)]), np.full(2, np.nan)
    for sent, received in ((0.0, 8.0), (8.0, 0.0)):
        found = repair(topology, Readings(np.array([sent]), np.array([received]), unread, unread))
        assert found.values[0] == pytest.approx(8.0, rel=0.01)
        assert (found.blamed_sent[0], found.blamed_received[0]) == (sent == 0, received == 0)


@pytest.mark.parametrize(
    ("factor", "is_named"), [(1.05, False), (0.95, False), (1.12, True), (0.88, True)]
)
def test_a_counter_that_is_off_by_more_than_8_percent_is_named(
    factor: float, is_named: bool
) -> None:
    """Two routers that send 8 Gbit/s to each other: all but one reading say so."""
    topology, right = make_topology([(0, 1, 10.0)], both=True), np.array([8.0, 8.0])
    found = repair(topology, Readings(right * [factor, 1.0], right, right, right))
    assert found.values[0] == pytest.approx(8.0, rel=0.01)
    assert found.blamed_names(topology) == ["counter sent of n0->n1"] * is_named


@pytest.mark.parametrize("knows_traffic", [False, True])
def test_halved_external_counters_give_way_to_links_whose_two_ends_agree(
    knows_traffic: bool,
) -> None:
    """A star: what a leaf sends and receives is what its link carries, whatever its external
    counters say."""
    topology = make_topology([(0, leaf, 100.0) for leaf in range(1, 6)], both=True)
    dag, pairs = EcmpDag.of(topology, np.ones(10)), all_pairs(topology)
    pairs = pairs[(pairs > 0).all(1)]  # the hub has no traffic of its own
    measured = ecmp_measurements(dag, pairs)
    size = np.array([0.0, 5.0, 4.0, 3.0, 2.0, 1.0])
    truth = (
        size[pairs[:, 0]] * size[pairs[:, 1]]
    )  # as much each way, so that conservation holds with halves, too
    load, ingress, egress = np.split(measured @ truth, [10, 16])
    estimator = Estimator(pairs, 6)
    estimator.route(measured)
    if knows_traffic:
        estimator.estimate(measured @ truth)
    halved = np.array([1.0, 0.5, 1.0, 1.0, 0.5, 1.0])
    values, fixed = repaired_values(
        estimator, topology, Readings(load, load, ingress * halved, egress * halved)
    )
    assert fixed.blamed_names(topology) == [
        f"counter {side} of n{n}" for side in ("ingress", "egress") for n in (1, 4)
    ]
    np.testing.assert_allclose(values, measured @ truth, rtol=0.03)
    found = estimator.estimate(values, robust=True)
    assert found.matrix.sum() == pytest.approx(truth.sum(), rel=0.02)


def test_external_counters_do_not_yield_to_a_link_of_which_both_ends_are_dead() -> None:
    """Of the second largest link both counters read 0: all others say what it carries."""
    topology, _, pairs, measured = _network(3, 12)
    rng, links = np.random.default_rng(3), topology.num_links
    sends, receives = rng.lognormal(0, 0.8, (2, topology.num_nodes))
    truth = sends[pairs[:, 0]] * receives[pairs[:, 1]] * rng.lognormal(0, 0.35, len(pairs))
    load, ingress, egress = np.split(measured @ truth, [links, links + topology.num_nodes])
    read, errors = load.copy(), []
    for dead in (None, int(np.argsort(-load)[1])):
        if dead is not None:
            read[dead] = 0.0
        estimator = Estimator(pairs, topology.num_nodes)
        estimator.route(measured)
        values, _ = repaired_values(estimator, topology, Readings(read, read, ingress, egress))
        found = estimator.estimate(values, robust=True).matrix
        errors.append(float(np.abs(found - truth).sum() / truth.sum()))
    assert errors[1] <= errors[0] + 0.1


@pytest.mark.parametrize("seed", range(4))
def test_the_error_that_is_expected_without_a_history_is_about_that_of_the_matrix(
    seed: int,
) -> None:
    """Demands that are gravity's times exp(z) / 2; of two routers that have a link alone, all is
    known."""
    topology, _, pairs, measured = _network(seed, 12)
    rng, links = np.random.default_rng(seed), topology.num_links
    sends, receives = rng.lognormal(0, 0.8, (2, topology.num_nodes))
    truth = sends[pairs[:, 0]] * receives[pairs[:, 1]] * np.exp(0.5 * rng.normal(size=len(pairs)))
    estimator = Estimator(pairs, topology.num_nodes)
    estimator.route(measured)
    counters = measured @ truth
    error = float(np.abs(estimator.estimate(counters).matrix - truth).sum() / truth.sum())
    assert expected_error(measured, links, pairs, counters, 0.01) == pytest.approx(error, rel=0.6)
    two = EcmpDag.of(make_topology([(0, 1, 10.0)], both=True), np.ones(2))
    both = np.array([[0, 1], [1, 0]], dtype=np.int32)
    alone = ecmp_measurements(two, both)
    assert expected_error(alone, 2, both, alone @ np.array([8.0, 2.0]), 0.01) < 0.01
