"""Networks and traffic that are objects already: graphs of networkx, frames of pandas.

A graph has attributes ``capacity`` (Gbit/s), perhaps ``latency`` (ms) on edges, and perhaps ``pos`` or ``lon`` and
``lat`` on nodes.  A frame of traffic has columns ``timestamp``, ``source``, ``target`` and ``rate`` (Gbit/s), as the
tables of :mod:`teal.formats.tables`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from teal.errors import InputError
from teal.formats.node_link import topology_from_node_link
from teal.formats.records import Attributes
from teal.network import Topology, TrafficMatrices
from teal.network.rates import ArrayRates
from teal.network.traffic import usual_interval
from teal.runtime.storage import content_key

_COLUMNS = ("timestamp", "source", "target", "rate")


def topology_from_graph(graph: Any, default_capacity: float | None, attributes: Attributes) -> Topology:
    """The network of a networkx graph, directed or not, with parallel edges or without.

    Args:
        graph: the graph.
        default_capacity: Gbit/s of edges without capacity; None refuses them.
        attributes: names of the attributes of edges.

    Raises:
        InputError: what :func:`teal.formats.records.topology_from_records` refuses.
    """
    nodes = [{"id": node, **data} for node, data in graph.nodes(data=True)]
    links = [{**data, "source": a, "target": b} for a, b, data in graph.edges(data=True)]
    data = {"directed": graph.is_directed(), "graph": dict(graph.graph), "nodes": nodes, "links": links}
    name = str(graph.name or "graph")
    return topology_from_node_link(data, name, f"networkx graph {name}", default_capacity, attributes)


def traffic_from_frame(frame: Any, topology: Topology) -> TrafficMatrices:
    """The matrices of a pandas frame; a pair that a timestamp does not name has rate 0.

    Args:
        frame: with the columns above.
        topology: whose nodes it names.

    Raises:
        InputError: a column missing, an unknown node, a rate that is negative or no number, a row twice.
    """
    where = "data frame"
    for column in _COLUMNS:
        if column not in frame.columns:
            raise InputError(where, column, "columns " + ", ".join(_COLUMNS), ", ".join(map(str, frame.columns)))
    index = topology.node_index()
    ends = []
    for column in ("source", "target"):
        names = frame[column].astype(str)
        unknown = [name for name in names.unique() if name not in index]
        if unknown:
            raise InputError(where, column, f"nodes of {topology.name}", ", ".join(map(repr, unknown[:10])))
        ends.append(names.map(index).to_numpy(np.int64))
    rate = frame["rate"].to_numpy(np.float64)
    bad = ~(np.isfinite(rate) & (rate >= 0)) | (ends[0] == ends[1])
    if bad.any():
        rows = ", ".join(map(str, np.flatnonzero(bad)[:10]))
        raise InputError(where, "rate", "finite rates >= 0 between different nodes", f"others in rows {rows}")
    times, row = np.unique(frame["timestamp"].to_numpy().astype("datetime64[s]"), return_inverse=True)
    codes, column_of = np.unique(ends[0] * topology.num_nodes + ends[1], return_inverse=True)
    if len(np.unique(row * len(codes) + column_of)) < len(row):
        raise InputError(where, "timestamp", "each source and target once at each time", "a pair twice")
    rates = np.zeros((len(times), len(codes)))
    rates[row, column_of] = rate
    pairs = np.stack(np.divmod(codes, topology.num_nodes), 1).astype(np.int32)
    return TrafficMatrices(
        name="frame", pairs=pairs, timestamps=times, rates=ArrayRates(rates), interval_s=usual_interval(times),
        key=content_key(rates, pairs, times), origin=where,
    )  # fmt: skip
