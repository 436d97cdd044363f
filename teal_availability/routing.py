"""Ways of routing, and the traffic that arrives under each in every state of a network.

- *tunnels*: splits over candidate paths that were chosen before anything failed.  The ingress moves
  the traffic of failed paths to those that survive, in proportion to their splits, or it is lost.
  Where links are then too full, every path is cut by the fullest of its links.
- *reserved*: rates of :mod:`teal_availability.promises`, which no failure exceeds.
- *igp*: shortest paths after the failure, shared evenly (ECMP), and installed segment lists of
  some demands.  A link that is offered more than it carries drops from all in proportion; what
  arrives over several links is the product of what each passes.  A drop does not relieve the links
  behind it here, so that less arrives than in a network, where it does.  A list ends at the first
  segment that cannot be followed: what it takes is lost there.
- *solved*: splits over the candidate paths, and over paths that they lack in a state, solved anew
  for every state: to a certified gap, over all paths of the network, where not all demand fits.

Where demands have classes, a link serves an upper class first: of a class it carries at most the
capacity less what the upper classes offer.  Splits that are solved anew maximise the flow of the
highest class, then that of the next one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import scipy.sparse as sp
import torch

from teal import InputError, PathSet, PdhgResult, Problem, Topology, all_paths_bound, solve
from teal.formats.allocations import read_allocation, stored_paths
from teal.network.ecmp import METRICS, Dags, EcmpDag, igp_metric
from teal.network.path_links import path_links_of
from teal.network.reachability import with_surviving_paths
from teal.network.segment_lists import SegmentPolicies
from teal.pathops.segment_passes import load_inwards
from teal.runtime.arrays import AnyArray, BoolArray, FloatArray, Int64Array, IntArray
from teal.runtime.parallel import kernel
from teal_availability.components import Components
from teal_availability.matrix import (
    capacity_of,
    classes_of,
    crossings,
    demand_of,
    left_for,
    num_classes,
)
from teal_availability.states import States

_CHUNK_ENTRIES = 1 << 21  # states x demands computed together, 16 MiB of shares
_MAX_TOGETHER = 256  # states computed together; more gain nothing
_SOLVED_TOGETHER = 16  # states that PDHG solves at once
_ROUNDING = 1e-12  # share of a capacity by which a sum of rates may exceed it
# Certified gaps of the splits that minimise the largest utilisation, of which only whether they fit
# counts, and of the largest flow that tunnels carry where they do not.
_BALANCED_GAP = 1e-2
_USUAL_GAP = 1e-3


class Arrived(NamedTuple):
    """The traffic that arrives in some consecutive states.

    Attributes:
        share: (S, D) share of each demand; 1 of a demand of 0.
        most: (S,) share of all traffic that no splits exceed, in states whose shares are those of a
            search that ended near the optimum; NaN where they are exact.  None: all are exact.
    """

    share: FloatArray
    most: FloatArray | None = None


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
        works = np.ones((part.stop - part.start, components.links.shape[1]), dtype=bool)
        for row, down in enumerate(states.down[part]):
            for one in down:
                works[row] &= ~components.links[one]
        yield part, works


class PathSplits(NamedTuple):
    """Splits over P paths, those of each demand together.

    Attributes:
        demand: (P,) number of the demand of each path, ascending.
        split: (P,) share of that demand.
        crosses: (P, E) 1 where a path crosses a link.
    """

    demand: Int64Array
    split: FloatArray
    crosses: sp.csr_array

    @classmethod
    def of_candidates(cls, paths: PathSet, splits: torch.Tensor) -> PathSplits:
        """Splits (D, K) over candidate paths.

        Raises:
            InputError: splits over other paths.
        """
        if splits.shape != paths.mask.shape:
            expected = "a scheme that splits over the candidate paths"
            raise InputError("tunnels", "scheme", expected, "one with paths of its own")
        slot = path_links_of(paths).slot
        split = splits.to("cpu", torch.float64).numpy().reshape(-1)[slot]
        return cls(slot // paths.num_paths, split.clip(min=0), crossings(paths))

    @classmethod
    def installed(cls, file: Path, problem: Problem) -> PathSplits:
        """Splits of an allocation that ``teal solve --out`` or the service wrote, over its own
        paths.  Splits without a class are those of every class.

        Raises:
            InputError: no such file, another format, links that the network does not have, or no
                path of a demand.
        """
        stored = stored_paths(read_allocation(file), problem.topology, str(file), "split")
        names = [""] if problem.classes is None else problem.classes.names
        demands = list[int]()
        splits = list[float]()
        links_of = list[tuple[int, ...]]()
        pairs = problem.paths.pairs.tolist()
        for d, ((source, target), c) in enumerate(zip(pairs, classes_of(problem), strict=True)):
            of_pair = stored.get((source, target, ""), {})
            for links, split in stored.get((source, target, names[c]), of_pair).items():
                demands.append(d)
                splits.append(split)
                links_of.append(links)
        if not demands:
            expected = "paths between nodes that have traffic, of its classes if the file has any"
            raise InputError(str(file), "routers", expected, "none")
        ptr = np.cumsum([0, *map(len, links_of)])
        link = np.concatenate([np.array(links, dtype=np.int64) for links in links_of])
        crosses = sp.csr_array(
            (np.ones(len(link)), link, ptr), shape=(len(demands), problem.topology.num_links)
        )
        return cls(np.array(demands, dtype=np.int64), np.array(splits), crosses)


class Tunnels:
    """Splits that were chosen before anything failed.

    A state changes the flows of few demands, and the loads by these; paths through links that are
    then too full are cut.

    Args:
        problem: one matrix.
        splits: share of each demand on each path; what they leave of a demand is not sent.
        moves: whether the ingress moves the traffic of failed paths to those that survive.
    """

    def __init__(self, problem: Problem, splits: PathSplits, *, moves: bool = True) -> None:
        self._moves = moves
        self._demand = demand_of(problem)
        self._capacity = capacity_of(problem)
        self._demand_of = splits.demand
        self._path_ptr = np.searchsorted(splits.demand, np.arange(len(self._demand) + 1))
        self._crosses = splits.crosses
        self._by_link = self._crosses.tocsc()
        self._class_of = classes_of(problem)[self._demand_of]
        self._classes = num_classes(problem)
        whole = np.bincount(self._demand_of, splits.split, len(self._demand))
        self._split = splits.split / np.maximum(1.0, whole)[self._demand_of]
        self._whole = np.minimum(1.0, whole)
        self._dead = self._crosses @ (self._capacity <= 0).astype(float) > 0
        every = np.arange(len(self._demand))
        self._sent = self._moved(every, self._dead)
        flow = self._sent * self._demand[self._demand_of]
        self._load = np.array(
            [self._crosses.T @ (flow * (self._class_of == c)) for c in range(self._classes)]
        )

    @property
    def together(self) -> int:
        """States that are best computed together."""
        return min(_MAX_TOGETHER, max(1, _CHUNK_ENTRIES // max(1, len(self._demand))))

    def arrived(self, works: BoolArray) -> Arrived:
        """The traffic that arrives in states (S, E)."""
        share = np.stack([self._arrived(state) for state in works])
        share[:, self._demand <= 0] = 1.0
        return Arrived(share)

    def _arrived(self, state: BoolArray) -> FloatArray:
        failed = self._through(np.flatnonzero(~state & (self._capacity > 0)))
        dead = self._dead.copy()
        dead[failed] = True
        affected = np.unique(self._demand_of[failed[self._sent[failed] > 0]])
        paths = self._paths_of(affected)
        sent = self._sent.copy()
        sent[paths] = self._moved(affected, dead)
        change = (sent[paths] - self._sent[paths]) * self._demand[self._demand_of[paths]]
        entries, length = _entries(self._crosses.indptr, paths)
        links = len(self._capacity)
        place = self._crosses.indices[entries] + links * np.repeat(self._class_of[paths], length)
        of_links = np.bincount(place, np.repeat(change, length), self._classes * links)
        load: FloatArray = self._load + of_links.reshape(self._classes, links)
        capacity = np.where(state, self._capacity, 0.0)
        left = left_for(load, capacity)
        cut = np.ones_like(sent)
        full = (load > left + _ROUNDING * capacity) & (capacity > 0)
        for c, link in np.argwhere(full).tolist():
            through = self._through([link])
            through = through[self._class_of[through] == c]
            excess = load[c, link] / left[c, link] if left[c, link] > 0 else np.inf
            cut[through] = np.maximum(cut[through], excess)
        return np.bincount(self._demand_of, sent / cut, len(self._demand)).clip(max=1.0)

    def _through(self, links: Int64Array | list[int]) -> IntArray:
        """Paths over any of these links."""
        ptr = self._by_link.indptr
        each = [self._by_link.indices[ptr[link] : ptr[link + 1]] for link in links]
        return np.unique(np.concatenate(each)) if each else np.zeros(0, np.int32)

    def _paths_of(self, demands: Int64Array) -> Int64Array:
        """Paths of these demands, in order."""
        return _entries(self._path_ptr, demands)[0]

    def _moved(self, demands: Int64Array, dead: BoolArray) -> FloatArray:
        """Shares of these demands on each of their paths."""
        paths = self._paths_of(demands)
        share = np.where(dead[paths], 0.0, self._split[paths])
        if self._moves:
            left = np.bincount(self._demand_of[paths], share, len(self._demand))
            raised = np.divide(self._whole, left, out=np.zeros(len(left)), where=left > 0)
            share *= raised[self._demand_of[paths]]
        return share


def _entries(ptr: AnyArray, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Places of the entries of some rows of a sparse layout, and how many each row has."""
    first = ptr[rows]
    count = ptr[rows + 1] - first
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return np.repeat(first, count) + within, count


