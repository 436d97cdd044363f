"""Background path generation: adds candidate paths for new traffic and after link failures.

With `num_paths` auto, column generation adds paths with which the newest matrix has a better
optimum; after link failures, a shortest path is added for each demand that is still connected but
has no live path. Entry point: :class:`PathGrowth`.

Paths are appended behind those of a demand and never removed or reordered: column k of earlier
splits keeps its meaning, and earlier splits (of warm starts, installed answers and allocations for
the next interval) are padded with zeros. The path set is a file of the store, which every process
loads, also after a restart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from teal.network import PathSet
from teal.network.reachability import with_surviving_paths
from teal.objectives import Objective
from teal.problem import Problem
from teal.runtime.arrays import FloatArray
from teal.solvers.candidates import more_paths
from teal_serve.engine.backoff import backoff
from teal_serve.engine.log import warn
from teal_serve.engine.network_state import NetworkState
from teal_serve.engine.registry import RegistryEntry
from teal_serve.engine.store import Store

# Minimum interval between path searches of a network, seconds: the interval of a controller.
GROW_EVERY_S = 300.0
# Paths are added if the certified gap to the optimum over all paths exceeds this value.
_MAX_PATH_GAP = 0.01
# Backoff, seconds, after a failed search, or after a search that other added paths have outdated.
_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 60.0
# Time limit of a search for one matrix, seconds; afterwards the best paths so far are added.
_MAX_SEARCH_S = 60.0


class PathGrowth:
    """Background path generation of all networks of one process. Call methods on one event loop.

    Args:
        store: store of the networks.
        interval_s: minimum interval between searches for one network, seconds.
    """

    def __init__(self, store: Store, interval_s: float = GROW_EVERY_S) -> None:
        self._store = store
        self._interval_s = interval_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="path-growth")
        # Time of the last search of each network, by time.monotonic().
        self._last_search = WeakKeyDictionary[RegistryEntry, float]()
        # (E,) capacities of each network at the last call of `reconnect`.
        self._last_capacity = WeakKeyDictionary[RegistryEntry, FloatArray]()
        self._tasks: set[asyncio.Task[None]] = set()

    def record_traffic(self, name: str, entry: RegistryEntry, rates: FloatArray) -> None:
        """Start a search for better paths for the newest matrix, unless one ran recently.

        Nothing is searched for networks with a fixed number of paths.

        Args:
            name: name of the network.
            entry: registry entry of a ready network.
            rates: (B, C * D) Gbit/s for C classes and D pairs of nodes, class by class; the last
                matrix is used.
        """
        self.reconnect(name, entry)
        now = time.monotonic()
        # The first matrix of a network starts the interval before its first search.
        last_search = self._last_search.setdefault(entry, now)
        if (
            entry.spec.num_paths != "auto"
            or now - last_search < self._interval_s
            or not rates[-1].any()
        ):
            return
        self._last_search[entry] = now
        self._start_task(self._add_generated_paths(name, entry, rates[-1].copy()))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in a background task, and keep a reference to the task until it ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def reconnect(self, name: str, entry: RegistryEntry) -> None:
        """Start a search for paths of disconnected demands, if a link has failed.

        Does nothing if the capacities have not changed since the last call.

        Args:
            name: name of the network.
            entry: registry entry of the network.
        """
        # A change of capacities replaces the array, so that its identity tells whether it changed.
        network_state = entry.network_state
        if network_state is None or self._last_capacity.get(entry) is network_state.capacity:
            return
        self._last_capacity[entry] = network_state.capacity
        if not (network_state.capacity > 0).all():
            self._start_task(self._add_connecting_paths(name, entry, network_state.capacity))

    async def _add_connecting_paths(
        self, name: str, entry: RegistryEntry, capacity: FloatArray
    ) -> None:
        """Add paths for disconnected demands; retry failures with backoff.

        Retries end when the links change again or the network is removed.

        Args:
            name: name of the network.
            entry: registry entry of a ready network.
            capacity: (E,) Gbit/s after the link change.
        """
        for pause_s in backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S):
            if await self._extend_paths(name, entry, with_connecting_paths):
                return
            await asyncio.sleep(pause_s)
            # A newer link change has replaced the array of capacities, and has its own retries.
            if entry.is_gone.is_set() or self._last_capacity.get(entry) is not capacity:
                return

    async def _add_generated_paths(
        self, name: str, entry: RegistryEntry, rates: FloatArray
    ) -> None:
        """Add paths for one matrix by column generation, and record the end of the search.

        Args:
            name: name of the network.
            entry: registry entry of a ready network.
            rates: (C * D,) Gbit/s for C classes and D pairs of nodes, class by class.
        """
        await self._extend_paths(
            name, entry, lambda network_state: with_missing_paths(network_state, entry, rates)
        )
        self._last_search[entry] = time.monotonic()

    async def _extend_paths(
        self, name: str, entry: RegistryEntry, search: Callable[[NetworkState], PathSet | None]
    ) -> bool:
        """Run a path search in the background thread, and store the path set that it returns.

        Args:
            name: name of the network.
            entry: registry entry of the network.
            search: function from the current state to the extended path set; None if no path is
                missing.

        Returns:
            whether no retry is needed. False if the search or the storing failed, or if added
            paths of other processes must be loaded first.
        """
        # Do not search yet if paths that other processes have added must be loaded first.
        network_state = entry.network_state
        if network_state is None or network_state.paths_version < entry.paths_version:
            return False
        # Search in the background thread; store the paths unless the network was removed meanwhile.
        try:
            loop = asyncio.get_running_loop()
            paths = await loop.run_in_executor(self._thread, search, network_state)
            if paths is not None and not entry.is_gone.is_set():
                return await asyncio.to_thread(
                    self._store.write_paths,
                    name,
                    entry.generation,
                    paths,
                    network_state.paths_version,
                )
        except Exception as error:
            warn(name, "paths not added", error)
            return False
        return True


def with_connecting_paths(network_state: NetworkState) -> PathSet | None:
    """Return the path set with a live path added for each disconnected demand.

    Args:
        network_state: state of the network with its current capacities.

    Returns:
        path set; None if nothing was added, since each demand has a live path or none exists.
    """
    failed_links = np.flatnonzero(network_state.capacity == 0).tolist()
    paths = with_surviving_paths(network_state.paths, network_state.topology, [failed_links])
    return None if paths is network_state.paths else paths


def with_missing_paths(
    network_state: NetworkState, entry: RegistryEntry, rates: FloatArray
) -> PathSet | None:
    """Return the path set extended by column generation for one matrix.

    Args:
        network_state: state of the network with its current capacities.
        entry: registry entry with the settings.
        rates: (C * D,) Gbit/s for C classes and D pairs of nodes, class by class.

    Returns:
        path set; None if the candidate paths are good enough.
    """
    # Objective of the path search, and demand of each pair: the sum of its classes.
    objective = Objective(entry.spec.objective).for_paths
    demand = rates.reshape(-1, network_state.paths.num_demands).sum(0).astype(np.float64)
    problem = Problem.create(
        network_state.topology,
        network_state.paths,
        objective,
        demand,
        capacity=network_state.capacity,
        weight=network_state.demand_values.weight,
    )
    paths = more_paths(
        problem, gap=_MAX_PATH_GAP, max_paths=entry.spec.max_paths, deadline=_MAX_SEARCH_S
    )
    return None if paths is network_state.paths else paths
