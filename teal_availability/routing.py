"""Routing schemes, and the traffic that each delivers in every state of a network.

- *tunnels*: split ratios over candidate paths, chosen before any failure. The ingress reroutes the
  traffic of failed paths to surviving paths, in proportion to their splits, or the traffic is lost.
  On overloaded links, each path is scaled down by its most overloaded link.
- *reserved*: rates of :mod:`teal_availability.guarantees`, which fit in every state.
- *igp*: shortest paths after the failure, with equal-cost multipath (ECMP), and installed segment
  lists of some demands. An overloaded link drops from all traffic in proportion; the delivered
  share over several links is the product of their pass ratios (capacity over load, at most 1).
  Dropped traffic still counts in the loads of links downstream, which underestimates the delivered
  traffic. At the first segment without a path, the traffic of a list is lost.
- *solved*: splits reoptimised in every state, over the candidate paths and further paths of demands
  whose candidate paths all fail. If not all demand fits, the flow is maximised to a certified gap.

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

from teal import InputError, PathSet, Problem, SolveResult, Topology, all_paths_bound, solve
from teal.formats.allocations import read_allocation, stored_paths
from teal.network.ecmp import METRICS, Dags, EcmpDag, igp_metric
from teal.network.path_links import path_links_of
from teal.network.reachability import with_surviving_paths
from teal.network.segment_lists import SegmentPolicies
from teal.pathops.segment_passes import add_ecmp_loads
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

# Maximum number of states times demands of a batch: 16 MiB of shares.
_CHUNK_ENTRIES = 1 << 21
# Maximum number of states of a batch; larger batches gain nothing.
_MAX_BATCH = 256
# Number of states that PDHG solves in one batch.
_SOLVE_BATCH = 16
# Relative excess of a load over a capacity, for rounding.
_LOAD_TOLERANCE = 1e-12
# Certified gap of the minimum of the maximum link utilisation: only whether it exceeds 1 matters.
_UTILISATION_GAP = 1e-2
# Certified gap of the largest flow, for tunnels where not all demand fits.
_FLOW_GAP = 1e-3


class Delivery(NamedTuple):
    """Delivered traffic in a batch of S states.

    Attributes:
        share: (S, D) delivered share of each demand; 1 for a demand of 0.
        max_total_share: (S,) upper bound on the delivered share of all traffic, in states whose
            shares come from a solve with a gap; NaN in states with exact shares. None: all shares
            are exact.
    """

    share: FloatArray
    max_total_share: FloatArray | None = None


class Routing(Protocol):
    """Protocol of a routing scheme for one traffic matrix."""

    def delivery(self, link_up: BoolArray) -> Delivery:
        """Compute the delivered traffic in several states.

        Args:
            link_up: (S, E) whether each link works.
        """
        ...

    @property
    def batch_size(self) -> int:
        """Number of states to compute in one call of :meth:`delivery`."""
        ...


def state_batches(
    components: Components, states: States, batch_size: int
) -> Iterator[tuple[slice, BoolArray]]:
    """Yield batches of S consecutive states: their slice, and (S, E) whether each link works.

    Args:
        components: the failing components.
        states: all states.
        batch_size: number of states of a batch.
    """
    for start in range(0, len(states), batch_size):
        batch = slice(start, min(len(states), start + batch_size))
        link_up = np.ones((batch.stop - batch.start, components.links.shape[1]), dtype=bool)
        for row, failed_components in enumerate(states.down[batch]):
            for component in failed_components:
                link_up[row] &= ~components.links[component]
        yield batch, link_up


class PathSplits(NamedTuple):
    """Split ratios of demands over P paths, which are sorted by demand.

    Attributes:
        demand_index: (P,) demand of each path, ascending.
        split: (P,) share of the demand on each path.
        incidence: (P, E) 1 where a path crosses a link.
    """

    demand_index: Int64Array
    split: FloatArray
    incidence: sp.csr_array

    @classmethod
    def from_candidate_paths(cls, paths: PathSet, splits: torch.Tensor) -> PathSplits:
        """Build the splits from an array over candidate paths.

        Args:
            paths: candidate paths, up to K for each of D demands.
            splits: (D, K) share of each demand on its paths; negative ones count as 0.

        Raises:
            InputError: an array of another shape.
        """
        if splits.shape != paths.mask.shape:
            raise InputError.invalid(
                "tunnels",
                "scheme",
                "the scheme does not split over the candidate paths",
                "choose another scheme",
            )
        # Indices d K + k of the P paths in the flat (D, K) array.
        slot = path_links_of(paths).slot
        split = splits.to("cpu", torch.float64).numpy().reshape(-1)[slot]
        return cls(slot // paths.num_paths, split.clip(min=0), path_link_incidence(paths))

    @classmethod
    def from_allocation(cls, file: Path, problem: Problem) -> PathSplits:
        """Read paths and splits of an allocation, written by ``teal solve --out`` or the service.

        Splits without a class apply to every class that has no splits of its own.

        Args:
            file: the allocation.
            problem: one matrix, whose demands get the splits.

        Raises:
            InputError: a missing file, another format, unknown links, or no path for any demand.
        """
        stored_splits = stored_paths(read_allocation(file), problem.topology, str(file), "split")
        class_names = [""] if problem.classes is None else problem.classes.names
        # List the paths of each demand; splits of its class take precedence.
        demand_indices = list[int]()
        splits = list[float]()
        path_links = list[tuple[int, ...]]()
        pairs = problem.paths.pairs.tolist()
        for demand_index, ((source, target), class_index) in enumerate(
            zip(pairs, classes_of(problem), strict=True)
        ):
            # By the links of each path: splits without a class are the default.
            classless_splits = stored_splits.get((source, target, ""), {})
            for links, split in stored_splits.get(
                (source, target, class_names[class_index]), classless_splits
            ).items():
                demand_indices.append(demand_index)
                splits.append(split)
                path_links.append(links)
        if not demand_indices:
            raise InputError.invalid(
                str(file),
                "routers",
                "the allocation has no path for any demand of the traffic; give an allocation of "
                "this network and traffic",
            )
        # Path-link incidence in CSR form.
        path_ptr = np.cumsum([0, *map(len, path_links)])
        link_indices = np.concatenate([np.array(links, dtype=np.int64) for links in path_links])
        incidence = sp.csr_array(
            (np.ones(len(link_indices)), link_indices, path_ptr),
            shape=(len(demand_indices), problem.topology.num_links),
        )
        return cls(np.array(demand_indices, dtype=np.int64), np.array(splits), incidence)


class Tunnels:
    """Routing scheme with split ratios chosen before any failure.

    A failure changes the flows of few demands, so loads are updated incrementally. A path through
    overloaded links is scaled down by the largest ratio of load to capacity on its links.

    Args:
        problem: one matrix.
        splits: share of each demand on each path; the rest of a demand is not sent.
        moves: whether the ingress moves the traffic of failed paths to the surviving paths of the
            demand, in proportion to their splits; otherwise it is lost.
    """

    def __init__(self, problem: Problem, splits: PathSplits, *, moves: bool = True) -> None:
        # Whether the traffic of failed paths moves to surviving paths.
        self._reroutes = moves
        self._demand = demand_of(problem)
        self._capacity = capacity_of(problem)
        # Paths in CSR form: (P,) demand of each path, (D + 1,) first path of each demand, and links
        # of each path.
        self._path_demand = splits.demand_index
        self._path_ptr = np.searchsorted(splits.demand_index, np.arange(len(self._demand) + 1))
        self._incidence = splits.incidence
        self._incidence_by_link = self._incidence.tocsc()
        self._path_class = classes_of(problem)[self._path_demand]
        self._num_classes = num_classes(problem)
        # Scale splits to a sum of at most 1 per demand, which is the share that the demand sends.
        total_split = np.bincount(self._path_demand, splits.split, len(self._demand))
        self._split = splits.split / np.maximum(1.0, total_split)[self._path_demand]
        self._sent_share = np.minimum(1.0, total_split)
        # Nominal state, without failures: shares (P,) of the demands on their paths, and loads
        # (C, E) of each class. A path over a link of capacity 0 is dead.
        self._is_dead_path = self._incidence @ (self._capacity <= 0).astype(float) > 0
        all_demands = np.arange(len(self._demand))
        self._nominal_share = self._rerouted_shares(all_demands, self._is_dead_path)
        flow = self._nominal_share * self._demand[self._path_demand]
        self._nominal_load = np.array(
            [
                self._incidence.T @ (flow * (self._path_class == class_index))
                for class_index in range(self._num_classes)
            ]
        )

    @property
    def batch_size(self) -> int:
        """Number of states to compute in one call of :meth:`delivery`."""
        return min(_MAX_BATCH, max(1, _CHUNK_ENTRIES // max(1, len(self._demand))))

    def delivery(self, link_up: BoolArray) -> Delivery:
        """Compute the delivered traffic in S states.

        Args:
            link_up: (S, E) whether each link works in each state.
        """
        share = np.stack([self._delivered_shares(state) for state in link_up])
        share[:, self._demand <= 0] = 1.0
        return Delivery(share)

    def _delivered_shares(self, state: BoolArray) -> FloatArray:
        """Return the delivered share (D,) of each demand in one state.

        Args:
            state: (E,) whether each link works.
        """
        # Find the paths over failed links, and the demands with traffic on them.
        failed_paths = self._paths_through(np.flatnonzero(~state & (self._capacity > 0)))
        is_failed_path = self._is_dead_path.copy()
        is_failed_path[failed_paths] = True
        affected_demands = np.unique(
            self._path_demand[failed_paths[self._nominal_share[failed_paths] > 0]]
        )
        rerouted_paths = self._paths_of(affected_demands)
        # Reroute the traffic of affected demands: (P,) shares of the demands on their paths.
        path_share = self._nominal_share.copy()
        path_share[rerouted_paths] = self._rerouted_shares(affected_demands, is_failed_path)
        # Update the load (C, E) of each class and link: each rerouted path adds its change of flow
        # to all of its links; the position of (c, e) is c E + e.
        flow_change = (
            path_share[rerouted_paths] - self._nominal_share[rerouted_paths]
        ) * self._demand[self._path_demand[rerouted_paths]]
        incidence_positions, links_per_path = _row_entries(self._incidence.indptr, rerouted_paths)
        num_links = len(self._capacity)
        class_link_index = self._incidence.indices[incidence_positions] + num_links * np.repeat(
            self._path_class[rerouted_paths], links_per_path
        )
        load_change = np.bincount(
            class_link_index, np.repeat(flow_change, links_per_path), self._num_classes * num_links
        )
        load: FloatArray = self._nominal_load + load_change.reshape(self._num_classes, num_links)
        # Ratio of load to residual capacity on the most overloaded link of each path, at least 1.
        capacity = np.where(state, self._capacity, 0.0)
        residual = residual_capacity(load, capacity)
        path_overload = np.ones_like(path_share)
        is_overloaded = (load > residual + _LOAD_TOLERANCE * capacity) & (capacity > 0)
        for class_index, link in np.argwhere(is_overloaded).tolist():
            overloaded_paths = self._paths_through([link])
            overloaded_paths = overloaded_paths[self._path_class[overloaded_paths] == class_index]
            link_overload = (
                load[class_index, link] / residual[class_index, link]
                if residual[class_index, link] > 0
                else np.inf
            )
            path_overload[overloaded_paths] = np.maximum(
                path_overload[overloaded_paths], link_overload
            )
        # Delivered share of each demand, summed over its scaled paths.
        return np.bincount(self._path_demand, path_share / path_overload, len(self._demand)).clip(
            max=1.0
        )

    def _paths_through(self, links: Int64Array | list[int]) -> IntArray:
        """Return the indices of the paths that cross at least one of some links, ascending.

        Args:
            links: indices of the links.
        """
        ptr = self._incidence_by_link.indptr
        paths_by_link = [
            self._incidence_by_link.indices[ptr[link] : ptr[link + 1]] for link in links
        ]
        return np.unique(np.concatenate(paths_by_link)) if paths_by_link else np.zeros(0, np.int32)

    def _paths_of(self, demands: Int64Array) -> Int64Array:
        """Return the indices of all paths of some demands, demand by demand.

        Args:
            demands: indices of the demands.
        """
        return _row_entries(self._path_ptr, demands)[0]

    def _rerouted_shares(self, demands: Int64Array, is_failed_path: BoolArray) -> FloatArray:
        """Return the share of its demand on each path of some demands, after failures.

        With rerouting, the shares of surviving paths are scaled so that the demand sends the same
        total as before.

        Args:
            demands: indices of the demands.
            is_failed_path: (P,) whether each path fails.

        Returns:
            shares of the paths of these demands, demand by demand.
        """
        paths = self._paths_of(demands)
        path_share = np.where(is_failed_path[paths], 0.0, self._split[paths])
        # Send the total of the demand over its surviving paths, in proportion to their splits.
        if self._reroutes:
            surviving_share = np.bincount(self._path_demand[paths], path_share, len(self._demand))
            scale = np.divide(
                self._sent_share,
                surviving_share,
                out=np.zeros(len(surviving_share)),
                where=surviving_share > 0,
            )
            path_share *= scale[self._path_demand[paths]]
        return path_share


def _row_entries(ptr: AnyArray, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the positions of the entries of some rows of a CSR layout, row by row, and the number
    of entries of each row.

    Args:
        ptr: (num_rows + 1,) the entries of row i are at positions ``ptr[i]:ptr[i + 1]``.
        rows: indices of the selected rows.
    """
    # Position of each entry: the first position of its row, plus its offset within the row.
    first_entry = ptr[rows]
    row_lengths = ptr[rows + 1] - first_entry
    offset_in_row = np.arange(row_lengths.sum()) - np.repeat(
        np.cumsum(row_lengths) - row_lengths, row_lengths
    )
    return np.repeat(first_entry, row_lengths) + offset_in_row, row_lengths


