"""The engine's thread: works through the queue slice by slice, for all networks."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from teal.errors import InputError
from teal.runtime.interruptible import Run
from teal.serving.engine.answer import Answer, joined
from teal.serving.engine.errors import ServiceError, overloaded, places_of_one, wrong
from teal.serving.engine.queue import Chunk, Queue, Waiting
from teal.serving.engine.served import Job, Served, Solved
from teal.serving.engine.solvers import AUTO, PDHG
from teal.solvers.pdhg import PdhgState, Starter, Stop

_SHORT_SLICE_S = 0.05  # seconds that a slice takes in any case, however many requests arrive
# seconds in which an engine that works begins something else, after the slice that it is at
_PROBE_S = 2.0
_MAX_SPLITS = 1 << 27  # of all requests that wait; about 3 GiB if all of them have begun


class Scheduler:
    """Takes requests, gives answers.  Its methods are called on one event loop.

    Args:
        most_waiting: requests that may wait for a network; more are turned away.
        engine: one thread, since the engine's kernels use all cores.
        starter: the model of the moment; see :func:`teal.solvers.pdhg.solve`.
    """

    def __init__(
        self, most_waiting: int, engine: ThreadPoolExecutor, starter: Callable[[], Starter | None]
    ) -> None:
        self._most_waiting, self._engine, self._starter = most_waiting, engine, starter
        self._queue = Queue()
        self._draining: asyncio.Task[None] | None = None
        self._has_arrived = False  # a request, since the slice began that the engine is at
        self._busy_until = (
            0.0  # when the slice that the engine is at ends at the latest, by time.perf_counter()
        )

    def waiting(self, served: Served) -> list[Waiting]:
        """The requests that wait for a network."""
        return list(self._queue.of(served))

    async def answers(self) -> bool:
        """Whether the engine comes back from its slice and takes other work."""
        patience = max(0.0, self._busy_until - time.perf_counter()) + _PROBE_S
        try:
            await asyncio.wait_for(
                asyncio.get_running_loop().run_in_executor(self._engine, int), patience
            )
        except (TimeoutError, RuntimeError):  # it hangs, or its thread has ended
            return False
        return True

    async def solve(self, request: Waiting) -> Answer:
        """The answer, by the deadline plus a slice.

        Raises:
            ServiceError: it cannot be answered in time, or too many wait.
        """
        most = self._most_waiting
        if not self._queue.is_short(places_of_one(most)):
            waiting = Counter(other.client for other in self._queue.of(request.served))
            if waiting.total() >= most or waiting[request.client] >= places_of_one(most):
                raise overloaded()
        now = time.perf_counter()
        lateness = self._queue.lateness(request, max(now, self._busy_until))
        least = request.served.times.shortest_s(len(request.rates), request.wanted)
        if least > request.deadline - request.arrived + request.served.times.slice_s:
            raise wrong(
                f"deadline_ms: these matrices take {least:.1f} s at least, even without other "
                "requests"
            )
        splits = self._queue.splits()
        if lateness > 0 or (splits and splits + request.splits > _MAX_SPLITS):
            raise overloaded(math.ceil(max(1.0, lateness)))
        self._queue.add(request)
        self._has_arrived = True
        if self._draining is None or self._draining.done():
            self._draining = asyncio.create_task(self._drain())
        return await request.answer

    def forget(self, served: Served, reason: ServiceError) -> None:
        """Tell requests that wait for a network that it is gone."""
        for request in self._queue.clear(served):
            if not request.answer.done():
                request.answer.set_exception(reason)

    async def _drain(self) -> None:
        loop, queue = asyncio.get_running_loop(), self._queue
        while together := queue.take():
            begin, served = time.perf_counter(), together[0].request.served
            slack = queue.slack(begin)
            self._has_arrived = False
            self._busy_until = begin + served.times.slice_s
            try:
                ends = await loop.run_in_executor(
                    self._engine, self._work, served, together, self._starter(), slack
                )
                for chunk, is_done in zip(together, ends, strict=True):
                    request = chunk.request
                    if not is_done:
                        queue.put_back(chunk)
                    elif (
                        not request.chunks and not request.answer.done()
                    ):  # else the client has gone
                        request.answer.set_result(request.parts[0])
            except Exception as error:
                for chunk in together:
                    if not chunk.request.answer.done():
                        chunk.request.answer.set_exception(_error_for_client(error))
            finally:
                self._busy_until = 0.0
                queue.charge(together, time.perf_counter() - begin)

    def _work(
        self, served: Served, together: list[Chunk], starter: Starter | None, slack: float
    ) -> list[bool]:
        """A slice, and what becomes of its answers: whether each chunk is done."""
        answers = solve_slice(served, together, starter, slack, lambda: self._has_arrived)
        for chunk, answer in zip(together, answers, strict=True):
            request = chunk.request
            if answer is not None:
                request.parts[chunk.rows.start] = answer
                request.chunks -= 1
                if not request.chunks:
                    request.parts = {0: joined(request.parts)}
        return [answer is not None for answer in answers]


def _error_for_client(error: Exception) -> Exception:
    """The error that a request ends with: 422 for an :class:`InputError`, which names options and
    demands that do not go together; any other error as it is.
    """
    return wrong(str(error)[:300]) if isinstance(error, InputError) else error


def solve_slice(
    served: Served,
    together: list[Chunk],
    starter: Starter | None,
    slack: float = math.inf,
    has_arrived: Callable[[], bool] = lambda: False,
) -> list[Answer | None]:
    """Work on chunks of one kind for a slice.

    Args:
        served: the network.
        together: the chunks.
        starter: the model of the moment.
        slack: seconds before the least work for other requests must begin.  If these are too few to
            come back, the chunks are done with what they have then.
        has_arrived: whether another request has come since; after a short slice it is then its
            turn.

    Returns:
        for each chunk its answer, or None if it goes on in another slice.
    """
    begin = time.perf_counter()
    run = together[0].run
    if run is None or not np.array_equal(together[0].capacity, served.capacity):  # type: ignore[arg-type]
        run = _begun(served, together, starter, begin)
    slice_s = min(served.times.slice_s, max(0.0, slack))
    wanted, sizes = together[0].request.wanted, [chunk.size for chunk in together]

    def is_unwanted() -> bool:
        return all(chunk.request.answer.done() for chunk in together)

    def should_pause() -> bool:
        return (has_arrived() and time.perf_counter() - begin > _SHORT_SLICE_S) or is_unwanted()

    def may_pause() -> bool:
        least = sum(served.times.usual_s(size, wanted) for size in sizes)
        return slack - (time.perf_counter() - begin) > least

    least_s = 0.0
    if not run.advance(slice_s, should_pause):
        if is_unwanted() or may_pause():
            served.times.note_overrun(time.perf_counter() - begin, slice_s)
            return [None] * len(together)
        finish_begin = time.perf_counter()
        run.finish()
        least_s = run.first_step_s + time.perf_counter() - finish_begin
    elif not run.result.iterations:
        least_s = run.seconds
    _note_solver(served, together, run)
    answers = [_answer(served, run, chunk, begin, may_pause) for chunk in together]
    seconds = time.perf_counter() - begin
    if least_s and None not in answers:
        served.times.note(sum(sizes), wanted, least_s)
    served.times.note_overrun(seconds, slice_s)
    return answers


def _note_solver(served: Served, together: list[Chunk], run: Run[Solved]) -> None:
    """Take note of how long a search took that began without a state of its request and reached
    the target; where the first check had it, no model would have been asked.
    """
    first, result = together[0], run.result
    has_searched = result.iterations > 0 and all(stop is Stop.GAP for stop in result.stopped_by)
    if first.request.wanted.solver == AUTO and first.state is None and has_searched:
        each = run.seconds / sum(chunk.size for chunk in together)
        served.solver_times.note(result.kind, result.solver != PDHG, each)


def _begun(
    served: Served, together: list[Chunk], starter: Starter | None, begin: float
) -> Run[Solved]:
    """A run of chunks, with the capacities in force."""
    at, capacity = 0, served.capacity
    for chunk in together:
        if not chunk.end_time:
            chunk.begin_time = begin
            chunk.end_time = begin + (chunk.request.deadline - begin) / max(1, chunk.request.chunks)
        chunk.run_rows = slice(at, at + chunk.size)
        at = chunk.run_rows.stop
    states = [chunk.state for chunk in together if chunk.state is not None]
    start = None
    if states:
        start = PdhgState(
            torch.cat([s.splits for s in states]), torch.cat([s.prices for s in states])
        )
    rates = np.concatenate([chunk.request.rates[chunk.rows] for chunk in together])
    first = together[0].request
    job = Job(rates, first.wanted, first.gap, min(chunk.end_time for chunk in together))
    run = served.begin(job, starter, start)
    for chunk in together:
        chunk.run, chunk.capacity = run, capacity
    return run


def _answer(
    served: Served, run: Run[Solved], chunk: Chunk, begin: float, may_pause: Callable[[], bool]
) -> Answer | None:
    """The answer to a chunk whose run has ended; None if it goes on in another one, since a
    deadline was another's.

    Args:
        served: the network.
        run: run of the chunk.
        chunk: chunk that is answered.
        begin: ``time.perf_counter()`` at which the slice began.
        may_pause: whether other requests leave time for another slice.
    """
    solved, request = run.result, chunk.request
    may_go_on = (
        request.wanted.is_resumable
        and Stop.DEADLINE in solved.stopped_by[chunk.run_rows]
        and time.perf_counter() < chunk.end_time
        and request.deadline > begin
        and may_pause()
    )
    chunk.run = None
    if may_go_on:
        chunk.state = solved.state.rows(chunk.run_rows)
        chunk.solver = chunk.solver or solved.solver
        return None
    options, waited = request.options, chunk.begin_time - request.arrived
    answer = served.answer(
        solved,
        chunk.run_rows,
        request.gap,
        options.entries,
        waited,
        options.classes,
        solve_s=run.seconds,
    )
    return dataclasses.replace(answer, solver=chunk.solver) if chunk.solver else answer
