"""The table of routers against a network that calls them otherwise: names, aliases, and what cannot
be right."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("teal_ip", reason="needs the package teal_ip")

import teal
from teal.cli import main
from teal.errors import InputError
from teal.formats.routers import Router, Routers, read_routers
from teal_ip.readings.files import counters_from_frame

TABLE = (
    "name;aliases;system ID;loopback;sid;srgb;site;vendor\n"
    "ams1;edge-a;0000.0000.0001;10.0.0.1/32;1;;Amsterdam;FRR\n"
    "ber1;r2.isp.example;0000.0000.0002;10.0.0.2;2;20000;Berlin;IOS-XR\n"
    "lon1;;0000.0000.0003;2001:db8::3;3;;London;Junos\n"
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "routers.csv"
    path.write_text(TABLE)
    return path


@pytest.fixture
def network(tmp_path: Path) -> Path:
    path = tmp_path / "links.csv"
    path.write_text(
        "source,target,capacity\n0000.0000.0001,0000.0000.0002,10\n0000.0000.0002,LON1,10\n"
    )
    return path


def test_nodes_get_the_names_of_the_table_and_files_may_use_any(
    network: Path, table: Path, tmp_path: Path
) -> None:
    topology = teal.load_topology(network, routers=table)
    assert topology.node_names == ("ams1", "ber1", "lon1")
    index = topology.node_index()
    for name in ("ams1", "edge-a", "0000.0000.0001", "10.0.0.1"):
        assert index[name] == 0
    assert topology.name_of("R2.ISP.example:9116") == "ber1"
    assert topology.name_of("nobody") == "nobody"
    assert (
        topology.find_links("edge-a", "10.0.0.2") == topology.find_links("ams1", "ber1") == [0, 1]
    )
    matrix = tmp_path / "traffic.csv"
    matrix.write_text(
        "time,source,target,rate\n2026-01-01,edge-a,2001:db8::3,4\n2026-01-01,lon1,0000.0000.0001,1\n"
    )
    traffic = teal.load_traffic(str(matrix), topology)
    at = {
        tuple(pair): rate
        for pair, rate in zip(traffic.pairs.tolist(), traffic.read([0])[0].tolist(), strict=True)
    }
    assert (at[0, 2], at[2, 0]) == (4, 1)


def test_a_table_says_what_routers_need(table: Path) -> None:
    routers = read_routers(table)
    assert routers["ber1"] == Router(
        "ber1",
        ("r2.isp.example", "0000.0000.0002", "10.0.0.2"),
        "10.0.0.2",
        2,
        20_000,
        "Berlin",
        "iosxr",
    )
    assert routers["ams1"].loopback == "10.0.0.1"
    assert [one.srgb for one in routers.values()] == [16_000, 20_000, 16_000]
    assert list(routers) == ["ams1", "ber1", "lon1"]


def test_nodes_and_rows_without_a_partner_are_noted(table: Path, tmp_path: Path) -> None:
    path = tmp_path / "more.csv"
    path.write_text("source,target,capacity\nams1,ber1,10\nber1,new,10\n")
    notes = " ".join(teal.load_topology(path, routers=table).notes)
    assert "not in the table of routers: new" in notes
    assert "not in the network: lon1" in notes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("router,loopback\na,10.0.0.1\n", "a column name"),
        ("name,loopback\na,10.0.0.300\n", "line 2: loopback: expected an address"),
        ("name,loopback\n,10.0.0.3\n", "line 2: name"),
        ("name,sid\na,x1\n", "line 2: sid: expected an integer"),
        ("name,sid,srgb\na,90000,1000000\n", "line 2: srgb: the block has labels for SIDs up to"),
        (
            "name,sid,srgb\na,1,16000-23999\nb,8000,\n",
            "line 2: srgb: the block has labels for SIDs up to",
        ),
        ("name,srgb\na,16000-x\n", "line 2: srgb: expected an integer"),
        ("name,srgb\na,-23999\n", "line 2: srgb: expected a label from 16 to"),
        ("name,srgb\na,16000-\n", "line 2: srgb: expected a label from 16 to"),
        ("name,srgb\na,16000-15000\n", "line 2: srgb: expected a label from 16 to"),
        ("name,srgb\na,16000-2000000\n", "line 2: srgb: expected a label from 16 to"),
        (
            "name,sid\na,1\nb,1.0\n",
            "sid 1: two routers or algorithms have this SID: a and b",
        ),
        (
            "name,sid,sid_128\na,1,7\nb,7,8\n",
            "sid 7: two routers or algorithms have this SID: a in algorithm 128",
        ),
        ("name,sid_128\na,1.5\n", "line 2: sid_128: expected an integer"),
        ("name,sid_128,sid 128\na,1,2\n", "sid_128: 2 columns have this name"),
        (
            "name,sid_200,srgb\na,90000,1000000\n",
            "line 2: srgb: the block has labels for SIDs up to",
        ),
        ("name,srgb\na,3\n", "a label from 16 to"),
        ("name,sid,SID\na,1,2\n", "2 columns have this name"),
        ("name,vendor\na,acme\n", "frr, iosxr, junos"),
        ("name,aliases\na,x\nb,X\n", "two routers have this name: a and b"),
        ("name,aliases\na,x\na,y\n", "two rows have the name a"),
        ("name,aliases\n", "a row for each router"),
        ("", "the file is empty"),
    ],
)
def test_a_table_that_cannot_be_right_is_refused_in_one_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "routers.csv"
    path.write_text(text)
    assert main(["topology", "info", "--topology", "b4", "--routers", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert str(path) in error


def test_two_nodes_that_are_one_router_are_refused(network: Path, tmp_path: Path) -> None:
    path = tmp_path / "routers.csv"
    path.write_text("name,aliases\nx,0000.0000.0001 lon1\n")
    with pytest.raises(
        InputError, match=r"x: two nodes of the network are this router: 0000\.0000\.0001 and LON1"
    ):
        teal.load_topology(network, routers=path)
    with pytest.raises(InputError, match="No such file"):
        teal.load_topology(network, routers=tmp_path / "nothing.csv")
    assert Routers([Router("a"), Router("b", ("c",))]).name_of("C") == "b"


def _readings(interfaces: list[tuple[str, str]]) -> pd.DataFrame:
    rows = [
        (time, router, name, way, rate)
        for time in (1_704_067_200, 1_704_067_500)
        for (router, name), rate in zip(
            interfaces, np.arange(1.0, len(interfaces) + 1), strict=True
        )
        for way in ("in", "out")
    ]
    return pd.DataFrame(rows, columns=["time", "router", "interface", "direction", "rate"])


def test_counters_are_those_of_the_routers_by_any_name_and_ignored_interfaces_do_not_count(
    network: Path, table: Path
) -> None:
    topology = teal.load_topology(network, routers=table)
    named = [
        ("ams1", "et-0"),
        ("ams1", "xe-9"),
        ("ber1", "et-0"),
        ("ber1", "et-1"),
        ("lon1", "et-0"),
        ("lon1", "xe-9"),
    ]
    interfaces = pd.DataFrame(
        [
            ("ams1", "et-0", "ber1", ""),
            ("ams1", "xe-9", "", ""),
            ("10.0.0.2", "et-0", "edge-a", ""),
            ("ber1", "et-1", "lon1", ""),
            ("lon1", "et-0", "ber1", ""),
            ("lon1", "xe-9", "", ""),
            ("lon1", "fxp0", "", "yes"),
        ],
        columns=["router", "interface", "neighbour", "ignore"],
    )
    plain = counters_from_frame(_readings(named), topology, "plain", interfaces)
    called = {"ams1": "0000.0000.0001", "ber1": "R2.isp.example:9116", "lon1": "2001:DB8::3"}
    others = [(called[router], name) for router, name in named] + [
        ("lon1", "fxp0"),
        ("ams1", "lo0"),
        ("ber1", "lo7"),
    ]
    found = counters_from_frame(_readings(others), topology, "others", interfaces, ignore=r"lo\d+")
    for name in ("sent", "received", "ingress", "egress"):
        np.testing.assert_array_equal(getattr(found, name), getattr(plain, name))
    assert "3 interfaces ignored" in found.notes
    with pytest.raises(InputError) as raised:
        counters_from_frame(
            _readings([*others, ("ams1", "ge-1.100")]), topology, "others", interfaces
        )
    assert "ge-1.100 of ams1, lo0 of ams1, lo7 of ber1" in str(raised.value)
    pattern = str(raised.value).split("--ignore-interfaces '")[1].split("'")[0]
    again = counters_from_frame(
        _readings([*others, ("ams1", "ge-1.100")]), topology, "others", interfaces, ignore=pattern
    )
    np.testing.assert_array_equal(again.sent, plain.sent)
    with pytest.raises(InputError, match="a regular expression"):
        counters_from_frame(_readings(named), topology, "plain", interfaces, ignore="(")


def test_every_command_with_a_network_takes_the_table(
    network: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "simulate",
                "--topology",
                str(network),
                "--traffic",
                "gravity:seed=0,count=1,load=1",
                "--routers",
                str(table),
                "--json",
                "--quiet",
            ]
        )
        == 0
    )
    links = [one["link"] for one in json.loads(capsys.readouterr().out)["links"]]
    assert links == ["ams1->ber1", "ber1->ams1", "ber1->lon1", "lon1->ber1"]


def test_an_address_has_no_port_without_brackets_and_one_writing(tmp_path: Path) -> None:
    routers = Routers([Router("a", ("fd00::1", "10.0.0.1")), Router("b", ("fd00::2",))])
    for name in ("FD00:0::1", "[fd00::1]:9100", "[fd00::1]", "10.0.0.1:22"):
        assert routers.name_of(name) == "a"
    for name in ("fd00::1:5", "fd00::1:179", "a:b:9100"):
        assert routers.name_of(name) == name
    (tmp_path / "t.csv").write_text("name,loopback,loopbak\n1,fd00::1,x\n2,,\n")
    topology = teal.load_topology("b4", routers=tmp_path / "t.csv")
    assert topology.name_of("fd00::1:5") == "fd00::1:5"
    assert topology.name_of("fd00:0:0::1") == "1"
    assert "unused columns: loopbak" in " ".join(topology.notes)


def test_neighbours_in_counters_may_be_called_by_any_name(network: Path, table: Path) -> None:
    topology = teal.load_topology(network, routers=table)
    plain = [
        ("ams1", "ber1"),
        ("ams1", "up"),
        ("ber1", "ams1"),
        ("ber1", "lon1"),
        ("lon1", "ber1"),
        ("lon1", "up"),
    ]
    other = {"ams1": "10.0.0.1", "ber1": "R2.isp.example", "lon1": "0000.0000.0003"}
    called = [(other[router], other.get(name, name)) for router, name in plain]
    found, expected = (
        counters_from_frame(_readings(one), topology, "counters") for one in (called, plain)
    )
    for name in ("sent", "received", "ingress", "egress"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert np.isfinite(found.sent).all()


def test_aliases_of_routers_outside_the_network_stay_what_they_are(
    table: Path, tmp_path: Path
) -> None:
    """lon1 is in the table alone: its address names no node."""
    path = tmp_path / "two.csv"
    path.write_text("source,target,capacity\nams1,ber1,10\n")
    topology = teal.load_topology(path, routers=table)
    names = ("edge-a", "r2.isp.example", "0000.0000.0003", "2001:db8::3")
    assert [topology.name_of(name) for name in names] == [
        "ams1",
        "ber1",
        "0000.0000.0003",
        "2001:db8::3",
    ]
