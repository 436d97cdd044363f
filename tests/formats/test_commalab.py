"""Files of CommaLab and TNTP: hand-written ones, damaged ones, and the published optima."""

from __future__ import annotations

import csv
import dataclasses
import gzip
from pathlib import Path

import numpy as np
import pytest

import teal
from teal.errors import InputError
from teal.formats import load_topology, load_traffic, save_topology
from teal.problem import Problem
from teal.solvers.columns import generate_columns

COMMALAB = """ 3
 4
 3
 1 2 10 5
 1 2 0 2
 2 3 7.5 4
 3 1 1 1
 1 3 2
 1 3 0.5
 2 2 9
"""
NET = """<NUMBER OF ZONES> 2
<NUMBER OF NODES> 4
<FIRST THRU NODE> 3
<NUMBER OF LINKS> 3
<END OF METADATA>

~ \tinit\tterm\tcapacity\tlength\tfree_flow_time\t;
\t1\t3\t10\t1\t2.5\t0.15\t4\t0\t0\t1\t;
\t3\t4\t20\t1\t0\t0.15\t4\t0\t0\t1\t;
\t4\t2\t30\t1\t1\t0.15\t4\t0\t0\t1\t;
"""
TRIPS = """<NUMBER OF ZONES> 2
<TOTAL OD FLOW> 7
<END OF METADATA>

Origin  1
    1 :    4.0;     2 :    3.0;

Origin  2
"""


def _commalab(folder: Path, text: str = COMMALAB) -> Path:
    file = folder / "small"
    file.write_text(text)
    return file


def test_a_problem_of_commalab_is_network_and_traffic(tmp_path: Path) -> None:
    file = _commalab(tmp_path)
    topology = load_topology(file)
    assert (topology.name, topology.node_names) == ("small", ("1", "2", "3"))
    assert topology.link_source.tolist() == [0, 0, 1, 2]
    assert topology.link_target.tolist() == [1, 1, 2, 0]
    assert topology.cost is not None
    assert topology.cost.tolist() == [10, 0, 7.5, 1]
    assert topology.capacity.tolist() == [5, 2, 4, 1]
    assert (topology.latency > 0).all()
    traffic = load_traffic(file, topology)
    assert traffic.pairs.tolist() == [[0, 2]]  # those within a node are left out
    assert traffic.read([0]).tolist() == [[2.5]]  # several of a pair are added


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (" 3 1 1 1\n", "", "28 numbers"),
        ("7.5", "x", "a word is not a number"),
        (" 3 1 1 1", " 9 1 1 1", "arc 4"),
        (" 2 3 7.5 4", " 2 3 -1 4", "arc 3: cost: expected a finite cost >= 0, found -1"),
        (" 1 3 2\n", " 1 3 -2\n", "rate"),
        (" 1 3 2\n", " 1 4 2\n", "demand 1"),
        (" 1 3 2\n", " 0 3 2\n", "demand 1"),
        (" 1 3 0.5\n", " 1.5 3 0.5\n", "demand 2"),
        (" 3 1 1 1", " 3 0 1 1", "arc 4"),
        (" 2 3 7.5 4", " 2 3 7.5 nan", "capacity"),
        (" 3\n 4\n", " 99999999999\n 4\n", "at most 1,000,000"),
    ],
)
def test_damaged_problems_of_commalab_are_refused(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert old in COMMALAB
    file = _commalab(tmp_path, COMMALAB.replace(old, new))
    with pytest.raises(InputError, match=said):
        load_traffic(file, load_topology(file))


def test_another_file_without_a_suffix_is_none_of_commalab(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no suffix"):
        load_topology(_commalab(tmp_path, "3\nnodes\n"))


def test_the_traffic_of_another_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="12, the number of nodes of the network"):
        load_traffic(_commalab(tmp_path), load_topology("b4"))


@pytest.mark.parametrize("compressed", [False, True])
def test_a_road_network(tmp_path: Path, compressed: bool) -> None:
    ending = ".gz" if compressed else ""
    files = tmp_path / f"Small_net.tntp{ending}", tmp_path / f"Small_trips.tntp{ending}"
    for file, text in zip(files, (NET, TRIPS), strict=True):
        file.write_bytes(gzip.compress(text.encode()) if compressed else text.encode())
    topology = load_topology(files[0])
    assert topology.name == "Small"
    assert topology.cost is not None
    assert topology.cost.tolist() == [2.5, 0, 1]
    assert topology.no_transit is not None
    assert topology.no_transit.tolist() == [True, True, False, False]
    traffic = load_traffic(files[1], topology)
    assert traffic.pairs.tolist() == [[0, 1]]
    assert traffic.read([0]).tolist() == [[3.0]]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("<NUMBER OF NODES> 4", "<NUMBER OF NODES> four", "NUMBER OF NODES"),
        ("\t3\t4\t20\t1\t0\t0.15\t4\t0\t0\t1\t;", "\t3\t4\t;", "link 2"),
        ("\t3\t4\t20", "\t3\t5\t20", "arc 2"),
        ("\t3\t4\t20", "\t3\tx\t20", "not a number"),
        ("\t4\t2\t30\t1\t1\t0.15\t4\t0\t0\t1\t;\n", "", "links: <NUMBER OF LINKS> is 3"),
        ("<NUMBER OF LINKS> 3", "<NUMBER OF LINKS> 2", "links: <NUMBER OF LINKS> is 2"),
        ("<NUMBER OF NODES> 4", "<NUMBER OF NODES> \u00b2", "NUMBER OF NODES"),
        ("<NUMBER OF NODES> 4", "<NUMBER OF NODES> 99999999999", "at most 1,000,000"),
    ],
)
def test_damaged_road_networks_are_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in NET
    file = tmp_path / "Small_net.tntp"
    file.write_text(NET.replace(old, new))
    with pytest.raises(InputError, match=said):
        load_topology(file)


