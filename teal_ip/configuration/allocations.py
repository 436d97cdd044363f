"""Allocations in formats for routers: SR policies, and WCMP next-hop groups.

Both read the .json file of an allocation (:mod:`teal.formats.allocations`).

- ``sr-policy``: for each demand a policy with one weighted segment list per path.
  Paths whose list exceeds the maximum SID depth (MSD), and those beyond the N heaviest of a policy,
  are dropped.
  Each class of a pair of nodes has its own policy: a policy is identified by headend, color and
  endpoint (RFC 9256, section 2.1), so class c, counted from the highest, has the color 100 + c;
  without classes it is 100.
- ``wcmp``: for each node and target a group of weighted links, for destination-based forwarding
  (WCMP; Zhou et al., EuroSys 2014).  With f[t, e] the flow to target t on link e, link e out of
  node v has the weight f[t, e] / sum over the links out of v.  Every link then carries its load in
  the allocation, without cyclic flows to a target: those are dropped, since destination-based
  forwarding would never deliver them.  Classes of a pair share the groups; ``admitted`` has the sum
  of their rates, ``admitted_by_class`` the rate of each.

If a path is dropped, the admitted rate of the demand falls by its share; under
max_link_utilisation, which carries all demand, the demand's other paths take it over.

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
    """One segment.

    Attributes:
        kind: ``node`` or ``adjacency``.
        number: index of its end node, or of the link.
    """

    kind: str
    number: int


class Igp:
    """Shortest paths of an IGP.

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
        """Whether the shortest path from node s to node v is unique (N, N).

        That is so if each node of the shortest-path tree between them has one incoming link on a
        shortest path from s.
        """
        nodes = len(tree_link)
        has_one = np.empty((nodes, nodes), dtype=bool)
        for s in range(nodes):
            distance = self._distance[s]
            is_tight = distance[self._tail] + self._metric <= distance[self._head] * (
                1 + _EQUAL_COST_TOLERANCE
            )
            is_tight &= np.isfinite(distance[self._head])
            has_one[s] = np.bincount(self._head[is_tight], minlength=nodes) <= 1
        # The parent of a root is itself; each step doubles the covered part of the path.
        parent = np.where(tree_link >= 0, self._tail[tree_link], np.arange(nodes))
        for _ in range(nodes.bit_length()):
            has_one &= np.take_along_axis(has_one, parent, axis=1)
            parent = np.take_along_axis(parent, parent, axis=1)
        return has_one & np.isfinite(self._distance)

    def parts(self, path: list[int]) -> Iterator[tuple[int, int]]:
        """Divide a path into the fewest parts that are unique shortest paths, or single links.

        Args:
            path: link indices, from the source.

        Yields:
            first link of a part, and the first one after it; equal for a link that is no unique
            shortest path.
        """
        nodes = [int(self._tail[path[0]]), *self._head[path].tolist()]
        cumulative_metric = [0.0, *np.cumsum(self._metric[path]).tolist()]
        first = 0
        while first < len(path):
            is_unique = self._is_unique_shortest[nodes[first]]
            distance = self._distance[nodes[first]]
            end = first
            while (
                end < len(path)
                and is_unique[nodes[end + 1]]
                and cumulative_metric[end + 1] - cumulative_metric[first]
                <= distance[nodes[end + 1]] * (1 + _EQUAL_COST_TOLERANCE)
            ):
                end += 1
            yield first, end
            first = max(end, first + 1)


def segment_list(igp: Igp, topology: Topology, path: list[int]) -> list[Segment]:
    """Return the shortest list of segments that follows a path exactly.

    Among lists of equal length, the one with more node segments, which survives more failures.  The
    greedy choice, the longest part that one segment can replace, is optimal, since every part of a
    unique shortest path is one: no list has fewer segments, and a link needs an adjacency segment
    in every list or in none.

    Args:
        igp: shortest paths.
        topology: topology of the path.
        path: link indices, from the source.
    """
    return [
        Segment("node", int(topology.link_target[path[end - 1]]))
        if end > first
        else Segment("adjacency", path[first])
        for first, end in igp.parts(path)
    ]


