"""Allocations in the form in which routers take them: SR policies, and next-hop groups.

Both read the .json file of an allocation (:mod:`teal.formats.allocations`).

- ``sr-policy``: for each demand a policy with one segment list a path and a weight.
  A path whose list is longer than the maximum SID depth (MSD), and those beyond the N heaviest of a
  policy, are left out.
  Each class of a pair of nodes has a policy of its own: a policy is known by headend, color and
  endpoint (RFC 9256, section 2.1), so that class number c, counted from the highest, has the color
  100 + c; without classes it is 100.
- ``wcmp``: for each node and target a group of links with weights, as destination-based forwarding
  has them (WCMP; Zhou et al., EuroSys 2014).  With f[t, e] the flow to target t on link e, link e
  out of node v has the weight f[t, e] / sum over the links out of v.  Every link then carries what
  the allocation says, less what flows to a target run in a circle: those are left out, since
  destination-based forwarding would never deliver them.  Classes of a pair share the groups;
  ``admitted`` has the sum of their rates, ``admitted_by_class`` the rate of each.

Where something is left out, the admitted rate of the demand falls by the share of its paths; under
max_link_utilisation, which carries all demand, its other paths take it up.

Segment lists: the shortest list of segment identifiers (SIDs) that makes a packet take exactly one
path.

In segment routing (RFC 8402) a *node segment* sends a packet to a node along the shortest paths of
the interior gateway protocol (IGP), all of equal cost at once, and an *adjacency segment* over one
link of the node where it is.  A node segment from u to v stands for a part of a path only if that
part is the one shortest path from u to v.  The shortest list takes O(n) steps for n links.
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

_EQUAL_COST_TOLERANCE = 1e-9  # relative: paths whose costs differ by less are of equal cost


class Segment(NamedTuple):
    """One segment.

    Attributes:
        kind: ``node`` or ``adjacency``.
        number: number of the node that it leads to, or of the link.
    """

    kind: str
    number: int


class Igp:
    """The shortest paths of an IGP.

    Args:
        topology: the network; links without capacity have failed and are not used.
        metric: (E,) of each link, above 0.
    """

    def __init__(self, topology: Topology, metric: FloatArray) -> None:
        self._tail, self._head = topology.link_source, topology.link_target
        self._metric = np.where(topology.capacity > 0, metric, np.inf)
        nodes = np.arange(topology.num_nodes, dtype=np.int32)
        self._distance, into = shortest_trees(
            topology.num_nodes, self._tail, self._head, self._metric, nodes, topology.no_transit
        )
        self._has_one = self._single_paths(into)

    def _single_paths(self, into: IntArray) -> BoolArray:
        """(N, N) whether exactly one path from node s to node v is shortest.

        That is so if each node of the shortest-path tree between them has one link into it that
        lies on a shortest path from s.
        """
        nodes = len(into)
        has_one = np.empty((nodes, nodes), dtype=bool)
        for s in range(nodes):
            distance = self._distance[s]
            is_tight = distance[self._tail] + self._metric <= distance[self._head] * (
                1 + _EQUAL_COST_TOLERANCE
            )
            is_tight &= np.isfinite(distance[self._head])
            has_one[s] = np.bincount(self._head[is_tight], minlength=nodes) <= 1
        parent = np.where(into >= 0, self._tail[into], np.arange(nodes))  # of a root: itself
        for _ in range(
            nodes.bit_length()
        ):  # each step doubles the part of the path that is covered
            has_one &= np.take_along_axis(has_one, parent, axis=1)
            parent = np.take_along_axis(parent, parent, axis=1)
        return has_one & np.isfinite(self._distance)

    def parts(self, path: list[int]) -> Iterator[tuple[int, int]]:
        """Divide a path into the fewest parts that are only shortest paths, or one link that is
        none.

        Args:
            path: numbers of its links, from the source.

        Yields:
            first link of a part, and the first one after it; equal where the link is no only
            shortest path.
        """
        nodes = [int(self._tail[path[0]]), *self._head[path].tolist()]
        along = [0.0, *np.cumsum(self._metric[path]).tolist()]
        first = 0
        while first < len(path):
            has_one, distance = self._has_one[nodes[first]], self._distance[nodes[first]]
            end = first
            while (
                end < len(path)
                and has_one[nodes[end + 1]]
                and along[end + 1] - along[first]
                <= distance[nodes[end + 1]] * (1 + _EQUAL_COST_TOLERANCE)
            ):
                end += 1
            yield first, end
            first = max(end, first + 1)


def segment_list(igp: Igp, topology: Topology, path: list[int]) -> list[Segment]:
    """The shortest list of segments that leads along a path, and along no other link.

    Of lists of equal length, the one with more node segments, which outlive failures better.
    Taking the longest part that one segment stands for is optimal, since every part of an only
    shortest path is one: no list has fewer segments, and a link needs an adjacency segment in every
    list or in none.

    Args:
        igp: shortest paths.
        topology: topology of the path.
        path: numbers of its links, from the source.
    """
    return [
        Segment("node", int(topology.link_target[path[end - 1]]))
        if end > first
        else Segment("adjacency", path[first])
        for first, end in igp.parts(path)
    ]


_MIN_FLOW = 1e-12  # share of a target's flow that counts as none
_FIRST_COLOR = 100  # of SR policies of the highest class
_MAX_REASONS = 10  # paths that could not be expressed and are named


@dataclasses.dataclass(frozen=True)
class Exported:
    """The exported allocation.

    Attributes:
        data: as JSON.
        left_out: number of paths that could not be expressed.
        reasons: for up to ten of them.
        admitted_before, admitted: Gbit/s, of the allocation and of what was exported.
        utilisation_before, utilisation: largest of a link, likewise.
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
    """SR policies of an allocation.

    Args:
        allocation: the parsed .json file.
        topology: its network.
        igp: shortest paths of the network.
        msd: most segments of a list.
        max_lists: most lists of a policy.

    Raises:
        InputError: links that the network does not have.
    """
    stored = stored_paths(allocation, topology, "allocation")
    keeps_all, colors = _keeps_all(allocation), _colors(allocation, stored)
    link_names, nodes = topology.link_names(), topology.node_names
    policies: list[dict[str, Any]] = []
    reasons: list[str] = []
    left_out, admitted, before = 0, 0.0, 0.0
    loads, loads_before = [0.0] * topology.num_links, [0.0] * topology.num_links
    for (source, target, name), paths in stored.items():
        kept: list[tuple[tuple[int, ...], list[Segment]]] = []
        for links, rate in sorted(paths.items(), key=lambda one: -one[1]):
            _add(loads_before, links, rate)
            before += rate
            segments = segment_list(igp, topology, list(links))
            if rate > 0 and len(segments) <= msd and len(kept) < max_lists:
                kept.append((links, segments))
            elif rate > 0:
                left_out += 1
                why = (
                    f"{len(segments)} segments"
                    if len(segments) > msd
                    else f"more than {max_lists} lists"
                )
                along = [nodes[source], *(nodes[topology.link_target[link]] for link in links)]
                reasons += [f"{' '.join(along)}: {why}"] if len(reasons) < _MAX_REASONS else []
        total, carried = sum(paths.values()), sum(paths[links] for links, _ in kept)
        factor = total / carried if keeps_all and carried > 0 else 1.0
        for links, _ in kept:
            _add(loads, links, paths[links] * factor)
        admitted += carried * factor
        policies.append(
            {
                "headend": nodes[source],
                "color": colors[name],
                "endpoint": nodes[target],
                **({"class": name} if name else {}),
                "rate": carried * factor,
                "segment_lists": [
                    {
                        "weight": paths[links] / carried,
                        "segments": [_named(s, topology, link_names) for s in segments],
                    }
                    for links, segments in kept
                ],
            }
        )
    data = {
        "format": "sr-policy",
        "topology": topology.name,
        "unit": "Gbit/s",
        "msd": msd,
        "policies": policies,
    }
    return Exported(
        data,
        left_out,
        tuple(reasons),
        before,
        admitted,
        _largest(loads_before, topology),
        _largest(loads, topology),
    )


