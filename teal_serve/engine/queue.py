"""Queue of allocation requests: scheduling order of the solver thread, and admission control.

A request is split into chunks of at most one batch (``MAX_LANES`` matrices). The solver works on a
chunk for at most one time slice, less if a request arrives; solves pause after an iteration and
continue later. Each chunk gets an equal share of its request's remaining time. Between two slices

- the chunk with the earliest deadline is next if, by expected service times, some request would
  otherwise be late (earliest deadline first),
- else the client with the least solver time is next. Clients with queued requests thus get equal
  shares (start-time fair queueing, Goyal et al. 1996).

Admission control refuses a request on arrival if it, or an admitted one, would exceed its deadline
by more than a slice and a batch, or if its client would need more than three quarters of the time
until its deadline.
"""

from __future__ import annotations

import asyncio
import bisect
import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Any

from teal.runtime.arrays import FloatArray
from teal.runtime.interruptible import Run
from teal.solvers.pdhg import MAX_LANES
from teal.solvers.result import SolveState
from teal_serve.engine.allocation_task import AllocationTask
from teal_serve.engine.answer import Answer
from teal_serve.engine.errors import CLIENT_SHARE
from teal_serve.engine.network_state import BatchResult, NetworkState
from teal_serve.engine.requests import Options


@dataclasses.dataclass(eq=False)
class QueuedRequest:
    """Allocation request in the queue.

    Attributes:
        network_state: network of the request.
        client: client that the request counts for.
        rates: (B, D) Gbit/s.
        options: options of the request.
        task: requested program.
        gap: target of the certified gap.
        arrival_time: by ``time.perf_counter()``.
        deadline: by ``time.perf_counter()``.
        answer: set when all chunks are done; cancelled if the client disconnects.
        chunk_answers: answers of finished chunks, by index of their first matrix.
        num_open_chunks: number of unfinished chunks.
    """

    network_state: NetworkState
    client: str
    rates: FloatArray
    options: Options
    task: AllocationTask
    gap: float
    arrival_time: float
    deadline: float
    answer: asyncio.Future[Answer]
    chunk_answers: dict[int, Answer] = dataclasses.field(default_factory=dict)
    num_open_chunks: int = 0

    @property
    def num_splits(self) -> int:
        """Number of splits in the answer: matrices times demands times candidate paths."""
        return self.rates.size * self.network_state.paths.num_paths


@dataclasses.dataclass(eq=False)
class Chunk:
    """Consecutive matrices of a request, at most one batch.

    Attributes:
        request: request of the matrices.
        rows: slice of the request's matrices.
        expected_s: expected service time at the request's arrival, seconds.
        end_time: by ``time.perf_counter()``, time at which the chunk's share of the request's time
            ends; 0 before its first slice.
        begin_time: by ``time.perf_counter()``, begin of its first slice.
        run: interruptible solve of the chunk's batch; None before the first slice and between two
            runs.
        run_rows: rows of the chunk in the run.
        capacity: (E,) capacities of the run, Gbit/s; a change of capacities restarts the run.
        state: solver state at the end of the chunk's last run; None before.
        solver: name of the solver of the last run; "" before.
    """

    request: QueuedRequest
    rows: slice
    expected_s: float = 0.0
    end_time: float = 0.0
    begin_time: float = 0.0
    run: Run[BatchResult] | None = None
    run_rows: slice = dataclasses.field(default_factory=lambda: slice(0))
    capacity: FloatArray | None = None
    state: SolveState | None = None
    solver: str = ""

    @property
    def size(self) -> int:
        """Number of matrices of the chunk."""
        return self.rows.stop - self.rows.start

    def kind(self, now: float) -> tuple[Any, ...]:
        """Return the key of chunks that may be solved in one batch.

        A chunk with a run stays with the chunks of that run. Chunks without a run share a batch if
        network, program and gap are equal, both deadlines have passed or none, and both have a
        solver state or none. A run ends at the earliest end time of its chunks; so a chunk whose
        program cannot be resumed shares a run with chunks of its own request only.

        Args:
            now: ``time.perf_counter()``.
        """
        request = self.request
        if self.run is not None:
            return request.network_state, self.run
        exclusive_request = None if request.task.is_resumable else request
        return (
            request.network_state,
            request.task,
            request.gap,
            request.deadline > now,
            self.state is None,
            exclusive_request,
        )


def _deadline_key(chunk: Chunk) -> tuple[float, float, int]:
    """Return the sort key of the queue: deadline, arrival time, index of the first matrix."""
    return chunk.request.deadline, chunk.request.arrival_time, chunk.rows.start


