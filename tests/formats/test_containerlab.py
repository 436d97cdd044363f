"""Topologies of containerlab: read, written, and read back; bridges, ends that are no nodes, and
faults."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import yaml

from teal.cli import main
from teal.errors import InputError
from teal.formats import load_topology, save_topology
from teal.network import Topology
from teal.testing import make_topology, random_topology

LAB = """
name: three
topology:
  defaults: {kind: linux}
  nodes:
    r1: {kind: nokia_srlinux, image: srl}
    r2:
    r3: {labels: {teal-name: "paris 3"}}
    sw: {kind: bridge}
  links:
    - endpoints: ["r1:e1-1", "r2:eth1"]
      labels: {capacity: 100G, latency: "2.5", metric: "10", back-metric: "20", affinity: "red;core"}
    - type: veth
      endpoints: [{node: r1, interface: e1-2}, {node: r2, interface: eth2}]
      labels: {capacity: 10, metric: 5, one-way: "true"}
    - endpoints: ["r2:eth3", "sw:p1"]
      labels: {capacity: 40, metric: 7}
    - endpoints: ["sw:p2", "r3:eth1"]
      labels: {capacity: 10, metric: 9, back-metric: 8}
    - endpoints: ["r3:eth9", "host:veth0"]
    - {type: dummy, endpoint: {node: r3, interface: d0}}
