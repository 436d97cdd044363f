"""Traffic estimation from the counters that clients send to the service, in a separate process.

The worker process holds a :class:`NetworkEstimator` for each network with counters, since an
estimate may take seconds and must not delay other requests.  It starts with the first counters, and
restarts if it dies.  Scheduling is fair: the next interval is that of the client with the least
worker time so far.  An interval that is predicted to miss its deadline is rejected on arrival.  An
estimate is cancelled once no client waits for it.

Measured matrices form the history of a network; without a history, estimates start with gravity.
Counters that contradict each other, or the matrix sent with them, raise an alarm: the interval is
answered, but its matrix is discarded, so the last good one stays current.  Entry point:
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
from teal_ip.counters.check import Checker
from teal_ip.counters.estimator import Estimator
from teal_ip.counters.repair import repaired_values
from teal_ip.readings.readings import Readings, without_own_traffic
from teal_ip.routing.measurements import ecmp_measurements, path_measurements
from teal_serve.engine.errors import (
    CLIENT_SHARE,
    ServiceError,
    invalid_request,
    max_places_per_client,
    overloaded,
)
from teal_serve.engine.log import LOG
from teal_serve.engine.measured import MAX_KEPT_MATRICES, MeasuredMatrices
from teal_serve.engine.requests import CounterReadings

# Minimum number of measured matrices of a history.
_MIN_HISTORY = 20
# Unexplained share of the counted traffic above which the alarm is raised.
_MAX_UNEXPLAINED = 0.1
# Share of counters that are blamed or outliers above which the alarm is raised.
_MAX_BLAMED_SHARE = 0.3
# Maximum number of suspects in a response.
_MAX_SUSPECTS = 8


class Interval(NamedTuple):
    """Counters of an interval, with the routing at that time.

    Attributes:
        readings: the counters.
        error: relative standard deviation of a counter.
        capacity: (E,) current capacities, Gbit/s; the IGP routes over links with capacity.
        splits: (D, K) installed split ratios of each demand over its candidate paths; None if the
            IGP routes the traffic.
        matrix: (1, D) matrix sent with the counters, Gbit/s; None to estimate it.
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
    """Convert the counters of a request to arrays over links and nodes.

    Args:
        sent_counters: counters of the request, by names of links and nodes.
        topology: the network.
        capacity: (E,) current capacities, Gbit/s.
        splits: (D, K) installed split ratios of each demand over its candidate paths; None if the
            IGP routes the traffic.
        matrix: (1, D) matrix sent with the counters, Gbit/s; None to estimate it.

    Raises:
        ServiceError: unknown links or nodes, or no ingress and egress.
    """
    # Rates of links and nodes; NaN without a counter.
    node_index = topology.node_index()
    num_nodes = topology.num_nodes
    sent_rates = np.full(topology.num_links, np.nan)
    received_rates = np.full(topology.num_links, np.nan)
    ingress = np.full(num_nodes, np.nan)
    egress = np.full(num_nodes, np.nan)
    # Links: indices of parallel links by their end nodes, then both counters of each link, which
    # the request names by its end nodes and its number among parallel links, from 0.
    links_by_ends: dict[tuple[int, int], list[int]] = {}
    for link, ends in enumerate(
        zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)
    ):
        links_by_ends.setdefault(ends, []).append(link)
    for link_counters in sent_counters.links:
        parallel_links = links_by_ends.get(
            (node_index.get(link_counters.source, -1), node_index.get(link_counters.target, -1)), []
        )
        if link_counters.number >= len(parallel_links):
            raise invalid_request(
                f"counters.links: the network has no link {link_counters.number} from "
                f"{link_counters.source!r} to {link_counters.target!r}"
            )
        link = parallel_links[link_counters.number]
        sent_rates[link] = np.nan if link_counters.sent is None else link_counters.sent
        received_rates[link] = np.nan if link_counters.received is None else link_counters.received
    # Ingress and egress.
    for node_counters in sent_counters.nodes:
        if node_counters.node not in node_index:
            raise invalid_request(f"counters.nodes: the network has no node {node_counters.node!r}")
        node = node_index[node_counters.node]
        ingress[node] = np.nan if node_counters.ingress is None else node_counters.ingress
        egress[node] = np.nan if node_counters.egress is None else node_counters.egress
    if np.isnan(ingress).all() and np.isnan(egress).all():
        raise invalid_request("counters.nodes: no ingress or egress of any node; add at least one")
    # Nodes without ingress and egress counters are transit-only if their links balance.
    is_without_counters = ~np.isin(
        topology.node_names, [node_counters.node for node_counters in sent_counters.nodes]
    )
    transit_only_nodes = without_own_traffic(
        topology.with_capacity(capacity),
        is_without_counters,
        sent_rates[None],
        received_rates[None],
    )
    ingress[transit_only_nodes] = egress[transit_only_nodes] = 0.0
    readings = Readings(sent_rates, received_rates, ingress, egress)
    return Interval(readings, sent_counters.counter_error, capacity, splits, matrix)


