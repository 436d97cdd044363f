"""Scheduler of the solver thread: serves the request queue in time slices, for all networks.

:class:`Scheduler` admits requests (:meth:`Scheduler.solve`) and runs the queue on the event loop;
:func:`solve_slice` computes one time slice in the solver thread. A request is divided into chunks,
and chunks of the same kind are solved together as a batch. Order and admission are in
:mod:`teal_serve.engine.queue`. All times are in seconds, by ``time.perf_counter()``.
"""

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
from teal.solvers.result import SolveState, Starter, Stop
from teal_serve.engine.answer import Answer, merge_answers
from teal_serve.engine.errors import (
    ServiceError,
    invalid_request,
    max_places_per_client,
    overloaded,
)
from teal_serve.engine.network_state import BatchResult, Job, NetworkState
from teal_serve.engine.queue import Chunk, Queue, QueuedRequest
from teal_serve.engine.solvers import AUTO, PDHG

# Minimum length of a slice: a new request does not end the slice earlier.
_MIN_SLICE_S = 0.05
# A responsive solver thread accepts other work within this time after the end of its slice.
_PROBE_PATIENCE_S = 2.0
# Maximum number of splits of all queued requests; about 3 GiB if all of them have started.
_MAX_QUEUED_SPLITS = 1 << 27


class Scheduler:
    """Admits allocation requests and returns their answers. Call methods on one event loop.

    Args:
        max_queued: maximum number of queued requests of a network; further ones are refused.
        engine_thread: single solver thread; kernels use all cores.
        starter: returns the current model for warm starts; None without a model.
    """

    def __init__(
        self,
        max_queued: int,
        engine_thread: ThreadPoolExecutor,
        starter: Callable[[], Starter | None],
    ) -> None:
        """Create the scheduler with an empty queue; the first request starts its worker task."""
        self._max_queued = max_queued
        self._engine_thread = engine_thread
        self._get_model = starter
        self._queue = Queue()
        # Task that serves the queue; None or done while the queue is empty.
        self._worker: asyncio.Task[None] | None = None
        # Whether a request has arrived during the current slice.
        self._has_new_request = False
        # Latest end of the current slice, by time.perf_counter(); 0 between slices.
        self._busy_until = 0.0

    def queued_requests(self, network_state: NetworkState) -> list[QueuedRequest]:
        """Return the queued requests of a network, by deadline, without cancelled ones."""
        return list(self._queue.requests_of(network_state))

    async def is_responsive(self) -> bool:
        """Return whether the solver thread ends its slice in time and then accepts other work."""
        patience_s = max(0.0, self._busy_until - time.perf_counter()) + _PROBE_PATIENCE_S
        # Wait for a call without effect, `int()`, in the solver thread.
        try:
            await asyncio.wait_for(
                asyncio.get_running_loop().run_in_executor(self._engine_thread, int), patience_s
            )
        # The thread hangs, or has ended.
        except (TimeoutError, RuntimeError):
            return False
        return True

    async def solve(self, request: QueuedRequest) -> Answer:
        """Queue a request, wait, and return its answer, at most one slice after its deadline.

        Raises:
            ServiceError: the deadline cannot be met, or the queue is full.
        """
        # Refuse the request if its network or its client has too many queued requests. Count them
        # only if the queue of all networks has reached the limit of a client.
        max_queued = self._max_queued
        if not self._queue.has_places(max_places_per_client(max_queued)):
            queued_per_client = Counter(
                queued_request.client
                for queued_request in self._queue.requests_of(request.network_state)
            )
            if queued_per_client.total() >= max_queued or queued_per_client[
                request.client
            ] >= max_places_per_client(max_queued):
                raise overloaded()
        # Refuse a request that cannot meet its deadline even alone, that would make any request
        # miss its deadline, or whose splits would exceed the memory limit of the queue.
        now = time.perf_counter()
        lateness = self._queue.lateness(request, max(now, self._busy_until))
        min_service_s = request.network_state.service_times.min_s(len(request.rates), request.task)
        if (
            min_service_s
            > request.deadline - request.arrival_time + request.network_state.service_times.slice_s
        ):
            raise invalid_request(
                f"deadline_ms: these matrices take at least {min_service_s:.1f} s, even without "
                "other requests; allow a longer deadline"
            )
        num_splits = self._queue.num_splits()
        if lateness > 0 or (num_splits and num_splits + request.num_splits > _MAX_QUEUED_SPLITS):
            raise overloaded(math.ceil(max(1.0, lateness)))
        # Queue the request, and start the worker task if it is idle.
        self._queue.add(request)
        self._has_new_request = True
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._serve_queue())
        return await request.answer

    def forget(self, network_state: NetworkState, reason: ServiceError) -> None:
        """Fail the queued requests of a network that was removed.

        Args:
            network_state: state of the network.
            reason: error that the waiting callers get.
        """
        for request in self._queue.remove(network_state):
            if not request.answer.done():
                request.answer.set_exception(reason)

    async def _serve_queue(self) -> None:
        """Serve batches until the queue is empty: pop a batch, run a slice, requeue or answer.

        An exception in a slice ends the requests of its batch.
        """
        loop = asyncio.get_running_loop()
        queue = self._queue
        while batch := queue.pop_batch():
            # Run a slice in the solver thread.
            begin_time = time.perf_counter()
            network_state = batch[0].request.network_state
            slack = queue.slack(begin_time)
            self._has_new_request = False
            self._busy_until = begin_time + network_state.service_times.slice_s
            try:
                are_done = await loop.run_in_executor(
                    self._engine_thread,
                    self._run_slice,
                    network_state,
                    batch,
                    self._get_model(),
                    slack,
                )
                # Requeue unfinished chunks, and answer complete requests.
                for chunk, is_done in zip(batch, are_done, strict=True):
                    request = chunk.request
                    if not is_done:
                        queue.requeue(chunk)
                    # The answer of a disconnected client is already done (cancelled).
                    elif not request.num_open_chunks and not request.answer.done():
                        request.answer.set_result(request.chunk_answers[0])
            except Exception as error:
                for chunk in batch:
                    if not chunk.request.answer.done():
                        chunk.request.answer.set_exception(_error_for_client(error))
            finally:
                self._busy_until = 0.0
                queue.charge(batch, time.perf_counter() - begin_time)

    def _run_slice(
        self, network_state: NetworkState, batch: list[Chunk], starter: Starter | None, slack: float
    ) -> list[bool]:
        """Run a slice in the solver thread and store the answers of finished chunks.

        The last finished chunk of a request merges the answers of all its chunks.

        Args:
            network_state: network of the chunks.
            batch: chunks of one kind.
            starter: current model; None for none.
            slack: seconds until the queued requests must start to meet their deadlines.

        Returns:
            for each chunk whether it is done.
        """
        answers = solve_slice(network_state, batch, starter, slack, lambda: self._has_new_request)
        for chunk, answer in zip(batch, answers, strict=True):
            request = chunk.request
            if answer is not None:
                request.chunk_answers[chunk.rows.start] = answer
                request.num_open_chunks -= 1
                if not request.num_open_chunks:
                    request.chunk_answers = {0: merge_answers(request.chunk_answers)}
        return [answer is not None for answer in answers]


