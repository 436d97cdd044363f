"""Facade of the service: handles every API call of one process.

:class:`AllocationEngine` implements :class:`teal_serve.engine.backend.Backend`. It resolves a
request against a registered network (:class:`teal_serve.engine.registry.Registry`), queues its
matrices (:class:`teal_serve.engine.scheduler.Scheduler`) and encodes the answer
(:mod:`teal_serve.engine.wire`). It also stores measured matrices, and starts allocations for the
next interval and background path searches.

Axes: B matrices, D demands (pairs of nodes, repeated for each demand class), K candidate paths of a
demand, E links.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from teal.runtime.arrays import FloatArray
from teal_serve.engine.allocation_task import AllocationTask, single_program_task
from teal_serve.engine.answer import Answer
from teal_serve.engine.backend import AllocationResponse, EncodedRequest
from teal_serve.engine.errors import ARROW, ServiceError, invalid_request, not_ready, replaced
from teal_serve.engine.kernels import KernelStatus
from teal_serve.engine.log import LOG, warn
from teal_serve.engine.measured import MeasurementHistory
from teal_serve.engine.model import ReloadableModel
from teal_serve.engine.network_state import NetworkState, check_model
from teal_serve.engine.parts import (
    COUNTERS,
    NEXT_INTERVAL,
    CountedMatrix,
    NextIntervalPart,
    counting_part,
    next_interval_part,
    not_installed,
)
from teal_serve.engine.path_growth import GROW_EVERY_S, PathGrowth
from teal_serve.engine.proof import build_proof, check_provable
from teal_serve.engine.queue import QueuedRequest
from teal_serve.engine.registry import Registry, RegistryEntry, require_ready
from teal_serve.engine.requests import (
    AllocationRequest,
    CounterReadings,
    MeasurementRequest,
    Options,
)
from teal_serve.engine.scheduler import Scheduler
from teal_serve.engine.solvers import AUTO, model_supports, offload_if_large
from teal_serve.engine.store import Store
from teal_serve.engine.warm_up import warm_up_requests
from teal_serve.engine.wire import (
    SentMeasurements,
    check_size,
    demands_to_write,
    encode_json,
    encode_response,
    parse_measurement_options,
    parse_options,
    previous_splits,
    read_measurements,
    read_rates,
)

# Maximum number of candidate paths in a JSON listing.
_MAX_LISTED_PATHS = 4_000_000
# Default limits: number of registered networks, estimated time of a path search, and deadline of a
# request.
MAX_NETWORKS = 100
MAX_PATH_S = 600.0
MAX_DEADLINE_S = 600.0


class _ParsedRequest(NamedTuple):
    """Parsed allocation request.

    Attributes:
        entry: registry entry of the network.
        network_state: state of the network.
        options: options of the request.
        rates: (B, D) rates of B matrices and D demands, Gbit/s, class by class; None if the request
            is for the next interval, whose traffic is unknown.
        arrival_time: ``time.perf_counter()`` at the arrival.
        deadline: latest time of the answer, by ``time.perf_counter()``.
    """

    entry: RegistryEntry
    network_state: NetworkState
    options: Options
    rates: FloatArray | None
    arrival_time: float
    deadline: float


class AllocationEngine:
    """Implementation of all API calls in one process. Call methods on one event loop.

    Args:
        folder: state folder with the registered networks.
        max_queued: maximum number of queued requests of a network; further ones are refused.
        model: model for warm starts: auto (the built-in one, on large networks), none, or a folder.
        patience_s: maximum time that a request waits for the candidate paths of its network, for
            instance after a restart, seconds.
        max_networks: maximum number of registered networks.
        max_path_s: maximum estimated time of a path search, seconds.
        max_deadline_s: maximum deadline of a request, seconds.
        grow_every_s: minimum interval between background path searches of a network, seconds.
        default_solver: solver of requests that name none, if the model supports their program.
        vary: share of every demand, 0 to 1, that allocations for the next interval route by
            randomised splits.
        kernels: compilation status of the kernels; None if all are compiled.
    """

    def __init__(
        self,
        folder: Path,
        max_queued: int = 128,
        model: str = "none",
        patience_s: float = 5.0,
        max_networks: int = MAX_NETWORKS,
        max_path_s: float = MAX_PATH_S,
        max_deadline_s: float = MAX_DEADLINE_S,
        grow_every_s: float = GROW_EVERY_S,
        default_solver: str = AUTO,
        vary: float = 0.0,
        kernels: KernelStatus | None = None,
    ) -> None:
        """Open the state folder, create threads and parts; with loaded kernels, load the model."""
        self.folder = folder
        self.kernels = kernels or KernelStatus.compiled()
        self._store = Store(folder)
        self._default_solver = default_solver
        self._patience_s = patience_s
        self._max_deadline_s = max_deadline_s
        self._randomised_share = vary
        engine_thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._next_interval_thread = ThreadPoolExecutor(1, thread_name_prefix="next-interval")
        self._view_thread = ThreadPoolExecutor(1, thread_name_prefix="views")
        # Loading a model needs compiled kernels; without them `prepare` loads it later.
        self._model = ReloadableModel(
            model, check_model, engine_thread, load_now=self.kernels.are_ready
        )
        self.scheduler = Scheduler(max_queued, engine_thread, self._model.current)
        self._counting_part = counting_part(max_queued)
        self._next_interval_type = next_interval_part()
        self._path_growth = PathGrowth(self._store, grow_every_s)
        self._registry = Registry(
            self._store, self._on_removal, max_networks, max_path_s, self.kernels
        )
        # Last error of the synchronisation with the store, which is logged once.
        self._last_sync_error = ""
        # Running allocations for the next interval, by measurement history.
        self._next_interval_runs: dict[NextIntervalPart, asyncio.Future[Any]] = {}

    def prepare(self) -> None:
        """Load the compiled kernels and the model; takes a few seconds."""
        warm_up_requests()
        # With compiled kernels, the constructor has loaded the model already.
        if not self.kernels.are_ready:
            self._model.read()

    def _on_removal(self, entry: RegistryEntry) -> None:
        """Fail the queued requests and drop the counter estimates of a removed network."""
        if entry.network_state is not None:
            reason = ServiceError(404, "unknown_network", "the network was deleted or replaced")
            self.scheduler.forget(entry.network_state, reason)
            self._forget_counters(entry)

    def _forget_counters(self, entry: RegistryEntry) -> None:
        """Drop the counter estimates of a network."""
        if self._counting_part is not None:
            self._counting_part.forget(entry.generation)

    async def names(self) -> list[str]:
        """Return the names of all registered networks."""
        return self._store.names()

    async def sync_with_store(self) -> list[asyncio.Task[None]]:
        """Synchronise with networks that other processes have registered, changed or deleted.

        Returns:
            running tasks that prepare networks.
        """
        return self._registry.sync_with_store()

    async def try_sync_with_store(self) -> list[asyncio.Task[None]]:
        """Call :meth:`sync_with_store`; log an unreadable state folder once instead of raising."""
        try:
            preparation_tasks = self._registry.sync_with_store()
        except Exception as error:
            if str(error) != self._last_sync_error:
                LOG.exception("state folder not read")
            self._last_sync_error = str(error)
            return []
        self._last_sync_error = ""
        return preparation_tasks

    async def warnings(self) -> dict[str, str]:
        """Return the warnings of networks, by name; networks without a warning are omitted."""
        return self._registry.warnings()

    async def queued(self) -> dict[str, int]:
        """Return the number of queued requests of each ready network."""
        return {
            name: len(self.scheduler.queued_requests(network_state))
            for name, network_state in self._registry.ready_states().items()
        }

    async def check_ready(self) -> None:
        """Check that an allocation is possible now, or will be once a network is registered.

        Raises:
            ServiceError: kernels are being compiled, the solver thread does not respond, or the
                paths of every network are still being computed.
        """
        self.kernels.check()
        if not await self.scheduler.is_responsive():
            raise ServiceError(
                503, "unavailable", "the solver thread does not respond; retry later", 3.0
            )
        if self._registry.are_all_computing():
            raise ServiceError(
                503, "not_ready", "the paths of all networks are still being computed", 1.0
            )

    async def model(self) -> dict[str, Any]:
        """Return version and reload error of the model, and the default solver of requests.

        The fields are those of ``responses.ModelInfo``.
        """
        # Start a reload if the files of the model have changed.
        await asyncio.to_thread(self._model.current)
        return {**self._model.description(), "solver": self._default_solver}

    async def generation(self, name: str) -> str:
        """Return the identifier of a network's current registration, which a replacement changes.

        Raises:
            ServiceError: unknown network.
        """
        return self._registry.get(name).generation

    async def put(self, name: str, spec: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Register or replace a network; its paths are computed in the background.

        Args:
            name: name of the network.
            spec: settings of the registration, fields of ``requests.NetworkSpec``.

        Returns:
            state of the network, and whether its name is new.

        Raises:
            ServiceError: invalid topology.
        """
        is_new = await self._registry.put(name, spec, self._patience_s)
        return await self._registry.info(name), is_new

    async def info(self, name: str) -> dict[str, Any]:
        """Return state and description of a network.

        Raises:
            ServiceError: unknown network.
        """
        return await self._registry.info(name)

    async def delete(self, name: str) -> None:
        """Delete a network; its queued requests fail.

        Raises:
            ServiceError: unknown network.
        """
        await self._registry.delete(name)

    async def patch(self, name: str, changes: dict[str, Any]) -> dict[str, Any]:
        """Change link capacities, or take links down or up; return the state of the network.

        The changes take effect at once.

        Args:
            name: name of the network.
            changes: changed links, fields of ``requests.LinkChanges``.

        Raises:
            ServiceError: unknown network or link.
        """
        await self._registry.change_links(name, changes)
        self._path_growth.reconnect(name, self._registry.get(name))
        return await self._registry.info(name)

    async def paths(self, name: str) -> bytes:
        """Return the candidate paths of a ready network: lists of nodes, by demand, as JSON.

        Raises:
            ServiceError: unknown network, not ready, or too many paths.
        """
        network_state = self._registry.ready_state(name)
        if network_state.paths.leaf.size > _MAX_LISTED_PATHS:
            raise ServiceError(
                406,
                "too_large_for_json",
                f"{network_state.paths.leaf.size:,} paths are too many for a JSON listing; "
                "register the network with a smaller num_paths",
            )
        return await asyncio.get_running_loop().run_in_executor(
            self._view_thread, _encode_paths, network_state
        )

    async def map(self, name: str) -> bytes:
        """Return the drawing of a ready network as JSON: node positions, link ends and capacities.

        Raises:
            ServiceError: unknown network, or not ready.
        """
        drawing = self._registry.ready_state(name).drawing
        # The first layout of a network may take seconds.
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._view_thread, lambda: encode_json(drawing()).encode()
        )

    async def allocate(self, name: str, request: EncodedRequest) -> AllocationResponse:
        """Answer an allocation request: parse, resolve, queue, solve, encode.

        Args:
            name: name of the network.
            request: undecoded request.

        Raises:
            ServiceError: unknown network, invalid request, or a deadline that cannot be met.
        """
        # Parse the request; an allocation for the next interval has no rates.
        parsed = await self._parse_request(name, request)
        options = parsed.options
        rates = parsed.rates
        if rates is None:
            assert isinstance(options, AllocationRequest)
            if request.previous is not None:
                raise invalid_request(
                    "previous: cannot be combined with the next interval; drop it"
                )
            return await self._answer_next_interval(name, request, options, parsed)
        entry = parsed.entry
        network_state = parsed.network_state
        # Check the size of the answer before it is computed; reserve time to encode it.
        check_size(network_state, rates, request.accept, options.form)
        deadline = parsed.deadline - network_state.service_times.writing_s(
            *demands_to_write(rates, request.accept, options.form)
        )
        # Resolve the program; a limit on churn needs the installed splits (D, K).
        installed_splits = await _installed_splits(request, network_state)
        task = self._resolve_task(network_state, options, entry, installed_splits)
        if options.prove:
            check_provable(task, len(rates))
        # Queue the request and wait for its answer.
        queued_request = QueuedRequest(
            network_state,
            request.client,
            rates,
            options,
            task,
            options.gap or entry.spec.gap,
            parsed.arrival_time,
            deadline,
            asyncio.get_running_loop().create_future(),
        )
        answer = await self.scheduler.solve(queued_request)
        # Start a search for better paths if none ran recently.
        self._path_growth.record_traffic(name, entry, rates)
        if not options.prove:
            return await _encode_answer(entry, network_state, answer, rates, request, options)
        # Write the requested proof, and encode the answer with a link to it.
        num_splits = rates.size * network_state.paths.num_paths
        proof = await offload_if_large(num_splits, build_proof, answer, network_state, task, rates)
        response = await _encode_answer(
            entry, network_state, answer, rates, request, options, _proof_link(name, request)
        )
        return response._replace(proof=proof)

    async def _parse_request(self, name: str, request: EncodedRequest) -> _ParsedRequest:
        """Parse an allocation request; wait until its network is ready.

        Args:
            name: name of the network.
            request: undecoded request.

        Raises:
            ServiceError: unknown or replaced network, invalid request, or a deadline that is too
                long or passed.
        """
        arrival_time = time.perf_counter()
        # Fail for an unknown network before parsing the body.
        self._registry.get(name)
        input_size = len(request.body)
        is_binary = request.media_type == ARROW
        options = await offload_if_large(input_size, parse_options, request, is_binary=is_binary)
        deadline = arrival_time + self._deadline_s(options)
        # Wait for the network, then parse the rates.
        network_state = await self._wait_until_ready(name, deadline, arrival_time)
        input_size = max(input_size, network_state.paths.num_demands)
        rates = await offload_if_large(
            input_size, read_rates, request, options, network_state.topology, is_binary=is_binary
        )
        # Fail if the network was replaced meanwhile.
        entry = self._require_same_registration(name, network_state, arrival_time)
        return _ParsedRequest(entry, network_state, options, rates, arrival_time, deadline)

    def _deadline_s(self, options: Options) -> float:
        """Return the time limit of a request, seconds; a default limit is cut to the maximum.

        Raises:
            ServiceError: the requested deadline exceeds the maximum of the service.
        """
        deadline_s = options.deadline_ms / 1e3
        if deadline_s > self._max_deadline_s:
            # Refuse a deadline that the request names; cut the default one.
            if "deadline_ms" in options.model_fields_set:
                raise invalid_request(
                    f"deadline_ms: {options.deadline_ms:,.0f} exceeds the maximum of this service; "
                    f"use at most {1e3 * self._max_deadline_s:,.0f}"
                )
            deadline_s = self._max_deadline_s
        return deadline_s

    def _resolve_task(
        self,
        network_state: NetworkState,
        options: Options,
        entry: RegistryEntry,
        previous: FloatArray | None,
    ) -> AllocationTask:
        """Return the requested program with its solver.

        A request without a solver gets the default solver of the service, if the model supports
        its program.

        Args:
            network_state: network of the request.
            options: options of the request.
            entry: registry entry of the network.
            previous: (D, K) installed splits, class by class; None if the request names none.
        """
        task = network_state.resolve_request(options, entry.spec, previous)
        # Keep the solver that the request names, or the default auto.
        if "solver" in options.model_fields_set or self._default_solver == AUTO:
            return task
        # Keep auto, too, if the model does not support the program.
        if not model_supports(network_state.network(task), self._model.current()):
            return task
        return dataclasses.replace(task, solver=self._default_solver)

    async def measure(self, name: str, request: EncodedRequest) -> dict[str, Any]:
        """Store measured matrices and start the allocation for the next interval.

        With interface counters, the matrix is estimated from them, or checked by them; a matrix
        that contradicts the counters is not stored.

        Args:
            name: name of the network.
            request: undecoded request with matrices, counters or both.

        Returns:
            fields of ``responses.MeasuredInfo``.

        Raises:
            ServiceError: unknown network, invalid request, or an estimate that misses its deadline.
        """
        arrival_time = time.perf_counter()
        # Parse the options, wait for the network, then parse the matrices and counters.
        self._registry.get(name)
        options = await offload_if_large(len(request.body), parse_measurement_options, request)
        deadline = math.inf
        if isinstance(options, MeasurementRequest):
            deadline = arrival_time + min(options.deadline_ms / 1e3, self._max_deadline_s)
        network_state = await self._wait_until_ready(name, deadline)
        sent_measurements = await offload_if_large(
            len(request.body), read_measurements, request, options, network_state.topology
        )
        rates = sent_measurements.rates
        entry = self._require_same_registration(name, network_state)
        # Use the newest state: paths may have been added while the body was parsed.
        network_state = require_ready(name, entry)
        # Estimate the matrix from interface counters, or check the sent matrix against them.
        counted_matrix: CountedMatrix | None = None
        if sent_measurements.counters is not None:
            if self._counting_part is None:
                raise not_installed(COUNTERS)
            history = self._open_history(name, entry)
            counted_matrix = await self._estimate_or_check_matrix(
                request, sent_measurements, entry, network_state, history, deadline
            )
            # Do not store a matrix that contradicts the counters.
            if counted_matrix.alarm:
                LOG.warning(
                    "link counters disagree with each other, or with the matrix",
                    extra={"teal": {"network": name, **counted_matrix.figures}},
                )
                return {**history.info(), "counted": {**counted_matrix.figures, "kept": False}}
            rates = counted_matrix.rates
        assert rates is not None
        history = await self._store_matrices(name, entry, sent_measurements.times, rates)
        # Update counter estimates, candidate paths and the allocation for the next interval. The
        # estimator learns from sent matrices only, not from its own estimates.
        if self._counting_part is not None and (
            counted_matrix is None or counted_matrix.figures["found_by"] == "sent"
        ):
            self._counting_part.observe(entry.generation, rates)
        self._path_growth.record_traffic(name, entry, rates)
        if isinstance(history, NextIntervalPart):
            self._start_next_interval(entry, history)
        counted_field = (
            {} if counted_matrix is None else {"counted": {**counted_matrix.figures, "kept": True}}
        )
        return {**history.info(), **counted_field}

    async def _estimate_or_check_matrix(
        self,
        request: EncodedRequest,
        sent_measurements: SentMeasurements,
        entry: RegistryEntry,
        network_state: NetworkState,
        history: MeasurementHistory,
        deadline: float,
    ) -> CountedMatrix:
        """Estimate the matrix of an interval from its counters, or check a sent one against them.

        Args:
            request: request with the counters.
            sent_measurements: parsed counters; with a matrix, that matrix is checked.
            entry: registry entry of the network.
            network_state: state of the network.
            history: matrices measured before.
            deadline: latest time of the estimate, by ``time.perf_counter()``.

        Returns:
            matrix with the figures of its estimate or check.
        """
        # Convert the counters to the input of the estimator, with the routing of the interval.
        readings = sent_measurements.counters
        assert readings is not None
        assert self._counting_part is not None
        interval = await offload_if_large(
            len(request.body),
            self._counting_part.interval_of,
            readings,
            network_state.topology,
            network_state.capacity,
            _counted_splits(readings, history),
            sent_measurements.rates,
        )
        # Estimate or check the matrix.
        return await self._counting_part.take(
            entry.generation,
            network_state.topology,
            network_state.paths,
            history.matrices,
            interval,
            request.client,
            deadline,
        )

    async def _store_matrices(
        self, name: str, entry: RegistryEntry, times: list[np.datetime64], rates: FloatArray
    ) -> MeasurementHistory:
        """Store measured matrices; return the history of the network.

        Args:
            name: name of the network.
            entry: registry entry of the network.
            times: (B,) times of the matrices.
            rates: (B, D) Gbit/s.

        Raises:
            ServiceError: the network was replaced.
        """
        history = await self._refresh_history(name, entry)
        await asyncio.to_thread(history.matrices.add, times, rates)
        if entry.is_gone.is_set():
            raise replaced(name)
        return history

    async def measured(self, name: str) -> dict[str, Any]:
        """Return number and times of the stored matrices, and their maximum number.

        Raises:
            ServiceError: unknown network, or not ready.
        """
        await self._wait_until_ready(name)
        return (await self._refresh_history(name, self._registry.get(name))).info()

    async def forget_measured(self, name: str) -> None:
        """Delete the measured matrices of a network and all state learnt from them.

        Raises:
            ServiceError: unknown network, or not ready.
        """
        await self._wait_until_ready(name)
        entry = self._registry.get(name)
        history = self._open_history(name, entry)
        await asyncio.get_running_loop().run_in_executor(self._next_interval_thread, history.clear)
        self._forget_counters(entry)

    async def _refresh_history(self, name: str, entry: RegistryEntry) -> MeasurementHistory:
        """Return the measured matrices of a network after reading those of other processes."""
        history = self._open_history(name, entry)
        await asyncio.to_thread(history.matrices.refresh)
        return history

    def _open_history(self, name: str, entry: RegistryEntry) -> MeasurementHistory:
        """Return the measured matrices of a network as known to this process.

        The first call reads the folder; the object is part of the registry entry.

        Raises:
            ServiceError: the network is not ready.
        """
        if entry.network_state is None:
            raise not_ready(name)
        if entry.measurements is None:
            folder = self._store.measured_folder(name, entry.generation)
            pairs = entry.network_state.paths.pairs
            entry.measurements = (
                MeasurementHistory(name, pairs, folder)
                if self._next_interval_type is None
                else self._next_interval_type(name, pairs, folder, self._randomised_share)
            )
        return entry.measurements

    def _start_next_interval(
        self, entry: RegistryEntry, next_interval: NextIntervalPart
    ) -> asyncio.Future[Any]:
        """Start the allocation for the next interval in its thread, unless one is running.

        Args:
            entry: registry entry of a ready network.
            next_interval: measured matrices, with the latest allocation.

        Returns:
            future of the running allocation; its failure is logged.
        """
        # The allocation uses the program of the registration, with the current capacities.
        network_state = entry.network_state
        task = single_program_task(entry.spec.objective)
        assert network_state is not None

        def allocate_if_outdated() -> None:
            """Allocate unless the network is gone or the latest allocation is up to date."""
            if not entry.is_gone.is_set() and not next_interval.is_current(network_state.capacity):
                next_interval.allocate(network_state.network(task))

        # Start a run unless one is in progress; a callback logs its failure.
        allocation_future = self._next_interval_runs.get(next_interval)
        if allocation_future is None or allocation_future.done():
            allocation_future = self._next_interval_runs[next_interval] = (
                asyncio.get_running_loop().run_in_executor(
                    self._next_interval_thread, allocate_if_outdated
                )
            )

            def log_failure(finished_future: asyncio.Future[Any]) -> None:
                """Forget the finished run, and log its exception."""
                self._next_interval_runs.pop(next_interval, None)
                if (
                    not finished_future.cancelled()
                    and (error := finished_future.exception()) is not None
                ):
                    warn(next_interval.name, "next interval not allocated", error)

            allocation_future.add_done_callback(log_failure)
        return allocation_future

    async def _answer_next_interval(
        self,
        name: str,
        request: EncodedRequest,
        options: AllocationRequest,
        parsed: _ParsedRequest,
    ) -> AllocationResponse:
        """Answer a request for the interval after the newest measured matrix.

        The answer has the latest allocation, which may be an earlier one if the deadline passes
        first, with its figures on the newest matrix.

        Args:
            name: name of the network.
            request: undecoded request.
            options: its parsed options.
            parsed: parsed request, without rates.

        Raises:
            ServiceError: no measured matrix, or no allocation by the deadline.
        """
        entry = parsed.entry
        next_interval = await self._refresh_history(name, entry)
        if not isinstance(next_interval, NextIntervalPart):
            raise not_installed(NEXT_INTERVAL)
        # Raise without a measured matrix.
        next_interval.matrices.newest()
        await self._wait_until_current(name, entry, next_interval, parsed.deadline)
        # Evaluate the latest allocation on the newest matrix, over the current network: it has all
        # paths of the allocation, since paths are never removed.
        latest_allocation = next_interval.latest
        rates = next_interval.matrices.newest()
        if latest_allocation is None:
            raise not_ready(name)
        network_state = require_ready(name, entry)
        zero_demand_problem = network_state.network(single_program_task(entry.spec.objective))
        queue_s = time.perf_counter() - parsed.arrival_time
        answer, extra_fields = next_interval.answer(
            latest_allocation, rates, zero_demand_problem, queue_s
        )
        # Encode the answer. The summary has the upper limit on the ratio of realised to optimal
        # largest utilisation, and that ratio in the last allocated interval.
        check_size(network_state, rates, request.accept, options.form)
        response = await _encode_answer(
            entry, network_state, answer, rates, request, options, extra_fields
        )
        limit = extra_fields["limit"]
        return response._replace(
            summary={**response.summary, "limit": limit["ratio"], "realised": limit["realised"]}
        )

    async def _wait_until_current(
        self, name: str, entry: RegistryEntry, next_interval: NextIntervalPart, deadline: float
    ) -> None:
        """Wait until the latest allocation uses all matrices and the current capacities.

        Returns at the deadline at the latest.

        Args:
            name: name of the network.
            entry: registry entry of the network.
            next_interval: measured matrices, with the latest allocation.
            deadline: latest end of the wait, by ``time.perf_counter()``.

        Raises:
            ServiceError: the network was replaced, or is not ready.
        """
        while not next_interval.is_current(require_ready(name, entry).capacity):
            if entry.is_gone.is_set():
                raise replaced(name)
            # Wait for the running allocation; another one follows if matrices or capacities have
            # changed since it began.
            allocation_future = self._start_next_interval(entry, next_interval)
            finished_futures, _ = await asyncio.wait(
                {allocation_future}, timeout=max(0.0, deadline - time.perf_counter())
            )
            if not finished_futures:
                break
            # Raises the error of the run.
            allocation_future.result()

    def _require_same_registration(
        self, name: str, network_state: NetworkState, arrival_time: float = math.inf
    ) -> RegistryEntry:
        """Return the registry entry of a network; fail if the name was registered again since.

        Args:
            name: name of the network.
            network_state: state of the network when the request was resolved.
            arrival_time: ``time.perf_counter()`` at the request's arrival: the stored files of the
                network are read again unless they were checked since; infinite to always read them.

        Raises:
            ServiceError: the network was replaced.
        """
        entry = self._registry.get_recent(name, arrival_time)
        # A new registration has a new shared state; added paths keep the shared state.
        if entry.network_state is None or entry.network_state.shared is not network_state.shared:
            raise replaced(name)
        return entry

    async def _wait_until_ready(
        self, name: str, deadline: float = math.inf, arrival_time: float = math.inf
    ) -> NetworkState:
        """Return the state of a network; wait a limited time for kernels and paths.

        The wait ends after ``patience_s`` of the service, or at the deadline.

        Args:
            name: name of the network.
            deadline: latest end of the wait, by ``time.perf_counter()``.
            arrival_time: ``time.perf_counter()`` at the request's arrival: the stored files of the
                network are read again unless they were checked since; infinite to always read them.

        Raises:
            ServiceError: unknown network, or not ready in time.
        """
        # Wait for the kernels, then for the task that prepares the network.
        entry = self._registry.get_recent(name, arrival_time)
        await self.kernels.wait(min(self._patience_s, deadline - time.perf_counter()))
        preparation_task = entry.preparing
        if preparation_task is not None and not preparation_task.done() and not entry.error:
            patience_s = min(self._patience_s, deadline - time.perf_counter())
            await asyncio.wait({preparation_task}, timeout=max(0.0, patience_s))
            entry = self._registry.get(name)
        return require_ready(name, entry)


