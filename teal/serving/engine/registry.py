"""Registry of the networks of one process: reads registrations from the store and prepares each
network.

:class:`Registry` maps names to :class:`RegistryEntry`. Every lookup compares the version of the
stored files, so that restart, further replicas and PATCH use one mechanism. Networks are prepared
in background threads; link changes take effect at once and are stored afterwards.
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
from teal.runtime.storage import is_transient
from teal.serving.engine.allocation_task import link_groups
from teal.serving.engine.backoff import backoff
from teal.serving.engine.errors import (
    LOCKED,
    ServiceError,
    not_ready,
    replaced,
    unreadable,
    wrong,
)
from teal.serving.engine.kernels import KernelStatus
from teal.serving.engine.log import LOG, warn
from teal.serving.engine.measured import MeasurementHistory
from teal.serving.engine.network_state import (
    AddedPaths,
    NetworkState,
    current_capacity,
    load_network_topology,
)
from teal.serving.engine.requests import LinkChanges, NetworkSpec
from teal.serving.engine.responses import network_settings
from teal.serving.engine.solvers import offload_if_large
from teal.serving.engine.store import Store, StoredNetwork, Version

# Maximum number of splits (pairs of nodes times paths) of a network.
_MAX_SPLITS = 1 << 26
_NOT_FOUND = 404
# Within a request, a check of a network's files is valid for this time.
_MAX_AGE_S = 0.01
_VALUES_PER_CHANGE = 4
# Backoff before a network is prepared, or added paths are loaded, again.
_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 60.0
# From this number of splits on, the time of a path search is estimated first, and the search runs
# in a separate thread.
_LONG_SEARCH_SPLITS = 1_000_000
# Approximate time of a path by Yen's algorithm, or of a survivable one, relative to an
# edge-disjoint one.
_SLOW_FACTOR = 10


class _Removed(Exception):  # noqa: N818, control flow
    """Raised in a path search whose network was removed."""


@dataclasses.dataclass(eq=False)
class RegistryEntry:
    """Registered network in this process.

    Attributes:
        version: version of its files at the last read.
        spec: settings of the registration.
        generation: identifier of the registration.
        network_state: state for solving; None until ready.
        error: reason why the network is unusable; "" if usable.
        preparing: background task that prepares the network.
        path_progress: fraction of the paths found.
        estimated_s: estimated seconds of the path search; None without an estimate.
        is_gone: set when the network is removed; ends its path search.
        measurements: measured matrices; None until first used.
        path_reload: background task that loads added paths.
        paths_version: number of stored path additions; ``network_state`` may have fewer.
        links: stored link changes, by link index.
        unsaved_links: link changes in effect but not stored yet, by link index.
        change_lock: serialises the evaluation of link changes.
        store_lock: serialises the storing of link changes, so that the last one wins.
        num_store_attempts: number of attempts to store link changes.
        warning: why link changes are not stored; "" if all are.
        checked_at: ``time.perf_counter()`` of the last check of its files.
    """

    version: Version
    spec: NetworkSpec
    generation: str
    network_state: NetworkState | None = None
    error: str = ""
    preparing: asyncio.Task[None] | None = None
    path_progress: float = 0.0
    estimated_s: float | None = None
    is_gone: threading.Event = dataclasses.field(default_factory=threading.Event)
    measurements: MeasurementHistory | None = None
    path_reload: asyncio.Task[None] | None = None
    paths_version: int = 0
    links: dict[str, Any] = dataclasses.field(default_factory=dict)
    unsaved_links: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    change_lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    store_lock: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    num_store_attempts: int = 0
    warning: str = ""
    checked_at: float = 0.0

    def invalidate_links(self) -> None:
        """Make the next lookup read the stored link changes again."""
        self.version = self.version._replace(links=-1)

    def apply_capacity(self, network_state: NetworkState | None) -> None:
        """Set the current capacities of a network from stored and unsaved link changes."""
        if network_state is not None:
            links = _merge_links(self.links, self.unsaved_links)
            network_state.shared.capacity = current_capacity(network_state.topology, links)


class Registry:
    """Registered networks of the store. Call methods on one event loop.

    Args:
        store: store of the networks.
        on_removal: called with the entry of a network that was deleted or replaced.
        max_networks: maximum number of registered networks.
        max_path_s: maximum estimated time of a path search, seconds.
        kernels: compilation status of the kernels that path searches need.
    """

    def __init__(
        self,
        store: Store,
        on_removal: Callable[[RegistryEntry], None],
        max_networks: int,
        max_path_s: float,
        kernels: KernelStatus,
    ) -> None:
        self._store = store
        self._on_removal = on_removal
        self._max_networks = max_networks
        self._max_path_s = max_path_s
        self._kernels = kernels
        self._networks: dict[str, RegistryEntry] = {}
        self._estimate_lock = asyncio.Lock()
        self._save_tasks: dict[str, asyncio.Task[None]] = {}
        # Networks with damaged files that are logged already.
        self._unreadable_networks: set[str] = set()
        # Keys of cached path sets of replaced networks.
        self._retired_paths = set[str]()
        # Searches that may take minutes have a thread of their own and do not delay short ones.
        self._short_searches = ThreadPoolExecutor(1, thread_name_prefix="paths")
        self._long_searches = ThreadPoolExecutor(1, thread_name_prefix="long-paths")

    def sync_with_store(self) -> list[asyncio.Task[None]]:
        """Start to prepare networks that other processes have registered; return the running
        tasks.
        """
        # Remove networks that other processes have deleted.
        names = self._store.names()
        for removed_name in set(self._networks) - set(names):
            self._remove(removed_name)
        # Prepare new networks, and retry to store link changes.
        for name in names:
            try:
                entry = self.get(name)
            except ServiceError as error:
                # 404: deleted meanwhile.
                if error.status != _NOT_FOUND and name not in self._unreadable_networks:
                    warn(name, "network not readable", error)
                    self._unreadable_networks.add(name)
                continue
            self._unreadable_networks.discard(name)
            # In a task, since the lock of the folder may be held.
            if entry.unsaved_links and name not in self._save_tasks:
                self._save_tasks[name] = asyncio.create_task(self._retry_save(name, entry))
        tasks = [entry.preparing for entry in self._networks.values()]
        return [task for task in tasks if task is not None and not task.done()]

    async def put(self, name: str, spec: dict[str, Any], patience_s: float) -> bool:
        """Register or replace a network; return whether the name is new.

        Args:
            name: name of the network.
            spec: settings of the registration.
            patience_s: maximum wait for the kernels that estimate the path search of a large
                network, seconds.

        Raises:
            ServiceError: invalid topology, too many networks, or too long a path search.
        """
        # Validate the registration and its limits.
        settings, topology = await asyncio.to_thread(_validate, name, spec)
        if topology.num_nodes * (topology.num_nodes - 1) * settings.max_num_paths > _MAX_SPLITS:
            raise wrong(
                f"topology: at most {_MAX_SPLITS:,} splits (pairs of nodes times num_paths)"
            )
        estimate = await self._estimate(topology, settings, patience_s)
        names = self._store.names()
        if name not in names and len(names) >= self._max_networks:
            raise ServiceError(
                409,
                "too_many_networks",
                f"{self._max_networks} networks are registered: delete one first",
            )
        # Store it and start to prepare it; registering again retries a failed network.
        is_new = bool(await asyncio.to_thread(self._store.put, name, spec))
        stored = await asyncio.to_thread(self._store.read, name)
        entry = self.get(name, stored, settings)
        entry.estimated_s = estimate
        if entry.error and (entry.preparing is None or entry.preparing.done()):
            entry.error = ""
            entry.preparing = asyncio.create_task(self._prepare(name, entry))
        return is_new

    async def _estimate(
        self, topology: Topology, spec: NetworkSpec, patience_s: float
    ) -> float | None:
        """Estimated seconds of the path search; None for a small network.

        Raises:
            ServiceError: the estimate exceeds the limit.
        """
        if not _may_take_long(topology.num_nodes, spec):
            return None
        await self._kernels.wait(patience_s)
        async with self._estimate_lock:
            seconds = await asyncio.to_thread(
                estimated_seconds,
                topology,
                num_paths=spec.initial_num_paths,
                method=spec.path_method,
                weight=spec.path_weight,
            )
        if seconds > self._max_path_s:
            raise wrong(
                f"topology: its paths would take about {seconds:,.0f} s, at most "
                f"{self._max_path_s:,.0f} are allowed; "
                "a smaller num_paths, or edge-disjoint paths, take less"
            )
        return math.ceil(seconds)

    async def delete(self, name: str) -> None:
        """Delete a network, and its cached path sets unless another network uses them.

        Raises:
            ServiceError: unknown network.
        """
        entry = self._networks.get(name)
        await asyncio.to_thread(self._store.delete, name)
        self._remove(name)
        if entry is not None and entry.network_state is not None:
            self._delete_paths(name, entry.network_state.stored_paths)

    async def change_links(self, name: str, changes: dict[str, Any]) -> None:
        """Change capacities, or take links down or up; effective at once, even if storing fails.

        Raises:
            ServiceError: unknown network or link.
        """
        entry = self.get(name)
        # Evaluate changes in the order of their arrival.
        async with entry.change_lock:
            if entry.network_state is None:
                topology = await asyncio.to_thread(load_network_topology, name, entry.spec)
            else:
                topology = entry.network_state.topology
            size = max(topology.num_links, _VALUES_PER_CHANGE * len(changes["links"]))
            link_states = await offload_if_large(size, _link_states, topology, changes)
            if entry.is_gone.is_set():
                raise replaced(name)
            entry.unsaved_links = _merge_links(entry.unsaved_links, link_states)
            entry.apply_capacity(entry.network_state)
        # Store them even if the client disconnects.
        await asyncio.shield(self._save(name, entry))

    async def _save(self, name: str, entry: RegistryEntry) -> None:
        """Store the unsaved link changes, which are in effect already.

        Raises:
            ServiceError: the network was deleted or replaced.
        """
        num_attempts = entry.num_store_attempts
        async with entry.store_lock:
            # An attempt that started since has stored these changes.
            if entry.num_store_attempts > num_attempts or not entry.unsaved_links:
                return
            entry.num_store_attempts += 1
            changes = entry.unsaved_links
            try:
                await asyncio.to_thread(
                    self._store.change_links, name, changes, entry.spec.to_json()
                )
            except OSError as error:
                reason = error.strerror or str(error)
            except ServiceError as error:
                if error.code != LOCKED:
                    raise
                reason = error.message
            # Keep changes that arrived meanwhile as unsaved.
            else:
                entry.links = _merge_links(entry.links, changes)
                # Another process may have changed the links before.
                entry.invalidate_links()
                current = entry.unsaved_links.items()
                entry.unsaved_links = {
                    link: change for link, change in current if changes.get(link) != change
                }
                entry.warning = ""
                return
            entry.warning = f"link changes are in effect but not stored: {reason}"
            LOG.warning(
                "link changes not stored", extra={"teal": {"network": name, "error": reason[:200]}}
            )

    async def _retry_save(self, name: str, entry: RegistryEntry) -> None:
        """Retry to store link changes that could not be stored before."""
        try:
            await self._save(name, entry)
        except ServiceError as error:
            if not entry.is_gone.is_set():
                entry.warning = f"link changes are in effect but not stored: {error}"
        finally:
            del self._save_tasks[name]

    def ready_states(self) -> dict[str, NetworkState]:
        """States of the ready networks, by name."""
        return {
            name: entry.network_state
            for name, entry in self._networks.items()
            if entry.network_state is not None
        }

    def are_all_computing(self) -> bool:
        """Whether networks are being prepared and none is ready."""
        usable = [entry for entry in self._networks.values() if not entry.error]
        return bool(usable) and all(entry.network_state is None for entry in usable)

    def warnings(self) -> dict[str, str]:
        """Warnings of networks, by name; networks without a warning are omitted."""
        return {name: entry.warning for name, entry in self._networks.items() if entry.warning}

    async def info(self, name: str) -> dict[str, Any]:
        """Description of a network, :class:`teal.serving.engine.responses.NetworkInfo`.

        Raises:
            ServiceError: unknown network.
        """
        entry = self.get(name)
        links = 0 if entry.network_state is None else entry.network_state.topology.num_links
        return dict(await offload_if_large(links, _info, name, entry))

    def get_recent(self, name: str, arrival_time: float) -> RegistryEntry:
        """Entry of a network, read from the store after the request arrived and at most a moment
        ago.

        Several lookups of one request thus check the files once.

        Args:
            name: name of the network.
            arrival_time: ``time.perf_counter()`` at the request's arrival.

        Raises:
            ServiceError: unknown network.
        """
        entry = self._networks.get(name)
        if entry is not None and entry.checked_at >= max(
            arrival_time, time.perf_counter() - _MAX_AGE_S
        ):
            return entry
        return self.get(name)

    def ready_state(self, name: str) -> NetworkState:
        """State of a ready network.

        Raises:
            ServiceError: unknown network, or not ready.
        """
        return require_ready(name, self.get(name))

    def get(
        self, name: str, stored: StoredNetwork | None = None, spec: NetworkSpec | None = None
    ) -> RegistryEntry:
        """Entry of a network as stored now; another process may have changed it.

        Args:
            name: name of the network.
            stored: registration just written; None to read it.
            spec: settings in ``stored``; None to parse them.

        Raises:
            ServiceError: unknown network.
        """
        # Return the entry if its files are unchanged.
        checked_at = time.perf_counter()
        try:
            version = self._store.version(name)
        except ServiceError as error:
            if error.status == _NOT_FOUND:
                self._remove(name)
            raise
        entry = self._networks.get(name)
        if entry is not None and entry.version == version:
            entry.checked_at = checked_at
            return entry
        # Read the registration, or the link changes alone if it is unchanged.
        if stored is None and entry is not None and entry.version.network == version.network:
            links, paths_version = self._store.read_links(name, entry.generation)
            settings = None
            generation = entry.generation
        else:
            settings, links, generation, paths_version = stored or self._store.read(name)
        # Replace the entry of a new registration and start to prepare it.
        if entry is None or entry.version.network != version.network:
            if entry is not None and entry.network_state is not None:
                self._retired_paths |= entry.network_state.stored_paths
            self._remove(name)
            spec = _parse_settings(name, settings, spec)
            entry = self._networks[name] = RegistryEntry(
                version, spec, generation, paths_version=paths_version
            )
            entry.preparing = asyncio.create_task(self._prepare(name, entry))
        # Apply link changes, and load added paths in the background.
        entry.links = links
        entry.paths_version = paths_version
        entry.apply_capacity(entry.network_state)
        entry.version = version
        entry.checked_at = checked_at
        self._start_path_reload(name, entry)
        return entry

    def _start_path_reload(self, name: str, entry: RegistryEntry) -> None:
        """Start to load added paths if the network lacks them and no task loads them already."""
        is_behind = (
            entry.network_state is not None
            and entry.network_state.paths_version < entry.paths_version
        )
        if is_behind and (entry.path_reload is None or entry.path_reload.done()):
            entry.path_reload = asyncio.create_task(self._reload_paths(name, entry))

    async def _reload_paths(self, name: str, entry: RegistryEntry) -> None:
        """Load added paths; retry with backoff unless the file is damaged. Requests use the current
        paths meanwhile.
        """
        assert entry.network_state is not None
        loop = asyncio.get_running_loop()
        pauses_s = backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S)
        while (
            entry.network_state.paths_version < entry.paths_version and not entry.is_gone.is_set()
        ):
            extend = entry.network_state.with_more_paths
            added = self._added_paths(name, entry)
            try:
                extended = await loop.run_in_executor(
                    self._short_searches, extend, added, entry.spec
                )
            except InputError as error:
                warn(name, "added paths not readable", error)
                return
            except Exception as error:
                warn(name, "added paths not loaded", error)
            else:
                entry.network_state = extended
                continue
            # Outside of the handler: the error would keep the objects of the attempt alive.
            await asyncio.sleep(next(pauses_s))

    def _added_paths(self, name: str, entry: RegistryEntry) -> AddedPaths:
        """Stored path set of a network with added paths."""
        return AddedPaths(entry.paths_version, self._store.paths_file(name, entry.generation))

    async def _prepare(self, name: str, entry: RegistryEntry) -> None:
        """Prepare a network; retry transient failures with backoff."""
        await self._kernels.wait_until_ready()
        for pause_s in backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S):
            if await self._try_prepare(name, entry):
                return
            await asyncio.sleep(pause_s)

    async def _try_prepare(self, name: str, entry: RegistryEntry) -> bool:
        """Try to prepare a network; return whether no retry is needed: ready, removed, or failed
        for good.
        """
        try:
            network_state = await self._prepare_state(name, entry)
        except _Removed:
            return True
        except Exception as error:
            warn(name, "network not prepared", error)
            if is_transient(error):
                entry.warning = f"its paths cannot be computed now: {error}"
                return entry.is_gone.is_set()
            entry.error = str(error) or type(error).__name__
            return True
        self._install(name, entry, network_state)
        return True

    async def _prepare_state(self, name: str, entry: RegistryEntry) -> NetworkState:
        """State of a network with the current capacities, computed in a background thread."""

        def report(progress: float) -> None:
            entry.path_progress = progress
            if entry.is_gone.is_set():
                raise _Removed

        topology = await asyncio.to_thread(load_network_topology, name, entry.spec)
        executor = (
            self._long_searches
            if _may_take_long(topology.num_nodes, entry.spec)
            else self._short_searches
        )
        added = self._added_paths(name, entry) if entry.paths_version else None
        network_state = await asyncio.get_running_loop().run_in_executor(
            executor, NetworkState.prepare, name, entry.spec, report, added
        )
        entry.apply_capacity(network_state)
        return network_state

    def _install(self, name: str, entry: RegistryEntry, network_state: NetworkState) -> None:
        """Serve requests from a prepared state, and delete path sets that no network uses any
        more.
        """
        if entry.is_gone.is_set():
            self._delete_paths(name, network_state.stored_paths)
            return
        entry.network_state = network_state
        if not entry.unsaved_links:
            entry.warning = ""
        # Paths may have been added meanwhile.
        entry.invalidate_links()
        # Only now: the new registration may use the same path sets.
        retired = self._retired_paths
        self._retired_paths = set()
        self._delete_paths(name, retired)

    def _remove(self, name: str) -> None:
        """Remove an entry, end its path search and fail its queued requests."""
        entry = self._networks.pop(name, None)
        if entry is not None:
            entry.is_gone.set()
            self._on_removal(entry)

    def _delete_paths(self, name: str, keys: Set[str]) -> None:
        """Delete cached path sets that no network uses.

        Args:
            name: name of the network that used them.
            keys: keys of the path sets.
        """
        used_keys = [network_state.stored_paths for network_state in self.ready_states().values()]
        try:
            for key in keys - set().union(*used_keys):
                forget(key)
        except OSError as error:
            warn(name, "paths not deleted", error)


def require_ready(name: str, entry: RegistryEntry) -> NetworkState:
    """State of a network that is ready.

    Raises:
        ServiceError: not ready, or unusable.
    """
    if entry.error:
        raise ServiceError(409, "failed", f"{name!r} cannot be used: {entry.error}")
    if entry.network_state is None:
        raise not_ready(name)
    return entry.network_state


def _merge_links(links: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Link changes by link index, updated by further changes."""
    return {
        **links,
        **{link: {**links.get(link, {}), **change} for link, change in changes.items()},
    }


