"""A command whole in one file, as a stranger adds one: help, text, table, JSON, wrong input, exit
code."""

from __future__ import annotations

import dataclasses
import json
import math
from operator import itemgetter
from pathlib import Path

import pytest

from teal.app.command import EXIT_GAP, Command, Notify, Outcome
from teal.app.settings import TopologyFileConfig, require
from teal.app.table import Column, Table
from teal.cli import main
from teal.cli.commands import COMMANDS
from teal.formats import topology_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class DegreeConfig(TopologyFileConfig):
    """Count the links of each node."""

    topology: str
    """A network's file or name."""
    least: int = 1
    """Least number of links of a node that is listed."""
    out: Path | None = None
    """File for the list."""

    def __post_init__(self) -> None:
        """Raise InputError for a number out of its range."""
        require(self, "least", "an integer >= 0", self.least >= 0)


def degree_outcome(config: DegreeConfig, notify: Notify) -> Outcome:
    """The nodes with at least so many links."""
    topology = topology_of(config)
    notify("counting")
    degree = {
        name: topology.link_source.tolist().count(node)
        for node, name in enumerate(topology.node_names)
    }
    listed = {name: links for name, links in degree.items() if links >= config.least}
    columns = (Column("node", itemgetter(0)), Column("links", itemgetter(1), str))
    if config.out is not None:
        config.out.write_text(json.dumps(listed))
    return Outcome(
        text=f"{len(listed)} nodes",
        tables=[Table("", columns, list(listed.items()))],
        written="" if config.out is None else f"{config.out}: the list",
        data={
            "nodes": listed,
            "mean": math.nan if not listed else sum(listed.values()) / len(listed),
        },
        exit_code=0 if listed else EXIT_GAP,
    )


@pytest.fixture(autouse=True)
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        COMMANDS, "degree", Command(DegreeConfig, degree_outcome, "look and convert")
    )


def test_a_command_prints_text_table_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "degrees.json"
    assert main(["degree", "--topology", "b4", "--least", "4", "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("6 nodes\n")
    assert printed.out.endswith(f"{out}: the list\n")
    assert printed.out.count("│") > 0
    assert printed.err == "counting\n"
    assert json.loads(out.read_text()) == {"4": 4, "6": 4, "7": 4, "8": 4, "10": 4, "11": 4}


def test_json_has_null_for_a_number_that_is_none_and_the_same_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for form in ([], ["--json"]):
        assert main(["degree", "--topology", "b4", "--least", "9", "--quiet", *form]) == EXIT_GAP
    printed = capsys.readouterr()
    assert json.loads(printed.out.splitlines()[-1]) == {"nodes": {}, "mean": None}
    assert printed.err == ""


def test_its_help_and_its_faults_are_those_of_any_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["degree", "--help"]) == 0
    text = capsys.readouterr().out
    for expected in (
        "Count the links of each node.",
        "--least INT",
        "Least number of links",
        "--json",
    ):
        assert expected in text
    assert main(["degree", "--topology", "b4", "--least", "-1"]) == 2
    assert "--least" in capsys.readouterr().err
    assert main(["degree", "--topology", "b4", "--leest", "1"]) == 2
    assert "--least" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "  degree " in capsys.readouterr().out
