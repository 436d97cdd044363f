"""Priority classes of one matrix by linear programs, solved exactly: for classes whose volumes differ by many decades.

A first-order method solves the weighted program of :mod:`teal.solvers.pdhg.priority` to an accuracy relative to all of
its value, of which a class of a millionth of the volume is a millionth.  The program of class c here has that class
alone as its objective, and each higher class keeps its flow V_j as a constraint, as in :mod:`teal.problem.priority`:

    max sum of x over class c  s.t.  load[e] <= c[e],  sum_k x[d, k] <= demand[d],
                                     sum of x over class j >= V_j (1 - 1e-9) for every higher class j.

Its dual variables of the links are the prices that prove the bound of the class.  Solvers have absolute tolerances, so
that variables are shares of what a demand can have, and rows shares of their right-hand sides.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from scipy.optimize import linprog
from torch import Tensor

from teal.problem import Problem
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array

MAX_PATHS = 20_000  # candidate paths of all classes up to which this is tried; HiGHS then takes seconds
_SLACK = 1e-9  # share of V_j by which later programs may fall short of it, so that rounding makes none infeasible


def exact_classes(problem: Problem) -> tuple[Tensor, Tensor] | None:
    """Splits (1, D, K) of all classes and prices (1, C, E) of each program; None if a program was not solved.

    Args:
        problem: B = 1 under priority, on the CPU.
    """
    classes = problem.classes
    assert classes is not None
    problem = problem.to(torch.float64)
    of_demand, count = classes.of_demand.astype(np.int64), len(classes)
    demand, capacity = problem.demand[0].numpy(), problem.capacity[0].numpy()
    unit = np.minimum(demand, problem.bottleneck[0].sum(-1).numpy())  # Gbit/s of a variable of each demand
    width, is_live = problem.paths.num_paths, problem.path_mask[0].numpy()
    path, link = problem.paths.incidences()
    incidence = path.astype(np.int64), link.astype(np.int64)
    prices, reached = np.zeros((count, len(capacity))), list[float]()
    flows = np.zeros(is_live.size)
    for number in range(count):
        is_used = (is_live & ((of_demand <= number) & (unit > 0))[:, None]).reshape(-1)
        solved = _class_program(number, reached, of_demand, unit, demand, capacity, is_used, incidence, width)
        if solved is None:
            return None
        flows, prices[number] = solved
        reached.append(float(flows.reshape(-1, width)[of_demand == number].sum()))
    share = flows.reshape(-1, width) / np.where(demand > 0, demand, 1)[:, None]
    return torch.from_numpy(share)[None], torch.from_numpy(prices)[None]


def _class_program(
    number: int,
    reached: list[float],
    of_demand: Int64Array,
    unit: FloatArray,
    demand: FloatArray,
    capacity: FloatArray,
    is_used: BoolArray,
    incidence: tuple[Int64Array, Int64Array],
    width: int,
) -> tuple[FloatArray, FloatArray] | None:
    """Flows (D K,), Gbit/s, and prices (E,) of the program of a class; None if it was not solved.

    Args:
        number: of the class.
        reached: V of the higher classes, Gbit/s.
        of_demand: (D,) number of each demand's class.
        unit, demand: (D,) Gbit/s.
        capacity: (E,) Gbit/s.
        is_used: (D K,) true for the paths of the program.
        incidence: path and link of each link of each path.
        width: K.
    """
    columns = np.flatnonzero(is_used)
    if not len(columns):
        return np.zeros(len(is_used)), np.zeros(len(capacity))
    place = np.full(len(is_used), -1)
    place[columns] = np.arange(len(columns))
    of_column = columns // width
    size, own_class = unit[of_column], of_demand[of_column]
    path, link = (part[is_used[incidence[0]]] for part in incidence)
    inverse = np.where(capacity > 0, 1 / np.where(capacity > 0, capacity, 1), 0)
    entries = size[place[path]] * inverse[link]
    rows = [sp.csr_array((entries, (link, place[path])), shape=(len(capacity), len(columns)))]
    limits = [np.ones(len(capacity))]
    rows.append(sp.csr_array((np.ones(len(columns)), (of_column, np.arange(len(columns)))), (len(unit), len(columns))))
    limits.append(np.where(unit > 0, demand / np.where(unit > 0, unit, 1), 1))
    for above, value in enumerate(reached):
        if value > 0:
            rows.append(sp.csr_array(-np.where(own_class == above, size / value, 0)[None]))
            limits.append(np.array([_SLACK - 1]))
    volume = max(float(unit[of_demand == number].sum()), np.finfo(float).tiny)
    cost = -np.where(own_class == number, size / volume, 0)
    result = linprog(cost, sp.vstack(rows, format="csr"), np.concatenate(limits), bounds=(0, None), method="highs")
    if result.status != 0:
        return None
    flows = np.zeros(len(is_used))
    flows[columns] = np.maximum(result.x, 0) * size
    return flows, np.maximum(-result.ineqlin.marginals[: len(capacity)], 0) * volume * inverse
