"""Loads of tunnels: a network by hand, a walk over every tunnel under every failure, counters, and
faults of files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from teal.cli import main
from teal.formats import load_topology
from teal.network import Topology, all_pairs
from teal.network.ecmp import EcmpDag
from teal.network.failures import cable_failures
from teal.runtime.arrays import FloatArray, IntArray
from teal_ip.readings.files import load_counters
from teal_ip.routing.installed import results_of
from teal_ip.routing.tunnels import TunnelLoads, Tunnels
from tests.igp_reference import network_with_parallels, random_metrics, segment_shares
from tests.teal_ip.routing.test_simulate import DEMANDS, LINKS

# a to d over b and over c, 3 to 1; a to e over c alone; b to c has none.
TUNNELS = {
    "a": [
        {
            "target": "d",
            "paths": [
                {"links": ["a->b", "b->d"], "split": 0.6, "rate": 9.0},
                {"links": ["a->c", "c->d"], "split": 0.2, "rate": 3.0},
            ],
        },
        {"target": "e", "paths": [{"links": ["a->c", "c->d", "d->e"], "split": 1.0, "rate": 6.0}]},
    ]
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.csv").write_text(LINKS, encoding="utf-8")
    (tmp_path / "demands.csv").write_text(DEMANDS, encoding="utf-8")
    (tmp_path / "tunnels.json").write_text(
        json.dumps({"topology": "net", "routers": TUNNELS}), encoding="utf-8"
    )
    return tmp_path


def _simulated(words: str, capsys: pytest.CaptureFixture[str], expected: int = 0) -> dict:  # type: ignore[type-arg]
    capsys.readouterr()
    command = f"simulate --topology net.csv --traffic demands.csv --allocation tunnels.json --json {words}"
    assert main(command.split()) == expected
    return json.loads(capsys.readouterr().out) if expected == 0 else {}


def test_loads_latency_failures_and_months_by_hand(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = _simulated(
        "--failures cables --growth-per-year 0.3 --horizon 1y --max-utilisation 0.95", capsys
    )
    load = {one["link"]: one["largest_load"] for one in result["links"]}
    assert load["a->b"] == pytest.approx(9)
    assert load["a->c"] == pytest.approx(
        10
    )  # a quarter of a to d, all of a to e, and b to c by the IGP
    assert load["b->a"] == pytest.approx(1)
    one = result["matrices"][0]
    assert one["latency_mean"] == pytest.approx((12 * 2 + 6 * 3 + 1 * 2) / 19)
    failures = {f["failure"]: f for f in result["failures"]}
    assert failures["a - b"]["utilisation"] == pytest.approx(1.8)  # all 18 over c
    assert failures["a - c"]["utilisation"] == pytest.approx(
        1.9
    )  # a to d by its tunnel, the others by the IGP
    assert failures["d - e"]["lost"] == pytest.approx(6)
    first = result["forecasts"][0]
    assert first["failed_utilisation"] == pytest.approx(1.9)
    assert first["full_under_failure"] != ""
    _simulated("--failures cables --repair", capsys, expected=2)
    assert "fast reroute of tunnels is not modelled" in capsys.readouterr().err


@pytest.mark.parametrize("seed", range(6))
def test_every_failure_is_that_of_a_walk_over_every_tunnel(seed: int) -> None:
    topology = network_with_parallels(seed)
    metric, rng = random_metrics(topology, seed), np.random.default_rng(seed)
    pairs = all_pairs(topology)
    demand = rng.exponential(size=(2, len(pairs)))
    walks = [
        (d, links) for d in range(0, len(pairs), 2) for links in _walks(topology, pairs[d], rng)
    ]
    of = np.array([d for d, _ in walks])
    share = rng.uniform(0.1, 1, len(walks))
    share /= np.bincount(of, share)[of]
    matrix = np.zeros((len(walks), topology.num_links))
    for p, (_, links) in enumerate(walks):
        matrix[p, links] = 1
    tunnels = Tunnels(of, share, sp.csr_array(matrix))
    loads = TunnelLoads(EcmpDag.of(topology, metric), pairs, demand, tunnels)
    sets = [[], *(list(failure.links) for failure in cable_failures(topology)), [0], [0, 3, 5]]
    found = loads.under(sets, loads=True)
    for s, links in enumerate(sets):
        load, lost = _walked(topology, metric, pairs, demand, tunnels, links)
        np.testing.assert_allclose(found.load[s], load, atol=1e-9)
        np.testing.assert_allclose(found.lost[s], lost, atol=1e-9)
        np.testing.assert_allclose(
            found.utilisation[s], (load / topology.capacity).max(1), atol=1e-9
        )
        np.testing.assert_allclose(
            found.overload[s], np.maximum(0, load - topology.capacity).sum(1), atol=1e-9
        )
    np.testing.assert_allclose(loads.load, found.load[0], atol=1e-9)


def _walks(topology: Topology, pair: IntArray, rng: np.random.Generator) -> list[list[int]]:
    """Up to three random simple paths between two nodes."""
    found = []
    for _ in range(3):
        node, links, seen = int(pair[0]), [], {int(pair[0])}
        while node != int(pair[1]):
            out = [
                e
                for e in range(topology.num_links)
                if topology.link_source[e] == node and int(topology.link_target[e]) not in seen
            ]
            if not out:
                break
            links.append(int(rng.choice(out)))
            node = int(topology.link_target[links[-1]])
            seen.add(node)
        if node == int(pair[1]):
            found.append(links)
    return found


def _walked(
    topology: Topology,
    metric: FloatArray,
    pairs: IntArray,
    demand: FloatArray,
    tunnels: Tunnels,
    failed: list[int],
) -> tuple[FloatArray, FloatArray]:
    """Loads (M, E) and lost volumes (M,), demand by demand."""
    capacity = topology.capacity.copy()
    capacity[failed] = 0
    shares = segment_shares(topology.with_capacity(capacity), metric)
    load, lost = np.zeros((len(demand), topology.num_links)), np.zeros(len(demand))
    taken = tunnels.links.toarray() > 0
    for d, (source, target) in enumerate(pairs.tolist()):
        left = [p for p in np.flatnonzero(tunnels.demand == d) if not taken[p, failed].any()]
        if left:
            total = sum(tunnels.share[p] for p in left)
            for p in left:
                load += demand[:, [d]] * tunnels.share[p] / total * taken[p]
        elif np.isnan(shares[target, source]).any():
            lost += demand[:, d]
        else:
            load += demand[:, [d]] * shares[target, source]
    return load, lost


def test_counters_read_the_loads_of_tunnels(files: Path) -> None:
    command = "simulate --topology net.csv --traffic demands.csv --allocation tunnels.json --counters counters.npz"
    assert main([*command.split(), "--counter-error", "0"]) == 0
    topology = load_topology("net.csv")
    counters = load_counters("counters.npz", topology)
    sent = dict(zip(topology.link_names(), np.asarray(counters.sent[0]).tolist(), strict=True))
    assert sent["a->b"] == pytest.approx(9)
    assert sent["c->d"] == pytest.approx(9)
    assert sent["b->a"] == pytest.approx(1)


def test_files_without_tunnels_of_this_traffic_are_refused(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "tunnels.json").write_text(json.dumps({"topology": "net", "routers": {}}))
    _simulated("", capsys, expected=2)
    assert "no path with a rate above 0" in capsys.readouterr().err
    (files / "tunnels.json").write_text("[]")
    _simulated("", capsys, expected=2)
    assert "teal solve --out" in capsys.readouterr().err
    command = "simulate --topology net.csv --traffic demands.csv --allocation tunnels.json --policies x.json"
    assert main(command.split()) == 2
    assert "cannot be combined with --policies" in capsys.readouterr().err


def test_classes_of_a_pair_on_one_path_add_up(tmp_path: Path) -> None:
    """1 and 2 Gbit/s over b, of two classes, and 3 over c: half each."""
    (tmp_path / "net.csv").write_text(LINKS, encoding="utf-8")
    over_b, over_c = ["a->b", "b->d"], ["a->c", "c->d"]
    demands = [
        {"target": "d", "class": "gold", "paths": [{"links": over_b, "split": 1.0, "rate": 1.0}]},
        {
            "target": "d",
            "class": "rest",
            "paths": [
                {"links": over_b, "split": 0.4, "rate": 2.0},
                {"links": over_c, "split": 0.6, "rate": 3.0},
            ],
        },
    ]
    file = tmp_path / "tunnels.json"
    file.write_text(json.dumps({"topology": "net", "routers": {"a": demands}}), encoding="utf-8")
    topology = load_topology(tmp_path / "net.csv")
    tunnels = Tunnels.read(file, topology, np.array([[0, topology.node_index()["d"]]]))
    assert tunnels.share.tolist() == [0.5, 0.5]


def test_where_only_links_without_capacity_are_loaded_no_link_is_the_busiest() -> None:
    """One failure and one matrix: 2 Gbit/s on a link of 0 Gbit/s, then on one of 4 Gbit/s."""
    nothing = np.zeros((1, 1))
    for capacity, busiest, utilisation in (([4.0, 0.0], -1, 0.0), ([4.0, 4.0], 1, 0.5)):
        load = np.array([[[0.0, 2.0]]])
        results = results_of(load, nothing, nothing, np.array(capacity), loads=False)
        assert results.busiest.tolist() == [[busiest]]
        assert results.utilisation.tolist() == [[utilisation]]
