"""Scheduling order and admission control, against hand-made queues: deadlines, fair shares,
refusals.
"""

from __future__ import annotations

import asyncio
import math
import time

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the service's packages: pip install '.[serve]'")

from teal.objectives import ObjectiveName
from teal_serve.engine.allocation_task import AllocationTask
from teal_serve.engine.network_state import NetworkState
from teal_serve.engine.queue import Queue, QueuedRequest
from teal_serve.engine.requests import Options
from tests.teal_serve.service import b4_network_state, run

_TASK = AllocationTask(ObjectiveName.TOTAL_FLOW)


@pytest.fixture
def network_state() -> NetworkState:
    network_state = b4_network_state()
    network_state.service_times.record(
        1, _TASK, 5 * 0.01
    )  # a fifth of it counts: an answer takes 10 ms at least
    return network_state


def _request(
    network_state: NetworkState, count: int, deadline_s: float, gap: float = 1e-2, client: str = ""
) -> QueuedRequest:
    now, answer = time.perf_counter(), asyncio.get_running_loop().create_future()
    rates = np.ones((count, 132))
    return QueuedRequest(
        network_state,
        client,
        rates,
        Options(deadline_ms=1e3),
        _TASK,
        gap,
        now,
        now + deadline_s,
        answer,
    )


def test_the_earliest_deadline_comes_first_and_large_requests_are_cut(
    network_state: NetworkState,
) -> None:
    async def work() -> None:
        queue, hog, soon = (
            Queue(),
            _request(network_state, 40, 500.0),
            _request(network_state, 1, 50.0),
        )
        queue.add(hog)
        first = queue.pop_batch()
        assert [(chunk.rows.start, chunk.rows.stop) for chunk in first] == [(0, 16)]
        queue.add(soon)
        queue.requeue(first[0])
        second = queue.pop_batch()
        assert second[0].request is soon
        assert sum(chunk.size for chunk in second) <= 16
        assert list(queue.requests_of(network_state)) == [hog]

    run(work)


def test_chunks_of_other_kinds_wait_for_another_turn(network_state: NetworkState) -> None:
    async def work() -> None:
        queue = Queue()
        loose, tight, late = (
            _request(network_state, 1, 50.0),
            _request(network_state, 1, 60.0, gap=1e-9),
            _request(network_state, 1, -1.0),
        )
        for request in (loose, tight, late):
            queue.add(request)
        order = []
        while batch := queue.pop_batch():
            order.append([chunk.request for chunk in batch])
        assert order == [[late], [loose], [tight]]

    run(work)


def test_what_nobody_waits_for_is_dropped(network_state: NetworkState) -> None:
    async def work() -> None:
        queue, gone, here = (
            Queue(),
            _request(network_state, 40, 10.0),
            _request(network_state, 1, 20.0),
        )
        queue.add(gone)
        queue.add(here)
        gone.answer.cancel()
        assert list(queue.requests_of(network_state)) == [here]
        assert [chunk.request for chunk in queue.pop_batch()] == [here]
        assert not queue.pop_batch()

    run(work)


def _order(queue: Queue, seconds: float = 1.0) -> list[str]:
    """The clients of the chunks in the order in which they are taken; each takes so many
    seconds."""
    order = []
    while batch := queue.pop_batch():
        order.append(batch[0].request.client)
        queue.charge(batch, seconds)
    return order


def test_clients_have_equal_shares_whatever_they_ask_for(network_state: NetworkState) -> None:
    async def work() -> None:
        queue = Queue()
        queue.add(_request(network_state, 6 * 16, 500.0, client="greedy"))
        queue.add(_request(network_state, 3 * 16, 900.0, client="modest"))
        assert _order(queue) == 3 * ["greedy", "modest"] + 3 * ["greedy"]

    run(work)


def test_a_client_that_comes_later_has_no_claim_to_what_others_had_before(
    network_state: NetworkState,
) -> None:
    async def work() -> None:
        queue = Queue()
        queue.add(_request(network_state, 8 * 16, 500.0, client="first"))
        for _ in range(4):
            queue.charge(queue.pop_batch(), 1.0)
        queue.add(_request(network_state, 4 * 16, 900.0, client="second"))
        order = _order(queue)
        assert sorted(order[:2]) == sorted(order[2:4]) == ["first", "second"]

    run(work)


@pytest.mark.parametrize(("deadline_s", "first"), [(0.0, "greedy"), (50.0, "modest")])
def test_deadlines_that_are_near_go_before_shares(
    network_state: NetworkState, deadline_s: float, first: str
) -> None:
    async def work() -> None:
        queue = Queue()
        queue.add(_request(network_state, 4 * 16, 600.0, client="greedy"))
        queue.add(_request(network_state, 1, 900.0, gap=1e-3, client="modest"))
        queue.charge(queue.pop_batch(), 1.0)
        queue.add(_request(network_state, 1, deadline_s, gap=1e-4, client="greedy"))
        taken = queue.pop_batch()
        assert taken[0].request.client == first
        assert (taken[0].request.gap == 1e-4) == (first == "greedy")

    run(work)


