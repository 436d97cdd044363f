"""Capacities of an inventory, joined to a network whose file has none."""

from __future__ import annotations

import json
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

import teal
from teal.errors import InputError, InputWarning


def _network(folder: Path, **attributes: object) -> Path:
    """A ring of four nodes with two links between a and b, without capacities."""
    graph = nx.MultiGraph()
    for a, b in (("a", "b"), ("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")):
        graph.add_edge(a, b, metric=10, **attributes)
    file = folder / "net.json"
    file.write_text(json.dumps(nx.node_link_data(graph, edges="links")))
    return file


def _capacities(topology: teal.Topology) -> dict[str, float]:
    return dict(zip(topology.link_names(), topology.capacity.tolist(), strict=True))


def test_a_row_is_a_cable_or_a_direction_where_both_have_one(tmp_path: Path) -> None:
    table = tmp_path / "inventory.csv"
    table.write_text(
        "Source;Target;Capacity (Mbit/s);Delay (ms)\n"
        "a;b;10000;1,5\na;b;40000;2,5\nb;c;100000;\nc;d;5000;\nd;c;6000;\nd;a;7000;\n"
    )
    topology = teal.load_topology(_network(tmp_path), attributes=str(table))
    capacity = _capacities(topology)
    assert [capacity[name] for name in ("a->b#1", "a->b#2", "b->a#1", "b->a#2")] == [10, 40, 10, 40]
    assert (capacity["b->c"], capacity["c->b"]) == (100, 100)
    assert (capacity["c->d"], capacity["d->c"]) == (5, 6)
    latency = dict(zip(topology.link_names(), topology.latency.tolist(), strict=True))
    assert (latency["a->b#1"], latency["b->a#2"], latency["b->c"]) == (1.5, 2.5, 1.0)
    assert not any("assumed" in note for note in topology.notes)


def test_links_without_a_row_are_refused_or_get_the_default(tmp_path: Path) -> None:
    table = tmp_path / "inventory.csv"
    table.write_text("source,target,capacity\na,b,10\nx,y,10\n")
    network = _network(tmp_path)
    with (
        pytest.warns(InputWarning, match="not in the network: x - y"),
        pytest.raises(InputError, match=r"capacity: links without a capacity \(6\): a->d"),
    ):
        teal.load_topology(network, attributes=str(table))
    with pytest.warns(InputWarning, match="x - y"):
        topology = teal.load_topology(network, 3.0, str(table))
    assert np.unique(topology.capacity).tolist() == [3.0, 10.0]
    assert any("6 links have no capacity" in note for note in topology.notes)


def test_a_link_that_is_down_stays_down_and_a_wrong_number_of_rows_is_refused(
    tmp_path: Path,
) -> None:
    table = tmp_path / "inventory.csv"
    network = _network(tmp_path, oper_status="down")
    table.write_text("source,target,capacity\na,b,10\nb,c,10\nc,d,10\nd,a,10\n")
    assert not teal.load_topology(network, attributes=str(table)).capacity.any()
    table.write_text("source,target,capacity\na,b,10\na,b,20\na,b,30\n")
    with pytest.raises(InputError, match="3 rows for 2 parallel links"):
        teal.load_topology(network, attributes=str(table))
    table.write_text("source,target,colour\na,b,red\n")
    with (
        pytest.warns(InputWarning, match="colour"),
        pytest.raises(InputError, match="a column capacity, latency or cost"),
    ):
        teal.load_topology(network, attributes=str(table))