async def _installed_splits(
    request: EncodedRequest, network_state: NetworkState
) -> FloatArray | None:
    """Return the installed splits: those of the earlier answer that a request names.

    Args:
        request: undecoded request, with the earlier answer as ``previous``.
        network_state: current state of the network.

    Returns:
        (D, K) fraction of each demand on each path, class by class; None if the request names no
        answer.
    """
    if request.previous is None:
        return None
    return await offload_if_large(
        len(request.previous.body), previous_splits, request.previous, network_state
    )


def _counted_splits(readings: CounterReadings, history: MeasurementHistory) -> FloatArray | None:
    """Return the splits by which the counted traffic was routed.

    Args:
        readings: counters of an interval, with its routing.
        history: measured matrices, with the latest allocation for the next interval.

    Returns:
        (D, K) splits of that allocation; None for routing by the IGP.

    Raises:
        ServiceError: no allocation for the next interval exists.
    """
    if readings.routing != "allocation":
        return None
    latest_allocation = history.latest if isinstance(history, NextIntervalPart) else None
    if latest_allocation is None:
        raise invalid_request(
            "counters.routing: no allocation for the next interval exists yet; use igp, or request "
            "an allocation first"
        )
    splits: FloatArray = latest_allocation.splits.numpy()
    return splits


