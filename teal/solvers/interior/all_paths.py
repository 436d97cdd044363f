"""From a problem of one matrix to the master over all paths, and back to path sets and splits."""

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

WORTH = 3.0  # price of a Gbit/s that is not carried, over the cost of the dearest path
DEARER, _TIMES = 10.0, 2  # factor by which that price rises at a time, and how often it does
# Rounds of multiplicative weights, by whether all demand is carried: 12 for problems that come with
# few paths, none for the others (cost266 to 0.1%: 49 ms with 12, 35 ms with none).
_ROUNDS = {False: 0, True: 12}
# Candidate paths between which the master is faster than rounds of PDHG where demand may be left.
_LEAST_PATHS, _MOST_PATHS = 2_000, 16_000
_PARTS = (1.0, 0.3, 0.1)  # of the target, to which rounds are made until what carries all is near


class Found(NamedTuple):
    """The solution over all paths.

    Attributes:
        paths: the paths of the problem, and those that carry something.
        splits: (D, K) over these.
        prices: (E,) value per Gbit/s.
        bound: on the optimum over all paths, as a score of the program.
        iterations: iterations of interior points.
        reached: whether the target gap was reached.
    """

    paths: PathSet
    splits: FloatArray
    prices: FloatArray
    bound: float
    iterations: int
    reached: bool


def accepts(problem: Problem) -> bool:
    """Whether the master takes a problem: one matrix, linear in flow, on the CPU."""
    return problem.batch == 1 and not is_interpreting() and accepts_program(problem)


def is_faster(problem: Problem) -> bool:
    """Whether the master is expected to take less time than rounds of PDHG
    (``benchmarks/interior.py``).
    """
    count = int(problem.paths.mask.sum()) if accepts(problem) else 0
    return _LEAST_PATHS <= count <= _MOST_PATHS


def has_few_paths(problem: Problem) -> bool:
    """Whether the master is not asked for a problem because of how few paths it has."""
    return int(problem.paths.mask.sum()) < _LEAST_PATHS


def demands_of(problem: Problem) -> Demands:
    """The program over all paths of a problem that :func:`accepts` takes.

    Under least_cost a Gbit/s that is not carried costs three times the dearest cheapest path.
    """
    rules = problem.objective.rules
    is_whole = rules.may_have_no_allocation
    rate = problem.routable_demand[0] if rules.carries_all else problem.demand[0]
    cost = problem.link_cost.numpy()
    worth = problem.demand_value.numpy()
    if is_whole:
        dearest = _dearest_path(problem, cost)
        worth = np.full(len(rate), WORTH * (dearest if dearest > 0 else 1.0))
    return Demands(
        problem.topology,
        problem.paths.pairs,
        np.ascontiguousarray(rate.numpy()),
        np.ascontiguousarray(worth),
        np.ascontiguousarray(cost),
        np.ascontiguousarray(problem.capacity[0].numpy()),
        is_whole=is_whole,
        balances=rules.balances,
    )


def _dearest_path(problem: Problem, cost: FloatArray) -> float:
    """The cost of the dearest of the cheapest paths of all demands."""
    topology, pairs = problem.topology, problem.paths.pairs
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
    of_demand = distance[row, pairs[:, 1]]
    return float(of_demand[np.isfinite(of_demand)].max(initial=0.0))


def improving(
    problem: Problem,
    target: float,
    deadline: Deadline,
    max_rounds: int,
    report: Callable[[Round], None] | None = None,
    worth: float = 0.0,
) -> Steps[Found]:
    """Rounds until the gap to the optimum over all paths is at most ``target``.

    Under least_cost a Gbit/s that is not carried costs more while some is not carried, twice.

    Args:
        problem: in float64, of a kind that :func:`accepts` takes.
        target: target gap.
        deadline: after which no round begins.
        max_rounds: number of rounds, at most.
        report: called after each round.
        worth: what a Gbit/s that is not carried costs at least.
    """
    demands = demands_of(problem)
    if demands.is_whole:
        demands = dataclasses.replace(demands, worth=np.maximum(demands.worth, worth))
    master = Master(demands, columns_of(problem.paths), _ROUNDS[demands.is_whole])
    raised = 0  # times that what is not carried became dearer
    last = yield from master.improving(target, deadline, max_rounds, report)
    if demands.is_whole:
        for part in _PARTS:
            if part < 1:
                last = yield from master.improving(part * target, deadline, max_rounds, report)
            last = master.carrying_all(target, deadline)
            while not last.is_whole and raised < _TIMES and not deadline.is_over:
                master.raise_worth(DEARER)
                raised += 1
                yield from master.improving(part * target, deadline, max_rounds, report)
                last = master.carrying_all(target, deadline)
            if last.gap <= target or not last.is_whole or deadline.is_over:
                break
    paths, splits = with_columns_of(problem.paths, last.columns, last.share)
    base = 0.0  # what the demand would be worth if nothing cost anything
    if demands.is_whole:
        base = DEARER**raised * float(demands.rate @ demands.worth)
    return Found(
        paths,
        splits,
        last.price,
        last.bound - base,
        master.iterations,
        last.gap <= target and (last.is_whole or not demands.is_whole),
    )
