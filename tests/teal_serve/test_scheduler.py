"""Time slices against solves without them, and the guarantee: an answer by the deadline plus a
slice.
"""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path

import numpy as np
import pytest

from tests.solvers.engine_times import prefer

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

import teal
from teal.objectives import ObjectiveName
from teal.problem.protection import Protection
from teal.solvers.result import Stop
from teal_serve.client import AsyncClient, InvalidRequest, Overloaded
from teal_serve.engine.allocation_task import AllocationTask
from teal_serve.engine.answer import Answer, merge_answers
from teal_serve.engine.engine import AllocationEngine
from teal_serve.engine.network_state import NetworkState
from teal_serve.engine.queue import Chunk, Queue, QueuedRequest
from teal_serve.engine.requests import Options
from teal_serve.engine.scheduler import Scheduler, solve_slice
from teal_serve.engine.service_times import ServiceTimeEstimate
from tests.teal_serve.service import (
    b4_network_state,
    b4_service,
    held_engine,
    problem_of,
    queued,
    rates_of,
    run,
    service,
    until,
)


@pytest.fixture
def network_state() -> NetworkState:
    return b4_network_state()


_TASK = AllocationTask(ObjectiveName.TOTAL_FLOW)
_PROMISES = "promises"
_ALL = [
    _TASK,
    AllocationTask(ObjectiveName.MAX_MIN),
    _PROMISES,
    AllocationTask(ObjectiveName.PRIORITY, limits=(math.inf, math.inf)),
]


def _request(
    network_state: NetworkState,
    count: int,
    deadline_s: float,
    gap: float = 1e-2,
    entries: int = 0,
    task: AllocationTask = _TASK,
) -> QueuedRequest:
    now, answer = time.perf_counter(), asyncio.get_running_loop().create_future()
    classes = max(1, len(task.limits))
    rates = np.concatenate(
        [rates_of(count, size=30_000, seed=number) for number in range(classes)], 1
    )
    options = Options(
        deadline_ms=1e3,
        entries=entries,
        classes=[str(number) for number in range(len(task.limits))],
    )
    return QueuedRequest(
        network_state, "", rates, options, task, gap, now, now + deadline_s, answer
    )


def _slices(network_state: NetworkState, chunk: Chunk) -> tuple[Answer, int]:
    """Answer to a chunk, and the number of slices it took."""
    count = 1
    while (answer := solve_slice(network_state, [chunk], None)[0]) is None:
        count += 1
    return answer, count


