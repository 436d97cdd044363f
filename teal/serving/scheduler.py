"""The engine's thread: works through the queue slice by slice, for all networks."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from teal.serving.answer import Answer, joined
from teal.serving.errors import ServiceError, overloaded, places_of_one, wrong
from teal.serving.queue import Chunk, Queue, Waiting
from teal.serving.served import SLICE_S, Job, Served
from teal.solvers.pdhg import PdhgState, Starter, Stop

_MOST_SLICE_S = 60.0  # seconds
_MOST_SPLITS = 1 << 27  # of all requests that wait; 1 GiB, with the states between slices


class Scheduler:
    """Takes requests, gives answers.  Its methods are called on one event loop.

    Args:
        most_waiting: requests that may wait for a network; more are turned away.
        engine: one thread, since the engine's kernels use all cores.
        starter: the model of the moment; see :func:`teal.solvers.pdhg.solve`.
    """

    def __init__(self, most_waiting: int, engine: ThreadPoolExecutor, starter: Callable[[], Starter | None]) -> None:
        self._most_waiting, self._engine, self._starter = most_waiting, engine, starter
        self._queue = Queue()
        self._draining: asyncio.Task[None] | None = None
        self._busy_until = 0.0  # when the slice that the engine is at ends at the latest, by time.perf_counter()

    def waiting(self, served: Served) -> list[Waiting]:
        """The requests that wait for a network."""
        return list(self._queue.of(served))

    async def solve(self, request: Waiting) -> Answer:
        """The answer, by the deadline plus a slice.

        Raises:
            ServiceError: it cannot be answered in time, or too many wait.
        """
        waiting = Counter(other.client for other in self._queue.of(request.served))
        most = self._most_waiting
        if waiting.total() >= most or waiting[request.client] >= places_of_one(most):
            raise overloaded()
        now = time.perf_counter()
        lateness = self._queue.lateness(request, max(now, self._busy_until))
        if lateness > 0 and not self._queue:
            least = request.served.least_s(len(request.rates), request.program)
            raise wrong(f"deadline_ms: these matrices take {least:.1f} s at least, even without other requests")
        splits = sum(other.rates.size * other.served.paths.num_paths for other in [*self._queue, request])
        if lateness > 0 or (self._queue and splits > _MOST_SPLITS):
            raise overloaded(math.ceil(max(1.0, lateness)))
        self._queue.add(request)
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
            self._busy_until = begin + served.slice_s
            try:
                ends = await loop.run_in_executor(self._engine, _work, served, together, self._starter(), slack)
                for chunk, is_done in zip(together, ends, strict=True):
                    request = chunk.request
                    if not is_done:
                        queue.put_back(chunk)
                    elif not request.chunks and not request.answer.done():  # else the client has gone
                        request.answer.set_result(request.parts[0])
            except Exception as error:
                for chunk in together:
                    if not chunk.request.answer.done():
                        chunk.request.answer.set_exception(error)
            finally:
                self._busy_until = 0.0
                queue.charge(together, time.perf_counter() - begin)


def _work(served: Served, together: list[Chunk], starter: Starter | None, slack: float) -> list[bool]:
    """A slice, and what becomes of its answers: whether each chunk is done."""
    answers = solve_slice(served, together, starter, slack)
    for chunk, answer in zip(together, answers, strict=True):
        request = chunk.request
        if answer is not None:
            request.parts[chunk.rows.start] = answer
            request.chunks -= 1
            if not request.chunks:
                request.parts = {0: joined(request.parts)}
    return [answer is not None for answer in answers]


def solve_slice(
    served: Served, together: list[Chunk], starter: Starter | None, slack: float = math.inf
) -> list[Answer | None]:
    """Work on chunks of one kind for a slice.

    Args:
        served: the network.
        together: the chunks.
        starter: the model of the moment.
        slack: seconds before the least work for other requests must begin.  If these are too few to come back, the
            chunks are done with what they have then.

    Returns:
        for each chunk its answer, or None if it must go on.
    """
    begin = time.perf_counter()
    for chunk in together:
        if not chunk.end:
            chunk.began = begin
            chunk.end = begin + (chunk.request.deadline - begin) / max(1, chunk.request.chunks)
    first = together[0].request
    # A search that cannot go on from where a slice ended has all the time that the others leave it.
    slice_s = served.slice_s if first.program.is_resumable else math.inf
    job = Job(
        np.concatenate([chunk.request.rates[chunk.rows] for chunk in together]),
        first.program,
        first.gap,
        min(begin + min(slice_s, max(0.0, slack)), *(chunk.end for chunk in together)),
    )
    states = [chunk.state for chunk in together if chunk.state is not None]
    start = None
    if states:
        start = PdhgState(torch.cat([s.splits for s in states]), torch.cat([s.prices for s in states]))
    solved = served.solve(job, starter, start)
    now, at = time.perf_counter(), 0
    may_come_back = slack - (now - begin) > sum(served.least_s(chunk.size, first.program) for chunk in together)
    answers: list[Answer | None] = []
    for chunk in together:
        rows = slice(at, at + chunk.size)
        at = rows.stop
        may_go_on = (
            first.program.is_resumable
            and Stop.DEADLINE in solved.stopped_by[rows]
            and now < chunk.end
            and first.deadline > begin
            and may_come_back
        )
        if may_go_on:
            chunk.state = solved.state.rows(rows)
            answers.append(None)
        else:
            request = chunk.request
            options, waited = request.options, chunk.began - request.arrived
            answers.append(served.answer(solved, rows, request.gap, options.entries, waited, options.classes))
    if None in answers and job.deadline == begin + served.slice_s:
        if not solved.iterations:  # set-up and check have taken all of the slice
            served.slice_s = min(2 * served.slice_s, _MOST_SLICE_S)
        elif served.slice_s > SLICE_S:  # an earlier one was slowed down by something else
            served.slice_s /= 2
    if not solved.iterations and None not in answers:
        served.note_least(len(job.rates), first.program, time.perf_counter() - begin)
    return answers
