"""A service that is fed counters: estimates, checks of matrices, alarms that keep the last good
one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

from teal.formats import load_topology
from teal.network import Topology, all_pairs
from teal.network.ecmp import EcmpDag, igp_metric
from teal.runtime.arrays import FloatArray
from teal.testing import make_topology
from teal_ip.counters.service import CounterEstimate, NetworkEstimator, interval_of
from teal_ip.routing.measurements import ecmp_measurements, path_measurements
from teal_serve.client import InvalidRequest
from teal_serve.engine.requests import CounterReadings
from tests.teal_serve.service import b4_network_state, b4_service, run, service

NETWORK_STATE = b4_network_state()
TOPOLOGY, PAIRS = NETWORK_STATE.topology, NETWORK_STATE.paths.pairs
BEGIN = np.datetime64("2026-01-01T00:00:00", "s")
IGP = ecmp_measurements(EcmpDag.of(TOPOLOGY, np.ones(TOPOLOGY.num_links)), PAIRS)


def _series(count: int) -> FloatArray:
    rng = np.random.default_rng(3)
    level = 1 + 0.3 * np.sin(np.arange(count) / 10)
    return (
        rng.lognormal(3, 1, len(PAIRS))
        * level[:, None]
        * rng.lognormal(0, 0.15, (count, len(PAIRS)))
    )


def _time(row: int) -> np.datetime64:
    return BEGIN + np.timedelta64(300 * row, "s")


def _readings(
    values: FloatArray, topology: Topology = TOPOLOGY
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    names, links, nodes = topology.node_names, topology.num_links, topology.num_nodes
    of_links = [
        {"source": names[s], "target": names[t], "sent": float(v), "received": float(v)}
        for s, t, v in zip(topology.link_source, topology.link_target, values, strict=False)
    ]
    of_nodes = [
        {
            "node": names[n],
            "ingress": float(values[links + n]),
            "egress": float(values[links + nodes + n]),
        }
        for n in range(nodes)
    ]
    return of_links, of_nodes


@pytest.mark.system
def test_counters_alone_become_matrices_that_allocations_follow(tmp_path: Path) -> None:
    series = _series(34)

    async def work() -> None:
        async with service(tmp_path) as client:
            await client.put_network("b4", "b4", objective="max_link_utilisation", num_paths=4)
            await client.wait_ready("b4")
            await client.measure("b4", series[:30], BEGIN, 300)
            first = await client.measure_counters("b4", _time(30), *_readings(IGP @ series[30]))
            assert first.counted is not None
            assert first.counted["kept"]
            assert first.counted["found_by"] == "history"
            assert first.counted["unexplained"] < 0.03
            assert first.counted["total_gbps"] == pytest.approx(series[30].sum(), rel=0.02)
            assert first.matrices == 31
            allocation = await client.allocate_next("b4", deadline_ms=600_000)
            assert allocation.splits is not None
            splits = np.asarray(allocation.splits[0], np.float64)
            under = path_measurements(
                NETWORK_STATE.paths, splits[:, : NETWORK_STATE.paths.num_paths], TOPOLOGY.num_nodes
            )
            second = await client.measure_counters(
                "b4", _time(31), *_readings(under @ series[31]), routing="allocation"
            )
            assert second.counted is not None
            assert second.counted["unexplained"] < 0.03

            links, nodes = _readings(IGP @ series[32])
            for link in links[::2]:
                link["sent"], link["received"] = 0.0, 0.0
            wrong = await client.measure_counters("b4", _time(32), links, nodes)
            assert wrong.counted is not None
            assert wrong.counted["alarm"]
            assert not wrong.counted["kept"]
            assert wrong.matrices == 32, "the last good one stays"
            assert (
                'teal_counter_alarm{network="b4"} 1.0' in (await client._http.get("/metrics")).text
            )

            good = await client.measure_counters(
                "b4", _time(33), *_readings(IGP @ series[33]), rates=series[33:]
            )
            assert good.counted is not None
            assert good.counted["found_by"] == "sent"
            assert good.counted["kept"]
            assert (
                'teal_counter_alarm{network="b4"} 0.0' in (await client._http.get("/metrics")).text
            )

    run(work)


@pytest.mark.slow
def test_a_matrix_that_the_counters_contradict_is_not_kept(tmp_path: Path) -> None:
    series = _series(31)

    async def work() -> None:
        async with service(tmp_path) as client:
            await client.put_network("b4", "b4", objective="max_link_utilisation", num_paths=4)
            await client.wait_ready("b4")
            readings = _readings(IGP @ series[30])
            with pytest.raises(InvalidRequest, match="matrices are known"):
                await client.measure_counters("b4", _time(0), *readings, rates=series[30:])
            await client.measure("b4", series[:30], BEGIN, 300)
            missing = series[30:].copy()
            missing[:, PAIRS[:, 0] == 4] = 0.0
            found = await client.measure_counters("b4", _time(30), *readings, rates=missing)
            assert found.counted is not None
            assert found.counted["alarm"]
            assert found.matrices == 30
            assert any(TOPOLOGY.node_names[4] in name for name in found.counted["suspects"])
            again = await client.measure_counters("b4", _time(30), *readings, rates=series[30:])
            assert again.matrices == 31

    run(work)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"links": [{"source": "1", "target": "99", "sent": 1.0}]}, "no link"),
        ({"links": [{"source": "1", "target": "2", "number": 3}]}, "no link 3"),
        ({"nodes": [{"node": "99", "ingress": 1.0}]}, "no node"),
        ({"nodes": [{"node": "1"}]}, "no ingress or egress of any node"),
        ({"routing": "allocation"}, "no allocation for the next interval"),
        ({"routing": "guess"}, "igp"),
        ({"nodes": [{"node": "1", "ingress": -1.0}]}, "greater than or equal"),
    ],
)
def test_wrong_readings_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    async def work() -> None:
        async with b4_service(tmp_path) as client:
            links, nodes = _readings(IGP @ _series(1)[0])
            body = {
                "time": "2026-01-01T00:00:00Z",
                "counters": {"links": links, "nodes": nodes, **change},
            }
            response = await client._http.post("/v1/networks/b4/measurements", json=body)
            assert response.status_code == 422
            assert message in response.text

    run(work)


def test_an_interval_that_raises_an_alarm_teaches_nothing() -> None:
    """The estimate after a wrong interval is that without the interval."""
    topology = make_topology([(0, 1, 10.0), (1, 2, 10.0), (2, 0, 10.0), (2, 3, 10.0)], both=True)
    pairs, rng = all_pairs(topology), np.random.default_rng(0)
    series = rng.lognormal(0, 1, len(pairs)) * rng.lognormal(0, 0.1, (33, len(pairs)))
    measured = ecmp_measurements(EcmpDag.of(topology, igp_metric(topology, "file")), pairs)

    def estimates(intervals: list[tuple[int, bool]]) -> list[CounterEstimate]:
        counted = NetworkEstimator(topology, SimpleNamespace(pairs=pairs), series[:30])  # type: ignore[arg-type]
        found = []
        for number, is_wrong in intervals:
            of_links, of_nodes = _readings(measured @ series[number], topology)
            for reading in of_links[::2] if is_wrong else []:
                reading["sent"] = reading["received"] = 0.0
            readings = CounterReadings.model_validate({"links": of_links, "nodes": of_nodes})
            found.append(
                counted.take(interval_of(readings, topology, topology.capacity, None, None))
            )
            assert found[-1].figures["alarm"] == is_wrong
        return found

    trusted, with_wrong = (
        estimates([(30, False), (32, False)]),
        estimates([(30, False), (31, True), (32, False)]),
    )
    np.testing.assert_allclose(trusted[0].rates.sum(), series[30].sum(), rtol=0.02)
    np.testing.assert_array_equal(with_wrong[2].rates, trusted[1].rates)


def test_a_node_that_is_not_listed_although_its_links_are_has_no_traffic_of_its_own() -> None:
    """Demands 0-1 of 4, 1-2 of 2 and 2-0 of 1 Gbit/s cross the inner node 3 of a star."""
    topology = make_topology([(0, 3, 10.0), (1, 3, 10.0), (2, 3, 10.0)], both=True)
    pairs = all_pairs(topology)
    demand = {(0, 1): 4.0, (1, 2): 2.0, (2, 0): 1.0}
    truth = np.array([demand.get((int(s), int(t)), 0.0) for s, t in pairs])
    dag = EcmpDag.of(topology, igp_metric(topology, "file"))
    links, nodes = _readings(ecmp_measurements(dag, pairs) @ truth, topology)
    readings = CounterReadings.model_validate({"links": links, "nodes": nodes[:3]})
    interval = interval_of(readings, topology, topology.capacity, None, None)
    paths: Any = SimpleNamespace(pairs=pairs)
    found = NetworkEstimator(topology, paths, np.zeros((0, len(pairs)))).take(interval)
    assert found.rates[0, (pairs == 3).any(1)].sum() <= 1e-3 * truth.sum()
    assert found.rates.sum() == pytest.approx(truth.sum(), rel=0.02)


def test_a_silent_link_hides_no_counter_of_a_link_whose_name_ends_with_its_name(
    tmp_path: Path,
) -> None:
    """1->2 carries nothing, and a counter of 11->2 is wrong."""
    file = tmp_path / "net.csv"
    cables = ["1,2", "11,2", "2,3", "3,1", "3,11", "1,11"]
    rows = [
        row for a, b in (cable.split(",") for cable in cables) for row in (f"{a},{b}", f"{b},{a}")
    ]
    file.write_text("source,target,capacity\n" + "".join(f"{row},10\n" for row in rows))
    topology = load_topology(str(file))
    names = topology.link_names()
    pairs, rng = all_pairs(topology), np.random.default_rng(0)
    series = rng.lognormal(0, 1, len(pairs)) * rng.lognormal(0, 0.1, (31, len(pairs)))
    measured = ecmp_measurements(EcmpDag.of(topology, igp_metric(topology, "file")), pairs)
    of_links, of_nodes = _readings(measured @ series[30], topology)
    silent, wrong = names.index("1->2"), names.index("11->2")
    of_links[silent]["sent"] = of_links[silent]["received"] = 0.0
    of_links[wrong]["sent"] *= 0.1
    readings = CounterReadings.model_validate({"links": of_links, "nodes": of_nodes})
    interval = interval_of(readings, topology, topology.capacity, None, series[30][None])
    paths: Any = SimpleNamespace(pairs=pairs)
    suspects = NetworkEstimator(topology, paths, series[:30]).take(interval).figures["suspects"]
    assert "link 1->2: carries nothing" in suspects
    assert "counter sent of 11->2" in suspects


def test_the_check_of_a_matrix_has_the_error_of_the_counters_that_is_stated() -> None:
    topology = make_topology([(0, 1, 10.0), (1, 2, 10.0), (2, 0, 10.0)], both=True)
    pairs, rng = all_pairs(topology), np.random.default_rng(0)
    series = rng.lognormal(0, 0.1, (31, len(pairs)))
    measured = ecmp_measurements(EcmpDag.of(topology, igp_metric(topology, "file")), pairs)
    of_links, of_nodes = _readings(measured @ series[30], topology)
    offset = {}
    for error in (0.001, 0.1):
        body = {"links": of_links, "nodes": of_nodes, "counter_error": error}
        interval = interval_of(
            CounterReadings.model_validate(body),
            topology,
            topology.capacity,
            None,
            series[30][None],
        )
        paths: Any = SimpleNamespace(pairs=pairs)
        estimator = NetworkEstimator(topology, paths, series[:30])
        estimator.take(interval)
        checker = estimator._checker
        assert checker is not None
        offset[error] = checker.offset
    # The limit of the alarm is calibrated on counters with this error.
    assert offset[0.001] < offset[0.1]
