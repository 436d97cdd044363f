"""Networks to look at: where nodes are, and how full each link is under any scheme and matrix."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import networkx as nx
import numpy as np

from teal.network.topology import FloatArray
from teal.network.traffic import spread
from teal.protocols import Protocol
from teal.reports.record import Network, Place, Shares

_MOST_CASES = 24  # as they came, and as many of the others
_FULL, _FAILED = 1000, 65535  # two bytes: 0.1% a step up to 6,553%, and no link
_LARGE = 300  # nodes, beyond which a layout by stress takes too long


def positions(network: Network) -> FloatArray:
    """(N, 2) x and y: the coordinates, longitudes shrunk by the mean latitude, else a drawing of the graph."""
    known = np.asarray(~np.isnan(network.coordinates).any(axis=1))
    if known.all():
        return _projected(network.coordinates)
    graph: Any = nx.Graph()
    graph.add_nodes_from(range(len(network.nodes)))
    graph.add_edges_from(zip(network.source.tolist(), network.target.tolist(), strict=True))
    if known.sum() > len(known) / 2:  # most are known: the others go between their neighbours
        fixed = np.flatnonzero(known).tolist()
        places = _projected(network.coordinates)
        start = {i: places[i] if known[i] else places[known].mean(0) for i in range(len(known))}
        drawn = nx.spring_layout(graph, pos=start, fixed=fixed, seed=0, iterations=30)
    elif len(network.nodes) <= _LARGE and nx.is_connected(graph):
        drawn = nx.kamada_kawai_layout(graph)
    else:
        drawn = nx.spring_layout(graph, seed=0, iterations=50)
    return np.array([drawn[i] for i in range(len(network.nodes))])


def _projected(coordinates: FloatArray) -> FloatArray:
    latitude = np.nanmean(coordinates[:, 1])
    shrink = np.cos(np.radians(latitude)) if abs(latitude) < 90 else 1.0
    return coordinates * [shrink, 1.0]


def network_map(
    network: Network, utilisation: Mapping[Place, Shares], times: Mapping[int, str]
) -> dict[str, Any] | None:
    """What the page needs to draw the map, as plain data; None if no utilisation of this network is known.

    A cable is drawn once, in the colour of its fuller direction.

    Args:
        network: the network.
        utilisation: of this one and others, by place.
        times: of matrices, by index.
    """
    own = {
        place: shares
        for place, shares in utilisation.items()
        if (place.topology, place.traffic) == (network.topology, network.traffic)
    }
    if not own:
        return None
    cases = _chosen(list(dict.fromkeys(place.replaced("") for place in own)))
    schemes = list(dict.fromkeys(place.scheme for place in own))
    shares = {
        f"{number}/{which}": _packed(own[case.replaced(scheme)])
        for number, case in enumerate(cases)
        for which, scheme in enumerate(schemes)
        if case.replaced(scheme) in own
    }
    places = positions(network)
    return {
        "nodes": list(network.nodes),
        "x": places[:, 0].round(5).tolist(),
        "y": places[:, 1].round(5).tolist(),
        "source": network.source.tolist(),
        "target": network.target.tolist(),
        "capacity": network.capacity.tolist(),
        "cases": [_name(case, times.get(case.index, "")) for case in cases],
        "schemes": schemes,
        "utilisation": shares,
    }


def _chosen(cases: Sequence[Place]) -> list[Place]:
    plain = [case for case in cases if case.protocol == Protocol.OFFLINE.value]
    others = [case for case in cases if case.protocol != Protocol.OFFLINE.value]
    return [part[i] for part in (plain, others) for i in spread(np.arange(len(part)), _MOST_CASES).tolist()]


def _name(case: Place, when: str) -> str:
    done = "" if case.protocol == Protocol.OFFLINE.value else f", {case.protocol} {case.level}"
    return f"{case.index}: {when.replace('T', ' ')}{done}" + (f", draw {case.draw}" if case.draw else "")


def _packed(shares: Shares) -> str:
    steps = np.where(np.isnan(shares), _FAILED, np.clip(np.round(np.nan_to_num(shares) * _FULL), 0, _FAILED - 1))
    return base64.b64encode(steps.astype("<u2").tobytes()).decode("ascii")
