"""Arrays of a single-matrix problem: demands, capacities, classes, path-link incidence."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch

from teal import InputError, PathSet, Problem
from teal.network.path_links import path_links_of
from teal.runtime.arrays import FloatArray, Int64Array


def demand_of(problem: Problem) -> FloatArray:
    """Return the demands (D,) of a problem with one matrix, in Gbit/s.

    Raises:
        InputError: more than one matrix, or none.
    """
    if problem.batch != 1:
        raise InputError("availability", "problem", "one matrix", problem.batch)
    return np.asarray(problem.demand[0].to("cpu", torch.float64), dtype=np.float64)


def capacity_of(problem: Problem) -> FloatArray:
    """Return the link capacities (E,) of a problem with one matrix, in Gbit/s."""
    return np.asarray(problem.capacity[0].to("cpu", torch.float64), dtype=np.float64)


def classes_of(problem: Problem) -> Int64Array:
    """Return the class index (D,) of each demand, 0 for the highest class and without classes."""
    if problem.classes is None:
        return np.zeros(problem.paths.num_demands, dtype=np.int64)
    return problem.classes.of_demand.astype(np.int64)


def num_classes(problem: Problem) -> int:
    """Return the number of classes C; 1 without classes."""
    return 1 if problem.classes is None else len(problem.classes)


def residual_capacity(load: FloatArray, capacity: FloatArray) -> FloatArray:
    """Return the capacity (C, E) in Gbit/s that remains for each class after the upper classes.

    Args:
        load: (C, E) Gbit/s of each class on each link, the highest class first.
        capacity: (E,) Gbit/s.
    """
    upper_load = np.cumsum(load, axis=0) - load
    residual: FloatArray = np.maximum(0.0, capacity - upper_load)
    return residual


def path_link_incidence(paths: PathSet) -> sp.csr_array:
    """Return the path-link incidence (P, E): 1 where a path crosses a link.

    The P paths are all paths of the demands, in the order of ``PathLinks.slot``.
    """
    links = path_links_of(paths)
    return sp.csr_array(
        (np.ones(len(links.link)), links.link, links.link_ptr),
        shape=(len(links.slot), paths.num_links),
    )
