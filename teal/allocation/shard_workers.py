"""Sharded solve in Ray actors: each actor holds some shards of the demands and their paths.

A round of the solver calls a method on every actor, with arrays over links, and adds up the
results.  :class:`RayActors` logs all calls that change the state.  If an actor dies, a new one gets
its shards and replays the log; since every call is deterministic, it then has the same state.
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

from teal.cluster.cluster import connected, require_units, teal_error, units
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
# Share of a machine's free memory for the state of all its actors; a larger state is mapped from
# disk.
_MEMORY_SHARE = 0.5


class _Actor:
    """Ray actor with some shards and the state of the iteration on them.

    Args:
        topology: network.
        search: settings of the path search.
        shards: demands of each shard.
        carries_all: whether all demand must be carried.
        folder: working folder of the command, to which relative paths refer.
        threads: number of threads of the process.
        workers: number of actors, which share the memory.
    """

    def __init__(
        self,
        topology: Topology,
        search: PathSearch,
        shards: list[ShardDemands],
        carries_all: bool,
        folder: str,
        threads: int,
        num_actors: int,
    ) -> None:
        """Compute the paths of the shards; create a scratch folder for the state of iteration."""
        # Ray starts processes in another folder.
        os.chdir(folder)
        limit_threads(threads)
        self._state = ScratchFolder("shards")
        # Bytes of memory for the state of this actor: all actors may be on one machine.
        memory_bytes = int(_MEMORY_SHARE * available() / num_actors)
        # The kernels need writable arrays; those from Ray are read-only.
        shards = [
            ShardDemands(*(_writable(array) for array in vars(shard).values())) for shard in shards
        ]
        self._worker = ShardWorker(
            topology, search, shards, carries_all, self._state.path, memory_bytes
        )

    def total(
        self,
        name: str,
        shared: tuple[Any, ...],
        each: list[tuple[Any, ...]],
        options: dict[str, Any],
    ) -> Any:
        """Call a method of ``PathPasses`` on every shard of the actor and add up the results.

        Args:
            name: name of the method.
            shared: arguments of all calls.
            each: further arguments for each shard.
            options: keyword arguments of all calls.

        Returns:
            tuple of arrays, the sums over the shards; None if the method returns nothing.
        """
        writable = [tuple(map(_writable, arguments)) for arguments in each]
        return self._worker.total(name, tuple(map(_writable, shared)), writable, options)

    def subsets(self, demands: list[Int64Array]) -> list[PathSet]:
        """Return the paths of some demands of each shard of the actor.

        Args:
            demands: for each shard, indices of the demands within the shard.
        """
        return [
            self._worker.subset(shard, _writable(shard_demands))
            for shard, shard_demands in enumerate(demands)
        ]

    def apply(
        self, num_shards: int, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> list[Any]:
        """Call a function with the allocation of each shard of the actor; return the results.

        Args:
            num_shards: number of shards of the actor.
            function: function of the shard's allocation and ``arguments``.
            arguments: further arguments of all calls.
        """
        return [
            self._worker.apply(shard, function, tuple(map(_writable, arguments)))
            for shard in range(num_shards)
        ]

    def close(self) -> None:
        """Delete the folder with the actor's state on disk."""
        self._state.close()


def _writable(value: Any) -> Any:
    """Return a writable copy of an array argument, and any other argument unchanged.

    Ray passes read-only arrays, and the kernels are compiled for writable ones.
    """
    return np.array(value) if isinstance(value, np.ndarray) else value