def _proof_link(name: str, request: EncodedRequest) -> dict[str, Any]:
    """Return the field of an answer with the URL path of its proof."""
    return {"proof": f"/v1/networks/{quote(name)}/allocations/{quote(request.request_id)}/proof"}


async def _encode_answer(
    entry: RegistryEntry,
    network_state: NetworkState,
    answer: Answer,
    rates: FloatArray,
    request: EncodedRequest,
    options: Options,
    extra_fields: dict[str, Any] | None = None,
) -> AllocationResponse:
    """Encode an answer as a response, and record the time that the encoding takes.

    Args:
        entry: registry entry of the network.
        network_state: network of the request.
        answer: answer to the matrices.
        rates: (B, D) requested rates, Gbit/s.
        request: request with identifier and accepted media types.
        options: JSON form, names of classes, deadline.
        extra_fields: further fields of the response, beside the allocations.
    """
    # Number of splits and utilisations in the answer.
    size = (
        rates.size * network_state.paths.num_paths + len(rates) * network_state.topology.num_links
    )
    # Encode the answer, in a worker thread if it is large.
    begin_time = time.perf_counter()
    is_binary = ARROW in request.accept
    body, media_type = await offload_if_large(
        size,
        encode_response,
        answer,
        network_state,
        rates,
        request,
        options,
        extra_fields or {},
        is_binary=is_binary,
    )
    encoding_s = time.perf_counter() - begin_time
    # Record the time by the number of demands, and by whether they are written by name.
    network_state.service_times.record_writing(
        *demands_to_write(rates, request.accept, options.form), encoding_s
    )
    # Summary of the answer for log, metrics and cache.
    summary = {**answer.summary(), "deadline_ms": options.deadline_ms}
    return AllocationResponse(
        body, media_type, summary, answer.utilisation[-1].copy(), entry.generation
    )


def _encode_paths(network_state: NetworkState) -> bytes:
    """Encode pairs of nodes and their candidate paths, lists of nodes, as JSON.

    The fields are those of ``responses.Routes``.
    """
    # Generators, since `encode_json` encodes long lists in chunks. `route` returns (nodes, links).
    paths = network_state.paths
    names = network_state.topology.node_names
    routes = {
        "pairs": ([names[s], names[t]] for s, t in paths.pairs.tolist()),
        "paths": (
            [network_state.route(d, k)[0] for k in np.flatnonzero(paths.mask[d]).tolist()]
            for d in range(paths.num_demands)
        ),
    }
    return encode_json(routes).encode()
