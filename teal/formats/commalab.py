"""Multicommodity flow problems of CommaLab (University of Pisa): network and demands in one file.

A file has whitespace-separated numbers and is recognised by its content: the numbers of nodes, arcs
and commodities, on one line or on three; for each arc start, end, cost and capacity (-1, as of
mnetgen: no limit); for each commodity origin, destination and rate.  Nodes are numbered from 1.
Capacities and rates are read as Gbit/s; since a file has no latencies, a cost of 1 is also a
latency of 1 ms.  Self-loops are dropped.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from teal.errors import InputError
from teal.network import Topology, TrafficMatrices
from teal.network.rates import ArrayRates
from teal.runtime.arrays import FloatArray
from teal.runtime.storage import content_key, file_key

# Entries of an arc (start, end, cost, capacity) and of a commodity (origin, destination, rate).
_ARC_FIELDS = 4
_COMMODITY_FIELDS = 3
# Numbers of nodes, arcs and commodities.
_HEADER_FIELDS = 3
# Bytes from the start of a file that hold its first three lines.
_HEADER_BYTES = 200
# Maximum number of nodes, so that a damaged header does not create names without limit.
_MAX_NODES = 1_000_000
# Time and interval of matrices, since files have no times.
_TIME = np.datetime64("2024-01-01T00:00:00", "s")
_INTERVAL_S = 300
# Marks the capacity of an arc without a limit.
_UNLIMITED = -1.0
# Capacity of an unlimited arc over total demand, so that no allocation saturates it.
_UNLIMITED_FACTOR = 10.0
# Latency of an arc of cost 0, relative to the minimum positive cost: latencies are positive.
_MIN_RELATIVE_LATENCY = 1e-6


def is_commalab(path: Path) -> bool:
    """Return whether a file starts with three positive integers, on one line or on three lines, as
    the files of CommaLab do.
    """
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        lines = stream.read(_HEADER_BYTES).split(b"\n")
    header_words = (
        lines[0].split() if len(lines[0].split()) == _HEADER_FIELDS else lines[:_HEADER_FIELDS]
    )
    return (
        len(lines) > 1
        and len(header_words) == _HEADER_FIELDS
        and all(word.strip().isdigit() and int(word) > 0 for word in header_words)
    )


def read_commalab_topology(path: Path) -> Topology:
    """Read the network of a CommaLab file; a cost of 1 is also a latency of 1 ms.

    Raises:
        InputError: an invalid file, or an error of :class:`teal.Topology`.
    """
    num_nodes, arcs, commodities = _read_numbers(path)
    capacity = arcs[:, 3]
    is_unlimited = capacity == _UNLIMITED
    unlimited_capacity = _UNLIMITED_FACTOR * float(np.abs(commodities[:, 2]).sum())
    notes: tuple[str, ...] = ()
    if is_unlimited.any():
        notes = (
            f"{int(is_unlimited.sum()):,} arcs without a limit (capacity -1) get "
            f"{unlimited_capacity:g} Gbit/s, {_UNLIMITED_FACTOR:g} times the total demand.",
        )
    return network_of_costs(
        path.name,
        str(path),
        num_nodes,
        ends=arcs[:, :2],
        cost=arcs[:, 2],
        capacity=np.where(is_unlimited, unlimited_capacity, capacity),
        notes=notes,
    )


def read_commalab_traffic(path: Path, topology: Topology) -> TrafficMatrices:
    """Read the commodities of a CommaLab file as one traffic matrix in Gbit/s.

    Raises:
        InputError: an invalid file, a number of nodes other than the network's, or an invalid
            commodity.
    """
    num_nodes, _, commodities = _read_numbers(path)
    if num_nodes != topology.num_nodes:
        expected = f"{topology.num_nodes}, the number of nodes of the network"
        raise InputError(str(path), "nodes", expected, num_nodes)
    return matrix_of(path, path.name, commodities[:, :2], commodities[:, 2], topology)


def network_of_costs(
    name: str,
    where: str,
    num_nodes: int,
    *,
    ends: FloatArray,
    cost: FloatArray,
    capacity: FloatArray,
    no_transit: int = 0,
    notes: tuple[str, ...] = (),
) -> Topology:
    """Build a network of numbered nodes whose links have costs and no latencies.

    Self-loops are dropped.  The latency of a link in ms is its cost; links of cost 0 get a small
    positive latency.

    Args:
        name: name of the network.
        where: name of the file, for messages.
        num_nodes: number of nodes N, which get the names 1 to N.
        ends: (E, 2) node numbers of each link, from 1.
        cost: (E,) cost of a Gbit/s.
        capacity: (E,) Gbit/s.
        no_transit: number of nodes without transit traffic: nodes 1 to ``no_transit``.
        notes: further notes on the file, for the user.

    Raises:
        InputError: a number out of range, or an error of :class:`teal.Topology`.
    """
    # Validate nodes and costs.
    if num_nodes > _MAX_NODES:
        raise InputError(where, "nodes", f"at most {_MAX_NODES:,}", num_nodes)
    _require_nodes(ends, num_nodes, where, "arc")
    is_invalid = ~(np.isfinite(cost) & (cost >= 0))
    if is_invalid.any():
        first_invalid = int(is_invalid.argmax())
        raise InputError(
            where,
            f"arc {first_invalid + 1}: cost",
            "a finite cost >= 0",
            float(cost[first_invalid]),
        )
    # Drop self-loops.
    is_proper = ends[:, 0] != ends[:, 1]
    if not is_proper.all():
        num_loops = int((~is_proper).sum())
        notes += (f"{num_loops:,} links from a node to itself were dropped.",)
        # Keep the other links.
        ends = ends[is_proper]
        cost = cost[is_proper]
        capacity = capacity[is_proper]
    # Lower limit of the latencies: a millionth of the smallest positive cost.
    positive_costs = cost[cost > 0]
    min_latency = _MIN_RELATIVE_LATENCY * float(
        positive_costs.min(initial=np.inf) if len(positive_costs) else 1.0
    )
    return Topology(
        name=name,
        node_names=tuple(str(number) for number in range(1, num_nodes + 1)),
        link_source=np.ascontiguousarray(ends[:, 0] - 1, np.int32),
        link_target=np.ascontiguousarray(ends[:, 1] - 1, np.int32),
        capacity=np.ascontiguousarray(capacity, np.float64),
        latency=np.maximum(cost, min_latency),
        coordinates=np.full((num_nodes, 2), np.nan),
        origin=where,
        notes=("The file has costs and no latencies: a cost of 1 is read as 1 ms.", *notes),
        no_transit=np.arange(num_nodes) < no_transit if no_transit else None,
        cost=np.ascontiguousarray(cost, np.float64),
    )


def matrix_of(
    path: Path, name: str, ends: FloatArray, rate: FloatArray, topology: Topology
) -> TrafficMatrices:
    """Build one traffic matrix from n demands between numbered nodes.

    Demands of the same pair are added; self-loops are dropped.

    Args:
        path: path of the file.
        name: name of the traffic.
        ends: (n, 2) node numbers of source and target, from 1.
        rate: (n,) Gbit/s.
        topology: the network.

    Raises:
        InputError: a number out of range, or a rate that is negative or not finite.
    """
    where = str(path)
    _require_nodes(ends, topology.num_nodes, where, "demand")
    is_invalid = ~(np.isfinite(rate) & (rate >= 0))
    if is_invalid.any():
        raise InputError(
            where,
            f"demand {int(is_invalid.argmax()) + 1}",
            "a finite rate >= 0",
            rate[is_invalid][0],
        )
    # Distinct pairs (D, 2) of node indices from 0, and the pair of each demand.
    is_proper = ends[:, 0] != ends[:, 1]
    pairs, pair_index = np.unique(ends[is_proper].astype(np.int32) - 1, axis=0, return_inverse=True)
    if not len(pairs):
        raise InputError.invalid(
            where, "demands", "no demand between different nodes", "add a demand"
        )
    rates = np.bincount(pair_index.reshape(-1), rate[is_proper]).astype(np.float64)
    return TrafficMatrices(
        name=name,
        pairs=pairs,
        timestamps=np.array([_TIME]),
        rates=ArrayRates(rates[None]),
        interval_s=_INTERVAL_S,
        key=content_key(file_key(path), topology.node_names),
        origin=where,
    )


def _require_nodes(ends: FloatArray, num_nodes: int, where: str, kind: str) -> None:
    """Raise InputError unless all node numbers are integers from 1 to ``num_nodes``.

    Args:
        ends: (n, 2) node numbers of arcs or demands.
        num_nodes: number of nodes.
        where: name of the file, for messages.
        kind: ``arc`` or ``demand``, for messages.
    """
    is_invalid = ~((ends >= 1) & (ends <= num_nodes) & (ends == np.floor(ends))).all(1)
    if is_invalid.any():
        first_invalid = int(is_invalid.argmax())
        actual = ends[first_invalid].tolist()
        raise InputError(
            where, f"{kind} {first_invalid + 1}", f"node numbers from 1 to {num_nodes}", actual
        )


def _read_numbers(path: Path) -> tuple[int, FloatArray, FloatArray]:
    """Read the numbers of a CommaLab file.

    Returns:
        Number of nodes; arcs (E, 4): start, end, cost and capacity (Gbit/s, -1 for no limit);
        commodities (n, 3): origin, destination and rate (Gbit/s).  Nodes are numbered from 1.

    Raises:
        InputError: a word that is not a number, or another count of numbers than the header says.
    """
    where = str(path)
    try:
        numbers = np.array(path.read_text(encoding="ascii").split(), np.float64)
    except (ValueError, UnicodeDecodeError):
        raise InputError.invalid(
            where,
            "",
            "not a multicommodity flow problem of CommaLab: a word is not a number",
            "remove the words, or name the file by the suffix of its format",
        ) from None
    # Header, then the arcs, then the commodities.
    num_nodes, num_arcs, num_demands = (int(number) for number in numbers[:3])
    expected_size = 3 + _ARC_FIELDS * num_arcs + _COMMODITY_FIELDS * num_demands
    if len(numbers) != expected_size:
        expected = f"{expected_size} numbers, for {num_arcs} arcs and {num_demands} commodities"
        raise InputError(where, "", expected, f"{len(numbers)} numbers")
    arc_rows = numbers[3 : 3 + _ARC_FIELDS * num_arcs].reshape(num_arcs, _ARC_FIELDS)
    return (
        num_nodes,
        arc_rows,
        numbers[3 + _ARC_FIELDS * num_arcs :].reshape(num_demands, _COMMODITY_FIELDS),
    )
