"""Networks that are written and read back, as YANG data and as tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from teal.formats import load_topology, load_traffic, save_topology
from teal.network import Topology
from teal.testing import make_topology


@pytest.mark.parametrize("name", ["net.rfc8345.json", "net.csv", "net.json"])
def test_what_is_written_is_read_back(tmp_path: Path, name: str) -> None:
    topology = make_topology([(0, 1, 10), (1, 0, 10), (1, 2, 2.5), (2, 1, 2.5), (2, 1, 2.5), (1, 2, 2.5)], latency=3.25)
    topology = Topology(**{**vars(topology), "metric": np.array([1, 2, 3, 4, 5, 6])})
    save_topology(tmp_path / name, topology)
    again = load_topology(str(tmp_path / name))
    assert again.node_names == topology.node_names
    for field in ("link_source", "link_target", "capacity", "latency", "metric"):
        np.testing.assert_allclose(getattr(again, field), getattr(topology, field), rtol=1e-6)


def test_a_table_of_demands_without_times_is_one_matrix(tmp_path: Path) -> None:
    file = tmp_path / "demands.csv"
    file.write_text("source,target,rate\nn0,n1,3\nn1,n2,4\n", encoding="utf-8")
    traffic = load_traffic(str(file), make_topology([(0, 1, 10), (1, 2, 10)], both=True))
    assert traffic.num_matrices == 1
    assert traffic.read([0]).tolist() == [[3, 4]]
