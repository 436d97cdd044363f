"""The networks of a service: which there are, and what each needs before it can be allocated
for.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from pydantic import ValidationError

from teal.errors import InputError
from teal.network import PathMethod, Topology
from teal.network.paths import estimated_seconds, forget
from teal.runtime.storage import is_passing
from teal.serving.engine.errors import (
    LOCKED,
    ServiceError,
    not_ready,
    replaced,
    unreadable,
    wrong,
)
from teal.serving.engine.kernels import Kernels
from teal.serving.engine.log import LOG, warn
from teal.serving.engine.measured import Measured
from teal.serving.engine.pauses import pauses
from teal.serving.engine.requests import LinkChanges, NetworkSpec
from teal.serving.engine.responses import network_settings
from teal.serving.engine.served import AddedPaths, Served, capacity_in_force, topology_of
from teal.serving.engine.solvers import beside
from teal.serving.engine.store import Store, Stored, Version
from teal.serving.engine.wanted import groups_of

_MAX_SPLITS = 1 << 26
_NOT_FOUND = 404  # status of an error
_MOMENT_S = 0.01  # for which a look at a network's files counts within a request
_VALUES_OF_CHANGE = 4  # of a link
# Pauses, in seconds, before a network is prepared again, or added paths are taken again.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
# Splits of a network whose paths may take long: the time is estimated first, and the search has a
# thread of its own.
_LONG_SEARCH = 1_000_000
# a path of Yen's, or a survivable one, takes as long as so many edge-disjoint ones, approximately
_SLOW_FACTOR = 10


class _Ended(Exception):  # noqa: N818, it is no error
    """The network whose paths are searched is gone."""


@dataclasses.dataclass(eq=False)
class Hosted:
    """A registered network in this process.

    Attributes:
        version: version of its files when they were read.
        spec: what it was registered with.
        generation: number of the registration of its name.
        served: as soon as it is ready.
        error: why it cannot be used.
        preparing: computes its paths.
        share: share of the paths that are found.
        estimated_s: seconds that all paths take, if that was estimated when it was registered.
        is_gone: ends the search for its paths.
        measured: its measured matrices, as soon as somebody asks for them.
        taking: takes paths that have been added; requests need not wait for it.
        additions: number of additions of paths that are stored; it may not serve the last yet.
        links: what is stored of its links, by number.
        unsaved: what happened to its links and is not stored, by number of the link; in force all
            the same.
        changing: held by the one that works out what changes of links mean.
        storing: held by the one that stores changes, so that none is stored after a later one.
        attempts: how often somebody began to store them.
        warning: why it could not be stored; "" if everything is.
        looked_at: by ``time.perf_counter()``, when its files were last looked at.
    """

    version: Version
    spec: NetworkSpec
    generation: str
    served: Served | None = None
    error: str = ""
    preparing: asyncio.Task[None] | None = None
    share: float = 0.0
    estimated_s: float | None = None
    is_gone: threading.Event = dataclasses.field(default_factory=threading.Event)
    measured: Measured | None = None
    taking: asyncio.Task[None] | None = None
    additions: int = 0
    links: dict[str, Any] = dataclasses.field(default_factory=dict)
    unsaved: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    changing: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    storing: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    attempts: int = 0
    warning: str = ""
    looked_at: float = 0.0

    def read_again(self) -> None:
        """Let the next look at the state folder read what is stored of the links."""
        self.version = self.version._replace(links=-1)

    def put_in_force(self, served: Served | None) -> None:
        """Give the network the capacities that follow from what is stored of its links and what is
        not.
        """
        if served is not None:
            links = _merged(self.links, self.unsaved)
            served.lineage.capacity = capacity_in_force(served.topology, links)


class Registry:
    """All networks, as the store has them.  Its methods are called on one event loop.

    Args:
        store: store of the networks.
        gone: called with a network that has been deleted or replaced.
        most: networks that may be registered.
        most_path_s: seconds that a search for paths may take, by estimate.
        kernels: kernels that paths need.
    """

    def __init__(
        self,
        store: Store,
        gone: Callable[[Hosted], None],
        most: int,
        most_path_s: float,
        kernels: Kernels,
    ) -> None:
        self._store, self._gone, self._most, self._most_path_s = store, gone, most, most_path_s
        self._kernels = kernels
        self._networks: dict[str, Hosted] = {}
        self._estimating = asyncio.Lock()
        self._saving: dict[str, asyncio.Task[None]] = {}
        self._unreadable: set[str] = (
            set()
        )  # names of networks whose files are damaged, as the log says
        self._retired = set[str]()  # path sets on disk of networks that were replaced
        # Searches that may take minutes hold up each other and no others.
        self._quick = ThreadPoolExecutor(1, thread_name_prefix="paths")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="long-paths")

    def look(self) -> list[asyncio.Task[None]]:
        """Begin to prepare what other processes have registered; what is being prepared."""
        names = self._store.names()
        for gone in set(self._networks) - set(names):
            self._forget(gone)
        for name in names:
            try:
                network = self.get(name)
            except ServiceError as error:
                if (
                    error.status != _NOT_FOUND and name not in self._unreadable
                ):  # else it was deleted meanwhile
                    warn(name, "network not readable", error)
                    self._unreadable.add(name)
                continue
            self._unreadable.discard(name)
            if (
                network.unsaved and name not in self._saving
            ):  # beside the event loop: a lock may be held
                self._saving[name] = asyncio.create_task(self._save_again(name, network))
        tasks = [network.preparing for network in self._networks.values()]
        return [task for task in tasks if task is not None and not task.done()]

    async def put(self, name: str, spec: dict[str, Any], patience_s: float) -> bool:
        """Register or replace; whether the name is new.

        Args:
            name: name of the network.
            spec: what it is registered with.
            patience_s: seconds for which a large network waits for kernels, which say how long its
                paths take.

        Raises:
            ServiceError: a fault in the topology, too many networks, or paths that would take too
                long.
        """
        # A fault is the caller's, now.
        checked, topology = await asyncio.to_thread(_checked, name, spec)
        if topology.num_nodes * (topology.num_nodes - 1) * checked.most_paths > _MAX_SPLITS:
            raise wrong(f"topology: at most {_MAX_SPLITS:,} splits, pairs of nodes times num_paths")
        estimate = await self._estimate(topology, checked, patience_s)
        names = self._store.names()
        if name not in names and len(names) >= self._most:
            raise ServiceError(
                409, "too_many_networks", f"{self._most} networks are registered: delete one first"
            )
        new = bool(await asyncio.to_thread(self._store.put, name, spec))
        stored = await asyncio.to_thread(self._store.read, name)
        network = self.get(name, stored, checked)
        network.estimated_s = estimate
        if network.error and (network.preparing is None or network.preparing.done()):
            network.error = ""
            network.preparing = asyncio.create_task(self._prepare(name, network))
        return new

    async def _estimate(
        self, topology: Topology, spec: NetworkSpec, patience_s: float
    ) -> float | None:
        """Seconds that the paths will take; None if it is not worth asking.

        Raises:
            ServiceError: it is too long.
        """
        if not _may_take_long(topology.num_nodes, spec):
            return None
        await self._kernels.wait(patience_s)
        async with self._estimating:
            seconds = await asyncio.to_thread(
                estimated_seconds,
                topology,
                num_paths=spec.first_paths,
                method=spec.path_method,
                weight=spec.path_weight,
            )
        if seconds > self._most_path_s:
            raise wrong(
                f"topology: its paths would take about {seconds:,.0f} s, at most "
                f"{self._most_path_s:,.0f} are allowed; "
                "a smaller num_paths, or edge-disjoint paths, take less"
            )
        return math.ceil(seconds)

    async def delete(self, name: str) -> None:
        """Forget a network, and its paths on disk unless another network has the same.

        Raises:
            ServiceError: there is none of that name.
        """
        known = self._networks.get(name)
        await asyncio.to_thread(self._store.delete, name)
        self._forget(name)
        if known is not None and known.served is not None:
            self._forget_paths(name, known.served.stored_paths)

    async def change_links(self, name: str, changes: dict[str, Any]) -> None:
        """Change capacities, or take links down or up: in force at once, also where they cannot be
        stored.

        Raises:
            ServiceError: no such network or link.
        """
        network = self.get(name)
        async with network.changing:  # in the order of their arrival
            if network.served is None:
                topology = await asyncio.to_thread(topology_of, name, network.spec)
            else:
                topology = network.served.topology
            size = max(topology.num_links, _VALUES_OF_CHANGE * len(changes["links"]))
            link_states = await beside(size, _link_states, topology, changes)
            if network.is_gone.is_set():
                raise replaced(name)
            network.unsaved = _merged(network.unsaved, link_states)
            network.put_in_force(network.served)
        await asyncio.shield(
            self._save(name, network)
        )  # also for a client that goes: the next change comes after it

    async def _save(self, name: str, network: Hosted) -> None:
        """Store what is not stored of the links, which is in force already.

        Raises:
            ServiceError: there is no network of that name, or another.
        """
        attempts = network.attempts
        async with network.storing:
            if (
                network.attempts > attempts or not network.unsaved
            ):  # one that began since knew all of it
                return
            network.attempts += 1
            changes = network.unsaved
            try:
                await asyncio.to_thread(
                    self._store.change_links, name, changes, network.spec.stored()
                )
            except OSError as error:
                reason = error.strerror or str(error)
            except ServiceError as error:
                if error.code != LOCKED:
                    raise
                reason = error.message
            else:  # what came meanwhile stays
                network.links = _merged(network.links, changes)
                network.read_again()  # another process may have changed them before
                later = network.unsaved.items()
                network.unsaved = {
                    link: change for link, change in later if changes.get(link) != change
                }
                network.warning = ""
                return
            network.warning = f"changes of links are in force and not stored: {reason}"
            LOG.warning(
                "link changes not stored", extra={"teal": {"network": name, "error": reason[:200]}}
            )

    async def _save_again(self, name: str, network: Hosted) -> None:
        """Try to store what could not be stored before."""
        try:
            await self._save(name, network)
        except ServiceError as error:
            if not network.is_gone.is_set():
                network.warning = f"changes of links are in force and not stored: {error}"
        finally:
            del self._saving[name]

    def all_ready(self) -> dict[str, Served]:
        """The networks that are ready, by name."""
        return {
            name: network.served
            for name, network in self._networks.items()
            if network.served is not None
        }

    def all_compute(self) -> bool:
        """Whether there are networks whose paths are being computed, and none that is ready."""
        waiting = [network for network in self._networks.values() if not network.error]
        return bool(waiting) and all(network.served is None for network in waiting)

    def warnings(self) -> dict[str, str]:
        """Warnings about networks, by name; networks without any are left out."""
        return {
            name: network.warning for name, network in self._networks.items() if network.warning
        }

    async def info(self, name: str) -> dict[str, Any]:
        """:class:`teal.serving.engine.responses.NetworkInfo`.

        Raises:
            ServiceError: there is none of that name.
        """
        network = self.get(name)
        links = 0 if network.served is None else network.served.topology.num_links
        return dict(await beside(links, _info, name, network))

    def seen(self, name: str, arrived: float) -> Hosted:
        """As the store had it a moment ago, and after a request had arrived, so that a request
        that asks several times in a moment looks at files once.

        Args:
            name: name of the network.
            arrived: ``time.perf_counter()`` of the request's arrival.

        Raises:
            ServiceError: there is none of that name.
        """
        known = self._networks.get(name)
        if known is not None and known.looked_at >= max(arrived, time.perf_counter() - _MOMENT_S):
            return known
        return self.get(name)

    def ready(self, name: str) -> Served:
        """A network that is ready.

        Raises:
            ServiceError: no such network, or not ready.
        """
        return in_use(name, self.get(name))

    def get(
        self, name: str, stored: Stored | None = None, spec: NetworkSpec | None = None
    ) -> Hosted:
        """As the store has it now: another process may have changed it.

        Args:
            name: name of the network.
            stored, spec: its registration as it was just written, and the settings in it; None to
                read them.

        Raises:
            ServiceError: there is none of that name.
        """
        looked_at = time.perf_counter()
        try:
            version = self._store.version(name)
        except ServiceError as error:
            if error.status == _NOT_FOUND:
                self._forget(name)
            raise
        known = self._networks.get(name)
        if known is not None and known.version == version:
            known.looked_at = looked_at
            return known
        if stored is None and known is not None and known.version.network == version.network:
            links, added = self._store.read_links(name, known.generation)
            raw, generation = None, known.generation
        else:
            raw, links, generation, added = stored or self._store.read(name)
        if known is None or known.version.network != version.network:
            if known is not None and known.served is not None:
                self._retired |= known.served.stored_paths
            self._forget(name)
            try:
                spec = (
                    spec
                    if spec is not None and spec.stored() == raw
                    else NetworkSpec.model_validate(raw)
                )
            except ValidationError as error:
                raise unreadable(name, error) from None
            known = self._networks[name] = Hosted(version, spec, generation, additions=added)
            known.preparing = asyncio.create_task(self._prepare(name, known))
        known.links = links
        known.additions = added
        known.put_in_force(known.served)
        known.version, known.looked_at = version, looked_at
        is_behind = known.served is not None and known.served.additions < added
        if is_behind and (known.taking is None or known.taking.done()):
            known.taking = asyncio.create_task(self._take_paths(name, known))
        return known

    async def _take_paths(self, name: str, network: Hosted) -> None:
        """Serve over the paths that have been added, however often that fails for other reasons
        than a damaged file; meanwhile the network goes on as it is.
        """
        assert network.served is not None
        loop = asyncio.get_running_loop()
        waits_s = pauses(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while network.served.additions < network.additions and not network.is_gone.is_set():
            take = network.served.with_more_paths
            added = self._added(name, network)
            try:
                more = await loop.run_in_executor(self._quick, take, added, network.spec)
            except InputError as error:
                warn(name, "added paths not readable", error)
                return
            except Exception as error:
                warn(name, "added paths not taken", error)
            else:
                network.served = more
                continue
            # Not while the error is held, which holds what the attempt had made.
            await asyncio.sleep(next(waits_s))

    def _added(self, name: str, network: Hosted) -> AddedPaths:
        """The paths of a network to which paths were added."""
        return AddedPaths(network.additions, self._store.paths_file(name, network.generation))

    async def _prepare(self, name: str, network: Hosted) -> None:
        """Prepare a network, again and again while the machine lacks something for it."""
        await self._kernels.there()
        for pause_s in pauses(_FIRST_PAUSE_S, _LONGEST_PAUSE_S):
            if await self._has_ended(name, network):
                return
            await asyncio.sleep(pause_s)

    async def _has_ended(self, name: str, network: Hosted) -> bool:
        """Try to prepare a network; whether it is ready, gone, or cannot be prepared at all."""
        try:
            served = await self._prepared(name, network)
        except _Ended:
            return True
        except Exception as error:
            warn(name, "network not prepared", error)
            if is_passing(error):
                network.warning = f"its paths cannot be computed now: {error}"
                return network.is_gone.is_set()
            network.error = str(error) or type(error).__name__
            return True
        self._serve(name, network, served)
        return True

    async def _prepared(self, name: str, network: Hosted) -> Served:
        """The served form of a network, with the capacities in force."""

        def report(share: float) -> None:
            network.share = share
            if network.is_gone.is_set():
                raise _Ended

        topology = await asyncio.to_thread(topology_of, name, network.spec)
        thread = self._long if _may_take_long(topology.num_nodes, network.spec) else self._quick
        added = self._added(name, network) if network.additions else None
        served = await asyncio.get_running_loop().run_in_executor(
            thread, Served.prepare, name, network.spec, report, added
        )
        network.put_in_force(served)
        return served

    def _serve(self, name: str, network: Hosted, served: Served) -> None:
        """Answer requests for a network from now on, and forget path sets that none has any
        more.
        """
        if network.is_gone.is_set():
            self._forget_paths(name, served.stored_paths)
            return
        network.served = served
        if not network.unsaved:
            network.warning = ""
        network.read_again()  # paths may have been added meanwhile
        # Not before: the new registration may have the same paths.
        retired, self._retired = self._retired, set()
        self._forget_paths(name, retired)

    def _forget(self, name: str) -> None:
        network = self._networks.pop(name, None)
        if network is not None:
            network.is_gone.set()
            self._gone(network)

    def _forget_paths(self, name: str, keys: Set[str]) -> None:
        """Delete path sets on disk, without those that a network has.

        Args:
            name: name of the network that has no use for them.
            keys: keys of the path sets.
        """
        others = [served.stored_paths for served in self.all_ready().values()]
        try:
            for key in keys - set().union(*others):
                forget(key)
        except OSError as error:
            warn(name, "paths not deleted", error)


def in_use(name: str, network: Hosted) -> Served:
    """The served form of a network.

    Raises:
        ServiceError: it is not ready, or cannot be used.
    """
    if network.error:
        raise ServiceError(409, "failed", f"{name!r} cannot be used: {network.error}")
    if network.served is None:
        raise not_ready(name)
    return network.served


def _merged(links: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The changes of links by number, after further changes."""
    return {
        **links,
        **{link: {**links.get(link, {}), **change} for link, change in changes.items()},
    }


