"""Data of network maps for ``network_map.js``: node positions, links, and utilisations."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import networkx as nx
import numpy as np

from teal.network import Topology
from teal.runtime.arrays import Float32Array, FloatArray, IntArray

# Maximum number of nodes for the stress layout (Kamada-Kawai), which is slow.
_MAX_STRESS_NODES = 300


def drawing(
    nodes: Sequence[str],
    coordinates: FloatArray,
    source: IntArray,
    target: IntArray,
    capacity: FloatArray,
) -> dict[str, Any]:
    """Return a network for ``network_map.js``: lists of the names, x and y of the nodes, and of the
    sources, targets and capacities of the links.

    Args:
        nodes: N names.
        coordinates: (N, 2) longitude and latitude, NaN where unknown.
        source: (E,) node index where each link starts.
        target: (E,) node index where it ends.
        capacity: (E,) Gbit/s.
    """
    points = positions(coordinates, source, target).round(5)
    return {
        "nodes": list(nodes),
        "x": points[:, 0].tolist(),
        "y": points[:, 1].tolist(),
        "source": source.tolist(),
        "target": target.tolist(),
        "capacity": capacity.tolist(),
    }


def drawing_of(topology: Topology, capacity: FloatArray | None = None) -> dict[str, Any]:
    """Return a topology as the dict of :func:`drawing` for ``network_map.js``.

    Args:
        topology: the network.
        capacity: (E,) Gbit/s of the links; None for the topology's capacities.
    """
    ends = topology.link_source, topology.link_target
    return drawing(
        topology.node_names,
        topology.coordinates,
        *ends,
        topology.capacity if capacity is None else capacity,
    )


def utilisation_map(
    drawn: Mapping[str, Any], cases: Mapping[str, Mapping[str, FloatArray | Float32Array]]
) -> dict[str, Any]:
    """Return the data of a map for ``network_map.js``: the network, names of cases and schemes, and
    the packed utilisations of the links in each case by each scheme.

    Args:
        drawn: network, from :func:`drawing`.
        cases: by case and scheme: (E,) utilisation of the links, NaN for failed links.
    """
    schemes = list(dict.fromkeys(scheme for by_scheme in cases.values() for scheme in by_scheme))
    # Packed utilisation by "CASE INDEX/SCHEME INDEX".
    packed_by_case_scheme = {
        f"{case_index}/{schemes.index(scheme)}": packed_utilisation(utilisation.astype(np.float32))
        for case_index, by_scheme in enumerate(cases.values())
        for scheme, utilisation in by_scheme.items()
    }
    return {**drawn, "cases": list(cases), "schemes": schemes, "utilisation": packed_by_case_scheme}


def positions(coordinates: FloatArray, source: IntArray, target: IntArray) -> FloatArray:
    """Return the (N, 2) positions x and y of the nodes for drawing.

    Known coordinates are used, with longitudes scaled by cos(mean latitude).  If some are unknown
    but more than half are known, a spring layout places the other nodes; with half or fewer known,
    a layout of the graph places all nodes.

    Args:
        coordinates: (N, 2) longitude and latitude, NaN where unknown.
        source: (E,) node index where each link starts.
        target: (E,) node index where it ends.
    """
    has_coordinates = np.asarray(~np.isnan(coordinates).any(axis=1))
    if has_coordinates.all():
        return _projected(coordinates)
    graph: Any = nx.Graph()
    graph.add_nodes_from(range(len(has_coordinates)))
    graph.add_edges_from(zip(source.tolist(), target.tolist(), strict=True))
    # Fix the nodes with known coordinates; a spring layout moves the others to their neighbours.
    if has_coordinates.sum() > len(has_coordinates) / 2:
        fixed = np.flatnonzero(has_coordinates).tolist()
        points = _projected(coordinates)
        start = {
            i: points[i] if has_coordinates[i] else points[has_coordinates].mean(0)
            for i in range(len(has_coordinates))
        }
        layout = nx.spring_layout(graph, pos=start, fixed=fixed, seed=0, iterations=30)
    # Without most coordinates: a layout of the graph.
    elif len(has_coordinates) <= _MAX_STRESS_NODES and nx.is_connected(graph):
        layout = nx.kamada_kawai_layout(graph)
    else:
        layout = nx.spring_layout(graph, seed=0, iterations=50)
    return np.array([layout[i] for i in range(len(has_coordinates))])


def _projected(coordinates: FloatArray) -> FloatArray:
    """Return the coordinates (N, 2) with longitudes scaled by cos(mean latitude), so that distances
    in both directions have about the same scale; NaN stays NaN.
    """
    # Shrink longitudes to distances in latitudes; coordinates beyond 90 are not degrees, and stay.
    latitude = np.nanmean(coordinates[:, 1])
    longitude_factor = np.cos(np.radians(latitude)) if abs(latitude) < 90 else 1.0
    return coordinates * [longitude_factor, 1.0]


# A utilisation in two bytes: steps of 0.1% up to 6,553%, and one value for a failed link.
_STEPS_PER_UNIT = 1000
_FAILED = 65535


def packed_utilisation(utilisation: Float32Array) -> str:
    """Encode utilisations (E,), NaN for failed links, as base64 of one little-endian 16-bit integer
    each: steps of 0.1%, 65535 for a failed link.
    """
    steps = np.clip(np.round(np.nan_to_num(utilisation) * _STEPS_PER_UNIT), 0, _FAILED - 1)
    steps = np.where(np.isnan(utilisation), _FAILED, steps)
    return base64.b64encode(steps.astype("<u2").tobytes()).decode("ascii")