@pytest.mark.system
@pytest.mark.parametrize("given", _ALL)
def test_slices_change_nothing_but_when_the_answer_is_there(
    network_state: NetworkState, given: AllocationTask | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Interior points solve a matrix at once; PDHG can pause.
    prefer(monkeypatch, "pdhg")

    async def work() -> None:
        chunks = []
        task = _promising(network_state) if isinstance(given, str) else given
        for _ in range(2):
            request = _request(network_state, 2, 300.0, gap=1e-3, task=task)
            request.num_open_chunks = 1
            chunks.append(Chunk(request, slice(0, 2)))
        other = b4_network_state()
        other.service_times.slice_s = 300.0
        whole, one = _slices(other, chunks[0])
        monkeypatch.setattr(
            network_state.service_times, "slice_s", 0.0
        )  # each slice ends after an iteration
        monkeypatch.setattr(
            network_state.service_times, "record_overrun", lambda seconds, slice_s: None
        )
        parts, many = _slices(network_state, chunks[1])
        assert (one, parts.status) == (1, whole.status)
        assert many > (1 if task.conditions else 5), (
            "promises are solved at once, which cannot pause within a matrix"
        )
        np.testing.assert_array_equal(parts.splits, whole.splits)
        np.testing.assert_array_equal(parts.bound, whole.bound)

    run(work)


def _promising(network_state: NetworkState) -> AllocationTask:
    protection = Protection.of(
        network_state.network(_TASK).ops,
        network_state.topology.num_links,
        network_state.topology.cables(),
    )
    return AllocationTask(ObjectiveName.TOTAL_FLOW, conditions=(protection,))


def test_a_run_that_a_link_failure_interrupts_begins_anew(
    network_state: NetworkState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_state.service_times, "slice_s", 0.0)
    monkeypatch.setattr(
        network_state.service_times, "record_overrun", lambda seconds, slice_s: None
    )

    async def work() -> None:
        request = _request(network_state, 1, 300.0, gap=1e-4)
        request.num_open_chunks = 1
        chunk = Chunk(request, slice(0, 1))
        assert solve_slice(network_state, [chunk], None) == [None]
        is_third = np.arange(len(network_state.capacity)) == 3
        network_state.shared.capacity = np.where(is_third, 0.0, network_state.capacity)
        answer, _ = _slices(network_state, chunk)
        assert answer.utilisation[0, 3] == 0

    run(work)


def test_a_request_that_nobody_waits_for_is_left_within_an_iteration(
    network_state: NetworkState,
) -> None:
    network_state.service_times.slice_s = 3_000.0

    async def work() -> None:
        request = _request(
            network_state, 2, 3_000.0, gap=0.0, task=AllocationTask(ObjectiveName.MAX_MIN)
        )
        request.num_open_chunks = 1
        asyncio.get_running_loop().call_soon(request.answer.cancel)
        assert await asyncio.to_thread(
            solve_slice, network_state, [Chunk(request, slice(0, 2))], None
        ) == [None]

    run(work)


def test_slices_are_as_long_as_what_cannot_pause(network_state: NetworkState) -> None:
    before = network_state.service_times.slice_s
    network_state.service_times.record_overrun(3 * before, before)
    assert network_state.service_times.slice_s == 3 * before, "as long as an iteration took"
    for _ in range(4):
        network_state.service_times.record_overrun(0.0, before)
    assert network_state.service_times.slice_s == before, "it was slowed down by something else"


def test_short_deadlines_of_others_do_not_make_slices_longer(network_state: NetworkState) -> None:
    async def work() -> None:
        before = network_state.service_times.slice_s
        for _ in range(4):
            short, long = (
                _request(network_state, 1, 0.0015, gap=1e-12),
                _request(network_state, 1, 60.0, gap=1e-12),
            )
            short.num_open_chunks = long.num_open_chunks = 1
            solve_slice(network_state, [Chunk(short, slice(0, 1)), Chunk(long, slice(0, 1))], None)
        assert network_state.service_times.slice_s == before

    run(work)


def test_a_request_whose_time_is_up_gets_what_there_is(network_state: NetworkState) -> None:
    async def work() -> None:
        request = _request(network_state, 1, -1.0, gap=1e-9)
        request.num_open_chunks = 1
        (answer,) = solve_slice(network_state, [Chunk(request, slice(0, 1))], None)
        assert answer is not None
        assert answer.status == (Stop.DEADLINE.value,)

    run(work)


@pytest.mark.parametrize("entries", [0, 8])
def test_the_chunks_of_a_request_make_one_answer(network_state: NetworkState, entries: int) -> None:
    async def work() -> None:
        request = _request(network_state, 37, 300.0, entries=entries)
        queue = Queue()
        queue.add(request)
        assert request.num_open_chunks == 3
        while batch := queue.pop_batch():
            for chunk, answer in zip(batch, solve_slice(network_state, batch, None), strict=True):
                assert answer is not None
                request.chunk_answers[chunk.rows.start] = answer
        answer = merge_answers(request.chunk_answers)
        assert len(answer.value) == len(answer.splits) == len(answer.status) == 37
        assert (answer.weights is not None) == bool(entries)
        exact = teal.solve(problem_of(request.rates), gap=1e-4)
        slack = 0.2 if entries else 0.0101
        np.testing.assert_array_less(exact.value.numpy() * (1 - slack), answer.value)
        np.testing.assert_array_less(answer.value, exact.bound.numpy() * (1 + 1e-6))

    run(work)


def test_a_request_waits_for_one_slice_of_a_hog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        solver = AllocationEngine(tmp_path)
        async with b4_service(tmp_path, solver=solver) as client:
            with held_engine(monkeypatch) as engine:
                hog = asyncio.create_task(
                    client.allocate("b4", rates_of(200), gap=1e-9, deadline_ms=600_000)
                )
                await until(lambda: engine.held == 16, "the engine has no chunk of the hog")
                soon = asyncio.create_task(_ask(client))
                await until(lambda: 1 in queued(solver, "b4"), "the second request does not wait")
                engine.allow(2)
                await asyncio.wait({soon})
                assert engine.batches[:2] == [16, 1], (
                    "after one slice of the hog comes the earlier deadline"
                )
                assert soon.result() == "gap"
                assert not hog.done()
                hog.cancel()
                await asyncio.wait({hog})
                engine.allow()

    async def _ask(client: AsyncClient) -> str:
        return str((await client.allocate("b4", rates_of(1, seed=5), deadline_ms=60_000)).status[0])

    run(work)


def test_one_client_leaves_places_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        solver = AllocationEngine(tmp_path, max_queued=8)
        async with service(tmp_path, solver=solver, tokens=_TOKENS, sent=_TOKENS[0]) as hog:
            await hog.put_network("b4", "b4")
            await hog.wait_ready("b4")
            with held_engine(monkeypatch) as engine:
                asked = [
                    asyncio.create_task(hog.allocate("b4", rates_of(16), deadline_ms=60_000))
                    for _ in range(20)
                ]
                # One is in the engine, unless all that were let in still waited then.
                await until(
                    lambda: bool(engine.held) and sum(task.done() for task in asked) >= 13,
                    "six or seven let in",
                )
                other = AsyncClient("http://test", _TOKENS[1], transport=hog._http._transport)
                mine = asyncio.create_task(other.allocate("b4", rates_of(1), deadline_ms=60_000))
                await until(lambda: 1 in queued(solver, "b4"), "the other client is not let in")
                engine.allow()
                assert (await mine).status == ("gap",)
                answers = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(answer, Overloaded) for answer in answers) in (13, 14)

    run(work)