@dataclasses.dataclass(frozen=True, eq=False)
class CounterEstimate:
    """Traffic matrix of an interval, estimated from the counters or checked against them.

    Attributes:
        rates: (1, D) the estimate, or the matrix of the request, Gbit/s.
        figures: fields of :class:`teal_serve.engine.responses.CountedInfo` in the response.
    """

    rates: FloatArray
    figures: dict[str, Any]

    @property
    def alarm(self) -> bool:
        """Whether counters and matrix contradict each other, so that the matrix must not be
        used.
        """
        return bool(self.figures["alarm"])


class NetworkEstimator:
    """Estimator and checker of one network.

    Args:
        topology: the network.
        paths: its candidate paths for all pairs of nodes.
        history: (T, D) previously measured matrices, Gbit/s.

    Attributes:
        paths: current candidate paths: a larger set may be assigned later.
    """

    def __init__(self, topology: Topology, paths: PathSet, history: FloatArray) -> None:
        self._topology = topology
        self.paths = paths
        self._pairs = paths.pairs
        self._matrices = list(history)
        self._estimator: Estimator | None = None
        self._checker: Checker | None = None
        # Measurement matrix under the IGP for one set of live links (the bytes of their mask).
        self._igp_measurements: tuple[bytes, sp.csr_array] | None = None

    def observe(self, rates: FloatArray) -> None:
        """Add measured matrices (B, D), Gbit/s, to the history."""
        self._matrices = [*self._matrices, *rates][-MAX_KEPT_MATRICES:]
        if self._estimator is not None:
            for row in rates:
                self._estimator.observe(row)

    def take(self, interval: Interval) -> CounterEstimate:
        """Estimate the matrix of an interval from its counters, or check the matrix sent with them.

        Args:
            interval: counters, routing, and the matrix to check, if any.

        Raises:
            ServiceError: a matrix to check before 20 others are known, or counters that no matrix
                explains.
        """
        # With a matrix: check it.
        measurements = self._measurements(interval)
        topology = self._topology
        if interval.matrix is not None:
            return self._check_matrix(interval, measurements, interval.matrix)
        # Without a matrix: repair the counters, and estimate.
        estimator = self._current_estimator(measurements, interval.error)
        try:
            counter_values, repaired = repaired_values(
                estimator, topology, interval.readings, interval.error
            )
            estimate = estimator.estimate(counter_values, robust=True)
        except InputError as error:
            raise invalid_request(f"counters: {error}") from None
        # Alarm if much is unexplained, or many counters are wrong; the estimator then forgets the
        # interval.
        num_counted = int(sum(np.isfinite(rates).sum() for rates in interval.readings))
        wrong_share = (repaired.num_blamed + estimate.doubted) / max(1, num_counted)
        alarm = estimate.unexplained > _MAX_UNEXPLAINED or wrong_share > _MAX_BLAMED_SHARE
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
                "suspects": repaired.blamed_names(topology)[:_MAX_SUSPECTS],
            },
        )

    def _check_matrix(
        self, interval: Interval, measurements: sp.csr_array, matrix: FloatArray
    ) -> CounterEstimate:
        """Check the matrix of a request; the alarm is calibrated on previous matrices.

        Args:
            interval: counters; those of the first call state the error of a counter.
            measurements: (E + 2 N, D) measurement matrix F.
            matrix: (1, D) Gbit/s.

        Raises:
            ServiceError: too few previous matrices.
        """
        # At the first call: calibrate the alarm.
        if self._checker is None:
            if len(self._matrices) < _MIN_HISTORY:
                raise invalid_request(
                    f"counters: {len(self._matrices)} matrices are known, too few to check a "
                    f"matrix against counters; send {_MIN_HISTORY} matrices first"
                )
            self._checker = Checker(
                self._topology, self._pairs, measurements, relative=interval.error
            )
            self._checker.calibrate(np.array(self._matrices))
        # Check under the current routing.
        self._checker.route(measurements)
        check = self._checker.check(interval.readings, matrix[0])
        # Unexplained share: differences between the loads of the matrix and the repaired counters.
        matrix_loads = measurements @ matrix[0]
        repaired_sum = max(float(check.repaired.values.sum()), 1e-300)
        return CounterEstimate(
            matrix,
            {
                "found_by": "sent",
                "total_gbps": float(matrix.sum()),
                "unexplained": float(np.abs(matrix_loads - check.repaired.values).sum())
                / repaired_sum,
                "alarm": check.alarm,
                "replaced": check.repaired.num_blamed,
                "suspects": [*([check.unit] if check.unit else []), *check.suspects][
                    :_MAX_SUSPECTS
                ],
            },
        )

    def _current_estimator(self, measurements: sp.csr_array, counter_error: float) -> Estimator:
        """Return the estimator of the network under a routing; create it at the first call.

        Args:
            measurements: (E + 2 N, D) measurement matrix F.
            counter_error: relative standard deviation of a counter.
        """
        if self._estimator is None:
            has_history = len(self._matrices) >= _MIN_HISTORY
            history = np.array(self._matrices) if has_history else None
            self._estimator = Estimator(
                self._pairs, self._topology.num_nodes, history=history, relative=counter_error
            )
        self._estimator.route(measurements)
        return self._estimator

    def _measurements(self, interval: Interval) -> sp.csr_array:
        """Return the measurement matrix F (E + 2 N, D) of an interval: counters = F @ demands.

        The traffic follows the installed splits, or else the IGP's shortest paths over links with
        capacity; the matrix of the latter is cached.
        """
        # Installed splits; paths that were added after the installation have split 0.
        if interval.splits is not None:
            splits = np.pad(
                interval.splits, ((0, 0), (0, self.paths.num_paths - interval.splits.shape[1]))
            )
            return path_measurements(self.paths, splits, self._topology.num_nodes)
        # IGP: the matrix is recomputed only if the set of links with capacity has changed.
        live_links = (interval.capacity > 0).tobytes()
        if self._igp_measurements is None or self._igp_measurements[0] != live_links:
            topology = dataclasses.replace(self._topology, capacity=interval.capacity)
            self._igp_measurements = (
                live_links,
                ecmp_measurements(EcmpDag.of(topology, igp_metric(topology, "file")), self._pairs),
            )
        return self._igp_measurements[1]


