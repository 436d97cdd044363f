"""Registry of the networks of one process.

It reads registrations from the store and prepares each network for requests.
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
from teal_serve.engine.allocation_task import link_groups
from teal_serve.engine.backoff import backoff
from teal_serve.engine.errors import (
    LOCKED,
    ServiceError,
    invalid_request,
    not_ready,
    replaced,
    unreadable,
)
from teal_serve.engine.kernels import KernelStatus
from teal_serve.engine.log import LOG, warn
from teal_serve.engine.measured import MeasurementHistory
from teal_serve.engine.network_state import (
    AddedPaths,
    NetworkState,
    current_capacity,
    load_network_topology,
)
from teal_serve.engine.requests import LinkChanges, NetworkSpec
from teal_serve.engine.responses import network_settings
from teal_serve.engine.solvers import offload_if_large
from teal_serve.engine.store import Store, StoredNetwork, Version

# Maximum number of splits (pairs of nodes times paths) of a network.
_MAX_SPLITS = 1 << 26
_NOT_FOUND = 404
# Within a request, a check of a network's files is valid for this time, seconds.
_MAX_AGE_S = 0.01
# Number of values of a link change, from which the size of a request is estimated.
_VALUES_PER_CHANGE = 4
# Backoff between attempts to prepare a network, or to load added paths.
_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 60.0
# From this number of splits on, the time of a path search is estimated first, and the search runs
# in a separate thread.
_LONG_SEARCH_SPLITS = 1_000_000
# Approximate time to find a path by Yen's algorithm, or a survivable path, relative to an
# edge-disjoint one.
_SLOW_FACTOR = 10


class _NetworkRemoved(Exception):  # noqa: N818, control flow
    """Raised by the progress callback to end the path search of a removed network."""


@dataclasses.dataclass(eq=False)
class RegistryEntry:
    """Registered network in this process.

    Attributes:
        version: fingerprints of its files at the last read.
        spec: settings of the registration.
        generation: identifier of the registration.
        network_state: state for solving; None until ready.
        error: reason why the network is unusable; "" if usable.
        preparing: background task that prepares the network.
        path_progress: fraction of the sources whose paths are found.
        estimated_s: estimated seconds of the path search; None without an estimate.
        is_gone: set when the network is removed or replaced; ends its path search.
        measurements: measured matrices; None until first used.
        path_reload: background task that loads added paths.
        paths_version: number of stored path additions; ``network_state`` may have fewer.
        links: stored link changes: link index -> {"capacity": Gbit/s, "up": bool}; either key may
            be missing.
        unsaved_links: link changes in effect but not stored yet, in the form of ``links``.
        change_lock: serialises the evaluation of link changes.
        store_lock: serialises the storing of link changes, so that the last one wins.
        num_store_attempts: number of attempts to store link changes.
        warning: reason why link changes are not stored, or why the network cannot be prepared yet;
            "" without a problem.
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
        """Set the current capacities of a network from stored and unsaved link changes.

        Args:
            network_state: state of the network; None to do nothing, before the network is ready.
        """
        if network_state is not None:
            links = _merge_link_changes(self.links, self.unsaved_links)
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
        """Create an empty registry; lookups and :meth:`sync_with_store` add the entries."""
        self._store = store
        self._on_removal = on_removal
        self._max_networks = max_networks
        self._max_search_s = max_path_s
        self._kernels = kernels
        # Entries by name of the network.
        self._entries: dict[str, RegistryEntry] = {}
        # The time of a path search is estimated for one network at a time.
        self._estimate_lock = asyncio.Lock()
        # Running retries to store link changes, by name of the network.
        self._save_tasks: dict[str, asyncio.Task[None]] = {}
        # Names of networks with damaged files that are logged already.
        self._unreadable_networks: set[str] = set()
        # Content hashes of the cached path sets of replaced networks, to be deleted.
        self._retired_path_set_keys = set[str]()
        # Searches that may take minutes run in a second thread, so as not to delay short ones.
        self._short_search_thread = ThreadPoolExecutor(1, thread_name_prefix="paths")
        self._long_search_thread = ThreadPoolExecutor(1, thread_name_prefix="long-paths")

    def sync_with_store(self) -> list[asyncio.Task[None]]:
        """Synchronise with networks that other processes have registered, changed or deleted.

        Returns:
            running tasks that prepare networks.
        """
        # Remove networks that other processes have deleted.
        names = self._store.names()
        for removed_name in set(self._entries) - set(names):
            self._remove_entry(removed_name)
        # Read new and changed networks, which starts to prepare them; retry to store link changes.
        for name in names:
            try:
                entry = self.get(name)
            except ServiceError as error:
                # 404: another process deleted it since the list of names was read.
                if error.status != _NOT_FOUND and name not in self._unreadable_networks:
                    warn(name, "network not readable", error)
                    self._unreadable_networks.add(name)
                continue
            self._unreadable_networks.discard(name)
            # In a background task, since another process may hold the lock of the folder.
            if entry.unsaved_links and name not in self._save_tasks:
                self._save_tasks[name] = asyncio.create_task(self._retry_store(name, entry))
        tasks = [entry.preparing for entry in self._entries.values()]
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
        parsed_spec, topology = await asyncio.to_thread(_parse_registration, name, spec)
        if topology.num_nodes * (topology.num_nodes - 1) * parsed_spec.max_num_paths > _MAX_SPLITS:
            raise invalid_request(
                "topology: too many splits (pairs of nodes times num_paths), at most "
                f"{_MAX_SPLITS:,} are allowed; use a smaller num_paths"
            )
        search_s = await self._estimate_search_s(topology, parsed_spec, patience_s)
        names = self._store.names()
        if name not in names and len(names) >= self._max_networks:
            raise ServiceError(
                409,
                "too_many_networks",
                f"{self._max_networks} networks are registered: delete one first",
            )
        # Store the registration; `get` starts to prepare the network. If nothing has changed, retry
        # to prepare a failed network.
        is_new = bool(await asyncio.to_thread(self._store.put, name, spec))
        stored_network = await asyncio.to_thread(self._store.read, name)
        entry = self.get(name, stored_network, parsed_spec)
        entry.estimated_s = search_s
        if entry.error and (entry.preparing is None or entry.preparing.done()):
            entry.error = ""
            entry.preparing = asyncio.create_task(self._prepare(name, entry))
        return is_new

    async def _estimate_search_s(
        self, topology: Topology, spec: NetworkSpec, patience_s: float
    ) -> float | None:
        """Estimate the seconds of the path search; None for a small network.

        Args:
            topology: topology of the network.
            spec: settings of the registration.
            patience_s: maximum wait for the compiled kernels, seconds.

        Raises:
            ServiceError: the estimate exceeds the limit.
        """
        # Small networks need no estimate; else time a sample of the search, one network at a time.
        if not _may_take_long(topology.num_nodes, spec):
            return None
        await self._kernels.wait(patience_s)
        async with self._estimate_lock:
            search_s = await asyncio.to_thread(
                estimated_seconds,
                topology,
                num_paths=spec.initial_num_paths,
                method=spec.path_method,
                weight=spec.path_weight,
            )
        if search_s > self._max_search_s:
            raise invalid_request(
                f"topology: the path search would take about {search_s:,.0f} s, at most "
                f"{self._max_search_s:,.0f} are allowed; "
                "use a smaller num_paths, or edge-disjoint paths"
            )
        return math.ceil(search_s)

    async def delete(self, name: str) -> None:
        """Delete a network, and those of its cached path sets that no other network uses.

        Raises:
            ServiceError: unknown network.
        """
        # Remove the entry before its cached path sets: those of an entry count as used.
        entry = self._entries.get(name)
        await asyncio.to_thread(self._store.delete, name)
        self._remove_entry(name)
        if entry is not None and entry.network_state is not None:
            self._delete_unused_path_sets(name, entry.network_state.stored_paths)

    async def change_links(self, name: str, changes: dict[str, Any]) -> None:
        """Change link capacities, or take links down or up.

        The changes take effect at once, even if storing them fails.

        Args:
            name: name of the network.
            changes: body of the request, fields of ``LinkChanges``.

        Raises:
            ServiceError: unknown network or link.
        """
        entry = self.get(name)
        # Resolve the changes to link indices and apply them, in the order of their arrival.
        async with entry.change_lock:
            if entry.network_state is None:
                topology = await asyncio.to_thread(load_network_topology, name, entry.spec)
            else:
                topology = entry.network_state.topology
            size = max(topology.num_links, _VALUES_PER_CHANGE * len(changes["links"]))
            link_changes = await offload_if_large(size, _resolve_link_changes, topology, changes)
            if entry.is_gone.is_set():
                raise replaced(name)
            entry.unsaved_links = _merge_link_changes(entry.unsaved_links, link_changes)
            entry.apply_capacity(entry.network_state)
        # Store the changes even if the client disconnects.
        await asyncio.shield(self._store_link_changes(name, entry))

    async def _store_link_changes(self, name: str, entry: RegistryEntry) -> None:
        """Store the unsaved link changes, which are in effect already.

        If a full disk or a lock prevents that, they stay unsaved, the entry gets a warning, and
        `sync_with_store` retries later.

        Args:
            name: name of the network.
            entry: registry entry with the unsaved changes.

        Raises:
            ServiceError: the network was deleted or replaced.
        """
        num_attempts = entry.num_store_attempts
        async with entry.store_lock:
            # If another attempt began while this call waited for the lock, it has included these
            # changes.
            if entry.num_store_attempts > num_attempts or not entry.unsaved_links:
                return
            entry.num_store_attempts += 1
            tried_changes = entry.unsaved_links
            try:
                await asyncio.to_thread(
                    self._store.change_links, name, tried_changes, entry.spec.to_json()
                )
            except OSError as error:
                reason = error.strerror or str(error)
            except ServiceError as error:
                if error.code != LOCKED:
                    raise
                reason = error.message
            # Success: only changes that arrived during the attempt stay unsaved.
            else:
                entry.links = _merge_link_changes(entry.links, tried_changes)
                # Read the file again at the next lookup: it may have changes of other processes.
                entry.invalidate_links()
                current = entry.unsaved_links.items()
                entry.unsaved_links = {
                    link: change for link, change in current if tried_changes.get(link) != change
                }
                entry.warning = ""
                return
            entry.warning = f"link changes are in effect but not stored: {reason}"
            LOG.warning(
                "link changes not stored", extra={"teal": {"network": name, "error": reason[:200]}}
            )

    async def _retry_store(self, name: str, entry: RegistryEntry) -> None:
        """Retry to store unsaved link changes; a permanent failure becomes the entry's warning."""
        try:
            await self._store_link_changes(name, entry)
        except ServiceError as error:
            if not entry.is_gone.is_set():
                entry.warning = f"link changes are in effect but not stored: {error}"
        finally:
            del self._save_tasks[name]

    def ready_states(self) -> dict[str, NetworkState]:
        """Return the states of all networks that are ready, by their names."""
        return {
            name: entry.network_state
            for name, entry in self._entries.items()
            if entry.network_state is not None
        }

    def are_all_computing(self) -> bool:
        """Return whether there are networks that have not failed, and none of them is ready."""
        usable = [entry for entry in self._entries.values() if not entry.error]
        return bool(usable) and all(entry.network_state is None for entry in usable)

    def warnings(self) -> dict[str, str]:
        """Return the warnings of networks, by name; networks without a warning are omitted."""
        return {name: entry.warning for name, entry in self._entries.items() if entry.warning}

    async def info(self, name: str) -> dict[str, Any]:
        """Return the description of a network for the API, fields of ``responses.NetworkInfo``.

        Raises:
            ServiceError: unknown network.
        """
        entry = self.get(name)
        num_links = 0 if entry.network_state is None else entry.network_state.topology.num_links
        return dict(await offload_if_large(num_links, _describe_entry, name, entry))

    def get_recent(self, name: str, arrival_time: float) -> RegistryEntry:
        """Return the entry of a network; check its files at most once per request.

        A check counts if it was made after the request arrived and at most ``_MAX_AGE_S`` ago.

        Args:
            name: name of the network.
            arrival_time: ``time.perf_counter()`` at the request's arrival.

        Raises:
            ServiceError: unknown network.
        """
        entry = self._entries.get(name)
        if entry is not None and entry.checked_at >= max(
            arrival_time, time.perf_counter() - _MAX_AGE_S
        ):
            return entry
        return self.get(name)

    def ready_state(self, name: str) -> NetworkState:
        """Return the state of a ready network.

        Raises:
            ServiceError: unknown network, or not ready.
        """
        return require_ready(name, self.get(name))

    def get(
        self,
        name: str,
        stored_network: StoredNetwork | None = None,
        parsed_spec: NetworkSpec | None = None,
    ) -> RegistryEntry:
        """Return the entry of a network, updated to its files, which other processes may change.

        A new registration gets a new entry and is prepared in the background; changed links take
        effect at once; added paths are loaded in the background.

        Args:
            name: name of the network.
            stored_network: registration just written; None to read it.
            parsed_spec: parsed settings of ``stored_network``; None to parse them.

        Raises:
            ServiceError: unknown network.
        """
        # Compare the fingerprints of the files: an unchanged entry is returned.
        checked_at = time.perf_counter()
        try:
            version = self._store.version(name)
        except ServiceError as error:
            if error.status == _NOT_FOUND:
                self._remove_entry(name)
            raise
        entry = self._entries.get(name)
        if entry is not None and entry.version == version:
            entry.checked_at = checked_at
            return entry
        # Read the link changes, and the registration if it has changed.
        if (
            stored_network is None
            and entry is not None
            and entry.version.network == version.network
        ):
            link_changes, paths_version = self._store.read_links(name, entry.generation)
            stored_settings = None
            generation = entry.generation
        else:
            stored_settings, link_changes, generation, paths_version = (
                stored_network or self._store.read(name)
            )
        # Replace the entry of a changed registration, and start to prepare the network.
        if entry is None or entry.version.network != version.network:
            if entry is not None and entry.network_state is not None:
                self._retired_path_set_keys |= entry.network_state.stored_paths
            self._remove_entry(name)
            parsed_spec = _parse_settings(name, stored_settings, parsed_spec)
            entry = self._entries[name] = RegistryEntry(
                version, parsed_spec, generation, paths_version=paths_version
            )
            entry.preparing = asyncio.create_task(self._prepare(name, entry))
        # Apply the link changes, and load added paths in the background.
        entry.links = link_changes
        entry.paths_version = paths_version
        entry.apply_capacity(entry.network_state)
        entry.version = version
        entry.checked_at = checked_at
        self._start_path_reload(name, entry)
        return entry

    def _start_path_reload(self, name: str, entry: RegistryEntry) -> None:
        """Start to load added paths unless the network has them or a task loads them already."""
        is_behind = (
            entry.network_state is not None
            and entry.network_state.paths_version < entry.paths_version
        )
        if is_behind and (entry.path_reload is None or entry.path_reload.done()):
            entry.path_reload = asyncio.create_task(self._reload_paths(name, entry))

    async def _reload_paths(self, name: str, entry: RegistryEntry) -> None:
        """Load added paths until the network has all of them.

        Meanwhile, requests use the current paths. Failures are retried with backoff, except a
        damaged file.
        """
        assert entry.network_state is not None
        loop = asyncio.get_running_loop()
        pauses_s = backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S)
        # Extend the current state; a new round starts if paths were added meanwhile.
        while (
            entry.network_state.paths_version < entry.paths_version and not entry.is_gone.is_set()
        ):
            extend = entry.network_state.with_more_paths
            added_paths = self._added_paths(name, entry)
            try:
                extended = await loop.run_in_executor(
                    self._short_search_thread, extend, added_paths, entry.spec
                )
            except InputError as error:
                warn(name, "added paths not readable", error)
                return
            except Exception as error:
                warn(name, "added paths not loaded", error)
            else:
                entry.network_state = extended
                continue
            # Wait outside of the handler: the exception keeps the objects of the attempt alive.
            await asyncio.sleep(next(pauses_s))

    def _added_paths(self, name: str, entry: RegistryEntry) -> AddedPaths:
        """Return version and file of a network's stored path set, which includes added paths."""
        return AddedPaths(entry.paths_version, self._store.paths_file(name, entry.generation))

    async def _prepare(self, name: str, entry: RegistryEntry) -> None:
        """Wait for the kernels, then prepare a network; retry transient failures with backoff."""
        await self._kernels.wait_until_ready()
        for pause_s in backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S):
            if await self._try_prepare(name, entry):
                return
            await asyncio.sleep(pause_s)

    async def _try_prepare(self, name: str, entry: RegistryEntry) -> bool:
        """Try to prepare a network.

        Returns:
            whether no retry is needed: the network is ready, removed, or failed permanently.
        """
        try:
            network_state = await self._prepare_state(name, entry)
        except _NetworkRemoved:
            return True
        except Exception as error:
            warn(name, "network not prepared", error)
            # Retry a transient failure, unless the network was removed; any other failure is final.
            if is_transient(error):
                entry.warning = f"the paths cannot be computed now, and are retried: {error}"
                return entry.is_gone.is_set()
            entry.error = str(error) or type(error).__name__
            return True
        self._install(name, entry, network_state)
        return True

    async def _prepare_state(self, name: str, entry: RegistryEntry) -> NetworkState:
        """Compute the state of a network in a background thread; apply the current capacities.

        Args:
            name: name of the network.
            entry: registry entry with settings and link changes.

        Raises:
            _NetworkRemoved: the network was removed during the path search.
        """

        def report(progress: float) -> None:
            """Record the progress of the path search; end the search of a removed network."""
            entry.path_progress = progress
            if entry.is_gone.is_set():
                raise _NetworkRemoved

        # Choose the thread by the expected length of the search.
        topology = await asyncio.to_thread(load_network_topology, name, entry.spec)
        executor = (
            self._long_search_thread
            if _may_take_long(topology.num_nodes, entry.spec)
            else self._short_search_thread
        )
        # Stored paths replace the search if paths were added since the registration.
        added_paths = self._added_paths(name, entry) if entry.paths_version else None
        network_state = await asyncio.get_running_loop().run_in_executor(
            executor, NetworkState.prepare, name, entry.spec, report, added_paths
        )
        entry.apply_capacity(network_state)
        return network_state

    def _install(self, name: str, entry: RegistryEntry, network_state: NetworkState) -> None:
        """Serve requests from a prepared state; delete cached path sets that became unused.

        Args:
            name: name of the network.
            entry: registry entry, which gets the state unless the network was removed meanwhile.
            network_state: prepared state.
        """
        if entry.is_gone.is_set():
            self._delete_unused_path_sets(name, network_state.stored_paths)
            return
        entry.network_state = network_state
        if not entry.unsaved_links:
            entry.warning = ""
        # Read the links file again: paths may have been added during the preparation.
        entry.invalidate_links()
        # Delete path sets of replaced registrations only now: this one may use the same sets.
        retired = self._retired_path_set_keys
        self._retired_path_set_keys = set()
        self._delete_unused_path_sets(name, retired)

    def _remove_entry(self, name: str) -> None:
        """Remove an entry, end its path search and fail its queued requests."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            entry.is_gone.set()
            self._on_removal(entry)

    def _delete_unused_path_sets(self, name: str, keys: Set[str]) -> None:
        """Delete cached path sets that no ready network uses.

        Args:
            name: name of the network that used them, for the log.
            keys: content hashes of the path sets.
        """
        used_key_sets = [
            network_state.stored_paths for network_state in self.ready_states().values()
        ]
        try:
            for key in keys - set().union(*used_key_sets):
                forget(key)
        except OSError as error:
            warn(name, "paths not deleted", error)


def require_ready(name: str, entry: RegistryEntry) -> NetworkState:
    """Return the state of a network that is ready.

    Raises:
        ServiceError: the network is not ready yet, or failed.
    """
    if entry.error:
        raise ServiceError(409, "failed", f"{name!r} cannot be used: {entry.error}")
    if entry.network_state is None:
        raise not_ready(name)
    return entry.network_state


def _merge_link_changes(
    earlier_changes: dict[str, Any], later_changes: dict[str, Any]
) -> dict[str, Any]:
    """Return link changes updated by later ones, field by field, in the same form.

    Args:
        earlier_changes: link index -> {"capacity": Gbit/s, "up": bool}; either key may be missing.
        later_changes: later changes in the same form.
    """
    return {
        **earlier_changes,
        **{
            link: {**earlier_changes.get(link, {}), **change}
            for link, change in later_changes.items()
        },
    }


def _describe_entry(name: str, entry: RegistryEntry) -> dict[str, Any]:
    """Return the description of a network for the API, fields of ``responses.NetworkInfo``."""
    # Settings and problems; then the progress of the path search, or the ready network.
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


def _parse_registration(name: str, spec: dict[str, Any]) -> tuple[NetworkSpec, Topology]:
    """Parse and validate a registration; return its settings and its topology.

    Raises:
        ServiceError: invalid settings or topology.
    """
    parsed_spec = NetworkSpec.model_validate(spec)
    topology = load_network_topology(name, parsed_spec)
    link_groups(topology, parsed_spec)
    return parsed_spec, topology


def _resolve_link_changes(topology: Topology, changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Resolve changes between pairs of nodes to changes of links.

    Args:
        topology: topology of the network.
        changes: body of the request, fields of ``LinkChanges``.

    Returns:
        link index -> {"capacity": Gbit/s or None for the registered one, "up": bool}; either key
        may be missing. Later changes of a link override earlier ones.

    Raises:
        ServiceError: no link between two nodes.
    """
    # Indices of the links from each source to each target node.
    node_index = topology.node_index()
    links_between: dict[tuple[int, int], list[int]] = {}
    for link, pair in enumerate(
        zip(topology.link_source.tolist(), topology.link_target.tolist(), strict=True)
    ):
        links_between.setdefault(pair, []).append(link)
    # Apply each change to all links between its nodes, in one or both directions.
    changes_by_link: dict[str, dict[str, Any]] = {}
    for change in LinkChanges.model_validate(changes).links:
        # Pairs of node indices; -1 stands for an unknown node, which no link has.
        node_pairs = {(node_index.get(change.source, -1), node_index.get(change.target, -1))}
        if change.both:
            node_pairs |= {(target, source) for source, target in node_pairs}
        links = [link for pair in node_pairs for link in links_between.get(pair, ())]
        # No link joins the two nodes, or a node is unknown.
        if not links:
            raise invalid_request(
                f"links: unknown link {change.source[:80]!r} - {change.target[:80]!r}; name two "
                "linked nodes"
            )
        # Merge with earlier changes of the same link; a restored link gets both fields.
        for link in links:
            link_change = change.model_dump(include={"capacity", "up"}, exclude_none=True)
            if change.restore:
                link_change = {"capacity": None, "up": True}
            changes_by_link[str(link)] = {**changes_by_link.get(str(link), {}), **link_change}
    return changes_by_link


