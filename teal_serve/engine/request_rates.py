"""Conversion of the rates in a request to arrays over all pairs of nodes, and their validation.

Axes: B matrices, N nodes, D = N * (N - 1) pairs of nodes by source and target index, C demand
classes (1 without classes). All rates are in Gbit/s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from teal.network.topology import Topology
from teal.runtime.arrays import FloatArray, Int64Array
from teal_serve.engine.errors import invalid_request
from teal_serve.engine.requests import MAX_MATRICES

# Maximum number of rates in a request.
MAX_RATES = 1 << 24
_MAX_RATE_GBPS = 1e12


def all_pairs(rates: FloatArray, topology: Topology) -> FloatArray:
    """Return the rates (B, D) of all pairs of nodes, without the diagonal of rates (B, N * N).

    Args:
        rates: (B, D) for all pairs of nodes, or (B, N * N) for all entries, row by row.
        topology: topology of the network.

    Raises:
        ServiceError: another number of rates in a matrix.
    """
    num_nodes = topology.num_nodes
    num_pairs = num_nodes * (num_nodes - 1)
    if rates.shape[1] == num_pairs and rates.shape[1] != num_nodes * num_nodes:
        return rates
    if rates.shape[1] != num_nodes * num_nodes:
        raise invalid_request(
            f"rates: a matrix of this network has {num_pairs} rates (all pairs) or "
            f"{num_nodes * num_nodes} (N x N), not {rates.shape[1]}"
        )
    # Drop the diagonal entries of the N x N matrices.
    return rates[:, ~np.eye(num_nodes, dtype=bool).reshape(-1)]


def pair_index(source: Any, target: Any, num_nodes: int) -> Any:
    """Return the demand index, in [0, D), of a pair of nodes, or of each pair of two arrays.

    It is source * (N - 1) + target, minus 1 if target > source, since a row has no diagonal entry.

    Args:
        source: index of the source node, or array of indices.
        target: index of the target node, or array of indices.
        num_nodes: number N of nodes.
    """
    return source * (num_nodes - 1) + target - (target > source)


def in_classes(rates: FloatArray, classes: Sequence[str]) -> FloatArray:
    """Reshape rates (B * C, D) to (B, C * D), class by class.

    Args:
        rates: (B * C, D) with the C classes of each matrix one after another.
        classes: names of the classes; empty without classes.

    Raises:
        ServiceError: the number of rows is not a multiple of C.
    """
    num_classes = max(1, len(classes))
    if len(rates) % num_classes:
        raise invalid_request(
            f"rates: {len(rates)} lists are not a multiple of the number of classes; send one list "
            f"for each of the {num_classes} classes of each matrix"
        )
    return rates.reshape(len(rates) // num_classes, -1)


def from_triples(
    source_names: list[Any],
    target_names: list[Any],
    rate: FloatArray,
    matrix: Any,
    topology: Topology,
    class_of_demand: Sequence[Any] | None = None,
    classes: Sequence[str] = (),
) -> FloatArray:
    """Convert a list of n demands by name to rates (B, C * D); pairs that are not listed get 0.

    Args:
        source_names: (n,) name of the source node of each demand.
        target_names: (n,) name of the target node of each demand.
        rate: (n,) Gbit/s.
        matrix: (n,) matrix index of each demand; None for a single matrix.
        topology: topology of the network.
        class_of_demand: (n,) class name of each demand; None without classes.
        classes: names of all classes; empty without classes.

    Raises:
        ServiceError: unknown node or class, repeated pair, or too many matrices.
    """
    # Convert the names to node indices (n,).
    num_nodes = topology.num_nodes
    node_index = topology.node_index()
    try:
        sources = np.array([node_index[str(name)] for name in source_names], np.int64)
        targets = np.array([node_index[str(name)] for name in target_names], np.int64)
    except KeyError as error:
        raise invalid_request(f"demands: unknown node {str(error.args[0])[:80]!r}") from None
    if (sources == targets).any():
        raise invalid_request(
            f"demands: {topology.node_names[sources[int(np.argmax(sources == targets))]]!r} to "
            "itself; list pairs of two different nodes"
        )
    # Determine the number of matrices, and check the size of the result.
    matrix_index = (
        np.zeros(len(sources), np.int64) if matrix is None else np.asarray(matrix, np.int64)
    )
    num_matrices = int(matrix_index.max(initial=0)) + 1
    if matrix_index.min(initial=0) < 0 or num_matrices > MAX_MATRICES:
        raise invalid_request(f"matrix: an index is not from 0 to {MAX_MATRICES - 1}")
    row_length = max(1, len(classes)) * num_nodes * (num_nodes - 1)
    if num_matrices * row_length > MAX_RATES:
        raise invalid_request(
            f"matrix: {num_matrices} matrices are too many for one request; send at most "
            f"{MAX_RATES // row_length} of this network"
        )
    # Scatter the rates to (matrix, demand); demand = class index * D + index of the pair. Each
    # entry must be unique.
    rates = np.zeros((num_matrices, row_length))
    demand_index = pair_index(sources, targets, num_nodes) + num_nodes * (
        num_nodes - 1
    ) * _class_indices(class_of_demand, len(sources), classes)
    if len(np.unique(matrix_index * rates.shape[1] + demand_index)) < len(demand_index):
        raise invalid_request("demands: repeated pair of nodes; list each once a matrix and class")
    rates[matrix_index, demand_index] = rate
    return rates


def _class_indices(
    class_of_demand: Sequence[Any] | None, num_demands: int, classes: Sequence[str]
) -> Int64Array:
    """Return the class index (n,) of each demand; 0 without classes.

    Args:
        class_of_demand: (n,) class name of each demand; None if no demand names a class.
        num_demands: n.
        classes: names of all classes of the request; empty without classes.

    Raises:
        ServiceError: unknown or missing class, or a class without classes in the request.
    """
    # Without classes, the only valid name is None, with index 0.
    names = [None] * num_demands if class_of_demand is None else class_of_demand
    class_index: dict[Any, int] = {name: index for index, name in enumerate(classes)} or {None: 0}
    for name in names:
        if name not in class_index:
            remedy = (
                "use one of " + ", ".join(classes)
                if classes
                else "list it in classes, since no classes are given"
            )
            raise invalid_request(f"class: unknown class {str(name)[:80]!r}; {remedy[:200]}")
    return np.array([class_index[name] for name in names], np.int64)


def check_rates(rates: FloatArray) -> FloatArray:
    """Return rates (B, D) unchanged after validation.

    Raises:
        ServiceError: a rate that is negative, too large, infinite or NaN, or too many rates.
    """
    if rates.size > MAX_RATES:
        raise invalid_request(
            f"rates: {len(rates)} matrices are too many for one request; send at most "
            f"{MAX_RATES // rates.shape[1]} of this network"
        )
    # NaN fails both comparisons.
    if rates.size and not (rates.min() >= 0 and rates.max() <= _MAX_RATE_GBPS):
        is_invalid = ~((rates >= 0) & (rates <= _MAX_RATE_GBPS))
        matrix_index, demand_index = np.argwhere(is_invalid)[0].tolist()
        location = f"(matrix {matrix_index}, demand {demand_index})"
        raise invalid_request(
            f"rates: {rates[matrix_index, demand_index]} {location} is not a finite number from 0 "
            f"to {_MAX_RATE_GBPS:g} Gbit/s"
        )
    return rates
