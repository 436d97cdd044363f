"""Wide-area networks: nodes, directed links with capacity and latency, IGP attributes.

:class:`Topology` is the validated, immutable network that all other code uses; :class:`Names`
resolves aliases of nodes and routers.
"""

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

# Maximum number of nodes or links that a sentence lists.
_MAX_LISTED_NAMES = 10


def canonical_name(text: str) -> str:
    """Return a name in canonical form: Unicode form NFC, plain spaces instead of no-break spaces.

    Files from macOS store accents as separate characters, and Excel writes no-break spaces; both
    look the same.
    """
    return unicodedata.normalize("NFC", text).replace("\u00a0", " ").replace("\u202f", " ").strip()


class Names:
    """Aliases of nodes or routers: maps each name that files may use to the primary name.

    Names are compared without case and without a port; IP addresses are compared in canonical form.
    """

    def __init__(self) -> None:
        self._primary: dict[str, str] = {}

    def add(self, name: str, primary: str) -> str:
        """Register an alias of a primary name.

        Args:
            name: the alias.
            primary: the primary name.

        Returns:
            the primary name of the alias: another one if it was registered before.
        """
        return self._primary.setdefault(self._key(name), primary)

    def resolve(self, name: str) -> str:
        """Return the primary name of an alias, with or without a port; an unknown name is
        unchanged.
        """
        return (
            self._primary.get(self._key(name))
            or self._primary.get(self._key(without_port(name)))
            or name
        )

    @staticmethod
    def _key(name: str) -> str:
        """Return the form in which names are compared: without case, IP addresses in canonical
        form.
        """
        text = name.strip().casefold()
        try:
            return str(ipaddress.ip_address(text))
        except ValueError:
            return text


def without_port(name: str) -> str:
    """Strip the port from ``host:port`` or ``[address]:port``; other names are unchanged.

    An IPv6 address without brackets has no port.
    """
    match = re.fullmatch(r"\[([^\]]+)\](?::\d+)?|([^:]+):\d+", name.strip())
    return name if match is None else match[1] or match[2]


