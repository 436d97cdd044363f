"""One matrix on a network whose paths do not fit into memory, or that several processes share.

The engine, the samples and the search are those of :func:`teal.solvers.pdhg.solve`; the passes over
paths go to shards (:mod:`shards`).  Samples are drawn from all demands at once, with one factor, so
that the sample and its prices do not depend on the number of shards.
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

# Bytes of state that one process keeps in memory; more is mapped, one shard at a time.
_STATE_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ShardedResult(Solution):
    """The figures of an allocation that stays with the shards.

    Attributes:
        prices: (E,) prices as in :class:`teal.solvers.pdhg.PdhgResult`.
        rounds: calls to all shards.
        sent_bytes: bytes to and from other processes, in all rounds.
    """

    prices: FloatArray
    rounds: int
    sent_bytes: int


class ShardedProblem:
    """One matrix whose demands are in shards; a context manager, which deletes the state on disk at
    the end.

    Args:
        topology: the network.
        pairs: (D, 2) node pairs, sorted by source and target.
        demand: (D,) Gbit/s.
        objective: the program, or its name; None for total_flow.
        num_shards: largest number of shards; each has the demands of whole sources.
        search: how candidate paths are found; they stay on disk for the next matrix.
        capacity: (E,) Gbit/s in force; None for the topology's.
        weight: (D,) value of one Gbit/s of each demand, for weighted_flow.
        backend: makes the backend of these shards; None for this process.
        report: called with the number of shards whose paths are found, and their number.

    Raises:
        InputError: arrays that do not fit together; priority and max_min, which are sequences of
            programs.
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
            raise InputError("shards", "demand", f"({len(pairs)},) finite rates >= 0", demand.shape)
        if num_shards < 1:
            raise InputError("shards", "num_shards", "a whole number of at least 1", num_shards)
        self.topology, self.objective = topology, Objective.of(objective or Objective())
        if self.objective.rules.is_sequence or not self.objective.rules.is_linear:
            expected = "one that is a single program, of values linear in flow"
            raise InputError("shards", "objective", expected, self.objective.name)
        self._demand, self._search = demand, search or PathSearch()
        # One entry if all demands have the same value: no array of all demands is then made.
        self._value = (
            self.objective.demand_value(weight, len(pairs))
            if self.objective.rules.needs_weight
            else self.objective.demand_value(None, 1)
        )
        parts = divide(pairs, num_shards)
        self._first = np.array([0, *(part.stop for part in parts)], dtype=np.int64)
        shards = [
            ShardDemands(
                part.start,
                pairs[part],
                demand[part],
                self._value[part] if len(self._value) > 1 else self._value,
            )
            for part in parts
        ]
        arguments = topology, self._search, shards, self.objective.rules.carries_all
        self.backend: ShardBackend = (
            backend(*arguments) if backend else OneProcess(*arguments, _STATE_BYTES, report)
        )
        self.network = self._network(capacity)

    def __enter__(self) -> ShardedProblem:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers and delete the state of the iteration; the paths stay."""
        self.backend.close()

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return self.backend.num_shards

    def _network(self, capacity: FloatArray | None) -> Problem:
        """The program without its demands: network, objective, capacities, costs."""
        none = np.zeros(0, np.int32)
        paths = PathSet(
            np.zeros((0, 2), np.int32),
            np.zeros((0, self._search.num_paths), np.int32),
            Trie(none, none, np.zeros(1, np.int32)),
            np.zeros(1, np.int32),
            self.topology.num_links,
            "",
            self.topology.graph_key(),
        )
        plain = (
            Objective()
        )  # whose costs are 0: those of latencies need the longest path of all shards
        problem = Problem.create(self.topology, paths, plain, np.zeros((1, 0)), capacity=capacity)
        latency = self.topology.latency
        cost = self.objective.link_cost(
            self.topology, lambda: max(self.backend.apply(_longest_path, latency))
        )
        return dataclasses.replace(
            problem, objective=self.objective, link_cost=torch.from_numpy(cost)
        )

    def _draw(self, size: int, row: int) -> sample.Sample:
        """A sample of about ``size`` demands."""
        demands, chance = sample.choose(self._demand, size, row)
        ends = np.searchsorted(demands, self._first)
        of_shards = [
            demands[a:b] - first
            for (a, b), first in zip(itertools.pairwise(ends), self._first, strict=False)
        ]
        paths = path_subset.joined(self.backend.subsets(of_shards))
        value = torch.from_numpy(
            self._value[demands] if len(self._value) > 1 else self._value.repeat(len(demands))
        )
        return sample.of_chosen(self.network, demands, chance, self._demand[demands], value, paths)

    @torch.no_grad()
    def solve(
        self,
        *,
        gap: float = 1e-2,
        deadline: float = math.inf,
        max_iterations: int = 10_000,
        report: ProgressCallback | None = None,
    ) -> ShardedResult:
        """Iterate until the gap is certified, or the time or the iterations are used up.

        Args:
            gap, deadline, max_iterations, report: as in :func:`teal.solvers.pdhg.solve`.
        """
        begin, sent = time.perf_counter(), self.backend.sent_bytes
        self.backend.total("clear")  # what an earlier search has left
        passes = ShardPasses(
            self.backend, self._first, self.topology.num_links, self._search.num_paths
        )
        engine = FusedEngine(self.network, None, torch.float32, passes)
        starts = SampledStart(self.network, engine, gap, None, self._draw, len(self._demand))
        search = Search(
            self.network,
            engine,
            gap,
            max_iterations,
            report,
            begin,
            may_stall=False,
            sampled=starts,
            is_large=True,
        )
        iterations, stop = complete(search.iterating(Deadline(begin + deadline), warm=False))
        value, bound = search.value, search.bound
        if (
            self.network.solved is not self.network
        ):  # max_concurrent_flow: a utilisation was minimised
            bound = from_score(self.network, -bound)
            engine.shed(LAST_REFILL)
            shares = self.backend.apply(_least_share, self.network.capacity[0].numpy())
            value = torch.tensor([min([1.0, *shares])], dtype=torch.float64)
        return ShardedResult(
            value=float(value),
            bound=float(bound),
            sense=self.network.objective.rules.sense,
            prices=engine.best()[1][0].numpy(),
            iterations=iterations,
            rounds=passes.rounds,
            sent_bytes=self.backend.sent_bytes - sent,
            solve_s=time.perf_counter() - begin,
            stopped_by=stop,
        )

    def apply(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """The function's result for each shard's allocation (:class:`Allocated`), computed where
        the shard is.

        Args:
            function: function of the allocation and ``arguments``; with workers one that can be
                imported by its name.
            arguments: for all shards.
        """
        return self.backend.apply(function, *arguments)


def _least_share(allocated: Allocated, capacity: FloatArray) -> float:
    """Least share that is carried of a demand of a shard with a live path; infinite without such a
    demand.

    Args:
        allocated: the shard's allocation.
        capacity: (E,) Gbit/s in force.
    """
    failed = torch.from_numpy((capacity <= 0).astype(np.float64))[None]
    is_live = (
        allocated.paths.mask & (make_path_ops(allocated.paths).path_max(failed)[0][0] == 0).numpy()
    )
    counts = is_live.any(1) & (allocated.demands.demand > 0)
    return float(np.where(counts, allocated.splits.sum(1), np.inf).min(initial=np.inf))


def _longest_path(allocated: Allocated, latency: FloatArray) -> float:
    """Latency of the longest path of a shard, ms."""
    ops = make_path_ops(allocated.paths)
    return float(ops.path_sum(torch.from_numpy(latency[None])).max())
