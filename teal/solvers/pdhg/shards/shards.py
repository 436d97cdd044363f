"""Passes over path shards, mapped from disk one at a time or distributed to other processes.

A :class:`ShardWorker` holds some shards and returns sums over them; a :class:`ShardBackend`
dispatches calls to one worker (:class:`OneProcess`) or to several
(:class:`teal.allocation.shard_workers.RayActors`).  :class:`ShardPasses` implements the passes of
the engine.  Messages have the size of the links, plus the few demands with fixed splits.
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
from teal.solvers.pdhg.fused.passes import (
    ArrayStorage,
    InMemory,
    PathPasses,
    ProgramSums,
    make_scratch,
)
from teal.solvers.pdhg.fused.state import Control, Dual, ScaledProgram

# State of the passes over a shard: splits in float32, flows and requests in float64.
_BYTES_PER_PATH = 40
_BYTES_PER_DEMAND = 16


@dataclasses.dataclass(frozen=True, eq=False)
class ShardDemands:
    """Demands of a shard.

    Attributes:
        first: index of the shard's first demand among all demands.
        pairs: (D, 2) node pairs, sorted.
        demand: (D,) Gbit/s.
        demand_value: (D,) value per Gbit/s, or (1,) if equal for all demands.
    """

    first: int
    pairs: IntArray
    demand: FloatArray
    demand_value: FloatArray


@dataclasses.dataclass(frozen=True, eq=False)
class Allocated:
    """Paths, demands and splits of a shard.

    Attributes:
        paths: paths of the demands.
        demands: demands of the shard.
        splits: (D, K) share of each demand on each path.
    """

    paths: PathSet
    demands: ShardDemands
    splits: FloatArray


class MappedArrays:
    """Storage of a shard's arrays in memory-mapped files, one per array.

    Args:
        folder: folder of the files; created if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def __call__(self, name: str, size: int, dtype: Any) -> AnyArray:
        """Return an array of zeros in a new file, or the array of an existing file.

        Args:
            name: file name.
            size: number of entries.
            dtype: type of the entries.
        """
        file = self._folder / name
        # An empty file cannot be mapped.
        if not size:
            return np.zeros(0, dtype)
        return np.asarray(
            np.memmap(file, dtype, mode="r+" if file.exists() else "w+", shape=(size,))
        )


