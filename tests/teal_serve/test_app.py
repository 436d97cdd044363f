"""The service in one process, without Ray: allocations against PDHG's, link changes against the
registered links."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
import time
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

import pyarrow as pa

import teal
from teal.objectives import ObjectiveName
from teal.solvers.pdhg.fused import certificates, kernels
from teal_serve.client import ARROW, Client, InvalidRequest, ServedAllocation, Unreachable
from teal_serve.client.calls import AllocationOptions
from teal_serve.client.faults import ServiceFault
from teal_serve.engine.allocation_task import AllocationTask, single_program_task
from teal_serve.engine.engine import AllocationEngine
from teal_serve.engine.network_state import Job, NetworkState
from teal_serve.engine.requests import NetworkSpec
from teal_serve.engine.responses import AllocationAnswer, Drawing, NamedAllocation, Routes
from tests.teal_serve.service import (
    b4_service,
    held_engine,
    listening,
    problem_of,
    queued,
    rates_of,
    run,
    service,
    until,
)


def test_served_allocations_are_feasible_certified_and_as_good_as_the_engine(
    tmp_path: Path,
) -> None:
    rates = rates_of(3)

    async def work() -> None:
        async with service(tmp_path) as client:
            assert (await client.put_network("b4", "b4", gap=0.001)).state in ("computing", "ready")
            info = await client.wait_ready("b4")
            assert (info.demands, len(info.links), len(info.nodes)) == (132, 38, 12)
            allocation = await client.allocate("b4", rates)
            assert allocation.splits.shape == (3, 132, 4)
            assert allocation.status == ("gap",) * 3
            assert (allocation.gap <= 1e-3 + 1e-9).all()
            exact = teal.solve(problem_of(rates), gap=1e-4)
            assert (allocation.value <= exact.bound.numpy() * (1 + 1e-9)).all()
            assert (allocation.value >= exact.value.numpy() * (1 - 2e-3)).all()
            # Loads of links from the splits and the paths of the service, node by node.
            paths = await client.paths("b4")
            links = {(link.source, link.target): i for i, link in enumerate(info.links)}
            load = np.zeros((3, 38))
            for d, routes in enumerate(paths.paths):
                for k, nodes in enumerate(routes):
                    assert (nodes[0], nodes[-1]) == paths.pairs[d]
                    for ends in pairwise(nodes):
                        load[:, links[ends]] += rates[:, d] * allocation.splits[:, d, k]
            np.testing.assert_allclose(load / 5000, allocation.utilisation, atol=1e-5)
            assert load.max() <= 5000 * (1 + 1e-5)
            np.testing.assert_allclose(
                (rates[..., None] * allocation.splits).sum((1, 2)), allocation.value, rtol=1e-5
            )

    run(work)


def test_json_responses_equal_arrow_responses(tmp_path: Path) -> None:
    rates = rates_of()

    async def work() -> None:
        async with b4_service(tmp_path) as client:
            arrow = await client.allocate("b4", rates, gap=1e-6)
            square = np.zeros((12, 12))
            square[~np.eye(12, dtype=bool)] = rates[0]
            as_square = await client.allocate("b4", square.reshape(1, -1), gap=1e-6)
            names = [str(i) for i in range(1, 13)]
            demands = [
                {"source": names[i], "target": names[j], "rate": square[i, j]}
                for i in range(12)
                for j in range(12)
                if i != j
            ]
            triples = pa.table(
                {
                    name: [demand[name] for demand in demands]
                    for name in ("source", "target", "rate")
                }
            )
            sink = io.BytesIO()
            with pa.ipc.new_stream(sink, triples.schema) as stream:
                stream.write_table(triples)
            http = client._http
            dense = {"gap": 1e-6, "form": "dense"}
            address, query = "/v1/networks/b4/allocations", "?gap=0.000001&form=dense"
            responses = [
                await http.post(address, json={"demands": demands, **dense}),
                await http.post(address, json={"rates": rates.tolist(), **dense}),
                await http.post(
                    address + query, content=sink.getvalue(), headers={"Content-Type": ARROW}
                ),
            ]
            for response in responses:
                assert response.status_code == 200, response.text
                AllocationAnswer.model_validate_json(response.content)
                (allocation,) = response.json()["allocations"]
                assert allocation["value"] == pytest.approx(arrow.value[0], rel=1e-5)
                assert len(allocation["splits"]) == 132
                assert len(allocation["utilisation"]) == 38
            assert as_square.value == pytest.approx(arrow.value, rel=1e-5)

    run(work)


@pytest.mark.slow
def test_fair_shares_are_certified_and_other_objectives_are_refused(tmp_path: Path) -> None:
    rates = rates_of()

    async def work() -> None:
        async with b4_service(tmp_path) as client:
            for spec in ("proportional_fair", "alpha_fair:alpha=2,weight=1"):
                allocation = await client.allocate("b4", rates, objective=spec, gap=1e-3)
                problem = problem_of(rates, spec)
                splits = torch.from_numpy(np.array(allocation.splits)).to(torch.float64)
                np.testing.assert_allclose(problem.value(splits), allocation.value, rtol=1e-5)
                assert max(allocation.gap) <= 1e-3
                again = await client.allocate("b4", rates, objective=spec, gap=1e-3)
                assert max(again.gap) <= 1e-3
            fair = {"topology": "b4", "objective": "alpha_fair:alpha=2,weight=1"}
            await client.put_network("fair", fair["topology"], objective=fair["objective"])
            await client.wait_ready("fair")
            allocation = await client.allocate("fair", rates, gap=1e-3)
            problem = problem_of(rates, fair["objective"])
            splits = torch.from_numpy(np.array(allocation.splits)).to(torch.float64)
            np.testing.assert_allclose(problem.value(splits), allocation.value, rtol=1e-5)
            for wrong in (
                "alpha_fair:alpha=-1",
                "proportional_fair:weight=given",
                "weighted_flow",
                "priority",
                "fame",
            ):
                with pytest.raises(InvalidRequest, match="objective"):
                    await client.allocate("b4", rates, objective=wrong)

    run(work)


def test_an_answer_links_to_its_proof(tmp_path: Path) -> None:
    rates = rates_of()

    async def work() -> None:
        async with b4_service(tmp_path / "state") as client:
            asked: list[AllocationOptions] = [
                {},
                {"objective": "max_link_utilisation"},
                {"protect": "cables"},
                {"entries": 8},
            ]
            for options in asked:
                options.update({"gap": 1e-3, "prove": True})
                answer = await client.allocate("b4", rates, **options)
                folder = tmp_path / answer.id
                zipfile.ZipFile(io.BytesIO(await client.proof("b4", answer.id))).extractall(folder)
                groups = ["groups.csv"] if "protect" in options else []
                command = [
                    sys.executable,
                    "-I",
                    "check.py",
                    "network.csv",
                    "matrix.csv",
                    "proof.txt",
                    *groups,
                ]
                done = subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, check=True
                )
                low, high = (
                    float(x)
                    for x in done.stdout.partition("from ")[2].partition(",")[0].split(" to ")
                )
                value, bound = (low, high) if "objective" not in options else (high, low)
                assert value == pytest.approx(float(answer.value[0]), rel=1e-5)
                assert bound == pytest.approx(float(answer.bound[0]), rel=1e-5)
            plain = await client.allocate("b4", rates)
            with pytest.raises(ServiceFault, match="without prove"):
                await client.proof("b4", plain.id)
            for wrong in ("proportional_fair", "max_min"):
                with pytest.raises(InvalidRequest, match="prove"):
                    await client.allocate("b4", rates, prove=True, objective=wrong)
            with pytest.raises(InvalidRequest, match="a request with one matrix"):
                await client.allocate("b4", rates_of(2), prove=True)

    run(work)


@pytest.mark.parametrize("entries", [0, 8])
def test_answers_by_name_say_where_each_demand_goes(tmp_path: Path, entries: int) -> None:
    demands = [
        {"source": "1", "target": "12", "rate": 30_000.0},
        {"source": "4", "target": "2", "rate": 5.0},
    ]

    async def work() -> None:
        async with b4_service(tmp_path) as client:
            info = await client.network("b4")
            body = {"demands": demands, "gap": 1e-4, "entries": entries}
            response = await client._http.post("/v1/networks/b4/allocations", json=body)
            answer = AllocationAnswer.model_validate_json(response.content)
            assert answer.id == response.headers["x-request-id"]
            (allocation,) = answer.allocations
            assert isinstance(allocation, NamedAllocation)
            assert [(d.source, d.target, d.demand) for d in allocation.demands] == [
                ("1", "12", 3e4),
                ("4", "2", 5.0),
            ]
            admitted = [demand.admitted for demand in allocation.demands]
            assert admitted[0] < 30_000.0, "more than the network carries"
            assert allocation.value == pytest.approx(sum(admitted), rel=1e-4)
            assert allocation.shed == pytest.approx(30_005.0 - sum(admitted))
            load = np.zeros(38)
            for demand in allocation.demands:
                for path in demand.paths:
                    assert [path.nodes[0], path.nodes[-1]] == [demand.source, demand.target]
                    assert len(path.links) == len(path.nodes) - 1
                    for link, ends in zip(path.links, pairwise(path.nodes), strict=True):
                        assert (info.links[link].source, info.links[link].target) == ends
                    if entries:
                        assert path.weight
                        assert path.split is None
                        load[path.links] += demand.admitted * path.weight / entries
                    else:
                        assert path.split
                        load[path.links] += demand.demand * path.split
            used = np.array([one.utilisation for one in allocation.utilisation], np.float64)
            capacity = np.array([link.capacity for link in info.links])
            np.testing.assert_allclose(load / capacity, used, atol=1e-5)
            assert [one.link for one in allocation.utilisation] == list(range(38))
            again = await client._http.get(f"/v1/networks/b4/allocations/{answer.id}")
            assert again.content == response.content
            lost = await client._http.get("/v1/networks/b4/allocations/none")
            assert (lost.status_code, lost.json()["error"]) == (404, "unknown_allocation")
            Routes.model_validate_json((await client._http.get("/v1/networks/b4/paths")).content)
            Drawing.model_validate_json((await client._http.get("/v1/networks/b4/map")).content)

    run(work)


def test_a_request_with_a_key_is_answered_again_and_not_solved_again(tmp_path: Path) -> None:
    body = {"demands": [{"source": "1", "target": "12", "rate": 30.0}]}

    async def work() -> None:
        async with b4_service(tmp_path) as client:

            async def ask(key: str, **more: Any) -> Any:
                headers = {"Idempotency-Key": key}
                return await client._http.post(
                    "/v1/networks/b4/allocations", json={**body, **more}, headers=headers
                )

            first, second, other = await ask("one"), await ask("one"), await ask("two")
            assert first.content == second.content != other.content
            changed = await ask("one", gap=0.5)
            assert (changed.status_code, changed.json()["error"]) == (409, "key_used")
            recent = (await client._http.get("/v1/networks/b4/allocations")).json()["allocations"]
            assert [one["id"] for one in recent] == [first.json()["id"], other.json()["id"]]
            await client.put_network("b4", "b4", num_paths=2)
            await client.wait_ready("b4")
            anew = await ask("one")
            assert (await ask("one")).content == anew.content, "its first request keeps its key"
            assert anew.json()["id"] != first.json()["id"], (
                "the network registered now has its own answers"
            )

    run(work)


def test_link_changes_apply_from_the_next_request_and_survive_a_restart(tmp_path: Path) -> None:
    rates = rates_of(size=20_000)

    async def work() -> None:
        async with service(tmp_path) as client, service(tmp_path) as other:
            await client.put_network("b4", "b4")
            registered = (await client.wait_ready("b4"), await other.wait_ready("b4"))[0]
            numbers = [
                i
                for i, link in enumerate(registered.links)
                if {link.source, link.target} == {"1", "2"}
            ]
            assert len(numbers) == 2
            unchanged = await client.allocate("b4", rates)
            network = await client.change_link("b4", "1", "2", up=False)
            assert [network.links[i].in_force for i in numbers] == [0, 0]
            assert [network.links[i].capacity for i in numbers] == [5000, 5000]
            for instance in (
                client,
                other,
            ):  # another service on the same folder applies the change too
                failed = await instance.allocate("b4", rates)
                assert (failed.utilisation[:, numbers] == 0).all()
                assert failed.value[0] <= unchanged.value[0] * (1 + 1e-2)
            await other.change_link("b4", "1", "2", up=True)
            restored = await client.allocate("b4", rates)
            assert restored.value[0] >= unchanged.value[0] * 0.98
            assert (restored.utilisation[:, numbers] > 0).any()
            await client.change_link("b4", "2", "1", capacity=1.0)
            network = await other.network("b4")
            assert [network.links[i].in_force for i in numbers] == [1, 1]
        async with service(tmp_path) as later:
            network = await later.wait_ready("b4")
            assert [network.links[i].in_force for i in numbers] == [1, 1]
            with pytest.raises(InvalidRequest, match="unknown link"):
                await later.change_link("b4", "1", "12", up=False)
            await later.put_network("b4", "b4")
            network = await later.wait_ready("b4")
            assert [network.links[i].in_force for i in numbers] == [1, 1], (
                "the same network again changes nothing"
            )
            await later.put_network("b4", "b4", num_paths=3)
            network = await later.wait_ready("b4")
            assert [network.links[i].in_force for i in numbers] == [5000, 5000], (
                "another one has its own capacities"
            )

    run(work)


def test_parallel_links_are_restored_each_to_its_own_capacity(tmp_path: Path) -> None:
    topology = {
        "nodes": [{"id": "a"}, {"id": "b"}],
        "links": [
            {"source": s, "target": t, "capacity": c}
            for s, t in (("a", "b"), ("b", "a"))
            for c in (10.0, 100.0)
        ],
    }

    async def work() -> None:
        async with service(tmp_path) as client:
            await client.put_network("two", {"directed": True, "multigraph": True, **topology})
            before = (await client.wait_ready("two")).links
            assert [link.in_force for link in before] == [10, 100, 10, 100]
            down = await client.change_link("two", "a", "b", up=False, capacity=5.0)
            assert [link.in_force for link in down.links] == [0, 0, 0, 0]
            restored = await client.change_link("two", "a", "b", restore=True)
            assert restored.links == before
            with pytest.raises(InvalidRequest, match="restore alone"):
                await client.change_link("two", "a", "b", restore=True, up=True)

    run(work)


def test_engines_prepare_networks_registered_with_another_engine(tmp_path: Path) -> None:
    async def work() -> None:
        first, second = AllocationEngine(tmp_path), AllocationEngine(tmp_path)
        await first.put("b4", {"topology": "b4"})
        preparing = await second.sync_with_store()
        assert len(preparing) == 1
        await asyncio.wait(preparing)
        assert (await second.info("b4"))["state"] == "ready"
        assert await second.sync_with_store() == []
        third = AllocationEngine(tmp_path)  # a new engine prepares the network before any request
        assert len(await third.sync_with_store()) == 1
        await first.delete("b4")
        assert await second.sync_with_store() == []
        await asyncio.gather(
            *(task for task in asyncio.all_tasks() if task is not asyncio.current_task())
        )

    run(work)


@pytest.mark.slow
def test_simultaneous_requests_are_solved_in_one_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = AllocationEngine(tmp_path)

    async def work() -> None:
        async with b4_service(tmp_path, solver=solver) as client:
            rates_by_request = [rates_of(1 + seed % 3, seed) for seed in range(12)]
            with held_engine(monkeypatch) as engine:
                requests = [
                    asyncio.create_task(client.allocate("b4", rates, deadline_ms=60_000))
                    for rates in rates_by_request
                ]
                total = sum(len(rates) for rates in rates_by_request)
                await until(
                    lambda: sum(engine.batches) + sum(queued(solver, "b4")) == total,
                    "not all requests have arrived",
                )
                engine.allow()
                allocations: list[ServedAllocation] = await asyncio.gather(*requests)
            batches = sorted({allocation.batch for allocation in allocations})
            assert batches[-1] > 3
            assert batches[-1] <= 16
            for rates, allocation in zip(rates_by_request, allocations, strict=True):
                assert len(allocation.value) == len(rates), (
                    "each request gets the allocations of its own matrices"
                )
                exact = teal.solve(problem_of(rates), gap=1e-4)
                assert (allocation.value >= exact.value.numpy() * 0.99).all()
                assert (allocation.value <= exact.bound.numpy() * (1 + 1e-9)).all()
            mixed = await asyncio.gather(
                client.allocate("b4", rates_by_request[0]),
                client.allocate("b4", rates_by_request[0], objective="max_link_utilisation"),
            )
            assert mixed[0].value[0] > 100
            assert mixed[1].satisfied_demand[0] == pytest.approx(1.0)

    run(work)


def test_allocations_on_a_prepared_network_compile_nothing() -> None:
    network_state = NetworkState.prepare("b4", NetworkSpec(topology="b4"))
    compiled: list[Any] = [
        certificates.measure,
        certificates.certify,
        certificates.project_round,
        kernels.step,
    ]

    def signatures() -> list[int]:
        return [len(form.signatures) for kernel in compiled for form in kernel.dispatchers]

    before = signatures()
    for count in (1, 2, 9):  # a number of matrices for each number of lanes
        job = Job(
            rates_of(count),
            AllocationTask(ObjectiveName.TOTAL_FLOW),
            1e-2,
            time.perf_counter() + 60,
        )
        network_state.answer(network_state.solve(job), slice(0, count), 1e-2, 0, 0.0)
    assert signatures() == before


def test_a_request_at_its_deadline_gets_the_best_allocation_so_far(tmp_path: Path) -> None:
    solver = AllocationEngine(tmp_path)

    async def work() -> None:
        async with b4_service(tmp_path, solver=solver) as client:
            # As measured on a fast machine: on a busy one a request of a millisecond would be
            # refused.
            solver._registry.ready_state("b4").service_times.calibrate(
                single_program_task("total_flow"), 1e-6, None
            )
            allocation = await client.allocate(
                "b4", rates_of(16, size=30_000), gap=1e-9, deadline_ms=1
            )
            assert set(allocation.status) <= {"gap", "deadline"}
            assert "deadline" in allocation.status
            assert (allocation.value > 0).all()
            assert allocation.utilisation.max() <= 1 + 1e-6
            rounded = await client.allocate("b4", rates_of(2), entries=8)
            assert rounded.weights is not None
            assert set(rounded.weights.sum(-1).ravel().tolist()) <= {0, 8}
            assert rounded.utilisation.max() <= 1 + 1e-6

    run(work)


@pytest.mark.system
def test_the_example_controller_replays_traffic(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "docs" / "examples" / "controller.py"
    with listening(tmp_path) as address:
        arguments = [
            "--service",
            address,
            "--topology",
            "b4",
            "--traffic",
            "gravity:count=5,load=4",
            "--count",
            "3",
        ]
        process = subprocess.run(
            [sys.executable, str(example), *arguments, "--interval", "0.3"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        with Client(address) as client:
            assert client.networks() == ["replay"]
            client.change_link("replay", "1", "2", up=False)
            with pytest.raises(InvalidRequest):
                client.allocate("replay", np.full((1, 132), np.nan))
            client.delete_network("replay")
            assert client.networks() == []
    assert process.returncode == 0, process.stderr
    lines = [line for line in process.stdout.splitlines() if "certified gap" in line]
    assert len(lines) == 3
    with Client(address) as client, pytest.raises(Unreachable):
        client.networks()