"""


def _links(topology: Topology) -> list[tuple[str, str, float, float, int]]:
    names, metric = topology.node_names, topology.metric
    assert metric is not None
    return sorted(
        (names[s], names[t], float(c), float(d), int(m))
        for s, t, c, d, m in zip(
            topology.link_source,
            topology.link_target,
            topology.capacity,
            topology.latency,
            metric,
            strict=True,
        )
    )


def test_a_topology_is_read_with_labels_bridges_and_one_way_links(tmp_path: Path) -> None:
    file = tmp_path / "lab.clab.yml"
    file.write_text(LAB, encoding="utf-8")
    topology = load_topology(str(file))
    assert (topology.name, topology.node_names) == ("three", ("r1", "r2", "paris 3"))
    assert _links(topology) == [
        ("paris 3", "r2", 10, 1, 8),
        ("r1", "r2", 10, 1, 5),
        ("r1", "r2", 100, 2.5, 10),
        ("r2", "paris 3", 10, 1, 7),
        ("r2", "r1", 100, 2.5, 20),
    ]
    assert topology.affinities is not None
    assert [sorted(one) for one in topology.affinities].count(["core", "red"]) == 2
    assert any("2 links" in note for note in topology.notes)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_written_is_read_back(seed: int, tmp_path: Path) -> None:
    topology, rng = random_topology(seed, 7, 0.5), np.random.default_rng(seed)
    count = topology.num_links
    topology = dataclasses.replace(
        topology,
        metric=rng.integers(1, 50, count),
        te_metric=rng.integers(0, 3, count),
        affinities=tuple(
            frozenset({"red", "core"}) if x < 0.3 else frozenset() for x in rng.random(count)
        ),
        latency=rng.exponential(size=count),
        capacity=topology.capacity * (rng.random(count) < 0.8),
        node_names=("a/b", "a-b", *topology.node_names[2:]),
    )
    file = tmp_path / "net.clab.yml"
    save_topology(file, topology)
    again = load_topology(str(file))
    assert again.node_names == topology.node_names
    assert _links(again) == _links(topology)

    def others(one: Topology) -> list[tuple[str, float, str]]:
        return sorted(
            (one.link_name(e), float(one.capacity[e]), str(one.igp_attributes(e)))
            for e in range(count)
        )

    assert others(again) == others(topology)
    document = yaml.safe_load(file.read_text())["topology"]
    ends = [
        (end["node"], end["interface"]) for link in document["links"] for end in link["endpoints"]
    ]
    assert len(ends) == len(set(ends)), "no interface has two links"
    assert all(node in document["nodes"] for node, _ in ends)


def test_parallel_and_one_way_links_are_kept(tmp_path: Path) -> None:
    topology = make_topology([(0, 1, 10.0), (0, 1, 20.0), (1, 0, 10.0), (1, 2, 5.0)])
    topology = dataclasses.replace(topology, metric=np.arange(1, 5))
    assert (
        main(
            [
                "topology",
                "convert",
                "--topology",
                _json(tmp_path, topology),
                "--out",
                f"{tmp_path}/a.clab.yml",
            ]
        )
        == 0
    )
    assert _links(load_topology(f"{tmp_path}/a.clab.yml")) == _links(topology)


def _json(folder: Path, topology: Topology) -> str:
    save_topology(folder / "net.json", topology)
    return str(folder / "net.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [", "not valid YAML"),
        ("name: x", "a mapping of nodes and a list of links"),
        (
            "topology: {nodes: {a: , b: }, links: [{endpoints: ['a:e1', 'c:e1']}]}",
            r"links\[0\].*nodes of the file",
        ),
        (
            "topology: {nodes: {a: , b: }, links: [{endpoints: ['a:e1', 'b:e1']}]}",
            "the link has no capacity",
        ),
        ("topology: {nodes: {a: text, b: }, links: []}", "nodes: a.*a mapping"),
        ("topology: {nodes: {a: , b: }, links: [a]}", r"links\[0\].*a mapping"),
        (
            "topology: {nodes: {a: , b: }, links: [{endpoints: 'a:e1,b:e1'}]}",
            "a list of node:interface",
        ),
        (
            "topology: {nodes: {a: , b: }, links: [{endpoints: [[a], 'b:e1']}]}",
            "a list of node:interface",
        ),
        (
            "topology: {nodes: {a: , b: }, links: [{endpoints: ['a:e1', 'b:e1'], labels: [x]}]}",
            "a mapping of names",
        ),
        (
            "topology: {nodes: {a: {kind: bridge}, b: {kind: bridge}}, links: [{endpoints: ['a:e1', 'b:e1']}]}",
            "a router at one end",
        ),
        (
            "topology: {nodes: {a: {labels: {teal-name: b}}, b: }, links: []}",
            "two nodes have the same label",
        ),
        (
            "x: &a [1,1,1,1,1,1,1,1]\ny: &b [*a,*a,*a,*a,*a,*a,*a]\nz: [*b,*b,*b,*b,*b,*b]\ntopology: *b",
            "a mapping",
        ),
        (
            "topology: {nodes: {a: , b: }, links: [{endpoints: ['a:e1', 'b:e1'], labels: {capacity: 1, metric: x}}]}",
            r"links\[0\]: metric",
        ),
    ],
)
def test_a_fault_is_named_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "lab.clab.yml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_topology(str(file))


def test_names_that_yaml_takes_for_other_things_stay_names(tmp_path: Path) -> None:
    file = tmp_path / "lab.clab.yml"
    ends = "{endpoints: ['on:e1', '010:e1'], labels: {bandwidth: 10}}"
    file.write_text(
        f"name: on\ntopology: {{nodes: {{on: , 010: }}, links: [{ends}]}}", encoding="utf-8"
    )
    topology = load_topology(str(file), attributes="capacity=bandwidth")
    assert (topology.name, topology.node_names, topology.capacity.tolist()) == (
        "on",
        ("on", "010"),
        [10, 10],
    )


def test_a_node_that_is_called_as_the_host_is_stays_a_node(tmp_path: Path) -> None:
    topology = dataclasses.replace(
        make_topology([(0, 1, 10.0)], both=True), node_names=("host", "b")
    )
    save_topology(tmp_path / "net.clab.yml", topology)
    assert load_topology(str(tmp_path / "net.clab.yml")).node_names == ("host", "b")


def test_what_a_format_does_not_hold_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topology = make_topology([(0, 1, 10.0), (1, 0, 10.0), (1, 2, 10.0)])
    source = _json(tmp_path, dataclasses.replace(topology, coordinates=np.ones((3, 2))))
    for name, lost in (
        ("a.csv", "positions of nodes"),
        ("b.json", ""),
        ("c.clab.yml", "positions of nodes"),
    ):
        assert (
            main(["topology", "convert", "--topology", source, "--out", str(tmp_path / name)]) == 0
        )
        said = capsys.readouterr().err
        assert (" omits " in said) == bool(lost)
        assert lost in said
    save_topology(tmp_path / "failed.clab.yml", topology.with_failed_links([0]))
    for name in ("d.csv", "d.rfc8345.json"):
        assert (
            main(
                f"topology convert --topology {tmp_path}/failed.clab.yml --out {tmp_path}/{name}".split()
            )
            == 0
        )
        again = load_topology(tmp_path / name)
        assert [
            name for name, rate in zip(again.link_names(), again.capacity, strict=True) if not rate
        ] == ["n0->n1"]


def _bridged(first: str, second: str) -> str:
    """Two routers on a bridge, which is one by its group; labels of the link of each."""
    return (
        "topology:\n  defaults: {kind: linux}\n  groups: {switches: {kind: bridge}}\n"
        "  nodes: {r1: , r2: , sw: {group: switches}}\n  links:\n"
        f"    - {{endpoints: ['r1:eth1', 'sw:p1'], labels: {{{first}}}}}\n"
        f"    - {{endpoints: ['sw:p2', 'r2:eth1'], labels: {{{second}}}}}\n"
    )


def test_a_link_over_a_bridge_is_what_both_of_its_members_are(tmp_path: Path) -> None:
    """An affinity or a failure of one member is that of both directions; a group says what kind a
    node is."""
    file = tmp_path / "lab.clab.yml"
    file.write_text(_bridged("capacity: 10, affinity: red", "capacity: 10"), encoding="utf-8")
    topology = load_topology(str(file))
    assert topology.node_names == ("r1", "r2")
    assert topology.affinities == (frozenset({"red"}), frozenset({"red"}))
    file.write_text(_bridged("capacity: 0", "capacity: 10"), encoding="utf-8")
    assert load_topology(str(file)).capacity.tolist() == [0, 0]
