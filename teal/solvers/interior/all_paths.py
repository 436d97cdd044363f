"""Column generation for a :class:`teal.problem.Problem` of one matrix.

Converts the problem to the master's program (:mod:`teal.solvers.interior.master`), and its columns
back to a path set and splits.  Entry point: :func:`generating_columns`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from teal.network import PathSet
from teal.network.path_links import PathLinks
from teal.network.shortest import shortest_trees
from teal.problem import Problem
from teal.runtime.arrays import FloatArray
from teal.runtime.interruptible import Deadline, Steps
from teal.runtime.kernel_cache import is_interpreting
from teal.solvers.interior.columns import (
    add_columns,
    column_shares,
    path_columns,
)
from teal.solvers.interior.engine import accepts as accepts_program
from teal.solvers.interior.master import Demands, Master, MasterStart, Round

# Cost of an unserved Gbit/s over the cost of the most expensive shortest path; the factor by which
# it is raised while demand is unserved, and the largest number of raises.
UNSERVED_COST = 3.0
SHEDDING_PRICE_GROWTH = 10.0
_MAX_RAISES = 2
# Rounds of multiplicative weights, by whether all demand must be served at the least cost; without
# that requirement none is faster (cost266 to 0.1%: 49 ms with 12 rounds, 35 ms with none).
_WEIGHT_ROUNDS = {False: 0, True: 12}
# Range of the number of candidate paths in which this master is faster than PDHG, with shedding.
_MIN_PATHS = 2_000
_MAX_PATHS = 16_000
# Rounds run to the target gap times these factors, one after the other, until the master with all
# demand served reaches the target.
_TARGET_FACTORS = (1.0, 0.3, 0.1)


class AllPathsStart(NamedTuple):
    """Solution of a similar matrix, from which column generation starts.

    Attributes:
        paths: path set of its last round.
        splits: (D, K) share of each demand on each of these paths; the loads of the present matrix
            fit its capacities.
        prices: (E,) dual price of each link, value per Gbit/s.
    """

    paths: PathSet
    splits: FloatArray
    prices: FloatArray


class AllPathsSolution(NamedTuple):
    """Solution of a problem of one matrix over all paths of its network.

    Attributes:
        paths: the problem's candidate paths, extended by the new paths that carry traffic.
        splits: (D, K) share of each demand on each of these paths.
        prices: (E,) dual price of each link, value per Gbit/s.
        bound: upper bound on the optimum over all paths: value less cost, minus the cost of serving
            all demand, or minus the largest link utilisation.
        iterations: interior-point iterations.
        has_reached_target: whether the target gap was reached.
    """

    paths: PathSet
    splits: FloatArray
    prices: FloatArray
    bound: float
    iterations: int
    has_reached_target: bool


def accepts(problem: Problem) -> bool:
    """Return whether column generation can solve a problem: one matrix of a program on the CPU.

    The kernels must be compiled, and the interior-point engine must accept the program.
    """
    return problem.batch == 1 and not is_interpreting() and accepts_program(problem)


def is_faster(problem: Problem) -> bool:
    """Return whether the interior-point master is predicted to be faster than rounds of PDHG.

    The range of path counts was measured by ``benchmarks/interior.py``.
    """
    count = int(problem.paths.mask.sum()) if accepts(problem) else 0
    return _MIN_PATHS <= count <= _MAX_PATHS


def has_few_paths(problem: Problem) -> bool:
    """Return whether a problem has too few candidate paths for the master to beat PDHG."""
    return int(problem.paths.mask.sum()) < _MIN_PATHS


def _master_demands(problem: Problem) -> Demands:
    """Return the demands, values, costs and capacities of the program over all paths.

    Under least_cost an unserved Gbit/s costs three times the cost of the most expensive shortest
    path.

    Args:
        problem: problem of one matrix that :func:`accepts` allows.
    """
    rules = problem.objective.rules
    # Only least_cost must serve all demand within the capacities, which may be infeasible.
    serves_all = rules.may_be_infeasible
    rate = problem.routable_demand[0] if rules.carries_all else problem.demand[0]
    link_cost = problem.link_cost.numpy()
    # Value of a Gbit/s of each demand, or its price if it is unserved.
    unit_value = problem.demand_value.numpy()
    if serves_all:
        max_cost = _max_shortest_path_cost(problem, link_cost)
        unit_value = np.full(len(rate), UNSERVED_COST * (max_cost if max_cost > 0 else 1.0))
    return Demands(
        problem.topology,
        problem.paths.pairs,
        np.ascontiguousarray(rate.numpy()),
        np.ascontiguousarray(unit_value),
        np.ascontiguousarray(link_cost),
        np.ascontiguousarray(problem.capacity[0].numpy()),
        serves_all=serves_all,
        minimises_utilisation=rules.minimises_utilisation,
    )


def _max_shortest_path_cost(problem: Problem, cost: FloatArray) -> float:
    """Return the largest cost of a demand's shortest path.

    Args:
        problem: problem of one matrix.
        cost: (E,) cost of a Gbit/s on each link.
    """
    topology = problem.topology
    pairs = problem.paths.pairs
    # Failed links are not used.
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
    # (D,) cost of each demand's shortest path; infinite for disconnected nodes.
    demand_cost = distance[row, pairs[:, 1]]
    return float(demand_cost[np.isfinite(demand_cost)].max(initial=0.0))


def generating_columns(
    problem: Problem,
    target: float,
    deadline: Deadline,
    max_rounds: int,
    report: Callable[[Round], None] | None = None,
    min_unserved_cost: float = 0.0,
    start: AllPathsStart | None = None,
) -> Steps[AllPathsSolution]:
    """Run rounds of column generation to a gap of at most ``target`` over all paths.

    Under least_cost the cost of unserved demand is raised, at most twice, while some is unserved.

    Args:
        problem: float64 problem of one matrix that :func:`accepts` allows.
        target: target gap.
        deadline: time after which no round begins.
        max_rounds: largest number of rounds of one run; least cost may need several runs.
        report: called after each round with its solution and gap.
        min_unserved_cost: lower limit of the cost of an unserved Gbit/s, under least_cost.
        start: solution of a similar matrix; None for a cold start.
    """
    demands = _master_demands(problem)
    if demands.serves_all:
        demands = dataclasses.replace(
            demands, unit_value=np.maximum(demands.unit_value, min_unserved_cost)
        )
    columns = path_columns(problem.paths)
    master_start = None
    if start is not None:
        columns, master_start = _warm_master(start)
    master = Master(demands, columns, _WEIGHT_ROUNDS[demands.serves_all], master_start)
    num_raises = 0
    last_round = yield from master.run_rounds(target, deadline, max_rounds, report)
    # Least cost: the last master must serve all demand.  Raise the cost of unserved demand until it
    # can, and repeat at a smaller gap if the result misses the target.
    if demands.serves_all:
        for target_factor in _TARGET_FACTORS:
            if target_factor < 1:
                last_round = yield from master.run_rounds(
                    target_factor * target, deadline, max_rounds, report
                )
            last_round = master.serve_all(target, deadline)
            while not last_round.serves_all and num_raises < _MAX_RAISES and not deadline.is_over:
                master.raise_unserved_cost(SHEDDING_PRICE_GROWTH)
                num_raises += 1
                yield from master.run_rounds(target_factor * target, deadline, max_rounds, report)
                last_round = master.serve_all(target, deadline)
            if last_round.gap <= target or not last_round.serves_all or deadline.is_over:
                break
    paths, splits = add_columns(problem.paths, last_round.columns, last_round.share)
    # Under least_cost the master's bound is on (value of all demand - cost), at the raised cost of
    # unserved demand; subtract this value to bound minus the cost.
    value_of_all_demand = 0.0
    if demands.serves_all:
        value_of_all_demand = SHEDDING_PRICE_GROWTH**num_raises * float(
            demands.rate @ demands.unit_value
        )
    # In order: paths, splits, prices, bound, iterations, and whether the target was reached.
    return AllPathsSolution(
        paths,
        splits,
        last_round.price,
        last_round.bound - value_of_all_demand,
        master.iterations,
        last_round.gap <= target and (last_round.serves_all or not demands.serves_all),
    )


def _warm_master(start: AllPathsStart) -> tuple[PathLinks, MasterStart]:
    """Return the paths of a start as columns, and the warm start of a master over them."""
    columns = path_columns(start.paths)
    share = column_shares(start.paths, start.splits)
    return columns, MasterStart(share, start.prices)
