"""Changes of metrics as files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from teal.errors import InputError
from teal.testing import make_topology
from teal_ip.metrics.changes import (
    MetricChange,
    frr_lines,
    load_changes,
    read_changes,
    write_changes,
)
from teal_ip.readings.files import interface_names

CHANGES = [MetricChange("a->b", "a", "b", 1, 7, 0.5), MetricChange("c->a", "c", "a", 2, 3, 0.25)]


@pytest.mark.parametrize("suffix", [".json", ".csv", ".CSV"])
def test_changes_are_read_as_they_were_written(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"changes{suffix}"
    write_changes(path, CHANGES, {"changes": [dataclasses.asdict(one) for one in CHANGES]})
    assert read_changes(path, ["b->a", "a->b", "c->a"]) == {1: 7, 2: 3}
    assert load_changes(path, ["a->b", "c->a"]) == CHANGES
    with pytest.raises(InputError, match="link c->a: the network has no link of this name"):
        read_changes(path, ["a->b"])


def test_no_changes_are_a_table_without_rows(tmp_path: Path) -> None:
    write_changes(tmp_path / "none.csv", [], {})
    assert read_changes(tmp_path / "none.csv", ["a->b"]) == {}


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("[1, 2]")
    with pytest.raises(InputError, match="no metric changes can be read"):
        read_changes(tmp_path / "other.json", [])


def test_lines_of_frr_name_the_interface_and_the_metric() -> None:
    lines = frr_lines(CHANGES).splitlines()
    assert lines[2:4] == ["interface to-b", " isis metric 7"]


def test_lines_of_frr_have_the_interfaces_of_the_table(tmp_path: Path) -> None:
    topology = make_topology([(0, 1, 10), (0, 1, 10), (1, 2, 10)], both=True)
    table = tmp_path / "interfaces.csv"
    table.write_text(
        "router,interface,neighbour,number\nn0,et-0,n1,1\nn0,et-1,n1,2\nn1,xe-0,n0,1\nn1,xe-1,n0,2\nn1,ae3,n2,\nn0,up,,\n"
    )
    names = interface_names(table, topology)
    assert names == {
        "n0->n1#1": ["et-0"],
        "n0->n1#2": ["et-1"],
        "n1->n0#1": ["xe-0"],
        "n1->n0#2": ["xe-1"],
        "n1->n2": ["ae3"],
    }
    changes = [
        MetricChange("n0->n1#2", "n0", "n1", 1, 7, 0.5),
        MetricChange("n2->n1", "n2", "n1", 2, 3, 0.25),
    ]
    assert frr_lines(changes[:1], names).splitlines()[2:] == [
        "interface et-1",
        " isis metric 7",
        "exit",
    ]
    with pytest.raises(InputError, match="--interfaces: n2->n1"):
        frr_lines(changes, names)
