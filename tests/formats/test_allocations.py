"""Files of an allocation against its splits: loads added up from the names of links are those of
the splits."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from teal.errors import InputError
from teal.formats.allocations import (
    read_allocation,
    read_splits,
    with_stored_paths,
    write_allocation,
)
from teal.network import compute_paths
from teal.objectives import Objective
from teal.problem import Problem
from teal.solvers import pipeline
from teal.solvers.split_table import feasible_tables, table_weights
from teal.testing import make_topology
from teal_ip.configuration.allocations import Igp, next_hop_groups, sr_policies

ENTRIES = 8


@pytest.fixture(scope="module")
def solved() -> tuple[Problem, np.ndarray, np.ndarray]:
    """Parallel links, and names with spaces, commas and quotes; splits in the ratios of tables."""
    links = [(0, 1, 4.0), (0, 1, 3.0), (1, 2, 5.0), (0, 2, 2.0)]
    topology = make_topology(links, both=True)
    topology = dataclasses.replace(topology, node_names=("New York", 'a,"b"', "c;d"))
    problem = Problem.create(
        topology, compute_paths(topology, cache=False), Objective(), np.linspace(1, 9, 6)[None]
    )
    splits = feasible_tables(problem, pipeline.solve(problem, gap=1e-4).splits, ENTRIES)
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
    write_allocation(
        tmp_path / "a.json", problem.topology, problem.paths, demand, splits, weights, {"gap": 0.5}
    )
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
    count = write_allocation(
        file, problem.topology, problem.paths, problem.demand[0].numpy(), splits, weights
    )
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


_TWO = make_topology([(0, 1, 10.0), (1, 2, 10.0)])
_PATH = {"nodes": ["n0", "n1"], "links": ["n0->n1"], "split": 0.5, "rate": 8.0}
_ONE = {"target": "n1", "demand": 16.0, "admitted": 8.0, "shed": 8.0, "paths": [_PATH]}


@pytest.mark.parametrize(
    ("demands", "words"),
    [
        (
            [_ONE | {"paths": [_PATH, _PATH]}],
            "n0 to n1: paths: the path n0->n1 has two entries",
        ),
        ([_ONE, _ONE], "n0 to n1: the demand has two entries"),
        (
            [_ONE | {"paths": [_PATH | {"links": ["n1->n2"]}]}],
            "links: expected a path from n0 to n1, found n1->n2",
        ),
        (
            [_ONE | {"paths": [_PATH | {"links": []}]}],
            "links: expected a path from n0 to n1, found no link",
        ),
        ([_ONE | {"paths": [_PATH | {"links": None}]}], "links: expected a list"),
        (
            [_ONE | {"paths": [_PATH | {"rate": -1.0, "split": -1.0}]}],
            "expected a number >= 0, found -1.0",
        ),
        (
            [_ONE | {"paths": [_PATH | {"rate": None, "split": None}]}],
            "expected a number >= 0, found None",
        ),
        (
            [_ONE | {"paths": [_PATH | {"rate": 10**400, "split": 10**400}]}],
            "expected a number >= 0",
        ),
        ([_ONE | {"paths": None}], "paths: expected a list"),
        ([_ONE | {"target": None}], "target: expected text"),
        ([None], "n0: expected an object"),
        (None, "n0: expected a list"),
    ],
)
def test_every_reader_refuses_what_is_there_twice_or_of_another_kind(
    demands: object, words: str
) -> None:
    paths = compute_paths(_TWO, np.array([[0, 1]], dtype=np.int32), num_paths=1, cache=False)
    stored = {"routers": {"n0": demands}}
    igp = Igp(_TWO, np.ones(_TWO.num_links))
    for read in (
        lambda: read_splits(stored, _TWO, paths, "x.json"),
        lambda: with_stored_paths(stored, _TWO, paths, "x.json"),
        lambda: sr_policies(stored, _TWO, igp, 10, 16),
        lambda: next_hop_groups(stored, _TWO),
    ):
        with pytest.raises(InputError, match=words):
            read()


def test_a_member_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text('{"routers": {"n0": [], "n0": []}}')
    with pytest.raises(InputError, match="an object has two members named 'n0'"):
        read_allocation(file)
    file.write_text("[" * 100_000)
    with pytest.raises(InputError, match="nested too deeply"):
        read_allocation(file)


def _answer_of_the_service(**path: float) -> dict[str, Any]:
    """An answer for the parallel links a-b, 10 Gbit/s over the second of them."""
    ends = [("a", "b"), ("a", "b"), ("b", "a"), ("b", "a")]
    shares = [{"nodes": ["a", "b"], "links": [1], **path}]
    return {
        "id": "1",
        "allocations": [
            {
                "demands": [
                    {
                        "source": "a",
                        "target": "b",
                        "demand": 10.0,
                        "admitted": 5.0,
                        "paths": shares,
                    },
                    {"source": "b", "target": "a", "demand": 0.0, "admitted": 0.0, "paths": []},
                ],
                "utilisation": [
                    {"link": e, "source": s, "target": t, "utilisation": 0.0}
                    for e, (s, t) in enumerate(ends)
                ],
            }
        ],
    }


@pytest.mark.parametrize("path", [{"split": 0.5}, {"weight": 16}])
def test_an_answer_of_the_service_is_read_as_an_allocation(
    path: dict[str, float], tmp_path: Path
) -> None:
    file = tmp_path / "answer.json"
    file.write_text(json.dumps(_answer_of_the_service(**path)))
    routers = read_allocation(file)["routers"]
    (carried,), (nothing,) = routers["a"], routers["b"]
    assert (carried["admitted"], carried["shed"], nothing["paths"]) == (5.0, 5.0, [])
    assert [(one["links"], one["split"], one["rate"]) for one in carried["paths"]] == [
        (["a->b#2"], 0.5, 5.0)
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda answer: answer["allocations"].append(answer["allocations"][0]), "one matrix"),
        (lambda answer: answer["allocations"].clear(), "one matrix"),
        (lambda answer: answer["allocations"][0].pop("demands"), 'request it with "form": "named"'),
        (lambda answer: answer["allocations"][0].pop("utilisation"), "utilisation"),
        (lambda answer: answer["allocations"].__setitem__(0, 1), "allocations"),
        (
            lambda answer: answer["allocations"][0]["demands"][0].__setitem__("demand", None),
            "demand",
        ),
        (lambda answer: answer["allocations"][0]["demands"][0]["paths"].__setitem__(0, 7), "paths"),
    ],
)
def test_another_answer_of_the_service_is_refused(
    change: Callable[[Any], Any], words: str, tmp_path: Path
) -> None:
    answer, file = _answer_of_the_service(split=0.5), tmp_path / "answer.json"
    change(answer)
    file.write_text(json.dumps(answer))
    with pytest.raises(InputError, match=words):
        read_allocation(file)
