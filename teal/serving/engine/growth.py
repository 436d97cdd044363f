"""Candidate paths that follow traffic and failures: in the background, a network gets the paths
that it misses.

These are the paths that its last matrix misses and, as soon as links go down, a path for each
demand that the network still connects and no path does.

Paths are added at the end of a demand's columns, and none is taken away or moved.  So column k of
the splits of an earlier answer is the same path as before, and hedges, states to start from and
answers in force go on with zeros in the new columns.  The set is a file of the store, from which
every process takes it, also after a restart.
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
from teal.serving.engine.log import warn
from teal.serving.engine.pauses import pauses
from teal.serving.engine.registry import Hosted
from teal.serving.engine.served import Served
from teal.serving.engine.store import Store
from teal.solvers.candidates import more_paths

# seconds from one look at the paths of a network to the next: an interval of a controller
GROW_EVERY_S = 300.0
_LARGEST_GAP = 0.01  # certified gap to the optimum over all paths above which paths are added
# Pauses, in seconds, before missing paths are looked for again, where others were stored meanwhile
# or the search failed.
_AGAIN_S, _LONGEST_PAUSE_S = 1.0, 60.0
_LONGEST_S = 60.0  # seconds for the paths of one matrix, after which the best so far are taken


class Growth:
    """The growth of the path sets of all networks of one process.  Its methods are called on one
    event loop.

    Args:
        store: store of the networks.
        every_s: seconds from one look at the paths of a network to the next.
    """

    def __init__(self, store: Store, every_s: float = GROW_EVERY_S) -> None:
        self._store, self._every_s = store, every_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="path-growth")
        # Time of the last look at the paths of a network.
        self._looked = WeakKeyDictionary[Hosted, float]()
        # Capacities for which missing paths were looked for.
        self._connected = WeakKeyDictionary[Hosted, FloatArray]()
        self._tasks: set[asyncio.Task[None]] = set()

    def note(self, name: str, network: Hosted, rates: FloatArray) -> None:
        """Look at the paths of a network for the last of some matrices, and for failed links,
        unless done lately.

        Args:
            name: name of the network.
            network: network that is ready.
            rates: (B, C D) Gbit/s, class by class.
        """
        self.reconnect(name, network)
        now = time.monotonic()
        begun = self._looked.setdefault(network, now)
        if network.spec.num_paths != "auto" or now - begun < self._every_s or not rates[-1].any():
            return
        self._looked[network] = now
        self._begin(self._look(name, network, rates[-1].copy()))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def reconnect(self, name: str, network: Hosted) -> None:
        """Find a path for each demand that only failed links cut off, if links have changed since
        the last call.
        """
        served = network.served
        if served is None or self._connected.get(network) is served.capacity:
            return
        self._connected[network] = served.capacity
        if not (served.capacity > 0).all():
            self._begin(self._reconnect(name, network, served.capacity))

    async def _reconnect(self, name: str, network: Hosted, looked_at: FloatArray) -> None:
        """Add the paths that are missing; again and again until that succeeds, a link changes or
        the network is gone.

        Args:
            name: name of the network.
            network: network that is ready.
            looked_at: (E,) Gbit/s in force when the links changed.
        """
        for pause_s in pauses(_AGAIN_S, _LONGEST_PAUSE_S):
            if await self._add(name, network, reconnected):
                return
            await asyncio.sleep(pause_s)
            if network.is_gone.is_set() or self._connected.get(network) is not looked_at:
                return

    async def _look(self, name: str, network: Hosted, rates: FloatArray) -> None:
        await self._add(name, network, lambda served: grown(served, network, rates))
        self._looked[network] = time.monotonic()

    async def _add(
        self, name: str, network: Hosted, find: Callable[[Served], PathSet | None]
    ) -> bool:
        """Store the path set that ``find`` makes of a network, if any; False if that failed, or if
        others were added meanwhile, which the network takes first.
        """
        served = network.served
        if served is None or served.additions < network.additions:
            return False
        try:
            loop = asyncio.get_running_loop()
            paths = await loop.run_in_executor(self._thread, find, served)
            if paths is not None and not network.is_gone.is_set():
                return await asyncio.to_thread(
                    self._store.write_paths, name, network.generation, paths, served.additions
                )
        except Exception as error:
            warn(name, "paths not added", error)
            return False
        return True


def reconnected(served: Served) -> PathSet | None:
    """The paths of a network with one for each demand that it still connects; None if none is
    missing.
    """
    down = np.flatnonzero(served.capacity == 0).tolist()
    paths = with_surviving_paths(served.paths, served.topology, [down])
    return None if paths is served.paths else paths


def grown(served: Served, network: Hosted, rates: FloatArray) -> PathSet | None:
    """The paths of a network and those that a matrix misses; None if it misses none.

    Args:
        served: the network, with the capacities in force.
        network: what it was registered with.
        rates: (C D,) Gbit/s, class by class.
    """
    program = Objective(network.spec.objective).for_paths
    demand = rates.reshape(-1, served.paths.num_demands).sum(0).astype(np.float64)
    problem = Problem.create(
        served.topology,
        served.paths,
        program,
        demand,
        capacity=served.capacity,
        weight=served.worth.weight,
    )
    paths = more_paths(
        problem, gap=_LARGEST_GAP, max_paths=network.spec.max_paths, deadline=_LONGEST_S
    )
    return None if paths is served.paths else paths
