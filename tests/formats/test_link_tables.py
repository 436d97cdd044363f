"""Networks as tables of links."""

from __future__ import annotations

from pathlib import Path

import pytest

from teal.errors import InputError
from teal.formats import load_topology
from tests.igp_reference import links_of


def test_a_table_of_cables_with_units_members_and_other_names(tmp_path: Path) -> None:
    file = tmp_path / "links.csv"
    file.write_text(
        "A;Z;Speed;delay;metric;members;owner\nfra;ams;2x100G;3.5ms;10;;x\nfra;par;10 Gbit/s;800us;20;3;y\n", "utf-8"
    )
    topology = load_topology(str(file), attributes="source=A,target=Z,capacity=Speed")
    assert links_of(topology) == {
        ("fra", "ams"): (200, 10), ("ams", "fra"): (200, 10), ("fra", "par"): (30, 20), ("par", "fra"): (30, 20),
    }  # fmt: skip
    assert topology.latency.tolist() == [3.5, 3.5, 0.8, 0.8]
    assert "Columns that are not used: owner." in topology.notes
    directed = tmp_path / "directed.csv"
    directed.write_text("source,target,capacity\na,b,10\nb,a,20\n", "utf-8")
    assert links_of(load_topology(str(directed))) == {("a", "b"): (10, None), ("b", "a"): (20, None)}


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
