"""Sharded solve of one matrix, for path sets beyond memory or shared by several processes.

:class:`ShardedProblem` runs the engine, samples and search of
:func:`teal.solvers.pipeline.solve`; the passes over paths run on shards (:mod:`shards`). Samples
are drawn from all demands at once, with one factor, so that the sample and its prices do not depend
on the number of shards.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from teal.errors import InputError
from teal.network import PathSet, Topology, Trie
from teal.network import subset as path_subset
from teal.network.path_file import check_pairs
from teal.network.shards import PathSearch, divide
from teal.objectives import Objective
from teal.pathops import make_path_ops
from teal.problem import Problem
from teal.problem.bounds import from_score
from teal.runtime.arrays import FloatArray, IntArray
from teal.runtime.interruptible import Deadline, complete
from teal.solvers.pdhg.fused.engine import FusedEngine
from teal.solvers.pdhg.samples import sample
from teal.solvers.pdhg.samples.start import SampledStart
from teal.solvers.pdhg.search import LAST_REFILL, Search
from teal.solvers.pdhg.shards.shards import (
    Allocated,
    OneProcess,
    ShardBackend,
    ShardDemands,
    ShardPasses,
)
from teal.solvers.result import ProgressCallback, Solution

# Largest state in memory, in bytes; a larger one is mapped from disk, one shard at a time.
_STATE_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ShardedResult(Solution):
    """Result of a solve whose allocation stays with the shards.

    Attributes:
        prices: (E,) link prices, value per Gbit/s; 1/(Gbit/s) where all demand is carried.
        rounds: number of calls to all shards.
        sent_bytes: bytes to and from other processes, in all rounds.
    """

    prices: FloatArray
    rounds: int
    sent_bytes: int


class ShardedProblem:
    """One matrix with its demands in shards; a context manager that deletes the state on disk.

    Args:
        topology: the network.
        pairs: (D, 2) node pairs, sorted by source and target.
        demand: (D,) Gbit/s.
        objective: the program, or its name; None for total_flow.
        num_shards: largest number of shards; each has the demands of whole sources.
        search: options of the path search; paths stay on disk for the next matrix.
        capacity: (E,) current capacities, Gbit/s; None for the topology's.
        weight: (D,) value per Gbit/s of each demand, for weighted_flow.
        backend: factory of the backend of these shards; None for this process.
        report: progress callback, called with the number of shards that have their paths, and the
            number of all shards.

    Raises:
        InputError: arrays of inconsistent shapes; a sequence of programs (priority, max_min).
    """

    def __init__(
        self,
        topology: Topology,
        pairs: IntArray,
        demand: FloatArray,
        objective: Objective | str | None = None,
        *,
        num_shards: int,
        search: PathSearch | None = None,
        capacity: FloatArray | None = None,
        weight: FloatArray | None = None,
        backend: Callable[[Topology, PathSearch, list[ShardDemands], bool], ShardBackend]
        | None = None,
        report: Callable[[int, int], None] = lambda done, count: None,
    ) -> None:
        pairs = np.ascontiguousarray(pairs, dtype=np.int32)
        check_pairs(topology, pairs)
        demand = np.ascontiguousarray(demand, dtype=np.float64)
        if demand.shape != (len(pairs),) or not bool((np.isfinite(demand) & (demand >= 0)).all()):
            raise InputError.invalid(
                "shards",
                "demand",
                f"its shape is {demand.shape}, or a rate is negative or not finite",
                f"give {len(pairs)} finite rates >= 0, one per node pair",
            )
        if num_shards < 1:
            raise InputError("shards", "num_shards", "an integer of at least 1", num_shards)
        self.topology = topology
        self.objective = Objective.of(objective or Objective())
        if self.objective.rules.is_sequence or not self.objective.rules.is_linear:
            expected = "a single program with a value linear in flow"
            raise InputError("shards", "objective", expected, self.objective.name)
        self._demand = demand
        self._search = search or PathSearch()
        # One entry if all demands have the same value, which saves an array over all demands.
        self._value = (
            self.objective.demand_value(weight, len(pairs))
            if self.objective.rules.needs_weight
            else self.objective.demand_value(None, 1)
        )
        # Divide the demands into shards of whole sources.
        demand_ranges = divide(pairs, num_shards)
        self._first_demand = np.array(
            [0, *(demand_range.stop for demand_range in demand_ranges)], dtype=np.int64
        )
        shards = [
            ShardDemands(
                demand_range.start,
                pairs[demand_range],
                demand[demand_range],
                self._value[demand_range] if len(self._value) > 1 else self._value,
            )
            for demand_range in demand_ranges
        ]
        # The backend computes missing paths and holds the demands; the problem here has capacities
        # and costs only.
        backend_arguments = topology, self._search, shards, self.objective.rules.carries_all
        self.backend: ShardBackend = (
            backend(*backend_arguments)
            if backend
            else OneProcess(*backend_arguments, _STATE_BYTES, report)
        )
        self.network = self._problem_without_demands(capacity)

    def __enter__(self) -> ShardedProblem:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers and delete the state of the iteration; the paths stay on disk."""
        self.backend.close()

    @property
    def num_shards(self) -> int:
        """Number of shards into which the demands are divided."""
        return self.backend.num_shards

    def _problem_without_demands(self, capacity: FloatArray | None) -> Problem:
        """Create the program without demands, at ``capacity`` (E,) or the topology's capacities."""
        no_indices = np.zeros(0, np.int32)
        # Paths of no demand, in an empty trie.
        paths = PathSet(
            np.zeros((0, 2), np.int32),
            np.zeros((0, self._search.num_paths), np.int32),
            Trie(no_indices, no_indices, np.zeros(1, np.int32)),
            np.zeros(1, np.int32),
            self.topology.num_links,
            "",
            self.topology.graph_key(),
        )
        # Zero costs at first: latency costs need the longest path of all shards.
        total_flow_objective = Objective()
        problem = Problem.create(
            self.topology, paths, total_flow_objective, np.zeros((1, 0)), capacity=capacity
        )
        latency = self.topology.latency
        cost = self.objective.link_cost(
            self.topology, lambda: max(self.backend.apply(_longest_path, latency))
        )
        return dataclasses.replace(
            problem, objective=self.objective, link_cost=torch.from_numpy(cost)
        )

    def _draw(self, size: int, stream: int) -> sample.Sample:
        """Draw a sample of about ``size`` demands, with paths from all shards.

        Args:
            size: expected number of demands.
            stream: index of the random stream.
        """
        drawn_demands, probability = sample.draw_demands(self._demand, size, stream)
        # Indices of the drawn demands within each shard.
        shard_bounds = np.searchsorted(drawn_demands, self._first_demand)
        shard_demands = [
            drawn_demands[begin:end] - first_demand
            for (begin, end), first_demand in zip(
                itertools.pairwise(shard_bounds), self._first_demand, strict=False
            )
        ]
        paths = path_subset.joined(self.backend.subsets(shard_demands))
        value = torch.from_numpy(
            self._value[drawn_demands]
            if len(self._value) > 1
            else self._value.repeat(len(drawn_demands))
        )
        return sample.make_sample(
            self.network, drawn_demands, probability, self._demand[drawn_demands], value, paths
        )

    @torch.no_grad()
    def solve(
        self,
        *,
        gap: float = 1e-2,
        deadline: float = math.inf,
        max_iterations: int = 10_000,
        report: ProgressCallback | None = None,
    ) -> ShardedResult:
        """Solve to a certified gap, within a deadline and an iteration limit.

        Args:
            gap: target gap.
            deadline: seconds from now.
            max_iterations: iteration limit.
            report: progress callback, called after each full gap check.
        """
        begin = time.perf_counter()
        bytes_sent_before = self.backend.sent_bytes
        # Clear the splits of an earlier search.
        self.backend.total("clear")
        # Engine over the shards, started from samples of all demands.
        passes = ShardPasses(
            self.backend, self._first_demand, self.topology.num_links, self._search.num_paths
        )
        engine = FusedEngine(self.network, None, torch.float32, passes)
        # No model solves the samples.
        sampled = SampledStart(self.network, engine, gap, None, self._draw, len(self._demand))
        search = Search(
            self.network,
            engine,
            gap,
            max_iterations,
            report,
            begin,
            may_stall=False,
            sampled=sampled,
            is_large=True,
        )
        iterations, stop = complete(search.iterate(Deadline(begin + deadline), warm=False))
        value = search.value
        bound = search.bound
        # max_concurrent_flow was solved as the smallest utilisation: convert value and bound.
        if self.network.solved is not self.network:
            bound = from_score(self.network, -bound)
            engine.shed(LAST_REFILL)
            # The value is the smallest served fraction of a demand.
            served_fractions = self.backend.apply(
                _min_served_fraction, self.network.capacity[0].numpy()
            )
            value = torch.tensor([min([1.0, *served_fractions])], dtype=torch.float64)
        return ShardedResult(
            value=float(value),
            bound=float(bound),
            sense=self.network.objective.rules.sense,
            prices=engine.incumbent()[1][0].numpy(),
            iterations=iterations,
            rounds=passes.rounds,
            sent_bytes=self.backend.sent_bytes - bytes_sent_before,
            solve_s=time.perf_counter() - begin,
            stopped_by=stop,
        )

    def apply(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Apply a function to each shard's allocation (:class:`Allocated`), in the shard's process.

        Args:
            function: function of the allocation and ``arguments``; with workers it must be
                importable by name.
            arguments: common arguments of all shards.
        """
        return self.backend.apply(function, *arguments)


def _min_served_fraction(allocated: Allocated, capacity: FloatArray) -> float:
    """Return the smallest served fraction of a shard's demands with a live path; infinite without
    such a demand.

    Args:
        allocated: the shard's allocation.
        capacity: (E,) current capacities, Gbit/s.
    """
    failure_flags = torch.from_numpy((capacity <= 0).astype(np.float64))[None]
    is_live = (
        allocated.paths.mask
        & (make_path_ops(allocated.paths).path_max(failure_flags)[0][0] == 0).numpy()
    )
    is_counted = is_live.any(1) & (allocated.demands.demand > 0)
    return float(np.where(is_counted, allocated.splits.sum(1), np.inf).min(initial=np.inf))


def _longest_path(allocated: Allocated, latency: FloatArray) -> float:
    """Return the latency of the longest path of a shard, in ms, from link latencies (E,)."""
    ops = make_path_ops(allocated.paths)
    return float(ops.path_sum(torch.from_numpy(latency[None])).max())