def test_requests_that_would_be_late_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        solver = AllocationEngine(tmp_path)
        async with b4_service(tmp_path, solver=solver) as client:
            network_state = solver._registry.ready_state("b4")
            monkeypatch.setattr(network_state.service_times, "_min_s", {})
            monkeypatch.setattr(network_state.service_times, "_fixed_share", 0.4)
            monkeypatch.setattr(network_state.service_times, "_mean_s", {_TASK.kind: 10.0})
            with pytest.raises(
                Overloaded
            ):  # an estimate: it may be too high, so that the client may try again
                await client.allocate("b4", rates_of(64), deadline_ms=1_000)
            network_state.service_times.record(
                1, _TASK, 10.0
            )  # as if an answer had never taken less
            with pytest.raises(InvalidRequest, match="even without other requests"):
                await client.allocate("b4", rates_of(64), deadline_ms=1_000)
            monkeypatch.setattr(network_state.service_times, "_min_s", {})
            with held_engine(monkeypatch) as engine:
                first = asyncio.create_task(
                    client.allocate("b4", rates_of(16), deadline_ms=300_000)
                )
                await until(lambda: engine.held == 16, "the first one in the engine")
                with pytest.raises(Overloaded) as refused:
                    await client.allocate("b4", rates_of(16), gap=1e-3, deadline_ms=30_000)
                assert refused.value.retry_after_s >= 1
                engine.allow()
                assert set((await first).status) == {"gap"}

    run(work)


_TOKENS = "the-first-token-of-two", "the-second-token-of-two"


def test_each_part_of_a_large_request_has_its_share_of_the_time_that_is_left(
    network_state: NetworkState,
) -> None:
    async def work() -> None:
        request = _request(network_state, 1, 300.0)
        request.num_open_chunks = 3
        chunk = Chunk(request, slice(0, 1))
        assert solve_slice(network_state, [chunk], None)[0] is not None
        assert chunk.end_time - chunk.begin_time == pytest.approx(
            (request.deadline - chunk.begin_time) / 3
        )

    run(work)


def test_the_time_to_write_an_answer_is_part_of_the_time_until_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = ServiceTimeEstimate()
    for _ in range(60):
        times.record_writing(2_000, True, 4_000.0)
        times.record_writing(1_320, False, 1_320.0)
        times.record_writing(20, True, 1e9)  # it waited for something else
    assert times.writing_s(10, True) == pytest.approx(20.0, rel=1e-4)
    solver, left, solve = AllocationEngine(tmp_path), [], Scheduler.solve

    async def noted(self: Scheduler, request: QueuedRequest) -> Answer:
        left.append(request.deadline - request.arrival_time)
        return await solve(self, request)

    async def work() -> None:
        async with b4_service(tmp_path, solver=solver) as client:
            solver._registry.ready_state("b4").service_times._writing_s = dict(times._writing_s)
            monkeypatch.setattr(Scheduler, "solve", noted)
            demands = [{"source": "1", "target": str(node), "rate": 1.0} for node in range(2, 12)]
            body = {"demands": demands, "deadline_ms": 300_000}
            named = await client._http.post("/v1/networks/b4/allocations", json=body)
            assert len(named.json()["allocations"][0]["demands"]) == 10
            await client.allocate("b4", rates_of(1), deadline_ms=300_000)
        assert left == pytest.approx([300 - 20, 300 - 132], rel=1e-3)

    run(work)