def _belongs_to(chunk: Chunk, network_state: NetworkState) -> bool:
    """Return whether a chunk belongs to a network, in any version of its path set."""
    return chunk.request.network_state.shared is network_state.shared


class Queue:
    """Queue of the chunks of all networks, in order of their deadlines."""

    def __init__(self) -> None:
        # Queued chunks, sorted by deadline; those of the batch in the solver are not among them.
        self._chunks: list[Chunk] = []
        # Solver seconds used by each client, for fair queueing. A client that returns after idle
        # time starts with the minimum of the clients with queued requests: else it would be served
        # alone until it has used as much solver time as they have.
        self._solver_seconds: dict[str, float] = {}
        # Batch in the solver; its chunks may be requeued.
        self._running_batch: list[Chunk] = []

    def requests_of(self, network_state: NetworkState) -> Iterator[QueuedRequest]:
        """Return the queued requests of a network by deadline, without cancelled ones."""
        requests = dict.fromkeys(
            chunk.request for chunk in self._chunks if _belongs_to(chunk, network_state)
        )
        return (request for request in requests if not request.answer.done())

    def has_places(self, num_places: int) -> bool:
        """Return whether fewer than ``num_places`` chunks are queued, over all networks."""
        return len(self._chunks) < num_places

    def num_splits(self) -> int:
        """Return the number of splits in the answers of all queued and running requests."""
        requests = {chunk.request for chunk in (*self._running_batch, *self._chunks)}
        return sum(request.num_splits for request in requests if not request.answer.done())

    def lateness(self, new_request: QueuedRequest, solver_free_time: float) -> float:
        """Return the largest lateness of any request if ``new_request`` is admitted, seconds.

        Simulates earliest deadline first from ``solver_free_time`` with expected service times:
        max over requests r of end_time(r) - deadline(r) - margin, where the margin is a slice plus
        the expected time of a full batch. Also checks that the requests of the new request's client
        need at most the share ``CLIENT_SHARE`` of the time until each of its deadlines. 0 or
        negative: no request is late.

        Args:
            new_request: request to admit.
            solver_free_time: ``time.perf_counter()`` at which the solver thread becomes free.
        """
        # For a short queue, a cheap upper bound suffices.
        if (bound := self._lateness_bound(new_request, solver_free_time)) <= 0:
            return bound
        # Expected remaining solver seconds of each request.
        remaining_work_s: dict[QueuedRequest, float] = {
            new_request: new_request.network_state.service_times.expected_s(
                len(new_request.rates), new_request.task
            )
        }
        for chunk in [*self._running_batch, *self._chunks]:
            request = chunk.request
            if not request.answer.done():
                remaining_work_s[request] = remaining_work_s.get(
                    request, 0.0
                ) + request.network_state.service_times.expected_s(chunk.size, request.task)
        # Serve the requests in order of deadlines, and compare end times with deadlines.
        end_time = solver_free_time
        client_work_s = 0.0
        max_lateness = -math.inf
        for request in sorted(remaining_work_s, key=lambda request: request.deadline):
            end_time += remaining_work_s[request]
            network_state = request.network_state
            margin = network_state.service_times.slice_s + network_state.service_times.expected_s(
                MAX_LANES, request.task
            )
            max_lateness = max(max_lateness, end_time - request.deadline - margin)
            # The work of this client must also fit into its share of the time until the deadline.
            if request.client == new_request.client:
                client_work_s += remaining_work_s[request]
                max_lateness = max(
                    max_lateness,
                    client_work_s - CLIENT_SHARE * (request.deadline + margin - solver_free_time),
                )
        return max_lateness

    def _lateness_bound(self, new_request: QueuedRequest, solver_free_time: float) -> float:
        """Return an upper bound of the largest lateness, seconds, without sorting the requests.

        2 * (expected work of all requests) - CLIENT_SHARE *
        (earliest deadline - ``solver_free_time``). The factor 2 allows for estimates that
        have grown since the chunks were queued.

        Args:
            new_request: request to admit.
            solver_free_time: ``time.perf_counter()`` at which the solver thread becomes free.
        """
        work_s = new_request.network_state.service_times.expected_s(
            len(new_request.rates), new_request.task
        )
        first_deadline = new_request.deadline
        for chunk in (*self._running_batch, *self._chunks):
            work_s += chunk.expected_s
            first_deadline = min(first_deadline, chunk.request.deadline)
        return 2 * work_s - CLIENT_SHARE * (first_deadline - solver_free_time)

    def slack(self, now: float) -> float:
        """Return the seconds until the queued chunks must start to meet their deadlines.

        min over queued chunks c, by deadline, of deadline(c) + slice - end_time(c), where end_time
        adds up the expected service times from ``now``. Infinite for an empty queue.
        """
        end_time = now
        slack = math.inf
        for chunk in self._chunks:
            network_state = chunk.request.network_state
            end_time += network_state.service_times.expected_s(chunk.size, chunk.request.task)
            slack = min(
                slack, chunk.request.deadline + network_state.service_times.slice_s - end_time
            )
        return slack

    def add(self, request: QueuedRequest) -> None:
        """Admit a request: divide it into chunks of at most a batch, and queue them."""
        # A client without queued requests starts with the minimum solver time of the others.
        queued_clients = {chunk.request.client for chunk in self._chunks}
        if request.client not in queued_clients:
            min_seconds = min(
                (self._solver_seconds.get(client, 0.0) for client in queued_clients), default=0.0
            )
            # An empty queue ends the competition: the solver times of all clients are forgotten.
            if not queued_clients:
                self._solver_seconds.clear()
            self._solver_seconds[request.client] = max(
                self._solver_seconds.get(request.client, 0.0), min_seconds
            )
        # Queue the chunks.
        for first_matrix in range(0, len(request.rates), MAX_LANES):
            rows = slice(first_matrix, min(first_matrix + MAX_LANES, len(request.rates)))
            expected_s = request.network_state.service_times.expected_s(
                rows.stop - rows.start, request.task
            )
            self._insert(Chunk(request, rows, expected_s))
            request.num_open_chunks += 1

    def requeue(self, chunk: Chunk) -> None:
        """Queue an unfinished chunk again, for another time slice."""
        self._insert(chunk)

    def _insert(self, chunk: Chunk) -> None:
        """Insert a chunk into the queue, which is sorted by deadline."""
        bisect.insort(self._chunks, chunk, key=_deadline_key)

    def charge(self, chunks: list[Chunk], seconds: float) -> None:
        """Charge the solver seconds of a batch to its clients, in proportion to their matrices."""
        self._running_batch = []
        num_matrices = sum(chunk.size for chunk in chunks)
        for chunk in chunks:
            client = chunk.request.client
            self._solver_seconds[client] = (
                self._solver_seconds.get(client, 0.0) + seconds * chunk.size / num_matrices
            )

    def pop_batch(self) -> list[Chunk]:
        """Remove and return the next batch: the next chunk, and others that may be solved with it.

        Returns:
            chunks by deadline; empty if none is queued.
        """
        self._running_batch = []
        self._chunks = [chunk for chunk in self._chunks if not chunk.request.answer.done()]
        if not self._chunks:
            return []
        # Next chunk: earliest deadline first if a deadline is at risk, else the client with the
        # least solver time (fair queueing).
        now = time.perf_counter()
        next_chunk = self._chunks[0]
        if not self._is_urgent(now):
            next_chunk = min(
                self._chunks, key=lambda chunk: self._solver_seconds.get(chunk.request.client, 0.0)
            )
        # Fill the batch with chunks of the same kind.
        kind = next_chunk.kind(now)
        batch = [next_chunk]
        remaining = []
        num_matrices = next_chunk.size
        for chunk in self._chunks:
            if chunk is next_chunk:
                continue
            if chunk.kind(now) == kind and num_matrices + chunk.size <= MAX_LANES:
                batch.append(chunk)
                num_matrices += chunk.size
            else:
                remaining.append(chunk)
        self._chunks = remaining
        self._running_batch = sorted(batch, key=_deadline_key)
        return self._running_batch

    def _is_urgent(self, now: float) -> bool:
        """Return whether a deadline is at risk: the slack is below the longest slice."""
        return self.slack(now) < max(
            chunk.request.network_state.service_times.slice_s for chunk in self._chunks
        )

    def remove(self, network_state: NetworkState) -> list[QueuedRequest]:
        """Remove the queued chunks of a network; return its requests, also those in the solver."""
        running_requests = [
            chunk.request for chunk in self._running_batch if _belongs_to(chunk, network_state)
        ]
        requests = list(dict.fromkeys([*self.requests_of(network_state), *running_requests]))
        self._chunks = [chunk for chunk in self._chunks if not _belongs_to(chunk, network_state)]
        return requests
