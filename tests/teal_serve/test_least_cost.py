"""The least cost by the service: answers against LP-all, and a matrix that cannot be carried."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import teal
from baselines.lp_all import LpAll
from teal.network import all_pairs
from teal.network.classes import DemandClasses, class_paths
from teal.problem import assess
from tests.teal_serve.service import problem_of, rates_of, run, service

LEAST_COST = "least_cost:max_utilisation=0.9"


def test_answers_cost_what_the_lp_costs_and_say_what_cannot_be_carried(tmp_path: Path) -> None:
    light, heavy = rates_of(2, size=60.0), rates_of(1, size=6_000.0)
    problem = problem_of(light, LEAST_COST)
    optimum = assess(problem, LpAll().solve(problem))
    assert bool(torch.isfinite(optimum.value).all()), "the network must carry these"

    async def work() -> None:
        async with service(tmp_path) as client:
            await client.put_network("b4", "b4", num_paths=4, objective=LEAST_COST)
            await client.wait_ready("b4")
            answer = await client.allocate("b4", light, gap=1e-6)
            assert answer.status == ("gap", "gap")
            np.testing.assert_allclose(answer.value, optimum.value.numpy(), rtol=2e-6)
            assert answer.largest_share is not None
            assert np.isnan(answer.largest_share).all()
            assert max(answer.max_link_utilisation) <= 0.9 * (1 + 1e-9)
            lost = await client.allocate("b4", heavy, gap=1e-3)
            assert lost.status == ("infeasible",)
            assert lost.largest_share is not None
            flow = problem_of(heavy, "max_concurrent_flow")
            most = 0.9 * float(assess(flow, LpAll().solve(flow)).value)
            assert lost.largest_share[0] == pytest.approx(most, rel=1e-2)
            again = await client.allocate("b4", light, gap=1e-6)  # the start is the one before
            assert again.status == ("gap", "gap")

    run(work)


def test_classes_are_carried_whole_each_within_its_latency(tmp_path: Path) -> None:
    topology = teal.load_topology("b4")
    paths = teal.compute_paths(topology, all_pairs(topology), num_paths=4, cache=False)
    pairs = paths.num_demands
    ops = teal.Problem.create(topology, paths, "total_flow", np.ones((1, pairs))).ops
    latency = ops.path_sum(torch.from_numpy(topology.latency)[None])[0]
    fastest = torch.where(ops.mask, latency, torch.inf).amin(1)
    limit_ms = float(fastest.max()) * (1 + 1e-9)  # each demand keeps a path
    assert bool((latency > limit_ms).any()), "the limit must leave out a path"
    rates = np.concatenate([rates_of(2, size=20.0), rates_of(2, size=40.0)], axis=1)
    classes = DemandClasses.of_equal_size(("gold", "bulk"), pairs)
    limited_protocol = class_paths(
        paths, topology, np.tile(paths.pairs, (2, 1)), classes, {"gold": limit_ms}
    )
    problem = teal.Problem.create(topology, limited_protocol, LEAST_COST, rates, classes=classes)
    optimum = assess(problem, LpAll().solve(problem))
    assert bool(torch.isfinite(optimum.value).all())

    async def work() -> None:
        async with service(tmp_path) as client:
            await client.put_network("b4", "b4", num_paths=4)
            await client.wait_ready("b4")
            answer = await client.allocate(
                "b4",
                {"gold": rates[:, :pairs], "bulk": rates[:, pairs:]},
                gap=1e-6,
                objective=LEAST_COST,
                latency_limits_ms={"gold": limit_ms},
            )
            assert answer.status == ("gap", "gap")
            np.testing.assert_allclose(answer.value, optimum.value.numpy(), rtol=2e-6)
            np.testing.assert_allclose(answer.splits.sum(-1)[rates > 0], 1, rtol=1e-5)

    run(work)
