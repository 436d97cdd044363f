"""Segment lists as files for routers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from teal.errors import InputError
from teal.network import Topology
from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentList, SegmentPolicies, segment_traffic
from teal.pathops.igp_failures import IgpFailures
from teal.routing.list_files import SRGB_BASE, check_depth, read_policies, to_frr, to_json, weights, write_policies
from teal.testing import make_topology


def _write(path: Path, document: Any) -> str:
    path.write_text(json.dumps(document), encoding="utf-8")
    return str(path)


def _policies() -> tuple[Topology, SegmentPolicies]:
    topology = make_topology([(0, 1, 10), (1, 3, 10), (0, 2, 10), (2, 3, 10), (1, 2, 10)], both=True)
    return topology, SegmentPolicies(
        {(0, 3): (SegmentList(0.25, (2,)), SegmentList(0.75, ())), (1, 0): (SegmentList(1.0, (2,)),)}
    )


def test_labels_expanded_again_give_the_same_loads(tmp_path: Path) -> None:
    topology, policies = _policies()
    lists: dict[tuple[int, int], tuple[SegmentList, ...]] = {}
    for one in to_json(topology, policies)["sr-policies"]:
        found = one["candidate-paths"][0]["segment-lists"]
        total = sum(part["weight"] for part in found)
        pair = topology.node_index()[one["headend"]], topology.node_index()[one["endpoint"]]
        lists[pair] = tuple(
            SegmentList(part["weight"] / total, tuple(s["label"] - SRGB_BASE for s in part["segments"][:-1]))
            for part in found
        )
    dag, pairs, demand = EcmpDag.of(topology, np.ones(10)), np.array([[0, 3], [1, 0], [2, 1]]), np.array([[4.0, 2, 1]])
    loads = [
        IgpFailures(dag, *segment_traffic(pairs, demand, one, 4, dag.topology.link_source)).load
        for one in (policies, SegmentPolicies(lists))
    ]
    np.testing.assert_allclose(loads[0], loads[1], atol=1e-12)
    write_policies(tmp_path / "p.json", topology, policies, {})
    assert read_policies(tmp_path / "p.json", topology).lists == policies.lists


def test_frr_prefers_the_list_with_the_largest_share() -> None:
    topology, policies = _policies()
    text = to_frr(topology, policies, 0)
    labels = re.findall(r"index \d+ mpls label (\d+)", text)
    assert [int(label) - SRGB_BASE for label in labels] == [3, 2, 3]
    assert text.index("preference 99") < text.index("preference 98")
    assert weights((SegmentList(1 / 3, ()), SegmentList(2 / 3, (1,)))) == [333, 667]


def test_lists_deeper_than_routers_can_push_and_faulty_files_are_refused(tmp_path: Path) -> None:
    topology, policies = _policies()
    check_depth(_policies()[0], policies, 2, "p")
    with pytest.raises(InputError, match="MSD"):
        check_depth(_policies()[0], policies, 1, "p")
    policy = {"source": "n0", "target": "n3", "lists": [{"share": 0.5, "segments": ["n3"]}]}
    for change, message in (
        ({}, "shares that sum to 1"),
        ({"source": "n9"}, "a node of"),
        ({"lists": [{"share": 1, "segments": ["n2"]}]}, "ends at n3"),
        ({"lists": []}, "lists"),
    ):
        with pytest.raises(InputError, match=message):
            read_policies(
                Path(_write(tmp_path / "p.json", {"format": 1, "policies": [{**policy, **change}]})), topology
            )
