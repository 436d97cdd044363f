"""Networks whose demands have weights or bandwidth functions: answers against LPs, and what is
refused."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import teal
from baselines.lp_all import LpAll
from teal.network import all_pairs
from teal.network.bandwidth_functions import BandwidthFunctions
from teal.problem import Problem
from teal_serve.client import InvalidRequest, ServiceFault
from tests.teal_serve.service import rates_of, run, service

_SHARES = [(0.25, 2.0), (0.5, 3.0), (1.0, 3.5)]
_OWN = [(120.0, 30.0), (360.0, 33.0)]  # by rate
_WEIGHTS: list[dict[str, Any]] = [
    {"source": "1", "target": "2", "weight": 9},
    {"source": "12", "target": "3", "weight": 0.5},
]


def _problem(objective: str, rates: Any, **worth: Any) -> Problem:
    topology = teal.load_topology("b4")
    paths = teal.compute_paths(topology, all_pairs(topology), num_paths=4, cache=False)
    return Problem.create(topology, paths, objective, rates, **worth)


def _weight() -> Any:
    topology = teal.load_topology("b4")
    node, pairs = topology.node_index(), all_pairs(topology).tolist()
    weight = np.ones(len(pairs))
    for one in _WEIGHTS:
        weight[pairs.index([node[str(one["source"])], node[str(one["target"])]])] = one["weight"]
    return weight


def test_weights_of_the_network_count_in_every_objective_that_has_weights(tmp_path: Path) -> None:
    rates = 4 * rates_of()

    async def work() -> None:
        async with service(tmp_path) as client:
            await client.put_network(
                "b4", "b4", num_paths=4, objective="weighted_flow", weights=_WEIGHTS
            )
            await client.wait_ready("b4")
            for spec in ("weighted_flow", "proportional_fair:weight=given"):
                answer = await client.allocate("b4", rates, objective=spec, gap=1e-3)
                problem = _problem(spec, rates, weight=_weight())
                optimum = problem.value(LpAll().solve(problem).splits)
                assert (optimum <= torch.tensor(answer.bound.tolist()) * (1 + 1e-6)).all()
                assert (torch.tensor(answer.value.tolist()) >= optimum * (1 - 2e-3)).all()
                alike = _problem(spec, rates, weight=np.ones(problem.paths.num_demands))
                assert not torch.allclose(
                    alike.value(LpAll().solve(alike).splits), optimum, rtol=0.01
                )
            plain = await client.allocate("b4", rates, objective="total_flow", gap=1e-3)
            assert max(plain.satisfied_demand) <= 1, "weights do not count there"
            with pytest.raises(InvalidRequest, match="needs functions of the network"):
                await client.allocate("b4", rates, objective="bandwidth_functions")

    run(work)


def test_bandwidth_functions_of_the_network_are_solved_proved_and_kept(tmp_path: Path) -> None:
    rates = 4 * rates_of()[:1]
    own = {"source": "1", "target": "2", "points": _OWN}
    every = {"points": [(share * 400, value) for share, value in _SHARES]}

    async def work() -> None:
        async with service(tmp_path / "state") as client:
            await client.put_network(
                "b4", "b4", num_paths=4, objective="bandwidth_functions", functions=[own, every]
            )
            await client.wait_ready("b4")
        async with service(tmp_path / "state") as client:  # as stored
            await client.wait_ready("b4")
            answer = await client.allocate("b4", rates, gap=1e-3, prove=True)
            functions = [
                0 if pair == [0, 1] else 1 for pair in all_pairs(teal.load_topology("b4")).tolist()
            ]
            points = [_OWN, every["points"]]
            problem = _problem(
                "bandwidth_functions",
                rates,
                functions=BandwidthFunctions.of_points(points, functions),
            )
            optimum = float(problem.value(LpAll().solve(problem).splits)[0])
            assert answer.bound[0] >= optimum * (1 - 1e-6)
            assert answer.value[0] >= optimum * (1 - 2e-3)
            zipfile.ZipFile(io.BytesIO(await client.proof("b4", answer.id))).extractall(
                tmp_path / "proof"
            )
            command = [sys.executable, "-I", "check.py", "network.csv", "matrix.csv", "proof.txt"]
            done = subprocess.run(
                command, cwd=tmp_path / "proof", capture_output=True, text=True, check=True
            )
            low, high = (
                float(x) for x in done.stdout.partition("from ")[2].partition(",")[0].split(" to ")
            )
            assert low == pytest.approx(float(answer.value[0]), rel=1e-5)
            assert high >= optimum * (1 - 1e-6)

    run(work)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"objective": "weighted_flow"}, "needs weights of the network"),
        ({"objective": "bandwidth_functions"}, "needs functions of the network"),
        (
            {"weights": [{"source": "1", "target": "99", "weight": 1}]},
            "'1' and '99' are not two different nodes",
        ),
        ({"weights": _WEIGHTS[:1] * 2}, "each pair once"),
        ({"weights": [{"source": "1", "target": "2", "weight": 0}]}, "weight"),
        ({"functions": [{"points": [(1, 1), (2, 3)]}]}, "expected"),
        (
            {"functions": [{"source": "1", "target": "2", "points": _OWN}]},
            "no function for the demand from 1 to 3",
        ),
        ({"functions": [{"points": _OWN, "shares": _SHARES}]}, "either points or shares"),
        ({"functions": [{"points": _OWN}, {"points": _OWN}]}, "each pair once"),
        (
            {"functions": [{"points": _OWN}, {"source": "1", "target": "1", "points": _OWN}]},
            "two different nodes",
        ),
        ({"functions": [{"points": _OWN}, {"source": "1", "target": "2", "points": []}]}, "points"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(
    settings: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    async def work() -> None:
        async with service(tmp_path) as client:

            async def registered() -> None:
                await client.put_network("b4", "b4", num_paths=4, **settings)
                await client.wait_ready("b4")

            with pytest.raises(ServiceFault, match=expected):
                await registered()

    run(work)


def test_paths_are_chosen_and_added_by_the_weights_of_the_network(tmp_path: Path) -> None:
    rates = 8 * rates_of()

    async def work() -> None:
        async with service(tmp_path) as client:
            await client.put_network("b4", "b4", objective="weighted_flow", weights=_WEIGHTS)
            await client.wait_ready("b4")
            answer = await client.allocate("b4", rates, gap=1e-3)
            problem = _problem("weighted_flow", rates, weight=_weight())
            optimum = problem.value(LpAll().solve(problem).splits)
            assert (torch.tensor(answer.value.tolist()) >= optimum * (1 - 0.01)).all()

    run(work)


def test_what_only_the_demands_of_a_request_make_impossible_is_refused(tmp_path: Path) -> None:
    ends = ("ab", "ba", "bc", "cb", "ac", "ca", "cd", "dc")  # d hangs on one cable
    links = [{"source": end[0], "target": end[1], "capacity": 10} for end in ends]
    topology = {"nodes": [{"id": node} for node in "abcd"], "links": links}
    demands = [{"source": "a", "target": "d", "rate": 4.0}]
    functions = [{"shares": _SHARES}]

    async def work() -> None:
        async with service(tmp_path) as client:
            await client.put_network("d", topology, num_paths=3, functions=functions)
            await client.wait_ready("d")
            for options, message in (
                ({"objective": "proportional_fair", "protect": "cables"}, "from a to d"),
                ({"objective": "alpha_fair:alpha=2", "protect": "cables"}, "from a to d"),
                ({"objective": "bandwidth_functions", "max_churn": 0.5}, "churn: steps"),
            ):
                body = {"demands": demands, **options}
                at = "/v1/networks/d/allocations"
                if "max_churn" in options:
                    plain = {"demands": demands, "objective": options["objective"], "form": "dense"}
                    first = await client._http.post(at, json=plain)
                    at += f"?previous={first.headers['x-request-id']}"
                refused = await client._http.post(at, json=body)
                assert refused.status_code == 422, refused.text
                assert message in refused.json()["message"]

    run(work)
