"""Capacities, latencies and costs of links from an inventory table, for networks whose own files
lack them, such as the link-state database of an IGP.

The table (:mod:`teal.formats.side_tables`) has the columns ``source`` and ``target`` and any of
``capacity`` (Gbit/s), ``latency`` (ms) and ``cost``.  A row is a cable with both directions, or one
direction where the table has a row for the reverse one.  Parallel links have a row each, in the
order of the network's file, or share a single row.  Entry point: :func:`with_inventory`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from teal.errors import InputError, listed
from teal.formats.records import PENDING_CAPACITY
from teal.formats.side_tables import (
    SOURCE,
    SUFFIXES,
    TARGET,
    Column,
    Kind,
    Row,
    read_side_table,
    warn,
)
from teal.network import Topology
from teal.runtime.arrays import FloatArray

_COLUMNS = (
    SOURCE,
    TARGET,
    Column("capacity", Kind.RATE, aliases=("bandwidth",)),
    Column("latency", Kind.DELAY, aliases=("delay",)),
    Column("cost", Kind.NUMBER),
)
_VALUES = ("capacity", "latency", "cost")


def is_inventory(attributes: str) -> bool:
    """Return whether the value of ``--attributes`` names an inventory table instead of
    attributes.
    """
    return Path(attributes).suffix.lower() in SUFFIXES and "=" not in attributes


def with_inventory(path: Path, topology: Topology, default_capacity: float | None) -> Topology:
    """Apply the values of a table to a network; links of capacity 0 stay out of service.

    Args:
        path: path of the table.
        topology: the network, with :data:`PENDING_CAPACITY` on links without a capacity.
        default_capacity: Gbit/s of links without a capacity in file and table; None refuses them.

    Raises:
        InputError: an invalid table, or a link without a capacity.
    """
    rows = read_side_table(path, _COLUMNS)
    if not rows or not any(name in rows[0].values for name in _VALUES):
        raise InputError.invalid(
            str(path),
            "columns",
            "the table has no values of links",
            f"add rows, and a column {', '.join(_VALUES[:-1])} or {_VALUES[-1]}",
        )
    # (E,) values of the links, by column; the rows overwrite those of the network's file.
    rows_of_pair, unknown_links = _rows_by_pair(rows, topology)
    link_values = {
        "capacity": topology.capacity.copy(),
        "latency": topology.latency.copy(),
        "cost": _costs_of(topology),
    }
    unknown_links += _apply_rows(rows_of_pair, topology, link_values)
    if unknown_links:
        warn(f"{path}: links that are not in the network: {listed(unknown_links)}")
    # Every link needs a capacity, from the table or the default.
    without_capacity = np.flatnonzero(link_values["capacity"] == PENDING_CAPACITY)
    if len(without_capacity) and default_capacity is None:
        names = [topology.link_name(link) for link in without_capacity.tolist()]
        raise InputError.invalid(
            str(path),
            "capacity",
            f"links without a capacity ({len(names)}): {listed(names)}",
            "add rows, or give these links one by --default-capacity GBPS",
        )
    link_values["capacity"][without_capacity] = default_capacity
    # Costs are on all links or on none.
    cost = link_values["cost"]
    if np.isnan(cost).any() and not np.isnan(cost).all():
        name = topology.link_name(int(np.isnan(cost).argmax()))
        raise InputError.invalid(
            str(path),
            "cost",
            f"the link {name} has no cost, but others have one",
            "give every link a cost, or none",
        )
    # The network with the new values, and a note on assumed capacities.
    notes = topology.notes
    if len(without_capacity):
        notes += (
            f"{len(without_capacity)} links have no capacity in the file and in {path}: "
            f"{default_capacity:g} Gbit/s assumed.",
        )
    return dataclasses.replace(
        topology,
        capacity=link_values["capacity"],
        latency=link_values["latency"],
        cost=None if np.isnan(cost).all() else cost,
        notes=notes,
    )


def _rows_by_pair(
    rows: list[Row], topology: Topology
) -> tuple[dict[tuple[int, int], list[Row]], list[str]]:
    """Group the rows by (source index, target index); also return descriptions of the rows with
    unknown nodes, ``a - b``.
    """
    index = topology.node_index()
    rows_of_pair: dict[tuple[int, int], list[Row]] = {}
    unknown_pairs: list[str] = []
    for row in rows:
        source, target = (topology.name_of(row.text(end)) for end in ("source", "target"))
        if source in index and target in index:
            rows_of_pair.setdefault((index[source], index[target]), []).append(row)
        else:
            unknown_pairs.append(f"{source} - {target}")
    return rows_of_pair, unknown_pairs


def _apply_rows(
    rows_of_pair: dict[tuple[int, int], list[Row]],
    topology: Topology,
    link_values: dict[str, FloatArray],
) -> list[str]:
    """Write the values to the links of each pair, in both directions unless both have rows.

    Args:
        rows_of_pair: rows by source and target index.
        topology: the network.
        link_values: (E,) values of the links, by column (written).

    Returns:
        Descriptions of the pairs without a link.
    """
    without_link = list[str]()
    for (source, target), rows in rows_of_pair.items():
        # The rows of a pair are both directions of cables, unless the reverse pair has rows, too.
        directions = (
            [(source, target)]
            if (target, source) in rows_of_pair
            else [(source, target), (target, source)]
        )
        links_by_direction = [_links_between(topology, *ends) for ends in directions]
        if not any(len(links) for links in links_by_direction):
            without_link.append(f"{topology.node_names[source]} - {topology.node_names[target]}")
        for links in links_by_direction:
            _set_values(links, rows, link_values)
    return without_link


def _costs_of(topology: Topology) -> FloatArray:
    """Return a copy of the costs of a network's links, (E,); NaN without costs."""
    if topology.cost is None:
        return np.full(topology.num_links, np.nan)
    return topology.cost.copy()


def _links_between(topology: Topology, a: int, b: int) -> np.ndarray:
    """Return the (n,) indices of the parallel links from node ``a`` to node ``b``, in the order of
    the network's file.
    """
    return np.flatnonzero((topology.link_source == a) & (topology.link_target == b))


def _set_values(links: np.ndarray, rows: list[Row], link_values: dict[str, np.ndarray]) -> None:
    """Write the values of the rows to parallel links: one row for all of them, or a row for each.

    Args:
        links: (n,) indices of the parallel links in one direction.
        rows: rows of the pair of nodes.
        link_values: (E,) values of the links, by column (written).

    Raises:
        InputError: several rows, but not one per link.
    """
    if len(links) and len(rows) not in (1, len(links)):
        raise InputError.invalid(
            rows[-1].where,
            "",
            f"{len(rows)} rows for {len(links)} parallel links",
            "use one row for all of them, or one for each",
        )
    for index, link in enumerate(links.tolist()):
        row = rows[0] if len(rows) == 1 else rows[index]
        for name in _VALUES:
            if row.values.get(name) is None:
                continue
            # A failed link stays out of service.
            if name == "capacity" and link_values[name][link] == 0:
                continue
            link_values[name][link] = row.number(name, minimum=0.0 if name == "cost" else None)
