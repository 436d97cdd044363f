"""Routing schemes, and the traffic that each delivers in every state of a network.

- *tunnels*: split ratios over candidate paths, chosen before any failure. The ingress reroutes the
  traffic of failed paths to surviving paths, in proportion to their splits, or the traffic is lost.
  On overloaded links, each path is scaled down by its most overloaded link.
- *reserved*: rates of :mod:`teal_availability.guarantees`, which fit in every state.
- *igp*: shortest paths after the failure, with equal-cost multipath (ECMP), and installed segment
  lists of some demands. An overloaded link drops from all traffic in proportion; the delivered
  share over several links is the product of their pass ratios. A drop does not relieve the links
  downstream, which underestimates the delivered traffic. A list ends at the first segment that
  cannot be followed; its traffic is lost there.
- *solved*: splits over the candidate paths, and over paths that they lack in a state, reoptimised
  in every state: to a certified gap over all paths of the network, where not all demand fits.

With classes, a link serves upper classes first: a class receives the capacity that the loads of the
upper classes leave. Reoptimised splits maximise the flow of the highest class, then of the next.
Entry points: classes with the protocol :class:`Routing`.
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
    demand_of,
    num_classes,
    path_link_incidence,
    residual_capacity,
)
from teal_availability.states import States

# States x demands of a batch: 16 MiB of shares.
_CHUNK_ENTRIES = 1 << 21
# States of a batch; more gain nothing.
_MAX_BATCH = 256
# States that PDHG solves at once.
_SOLVE_BATCH = 16
# Relative excess of a load over a capacity, for rounding.
_LOAD_TOLERANCE = 1e-12
# Certified gap of splits with the least largest utilisation; only whether they fit matters.
_UTILISATION_GAP = 1e-2
# Certified gap of the largest flow, for tunnels where not all demand fits.
_FLOW_GAP = 1e-3


class Delivery(NamedTuple):
    """Traffic that arrives in a batch of S states.

    Attributes:
        share: (S, D) delivered share of each demand; 1 of a demand of 0.
        max_total_share: (S,) upper bound on the delivered share of all traffic, in states whose
            shares come from a search that ended near the optimum; NaN in states with exact shares.
            None: all are exact.
    """

    share: FloatArray
    max_total_share: FloatArray | None = None


class Routing(Protocol):
    """Protocol of a routing scheme for one traffic matrix."""

    def delivery(self, link_up: BoolArray) -> Delivery:
        """Compute the traffic that arrives in several states.

        Args:
            link_up: (S, E) whether each link works.
        """
        ...

    @property
    def batch_size(self) -> int:
        """Number of states to compute in one call."""
        ...


def state_batches(
    components: Components, states: States, batch_size: int
) -> Iterator[tuple[slice, BoolArray]]:
    """Yield batches of consecutive states, as a slice and (S, E) whether each link works.

    Args:
        components: the failing components.
        states: all states.
        batch_size: number of states of a batch.
    """
    for start in range(0, len(states), batch_size):
        batch = slice(start, min(len(states), start + batch_size))
        link_up = np.ones((batch.stop - batch.start, components.links.shape[1]), dtype=bool)
        for row, down in enumerate(states.down[batch]):
            for component in down:
                link_up[row] &= ~components.links[component]
        yield batch, link_up


class PathSplits(NamedTuple):
    """Splits over P paths, those of each demand side by side.

    Attributes:
        demand_index: (P,) demand of each path, ascending.
        split: (P,) share of that demand.
        incidence: (P, E) 1 where a path crosses a link.
    """

    demand_index: Int64Array
    split: FloatArray
    incidence: sp.csr_array

    @classmethod
    def from_candidate_paths(cls, paths: PathSet, splits: torch.Tensor) -> PathSplits:
        """Build the splits from an array (D, K) over candidate paths.

        Raises:
            InputError: splits over other paths.
        """
        if splits.shape != paths.mask.shape:
            expected = "a scheme that splits over the candidate paths"
            raise InputError("tunnels", "scheme", expected, "a scheme with other paths")
        slot = path_links_of(paths).slot
        split = splits.to("cpu", torch.float64).numpy().reshape(-1)[slot]
        return cls(slot // paths.num_paths, split.clip(min=0), path_link_incidence(paths))

    @classmethod
    def from_allocation(cls, file: Path, problem: Problem) -> PathSplits:
        """Read the splits of an allocation, written by ``teal solve --out`` or the service, over
        the paths of the allocation. Splits without a class apply to every class.

        Raises:
            InputError: a missing file, another format, unknown links, or no path of any demand.
        """
        stored_splits = stored_paths(read_allocation(file), problem.topology, str(file), "split")
        names = [""] if problem.classes is None else problem.classes.names
        # List the paths of each demand; those of its class take precedence.
        demands = list[int]()
        splits = list[float]()
        path_links = list[tuple[int, ...]]()
        pairs = problem.paths.pairs.tolist()
        for demand_index, ((source, target), class_index) in enumerate(
            zip(pairs, classes_of(problem), strict=True)
        ):
            any_class_splits = stored_splits.get((source, target, ""), {})
            for links, split in stored_splits.get(
                (source, target, names[class_index]), any_class_splits
            ).items():
                demands.append(demand_index)
                splits.append(split)
                path_links.append(links)
        if not demands:
            expected = "paths between nodes that have traffic, of its classes if the file has any"
            raise InputError(str(file), "routers", expected, "none")
        # Path-link incidence in CSR form.
        ptr = np.cumsum([0, *map(len, path_links)])
        link = np.concatenate([np.array(links, dtype=np.int64) for links in path_links])
        incidence = sp.csr_array(
            (np.ones(len(link)), link, ptr), shape=(len(demands), problem.topology.num_links)
        )
        return cls(np.array(demands, dtype=np.int64), np.array(splits), incidence)


class Tunnels:
    """Splits chosen before any failure.

    A state changes the flows of few demands, so loads are updated incrementally; paths through
    overloaded links are scaled down.

    Args:
        problem: one matrix.
        splits: share of each demand on each path; the part of a demand without a split is not sent.
        moves: whether the ingress moves the traffic of failed paths to those that survive.
    """

    def __init__(self, problem: Problem, splits: PathSplits, *, moves: bool = True) -> None:
        self._reroutes = moves
        self._demand = demand_of(problem)
        self._capacity = capacity_of(problem)
        self._path_demand = splits.demand_index
        self._path_ptr = np.searchsorted(splits.demand_index, np.arange(len(self._demand) + 1))
        self._incidence = splits.incidence
        self._incidence_by_link = self._incidence.tocsc()
        self._path_class = classes_of(problem)[self._path_demand]
        self._num_classes = num_classes(problem)
        # Scale splits to a sum of at most 1 per demand.
        total_split = np.bincount(self._path_demand, splits.split, len(self._demand))
        self._split = splits.split / np.maximum(1.0, total_split)[self._path_demand]
        self._sent_share = np.minimum(1.0, total_split)
        # Flows and loads of each class without failures.
        self._is_dead = self._incidence @ (self._capacity <= 0).astype(float) > 0
        all_demands = np.arange(len(self._demand))
        self._nominal_share = self._rerouted_shares(all_demands, self._is_dead)
        flow = self._nominal_share * self._demand[self._path_demand]
        self._nominal_load = np.array(
            [
                self._incidence.T @ (flow * (self._path_class == class_index))
                for class_index in range(self._num_classes)
            ]
        )

    @property
    def batch_size(self) -> int:
        """Number of states to compute in one call."""
        return min(_MAX_BATCH, max(1, _CHUNK_ENTRIES // max(1, len(self._demand))))

    def delivery(self, link_up: BoolArray) -> Delivery:
        """Compute the traffic that arrives in states (S, E)."""
        share = np.stack([self._delivered_shares(state) for state in link_up])
        share[:, self._demand <= 0] = 1.0
        return Delivery(share)

    def _delivered_shares(self, state: BoolArray) -> FloatArray:
        """Return the delivered share (D,) of each demand in one state (E,)."""
        # Paths over failed links, and the demands that they carried.
        failed_paths = self._paths_through(np.flatnonzero(~state & (self._capacity > 0)))
        is_dead = self._is_dead.copy()
        is_dead[failed_paths] = True
        affected_demands = np.unique(
            self._path_demand[failed_paths[self._nominal_share[failed_paths] > 0]]
        )
        paths = self._paths_of(affected_demands)
        # Reroute the traffic of affected demands.
        path_share = self._nominal_share.copy()
        path_share[paths] = self._rerouted_shares(affected_demands, is_dead)
        # Update the load of each class and link.
        flow_change = (path_share[paths] - self._nominal_share[paths]) * self._demand[
            self._path_demand[paths]
        ]
        entries, num_entries = _row_entries(self._incidence.indptr, paths)
        num_links = len(self._capacity)
        class_link = self._incidence.indices[entries] + num_links * np.repeat(
            self._path_class[paths], num_entries
        )
        load_change = np.bincount(
            class_link, np.repeat(flow_change, num_entries), self._num_classes * num_links
        )
        load: FloatArray = self._nominal_load + load_change.reshape(self._num_classes, num_links)
        # Scale paths down by the most overloaded of their links.
        capacity = np.where(state, self._capacity, 0.0)
        residual = residual_capacity(load, capacity)
        overload = np.ones_like(path_share)
        is_full = (load > residual + _LOAD_TOLERANCE * capacity) & (capacity > 0)
        for class_index, link in np.argwhere(is_full).tolist():
            paths_through = self._paths_through([link])
            paths_through = paths_through[self._path_class[paths_through] == class_index]
            excess = (
                load[class_index, link] / residual[class_index, link]
                if residual[class_index, link] > 0
                else np.inf
            )
            overload[paths_through] = np.maximum(overload[paths_through], excess)
        return np.bincount(self._path_demand, path_share / overload, len(self._demand)).clip(
            max=1.0
        )

    def _paths_through(self, links: Int64Array | list[int]) -> IntArray:
        """Return the paths over any of these links."""
        ptr = self._incidence_by_link.indptr
        paths_by_link = [
            self._incidence_by_link.indices[ptr[link] : ptr[link + 1]] for link in links
        ]
        return np.unique(np.concatenate(paths_by_link)) if paths_by_link else np.zeros(0, np.int32)

    def _paths_of(self, demands: Int64Array) -> Int64Array:
        """Return the paths of these demands, in order."""
        return _row_entries(self._path_ptr, demands)[0]

    def _rerouted_shares(self, demands: Int64Array, is_dead: BoolArray) -> FloatArray:
        """Return the shares of these demands on each of their paths, after rerouting.

        Args:
            demands: indices of the demands.
            is_dead: (P,) whether each path fails.
        """
        paths = self._paths_of(demands)
        share = np.where(is_dead[paths], 0.0, self._split[paths])
        if self._reroutes:
            surviving_share = np.bincount(self._path_demand[paths], share, len(self._demand))
            scale = np.divide(
                self._sent_share,
                surviving_share,
                out=np.zeros(len(surviving_share)),
                where=surviving_share > 0,
            )
            share *= scale[self._path_demand[paths]]
        return share


def _row_entries(ptr: AnyArray, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the positions of the entries of some rows of a sparse layout, and the length of each
    row.
    """
    first = ptr[rows]
    lengths = ptr[rows + 1] - first
    offset = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(first, lengths) + offset, lengths


