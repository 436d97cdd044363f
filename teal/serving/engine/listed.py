"""Rates of all pairs of nodes, from what a request lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from teal.network.topology import Topology
from teal.runtime.arrays import FloatArray, Int64Array
from teal.serving.engine.errors import wrong
from teal.serving.engine.requests import MAX_MATRICES

MAX_RATES = 1 << 24  # of a request
_LARGEST_RATE = 1e12  # Gbit/s


def all_pairs(rates: FloatArray, topology: Topology) -> FloatArray:
    """(B, D) Gbit/s from (B, D) or (B, N x N).

    Raises:
        ServiceError: another number of rates.
    """
    nodes = topology.num_nodes
    pairs = nodes * (nodes - 1)
    if rates.shape[1] == pairs and rates.shape[1] != nodes * nodes:
        return rates
    if rates.shape[1] != nodes * nodes:
        raise wrong(
            f"rates: {pairs} (all pairs) or {nodes * nodes} (N x N) a matrix, not {rates.shape[1]}"
        )
    return rates[:, ~np.eye(nodes, dtype=bool).reshape(-1)]


def pair_number(source: Any, target: Any, nodes: int) -> Any:
    """Place of a pair, or of several, among all pairs of so many nodes, of their numbers."""
    return source * (nodes - 1) + target - (target > source)


def in_classes(rates: FloatArray, classes: Sequence[str]) -> FloatArray:
    """(B, C * D) Gbit/s, class by class, from (B * C, D), the classes of a matrix one after the
    other.

    Raises:
        ServiceError: a number of matrices that is no multiple of C.
    """
    count = max(1, len(classes))
    if len(rates) % count:
        raise wrong(
            f"rates: a matrix for each of the {count} classes of each matrix, not {len(rates)}"
        )
    return rates.reshape(len(rates) // count, -1)


def from_triples(
    source: list[Any],
    target: list[Any],
    rate: FloatArray,
    matrix: Any,
    topology: Topology,
    of_class: Sequence[Any] | None = None,
    classes: Sequence[str] = (),
) -> FloatArray:
    """(B, C * D) Gbit/s from demands by name; C is 1 without classes.

    Args:
        source: name of a node, of each demand.
        target: likewise.
        rate: Gbit/s.
        matrix: number of the matrix; None if there is one.
        topology: the network.
        of_class: name of the class of each demand, or None.
        classes: names of all classes.

    Raises:
        ServiceError: an unknown node or class, a pair twice, or too many matrices.
    """
    nodes, index = topology.num_nodes, topology.node_index()
    try:
        s = np.array([index[str(name)] for name in source], np.int64)
        t = np.array([index[str(name)] for name in target], np.int64)
    except KeyError as error:
        raise wrong(f"demands: there is no node {str(error.args[0])[:80]!r}") from None
    if (s == t).any():
        raise wrong(f"demands: {topology.node_names[s[int(np.argmax(s == t))]]!r} to itself")
    row = np.zeros(len(s), np.int64) if matrix is None else np.asarray(matrix, np.int64)
    count = int(row.max(initial=0)) + 1
    if row.min(initial=0) < 0 or count > MAX_MATRICES:
        raise wrong(f"matrix: numbers from 0 to {MAX_MATRICES - 1}")
    size = max(1, len(classes)) * nodes * (nodes - 1)
    if count * size > MAX_RATES:
        raise wrong(f"matrix: at most {MAX_RATES // size} matrices of this network at once")
    rates = np.zeros((count, size))
    place = pair_number(s, t, nodes) + nodes * (nodes - 1) * _class_numbers(
        of_class, len(s), classes
    )
    if len(np.unique(row * rates.shape[1] + place)) < len(place):
        raise wrong("demands: each pair of nodes once a matrix and class")
    rates[row, place] = rate
    return rates


def _class_numbers(
    of_class: Sequence[Any] | None, count: int, classes: Sequence[str]
) -> Int64Array:
    """(n,) number of the class of each demand; 0 without classes.

    Raises:
        ServiceError: an unknown class, none where there are classes, or one where there are none.
    """
    names = [None] * count if of_class is None else of_class
    known: dict[Any, int] = {name: number for number, name in enumerate(classes)} or {None: 0}
    for name in names:
        if name not in known:
            expected = (
                "one of " + ", ".join(classes) if classes else "none, since no classes are given"
            )
            raise wrong(f"class: {expected[:200]}, not {str(name)[:80]!r}")
    return np.array([known[name] for name in names], np.int64)


def checked(rates: FloatArray) -> FloatArray:
    """The rates.

    Raises:
        ServiceError: one that is negative, infinite or NaN, or too many.
    """
    if rates.size > MAX_RATES:
        raise wrong(
            f"rates: at most {MAX_RATES // rates.shape[1]} matrices of this network at once"
        )
    if rates.size and not (rates.min() >= 0 and rates.max() <= _LARGEST_RATE):  # NaN is neither
        bad = ~((rates >= 0) & (rates <= _LARGEST_RATE))
        row, column = np.argwhere(bad)[0].tolist()
        where = f"(matrix {row}, demand {column})"
        raise wrong(
            f"rates: a finite number from 0 to {_LARGEST_RATE:g}, not {rates[row, column]} {where}"
        )
    return rates
