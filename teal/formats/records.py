"""The records that every topology format is read into, and the rules by which they become a Topology."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable

import numpy as np

from teal.errors import WARNING, InputError, listed
from teal.formats.units import fibre_latency_ms, gbps_per_unit, great_circle_km
from teal.network import Topology

_MAX_METRIC = 2**32 - 1  # IGP metrics are of at most 32 bits
_DEFAULT_LATENCY_MS = 1.0  # of a link whose latency and coordinates are unknown


@dataclasses.dataclass(frozen=True)
class LinkRecord:
    """One link of a file, units converted.

    Attributes:
        source: name of the node where it starts.
        target: name of the node where it ends.
        capacity: Gbit/s; None if the file has none.
        latency: ms; None to derive it from the coordinates.
        field: its place in the file, for messages.
        others: names of its other attributes, for messages.
        metric: IGP metric; None if the file has none.
        has_failed: whether the link is out of service: its capacity is 0, whatever ``capacity`` says.
        metric_back: IGP metric of the other direction of a cable; None for the same.
        te_metric: TE metric; None if the link has none.
        affinities: names of its affinities (administrative groups).
    """

    source: str
    target: str
    capacity: float | None
    latency: float | None
    field: str
    others: tuple[str, ...] = ()
    metric: float | None = None
    has_failed: bool = False
    metric_back: float | None = None
    te_metric: float | None = None
    affinities: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Attributes:
    """Names of the attributes of links in a file, where they differ from the usual ones.

    Attributes:
        capacity: attribute with the capacity.
        latency: attribute with the latency, ms.
        source: column with the node where a link starts, in a table.
        target: column with the node where it ends, in a table.
        metric: column with the IGP metric, in a table.
        metric_back: column with the IGP metric of the other direction of a cable, in a table.
        te_metric: column with the TE metric, in a table.
        affinity: column with names of affinities, separated by spaces or semicolons, in a table.
        members: column with the number of links of an aggregation group, in a table.
        capacity_unit: unit of the capacity, such as Mbit/s; "" for the one that the file says, or Gbit/s.
    """

    capacity: str = "capacity"
    latency: str = "latency"
    source: str = "source"
    target: str = "target"
    metric: str = "metric"
    metric_back: str = "metric_back"
    te_metric: str = "te_metric"
    affinity: str = "affinity"
    members: str = "members"
    capacity_unit: str = ""


def parse_attributes(text: str) -> Attributes:
    """The attributes that ``capacity=bandwidth,latency=delay,capacity_unit=Mbit/s`` names; any of them may be left out.

    Raises:
        InputError: another text.
    """
    parts = dict(part.strip().split("=", 1) for part in text.split(",") if part.count("=") == 1)
    known = {field.name for field in dataclasses.fields(Attributes)}
    if len(parts) != len([part for part in text.split(",") if part.strip()]) or not set(parts) <= known:
        raise InputError(
            "--attributes", "", "such as capacity=bandwidth,latency=delay,capacity_unit=Mbit/s", repr(text)
        )
    attributes = Attributes(**parts)
    if attributes.capacity_unit:
        gbps_per_unit(attributes.capacity_unit, "--attributes")
    return attributes


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
) -> Topology:
    """Check the records and build the topology.

    An undirected link becomes two directed ones of the full capacity each.  A link from a node to
    itself is dropped and noted.  A link without latency gets light's time through fibre along the
    great circle where both ends have coordinates, else 1 ms.  Metrics are kept where every link has one.

    Args:
        name: name of the network.
        where: the file or name, for messages.
        nodes: name to (longitude, latitude), None where unknown.
        links: in the order of the file.
        directed: whether a link leads in one direction only.
        geographical: whether coordinates are longitudes and latitudes.
        default_capacity: Gbit/s for links that have none; None to refuse them.
        notes: notes of the topology, to which those about dropped links and assumed capacities are added.

    Raises:
        InputError: an unknown node; a missing, zero, negative or NaN capacity; a metric that is no whole number above
            0, or one on some of the links only.
    """
    index = {node: i for i, node in enumerate(nodes)}
    positions = list(nodes.values())
    ends: list[tuple[int, int]] = []
    capacity: list[float] = []
    latency: list[float] = []
    metrics: list[float | None] = []
    te_metrics: list[float] = []
    affinities: list[frozenset[str]] = []
    loops = assumed = 0
    forth, again = set[tuple[int, int]](), list[str]()  # ends of cables, and cables whose ends are those of another
    for record in links:
        for field in ("source", "target"):
            node = getattr(record, field)
            if node not in index:
                raise InputError(where, f"{record.field}: {field}", "a node of the file", repr(node))
        if record.source == record.target:
            loops += 1
            continue
        link_capacity = 0.0 if record.has_failed else record.capacity
        if link_capacity is None:
            if default_capacity is None:
                others = f"none among {', '.join(record.others)}" if record.others else "none"
                raise InputError(
                    where, f"{record.field}: capacity",
                    "a capacity > 0 (--default-capacity GBPS gives one to all such links, --attributes capacity=NAME "
                    "names the attribute)",
                    others,
                )  # fmt: skip
            link_capacity, assumed = default_capacity, assumed + 1
        if not math.isfinite(link_capacity) or (link_capacity <= 0 and not record.has_failed):
            raise InputError(where, f"{record.field}: capacity", "a capacity > 0", link_capacity)
        a, b = index[record.source], index[record.target]
        delay = record.latency
        if delay is None:
            p, q = positions[a], positions[b]
            has_positions = geographical and p is not None and q is not None
            delay = fibre_latency_ms(great_circle_km(p, q)) if has_positions and p and q else _DEFAULT_LATENCY_MS
        if not math.isfinite(delay) or delay <= 0:
            raise InputError(where, f"{record.field}: latency", "a latency > 0 ms", delay)
        forth.add((a, b))
        if not directed and (b, a) in forth:
            again.append(f"{record.field} ({record.source} -> {record.target})")
        back = record.metric if record.metric_back is None else record.metric_back
        both = (((a, b), record.metric), ((b, a), back))
        for pair, value in both[:1] if directed else both:
            ends.append(pair)
            capacity.append(link_capacity)
            latency.append(delay)
            metrics.append(_checked_metric(value, record.field, where))
            te_metrics.append(_checked_metric(record.te_metric, record.field, where, "te_metric") or 0.0)
            affinities.append(record.affinities)
    if again:
        notes += (
            f'{WARNING}{where}: links in both directions in a network of cables (without "directed": true), each read '
            f"as a cable of its own, so that capacities may count twice: {listed(again)}.",
        )
    metric = None
    if any(value is not None for value in metrics):
        if None in metrics:
            a, b = ends[metrics.index(None)]
            raise InputError(
                where, "metric", "one on every link, or on none", f"none on {list(nodes)[a]}->{list(nodes)[b]}"
            )
        metric = np.array(metrics, dtype=np.int64)
    if loops:
        notes += (f"{loops} links from a node to itself were dropped.",)
    if assumed:
        notes += (f"{assumed} links have no capacity in the file: {default_capacity:g} Gbit/s assumed.",)
    unknown = (math.nan, math.nan)
    array = np.array(ends, dtype=np.int32).reshape(-1, 2)
    return Topology(
        name=name,
        node_names=tuple(nodes),
        link_source=np.ascontiguousarray(array[:, 0]),
        link_target=np.ascontiguousarray(array[:, 1]),
        capacity=np.array(capacity),
        latency=np.array(latency),
        coordinates=np.array([point or unknown for point in positions], dtype=np.float64).reshape(-1, 2),
        origin=where,
        notes=notes,
        metric=metric,
        te_metric=np.array(te_metrics, dtype=np.int64) if any(te_metrics) else None,
        affinities=tuple(affinities) if any(affinities) else (),
    )


def _checked_metric(value: float | None, field: str, where: str, name: str = "metric") -> float | None:
    """The metric of a record; InputError unless it is a whole number from 1 to _MAX_METRIC."""
    if value is not None and not (float(value).is_integer() and 0 < value <= _MAX_METRIC):
        raise InputError(where, f"{field}: {name}", f"a whole number from 1 to {_MAX_METRIC}", value)
    return value


def affinities_of(value: object, where: str, field: str) -> frozenset[str]:
    """Names of affinities, of a text that separates them by spaces, commas or semicolons, or of a list; None for none.

    Raises:
        InputError: anything else.
    """
    names = re.split(r"[\s,;]+", value.strip()) if isinstance(value, str) else [] if value is None else value
    if not isinstance(names, list) or not all(
        isinstance(name, str) and not re.search(r"[\s,;+]", name) for name in names
    ):
        raise InputError(where, field, "a name or a list of names, such as red, without spaces and , ; +", repr(value))
    return frozenset(name for name in names if name)


def number(text: object, where: str, field: str, expected: str = "a number") -> float:
    """``text`` as a number; InputError, naming ``where`` and ``field``, if it is none."""
    try:
        return float(str(text))
    except ValueError:
        raise InputError(where, field, expected, repr(text)) from None