class ShardWorker:
    """Some shards of the paths, with the state of the iteration on them.

    Args:
        topology: the network.
        search: options of the path search, for paths that are not on disk yet.
        shards: demands of each shard.
        carries_all: whether all demand must be carried.
        folder: folder of the state on disk.
        memory: largest state in memory, in bytes; a larger one is mapped one shard at a time.
        report: progress callback, called with the number of shards that have their paths.

    Attributes:
        num_paths: number of paths of all shards.
        num_nodes: number of trie nodes of all shards.
        num_demands: number of demands of all shards.
        is_in_memory: whether the state is in memory, else in mapped files.
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
        self._demands = list(shards)
        self._carries_all = carries_all
        self._folder = folder
        self._shards: list[PathShard] = []
        self.num_paths = self.num_nodes = 0
        # Compute the paths of each shard, or open those on disk; count paths and trie nodes.
        for demands in shards:
            shard = compute_shard(topology, demands.pairs, search)
            packed = shard.packed()
            self._shards.append(shard)
            self.num_paths = self.num_paths + packed.num_paths
            self.num_nodes = self.num_nodes + packed.num_nodes
            report(len(self._shards))
        # Keep the state in memory if it fits, else on disk.
        self.num_demands = sum(len(demands.pairs) for demands in shards)
        self.is_in_memory = self.state_bytes <= memory
        if not self.is_in_memory:
            require_disk(folder, self.state_bytes, "the state of the shards")
        # Index of the buffer with the incumbent flows of each shard; -1 without an incumbent.
        self._incumbent_buffer = [-1] * len(self._shards)
        self._open_passes: dict[int, PathPasses] = {}
        for index, demands in enumerate(shards):
            self._passes(index).set_demand(demands.demand[None])

    @property
    def state_bytes(self) -> int:
        """Size of the state of all shards, in bytes."""
        return _BYTES_PER_PATH * self.num_paths + _BYTES_PER_DEMAND * self.num_demands

    def total(
        self,
        name: str,
        shared_arguments: tuple[Any, ...],
        arguments_by_shard: Sequence[tuple[Any, ...]],
        options: dict[str, Any],
    ) -> Any:
        """Call a method of :class:`PathPasses` on every shard and add up the results.

        Args:
            name: name of the method.
            shared_arguments: arguments of all calls.
            arguments_by_shard: further arguments of each shard.
            options: keyword arguments of all calls.

        Returns:
            Sums of the returned arrays over the shards, a tuple; None if the method returns
            nothing.
        """
        sums: list[FloatArray] | None = None
        for index, arguments in enumerate(arguments_by_shard):
            passes = self._passes(index)
            # Call the method, and store which buffer has the incumbent now.
            result = getattr(passes, name)(*shared_arguments, *arguments, **options)
            self._incumbent_buffer[index] = passes.incumbent_buffer
            # Add the returned arrays to the sums.
            if result is not None:
                result = result if isinstance(result, tuple) else (result,)
                sums = (
                    list(result)
                    if sums is None
                    else [
                        sum_so_far + shard_sum
                        for sum_so_far, shard_sum in zip(sums, result, strict=True)
                    ]
                )
            # Unmap the shard.
            del passes
        return None if sums is None else tuple(sums)

    def subset(self, index: int, demands: Int64Array) -> PathSet:
        """Return the paths of some demands of a shard.

        Args:
            index: index of the shard.
            demands: (n,) indices of the demands within the shard.
        """
        return self._shards[index].subset(demands)

    def apply(self, index: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        """Return a function's result for a shard's allocation; without an incumbent the splits are
        0.

        Args:
            index: index of the shard.
            function: function of an :class:`Allocated` and ``arguments``.
            arguments: further arguments.
        """
        shard = self._shards[index]
        demands = self._demands[index]
        splits = (
            np.zeros((len(demands.pairs), shard.num_paths))
            if self._incumbent_buffer[index] < 0
            else self._passes(index).best_splits()[0]
        )
        return function(Allocated(shard.path_set(), demands, splits), *arguments)

    def _passes(self, index: int) -> PathPasses:
        """Return the passes over a shard, mapped from disk where the state exceeds memory."""
        if index in self._open_passes:
            return self._open_passes[index]
        shard = self._shards[index]
        arrays: ArrayStorage = (
            InMemory() if self.is_in_memory else MappedArrays(self._folder / f"{index:05d}")
        )
        # One matrix in one lane.
        passes = PathPasses(
            shard.packed(),
            shard.num_paths,
            1,
            (0,),
            one_step(self._demands[index].demand_value),
            self._carries_all,
            np.float32,
            arrays,
            self._incumbent_buffer[index],
        )
        if self.is_in_memory:
            self._open_passes[index] = passes
        return passes


class ShardBackend(Protocol):
    """Dispatcher of calls to all shards.

    Attributes:
        num_shards: number of shards of all workers.
        sent_bytes: bytes sent to and from other processes so far.
    """

    num_shards: int
    sent_bytes: int

    def total(
        self, name: str, *shared: Any, each: Sequence[tuple[Any, ...]] | None = None, **options: Any
    ) -> Any:
        """Call a method of :class:`PathPasses` on every shard; return the sums of the results.

        Args:
            name: name of the method.
            shared: arguments of all calls.
            each: further arguments for every shard; None for no further arguments.
            options: keyword arguments of all calls.
        """
        ...

    def subsets(self, demands: Sequence[Int64Array]) -> list[PathSet]:
        """Return the paths of some demands of every shard.

        Args:
            demands: (n,) indices of the demands within the shard, for each shard.
        """
        ...

    def apply(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return the results of a function for the allocations of all shards.

        Args:
            function: function of an :class:`Allocated` and ``arguments``.
            arguments: further arguments, equal for all shards.
        """
        ...

    def close(self) -> None:
        """End the workers and delete their state."""


