"""Readers of topologies against files spelled out here, faulty files, and the published files where
available."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from teal.errors import InputError
from teal.formats import load_topology
from teal.formats.units import great_circle_km
from tests.igp_reference import without_transit

SNDLIB = """<?xml version="1.0" encoding="ISO-8859-1"?>
<network xmlns="http://sndlib.zib.de/network" version="1.0">
 <meta>{unit}</meta>
 <networkStructure>
  <nodes coordinatesType="geographical">
   <node id="A"><coordinates><x>0.0</x><y>0.0</y></coordinates></node>
   <node id="B"><coordinates><x>0.0</x><y>1.0</y></coordinates></node>
  </nodes>
  <links>
   <link id="L"><source>A</source><target>{target}</target>{modules}</link>
  </links>
 </networkStructure>
</network>"""
INSTALLED = "<preInstalledModule><capacity>2500.0</capacity><cost>0</cost></preInstalledModule>"
INSTALLABLE = "<additionalModules><addModule><capacity>40000.0</capacity><cost>1</cost></addModule></additionalModules>"


def _sndlib(
    path: Path,
    unit: str = "<unit>MBITPERSEC</unit>",
    target: str = "B",
    modules: str = INSTALLED + INSTALLABLE,
) -> str:
    file = path / "net.xml"
    file.write_text(SNDLIB.format(unit=unit, target=target, modules=modules))
    return str(file)


def test_built_in_b4_has_12_nodes_and_19_links_in_both_directions() -> None:
    topology = load_topology("b4")
    assert (topology.num_nodes, topology.num_links) == (12, 38)
    pairs = set(zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True))
    assert all((t, s) in pairs for s, t in pairs), "every link has its reverse"


def test_sndlib_undirected_links_become_two_and_units_are_converted(tmp_path: Path) -> None:
    topology = load_topology(_sndlib(tmp_path))
    assert topology.num_links == 2
    assert topology.capacity.tolist() == [2.5, 2.5]
    assert topology.latency[0] == pytest.approx(111.19 / 200, rel=1e-3), (
        "one degree of latitude, 111.19 km, at 200 km/ms"
    )
    assert topology.notes == ()


@pytest.mark.parametrize(
    ("modules", "capacity"),
    [(INSTALLED, 2.5), (INSTALLABLE, 40.0), (INSTALLED.replace("2500", "0") + INSTALLABLE, 40.0)],
)
def test_sndlib_capacity_is_the_installed_one_or_that_of_one_module(
    tmp_path: Path, modules: str, capacity: float
) -> None:
    assert load_topology(_sndlib(tmp_path, modules=modules)).capacity[0] == capacity


def test_sndlib_without_a_unit_is_read_in_mbit_per_second_with_a_note(tmp_path: Path) -> None:
    topology = load_topology(_sndlib(tmp_path, unit=""))
    assert topology.capacity[0] == 2.5
    assert "Mbit/s" in topology.notes[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"unit": "<unit>FURLONGS</unit>"}, "unit: expected a unit of bit rate"),
        ({"target": "Z"}, "link L: target: expected a node of the file, found 'Z'"),
        ({"modules": ""}, "link L: capacity: the link has no capacity; name its attribute"),
        (
            {"modules": INSTALLED.replace("2500.0", "0")},
            "link L: capacity: the capacity is 0.0, not above 0",
        ),
        ({"modules": INSTALLED.replace("2500.0", "many")}, "expected a number, found 'many'"),
    ],
)
def test_faults_of_sndlib_topologies_are_named(
    tmp_path: Path, change: dict[str, str], words: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_topology(_sndlib(tmp_path, **change))
    assert "net.xml" in str(caught.value)
    assert words in str(caught.value)


def _json(path: Path, **changes: object) -> str:
    data: dict[str, object] = {
        "directed": True,
        "graph": {},
        "nodes": [{"id": 0, "pos": [1.0, 2.0]}, {"id": 1}],
        "links": [{"source": 0, "target": 1, "capacity": 5, "latency": 3.5}],
    }
    file = path / "net.json"
    file.write_text(json.dumps(data | changes))
    return str(file)


def test_node_link_json_gives_names_capacities_latencies_and_coordinates(tmp_path: Path) -> None:
    topology = load_topology(_json(tmp_path))
    assert topology.node_names == ("0", "1")
    assert (topology.capacity.tolist(), topology.latency.tolist()) == ([5.0], [3.5])
    assert topology.coordinates[0].tolist() == [1.0, 2.0]
    assert load_topology(_json(tmp_path, graph={"capacity_unit": "Mbps"})).capacity[
        0
    ] == pytest.approx(0.005)
    assert load_topology(_json(tmp_path, directed=False)).num_links == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"links": [{"source": 0, "target": 7, "capacity": 5}]}, "links[0] (0->7): target"),
        (
            {"links": [{"source": 0, "target": 1}]},
            "links[0] (0->1): capacity: the link has no capacity",
        ),
        (
            {"links": [{"source": 0, "target": 1, "capacity": 0}]},
            "capacity: the capacity is 0.0, not above 0",
        ),
        ({"links": [{"source": 0, "target": 1, "capacity": -2}]}, "is -2.0, not above 0"),
        ({"links": [{"source": 0, "target": 1, "capacity": float("nan")}]}, "is nan, not above 0"),
        ({"links": [{"source": 0}]}, "a link with source and target"),
        ({"links": []}, "the network has no link"),
        ({"nodes": [{"id": 0}, {"id": 0}]}, "an earlier node has the id 0"),
        ({"nodes": {}}, "no list of nodes"),
        ({"graph": {"capacity_unit": "ells"}}, "unit"),
        ({"graph": {"capacity_unit": "GB/s"}}, "bits per second"),
    ],
)
def test_faults_of_node_link_json_are_named(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_topology(_json(tmp_path, **changes))
    assert words in str(caught.value)


def test_a_default_capacity_replaces_a_missing_one(tmp_path: Path) -> None:
    topology = load_topology(
        _json(tmp_path, links=[{"source": 0, "target": 1}]), default_capacity=10
    )
    assert topology.capacity[0] == 10
    assert "10 Gbit/s assumed" in topology.notes[0]


def test_a_topology_file_that_is_not_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"nodes": [')
    with pytest.raises(InputError, match=r"x\.json: the file is not valid JSON"):
        load_topology(str(tmp_path / "x.json"))


GRAPHML = """<?xml version="1.0" encoding="utf-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
 <key attr.name="label" attr.type="string" for="node" id="d0"/>
 <key attr.name="Longitude" attr.type="double" for="node" id="d1"/>
 <key attr.name="Latitude" attr.type="double" for="node" id="d2"/>
 <key attr.name="LinkSpeedRaw" attr.type="double" for="edge" id="d3"/>
 <graph edgedefault="undirected">
  <node id="0"><data key="d0">Paris</data><data key="d1">2.3</data><data key="d2">48.9</data></node>
  <node id="1"><data key="d0">{second}</data></node>
  <edge source="0" target="1"><data key="d3">1e10</data></edge>
  <edge source="0" target="0"><data key="d3">1e10</data></edge>
  {extra}
 </graph>
