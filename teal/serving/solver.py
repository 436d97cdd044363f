"""The part of the service that computes: networks, one engine, and requests that are solved together.

Requests for a network that come while the engine is busy wait (:mod:`teal.serving.queue`), and go through it together,
as many as it has lanes.  Nothing is ever delayed for company.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from teal.serving.errors import ServiceError, not_ready, overloaded, replaced, wrong
from teal.serving.model import ServedModel
from teal.serving.queue import Queue, Waiting, joined, solve_slice
from teal.serving.requests import LinkChanges, NetworkSpec
from teal.serving.served import Served, capacity_in_force, prove, topology_of
from teal.serving.store import Store, Version
from teal.serving.wire import check_size, decode, encode

_BODY_IN_THREAD = 100_000  # bytes or demands, from which on bodies are read and written beside the event loop
_MOST_SPLITS = 1 << 26


@dataclasses.dataclass(eq=False)
class _Network:
    """A registered network in this process."""

    version: Version
    spec: NetworkSpec
    generation: str
    served: Served | None = None
    error: str = ""
    preparing: asyncio.Task[None] | None = None
    waiting: Queue = dataclasses.field(default_factory=Queue)
    draining: asyncio.Task[None] | None = None


class Solver:
    """All networks of one process.  Its methods are called on one event loop.

    Args:
        folder: of the :class:`Store`.
        most_waiting: requests that may wait for a network; more are turned away.
        model: where the engine starts on large networks; see :class:`teal.serving.model.ServedModel`.
        patience_s: how long a request waits for the paths of its network, such as after a restart.
    """

    def __init__(self, folder: Path, most_waiting: int = 64, model: str = "none", patience_s: float = 5.0) -> None:
        self.folder = folder
        self._store = Store(folder)
        self._most_waiting = most_waiting
        self._patience_s = patience_s
        self._networks: dict[str, _Network] = {}
        # One thread for the engine, whose kernels use all cores; one more for paths, which may take minutes.
        self._engine = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._model = ServedModel(model, prove, self._engine)
        self._paths = ThreadPoolExecutor(1, thread_name_prefix="paths")

    async def names(self) -> list[str]:
        """All registered networks."""
        return self._store.names()

    async def look(self) -> list[asyncio.Task[None]]:
        """Begin to prepare what other processes have registered; what is being prepared."""
        for name in self._store.names():
            with contextlib.suppress(ServiceError):  # deleted meanwhile
                self._network(name)
        found = [network.preparing for network in self._networks.values()]
        return [task for task in found if task is not None and not task.done()]

    async def model(self) -> dict[str, Any]:
        """Which model is in use, and why a newer one is not."""
        await asyncio.to_thread(self._model.current)
        return self._model.said()

    async def generation(self, name: str) -> str:
        """Which registration of its name a network is.

        Raises:
            ServiceError: there is none of that name.
        """
        return self._store.generation(name)

    async def put(self, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Register or replace a network; its paths are computed in the background.

        Raises:
            ServiceError: a fault in the topology.
        """
        given = NetworkSpec.model_validate(spec)
        topology = await asyncio.to_thread(topology_of, name, given)  # a fault is the caller's, now
        if topology.num_nodes * (topology.num_nodes - 1) * given.num_paths > _MOST_SPLITS:
            raise wrong(f"topology: at most {_MOST_SPLITS:,} splits, pairs of nodes times num_paths")
        new = self._store.put(name, spec)
        return {**await self.info(name), "new": new}

    async def info(self, name: str) -> dict[str, Any]:
        """State and description of a network.

        Raises:
            ServiceError: there is none of that name.
        """
        network = self._network(name)
        said: dict[str, Any] = {"name": name, "state": "failed" if network.error else "computing"}
        said["generation"] = network.generation
        settings = network.spec.model_dump(mode="json", exclude={"topology"})
        if network.error:
            return {**said, "error": network.error, **settings}
        if network.served is None:
            return {**said, **settings}
        served = network.served
        topology = served.topology
        links = [
            {
                "source": topology.node_names[s],
                "target": topology.node_names[t],
                "capacity": registered,
                "in_force": in_force,
            }
            for s, t, registered, in_force in zip(
                topology.link_source,
                topology.link_target,
                topology.capacity.tolist(),
                served.capacity.tolist(),
                strict=True,
            )
        ]
        places = [[x if np.isfinite(x) else None for x in place] for place in topology.coordinates.tolist()]
        nodes = [{"id": n, "pos": p} for n, p in zip(topology.node_names, places, strict=True)]
        paths = {"demands": served.paths.num_demands, "paths": int(served.paths.mask.sum())}
        return {**said, "state": "ready", **settings, **paths, "nodes": nodes, "links": links}

    async def delete(self, name: str) -> None:
        """Forget a network; requests that wait for it are told.

        Raises:
            ServiceError: there is none of that name.
        """
        self._store.delete(name)
        self._forget(name)

    async def patch(self, name: str, changes: dict[str, Any]) -> dict[str, Any]:
        """Change capacities, or take links down or up; in force for every request from now on.

        Raises:
            ServiceError: no such network or link.
        """
        network = self._network(name)
        topology = network.served.topology if network.served else topology_of(name, network.spec)
        index = topology.node_index()
        between: dict[tuple[int, int], list[int]] = {}
        for link, pair in enumerate(zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)):
            between.setdefault(pair, []).append(link)
        found: dict[str, dict[str, Any]] = {}
        for change in LinkChanges.model_validate(changes).links:
            ends = {(index.get(change.source, -1), index.get(change.target, -1))}
            if change.both:
                ends |= {(t, s) for s, t in ends}
            links = [link for pair in ends for link in between.get(pair, ())]
            if not links:
                raise wrong(f"there is no link {change.source[:80]!r} - {change.target[:80]!r}")
            for link in links:
                said = change.model_dump(include={"capacity", "up"}, exclude_none=True)
                if change.restore:
                    said = {"capacity": None, "up": True}
                found[str(link)] = {**found.get(str(link), {}), **said}
        self._store.change_links(name, found, network.spec.model_dump(mode="json"))
        return await self.info(name)

    async def paths(self, name: str) -> dict[str, Any]:
        """Candidate paths of a network that is ready: of each demand its nodes, path by path.

        Raises:
            ServiceError: no such network, or not ready.
        """
        return await asyncio.to_thread(_routes, self._ready(name))  # a large network has millions

    async def map(self, name: str) -> dict[str, Any]:
        """A network that is ready, as a drawing: names and places of nodes, ends and capacities of links.

        Raises:
            ServiceError: no such network, or not ready.
        """
        return await asyncio.to_thread(self._ready(name).drawing)  # a layout may take seconds

    async def allocate(
        self, name: str, body: bytes, content_type: str, accept: str, query: dict[str, str]
    ) -> tuple[bytes, str, dict[str, Any]]:
        """Answer a request; its body, its content type, and what it cost.

        Raises:
            ServiceError: see :mod:`teal.serving.errors`.
        """
        arrived = time.perf_counter()
        preparing = self._network(name).preparing
        if preparing is not None and not preparing.done():
            await asyncio.wait({preparing}, timeout=self._patience_s)
        served = self._ready(name)
        large = len(body) > _BODY_IN_THREAD or served.paths.num_demands > _BODY_IN_THREAD
        reading = (body, content_type, served.topology, query)
        rates, options = await asyncio.to_thread(decode, *reading) if large else decode(*reading)
        check_size(len(rates) * served.paths.leaf.size, accept)  # before anything is computed
        network = self._network(name)
        if network.served is not served:
            raise replaced(name)
        if len(network.waiting) >= self._most_waiting:
            raise overloaded()
        waiting = Waiting(
            rates,
            options,
            options.objective_name(network.spec.objective),
            options.gap or network.spec.gap,
            arrived,
            arrived + options.deadline_ms / 1e3,
            asyncio.get_running_loop().create_future(),
        )
        network.waiting.add(waiting)
        if network.draining is None or network.draining.done():
            network.draining = asyncio.create_task(self._drain(network))
        answer = await waiting.answer
        encoded = await asyncio.to_thread(encode, answer, accept) if large else encode(answer, accept)
        return *encoded, {**answer.summary(), "generation": network.generation}

    async def _drain(self, network: _Network) -> None:
        """Let the engine work on what waits, slice by slice."""
        loop = asyncio.get_running_loop()
        while together := network.waiting.take():
            try:
                served = network.served
                assert served is not None, "nothing waits for a network that is not ready"
                starter = self._model.current()
                answers = await loop.run_in_executor(self._engine, solve_slice, served, together, starter)
            except Exception as error:
                for chunk in together:
                    if not chunk.request.answer.done():
                        chunk.request.answer.set_exception(error)
                continue
            for chunk, answer in zip(together, answers, strict=True):
                request = chunk.request
                if answer is None:
                    network.waiting.put_back(chunk)
                    continue
                request.parts[chunk.rows.start] = answer
                request.chunks -= 1
                if not request.chunks and not request.answer.done():  # else the client has gone
                    request.answer.set_result(joined(request.parts))

    def _ready(self, name: str) -> Served:
        network = self._network(name)
        if network.error:
            raise ServiceError(409, "failed", f"{name!r} cannot be used: {network.error}")
        if network.served is None:
            raise not_ready(name)
        return network.served

    def _network(self, name: str) -> _Network:
        """As the store has it now: another process may have changed it."""
        try:
            version = self._store.version(name)
        except ServiceError:
            self._forget(name)
            raise
        known = self._networks.get(name)
        if known is not None and known.version == version:
            return known
        raw, links, generation = self._store.read(name)
        if known is None or known.version.network != version.network:
            self._forget(name)
            spec = NetworkSpec.model_validate(raw)
            known = self._networks[name] = _Network(version, spec, generation)
            known.preparing = asyncio.create_task(self._prepare(name, known, links))
        known.version = version
        if known.served is not None:
            known.served.capacity = capacity_in_force(known.served.topology, links)
        return known

    async def _prepare(self, name: str, network: _Network, links: dict[str, Any]) -> None:
        try:
            served = await asyncio.get_running_loop().run_in_executor(self._paths, Served.prepare, name, network.spec)
            served.capacity = capacity_in_force(served.topology, links)
        except Exception as error:
            network.error = str(error) or type(error).__name__
            return
        network.served = served
        network.version = network.version._replace(links=-1)  # links may have changed meanwhile: read them again

    def _forget(self, name: str) -> None:
        network = self._networks.pop(name, None)
        if network is None:
            return
        for request in network.waiting.clear():
            request.answer.set_exception(ServiceError(404, "unknown_network", f"{name!r} was deleted or replaced"))


def _routes(served: Served) -> dict[str, Any]:
    topology, paths = served.topology, served.paths
    names = topology.node_names

    def nodes(d: int, k: int) -> list[str]:
        links = paths.path_links(d, k)
        return [names[paths.pairs[d][0]], *(names[topology.link_target[link]] for link in links)]

    return {
        "pairs": [[names[s], names[t]] for s, t in paths.pairs.tolist()],
        "paths": [[nodes(d, k) for k in np.flatnonzero(paths.mask[d]).tolist()] for d in range(paths.num_demands)],
    }
