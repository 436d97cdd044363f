"""Estimates from counters, in a process of their own: no other request waits for the seconds that they may take.

The process has the :class:`teal.serving.engine.counted.CountedTraffic` of every network whose counters were sent.  It
begins with the first of them, and again should it end.  Intervals wait for it as requests wait for the engine: the next
one is that of the client for which it has worked least.  One that could not be estimated by its deadline, by the times
of those before, is refused when it arrives, and nothing is estimated that nobody waits for any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import multiprocessing
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from teal.errors import TealError
from teal.network import PathSet, Topology
from teal.runtime.arrays import FloatArray
from teal.runtime.interrupts import ignore_interrupts
from teal.runtime.parallel import limit_threads
from teal.serving.engine.counted import Counted, CountedTraffic, Interval
from teal.serving.engine.errors import CLIENT_SHARE, ServiceError, overloaded, places_of_one
from teal.serving.engine.log import LOG
from teal.serving.engine.measured import MeasuredMatrices

_NEWEST_SHARE = 0.2  # weight of the newest estimate in the usual time of a network
_AGAIN_S = 0.05  # seconds after which an estimate that nobody waits for is told to stop again
_STOP = signal.SIGURG  # which a process that has not begun to listen ignores
_NICENESS = 10  # of the process: allocations come first


class _Stopped(Exception):  # noqa: N818, it is no error
    """Nobody waits for the estimate."""


@dataclasses.dataclass(eq=False)
class _Waiting:
    """Counters that wait for their estimate.

    Attributes:
        key: of the registration of the network.
        client: whom they count for.
        work: the estimate, to be called in the thread that talks to the process.
        answer: done too if nobody waits for it any more.
    """

    key: str
    client: str
    work: Callable[[], Counted]
    answer: asyncio.Future[Counted]


class Counting:
    """The estimates of all networks.  Its methods are called on one event loop.

    Args:
        most_waiting: intervals that may wait; more are turned away.
    """

    def __init__(self, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="counting")
        self._process: _Process | None = None
        self._queue: list[_Waiting] = []  # the first one may be under way
        self._begin_s = 0.0  # when it began, by time.perf_counter()
        self._draining: asyncio.Task[None] | None = None
        self._usual: dict[str, float] = {}  # seconds of an estimate, by network
        self._worked: dict[str, float] = {}  # seconds, by client

    async def take(
        self, key: str, topology: Topology, paths: PathSet, matrices: MeasuredMatrices, interval: Interval,
        client: str, deadline: float,
    ) -> Counted:  # fmt: skip
        """The matrix of an interval, and the verdict on it.

        Args:
            key: of the registration of the network.
            topology: the network.
            paths: its candidate paths.
            matrices: that were measured before: the history of the first estimate.
            interval: the counters.
            client: whom they count for.
            deadline: by time.perf_counter().

        Raises:
            ServiceError: see :meth:`CountedTraffic.take`; or the estimate is not there by the deadline.
        """
        self._refuse_late(key, client, deadline)
        answer = asyncio.get_running_loop().create_future()

        def work() -> Counted:
            process = self._running()
            if process.begun.get(key) is None:
                matrices.refresh()
                process.call("begin", key, topology, paths, matrices.rates())
            elif process.begun[key] is not paths:
                process.call("use", key, paths)
            process.begun[key] = paths
            try:
                return process.call("take", key, interval)
            except _Stopped:
                del process.begun[key]  # what the estimates had learnt is gone too
                raise

        self._queue.append(_Waiting(key, client, work, answer))
        if self._draining is None or self._draining.done():
            self._draining = asyncio.create_task(self._drain())
        try:
            return await asyncio.wait_for(answer, max(0.0, deadline - time.perf_counter()))
        except TimeoutError:
            raise overloaded() from None

    def _refuse_late(self, key: str, client: str, deadline: float) -> None:
        """Raise ServiceError if too many wait, or if this one would be late; a client may have three quarters."""
        here = [one for one in self._queue if not one.answer.done()]
        of_client = Counter(one.client for one in here)
        if len(here) >= self._most_waiting or of_client[client] >= places_of_one(self._most_waiting):
            raise overloaded()
        if not here:  # an estimate that took long once may be short now
            return
        left = deadline - time.perf_counter()
        own, total = (
            sum(self._usual.get(one.key, 0.0) for one in some) + self._usual.get(key, 0.0)
            for some in ([one for one in here if one.client == client], here)
        )
        late = max(total - left, own - CLIENT_SHARE * left)
        if late > 0:
            raise overloaded(math.ceil(max(1.0, late)))

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        while here := [one for one in self._queue if not one.answer.done()]:
            one = min(here, key=lambda one: self._worked.get(one.client, 0.0))
            begin = time.perf_counter()
            job = loop.run_in_executor(self._thread, one.work)
            try:
                await asyncio.wait({job, one.answer}, return_when=asyncio.FIRST_COMPLETED)
                while not job.done():
                    if self._process is not None:
                        self._process.stop()
                    await asyncio.wait({job}, timeout=_AGAIN_S)
            finally:
                if not job.done() and self._process is not None:  # the event loop ends
                    self._process.end()
            seconds = time.perf_counter() - begin
            self._worked[one.client] = self._worked.get(one.client, 0.0) + seconds
            error = job.exception()
            if error is None:
                usual = self._usual.get(one.key, seconds)
                self._usual[one.key] = usual + _NEWEST_SHARE * (seconds - usual)
            if not one.answer.done():
                if error is None:
                    one.answer.set_result(job.result())
                else:
                    one.answer.set_exception(error)
            self._queue = [other for other in self._queue if not other.answer.done()]
        self._queue, self._worked = [], {}

    def observe(self, key: str, rates: FloatArray) -> None:
        """Learn matrices (B, D) that were measured themselves; nobody waits for it."""
        self._tell("observe", key, rates)

    def forget(self, key: str) -> None:
        """Drop what is known of a network that is gone."""
        self._usual.pop(key, None)
        self._tell("forget", key)

    def _tell(self, method: str, key: str, *arguments: Any) -> None:
        def work() -> None:
            process = self._process
            if process is None or process.begun.get(key) is None:
                return
            try:
                process.call(method, key, *arguments)
                if method == "forget":
                    del process.begun[key]
            except Exception:
                LOG.exception("counters", extra={"teal": {"call": method}})

        self._thread.submit(work)

    def _running(self) -> _Process:
        if self._process is None or self._process.has_ended:
            self._process = _Process()
        return self._process


class _Process:
    """The process, as the thread that talks to it sees it.

    Attributes:
        begun: of each network that the process knows, the paths that it has.
        has_ended: whether it answers no more.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # threads of torch and Numba do not survive a fork
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_estimates, args=(theirs,), name="counting", daemon=True)
        self._process.start()
        theirs.close()
        self.begun: dict[str, PathSet] = {}
        self.has_ended = False

    def call(self, method: str, *arguments: Any) -> Any:
        """The result of a method of :class:`_Estimates`, or its error."""
        try:
            self._connection.send((method, arguments))
            outcome = self._connection.recv()
        except (EOFError, OSError):
            self.end()  # it may be half gone
            raise ServiceError(503, "unavailable", "the process for counters has ended; try again", 1.0) from None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def end(self) -> None:
        """End it, whatever it is at."""
        self.has_ended = True
        self._process.kill()

    def stop(self) -> None:
        """End the estimate that is under way, if one is."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid or 0, _STOP)


def _estimates(connection: Connection) -> None:
    """Answer calls until the service ends."""
    ignore_interrupts()
    os.nice(_NICENESS)
    limit_threads(1)
    estimates = _Estimates()
    signal.signal(_STOP, lambda *_: estimates.stop())
    with contextlib.suppress(EOFError, OSError):  # the service has ended
        while True:
            method, arguments = connection.recv()
            try:
                outcome = getattr(estimates, method)(*arguments)
            except (TealError, _Stopped) as error:
                outcome = error
            except Exception:
                outcome = RuntimeError(traceback.format_exc())  # the error itself may not travel
            connection.send(outcome)


class _Estimates:
    """Estimates of the traffic of each network, by the network's key, in one process."""

    def __init__(self) -> None:
        self._known: dict[str, CountedTraffic] = {}
        self._may_stop = False

    def begin(self, key: str, topology: Topology, paths: PathSet, history: FloatArray) -> None:
        self._known[key] = CountedTraffic(topology, paths, history.astype(np.float64))

    def use(self, key: str, paths: PathSet) -> None:
        self._known[key].paths = paths

    def observe(self, key: str, rates: FloatArray) -> None:
        self._known[key].observe(rates)

    def forget(self, key: str) -> None:
        del self._known[key]

    def take(self, key: str, interval: Interval) -> Counted:
        try:
            self._may_stop = True
            return self._known[key].take(interval)
        except _Stopped:
            del self._known[key]  # it may have stopped between two steps that belong together
            raise
        finally:
            self._may_stop = False

    def stop(self) -> None:
        if self._may_stop:
            self._may_stop = False
            raise _Stopped