# Share of a target's flow below which a link's flow counts as 0.
_MIN_FLOW = 1e-12
# Color of SR policies of the highest class.
_FIRST_COLOR = 100
# Maximum number of dropped paths that are named.
_MAX_REASONS = 10


@dataclasses.dataclass(frozen=True)
class Exported:
    """An exported allocation.

    Attributes:
        data: JSON data.
        left_out: number of dropped paths.
        reasons: reasons for up to ten of them.
        admitted_before, admitted: Gbit/s of the allocation, and of the export.
        utilisation_before, utilisation: largest link utilisation of the allocation, and of the
            export.
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
    """Convert an allocation to SR policies.

    Args:
        allocation: the parsed .json file.
        topology: its network.
        igp: shortest paths of the network.
        msd: maximum number of segments of a list.
        max_lists: maximum number of lists of a policy.

    Raises:
        InputError: unknown links.
    """
    stored = stored_paths(allocation, topology, "allocation")
    keeps_all = _carries_all_demand(allocation)
    colors = _colors(allocation, stored)
    export = _SrPolicyExport(topology, igp, msd, max_lists)
    for demand, paths in stored.items():
        export.add_policy(demand, paths, colors[demand[2]], keeps_all=keeps_all)
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
        _largest(export.loads_before, topology),
        _largest(export.loads, topology),
    )


class _SrPolicyExport:
    """SR policies so far, and the flow before and after dropping paths.

    Attributes:
        policies: JSON data of the policies.
        num_dropped: number of dropped paths.
        reasons: reasons for the first ones.
        admitted_before, admitted: Gbit/s of the allocation, and of the export.
        loads_before, loads: (E,) Gbit/s of the allocation, and of the export.
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
        """Append the policy of a demand.

        Args:
            demand: source, target and class.
            paths: Gbit/s of each path, by its links.
            color: color of the policy.
            keeps_all: whether the other paths take over the rate of dropped ones.
        """
        source, target, name = demand
        nodes = self._topology.node_names
        exported_paths = self._expressible_paths(source, paths)
        # Rescale the exported paths.
        total = sum(paths.values())
        carried = sum(paths[links] for links, _ in exported_paths)
        factor = total / carried if keeps_all and carried > 0 else 1.0
        for links, _ in exported_paths:
            _add(self.loads, links, paths[links] * factor)
        self.admitted += carried * factor
        # Write the policy.
        self.policies.append(
            {
                "headend": nodes[source],
                "color": color,
                "endpoint": nodes[target],
                **({"class": name} if name else {}),
                "rate": carried * factor,
                "segment_lists": [
                    {
                        "weight": paths[links] / carried,
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
        """Return links and segments of the heaviest paths within the limits; drop the others."""
        exported_paths: list[tuple[tuple[int, ...], list[Segment]]] = []
        for links, rate in sorted(paths.items(), key=lambda item: -item[1]):
            _add(self.loads_before, links, rate)
            self.admitted_before += rate
            segments = segment_list(self._igp, self._topology, list(links))
            if rate > 0 and len(segments) <= self._msd and len(exported_paths) < self._max_lists:
                exported_paths.append((links, segments))
            elif rate > 0:
                self.num_dropped += 1
                if len(self.reasons) < _MAX_REASONS:
                    self.reasons.append(self._reason(source, links, len(segments)))
        return exported_paths

    def _reason(self, source: int, links: tuple[int, ...], num_segments: int) -> str:
        """Reason why a path is dropped."""
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
    """Convert an allocation to next-hop groups, for destination-based forwarding.

    Args:
        allocation: the parsed .json file.
        topology: its network.

    Raises:
        InputError: unknown links.
    """
    # Flows by target and link.
    flows: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    rates: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    by_class: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    loads = [0.0] * topology.num_links
    loads_before = [0.0] * topology.num_links
    admitted = 0.0
    for (source, target, name), paths in stored_paths(allocation, topology, "allocation").items():
        router = topology.node_names[source]
        endpoint = topology.node_names[target]
        rates[router][endpoint] += sum(paths.values())
        if name:
            by_class[router][endpoint][name] = sum(paths.values())
        for links, rate in paths.items():
            admitted += rate
            _add(loads_before, links, rate)
            for link in links:
                flows[endpoint][link] += rate
    # Groups by node and target.
    groups: list[dict[str, Any]] = []
    for endpoint, flow_by_link in flows.items():
        largest = max(flow_by_link.values())
        positive_flow = {
            link: flow for link, flow in flow_by_link.items() if flow > _MIN_FLOW * largest
        }
        acyclic_flow = _without_cycles(positive_flow, topology)
        for link, flow in acyclic_flow.items():
            loads[link] += flow
        groups += _groups_of_target(endpoint, acyclic_flow, topology)
    # Rates, by class too if there are any.
    data = {
        "format": "wcmp",
        "topology": topology.name,
        "unit": "Gbit/s",
        "admitted": rates,
        "groups": groups,
    }
    if by_class:
        data["admitted_by_class"] = by_class
    largest_before = _largest(loads_before, topology)
    largest_after = _largest(loads, topology)
    return Exported(data, 0, (), admitted, admitted, largest_before, largest_after)


def _groups_of_target(
    endpoint: str, flow_by_link: dict[int, float], topology: Topology
) -> list[dict[str, Any]]:
    """Return the next-hop group of each node towards a target, with weights in proportion to the
    flow to it on each link.
    """
    names = topology.link_names()
    by_node: dict[int, dict[int, float]] = defaultdict(dict)
    for link, flow in flow_by_link.items():
        by_node[int(topology.link_source[link])][link] = flow
    groups = []
    for node, node_flow in sorted(by_node.items()):
        total = sum(node_flow.values())
        groups.append(
            {
                "node": topology.node_names[node],
                "target": endpoint,
                "next_hops": [
                    {"link": names[link], "weight": flow / total}
                    for link, flow in sorted(node_flow.items())
                ],
            }
        )
    return groups


def _colors(allocation: dict[str, Any], stored: Iterable[Demand]) -> dict[str, int]:
    """Color of each class by name; of "" without classes."""
    names = [
        str(line.get("class", ""))
        for line in _figure(allocation, "classes") or ()
        if isinstance(line, dict)
    ]
    names += [name for *_, name in stored]
    return {name: _FIRST_COLOR + rank for rank, name in enumerate(dict.fromkeys(names))}


def _carries_all_demand(allocation: dict[str, Any]) -> bool:
    return bool(_figure(allocation, "objective") == ObjectiveName.MAX_LINK_UTILISATION.value)


def _figure(allocation: dict[str, Any], name: str) -> Any:
    figures = allocation.get("figures")
    return figures.get(name) if isinstance(figures, dict) else None


def _add(loads: list[float], links: Sequence[int], rate: float) -> None:
    for link in links:
        loads[link] += rate


def _largest(loads: list[float], topology: Topology) -> float:
    return max(
        (load / c for load, c in zip(loads, topology.capacity.tolist(), strict=True) if c > 0),
        default=0.0,
    )


def _segment_json(
    segment: Segment, topology: Topology, link_names: Sequence[str]
) -> dict[str, str]:
    if segment.kind == "node":
        return {"node": topology.node_names[segment.number]}
    return {"adjacency": link_names[segment.number]}


def _without_cycles(flows: dict[int, float], topology: Topology) -> dict[int, float]:
    """Remove cycles from the flow to one target on each link, since they deliver nothing.

    From each cycle the least flow on its links is subtracted, until there is none.
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
