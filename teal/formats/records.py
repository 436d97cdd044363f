"""Common records of all topology formats, and their conversion into a Topology.

Readers create a :class:`LinkRecord` per link; :func:`topology_from_records` validates them and
builds the network.  :class:`Attributes` holds configurable attribute names.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from teal.errors import WARNING, InputError, listed
from teal.formats.units import fibre_latency_ms, gbps_per_unit, great_circle_km
from teal.network import Topology
from teal.network.topology import canonical_name
from teal.runtime.arrays import FloatArray, Int64Array

# Placeholder (Gbit/s) for links whose capacity the inventory gives later.
PENDING_CAPACITY = 1e-300
# IGP metrics have at most 32 bits.
_MAX_METRIC = 2**32 - 1
# Latency of a link without latency and coordinates.
_DEFAULT_LATENCY_MS = 1.0


@dataclasses.dataclass(frozen=True)
class LinkRecord:
    """Link as a file describes it, with capacity and latency in the project's units.

    Attributes:
        source: name of the node where it starts.
        target: name of the node where it ends.
        capacity: Gbit/s; None if the file has none.
        latency: ms; None to derive it from the coordinates.
        field: location in the file, for messages.
        other_attributes: names of other attributes, for messages.
        metric: IGP metric; None if the file has none.
        has_failed: whether the link is out of service (a cable in both directions), so that its
            capacity becomes 0.
        metric_back: IGP metric of the reverse direction of a cable; None if it equals ``metric``.
        te_metric: TE metric; None if the link has none.
        affinities: names of its affinities (administrative groups).
        cost: cost of one Gbit/s; None if the file has none.
    """

    source: str
    target: str
    capacity: float | None
    latency: float | None
    field: str
    other_attributes: tuple[str, ...] = ()
    metric: float | None = None
    has_failed: bool = False
    metric_back: float | None = None
    te_metric: float | None = None
    affinities: frozenset[str] = frozenset()
    cost: float | None = None


# Field of Attributes that no option --attributes names.
INSIDE = "inside"


@dataclasses.dataclass(frozen=True)
class Attributes:
    """Names of the link attributes in a file, and the part of the file to read.

    Attributes:
        capacity: attribute with the capacity.
        latency: attribute with the latency, ms.
        source: column with the node where a link starts, in a table.
        target: column with the node where a link ends, in a table.
        metric: column with the IGP metric, in a table.
        metric_back: column with the IGP metric of the reverse direction of a cable, in a table.
        te_metric: column with the TE metric, in a table.
        cost: attribute with the cost of a Gbit/s.
        affinity: column with names of affinities, separated by spaces or semicolons, in a table.
        members: column with the number of links of an aggregation group, in a table.
        status: attribute with the operational status.
        capacity_unit: unit of the capacity, such as Mbit/s; "" for the file's unit, or Gbit/s.
        inside: NAME of ``FILE#NAME``: a network of a file with several, or a sheet of a workbook;
            "" for the only network or the active sheet.
    """

    capacity: str = "capacity"
    latency: str = "latency"
    source: str = "source"
    target: str = "target"
    metric: str = "metric"
    metric_back: str = "metric_back"
    te_metric: str = "te_metric"
    cost: str = "cost"
    affinity: str = "affinity"
    members: str = "members"
    status: str = "status"
    capacity_unit: str = ""
    inside: str = ""

    def non_default_fields(self) -> list[str]:
        """Return the names of the fields that differ from their defaults."""
        fields = dataclasses.fields(self)
        return [field.name for field in fields if getattr(self, field.name) != field.default]


def require_attributes(attributes: Attributes, supported: Collection[str], where: str) -> None:
    """Raise InputError for configured attributes that a format or named network does not have.

    Args:
        attributes: the configured names.
        supported: fields of :class:`Attributes` that the format has.
        where: name of the file or network, for messages.
    """
    unsupported = [name for name in attributes.non_default_fields() if name not in supported]
    if not unsupported:
        return
    if unsupported[0] == INSIDE:
        raise InputError.invalid(
            where,
            "",
            f"no part #{attributes.inside}, since this source holds one network",
            "drop # and the text behind it",
        )
    names = ", ".join(name for name in supported if name != INSIDE)
    raise InputError.invalid(
        "--attributes",
        "",
        f"{where} has no configurable {', '.join(unsupported)}",
        f"use any of: {names}" if names else "drop the option",
    )


def parse_attributes(text: str) -> Attributes:
    """Parse ``capacity=bandwidth,latency=delay,capacity_unit=Mbit/s``; every entry is optional.

    Raises:
        InputError: an invalid text.
    """
    name_of_attribute = dict(
        part.strip().split("=", 1) for part in text.split(",") if part.count("=") == 1
    )
    # Every non-empty part must be NAME=VALUE; each NAME is a field, and occurs once.
    valid_names = {field.name for field in dataclasses.fields(Attributes)} - {INSIDE}
    if (
        len(name_of_attribute) != len([part for part in text.split(",") if part.strip()])
        or not set(name_of_attribute) <= valid_names
    ):
        raise InputError(
            "--attributes",
            "",
            "pairs such as capacity=bandwidth,latency=delay,capacity_unit=Mbit/s",
            repr(text),
        )
    attributes = Attributes(**name_of_attribute)
    if attributes.capacity_unit:
        gbps_per_unit(attributes.capacity_unit, "--attributes")
    return attributes


# Boolean words of attributes for the status of a link.
_NO_WORDS = ("false", "f", "no", "n", "0", "off")
_YES_WORDS = ("true", "t", "yes", "y", "x", "1", "on")
# States of interfaces (RFC 2863, RFC 8343, routers' command lines) and of inventories.
_DOWN_WORDS = (
    "down",
    "inactive",
    "disabled",
    "failed",
    "unavailable",
    "admin-down",
    "administratively-down",
    "err-disabled",
    "lower-layer-down",
    "not-present",
    "notconnect",
    "not-connected",
    "dormant",
    "testing",
    "maintenance",
    "in-maintenance",
    "out-of-service",
    "offline",
    "planned",
    "reserved",
    "staged",
    "provisioning",
    "deprovisioning",
    "decommissioning",
    "decommissioned",
    "retired",
    "shutdown",
    "shut",
    "broken",
)
_UP_WORDS = (
    "up",
    "active",
    "enabled",
    "available",
    "ok",
    "in-service",
    "running",
    "connected",
    "online",
    "operational",
    "live",
    "production",
)
# Attributes that mean that a link is up, or that it is down, as :func:`plain_name` returns them.
_UP_ATTRIBUTES = (
    "status",
    "state",
    "operstatus",
    "adminstatus",
    "ifoperstatus",
    "ifadminstatus",
    "operstate",
    "adminstate",
    "linkstatus",
    "linkstate",
    "up",
    "isup",
    "enabled",
    "isenabled",
    "active",
    "isactive",
    "inservice",
)
_DOWN_ATTRIBUTES = (
    "failed",
    "isfailed",
    "hasfailed",
    "down",
    "isdown",
    "disabled",
    "isdisabled",
    "shutdown",
    "outofservice",
    "maintenance",
    "inmaintenance",
    "outage",
)
# Status values of IF-MIB (RFC 2863): down, testing, dormant, notPresent, lowerLayerDown.
_IF_MIB_ATTRIBUTES = ("operstatus", "adminstatus", "ifoperstatus", "ifadminstatus")
_IF_MIB_DOWN = ("2", "3", "5", "6", "7")
# Attribute names of links and nodes that mean overload.
OVERLOAD_NAMES = ("overload", "overloaded")


def plain_name(name: str) -> str:
    """Normalise the name of an attribute: oper_status, Oper-Status and operStatus are equal."""
    return re.sub(r"[\s_-]+", "", name.strip().strip("\ufeff").lower())


def is_down(value: object, name: str = "status") -> bool | None:
    """Return whether an attribute means that a link is out of service; None for an unknown value.

    Args:
        value: value of the attribute.
        name: name of the attribute, which decides the meaning of ``true``: ``up: true`` is up,
            ``failed: true`` is down.
    """
    # Normalise the value; NaN, which differs from itself, is an empty cell, and spreadsheets write
    # 1 as 1.0.
    text = "" if value is None or value != value else str(value)
    text = re.sub(r"[\s_]+", "-", text.strip().lower()).removesuffix(".0")
    # Strip the name of a YANG module.
    text = text.rpartition(":")[2]
    # The meaning of yes and no depends on the name of the attribute.
    normalised = plain_name(name)
    true_means_down = normalised in _DOWN_ATTRIBUTES
    # Down: a number of IF-MIB, a word for down, or a yes or no that means down.
    if normalised in _IF_MIB_ATTRIBUTES and text in _IF_MIB_DOWN:
        return True
    if text in _DOWN_WORDS or text in (_YES_WORDS if true_means_down else _NO_WORDS):
        return True
    # Up: an empty cell, a word for up, or a yes or no that means up; otherwise unknown.
    is_up = text in ("", *_UP_WORDS) or text in (_NO_WORDS if true_means_down else _YES_WORDS)
    return False if is_up else None


def is_state_name(name: str, status: str = "status") -> bool:
    """Return whether an attribute of links states that a link is up or down.

    Args:
        name: name of the attribute.
        status: name of the status attribute in ``--attributes``; ``status`` (the default) accepts
            all usual names, such as oper_status or up.
    """
    normalised = plain_name(name)
    if status != "status":
        return normalised == plain_name(status) or normalised in _DOWN_ATTRIBUTES
    return normalised in _UP_ATTRIBUTES or normalised in _DOWN_ATTRIBUTES


def out_of_service(
    attributes: Mapping[str, object], status: str = "status"
) -> tuple[bool, list[object]]:
    """Return whether a link is out of service, and status values of unknown meaning.

    One attribute that means "down" is enough.

    Args:
        attributes: attributes of the link by name.
        status: name of the status attribute in ``--attributes``; ``status`` (the default) accepts
            all usual names.
    """
    is_out = False
    unknown_values: list[object] = []
    for name, value in attributes.items():
        if not is_state_name(str(name), status):
            continue
        status_is_down = is_down(value, str(name))
        is_out = is_out or status_is_down is True
        if status_is_down is None:
            unknown_values.append(value)
    return is_out, unknown_values


def unknown_status(where: str, values: Iterable[object]) -> tuple[str, ...]:
    """Return a warning about status values of unknown meaning; () for none."""
    texts = sorted({repr(value) for value in values})
    if not texts:
        return ()
    return (
        (f"{WARNING}{where}: unknown status values {listed(texts)}: these links are read as up."),
    )


def is_true(value: object, where: str, field: str) -> bool:
    """Return whether a flag such as ``overload`` is set; an empty cell means that it is not.

    Raises:
        InputError: a value that is neither yes nor no.
    """
    text = str("" if value is None else value).strip().lower().removesuffix(".0")
    if text in ("1", "true", "yes", "y", "x", "on"):
        return True
    if text in ("", "0", "false", "no", "n", "off"):
        return False
    raise InputError(where, field, "yes or no", repr(value))


def topology_from_records(
    name: str,
    where: str,
    nodes: dict[str, tuple[float, float] | None],
    links: Iterable[LinkRecord],
    *,
    directed: bool,
    geographical: bool = True,
    default_capacity: float | None = None,
    notes: tuple[str, ...] = (),
    no_transit: Collection[str] = (),
) -> Topology:
    """Validate the link records of a file and build the network from them.

    An undirected link becomes two directed links, each with the full capacity.  Self-loops are
    dropped with a note.  A link without latency gets the propagation delay in fibre along the great
    circle if both ends have coordinates, else 1 ms.

    Args:
        name: name of the network.
        where: file or name, for messages.
        nodes: (longitude, latitude) by node name, None where unknown; nodes are numbered in this
            order.
        links: links in the order of the file.
        directed: whether a record is one directed link; otherwise it is a cable with both
            directions.
        geographical: whether coordinates are longitudes and latitudes.
        default_capacity: Gbit/s of links without a capacity; None refuses them.
        notes: notes about the file; those on dropped links and assumed capacities are added.
        no_transit: names of nodes that carry no transit traffic.

    Raises:
        InputError: an unknown node; a missing, zero, negative or NaN capacity; a metric that is not
            a positive integer; metrics or costs on some of the links only.
    """
    node_index = {canonical_name(node): i for i, node in enumerate(nodes)}
    positions = list(nodes.values())
    # Validate each record, and expand cables into both directions.
    collector = _LinkCollector(where, directed, geographical, default_capacity)
    for record in links:
        collector.add(record, node_index, positions)
    # Build arrays over the E directed links and N nodes; optional ones are None if no link or node
    # has the attribute.
    directed_links = collector.links
    # (E, 2) source and target indices.
    ends = np.array([link.ends for link in directed_links], dtype=np.int32).reshape(-1, 2)
    unknown_position = (math.nan, math.nan)
    has_te_metrics = any(link.te_metric for link in directed_links)
    has_affinities = any(link.affinities for link in directed_links)
    no_transit_nodes = {node_index[canonical_name(node)] for node in no_transit}
    return Topology(
        name=name,
        node_names=tuple(map(canonical_name, nodes)),
        link_source=np.ascontiguousarray(ends[:, 0]),
        link_target=np.ascontiguousarray(ends[:, 1]),
        capacity=np.array([link.capacity for link in directed_links], dtype=np.float64),
        latency=np.array([link.latency for link in directed_links], dtype=np.float64),
        coordinates=np.array(
            [point or unknown_position for point in positions], dtype=np.float64
        ).reshape(-1, 2),
        origin=where,
        notes=notes + collector.notes(),
        metric=_metric_array(directed_links, list(node_index), where),
        # Attributes that some link or node has.
        te_metric=np.array([link.te_metric for link in directed_links], dtype=np.int64)
        if has_te_metrics
        else None,
        affinities=tuple(link.affinities for link in directed_links) if has_affinities else (),
        no_transit=np.array([node in no_transit_nodes for node in range(len(nodes))])
        if no_transit_nodes
        else None,
        cost=_cost_array(directed_links, list(node_index), where),
    )


@dataclasses.dataclass
class _LinkCollector:
    """Converter of link records into directed links, with counts for notes.

    Attributes:
        where: file or name, for messages.
        directed: whether a record is one directed link; otherwise it is a cable with both
            directions.
        geographical: whether coordinates are longitudes and latitudes.
        default_capacity: Gbit/s of links without a capacity; None refuses them.
        links: directed links so far; the two directions of a cable are adjacent.
        num_loops: number of dropped self-loops.
        num_default_capacity: number of records with the default capacity.
        record_ends: (source, target) node indices of the records so far.
        repeated_cables: descriptions of cables that also have a record in the opposite direction.
    """

    where: str
    directed: bool
    geographical: bool
    default_capacity: float | None
    links: list[_DirectedLink] = dataclasses.field(default_factory=list)
    num_loops: int = 0
    num_default_capacity: int = 0
    record_ends: set[tuple[int, int]] = dataclasses.field(default_factory=set)
    repeated_cables: list[str] = dataclasses.field(default_factory=list)

    def add(
        self,
        record: LinkRecord,
        node_index: dict[str, int],
        positions: Sequence[tuple[float, float] | None],
    ) -> None:
        """Validate a record, and append its directed link, or both directions of its cable.

        Args:
            record: the link.
            node_index: index of each node by its name.
            positions: (longitude, latitude) of each node, None where unknown.

        Raises:
            InputError: an unknown node, or an invalid capacity, latency or metric.
        """
        ends = _ends(record, node_index, self.where)
        # Drop self-loops.
        if ends[0] == ends[1]:
            self.num_loops += 1
            return
        # Capacity and latency, with their defaults; a failed link needs no capacity.
        capacity = record.capacity
        if capacity is None and not record.has_failed:
            capacity = _default_capacity(record, self.default_capacity, self.where)
            self.num_default_capacity += 1
        if capacity is not None and not record.has_failed:
            _check_capacity(capacity, f"{record.field}: capacity", self.where)
        latency = record.latency
        if latency is None:
            latency = _latency(positions[ends[0]], positions[ends[1]], self.geographical)
        if not math.isfinite(latency) or latency <= 0:
            raise InputError(self.where, f"{record.field}: latency", "a latency > 0 ms", latency)
        # Note a cable whose opposite direction is a record, too.
        self.record_ends.add(ends)
        if not self.directed and ends[::-1] in self.record_ends:
            self.repeated_cables.append(f"{record.field} ({record.source} -> {record.target})")
        # The reverse direction of a cable may have its own metric.
        metric_back = record.metric if record.metric_back is None else record.metric_back
        directions = [(ends, record.metric)]
        if not self.directed:
            directions.append((ends[::-1], metric_back))
        self.links += [
            _directed_link(record, direction_ends, capacity, latency, metric, self.where)
            for direction_ends, metric in directions
        ]

    def notes(self) -> tuple[str, ...]:
        """Return notes on repeated cables, dropped links and assumed capacities; () for none."""
        notes: tuple[str, ...] = ()
        if self.repeated_cables:
            notes += (
                f'{WARNING}{self.where}: the network is undirected (no "directed": true), so '
                "that a link and its reverse link are two separate cables, and capacities may be "
                f"counted twice: {listed(self.repeated_cables)}.",
            )
        if self.num_loops:
            notes += (f"{self.num_loops} links from a node to itself were dropped.",)
        if self.num_default_capacity and self.default_capacity != PENDING_CAPACITY:
            notes += (
                f"{self.num_default_capacity} links have no capacity in the file: "
                f"{self.default_capacity:g} Gbit/s assumed.",
            )
        return notes


_CAPACITY_REMEDY = (
    'use a capacity above 0, or mark a link that is out of service by "failed": true in JSON or '
    "by a column status: down"
)


def _check_capacity(capacity: float, field: str, where: str) -> None:
    """Raise InputError for a capacity in Gbit/s that is not positive and finite, with the location
    ``field`` in the file ``where``.
    """
    if math.isinf(capacity) and capacity > 0:
        raise InputError.invalid(
            where,
            field,
            f"the capacity is {capacity}, but it must be finite",
            "use a number above the total demand for an unlimited link",
        )
    if not capacity > 0:
        raise InputError.invalid(
            where, field, f"the capacity is {capacity}, not above 0", _CAPACITY_REMEDY
        )


class _DirectedLink(NamedTuple):
    """Directed link with valid values, between node indices.

    Attributes:
        ends: node indices of source and target.
        capacity: Gbit/s; 0 if the link is out of service.
        latency: ms.
        metric: IGP metric; None for none.
        te_metric: TE metric; 0 for none.
        affinities: names of its affinities.
        cost: cost of one Gbit/s; None for none.
    """

    ends: tuple[int, int]
    capacity: float
    latency: float
    metric: float | None
    te_metric: float
    affinities: frozenset[str]
    cost: float | None


def _directed_link(
    record: LinkRecord,
    ends: tuple[int, int],
    capacity: float | None,
    latency: float,
    metric: float | None,
    where: str,
) -> _DirectedLink:
    """Build one direction of a record's link after checking its metrics.

    Args:
        record: the record.
        ends: node indices of source and target in this direction.
        capacity: Gbit/s; None for a failed link without a capacity.
        latency: ms.
        metric: IGP metric of this direction; None for none.
        where: file or name, for messages.
    """
    te_metric = _checked_metric(record.te_metric, record.field, where, "te_metric") or 0.0
    metric = _checked_metric(metric, record.field, where)
    return _DirectedLink(
        ends,
        0.0 if record.has_failed or capacity is None else capacity,
        latency,
        metric,
        te_metric,
        record.affinities,
        record.cost,
    )


def _ends(record: LinkRecord, node_index: dict[str, int], where: str) -> tuple[int, int]:
    """Return the node indices of a link's source and target; raise InputError for an unknown
    name.

    Args:
        record: the link, with names.
        node_index: index of each node by its name.
        where: file or name, for messages.
    """
    for field in ("source", "target"):
        node = canonical_name(getattr(record, field))
        if node not in node_index:
            raise InputError(where, f"{record.field}: {field}", "a node of the file", repr(node))
    return node_index[canonical_name(record.source)], node_index[canonical_name(record.target)]


def _default_capacity(record: LinkRecord, default_capacity: float | None, where: str) -> float:
    """Return the default capacity, Gbit/s; raise InputError about a link without a capacity if
    there is none.

    Args:
        record: the link.
        default_capacity: Gbit/s; None refuses links without a capacity.
        where: file or name, for messages.
    """
    if default_capacity is None:
        names = record.other_attributes
        among = f" among the attributes {', '.join(names)}" if names else ""
        raise InputError.invalid(
            where,
            f"{record.field}: capacity",
            f"the link has no capacity{among}",
            "name its attribute by --attributes capacity=NAME, or give all such links one by "
            "--default-capacity GBPS",
        )
    return default_capacity


def _latency(
    a: tuple[float, float] | None, b: tuple[float, float] | None, geographical: bool
) -> float:
    """Return the default latency of a link, ms: the propagation delay in fibre between its ends, or
    1 ms if a position is unknown.

    Args:
        a: (longitude, latitude) of one end, degrees; None if unknown.
        b: (longitude, latitude) of the other end.
        geographical: whether the positions are longitudes and latitudes; otherwise they are unused.
    """
    if geographical and a is not None and b is not None:
        return fibre_latency_ms(great_circle_km(a, b))
    return _DEFAULT_LATENCY_MS


def _metric_array(links: list[_DirectedLink], names: list[str], where: str) -> Int64Array | None:
    """Return the (E,) IGP metrics of the links; None if no link has one.

    Raises:
        InputError: only some links have a metric.
    """
    values = _require_on_all([link.metric for link in links], links, names, where, "metric")
    return None if values is None else np.array(values, dtype=np.int64)


def _cost_array(links: list[_DirectedLink], names: list[str], where: str) -> FloatArray | None:
    """Return the (E,) costs of one Gbit/s on each link; None if no link has one.

    Raises:
        InputError: only some links have a cost.
    """
    values = _require_on_all([link.cost for link in links], links, names, where, "cost")
    return None if values is None else np.array(values, dtype=np.float64)


def _require_on_all(
    values: list[float | None], links: list[_DirectedLink], names: list[str], where: str, field: str
) -> list[float | None] | None:
    """Return the values of an attribute if all links have one; None if no link has one.

    Args:
        values: value of each link; None where it has none.
        links: the links.
        names: names of the nodes.
        where: file or name, for messages.
        field: name of the attribute, for messages.

    Raises:
        InputError: only some links have a value.
    """
    links_without_value = [link for link, value in zip(links, values, strict=True) if value is None]
    if len(links_without_value) == len(links):
        return None
    if links_without_value:
        source, target = links_without_value[0].ends
        raise InputError.invalid(
            where,
            field,
            f"the link {names[source]}->{names[target]} has no {field}, but others have one",
            f"give every link a {field}, or none",
        )
    return values


def _checked_metric(
    value: float | None, field: str, where: str, name: str = "metric"
) -> float | None:
    """Return a metric unchanged, None for none; raise InputError unless it is an integer from 1 to
    2^32 - 1.

    Args:
        value: the metric.
        field: the link, for messages.
        where: file or name, for messages.
        name: name of the metric, for messages.
    """
    if value is not None and not (float(value).is_integer() and 0 < value <= _MAX_METRIC):
        raise InputError(where, f"{field}: {name}", f"an integer from 1 to {_MAX_METRIC}", value)
    return value


def affinities_of(value: object, where: str, field: str) -> frozenset[str]:
    """Parse names of affinities (administrative groups).

    Args:
        value: text with names separated by spaces, commas or semicolons; a list of names; or None
            for no affinities.
        where: name of the file, for messages.
        field: location in the file, for messages.

    Raises:
        InputError: another value.
    """
    # Names in a text or a list; none for None.  Another value is refused below.
    names = (
        re.split(r"[\s,;]+", value.strip())
        if isinstance(value, str)
        else []
        if value is None
        else value
    )
    if not isinstance(names, list) or not all(
        isinstance(name, str) and not re.search(r"[\s,;+]", name) for name in names
    ):
        raise InputError(
            where,
            field,
            "a name or a list of names such as red, without spaces, commas, semicolons and +",
            repr(value),
        )
    return frozenset(name for name in names if name)


def number(text: object, where: str, field: str, expected: str = "a number") -> float:
    """Parse a number; raise InputError, naming ``where`` and ``field``, for anything else."""
    try:
        return float(str(text))
    except ValueError:
        raise InputError(where, field, expected, repr(text)) from None
