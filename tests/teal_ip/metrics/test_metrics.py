"""The search for IGP metrics: its incremental state against loads computed anew, limits, and the
order of changes."""

from __future__ import annotations

import dataclasses
import itertools
import signal
import threading
from concurrent.futures import wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import teal
import teal_ip
from teal.errors import InputError
from teal.network import Topology
from teal.pathops.segment_passes import volumes
from teal.runtime import interruptible
from teal.runtime.arrays import FloatArray
from teal.runtime.interruptible import Deadline
from teal.testing import make_topology
from teal_ip.metrics import search as metric_search
from teal_ip.metrics.command import improve
from teal_ip.metrics.search import (
    MetricSearch,
    change_order,
    improve_metrics,
    largest_utilisation,
    useful_changes,
)
from teal_ip.metrics.settings import MetricsConfig
from teal_ip.routing.igp import load_routed
from tests.gate import PATIENCE_S
from tests.igp_reference import network_with_parallels, random_metrics, segment_shares


def _search(
    seed: int, *, failures: bool = False, max_changes: int | None = None, matrices: int = 2
) -> MetricSearch:
    topology = network_with_parallels(seed)
    nodes = topology.num_nodes
    pairs = np.array(
        [pair for pair in itertools.product(range(nodes), repeat=2) if pair[0] != pair[1]]
    )
    demand = np.random.default_rng(seed).exponential(size=(matrices, len(pairs)))
    groups = topology.cables()[:3] if failures else []
    start = random_metrics(topology, seed, 9)
    return MetricSearch(
        topology,
        volumes(pairs, demand, nodes),
        groups,
        20,
        start,
        max_changes or topology.num_links,
    )


