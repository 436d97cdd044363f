"""Flexible algorithms: a network by hand, random ones against networkx, files with faults,
attributes of links."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest

from teal.cli import main
from teal.errors import InputError
from teal.formats import load_topology, save_topology
from teal.formats.segment_lists import write_policies
from teal.network import Topology, all_pairs
from teal.network.ecmp import EcmpDag
from teal.network.failures import cable_failures
from teal.network.flex_algo import FlexAlgo
from teal.network.segment_lists import SegmentList, SegmentPolicies
from teal.testing import make_topology
from teal_ip.readings.files import load_counters
from teal_ip.routing import installed
from teal_ip.routing.flex_algo import FlexRouting, algorithms_of
from teal_ip.routing.installed import IgpRouting
from tests.igp_reference import network_with_parallels, random_metrics, segment_shares

# From a to d: over b with metric 2, delay 20 and affinity red; over c with metric 4 and delay 2;
# the link a-d has metric 9, delay 5 and a TE metric, as have those over c.
LINKS = """source,target,capacity,delay,metric,te_metric,affinity
a,b,10,10,1,,red
b,d,10,10,1,,red;core
a,c,10,1,2,5,core
c,d,10,1,2,5,core
a,d,10,5,9,7,
"""
DEMANDS = "source,target,rate\na,d,6\nd,a,2\na,b,1\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.csv").write_text(LINKS, encoding="utf-8")
    (tmp_path / "demands.csv").write_text(DEMANDS, encoding="utf-8")
    (tmp_path / "of.csv").write_text("source,target,algorithm\na,d,128\n*,b,0\n", encoding="utf-8")
    return tmp_path


def _simulated(
    words: str, capsys: pytest.CaptureFixture[str], expected: int = 0
) -> tuple[dict, str]:  # type: ignore[type-arg]
    capsys.readouterr()
    assert (
        main(f"simulate --topology net.csv --traffic demands.csv --json {words}".split())
        == expected
    )
    out = capsys.readouterr()
    return (json.loads(out.out) if expected == 0 else {}), out.err


def _loads(result: dict) -> dict[str, float]:  # type: ignore[type-arg]
    return {one["link"]: one["mean_load"] for one in result["links"] if one["mean_load"] > 0}


@pytest.mark.parametrize(
    ("algorithm", "path"),
    [
        ("128", "a->b b->d"),
        ("128:metric=delay", "a->c c->d"),
        ("128:metric=te", "a->d"),  # 7 beside 10; the links over b have no TE metric
        ("128:exclude=red", "a->c c->d"),
        ("128:exclude=red+core", "a->d"),
        ("128:include-any=red,metric=delay", "a->b b->d"),
        ("128:include-all=core", "a->c c->d"),
    ],
)
def test_the_path_of_a_demand_by_hand(
    files: Path, capsys: pytest.CaptureFixture[str], algorithm: str, path: str
) -> None:
    result, _ = _simulated(f"--flex-algo {algorithm} --algorithm-of of.csv", capsys)
    own = {"d->b": 2.0, "b->a": 2.0, "a->b": 1.0}  # of d to a and a to b, which stay with the IGP
    expected = dict(own)
    for link in path.split():
        expected[link] = expected.get(link, 0) + 6
    assert _loads(result) == pytest.approx(expected)
    assert result["matrices"][0]["lost"] == 0


@pytest.mark.parametrize("metric", ["igp", "delay"])
def test_a_link_that_is_out_of_service_is_in_no_algorithm(
    files: Path, capsys: pytest.CaptureFixture[str], metric: str
) -> None:
    words = f"--flex-algo 128:metric={metric},exclude=red --algorithm-of of.csv"
    result, _ = _simulated(f"{words} --fail a,c", capsys)
    assert _loads(result)["a->d"] == 6
    topology = load_topology("net.csv")
    save_topology("net.json", topology.with_failed_links(topology.find_links("a", "c")))
    capsys.readouterr()
    assert main(f"simulate --topology net.json --traffic demands.csv --json {words}".split()) == 0
    assert _loads(json.loads(capsys.readouterr().out))["a->d"] == 6


def test_traffic_of_an_algorithm_is_lost_where_it_has_no_path(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the link b-d is red and core; the IGP has a path from a to d."""
    result, _ = _simulated("--flex-algo 128:include-all=red+core --algorithm-of of.csv", capsys)
    assert result["matrices"][0]["lost"] == 6
    assert result["without_path"]["demands"] == 1
    assert _loads(result) == pytest.approx({"d->b": 2.0, "b->a": 2.0, "a->b": 1.0})


