"""Files of an allocation against its splits: loads added up from the names of links are those of the splits."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from teal.formats.allocations import write_allocation
from teal.network import compute_paths
from teal.objectives import Objective
from teal.problem import Problem
from teal.solvers import pdhg
from teal.solvers.split_table import admit, table_weights
from teal.testing import make_topology

ENTRIES = 8


@pytest.fixture(scope="module")
def solved() -> tuple[Problem, np.ndarray, np.ndarray]:
    """Parallel links, and names with spaces, commas and quotes; splits in the ratios of tables."""
    links = [(0, 1, 4.0), (0, 1, 3.0), (1, 2, 5.0), (0, 2, 2.0)]
    topology = make_topology(links, both=True)
    topology = dataclasses.replace(topology, node_names=("New York", 'a,"b"', "c;d"))
    problem = Problem.create(topology, compute_paths(topology, cache=False), Objective(), np.linspace(1, 9, 6)[None])
    splits = admit(problem, pdhg.solve(problem, gap=1e-4).splits, ENTRIES)
    return problem, splits[0].numpy(), table_weights(splits, ENTRIES)[0].numpy()


def _check_loads(problem: Problem, splits: np.ndarray, loads: Counter[str]) -> None:
    expected = problem.loads(torch.from_numpy(splits)[None])[0].numpy()
    for name, load in zip(problem.topology.link_names(), expected, strict=True):
        assert loads[name] == pytest.approx(load, abs=1e-9)


def test_json_says_for_each_router_what_to_install(
    solved: tuple[Problem, np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    problem, splits, weights = solved
    demand = problem.demand[0].numpy()
    write_allocation(tmp_path / "a.json", problem.topology, problem.paths, demand, splits, weights, {"gap": 0.5})
    data = json.loads((tmp_path / "a.json").read_text())
    assert data["figures"] == {"gap": 0.5}
    assert set(data["routers"]) == set(problem.topology.node_names)
    loads: Counter[str] = Counter()
    for router, demands in data["routers"].items():
        for one in demands:
            assert one["admitted"] + one["shed"] == pytest.approx(one["demand"])
            assert sum(path["weight"] for path in one["paths"]) == (ENTRIES if one["paths"] else 0)
            for path in one["paths"]:
                assert (path["nodes"][0], path["nodes"][-1]) == (router, one["target"])
                assert path["rate"] == pytest.approx(path["split"] * one["demand"])
                assert path["rate"] == pytest.approx(one["admitted"] * path["weight"] / ENTRIES)
                loads.update(dict.fromkeys(path["links"], path["rate"]))
                ends = [link.split("#")[0].split("->") for link in path["links"]]
                assert [pair[0] for pair in ends] == path["nodes"][:-1]
                assert [pair[1] for pair in ends] == path["nodes"][1:]
    _check_loads(problem, splits, loads)
    assert {'New York->a,"b"#1', 'New York->a,"b"#2'} <= set(loads), "parallel links are told apart"


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables_have_a_row_for_each_path_that_carries_traffic(
    solved: tuple[Problem, np.ndarray, np.ndarray], tmp_path: Path, suffix: str
) -> None:
    problem, splits, weights = solved
    file = tmp_path / f"a{suffix}"
    count = write_allocation(file, problem.topology, problem.paths, problem.demand[0].numpy(), splits, weights)
    if suffix == ".csv":
        with file.open() as stream:
            rows = [row | {"links": json.loads(row["links"])} for row in csv.DictReader(stream)]
    else:
        rows = pq.read_table(file).to_pylist()
    assert len(rows) == count == int((splits > 0).sum())
    loads: Counter[str] = Counter()
    for row in rows:
        loads.update({link: float(row["flow"]) for link in row["links"]})
        assert int(row["weight"]) >= 1
    _check_loads(problem, splits, loads)
