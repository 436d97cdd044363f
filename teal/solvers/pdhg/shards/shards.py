"""Passes over paths in shards: on disk, of which one at a time is mapped, or held by other
processes.

A :class:`ShardWorker` holds some shards and answers with sums over them; a :class:`Backend` hands
calls to one worker (:class:`OneProcess`) or to several
(:class:`teal.allocation.shard_workers.RayActors`).  What goes to and fro are numbers of links and
the few demands that a sample is certain of.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from teal.network.path_set import PathSet
from teal.network.shards import PathSearch, PathShard, compute_shard
from teal.network.topology import Topology
from teal.runtime.arrays import AnyArray, Float32Array, FloatArray, Int64Array, IntArray
from teal.runtime.storage import ScratchFolder, require_disk
from teal.solvers.pdhg.fused import kernels
from teal.solvers.pdhg.fused.demand_value import one_step
from teal.solvers.pdhg.fused.passes import Arrays, InMemory, PathPasses, ProgramSums, make_scratch
from teal.solvers.pdhg.fused.state import Control, Dual, ScaledProgram

_BYTES_PER_PATH = 40  # of the passes over a shard: splits in float32, flows and requests in float64
_BYTES_PER_DEMAND = 16


@dataclasses.dataclass(frozen=True, eq=False)
class ShardDemands:
    """The demands of a shard.

    Attributes:
        first: number of its first demand among those of all shards.
        pairs: (D, 2) node pairs, sorted.
        demand: (D,) Gbit/s.
        demand_value: (D,) value per Gbit/s, or (1,) if it is the same for all.
    """

    first: int
    pairs: IntArray
    demand: FloatArray
    demand_value: FloatArray


@dataclasses.dataclass(frozen=True, eq=False)
class Allocated:
    """The allocation of a shard.

    Attributes:
        paths: paths of its demands.
        demands: demands of the shard.
        splits: (D, K).
    """

    paths: PathSet
    demands: ShardDemands
    splits: FloatArray


class MappedArrays:
    """Arrays in files that are mapped; files are made when an array is asked for first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def __call__(self, name: str, size: int, dtype: Any) -> AnyArray:
        """Make an array (:class:`Arrays`)."""
        file = self._folder / name
        if not size:  # an empty file cannot be mapped
            return np.zeros(0, dtype)
        return np.asarray(
            np.memmap(file, dtype, mode="r+" if file.exists() else "w+", shape=(size,))
        )