class RayActors:
    """Backend of a sharded solve whose shards are in Ray actors (a ``ShardBackend``).

    Args:
        ray: module ray, connected to a cluster.
        workers: number of actors, at most one for each shard.
        topology: network.
        search: settings of the path search.
        shards: demands of each shard.
        carries_all: whether all demand must be carried.
        notify: prints one line of text when an actor has been replaced.

    Attributes:
        num_shards: number of shards of all actors.
        sent_bytes: bytes of the arrays sent to and from the actors so far.
        actors: handle of each actor.
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
        """Divide the shards among new actors, and wait until these have computed their paths."""
        self._ray = ray
        self._notify = notify
        self.num_shards = len(shards)
        self.sent_bytes = 0
        workers = min(workers, len(shards))
        # Divide the shards evenly: actor i holds the consecutive shards[shard_ranges[i]].
        shard_bounds = np.linspace(0, len(shards), workers + 1).round().astype(int)
        self._shard_ranges = [slice(int(a), int(b)) for a, b in itertools.pairwise(shard_bounds)]
        threads = max(1, units(ray, "CPU") // workers)
        # max_restarts is 0: Ray would restart an actor without its state, and only this process
        # has the log of calls.
        remote_class = ray.remote(num_cpus=1, max_restarts=0)(_Actor)

        def start(worker: int) -> Any:
            """Start the actor with an index; return its handle."""
            worker_shards = list(shards[self._shard_ranges[worker]])
            return remote_class.remote(
                topology, search, worker_shards, carries_all, str(Path.cwd()), threads, workers
            )

        self._start = start
        # Log of each actor: calls that changed its state, in order.
        self._call_logs: list[list[tuple[Any, ...]]] = [[] for _ in self._shard_ranges]
        self._num_replacements = [0] * workers
        self.actors = [start(worker) for worker in range(workers)]
        # Wait until all actors have computed their paths, by calls of `_Actor.total` without effect
        # and without arguments for the shards; they raise the errors of the constructors.
        self._gather(
            [
                ("total", "clear", (), [()] * (shard_range.stop - shard_range.start), {})
                for shard_range in self._shard_ranges
            ],
            is_change=False,
        )

    def total(
        self, name: str, *shared: Any, each: Sequence[tuple[Any, ...]] | None = None, **options: Any
    ) -> Any:
        """Call a method of ``PathPasses`` on all shards and add up the results.

        Args:
            name: name of the method.
            shared: arguments of all calls.
            each: further arguments for each shard; None for no further ones.
            options: keyword arguments of all calls.

        Returns:
            tuple of arrays, the sums over all shards; None if the method returns nothing.
        """
        arguments = list(each or [()] * self.num_shards)
        # Each actor gets the arguments of its shards, and returns the sums over them.
        worker_sums = self._gather(
            [
                ("total", name, shared, arguments[shard_range], options)
                for shard_range in self._shard_ranges
            ],
            is_change=True,
        )
        if worker_sums[0] is None:
            return None
        # Add up each array of the tuple over the actors.
        return tuple(sum(arrays[1:], arrays[0]) for arrays in zip(*worker_sums, strict=True))

    def subsets(self, demands: Sequence[Int64Array]) -> list[PathSet]:
        """Return the paths of some demands of every shard, in the order of the shards.

        Args:
            demands: for each shard, indices of the demands within the shard.
        """
        worker_results = self._gather(
            [("subsets", list(demands[shard_range])) for shard_range in self._shard_ranges],
            is_change=False,
        )
        return [paths for path_sets in worker_results for paths in path_sets]

    def apply(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call a function with the allocation of every shard; return the results by shard.

        The calls must not change the state of the iteration, since they are not logged.

        Args:
            function: function of the shard's allocation and ``arguments``.
            arguments: further arguments of all calls.
        """
        calls = [
            ("apply", shard_range.stop - shard_range.start, function, arguments)
            for shard_range in self._shard_ranges
        ]
        return [result for results in self._gather(calls, is_change=False) for result in results]

    def close(self) -> None:
        """Delete the state of all actors on disk, and end their processes."""
        # Actors that died have nothing to close.
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.get([actor.close.remote() for actor in self.actors])
        for actor in self.actors:
            self._ray.kill(actor)

    def _gather(self, calls: list[tuple[Any, ...]], *, is_change: bool) -> list[Any]:
        """Call all actors in parallel, wait, and return their results; replace actors that died.

        Args:
            calls: one call for each actor: name of the method, then its arguments.
            is_change: whether the calls change the state, so that a replacement must repeat them.

        Raises:
            SolverError: an actor died more than three times.
            InputError: raised by an actor.
        """
        # References of the results, which the actors compute in parallel.
        references = [self._send(worker, call) for worker, call in enumerate(calls)]
        results = []
        for worker, call in enumerate(calls):
            # Wait for the result; if the actor died, replace it and wait for the new actor.
            while True:
                try:
                    result = self._ray.get(references[worker])
                    break
                except self._ray.exceptions.RayActorError as error:
                    self._num_replacements[worker] += 1
                    if self._num_replacements[worker] > _MAX_REPLACEMENTS:
                        raise teal_error(
                            error, f"shard worker {worker} died {_MAX_REPLACEMENTS + 1} times"
                        ) from None
                    self._notify(
                        f"shard worker {worker} died; a new worker repeats its "
                        f"{len(self._call_logs[worker]):,} calls"
                    )
                    references[worker] = self._replace(worker, call)
                except self._ray.exceptions.RayError as error:
                    raise teal_error(error, f"shard worker {worker} failed") from None
            self.sent_bytes += _num_bytes(call) + _num_bytes(result)
            results.append(result)
            if is_change:
                # Copy the call: the solver overwrites its arrays in the next round.
                self._call_logs[worker].append(copy.deepcopy(call))
        return results

    def _send(self, worker: int, call: tuple[Any, ...]) -> Any:
        """Start a call on an actor; return the Ray reference of its result.

        Args:
            worker: index of the actor.
            call: name of the method, then its arguments.
        """
        return getattr(self.actors[worker], call[0]).remote(*call[1:])

    def _replace(self, worker: int, call: tuple[Any, ...]) -> Any:
        """Start a new actor, replay its log, and start a call; return the reference of its result.

        The actor runs its calls in order, so only the last one needs a wait.
        """
        self.actors[worker] = self._start(worker)
        for logged_call in self._call_logs[worker]:
            self._send(worker, logged_call)
        return self._send(worker, call)


def _num_bytes(value: Any) -> int:
    """Return the total size of the arrays in a call or its result, in bytes."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, PathSet):
        return (
            sum(array.nbytes for array in value.packed.scan)
            + value.leaf.nbytes
            + value.pairs.nbytes
        )
    if isinstance(value, list | tuple):
        return sum(map(_num_bytes, value))
    return 0


@contextlib.contextmanager
def actors(
    workers: int, notify: Callable[[str], None]
) -> Iterator[Callable[[Topology, PathSearch, list[ShardDemands], bool], ShardBackend]]:
    """Connect to Ray; yield a factory of :class:`RayActors`, the backend of a sharded solve.

    Args:
        workers: number of actors; 0 for one for each CPU of the cluster.
        notify: prints one line of text when an actor has been replaced.

    Raises:
        InputError: more workers than CPUs, or no cluster.
    """
    with connected() as ray:
        require_units(ray, "CPU", workers or 1, "--workers")
        num_actors = workers or units(ray, "CPU")

        def make_backend(
            topology: Topology, search: PathSearch, shards: list[ShardDemands], carries_all: bool
        ) -> RayActors:
            """Start the actors, which compute the paths of their shards."""
            return RayActors(ray, num_actors, topology, search, shards, carries_all, notify)

        yield make_backend
