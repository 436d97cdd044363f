"""Ways of routing, and the traffic that arrives under each in every state of a network.

- *tunnels*: splits over candidate paths that were chosen before anything failed.  The ingress moves
  the traffic of failed paths to those that survive, in proportion to their splits, or it is lost.
  Where links are then too full, every path is cut by the fullest of its links.
- *reserved*: rates of :mod:`teal_availability.promises`, which no failure exceeds.
- *igp*: shortest paths after the failure, shared evenly (ECMP).  A link that is offered more than
  it carries drops from all in proportion; what arrives over several links is the product of what
  each passes.  A drop does not relieve the links behind it here, so that less arrives than in a
  network, where it does.
- *solved*: splits over the candidate paths, solved anew for every state to a certified gap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch

from teal import Problem, project, solve
from teal.network.ecmp import Dags, EcmpDag, igp_metric
from teal.pathops.segment_passes import load_inwards
from teal.runtime.arrays import BoolArray, FloatArray, IntArray
from teal.runtime.parallel import kernel
from teal_availability.components import Components
from teal_availability.states import States

_CHUNK_ENTRIES = 1 << 21  # states x demands x paths computed together
_SOLVED_TOGETHER = 16
_MAX_TOGETHER = 256


class Arrived(NamedTuple):
    """The traffic that arrives in some consecutive states.

    Attributes:
        share: (S, D) share of each demand; 1 of a demand of 0.
        most: (S,) share of all traffic that could arrive, certainly no more.
    """

    share: FloatArray
    most: FloatArray


class Routing(Protocol):
    """A way of routing."""

    def arrived(self, works: BoolArray) -> Arrived:
        """The traffic that arrives in states.

        Args:
            works: (S, E) whether each link works.
        """
        ...

    @property
    def together(self) -> int:
        """States that are best computed together."""
        ...


def states_of(
    components: Components, states: States, size: int
) -> Iterator[tuple[slice, BoolArray]]:
    """Consecutive states, and (S, E) whether each link works in them.

    Args:
        components: components that are down in them.
        states: all states.
        size: number of states together.
    """
    for begin in range(0, len(states), size):
        part = slice(begin, min(len(states), begin + size))
        down = np.zeros((part.stop - part.start, len(components)), dtype=bool)
        for row, one in enumerate(states.down[part]):
            down[row, list(one)] = True
        yield part, ~(down @ components.links)


def _demand(problem: Problem) -> FloatArray:
    found: FloatArray = problem.demand[0].to("cpu", torch.float64).numpy()
    return found


def total_share(demand: FloatArray, share: FloatArray) -> FloatArray:
    """(S,) share of all traffic, of shares (S, D) of the demands; 1 without demand."""
    total = float(demand.sum())
    found: FloatArray = share @ demand / total if total > 0 else np.ones(len(share))
    return found


class Tunnels:
    """Splits that were chosen before anything failed.

    Args:
        problem: one matrix.
        splits: (D, K) share of each demand on each path.
        moves: whether the ingress moves the traffic of failed paths to those that survive.
    """

    def __init__(self, problem: Problem, splits: torch.Tensor, *, moves: bool = True) -> None:
        self._problem, self._moves = problem.to(torch.float64), moves
        self._splits = splits.to("cpu", torch.float64)

    @property
    def together(self) -> int:
        """States that are best computed together."""
        return min(_MAX_TOGETHER, max(1, _CHUNK_ENTRIES // max(1, self._splits.numel())))

    def arrived(self, works: BoolArray) -> Arrived:
        """The traffic that arrives in states (S, E)."""
        problem, demand = self._problem, _demand(self._problem)
        failed = problem.with_demand(problem.demand.expand(len(works), -1)).with_capacity(
            problem.capacity * torch.from_numpy(works)
        )
        splits = torch.where(failed.path_mask, self._splits, 0.0)
        if self._moves:
            left = splits.sum(-1, keepdim=True)
            whole = self._splits.sum(-1, keepdim=True)
            splits = torch.where(left > 0, splits * (whole / left.clamp(min=1e-300)), 0.0)
        share = project(failed, splits, refill=0).sum(-1).clamp(max=1.0).numpy()
        share = np.where(demand > 0, share, 1.0)
        return Arrived(share, total_share(demand, share))


class Reserved:
    """Rates that are reserved on paths.

    Args:
        problem: one matrix.
        rates: (D, K) Gbit/s.
    """

    def __init__(self, problem: Problem, rates: FloatArray) -> None:
        self._problem, self._rates = problem, rates

    @property
    def together(self) -> int:
        """States that are best computed together."""
        return min(_MAX_TOGETHER, max(1, _CHUNK_ENTRIES // max(1, self._rates.size)))

    def arrived(self, works: BoolArray) -> Arrived:
        """The traffic that arrives in states (S, E)."""
        demand = _demand(self._problem)
        capacity = self._problem.capacity[:1] * torch.from_numpy(works)
        failed = self._problem.with_demand(self._problem.demand.expand(len(works), -1))
        live = failed.with_capacity(capacity).path_mask.numpy()
        arriving = np.where(live, self._rates, 0.0).sum(-1)
        share = np.ones_like(arriving)
        np.divide(arriving, demand, out=share, where=np.broadcast_to(demand > 0, share.shape))
        share = np.minimum(share, 1.0)
        return Arrived(share, total_share(demand, share))


class Solved:
    """Splits that are solved anew for every state.

    Args:
        problem: one matrix.
        gap: certified gap of each solution.
    """

    def __init__(self, problem: Problem, gap: float = 0.01) -> None:
        self._problem, self._gap = problem.to(torch.float64), gap
        self._start = solve(self._problem, gap=gap).state

    @property
    def together(self) -> int:
        """States that are best computed together."""
        return _SOLVED_TOGETHER

    def arrived(self, works: BoolArray) -> Arrived:
        """The traffic that arrives in states (S, E)."""
        problem, demand = self._problem, _demand(self._problem)
        failed = problem.with_demand(problem.demand.expand(len(works), -1)).with_capacity(
            problem.capacity * torch.from_numpy(works)
        )
        result = solve(failed, gap=self._gap, warm_start=self._start.repeated(len(works)))
        share = result.splits.sum(-1).clamp(max=1.0).numpy()
        share = np.where(demand > 0, share, 1.0)
        total = max(float(demand.sum()), 1e-300)
        most = np.minimum(1.0, result.bound.numpy() / total)
        return Arrived(share, np.maximum(most, total_share(demand, share)))


class Igp:
    """Shortest paths after the failure.

    Args:
        problem: one matrix.
        metric: ``file``, ``hops``, ``latency`` or ``inverse-capacity``.
    """

    def __init__(self, problem: Problem, metric: str = "file") -> None:
        topology = problem.topology
        self._capacity = problem.capacity[0].to("cpu", torch.float64).numpy()
        self._topology = dataclasses.replace(topology, capacity=self._capacity)
        self._dag = EcmpDag.of(self._topology, igp_metric(topology, metric))
        self._pairs, self._demand = problem.paths.pairs, _demand(problem)
        self._volume = np.zeros((topology.num_nodes, topology.num_nodes))
        np.add.at(self._volume, (self._pairs[:, 1], self._pairs[:, 0]), self._demand)

    @property
    def together(self) -> int:
        """States that are best computed together."""
        return _SOLVED_TOGETHER

    def arrived(self, works: BoolArray) -> Arrived:
        """The traffic that arrives in states (S, E)."""
        share = np.ones((len(works), len(self._demand)))
        for row, state in enumerate(works):
            dag = self._dag.without(np.flatnonzero(~state))
            passes = np.zeros_like(self._volume)
            _deliver(
                dag.dags, dag.links.head, self._volume, np.where(state, self._capacity, 0.0), passes
            )
            share[row] = passes[self._pairs[:, 1], self._pairs[:, 0]]
        share[:, self._demand <= 0] = 1.0
        return Arrived(share, total_share(self._demand, share))


@kernel
def _deliver(
    dags: Dags, head: IntArray, volume: FloatArray, capacity: FloatArray, passes: FloatArray
) -> None:
    """Fill ``passes`` (N, N), the share of the traffic to the first node from the second one that
    arrives, of volumes (N, N) Gbit/s.
    """
    load, passing = np.zeros(len(capacity)), np.empty(volume.shape[1])
    for t in range(len(volume)):
        passing[:] = volume[t]
        load_inwards(t, head, dags, passing, load)
    for t in range(len(volume)):
        passes[t, t] = 1.0
        for i in range(1, dags.reached[t]):
            node, arriving = dags.order[t, i], 0.0
            for a in range(dags.arc_start[t, i], dags.arc_start[t, i + 1]):
                link = dags.arc[t, a]
                kept = 1.0 if load[link] <= capacity[link] else capacity[link] / load[link]
                arriving += dags.share[t, a] * kept * passes[t, head[link]]
            passes[t, node] = arriving