class OneProcess:
    """Backend with all shards in this process.

    Args:
        topology: the network.
        search: options of the path search, for paths that are not on disk yet.
        shards: demands of each shard.
        carries_all: whether all demand must be carried.
        memory: largest state in memory, in bytes; a larger one is mapped from disk.
        report: progress callback, called with the number of shards that have their paths, and the
            number of all shards.
    """

    def __init__(
        self,
        topology: Topology,
        search: PathSearch,
        shards: Sequence[ShardDemands],
        carries_all: bool,
        memory: int,
        report: Callable[[int, int], None],
    ) -> None:
        self.num_shards = len(shards)
        self.sent_bytes = 0
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
        """Call a method of :class:`PathPasses` on every shard; return the sums of the results.

        Args:
            name: name of the method.
            shared: arguments of all calls.
            each: further arguments for every shard; None for no further arguments.
            options: keyword arguments of all calls.
        """
        return self._worker.total(name, shared, each or [()] * self.num_shards, options)

    def subsets(self, demands: Sequence[Int64Array]) -> list[PathSet]:
        """Return the paths of some demands of every shard, by (n,) indices within each shard."""
        return [self._worker.subset(index, indices) for index, indices in enumerate(demands)]

    def apply(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return the results of a function for the allocations of all shards.

        Args:
            function: function of an :class:`Allocated` and ``arguments``.
            arguments: further arguments, equal for all shards.
        """
        return [self._worker.apply(index, function, arguments) for index in range(self.num_shards)]

    def close(self) -> None:
        """Delete the state of the shards."""
        self._state.close()


class ShardPasses:
    """Passes of the engine over all shards, by calls to their workers; splits stay with the shards.

    Implements :class:`teal.solvers.pdhg.fused.passes.Passes` for one matrix.

    Args:
        backend: backend that holds the shards.
        first: (shards + 1,) index of the first demand of each shard, and the number of demands.
        num_links: E.
        num_paths: K.
    """

    def __init__(
        self, backend: ShardBackend, first_demand: Int64Array, num_links: int, num_paths: int
    ) -> None:
        self._backend = backend
        self._first_demand = first_demand
        self._no_splits = np.zeros((1, 0, num_paths))
        self._scratch = make_scratch(num_links, 1, 1, np.float32)
        # Number of calls to all shards.
        self.rounds = 0

    def compile(self, program: ScaledProgram, dual: Dual, control: Control) -> None:
        """Return at once: the workers compile the kernels at their first call."""

    def _total(
        self, name: str, *shared: Any, each: Sequence[tuple[Any, ...]] | None = None, **options: Any
    ) -> Any:
        """Return the sums of a method's results over all shards, and count the call."""
        self.rounds += 1
        return self._backend.total(name, *shared, each=each, **options)

    def measure(self, inverse_capacity: FloatArray, cost: FloatArray) -> ProgramSums:
        """Compute the constants of the program: link loads and sums over the demands of all shards.

        Args:
            inverse_capacity: (E,) 1 / capacity, 1/(Gbit/s); 0 for a failed link.
            cost: (E,) cost of each link, value per Gbit/s; ``FAILED_PRICE`` for a failed link.
        """
        return ProgramSums(*self._total("measure", inverse_capacity, cost))

    def set_splits(self, splits: FloatArray) -> None:
        """Raise an error: the splits of a shard cannot be set from this process.

        Raises:
            NotImplementedError: always; the splits are with the shards.
        """
        raise NotImplementedError

    def respond(
        self,
        price_plus_cost: Float32Array,
        sharpness: float,
        fixed_demands: Int64Array,
        fixed_splits: AnyArray,
        lane: int,
        *,
        is_summing: bool,
    ) -> tuple[FloatArray, FloatArray]:
        """Set the splits of the last step to the softmax response of all demands to link prices.

        Args:
            price_plus_cost: (E,) price plus cost of each link, value per Gbit/s.
            sharpness: inverse softmax temperature, 1/(value per Gbit/s).
            fixed_demands: (n,) indices of the demands with fixed splits, ascending.
            fixed_splits: (n, K) splits of these demands.
            lane: index of the matrix, 0.
            is_summing: whether to compute loads and elasticities.

        Returns:
            (E,) loads and (E,) elasticities; of length 0 if not ``is_summing``.
        """
        # Send each shard its fixed demands, by their indices within the shard.
        fixed_bounds = np.searchsorted(fixed_demands, self._first_demand)
        fixed_ranges = [slice(begin, end) for begin, end in itertools.pairwise(fixed_bounds)]
        shard_arguments = [
            (
                fixed_demands[fixed_range] - first_demand,
                np.ascontiguousarray(fixed_splits[fixed_range]),
                lane,
            )
            for fixed_range, first_demand in zip(fixed_ranges, self._first_demand, strict=False)
        ]
        load, elasticity = self._total(
            "respond", price_plus_cost, sharpness, each=shard_arguments, is_summing=is_summing
        )
        return load, elasticity

    def restart(self) -> None:
        """Restart from the last PDHG step: copy its splits to the iterate and Halpern's anchor."""
        self._total("restart")

    def iterate(
        self, num_iterations: int, program: ScaledProgram, dual: Dual, control: Control
    ) -> None:
        """Run PDHG iterations: primal step in the shards, dual step in this process.

        Args:
            num_iterations: number of iterations; the last one stores the splits of its step T(z).
            program: constants of the links, (E,).
            dual: dual variables and loads of the iterate z, Halpern's anchor z_0 and the step T(z),
                (E,) (written).
            control: primal weight and restart state, (1,) each (written).
        """
        scratch = self._scratch
        inverse_scale = kernels.value_scale(program, scratch)
        for i in range(num_iterations):
            is_restarting = kernels.begin_iteration(program, dual, control, scratch, 1)
            # Primal step in the shards; the sums over all shards are those of a single block.
            scratch.block_load[0], scratch.block_sums[0] = self._total(
                "step",
                scratch.price,
                scratch.halpern_weights,
                scratch.inverse_primal_weight,
                inverse_scale,
                is_restarting=is_restarting,
                is_storing=i == num_iterations - 1,
            )
            kernels.end_iteration(program, dual, control, scratch, 1)

    def certify(
        self, price_plus_cost: FloatArray, *, is_repairing: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Return (E,) loads of the last step's splits, and (1,) the demands' part of the bound.

        Args:
            price_plus_cost: (E,) price plus cost of each link, value per Gbit/s.
            is_repairing: whether to scale splits to a sum of 1 over live paths.
        """
        load, profit = self._total("certify", price_plus_cost, is_repairing=is_repairing)
        return load, profit

    def project_round(
        self, load_ratio: FloatArray, unused_capacity: FloatArray, *, is_first: bool, is_last: bool
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Run a round of the projection: scale requested flows to the capacities, then request
        unserved demand.

        Args:
            load_ratio: (E,) load over capacity in the first round, requested load over residual
                capacity in later ones.
            unused_capacity: (E,) capacity open to requests, Gbit/s.
            is_first: whether this is the first round.
            is_last: whether to skip new requests.

        Returns:
            (E,) loads and (E,) newly requested loads, Gbit/s, and (1,) value of the flows without
            link costs.
        """
        load, requested, value = self._total(
            "project_round", load_ratio, unused_capacity, is_first=is_first, is_last=is_last
        )
        return load, requested, value

    def keep(self, matrices: list[int]) -> None:
        """Store the flows of the last check as the incumbent of the matrices in ``matrices``."""
        self._total("keep", matrices)

    def reload_incumbent(self) -> FloatArray:
        """Reload the incumbent flows for another projection; return their loads (E,), Gbit/s."""
        (load,) = self._total("reload_incumbent")
        return load

    def best_splits(self) -> FloatArray:
        """Return the splits of no demand, (1, 0, K), since the splits stay with the shards."""
        return self._no_splits

    def stepped_splits(self) -> FloatArray:
        """Return the splits of no demand, (1, 0, K), since the splits stay with the shards."""
        return self._no_splits