def _parse_settings(
    name: str, stored_settings: dict[str, Any] | None, parsed_spec: NetworkSpec | None
) -> NetworkSpec:
    """Parse the stored settings of a registration.

    Args:
        name: name of the network.
        stored_settings: settings as stored.
        parsed_spec: settings parsed before, which are returned if they equal
            ``stored_settings``; None to parse.

    Raises:
        ServiceError: damaged settings.
    """
    try:
        return (
            parsed_spec
            if parsed_spec is not None and parsed_spec.to_json() == stored_settings
            else NetworkSpec.model_validate(stored_settings)
        )
    except ValidationError as error:
        raise unreadable(name, error) from None


def _may_take_long(num_nodes: int, spec: NetworkSpec) -> bool:
    """Return whether a path search may take so long that its time is estimated first.

    Compares the number of paths, weighted by the slowness of the method, with a limit.
    """
    factor = 1 if spec.path_method is PathMethod.DISJOINT else _SLOW_FACTOR
    return (
        num_nodes * max(0, num_nodes - 1) * spec.initial_num_paths * factor >= _LONG_SEARCH_SPLITS
    )


def _describe_state(network_state: NetworkState) -> dict[str, Any]:
    """Return nodes, links, and the numbers of demands and paths of a ready network, for the API.

    The fields are those of ``responses.NetworkInfo`` that are set once the network is ready.
    """
    # Links with registered and current capacities, Gbit/s.
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
    # Nodes with longitude and latitude, None where unknown.
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
