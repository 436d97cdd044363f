"""Column generation for a :class:`teal.problem.Problem` of one matrix.

Converts the problem to the master's program (:mod:`teal.solvers.interior.master`), and its columns
back to a path set and splits.  Entry point: :func:`improving`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from teal.network import PathSet
from teal.network.shortest import shortest_trees
from teal.problem import Problem
from teal.runtime.arrays import FloatArray
from teal.runtime.interruptible import Deadline, Steps
from teal.runtime.kernel_cache import is_interpreting
from teal.solvers.interior.columns import columns_of, with_columns_of
from teal.solvers.interior.engine import accepts as accepts_program
from teal.solvers.interior.master import Demands, Master, Round

# Price of an unserved Gbit/s over the cost of the longest shortest path; the factor by which it is
# raised while demand is unserved, and how often.
UNSERVED_COST = 3.0
UNSERVED_COST_FACTOR = 10.0
_MAX_RAISES = 2
# Rounds of multiplicative weights, by whether all demand is served: 12 for problems with few
# initial paths, none for the others (cost266 to 0.1%: 49 ms with 12, 35 ms with none).
_WEIGHT_ROUNDS = {False: 0, True: 12}
# Range of the number of candidate paths in which this master is faster than PDHG, with shedding.
_MIN_PATHS = 2_000
_MAX_PATHS = 16_000
# Parts of the target gap to which rounds run, until a nearby solution serves all demand.
_TARGET_FACTORS = (1.0, 0.3, 0.1)


class AllPathsSolution(NamedTuple):
    """Solution over all paths.

    Attributes:
        paths: paths of the problem, and those that carry traffic.
        splits: (D, K) splits over these.
        prices: (E,) dual prices, value per Gbit/s.
        bound: bound on the optimum over all paths, as a score of the program.
        iterations: interior-point iterations.
        reached: whether the target gap was reached.
    """

    paths: PathSet
    splits: FloatArray
    prices: FloatArray
    bound: float
    iterations: int
    reached: bool


def accepts(problem: Problem) -> bool:
    """Return whether column generation can solve a problem: one matrix on the CPU, linear."""
    return problem.batch == 1 and not is_interpreting() and accepts_program(problem)


def is_faster(problem: Problem) -> bool:
    """Return whether the interior-point master is predicted to be faster than rounds of PDHG.

    The range of path counts was measured by ``benchmarks/interior.py``.
    """
    count = int(problem.paths.mask.sum()) if accepts(problem) else 0
    return _MIN_PATHS <= count <= _MAX_PATHS


def has_few_paths(problem: Problem) -> bool:
    """Return whether a problem has too few paths for the interior-point master to be used."""
    return int(problem.paths.mask.sum()) < _MIN_PATHS


def demands_of(problem: Problem) -> Demands:
    """Return the program over all paths of a problem that :func:`accepts` allows.

    Under least_cost an unserved Gbit/s costs three times the longest shortest path.
    """
    rules = problem.objective.rules
    is_whole = rules.may_have_no_allocation
    rate = problem.routable_demand[0] if rules.carries_all else problem.demand[0]
    cost = problem.link_cost.numpy()
    unit_value = problem.demand_value.numpy()
    if is_whole:
        max_cost = _max_shortest_path_cost(problem, cost)
        unit_value = np.full(len(rate), UNSERVED_COST * (max_cost if max_cost > 0 else 1.0))
    return Demands(
        problem.topology,
        problem.paths.pairs,
        np.ascontiguousarray(rate.numpy()),
        np.ascontiguousarray(unit_value),
        np.ascontiguousarray(cost),
        np.ascontiguousarray(problem.capacity[0].numpy()),
        is_whole=is_whole,
        balances=rules.balances,
    )


def _max_shortest_path_cost(problem: Problem, cost: FloatArray) -> float:
    """Return the largest cost of a demand's shortest path."""
    topology = problem.topology
    pairs = problem.paths.pairs
    weight = np.where(problem.capacity[0].numpy() > 0, cost, np.inf)
    sources, row = np.unique(pairs[:, 0], return_inverse=True)
    distance, _ = shortest_trees(
        topology.num_nodes,
        topology.link_source,
        topology.link_target,
        weight,
        sources,
        topology.no_transit,
    )
    demand_cost = distance[row, pairs[:, 1]]
    return float(demand_cost[np.isfinite(demand_cost)].max(initial=0.0))


def improving(
    problem: Problem,
    target: float,
    deadline: Deadline,
    max_rounds: int,
    report: Callable[[Round], None] | None = None,
    unit_value: float = 0.0,
) -> Steps[AllPathsSolution]:
    """Run rounds until the gap to the optimum over all paths is at most ``target``.

    Under least_cost the price of unserved demand is raised up to twice while some is unserved.

    Args:
        problem: float64 problem that :func:`accepts` allows.
        target: target gap.
        deadline: time after which no round begins.
        max_rounds: largest number of rounds.
        report: called after each round.
        unit_value: least price of an unserved Gbit/s.
    """
    demands = demands_of(problem)
    if demands.is_whole:
        demands = dataclasses.replace(
            demands, unit_value=np.maximum(demands.unit_value, unit_value)
        )
    master = Master(demands, columns_of(problem.paths), _WEIGHT_ROUNDS[demands.is_whole])
    num_raises = 0
    latest = yield from master.improving(target, deadline, max_rounds, report)
    if demands.is_whole:
        for factor in _TARGET_FACTORS:
            if factor < 1:
                latest = yield from master.improving(factor * target, deadline, max_rounds, report)
            latest = master.carrying_all(target, deadline)
            while not latest.is_whole and num_raises < _MAX_RAISES and not deadline.is_over:
                master.raise_worth(UNSERVED_COST_FACTOR)
                num_raises += 1
                yield from master.improving(factor * target, deadline, max_rounds, report)
                latest = master.carrying_all(target, deadline)
            if latest.gap <= target or not latest.is_whole or deadline.is_over:
                break
    paths, splits = with_columns_of(problem.paths, latest.columns, latest.share)
    # Value of serving all demand at no cost.
    base = 0.0
    if demands.is_whole:
        base = UNSERVED_COST_FACTOR**num_raises * float(demands.rate @ demands.unit_value)
    return AllPathsSolution(
        paths,
        splits,
        latest.price,
        latest.bound - base,
        master.iterations,
        latest.gap <= target and (latest.is_whole or not demands.is_whole),
    )
