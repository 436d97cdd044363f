"""Answers by name: of each demand that was sent its paths, node by node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from teal.runtime.arrays import FloatArray
from teal.serving.answer import FIGURES, Answer, plain
from teal.serving.matrices import pair_number
from teal.serving.served import Served


def named(answer: Answer, served: Served, rates: FloatArray, classes: Sequence[str] = ()) -> list[dict[str, Any]]:
    """:class:`teal.serving.responses.NamedAllocation`, one a matrix.

    Args:
        answer: to the matrices.
        served: the network.
        rates: (B, D) Gbit/s that were allocated, class by class; demands of 0 are left out.
        classes: names of the classes; none without classes.
    """
    topology = served.topology
    names, pairs = topology.node_names, served.paths.num_demands
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
                nodes, links = served.route(d % pairs, k)
                share: dict[str, Any] = {"nodes": nodes, "links": links}
                if answer.weights is None:
                    share["split"] = float(own[k])
                else:
                    share["weight"] = int(answer.weights[b, d, k])
                paths.append(share)
            source, target = served.paths.pairs[d % pairs]
            of_class = {"class": classes[d // pairs]} if classes else {}
            demands.append(
                {
                    "source": names[source],
                    "target": names[target],
                    **of_class,
                    "demand": rate,
                    "admitted": admitted,
                    "paths": paths,
                }
            )
        allocations.append(
            {
                **{figure: plain(getattr(answer, figure)[b]) for figure in FIGURES},
                "status": answer.status[b],
                **answer.further(b),
                "shed": max(0.0, float(row.sum()) - admitted_total),
                "demands": demands,
                "utilisation": [
                    {"link": e, "source": source, "target": target, "utilisation": plain(used)}
                    for e, ((source, target), used) in enumerate(zip(ends, answer.utilisation[b].tolist(), strict=True))
                ],
            }
        )
    return allocations


def splits_of(allocation: dict[str, Any], served: Served) -> FloatArray:
    """(D, K) splits of one of :func:`named`'s allocations; weights as shares of what is admitted.

    Raises:
        KeyError: a node that the network has not.
    """
    index, nodes = served.topology.node_index(), served.topology.num_nodes
    splits = np.zeros((served.paths.num_demands, served.paths.num_paths))
    for demand in allocation["demands"]:
        d = pair_number(index[demand["source"]], index[demand["target"]], nodes)
        for path in demand["paths"]:
            known = (k for k in np.flatnonzero(served.paths.mask[d]).tolist() if served.route(d, k)[1] == path["links"])
            splits[d, next(known)] = path["split"] if "split" in path else path["weight"]
        if any("weight" in path for path in demand["paths"]):
            splits[d] *= demand["admitted"] / demand["demand"] / splits[d].sum()
    return splits
