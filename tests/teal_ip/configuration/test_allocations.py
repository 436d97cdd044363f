"""SR policies and next-hop groups against simulations of their own: every link carries what the
allocation says."""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

import teal
from teal.cli import main
from teal.formats.allocations import write_allocation
from teal.network import PathMethod, Topology
from teal.network.path_options import PathWeight
from teal.network.paths import link_weights
from teal.testing import make_topology
from teal_ip.configuration.allocations import Igp, next_hop_groups, segment_list, sr_policies


def _allocation(
    topology: Topology, load: float = 6, objective: str = "total_flow", k: int = 4
) -> dict[str, Any]:
    traffic = teal.load_traffic(f"gravity:seed=1,count=1,load={load}", topology)
    paths = teal.compute_paths(
        topology, traffic.pairs, num_paths=k, method=PathMethod.YEN, cache=False
    )
    program = teal.Objective(teal.ObjectiveName(objective))
    problem = teal.Problem.create(topology, paths, program, traffic.read([0]))
    splits = teal.solve(problem, gap=1e-3).splits[0].numpy()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "allocation.json"
        write_allocation(
            file, topology, paths, problem.demand[0].numpy(), splits, None, {"objective": objective}
        )
        return dict(json.loads(file.read_text()))


def _loads(allocation: dict[str, Any]) -> Counter[str]:
    loads: Counter[str] = Counter()
    for demands in allocation["routers"].values():
        for demand in demands:
            for path in demand["paths"]:
                loads.update(dict.fromkeys(path["links"], path["rate"]))
    return loads


def _simulated(data: dict[str, Any], topology: Topology, metric: np.ndarray) -> Counter[str]:
    """Loads of the policies, by networkx's shortest paths, equal-cost links sharing the packets of
    a node evenly."""
    graph = nx.MultiDiGraph()
    names = topology.link_names()
    ends = zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)
    for link, (a, b) in enumerate(ends):
        graph.add_edge(
            topology.node_names[a],
            topology.node_names[b],
            key=names[link],
            weight=float(metric[link]),
        )
    to = {node: nx.single_source_dijkstra_path_length(graph.reverse(), node) for node in graph}
    loads: Any = Counter()

    def send(at: str, target: str, rate: float) -> None:
        if at == target:
            return
        hops = [
            (b, key)
            for _, b, key, one in graph.out_edges(at, keys=True, data="weight")
            if target in to and b in to[target] and abs(one + to[target][b] - to[target][at]) < 1e-9
        ]
        for b, key in hops:
            loads[key] += rate / len(hops)
            send(b, target, rate / len(hops))

    for policy in data["policies"]:
        for one in policy["segment_lists"]:
            at, rate = policy["headend"], policy["rate"] * one["weight"]
            for segment in one["segments"]:
                if "node" in segment:
                    send(at, segment["node"], rate)
                    at = segment["node"]
                else:
                    source, target = segment["adjacency"].split("#")[0].split("->")
                    assert source == at, "an adjacency segment of the node where the packet is"
                    loads[segment["adjacency"]] += rate
                    at = target
            assert at == policy["endpoint"]
    return loads


def _check_equal(a: Counter[str], b: Counter[str]) -> None:
    for link in {*a, *b}:
        assert a[link] == pytest.approx(b[link], abs=1e-6)


@pytest.mark.parametrize("weight", list(PathWeight))
@pytest.mark.parametrize("name", ["b4", "topohub:sndlib/abilene", "parallel"])
def test_segment_lists_carry_exactly_the_loads_of_the_allocation(
    name: str, weight: PathWeight
) -> None:
    if name == "parallel":
        cables = [(0, 1, 4.0), (0, 1, 3.0), (1, 2, 5.0), (0, 2, 2.0), (2, 3, 4.0), (1, 3, 4.0)]
        topology = make_topology(cables, both=True)
    else:
        topology = teal.load_topology(name)
    allocation, metric = _allocation(topology), link_weights(topology, weight)
    exported = sr_policies(allocation, topology, Igp(topology, metric), 10, 16)
    assert exported.left_out == 0
    assert exported.admitted == pytest.approx(exported.admitted_before)
    _check_equal(_simulated(exported.data, topology, metric), _loads(allocation))


