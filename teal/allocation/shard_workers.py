"""Shards of the paths in Ray actors, one or several each.

A round of the search sends numbers of links to every actor and gathers its sums.  All calls since
the start are remembered: when an actor has died, another one takes its shards, repeats the calls,
and is then where the first one was, since every call has one result.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from teal.cluster.cluster import cause, connected, require_units, units
from teal.network.path_set import PathSet
from teal.network.shards import PathSearch
from teal.network.topology import Topology
from teal.runtime.arrays import Int64Array
from teal.runtime.memory import available
from teal.runtime.parallel import limit_threads
from teal.runtime.storage import ScratchFolder
from teal.solvers.pdhg.shards.shards import ShardBackend, ShardDemands, ShardWorker

# Maximum replacements of each actor.
_MAX_REPLACEMENTS = 3
# Share of a machine's free memory for the state of all actors; beyond it, shards are mapped.
_MEMORY_SHARE = 0.5


class _Actor:
    """One process with some shards."""

    def __init__(
        self,
        topology: Topology,
        search: PathSearch,
        shards: list[ShardDemands],
        carries_all: bool,
        folder: str,
        threads: int,
        workers: int,
    ) -> None:
        # Relative paths refer to the folder of the command.
        os.chdir(folder)
        limit_threads(threads)
        self._state = ScratchFolder("shards")
        memory = int(_MEMORY_SHARE * available() / workers)
        shards = [
            ShardDemands(*(_writable(array) for array in vars(shard).values())) for shard in shards
        ]
        self._worker = ShardWorker(topology, search, shards, carries_all, self._state.path, memory)

    def total(
        self,
        name: str,
        shared: tuple[Any, ...],
        each: list[tuple[Any, ...]],
        options: dict[str, Any],
    ) -> Any:
        """Sums over a shard, as in :meth:`ShardWorker.total`."""
        writable = [tuple(map(_writable, arguments)) for arguments in each]
        return self._worker.total(name, tuple(map(_writable, shared)), writable, options)

    def subsets(self, demands: list[Int64Array]) -> list[PathSet]:
        """Subsets of all shards, as in :meth:`ShardBackend.subsets`."""
        return [
            self._worker.subset(index, _writable(numbers)) for index, numbers in enumerate(demands)
        ]

    def apply(
        self, count: int, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> list[Any]:
        """Change all shards, as in :meth:`ShardBackend.apply`."""
        return [
            self._worker.apply(i, function, tuple(map(_writable, arguments))) for i in range(count)
        ]

    def close(self) -> None:
        """Delete the state on disk."""
        self._state.close()


def _writable(value: Any) -> Any:
    """A copy of an array that Ray has handed over, because kernels are compiled for arrays that can
    be written to.
    """
    return np.array(value) if isinstance(value, np.ndarray) else value


class RayActors:
    """Shards in Ray actors: a :class:`teal.solvers.pdhg.shards.shards.Backend`.

    Args:
        ray: the module, connected.
        workers: number of actors, at most one for each shard.
        topology, search, shards, carries_all: as in :class:`ShardWorker`.
        notify: called when an actor has been replaced.
    """

    def __init__(
        self,
        ray: Any,
        workers: int,
        topology: Topology,
        search: PathSearch,
        shards: Sequence[ShardDemands],
        carries_all: bool,
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._ray = ray
        self._notify = notify
        self.num_shards = len(shards)
        self.sent_bytes = 0
        workers = min(workers, len(shards))
        cuts = np.linspace(0, len(shards), workers + 1).round().astype(int)
        self._shards_of = [slice(int(a), int(b)) for a, b in itertools.pairwise(cuts)]
        threads = max(1, units(ray, "CPU") // workers)
        # max_restarts is 0: a restarted actor would have forgotten the calls, which only this
        # process knows.
        remote = ray.remote(num_cpus=1, max_restarts=0)(_Actor)

        def start(worker: int) -> Any:
            of_worker = list(shards[self._shards_of[worker]])
            return remote.remote(
                topology, search, of_worker, carries_all, str(Path.cwd()), threads, workers
            )

        self._start = start
        # Calls that changed the state of each actor.
        self._calls: list[list[tuple[Any, ...]]] = [[] for _ in self._shards_of]
        self._replacements = [0] * workers
        self.actors = [start(worker) for worker in range(workers)]
        # A call that changes nothing: it ends when all actors have found their paths, and raises
        # what went wrong there.
        self._gather(
            [
                ("total", "clear", (), [()] * (of_worker.stop - of_worker.start), {})
                for of_worker in self._shards_of
            ],
            is_change=False,
        )

    def total(
        self, name: str, *shared: Any, each: Sequence[tuple[Any, ...]] | None = None, **options: Any
    ) -> Any:
        """Sums over all shards, as in :meth:`ShardBackend.total`."""
        arguments = list(each or [()] * self.num_shards)
        results = self._gather(
            [
                ("total", name, shared, arguments[of_worker], options)
                for of_worker in self._shards_of
            ],
            is_change=True,
        )
        if results[0] is None:
            return None
        return tuple(sum(parts[1:], parts[0]) for parts in zip(*results, strict=True))

    def subsets(self, demands: Sequence[Int64Array]) -> list[PathSet]:
        """Subsets of all shards, as in :meth:`ShardBackend.subsets`."""
        results = self._gather(
            [("subsets", list(demands[of_worker])) for of_worker in self._shards_of],
            is_change=False,
        )
        return [paths for part in results for paths in part]

    def apply(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Change all shards, as in :meth:`ShardBackend.apply`."""
        calls = [
            ("apply", of_worker.stop - of_worker.start, function, arguments)
            for of_worker in self._shards_of
        ]
        return [result for part in self._gather(calls, is_change=False) for result in part]

    def close(self) -> None:
        """End the actors."""
        # Actors that died have nothing to close.
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.get([actor.close.remote() for actor in self.actors])
        for actor in self.actors:
            self._ray.kill(actor)

    def _gather(self, calls: list[tuple[Any, ...]], *, is_change: bool) -> list[Any]:
        """Make one call to every actor at once; an actor that died is replaced first.

        Raises:
            SolverError: an actor died more than three times.
            InputError: raised by an actor.
        """
        pending = [self._send(worker, call) for worker, call in enumerate(calls)]
        results = []
        for worker, call in enumerate(calls):
            while True:
                try:
                    result = self._ray.get(pending[worker])
                    break
                except self._ray.exceptions.RayActorError as error:
                    self._replacements[worker] += 1
                    if self._replacements[worker] > _MAX_REPLACEMENTS:
                        raise cause(
                            error, f"a worker of the shards died {_MAX_REPLACEMENTS + 1} times"
                        ) from None
                    self._notify(
                        f"worker {worker} of the shards died; another one repeats its calls"
                    )
                    pending[worker] = self._replaced(worker, call)
                except self._ray.exceptions.RayError as error:
                    raise cause(error, "a worker of the shards failed") from None
            self.sent_bytes += _size(call) + _size(result)
            results.append(result)
            if is_change:
                # The engine writes into its arrays again.
                self._calls[worker].append(copy.deepcopy(call))
        return results

    def _send(self, worker: int, call: tuple[Any, ...]) -> Any:
        return getattr(self.actors[worker], call[0]).remote(*call[1:])

    def _replaced(self, worker: int, call: tuple[Any, ...]) -> Any:
        """Start another actor, let it repeat all calls and make this one; the actor runs them in
        this order.
        """
        self.actors[worker] = self._start(worker)
        for earlier in self._calls[worker]:
            self._send(worker, earlier)
        return self._send(worker, call)


def _size(value: Any) -> int:
    """Bytes of the arrays in a call or its result."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, PathSet):
        return (
            sum(array.nbytes for array in value.packed.scan)
            + value.leaf.nbytes
            + value.pairs.nbytes
        )
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return 0


@contextlib.contextmanager
def actors(
    workers: int, notify: Callable[[str], None]
) -> Iterator[Callable[[Topology, PathSearch, list[ShardDemands], bool], ShardBackend]]:
    """Make the backend of a :class:`ShardedProblem` in ``workers`` actors.

    Args:
        workers: number of actors; 0 for one for each CPU of the cluster.
        notify: called when an actor has been replaced.

    Raises:
        InputError: more workers than CPUs, or no cluster.
    """
    with connected() as ray:
        require_units(ray, "CPU", workers or 1, "--workers")
        count = workers or units(ray, "CPU")

        def make(
            topology: Topology, search: PathSearch, shards: list[ShardDemands], carries_all: bool
        ) -> RayActors:
            return RayActors(ray, count, topology, search, shards, carries_all, notify)

        yield make
