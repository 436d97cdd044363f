"""Segment lists as files for routers."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from teal.errors import InputError
from teal.formats.routers import SRGB_BASE, Router, Routers
from teal.formats.segment_lists import read_policies, write_policies
from teal.network import Topology
from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentList, SegmentPolicies
from teal.testing import make_topology
from teal_ip.configuration.policies import configuration, to_json, weights, write_sr_policies
from teal_ip.routing.igp_failures import IgpFailures


def _write(path: Path, document: Any) -> str:
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def _policies() -> tuple[Topology, SegmentPolicies]:
    topology = make_topology(
        [(0, 1, 10), (1, 3, 10), (0, 2, 10), (2, 3, 10), (1, 2, 10)], both=True
    )
    return topology, SegmentPolicies(
        {
            (0, 3): (SegmentList(0.25, (2,)), SegmentList(0.75, ())),
            (1, 0): (SegmentList(1.0, (2,)),),
        }
    )


def test_labels_expanded_again_give_the_same_loads(tmp_path: Path) -> None:
    topology, policies = _policies()
    lists: dict[tuple[int, int], tuple[SegmentList, ...]] = {}
    for one in to_json(topology, policies)["sr-policies"]:
        found = one["candidate-paths"][0]["segment-lists"]
        total = sum(part["weight"] for part in found)
        pair = topology.node_index()[one["headend"]], topology.node_index()[one["endpoint"]]
        lists[pair] = tuple(
            SegmentList(
                part["weight"] / total, tuple(s["label"] - SRGB_BASE for s in part["segments"][:-1])
            )
            for part in found
        )
    dag, pairs, demand = (
        EcmpDag.of(topology, np.ones(10)),
        np.array([[0, 3], [1, 0], [2, 1]]),
        np.array([[4.0, 2, 1]]),
    )
    loads = [
        IgpFailures.of_demands(dag, pairs, demand, one).load
        for one in (policies, SegmentPolicies(lists))
    ]
    np.testing.assert_allclose(loads[0], loads[1], atol=1e-12)
    write_policies(tmp_path / "p.json", topology, policies, {})
    assert read_policies(tmp_path / "p.json", topology).lists == policies.lists


def _routers(vendor: str, *, srgb: tuple[int, ...] = (16_000,) * 4) -> Routers:
    return Routers(
        [
            Router(f"n{n}", (), f"10.0.0.{n}", 10 + n, block, "", vendor)
            for n, block in enumerate(srgb)
        ],
        "routers.csv",
    )


def _one_list_each() -> tuple[Topology, SegmentPolicies]:
    topology, policies = _policies()
    longest = {
        pair: max(lists, key=lambda one: len(one.stops)) for pair, lists in policies.lists.items()
    }
    return topology, SegmentPolicies({pair: (one,) for pair, one in longest.items()})


def test_each_label_is_that_of_the_router_that_reads_it() -> None:
    topology, policies = _one_list_each()
    routers = _routers("", srgb=(16_000, 20_000, 30_000, 40_000))
    found = to_json(topology, policies, routers)["sr-policies"][0]
    assert found["endpoint-address"] == "10.0.0.3"
    stack = [one["label"] for one in found["candidate-paths"][0]["segment-lists"][0]["segments"]]
    assert stack == [16_012, 30_013]  # n0 reads the SID of n2, and n2 that of n3


def test_a_split_is_refused_for_frr_and_has_weights_elsewhere() -> None:
    topology, policies = _policies()
    with pytest.raises(InputError, match=r"splits on n0.*--one-list"):
        configuration(topology, policies, _routers("frr"))
    assert weights((SegmentList(1 / 3, ()), SegmentList(2 / 3, (1,)))) == [333, 667]
    assert configuration(topology, policies, _routers("junos"))["n0"].splitlines() == [
        "set protocols source-packet-routing segment-list to-n3-1 hop-1 label 16012",
        "set protocols source-packet-routing segment-list to-n3-1 hop-2 label 16013",
        "set protocols source-packet-routing segment-list to-n3-2 hop-1 label 16013",
        "set protocols source-packet-routing source-routing-path to-n3 to 10.0.0.3",
        "set protocols source-packet-routing source-routing-path to-n3 color 100",
        "set protocols source-packet-routing source-routing-path to-n3 primary to-n3-1 weight 250",
        "set protocols source-packet-routing source-routing-path to-n3 primary to-n3-2 weight 750",
    ]
    assert configuration(topology, policies, _routers("iosxr"))["n0"].splitlines() == [
        "segment-routing",
        " traffic-eng",
        "  segment-list to-n3-1",
        "   index 10 mpls label 16012",
        "   index 20 mpls label 16013",
        "  !",
        "  segment-list to-n3-2",
        "   index 10 mpls label 16013",
        "  !",
        "  policy to-n3",
        "   color 100 end-point ipv4 10.0.0.3",
        "   candidate-paths",
        "    preference 100",
        "     explicit segment-list to-n3-1",
        "      weight 250",
        "     !",
        "     explicit segment-list to-n3-2",
        "      weight 750",
        "     !",
        "    !",
        "   !",
        "  !",
        " !",
        "!",
    ]


def test_transit_policies_have_autoroute_on_iosxr_and_are_refused_elsewhere(tmp_path: Path) -> None:
    topology, policies = _policies()
    transit = SegmentPolicies(policies.lists, is_transit=True)
    assert to_json(topology, transit)["sr-policies"][0]["steers"] == "all traffic to the endpoint"
    lines = configuration(topology, transit, _routers("iosxr"))["n1"].splitlines()
    place = lines.index("  policy to-n0")
    assert lines[place : place + 8] == [
        "  policy to-n0",
        "   color 100 end-point ipv4 10.0.0.0",
        "   autoroute",
        "    force-sr-include",
        "    include ipv4 10.0.0.0/32",
        "   !",
        "   candidate-paths",
        "    preference 100",
    ]
    for vendor in ("junos", "frr"):
        with pytest.raises(InputError, match="IOS-XR"):
            configuration(
                topology,
                SegmentPolicies(_one_list_each()[1].lists, is_transit=True),
                _routers(vendor),
            )


def test_frr_loads_its_configuration(tmp_path: Path) -> None:
    topology, policies = _one_list_each()
    path = tmp_path / "policies.conf"
    write_sr_policies(path, topology, policies, _routers("frr"))
    text = path.read_text()
    assert re.findall(r"mpls label (\d+)", text) == ["16012", "16013", "16012", "16010"]
    assert "policy color 100 endpoint 10.0.0.3" in text
    if shutil.which("vtysh") is None:
        pytest.skip("needs FRRouting")
    command = ["vtysh", "-C", "--inputfile", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, ""), (
        "vtysh says what it refuses, and ends with 0"
    )
    path.write_text(text.replace("mpls label", "mpls lable"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Unknown command" in done.stdout + done.stderr


def test_what_a_policy_needs_and_the_table_lacks_is_named(tmp_path: Path) -> None:
    topology, policies = _one_list_each()
    some = Routers([Router(f"n{n}", (), f"10.0.0.{n}", n) for n in (0, 1, 3)], "routers.csv")
    for name in ("x.sr-policy.json", "x.conf"):
        with pytest.raises(InputError, match=r"routers\.csv: sid: no value for n2"):
            write_sr_policies(tmp_path / name, topology, policies, some)
    without = Routers(
        [Router(f"n{n}", (), "10.0.0.1" if n == 3 else "", n) for n in range(4)], "routers.csv"
    )
    with pytest.raises(InputError, match=r"routers\.csv: loopback: no value for n0, n1, n2"):
        write_sr_policies(tmp_path / "x.conf", topology, policies, without)
    with pytest.raises(InputError, match="--routers"):
        write_sr_policies(tmp_path / "x.conf", topology, policies)


def test_names_are_one_word_and_labels_of_adjacencies_stay_below_the_block() -> None:
    topology, policies = _one_list_each()
    named = dataclasses.replace(topology, node_names=("New York", "n1", "n2", "Zürich; !"))
    routers = Routers(
        [Router(name, (), f"10.0.0.{n}", n) for n, name in enumerate(named.node_names)],
        "routers.csv",
    )
    text = configuration(named, policies, routers)["New York"]
    assert "   name to-Z_rich____3" in text.splitlines()
    alike = dataclasses.replace(topology, node_names=("a", "b c", "b_c_1", "b;c"))
    routers = Routers(
        [Router(name, (), f"10.0.0.{n}", n) for n, name in enumerate(alike.node_names)],
        "routers.csv",
    )
    every = SegmentPolicies({(0, target): (SegmentList(1.0, ()),) for target in (1, 2, 3)})
    words = re.findall(r"^   name (.*)$", configuration(alike, every, routers)["a"], re.M)
    assert words == ["to-b_c_1_", "to-b_c_1", "to-b_c_3"]
    lists = SegmentPolicies({(0, 3): (SegmentList(1.0, (1, 3), (0, 1)),)})
    assert "mpls label 15000" in configuration(topology, lists, _routers("frr"))["n0"]
    with pytest.raises(InputError, match="a global block contains the adjacency label"):
        configuration(topology, lists, _routers("frr", srgb=(15_000,) * 4))


def test_faulty_files_are_refused(tmp_path: Path) -> None:
    topology, _ = _policies()
    policy = {"source": "n0", "target": "n3", "lists": [{"share": 0.5, "segments": ["n3"]}]}
    for change, message in (
        ({}, "shares that sum to 1"),
        ({"source": "n9"}, "a node of"),
        ({"lists": [{"share": 1, "segments": ["n2"]}]}, "ends at n3"),
        ({"lists": []}, "lists"),
    ):
        with pytest.raises(InputError, match=message):
            read_policies(
                Path(
                    _write(tmp_path / "p.json", {"format": 1, "policies": [{**policy, **change}]})
                ),
                topology,
            )


def test_a_share_of_next_to_nothing_has_the_least_weight_that_routers_take() -> None:
    assert weights((SegmentList(1 - 1e-4, ()), SegmentList(1e-4, (1,)))) == [1000, 1]


def test_the_label_of_an_adjacency_is_not_the_first_of_a_block() -> None:
    """Links 0 and 1 have the labels 15000 and 15001."""
    topology, _ = _policies()
    lists = SegmentPolicies({(0, 3): (SegmentList(1.0, (1, 3), (0, 1)),)})
    assert (
        "mpls label 15001"
        in configuration(topology, lists, _routers("frr", srgb=(15_002,) * 4))["n0"]
    )
    with pytest.raises(InputError, match="adjacency label 15001"):
        configuration(topology, lists, _routers("frr", srgb=(15_001,) * 4))