def test_lists_are_the_shortest() -> None:
    """By brute force over all lists of a path's own nodes and links."""
    topology = teal.load_topology("b4")
    igp = Igp(topology, np.ones(topology.num_links))
    paths = teal.compute_paths(topology, num_paths=4, cache=False)
    graph = nx.DiGraph(
        zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)
    )

    def is_only_path(part: list[int]) -> bool:
        ends = int(topology.link_source[part[0]]), int(topology.link_target[part[-1]])
        shortest_ones = list(nx.all_shortest_paths(graph, *ends))
        return len(shortest_ones) == 1 and len(shortest_ones[0]) == len(part) + 1

    def shortest(path: list[int]) -> int:
        if not path:
            return 0
        steps = [1] + [j for j in range(2, len(path) + 1) if is_only_path(path[:j])]
        return 1 + min(shortest(path[j:]) for j in steps)

    longest = 0
    for demand in range(0, paths.num_demands, 3):
        for k in range(4):
            path = paths.links_of(demand, k)
            if path:
                found = segment_list(igp, topology, path)
                assert len(found) == shortest(path)
                longest = max(longest, len(found))
    assert longest > 1


def test_what_cannot_be_expressed_is_left_out_counted_and_paid_for() -> None:
    topology = teal.load_topology("b4")
    metric = link_weights(topology, PathWeight.HOPS)
    for objective in ("total_flow", "max_link_utilisation"):
        allocation = _allocation(topology, load=1, objective=objective)
        exported = sr_policies(allocation, topology, Igp(topology, metric), 2, 2)
        assert exported.left_out > 0
        assert exported.reasons
        lists = [policy["segment_lists"] for policy in exported.data["policies"]]
        assert max(map(len, lists)) == 2
        assert max(len(one["segments"]) for own in lists for one in own) <= 2
        loads = _simulated(exported.data, topology, metric)
        capacity = dict(zip(topology.link_names(), topology.capacity.tolist(), strict=True))
        assert max(load / capacity[link] for link, load in loads.items()) == pytest.approx(
            exported.utilisation
        )
        if objective == "total_flow":
            assert exported.admitted < exported.admitted_before
        else:
            rates = [
                one["admitted"] for demands in allocation["routers"].values() for one in demands
            ]
            carried = [rate for rate, own in zip(rates, lists, strict=True) if own]
            assert exported.admitted == pytest.approx(sum(carried)), (
                "other paths take up what was left out"
            )


@pytest.mark.parametrize("k", [1, 3])
def test_next_hop_groups_carry_the_loads_of_the_allocation(k: int) -> None:
    topology = teal.load_topology("topohub:sndlib/abilene")
    allocation = _allocation(topology, load=1.5, k=k)
    assert k > 1 or _has_no_circle(allocation)
    data = next_hop_groups(allocation, topology).data
    groups = {(group["node"], group["target"]): group["next_hops"] for group in data["groups"]}
    loads: Counter[str] = Counter()
    for target in {target for _, target in groups}:
        waiting: dict[str, float] = defaultdict(float)
        for router, rates in data["admitted"].items():
            waiting[router] += rates.get(target, 0.0)
        for _ in range(topology.num_nodes):  # no flow takes more hops than there are nodes
            arriving: dict[str, float] = defaultdict(float)
            for node, rate in waiting.items():
                for hop in groups.get((node, target), []) if node != target else []:
                    loads[hop["link"]] += rate * hop["weight"]
                    arriving[hop["link"].split("->")[1]] += rate * hop["weight"]
            waiting = arriving
        assert sum(rate for node, rate in waiting.items() if node != target) < 1e-6
    before = _loads(allocation)
    for link, load in loads.items():
        assert load <= before[link] + 1e-6, "only circles are left out"
    if _has_no_circle(allocation):
        _check_equal(loads, before)


