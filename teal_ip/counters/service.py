"""Estimates from counters, in a process of their own: no other request waits for the seconds that
they may take.

The process has the :class:`teal_ip.counters.service.CountedTraffic` of every network whose counters
were sent.  It begins with the first of them, and again should it end.  Intervals wait for it as
requests wait for the engine: the next one is that of the client for which it has worked least.  One
that could not be estimated by its deadline, by the times of those before, is refused when it
arrives, and nothing is estimated that nobody waits for any more.

Counters that are sent to the service: what matrix they say, and whether they agree with one sent
beside them.

The process has one :class:`CountedTraffic` a network.  Matrices that were measured themselves are
its history; without any, estimates begin with gravity.  An interval whose counters contradict each
other, or the matrix that was sent with them, raises an alarm: it is answered, and the matrix is not
kept, so that the last good one stays in force.
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
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from teal.errors import InputError, TealError
from teal.formats import load_topology
from teal.network import PathSet, Topology, compute_paths
from teal.network.ecmp import EcmpDag, igp_metric
from teal.runtime.arrays import FloatArray
from teal.runtime.interrupts import ignore_interrupts
from teal.runtime.parallel import limit_threads
from teal.serving.engine.errors import CLIENT_SHARE, ServiceError, overloaded, places_of_one, wrong
from teal.serving.engine.log import LOG
from teal.serving.engine.measured import MAX_KEPT_MATRICES, MeasuredMatrices
from teal.serving.engine.requests import CounterReadings
from teal_ip.counters.check import Checker
from teal_ip.counters.estimator import Estimator
from teal_ip.counters.repair import believed
from teal_ip.readings.readings import Readings, without_own_traffic
from teal_ip.routing.measurements import ecmp_measurements, path_measurements

_MIN_HISTORY = 20  # measured matrices, from which on they are a history
_MAX_UNEXPLAINED = (
    0.1  # share of what was counted that no matrix explains, above which there is an alarm
)
_MAX_BLAMED = 0.3  # share of the counters that repair replaces or the estimate doubts, likewise
_MAX_NAMES = 8  # suspects in an answer


class Interval(NamedTuple):
    """The counters of an interval, and what was in force meanwhile.

    Attributes:
        readings: the counters.
        error: standard deviation of a counter, as a share of it.
        capacity: (E,) in force, of whose working links the IGP has its paths.
        splits: (D, K) that were in force; None for the IGP.
        matrix: (1, D) that was sent beside the counters; None to estimate it.
    """

    readings: Readings
    error: float
    capacity: FloatArray
    splits: FloatArray | None
    matrix: FloatArray | None


def interval_of(
    sent_counters: CounterReadings,
    topology: Topology,
    capacity: FloatArray,
    splits: FloatArray | None,
    matrix: FloatArray | None,
) -> Interval:
    """The counters of a request as those of an interval.

    Args:
        sent_counters: counters of the request, by the names of links and nodes.
        topology: the network.
        capacity, splits, matrix: as in :class:`Interval`.

    Raises:
        ServiceError: links or nodes that the network does not have, or nothing that enters or
            leaves.
    """
    index, nodes = topology.node_index(), topology.num_nodes
    sent, received = np.full(topology.num_links, np.nan), np.full(topology.num_links, np.nan)
    ingress, egress = np.full(nodes, np.nan), np.full(nodes, np.nan)
    links: dict[tuple[int, int], list[int]] = {}
    for link, ends in enumerate(
        zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)
    ):
        links.setdefault(ends, []).append(link)
    for one in sent_counters.links:
        found = links.get((index.get(one.source, -1), index.get(one.target, -1)), [])
        if one.number >= len(found):
            raise wrong(
                f"counters.links: there is no link {one.number} from {one.source!r} to "
                f"{one.target!r}"
            )
        link = found[one.number]
        sent[link] = np.nan if one.sent is None else one.sent
        received[link] = np.nan if one.received is None else one.received
    for border in sent_counters.nodes:
        if border.node not in index:
            raise wrong(f"counters.nodes: there is no node {border.node!r}")
        node = index[border.node]
        ingress[node] = np.nan if border.ingress is None else border.ingress
        egress[node] = np.nan if border.egress is None else border.egress
    if np.isnan(ingress).all() and np.isnan(egress).all():
        raise wrong("counters.nodes: what enters or leaves the network at some node")
    unnamed = ~np.isin(topology.node_names, [border.node for border in sent_counters.nodes])
    inner = without_own_traffic(
        topology.with_capacity(capacity), unnamed, sent[None], received[None]
    )
    ingress[inner] = egress[inner] = 0.0
    counters = Readings(sent, received, ingress, egress)
    return Interval(counters, sent_counters.counter_error, capacity, splits, matrix)


@dataclasses.dataclass(frozen=True, eq=False)
class Counted:
    """The estimate from the counters of an interval.

    Attributes:
        rates: (1, D) Gbit/s, the matrix to keep: the estimate, or what was sent.
        figures: :class:`teal.serving.engine.responses.CountedInfo`.
    """

    rates: FloatArray
    figures: dict[str, Any]

    @property
    def alarm(self) -> bool:
        """Whether the matrix must not be acted on."""
        return bool(self.figures["alarm"])


class CountedTraffic:
    """The estimates of one network.

    Args:
        topology: the network.
        paths: its candidate paths, of all pairs of nodes.
        history: (T, D) matrices that were measured before, Gbit/s.

    Attributes:
        paths: as the argument; others may be added behind them.
    """

    def __init__(self, topology: Topology, paths: PathSet, history: FloatArray) -> None:
        self._topology, self.paths, self._pairs = topology, paths, paths.pairs
        self._matrices = list(history)
        self._estimator: Estimator | None = None
        self._checker: Checker | None = None
        self._igp: tuple[bytes, sp.csr_array] | None = None  # working links, and F

    def observe(self, rates: FloatArray) -> None:
        """Learn matrices (B, D) that were measured themselves."""
        self._matrices = [*self._matrices, *rates][-MAX_KEPT_MATRICES:]
        if self._estimator is not None:
            for row in rates:
                self._estimator.observe(row)

    def take(self, interval: Interval) -> Counted:
        """The matrix of an interval, and the verdict on it.

        Raises:
            ServiceError: a matrix to be checked before enough are known, or counters of which no
                matrix can be made.
        """
        measurements = self._measurements(interval)
        topology = self._topology
        if interval.matrix is not None:
            return self._checked(interval.readings, measurements, interval.matrix)
        estimator = self._estimating(measurements, interval.error)
        try:
            values, fixed = believed(estimator, topology, interval.readings, interval.error)
            one = estimator.estimate(values, robust=True)
        except InputError as error:
            raise wrong(f"counters: {error}") from None
        counted = int(sum(np.isfinite(rates).sum() for rates in interval.readings))
        share = (fixed.num_blamed + one.doubted) / max(1, counted)
        alarm = one.unexplained > _MAX_UNEXPLAINED or share > _MAX_BLAMED
        if alarm:
            estimator.forget_last()
        return Counted(
            one.matrix[None],
            {
                "found_by": one.prior,
                "total_gbps": float(one.matrix.sum()),
                "unexplained": one.unexplained,
                "alarm": alarm,
                "replaced": fixed.num_blamed,
                "suspects": fixed.blamed_names(topology)[:_MAX_NAMES],
            },
        )

    def _checked(
        self, readings: Readings, measurements: sp.csr_array, matrix: FloatArray
    ) -> Counted:
        """The verdict on a matrix that was sent, by a checker that is calibrated on the matrices
        before.
        """
        if self._checker is None:
            if len(self._matrices) < _MIN_HISTORY:
                raise wrong(
                    f"counters: a matrix is checked against them once {_MIN_HISTORY} matrices are "
                    "known, not after "
                    f"{len(self._matrices)}"
                )
            self._checker = Checker(self._topology, self._pairs, measurements)
            self._checker.calibrate(np.array(self._matrices))
        self._checker.route(measurements)
        found = self._checker.check(readings, matrix[0])
        predicted = measurements @ matrix[0]
        total = max(float(found.repaired.values.sum()), 1e-300)
        return Counted(
            matrix,
            {
                "found_by": "sent",
                "total_gbps": float(matrix.sum()),
                "unexplained": float(np.abs(predicted - found.repaired.values).sum()) / total,
                "alarm": found.alarm,
                "replaced": found.repaired.num_blamed,
                "suspects": [*([found.unit] if found.unit else []), *found.suspects][:_MAX_NAMES],
            },
        )

    def _estimating(self, measurements: sp.csr_array, relative: float) -> Estimator:
        if self._estimator is None:
            enough = len(self._matrices) >= _MIN_HISTORY
            history = np.array(self._matrices) if enough else None
            self._estimator = Estimator(
                self._pairs, self._topology.num_nodes, history=history, relative=relative
            )
        self._estimator.route(measurements)
        return self._estimator

    def _measurements(self, interval: Interval) -> sp.csr_array:
        if interval.splits is not None:
            splits = np.pad(
                interval.splits, ((0, 0), (0, self.paths.num_paths - interval.splits.shape[1]))
            )
            return path_measurements(self.paths, splits, self._topology.num_nodes)
        key = (interval.capacity > 0).tobytes()
        if self._igp is None or self._igp[0] != key:
            topology = dataclasses.replace(self._topology, capacity=interval.capacity)
            self._igp = (
                key,
                ecmp_measurements(EcmpDag.of(topology, igp_metric(topology, "file")), self._pairs),
            )
        return self._igp[1]


def warm_up() -> None:
    """Estimate and check the counters of an interval of B4, so that all kernels of it are
    compiled.
    """
    topology = load_topology("b4")
    paths = compute_paths(topology, num_paths=1, cache=False)
    rng = np.random.default_rng(0)
    series = rng.lognormal(0, 0.1, (_MIN_HISTORY + 1, paths.num_demands))
    first_paths = np.ones((paths.num_demands, 1))
    igp = ecmp_measurements(EcmpDag.of(topology, igp_metric(topology, "file")), paths.pairs)
    own = path_measurements(paths, first_paths, topology.num_nodes)
    # Estimates with and without a history, over the IGP and over splits; then a check of a matrix.
    for history, splits, matrix in (
        (series[:1], None, None),
        (series[:-1], None, None),
        (series[:-1], first_paths, None),
        (series[:-1], None, series[-1:]),
    ):
        values = (igp if splits is None else own) @ series[-1]
        links, ingress, egress = np.split(values, [topology.num_links, -topology.num_nodes])
        readings = Readings(links, links.copy(), ingress, egress)
        interval = Interval(readings, 0.01, topology.capacity, splits, matrix)
        CountedTraffic(topology, paths, history).take(interval)


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
        key: key of the registration of the network.
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

    interval_of = staticmethod(interval_of)
    warm_up = staticmethod(warm_up)

    def __init__(self, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="counting")
        self._process: _Process | None = None
        self._queue: list[_Waiting] = []  # the first one may be under way
        self._draining: asyncio.Task[None] | None = None
        self._usual: dict[str, float] = {}  # seconds of an estimate, by network
        self._worked: dict[str, float] = {}  # seconds, by client

    async def take(
        self,
        key: str,
        topology: Topology,
        paths: PathSet,
        matrices: MeasuredMatrices,
        interval: Interval,
        client: str,
        deadline: float,
    ) -> Counted:
        """The matrix of an interval, and the verdict on it.

        Args:
            key: key of the registration of the network.
            topology: the network.
            paths: its candidate paths.
            matrices: matrices that were measured before: the history of the first estimate.
            interval: the counters.
            client: whom they count for.
            deadline: by time.perf_counter().

        Raises:
            ServiceError: see :meth:`CountedTraffic.take`; or the estimate is not there by the
                deadline.
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
        """Raise ServiceError if too many wait, or if this one would be late; a client may have
        three quarters.
        """
        here = [one for one in self._queue if not one.answer.done()]
        of_client = Counter(one.client for one in here)
        if len(here) >= self._most_waiting or of_client[client] >= places_of_one(
            self._most_waiting
        ):
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
        begun: paths of each network that the process knows.
        has_ended: whether it answers no more.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context(
            "spawn"
        )  # threads of torch and Numba do not survive a fork
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_estimates, args=(theirs,), name="counting", daemon=True
        )
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
            raise ServiceError(
                503, "unavailable", "the process for counters has ended; try again", 1.0
            ) from None
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