def _error_for_client(error: Exception) -> Exception:
    """Convert an InputError (incompatible options or demands) to status 422; keep other errors."""
    return invalid_request(str(error)[:300]) if isinstance(error, InputError) else error


def solve_slice(
    network_state: NetworkState,
    batch: list[Chunk],
    starter: Starter | None,
    slack: float = math.inf,
    has_new_request: Callable[[], bool] = lambda: False,
) -> list[Answer | None]:
    """Solve a batch of chunks for one time slice; the solve pauses and continues in a later slice.

    Args:
        network_state: network of the chunks.
        batch: chunks that share one run: same network, program and gap.
        starter: model that predicts starting splits and prices; None for none.
        slack: seconds until the queued requests must start to meet their deadlines. If another
            slice of this batch would take longer, the batch ends with its incumbent.
        has_new_request: returns whether a request has arrived during the slice; the slice then
            ends early.

    Returns:
        answer of each chunk; None if the chunk continues in another slice.
    """
    # Continue the interruptible solve that the chunks share; restart it if capacities have changed.
    begin_time = time.perf_counter()
    run = batch[0].run
    if run is None or not np.array_equal(batch[0].capacity, network_state.capacity):  # type: ignore[arg-type]
        run = _start_run(network_state, batch, starter, begin_time)
    slice_s = min(network_state.service_times.slice_s, max(0.0, slack))
    task = batch[0].request.task
    chunk_sizes = [chunk.size for chunk in batch]

    def is_abandoned() -> bool:
        """Return whether all clients of the batch have disconnected."""
        return all(chunk.request.answer.done() for chunk in batch)

    def should_pause() -> bool:
        """Return whether to end the slice early: a new request, or no client is left."""
        return (
            has_new_request() and time.perf_counter() - begin_time > _MIN_SLICE_S
        ) or is_abandoned()

    def has_time_for_another_slice() -> bool:
        """Return whether the queued requests leave time for another slice of this batch."""
        expected_s = sum(network_state.service_times.expected_s(size, task) for size in chunk_sizes)
        return slack - (time.perf_counter() - begin_time) > expected_s

    # Iterate until the slice ends. An unfinished run pauses, or finishes with its incumbent if
    # there is no time for another slice. fixed_s is the time of the run without iterations (set-up
    # and finish); it stays 0, for unknown, if the run ended by itself after some iterations.
    fixed_s = 0.0
    if not run.advance(slice_s, should_pause):
        # The run of an abandoned batch is not finished; its chunks leave the queue later.
        if is_abandoned() or has_time_for_another_slice():
            network_state.service_times.record_overrun(time.perf_counter() - begin_time, slice_s)
            return [None] * len(batch)
        # Expire its deadline: the run returns its incumbent.
        finish_begin = time.perf_counter()
        run.finish()
        fixed_s = run.first_step_s + time.perf_counter() - finish_begin
    # A run without iterations is all set-up and finish.
    elif not run.result.iterations:
        fixed_s = run.seconds
    # Answer the chunks, and update the service-time estimates.
    _record_solver_time(network_state, batch, run)
    answers = [
        _answer_chunk(network_state, run, chunk, begin_time, has_time_for_another_slice)
        for chunk in batch
    ]
    seconds = time.perf_counter() - begin_time
    if fixed_s and None not in answers:
        network_state.service_times.record(sum(chunk_sizes), task, fixed_s)
    network_state.service_times.record_overrun(seconds, slice_s)
    return answers


