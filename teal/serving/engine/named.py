"""Answers by name: of each demand that was sent its paths, node by node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from teal.runtime.arrays import FloatArray
from teal.serving.engine.answer import FIGURES, Answer, plain
from teal.serving.engine.matrices import pair_number
from teal.serving.engine.served import Served


def named(answer: Answer, served: Served, rates: FloatArray, classes: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """:class:`responses.NamedAllocation`, one a matrix; ``demands`` is an iterator, which is read once.

    Of many demands not all are in memory at once: Python's garbage collector stops all threads for as long as it takes
    to visit what is there.

    Args:
        answer: to the matrices.
        served: the network.
        rates: (B, D) Gbit/s that were allocated, class by class; demands of 0 are left out.
        classes: names of the classes; none without classes.
    """
    topology = served.topology
    names = topology.node_names
    ends = [(names[s], names[t]) for s, t in zip(topology.link_source, topology.link_target, strict=True)]
    for b, row in enumerate(rates):
        admitted = row * np.minimum(1.0, answer.splits[b].sum(-1, dtype=np.float64))
        yield {
            **{figure: plain(getattr(answer, figure)[b]) for figure in FIGURES},
            "status": answer.status[b],
            **answer.further(b),
            "shed": max(0.0, float(row.sum() - admitted.sum())),
            "demands": _demands(answer, served, b, row, admitted, classes),
            "utilisation": [
                {"link": e, "source": source, "target": target, "utilisation": plain(used)}
                for e, ((source, target), used) in enumerate(zip(ends, answer.utilisation[b].tolist(), strict=True))
            ],
        }


def _demands(
    answer: Answer, served: Served, b: int, rates: FloatArray, admitted: FloatArray, classes: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """:class:`teal.serving.engine.responses.DemandAnswer` of each demand of a matrix.

    Args:
        answer, served, classes: as of :func:`named`.
        b: number of the matrix.
        rates: (D,) Gbit/s.
        admitted: (D,) Gbit/s that are carried.
    """
    names, pairs = served.topology.node_names, served.paths.num_demands
    for d in np.flatnonzero(rates).tolist():
        paths, of_demand = [], answer.splits[b, d]
        for k in np.flatnonzero(of_demand).tolist():
            nodes, links = served.route(d % pairs, k)
            share: dict[str, Any] = {"nodes": nodes, "links": links}
            if answer.weights is None:
                share["split"] = float(of_demand[k])
            else:
                share["weight"] = int(answer.weights[b, d, k])
            paths.append(share)
        source, target = served.paths.pairs[d % pairs]
        of_class = {"class": classes[d // pairs]} if classes else {}
        ends = {"source": names[source], "target": names[target]}
        yield {**ends, **of_class, "demand": float(rates[d]), "admitted": float(admitted[d]), "paths": paths}


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