def warm_up() -> None:
    """Compile all kernels: run estimates and a check for an interval of the topology B4."""
    topology = load_topology("b4")
    paths = compute_paths(topology, num_paths=1, cache=False)
    rng = np.random.default_rng(0)
    random_matrices = rng.lognormal(0, 0.1, (_MIN_HISTORY + 1, paths.num_demands))
    first_paths = np.ones((paths.num_demands, 1))
    igp_matrix = ecmp_measurements(EcmpDag.of(topology, igp_metric(topology, "file")), paths.pairs)
    path_matrix = path_measurements(paths, first_paths, topology.num_nodes)
    # Estimates without and with a history, under the IGP and under splits; then a check.
    for history, splits, matrix in (
        (random_matrices[:1], None, None),
        (random_matrices[:-1], None, None),
        (random_matrices[:-1], first_paths, None),
        (random_matrices[:-1], None, random_matrices[-1:]),
    ):
        # Exact counters of the last random matrix, under the routing of this call.
        values = (igp_matrix if splits is None else path_matrix) @ random_matrices[-1]
        link_rates, ingress, egress = np.split(values, [topology.num_links, -topology.num_nodes])
        readings = Readings(link_rates, link_rates.copy(), ingress, egress)
        interval = Interval(readings, 0.01, topology.capacity, splits, matrix)
        NetworkEstimator(topology, paths, history).take(interval)


