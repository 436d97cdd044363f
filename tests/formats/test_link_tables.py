"""Networks as tables of links."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest

import teal
from teal.errors import InputError
from teal.formats import load_topology
from tests.igp_reference import links_of


def test_a_table_of_cables_with_units_members_and_other_names(tmp_path: Path) -> None:
    file = tmp_path / "links.csv"
    file.write_text(
        "A;Z;Speed;delay;metric;members;owner\nfra;ams;2x100G;3.5ms;10;;x\nfra;par;10 Gbit/s;800us;20;3;y\n",
        "utf-8",
    )
    topology = load_topology(str(file), attributes="source=A,target=Z,capacity=Speed")
    assert links_of(topology) == {
        ("fra", "ams"): (200, 10),
        ("ams", "fra"): (200, 10),
        ("fra", "par"): (30, 20),
        ("par", "fra"): (30, 20),
    }
    assert topology.latency.tolist() == [3.5, 3.5, 0.8, 0.8]
    assert "Unused columns: owner." in topology.notes
    directed = tmp_path / "directed.csv"
    directed.write_text("source,target,capacity\na,b,10\nb,a,20\n", "utf-8")
    assert links_of(load_topology(str(directed))) == {
        ("a", "b"): (10, None),
        ("b", "a"): (20, None),
    }


def _ring(tmp_path: Path, lines: list[str]) -> tuple[int, float, str]:
    """Links, capacity and warnings of a table of 16 directions of a ring, lines of which are
    others."""
    rows = [f"n{a},n{b},10" for n in range(8) for a, b in ((n, (n + 1) % 8), ((n + 1) % 8, n))]
    file = tmp_path / "links.csv"
    file.write_text("\n".join(["source,target,capacity", *lines, *rows[len(lines) :]]), "utf-8")
    topology = load_topology(str(file))
    assert not topology.one_way_links() or "one direction of a link" in " ".join(topology.notes)
    return (
        topology.num_links,
        topology.capacity.sum(),
        " ".join(n for n in topology.notes if n.startswith("Warning: ")),
    )


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], ()),
        ([""], ("line 3 (n1 -> n0)",)),
        (["n0,n2,10"], ("line 2 (n0 -> n2)", "line 3 (n1 -> n0)")),
        (["n0,n1,10", "N1,n0,10"], ("line 2 (n0 -> n1)", "line 3 (N1 -> n0)", "'n1' and 'N1'")),
        (
            ["n0,n1,10", "n1,n0,10", "n0,n1,10"],
            ("line 4 and line 2", "line 4 (n0 -> n1)", "line 5 (n2 -> n1)"),
        ),
    ],
)
def test_one_odd_row_of_directions_is_named_and_doubles_nothing(
    tmp_path: Path, lines: list[str], expected: tuple[str, ...]
) -> None:
    links, capacity, warnings = _ring(tmp_path, lines)
    assert links == 16 - (lines == [""])
    assert capacity == 10 * links
    assert [text for text in expected if text not in warnings] == []
    assert bool(warnings) == bool(expected)


def test_two_rows_of_one_cable_among_cables_are_named(tmp_path: Path) -> None:
    file = tmp_path / "links.csv"
    file.write_text("source,target,capacity\na,b,10\nb,c,10\nc,d,10\nb,a,10\n", "utf-8")
    topology = load_topology(str(file))
    assert topology.num_links == 8
    assert "line 5 (b -> a)" in topology.notes[-1]
    assert topology.notes[-1].startswith("Warning: ")


@pytest.mark.parametrize(
    ("names", "is_alike"),
    [
        ("ber1 berl", True),
        ("Zürich Zurich", True),
        ("pop_1 pop-1", True),
        ("N0 NO", True),
        ("IT LT", False),
        ("r1-1 r11", False),
        ("n10 n1", False),
    ],
)
def test_names_that_look_alike(tmp_path: Path, names: str, is_alike: bool) -> None:
    a, b = names.split()
    file = tmp_path / "links.csv"
    file.write_text(f"source,target,capacity\n{a},x,10\nx,{b},10\n", "utf-8")
    assert (f"{a!r} and {b!r}" in " ".join(load_topology(str(file)).notes)) == is_alike


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source,target,capacity\na,b,ten\n", "line 2: capacity"),
        ("source,capacity\na,1\n", "target"),
        ("source,target,capacity\n", "a row for each link"),
        ("source,target,capacity,metric\na,b,1,0\n", "metric"),
        ("source,target,capacity,delay\na,b,1,3 weeks\n", "a delay"),
    ],
)
def test_faults_of_a_table_are_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "links.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_topology(str(file))


def test_a_row_a_circuit_may_have_a_metric_for_each_direction(tmp_path: Path) -> None:
    path = tmp_path / "circuits.csv"
    path.write_text("A;B;Speed;Metric A-Z;Metric Z-A\nx;y;10G;10;30\nx;y;10G;20;\ny;z;1G;5;7\n")
    names = "source=A,target=B,capacity=Speed,metric=Metric A-Z,metric_back=Metric Z-A"
    topology = load_topology(path, attributes=names)
    assert topology.link_names() == ["x->y#1", "y->x#1", "x->y#2", "y->x#2", "y->z", "z->y"]
    assert topology.metric is not None
    assert topology.metric.tolist() == [10, 30, 20, 20, 5, 7]
    path.write_text("source,target,capacity,metric_az,metric_za\nx,y,1,10,30\ny,z,1,5,7\n")
    metric = load_topology(path).metric
    assert metric is not None
    assert metric.tolist() == [10, 30, 5, 7]
    path.write_text("source,target,capacity,metric_az,metric_za\nx,y,1,10,30\ny,x,1,30,10\n")
    with pytest.raises(
        InputError, match="metric_za: the column has metrics of the reverse direction"
    ):
        load_topology(path)
    path.write_text("source,target,capacity,metric_az,metric_za\nx,y,1,10,0.5\n")
    with pytest.raises(InputError, match="line 2: metric: expected an integer"):
        load_topology(path)


@pytest.mark.parametrize(
    ("name", "down", "up"),
    [
        ("status", "down", "up"),
        ("oper_status", "lower-layer-down", "up"),
        ("operStatus", 2, 1),
        ("up", False, True),
        ("up", np.False_, np.True_),
        ("enabled", "no", "yes"),
        ("failed", 1, 0),
        ("failed", "true", "false"),
        ("is-down", "yes", "no"),
        ("shutdown", True, False),
        ("admin-state", "out of service", "in service"),
        ("status", "planned", "connected"),
        ("status", "administratively down", "up"),
        ("maintenance", True, False),
    ],
)
def test_a_link_with_any_sign_of_being_down_is_down(name: str, down: object, up: object) -> None:
    """In a frame and in a graph; beside it another attribute says that the link is active."""
    for value, capacity in ((down, 0.0), (up, 10.0)):
        links = [{"source": "a", "target": "b", "capacity": 10.0, "state": "active", name: value}]
        links.append({"source": "b", "target": "c", "capacity": 10.0, "state": "active", name: up})
        frame = pd.DataFrame(links)
        graph = nx.Graph()
        for link in links:
            graph.add_edge(link["source"], link["target"], **link)
        for network in (frame, graph):
            topology = teal.load_topology(network)
            of_link = dict(zip(topology.link_names(), topology.capacity.tolist(), strict=True))
            assert (of_link["a->b"], of_link["b->c"]) == (capacity, 10.0)


def test_columns_may_be_separated_by_tabs_in_a_tsv_file(tmp_path: Path) -> None:
    links, demands = tmp_path / "links.tsv", tmp_path / "demands.tsv"
    links.write_text("source\ttarget\tcapacity\na\tb\t10\nb\ta\t20\n")
    demands.write_text("source\ttarget\trate\na\tb\t4\n")
    topology = teal.load_topology(links)
    traffic = teal.load_traffic(str(demands), topology)
    assert dict(zip(topology.link_names(), topology.capacity.tolist(), strict=True)) == {
        "a->b": 10.0,
        "b->a": 20.0,
    }
    assert traffic.read([0]).tolist() == [[4.0]]
