"""Background path generation: added paths leave the meaning of earlier answers unchanged."""

from __future__ import annotations

import asyncio
import errno
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teal
from teal.network import PathSet, all_pairs, compute_paths
from teal.network.path_file import save_paths
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.runtime.arrays import FloatArray
from teal.solvers.candidates import more_paths
from teal.testing import make_topology
from teal_serve.engine import path_growth, registry
from teal_serve.engine.allocation_task import AllocationTask, resolve_demand_values
from teal_serve.engine.engine import AllocationEngine
from teal_serve.engine.network_state import AddedPaths, Job, NetworkState
from teal_serve.engine.path_growth import PathGrowth, with_missing_paths
from teal_serve.engine.registry import RegistryEntry
from teal_serve.engine.requests import NetworkSpec
from teal_serve.engine.store import Store, Version
from tests.gate import PATIENCE_S
from tests.teal_serve.service import rates_of, run, service, until

# One path a demand to begin with, so that there is much to add.
_SPARSE = {"num_paths": "auto", "max_paths": 6, "gap": 0.001}


def _lists(paths: PathSet) -> list[list[list[int]]]:
    return [
        [paths.links_of(d, k) for k in np.flatnonzero(paths.mask[d]).tolist()]
        for d in range(paths.num_demands)
    ]


def _problem(load: float, num_paths: int = 1) -> Problem:
    topology = teal.load_topology("b4")
    paths = compute_paths(topology, all_pairs(topology), num_paths=num_paths, cache=False)
    demand = teal.load_traffic(f"gravity:seed=2,count=1,load={load}", topology).read([0])
    return Problem.create(topology, paths, Objective(), demand)


def test_paths_are_added_behind_those_that_there_are() -> None:
    problem = _problem(load=8)
    more = more_paths(problem, gap=0.01, max_paths=3)
    for before, after in zip(_lists(problem.paths), _lists(more), strict=True):
        assert after[: len(before)] == before
        assert len(after) <= 3
    assert more.mask.sum() > problem.paths.mask.sum()
    assert more_paths(problem, gap=0.01, max_paths=1) is problem.paths, "no demand may have more"


def test_nothing_is_added_where_little_is_missing() -> None:
    problem = _problem(load=8)
    enough = more_paths(problem, gap=0.01, max_paths=8)
    assert more_paths(problem.with_paths(enough), gap=0.01, max_paths=8) is enough
    idle = _problem(load=0.5)
    assert more_paths(idle, gap=0.01, max_paths=8) is idle.paths


async def _wait_for_paths(solver: AllocationEngine, before: int) -> None:
    """Wait until B4 has more paths than before."""

    def has_more() -> bool:
        network_state = solver._registry.get("b4").network_state
        return network_state is not None and int(network_state.paths.mask.sum()) > before

    await until(has_more, "no paths were added")


def test_a_service_adds_paths_and_every_earlier_answer_keeps_its_meaning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "teal_serve.engine.network_state._GENERATED_TRAFFIC",
        "gravity:seed=0,load=0.01,count={count}",
    )
    monkeypatch.setattr("teal_serve.engine.requests.FIRST_PATHS", 1)
    rates = rates_of(size=60_000)

    async def work() -> None:
        solver = AllocationEngine(tmp_path, grow_every_s=0.0)
        async with service(tmp_path, solver=solver) as client:
            await client.put_network("b4", "b4", **_SPARSE)
            network = await client.wait_ready("b4")
            before = (await client.paths("b4")).paths
            first = await client.allocate("b4", rates)
            assert first.splits.shape[2] == 1
            await _wait_for_paths(solver, network.paths or 0)
            after = (await client.paths("b4")).paths
            assert all(new[: len(old)] == old for old, new in zip(before, after, strict=True))
            second = await client.allocate("b4", rates)
            assert second.splits.shape[2] > 1
            assert second.value[0] > 1.01 * first.value[0]
            calm = await client.allocate("b4", rates, previous=first.id, max_churn=0.0)
            np.testing.assert_allclose(calm.splits[0, :, 1:], 0, atol=1e-6)
            stable = (await client.network("b4")).paths
            for _ in range(3):
                await client.allocate("b4", rates)
            assert (await client.network("b4")).paths == stable, "no path is missing any more"
        async with service(tmp_path, solver=AllocationEngine(tmp_path, grow_every_s=1e9)) as client:
            assert (await client.wait_ready("b4")).paths == stable, "after a restart"
            assert (await client.paths("b4")).paths == after
            await client.delete_network("b4")
        assert not list(tmp_path.rglob("*.npz"))

    run(work)