def _has_no_circle(allocation: dict[str, Any]) -> bool:
    graphs: dict[str, Any] = defaultdict(nx.DiGraph)
    for demands in allocation["routers"].values():
        for demand in demands:
            for path in demand["paths"]:
                nx.add_path(graphs[demand["target"]], path["nodes"])
    return all(nx.is_directed_acyclic_graph(graph) for graph in graphs.values())


def test_the_command_says_what_it_left_out_and_circles_are_cancelled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    allocation = _allocation(teal.load_topology("b4"))
    (tmp_path / "a.json").write_text(json.dumps(allocation))
    command = [
        "export",
        "--allocation",
        str(tmp_path / "a.json"),
        "--topology",
        "b4",
        "--out",
        str(tmp_path / "o.json"),
    ]
    assert main([*command, "--msd", "1"]) == 0
    printed = capsys.readouterr()
    assert "segments" in printed.err
    assert "paths dropped" in printed.out
    assert json.loads((tmp_path / "o.json").read_text())["format"] == "sr-policy"
    assert main(command) == 2, "not over an earlier file"
    assert main([*command, "--overwrite", "--topology", "topohub:sndlib/geant"]) == 2, (
        "another network"
    )
    topology = make_topology([(0, 1, 1.0), (1, 2, 1.0), (0, 2, 1.0)], both=True)
    circle = {
        "routers": {
            "n0": [
                {
                    "target": "n2",
                    "admitted": 2.0,
                    "paths": [
                        {"nodes": ["n0", "n1", "n2"], "links": ["n0->n1", "n1->n2"], "rate": 1.0}
                    ],
                }
            ],
            "n1": [
                {
                    "target": "n2",
                    "admitted": 1.0,
                    "paths": [
                        {"nodes": ["n1", "n0", "n2"], "links": ["n1->n0", "n0->n2"], "rate": 1.0}
                    ],
                }
            ],
        }
    }
    groups = next_hop_groups(circle, topology).data["groups"]
    hops = {group["node"]: [hop["link"] for hop in group["next_hops"]] for group in groups}
    assert hops == {"n0": ["n0->n2"], "n1": ["n1->n2"]}


def _with_classes(tmp_path: Path) -> tuple[dict[str, Any], Topology]:
    out, shares = tmp_path / "c.json", "gold=0.1,silver=0.3,bronze=0.6"
    arguments = [
        "--topology",
        "b4",
        "--traffic",
        "gravity:seed=0,load=8",
        "--objective",
        "priority",
    ]
    assert main(["solve", *arguments, "--classes", shares, "--out", str(out)]) == 0
    return json.loads(out.read_text()), teal.load_topology("b4")


def test_all_classes_of_a_pair_are_exported(tmp_path: Path) -> None:
    allocation, topology = _with_classes(tmp_path)
    carried: Counter[str] = Counter()
    for demands in allocation["routers"].values():
        for demand in demands:
            carried[demand["class"]] += demand["admitted"]
    groups = next_hop_groups(allocation, topology).data
    total = sum(rate for rates in groups["admitted"].values() for rate in rates.values())
    assert total == pytest.approx(sum(carried.values()))
    by_class: Counter[str] = Counter()
    for targets in groups["admitted_by_class"].values():
        for rates in targets.values():
            by_class.update(rates)
    assert by_class == pytest.approx(carried)
    igp = Igp(topology, link_weights(topology, PathWeight.HOPS))
    policies = sr_policies(allocation, topology, igp, 10, 16).data["policies"]
    assert {(one["class"], one["color"]) for one in policies} == {
        ("gold", 100),
        ("silver", 101),
        ("bronze", 102),
    }
    keys = Counter((one["headend"], one["color"], one["endpoint"]) for one in policies)
    assert max(keys.values()) == 1, "a policy is known by headend, color and endpoint"
    plain = sr_policies(_allocation(topology), topology, igp, 10, 16).data["policies"]
    assert {one["color"] for one in plain} == {100}