# Weight of the newest service time in the exponential average of a network.
_SERVICE_TIME_WEIGHT = 0.2
# Time until the cancellation signal is sent again, seconds.
_CANCEL_RETRY_S = 0.05
# Signal that cancels an estimate; by default, before the handler is installed, it is ignored.
_CANCEL_SIGNAL = signal.SIGURG
# Niceness of the worker process: allocations have priority.
_NICENESS = 10


class _Cancelled(Exception):  # noqa: N818, it is no error
    """Raised in the worker to cancel an estimate for which no client waits."""


@dataclasses.dataclass(eq=False)
class _QueuedInterval:
    """Interval in the queue of the worker process.

    Attributes:
        key: key of the network's registration.
        client: client whose quota it uses.
        work: function that computes the estimate; it runs in the thread that owns the connection to
            the worker.
        answer: future of the estimate; cancelled if the client no longer waits.
    """

    key: str
    client: str
    work: Callable[[], CounterEstimate]
    answer: asyncio.Future[CounterEstimate]


class Counting:
    """Queue of the intervals of all networks, whose estimates one worker process computes.

    All methods run on one event loop.

    Args:
        max_queued: maximum number of queued intervals; more are rejected.
    """

    interval_of = staticmethod(interval_of)
    warm_up = staticmethod(warm_up)

    def __init__(self, max_queued: int) -> None:
        self._max_queued = max_queued
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="counting")
        self._process: _WorkerProcess | None = None
        # Open entries in order of arrival; one of them may be running.
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
        """Estimate the matrix of an interval from its counters, or check the matrix sent with them.

        Args:
            key: key of the network's registration.
            topology: the network.
            paths: its candidate paths.
            matrices: previously measured matrices: the history of the first estimate.
            interval: the counters.
            client: client whose quota the interval uses.
            deadline: deadline on the clock of time.perf_counter().

        Raises:
            ServiceError: a full queue, no result by the deadline, too few matrices for a check, or
                counters that no matrix explains.
        """
        self._reject_if_late(key, client, deadline)
        answer = asyncio.get_running_loop().create_future()

        def compute_on_worker() -> CounterEstimate:
            """Send network, if it is new or has new paths, and interval to the worker; return its
            estimate.
            """
            # A new worker does not know the network: send it with its measured matrices, newly read
            # from disk.  Later send its paths when they have changed.
            process = self._running_worker()
            if process.paths_by_network.get(key) is None:
                matrices.refresh()
                process.call("begin", key, topology, paths, matrices.rates())
            elif process.paths_by_network[key] is not paths:
                process.call("use", key, paths)
            process.paths_by_network[key] = paths
            try:
                return process.call("take", key, interval)
            except _Cancelled:
                # The worker has dropped the estimator of the network.
                del process.paths_by_network[key]
                raise

        # Enqueue the interval, and wait for the answer until the deadline.
        self._queue.append(_QueuedInterval(key, client, compute_on_worker, answer))
        if self._drain_task is None or self._drain_task.done():
            self._drain_task = asyncio.create_task(self._drain())
        try:
            return await asyncio.wait_for(answer, max(0.0, deadline - time.perf_counter()))
        except TimeoutError:
            raise overloaded() from None

    def _reject_if_late(self, key: str, client: str, deadline: float) -> None:
        """Raise ServiceError if the queue is full, or the interval is predicted to miss its
        deadline.

        One client may use at most three quarters of the queue and of the time.

        Args:
            key: key of the network's registration.
            client: client whose quota the interval uses.
            deadline: deadline on the clock of time.perf_counter().
        """
        # Reject if the queue, or the share of the client, is full.
        open_entries = [entry for entry in self._queue if not entry.answer.done()]
        num_by_client = Counter(entry.client for entry in open_entries)
        if len(open_entries) >= self._max_queued or num_by_client[client] >= max_places_per_client(
            self._max_queued
        ):
            raise overloaded()
        # An empty queue accepts every interval: service times vary.
        if not open_entries:
            return
        # Predicted time of the queue with the new interval: of this client, and in total.
        remaining_s = deadline - time.perf_counter()
        client_time_s, total_time_s = (
            sum(self._service_times.get(entry.key, 0.0) for entry in entries)
            + self._service_times.get(key, 0.0)
            for entries in (
                [entry for entry in open_entries if entry.client == client],
                open_entries,
            )
        )
        # Time by which the queue exceeds the deadline, or the client three quarters of the time.
        excess_s = max(total_time_s - remaining_s, client_time_s - CLIENT_SHARE * remaining_s)
        if excess_s > 0:
            raise overloaded(math.ceil(max(1.0, excess_s)))

    async def _drain(self) -> None:
        """Compute the queued estimates one after the other, until the queue is empty.

        The next estimate is always one of the client with the least worker time.  If its client no
        longer waits, the worker gets a cancellation signal, repeated until it reacts.
        """
        loop = asyncio.get_running_loop()
        while open_entries := [entry for entry in self._queue if not entry.answer.done()]:
            # Choose the client with the least worker time.
            entry = min(open_entries, key=lambda entry: self._client_times.get(entry.client, 0.0))
            # Compute the estimate in the thread; cancel it if the client no longer waits.
            start_time = time.perf_counter()
            job = loop.run_in_executor(self._thread, entry.work)
            try:
                await asyncio.wait({job, entry.answer}, return_when=asyncio.FIRST_COMPLETED)
                while not job.done():
                    if self._process is not None:
                        self._process.stop()
                    await asyncio.wait({job}, timeout=_CANCEL_RETRY_S)
            finally:
                # The job is unfinished only if the event loop ends: kill the worker.
                if not job.done() and self._process is not None:
                    self._process.end()
            # Account the time to the client, and update the average service time of the network.
            worker_time_s = time.perf_counter() - start_time
            self._client_times[entry.client] = (
                self._client_times.get(entry.client, 0.0) + worker_time_s
            )
            error = job.exception()
            if error is None:
                mean_service_s = self._service_times.get(entry.key, worker_time_s)
                self._service_times[entry.key] = mean_service_s + _SERVICE_TIME_WEIGHT * (
                    worker_time_s - mean_service_s
                )
            # Answer, and remove finished and cancelled entries.
            if not entry.answer.done():
                if error is None:
                    entry.answer.set_result(job.result())
                else:
                    entry.answer.set_exception(error)
            self._queue = [entry for entry in self._queue if not entry.answer.done()]
        self._queue = []
        self._client_times = {}

    def observe(self, key: str, rates: FloatArray) -> None:
        """Add measured matrices (B, D), Gbit/s, to the history of a network, in the background."""
        self._call_in_background("observe", key, rates)

    def forget(self, key: str) -> None:
        """Drop service time and estimator of a deregistered network, in the background."""
        self._service_times.pop(key, None)
        self._call_in_background("forget", key)

    def _call_in_background(self, method: str, key: str, *arguments: Any) -> None:
        """Call a method of the worker without waiting, if it knows the network; log errors.

        Args:
            method: name of a method of :class:`_WorkerState`.
            key: key of the network's registration, its first argument.
            arguments: further arguments.
        """

        def call_worker() -> None:
            """Call the method of the worker; runs in the thread that owns the connection."""
            process = self._process
            if process is None or process.paths_by_network.get(key) is None:
                return
            try:
                process.call(method, key, *arguments)
                if method == "forget":
                    del process.paths_by_network[key]
            except Exception:
                LOG.exception("counters", extra={"teal": {"call": method}})

        self._thread.submit(call_worker)

    def _running_worker(self) -> _WorkerProcess:
        """Return the worker process; start a new one if none is running."""
        if self._process is None or self._process.has_ended:
            self._process = _WorkerProcess()
        return self._process


