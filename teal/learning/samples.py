"""Training on samples of the demands: a large network's problem in the size of a small one.

Demand d is drawn with probability pi[d] = min(1, a demand[d]) and has the rate demand[d] / pi[d]
(:mod:`teal.solvers.pdhg.samples.sample`), so that the expected load of every link is that of all demands.  The sample
is a problem of its own, over a subset of the path trie; where rewards and prices are linear in the loads, the expected
gradient is that of all demands, and elsewhere its error falls with the size of the sample.
"""

from __future__ import annotations

from torch import Tensor

from teal.config import TrainConfig
from teal.problem import Problem
from teal.solvers.pdhg.samples import sample

_ALL_UP_TO = 30_000  # demands that are all learnt from; a training step on more takes seconds
_USUAL_SIZE = 12_000  # demands of a sample: a step takes what it takes on a network of 110 nodes


def sample_size(config: TrainConfig, problem: Problem) -> int:
    """Demands of a training matrix that are drawn; 0 for all of them.

    Args:
        config: the settings; ``sample`` is the size, 0 for all, -1 for what suits the network.
        problem: the network.
    """
    count = problem.paths.num_demands
    if config.sample < 0:
        return _USUAL_SIZE if count > _ALL_UP_TO and not problem.conditions else 0
    return config.sample if config.sample < count else 0


def sampled(problem: Problem, demand: Tensor, size: int, stream: int) -> Problem:
    """About ``size`` demands of one matrix at their raised rates, B = 1, in the type of ``problem``.

    Args:
        problem: network, paths and objective.
        demand: (1, D) Gbit/s.
        size: expected number.
        stream: number of the random stream.
    """
    return sample.draw(problem.with_demand(demand), size, stream=stream).problem.to(problem.demand.dtype)