def test_an_interval_that_follows_added_paths_is_allocated_over_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("teal_next", reason="needs the package teal_next")
    monkeypatch.setattr(
        "teal_serve.engine.network_state._GENERATED_TRAFFIC",
        "gravity:seed=0,load=0.01,count={count}",
    )
    monkeypatch.setattr("teal_serve.engine.requests.FIRST_PATHS", 1)
    rates = rates_of(3, size=60_000)

    async def work() -> None:
        solver = AllocationEngine(tmp_path, grow_every_s=1e9)
        async with service(tmp_path, solver=solver) as client:
            await client.put_network("b4", "b4", **_SPARSE)
            network = await client.wait_ready("b4")
            await client.measure("b4", rates[:1], np.datetime64("2026-01-01T00:00:00"))
            narrow = await client.allocate_next("b4")
            solver._path_growth._interval_s = 0.0
            await client.measure("b4", rates[1:2], np.datetime64("2026-01-01T00:05:00"))
            await _wait_for_paths(solver, network.paths or 0)
            await client.measure("b4", rates[2:], np.datetime64("2026-01-01T00:10:00"))
            wide = await client.allocate_next("b4")
            assert narrow.splits.shape[2] == 1 < wide.splits.shape[2]
            assert wide.splits[..., 1:].any()

    run(work)


def test_a_damaged_file_of_paths_leaves_the_network_as_it_is(tmp_path: Path) -> None:
    async def work() -> None:
        async with service(tmp_path, solver=AllocationEngine(tmp_path, grow_every_s=1e9)) as client:
            await client.put_network("b4", "b4")
            network = await client.wait_ready("b4")
            links = tmp_path / "b4.links.json"
            links.write_text(
                json.dumps({"generation": network.generation, "links": {}, "paths": 1})
            )
            folder = tmp_path / "b4.paths"
            folder.mkdir()
            (folder / f"{network.generation}.npz").write_bytes(b"no")
            for _ in range(3):
                assert (await client.allocate("b4", rates_of())).status == ("gap",)
            assert (await client.network("b4")).paths == network.paths

    run(work)


def test_a_change_of_links_keeps_the_paths_that_were_added(tmp_path: Path) -> None:
    topology = make_topology([(0, 1, 1.0)], both=True)
    store, network = Store(tmp_path), {"topology": "x"}
    store.put("b4", network)
    paths = compute_paths(topology, cache=False)
    assert store.write_paths("b4", store.read("b4").generation, paths, expected_version=0)
    assert store.read("b4").paths_version == 1
    assert not store.write_paths("b4", store.read("b4").generation, paths, expected_version=0), (
        "found before the first were added"
    )
    store.change_links("b4", {"0": {"up": False}}, network)
    assert store.read("b4").links == {"0": {"up": False}}
    assert store.read("b4").paths_version == 1, "a reload takes the stored paths"


def test_paths_are_added_for_the_traffic_of_all_classes() -> None:
    problem = _problem(load=8)
    network = RegistryEntry(
        Version(0, 0), NetworkSpec.model_validate({"topology": "b4", **_SPARSE}), ""
    )
    network_state, none = (
        NetworkState(problem.topology, problem.paths),
        np.zeros(problem.paths.num_demands),
    )
    all_rates = problem.demand[0].numpy()
    for rates in (np.concatenate([all_rates, none]), np.concatenate([none, all_rates])):
        paths = with_missing_paths(network_state, network, rates)
        assert paths is not None
        assert paths.mask.sum() > problem.paths.mask.sum()
    assert with_missing_paths(network_state, network, np.concatenate([none, none])) is None


def test_paths_are_added_by_the_weights_of_the_network() -> None:
    problem = _problem(load=8)
    weighted = {
        "topology": "b4",
        "objective": "weighted_flow",
        "weights": [{"source": "1", "target": "2", "weight": 9.0}],
        **_SPARSE,
    }
    spec = NetworkSpec.model_validate(weighted)
    network = RegistryEntry(Version(0, 0), spec, "")
    demand_values = resolve_demand_values(problem.topology, problem.paths, spec)
    network_state, rates = (
        NetworkState(problem.topology, problem.paths, demand_values),
        problem.demand[0].numpy(),
    )
    paths = with_missing_paths(network_state, network, rates)
    assert paths is not None
    assert paths.mask.sum() > problem.paths.mask.sum()


def _detour() -> dict[str, Any]:
    """From a to d the shortest path, the only candidate, crosses the cable a-b; without it, the way
    over c is left."""
    nodes = [{"id": name} for name in "abcd"]
    cables = [("a", "b"), ("b", "d"), ("a", "c"), ("c", "b")]
    links = [
        {"source": s, "target": t, "capacity": 10.0}
        for pair in cables
        for s, t in (pair, pair[::-1])
    ]
    return {"directed": True, "multigraph": True, "nodes": nodes, "links": links}