def _record_solver_time(
    network_state: NetworkState, batch: list[Chunk], run: Run[BatchResult]
) -> None:
    """Record the seconds per matrix of a search, to compare searches with and without a model.

    Only searches of the solver ``auto`` count that reached the gap, had at least one iteration, and
    did not continue an earlier run of the same request.

    Args:
        network_state: network of the chunks, with the recorded times.
        batch: chunks of the run.
        run: finished run.
    """
    first = batch[0]
    result = run.result
    has_reached_gap = result.iterations > 0 and all(stop is Stop.GAP for stop in result.stopped_by)
    if first.request.task.solver == AUTO and first.state is None and has_reached_gap:
        seconds_per_matrix = run.seconds / sum(chunk.size for chunk in batch)
        network_state.solver_times.record(result.kind, result.solver != PDHG, seconds_per_matrix)


def _start_run(
    network_state: NetworkState, batch: list[Chunk], starter: Starter | None, begin_time: float
) -> Run[BatchResult]:
    """Start the interruptible solve of a batch with the current capacities.

    Each chunk gets its rows in the run, the run and its capacities; in its first run also its begin
    and end time. The run warm-starts from the states of the chunks' last runs, if they have any.

    Args:
        network_state: network of the chunks.
        batch: chunks of one kind: all of them have a state, or none.
        starter: current model; None for none.
        begin_time: begin of the slice.
    """
    # Divide the remaining time of each request equally among its open chunks, and assign to each
    # chunk its rows in the run.
    next_row = 0
    capacity = network_state.capacity
    for chunk in batch:
        if not chunk.end_time:
            chunk.begin_time = begin_time
            chunk.end_time = begin_time + (chunk.request.deadline - begin_time) / max(
                1, chunk.request.num_open_chunks
            )
        chunk.run_rows = slice(next_row, next_row + chunk.size)
        next_row = chunk.run_rows.stop
    # Concatenate the states of the chunks' last runs.
    states = [chunk.state for chunk in batch if chunk.state is not None]
    start_state = None
    if states:
        start_state = SolveState(
            torch.cat([s.splits for s in states]), torch.cat([s.prices for s in states])
        )
    # Start the run over the (B, D) rates of all chunks, until the earliest end time.
    rates = np.concatenate([chunk.request.rates[chunk.rows] for chunk in batch])
    first_request = batch[0].request
    job = Job(rates, first_request.task, first_request.gap, min(chunk.end_time for chunk in batch))
    run = network_state.begin(job, starter, start_state)
    for chunk in batch:
        chunk.run = run
        chunk.capacity = capacity
    return run


def _answer_chunk(
    network_state: NetworkState,
    run: Run[BatchResult],
    chunk: Chunk,
    begin_time: float,
    has_time_for_another_slice: Callable[[], bool],
) -> Answer | None:
    """Return the answer of a chunk whose run has ended; None if it continues in another run.

    A run ends at the earliest end time of its chunks. A chunk continues if its own end time has not
    passed yet and the queue leaves time.

    Args:
        network_state: network of the chunk.
        run: finished run of the chunk's batch.
        chunk: chunk to answer.
        begin_time: begin of the slice.
        has_time_for_another_slice: returns whether queued requests leave time for another slice.
    """
    # Continue if only another chunk's end time ended the run; keep the solver state. A request
    # whose deadline had passed before the slice is answered in any case.
    batch_result = run.result
    request = chunk.request
    may_continue = (
        request.task.is_resumable
        and Stop.DEADLINE in batch_result.stopped_by[chunk.run_rows]
        and time.perf_counter() < chunk.end_time
        and request.deadline > begin_time
        and has_time_for_another_slice()
    )
    chunk.run = None
    if may_continue:
        chunk.state = batch_result.state.rows(chunk.run_rows)
        # The answer names the solver of the first run.
        chunk.solver = chunk.solver or batch_result.solver
        return None
    # Validate the result and convert it to an answer.
    options = request.options
    queue_s = chunk.begin_time - request.arrival_time
    answer = network_state.answer(
        batch_result,
        chunk.run_rows,
        request.gap,
        options.entries,
        queue_s,
        options.classes,
        solve_s=run.seconds,
    )
    return dataclasses.replace(answer, solver=chunk.solver) if chunk.solver else answer
