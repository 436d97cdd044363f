"""Flexible algorithms as configuration: the vendors' published examples, labels, and what a table
or vendor lacks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from teal.cli import main
from teal.errors import InputError
from teal.formats import save_topology
from teal.formats.routers import Router, Routers
from teal.network import Topology
from teal.network.flex_algo import FlexAlgo
from teal.network.segment_lists import SegmentList, SegmentPolicies
from teal.testing import make_topology
from teal_ip.configuration.algorithms import algorithm_config
from teal_ip.configuration.policies import to_json

DELAY, TE = FlexAlgo.parse("128:metric=delay,exclude=red+blue"), FlexAlgo.parse("129:metric=te")
PLAIN = FlexAlgo.parse("130:include-any=red")


def _network() -> tuple[Topology, dict[str, list[str]]]:
    """n0 - n1 (red, TE metric 20, 1.5 ms) and n1 - n2 (blue and core); n1 has two links, the others
    one."""
    topology = dataclasses.replace(
        make_topology([(0, 1, 10.0), (1, 2, 10.0)], both=True),
        latency=np.array([1.5, 2.0] * 2),
        te_metric=np.array([20, 0, 20, 0]),
        affinities=(frozenset({"red"}), frozenset({"blue", "core"})) * 2,
    )
    return topology, {name: [f"if-{name[1]}{name[-1]}"] for name in topology.link_names()}


def _routers(vendor: str, loopback: str = "10.0.0.{}") -> Routers:
    sids = [((128, 100 + n), (129, 200 + n), (130, 300 + n)) for n in range(3)]
    return Routers(
        [
            Router(f"n{n}", (), loopback.format(n), n, vendor=vendor, algorithm_sids=sids[n])
            for n in range(3)
        ]
    )


def test_iosxr_has_bits_definitions_segments_and_what_its_interfaces_advertise() -> None:
    topology, interfaces = _network()
    texts = algorithm_config(topology, [DELAY, TE], _routers("iosxr"), interfaces)
    assert texts["n0"].splitlines() == [
        "router isis 1",
        " affinity-map blue bit-position 0",
        " affinity-map core bit-position 1",
        " affinity-map red bit-position 2",
        " flex-algo 128",
        "  metric-type delay",
        "  affinity exclude-any blue red",
        "  advertise-definition",
        " !",
        " flex-algo 129",
        "  metric-type te",
        "  advertise-definition",
        " !",
        " interface Loopback0",
        "  address-family ipv4 unicast",
        "   prefix-sid algorithm 128 index 100",
        "   prefix-sid algorithm 129 index 200",
        "  !",
        " !",
        " interface if-01",
        "  affinity flex-algo red",
        "  address-family ipv4 unicast",
        "   te-metric flex-algo 20",
        "  !",
        " !",
        "!",
        "performance-measurement",
        " interface if-01",
        "  delay-measurement",
        "   advertise-delay 1500",
        "  !",
        " !",
        "!",
    ]
    assert ["advertise-definition" in text for text in texts.values()] == [True, True, False], (
        "n1, and the first other"
    )
    assert "te-metric" not in texts["n2"], "its link has none"
    assert (
        "performance" not in algorithm_config(topology, [TE], _routers("iosxr"), interfaces)["n0"]
    )
    six = algorithm_config(topology, [PLAIN], _routers("iosxr", "fd00::{}"), interfaces)["n0"]
    assert "address-family ipv6 unicast" in six


def test_junos_and_frr_have_the_same_in_their_forms() -> None:
    topology, interfaces = _network()
    prefix = "set policy-options policy-statement FLEX-ALGO term node"
    assert algorithm_config(topology, [DELAY], _routers("junos"), interfaces)[
        "n0"
    ].splitlines() == [
        "set protocols mpls admin-groups blue 0",
        "set protocols mpls admin-groups core 1",
        "set protocols mpls admin-groups red 2",
        f"{prefix} from route-filter 10.0.0.0/32 exact",
        "set routing-options flex-algorithm 128 definition metric-type delay-metric",
        "set routing-options flex-algorithm 128 definition admin-group exclude blue",
        "set routing-options flex-algorithm 128 definition admin-group exclude red",
        f"{prefix} then prefix-segment algorithm 128 index 100",
        f"{prefix} then prefix-segment algorithm 128 node-segment",
        "set protocols isis source-packet-routing flex-algorithm 128",
        f"{prefix} then accept",
        "set protocols isis export FLEX-ALGO",
        "set protocols isis traffic-engineering advertisement always",
        "set protocols mpls interface if-01 admin-group red",
        "set protocols isis interface if-01 delay-measurement",
    ]
    te = algorithm_config(topology, [TE], _routers("junos"), interfaces)["n1"]
    assert "set protocols isis interface if-10 level 2 te-metric 20" in te.splitlines()
    assert "if-12 level" not in te
    assert algorithm_config(topology, [PLAIN], _routers(""), interfaces)["n0"].splitlines() == [
        "affinity-map blue bit-position 0",
        "affinity-map core bit-position 1",
        "affinity-map red bit-position 2",
        "interface if-01",
        " link-params",
        "  affinity red",
        " exit-link-params",
        "exit",
        "router isis 1",
        " flex-algo 130",
        "  dataplane sr-mpls",
        "  affinity include-any red",
        "  advertise-definition",
        " exit",
        " segment-routing prefix 10.0.0.0/32 algorithm 130 index 300",
        "exit",
    ]


def test_bits_of_a_link_state_database_are_kept() -> None:
    topology, interfaces = _network()
    names = (frozenset({"bit0", "red"}), frozenset({"bit7", "blue"})) * 2
    text = algorithm_config(
        dataclasses.replace(topology, affinities=names), [TE], _routers("iosxr"), interfaces
    )["n0"]
    found = [line.split()[1::2] for line in text.splitlines() if "affinity-map" in line]
    assert found == [["bit0", "0"], ["bit7", "7"], ["blue", "1"], ["red", "2"]]
    alike = (frozenset({"bit5"}), frozenset({"bit05"})) * 2
    text = algorithm_config(
        dataclasses.replace(topology, affinities=alike), [TE], _routers("iosxr"), interfaces
    )["n0"]
    found = [line.split()[1::2] for line in text.splitlines() if "affinity-map" in line]
    assert found == [["bit05", "0"], ["bit5", "5"]]
    many = dataclasses.replace(topology, affinities=(frozenset(f"a{n}" for n in range(33)),) * 4)
    with pytest.raises(InputError, match="bits from 0 to 31 on Junos routers"):
        algorithm_config(many, [TE], _routers("junos"), interfaces)
    with pytest.raises(InputError, match="bits from 0 to 255"):
        algorithm_config(
            dataclasses.replace(topology, affinities=(frozenset({"bit300"}),) * 4),
            [TE],
            _routers("iosxr"),
            interfaces,
        )


def test_what_a_vendor_or_a_table_lacks_is_named() -> None:
    topology, interfaces = _network()
    with pytest.raises(InputError, match="n0 is an FRR router, which supports metric igp only"):
        algorithm_config(topology, [DELAY], _routers("frr"), interfaces)
    with pytest.raises(InputError, match="no interface for the links n1->n0"):
        algorithm_config(topology, [TE], _routers("iosxr"), {**interfaces, "n1->n0": []})
    with pytest.raises(InputError, match=r"sid_131: no value for n0, n1, n2"):
        algorithm_config(topology, [FlexAlgo(131)], _routers("junos"), interfaces)
    with pytest.raises(
        InputError, match=r"affinities of the links \(blue, core, red\), found green"
    ):
        algorithm_config(
            topology, [FlexAlgo(130, exclude=frozenset({"green"}))], _routers("junos"), interfaces
        )
    large = Routers(
        [
            dataclasses.replace(one, algorithm_sids=((130, 65_530 + n * 5),))
            for n, one in enumerate(_routers("frr").values())
        ]
    )
    with pytest.raises(InputError, match="n2: expected SIDs up to 65535 on an FRR router"):
        algorithm_config(topology, [PLAIN], large, interfaces)


def test_labels_of_lists_are_those_of_the_algorithm(tmp_path: Path) -> None:
    topology, _ = _network()
    policies = SegmentPolicies({(0, 2): (SegmentList(1.0, (1,)),)}, algorithm=TE)
    for routers, labels in ((_routers("junos"), [16_201, 16_202]), (None, [16_004, 16_005])):
        one = to_json(topology, policies, routers)["sr-policies"][0]
        assert one["algorithm"] == 129
        assert [
            s["label"] for s in one["candidate-paths"][0]["segment-lists"][0]["segments"]
        ] == labels


def test_the_command_writes_all_routers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_topology("net.csv", _network()[0])
    Path("demands.csv").write_text("source,target,rate\nn0,n2,1\n", encoding="utf-8")
    Path("interfaces.csv").write_text(
        "router,interface,neighbour\nn0,a0,n1\nn1,b0,n0\nn1,b1,n2\nn2,c0,n1\n", encoding="utf-8"
    )
    Path("routers.csv").write_text(
        "name,loopback,sid_128,vendor\nn0,10.0.0.1,1,iosxr\nn1,10.0.0.2,2,junos\nn2,10.0.0.3,3,frr\n",
        encoding="utf-8",
    )
    files = "--topology net.csv --interfaces interfaces.csv --routers routers.csv --out x.conf"
    command = f"export {files} --flex-algo 128:include-any=red+core"
    assert main(command.split()) == 0
    text = Path("x.conf").read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if line[:2] in ("! ", "# ")] == [
        "! n0",
        "# n1",
        "! n2",
    ]
    assert "set protocols mpls interface b1 admin-group core" in text
    assert main(command.split()) == 2, "not replaced"
    Path("x.conf").unlink()
    assert main(f"{command} --flex-algo 128".split()) == 2
    assert not Path("x.conf").exists(), "not before all is right"
    assert main(f"export {files} --flex-algo 128:exclude=blue".split()) == 0
    assert "affinity exclude-any blue" in Path("x.conf").read_text(encoding="utf-8")
    for missing in ("--interfaces interfaces.csv", "--routers routers.csv"):
        some = files.replace(missing, "").replace("x.conf", "y.conf")
        assert main(f"export {some} --flex-algo 128:exclude=blue".split()) == 2


def test_definitions_are_advertised_by_the_routers_with_most_links_that_work() -> None:
    """Each of four routers has three links; two of n0 have failed, and so one each of n2 and n3."""
    topology = make_topology(
        [(0, 1, 10.0), (0, 2, 10.0), (0, 3, 10.0), (1, 2, 10.0), (1, 3, 10.0), (2, 3, 10.0)],
        both=True,
    )
    interfaces = {name: [f"if-{name}"] for name in topology.link_names()}
    routers = Routers(
        [
            Router(f"n{n}", (), f"10.0.0.{n}", n, vendor="iosxr", algorithm_sids=((129, 200 + n),))
            for n in range(4)
        ]
    )
    plain = FlexAlgo.parse("129")
    texts = algorithm_config(topology.with_failed_links([1, 2, 7, 8]), [plain], routers, interfaces)
    assert [name for name, text in texts.items() if "advertise-definition" in text] == ["n1", "n2"]