class Reserved:
    """Rates that are reserved on paths.

    Args:
        problem: one matrix.
        rates: (D, K) Gbit/s.
    """

    def __init__(self, problem: Problem, rates: FloatArray) -> None:
        self._problem = problem
        self._rates = rates

    @property
    def together(self) -> int:
        """States that are best computed together."""
        return min(_MAX_TOGETHER, max(1, _CHUNK_ENTRIES // max(1, self._rates.size)))

    def arrived(self, works: BoolArray) -> Arrived:
        """The traffic that arrives in states (S, E)."""
        demand = demand_of(self._problem)
        live = _failed(self._problem, works).path_mask.cpu().numpy()
        arriving = np.where(live, self._rates, 0.0).sum(-1)
        share = np.ones_like(arriving)
        np.divide(arriving, demand, out=share, where=np.broadcast_to(demand > 0, share.shape))
        return Arrived(np.minimum(share, 1.0))


class Solved:
    """Splits that are solved anew for every state.

    Where the splits that minimise the largest utilisation fit, they carry all that has a path; else
    the largest total flow is looked for, or that of each class, the highest first.  Candidate paths
    are given the paths that they lack in a state, so that every demand has one that the network
    connects, and the upper bound of a state holds over all paths of the network: it is proved by
    link prices along shortest paths.

    Args:
        problem: one matrix.
        gap: certified gap of each solution.
        max_latency: (D,) ms that a path of each demand may take, infinite for no limit; None for no
            limits.
    """

    def __init__(
        self, problem: Problem, gap: float = 1e-3, max_latency: FloatArray | None = None
    ) -> None:
        self._max_latency = max_latency
        self._problem = prioritised(problem).to(torch.float64)
        self._gap = gap
        self._is_one_program = self._problem.classes is None
        self._start = solve(self._problem, gap=gap).state if self._is_one_program else None

    @property
    def together(self) -> int:
        """States that are best computed together."""
        return _SOLVED_TOGETHER

    def arrived(self, works: BoolArray) -> Arrived:
        """The traffic that arrives in states (S, E)."""
        demand = demand_of(self._problem)
        problem = self._surviving(works)
        failed = _failed(balanced(problem), works)
        fullest = solve(failed, gap=_BALANCED_GAP).value.cpu().numpy()
        routable = np.asarray(failed.routable.cpu(), dtype=np.float64)
        share = np.where(demand > 0, routable, 1.0)
        most = np.full(len(works), np.nan)
        tight = np.flatnonzero(fullest > 1)
        if len(tight):
            flow = _failed(problem, works[tight])
            start = None
            if self._start is not None:
                new_columns = problem.paths.num_paths - self._problem.paths.num_paths
                splits = torch.nn.functional.pad(self._start.splits, (0, new_columns))
                start = dataclasses.replace(self._start, splits=splits).repeated(len(tight))
            result = solve(flow, gap=self._gap, warm_start=start)
            total = max(float(demand.sum()), 1e-300)
            # Nothing carries more than the demands that have a path.
            routed = share[tight] @ demand / total
            most[tight] = np.minimum(routed, self._most(problem, result, works[tight]) / total)
            carried = result.splits.sum(-1).clamp(max=1.0).cpu().numpy()
            share[tight] = np.where(demand > 0, carried, 1.0)
        return Arrived(share, most)

    def _surviving(self, works: BoolArray) -> Problem:
        """The matrix, with a path for each demand that the network connects in a state (S, E)."""
        problem = self._problem
        in_force = problem.topology.with_capacity(capacity_of(problem))
        failures = [np.flatnonzero(~state).tolist() for state in works]
        paths = with_surviving_paths(
            problem.paths, in_force, failures, max_latency=self._max_latency
        )
        return problem if paths is problem.paths else problem.with_paths(paths)

    def _most(self, problem: Problem, result: PdhgResult, works: BoolArray) -> FloatArray:
        """(S,) Gbit/s of all traffic that no splits over any paths exceed."""
        prices = result.prices
        whole = problem
        if problem.classes is not None:  # the bound of the classes is none of all traffic
            whole = _under(problem, "total_flow").to(torch.float64)
            prices = solve(_failed(whole, works), gap=self._gap).prices
        return np.asarray(all_paths_bound(_failed(whole, works), prices).cpu().numpy())


def balanced(problem: Problem) -> Problem:
    """One matrix under max_link_utilisation, without classes."""
    return _under(problem, "max_link_utilisation").to(torch.float64)


def prioritised(problem: Problem) -> Problem:
    """One matrix under priority where its demands have classes, else as it is."""
    if problem.classes is None:
        return problem
    return _under(problem, "priority")


def _under(problem: Problem, objective: str) -> Problem:
    """One matrix under another objective, of which only priority knows classes."""
    return Problem.create(
        problem.topology,
        problem.paths,
        objective,
        demand_of(problem)[None],
        capacity=capacity_of(problem),
        classes=problem.classes if objective == "priority" else None,
    )


def usual_splits(problem: Problem) -> torch.Tensor:
    """(D, K) splits that minimise the largest utilisation where all demand fits, else those of the
    largest total flow, or of the largest flow of each class, the highest first.
    """
    found = solve(balanced(problem), gap=_BALANCED_GAP)
    if float(found.value[0]) <= 1:
        return found.splits[0]
    return solve(prioritised(problem), gap=_USUAL_GAP).splits[0]


def _failed(problem: Problem, works: BoolArray) -> Problem:
    """One matrix in several states (S, E)."""
    demand = problem.demand.expand(len(works), -1)
    return problem.with_demand(demand).with_capacity(
        problem.capacity * torch.from_numpy(works).to(problem.capacity.device)
    )


class Igp:
    """Shortest paths after the failure, and segment lists of some demands over them.

    Args:
        problem: one matrix.
        metric: ``file``, ``hops``, ``latency`` or ``inverse-capacity``.
        policies: the lists; those of a pair of nodes are taken by all its classes.

    Raises:
        InputError: another metric; policies that steer what crosses a router, or along the paths of
            a flexible algorithm.
    """

    def __init__(
        self, problem: Problem, metric: str = "file", policies: SegmentPolicies | None = None
    ) -> None:
        topology = problem.topology
        if metric not in METRICS:
            raise InputError("igp", "metric", " or ".join(METRICS), repr(metric))
        self._capacity = capacity_of(problem)
        self._topology = dataclasses.replace(topology, capacity=self._capacity)
        self._dag = EcmpDag.of(self._topology, igp_metric(topology, metric))
        self._pairs = problem.paths.pairs
        self._demand = demand_of(problem)
        self._class_of = classes_of(problem)
        self._lists = _Lists(policies or SegmentPolicies.none(), topology, self._pairs)
        nodes = topology.num_nodes
        self._volume = np.zeros((num_classes(problem), nodes, nodes))
        place = self._class_of, self._pairs[:, 1], self._pairs[:, 0]
        straight = np.where(self._lists.policy_of < 0, self._demand, 0.0)
        np.add.at(self._volume, place, straight)
        taken = np.zeros((num_classes(problem), len(self._lists)))
        steered = np.flatnonzero(self._lists.policy_of >= 0)
        of_class = self._class_of[steered], self._lists.policy_of[steered]
        np.add.at(taken, of_class, self._demand[steered])
        self._taken = taken

    @property
    def together(self) -> int:
        """States that are best computed together."""
        return _SOLVED_TOGETHER

    def arrived(self, works: BoolArray) -> Arrived:
        """The traffic that arrives in states (S, E)."""
        share = np.ones((len(works), len(self._demand)))
        for row, state in enumerate(works):
            dag = self._dag.without(np.flatnonzero(~state))
            volumes = self._volume.copy()
            load = np.zeros((len(volumes), len(state)))
            self._lists.offer(dag, self._taken, volumes, load)
            for volume, of_class in zip(volumes, load, strict=True):
                _offer(dag.dags, dag.links.head, volume, of_class)
            left = left_for(load, np.where(state, self._capacity, 0.0))
            kept = np.divide(left, load, out=np.ones_like(load), where=load > left)
            passes = np.zeros_like(volumes)
            for of_class, arriving in zip(kept, passes, strict=True):
                _deliver(dag.dags, dag.links.head, of_class, arriving)
            share[row] = passes[self._class_of, self._pairs[:, 1], self._pairs[:, 0]]
            steered = self._lists.policy_of >= 0
            arriving = self._lists.arriving(dag, passes, kept)
            share[row, steered] = arriving[self._class_of[steered], self._lists.policy_of[steered]]
        share[:, self._demand <= 0] = 1.0
        return Arrived(share)


class _Lists:
    """Segment lists of some demands.

    Attributes:
        policy_of: (D,) number of the policy of each demand; -1 without one.

    Args:
        policies: lists by source and target; those between other nodes are left out.
        topology: the network.
        pairs: (D, 2) source and target of each demand.

    Raises:
        InputError: policies of another kind.
    """

    def __init__(self, policies: SegmentPolicies, topology: Topology, pairs: IntArray) -> None:
        expected = "lists of single demands over the IGP's paths (teal simulate follows others)"
        if policies.is_transit:
            raise InputError("igp", "lists", expected, "transit policies")
        if policies.algorithm is not None:
            raise InputError("igp", "lists", expected, "lists of a flexible algorithm")
        demands = [(source, target) for source, target in pairs.tolist()]
        between = set(demands)
        taken = [pair for pair in policies.lists if pair in between]
        if policies.lists and not taken:
            expected = "lists of a pair of nodes that has traffic"
            raise InputError("igp", "lists", expected, "those of other pairs")
        number = {pair: p for p, pair in enumerate(taken)}
        self.policy_of = np.array([number.get(pair, -1) for pair in demands], dtype=np.int64)
        self._steps = policies.steps(taken, topology.link_source)
        self._first = np.flatnonzero(self._steps.is_first)
        self._count = len(taken)

    def __len__(self) -> int:
        """Number of policies."""
        return self._count

    def offer(self, dag: EcmpDag, taken: FloatArray, volume: FloatArray, load: FloatArray) -> None:
        """Add what the lists send up to a segment that cannot be followed.

        Args:
            dag: shortest paths in a state.
            taken: (C, P) Gbit/s of each class and policy.
            volume: (C, N, N) Gbit/s to the first node from the second one.
            load: (C, E) Gbit/s of links that are adjacencies.
        """
        if not self._count:
            return
        steps = self._steps
        is_cut = ~steps.works(dag)
        cuts = np.cumsum(is_cut)  # of all lists, up to each segment
        lengths = np.diff(np.append(self._first, len(cuts)))
        cuts_before: Int64Array = np.repeat((cuts - is_cut)[self._first], lengths)
        sent = np.where(cuts == cuts_before, steps.share, 0.0)
        steps.add_traffic(volume, load, sent * taken[:, steps.policy])

    def arriving(self, dag: EcmpDag, passes: FloatArray, kept: FloatArray) -> FloatArray:
        """(C, P) share of each policy's traffic that arrives: of each list the product of what its
        segments pass.

        Args:
            dag: shortest paths in a state.
            passes: (C, N, N) share of the traffic to the first node from the second one that
                arrives.
            kept: (C, E) share that each link passes of what it is offered.
        """
        found = np.zeros((len(passes), self._count))
        if self._count:
            steps = self._steps
            of_step = np.where(steps.works(dag), steps.values(passes, kept), 0.0)
            of_list = np.multiply.reduceat(of_step, self._first, axis=1)
            policy = steps.policy[self._first]
            np.add.at(found.T, policy, (steps.share[self._first] * of_list).T)
        return found


@kernel
def _offer(dags: Dags, head: IntArray, volume: FloatArray, load: FloatArray) -> None:
    """Add to ``load`` (E,) what volumes (N, N) Gbit/s, to the first node from the second one, offer
    to each link.
    """
    passing = np.empty(volume.shape[1])
    for t in range(len(volume)):
        passing[:] = volume[t]
        load_inwards(t, head, dags, passing, load)


@kernel
def _deliver(dags: Dags, head: IntArray, kept: FloatArray, passes: FloatArray) -> None:
    """Fill ``passes`` (N, N), the share of the traffic to the first node from the second one that
    arrives, where each link passes a share ``kept`` (E,) of what it is offered.
    """
    for t in range(len(passes)):
        passes[t, t] = 1.0
        for i in range(1, dags.reached[t]):
            node = dags.order[t, i]
            arriving = 0.0
            for a in range(dags.arc_start[t, i], dags.arc_start[t, i + 1]):
                link = dags.arc[t, a]
                arriving += dags.share[t, a] * kept[link] * passes[t, head[link]]
            passes[t, node] = arriving