</graphml>"""


def test_topology_zoo_graphml_is_read_and_its_faults_are_named(tmp_path: Path) -> None:
    file = tmp_path / "zoo.graphml"
    file.write_text(GRAPHML.format(second="Lyon", extra=""))
    topology = load_topology(str(file))
    assert topology.node_names == ("Paris", "Lyon")
    assert topology.capacity.tolist() == [10.0, 10.0]
    assert "1 links from a node to itself were dropped" in topology.notes[0]
    file.write_text(GRAPHML.format(second="Paris", extra='<edge source="1" target="0"/>'))
    with pytest.raises(InputError, match="capacity"):
        load_topology(str(file))
    same_labels = load_topology(str(file), default_capacity=1)
    assert same_labels.node_names == ("0", "1"), "ids name the nodes where labels are not distinct"
    assert sorted(same_labels.capacity.tolist()) == [1.0, 1.0, 10.0, 10.0], (
        "parallel edges remain separate links"
    )
    file.write_text("<graphml")
    with pytest.raises(InputError, match="not valid GraphML"):
        load_topology(str(file))


def test_topohub_names_load_networks_and_unknown_ones_are_refused() -> None:
    topology = load_topology("topohub:sndlib/geant")
    assert (topology.num_nodes, topology.num_links) == (22, 72)
    assert set(topology.capacity) == {100.0}
    assert "100 Gbit/s" in topology.notes[0]
    assert load_topology("topohub:sndlib/geant,capacity=40").capacity[0] == 40
    for wrong in ("topohub:sndlib/nowhere", "topohub:../secret/x", "topohub:sndlib"):
        with pytest.raises(InputError, match="a name such as"):
            load_topology(wrong)
    with pytest.raises(InputError, match="not above 0"):
        load_topology("topohub:sndlib/geant,capacity=-1")


@pytest.mark.parametrize("name", ["nowhere", "nowhere.json", "README.md", "."])
def test_unknown_topology_names_are_refused_with_the_available_forms(name: str) -> None:
    with pytest.raises(InputError, match="topohub:GROUP/NAME"):
        load_topology(name)


@pytest.mark.parametrize(
    ("name", "nodes", "links"), [("abilene", 12, 30), ("geant", 22, 72), ("germany50", 50, 176)]
)
def test_published_sndlib_topologies_have_their_published_sizes(
    public_data: Path, name: str, nodes: int, links: int
) -> None:
    topology = load_topology(str(public_data / "sndlib" / f"{name}.xml"))
    assert (topology.num_nodes, topology.num_links) == (nodes, links)


def test_attributes_of_other_names_are_read_and_the_error_lists_them(tmp_path: Path) -> None:
    link = {"source": "a", "target": "b", "bandwidth": 4000, "delay": 3}
    (tmp_path / "x.json").write_text(
        json.dumps({"nodes": [{"id": "a"}, {"id": "b"}], "links": [link]})
    )
    with pytest.raises(InputError, match="no capacity among the attributes bandwidth, delay"):
        load_topology(str(tmp_path / "x.json"))
    mapping = "capacity=bandwidth,latency=delay,capacity_unit=Mbit/s"
    topology = load_topology(str(tmp_path / "x.json"), attributes=mapping)
    assert topology.capacity.tolist() == [4, 4]
    assert topology.latency.tolist() == [3, 3]
    for wrong in ("bandwidth", "speed=1", "capacity=bandwidth,x"):
        with pytest.raises(InputError, match="--attributes"):
            load_topology(str(tmp_path / "x.json"), attributes=wrong)


def test_link_speeds_of_the_zoo_are_read_in_their_units(tmp_path: Path) -> None:
    keys = "".join(
        f'<key attr.name="{name}" attr.type="string" for="edge" id="e{i}"/>'
        for i, name in enumerate(("LinkSpeed", "LinkSpeedUnits"))
    )
    graph = GRAPHML.format(second="Lyon", extra="").replace('<data key="d3">1e10</data>', "", 1)
    graph = graph.replace(
        'target="1">', 'target="1"><data key="e0">622</data><data key="e1">M</data>', 1
    )
    (tmp_path / "x.graphml").write_text(graph.replace("<graph ", f"{keys}<graph ", 1))
    assert load_topology(str(tmp_path / "x.graphml")).capacity.tolist() == [0.622, 0.622]


def test_what_is_likely_a_misreading_is_said(tmp_path: Path) -> None:
    links = [{"source": a, "target": b, "capacity": 1} for a, b in ("ab", "ba", "bc")]
    data = {"nodes": [{"id": name} for name in "abc"], "links": links}
    (tmp_path / "x.json").write_text(json.dumps(data))
    assert any(
        note.startswith("Warning: ") and "the network is undirected" in note
        for note in load_topology(str(tmp_path / "x.json")).notes
    )
    (tmp_path / "x.json").write_text(json.dumps({"directed": True, **data}))
    assert not load_topology(str(tmp_path / "x.json")).notes
    (tmp_path / "x.graphml").write_text(GRAPHML.format(second="Paris", extra=""))
    assert (
        "2 nodes have the label 'Paris'"
        in load_topology(str(tmp_path / "x.graphml"), default_capacity=1).notes[0]
    )


@pytest.mark.parametrize(
    ("a", "b", "kilometres"),
    [
        ((0.0, 0.0), (0.0, 90.0), 10_007.5),  # a quarter of a meridian
        ((0.0, 0.0), (90.0, 0.0), 10_007.5),  # of the equator
        ((0.0, 60.0), (180.0, 60.0), 6_671.7),  # over the pole, 60 degrees of a meridian
        ((10.0, 50.0), (20.0, 50.0), 714.2),
        ((-0.1278, 51.5074), (2.3522, 48.8566), 343.6),  # London and Paris
        ((-74.006, 40.7128), (151.2093, -33.8688), 15_989.0),  # New York and Sydney
    ],
)
def test_great_circles_against_published_distances(
    a: tuple[float, float], b: tuple[float, float], kilometres: float
) -> None:
    assert great_circle_km(a, b) == pytest.approx(kilometres, rel=2e-3)
    assert great_circle_km(b, a) == pytest.approx(great_circle_km(a, b))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attributes": "capacity=bandwidth"}, "--attributes: b4 has no configurable capacity"),
        ({"attributes": "inside=Links"}, "--attributes: expected pairs such as"),
    ],
)
def test_what_a_network_does_not_have_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_topology("b4", **options)  # type: ignore[arg-type]


def test_a_graph_of_networkx_keeps_routers_without_transit() -> None:
    topology = without_transit(load_topology("b4"), 3)
    again = load_topology(topology.to_networkx())
    assert again.no_transit is not None
    assert np.flatnonzero(again.no_transit).tolist() == [3]
