"""Multicommodity flow problems of CommaLab (University of Pisa): network and demands in one file.

A file of whitespace-separated numbers, known by its content: those of nodes, arcs and commodities,
in a line each or in one line; for each arc its start, end, cost and capacity (-1, as of mnetgen: no
limit); for each commodity its origin, destination and rate.  Nodes are numbered from 1.  Capacities
and rates are read as Gbit/s, and costs as costs; since a file has no latencies, a cost of 1 is also
a latency of 1 ms.  Arcs from a node to itself are dropped.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from teal.errors import InputError
from teal.network import Topology, TrafficMatrices
from teal.network.rates import ArrayRates
from teal.runtime.arrays import FloatArray
from teal.runtime.storage import content_key, file_key

_ARC, _COMMODITY = 4, 3  # numbers of each
_HEAD = 3  # numbers of nodes, arcs and commodities
_HEAD_BYTES, _MOST_NODES = 200, 1_000_000
_TIME, _INTERVAL_S = np.datetime64("2024-01-01T00:00:00", "s"), 300  # files have no times
_UNLIMITED = -1.0  # capacity of an arc without a limit
_UNLIMITED_FACTOR = 10.0  # capacity of such an arc over all demand, which no allocation fills
_LEAST_LATENCY = 1e-6  # over the least cost above 0: a latency must be above 0


def is_commalab(path: Path) -> bool:
    """Whether a file begins with three integers above 0, in a line each or in one line."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        lines = stream.read(_HEAD_BYTES).split(b"\n")
    head = lines[0].split() if len(lines[0].split()) == _HEAD else lines[:_HEAD]
    return (
        len(lines) > 1
        and len(head) == _HEAD
        and all(word.strip().isdigit() and int(word) > 0 for word in head)
    )


def read_commalab_topology(path: Path) -> Topology:
    """Read the network of a file.

    Raises:
        InputError: a fault in the file, or what :class:`teal.Topology` refuses.
    """
    nodes, arcs, demands = _read(path)
    capacity = arcs[:, 3]
    is_unlimited = capacity == _UNLIMITED
    limit = _UNLIMITED_FACTOR * float(np.abs(demands[:, 2]).sum())
    notes: tuple[str, ...] = ()
    if is_unlimited.any():
        notes = (
            f"{int(is_unlimited.sum()):,} arcs have no limit (capacity -1): {limit:g} Gbit/s, "
            f"{_UNLIMITED_FACTOR:g} times all demand, stands for it.",
        )
    return network_of_costs(
        path.name,
        str(path),
        nodes,
        ends=arcs[:, :2],
        cost=arcs[:, 2],
        capacity=np.where(is_unlimited, limit, capacity),
        notes=notes,
    )


def read_commalab_traffic(path: Path, topology: Topology) -> TrafficMatrices:
    """Read the demands of a file as one matrix.

    Raises:
        InputError: a fault in the file, or nodes that the network does not have.
    """
    nodes, _, demands = _read(path)
    if nodes != topology.num_nodes:
        raise InputError(str(path), "nodes", f"{topology.num_nodes}, as the network", nodes)
    return matrix_of(path, path.name, demands[:, :2], demands[:, 2], topology)