def test_keys_of_road_networks_may_be_in_small_letters(tmp_path: Path) -> None:
    file = tmp_path / "Small_net.tntp"
    file.write_text(NET.replace("NUMBER OF NODES", "Number of Nodes").replace("FIRST", "first"))
    topology = load_topology(file)
    assert topology.num_nodes == 4
    assert topology.no_transit is not None
    assert topology.no_transit.tolist() == [True, True, False, False]


@pytest.mark.parametrize("trips", ["2 : 3.0; 3 ; 4;", "2 : x;", "two : 1;", "2 : 1 3 : 1;"])
def test_damaged_trips_are_refused(tmp_path: Path, trips: str) -> None:
    (tmp_path / "Small_net.tntp").write_text(NET)
    file = tmp_path / "Small_trips.tntp"
    file.write_text(TRIPS.replace("2 :    3.0;", trips))
    with pytest.raises(InputError, match="line 6"):
        load_traffic(file, load_topology(tmp_path / "Small_net.tntp"))


def test_the_last_trip_of_a_line_needs_no_semicolon(tmp_path: Path) -> None:
    (tmp_path / "Small_net.tntp").write_text(NET)
    file = tmp_path / "Small_trips.tntp"
    file.write_text(TRIPS.replace("3.0;", "3.0"))
    traffic = load_traffic(file, load_topology(tmp_path / "Small_net.tntp"))
    assert traffic.read([0]).tolist() == [[3.0]]


@pytest.mark.parametrize(
    "content", [gzip.compress(NET.encode(), mtime=0)[:-20], b"no gzip"], ids=["cut", "other"]
)
def test_a_file_that_is_no_whole_gzip_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "Small_net.tntp.gz"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"Small_net\.tntp\.gz.*gzip"):
        load_topology(file)


def test_costs_survive_tables_and_node_link_json(tmp_path: Path) -> None:
    topology = load_topology(_commalab(tmp_path))
    assert topology.cost is not None
    for name in ("net.json", "net.csv"):
        save_topology(tmp_path / name, topology)
        again = load_topology(tmp_path / name)
        assert again.cost is not None
        order = np.lexsort((again.cost, again.link_target, again.link_source))
        expected = np.lexsort((topology.cost, topology.link_target, topology.link_source))
        np.testing.assert_array_equal(again.cost[order], topology.cost[expected])


def test_costs_on_some_links_only_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "net.csv"
    file.write_text("source,target,capacity,cost\na,b,1,3\nb,c,1,\n")
    with pytest.raises(InputError, match="give every link a cost, or none"):
        load_topology(file)


@pytest.mark.parametrize(
    "name", ["planar30", "planar50", "planar80", "planar100", "grid1", "grid3", "grid5", "grid7"]
)
def test_the_published_optima_are_found(name: str, public_data: Path) -> None:
    with (public_data / "mcf" / "optimal.csv").open(encoding="utf-8") as stream:
        published = {row["instance"]: float(row["optimal"]) for row in csv.DictReader(stream)}
    problem = _problem(public_data / "mcf" / name)
    found = generate_columns(problem, target=1e-7)
    assert float(found.gap_all_paths) <= 1e-7
    assert float(found.result.value) == pytest.approx(published[name], rel=1e-6)


def test_the_published_optimum_of_a_road_network_is_found(public_data: Path) -> None:
    topology = load_topology(public_data / "mcf" / "Winnipeg_net.tntp.gz")
    topology = dataclasses.replace(topology, no_transit=None)  # as its publisher solved it
    traffic = load_traffic(public_data / "mcf" / "Winnipeg_trips.tntp.gz", topology).scaled(
        1 / 2000
    )
    paths = teal.compute_paths(topology, traffic.pairs, num_paths=1, cache=False)
    found = generate_columns(
        Problem.create(topology, paths, "least_cost", traffic.read([0])), target=1e-6
    )
    assert float(found.result.value) == pytest.approx(420.162, rel=2e-6)


def _problem(file: Path) -> Problem:
    topology = load_topology(file)
    traffic = load_traffic(file, topology)
    paths = teal.compute_paths(topology, traffic.pairs, num_paths=1, cache=False)
    return Problem.create(topology, paths, "least_cost", traffic.read([0]))
