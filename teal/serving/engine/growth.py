"""Candidate paths that follow the traffic: in the background, a network gets the paths that its last matrix misses.

Paths are added at the end of a demand's columns, and none is taken away or moved.  So column k of the splits of an
earlier answer is the same path as before, and hedges, states to start from and answers in force go on with zeros in the
new columns.  The set is a file of the store, from which every process takes it, also after a restart.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from teal.network import PathSet
from teal.objectives import Objective
from teal.problem import Problem
from teal.runtime.arrays import FloatArray
from teal.serving.engine.errors import ServiceError
from teal.serving.engine.log import LOG
from teal.serving.engine.registry import Hosted
from teal.serving.engine.served import Served
from teal.serving.engine.store import Store
from teal.solvers.candidates import more_paths

GROW_EVERY_S = 300.0  # seconds from one look at the paths of a network to the next: an interval of a controller
_LARGEST_GAP = 0.01  # certified gap to the optimum over all paths above which paths are added
_LONGEST_S = 60.0  # seconds for the paths of one matrix, after which the best so far are taken


class Growth:
    """Of all networks of one process.  Its methods are called on one event loop.

    Args:
        store: of the networks.
        every_s: seconds from one look at the paths of a network to the next.
    """

    def __init__(self, store: Store, every_s: float = GROW_EVERY_S) -> None:
        self._store, self._every_s = store, every_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="path-growth")
        self._looked: dict[str, float] = {}  # when, by the generation of the network
        self._tasks: set[asyncio.Task[None]] = set()

    def note(self, name: str, network: Hosted, rates: FloatArray) -> None:
        """Look at the paths of a network, unless that was done lately, for the last of some matrices.

        Args:
            name: of the network.
            network: that is ready.
            rates: (B, C D) Gbit/s, class by class.
        """
        now = time.monotonic()
        begun = self._looked.setdefault(network.generation, now)
        if network.spec.num_paths != "auto" or now - begun < self._every_s or not rates[-1].any():
            return
        self._looked[network.generation] = now
        task = asyncio.get_running_loop().create_task(self._look(name, network, rates[-1].copy()))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look(self, name: str, network: Hosted, rates: FloatArray) -> None:
        served, loop = network.served, asyncio.get_running_loop()
        if served is None:
            return
        try:
            paths = await loop.run_in_executor(self._thread, grown, served, network, rates)
            if paths is not None and not network.is_gone.is_set():
                await asyncio.to_thread(self._store.write_paths, name, network.generation, paths)
        except (ServiceError, OSError) as error:
            LOG.warning("paths not added", extra={"teal": {"network": name, "error": str(error)[:200]}})
        self._looked[network.generation] = time.monotonic()


def grown(served: Served, network: Hosted, rates: FloatArray) -> PathSet | None:
    """The paths of a network and those that a matrix misses; None if it misses none.

    Args:
        served: the network, with the capacities in force.
        network: what it was registered with.
        rates: (C D,) Gbit/s, class by class.
    """
    program = Objective(network.spec.objective).for_paths
    demand = rates.reshape(-1, served.paths.num_demands).sum(0).astype(np.float64)
    problem = Problem.create(served.topology, served.paths, program, demand, capacity=served.capacity)
    paths = more_paths(problem, gap=_LARGEST_GAP, max_paths=network.spec.max_paths, deadline=_LONGEST_S)
    return None if paths is served.paths else paths