def network_of_costs(
    name: str,
    where: str,
    nodes: int,
    *,
    ends: FloatArray,
    cost: FloatArray,
    capacity: FloatArray,
    no_transit: int = 0,
    notes: tuple[str, ...] = (),
) -> Topology:
    """A network of numbered nodes whose links have costs.

    Args:
        name: name of the network.
        where: the file, for messages.
        nodes: N; names are 1 to N.
        ends: (E, 2) numbers of the nodes where links start and end, from 1.
        cost: (E,) of a Gbit/s.
        capacity: (E,) Gbit/s.
        no_transit: number of the first nodes, which carry no transit traffic.
        notes: notes of the network.

    Raises:
        InputError: a number out of range, or what :class:`teal.Topology` refuses.
    """
    if nodes > _MOST_NODES:
        raise InputError(where, "nodes", f"at most {_MOST_NODES:,}", nodes)
    _require_nodes(ends, nodes, where, "arc")
    if not bool((np.isfinite(cost) & (cost >= 0)).all()):
        raise InputError(where, "cost", "finite costs >= 0", float(cost.min(initial=np.nan)))
    between = ends[:, 0] != ends[:, 1]
    if not between.all():
        dropped = int((~between).sum())
        notes += (f"{dropped:,} links from a node to itself were dropped.",)
        ends, cost, capacity = ends[between], cost[between], capacity[between]
    above = cost[cost > 0]
    least = _LEAST_LATENCY * float(above.min(initial=np.inf) if len(above) else 1.0)
    return Topology(
        name=name,
        node_names=tuple(str(number) for number in range(1, nodes + 1)),
        link_source=np.ascontiguousarray(ends[:, 0] - 1, np.int32),
        link_target=np.ascontiguousarray(ends[:, 1] - 1, np.int32),
        capacity=np.ascontiguousarray(capacity, np.float64),
        latency=np.maximum(cost, least),
        coordinates=np.full((nodes, 2), np.nan),
        origin=where,
        notes=("The file has costs and no latencies: a cost of 1 is read as 1 ms.", *notes),
        no_transit=np.arange(nodes) < no_transit if no_transit else None,
        cost=np.ascontiguousarray(cost, np.float64),
    )


def matrix_of(
    path: Path, name: str, ends: FloatArray, rate: FloatArray, topology: Topology
) -> TrafficMatrices:
    """One matrix of demands between numbered nodes; several of a pair are added, those within a
    node are left out.

    Args:
        path: path of the file.
        name: name of the traffic.
        ends: (n, 2) numbers of the nodes, from 1.
        rate: (n,) Gbit/s.
        topology: the network.

    Raises:
        InputError: a number out of range, or a rate that is negative or no finite number.
    """
    where = str(path)
    _require_nodes(ends, topology.num_nodes, where, "demand")
    bad = ~(np.isfinite(rate) & (rate >= 0))
    if bad.any():
        raise InputError(
            where, f"demand {int(bad.argmax()) + 1}", "a finite rate >= 0", rate[bad][0]
        )
    between = ends[:, 0] != ends[:, 1]
    pairs, place = np.unique(ends[between].astype(np.int32) - 1, axis=0, return_inverse=True)
    if not len(pairs):
        raise InputError(where, "demands", "demands between different nodes", "none")
    rates = np.bincount(place.reshape(-1), rate[between]).astype(np.float64)
    return TrafficMatrices(
        name=name,
        pairs=pairs,
        timestamps=np.array([_TIME]),
        rates=ArrayRates(rates[None]),
        interval_s=_INTERVAL_S,
        key=content_key(file_key(path), topology.node_names),
        origin=where,
    )


def _require_nodes(ends: FloatArray, nodes: int, where: str, kind: str) -> None:
    wrong = ~((ends >= 1) & (ends <= nodes) & (ends == np.floor(ends))).all(1)
    if wrong.any():
        first = int(wrong.argmax())
        found = ends[first].tolist()
        raise InputError(where, f"{kind} {first + 1}", f"node numbers from 1 to {nodes}", found)


def _read(path: Path) -> tuple[int, FloatArray, FloatArray]:
    """The number of nodes, the arcs (E, 4), and the commodities (n, 3) of a file."""
    where = str(path)
    try:
        numbers = np.array(path.read_text(encoding="ascii").split(), np.float64)
    except (ValueError, UnicodeDecodeError):
        expected = "numbers: a multicommodity flow problem of CommaLab"
        raise InputError(where, "", expected, "something else") from None
    nodes, arcs, demands = (int(number) for number in numbers[:3])
    expected_size = 3 + _ARC * arcs + _COMMODITY * demands
    if len(numbers) != expected_size:
        expected = f"{expected_size} numbers, for {arcs} arcs and {demands} commodities"
        raise InputError(where, "", expected, len(numbers))
    of_arcs = numbers[3 : 3 + _ARC * arcs].reshape(arcs, _ARC)
    return nodes, of_arcs, numbers[3 + _ARC * arcs :].reshape(demands, _COMMODITY)