def test_what_cannot_be_answered_in_time_is_known_at_once(network_state: NetworkState) -> None:
    async def work() -> None:
        queue, now = Queue(), time.perf_counter()
        assert queue.lateness(_request(network_state, 1, 0.0), now) <= 0
        # 1,024 matrices take 64 * 4 + 1,024 * 6 ms at least.
        assert queue.lateness(_request(network_state, 1024, 1.0), now) == pytest.approx(
            6.4 - 0.75 * (1.0 + 0.5 + 0.1), abs=0.05
        )
        assert queue.lateness(_request(network_state, 1024, 6.5), now) > 0, (
            "more than three quarters of the time for one"
        )
        assert queue.lateness(_request(network_state, 1024, 9.0), now) < 0
        queue.add(_request(network_state, 1024, 9.0))
        # Neither may what comes later make late what was accepted before.
        other = "another client"
        assert queue.lateness(_request(network_state, 1024, 8.0, client=other), now) > 0
        assert queue.lateness(_request(network_state, 256, 6.0, client=other), now) <= 0
        assert queue.lateness(_request(network_state, 512, 60.0, client=other), now) <= 0
        gone = _request(network_state, 1024, 9.0)
        queue.add(gone)
        gone.answer.cancel()
        assert queue.lateness(_request(network_state, 256, 6.0, client=other), now) <= 0, (
            "what nobody waits for takes no time"
        )

    run(work)


def test_requests_of_a_network_that_is_gone_are_taken_out(network_state: NetworkState) -> None:
    async def work() -> None:
        queue, other = Queue(), b4_network_state()
        queue.add(_request(network_state, 20, 5.0))
        queue.add(_request(other, 1, 5.0))
        assert [len(request.rates) for request in queue.remove(network_state)] == [20]
        assert queue.pop_batch()[0].request.network_state is other
        assert not queue.pop_batch()

    run(work)


def test_what_the_engine_is_at_counts_and_leaves_time_for_the_others(
    network_state: NetworkState,
) -> None:
    async def work() -> None:
        queue, now = Queue(), time.perf_counter()
        assert queue.slack(now) == math.inf
        queue.add(_request(network_state, 16, 1.0, client="a"))
        queue.add(_request(network_state, 512, 5.0, gap=1e-3, client="b"))
        taken = queue.pop_batch()
        assert taken[0].request.client == "a"
        # 512 matrices take 3.2 s, and must have begun 5.5 - 3.2 s from now.
        assert queue.slack(now) == pytest.approx(2.3, abs=0.05)
        assert queue.num_splits() == (16 + 512) * taken[0].request.num_splits // 16
        gone = _request(network_state, 32, 9.0, client="gone")
        queue.add(gone)
        gone.answer.cancel()
        assert queue.num_splits() == (16 + 512) * taken[0].request.num_splits // 16
        # What the engine is at may come back, with its least work.
        late = _request(network_state, 512, 4.0, client="c")
        with_it = queue.lateness(late, now)
        queue.charge(taken, 0.1)
        assert with_it - queue.lateness(late, now) == pytest.approx(0.1, abs=0.02)

    run(work)


def test_every_request_that_was_let_in_is_answered_in_time(network_state: NetworkState) -> None:
    """The queue with an engine that takes the least time or all that it may, by a clock that only
    it moves."""

    async def work() -> None:
        rng, queue, clock = np.random.default_rng(0), Queue(), _Clock()
        late = list[float]()
        arrivals = sorted(rng.uniform(0, 20, 400).tolist())
        num_admitted = num_refused = 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("teal_serve.engine.queue.time.perf_counter", clock)
            while arrivals or queue.num_splits():
                while arrivals and arrivals[0] <= clock.now:
                    arrivals.pop(0)
                    request = _request(
                        network_state,
                        int(rng.choice([1, 1, 16, 200])),
                        float(rng.choice([0.05, 1, 10])),
                        gap=float(rng.choice([1e-2, 1e-3])),
                        client=str(rng.integers(3)),
                    )
                    if queue.lateness(request, clock.now) > 0:
                        num_refused += 1
                        continue
                    num_admitted += 1
                    queue.add(request)
                batch = queue.pop_batch()
                if not batch:
                    clock.now = arrivals[0] if arrivals else clock.now
                    continue
                slack = queue.slack(clock.now)
                least = network_state.service_times.expected_s(
                    sum(chunk.size for chunk in batch), _TASK
                )
                end = min(chunk.request.deadline for chunk in batch) - clock.now
                seconds = max(
                    least, min(network_state.service_times.slice_s, slack, end)
                )  # a gap that is out of reach
                clock.now += seconds
                queue.charge(batch, seconds)
                for chunk in batch:
                    again = sum(
                        network_state.service_times.expected_s(chunk.size, _TASK) for chunk in batch
                    )
                    may_go_on = clock.now < chunk.request.deadline and slack - seconds > again
                    if may_go_on:
                        queue.requeue(chunk)
                        continue
                    chunk.request.num_open_chunks -= 1
                    if not chunk.request.num_open_chunks:
                        chunk.request.answer.set_result(None)  # type: ignore[arg-type]
                        late.append(
                            clock.now - chunk.request.deadline - network_state.service_times.slice_s
                        )
        assert num_admitted > 50
        assert num_refused > 50, "a load that needs refusals"
        assert max(late) <= 2 * network_state.service_times.expected_s(16, _TASK) + 1e-9

    run(work)


class _Clock:
    """In place of time.perf_counter()."""

    now = 0.0

    def __call__(self) -> float:
        return self.now
