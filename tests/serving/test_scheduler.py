"""Slices of the engine's time against solves without them, and the promise: an answer by the
deadline plus a slice."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

import teal
from teal.client import AsyncClient, InvalidRequest, Overloaded
from teal.objectives import ObjectiveName
from teal.problem.protection import Protection
from teal.serving.engine.answer import Answer, joined
from teal.serving.engine.least_time import LeastTimes
from teal.serving.engine.queue import Chunk, Queue, Waiting
from teal.serving.engine.requests import Options
from teal.serving.engine.scheduler import Scheduler, solve_slice
from teal.serving.engine.served import Served
from teal.serving.engine.solver import Solver
from teal.serving.engine.wanted import Wanted
from teal.solvers.pdhg import Stop
from tests.serving.service import (
    b4_served,
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
def served() -> Served:
    return b4_served()


_PLAIN = Wanted(ObjectiveName.TOTAL_FLOW)
_PROMISES = "promises"
_ALL = [
    _PLAIN,
    Wanted(ObjectiveName.MAX_MIN),
    _PROMISES,
    Wanted(ObjectiveName.PRIORITY, limits=(math.inf, math.inf)),
]


def _request(
    served: Served,
    count: int,
    deadline_s: float,
    gap: float = 1e-2,
    entries: int = 0,
    wanted: Wanted = _PLAIN,
) -> Waiting:
    now, answer = time.perf_counter(), asyncio.get_running_loop().create_future()
    classes = max(1, len(wanted.limits))
    rates = np.concatenate(
        [rates_of(count, size=30_000, seed=number) for number in range(classes)], 1
    )
    options = Options(
        deadline_ms=1e3,
        entries=entries,
        classes=[str(number) for number in range(len(wanted.limits))],
    )
    return Waiting(served, "", rates, options, wanted, gap, now, now + deadline_s, answer)


def _slices(served: Served, chunk: Chunk) -> tuple[Answer, int]:
    """The answer to a chunk, and after how many slices it was there."""
    count = 1
    while (answer := solve_slice(served, [chunk], None)[0]) is None:
        count += 1
    return answer, count


@pytest.mark.system
@pytest.mark.parametrize("given", _ALL)
def test_slices_change_nothing_but_when_the_answer_is_there(
    served: Served, given: Wanted | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Interior points solve a matrix at once; PDHG can pause.
    monkeypatch.setattr(
        "teal.solvers.interior.engine.pdhg_iterations_before", lambda *_, **__: None
    )

    async def work() -> None:
        chunks = []
        wanted = _promising(served) if isinstance(given, str) else given
        for _ in range(2):
            request = _request(served, 2, 300.0, gap=1e-3, wanted=wanted)
            request.chunks = 1
            chunks.append(Chunk(request, slice(0, 2)))
        other = b4_served()
        other.times.slice_s = 300.0
        whole, one = _slices(other, chunks[0])
        monkeypatch.setattr(served.times, "slice_s", 0.0)  # each slice ends after an iteration
        monkeypatch.setattr(served.times, "note_overrun", lambda seconds, slice_s: None)
        parts, many = _slices(served, chunks[1])
        assert (one, parts.status) == (1, whole.status)
        assert many > (1 if wanted.conditions else 5), (
            "promises are solved at once, which cannot pause within a matrix"
        )
        np.testing.assert_array_equal(parts.splits, whole.splits)
        np.testing.assert_array_equal(parts.bound, whole.bound)

    run(work)


def _promising(served: Served) -> Wanted:
    protection = Protection.of(
        served.network(_PLAIN).ops, served.topology.num_links, served.topology.cables()
    )
    return Wanted(ObjectiveName.TOTAL_FLOW, conditions=(protection,))


def test_a_run_that_a_link_failure_interrupts_begins_anew(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.times, "slice_s", 0.0)
    monkeypatch.setattr(served.times, "note_overrun", lambda seconds, slice_s: None)

    async def work() -> None:
        request = _request(served, 1, 300.0, gap=1e-4)
        request.chunks = 1
        chunk = Chunk(request, slice(0, 1))
        assert solve_slice(served, [chunk], None) == [None]
        is_third = np.arange(len(served.capacity)) == 3
        served.lineage.capacity = np.where(is_third, 0.0, served.capacity)
        answer, _ = _slices(served, chunk)
        assert answer.utilisation[0, 3] == 0

    run(work)


def test_a_request_that_nobody_waits_for_is_left_within_an_iteration(served: Served) -> None:
    served.times.slice_s = 3_000.0

    async def work() -> None:
        request = _request(served, 2, 3_000.0, gap=0.0, wanted=Wanted(ObjectiveName.MAX_MIN))
        request.chunks = 1
        asyncio.get_running_loop().call_soon(request.answer.cancel)
        assert await asyncio.to_thread(
            solve_slice, served, [Chunk(request, slice(0, 2))], None
        ) == [None]

    run(work)


def test_slices_are_as_long_as_what_cannot_pause(served: Served) -> None:
    before = served.times.slice_s
    served.times.note_overrun(3 * before, before)
    assert served.times.slice_s == 3 * before, "as long as an iteration took"
    for _ in range(4):
        served.times.note_overrun(0.0, before)
    assert served.times.slice_s == before, "it was slowed down by something else"


def test_short_deadlines_of_others_do_not_make_slices_longer(served: Served) -> None:
    async def work() -> None:
        before = served.times.slice_s
        for _ in range(4):
            short, long = (
                _request(served, 1, 0.0015, gap=1e-12),
                _request(served, 1, 60.0, gap=1e-12),
            )
            short.chunks = long.chunks = 1
            solve_slice(served, [Chunk(short, slice(0, 1)), Chunk(long, slice(0, 1))], None)
        assert served.times.slice_s == before

    run(work)


def test_a_request_whose_time_is_up_gets_what_there_is(served: Served) -> None:
    async def work() -> None:
        request = _request(served, 1, -1.0, gap=1e-9)
        request.chunks = 1
        (answer,) = solve_slice(served, [Chunk(request, slice(0, 1))], None)
        assert answer is not None
        assert answer.status == (Stop.DEADLINE.value,)

    run(work)


@pytest.mark.parametrize("entries", [0, 8])
def test_the_chunks_of_a_request_make_one_answer(served: Served, entries: int) -> None:
    async def work() -> None:
        request = _request(served, 37, 300.0, entries=entries)
        queue = Queue()
        queue.add(request)
        assert request.chunks == 3
        while together := queue.take():
            for chunk, answer in zip(together, solve_slice(served, together, None), strict=True):
                assert answer is not None
                request.parts[chunk.rows.start] = answer
        answer = joined(request.parts)
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
        solver = Solver(tmp_path)
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
        solver = Solver(tmp_path, most_waiting=8)
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
        solver = Solver(tmp_path)
        async with b4_service(tmp_path, solver=solver) as client:
            served = solver._registry.ready("b4")
            monkeypatch.setattr(served.times, "_shortest", {})
            monkeypatch.setattr(served.times, "_fixed_share", 0.4)
            monkeypatch.setattr(served.times, "_usual", {_PLAIN.kind: 10.0})
            with pytest.raises(
                Overloaded
            ):  # an estimate: it may be too high, so that the client may try again
                await client.allocate("b4", rates_of(64), deadline_ms=1_000)
            served.times.note(1, _PLAIN, 10.0)  # as if an answer had never taken less
            with pytest.raises(InvalidRequest, match="even without other requests"):
                await client.allocate("b4", rates_of(64), deadline_ms=1_000)
            monkeypatch.setattr(served.times, "_shortest", {})
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
    served: Served,
) -> None:
    async def work() -> None:
        request = _request(served, 1, 300.0)
        request.chunks = 3
        chunk = Chunk(request, slice(0, 1))
        assert solve_slice(served, [chunk], None)[0] is not None
        assert chunk.end_time - chunk.begin_time == pytest.approx(
            (request.deadline - chunk.begin_time) / 3
        )

    run(work)


def test_the_time_to_write_an_answer_is_part_of_the_time_until_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = LeastTimes()
    for _ in range(60):
        times.note_writing(2_000, True, 4_000.0)
        times.note_writing(1_320, False, 1_320.0)
        times.note_writing(20, True, 1e9)  # it waited for something else
    assert times.writing_s(10, True) == pytest.approx(20.0, rel=1e-4)
    solver, left, solve = Solver(tmp_path), [], Scheduler.solve

    async def noted(self: Scheduler, request: Waiting) -> Answer:
        left.append(request.deadline - request.arrived)
        return await solve(self, request)

    async def work() -> None:
        async with b4_service(tmp_path, solver=solver) as client:
            solver._registry.ready("b4").times._writing_s = dict(times._writing_s)
            monkeypatch.setattr(Scheduler, "solve", noted)
            demands = [{"source": "1", "target": str(node), "rate": 1.0} for node in range(2, 12)]
            body = {"demands": demands, "deadline_ms": 300_000}
            named = await client._http.post("/v1/networks/b4/allocations", json=body)
            assert len(named.json()["allocations"][0]["demands"]) == 10
            await client.allocate("b4", rates_of(1), deadline_ms=300_000)
        assert left == pytest.approx([300 - 20, 300 - 132], rel=1e-3)

    run(work)