def _info(name: str, entry: RegistryEntry) -> dict[str, Any]:
    """Description of a network, :class:`teal.serving.engine.responses.NetworkInfo`."""
    description: dict[str, Any] = {
        "name": name,
        "generation": entry.generation,
        **network_settings(entry.spec),
    }
    if entry.warning:
        description["warning"] = entry.warning
    if entry.error:
        return {**description, "state": "failed", "error": entry.error}
    if entry.network_state is None:
        progress = {"paths_share": entry.path_progress, "paths_estimated_s": entry.estimated_s}
        return {**description, "state": "computing", **progress}
    return {
        **description,
        "state": "ready",
        "paths_share": 1.0,
        **_describe_state(entry.network_state),
    }


def _validate(name: str, spec: dict[str, Any]) -> tuple[NetworkSpec, Topology]:
    """Settings and topology of a registration.

    Raises:
        ServiceError: invalid settings or topology.
    """
    settings = NetworkSpec.model_validate(spec)
    topology = load_network_topology(name, settings)
    link_groups(topology, settings)
    return settings, topology


def _link_states(topology: Topology, changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """State of the changed links, by link index.

    Raises:
        ServiceError: unknown link.
    """
    node_index = topology.node_index()
    links_between: dict[tuple[int, int], list[int]] = {}
    for link, pair in enumerate(
        zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)
    ):
        links_between.setdefault(pair, []).append(link)
    link_states: dict[str, dict[str, Any]] = {}
    for change in LinkChanges.model_validate(changes).links:
        ends = {(node_index.get(change.source, -1), node_index.get(change.target, -1))}
        if change.both:
            ends |= {(target, source) for source, target in ends}
        links = [link for pair in ends for link in links_between.get(pair, ())]
        if not links:
            raise wrong(f"unknown link {change.source[:80]!r} - {change.target[:80]!r}")
        for link in links:
            state = change.model_dump(include={"capacity", "up"}, exclude_none=True)
            if change.restore:
                state = {"capacity": None, "up": True}
            link_states[str(link)] = {**link_states.get(str(link), {}), **state}
    return link_states


