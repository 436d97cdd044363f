"""Traffic estimation from the counters that clients send to the service, in a separate process.

The worker process holds one :class:`NetworkEstimator` for each network whose counters were sent, so
no other request waits for the seconds that an estimate may take.  It starts with the first counters
and restarts if it dies.  The queue is fair: the next interval is that of the client with the least
worker time so far.  An interval that, by the service times before, would miss its deadline is
rejected on arrival, and an estimate that nobody waits for any more is cancelled.

Measured matrices are the history of a network; without any, estimates start with gravity.  An
interval whose counters contradict each other, or the matrix sent with them, raises an alarm: it is
answered, but its matrix is not kept, so the last good one stays current.  Entry point:
:class:`Counting` (entry point ``teal.service``).
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

# Minimum number of measured matrices that form a history.
_MIN_HISTORY = 20
# Share of the counted traffic that no matrix explains, above which the alarm is raised.
_MAX_UNEXPLAINED = 0.1
# Share of counters that repair replaces or the estimate doubts, above which the alarm is raised.
_MAX_BLAMED = 0.3
# Maximum number of suspects in a response.
_MAX_NAMES = 8


class Interval(NamedTuple):
    """Counters of an interval, and the routing during it.

    Attributes:
        readings: the counters.
        error: relative standard deviation of a counter.
        capacity: (E,) current capacities; the IGP routes over links with capacity.
        splits: (D, K) installed split ratios; None for the IGP.
        matrix: (1, D) matrix sent with the counters; None to estimate it.
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
    """Convert the counters of a request to those of an interval.

    Args:
        sent_counters: counters of the request, by names of links and nodes.
        topology: the network.
        capacity, splits, matrix: as in :class:`Interval`.

    Raises:
        ServiceError: unknown links or nodes, or no ingress and egress.
    """
    node_index = topology.node_index()
    num_nodes = topology.num_nodes
    sent = np.full(topology.num_links, np.nan)
    received = np.full(topology.num_links, np.nan)
    ingress = np.full(num_nodes, np.nan)
    egress = np.full(num_nodes, np.nan)
    # Links.
    links: dict[tuple[int, int], list[int]] = {}
    for link, ends in enumerate(
        zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)
    ):
        links.setdefault(ends, []).append(link)
    for reading in sent_counters.links:
        parallel_links = links.get(
            (node_index.get(reading.source, -1), node_index.get(reading.target, -1)), []
        )
        if reading.number >= len(parallel_links):
            raise wrong(
                f"counters.links: there is no link {reading.number} from {reading.source!r} to "
                f"{reading.target!r}"
            )
        link = parallel_links[reading.number]
        sent[link] = np.nan if reading.sent is None else reading.sent
        received[link] = np.nan if reading.received is None else reading.received
    # Ingress and egress.
    for border in sent_counters.nodes:
        if border.node not in node_index:
            raise wrong(f"counters.nodes: there is no node {border.node!r}")
        node = node_index[border.node]
        ingress[node] = np.nan if border.ingress is None else border.ingress
        egress[node] = np.nan if border.egress is None else border.egress
    if np.isnan(ingress).all() and np.isnan(egress).all():
        raise wrong("counters.nodes: what enters or leaves the network at some node")
    # Nodes without external counters have no traffic of their own if their links balance.
    unnamed = ~np.isin(topology.node_names, [border.node for border in sent_counters.nodes])
    is_transit_only = without_own_traffic(
        topology.with_capacity(capacity), unnamed, sent[None], received[None]
    )
    ingress[is_transit_only] = egress[is_transit_only] = 0.0
    counters = Readings(sent, received, ingress, egress)
    return Interval(counters, sent_counters.counter_error, capacity, splits, matrix)


@dataclasses.dataclass(frozen=True, eq=False)
class CounterEstimate:
    """Traffic matrix from the counters of an interval.

    Attributes:
        rates: (1, D) Gbit/s, the matrix to keep: the estimate, or the matrix of the request.
        figures: :class:`teal.serving.engine.responses.CountedInfo`.
    """

    rates: FloatArray
    figures: dict[str, Any]

    @property
    def alarm(self) -> bool:
        """Whether the matrix is unreliable and must not be used."""
        return bool(self.figures["alarm"])