def next_hop_groups(allocation: dict[str, Any], topology: Topology) -> Exported:
    """Next-hop groups of an allocation, for destination-based forwarding.

    Args:
        allocation: the parsed .json file.
        topology: its network.

    Raises:
        InputError: links that the network does not have.
    """
    flows: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    rates: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    by_class: dict[str, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    loads, loads_before, admitted = [0.0] * topology.num_links, [0.0] * topology.num_links, 0.0
    for (source, target, name), paths in stored_paths(allocation, topology, "allocation").items():
        router, endpoint = topology.node_names[source], topology.node_names[target]
        rates[router][endpoint] += sum(paths.values())
        if name:
            by_class[router][endpoint][name] = sum(paths.values())
        for links, rate in paths.items():
            admitted += rate
            _add(loads_before, links, rate)
            for link in links:
                flows[endpoint][link] += rate
    names, groups = topology.link_names(), []
    for endpoint, by_link in flows.items():
        largest = max(by_link.values())
        used = {link: flow for link, flow in by_link.items() if flow > _MIN_FLOW * largest}
        used = _without_circles(used, topology)
        by_node: dict[int, dict[int, float]] = defaultdict(dict)
        for link, flow in used.items():
            loads[link] += flow
            by_node[int(topology.link_source[link])][link] = flow
        for node, of_node in sorted(by_node.items()):
            total = sum(of_node.values())
            groups.append(
                {
                    "node": topology.node_names[node],
                    "target": endpoint,
                    "next_hops": [
                        {"link": names[link], "weight": flow / total}
                        for link, flow in sorted(of_node.items())
                    ],
                }
            )
    data = {
        "format": "wcmp",
        "topology": topology.name,
        "unit": "Gbit/s",
        "admitted": rates,
        "groups": groups,
    }
    if by_class:
        data["admitted_by_class"] = by_class
    largest_before, largest_after = _largest(loads_before, topology), _largest(loads, topology)
    return Exported(data, 0, (), admitted, admitted, largest_before, largest_after)


def _colors(allocation: dict[str, Any], stored: Iterable[Demand]) -> dict[str, int]:
    """Color of each class by its name; of "" without classes."""
    names = [
        str(line.get("class", ""))
        for line in _figure(allocation, "classes") or ()
        if isinstance(line, dict)
    ]
    names += [name for *_, name in stored]
    return {name: _FIRST_COLOR + number for number, name in enumerate(dict.fromkeys(names))}


def _keeps_all(allocation: dict[str, Any]) -> bool:
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


def _named(segment: Segment, topology: Topology, link_names: Sequence[str]) -> dict[str, str]:
    if segment.kind == "node":
        return {"node": topology.node_names[segment.number]}
    return {"adjacency": link_names[segment.number]}


def _without_circles(flows: dict[int, float], topology: Topology) -> dict[int, float]:
    """The flow to one target on each link, without those that run in a circle, which deliver
    nothing.

    From each circle the least flow on its links is subtracted, until there is none.
    """
    import networkx as nx

    graph = nx.MultiDiGraph()
    for link, flow in flows.items():
        graph.add_edge(
            int(topology.link_source[link]), int(topology.link_target[link]), key=link, flow=flow
        )
    while True:
        try:
            circle = nx.find_cycle(graph)
        except nx.NetworkXNoCycle:
            return {key: data["flow"] for _, _, key, data in graph.edges(keys=True, data=True)}
        least = min(graph.edges[edge]["flow"] for edge in circle)
        for edge in circle:
            graph.edges[edge]["flow"] -= least
            if graph.edges[edge]["flow"] <= 0:
                graph.remove_edge(*edge)