def _parse_settings(
    name: str, settings: dict[str, Any] | None, spec: NetworkSpec | None
) -> NetworkSpec:
    """Parse the stored settings of a registration.

    Args:
        name: name of the network.
        settings: settings as stored.
        spec: parsed settings, returned if they equal ``settings``; None to parse.

    Raises:
        ServiceError: damaged settings.
    """
    try:
        return (
            spec
            if spec is not None and spec.to_json() == settings
            else NetworkSpec.model_validate(settings)
        )
    except ValidationError as error:
        raise unreadable(name, error) from None


def _may_take_long(num_nodes: int, spec: NetworkSpec) -> bool:
    """Whether a path search may take long enough to estimate its time first."""
    factor = 1 if spec.path_method is PathMethod.DISJOINT else _SLOW_FACTOR
    return (
        num_nodes * max(0, num_nodes - 1) * spec.initial_num_paths * factor >= _LONG_SEARCH_SPLITS
    )


def _describe_state(network_state: NetworkState) -> dict[str, Any]:
    """Nodes, links and sizes of a ready network."""
    # Links with registered and current capacities, then nodes with known coordinates.
    topology = network_state.topology
    names = topology.node_names
    links = [
        {
            "source": names[source],
            "target": names[target],
            "capacity": registered,
            "in_force": in_force,
        }
        for source, target, registered, in_force in zip(
            topology.link_source,
            topology.link_target,
            topology.capacity.tolist(),
            network_state.capacity.tolist(),
            strict=True,
        )
    ]
    positions = [
        [coordinate if np.isfinite(coordinate) else None for coordinate in position]
        for position in topology.coordinates.tolist()
    ]
    nodes = [{"id": name, "pos": position} for name, position in zip(names, positions, strict=True)]
    paths = {
        "demands": network_state.paths.num_demands,
        "paths": int(network_state.paths.mask.sum()),
    }
    return {**paths, "nodes": nodes, "links": links}