@dataclasses.dataclass(frozen=True, eq=False)
class Topology:
    """Network of N nodes and E directed links, validated by the constructor.

    Parallel links are allowed and separate; self-loops are not allowed.

    Attributes:
        name: short name for tables and plots.
        node_names: N distinct names.
        link_source: (E,) index of the node where each link starts.
        link_target: (E,) index of the node where it ends.
        capacity: (E,) Gbit/s; 0 means that the link has failed.
        latency: (E,) one-way propagation delay, ms; positive, so that shortest paths have no loops.
        metric: (E,) IGP metric, a positive integer; None where unknown.  Candidate paths do not
            depend on it.
        te_metric: (E,) TE metric, an integer, 0 on a link that has none; None if no link has one.
        cost: (E,) non-negative cost of one Gbit/s, in any unit; None where unknown.
        affinities: (E,) names of the affinities (administrative groups) of each link; () if no link
            has any.
        coordinates: (N, 2) longitude and latitude in degrees (or x and y in any unit), only for
            drawing; NaN where unknown.
        origin: file or name that the topology was read from, for messages.
        notes: assumptions made while reading it, as sentences.
        aliases: alternative names of nodes, mapped to the node names.
        no_transit: (N,) whether a router carries no transit traffic, as with the overload bit of
            IS-IS (ISO 10589, RFC 3787); None if there is none.

    Raises:
        InputError: from the constructor, naming the first invalid field.
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
        """Raise InputError for the first invalid field."""
        self._check_sizes()
        self._check_links()
        self._check_optional_attributes()

    def _check_sizes(self) -> None:
        """Raise InputError for fewer than two nodes, no link, repeated node names, or wrong array
        shapes.
        """
        where = self.origin or self.name
        num_nodes = len(self.node_names)
        num_links = len(self.link_source)
        if num_nodes < 2:
            raise InputError(where, "nodes", "at least 2 nodes", num_nodes)
        if len(set(self.node_names)) != num_nodes:
            duplicate = next(n for i, n in enumerate(self.node_names) if n in self.node_names[:i])
            raise InputError.invalid(where, "nodes", f"two nodes have the name {duplicate!r}")
        if num_links == 0:
            raise InputError.invalid(where, "links", "the network has no link")
        # Array shapes.
        for field, shape in (
            ("link_source", (num_links,)),
            ("link_target", (num_links,)),
            ("capacity", (num_links,)),
            ("latency", (num_links,)),
            ("coordinates", (num_nodes, 2)),
        ):
            self._check_shape(field, shape)

    def _check_links(self) -> None:
        """Raise InputError for invalid ends, capacity or latency of a link."""
        num_nodes = len(self.node_names)
        for field in ("link_source", "link_target"):
            ends = getattr(self, field)
            out_of_range = ends[(ends < 0) | (ends >= num_nodes)]
            if len(out_of_range):
                raise InputError(
                    self.origin or self.name,
                    field,
                    f"node indices in 0..{num_nodes - 1}",
                    int(out_of_range[0]),
                )
        # Self-loops, capacities and latencies.
        self._require(
            self.link_source != self.link_target, "target", "a node other than the source"
        )
        is_valid_capacity = np.isfinite(self.capacity) & (self.capacity >= 0)
        self._require(is_valid_capacity, "capacity", "a finite capacity >= 0", self.capacity)
        is_valid_latency = np.isfinite(self.latency) & (self.latency > 0)
        self._require(is_valid_latency, "latency", "a finite latency > 0", self.latency)

    def _check_optional_attributes(self) -> None:
        """Raise InputError for invalid metrics, costs, routers without transit, or affinities."""
        num_nodes = len(self.node_names)
        num_links = len(self.link_source)
        if self.metric is not None:
            self._check_shape("metric", (num_links,))
            self._require(self.metric > 0, "metric", "an IGP metric > 0", self.metric)
        if self.te_metric is not None:
            self._check_shape("te_metric", (num_links,))
            self._require(
                self.te_metric >= 0, "te_metric", "a TE metric > 0, or 0 for none", self.te_metric
            )
        if self.cost is not None:
            self._check_shape("cost", (num_links,))
            is_valid_cost = np.isfinite(self.cost) & (self.cost >= 0)
            self._require(is_valid_cost, "cost", "a finite cost >= 0", self.cost)
        # Routers without transit, and affinities.
        if self.no_transit is not None:
            self._check_shape("no_transit", (num_nodes,))
        if len(self.affinities) not in (0, num_links):
            raise InputError(
                self.origin or self.name,
                "affinities",
                f"{num_links} sets of names, one for each link, or ()",
                f"{len(self.affinities)} sets",
            )

    def _check_shape(self, field: str, shape: tuple[int, ...]) -> None:
        """Raise InputError if the array of an attribute has another shape."""
        actual = getattr(self, field).shape
        if actual != shape:
            raise InputError(self.origin or self.name, field, f"shape {shape}", actual)

    def _require(
        self,
        is_valid: BoolArray,
        field: str,
        expected: str,
        values: FloatArray | Int64Array | None = None,
    ) -> None:
        """Raise InputError for the first link whose value is invalid.

        Args:
            is_valid: (E,) whether the value of each link is valid.
            field: name of the attribute.
            expected: accepted values.
            values: (E,) the values, for the message; None shows the link's name.
        """
        if not is_valid.all():
            first_invalid = int(np.argmin(is_valid))
            actual = self.link_name(first_invalid) if values is None else values[first_invalid]
            raise InputError(
                self.origin or self.name,
                f"link {self.link_name(first_invalid)}: {field}",
                expected,
                actual,
            )

    @property
    def num_nodes(self) -> int:
        """The number N of nodes."""
        return len(self.node_names)

    @property
    def num_links(self) -> int:
        """The number E of directed links."""
        return len(self.link_source)

    def link_name(self, link: int) -> str:
        """Return the name ``source->target`` of a link, for messages; parallel links have the same
        name.
        """
        return (
            f"{self.node_names[self.link_source[link]]}->{self.node_names[self.link_target[link]]}"
        )

    def __repr__(self) -> str:
        return f"Topology({self.name!r}: {self.num_nodes} nodes, {self.num_links} directed links)"

    def to_frame(self) -> Any:
        """Return a pandas frame with a row for each link and its name, source, target, capacity
        (Gbit/s) and latency (ms).
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
        """Return the network as a networkx MultiDiGraph.

        Nodes have their names, and positions and overload bits if known. Links are in their order,
        with capacity (Gbit/s), latency (ms), metrics, affinities and cost.
        """
        import networkx as nx

        # Nodes with coordinates, if known, and overload bits.
        graph = nx.MultiDiGraph(name=self.name)
        for node, (longitude, latitude) in enumerate(self.coordinates.tolist()):
            position = {} if np.isnan(longitude) else {"lon": longitude, "lat": latitude}
            overload = (
                {"overload": True} if self.no_transit is not None and self.no_transit[node] else {}
            )
            graph.add_node(self.node_names[node], **position, **overload)
        # Links in their order.
        for link in range(self.num_links):
            attributes = {
                "capacity": float(self.capacity[link]),
                "latency": float(self.latency[link]),
            }
            attributes |= self.igp_attributes(link)
            source = self.node_names[self.link_source[link]]
            target = self.node_names[self.link_target[link]]
            graph.add_edge(source, target, **attributes)
        return graph

    @property
    def edge_index(self) -> Any:
        """Tensor (2, E) of torch.int64 with source and target node of each link, as in PyTorch
        Geometric.
        """
        import torch

        return torch.as_tensor(np.stack([self.link_source, self.link_target]), dtype=torch.int64)

    def to_hetero_data(self) -> Any:
        """Return the network as a HeteroData of PyTorch Geometric.

        Nodes ``node`` have ``pos`` (N, 2), the coordinates. Links ``("node", "link", "node")``, in
        their order, have ``edge_index`` (2, E), and ``edge_attr`` (E, 2) with capacity in Gbit/s
        and latency in ms.
        """
        import torch
        from torch_geometric.data import HeteroData

        data = HeteroData()
        links = ("node", "link", "node")
        data["node"].num_nodes = self.num_nodes
        data["node"].pos = torch.as_tensor(self.coordinates)
        data[links].edge_index = self.edge_index
        data[links].edge_attr = torch.as_tensor(np.stack([self.capacity, self.latency], axis=1))
        return data

    def igp_attributes(self, link: int) -> dict[str, Any]:
        """Return the attributes of a link under their names in files: metric, te_metric, affinity
        (sorted names) and cost. Attributes that the link does not have are omitted.
        """
        attributes: dict[str, Any] = (
            {} if self.metric is None else {"metric": int(self.metric[link])}
        )
        if self.te_metric is not None and self.te_metric[link]:
            attributes["te_metric"] = int(self.te_metric[link])
        if self.affinities and self.affinities[link]:
            attributes["affinity"] = sorted(self.affinities[link])
        if self.cost is not None:
            attributes["cost"] = float(self.cost[link])
        return attributes

    def link_names(self) -> list[str]:
        """Return distinct names of all links: ``source->target``, with suffixes ``#1``, ``#2``, ...
        for parallel links.

        If another link already has such a name, or a node is called ``target#1``, another ``#`` is
        inserted: ``a->b##1``.
        """
        names = [self.link_name(link) for link in range(self.num_links)]
        node_index = self.node_index()
        occurrences = Counter(names)
        # Number of parallel links named so far, by ``source->target``.
        num_named = Counter[str]()
        used_names = {name for name in names if occurrences[name] == 1}
        for link, name in enumerate(names):
            if occurrences[name] > 1:
                num_named[name] += 1
                separator = "#"
                target = self.node_names[self.link_target[link]]
                # Add a # while another link has this name, or a node is called like its end.
                while (
                    f"{name}{separator}{num_named[name]}" in used_names
                    or f"{target}{separator}{num_named[name]}" in node_index
                ):
                    separator += "#"
                names[link] = f"{name}{separator}{num_named[name]}"
                used_names.add(names[link])
        return names

    @cached_property
    def _link_index(self) -> dict[str, int]:
        """Index of each link by its distinct name."""
        return {name: link for link, name in enumerate(self.link_names())}

    def member(self, a: str, b: str) -> tuple[str, int]:
        """Parse the name of a neighbour of a node, with an optional suffix as in ``c#2`` that
        selects one of several parallel cables.

        Args:
            a: name of the node.
            b: name of the neighbour, with or without suffix.

        Returns:
            the name of the neighbour, and the index of the parallel cable from 1; 0 without a
            suffix, for all cables.
        """
        # A node name may contain "#", and so may a link name: both take precedence over the suffix.
        if b in self.node_index():
            return b, 0
        link = self._link_index.get(f"{a}->{b}", -1)
        # Text after ``a->`` that names a link: its position among the parallel links.
        if link >= 0 and self.node_names[self.link_source[link]] == a:
            is_parallel = (self.link_source == self.link_source[link]) & (
                self.link_target == self.link_target[link]
            )
            return self.node_names[self.link_target[link]], int(is_parallel[: link + 1].sum())
        node, _, member = b.rpartition("#")
        return (node, int(member)) if node and member.isdecimal() and int(member) else (b, 0)

    def node_index(self) -> dict[str, int]:
        """Return the index of every node name and alias."""
        index = {name: i for i, name in enumerate(self.node_names)}
        return {alias: index[name] for alias, name in self.aliases.items()} | index

    def name_of(self, name: str) -> str:
        """Return the node name of an alias; other names are returned unchanged.

        Aliases are compared without case and port, IP addresses in canonical form.
        """
        return self._names.resolve(name) if self.aliases and name not in self.node_names else name

    @cached_property
    def _names(self) -> Names:
        """Resolver of the aliases of nodes and of the node names."""
        names = Names()
        for alias, primary in [*self.aliases.items(), *((name, name) for name in self.node_names)]:
            names.add(alias, primary)
        return names

    def with_capacity(self, capacity: FloatArray) -> Topology:
        """Return the network with other capacities, (E,) Gbit/s."""
        return dataclasses.replace(self, capacity=np.asarray(capacity, dtype=np.float64))

    def with_links(self, links: IntArray | Int64Array | BoolArray) -> Topology:
        """Return the network with a subset of its links.

        Args:
            links: indices of the links, or a mask (E,).
        """
        return self._select_links(np.arange(self.num_links)[links])

    def _select_links(self, indices: IntArray | Int64Array, **overrides: Any) -> Topology:
        """Return the network with some of its links.

        Args:
            indices: indices of the links, in the new order; an index may repeat.
            overrides: fields of the topology to replace, such as ``link_source``.
        """
        fields: dict[str, Any] = {
            name: None if (values := getattr(self, name)) is None else values[indices]
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
            tuple(self.affinities[link] for link in indices) if self.affinities else ()
        )
        return dataclasses.replace(self, **{**fields, **overrides})

    def with_failed_links(self, links: Iterable[int]) -> Topology:
        """Return the network with capacity 0 on failed links.

        :meth:`graph_key` does not change, so that candidate paths computed before remain valid.

        Args:
            links: indices of the failed links.
        """
        capacity = self.capacity.copy()
        capacity[list(links)] = 0.0
        return self.with_capacity(capacity)

    def find_links(self, a: str, b: str, member: int = 0) -> list[int]:
        """Return the links between two nodes, in both directions.

        Args:
            a: name of a node.
            b: name of the other node; the suffix ``#2`` selects the second of parallel cables, in
                the order of the file; ``*`` selects all links of ``a``.
            member: index of the parallel cable, from 1; 0 for all, or for the suffix of ``b``.

        Raises:
            InputError: an unknown node, no link between the two, or fewer parallel cables.
        """
        index_by_name = self.node_index()
        where = self.origin or self.name
        # Resolve the names of the nodes, and the suffix of parallel cables.
        a, b = (name if name in index_by_name else canonical_name(name) for name in (a, b))
        neighbour, member = (b, member) if member else self.member(self.name_of(a), b)
        # Both must be nodes, unless b is *, which stands for all neighbours.
        for node in (a, *(() if b == "*" and b not in index_by_name else (neighbour,))):
            if node not in index_by_name:
                raise InputError(where, "node", "a node of the topology", repr(node))
        source = index_by_name[a]
        target = index_by_name.get(neighbour, -1)
        # All links of the node (b = *), or those between both nodes, or one of the parallel cables.
        if target < 0:
            links = np.flatnonzero((self.link_source == source) | (self.link_target == source))
        else:
            forward = np.flatnonzero((self.link_source == source) & (self.link_target == target))
            backward = np.flatnonzero((self.link_source == target) & (self.link_target == source))
            links = np.sort(np.concatenate([forward, backward]))
            if member:
                links = np.concatenate(
                    [forward[member - 1 : member], backward[member - 1 : member]]
                )
        # Report what is missing.
        if not len(links):
            problem = f"node {a} has no link"
            if target >= 0:
                problem = f"no link between {a} and {neighbour}"
            if member:
                problem = f"fewer than {member} parallel links between {a} and {neighbour}"
            raise InputError.invalid(where, "link", problem)
        return [int(link) for link in links]

    def ends_of(self, text: str, option: str, separator: str = ",") -> tuple[str, str]:
        """Parse a text such as ``A,B`` or ``A,B#2`` into two node names.

        Node names may contain the separator: the text is divided so that both parts are known
        names.

        Args:
            text: the two names.
            option: option of the text, for messages.
            separator: text between the names.

        Returns:
            the two names; the second one may have a suffix, or be ``*``.

        Raises:
            InputError: not two names, or several divisions into known names; unknown nodes are
                reported by :meth:`find_links`.
        """
        index_by_name = self.node_index()
        # Divide the text at each separator; keep the divisions into known node names.
        parts = text.split(separator)
        divisions = [
            (separator.join(parts[:i]).strip(), separator.join(parts[i:]).strip())
            for i in range(1, len(parts))
        ]
        known_divisions = [
            (a, b)
            for a, b in divisions
            if a in index_by_name
            and (b in index_by_name or b.rpartition("#")[0] in index_by_name or b == "*")
        ]
        # Raise an error unless exactly one division has known names.  A single division is returned
        # even if its names are unknown.
        if len(known_divisions) > 1 or not divisions:
            readings = " or ".join(f"{a} - {b}" for a, b in known_divisions)
            actual = f"{text!r}, which may mean {readings}" if readings else repr(text)
            raise InputError(option, "", f"two node names, A{separator}B", actual)
        if not known_divisions and len(divisions) > 1:
            expected = (
                f"two node names, A{separator}B (names that contain {separator!r} as the file "
                "writes them)"
            )
            raise InputError(option, "", expected, repr(text))
        return (known_divisions or divisions)[0]

    def links_named(self, texts: Iterable[str], option: str) -> list[int]:
        """Return the indices of the links between the two nodes of each text ``A,B``, ascending and
        without duplicates.

        Args:
            texts: pairs of node names, with an optional suffix ``#2`` for the second of parallel
                cables.
            option: option of the texts, for messages.

        Raises:
            InputError: unknown nodes, or no link between them.
        """
        return sorted(
            {link for text in texts for link in self.find_links(*self.ends_of(text, option))}
        )

    def cables(self) -> list[list[int]]:
        """Return the link indices of each cable.

        A cable consists of all links between two neighbours, in both directions, which fail
        together.
        """
        by_ends: dict[tuple[int, int], list[int]] = {}
        for link, (a, b) in enumerate(
            zip(self.link_source.tolist(), self.link_target.tolist(), strict=True)
        ):
            by_ends.setdefault((min(a, b), max(a, b)), []).append(link)
        return list(by_ends.values())

    def link_pairs(self) -> list[list[int]]:
        """Return pairs of opposite links, by index: the k-th link of a cable in one direction and
        the k-th one in the other direction.

        A link without a reverse link is a list of its own.
        """
        pairs = []
        for links in self.cables():
            # Links in the direction of the cable's first link, and in the other direction.
            forward = [
                link for link in links if self.link_source[link] == self.link_source[links[0]]
            ]
            backward = [
                link for link in links if self.link_source[link] != self.link_source[links[0]]
            ]
            pairs += [
                forward[k : k + 1] + backward[k : k + 1]
                for k in range(max(len(forward), len(backward)))
            ]
        return pairs

    def isolated_nodes(self) -> list[int]:
        """Return the indices of the nodes without a link."""
        has_link = np.zeros(self.num_nodes, dtype=bool)
        has_link[self.link_source] = has_link[self.link_target] = True
        return [int(n) for n in np.flatnonzero(~has_link)]

    def one_way_links(self) -> list[int]:
        """Return the indices of the links without a reverse link.

        Among parallel links, each reverse link is matched with one link.
        """
        link_ends = list(zip(self.link_source.tolist(), self.link_target.tolist(), strict=True))
        # For each pair (s, t), the number of links from t to s that are not matched yet.
        num_unmatched = Counter((t, s) for s, t in link_ends)
        one_way = []
        for link, pair in enumerate(link_ends):
            num_unmatched[pair] -= 1
            if num_unmatched[pair] < 0:
                one_way.append(link)
        return one_way

    def bidirectional(self) -> Topology:
        """Return the network with a reverse link added for each one-way link.

        The added link has the attributes of the one-way link, such as capacity and latency.
        """
        one_way = np.array(self.one_way_links(), dtype=np.int64)
        source = np.concatenate([self.link_source, self.link_target[one_way]])
        target = np.concatenate([self.link_target, self.link_source[one_way]])
        links = np.concatenate([np.arange(self.num_links), one_way])
        return self._select_links(links, link_source=source, link_target=target)

    def graph_key(self) -> str:
        """Return a hash of the nodes, the ends of the links, and the routers without transit.

        Candidate paths are valid for every topology with the same key.
        """
        no_transit = () if self.no_transit is None else (self.no_transit,)
        return content_key(self.num_nodes, self.link_source, self.link_target, *no_transit)

    def doubts(self) -> list[str]:
        """Return warnings about the network, one sentence each: isolated nodes, one-way links,
        routers without transit, several strongly connected components.
        """
        # Nodes without a link, and links in one direction only.
        warnings = []
        names = self.link_names()
        num_components = self.num_components()
        if isolated := [self.node_names[node] for node in self.isolated_nodes()]:
            warnings.append(f"nodes without a link: {listed(isolated, _MAX_LISTED_NAMES)}")
        if one_way := [names[link] for link in self.one_way_links()]:
            warnings.append(
                f"links without one in the other direction: {listed(one_way, _MAX_LISTED_NAMES)} "
                "(--bidirectional adds them)"
            )
        # Routers without transit traffic, and several components.
        if self.no_transit is not None:
            no_transit_routers = [self.node_names[node] for node in np.flatnonzero(self.no_transit)]
            warnings.append(
                "routers that carry no transit traffic: "
                f"{listed(no_transit_routers, _MAX_LISTED_NAMES)}"
            )
        if num_components > 1:
            warnings.append(
                f"not connected: {num_components} strongly connected components, some pairs have "
                "no path"
            )
        return warnings

    def num_components(self) -> int:
        """Return the number of strongly connected components over links with capacity."""
        return int(self.component_of_node().max(initial=-1)) + 1

    def component_of_node(self) -> IntArray:
        """Return the index (N,) of each node's strongly connected component, over links with
        capacity.
        """
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        is_up = self.capacity > 0
        ends = self.link_source[is_up], self.link_target[is_up]
        graph = csr_array((np.ones(len(ends[0])), ends), shape=(self.num_nodes, self.num_nodes))
        return np.asarray(connected_components(graph, directed=True, connection="strong")[1])

    def content_key(self) -> str:
        """Return a hash of all inputs of an allocation: nodes, links, capacities, latencies, and
        routers without transit.
        """
        no_transit = () if self.no_transit is None else (self.no_transit,)
        ends = self.link_source, self.link_target
        return content_key(self.node_names, *ends, self.capacity, self.latency, *no_transit)
