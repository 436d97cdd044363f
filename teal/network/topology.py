"""A wide-area network: nodes, directed links, capacities."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from teal.errors import InputError, listed
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array, IntArray
from teal.runtime.storage import content_key

_MAX_NAMES = 10  # nodes or links that a sentence lists


def canonical_name(text: str) -> str:
    """A name as it is kept: composed letters (Unicode's form C), plain spaces in the place of those
    without a break.

    Files from macOS write letters and their accents apart, and Excel writes spaces without a break;
    both look the same.
    """
    return unicodedata.normalize("NFC", text).replace("\u00a0", " ").replace("\u202f", " ").strip()


class Names:
    """The own name of a node or router for each name that files may call it by.

    Names are compared without case and without a port; an IP address has one form, however it is
    written.
    """

    def __init__(self) -> None:
        self._own: dict[str, str] = {}

    def add(self, name: str, own: str) -> str:
        """Let ``name`` stand for ``own``; returns the own name that it stands for, another one if
        it is taken.
        """
        return self._own.setdefault(self._key(name), own)

    def own(self, name: str) -> str:
        """The own name; ``name`` itself where it is unknown."""
        return (
            self._own.get(self._key(name)) or self._own.get(self._key(without_port(name))) or name
        )

    @staticmethod
    def _key(name: str) -> str:
        text = name.strip().casefold()
        try:
            return str(ipaddress.ip_address(text))
        except ValueError:
            return text


def without_port(name: str) -> str:
    """``host`` of ``host:port`` and ``[address]:port``; an IPv6 address without brackets has no
    port.
    """
    found = re.fullmatch(r"\[([^\]]+)\](?::\d+)?|([^:]+):\d+", name.strip())
    return name if found is None else found[1] or found[2]


@dataclasses.dataclass(frozen=True, eq=False)
class Topology:
    """N nodes and E directed links.  The constructor validates it; other code relies on that.

    Parallel links are allowed and separate; a link from a node to itself is not allowed.

    Attributes:
        name: short name for tables and plots.
        node_names: N distinct names.
        link_source: (E,) index of the node where each link starts.
        link_target: (E,) index of the node where it ends.
        capacity: (E,) Gbit/s; 0 means that the link has failed.
        latency: (E,) ms, one-way propagation delay; positive, so that shortest paths have no loops.
        metric: (E,) IGP metric, a whole number above 0; None where unknown.  Candidate paths do not
            depend on it.
        te_metric: (E,) TE metric, a whole number, 0 on a link that has none; None if no link has
            one.
        cost: (E,) cost of one Gbit/s, at least 0, in any unit; None where unknown.
        affinities: (E,) names of the affinities (administrative groups) of each link; () if no link
            has any.
        coordinates: (N, 2) longitude and latitude in degrees (or x and y in any unit), only for
            drawing; NaN where unknown.
        origin: the file or name that the topology was read from, for messages.
        notes: what was assumed while reading it, in whole sentences.
        aliases: other names of nodes, by which files may call them, and the name of each.
        no_transit: (N,) whether a router carries nothing but traffic from and to itself, as one
            with the overload bit of IS-IS (ISO 10589, RFC 3787); None if there is none.

    Raises:
        InputError: from the constructor, naming the first field that is wrong.
    """

    name: str
    node_names: tuple[str, ...]
    link_source: IntArray
    link_target: IntArray
    capacity: FloatArray
    latency: FloatArray
    coordinates: FloatArray
    origin: str = ""
    notes: tuple[str, ...] = ()
    metric: Int64Array | None = None
    te_metric: Int64Array | None = None
    affinities: tuple[frozenset[str], ...] = ()
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    no_transit: BoolArray | None = None
    cost: FloatArray | None = None

    def __post_init__(self) -> None:
        where = self.origin or self.name
        nodes, links = len(self.node_names), len(self.link_source)
        if nodes < 2:
            raise InputError(where, "nodes", "at least 2 nodes", nodes)
        if len(set(self.node_names)) != nodes:
            duplicate = next(n for i, n in enumerate(self.node_names) if n in self.node_names[:i])
            raise InputError(where, "nodes", "distinct node names", f"{duplicate!r} twice")
        if links == 0:
            raise InputError(where, "links", "at least 1 link", "none")
        for field, shape in (
            ("link_source", (links,)),
            ("link_target", (links,)),
            ("capacity", (links,)),
            ("latency", (links,)),
            ("coordinates", (nodes, 2)),
        ):
            if getattr(self, field).shape != shape:
                raise InputError(where, field, f"shape {shape}", getattr(self, field).shape)
        for field in ("link_source", "link_target"):
            ends = getattr(self, field)
            wrong = ends[(ends < 0) | (ends >= nodes)]
            if len(wrong):
                raise InputError(where, field, f"node indices in 0..{nodes - 1}", int(wrong[0]))
        self._require(
            self.link_source != self.link_target, "target", "a node other than the source"
        )
        finite = np.isfinite(self.capacity) & (self.capacity >= 0)
        self._require(finite, "capacity", "a finite capacity >= 0", self.capacity)
        positive = np.isfinite(self.latency) & (self.latency > 0)
        self._require(positive, "latency", "a finite latency > 0", self.latency)
        if self.metric is not None:
            if self.metric.shape != (links,):
                raise InputError(where, "metric", f"shape {(links,)}", self.metric.shape)
            self._require(self.metric > 0, "metric", "an IGP metric > 0", self.metric)
        if self.te_metric is not None:
            if self.te_metric.shape != (links,):
                raise InputError(where, "te_metric", f"shape {(links,)}", self.te_metric.shape)
            self._require(
                self.te_metric >= 0, "te_metric", "a TE metric > 0, or 0 for none", self.te_metric
            )
        if self.cost is not None:
            if self.cost.shape != (links,):
                raise InputError(where, "cost", f"shape {(links,)}", self.cost.shape)
            is_cost = np.isfinite(self.cost) & (self.cost >= 0)
            self._require(is_cost, "cost", "a finite cost >= 0", self.cost)
        if self.no_transit is not None and self.no_transit.shape != (nodes,):
            raise InputError(where, "no_transit", f"shape {(nodes,)}", self.no_transit.shape)
        if len(self.affinities) not in (0, links):
            raise InputError(
                where, "affinities", f"a set for each of {links} links, or ()", len(self.affinities)
            )

    def _require(
        self,
        good: BoolArray,
        field: str,
        expected: str,
        values: FloatArray | Int64Array | None = None,
    ) -> None:
        if not good.all():
            bad = int(np.argmin(good))
            actual = self.link_name(bad) if values is None else values[bad]
            raise InputError(
                self.origin or self.name, f"link {self.link_name(bad)}: {field}", expected, actual
            )

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.node_names)

    @property
    def num_links(self) -> int:
        """E."""
        return len(self.link_source)

    def link_name(self, link: int) -> str:
        """``source->target`` of a link, for messages."""
        return (
            f"{self.node_names[self.link_source[link]]}->{self.node_names[self.link_target[link]]}"
        )

    def __repr__(self) -> str:
        return f"Topology({self.name!r}: {self.num_nodes} nodes, {self.num_links} directed links)"

    def to_frame(self) -> Any:
        """A pandas frame, a row for each link: name, source, target, capacity (Gbit/s), latency
        (ms).
        """
        import pandas as pd

        names = np.array(self.node_names, dtype=object)
        return pd.DataFrame(
            {
                "link": self.link_names(),
                "source": names[self.link_source],
                "target": names[self.link_target],
                "capacity": self.capacity,
                "latency": self.latency,
            }
        )

    def to_networkx(self) -> Any:
        """A networkx MultiDiGraph: names of nodes; links in order, with capacity (Gbit/s), latency
        (ms), metrics, affinities.
        """
        import networkx as nx

        graph = nx.MultiDiGraph(name=self.name)
        for node, (longitude, latitude) in enumerate(self.coordinates.tolist()):
            place = {} if np.isnan(longitude) else {"lon": longitude, "lat": latitude}
            overload = (
                {"overload": True} if self.no_transit is not None and self.no_transit[node] else {}
            )
            graph.add_node(self.node_names[node], **place, **overload)
        for link in range(self.num_links):
            values = {"capacity": float(self.capacity[link]), "latency": float(self.latency[link])}
            values |= self.igp_attributes(link)
            source, target = (
                self.node_names[self.link_source[link]],
                self.node_names[self.link_target[link]],
            )
            graph.add_edge(source, target, **values)
        return graph

    @property
    def edge_index(self) -> Any:
        """(2, E) torch tensor int64, nodes where each link starts and ends, as PyTorch Geometric
        takes them.
        """
        import torch

        return torch.as_tensor(np.stack([self.link_source, self.link_target]), dtype=torch.int64)

    def to_hetero_data(self) -> Any:
        """A HeteroData of PyTorch Geometric: nodes ``node`` with ``pos`` (N, 2), the coordinates;
        links ``("node", "link", "node")`` in order, with ``edge_index`` (2, E) and ``edge_attr``
        (E, 2), Gbit/s and ms.
        """
        import torch
        from torch_geometric.data import HeteroData

        data, links = HeteroData(), ("node", "link", "node")
        data["node"].num_nodes = self.num_nodes
        data["node"].pos = torch.as_tensor(self.coordinates)
        data[links].edge_index = self.edge_index
        data[links].edge_attr = torch.as_tensor(np.stack([self.capacity, self.latency], axis=1))
        return data

    def igp_attributes(self, link: int) -> dict[str, Any]:
        """Attributes of a link by their names in files: those it has of metric, te_metric, affinity
        (sorted names), cost.
        """
        found: dict[str, Any] = {} if self.metric is None else {"metric": int(self.metric[link])}
        if self.te_metric is not None and self.te_metric[link]:
            found["te_metric"] = int(self.te_metric[link])
        if self.affinities and self.affinities[link]:
            found["affinity"] = sorted(self.affinities[link])
        if self.cost is not None:
            found["cost"] = float(self.cost[link])
        return found

    def link_names(self) -> list[str]:
        """Distinct names of all links: ``source->target``, with ``#1``, ``#2``, ... where several
        are parallel.

        Where another link or node has such a name, as a node ``b#1`` beside ``b``, there is a
        further ``#``: ``a->b##1``.
        """
        names, nodes = [self.link_name(link) for link in range(self.num_links)], self.node_index()
        count, seen = Counter(names), Counter[str]()
        taken = {name for name in names if count[name] == 1}
        for link, name in enumerate(names):
            if count[name] > 1:
                seen[name] += 1
                mark, target = "#", self.node_names[self.link_target[link]]
                while (
                    f"{name}{mark}{seen[name]}" in taken or f"{target}{mark}{seen[name]}" in nodes
                ):
                    mark += "#"
                names[link] = f"{name}{mark}{seen[name]}"
                taken.add(names[link])
        return names

    @cached_property
    def _link_of_name(self) -> dict[str, int]:
        return {name: link for link, name in enumerate(self.link_names())}

    def member(self, a: str, b: str) -> tuple[str, int]:
        """The neighbour of node ``a`` that ``b`` names, and which of parallel cables, as ``c#2``
        says; 0 for all.
        """
        if b in self.node_index():
            return b, 0
        link = self._link_of_name.get(f"{a}->{b}", -1)
        if link >= 0 and self.node_names[self.link_source[link]] == a:
            ends = (self.link_source == self.link_source[link]) & (
                self.link_target == self.link_target[link]
            )
            return self.node_names[self.link_target[link]], int(ends[: link + 1].sum())
        node, _, number = b.rpartition("#")
        return (node, int(number)) if node and number.isdecimal() and int(number) else (b, 0)

    def node_index(self) -> dict[str, int]:
        """Name to index of every node, and its aliases likewise."""
        index = {name: i for i, name in enumerate(self.node_names)}
        return {alias: index[name] for alias, name in self.aliases.items()} | index

    def name_of(self, name: str) -> str:
        """The name of a node that is called by an alias, as :class:`Names` compares them; else
        ``name`` itself.
        """
        return self._names.own(name) if self.aliases and name not in self.node_names else name

    @cached_property
    def _names(self) -> Names:
        names = Names()
        for alias, own in [*self.aliases.items(), *((name, name) for name in self.node_names)]:
            names.add(alias, own)
        return names

    def with_capacity(self, capacity: FloatArray) -> Topology:
        """The network with other capacities, (E,) Gbit/s."""
        return dataclasses.replace(self, capacity=np.asarray(capacity, dtype=np.float64))

    def with_links(self, links: IntArray | Int64Array | BoolArray) -> Topology:
        """The nodes with some of the links only, by their numbers or by a mask (E,)."""
        return self._of_links(np.arange(self.num_links)[links])

    def _of_links(self, numbers: IntArray | Int64Array, **changed: Any) -> Topology:
        """The nodes with the links of these numbers, of which some fields are others."""
        fields: dict[str, Any] = {
            name: None if (values := getattr(self, name)) is None else values[numbers]
            for name in (
                "link_source",
                "link_target",
                "capacity",
                "latency",
                "metric",
                "te_metric",
                "cost",
            )
        }
        fields["affinities"] = (
            tuple(self.affinities[link] for link in numbers) if self.affinities else ()
        )
        return dataclasses.replace(self, **{**fields, **changed})

    def with_failed_links(self, links: Iterable[int]) -> Topology:
        """The network with capacity 0 on the links of the given indices.

        :meth:`graph_key` does not change, so that candidate paths computed before remain valid.
        """
        capacity = self.capacity.copy()
        capacity[list(links)] = 0.0
        return self.with_capacity(capacity)

    def find_links(self, a: str, b: str, member: int = 0) -> list[int]:
        """The links between two nodes, in both directions.

        Args:
            a: name of a node.
            b: name of another one; with ``#2`` behind it, the second of parallel cables alone, in
                the order of the file; ``*`` for all links of ``a``.
            member: number of the parallel cable, from 1; 0 for all, or for what ``b`` says.

        Raises:
            InputError: an unknown node, no link between the two, or fewer parallel cables.
        """
        index, where = self.node_index(), self.origin or self.name
        a, b = (name if name in index else canonical_name(name) for name in (a, b))
        other, member = (b, member) if member else self.member(self.name_of(a), b)
        for node in (a, *(() if b == "*" and b not in index else (other,))):
            if node not in index:
                raise InputError(where, "node", "a node of the topology", repr(node))
        i, j = index[a], index.get(other, -1)
        if j < 0:
            links = np.flatnonzero((self.link_source == i) | (self.link_target == i))
        else:
            forth = np.flatnonzero((self.link_source == i) & (self.link_target == j))
            back = np.flatnonzero((self.link_source == j) & (self.link_target == i))
            links = np.sort(np.concatenate([forth, back]))
            if member:
                links = np.concatenate([forth[member - 1 : member], back[member - 1 : member]])
        if not len(links):
            expected = f"a link between {a} and {other}" if j >= 0 else f"a link of {a}"
            raise InputError(
                where, "link", expected + (f", of at least {member}" if member else ""), "none"
            )
        return [int(link) for link in links]

    def ends_of(self, text: str, option: str, separator: str = ",") -> tuple[str, str]:
        """The two nodes that a text such as ``A,B`` or ``A,B#2`` names; names of nodes may contain
        the separator.

        Raises:
            InputError: no two names, or names that can be divided in several ways; none of a node
                is found later.
        """
        index = self.node_index()
        parts = text.split(separator)
        pairs = [
            (separator.join(parts[:i]).strip(), separator.join(parts[i:]).strip())
            for i in range(1, len(parts))
        ]
        known = [
            (a, b)
            for a, b in pairs
            if a in index and (b in index or b.rpartition("#")[0] in index or b == "*")
        ]
        if len(known) > 1 or not pairs:
            found = " or ".join(f"{a} - {b}" for a, b in known) or repr(text)
            raise InputError(option, "", f"two node names, A{separator}B", found)
        if not known and len(pairs) > 1:
            expected = (
                f"two node names, A{separator}B (names that contain {separator!r} as the file "
                "writes them)"
            )
            raise InputError(option, "", expected, repr(text))
        return (known or pairs)[0]

    def links_named(self, texts: Iterable[str], option: str) -> list[int]:
        """The links between the nodes of each text ``A,B``, as :meth:`ends_of` reads it, each link
        once.

        Raises:
            InputError: no such nodes, or no link between them.
        """
        return sorted(
            {link for text in texts for link in self.find_links(*self.ends_of(text, option))}
        )

    def cables(self) -> list[list[int]]:
        """The links that fail together: for each pair of neighbours all links between the two, in
        both directions.
        """
        by_ends: dict[tuple[int, int], list[int]] = {}
        for link, (a, b) in enumerate(
            zip(self.link_source.tolist(), self.link_target.tolist(), strict=True)
        ):
            by_ends.setdefault((min(a, b), max(a, b)), []).append(link)
        return list(by_ends.values())

    def link_pairs(self) -> list[list[int]]:
        """The links of all cables, each with its opposite one: of parallel links the k-th of each
        direction.
        """
        pairs = []
        for links in self.cables():
            forth = [link for link in links if self.link_source[link] == self.link_source[links[0]]]
            back = [link for link in links if self.link_source[link] != self.link_source[links[0]]]
            pairs += [forth[k : k + 1] + back[k : k + 1] for k in range(max(len(forth), len(back)))]
        return pairs

    def isolated_nodes(self) -> list[int]:
        """The nodes without a link, by their indices."""
        used = np.zeros(self.num_nodes, dtype=bool)
        used[self.link_source] = used[self.link_target] = True
        return [int(n) for n in np.flatnonzero(~used)]

    def one_way_links(self) -> list[int]:
        """The links for which there is none in the other direction, by their numbers; parallel ones
        are counted.
        """
        ends = list(zip(self.link_source.tolist(), self.link_target.tolist(), strict=True))
        left, found = Counter((t, s) for s, t in ends), []
        for link, pair in enumerate(ends):
            left[pair] -= 1
            if left[pair] < 0:
                found.append(link)
        return found

    def bidirectional(self) -> Topology:
        """The network plus a link in the other direction, with its capacity, latency and metric
        where none is.
        """
        missing = np.array(self.one_way_links(), dtype=np.int64)
        source = np.concatenate([self.link_source, self.link_target[missing]])
        target = np.concatenate([self.link_target, self.link_source[missing]])
        both = np.concatenate([np.arange(self.num_links), missing])
        return self._of_links(both, link_source=source, link_target=target)

    def graph_key(self) -> str:
        """Hash of the number of nodes, the ends of the links, and the routers without transit.

        Candidate paths are valid for every topology with the same key.
        """
        stubs = () if self.no_transit is None else (self.no_transit,)
        return content_key(self.num_nodes, self.link_source, self.link_target, *stubs)

    def doubts(self) -> list[str]:
        """Sentences without a full stop about nodes without a link, links of one direction, and
        separate parts.
        """
        doubts, names, parts = [], self.link_names(), self.num_components()
        if alone := [self.node_names[node] for node in self.isolated_nodes()]:
            doubts.append(f"nodes without a link: {listed(alone, _MAX_NAMES)}")
        if one_way := [names[link] for link in self.one_way_links()]:
            doubts.append(
                f"links without one in the other direction: {listed(one_way, _MAX_NAMES)} "
                "(--bidirectional adds them)"
            )
        if self.no_transit is not None:
            stubs = [self.node_names[node] for node in np.flatnonzero(self.no_transit)]
            doubts.append(f"routers that carry no transit traffic: {listed(stubs, _MAX_NAMES)}")
        if parts > 1:
            doubts.append(
                f"not connected: {parts} parts (strongly connected), so that some pairs have no "
                "path"
            )
        return doubts

    def num_components(self) -> int:
        """Number of strongly connected parts, over links that have a capacity."""
        return int(self.component_of_node().max(initial=-1)) + 1

    def component_of_node(self) -> IntArray:
        """(N,) number of the strongly connected part of each node, over links that have a
        capacity.
        """
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        live = self.capacity > 0
        ends = self.link_source[live], self.link_target[live]
        graph = csr_array((np.ones(len(ends[0])), ends), shape=(self.num_nodes, self.num_nodes))
        return np.asarray(connected_components(graph, directed=True, connection="strong")[1])

    def content_key(self) -> str:
        """Hash of what an allocation can depend on: nodes, links, capacities, latencies, routers
        without transit.
        """
        stubs = () if self.no_transit is None else (self.no_transit,)
        ends = self.link_source, self.link_target
        return content_key(self.node_names, *ends, self.capacity, self.latency, *stubs)
