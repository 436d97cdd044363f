"""One matrix of a problem as arrays of numpy."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch

from teal import InputError, PathSet, Problem
from teal.network.path_links import path_links_of
from teal.runtime.arrays import FloatArray


def demand_of(problem: Problem) -> FloatArray:
    """(D,) Gbit/s.

    Raises:
        InputError: more than one matrix, or none.
    """
    if problem.batch != 1:
        raise InputError("availability", "problem", "one matrix", problem.batch)
    return np.asarray(problem.demand[0].to("cpu", torch.float64), dtype=np.float64)


def capacity_of(problem: Problem) -> FloatArray:
    """(E,) Gbit/s."""
    return np.asarray(problem.capacity[0].to("cpu", torch.float64), dtype=np.float64)


def crossings(paths: PathSet) -> sp.csr_array:
    """(P, E) 1 where a path crosses a link, in the order of ``PathLinks.slot``."""
    links = path_links_of(paths)
    return sp.csr_array(
        (np.ones(len(links.link)), links.link, links.link_ptr),
        shape=(len(links.slot), paths.num_links),
    )
