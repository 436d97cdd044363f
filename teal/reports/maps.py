"""Networks to look at: where nodes are, and how full each link is under any scheme and matrix."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from teal.network.traffic import spread
from teal.protocols import Protocol
from teal.reports.record import Network, Place, Shares
from teal.web.layout import drawing

_MOST_CASES = 24  # as they came, and as many of the others
_FULL, _FAILED = 1000, 65535  # two bytes: 0.1% a step up to 6,553%, and no link


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
    return {
        **drawing(network.nodes, network.coordinates, network.source, network.target, network.capacity),
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
