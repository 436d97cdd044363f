"""Checks of the arrays that a problem is made of."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from teal.errors import InputError
from teal.network import AnyPaths, DemandClasses, Topology
from teal.objectives import CLASS_RATIO, Objective, ObjectiveName
from teal.runtime.arrays import AnyArray


def checked(field: str, values: AnyArray, width: int) -> AnyArray:
    """``values`` (n, width), or InputError for another shape, no matrix, or an entry that is no finite number >= 0."""
    if values.ndim != 2 or values.shape[1] != width:
        raise InputError("problem", field, f"{width} entries for each matrix", values.shape)
    if not len(values):
        raise InputError("problem", field, "at least one matrix", "none")
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise InputError("problem", f"{field}[{row}, {column}]", "a finite number >= 0", values[row, column])
    return values


def arrays(
    topology: Topology,
    paths: AnyPaths,
    objective: Objective,
    demand: AnyArray | Tensor,
    capacity: AnyArray | None,
    weight: AnyArray | None,
    classes: DemandClasses | None,
) -> tuple[AnyArray, AnyArray, AnyArray | None]:
    """Demands (B, D), capacities (B, E) and weights (D,) of a problem; arguments as of :meth:`teal.Problem.create`.

    Raises:
        InputError: see :meth:`teal.Problem.create`.
    """
    if objective.name == ObjectiveName.PRIORITY:
        if classes is None:
            raise InputError("priority", "classes", "demands with classes", "none")
        weight = CLASS_RATIO ** (len(classes) - 1.0 - classes.of_demand)
    if classes is not None and int(classes.ptr[-1]) != paths.num_demands:
        raise InputError("problem", "classes", f"{paths.num_demands} demands", int(classes.ptr[-1]))
    if not hasattr(paths, "topology_key"):
        raise InputError("problem", "paths", "candidate paths, as of teal.compute_paths", type(paths).__name__)
    if paths.topology_key != topology.graph_key():
        raise InputError(topology.name, "paths", "paths over this network's links", "those of another network")
    try:
        demand = np.atleast_2d(np.asarray(demand, dtype=np.float64))
    except (TypeError, ValueError):
        expected = "an array of rates, as of TrafficMatrices.read"
        raise InputError("problem", "demand", expected, type(demand).__name__) from None
    demand = checked("demand", demand, paths.num_demands)
    capacity = topology.capacity if capacity is None else capacity
    capacity = checked("capacity", np.atleast_2d(capacity), topology.num_links)
    if len(capacity) not in (1, len(demand)):
        raise InputError("problem", "capacity", f"1 row, or {len(demand)} as in demand", len(capacity))
    if weight is not None:
        weight = np.asarray(weight)
        if weight.ndim != 1:
            raise InputError("problem", "weight", f"({paths.num_demands},) weights", weight.shape)
        weight = checked("weight", np.atleast_2d(weight), paths.num_demands)[0]
    return demand, np.broadcast_to(capacity, (len(demand), topology.num_links)).copy(), weight
