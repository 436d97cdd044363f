"""Answers by name: of each demand that was sent its paths, node by node."""

from __future__ import annotations

from typing import Any

import numpy as np

from teal.runtime.arrays import FloatArray
from teal.serving.answer import FIGURES, Answer, plain
from teal.serving.served import Served


def named(answer: Answer, served: Served, rates: FloatArray) -> list[dict[str, Any]]:
    """:class:`teal.serving.responses.NamedAllocation`, one a matrix.

    Args:
        answer: to the matrices.
        served: the network.
        rates: (B, D) Gbit/s that were allocated; demands of 0 are left out.
    """
    topology = served.topology
    names = topology.node_names
    ends = [(names[s], names[t]) for s, t in zip(topology.link_source, topology.link_target, strict=True)]
    allocations = []
    for b, row in enumerate(rates):
        splits, demands, admitted_total = answer.splits[b], [], 0.0
        for d in np.flatnonzero(row).tolist():
            rate, own = float(row[d]), splits[d]
            admitted = rate * min(1.0, float(own.sum(dtype=np.float64)))
            admitted_total += admitted
            paths = []
            for k in np.flatnonzero(own).tolist():
                nodes, links = served.route(d, k)
                share: dict[str, Any] = {"nodes": nodes, "links": links}
                if answer.weights is None:
                    share["split"] = float(own[k])
                else:
                    share["weight"] = int(answer.weights[b, d, k])
                paths.append(share)
            source, target = served.paths.pairs[d]
            demands.append(
                {"source": names[source], "target": names[target], "demand": rate, "admitted": admitted, "paths": paths}
            )
        allocations.append(
            {
                **{figure: plain(getattr(answer, figure)[b]) for figure in FIGURES},
                "status": answer.status[b],
                "shed": max(0.0, float(row.sum()) - admitted_total),
                "demands": demands,
                "utilisation": [
                    {"link": e, "source": source, "target": target, "utilisation": plain(used)}
                    for e, ((source, target), used) in enumerate(zip(ends, answer.utilisation[b].tolist(), strict=True))
                ],
            }
        )
    return allocations
