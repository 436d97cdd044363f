"""Repetita's files: hand-written ones, damaged ones, and those of its publishers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from teal.errors import InputError
from teal.formats import load_topology, load_traffic, save_topology

GRAPH = """NODES 3
label x y
a 1.0 2.0
b 3.0 4.0
c 5.0 6.0

EDGES 4
label src dest weight bw delay
e0 0 1 10 2000000 1500
e1 1 0 20 2000000 1500
e2 1 2 5 500000 0
e3 1 2 7 500000 3
"""
DEMANDS = """DEMANDS 4
label src dest bw
d0 0 1 1000
d1 0 2 250000
d2 0 1 500
d3 1 1 9
"""


def _write(folder: Path, graph: str = GRAPH, demands: str = DEMANDS) -> tuple[Path, Path]:
    files = folder / "net.graph", folder / "net.0000.demands"
    files[0].write_text(graph)
    files[1].write_text(demands)
    return files


def test_a_network_with_parallel_links_and_metrics_in_each_direction(tmp_path: Path) -> None:
    topology = load_topology(_write(tmp_path)[0])
    assert (topology.name, topology.node_names) == ("net", ("a", "b", "c"))
    np.testing.assert_array_equal(topology.link_source, [0, 1, 1, 1])
    np.testing.assert_array_equal(topology.link_target, [1, 0, 2, 2])
    np.testing.assert_allclose(topology.capacity, [2.0, 2.0, 0.5, 0.5])  # Gbit/s
    np.testing.assert_allclose(
        topology.latency, [1.5, 1.5, 0.001, 0.003]
    )  # ms; a delay of 0 is a rounded one
    assert topology.metric is not None
    assert topology.metric.tolist() == [10, 20, 5, 7]
    np.testing.assert_allclose(topology.coordinates, [[1, 2], [3, 4], [5, 6]])


def test_metrics_survive_node_link_json(tmp_path: Path) -> None:
    topology = load_topology(_write(tmp_path)[0])
    save_topology(tmp_path / "net.json", topology)
    again = load_topology(tmp_path / "net.json")
    assert again.metric is not None
    assert again.metric.tolist() == [10, 20, 5, 7]
    assert again.content_key() == topology.content_key()


def test_matrices_of_one_file_each(tmp_path: Path) -> None:
    graph, demands = _write(tmp_path)
    (tmp_path / "net.0001.demands").write_text("DEMANDS 1\nlabel src dest bw\nd 2 0 3000000\n")
    topology = load_topology(graph)
    one = load_traffic(demands, topology)
    assert one.pairs.tolist() == [[0, 1], [0, 2]]
    np.testing.assert_allclose(one.read([0]), [[0.0015, 0.25]])  # two demands of one pair are added
    both = load_traffic(str(tmp_path / "net.*.demands"), topology)
    assert both.pairs.tolist() == [[0, 1], [0, 2], [2, 0]]
    np.testing.assert_allclose(both.read(slice(None)), [[0.0015, 0.25, 0], [0, 0, 3.0]])
    assert both.interval_s == 300


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("EDGES 4", "EDGES 5", "1 more entries"),
        ("EDGES 4", "EDGES 3", "text behind the last section"),
        ("NODES 3", "NODE 3", "NODES and a number"),
        ("e0 0 1 10", "e0 0 9 10", "line 9: expected a node number from 0 to 2"),
        ("e0 0 1 10", "e0 0 1", "line 9: expected 6 fields"),
        ("e0 0 1 10", "e0 0 1 x", "line 9: weight"),
        ("e0 0 1 10", "e0 0 1 0", "metric: expected an integer"),
        ("e0 0 1 10", "e0 0 1 1.5", "metric: expected an integer"),
        ("2000000 1500", "-1 1500", "capacity"),
        ("b 3.0", "a 3.0", "an earlier node has the name"),
    ],
)
def test_damaged_networks_are_refused_with_the_line(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    graph, _ = _write(tmp_path, graph=GRAPH.replace(old, new, 1))
    with pytest.raises(InputError, match=words):
        load_topology(graph)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("DEMANDS 4", "DEMANDS 5", "1 more entries"),
        ("d0 0 1", "d0 0 3", "line 3: expected a node number"),
        ("1000", "-1", "line 3: bw: expected a finite rate"),
        ("1000", "nan", "line 3: bw: expected a finite rate"),
        (DEMANDS, "DEMANDS 0\nlabel src dest bw\n", "between different nodes"),
    ],
)
def test_damaged_matrices_are_refused_with_the_line(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    graph, demands = _write(tmp_path, demands=DEMANDS.replace(old, new, 1))
    with pytest.raises(InputError, match=words):
        load_traffic(demands, load_topology(graph))


def test_other_files_and_units_are_refused(tmp_path: Path) -> None:
    graph, demands = _write(tmp_path)
    topology = load_topology(graph)
    demands.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        load_traffic(demands, topology)
    with pytest.raises(InputError, match="--traffic-unit"):
        load_traffic(demands, topology, unit="Mbit/s")
    with pytest.raises(InputError, match="no such file"):
        load_traffic(tmp_path / "none.demands", topology)


def test_a_metric_on_some_links_only_is_refused(tmp_path: Path) -> None:
    links = '{"source": 0, "target": 1, "capacity": 1, "metric": 3}, {"source": 1, "target": 0, "capacity": 1}'
    file = tmp_path / "some.json"
    file.write_text(
        f'{{"directed": true, "nodes": [{{"id": 0}}, {{"id": 1}}], "links": [{links}]}}'
    )
    with pytest.raises(InputError, match="the link 1->0 has no metric"):
        load_topology(file)


@pytest.mark.parametrize(
    ("name", "nodes", "links", "demands", "total"),
    [("rf1221_real_hard", 104, 302, 10_712, 82.902), ("Abilene", 11, 28, 110, 59.064)],
)
def test_files_of_the_publishers(
    public_data: Path, name: str, nodes: int, links: int, demands: int, total: float
) -> None:
    folder = public_data / "repetita"
    if not folder.is_dir():
        pytest.skip(f"needs Repetita's files in {folder}")
    topology = load_topology(folder / f"{name}.graph")
    traffic = load_traffic(folder / f"{name}.0000.demands", topology)
    assert (topology.num_nodes, topology.num_links, traffic.num_demands) == (nodes, links, demands)
    assert traffic.read([0]).sum() == pytest.approx(total, rel=1e-4)


def test_links_that_are_left_out_take_their_metrics_along(tmp_path: Path) -> None:
    topology = load_topology(_write(tmp_path)[0]).with_links(np.array([3, 0]))
    assert topology.metric is not None
    assert topology.metric.tolist() == [7, 10]
    assert topology.link_names() == ["b->c", "a->b"]