def _info(name: str, network: Hosted) -> dict[str, Any]:
    """:class:`teal.serving.engine.responses.NetworkInfo`."""
    description: dict[str, Any] = {
        "name": name,
        "generation": network.generation,
        **network_settings(network.spec),
    }
    if network.warning:
        description["warning"] = network.warning
    if network.error:
        return {**description, "state": "failed", "error": network.error}
    if network.served is None:
        progress = {"paths_share": network.share, "paths_estimated_s": network.estimated_s}
        return {**description, "state": "computing", **progress}
    return {**description, "state": "ready", "paths_share": 1.0, **_description(network.served)}


def _checked(name: str, spec: dict[str, Any]) -> tuple[NetworkSpec, Topology]:
    """The settings and the topology of a network that is to be registered.

    Raises:
        ServiceError: a fault in them.
    """
    checked = NetworkSpec.model_validate(spec)
    topology = topology_of(name, checked)
    groups_of(topology, checked)
    return checked, topology


def _link_states(topology: Topology, changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The state of links after some changes, by number of the link.

    Raises:
        ServiceError: there is no such link.
    """
    index = topology.node_index()
    between: dict[tuple[int, int], list[int]] = {}
    for link, pair in enumerate(
        zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)
    ):
        between.setdefault(pair, []).append(link)
    link_states: dict[str, dict[str, Any]] = {}
    for change in LinkChanges.model_validate(changes).links:
        ends = {(index.get(change.source, -1), index.get(change.target, -1))}
        if change.both:
            ends |= {(t, s) for s, t in ends}
        links = [link for pair in ends for link in between.get(pair, ())]
        if not links:
            raise wrong(f"there is no link {change.source[:80]!r} - {change.target[:80]!r}")
        for link in links:
            state = change.model_dump(include={"capacity", "up"}, exclude_none=True)
            if change.restore:
                state = {"capacity": None, "up": True}
            link_states[str(link)] = {**link_states.get(str(link), {}), **state}
    return link_states


def _may_take_long(nodes: int, spec: NetworkSpec) -> bool:
    factor = 1 if spec.path_method is PathMethod.DISJOINT else _SLOW_FACTOR
    return nodes * max(0, nodes - 1) * spec.first_paths * factor >= _LONG_SEARCH


def _description(served: Served) -> dict[str, Any]:
    topology = served.topology
    names = topology.node_names
    links = [
        {"source": names[s], "target": names[t], "capacity": registered, "in_force": in_force}
        for s, t, registered, in_force in zip(
            topology.link_source,
            topology.link_target,
            topology.capacity.tolist(),
            served.capacity.tolist(),
            strict=True,
        )
    ]
    places = [
        [x if np.isfinite(x) else None for x in place] for place in topology.coordinates.tolist()
    ]
    nodes = [{"id": name, "pos": place} for name, place in zip(names, places, strict=True)]
    paths = {"demands": served.paths.num_demands, "paths": int(served.paths.mask.sum())}
    return {**paths, "nodes": nodes, "links": links}