def test_a_demand_that_the_network_still_connects_is_carried_after_a_failure(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with service(tmp_path, solver=AllocationEngine(tmp_path, grow_every_s=1e9)) as client:
            await client.put_network("n", _detour(), num_paths=1)
            network = await client.wait_ready("n")
            rates = np.ones((1, network.demands or 0))
            assert (await client.allocate("n", rates)).satisfied_demand[0] == pytest.approx(1)
            await client.change_link("n", "a", "b", up=False)
            found = None

            async def carried() -> bool:
                nonlocal found
                found = await client.allocate("n", rates)
                return float(found.satisfied_demand[0]) == pytest.approx(1)

            for _ in range(200):
                if await carried():
                    break
                await asyncio.sleep(0.05)
            else:
                raise AssertionError("the demands around the failed cable are not carried")
            before = (await client.paths("n")).paths
        async with service(tmp_path, solver=AllocationEngine(tmp_path, grow_every_s=1e9)) as client:
            await client.wait_ready("n")
            assert (await client.paths("n")).paths == before, "after a restart"
            assert (await client.allocate("n", rates)).satisfied_demand[0] == pytest.approx(1)

    run(work)


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("with_more_paths", RuntimeError("a fault of the program")),
        ("write_paths", RuntimeError("a fault of the program")),
        ("with_more_paths", OSError(errno.EMFILE, "Too many open files")),
    ],
)
def test_one_failure_in_the_background_does_not_keep_paths_from_a_network(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step: str,
    error: Exception,
) -> None:
    owner = NetworkState if step == "with_more_paths" else Store
    whole, failures = getattr(owner, step), [error]

    def fail_once(*arguments: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return whole(*arguments, **options)

    monkeypatch.setattr(owner, step, fail_once)
    monkeypatch.setattr(path_growth, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(registry, "_FIRST_PAUSE_S", 0.01)

    async def work() -> None:
        async with service(tmp_path, solver=AllocationEngine(tmp_path, grow_every_s=1e9)) as client:
            await client.put_network("n", _detour(), num_paths=1)
            network = await client.wait_ready("n")
            rates = np.ones((1, network.demands or 0))
            await client.change_link("n", "a", "b", up=False)
            for _ in range(200):
                answer = await client.allocate("n", rates)
                if answer.satisfied_demand[0] == pytest.approx(1):
                    break
                await asyncio.sleep(0.05)
            else:
                raise AssertionError("the demands around the failed cable are not carried")

    run(work)
    assert not failures
    traces = [record.exc_info for record in caplog.records if record.exc_info]
    assert bool(traces) == isinstance(error, RuntimeError), "of faults of the program alone"


def test_paths_are_taken_while_the_engine_works(tmp_path: Path) -> None:
    """The solver thread and the thread that loads paths work on one network at the same time."""
    topology = make_topology([(0, 1, 1.0), (1, 2, 1.0), (0, 2, 1.0)], both=True)
    wider = AddedPaths(1, tmp_path / "paths.npz")
    save_paths(wider.file, compute_paths(topology, num_paths=2, cache=False))
    network_state = NetworkState(topology, compute_paths(topology, num_paths=1, cache=False))
    spec = NetworkSpec.model_validate({"topology": "b4"})
    programs = [
        AllocationTask(ObjectiveName.TOTAL_FLOW),
        AllocationTask(ObjectiveName.MAX_LINK_UTILISATION),
    ]
    has_ended = threading.Event()

    def solve() -> None:
        while not has_ended.is_set():
            for task in programs:
                job = Job(np.ones((1, 6)), task, 0.1, time.perf_counter() + 60)
                network_state.solve(job)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as engine:
            solving = engine.submit(solve)
            try:
                extended = [network_state.with_more_paths(wider, spec) for _ in range(400)]
            finally:
                has_ended.set()
            solving.result()
    finally:
        sys.setswitchinterval(before)

    job = Job(np.ones((1, 6)), programs[0], 1e-6, time.perf_counter() + 60)
    solved = extended[-1].begin(job)
    solved.advance()
    assert solved.result.kind.is_warm, "it goes on where the last allocation ended"
    assert extended[-1].solve(job).assessment.gap[0] <= 1e-6
    narrow = network_state.solve(job)
    assert narrow.kind.is_warm, "a request that waited for the first paths does too"
    assert narrow.assessment.gap[0] <= 1e-6


def test_requests_for_the_network_of_before_see_every_change_of_its_links(tmp_path: Path) -> None:
    """Requests wait while paths are added, and then a link fails."""
    topology = make_topology([(0, 1, 1.0), (1, 2, 1.0), (0, 2, 1.0)], both=True)
    file = tmp_path / "paths.npz"
    save_paths(file, compute_paths(topology, num_paths=2, cache=False))
    spec = NetworkSpec.model_validate({"topology": "b4"})
    narrow = NetworkState(topology, compute_paths(topology, num_paths=1, cache=False))
    network = RegistryEntry(Version(0, 0), spec, "", narrow)
    network.network_state = narrow.with_more_paths(AddedPaths(1, file), spec)
    network.links = {"0": {"up": False}}
    network.apply_capacity(network.network_state)

    job = Job(
        np.ones((1, 6)), AllocationTask(ObjectiveName.TOTAL_FLOW), 1e-6, time.perf_counter() + 60
    )
    for network_state in (narrow, network.network_state):
        assert network_state.capacity[0] == 0
        assert network_state.solve(job).assessment.utilisation[0, 0] == 0


def test_no_paths_are_added_to_fewer_than_are_stored(tmp_path: Path) -> None:
    """Others were stored behind the paths that are served: theirs would get other columns."""
    topology = make_topology([(0, 1, 1.0)], both=True)
    store = Store(tmp_path)
    store.put("n", {"topology": "x"})
    generation = store.read("n").generation
    paths = compute_paths(topology, cache=False)
    assert store.write_paths("n", generation, paths, expected_version=0)

    async def work() -> None:
        spec = NetworkSpec.model_validate({"topology": "b4"})
        network = RegistryEntry(Version(0, 0), spec, generation, NetworkState(topology, paths))
        growing = PathGrowth(store)
        # Not even where this process has not heard of them.
        assert not await growing._extend_paths(
            "n", network, lambda network_state: network_state.paths
        )
        network.paths_version = 1
        assert not await growing._extend_paths(
            "n", network, lambda network_state: pytest.fail("looked for more")
        )

    run(work)
    assert store.read("n").paths_version == 1


def test_paths_that_are_added_while_an_interval_is_allocated_take_nothing_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request has begun over fewer paths than the allocation has that it is answered with."""
    service_part = pytest.importorskip("teal_next.service", reason="needs the package teal_next")
    has_begun, may_end = threading.Event(), threading.Event()
    allocate = service_part.NextInterval.allocate

    def held(self: Any, problem: Problem) -> Any:
        has_begun.set()
        assert may_end.wait(PATIENCE_S)
        return allocate(self, problem)

    async def work() -> None:
        solver = AllocationEngine(tmp_path, grow_every_s=1e9)
        async with service(tmp_path, solver=solver) as client:
            await client.put_network("n", _detour(), num_paths=1)
            pairs = (await client.wait_ready("n")).demands or 0
            begin = np.datetime64("2026-01-01T00:00:00")
            monkeypatch.setattr(service_part.NextInterval, "allocate", held)
            await client.measure("n", np.ones((1, pairs)), begin)
            asking = asyncio.create_task(client.allocate_next("n", deadline_ms=60_000))
            await until(has_begun.is_set, "the allocation has not begun")
            await client.change_link("n", "a", "b", up=False)
            solver._path_growth.reconnect("n", solver._registry.get("n"))

            def has_more() -> bool:
                return solver._registry.get("n").network_state.paths.num_paths > 1  # type: ignore[union-attr]

            await until(has_more, "no paths were added")
            may_end.set()
            answer = await asking
            assert answer.splits.shape[2] == 2
            np.testing.assert_allclose(answer.splits.sum(-1), 1, atol=1e-5)
            down = [link.in_force == 0 for link in (await client.network("n")).links]
            assert (answer.utilisation[0, down] == 0).all()
            assert len(solver._next_interval_runs) == 0, "nothing is computed again and again"

    run(work)


def test_paths_grow_for_the_newest_matrix_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates, seen = np.array([[1.0, 0.0], [0.0, 2.0]]), list[list[float]]()

    def look(network_state: NetworkState, network: RegistryEntry, matrix: FloatArray) -> None:
        seen.append(matrix.tolist())

    monkeypatch.setattr(path_growth, "with_missing_paths", look)

    async def work() -> None:
        spec = NetworkSpec.model_validate({"topology": "b4", **_SPARSE})
        topology = make_topology([(0, 1, 1.0)], both=True)
        network = RegistryEntry(
            Version(0, 0), spec, "", NetworkState(topology, compute_paths(topology, cache=False))
        )
        PathGrowth(Store(tmp_path), interval_s=0.0).record_traffic("b4", network, rates)
        await until(lambda: bool(seen), "nothing was looked at")

    run(work)
    assert seen == [[0.0, 2.0]]