class _WorkerProcess:
    """Handle of the worker process, which sends calls and receives results; used by one thread.

    Attributes:
        paths_by_network: candidate paths of each network that the worker knows, by key.
        has_ended: whether the process has ended.
    """

    def __init__(self) -> None:
        # Threads of torch and Numba do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self._connection, child_connection = context.Pipe()
        self._process = context.Process(
            target=_worker_main, args=(child_connection,), name="counting", daemon=True
        )
        self._process.start()
        child_connection.close()
        self.paths_by_network: dict[str, PathSet] = {}
        self.has_ended = False

    def call(self, method: str, *arguments: Any) -> Any:
        """Return the result of a method of the worker's state, or raise its exception.

        Args:
            method: name of a method of :class:`_WorkerState`.
            arguments: its arguments.

        Raises:
            ServiceError: the worker process has ended.
        """
        try:
            self._connection.send((method, arguments))
            outcome = self._connection.recv()
        except (EOFError, OSError):
            # The process may still run without its connection.
            self.end()
            raise ServiceError(
                503, "unavailable", "the estimation process has ended; try again", 1.0
            ) from None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def end(self) -> None:
        """Kill the worker process; the next estimate starts a new one."""
        self.has_ended = True
        self._process.kill()

    def stop(self) -> None:
        """Send the worker the signal that cancels an estimate; it is ignored if none is running."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid or 0, _CANCEL_SIGNAL)


def _worker_main(connection: Connection) -> None:
    """Execute calls (method name, arguments) from the connection until the service ends.

    Each call is answered with the result or the exception of a method of :class:`_WorkerState`.
    This is the main function of the worker process.
    """
    # Ctrl-C is left to the service; the process has one thread and a low priority.
    ignore_interrupts()
    os.nice(_NICENESS)
    limit_threads(1)
    state = _WorkerState()
    signal.signal(_CANCEL_SIGNAL, lambda *_: state.stop())
    # The connection closes when the service ends.
    with contextlib.suppress(EOFError, OSError):
        while True:
            method, arguments = connection.recv()
            try:
                outcome = getattr(state, method)(*arguments)
            except (TealError, _Cancelled) as error:
                outcome = error
            except Exception:
                # Send the traceback as text, since the exception may not be picklable.
                outcome = RuntimeError(traceback.format_exc())
            connection.send(outcome)


class _WorkerState:
    """State of the worker process: the estimators of all networks, by key of the network."""

    def __init__(self) -> None:
        self._estimators: dict[str, NetworkEstimator] = {}
        # The signal handler may raise ``_Cancelled`` only while an estimate runs.
        self._may_cancel = False

    def begin(self, key: str, topology: Topology, paths: PathSet, history: FloatArray) -> None:
        """Create the estimator of a network, from its candidate paths and past matrices (T, D),
        Gbit/s.
        """
        self._estimators[key] = NetworkEstimator(topology, paths, history.astype(np.float64))

    def use(self, key: str, paths: PathSet) -> None:
        """Replace the candidate paths of a network."""
        self._estimators[key].paths = paths

    def observe(self, key: str, rates: FloatArray) -> None:
        """Add measured matrices (B, D), Gbit/s, to the history of a network."""
        self._estimators[key].observe(rates)

    def forget(self, key: str) -> None:
        """Drop the estimator of a network."""
        del self._estimators[key]

    def take(self, key: str, interval: Interval) -> CounterEstimate:
        """Return the estimate for an interval of a network.

        Raises:
            _Cancelled: the cancellation signal arrived; the estimator of the network is dropped.
            ServiceError: too few matrices for a check, or counters that no matrix explains.
        """
        try:
            self._may_cancel = True
            return self._estimators[key].take(interval)
        except _Cancelled:
            # Drop the estimator: the cancellation may have hit it between two updates.
            del self._estimators[key]
            raise
        finally:
            self._may_cancel = False

    def stop(self) -> None:
        """Cancel the running estimate, if any: the handler of the cancellation signal."""
        if self._may_cancel:
            self._may_cancel = False
            raise _Cancelled
