"""Graphs and frames against files: the same network and the same matrices."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest

import teal
from teal.errors import InputError, InputWarning


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
    with pytest.raises(InputError, match=r"\.rfc8345\.json"):
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
        ({"source": "mars"}, "node of b4"),
        ({"rate": -1.0}, "finite rate"),
        (
            {"timestamp": frame["timestamp"][0], "source": "1", "target": "2"},
            "two rows have the same",
        ),
    ):
        with pytest.raises(InputError, match=words):
            teal.load_traffic(frame.assign(**change), topology)
    with pytest.raises(InputError, match="columns source, target, rate"):
        teal.load_traffic(frame.drop(columns="rate"), topology)


def test_objects_of_every_kind_are_the_same_traffic() -> None:
    topology = teal.load_topology("b4")
    traffic = teal.load_traffic("gravity:seed=0,count=3,load=2", topology)
    rates, nodes = traffic.read(slice(None)), topology.num_nodes
    frame = traffic.to_frame(topology)
    again = teal.load_traffic(frame, topology)
    np.testing.assert_array_equal(again.read(slice(None)), rates)
    np.testing.assert_array_equal(again.timestamps, traffic.timestamps)
    cube = np.zeros((3, nodes, nodes))
    cube[:, traffic.pairs[:, 0], traffic.pairs[:, 1]] = rates
    one = frame.iloc[0]
    square = pd.DataFrame(cube[0], index=topology.node_names, columns=topology.node_names)
    table = one.rename("rate").reset_index()
    for value, expected in (
        (cube, rates),
        (rates, rates),
        (cube[0], rates[:1]),
        (square, rates[:1]),
        (one, rates[:1]),
        (one.to_dict(), rates[:1]),
        (table, rates[:1]),
    ):
        np.testing.assert_array_equal(
            teal.load_traffic(value, topology).read(slice(None)), expected
        )


def test_a_frame_of_links_and_a_graph_of_networkx_come_back() -> None:
    topology = teal.load_topology("b4")
    links = topology.to_frame().assign(capacity=lambda frame: frame.capacity.map("{}G".format))
    for again in (teal.load_topology(links), teal.load_topology(topology.to_networkx())):
        order = [topology.node_names.index(name) for name in again.node_names]
        ends = {
            (order[s], order[t], c)
            for s, t, c in zip(again.link_source, again.link_target, again.capacity, strict=True)
        }
        assert ends == set(
            zip(topology.link_source, topology.link_target, topology.capacity, strict=True)
        )
    assert teal.load_topology(
        links.rename(columns={"capacity": "speed"}), attributes={"capacity": "speed"}
    ).num_links


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros((3, 4)), r"\(12, 12\)"),
        (np.eye(12), "a demand of 1 to itself"),
        ({("1", "mars"): 1.0}, "mars"),
        ({"1": 1.0}, "pairs of names"),
        (pd.Series([1.0]), "no pairs of node names"),
        (pd.DataFrame({"x": [1.0]}), "source, target, rate"),
        (3.0, "a file or name"),
    ],
)
def test_objects_that_are_no_traffic_are_refused(value: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        teal.load_traffic(value, teal.load_topology("b4"))


def test_an_objective_may_be_a_name_and_a_wrong_one_is_named() -> None:
    topology = teal.load_topology("b4")
    paths = teal.compute_paths(topology)
    assert (
        teal.Problem.create(topology, paths, "total_flow", np.ones(132)).objective
        == teal.Objective()
    )
    with pytest.raises(InputError, match="total_flow"):
        teal.Problem.create(topology, paths, "total_flows", np.ones(132))
    with pytest.raises(InputError, match="a networkx graph or a pandas frame"):
        teal.load_topology(3)


def test_a_frame_is_read_by_the_rules_of_a_table(tmp_path: Path) -> None:
    """Units, decimal commas, other names of the time, classes, endpoints: the same matrices as from
    the file."""
    topology = teal.load_topology("b4")
    times = ["2026-01-01T00:00:00", "2026-01-01T00:00:00", "2026-01-01T00:05:00"]
    ends = {"Source": ["1", "1", "2"], "TARGET": ["2", "3", "3"]}
    for columns in (
        {"time": times, **ends, "rate (Mbit/s)": [500.0, 250.0, 125.0]},
        {"Timestamp": times, **ends, "rate": ["0,5", "0,25", "0,125"]},
        {"datetime": pd.to_datetime(times), **ends, "rate": [0.5, 0.25, 0.125]},
        {
            "time": times,
            **ends,
            "rate": pd.array([0.5, 0.25, 0.125], dtype="Float64"),
            "endpoint": ["x", "y", "z"],
        },
    ):
        frame = pd.DataFrame(columns)
        separator = ";" if pd.api.types.is_string_dtype(frame.dtypes.iloc[-1]) else ","
        frame.to_csv(tmp_path / "t.csv", index=False, sep=separator)
        for source in (frame, tmp_path / "t.csv"):
            traffic = teal.load_traffic(source, topology)
            rates = traffic.read(slice(None))
            assert [str(one) for one in traffic.timestamps] == [times[0], times[2]]
            np.testing.assert_allclose(sorted(rates.sum(1)), [0.125, 0.75])
    classes = pd.DataFrame({**ends, "rate": [1.0, 2.0, 3.0], "class": ["gold", "x", "gold"]})
    found = teal.load_traffic(classes, topology, class_order=["x", "gold"])
    assert found.classes is not None
    assert found.classes.names == ("x", "gold")


def test_a_column_of_traffic_that_is_not_used_is_named() -> None:
    topology = teal.load_topology("b4")
    frame = pd.DataFrame({"source": ["1"], "target": ["2"], "rate": [1.0], "priority": [3]})
    with pytest.warns(InputWarning, match="unused columns: priority"):
        teal.load_traffic(frame, topology)


def test_polls_at_different_seconds_are_named() -> None:
    topology = teal.load_topology("b4")
    seconds = [1, 2, 3, 301, 302, 303]
    frame = pd.DataFrame(
        {
            "time": [1_767_225_600 + s for s in seconds],
            "source": ["1", "2", "3"] * 2,
            "target": ["4"] * 6,
            "rate": 5.0,
        }
    )
    with pytest.warns(InputWarning, match="of the demands have a row at each"):
        teal.load_traffic(frame, topology)
    rounded = frame.assign(time=frame["time"] // 300 * 300)
    np.testing.assert_allclose(teal.load_traffic(rounded, topology).read(slice(None)).sum(1), 15)


def test_names_of_levels_and_axes_say_what_is_a_source() -> None:
    topology = teal.load_topology("b4")
    frame = pd.DataFrame({"source": ["1", "2"], "target": ["4", "4"], "rate": [5.0, 3.0]})
    expected = teal.load_traffic(frame, topology).read(slice(None))
    square = frame.pivot(index="target", columns="source", values="rate")
    series = frame.set_index(["target", "source"])["rate"]
    for value in (square, square.T, series, frame.set_index(["source", "target"])):
        np.testing.assert_array_equal(
            teal.load_traffic(value, topology).read(slice(None)), expected
        )
    half_named = series.rename_axis(["target", None])
    with pytest.raises(InputError, match="levels named source and target"):
        teal.load_traffic(half_named, topology)
