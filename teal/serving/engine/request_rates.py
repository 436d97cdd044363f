"""Rates of all pairs of nodes, from the lists or demands of a request, validated
(:func:`check_rates`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from teal.network.topology import Topology
from teal.runtime.arrays import FloatArray, Int64Array
from teal.serving.engine.errors import wrong
from teal.serving.engine.requests import MAX_MATRICES

# Maximum number of rates in a request.
MAX_RATES = 1 << 24
_MAX_RATE_GBPS = 1e12


def all_pairs(rates: FloatArray, topology: Topology) -> FloatArray:
    """(B, D) Gbit/s from (B, D) or (B, N x N).

    Raises:
        ServiceError: another number of rates.
    """
    num_nodes = topology.num_nodes
    num_pairs = num_nodes * (num_nodes - 1)
    if rates.shape[1] == num_pairs and rates.shape[1] != num_nodes * num_nodes:
        return rates
    if rates.shape[1] != num_nodes * num_nodes:
        raise wrong(
            f"rates: {num_pairs} (all pairs) or {num_nodes * num_nodes} (N x N) a matrix, not "
            f"{rates.shape[1]}"
        )
    return rates[:, ~np.eye(num_nodes, dtype=bool).reshape(-1)]


def pair_index(source: Any, target: Any, num_nodes: int) -> Any:
    """Index of a pair of node indices, or of several, among all pairs."""
    return source * (num_nodes - 1) + target - (target > source)


def in_classes(rates: FloatArray, classes: Sequence[str]) -> FloatArray:
    """(B, C * D) Gbit/s, class by class, from (B * C, D), where the classes of a matrix follow each
    other.

    Raises:
        ServiceError: a number of matrices that is no multiple of C.
    """
    num_classes = max(1, len(classes))
    if len(rates) % num_classes:
        raise wrong(
            f"rates: expected one matrix for each of the {num_classes} classes of each matrix, not "
            f"{len(rates)}"
        )
    return rates.reshape(len(rates) // num_classes, -1)


def from_triples(
    source: list[Any],
    target: list[Any],
    rate: FloatArray,
    matrix: Any,
    topology: Topology,
    class_of_demand: Sequence[Any] | None = None,
    classes: Sequence[str] = (),
) -> FloatArray:
    """(B, C * D) Gbit/s from demands by name; C is 1 without classes.

    Args:
        source: name of the source node of each demand.
        target: name of the target node of each demand.
        rate: Gbit/s.
        matrix: matrix index of each demand; None for a single matrix.
        topology: topology of the network.
        class_of_demand: class name of each demand, or None.
        classes: names of all classes.

    Raises:
        ServiceError: unknown node or class, repeated pair, or too many matrices.
    """
    # Node indices.
    num_nodes = topology.num_nodes
    node_index = topology.node_index()
    try:
        sources = np.array([node_index[str(name)] for name in source], np.int64)
        targets = np.array([node_index[str(name)] for name in target], np.int64)
    except KeyError as error:
        raise wrong(f"demands: unknown node {str(error.args[0])[:80]!r}") from None
    if (sources == targets).any():
        raise wrong(
            f"demands: {topology.node_names[sources[int(np.argmax(sources == targets))]]!r} to "
            "itself"
        )
    # Matrix indices, and the size of the result.
    row = np.zeros(len(sources), np.int64) if matrix is None else np.asarray(matrix, np.int64)
    num_matrices = int(row.max(initial=0)) + 1
    if row.min(initial=0) < 0 or num_matrices > MAX_MATRICES:
        raise wrong(f"matrix: expected indices from 0 to {MAX_MATRICES - 1}")
    row_length = max(1, len(classes)) * num_nodes * (num_nodes - 1)
    if num_matrices * row_length > MAX_RATES:
        raise wrong(f"matrix: at most {MAX_RATES // row_length} matrices of this network at once")
    # Scatter the rates; each pair must be unique.
    rates = np.zeros((num_matrices, row_length))
    column = pair_index(sources, targets, num_nodes) + num_nodes * (num_nodes - 1) * _class_indices(
        class_of_demand, len(sources), classes
    )
    if len(np.unique(row * rates.shape[1] + column)) < len(column):
        raise wrong("demands: repeated pair of nodes; list each once a matrix and class")
    rates[row, column] = rate
    return rates


def _class_indices(
    class_of_demand: Sequence[Any] | None, num_demands: int, classes: Sequence[str]
) -> Int64Array:
    """(n,) class index of each demand; 0 without classes.

    Raises:
        ServiceError: unknown or missing class, or a class without classes in the request.
    """
    names = [None] * num_demands if class_of_demand is None else class_of_demand
    class_index: dict[Any, int] = {name: index for index, name in enumerate(classes)} or {None: 0}
    for name in names:
        if name not in class_index:
            expected = (
                "one of " + ", ".join(classes) if classes else "none, since no classes are given"
            )
            raise wrong(f"class: {expected[:200]}, not {str(name)[:80]!r}")
    return np.array([class_index[name] for name in names], np.int64)


def check_rates(rates: FloatArray) -> FloatArray:
    """Return valid rates unchanged.

    Raises:
        ServiceError: a rate that is negative, infinite or NaN, or too many rates.
    """
    if rates.size > MAX_RATES:
        raise wrong(
            f"rates: at most {MAX_RATES // rates.shape[1]} matrices of this network at once"
        )
    # NaN fails both comparisons.
    if rates.size and not (rates.min() >= 0 and rates.max() <= _MAX_RATE_GBPS):
        invalid = ~((rates >= 0) & (rates <= _MAX_RATE_GBPS))
        row, column = np.argwhere(invalid)[0].tolist()
        location = f"(matrix {row}, demand {column})"
        raise wrong(
            f"rates: a finite number from 0 to {_MAX_RATE_GBPS:g}, not {rates[row, column]} "
            f"{location}"
        )
    return rates