class ShardWorker:
    """Holds some shards of the paths, and the state of the iteration on them.

    Args:
        topology: the network.
        search: how paths are found, if they are not on disk yet.
        shards: demands of each shard.
        carries_all: whether all demand must be carried.
        folder: folder of the state on disk.
        memory: bytes up to which all shards stay in memory; else one at a time is mapped.
        report: called with the number of shards whose paths are there.
    """

    def __init__(
        self,
        topology: Topology,
        search: PathSearch,
        shards: Sequence[ShardDemands],
        carries_all: bool,
        folder: Path,
        memory: int,
        report: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._demands, self._carries_all, self._folder = list(shards), carries_all, folder
        self._shards: list[PathShard] = []
        self.num_paths = self.num_nodes = 0
        for demands in shards:
            shard = compute_shard(topology, demands.pairs, search)
            packed = shard.packed()
            self._shards.append(shard)
            self.num_paths, self.num_nodes = (
                self.num_paths + packed.num_paths,
                self.num_nodes + packed.num_nodes,
            )
            report(len(self._shards))
        self.num_demands = sum(len(demands.pairs) for demands in shards)
        self.is_in_memory = self.state_bytes <= memory
        if not self.is_in_memory:
            require_disk(folder, self.state_bytes, "the state of the shards")
        self._best = [-1] * len(self._shards)  # see PathPasses
        self._open: dict[int, PathPasses] = {}
        for index, demands in enumerate(shards):
            self._passes(index).put_demand(demands.demand[None])

    @property
    def state_bytes(self) -> int:
        """Bytes of the state of all shards."""
        return _BYTES_PER_PATH * self.num_paths + _BYTES_PER_DEMAND * self.num_demands

    def total(
        self,
        name: str,
        shared: tuple[Any, ...],
        each: Sequence[tuple[Any, ...]],
        options: dict[str, Any],
    ) -> Any:
        """Call a method of :class:`PathPasses` for every shard, with arguments for all and for
        each.

        Returns:
            the sums of what the calls return, a tuple of arrays or None.
        """
        sums: list[FloatArray] | None = None
        for index, arguments in enumerate(each):
            passes = self._passes(index)
            result = getattr(passes, name)(*shared, *arguments, **options)
            self._best[index] = passes.best
            if result is not None:
                result = result if isinstance(result, tuple) else (result,)
                sums = (
                    list(result)
                    if sums is None
                    else [a + b for a, b in zip(sums, result, strict=True)]
                )
            del passes  # unmaps the shard
        return None if sums is None else tuple(sums)

    def subset(self, index: int, demands: Int64Array) -> PathSet:
        """The paths of some demands of a shard, by their numbers within the shard."""
        return self._shards[index].subset(demands)

    def apply(self, index: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """The result of a function of the shard's allocation (see :class:`Allocated`), then of
        ``arguments``.

        Before anything was kept, the splits are 0.
        """
        shard, demands = self._shards[index], self._demands[index]
        splits = (
            np.zeros((len(demands.pairs), shard.num_paths))
            if self._best[index] < 0
            else self._passes(index).best_splits()[0]
        )
        return function(Allocated(shard.path_set(), demands, splits), *arguments)

    def _passes(self, index: int) -> PathPasses:
        if index in self._open:
            return self._open[index]
        shard = self._shards[index]
        arrays: Arrays = (
            InMemory() if self.is_in_memory else MappedArrays(self._folder / f"{index:05d}")
        )
        passes = PathPasses(
            shard.packed(),
            shard.num_paths,
            1,
            (0,),
            one_step(self._demands[index].demand_value),
            self._carries_all,
            np.float32,
            arrays,
            self._best[index],
        )
        if self.is_in_memory:
            self._open[index] = passes
        return passes


class ShardBackend(Protocol):
    """Hands calls to the shards; see :class:`ShardWorker` for the methods.

    Attributes:
        num_shards: number of shards of all workers.
        sent_bytes: bytes that were sent to and from other processes so far.
    """

    num_shards: int
    sent_bytes: int

    def total(
        self, name: str, *shared: Any, each: Sequence[tuple[Any, ...]] | None = None, **options: Any
    ) -> Any:
        """Sums over all shards (:meth:`ShardWorker.total`); ``each`` has an entry for every shard,
        None stands for no further arguments.
        """
        ...

    def subsets(self, demands: Sequence[Int64Array]) -> list[PathSet]:
        """The paths of some demands of every shard."""
        ...

    def apply(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """The function's result for every shard's allocation."""
        ...

    def close(self) -> None:
        """End the workers and delete their state."""


class OneProcess:
    """All shards in this process; arguments as in :class:`ShardWorker`."""

    def __init__(
        self,
        topology: Topology,
        search: PathSearch,
        shards: Sequence[ShardDemands],
        carries_all: bool,
        memory: int,
        report: Callable[[int, int], None],
    ) -> None:
        self.num_shards, self.sent_bytes = len(shards), 0
        self._state = ScratchFolder("shards")
        try:
            self._worker = ShardWorker(
                topology,
                search,
                shards,
                carries_all,
                self._state.path,
                memory,
                lambda done: report(done, len(shards)),
            )
        except BaseException:
            self.close()
            raise

    def total(
        self, name: str, *shared: Any, each: Sequence[tuple[Any, ...]] | None = None, **options: Any
    ) -> Any:
        """Sums over all shards (:meth:`ShardBackend.total`)."""
        return self._worker.total(name, shared, each or [()] * self.num_shards, options)

    def subsets(self, demands: Sequence[Int64Array]) -> list[PathSet]:
        """Subsets of all shards (:meth:`ShardBackend.subsets`)."""
        return [self._worker.subset(index, numbers) for index, numbers in enumerate(demands)]

    def apply(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Change all shards (:meth:`ShardBackend.apply`)."""
        return [self._worker.apply(index, function, arguments) for index in range(self.num_shards)]

    def close(self) -> None:
        """Close the shards (:meth:`ShardBackend.close`)."""
        self._state.close()


class ShardPasses:
    """Passes over shards: :class:`teal.solvers.pdhg.fused.passes.Passes` for B = 1.  Splits stay
    with the shards.

    Args:
        backend: backend that holds the shards.
        first: (shards + 1,) number of the first demand of each shard, and of all demands.
        num_links: E.
        num_paths: K.
    """

    def __init__(
        self, backend: ShardBackend, first: Int64Array, num_links: int, num_paths: int
    ) -> None:
        self._backend, self._first, self._no_splits = backend, first, np.zeros((1, 0, num_paths))
        self._scratch = make_scratch(num_links, 1, 1, np.float32)
        self.rounds = 0  # of calls to all shards

    def compile(self, program: ScaledProgram, dual: Dual, control: Control) -> None:
        """Compile nothing ahead (:meth:`Passes.compile`)."""

    def _total(
        self, name: str, *shared: Any, each: Sequence[tuple[Any, ...]] | None = None, **options: Any
    ) -> Any:
        self.rounds += 1
        return self._backend.total(name, *shared, each=each, **options)

    def measure(self, inverse_capacity: FloatArray, cost: FloatArray) -> ProgramSums:
        """Measure the splits (:meth:`Passes.measure`)."""
        return ProgramSums(*self._total("measure", inverse_capacity, cost))

    def put_splits(self, splits: FloatArray) -> None:
        """Put splits in place (:meth:`Passes.put_splits`).

        Raises:
            NotImplementedError: always; a warm start of shards has splits with the shards.
        """
        raise NotImplementedError

    def respond(
        self,
        price_plus_cost: Float32Array,
        sharpness: float,
        kept: Int64Array,
        kept_splits: AnyArray,
        lane: int,
        *,
        is_summing: bool,
    ) -> tuple[FloatArray, FloatArray]:
        """Put the response to prices in place (:meth:`Passes.respond`)."""
        ends = np.searchsorted(kept, self._first)
        parts = [slice(a, b) for a, b in itertools.pairwise(ends)]
        each = [
            (kept[rows] - first, np.ascontiguousarray(kept_splits[rows]), lane)
            for rows, first in zip(parts, self._first, strict=False)
        ]
        load, elasticity = self._total(
            "respond", price_plus_cost, sharpness, each=each, is_summing=is_summing
        )
        return load, elasticity

    def restart(self) -> None:
        """Begin anew at the last step (:meth:`Passes.restart`)."""
        self._total("restart")

    def iterate(self, count: int, program: ScaledProgram, dual: Dual, control: Control) -> None:
        """Iterate (:meth:`Passes.iterate`): the links' part here, the paths' part with the
        shards.
        """
        scratch = self._scratch
        inverse_scale = kernels.value_scale(program, scratch)
        for i in range(count):
            is_restarting = kernels.before(program, dual, control, scratch, 1)
            scratch.block_load[0], scratch.block_sums[0] = self._total(
                "step",
                scratch.price,
                scratch.halpern,
                scratch.inverse_weight,
                inverse_scale,
                is_restarting=is_restarting,
                is_storing=i == count - 1,
            )
            kernels.after(program, dual, control, scratch, 1)

    def certify(
        self, price_plus_cost: FloatArray, *, is_repairing: bool
    ) -> tuple[FloatArray, FloatArray]:
        """The paths' part of a certificate (:meth:`Passes.certify`)."""
        load, profit = self._total("certify", price_plus_cost, is_repairing=is_repairing)
        return load, profit

    def project_round(
        self, load_ratio: FloatArray, unused: FloatArray, *, is_first: bool, is_last: bool
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """A round of refilling (:meth:`Passes.project_round`)."""
        load, requested, value = self._total(
            "project_round", load_ratio, unused, is_first=is_first, is_last=is_last
        )
        return load, requested, value

    def keep(self, lanes: list[int]) -> None:
        """Keep the better splits (:meth:`Passes.keep`)."""
        self._total("keep", lanes)

    def recall(self) -> FloatArray:
        """Take back the splits that were kept (:meth:`Passes.recall`)."""
        (load,) = self._total("recall")
        return load

    def best_splits(self) -> FloatArray:
        """(1, 0, K): the splits are with the shards."""
        return self._no_splits

    def stepped_splits(self) -> FloatArray:
        """(1, 0, K): the splits are with the shards."""
        return self._no_splits
