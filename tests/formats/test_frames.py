"""Graphs and frames against files: the same network and the same matrices."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest

import teal
from teal.errors import InputError


def test_a_graph_is_the_network_that_a_file_of_it_is(tmp_path: Path) -> None:
    graph = nx.Graph(name="ring")
    graph.add_edge("a", "b", capacity=10.0, latency=2.0)
    graph.add_edge("b", "c", capacity=4.0, latency=1.0)
    topology = teal.load_topology(graph)
    assert repr(topology) == "Topology('ring': 3 nodes, 4 directed links)"
    teal.save_topology(tmp_path / "ring.json", topology)
    again = teal.load_topology(str(tmp_path / "ring.json"))
    pd.testing.assert_frame_equal(topology.to_frame(), again.to_frame())
    frame = topology.to_frame()
    assert frame.query("source == 'a' and target == 'b'")["capacity"].tolist() == [10.0]
    parallel = nx.MultiDiGraph()
    parallel.add_edge(1, 2, bandwidth=1)
    parallel.add_edge(1, 2, bandwidth=3)
    topology = teal.load_topology(parallel, attributes="capacity=bandwidth")
    assert topology.link_names() == ["1->2#1", "1->2#2"]
    assert topology.capacity.tolist() == [1, 3]
    with pytest.raises(InputError, match="capacity"):
        teal.load_topology(parallel)
    with pytest.raises(InputError, match=r"a \.json file"):
        teal.save_topology(tmp_path / "ring.txt", topology)


def test_a_frame_is_the_traffic_that_a_file_of_it_is(tmp_path: Path) -> None:
    topology = teal.load_topology("b4")
    traffic = teal.load_traffic("gravity:seed=0,count=3,load=2", topology)
    teal.save_traffic(tmp_path / "x.csv", traffic, topology)
    frame = pd.read_csv(tmp_path / "x.csv", dtype={"source": str, "target": str})
    frame["timestamp"] = pd.to_datetime(frame["timestamp"])
    shuffled = frame.sample(frac=1, random_state=0)
    from_frame = teal.load_traffic(shuffled, topology)
    np.testing.assert_allclose(from_frame.read(slice(None)), traffic.read(slice(None)), rtol=1e-6)
    np.testing.assert_array_equal(from_frame.timestamps, traffic.timestamps)
    assert "3 matrices of 132 demands" in repr(from_frame)
    for change, words in (
        ({"source": "mars"}, "nodes of b4"),
        ({"rate": -1.0}, "finite rates"),
        ({"timestamp": frame["timestamp"][0], "source": "1", "target": "2"}, "a pair twice"),
    ):
        with pytest.raises(InputError, match=words):
            teal.load_traffic(frame.assign(**change), topology)
    with pytest.raises(InputError, match="columns timestamp"):
        teal.load_traffic(frame.drop(columns="rate"), topology)
