"""Background path generation: adds candidate paths that traffic or failed links require.

Column generation finds the paths that the newest matrix of a network misses (`num_paths` auto);
after link failures, a shortest path is added for each demand that is still connected but has no
live path. Entry point: :class:`PathGrowth`.

Paths are appended behind those of a demand and never removed or reordered: column k of earlier
splits keeps its meaning, and hedges, warm starts and installed splits are padded with zeros. The
path set is a file of the store, which every process loads, also after a restart.
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
from teal.serving.engine.backoff import backoff
from teal.serving.engine.log import warn
from teal.serving.engine.network_state import NetworkState
from teal.serving.engine.registry import RegistryEntry
from teal.serving.engine.store import Store
from teal.solvers.candidates import more_paths

# Interval between path searches of a network, seconds: an interval of a controller.
GROW_EVERY_S = 300.0
# Paths are added if the certified gap to the optimum over all paths exceeds this.
_MAX_PATH_GAP = 0.01
# Backoff, seconds, after a failed search, or one that other added paths have outdated.
_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 60.0
# Time limit of a search for one matrix; afterwards the best paths so far are added.
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
        # Time of the last search, by time.monotonic().
        self._last_search = WeakKeyDictionary[RegistryEntry, float]()
        # Capacities at the last call of `reconnect`.
        self._reconnected_capacity = WeakKeyDictionary[RegistryEntry, FloatArray]()
        self._tasks: set[asyncio.Task[None]] = set()

    def record_traffic(self, name: str, entry: RegistryEntry, rates: FloatArray) -> None:
        """Start a search for missing paths with the newest matrix, unless one ran recently.

        Args:
            name: name of the network.
            entry: registry entry of a ready network.
            rates: (B, C D) Gbit/s, class by class.
        """
        self.reconnect(name, entry)
        now = time.monotonic()
        last_search = self._last_search.setdefault(entry, now)
        if (
            entry.spec.num_paths != "auto"
            or now - last_search < self._interval_s
            or not rates[-1].any()
        ):
            return
        self._last_search[entry] = now
        self._start_task(self._add_missing(name, entry, rates[-1].copy()))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in a background task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def reconnect(self, name: str, entry: RegistryEntry) -> None:
        """Find paths for demands disconnected by failed links, if capacities have changed since the
        last call.
        """
        network_state = entry.network_state
        if network_state is None or self._reconnected_capacity.get(entry) is network_state.capacity:
            return
        self._reconnected_capacity[entry] = network_state.capacity
        if not (network_state.capacity > 0).all():
            self._start_task(self._add_connecting(name, entry, network_state.capacity))

    async def _add_connecting(self, name: str, entry: RegistryEntry, capacity: FloatArray) -> None:
        """Add paths for disconnected demands; retry with backoff until success, a link change or
        removal.

        Args:
            name: name of the network.
            entry: registry entry of a ready network.
            capacity: (E,) Gbit/s after the link change.
        """
        for pause_s in backoff(_FIRST_PAUSE_S, _MAX_PAUSE_S):
            if await self._extend_paths(name, entry, with_connecting_paths):
                return
            await asyncio.sleep(pause_s)
            if entry.is_gone.is_set() or self._reconnected_capacity.get(entry) is not capacity:
                return

    async def _add_missing(self, name: str, entry: RegistryEntry, rates: FloatArray) -> None:
        """Add the paths that a matrix misses."""
        await self._extend_paths(
            name, entry, lambda network_state: with_missing_paths(network_state, entry, rates)
        )
        self._last_search[entry] = time.monotonic()

    async def _extend_paths(
        self, name: str, entry: RegistryEntry, search: Callable[[NetworkState], PathSet | None]
    ) -> bool:
        """Store the path set that ``search`` returns, if any.

        Returns:
            False if that failed, or if stored paths must be loaded first.
        """
        network_state = entry.network_state
        if network_state is None or network_state.paths_version < entry.paths_version:
            return False
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
    """Path set with a path for each demand that is still connected but has no live path; None if
    there is none.
    """
    down = np.flatnonzero(network_state.capacity == 0).tolist()
    paths = with_surviving_paths(network_state.paths, network_state.topology, [down])
    return None if paths is network_state.paths else paths


def with_missing_paths(
    network_state: NetworkState, entry: RegistryEntry, rates: FloatArray
) -> PathSet | None:
    """Path set extended by column generation for one matrix; None if no path is missing.

    Args:
        network_state: network with its current capacities.
        entry: registry entry with the settings.
        rates: (C D,) Gbit/s, class by class.
    """
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