def test_failures_keep_to_the_algorithm_and_months_and_counters_follow(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "--flex-algo 128:metric=delay,exclude=red --algorithm-of of.csv --failures cables --repair"
    )
    result, _ = _simulated(
        f"{words} --growth-per-year 0.3 --counters counters.npz --counter-error 0", capsys
    )
    failures = {one["failure"]: one for one in result["failures"]}
    assert failures["a - c"]["utilisation"] == pytest.approx(0.6), "6 over a -> d"
    assert failures["a - c"]["busiest"] == "a->d"
    assert failures["b - d"]["utilisation"] == pytest.approx(0.6), (
        "6 over c; d to a goes over c as well"
    )
    assert failures["a - b"]["lost"] == 0
    assert {one["link"] for one in result["forecasts"]} >= {"a->c", "c->d"}
    counters = load_counters("counters.npz", load_topology("net.csv"))
    sent = dict(zip(load_topology("net.csv").link_names(), counters.sent[0].tolist(), strict=True))
    assert sent == pytest.approx({one["link"]: one["mean_load"] for one in result["links"]})


def _with_attributes(seed: int) -> Topology:
    rng, topology = np.random.default_rng(seed), network_with_parallels(seed)
    names = np.array(["red", "blue", "core"])
    return dataclasses.replace(
        topology,
        metric=random_metrics(topology, seed).astype(np.int64),
        te_metric=rng.integers(0, 4, topology.num_links),
        affinities=tuple(
            frozenset(names[rng.random(3) < 0.4].tolist()) for _ in range(topology.num_links)
        ),
    )


DEFINITIONS = [
    "128:metric=delay,exclude=red",
    "129:metric=te",
    "130:include-any=core+blue",
    "131:include-all=core,exclude=blue",
]


def _admitted(topology: Topology, number: int) -> np.ndarray:
    """The rules of DEFINITIONS, written out."""
    rule = {
        0: lambda e: True,
        128: lambda e: "red" not in topology.affinities[e],
        129: lambda e: topology.te_metric[e] > 0,  # type: ignore[index]
        130: lambda e: bool({"core", "blue"} & topology.affinities[e]),
        131: lambda e: "core" in topology.affinities[e] and "blue" not in topology.affinities[e],
    }[number]
    return np.array([rule(e) for e in range(topology.num_links)])


