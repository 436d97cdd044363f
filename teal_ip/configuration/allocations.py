"""Export of allocations (:mod:`teal.formats.allocations`) for routers: SR policies, and WCMP
next-hop groups.

- ``sr-policy``: for each demand a policy with one weighted segment list per path.
  Paths with a list above the maximum SID depth (MSD), and all but the N heaviest paths of a policy,
  are dropped.  Each class of a pair of nodes has its own policy: a policy is identified by headend,
  color and endpoint (RFC 9256, section 2.1), so class c, counted from the highest, has the color
  100 + c; without classes it is 100.
- ``wcmp``: for each node and target a group of weighted links, for destination-based forwarding
  (WCMP; Zhou et al., EuroSys 2014).  With f[t, e] the flow to target t on link e, link e out of
  node v has the weight f[t, e] / sum over the links out of v.  Every link then carries its load in
  the allocation, minus cyclic flows to a target: destination-based forwarding would never deliver
  them.  Classes of a pair share the groups; ``admitted`` has the sum of their rates,
  ``admitted_by_class`` the rate of each.

A dropped path reduces the admitted rate of its demand.  Under the objective max_link_utilisation,
which serves all demand, the other paths of the demand take its rate over.

A path becomes the shortest list of segment identifiers (SIDs) that makes a packet follow exactly
this path.  In segment routing (RFC 8402) a *node segment* sends a packet to a node along the
shortest paths of the interior gateway protocol (IGP), over all equal-cost ones at once, and an
*adjacency segment* over one link of the current node.  A node segment from u to v can replace a
part of a path only if that part is the unique shortest path from u to v.  The shortest list takes
O(n) steps for n links.  Entry points: :func:`sr_policies`, :func:`next_hop_groups`,
:func:`segment_list`.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from teal.formats.allocations import Demand, stored_paths
from teal.network.shortest import shortest_trees
from teal.network.topology import Topology
from teal.objectives import ObjectiveName
from teal.runtime.arrays import BoolArray, FloatArray, IntArray

# Relative difference of path costs below which paths have equal cost.
_EQUAL_COST_TOLERANCE = 1e-9


class Segment(NamedTuple):
    """Segment of a segment list.

    Attributes:
        kind: ``node`` or ``adjacency``.
        number: index of the end node of a node segment, or of the link of an adjacency segment.
    """

    kind: str
    number: int


class Igp:
    """Shortest paths of an IGP between all nodes, and whether they are unique.

    Args:
        topology: the network; links without capacity have failed and are not used.
        metric: (E,) metric of each link, above 0.
    """

    def __init__(self, topology: Topology, metric: FloatArray) -> None:
        self._tail = topology.link_source
        self._head = topology.link_target
        self._metric = np.where(topology.capacity > 0, metric, np.inf)
        nodes = np.arange(topology.num_nodes, dtype=np.int32)
        self._distance, tree_link = shortest_trees(
            topology.num_nodes, self._tail, self._head, self._metric, nodes, topology.no_transit
        )
        self._is_unique_shortest = self._find_unique_paths(tree_link)

    def _find_unique_paths(self, tree_link: IntArray) -> BoolArray:
        """Return whether the shortest path from node s to node v is unique, (N, N) at [s, v].

        It is unique if every node on it has only one incoming link on a shortest path from s.

        Args:
            tree_link: (N, N) link into node v in the shortest-path tree from s, at [s, v]; negative
                at the root and without a path.
        """
        # Nodes with at most one incoming link on a shortest path from s.
        num_nodes = len(tree_link)
        is_unique = np.empty((num_nodes, num_nodes), dtype=bool)
        for s in range(num_nodes):
            distance = self._distance[s]
            is_on_shortest_path = distance[self._tail] + self._metric <= distance[self._head] * (
                1 + _EQUAL_COST_TOLERANCE
            )
            is_on_shortest_path &= np.isfinite(distance[self._head])
            is_unique[s] = np.bincount(self._head[is_on_shortest_path], minlength=num_nodes) <= 1
        # Require it along the whole path, by pointer doubling: after k rounds the last 2^k nodes of
        # the path are covered, and the array has the 2^k-th node before the end of each path.  The
        # root of a tree precedes itself.
        ancestor = np.where(tree_link >= 0, self._tail[tree_link], np.arange(num_nodes))
        for _ in range(num_nodes.bit_length()):
            is_unique &= np.take_along_axis(is_unique, ancestor, axis=1)
            ancestor = np.take_along_axis(ancestor, ancestor, axis=1)
        return is_unique & np.isfinite(self._distance)

    def parts(self, path: list[int]) -> Iterator[tuple[int, int]]:
        """Divide a path into the fewest parts: unique shortest paths, or single links.

        Args:
            path: link indices, from the source.

        Yields:
            begin and end positions of each part: it is ``path[begin:end]``, or the single link
            ``path[begin]`` if that is no unique shortest path, and then both are equal.
        """
        # Nodes of the path, and the metric from its source to each.  A part is extended as long as
        # it is the unique shortest path to its end.
        nodes = [int(self._tail[path[0]]), *self._head[path].tolist()]
        cumulative_metric = [0.0, *np.cumsum(self._metric[path]).tolist()]
        part_begin = 0
        while part_begin < len(path):
            is_unique_from_begin = self._is_unique_shortest[nodes[part_begin]]
            distance_from_begin = self._distance[nodes[part_begin]]
            part_end = part_begin
            while (
                part_end < len(path)
                and is_unique_from_begin[nodes[part_end + 1]]
                and cumulative_metric[part_end + 1] - cumulative_metric[part_begin]
                <= distance_from_begin[nodes[part_end + 1]] * (1 + _EQUAL_COST_TOLERANCE)
            ):
                part_end += 1
            yield part_begin, part_end
            part_begin = max(part_end, part_begin + 1)


def segment_list(igp: Igp, topology: Topology, path: list[int]) -> list[Segment]:
    """Return the shortest segment list that follows a path exactly.

    Greedy: each segment replaces the longest possible part of the path.  This is optimal, since
    every part of a unique shortest path is a unique shortest path.  Node segments are preferred to
    adjacency segments, because they survive more failures.

    Args:
        igp: shortest paths.
        topology: the network.
        path: link indices, from the source.
    """
    return [
        Segment("node", int(topology.link_target[path[end - 1]]))
        if end > first
        else Segment("adjacency", path[first])
        for first, end in igp.parts(path)
    ]


# Flows to a target below this share of the largest flow to it on any link are dropped.
_MIN_FLOW_SHARE = 1e-12
# Color of SR policies of the highest class.
_HIGHEST_CLASS_COLOR = 100
# Maximum number of dropped paths with a reason in the result.
_MAX_REASONS = 10


@dataclasses.dataclass(frozen=True)
class Exported:
    """Exported allocation.

    Attributes:
        data: JSON data of the export.
        left_out: number of dropped paths.
        reasons: why paths were dropped, for up to ten of them.
        admitted_before: admitted rate in the allocation, Gbit/s.
        admitted: admitted rate in the export, Gbit/s.
        utilisation_before: largest link utilisation in the allocation.
        utilisation: largest link utilisation in the export.
    """

    data: dict[str, Any]
    left_out: int
    reasons: tuple[str, ...]
    admitted_before: float
    admitted: float
    utilisation_before: float
    utilisation: float


def sr_policies(
    allocation: dict[str, Any], topology: Topology, igp: Igp, msd: int, max_lists: int
) -> Exported:
    """Convert an allocation to SR policies: one per demand, with weighted segment lists.

    Args:
        allocation: parsed .json file of the allocation.
        topology: the network.
        igp: shortest paths of the network.
        msd: maximum number of segments of a list.
        max_lists: maximum number of lists of a policy.

    Raises:
        InputError: unknown links.
    """
    # Add the policy of each demand; the loads before and after are accumulated.
    paths_by_demand = stored_paths(allocation, topology, "allocation")
    keeps_all = _carries_all_demand(allocation)
    color_by_class = _color_by_class(allocation, paths_by_demand)
    export = _SrPolicyExport(topology, igp, msd, max_lists)
    # The class is the third entry of a demand.
    for demand, paths in paths_by_demand.items():
        export.add_policy(demand, paths, color_by_class[demand[2]], keeps_all=keeps_all)
    data = {
        "format": "sr-policy",
        "topology": topology.name,
        "unit": "Gbit/s",
        "msd": msd,
        "policies": export.policies,
    }
    return Exported(
        data,
        export.num_dropped,
        tuple(export.reasons),
        export.admitted_before,
        export.admitted,
        _max_utilisation(export.loads_before, topology),
        _max_utilisation(export.loads, topology),
    )


class _SrPolicyExport:
    """Accumulator of SR policies, and of the flow before and after paths are dropped.

    Args:
        topology: the network of E links.
        igp: shortest paths of the network.
        msd: maximum number of segments of a list.
        max_lists: maximum number of lists of a policy.

    Attributes:
        policies: JSON data of the policies.
        num_dropped: number of dropped paths.
        reasons: why paths were dropped, for the first ten of them.
        admitted_before: admitted rate in the allocation, Gbit/s.
        admitted: admitted rate in the export, Gbit/s.
        loads_before: (E,) link loads of the allocation, Gbit/s.
        loads: (E,) link loads of the export, Gbit/s.
    """

    def __init__(self, topology: Topology, igp: Igp, msd: int, max_lists: int) -> None:
        self.policies: list[dict[str, Any]] = []
        self.num_dropped = 0
        self.reasons: list[str] = []
        self.admitted_before = 0.0
        self.admitted = 0.0
        self.loads_before = [0.0] * topology.num_links
        self.loads = [0.0] * topology.num_links
        self._topology = topology
        self._igp = igp
        self._msd = msd
        self._max_lists = max_lists
        self._link_names = topology.link_names()

    def add_policy(
        self, demand: Demand, paths: dict[tuple[int, ...], float], color: int, *, keeps_all: bool
    ) -> None:
        """Append the policy of a demand, without the paths that exceed the limits.

        Args:
            demand: source, target and class.
            paths: rate of each path by its links, Gbit/s.
            color: color of the policy.
            keeps_all: whether the other paths take over the rate of dropped ones.
        """
        source, target, class_name = demand
        nodes = self._topology.node_names
        exported_paths = self._expressible_paths(source, paths)
        # Scale up the remaining paths if they take over the rate of dropped ones.
        total_rate = sum(paths.values())
        exported_rate = sum(paths[links] for links, _ in exported_paths)
        factor = total_rate / exported_rate if keeps_all and exported_rate > 0 else 1.0
        for links, _ in exported_paths:
            _add_to_links(self.loads, links, paths[links] * factor)
        self.admitted += exported_rate * factor
        # Write the policy.
        self.policies.append(
            {
                "headend": nodes[source],
                "color": color,
                "endpoint": nodes[target],
                **({"class": class_name} if class_name else {}),
                "rate": exported_rate * factor,
                "segment_lists": [
                    {
                        "weight": paths[links] / exported_rate,
                        "segments": [
                            _segment_json(segment, self._topology, self._link_names)
                            for segment in segments
                        ],
                    }
                    for links, segments in exported_paths
                ],
            }
        )

    def _expressible_paths(
        self, source: int, paths: dict[tuple[int, ...], float]
    ) -> list[tuple[tuple[int, ...], list[Segment]]]:
        """Return links and segments of the paths that can be exported, the heaviest first.

        The other paths with a rate exceed the maximum SID depth or the maximum number of lists:
        they are counted as dropped.  The loads and the admitted rate before the export include all
        paths.

        Args:
            source: index of the first node.
            paths: rate of each path by its links, Gbit/s.
        """
        exported_paths: list[tuple[tuple[int, ...], list[Segment]]] = []
        for links, rate in sorted(paths.items(), key=lambda item: -item[1]):
            # Loads and admitted rate of the allocation.
            _add_to_links(self.loads_before, links, rate)
            self.admitted_before += rate
            # Export the path within the limits; else count it, with the reason if it has a rate.
            segments = segment_list(self._igp, self._topology, list(links))
            if rate > 0 and len(segments) <= self._msd and len(exported_paths) < self._max_lists:
                exported_paths.append((links, segments))
            elif rate > 0:
                self.num_dropped += 1
                if len(self.reasons) < _MAX_REASONS:
                    self.reasons.append(self._drop_reason(source, links, len(segments)))
        return exported_paths

    def _drop_reason(self, source: int, links: tuple[int, ...], num_segments: int) -> str:
        """Return a text with the nodes of a dropped path and the limit that it exceeds.

        Args:
            source: index of the first node.
            links: link indices of the path.
            num_segments: number of segments of its list.
        """
        topology = self._topology
        nodes = topology.node_names
        reason = (
            f"{num_segments} segments"
            if num_segments > self._msd
            else f"more than {self._max_lists} lists"
        )
        path_names = [nodes[source], *(nodes[topology.link_target[link]] for link in links)]
        return f"{' '.join(path_names)}: {reason}"


def next_hop_groups(allocation: dict[str, Any], topology: Topology) -> Exported:
    """Convert an allocation to weighted next-hop groups, for destination-based forwarding (WCMP).

    The weight of link e out of node v towards target t is f[t, e] / sum of f[t, .] over the links
    out of v, with f the flow to t without cycles.

    Args:
        allocation: parsed .json file of the allocation.
        topology: the network.

    Raises:
        InputError: unknown links.
    """
    # Sum flows by target and link, and admitted rates by node, target and class.
    flow_by_target: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    rate_by_pair: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    rates_by_class: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    loads = [0.0] * topology.num_links
    loads_before = [0.0] * topology.num_links
    admitted = 0.0
    for (source, target, class_name), paths in stored_paths(
        allocation, topology, "allocation"
    ).items():
        router = topology.node_names[source]
        endpoint = topology.node_names[target]
        rate_by_pair[router][endpoint] += sum(paths.values())
        if class_name:
            rates_by_class[router][endpoint][class_name] = sum(paths.values())
        for links, rate in paths.items():
            admitted += rate
            _add_to_links(loads_before, links, rate)
            for link in links:
                flow_by_target[endpoint][link] += rate
    # Remove negligible and cyclic flows, and form a group for each node and target.
    groups: list[dict[str, Any]] = []
    for endpoint, flow_by_link in flow_by_target.items():
        max_flow = max(flow_by_link.values())
        positive_flow = {
            link: flow for link, flow in flow_by_link.items() if flow > _MIN_FLOW_SHARE * max_flow
        }
        acyclic_flow = _remove_cycles(positive_flow, topology)
        for link, flow in acyclic_flow.items():
            loads[link] += flow
        groups += _target_groups(endpoint, acyclic_flow, topology)
    # Write the result: no path is dropped, so the admitted rate does not change.
    data = {
        "format": "wcmp",
        "topology": topology.name,
        "unit": "Gbit/s",
        "admitted": rate_by_pair,
        "groups": groups,
    }
    if rates_by_class:
        data["admitted_by_class"] = rates_by_class
    largest_before = _max_utilisation(loads_before, topology)
    largest_after = _max_utilisation(loads, topology)
    return Exported(data, 0, (), admitted, admitted, largest_before, largest_after)


def _target_groups(
    endpoint: str, flow_by_link: dict[int, float], topology: Topology
) -> list[dict[str, Any]]:
    """Return the next-hop group of each node towards a target; weights are shares of the flow.

    Args:
        endpoint: name of the target.
        flow_by_link: flow to the target on each link, Gbit/s.
        topology: the network.
    """
    link_names = topology.link_names()
    flow_by_node: dict[int, dict[int, float]] = defaultdict(dict)
    for link, flow in flow_by_link.items():
        flow_by_node[int(topology.link_source[link])][link] = flow
    groups = []
    for node, node_flow in sorted(flow_by_node.items()):
        total_flow = sum(node_flow.values())
        groups.append(
            {
                "node": topology.node_names[node],
                "target": endpoint,
                "next_hops": [
                    {"link": link_names[link], "weight": flow / total_flow}
                    for link, flow in sorted(node_flow.items())
                ],
            }
        )
    return groups


def _color_by_class(allocation: dict[str, Any], demands: Iterable[Demand]) -> dict[str, int]:
    """Return the color of each class by name: 100 for the highest class, 101 for the next...

    Without classes, the name of the only class is "".

    Args:
        allocation: parsed .json file of the allocation.
        demands: demands of the allocation.
    """
    # Classes in the order of the file, the highest first.
    names = [
        str(record.get("class", ""))
        for record in _result_field(allocation, "classes") or ()
        if isinstance(record, dict)
    ]
    names += [name for *_, name in demands]
    return {name: _HIGHEST_CLASS_COLOR + rank for rank, name in enumerate(dict.fromkeys(names))}


def _carries_all_demand(allocation: dict[str, Any]) -> bool:
    """Return whether the objective of an allocation serves all demand."""
    return bool(_result_field(allocation, "objective") == ObjectiveName.MAX_LINK_UTILISATION.value)


def _result_field(allocation: dict[str, Any], name: str) -> Any:
    """Return a field of the results (``figures``) of an allocation file; None if it is missing."""
    result_fields = allocation.get("figures")
    return result_fields.get(name) if isinstance(result_fields, dict) else None


def _add_to_links(loads: list[float], links: Sequence[int], rate: float) -> None:
    """Add a rate, Gbit/s, to the loads (E,) of the links of a path."""
    for link in links:
        loads[link] += rate


def _max_utilisation(loads: list[float], topology: Topology) -> float:
    """Return the largest utilisation of a link with capacity, from the loads (E,), Gbit/s."""
    return max(
        (load / c for load, c in zip(loads, topology.capacity.tolist(), strict=True) if c > 0),
        default=0.0,
    )


def _segment_json(
    segment: Segment, topology: Topology, link_names: Sequence[str]
) -> dict[str, str]:
    """Return a segment as JSON: the name of its end node, or of its link."""
    if segment.kind == "node":
        return {"node": topology.node_names[segment.number]}
    return {"adjacency": link_names[segment.number]}


def _remove_cycles(flows: dict[int, float], topology: Topology) -> dict[int, float]:
    """Return the flow to one target by link, Gbit/s, without cyclic flow, which delivers nothing.

    As long as the links with flow contain a cycle, the smallest flow on the cycle is subtracted
    from all its links.

    Args:
        flows: flow to the target on each link, by link index, Gbit/s.
        topology: the network.
    """
    import networkx as nx

    graph = nx.MultiDiGraph()
    for link, flow in flows.items():
        graph.add_edge(
            int(topology.link_source[link]), int(topology.link_target[link]), key=link, flow=flow
        )
    while True:
        try:
            cycle = nx.find_cycle(graph)
        except nx.NetworkXNoCycle:
            return {key: data["flow"] for _, _, key, data in graph.edges(keys=True, data=True)}
        min_flow = min(graph.edges[edge]["flow"] for edge in cycle)
        for edge in cycle:
            graph.edges[edge]["flow"] -= min_flow
            if graph.edges[edge]["flow"] <= 0:
                graph.remove_edge(*edge)