class Reserved:
    """Routing scheme with rates reserved on paths, within the capacities in every state.

    Args:
        problem: one matrix.
        rates: (D, K) reserved Gbit/s on each path.
    """

    def __init__(self, problem: Problem, rates: FloatArray) -> None:
        self._problem = problem
        self._rates = rates

    @property
    def batch_size(self) -> int:
        """Number of states to compute in one call of :meth:`delivery`."""
        return min(_MAX_BATCH, max(1, _CHUNK_ENTRIES // max(1, self._rates.size)))

    def delivery(self, link_up: BoolArray) -> Delivery:
        """Compute the delivered traffic in S states.

        Args:
            link_up: (S, E) whether each link works in each state.
        """
        demand = demand_of(self._problem)
        survives = _in_link_states(self._problem, link_up).path_mask.cpu().numpy()
        delivered = np.where(survives, self._rates, 0.0).sum(-1)
        share = np.ones_like(delivered)
        np.divide(delivered, demand, out=share, where=np.broadcast_to(demand > 0, share.shape))
        return Delivery(np.minimum(share, 1.0))


class Solved:
    """Routing scheme with split ratios reoptimised in every state.

    First the maximum link utilisation is minimised. If it is at most 1, all routable demand is
    delivered. Otherwise the total flow is maximised, or that of each class, the highest first.
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
        # Without classes, the flow of the network without failures is a warm start.
        self._gap = gap
        self._is_without_classes = self._problem.classes is None
        self._warm_start = solve(self._problem, gap=gap).state if self._is_without_classes else None

    @property
    def batch_size(self) -> int:
        """Number of states to compute in one call of :meth:`delivery`."""
        return _SOLVE_BATCH

    def delivery(self, link_up: BoolArray) -> Delivery:
        """Compute the delivered traffic in S states.

        Args:
            link_up: (S, E) whether each link works in each state.
        """
        demand = demand_of(self._problem)
        # Minimise the maximum link utilisation in each state; at most 1 means that all demand fits.
        extended_problem = self._with_surviving_paths(link_up)
        failed_problem = _in_link_states(as_utilisation_program(extended_problem), link_up)
        max_utilisation = solve(failed_problem, gap=_UTILISATION_GAP).value.cpu().numpy()
        # (S, D) delivered shares where all demand fits: 1 for each demand with a path, else 0.
        routable = np.asarray(failed_problem.routable.cpu(), dtype=np.float64)
        share = np.where(demand > 0, routable, 1.0)
        max_total_share = np.full(len(link_up), np.nan)
        # In the other states maximise the flow, with a warm start from the state without failures.
        overloaded_states = np.flatnonzero(max_utilisation > 1)
        if len(overloaded_states):
            flow_problem = _in_link_states(extended_problem, link_up[overloaded_states])
            # Candidate paths may have been added: their splits are 0 in the warm start.
            warm_start = None
            if self._warm_start is not None:
                num_added_paths = extended_problem.paths.num_paths - self._problem.paths.num_paths
                splits = torch.nn.functional.pad(self._warm_start.splits, (0, num_added_paths))
                warm_start = dataclasses.replace(self._warm_start, splits=splits).repeated(
                    len(overloaded_states)
                )
            result = solve(flow_problem, gap=self._gap, warm_start=warm_start)
            # Total demand, never 0, so that the division is defined.
            total_demand = max(float(demand.sum()), 1e-300)
            # Upper bound on the delivered share: by link prices, and by the routable demand.
            routable_share = share[overloaded_states] @ demand / total_demand
            max_total_share[overloaded_states] = np.minimum(
                routable_share,
                self._max_total_flow(extended_problem, result, link_up[overloaded_states])
                / total_demand,
            )
            # Delivered shares of the overloaded states: the splits of the largest flow.
            delivered_share = result.splits.sum(-1).clamp(max=1.0).cpu().numpy()
            share[overloaded_states] = np.where(demand > 0, delivered_share, 1.0)
        return Delivery(share, max_total_share)

    def _with_surviving_paths(self, link_up: BoolArray) -> Problem:
        """Return the problem with added candidate paths, so that each demand has a path in every
        state that connects its source and target.

        Args:
            link_up: (S, E) whether each link works in each state.
        """
        problem = self._problem
        current_topology = problem.topology.with_capacity(capacity_of(problem))
        failed_links = [np.flatnonzero(~state).tolist() for state in link_up]
        paths = with_surviving_paths(
            problem.paths, current_topology, failed_links, max_latency=self._max_latency
        )
        return problem if paths is problem.paths else problem.with_paths(paths)

    def _max_total_flow(
        self, problem: Problem, result: SolveResult, link_up: BoolArray
    ) -> FloatArray:
        """Return an upper bound (S,) in Gbit/s on the total flow over any paths of the network.

        Args:
            problem: one matrix with the paths of the solve.
            result: solution of the S states; without classes its link prices give the bound.
            link_up: (S, E) whether each link works in each state.
        """
        prices = result.prices
        flow_problem = problem
        # With classes, the prices belong to the flow of single classes: solve for the total flow.
        if problem.classes is not None:
            flow_problem = _with_objective(problem, "total_flow").to(torch.float64)
            prices = solve(_in_link_states(flow_problem, link_up), gap=self._gap).prices
        return np.asarray(
            all_paths_bound(_in_link_states(flow_problem, link_up), prices).cpu().numpy()
        )


def as_utilisation_program(problem: Problem) -> Problem:
    """Return the problem of one matrix with the objective max_link_utilisation, in float64 and
    without classes.
    """
    return _with_objective(problem, "max_link_utilisation").to(torch.float64)


def as_priority_program(problem: Problem) -> Problem:
    """Return the problem of one matrix with the objective priority if its demands have classes,
    else unchanged.
    """
    if problem.classes is None:
        return problem
    return _with_objective(problem, "priority")


def _with_objective(problem: Problem, objective: str) -> Problem:
    """Return the problem of one matrix with another objective; only priority keeps its classes.

    Args:
        problem: one matrix.
        objective: name of the new objective.
    """
    return Problem.create(
        problem.topology,
        problem.paths,
        objective,
        demand_of(problem)[None],
        capacity=capacity_of(problem),
        classes=problem.classes if objective == "priority" else None,
    )


def default_splits(problem: Problem) -> torch.Tensor:
    """Return the default split ratios (D, K) of tunnels.

    They minimise the maximum link utilisation if all demand fits. Otherwise they maximise the total
    flow, or the flow of each class, the highest first.
    """
    utilisation_result = solve(as_utilisation_program(problem), gap=_UTILISATION_GAP)
    if float(utilisation_result.value[0]) <= 1:
        return utilisation_result.splits[0]
    return solve(as_priority_program(problem), gap=_FLOW_GAP).splits[0]


def _in_link_states(problem: Problem, link_up: BoolArray) -> Problem:
    """Return a batch with one matrix in S states: the capacity of failed links is 0.

    Args:
        problem: one matrix.
        link_up: (S, E) whether each link works in each state.
    """
    demand = problem.demand.expand(len(link_up), -1)
    return problem.with_demand(demand).with_capacity(
        problem.capacity * torch.from_numpy(link_up).to(problem.capacity.device)
    )


class Igp:
    """Routing scheme of an IGP with ECMP, which converges after each failure; some demands follow
    segment lists.

    Args:
        problem: one matrix.
        metric: ``file``, ``hops``, ``latency`` or ``inverse-capacity``.
        policies: segment lists by node pair, for all its classes; None for none.

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
        # Shortest paths of the network without failures, and the demands.
        self._capacity = capacity_of(problem)
        self._topology = dataclasses.replace(topology, capacity=self._capacity)
        self._dag = EcmpDag.of(self._topology, igp_metric(topology, metric))
        self._pairs = problem.paths.pairs
        self._demand = demand_of(problem)
        self._class_of = classes_of(problem)
        # Demands that follow segment lists.
        self._list_traffic = _SegmentListTraffic(
            policies or SegmentPolicies.none(), topology, self._pairs
        )
        # (C, N, N) Gbit/s on shortest paths, by class, target and source.
        num_nodes = topology.num_nodes
        self._igp_demand = np.zeros((num_classes(problem), num_nodes, num_nodes))
        class_target_source = self._class_of, self._pairs[:, 1], self._pairs[:, 0]
        # A demand without a policy (index -1) follows shortest paths.
        igp_demand = np.where(self._list_traffic.policy_index < 0, self._demand, 0.0)
        np.add.at(self._igp_demand, class_target_source, igp_demand)
        # (C, policies) Gbit/s on segment lists, by class and policy.
        list_demand = np.zeros((num_classes(problem), len(self._list_traffic)))
        steered_demands = np.flatnonzero(self._list_traffic.policy_index >= 0)
        class_policy = (
            self._class_of[steered_demands],
            self._list_traffic.policy_index[steered_demands],
        )
        np.add.at(list_demand, class_policy, self._demand[steered_demands])
        self._list_demand = list_demand

    @property
    def batch_size(self) -> int:
        """Number of states to compute in one call of :meth:`delivery`."""
        return _SOLVE_BATCH

    def delivery(self, link_up: BoolArray) -> Delivery:
        """Compute the delivered traffic in S states.

        Args:
            link_up: (S, E) whether each link works in each state.
        """
        share = np.ones((len(link_up), len(self._demand)))
        for row, state in enumerate(link_up):
            # Offered load (C, E) of each class and link: the traffic of segment lists adds to the
            # traffic (C, N, N) between nodes on shortest paths after the failure.
            dag = self._dag.without(np.flatnonzero(~state))
            demand_volume = self._igp_demand.copy()
            offered_load = np.zeros((len(demand_volume), len(state)))
            self._list_traffic.offer(dag, self._list_demand, demand_volume, offered_load)
            for volume, by_link in zip(demand_volume, offered_load, strict=True):
                _accumulate_load(dag.dags, dag.links.head, volume, by_link)
            # Pass ratio (C, E): residual capacity over load, at most 1.
            residual = residual_capacity(offered_load, np.where(state, self._capacity, 0.0))
            pass_ratio = np.divide(
                residual,
                offered_load,
                out=np.ones_like(offered_load),
                where=offered_load > residual,
            )
            # Delivered share (C, N, N) between each pair of nodes, by target and source.
            pair_share = np.zeros_like(demand_volume)
            for by_link, delivered in zip(pass_ratio, pair_share, strict=True):
                _propagate_delivery(dag.dags, dag.links.head, by_link, delivered)
            share[row] = pair_share[self._class_of, self._pairs[:, 1], self._pairs[:, 0]]
            # Delivered share of the demands on segment lists.
            is_steered = self._list_traffic.policy_index >= 0
            delivered = self._list_traffic.delivered_shares(dag, pair_share, pass_ratio)
            share[row, is_steered] = delivered[
                self._class_of[is_steered], self._list_traffic.policy_index[is_steered]
            ]
        share[:, self._demand <= 0] = 1.0
        return Delivery(share)


class _SegmentListTraffic:
    """Traffic of the demands that follow segment lists.

    Attributes:
        policy_index: (D,) policy of each demand; -1 without one.

    Args:
        policies: segment lists by source and target; those of other node pairs are ignored.
        topology: the network.
        pairs: (D, 2) source and target of each demand.

    Raises:
        InputError: transit policies, policies of a flexible algorithm, or only policies of node
            pairs without traffic.
    """

    def __init__(self, policies: SegmentPolicies, topology: Topology, pairs: IntArray) -> None:
        """Select the policies of node pairs with traffic, and list their segments.

        Args:
            policies: segment lists by source and target; those of other node pairs are ignored.
            topology: the network.
            pairs: (D, 2) source and target of each demand.

        Raises:
            InputError: transit policies, policies of a flexible algorithm, or only policies of node
                pairs without traffic.
        """
        remedy = "use lists of single demands over the IGP's paths, or teal simulate"
        if policies.is_transit:
            raise InputError.invalid("igp", "lists", "transit policies are not supported", remedy)
        if policies.algorithm is not None:
            raise InputError.invalid(
                "igp", "lists", "lists of a flexible algorithm are not supported", remedy
            )
        # Policies of node pairs with traffic; each demand has the index of its policy, or -1.
        pair_of_demand = [(source, target) for source, target in pairs.tolist()]
        traffic_pairs = set(pair_of_demand)
        steered_pairs = [pair for pair in policies.lists if pair in traffic_pairs]
        if policies.lists and not steered_pairs:
            raise InputError.invalid(
                "igp",
                "lists",
                "no list belongs to a node pair that has traffic; give the lists of this traffic",
            )
        policy_by_pair = {pair: index for index, pair in enumerate(steered_pairs)}
        self.policy_index = np.array(
            [policy_by_pair.get(pair, -1) for pair in pair_of_demand], dtype=np.int64
        )
        # Segments of all lists, and the first segment of each list.
        self._segments = policies.steps(steered_pairs, topology.link_source)
        self._list_start = np.flatnonzero(self._segments.is_first)
        self._num_policies = len(steered_pairs)

    def __len__(self) -> int:
        """Return the number of policies that steer demands of the traffic."""
        return self._num_policies

    def offer(
        self, dag: EcmpDag, list_demand: FloatArray, volume: FloatArray, load: FloatArray
    ) -> None:
        """Add the traffic of the segment lists; each list carries it up to its first segment
        without a path.

        Args:
            dag: shortest paths in a state.
            list_demand: (C, P) Gbit/s of each class and of each of P policies.
            volume: (C, N, N) Gbit/s on shortest paths, by class, target and source (increased).
            load: (C, E) Gbit/s on each link (increased by the traffic of adjacency segments).
        """
        if not self._num_policies:
            return
        segments = self._segments
        # A segment carries traffic if no segment of its list up to it is broken. Count the broken
        # segments of all lists up to each segment, and up to the start of its list.
        is_broken = ~segments.works(dag)
        num_broken = np.cumsum(is_broken)
        list_lengths = np.diff(np.append(self._list_start, len(num_broken)))
        num_broken_before: Int64Array = np.repeat(
            (num_broken - is_broken)[self._list_start], list_lengths
        )
        sent_share = np.where(num_broken == num_broken_before, segments.share, 0.0)
        segments.add_traffic(volume, load, sent_share * list_demand[:, segments.policy])

    def delivered_shares(
        self, dag: EcmpDag, pair_share: FloatArray, pass_ratio: FloatArray
    ) -> FloatArray:
        """Return the delivered share (C, P) of the traffic of each class and policy.

        A list delivers the product of the delivered shares of its segments, 0 if a segment has no
        path; a policy delivers the mean over its lists, weighted by their shares.

        Args:
            dag: shortest paths in a state.
            pair_share: (C, N, N) delivered share over shortest paths, by class, target and source.
            pass_ratio: (C, E) share of the offered load that each link passes.
        """
        policy_share = np.zeros((len(pair_share), self._num_policies))
        if self._num_policies:
            segments = self._segments
            segment_share = np.where(
                segments.works(dag), segments.values(pair_share, pass_ratio), 0.0
            )
            # The delivered share of a list is the product over its segments.
            list_share = np.multiply.reduceat(segment_share, self._list_start, axis=1)
            policy_of_list = segments.policy[self._list_start]
            np.add.at(
                policy_share.T, policy_of_list, (segments.share[self._list_start] * list_share).T
            )
        return policy_share


@kernel
def _accumulate_load(dags: Dags, head: IntArray, volume: FloatArray, load: FloatArray) -> None:
    """Add the load of traffic on shortest paths to each link.

    Args:
        dags: shortest-path DAGs towards all N nodes.
        head: (E,) node where each link ends.
        volume: (N, N) Gbit/s of the traffic from node u to node t, at [t, u].
        load: (E,) Gbit/s on each link (increased).
    """
    # (N,) traffic towards the destination that passes each node.
    node_traffic = np.empty(volume.shape[1])
    for t in range(len(volume)):
        node_traffic[:] = volume[t]
        add_ecmp_loads(t, head, dags, node_traffic, load)


@kernel
def _propagate_delivery(
    dags: Dags, head: IntArray, pass_ratio: FloatArray, pair_share: FloatArray
) -> None:
    """Compute the delivered share of the traffic between all pairs of nodes on shortest paths.

    The delivered share of node u towards t is the sum over the arcs (u, v) of the DAG towards t of

        split of the node's traffic on the arc * pass ratio of its link * delivered share of node v.

    Args:
        dags: shortest-path DAGs towards all N nodes.
        head: (E,) node where each link ends.
        pass_ratio: (E,) share of the offered load that each link passes.
        pair_share: (N, N) delivered share of the traffic from node u to node t, at [t, u]: written;
            entries of pairs without a path keep their initial value 0.
    """
    for t in range(len(pair_share)):
        pair_share[t, t] = 1.0
        # By ascending distance: the next hops of a node come before it.
        for i in range(1, dags.reached[t]):
            node = dags.order[t, i]
            delivered = 0.0
            for a in range(dags.arc_start[t, i], dags.arc_start[t, i + 1]):
                link = dags.arc[t, a]
                delivered += dags.share[t, a] * pass_ratio[link] * pair_share[t, head[link]]
            pair_share[t, node] = delivered