@pytest.mark.parametrize("seed", range(6))
def test_loads_of_several_algorithms_are_those_of_networkx(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:  # two failures at a time
        monkeypatch.setattr(installed, "_MAX_CHUNK_LOADS", 2 * 2 * _with_attributes(seed).num_links)
    topology, rng = _with_attributes(seed), np.random.default_rng(seed)
    pairs = all_pairs(topology)
    demand, algorithm = (
        rng.exponential(size=(2, len(pairs))),
        rng.choice([0, 128, 129, 130, 131], len(pairs)),
    )
    metrics = {
        0: topology.metric,
        128: np.maximum(1, np.round(topology.latency * 1000)),
        129: topology.te_metric,
        130: topology.metric,
        131: topology.metric,
    }
    dag = EcmpDag.of(topology, np.asarray(topology.metric))
    routing = FlexRouting(dag, pairs, [FlexAlgo.parse(text) for text in DEFINITIONS], algorithm)
    loads, failures = routing.loads(demand), [list(one.links) for one in cable_failures(topology)]
    after = loads.under(failures, loads=True)
    for s, down in [(-1, list[int]()), *enumerate(failures)]:
        load, lost = np.zeros((2, topology.num_links)), np.zeros(2)
        for number, metric in metrics.items():
            usable = _admitted(topology, number)
            usable[down] = False
            own = np.where(usable, np.asarray(metric, dtype=np.float64), np.inf)
            shares = segment_shares(topology, own)
            for d in np.flatnonzero(algorithm == number):
                share = shares[pairs[d, 1], pairs[d, 0]]
                if np.isnan(share).any():
                    lost += demand[:, d]
                else:
                    load += demand[:, d, None] * share
        found = loads if s < 0 else None
        np.testing.assert_allclose(loads.load if found else after.load[s], load, atol=1e-9)
        np.testing.assert_allclose(loads.lost if found else after.lost[s], lost, atol=1e-9)
        if s >= 0:
            capacity = np.where(topology.capacity > 0, topology.capacity, np.inf)
            np.testing.assert_allclose(after.utilisation[s], (load / capacity).max(1), atol=1e-9)
            np.testing.assert_allclose(
                after.overload[s], np.maximum(0, load - topology.capacity).sum(1), atol=1e-9
            )
    measured = routing.measurements() @ demand.T
    np.testing.assert_allclose(measured[: topology.num_links].T, loads.load, atol=1e-9)


def _walked(
    shares: np.ndarray,
    topology: Topology,
    usable: np.ndarray,
    one: SegmentList,
    source: int,
    target: int,
) -> tuple[np.ndarray, bool]:
    """What a Gbit/s along a list puts on the links, as far as it gets, and whether it arrives."""
    load, here = np.zeros(topology.num_links), source
    for stop, link in (*one.stops, (target, -1)):
        end = stop if link < 0 else int(topology.link_source[link])
        if end != here and np.isnan(shares[end, here]).any():
            return load, False
        load += 0.0 if end == here else shares[end, here]
        if link >= 0:
            if not usable[link]:
                return load, False
            load[link] += 1
        here = stop
    return load, True


@pytest.mark.parametrize("seed", range(6))
def test_lists_of_an_algorithm_lead_along_its_paths_and_steer_its_demands_alone(seed: int) -> None:
    topology, rng = _with_attributes(seed), np.random.default_rng(seed)
    pairs, algo = all_pairs(topology), FlexAlgo.parse(DEFINITIONS[0])
    algorithm = rng.choice([0, 128], len(pairs))
    algorithm[0] = 128
    lists: dict[tuple[int, int], tuple[SegmentList, ...]] = {}
    for d in np.flatnonzero(rng.random(len(pairs)) < 0.5).tolist():
        link, mid = (
            int(rng.choice(np.flatnonzero(_admitted(topology, 128)))),
            int(rng.integers(topology.num_nodes)),
        )
        by_link = SegmentList(0.4, (int(topology.link_target[link]),), (link,))
        lists[int(pairs[d, 0]), int(pairs[d, 1])] = (by_link, SegmentList(0.6, (mid,)))
    policies = SegmentPolicies(lists, algorithm=algo)
    demand, dag = (
        rng.exponential(size=(1, len(pairs))),
        EcmpDag.of(topology, np.asarray(topology.metric)),
    )
    routing = FlexRouting(dag, pairs, [algo], algorithm, policies)
    loads, failures = routing.loads(demand), [list(one.links) for one in cable_failures(topology)]
    after, losing = loads.under(failures, loads=True), np.zeros(len(pairs), dtype=bool)
    delay = np.maximum(1, np.round(topology.latency * 1000))
    for s, down in [(-1, list[int]()), *enumerate(failures)]:
        live = np.ones(topology.num_links, dtype=bool)
        live[down] = False
        usable = {0: live, 128: live & _admitted(topology, 128)}
        metrics = {0: np.asarray(topology.metric), 128: delay}
        shares = {
            n: segment_shares(topology, np.where(usable[n], m, np.inf)) for n, m in metrics.items()
        }
        load, lost = np.zeros(topology.num_links), 0.0
        for d, (a, b) in enumerate(pairs.tolist()):
            number = int(algorithm[d])
            ways = lists.get((a, b)) if number == 128 else None
            for one in ways or (SegmentList(1.0, ()),):
                part, arrives = _walked(shares[number], topology, usable[number], one, a, b)
                load += demand[0, d] * one.share * part
                lost += 0.0 if arrives else demand[0, d] * one.share
                losing[d] |= s < 0 and not arrives
        np.testing.assert_allclose(loads.load[0] if s < 0 else after.load[s, 0], load, atol=1e-9)
        np.testing.assert_allclose(loads.lost[0] if s < 0 else after.lost[s, 0], lost, atol=1e-9)
    np.testing.assert_allclose(
        (routing.measurements() @ demand[0])[: topology.num_links], loads.load[0], atol=1e-9
    )
    np.testing.assert_array_equal(np.isinf(routing.latency()), losing)


@pytest.mark.parametrize(
    "words", ["", "--survive cables", "--max-segments 3 --adjacency", "--transit --at-most 1"]
)
def test_lists_found_for_an_algorithm_have_the_simulated_utilisation(
    files: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    """From a to d lead c (delay 2) and the direct link (5), to which 6 Gbit/s can be moved by a
    list over it alone."""
    command = f"segments --topology net.csv --traffic demands.csv {words} --json"
    options = [
        "--objective",
        "max_link_utilisation",
        "--flex-algo",
        "128:exclude=red,metric=delay",
        "--out",
        "p.json",
    ]
    assert main([*command.split(), *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.loads(Path("p.json").read_text())["flex_algo"] == "128:metric=delay,exclude=red"
    result, _ = _simulated("--policies p.json", capsys)
    value = 0.6 if "survive" in words else found["value"]  # with every cable's failure too
    assert found["value"] == pytest.approx(0.3 if "adjacency" in words else 0.6, rel=0.02)
    assert result["matrices"][0]["utilisation"] == pytest.approx(value)
    assert result["matrices"][0]["lost"] == pytest.approx(1.0), "b has red links alone"
    assert result["without_path"]["demands"] >= 1


def test_bounds_say_that_they_are_of_the_links_of_an_algorithm(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a to d lead c and the direct link, a half of 6 Gbit/s each; over b, whose links are red,
    a third less."""
    command = "segments --topology net.csv --traffic demands.csv --objective max_link_utilisation --igp-alone"
    bounds = []
    for options, which in (
        ("", ""),
        (" --flex-algo 128:exclude=red", " over the links of algorithm 128"),
    ):
        assert main(f"{command}{options}".split()) == 0
        found = re.search(rf"over any paths{which} at least ([0-9.]+):", capsys.readouterr().out)
        assert found
        bounds.append(float(found[1]))
    assert bounds[1] == pytest.approx(0.3, rel=1e-3)
    assert bounds[0] < 0.25


@pytest.mark.parametrize("seed", range(4))
def test_one_algorithm_without_rules_is_the_igp_under_failures_and_repairs(seed: int) -> None:
    topology = _with_attributes(seed)
    pairs = all_pairs(topology)
    demand = np.random.default_rng(seed).exponential(size=(2, len(pairs)))
    dag = EcmpDag.of(topology, np.asarray(topology.metric))
    plain, algorithm = IgpRouting(dag, pairs), np.full(len(pairs), 128)
    flex = FlexRouting(dag, pairs, [FlexAlgo.parse("128")], algorithm)
    failures = [list(one.links) for one in cable_failures(topology)]
    np.testing.assert_allclose(flex.latency(), plain.latency())
    for repairing in (False, True):
        expected = plain.loads(demand).under(failures, repairing=repairing, loads=True)
        found = flex.loads(demand).under(failures, repairing=repairing, loads=True)
        for name in ("utilisation", "overload", "lost", "at_risk", "load"):
            np.testing.assert_allclose(
                getattr(found, name), getattr(expected, name), atol=1e-9, err_msg=name
            )
        brief = flex.loads(demand).under(failures, repairing=repairing).load
        assert brief.shape == (0, 2, topology.num_links)
        assert brief.base is None, "no view of the loads of all failures"


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_attributes_survive_files_subsets_and_networkx(tmp_path: Path, suffix: str) -> None:
    ends = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]
    both = make_topology([(a, b, 1.0) for a, b in ends], both=True)
    names = [
        frozenset[str](),
        frozenset({"red"}),
        frozenset({"red", "core"}),
        frozenset({"blue"}),
        frozenset({"core"}),
    ]
    topology = dataclasses.replace(
        both,
        te_metric=np.array([0, 1, 2, 3, 4] * 2),
        affinities=tuple(names * 2),
        metric=np.arange(1, 11),
    )
    save_topology(tmp_path / f"net{suffix}", topology)
    again = load_topology(tmp_path / f"net{suffix}")
    assert sorted(zip(again.link_names(), again.affinities, strict=True), key=str) == sorted(
        zip(topology.link_names(), topology.affinities, strict=True), key=str
    )
    assert dict(zip(again.link_names(), np.asarray(again.te_metric).tolist(), strict=True)) == dict(
        zip(topology.link_names(), np.asarray(topology.te_metric).tolist(), strict=True)
    )
    part = topology.with_links(np.array([4, 1]))
    assert part.affinities == (topology.affinities[4], topology.affinities[1])
    assert np.asarray(part.te_metric).tolist() == np.asarray(topology.te_metric)[[4, 1]].tolist()
    one_way = make_topology([(0, 1, 1.0)])
    two_ways = dataclasses.replace(one_way, affinities=(frozenset({"red"}),)).bidirectional()
    assert two_ways.affinities == (frozenset({"red"}),) * 2
    edges = {(a, b): found for a, b, found in topology.to_networkx().edges(data=True)}
    assert edges["n2", "n3"]["affinity"] == ["core", "red"]
    assert edges["n2", "n3"]["te_metric"] == 2
    assert "affinity" not in edges["n0", "n1"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--flex-algo 127", "128 to 255"),
        ("--flex-algo 128:metric=hops", "igp or delay or te"),
        ("--flex-algo 128:exclude=", "such as 128:metric=delay"),
        ("--flex-algo 128:exclude=red+", "such as 128:metric=delay"),
        ("--flex-algo 128:colour=red", "such as 128:metric=delay"),
        ("--flex-algo 128:exclude=red,exclude=core", "such as 128:metric=delay"),
        ("--flex-algo 128:exclude=green", "affinities of the links (core, red)"),
        ("--flex-algo 128 --flex-algo 129", "--algorithm-of"),
        (
            "--flex-algo 128 --flex-algo 128:exclude=red --algorithm-of of.csv",
            "several definitions for one number",
        ),
        ("--flex-algo 129 --algorithm-of of.csv", "line 2: algorithm"),
        (
            "--flex-algo 128 --algorithm-of wrong.csv",
            "line 2: source: expected a node of the network",
        ),
        (
            "--flex-algo 128 --algorithm-of demands.csv",
            "columns: expected source, target, algorithm",
        ),
        ("--flex-algo 128 --algorithm-of missing.csv", "missing.csv"),
        ("--algorithm-of of.csv", "--flex-algo"),
        ("--policies lists.json --flex-algo 129:metric=te", "--algorithm-of"),
        ("--policies lists.json --flex-algo 128:metric=te", "several definitions for one number"),
        (
            "--policies lists.json --algorithm-of igp.csv",
            "algorithm 128, which no demand uses",
        ),
        ("--policies lists.json --ucmp", "--ucmp"),
        ("--flex-algo 128 --ucmp", "--ucmp"),
    ],
)
def test_faults_are_named(
    files: Path, capsys: pytest.CaptureFixture[str], words: str, expected: str
) -> None:
    (files / "wrong.csv").write_text("source,target,algorithm\nz,d,128\n", encoding="utf-8")
    (files / "igp.csv").write_text("source,target,algorithm\n*,*,0\n", encoding="utf-8")
    topology = dataclasses.replace(load_topology("net.csv"), capacity=np.arange(1.0, 11.0))
    save_topology("net.csv", topology)  # capacities that differ, for --ucmp
    policies = SegmentPolicies(
        {(0, 3): (SegmentList(1.0, (2,)),)}, algorithm=FlexAlgo(128, "delay")
    )
    write_policies(files / "lists.json", topology, policies, {})
    _, error = _simulated(words, capsys, expected=2)
    assert [expected in line for line in error.splitlines() if line.startswith("teal: ")] == [True]


def test_the_first_row_that_fits_decides(tmp_path: Path) -> None:
    topology = make_topology([(0, 1, 1.0), (1, 2, 1.0)], both=True)
    file = tmp_path / "of.csv"
    file.write_text("source,target,algorithm\nn0,n2,0\nn0,*,128\n*,n0,129\n", encoding="utf-8")
    pairs = np.array([[0, 1], [0, 2], [1, 0], [1, 2]])
    assert algorithms_of([FlexAlgo(128), FlexAlgo(129)], file, topology, pairs).tolist() == [
        128,
        0,
        129,
        0,
    ]


@pytest.mark.parametrize("value", [3, ["core link"], ["a;b"], [1], {"red": 1}])
def test_an_affinity_that_is_no_name_is_refused(tmp_path: Path, value: object) -> None:
    data = {
        "nodes": [{"id": "a"}, {"id": "b"}],
        "links": [{"source": "a", "target": "b", "capacity": 1, "affinity": value}],
    }
    (tmp_path / "net.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match="affinity: expected a name or a list of names"):
        load_topology(tmp_path / "net.json")


def test_every_list_of_a_policy_keeps_to_the_links_of_its_algorithm(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second list takes a -> b, which is red."""
    topology = load_topology("net.csv")
    node, red = topology.node_index(), topology.link_names().index("a->b")
    lists = (SegmentList(0.5, (node["c"],)), SegmentList(0.5, (node["b"],), (red,)))
    algorithm = FlexAlgo.parse("128:exclude=red")
    policies = SegmentPolicies({(node["a"], node["d"]): lists}, algorithm=algorithm)
    write_policies(files / "lists.json", topology, policies, {})
    _, error = _simulated("--policies lists.json --algorithm-of of.csv", capsys, expected=2)
    assert "adjacencies over links outside algorithm 128: a->b" in error
