"""Answers of Prometheus to range queries: the same counters as a table, and what is not said is
named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from teal.errors import InputError
from teal.testing import make_topology
from teal_ip.readings.files import load_counters


def _answer(name: str, values: dict[tuple[str, str], list[float]]) -> dict[str, Any]:
    result = [
        {
            "metric": {"__name__": name, "instance": f"{router}:9116", "ifName": interface},
            "values": [[1_704_067_200 + 300 * i, str(v)] for i, v in enumerate(counts)],
        }
        for (router, interface), counts in values.items()
    ]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def test_counters_become_rates_of_links_and_external_interfaces(tmp_path: Path) -> None:
    topology = make_topology([(0, 1, 10.0)], both=True)
    a, b = topology.node_names
    per_gbps = 300 * 1e9 / 8  # bytes in an interval
    sent = {
        (a, b): [0, 2 * per_gbps, 5 * per_gbps],
        (b, "ext"): [7, 7 + 2 * per_gbps, 7 + 5 * per_gbps],
    }
    received = {
        (b, a): [9, 9 + 2 * per_gbps, 9 + 5 * per_gbps],
        (a, "ext"): [0, 2 * per_gbps, 5 * per_gbps],
    }
    file = tmp_path / "counters.json"
    file.write_text(json.dumps([_answer("ifHCOutOctets", sent), _answer("ifHCInOctets", received)]))
    counters = load_counters(file, topology)
    np.testing.assert_allclose(counters.sent[:, 0], [2.0, 3.0])
    np.testing.assert_allclose(counters.received[:, 0], [2.0, 3.0])
    np.testing.assert_allclose(counters.ingress[:, 0], [2.0, 3.0])
    np.testing.assert_allclose(counters.egress[:, 1], [2.0, 3.0])


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ("{", "range query"),
        ({"data": {"resultType": "vector", "result": []}}, "resultType"),
        ({"data": {"result": []}}, "no series has values"),
        (_answer("", {("a", "b"): [1, 2]}), "direction"),
        ({"data": {"result": [{"metric": {"ifName": "x"}, "values": []}]}}, "instance"),
        ({"other": 1}, "data.result"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, document: Any, field: str) -> None:
    file = tmp_path / "counters.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    with pytest.raises(InputError, match=field):
        load_counters(file, make_topology([(0, 1, 10.0)], both=True))
