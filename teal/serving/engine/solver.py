"""The part of the service that computes: networks, one engine, and what is measured.

:class:`registry.Registry` knows the networks, :class:`scheduler.Scheduler` the engine.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from teal.runtime.arrays import FloatArray
from teal.serving.engine.answer import Answer
from teal.serving.engine.backend import Found, Sent
from teal.serving.engine.errors import ARROW, ServiceError, not_ready, replaced, wrong
from teal.serving.engine.growth import GROW_EVERY_S, Growth
from teal.serving.engine.kernels import Kernels
from teal.serving.engine.log import LOG, warn
from teal.serving.engine.measured import Measured
from teal.serving.engine.model import ServedModel
from teal.serving.engine.parts import (
    COUNTERS,
    NEXT_INTERVAL,
    CountedMatrix,
    NextIntervalPart,
    counting_part,
    next_interval_part,
    not_installed,
)
from teal.serving.engine.proof import check_provable, proof_of
from teal.serving.engine.queue import Waiting
from teal.serving.engine.registry import Hosted, Registry, in_use
from teal.serving.engine.requests import AllocationRequest, MeasurementRequest, Options
from teal.serving.engine.scheduler import Scheduler
from teal.serving.engine.served import Served, prove
from teal.serving.engine.solvers import AUTO, beside, knows
from teal.serving.engine.store import Store
from teal.serving.engine.wanted import Wanted, single_program
from teal.serving.engine.warm_up import warm_up_requests
from teal.serving.engine.wire import (
    asked,
    asked_to_measure,
    check_size,
    demands_to_write,
    encoded,
    previous_splits,
    read,
    read_measured,
    written,
)

_MAX_ROUTES = 4_000_000  # paths that are listed
MAX_NETWORKS, MAX_PATH_S, MAX_DEADLINE_S = 100, 600.0, 600.0


class Solver:
    """All networks of one process.  Its methods are called on one event loop.

    Args:
        folder: folder of the :class:`Store`.
        most_waiting: requests that may wait for a network; more are turned away.
        model: model at which the engine starts on large networks; see
            :class:`teal.serving.engine.model.ServedModel`.
        patience_s: how long a request waits for the paths of its network, such as after a restart.
        most_networks: number of networks that may be registered.
        most_path_s: seconds that a search for paths may take, by estimate.
        most_deadline_s: longest deadline of a request, seconds.
        grow_every_s: as in :class:`teal.serving.engine.growth.Growth`.
        default_solver: solver of requests that name none, where the model knows their problem.
        vary: share of every demand on varied splits, in allocations for the next interval.
        kernels: kernels of the engine; None where all are there.
    """

    def __init__(
        self,
        folder: Path,
        most_waiting: int = 128,
        model: str = "none",
        patience_s: float = 5.0,
        most_networks: int = MAX_NETWORKS,
        most_path_s: float = MAX_PATH_S,
        most_deadline_s: float = MAX_DEADLINE_S,
        grow_every_s: float = GROW_EVERY_S,
        default_solver: str = AUTO,
        vary: float = 0.0,
        kernels: Kernels | None = None,
    ) -> None:
        self.folder, self.kernels = folder, kernels or Kernels.compiled()
        self._store, self._default_solver = Store(folder), default_solver
        self._patience_s, self._most_deadline_s, self._vary = patience_s, most_deadline_s, vary
        engine = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._next = ThreadPoolExecutor(1, thread_name_prefix="next-interval")
        self._views = ThreadPoolExecutor(1, thread_name_prefix="views")
        # A model computes by kernels too.
        self._model = ServedModel(model, prove, engine, is_read=self.kernels.are_there)
        self.scheduler = Scheduler(most_waiting, engine, self._model.current)
        self._counting, self._next_part = counting_part(most_waiting), next_interval_part()
        self._growth = Growth(self._store, grow_every_s)
        self._registry = Registry(self._store, self._gone, most_networks, most_path_s, self.kernels)
        self._fault_of_look = ""
        self._computing: dict[
            NextIntervalPart, asyncio.Future[Any]
        ] = {}  # allocations for the next interval

    def prepare(self) -> None:
        """Load all kernels, which have been compiled, and the model: a few seconds."""
        warm_up_requests()
        if not self.kernels.are_there:
            self._model.read()

    def _gone(self, network: Hosted) -> None:
        """Tell requests that wait for a network that it was deleted or replaced."""
        if network.served is not None:
            reason = ServiceError(404, "unknown_network", "the network was deleted or replaced")
            self.scheduler.forget(network.served, reason)
            self._forget_counted(network)

    def _forget_counted(self, network: Hosted) -> None:
        if self._counting is not None:
            self._counting.forget(network.generation)

    async def names(self) -> list[str]:
        """All registered networks."""
        return self._store.names()

    async def look(self) -> list[asyncio.Task[None]]:
        """Begin to prepare what other processes have registered; what is being prepared."""
        return self._registry.look()

    async def look_again(self) -> list[asyncio.Task[None]]:
        """:meth:`look`; where the state folder cannot be read, the log says so once."""
        try:
            preparing = self._registry.look()
        except Exception as error:
            if str(error) != self._fault_of_look:
                LOG.exception("state folder not read")
            self._fault_of_look = str(error)
            return []
        self._fault_of_look = ""
        return preparing

    async def warnings(self) -> dict[str, str]:
        """Warnings about networks, by name; networks without any are left out."""
        return self._registry.warnings()

    async def queued(self) -> dict[str, int]:
        """How many requests wait for the engine, of each network that is ready."""
        return {
            name: len(self.scheduler.waiting(served))
            for name, served in self._registry.all_ready().items()
        }

    async def check_ready(self) -> None:
        """Return if an allocation could be made now, or once a network is registered.

        Raises:
            ServiceError: kernels are being compiled, the engine does not answer, or the paths of
                every network are still being computed.
        """
        self.kernels.check()
        if not await self.scheduler.answers():
            raise ServiceError(503, "unavailable", "the engine does not answer", 3.0)
        if self._registry.all_compute():
            raise ServiceError(
                503, "not_ready", "the paths of all networks are still being computed", 1.0
            )

    async def model(self) -> dict[str, Any]:
        """Which model is in use, and why a newer one is not."""
        await asyncio.to_thread(self._model.current)
        return {**self._model.description(), "solver": self._default_solver}

    async def generation(self, name: str) -> str:
        """Which registration of its name a network is.

        Raises:
            ServiceError: there is none of that name.
        """
        return self._registry.get(name).generation

    async def put(self, name: str, spec: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Register or replace a network, whose paths are computed in the background; and whether
        its name is new.

        Raises:
            ServiceError: a fault in the topology.
        """
        new = await self._registry.put(name, spec, self._patience_s)
        return await self._registry.info(name), new

    async def info(self, name: str) -> dict[str, Any]:
        """State and description of a network.

        Raises:
            ServiceError: there is none of that name.
        """
        return await self._registry.info(name)

    async def delete(self, name: str) -> None:
        """Forget a network; requests that wait for it are told.

        Raises:
            ServiceError: there is none of that name.
        """
        await self._registry.delete(name)

    async def patch(self, name: str, changes: dict[str, Any]) -> dict[str, Any]:
        """Change capacities, or take links down or up; in force for every request from now on.

        Raises:
            ServiceError: no such network or link.
        """
        await self._registry.change_links(name, changes)
        self._growth.reconnect(name, self._registry.get(name))
        return await self._registry.info(name)

    async def paths(self, name: str) -> bytes:
        """Candidate paths of a network that is ready: of each demand its nodes, path by path.

        Raises:
            ServiceError: no such network, or not ready.
        """
        served = self._registry.ready(name)
        if served.paths.leaf.size > _MAX_ROUTES:
            raise ServiceError(
                406, "too_large_for_json", f"{served.paths.leaf.size:,} paths are too many for JSON"
            )
        return await asyncio.get_running_loop().run_in_executor(self._views, _routes, served)

    async def map(self, name: str) -> bytes:
        """A network that is ready, as a drawing: names and places of nodes, ends and capacities of
        links.

        Raises:
            ServiceError: no such network, or not ready.
        """
        drawing = self._registry.ready(name).drawing
        loop = asyncio.get_running_loop()  # a layout may take seconds, once
        return await loop.run_in_executor(self._views, lambda: encoded(drawing()).encode())

    async def allocate(self, name: str, sent: Sent) -> Found:
        """Answer a request.

        Raises:
            ServiceError: see :mod:`teal.serving.engine.errors`.
        """
        arrived = time.perf_counter()
        self._registry.get(name)  # there is none: said before anything is read
        size, is_binary = len(sent.body), sent.media_type == ARROW
        options = await beside(size, asked, sent, is_binary=is_binary)
        deadline_s = options.deadline_ms / 1e3
        if deadline_s > self._most_deadline_s:
            if "deadline_ms" in options.model_fields_set:
                raise wrong(
                    f"deadline_ms: at most {1e3 * self._most_deadline_s:,.0f} in this service"
                )
            deadline_s = self._most_deadline_s
        end = arrived + deadline_s
        served = await self._ready(name, end, arrived)
        size = max(size, served.paths.num_demands)
        rates = await beside(size, read, sent, options, served.topology, is_binary=is_binary)
        network = self._same(name, served, arrived)
        if rates is None:
            assert isinstance(options, AllocationRequest)
            if sent.previous is not None:
                raise wrong("previous: not for the next interval")
            return await self._allocate_next(name, network, sent, options, arrived, end)
        check_size(served, rates, sent.accept, options.form)  # before anything is computed
        end -= served.times.writing_s(*demands_to_write(rates, sent.accept, options.form))
        previous = None
        if sent.previous is not None:
            previous = await beside(len(sent.previous.body), previous_splits, sent.previous, served)
        wanted = self._wanted(served, options, network, previous)
        if options.prove:
            check_provable(wanted, len(rates))
        answer = await self.scheduler.solve(
            Waiting(
                served,
                sent.client,
                rates,
                options,
                wanted,
                options.gap or network.spec.gap,
                arrived,
                end,
                asyncio.get_running_loop().create_future(),
            )
        )
        self._growth.note(name, network, rates)
        if not options.prove:
            return await _found(network, served, answer, rates, sent, options)
        proof = await beside(
            rates.size * served.paths.num_paths, proof_of, answer, served, wanted, rates
        )
        link = {"proof": f"/v1/networks/{quote(name)}/allocations/{quote(sent.number)}/proof"}
        return (await _found(network, served, answer, rates, sent, options, link))._replace(
            proof=proof
        )

    def _wanted(
        self, served: Served, options: Options, network: Hosted, previous: FloatArray | None
    ) -> Wanted:
        """The program that a request asks for, by the solver of the service where it names none."""
        wanted = served.wanted_by(options, network.spec, previous)
        if "solver" in options.model_fields_set or self._default_solver == AUTO:
            return wanted
        if not knows(served.network(wanted), self._model.current()):
            return wanted
        return dataclasses.replace(wanted, solver=self._default_solver)

    async def measure(self, name: str, sent: Sent) -> dict[str, Any]:
        """Keep measured matrices, and begin to allocate for the interval after them.

        Raises:
            ServiceError: see :mod:`teal.serving.engine.errors`.
        """
        arrived = time.perf_counter()
        self._registry.get(name)
        when, end = await beside(len(sent.body), asked_to_measure, sent), math.inf
        if isinstance(when, MeasurementRequest):
            end = arrived + min(when.deadline_ms / 1e3, self._most_deadline_s)
        served = await self._ready(name, end)
        rates, times, readings = await beside(
            len(sent.body), read_measured, sent, when, served.topology
        )
        network = self._same(name, served)
        served = in_use(name, network)  # paths may have been added meanwhile
        counted: CountedMatrix | None = None
        if readings is not None:
            if self._counting is None:
                raise not_installed(COUNTERS)
            measured, splits = self._measuring(name, network), None
            if readings.routing == "allocation":
                latest = measured.latest if isinstance(measured, NextIntervalPart) else None
                if latest is None:
                    raise wrong(
                        "counters.routing: allocation: none has been made for the next interval yet"
                    )
                splits = latest.splits.numpy()
            interval = await beside(
                len(sent.body),
                self._counting.interval_of,
                readings,
                served.topology,
                served.capacity,
                splits,
                rates,
            )
            counted = await self._counting.take(
                network.generation,
                served.topology,
                served.paths,
                measured.matrices,
                interval,
                sent.client,
                end,
            )
            if counted.alarm:
                LOG.warning(
                    "counters disagree", extra={"teal": {"network": name, **counted.figures}}
                )
                return {**measured.info(), "counted": {**counted.figures, "kept": False}}
            rates = counted.rates
        assert rates is not None
        measured = await self._measured(name, network)
        await asyncio.to_thread(measured.matrices.add, times, rates)
        if network.is_gone.is_set():
            raise replaced(name)
        if self._counting is not None and (
            counted is None or counted.figures["found_by"] == "sent"
        ):
            self._counting.observe(network.generation, rates)
        self._growth.note(name, network, rates)
        if isinstance(measured, NextIntervalPart):
            self._compute_next(network, measured)
        figures = {} if counted is None else {"counted": {**counted.figures, "kept": True}}
        return {**measured.info(), **figures}

    async def measured(self, name: str) -> dict[str, Any]:
        """Which measured matrices are kept.

        Raises:
            ServiceError: no such network, or not ready.
        """
        await self._ready(name)
        return (await self._measured(name, self._registry.get(name))).info()

    async def forget_measured(self, name: str) -> None:
        """Delete the measured matrices of a network, and what was learnt from them.

        Raises:
            ServiceError: no such network, or not ready.
        """
        await self._ready(name)
        network = self._registry.get(name)
        measured = self._measuring(name, network)
        await asyncio.get_running_loop().run_in_executor(self._next, measured.clear)
        self._forget_counted(network)

    async def _measured(self, name: str, network: Hosted) -> Measured:
        """The measured matrices of a network, with those that other processes have stored."""
        measured = self._measuring(name, network)
        await asyncio.to_thread(measured.matrices.refresh)
        return measured

    def _measuring(self, name: str, network: Hosted) -> Measured:
        """The measured matrices of a network, as far as this process knows them."""
        if network.served is None:
            raise not_ready(name)
        if network.measured is None:
            folder = self._store.measured_folder(name, network.generation)
            pairs = network.served.paths.pairs
            network.measured = (
                Measured(name, pairs, folder)
                if self._next_part is None
                else self._next_part(name, pairs, folder, self._vary)
            )
        return network.measured

    def _compute_next(self, network: Hosted, measured: NextIntervalPart) -> asyncio.Future[Any]:
        """Begin to allocate for the next interval, unless that is under way or done."""
        served, wanted = network.served, single_program(network.spec.objective)
        assert served is not None

        def work() -> None:
            if not network.is_gone.is_set() and not measured.is_current(served.capacity):
                measured.allocate(served.network(wanted))

        known = self._computing.get(measured)
        if known is None or known.done():
            known = self._computing[measured] = asyncio.get_running_loop().run_in_executor(
                self._next, work
            )

            def note_end(computed: asyncio.Future[Any]) -> None:
                self._computing.pop(measured, None)
                if not computed.cancelled() and (error := computed.exception()) is not None:
                    warn(measured.name, "next interval not allocated", error)

            known.add_done_callback(note_end)
        return known

    async def _allocate_next(
        self,
        name: str,
        network: Hosted,
        sent: Sent,
        options: AllocationRequest,
        arrived: float,
        end: float,
    ) -> Found:
        """The allocation for the interval after the newest measured one; an earlier one if the
        deadline is too short.

        Raises:
            ServiceError: nothing was measured, or nothing is computed by the deadline.
        """
        measured = await self._measured(name, network)
        if not isinstance(measured, NextIntervalPart):
            raise not_installed(NEXT_INTERVAL)
        measured.matrices.newest()  # raises if there is none
        while not measured.is_current(in_use(name, network).capacity):
            if network.is_gone.is_set():
                raise replaced(name)
            computing = self._compute_next(network, measured)
            done, _ = await asyncio.wait({computing}, timeout=max(0.0, end - time.perf_counter()))
            if done:
                computing.result()  # raises its fault
            else:
                break
        # Paths may have been added meanwhile: the network of now has all that the latest
        # allocation uses.
        latest = measured.latest
        rates = measured.matrices.newest()
        if latest is None:
            raise not_ready(name)
        served = in_use(name, network)
        problem = served.network(single_program(network.spec.objective))
        queue_s = time.perf_counter() - arrived
        answer, further = measured.answer(latest, rates, problem, queue_s)
        check_size(served, rates, sent.accept, options.form)
        body = await _found(network, served, answer, rates, sent, options, further)
        limit = further["limit"]
        return body._replace(
            summary={**body.summary, "limit": limit["ratio"], "realised": limit["realised"]}
        )

    def _same(self, name: str, served: Served, arrived: float = math.inf) -> Hosted:
        """The network of a name, unless another one has got the name since ``served`` was looked
        up.

        Args:
            name: name of the network.
            served: the network as it was looked up.
            arrived: ``time.perf_counter()`` of the request's arrival; infinite: files are looked
                at in any case.

        Raises:
            ServiceError: another one has.
        """
        network = self._registry.seen(name, arrived)
        if network.served is None or network.served.lineage is not served.lineage:
            raise replaced(name)
        return network

    async def _ready(self, name: str, end: float = math.inf, arrived: float = math.inf) -> Served:
        """A network that is ready, perhaps after some patience, which ends at ``end`` by
        time.perf_counter(); ``arrived`` as in :meth:`_same`.
        """
        network = self._registry.seen(name, arrived)
        await self.kernels.wait(min(self._patience_s, end - time.perf_counter()))
        preparing = network.preparing
        if preparing is not None and not preparing.done() and not network.error:
            patience = min(self._patience_s, end - time.perf_counter())
            await asyncio.wait({preparing}, timeout=max(0.0, patience))
            network = self._registry.get(name)
        return in_use(name, network)


