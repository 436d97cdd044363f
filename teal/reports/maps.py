"""The maps in the report: positions of nodes, and utilisation of links for each scheme and case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from teal.evaluation.cases import Protocol
from teal.network.traffic import spread
from teal.reports.record import NetworkRecord, ResultKey
from teal.runtime.arrays import Float32Array
from teal.web.layout import drawing, packed_utilisation

_MAX_CASES = 24  # unchanged matrices on a map, and as many changed ones


def network_map(
    network: NetworkRecord, utilisation: Mapping[ResultKey, Float32Array], times: Mapping[int, str]
) -> dict[str, Any] | None:
    """The data of a map, as lists and strings; None if no utilisation of this network is known.

    A cable is drawn once, in the colour of its fuller direction.

    Args:
        network: the network.
        utilisation: (E,) of this network and others, by row.
        times: of matrices, by index.
    """
    of_network = {
        key: links
        for key, links in utilisation.items()
        if (key.topology, key.traffic) == (network.topology, network.traffic)
    }
    if not of_network:
        return None
    cases = _selected(list(dict.fromkeys(key.with_scheme("") for key in of_network)))
    schemes = list(dict.fromkeys(key.scheme for key in of_network))
    packed = {
        f"{case_number}/{scheme_number}": packed_utilisation(of_network[case.with_scheme(scheme)])
        for case_number, case in enumerate(cases)
        for scheme_number, scheme in enumerate(schemes)
        if case.with_scheme(scheme) in of_network
    }
    return {
        **drawing(network.nodes, network.coordinates, network.source, network.target, network.capacity),
        "cases": [_name(case, times.get(case.index, "")) for case in cases],
        "schemes": schemes,
        "utilisation": packed,
    }


def _selected(cases: Sequence[ResultKey]) -> list[ResultKey]:
    unchanged = [case for case in cases if case.protocol == Protocol.OFFLINE.value]
    changed = [case for case in cases if case.protocol != Protocol.OFFLINE.value]
    return [part[i] for part in (unchanged, changed) for i in spread(np.arange(len(part)), _MAX_CASES).tolist()]


def _name(case: ResultKey, time: str) -> str:
    change = "" if case.protocol == Protocol.OFFLINE.value else f", {case.protocol} {case.level}"
    return f"{case.index}: {time.replace('T', ' ')}{change}" + (f", draw {case.draw}" if case.draw else "")