@pytest.mark.parametrize("failures", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_result_is_what_its_metrics_give_and_no_worse_than_before(
    seed: int, failures: bool
) -> None:
    search = _search(seed, failures=failures)
    found = improve_metrics(search, 0.2, seed=seed)
    assert found.before == pytest.approx(largest_utilisation(search, search.start), rel=1e-9)
    assert found.utilisation == pytest.approx(largest_utilisation(search, found.metric), rel=1e-9)
    assert found.utilisation <= found.before * (1 + 1e-9)
    assert found.metric.min() >= 1
    assert found.metric.max() <= 20
    assert (found.metric == np.floor(found.metric)).all()


@pytest.mark.parametrize("seed", range(3))
def test_no_more_links_change_than_allowed(seed: int) -> None:
    search = _search(seed, max_changes=2)
    found = improve_metrics(search, 0.2, seed=seed)
    assert (found.metric != search.start).sum() <= 2


def _two_ways() -> tuple[Topology, FloatArray]:
    # From 0 to 3: by 1 in two hops, by 2 in two hops, of which only the first is used with these
    # metrics.
    topology = make_topology([(0, 1, 10), (1, 3, 10), (0, 2, 10), (2, 3, 10)], both=True)
    metric = np.ones(topology.num_links)
    metric[[2, 3, 6, 7]] = 5
    return topology, metric


def test_it_finds_the_tie_that_halves_the_load() -> None:
    topology, metric = _two_ways()
    volume = np.zeros((1, 4, 4))
    volume[0, 3, 0] = 10.0
    search = MetricSearch(topology, volume, (), 20, metric, topology.num_links)
    assert largest_utilisation(search, metric) == 1.0
    found = improve_metrics(search, 0.3)
    assert found.utilisation == pytest.approx(0.5)


def test_the_order_of_changes_ends_at_the_new_metrics_and_says_the_worst_step() -> None:
    search = _search(1)
    found = improve_metrics(search, 0.2)
    order, after = change_order(search, found.metric)
    now, seen = search.start.copy(), list[float]()
    for link in order:
        now[link] = found.metric[link]
        seen.append(largest_utilisation(search, now))
    np.testing.assert_array_equal(now, found.metric)
    assert after == pytest.approx(seen, rel=1e-12)


@pytest.mark.parametrize("seed", [0, 1, 3, 27])
def test_the_changes_end_at_the_best_on_the_way_and_each_is_needed(seed: int) -> None:
    search, rng = _search(seed, failures=seed > 1), np.random.default_rng(seed)
    metric, links = search.start.copy(), rng.permutation(search.topology.num_links)[:6]
    metric[links] = rng.integers(1, 20, 6)

    def reached(changed: list[int]) -> float:
        """The largest utilisation once these links have the new metrics, by reference shares of
        each failure."""
        most, own = 0.0, search.start.copy()
        own[changed] = metric[changed]
        for failed in ([], *search.failures):
            topology = search.topology.with_failed_links(failed)
            load = np.einsum(
                "mtu,tue->me", search.volume, np.nan_to_num(segment_shares(topology, own))
            )
            live = topology.capacity > 0
            most = max(most, float((load[:, live] / topology.capacity[live]).max()))
        return most

    all_changes, _ = change_order(search, metric)
    order, after = useful_changes(search, metric)
    assert after == pytest.approx([reached(order[: n + 1]) for n in range(len(order))], rel=1e-9)
    assert min(reached(all_changes[:n]) for n in range(7)) >= reached(order) * (1 - 1e-9)
    assert all(
        reached([other for other in order if other != link]) > reached(order) * (1 + 1e-9)
        for link in order
    )
    assert all(reached(order[:n]) > reached(order) * (1 + 1e-9) for n in range(len(order)))


def test_ctrl_c_ends_the_search_with_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    search, compiled, calls = _search(0), metric_search.anneal, itertools.count(1)
    is_waiting = threading.Event()

    def waiting(*arguments: Any) -> Any:
        is_waiting.set()
        return wait(*arguments)

    def anneal(*state: Any) -> float:
        call = next(calls)
        if call == 5:
            assert is_waiting.wait(PATIENCE_S)
            signal.raise_signal(signal.SIGINT)
        assert call < 5_000, "the search goes on after Ctrl-C"
        return compiled(*state)

    monkeypatch.setattr(metric_search, "anneal", anneal)
    monkeypatch.setattr(metric_search, "wait", waiting)
    found = improve_metrics(search, 600.0)
    assert found.was_interrupted
    assert next(calls) > 5
    assert found.utilisation == pytest.approx(largest_utilisation(search, found.metric), rel=1e-9)


def test_metrics_in_force_above_the_largest_are_refused() -> None:
    topology, metric = _two_ways()
    search = MetricSearch(topology, np.ones((1, 4, 4)), (), 4, metric, 8)
    with pytest.raises(InputError, match="max_metric"):
        improve_metrics(search, 0.1)


def test_the_search_keeps_its_time_where_one_move_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A move takes 50 ms on a clock that moves alone make advance."""
    search, clock = _search(0), SimpleNamespace(now=0.0)
    slow = list[int]()

    def anneal(*state: Any) -> float:
        moves, best = state[-4], state[-1]
        slow.append(moves)
        clock.now += 0.05 * moves
        return float(best)

    monkeypatch.setattr(metric_search, "anneal", anneal)
    for module in (metric_search, interruptible):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    found = improve_metrics(search, 1.0, threads=1)
    assert clock.now <= 1.0 + 2 * 4 * 0.05, "two walks, each of which may end with four moves"
    assert max(slow) <= 4
    assert found.utilisation <= found.before


def test_a_search_without_time_returns_the_metrics_in_force_or_the_earlier_result() -> None:
    search = _search(0)
    found = improve_metrics(search, 0.0)
    np.testing.assert_array_equal(found.metric, search.start)
    better = improve_metrics(search, 0.3)
    again = improve_metrics(search, 0.0, best_so_far=better.metric)
    assert again.utilisation == pytest.approx(better.utilisation, rel=1e-9)


def test_at_the_deadline_all_changes_follow_and_the_last_one_is_measured() -> None:
    search = _search(1)
    metric = search.start.copy()
    metric[:3] += 1
    order, after = change_order(search, metric, deadline=Deadline.after(0.0))
    assert order == [0, 1, 2]
    assert np.isnan(after[:2]).all()
    assert after[2] == largest_utilisation(search, metric)


@pytest.mark.parametrize("seed", range(2))
def test_failures_of_routers_give_the_loads_of_the_simulation(seed: int, tmp_path: Path) -> None:
    topology = network_with_parallels(seed)
    metric = random_metrics(topology, seed).astype(np.int64)
    file, traffic = tmp_path / "net.json", "gravity:seed=1,count=2,load=1"
    teal.save_topology(file, dataclasses.replace(topology, metric=metric))
    config = MetricsConfig(topology=str(file), traffic=traffic, failures="nodes", deadline="1s")
    report = improve(*load_routed(config, print), config)
    loads = teal_ip.simulate(
        report.topology, teal.load_traffic(traffic, topology), failures=("nodes",)
    )
    most = max(
        [one.utilisation for one in loads.matrices] + [one.utilisation for one in loads.failures]
    )
    assert report.utilisation == pytest.approx(most, rel=1e-9)
    assert report.utilisation <= report.before * (1 + 1e-9)


def test_a_failure_that_cuts_off_all_demand_bounds_nothing(tmp_path: Path) -> None:
    """A line of two cables, all traffic over both: nothing can change, and nothing fails."""
    (tmp_path / "net.csv").write_text("source,target,capacity\na,b,10\nb,c,10\n")
    (tmp_path / "demands.csv").write_text("source,target,rate\na,c,15\nc,a,5\n")
    config = MetricsConfig(
        topology=str(tmp_path / "net.csv"),
        traffic=str(tmp_path / "demands.csv"),
        failures="cables",
        bidirectional=True,
        deadline="500ms",
    )
    report = improve(*load_routed(config, print), config)
    assert report.before == report.utilisation == pytest.approx(1.5)
    assert not report.changes