class Reserved:
    """Rates reserved on paths.

    Args:
        problem: one matrix.
        rates: (D, K) Gbit/s.
    """

    def __init__(self, problem: Problem, rates: FloatArray) -> None:
        self._problem = problem
        self._rates = rates

    @property
    def batch_size(self) -> int:
        """Number of states to compute in one call."""
        return min(_MAX_BATCH, max(1, _CHUNK_ENTRIES // max(1, self._rates.size)))

    def delivery(self, link_up: BoolArray) -> Delivery:
        """Compute the traffic that arrives in states (S, E)."""
        demand = demand_of(self._problem)
        survives = _in_link_states(self._problem, link_up).path_mask.cpu().numpy()
        delivered = np.where(survives, self._rates, 0.0).sum(-1)
        share = np.ones_like(delivered)
        np.divide(delivered, demand, out=share, where=np.broadcast_to(demand > 0, share.shape))
        return Delivery(np.minimum(share, 1.0))


class Solved:
    """Splits reoptimised in every state.

    Where the splits with the least largest utilisation fit, they carry all routable demand;
    otherwise the largest total flow is computed, or that of each class, the highest first.
    Candidate paths are extended in each state, so that every connected demand has a path. The upper
    bound of a state holds over all paths of the network: link prices prove it along shortest paths.

    Args:
        problem: one matrix.
        gap: certified gap of each solution.
        max_latency: (D,) latency limit in ms of the paths of each demand, infinite for no limit;
            None for no limits.
    """

    def __init__(
        self, problem: Problem, gap: float = 1e-3, max_latency: FloatArray | None = None
    ) -> None:
        self._max_latency = max_latency
        self._problem = as_priority_program(problem).to(torch.float64)
        self._gap = gap
        self._is_one_program = self._problem.classes is None
        self._warm_start = solve(self._problem, gap=gap).state if self._is_one_program else None

    @property
    def batch_size(self) -> int:
        """Number of states to compute in one call."""
        return _SOLVE_BATCH

    def delivery(self, link_up: BoolArray) -> Delivery:
        """Compute the traffic that arrives in states (S, E)."""
        demand = demand_of(self._problem)
        # States in which all routable demand fits.
        problem = self._with_surviving_paths(link_up)
        failed = _in_link_states(as_utilisation_program(problem), link_up)
        max_utilisation = solve(failed, gap=_UTILISATION_GAP).value.cpu().numpy()
        routable = np.asarray(failed.routable.cpu(), dtype=np.float64)
        share = np.where(demand > 0, routable, 1.0)
        max_total_share = np.full(len(link_up), np.nan)
        # Other states: the largest flow, warm-started from the state without failures.
        overloaded = np.flatnonzero(max_utilisation > 1)
        if len(overloaded):
            flow_problem = _in_link_states(problem, link_up[overloaded])
            warm_start = None
            if self._warm_start is not None:
                new_columns = problem.paths.num_paths - self._problem.paths.num_paths
                splits = torch.nn.functional.pad(self._warm_start.splits, (0, new_columns))
                warm_start = dataclasses.replace(self._warm_start, splits=splits).repeated(
                    len(overloaded)
                )
            result = solve(flow_problem, gap=self._gap, warm_start=warm_start)
            total = max(float(demand.sum()), 1e-300)
            # The bound is at most the routable demand.
            routable_share = share[overloaded] @ demand / total
            max_total_share[overloaded] = np.minimum(
                routable_share, self._max_total_flow(problem, result, link_up[overloaded]) / total
            )
            carried = result.splits.sum(-1).clamp(max=1.0).cpu().numpy()
            share[overloaded] = np.where(demand > 0, carried, 1.0)
        return Delivery(share, max_total_share)

    def _with_surviving_paths(self, link_up: BoolArray) -> Problem:
        """Return the matrix, with a path for each demand that the network connects in a state (S,
        E).
        """
        problem = self._problem
        current_topology = problem.topology.with_capacity(capacity_of(problem))
        failures = [np.flatnonzero(~state).tolist() for state in link_up]
        paths = with_surviving_paths(
            problem.paths, current_topology, failures, max_latency=self._max_latency
        )
        return problem if paths is problem.paths else problem.with_paths(paths)

    def _max_total_flow(
        self, problem: Problem, result: PdhgResult, link_up: BoolArray
    ) -> FloatArray:
        """Return the upper bound (S,) in Gbit/s on the total flow of any splits over any paths."""
        prices = result.prices
        flow_problem = problem
        # With classes, the bound does not cover all traffic: solve for the total flow.
        if problem.classes is not None:
            flow_problem = _with_objective(problem, "total_flow").to(torch.float64)
            prices = solve(_in_link_states(flow_problem, link_up), gap=self._gap).prices
        return np.asarray(
            all_paths_bound(_in_link_states(flow_problem, link_up), prices).cpu().numpy()
        )


def as_utilisation_program(problem: Problem) -> Problem:
    """Return one matrix under max_link_utilisation, without classes."""
    return _with_objective(problem, "max_link_utilisation").to(torch.float64)


def as_priority_program(problem: Problem) -> Problem:
    """Return one matrix under priority if its demands have classes, else unchanged."""
    if problem.classes is None:
        return problem
    return _with_objective(problem, "priority")


def _with_objective(problem: Problem, objective: str) -> Problem:
    """Return one matrix under another objective; only priority keeps its classes."""
    return Problem.create(
        problem.topology,
        problem.paths,
        objective,
        demand_of(problem)[None],
        capacity=capacity_of(problem),
        classes=problem.classes if objective == "priority" else None,
    )


def default_splits(problem: Problem) -> torch.Tensor:
    """Return (D, K) splits with the least largest utilisation if all demand fits, else with the
    largest total flow, or the largest flow of each class, the highest first.
    """
    utilisation_result = solve(as_utilisation_program(problem), gap=_UTILISATION_GAP)
    if float(utilisation_result.value[0]) <= 1:
        return utilisation_result.splits[0]
    return solve(as_priority_program(problem), gap=_FLOW_GAP).splits[0]


def _in_link_states(problem: Problem, link_up: BoolArray) -> Problem:
    """Return one matrix as a batch over several states (S, E)."""
    demand = problem.demand.expand(len(link_up), -1)
    return problem.with_demand(demand).with_capacity(
        problem.capacity * torch.from_numpy(link_up).to(problem.capacity.device)
    )


class Igp:
    """Shortest paths after the failure, and segment lists of some demands over them.

    Args:
        problem: one matrix.
        metric: ``file``, ``hops``, ``latency`` or ``inverse-capacity``.
        policies: the segment lists; the lists of a node pair apply to all its classes.

    Raises:
        InputError: another metric; policies that steer transit traffic, or use a flexible
            algorithm.
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
        self._list_traffic = _SegmentListTraffic(
            policies or SegmentPolicies.none(), topology, self._pairs
        )
        # Demand by IGP paths, (class, target, source).
        num_nodes = topology.num_nodes
        self._igp_demand = np.zeros((num_classes(problem), num_nodes, num_nodes))
        class_target_source = self._class_of, self._pairs[:, 1], self._pairs[:, 0]
        igp_demand = np.where(self._list_traffic.policy_index < 0, self._demand, 0.0)
        np.add.at(self._igp_demand, class_target_source, igp_demand)
        # Demand by segment lists, (class, policy).
        list_demand = np.zeros((num_classes(problem), len(self._list_traffic)))
        steered = np.flatnonzero(self._list_traffic.policy_index >= 0)
        class_policy = self._class_of[steered], self._list_traffic.policy_index[steered]
        np.add.at(list_demand, class_policy, self._demand[steered])
        self._list_demand = list_demand

    @property
    def batch_size(self) -> int:
        """Number of states to compute in one call."""
        return _SOLVE_BATCH

    def delivery(self, link_up: BoolArray) -> Delivery:
        """Compute the traffic that arrives in states (S, E)."""
        share = np.ones((len(link_up), len(self._demand)))
        for row, state in enumerate(link_up):
            # Offered load of each class and link, over surviving shortest paths.
            dag = self._dag.without(np.flatnonzero(~state))
            demand_volume = self._igp_demand.copy()
            load = np.zeros((len(demand_volume), len(state)))
            self._list_traffic.offer(dag, self._list_demand, demand_volume, load)
            for volume, by_link in zip(demand_volume, load, strict=True):
                _accumulate_load(dag.dags, dag.links.head, volume, by_link)
            # Pass ratio of each link for each class.
            residual = residual_capacity(load, np.where(state, self._capacity, 0.0))
            pass_ratio = np.divide(residual, load, out=np.ones_like(load), where=load > residual)
            # Delivered share between each pair of nodes.
            pair_share = np.zeros_like(demand_volume)
            for by_link, delivered in zip(pass_ratio, pair_share, strict=True):
                _propagate_delivery(dag.dags, dag.links.head, by_link, delivered)
            share[row] = pair_share[self._class_of, self._pairs[:, 1], self._pairs[:, 0]]
            # Delivered share of the demands on segment lists.
            steered = self._list_traffic.policy_index >= 0
            delivered = self._list_traffic.delivered_shares(dag, pair_share, pass_ratio)
            share[row, steered] = delivered[
                self._class_of[steered], self._list_traffic.policy_index[steered]
            ]
        share[:, self._demand <= 0] = 1.0
        return Delivery(share)


class _SegmentListTraffic:
    """Traffic of some demands over segment lists.

    Attributes:
        policy_index: (D,) policy of each demand; -1 without one.

    Args:
        policies: segment lists by source and target; those of other node pairs are ignored.
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
        demand_pairs = set(demands)
        steered_pairs = [pair for pair in policies.lists if pair in demand_pairs]
        if policies.lists and not steered_pairs:
            expected = "lists of a pair of nodes that has traffic"
            raise InputError("igp", "lists", expected, "lists of other pairs")
        policy_by_pair = {pair: index for index, pair in enumerate(steered_pairs)}
        self.policy_index = np.array(
            [policy_by_pair.get(pair, -1) for pair in demands], dtype=np.int64
        )
        self._segments = policies.steps(steered_pairs, topology.link_source)
        self._list_start = np.flatnonzero(self._segments.is_first)
        self._num_policies = len(steered_pairs)

    def __len__(self) -> int:
        """Return the number of policies."""
        return self._num_policies

    def offer(
        self, dag: EcmpDag, list_demand: FloatArray, volume: FloatArray, load: FloatArray
    ) -> None:
        """Add the traffic of the lists, up to the first segment that cannot be followed.

        Args:
            dag: shortest paths in a state.
            list_demand: (C, P) Gbit/s of each class and policy.
            volume: (C, N, N) Gbit/s to the first node from the second one.
            load: (C, E) Gbit/s of links that are adjacency segments.
        """
        if not self._num_policies:
            return
        segments = self._segments
        # Count the broken segments of a list up to each of its segments.
        is_broken = ~segments.works(dag)
        num_broken = np.cumsum(is_broken)
        lengths = np.diff(np.append(self._list_start, len(num_broken)))
        num_broken_before: Int64Array = np.repeat(
            (num_broken - is_broken)[self._list_start], lengths
        )
        sent_share = np.where(num_broken == num_broken_before, segments.share, 0.0)
        segments.add_traffic(volume, load, sent_share * list_demand[:, segments.policy])

    def delivered_shares(
        self, dag: EcmpDag, pair_share: FloatArray, pass_ratio: FloatArray
    ) -> FloatArray:
        """Return (C, P) delivered share of each policy's traffic: the product of the pass ratios of
        a list's segments, weighted over its lists.

        Args:
            dag: shortest paths in a state.
            pair_share: (C, N, N) delivered share of the traffic to the first node from the second
                one.
            pass_ratio: (C, E) share of the offered load that each link passes.
        """
        policy_share = np.zeros((len(pair_share), self._num_policies))
        if self._num_policies:
            segments = self._segments
            segment_share = np.where(
                segments.works(dag), segments.values(pair_share, pass_ratio), 0.0
            )
            list_share = np.multiply.reduceat(segment_share, self._list_start, axis=1)
            policy = segments.policy[self._list_start]
            np.add.at(policy_share.T, policy, (segments.share[self._list_start] * list_share).T)
        return policy_share


@kernel
def _accumulate_load(dags: Dags, head: IntArray, volume: FloatArray, load: FloatArray) -> None:
    """Add to ``load`` (E,) the load of each link by volumes (N, N) in Gbit/s, to the first node
    from the second one.
    """
    passing = np.empty(volume.shape[1])
    for t in range(len(volume)):
        passing[:] = volume[t]
        load_inwards(t, head, dags, passing, load)


@kernel
def _propagate_delivery(
    dags: Dags, head: IntArray, pass_ratio: FloatArray, pair_share: FloatArray
) -> None:
    """Fill ``pair_share`` (N, N), the delivered share of the traffic to the first node from the
    second one, for links that pass a share ``pass_ratio`` (E,) of their offered load.
    """
    for t in range(len(pair_share)):
        pair_share[t, t] = 1.0
        for i in range(1, dags.reached[t]):
            node = dags.order[t, i]
            delivered = 0.0
            for a in range(dags.arc_start[t, i], dags.arc_start[t, i + 1]):
                link = dags.arc[t, a]
                delivered += dags.share[t, a] * pass_ratio[link] * pair_share[t, head[link]]
            pair_share[t, node] = delivered
