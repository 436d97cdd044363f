"""Requests of one network that wait for the engine, and the order in which it takes them.

A request is cut into chunks of as many matrices as the engine solves together, and the engine works on a chunk for one
slice of time at most.  Between two slices the chunk whose request has the earliest deadline comes next, so that a
request is answered by its deadline plus one slice, whatever others ask for.  A chunk that has not reached its gap goes
on later from where its slice ended; a chunk has an equal share of what is left of its request's time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Iterator

import numpy as np
import torch

from teal.objectives import ObjectiveName
from teal.runtime.arrays import FloatArray
from teal.serving.requests import Options
from teal.serving.served import SLICE_S, Job, Served
from teal.serving.wire import Answer
from teal.solvers.pdhg import MAX_LANES, PdhgState, Starter, Stop

_MOST_SLICE_S = 60.0  # seconds


@dataclasses.dataclass(eq=False)
class Waiting:
    """A request.

    Attributes:
        rates: (B, D) Gbit/s.
        options: as they were sent.
        objective: of the request, or of the network.
        gap: certified, to stop at.
        arrived: time.perf_counter() of its arrival.
        deadline: likewise, of its deadline.
        answer: set when all chunks are done; done too if nobody waits for it any more.
        parts: answers of the chunks that are done, by their first matrix.
        chunks: number of chunks that are not done.
    """

    rates: FloatArray
    options: Options
    objective: ObjectiveName
    gap: float
    arrived: float
    deadline: float
    answer: asyncio.Future[Answer]
    parts: dict[int, Answer] = dataclasses.field(default_factory=dict)
    chunks: int = 0


@dataclasses.dataclass(eq=False)
class Chunk:
    """Some matrices of a request.

    Attributes:
        request: that they belong to.
        rows: which of its matrices.
        end: when the chunk's share of the request's time is over; 0 before its first slice.
        began: when its first slice began.
        state: where its last slice ended; None before its first slice.
    """

    request: Waiting
    rows: slice
    end: float = 0.0
    began: float = 0.0
    state: PdhgState | None = None

    @property
    def size(self) -> int:
        """Number of matrices."""
        return self.rows.stop - self.rows.start

    def kind(self, now: float) -> tuple[ObjectiveName, float, bool, bool]:
        """Chunks of one kind are solved together: a smaller gap, or a deadline that has passed, would bind all."""
        return self.request.objective, self.request.gap, self.request.deadline > now, self.state is None


class Queue:
    """The chunks that wait."""

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []

    def __iter__(self) -> Iterator[Waiting]:
        """The requests of which a chunk waits, in the order of their deadlines, unless nobody waits for it."""
        requests = dict.fromkeys(chunk.request for chunk in self._chunks)
        return (request for request in requests if not request.answer.done())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def add(self, request: Waiting) -> None:
        """Take a request in."""
        for first in range(0, len(request.rates), MAX_LANES):
            self._chunks.append(Chunk(request, slice(first, min(first + MAX_LANES, len(request.rates)))))
            request.chunks += 1
        self._sort()

    def put_back(self, chunk: Chunk) -> None:
        """Let a chunk wait for another slice."""
        self._chunks.append(chunk)
        self._sort()

    def _sort(self) -> None:
        self._chunks.sort(key=lambda chunk: (chunk.request.deadline, chunk.request.arrived, chunk.rows.start))

    def take(self) -> list[Chunk]:
        """The next chunk and those of its kind that the engine can solve with it; empty if none waits."""
        self._chunks = [chunk for chunk in self._chunks if not chunk.request.answer.done()]
        if not self._chunks:
            return []
        now = time.perf_counter()
        kind, together, rest, count = self._chunks[0].kind(now), [], [], 0
        for chunk in self._chunks:
            if chunk.kind(now) == kind and count + chunk.size <= MAX_LANES:
                together.append(chunk)
                count += chunk.size
            else:
                rest.append(chunk)
        self._chunks = rest
        return together

    def clear(self) -> list[Waiting]:
        """All requests that wait; none does any more."""
        requests = list(self)
        self._chunks = []
        return requests


def solve_slice(served: Served, together: list[Chunk], starter: Starter | None) -> list[Answer | None]:
    """Work on chunks of one kind for a slice.

    Returns:
        for each chunk its answer, or None if it must go on.
    """
    begin = time.perf_counter()
    for chunk in together:
        if not chunk.end:
            chunk.began = begin
            chunk.end = begin + (chunk.request.deadline - begin) / max(1, chunk.request.chunks)
    first = together[0].request
    job = Job(
        np.concatenate([chunk.request.rates[chunk.rows] for chunk in together]),
        first.objective,
        first.gap,
        min(begin + served.slice_s, *(chunk.end for chunk in together)),
    )
    states = [chunk.state for chunk in together if chunk.state is not None]
    start = None
    if states:
        start = PdhgState(torch.cat([s.splits for s in states]), torch.cat([s.prices for s in states]))
    solved = served.solve(job, starter, start)
    now, at = time.perf_counter(), 0
    answers: list[Answer | None] = []
    for chunk in together:
        rows = slice(at, at + chunk.size)
        at = rows.stop
        may_go_on = Stop.DEADLINE in solved.stopped_by[rows] and now < chunk.end and first.deadline > begin
        if may_go_on:
            chunk.state = solved.state.rows(rows)
            answers.append(None)
        else:
            request = chunk.request
            answers.append(
                served.answer(solved, rows, request.gap, request.options.entries, chunk.began - request.arrived)
            )
    if None in answers and job.deadline == begin + served.slice_s:
        if not solved.iterations:  # set-up and check have taken all of the slice
            served.slice_s = min(2 * served.slice_s, _MOST_SLICE_S)
        elif served.slice_s > SLICE_S:  # an earlier one was slowed down by something else
            served.slice_s /= 2
    return answers


def joined(parts: dict[int, Answer]) -> Answer:
    """The answer of a request, of those of its chunks."""
    answers = [parts[first] for first in sorted(parts)]
    if len(answers) == 1:
        return answers[0]
    arrays = ("value", "bound", "gap", "satisfied_demand", "max_link_utilisation", "utilisation", "splits")
    weights = [answer.weights for answer in answers if answer.weights is not None]
    return Answer(
        **{name: np.concatenate([getattr(answer, name) for answer in answers]) for name in arrays},
        weights=np.concatenate(weights) if weights else None,
        status=tuple(status for answer in answers for status in answer.status),
        queue_ms=answers[0].queue_ms,
        solve_ms=sum(answer.solve_ms for answer in answers),
        batch=max(answer.batch for answer in answers),
    )
