"""Shared-risk groups from files."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest

import teal
from teal.errors import InputError
from teal.formats.groups import load_groups


def test_three_formats_give_the_same_groups(tmp_path: Path) -> None:
    graph = nx.Graph()
    graph.add_edge("a", "b", capacity=10.0, srlg="duct; bridge")
    graph.add_edge("b", "c", capacity=10.0, srlg="bridge")
    graph.add_edge("a", "c", capacity=10.0)
    nx.write_graphml(graph, tmp_path / "g.graphml")
    topology = teal.load_topology(tmp_path / "g.graphml")
    (tmp_path / "g.csv").write_text("group,source,target\nduct,a,b\nbridge,b,a\nbridge,b,c\n")
    (tmp_path / "g.json").write_text('{"duct": [["a", "b"]], "bridge": [["a", "b"], ["c", "b"]]}')
    expected = {
        "duct": sorted(topology.find_links("a", "b")),
        "bridge": sorted(topology.find_links("a", "b") + topology.find_links("b", "c")),
    }
    for suffix in (".graphml", ".csv", ".json"):
        assert load_groups(tmp_path / f"g{suffix}", topology) == expected


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("g.csv", "group,source,target\nx,a,z\n", "line 2"),
        ("g.csv", "name,source,target\nx,a,b\n", "group, source, target"),
        ("g.csv", "group,source,target\n", "the file has no groups"),
        ("g.json", "[1, 2]", "expected {"),
        ("g.txt", "x", "csv"),
        ("missing.csv", None, "no such file"),
    ],
)
def test_faults_name_file_and_place(
    tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    graph = nx.Graph([("a", "b", {"capacity": 1.0})])
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        load_groups(tmp_path / name, teal.load_topology(graph))
