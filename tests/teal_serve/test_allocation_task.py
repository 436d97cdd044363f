"""Classes and limits on churn in the service, against the solver and against sums over the splits
of its answers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

import teal
from teal.network import all_pairs
from teal.problem.churn import ChurnLimit
from teal.problem.protection import Protection
from teal.solvers.protection import under_failures
from teal_serve.client import AsyncClient, InvalidRequest, ServiceFault
from teal_serve.engine.allocation_task import AllocationTask
from teal_serve.engine.network_state import Job
from teal_serve.engine.responses import AllocationAnswer, RecentAllocations
from tests.teal_serve.service import b4_network_state, b4_service, rates_of, run, service

_SHARES = {"gold": 0.1, "silver": 0.3, "bronze": 0.6}
_ALLOCATIONS = "/v1/networks/b4/allocations"


async def _ready(client: AsyncClient) -> None:
    await client.put_network("b4", "b4", gap=0.001, num_paths=4)
    await client.wait_ready("b4")


def _loads(splits: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """(B, E) Gbit/s of splits (B, D, K) of all pairs, from the links of every path."""
    topology = teal.load_topology("b4")
    paths = teal.compute_paths(topology, all_pairs(topology), cache=False)
    load = np.zeros((len(rates), topology.num_links))
    for d, k in np.argwhere(splits.sum(0) > 0).tolist():
        for link in paths.links_of(d, k):
            load[:, link] += rates[:, d] * splits[:, d, k]
    return load


@pytest.mark.slow
def test_classes_are_served_as_the_solver_solves_them(tmp_path: Path) -> None:
    rates = rates_of(2, size=30_000)
    topology = teal.load_topology("b4")
    paths = teal.compute_paths(topology, all_pairs(topology), cache=False)
    limit = float(np.median([topology.latency[paths.links_of(d, 0)].sum() for d in range(132)]))
    limits = {"silver": limit}

    async def work() -> None:
        async with service(tmp_path) as client:
            await _ready(client)
            parts = {name: share * rates for name, share in _SHARES.items()}
            for given in ({}, limits):
                problem = teal.priority_problem(topology, paths, parts, latency_limit_ms=given)
                expected = teal.solve(problem, gap=1e-3).classes
                assert expected is not None
                found = await client.allocate("b4", parts, latency_limits_ms=given)
                assert found.splits.shape == (2, 3 * 132, 4)
                for b, lines in enumerate(found.classes):
                    assert [line.name for line in lines] == list(_SHARES)
                    for c, line in enumerate(lines):
                        assert line.gap <= 1e-3
                        assert line.value == pytest.approx(float(expected.value[b, c]), rel=4e-3)
                        carried = (
                            parts[line.name][b, :, None] * found.splits[b, c * 132 : (c + 1) * 132]
                        ).sum()
                        assert carried == pytest.approx(line.value, rel=1e-4)
                whole = sum(
                    _loads(found.splits[:, c * 132 : (c + 1) * 132], part)
                    for c, part in enumerate(parts.values())
                )
                np.testing.assert_allclose(whole / topology.capacity, found.utilisation, atol=1e-4)
                assert (whole <= topology.capacity * (1 + 1e-4)).all()
                used = np.argwhere(found.splits[:, 132:264].sum(0) > 0).tolist()
                latency = [topology.latency[paths.links_of(d, k)].sum() for d, k in used]
                assert (max(latency) <= limit) == bool(given), (
                    "silver uses longer paths without a limit"
                )

    run(work)


@pytest.mark.slow
def test_classes_in_json_have_names_in_demands_and_figures(tmp_path: Path) -> None:
    demands = [
        {"source": "1", "target": "5", "rate": 9000.0, "class": "gold"},
        {"source": "1", "target": "5", "rate": 9000.0, "class": "bronze"},
    ]

    async def work() -> None:
        async with service(tmp_path) as client:
            await _ready(client)
            for form in ("named", "dense"):
                body = {"demands": demands, "classes": ["gold", "bronze"], "form": form}
                response = await client._http.post(_ALLOCATIONS, json=body)
                assert response.status_code == 200, response.text
                said = response.json()
                AllocationAnswer.model_validate(said)
                (allocation,) = said["allocations"]
                gold, bronze = allocation["classes"]
                assert (gold["class"], bronze["class"]) == ("gold", "bronze")
                assert gold["value"] == pytest.approx(9000)
                assert bronze["value"] < 9000
                if form == "named":
                    carried = {one["class"]: one["admitted"] for one in allocation["demands"]}
                    assert carried == pytest.approx(
                        {"gold": gold["value"], "bronze": bronze["value"]}, rel=1e-4
                    )

    run(work)


def test_a_limit_on_churn_holds_for_tables_too(tmp_path: Path) -> None:
    async def work() -> None:
        async with b4_service(tmp_path) as client:
            first, second = rates_of(1, 1, 20_000), rates_of(1, 2, 20_000)
            before = await client.allocate("b4", first, entries=8)
            free = await client.allocate("b4", second, entries=8)
            calm = await client.allocate(
                "b4", second, entries=8, max_churn=0.02, previous=before.id
            )
            assert calm.status[0] in ("gap", "rounding")
            flows = rates_of(1, 2, 20_000)[0][:, None] * (calm.splits[0] - before.splits[0]).clip(
                min=0
            )
            assert flows.sum() <= 0.02 * second.sum() * (1 + 1e-5)
            assert calm.moved is not None
            assert calm.moved[0] == pytest.approx(flows.sum() / second.sum(), rel=1e-3)
            assert calm.value[0] > 0.8 * free.value[0]

    run(work)


@pytest.mark.parametrize("form", ["arrow", "named", "dense"])
def test_a_limit_on_churn_counts_from_an_earlier_answer(tmp_path: Path, form: str) -> None:
    first, second = rates_of(2, size=30_000)

    async def work() -> None:
        async with service(tmp_path) as client:
            await _ready(client)
            before = await client.allocate("b4", first)
            number = before.id
            if form != "arrow":
                response = await client._http.post(
                    _ALLOCATIONS, json={"rates": [first.tolist()], "form": form}
                )
                number = response.json()["id"]
                repeated = await client.allocate("b4", first)
                before = repeated if form == "dense" else before
            free = await client.allocate("b4", second)
            calm = await client.allocate(
                "b4", second, max_churn=0.03, previous=number, deadline_ms=600_000
            )
            assert calm.moved is not None
            assert float(calm.moved[0]) <= 0.03 + 1e-6
            assert (calm.gap <= 1e-3 + 1e-9).all()
            if form == "arrow":
                moved = (
                    second[:, None] * np.maximum(0, calm.splits[0] - before.splits[0])
                ).sum() / second.sum()
                assert moved == pytest.approx(float(calm.moved[0]), abs=1e-5)
                away = (
                    second[:, None] * np.maximum(0, free.splits[0] - before.splits[0])
                ).sum() / second.sum()
                assert away > 2 * 0.03, "without a limit more moves"
            assert float(calm.value[0]) <= float(free.bound[0])
            if form == "arrow":  # several matrices, each against the same answer
                both = await client.allocate(
                    "b4", np.stack([first, second]), max_churn=0.03, previous=number
                )
                assert both.moved is not None
                for row, rates in enumerate((first, second)):
                    moved = (
                        rates[:, None] * np.maximum(0, both.splits[row] - before.splits[0])
                    ).sum() / rates.sum()
                    assert moved == pytest.approx(float(both.moved[row]), abs=1e-5)

    run(work)


def test_later_matrices_of_a_job_say_what_moves_too() -> None:
    network_state, previous = b4_network_state(), torch.rand(1, 132, 4, dtype=torch.float64)
    limit = ChurnLimit(previous / previous.sum(-1, keepdim=True), 0.1)
    task = AllocationTask(teal.ObjectiveName.TOTAL_FLOW, conditions=(limit,))
    solved = network_state.solve(
        Job(rates_of(3, size=30_000), task, 1e-2, time.perf_counter() + 600)
    )
    whole, later = (
        network_state.answer(solved, rows, 1e-2, 0, 0.0) for rows in (slice(0, 3), slice(1, 3))
    )
    np.testing.assert_array_equal(
        later.condition_figures["moved"], whole.condition_figures["moved"][1:]
    )
    assert (whole.condition_figures["moved"] <= 0.1 + 1e-9).all()


@pytest.mark.system
def test_classes_move_no_more_than_they_may_and_keep_their_promises(tmp_path: Path) -> None:
    first, second = rates_of(2, size=30_000)
    topology = teal.load_topology("b4")
    paths = teal.compute_paths(topology, all_pairs(topology), cache=False)

    def parts(rates: np.ndarray) -> dict[str, np.ndarray]:
        return {"gold": 0.2 * rates[None], "bronze": 0.8 * rates[None]}

    async def work() -> None:
        async with service(tmp_path) as client:
            await _ready(client)
            limits = {"gold": 60.0}
            before = await client.allocate("b4", parts(first), latency_limits_ms=limits)
            calm = await client.allocate(
                "b4",
                parts(second),
                max_churn=0.02,
                previous=before.id,
                latency_limits_ms=limits,
                gap=0.01,
                deadline_ms=600_000,
            )
            both = np.concatenate([0.2 * second, 0.8 * second])
            moved = (
                both[:, None] * np.maximum(0, calm.splits[0] - before.splits[0])
            ).sum() / both.sum()
            assert calm.moved is not None
            assert moved == pytest.approx(float(calm.moved[0]), abs=1e-5)
            assert moved <= 0.02 + 1e-6
            assert all(line.gap <= 0.01 + 1e-9 for line in calm.classes[0])
            free = await client.allocate("b4", parts(second), latency_limits_ms=limits)
            away = (
                both[:, None] * np.maximum(0, free.splits[0] - before.splits[0])
            ).sum() / both.sum()
            assert away > 2 * 0.02, "without a limit more moves"
            promised = await client.allocate(
                "b4", parts(second), protect="cables", gap=0.01, deadline_ms=600_000
            )
            problem = teal.priority_problem(topology, paths, parts(second))
            splits = torch.tensor(promised.splits, dtype=torch.float64)
            utilisation, lost = under_failures(problem, splits)
            assert float(utilisation.max()) <= 1 + 1e-5
            assert float(lost.max()) == 0
            assert (promised.gap <= 0.01 + 1e-9).all()

    run(work)


@pytest.mark.system
def test_fair_rates_are_those_of_the_solver_with_their_levels(tmp_path: Path) -> None:
    rates = rates_of(2, size=60_000)
    topology = teal.load_topology("b4")
    paths = teal.compute_paths(topology, all_pairs(topology), cache=False)
    problem = teal.Problem.create(
        topology, paths, teal.Objective(teal.ObjectiveName.MAX_MIN), rates
    )
    expected = teal.solve(problem, gap=1e-3)
    assert expected.fair is not None

    async def work() -> None:
        async with service(tmp_path) as client:
            await _ready(client)
            found = await client.allocate("b4", rates, objective="max_min")
            carried = (rates[:, :, None] * found.splits).sum(-1)
            np.testing.assert_allclose(
                carried, problem.flows(expected.splits).sum(-1), rtol=0.02, atol=1
            )
            assert (found.gap <= 1e-3).all()
            for own, lines in zip(found.levels, expected.fair.levels, strict=True):  # type: ignore[union-attr]
                assert [one.demands for one in own] == [one.demands for one in lines]
                assert [one.level for one in own] == pytest.approx(
                    [one.level for one in lines], rel=0.01
                )
                assert all(one.growth is not None and one.growth < 1.01 for one in own)
            assert not (await client.allocate("b4", rates)).levels
            response = await client._http.post(
                _ALLOCATIONS, json={"rates": rates.tolist(), "objective": "max_min"}
            )
            said = response.json()
            AllocationAnswer.model_validate(said)
            assert [len(one["levels"]) for one in said["allocations"]] == [
                len(own) for own in found.levels
            ]
            recent = (await client._http.get(_ALLOCATIONS)).json()
            RecentAllocations.model_validate(recent)
            assert recent["allocations"][-1]["levels"] == said["allocations"][-1]["levels"]

    run(work)


@pytest.mark.system
def test_promises_survive_cables_or_the_groups_of_the_network(tmp_path: Path) -> None:
    rates = rates_of(1, size=30_000)
    topology = teal.load_topology("b4")
    paths = teal.compute_paths(topology, all_pairs(topology), cache=False)
    problem = teal.Problem.create(topology, paths, teal.Objective(), rates)
    groups = {"duct": [("1", "2"), ("1", "3")], "other": [("4", "5")]}
    links = [
        sorted({link for a, b in own for link in topology.find_links(a, b)})
        for own in groups.values()
    ]

    async def work() -> None:
        async with service(tmp_path) as client:
            await client.put_network("b4", "b4", gap=0.001, num_paths=4, groups=groups)
            network = await client.wait_ready("b4")
            assert network.state == "ready"
            free = await client.allocate("b4", rates)
            for protect, failing in (("cables", None), ("groups", links)):
                found = await client.allocate("b4", rates, protect=protect)
                expected = teal.solve(problem.with_protection(failing), gap=1e-3)
                assert float(found.value[0]) == pytest.approx(float(expected.value[0]), rel=3e-3)
                assert float(found.gap[0]) <= 1e-3
                assert float(found.value[0]) < float(free.value[0])
                splits = torch.tensor(found.splits, dtype=torch.float64)
                utilisation, lost = under_failures(problem, splits, failing)
                assert float(utilisation.max()) <= 1 + 1e-5
                assert float(lost.max()) == 0
            recent = (await client._http.get(_ALLOCATIONS)).json()
            RecentAllocations.model_validate(recent)
            assert [one.get("protect") for one in recent["allocations"]] == [
                None,
                "cables",
                "groups",
            ]
            # A cable is down: promises for what is left, and every one of them survives a further
            # failure.
            await client.change_link("b4", "1", "2", up=False)
            found = await client.allocate("b4", rates, protect="cables")
            capacity = topology.capacity.copy()
            capacity[topology.find_links("1", "2")] = 0
            less = problem.with_capacity(capacity)
            utilisation, lost = under_failures(
                less, torch.tensor(found.splits, dtype=torch.float64)
            )
            assert float(utilisation.max()) <= 1 + 1e-5
            assert float(lost.max()) == 0
            assert (
                0
                < float(found.value[0])
                == pytest.approx(
                    float(teal.solve(less.with_protection(), gap=1e-3).value[0]), rel=3e-3
                )
            )

    run(work)


@pytest.mark.slow
def test_a_network_may_be_fair_unless_a_request_says_otherwise(tmp_path: Path) -> None:
    """And its next interval, whose demands nobody knows, is allocated for total flow."""
    rates = rates_of(1, size=60_000)

    async def work() -> None:
        async with service(tmp_path) as client:
            await client.put_network("b4", "b4", objective="max_min")
            await client.wait_ready("b4")
            assert (await client.allocate("b4", rates)).levels[0]
            assert not (await client.allocate("b4", rates, objective="total_flow")).levels
            await client.measure("b4", rates, np.datetime64("2026-01-01T00:00:00"))
            following = await client.allocate_next("b4")
            assert following.status == ("next",)
            assert 0 < float(following.satisfied_demand[0]) <= 1

    run(work)


def test_groups_must_be_cables_of_the_network(tmp_path: Path) -> None:
    async def work() -> None:
        async with service(tmp_path) as client:
            with pytest.raises(InvalidRequest, match="groups"):
                await client.put_network("b4", "b4", groups={"duct": [("1", "99")]})
            with pytest.raises(InvalidRequest, match="groups"):
                await client.put_network("b4", "b4", groups={"duct": []})
            await client.put_network("wide", "b4", num_paths=7, path_method="yen")
            await client.wait_ready("wide")
            assert (await client.allocate("wide", rates_of(), protect="cables")).status[0] == "gap"

    run(work)


def test_the_least_work_of_a_program_counts_what_it_takes() -> None:
    plain, network = AllocationTask(teal.ObjectiveName.TOTAL_FLOW), b4_network_state()
    ops, topology = network.network(plain).ops, network.topology
    promises = Protection.of(ops, topology.num_links, topology.cables())
    assert (plain.default_relative_work, plain.is_resumable) == (1.0, True)
    for other in (
        AllocationTask(teal.ObjectiveName.MAX_MIN),
        AllocationTask(teal.ObjectiveName.TOTAL_FLOW, conditions=(promises,)),
        AllocationTask(teal.ObjectiveName.PRIORITY, limits=(np.inf, np.inf)),
    ):
        assert other.default_relative_work > 1
        assert not other.is_resumable


# Status, words of the answer, query and body of requests whose options do not fit together.
UNFIT: list[tuple[int, str, str, dict[str, Any]]] = [
    (422, "use one of gold", "", {"classes": ["gold"], "demands": [{"class": "lead"}]}),
    (422, "use one of gold", "", {"classes": ["gold"], "demands": [{}]}),
    (422, "no classes are given", "", {"demands": [{"class": "gold"}]}),
    (
        422,
        "once a matrix and class",
        "",
        {"classes": ["gold"], "demands": [{"class": "gold"}, {"class": "gold"}]},
    ),
    (422, "classes: repeated name", "", {"classes": ["gold", "gold"], "demands": []}),
    (422, "only least_cost", "", {"classes": ["gold"], "objective": "total_flow", "demands": []}),
    (
        422,
        "latency_limits_ms",
        "",
        {"classes": ["gold"], "latency_limits_ms": {"lead": 3}, "demands": []},
    ),
    (
        422,
        "latency_limits_ms",
        "",
        {"classes": ["gold"], "latency_limits_ms": {"gold": 0}, "demands": []},
    ),
    (
        422,
        "for each of the 2 classes",
        "",
        {"classes": ["gold", "lead"], "rates": [[1.0] * 132] * 3},
    ),
    (422, "together with the query parameter previous", "", {"max_churn": 0.1, "demands": []}),
    (422, "max_churn", "", {"max_churn": 1.5, "demands": []}),
    (404, "unknown_allocation", "?previous=nothing", {"max_churn": 0.1, "demands": []}),
    (422, "together with the query parameter previous", "?previous=ID", {"demands": []}),
    (
        422,
        "another number of classes",
        "?previous=ID",
        {"max_churn": 0.1, "classes": ["gold", "lead"], "demands": []},
    ),
    (
        422,
        "sum over flows",
        "?previous=ID",
        {"max_churn": 0.1, "objective": "max_link_utilisation", "demands": []},
    ),
    (422, "max_min", "?previous=ID", {"max_churn": 0.1, "objective": "max_min", "demands": []}),
    (422, "cannot be combined with the next interval", "?previous=ID", {"for": "next"}),
    (422, "only deadline_ms and form may be given", "", {"for": "next", "protect": "cables"}),
    (422, "protect", "", {"protect": "ducts", "demands": []}),
    (422, "no link groups", "", {"protect": "groups", "demands": []}),
    (
        422,
        "protect: cannot be combined with entries",
        "",
        {"protect": "cables", "entries": 16, "demands": []},
    ),
    (
        422,
        "no further condition",
        "?previous=ID",
        {"protect": "cables", "max_churn": 0.1, "demands": []},
    ),
    (
        422,
        "latency_limits_ms",
        "",
        {
            "protect": "cables",
            "classes": ["gold"],
            "latency_limits_ms": {"gold": 9},
            "demands": [{"class": "gold"}],
        },
    ),
    (422, "not max_min", "", {"protect": "cables", "objective": "max_min", "demands": []}),
]


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with service(tmp_path) as client:
            await _ready(client)
            number = (await client.allocate("b4", rates_of())).id
            headers = {"Content-Type": "application/json"}
            for status, words, query, body in UNFIT:
                demands = [
                    {"source": "1", "target": "2", "rate": 1.0, **demand}
                    for demand in body.get("demands", [])
                ]
                content = json.dumps({**body, "demands": demands} if "demands" in body else body)
                address = _ALLOCATIONS + query.replace("ID", number)
                response = await client._http.post(address, content=content, headers=headers)
                assert response.status_code == status, (words, response.text)
                assert words in response.text

    run(work)


def test_the_options_of_an_address_are_checked_too(tmp_path: Path) -> None:
    async def work() -> None:
        async with service(tmp_path) as client:
            await _ready(client)
            rates = rates_of()
            with pytest.raises(InvalidRequest, match="latency_limits_ms"):
                await client.allocate("b4", {"gold": rates}, latency_limits_ms={"lead": 30.0})
            with pytest.raises(InvalidRequest, match="max_churn"):
                await client.allocate("b4", rates, max_churn=0.1)
            classes = await client.allocate("b4", {"gold": rates, "lead": rates})
            with pytest.raises(InvalidRequest, match="another number of classes"):
                await client.allocate("b4", rates, max_churn=0.1, previous=classes.id)
            with pytest.raises(ServiceFault, match="no allocation"):
                await client.allocate("b4", rates, max_churn=0.1, previous="gone")

    run(work)