async def _found(
    network: Hosted,
    served: Served,
    answer: Answer,
    rates: FloatArray,
    sent: Sent,
    options: Options,
    further: dict[str, Any] | None = None,
) -> Found:
    """The answer as a response; see :func:`teal.serving.engine.wire.written`."""
    size = rates.size * served.paths.num_paths + len(rates) * served.topology.num_links
    begin = time.perf_counter()
    is_binary = ARROW in sent.accept
    body, kind = await beside(
        size, written, answer, served, rates, sent, options, further or {}, is_binary=is_binary
    )
    seconds = time.perf_counter() - begin
    served.times.note_writing(*demands_to_write(rates, sent.accept, options.form), seconds)
    summary = {**answer.summary(), "deadline_ms": options.deadline_ms}
    return Found(body, kind, summary, answer.utilisation[-1].copy(), network.generation)


def _routes(served: Served) -> bytes:
    """:class:`teal.serving.engine.responses.Routes`, as JSON."""
    paths, names = served.paths, served.topology.node_names
    routes = {
        "pairs": ([names[s], names[t]] for s, t in paths.pairs.tolist()),
        "paths": (
            [served.route(d, k)[0] for k in np.flatnonzero(paths.mask[d]).tolist()]
            for d in range(paths.num_demands)
        ),
    }
    return encoded(routes).encode()
