"""Requests that wait for the engine, and the order in which it takes them.

A request is cut into chunks of as many matrices as the engine solves together, and the engine works
on a chunk for one slice of time at most, less where a request arrives.  Whatever it computes pauses
at the end of an iteration and goes on later; a chunk has an equal share of what is left of its
request's time.  Between two slices

- the chunk whose request has the earliest deadline comes next, if in that order some request would
  else be late, by the usual times of answers;
- otherwise the client comes next that the engine has worked for least.  Clients have equal shares
  of the engine's time for as long as they have requests here (start-time fair queueing, Goyal et
  al. 1996).

A request that, by usual times, could not be answered by its deadline, a slice and a batch, or that
would make another one as late, is refused when it arrives, and so is one for which its client would
need more than three quarters of the time until its deadline.
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
from teal.serving.engine.answer import Answer
from teal.serving.engine.errors import CLIENT_SHARE
from teal.serving.engine.requests import Options
from teal.serving.engine.served import Served, Solved
from teal.serving.engine.wanted import Wanted
from teal.solvers.pdhg import MAX_LANES, PdhgState


@dataclasses.dataclass(eq=False)
class Waiting:
    """A request.

    Attributes:
        served: the network.
        client: whom it counts for.
        rates: (B, D) Gbit/s.
        options: as they were sent.
        wanted: objective, classes and side conditions.
        gap: certified, to stop at.
        arrived: time.perf_counter() of its arrival.
        deadline: likewise, of its deadline.
        answer: set when all chunks are done; done too if nobody waits for it any more.
        parts: answers of the chunks that are done, by their first matrix.
        chunks: number of chunks that are not done.
    """

    served: Served
    client: str
    rates: FloatArray
    options: Options
    wanted: Wanted
    gap: float
    arrived: float
    deadline: float
    answer: asyncio.Future[Answer]
    parts: dict[int, Answer] = dataclasses.field(default_factory=dict)
    chunks: int = 0

    @property
    def splits(self) -> int:
        """Number of splits of the answer."""
        return self.rates.size * self.served.paths.num_paths


@dataclasses.dataclass(eq=False)
class Chunk:
    """Some matrices of a request.

    Attributes:
        request: request that they belong to.
        rows: numbers of its matrices.
        usual_s: seconds that they usually took when the request came.
        end_time: by time.perf_counter(), when its share of the request's time is over; 0 before its
            first slice.
        begin_time: by time.perf_counter(), when its first slice began.
        run: run that computes it, together with other chunks; None before its first slice and
            between two runs.
        run_rows: its rows in the run.
        capacity: (E,) Gbit/s of the run, which is begun anew where they have changed.
        state: state in which its last run ended; None before.
        solver: solver of the run that ``state`` is from; "" before.
    """

    request: Waiting
    rows: slice
    usual_s: float = 0.0
    end_time: float = 0.0
    begin_time: float = 0.0
    run: Run[Solved] | None = None
    run_rows: slice = dataclasses.field(default_factory=lambda: slice(0))
    capacity: FloatArray | None = None
    state: PdhgState | None = None
    solver: str = ""

    @property
    def size(self) -> int:
        """Number of matrices."""
        return self.rows.stop - self.rows.start

    def kind(self, now: float) -> tuple[Any, ...]:
        """Chunks of one kind are solved together: a smaller gap, or a deadline that has passed,
        would bind all.

        A run ends with the earliest deadline of its chunks, so that those of programs that could
        not go on from there have runs of their own.
        """
        request = self.request
        if self.run is not None:
            return request.served, self.run
        alone = None if request.wanted.is_resumable else request
        return (
            request.served,
            request.wanted,
            request.gap,
            request.deadline > now,
            self.state is None,
            alone,
        )


def _by_deadline(chunk: Chunk) -> tuple[float, float, int]:
    return chunk.request.deadline, chunk.request.arrived, chunk.rows.start


def _is_of(chunk: Chunk, served: Served) -> bool:
    """Whether a chunk waits for a network, perhaps over the paths that it had before."""
    return chunk.request.served.lineage is served.lineage


class Queue:
    """The chunks that wait, of all networks."""

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []  # by deadline
        # Seconds that the engine has worked for each client; one that comes back counts as having
        # had what the least served one has had.
        self._worked: dict[str, float] = {}
        self._taken: list[Chunk] = []  # what the engine is at, and what may come back

    def of(self, served: Served) -> Iterator[Waiting]:
        """The requests of a network of which a chunk waits, by deadline, unless nobody waits for
        the answer.
        """
        requests = dict.fromkeys(chunk.request for chunk in self._chunks if _is_of(chunk, served))
        return (request for request in requests if not request.answer.done())

    def is_short(self, places: int) -> bool:
        """Whether fewer requests wait, of all networks, than there are places."""
        return len(self._chunks) < places

    def splits(self) -> int:
        """Number of splits of all answers that somebody waits for, with the parts that are done."""
        requests = {chunk.request for chunk in (*self._taken, *self._chunks)}
        return sum(request.splits for request in requests if not request.answer.done())

    def lateness(self, new: Waiting, now: float) -> float:
        """Seconds by which a request would miss its deadline and a slice, with ``new``; 0 or less:
        none would.

        By the usual times of all requests, in the order of deadlines, from ``now``; a request may
        be late by a slice and the usual time of a batch.  Of the time until a deadline the requests
        of one client may need three quarters.
        """
        if (rest := self._rest(new, now)) <= 0:
            return rest
        work: dict[Waiting, float] = {new: new.served.times.usual_s(len(new.rates), new.wanted)}
        for chunk in [*self._taken, *self._chunks]:
            request = chunk.request
            if not request.answer.done():
                work[request] = work.get(request, 0.0) + request.served.times.usual_s(
                    chunk.size, request.wanted
                )
        at, of_client, latest = now, 0.0, -math.inf
        for request in sorted(work, key=lambda request: request.deadline):
            at += work[request]
            served = request.served
            margin = served.times.slice_s + served.times.usual_s(MAX_LANES, request.wanted)
            latest = max(latest, at - request.deadline - margin)
            if request.client == new.client:
                of_client += work[request]
                latest = max(latest, of_client - CLIENT_SHARE * (request.deadline + margin - now))
        return latest

    def _rest(self, new: Waiting, now: float) -> float:
        """The most that :meth:`lateness` is: all of the work, and as much again in case it takes
        longer than when the requests came, less the client's part of the time until the earliest
        deadline.
        """
        work, earliest = new.served.times.usual_s(len(new.rates), new.wanted), new.deadline
        for chunk in (*self._taken, *self._chunks):
            work += chunk.usual_s
            earliest = min(earliest, chunk.request.deadline)
        return 2 * work - CLIENT_SHARE * (earliest - now)

    def slack(self, now: float) -> float:
        """Seconds that the engine may work on what it has taken before the others must begin, by
        their usual times.
        """
        at, least = now, math.inf
        for chunk in self._chunks:
            served = chunk.request.served
            at += served.times.usual_s(chunk.size, chunk.request.wanted)
            least = min(least, chunk.request.deadline + served.times.slice_s - at)
        return least

    def add(self, request: Waiting) -> None:
        """Take a request in."""
        here = {chunk.request.client for chunk in self._chunks}
        if request.client not in here:
            least = min((self._worked.get(client, 0.0) for client in here), default=0.0)
            if not here:
                self._worked.clear()
            self._worked[request.client] = max(self._worked.get(request.client, 0.0), least)
        for first in range(0, len(request.rates), MAX_LANES):
            rows = slice(first, min(first + MAX_LANES, len(request.rates)))
            usual_s = request.served.times.usual_s(rows.stop - rows.start, request.wanted)
            self._insert(Chunk(request, rows, usual_s))
            request.chunks += 1

    def put_back(self, chunk: Chunk) -> None:
        """Let a chunk wait for another slice."""
        self._insert(chunk)

    def _insert(self, chunk: Chunk) -> None:
        bisect.insort(self._chunks, chunk, key=_by_deadline)

    def charge(self, chunks: list[Chunk], seconds: float) -> None:
        """Note that the engine has worked on chunks."""
        self._taken = []
        total = sum(chunk.size for chunk in chunks)
        for chunk in chunks:
            client = chunk.request.client
            self._worked[client] = self._worked.get(client, 0.0) + seconds * chunk.size / total

    def take(self) -> list[Chunk]:
        """The next chunk and those of its kind that the engine can solve with it; empty if none
        waits.
        """
        self._taken = []
        self._chunks = [chunk for chunk in self._chunks if not chunk.request.answer.done()]
        if not self._chunks:
            return []
        now = time.perf_counter()
        next_one = self._chunks[0]
        if not self._is_urgent(now):
            next_one = min(
                self._chunks, key=lambda chunk: self._worked.get(chunk.request.client, 0.0)
            )
        kind, together, rest = next_one.kind(now), [next_one], []
        count = next_one.size
        for chunk in self._chunks:
            if chunk is next_one:
                continue
            if chunk.kind(now) == kind and count + chunk.size <= MAX_LANES:
                together.append(chunk)
                count += chunk.size
            else:
                rest.append(chunk)
        self._chunks = rest
        self._taken = sorted(together, key=_by_deadline)
        return self._taken

    def _is_urgent(self, now: float) -> bool:
        """Whether a request might be late, if a slice went to a chunk other than that of the
        earliest deadline.
        """
        return self.slack(now) < max(chunk.request.served.times.slice_s for chunk in self._chunks)

    def clear(self, served: Served) -> list[Waiting]:
        """All requests that wait for a network or are in the engine; none does any more."""
        here = [chunk.request for chunk in self._taken if _is_of(chunk, served)]
        requests = list(dict.fromkeys([*self.of(served), *here]))
        self._chunks = [chunk for chunk in self._chunks if not _is_of(chunk, served)]
        return requests