class NetworkEstimator:
    """Estimator and checker of one network.

    Args:
        topology: the network.
        paths: its candidate paths, of all pairs of nodes.
        history: (T, D) previously measured matrices, Gbit/s.

    Attributes:
        paths: candidate paths; more may be appended.
    """

    def __init__(self, topology: Topology, paths: PathSet, history: FloatArray) -> None:
        self._topology = topology
        self.paths = paths
        self._pairs = paths.pairs
        self._matrices = list(history)
        self._estimator: Estimator | None = None
        self._checker: Checker | None = None
        # Key of the live links, and their measurement matrix F under the IGP.
        self._igp: tuple[bytes, sp.csr_array] | None = None

    def observe(self, rates: FloatArray) -> None:
        """Learn measured matrices (B, D)."""
        self._matrices = [*self._matrices, *rates][-MAX_KEPT_MATRICES:]
        if self._estimator is not None:
            for row in rates:
                self._estimator.observe(row)

    def take(self, interval: Interval) -> CounterEstimate:
        """Estimate the matrix of an interval, or check the one sent with it.

        Raises:
            ServiceError: a matrix to be checked with too few known ones, or counters without a
                consistent estimate.
        """
        # A matrix from the request: check it.
        measurements = self._measurements(interval)
        topology = self._topology
        if interval.matrix is not None:
            return self._checked(interval.readings, measurements, interval.matrix)
        # No matrix: repair and estimate.
        estimator = self._estimating(measurements, interval.error)
        try:
            values, repaired = believed(estimator, topology, interval.readings, interval.error)
            estimate = estimator.estimate(values, robust=True)
        except InputError as error:
            raise wrong(f"counters: {error}") from None
        num_counted = int(sum(np.isfinite(rates).sum() for rates in interval.readings))
        share = (repaired.num_blamed + estimate.doubted) / max(1, num_counted)
        alarm = estimate.unexplained > _MAX_UNEXPLAINED or share > _MAX_BLAMED
        if alarm:
            estimator.forget_last()
        return CounterEstimate(
            estimate.matrix[None],
            {
                "found_by": estimate.prior,
                "total_gbps": float(estimate.matrix.sum()),
                "unexplained": estimate.unexplained,
                "alarm": alarm,
                "replaced": repaired.num_blamed,
                "suspects": repaired.blamed_names(topology)[:_MAX_NAMES],
            },
        )

    def _checked(
        self, readings: Readings, measurements: sp.csr_array, matrix: FloatArray
    ) -> CounterEstimate:
        """Check the matrix of a request, with an alarm calibrated on previous matrices."""
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
        check = self._checker.check(readings, matrix[0])
        predicted = measurements @ matrix[0]
        total = max(float(check.repaired.values.sum()), 1e-300)
        return CounterEstimate(
            matrix,
            {
                "found_by": "sent",
                "total_gbps": float(matrix.sum()),
                "unexplained": float(np.abs(predicted - check.repaired.values).sum()) / total,
                "alarm": check.alarm,
                "replaced": check.repaired.num_blamed,
                "suspects": [*([check.unit] if check.unit else []), *check.suspects][:_MAX_NAMES],
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
    """Estimate and check the counters of an interval of B4, so that all kernels are compiled."""
    topology = load_topology("b4")
    paths = compute_paths(topology, num_paths=1, cache=False)
    rng = np.random.default_rng(0)
    series = rng.lognormal(0, 0.1, (_MIN_HISTORY + 1, paths.num_demands))
    first_paths = np.ones((paths.num_demands, 1))
    igp_matrix = ecmp_measurements(EcmpDag.of(topology, igp_metric(topology, "file")), paths.pairs)
    path_matrix = path_measurements(paths, first_paths, topology.num_nodes)
    # Estimates with and without a history, over the IGP and over splits; then a check of a matrix.
    for history, splits, matrix in (
        (series[:1], None, None),
        (series[:-1], None, None),
        (series[:-1], first_paths, None),
        (series[:-1], None, series[-1:]),
    ):
        values = (igp_matrix if splits is None else path_matrix) @ series[-1]
        links, ingress, egress = np.split(values, [topology.num_links, -topology.num_nodes])
        readings = Readings(links, links.copy(), ingress, egress)
        interval = Interval(readings, 0.01, topology.capacity, splits, matrix)
        NetworkEstimator(topology, paths, history).take(interval)


# Weight of the newest estimate in the moving average of a network's service time.
_NEWEST_WEIGHT = 0.2
# Interval at which a cancelled estimate is signalled again, seconds.
_RESIGNAL_S = 0.05
# Cancellation signal; a process that has not installed its handler yet ignores it.
_STOP = signal.SIGURG
# Niceness of the worker process: allocations have priority.
_NICENESS = 10


class _Stopped(Exception):  # noqa: N818, it is no error
    """Cancellation of an estimate that nobody waits for."""


@dataclasses.dataclass(eq=False)
class _QueuedInterval:
    """A queued interval.

    Attributes:
        key: key of the network's registration.
        client: client whose quota it uses.
        work: computes the estimate; called in the thread that talks to the process.
        answer: the result; also done if nobody waits for it any more.
    """

    key: str
    client: str
    work: Callable[[], CounterEstimate]
    answer: asyncio.Future[CounterEstimate]


class Counting:
    """Queue of estimates of all networks.  All methods run on one event loop.

    Args:
        most_waiting: maximum number of queued intervals; more are rejected.
    """

    interval_of = staticmethod(interval_of)
    warm_up = staticmethod(warm_up)

    def __init__(self, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="counting")
        self._process: _Process | None = None
        # The first entry may be running.
        self._queue: list[_QueuedInterval] = []
        self._drain_task: asyncio.Task[None] | None = None
        # Service-time estimates by network, and worker time by client, seconds.
        self._service_times: dict[str, float] = {}
        self._client_times: dict[str, float] = {}

    async def take(
        self,
        key: str,
        topology: Topology,
        paths: PathSet,
        matrices: MeasuredMatrices,
        interval: Interval,
        client: str,
        deadline: float,
    ) -> CounterEstimate:
        """Estimate the matrix of an interval, or check the one sent with it.

        Args:
            key: key of the network's registration.
            topology: the network.
            paths: its candidate paths.
            matrices: previously measured matrices: the history of the first estimate.
            interval: the counters.
            client: client whose quota the interval uses.
            deadline: deadline on the clock of time.perf_counter().

        Raises:
            ServiceError: see :meth:`NetworkEstimator.take`; or no result by the deadline.
        """
        self._refuse_late(key, client, deadline)
        answer = asyncio.get_running_loop().create_future()

        def work() -> CounterEstimate:
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
                # The state of the network's estimator is lost, too.
                del process.begun[key]
                raise

        self._queue.append(_QueuedInterval(key, client, work, answer))
        if self._drain_task is None or self._drain_task.done():
            self._drain_task = asyncio.create_task(self._drain())
        try:
            return await asyncio.wait_for(answer, max(0.0, deadline - time.perf_counter()))
        except TimeoutError:
            raise overloaded() from None

    def _refuse_late(self, key: str, client: str, deadline: float) -> None:
        """Raise ServiceError if the queue is full, or if the interval would miss its deadline; one
        client may use three quarters of queue and time.
        """
        queued = [entry for entry in self._queue if not entry.answer.done()]
        num_by_client = Counter(entry.client for entry in queued)
        if len(queued) >= self._most_waiting or num_by_client[client] >= places_of_one(
            self._most_waiting
        ):
            raise overloaded()
        # With an empty queue always try: an estimate that took long once may be short now.
        if not queued:
            return
        remaining = deadline - time.perf_counter()
        client_time, total = (
            sum(self._service_times.get(entry.key, 0.0) for entry in entries)
            + self._service_times.get(key, 0.0)
            for entries in ([entry for entry in queued if entry.client == client], queued)
        )
        excess = max(total - remaining, client_time - CLIENT_SHARE * remaining)
        if excess > 0:
            raise overloaded(math.ceil(max(1.0, excess)))

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        while queued := [entry for entry in self._queue if not entry.answer.done()]:
            entry = min(queued, key=lambda entry: self._client_times.get(entry.client, 0.0))
            begin = time.perf_counter()
            job = loop.run_in_executor(self._thread, entry.work)
            try:
                await asyncio.wait({job, entry.answer}, return_when=asyncio.FIRST_COMPLETED)
                while not job.done():
                    if self._process is not None:
                        self._process.stop()
                    await asyncio.wait({job}, timeout=_RESIGNAL_S)
            finally:
                # The event loop ends.
                if not job.done() and self._process is not None:
                    self._process.end()
            seconds = time.perf_counter() - begin
            self._client_times[entry.client] = self._client_times.get(entry.client, 0.0) + seconds
            error = job.exception()
            if error is None:
                service_time = self._service_times.get(entry.key, seconds)
                self._service_times[entry.key] = service_time + _NEWEST_WEIGHT * (
                    seconds - service_time
                )
            if not entry.answer.done():
                if error is None:
                    entry.answer.set_result(job.result())
                else:
                    entry.answer.set_exception(error)
            self._queue = [queued for queued in self._queue if not queued.answer.done()]
        self._queue = []
        self._client_times = {}

    def observe(self, key: str, rates: FloatArray) -> None:
        """Learn measured matrices (B, D), in the background."""
        self._tell("observe", key, rates)

    def forget(self, key: str) -> None:
        """Drop the state of a deregistered network."""
        self._service_times.pop(key, None)
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
    """Client side of the worker process, used by one thread.

    Attributes:
        begun: paths of each network that the process knows.
        has_ended: whether the process has ended.
    """

    def __init__(self) -> None:
        # Threads of torch and Numba do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self._connection, child_connection = context.Pipe()
        self._process = context.Process(
            target=_estimates, args=(child_connection,), name="counting", daemon=True
        )
        self._process.start()
        child_connection.close()
        self.begun: dict[str, PathSet] = {}
        self.has_ended = False

    def call(self, method: str, *arguments: Any) -> Any:
        """Return the result of a method of :class:`_Estimates`, or raise its error."""
        try:
            self._connection.send((method, arguments))
            outcome = self._connection.recv()
        except (EOFError, OSError):
            # The process may still run without its connection.
            self.end()
            raise ServiceError(
                503, "unavailable", "the process for counters has ended; try again", 1.0
            ) from None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def end(self) -> None:
        """Kill the process."""
        self.has_ended = True
        self._process.kill()

    def stop(self) -> None:
        """Cancel the running estimate, if any."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid or 0, _STOP)


def _estimates(connection: Connection) -> None:
    """Main loop of the worker process: answer calls until the service ends."""
    ignore_interrupts()
    os.nice(_NICENESS)
    limit_threads(1)
    estimates = _Estimates()
    signal.signal(_STOP, lambda *_: estimates.stop())
    # The connection closes when the service ends.
    with contextlib.suppress(EOFError, OSError):
        while True:
            method, arguments = connection.recv()
            try:
                outcome = getattr(estimates, method)(*arguments)
            except (TealError, _Stopped) as error:
                outcome = error
            except Exception:
                # The error itself may not be picklable.
                outcome = RuntimeError(traceback.format_exc())
            connection.send(outcome)


class _Estimates:
    """Estimators of all networks, by network key, in the worker process."""

    def __init__(self) -> None:
        self._estimators: dict[str, NetworkEstimator] = {}
        self._may_stop = False

    def begin(self, key: str, topology: Topology, paths: PathSet, history: FloatArray) -> None:
        self._estimators[key] = NetworkEstimator(topology, paths, history.astype(np.float64))

    def use(self, key: str, paths: PathSet) -> None:
        self._estimators[key].paths = paths

    def observe(self, key: str, rates: FloatArray) -> None:
        self._estimators[key].observe(rates)

    def forget(self, key: str) -> None:
        del self._estimators[key]

    def take(self, key: str, interval: Interval) -> CounterEstimate:
        try:
            self._may_stop = True
            return self._estimators[key].take(interval)
        except _Stopped:
            # The state may be inconsistent: it may have stopped between two updates.
            del self._estimators[key]
            raise
        finally:
            self._may_stop = False

    def stop(self) -> None:
        if self._may_stop:
            self._may_stop = False
            raise _Stopped
