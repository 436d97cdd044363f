r"""The demands under which a scheme loses most against the optimum, found by search.

Within a set U around the measured matrices, the search raises

    loss(d) = (V(d) - S(d)) / V(d),

with V(d) the value of a feasible allocation by PDHG and S(d) that of the scheme.  Each found loss is a proof: both
allocations exist, so that the scheme loses at least so much against the optimum.  The largest loss in U may be larger.

U is a box, low[i] <= d[i] <= high[i], and with a hose limit what each node sends and receives in total is limited too
(as in the hose model; Duffield et al., SIGCOMM 1999).  The scheme is a black box, where MetaOpt (Namyar et al., NSDI
2024) models a heuristic by a program: the search is an evolution strategy (1 + 16) whose mutations set some demands to
one of their limits, to one common value, or anew.  The number of demands that change follows the success.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import numpy as np
import torch

from teal.errors import SolverError
from teal.evaluation.instance import Instance
from teal.problem import Problem, assess
from teal.runtime.arrays import FloatArray
from teal.schemes import Scheme
from teal.solvers import pdhg

CHILDREN = pdhg.MAX_LANES  # candidates of a generation: as many as PDHG solves together
_GAP = 1e-3  # certified gap of the optimum
_GROW, _SHRINK = 1.5, 0.93  # of the share of demands that change, after a success and a failure
_FIRST_SHARE, _MOST = 0.1, 0.5  # of the demands that change at first, and at most
_HOSE_PASSES = 8  # over senders and receivers, in which demands are scaled into the hose limit


@dataclasses.dataclass(frozen=True, eq=False)
class DemandSet:
    """U of the module.

    Attributes:
        low, high: (D,) Gbit/s.
        sends, receives: (N,) largest sums of the demands of each node, Gbit/s; None for no hose limit.
        pairs: (D, 2) nodes of the demands.
    """

    low: FloatArray
    high: FloatArray
    pairs: np.ndarray
    sends: FloatArray | None = None
    receives: FloatArray | None = None

    def within(self, demand: FloatArray) -> FloatArray:
        """A point of the set near ``demand`` (D,); where the hose limit and ``low`` contradict, the limit holds."""
        demand = np.clip(demand, self.low, self.high)
        if self.sends is None or self.receives is None:
            return demand
        for _ in range(_HOSE_PASSES):
            for side, limit in ((0, self.sends), (1, self.receives)):
                node = self.pairs[:, side]
                total = np.bincount(node, demand, minlength=len(limit))
                factor = np.where(total > limit, limit / np.maximum(total, 1e-300), 1.0)
                demand = demand * factor[node]
        return demand


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generation:
    """The best loss after a generation.

    Attributes:
        evaluations: matrices that were tried so far.
        elapsed_s: seconds since the start.
        loss: proven share of the optimum that the scheme loses.
        value: of the scheme, Gbit/s of value.
        optimum: value of the allocation by PDHG.
    """

    evaluations: int
    elapsed_s: float
    loss: float
    value: float
    optimum: float


@dataclasses.dataclass(frozen=True, eq=False)
class Audit:
    """The result of a search.

    Attributes:
        demand: (D,) Gbit/s, the worst that was found.
        generations: those that found something worse, in order; the first one is of the measured matrices.
    """

    demand: FloatArray
    generations: tuple[Generation, ...]


def demand_set(instance: Instance, box: float, *, hose: bool) -> DemandSet:
    """The set around the matrices of an instance.

    Args:
        instance: the matrices.
        box: demands lie between (1 - box) times their least and (1 + box) times their largest rate.
        hose: whether what a node sends and receives stays within the largest sums of the matrices.
    """
    traffic, count = instance.traffic, instance.topology.num_nodes
    low, high = np.full(traffic.num_demands, np.inf), np.zeros(traffic.num_demands)
    sends, receives = np.zeros(count), np.zeros(count)
    for chunk in traffic.chunks():
        low, high = np.minimum(low, chunk.min(0)), np.maximum(high, chunk.max(0))
        for rates in chunk:
            sends = np.maximum(sends, np.bincount(traffic.pairs[:, 0], rates, minlength=count))
            receives = np.maximum(receives, np.bincount(traffic.pairs[:, 1], rates, minlength=count))
    low, high = max(0.0, 1 - box) * low, (1 + box) * high
    return DemandSet(low, high, traffic.pairs, sends, receives) if hose else DemandSet(low, high, traffic.pairs)


def audit(
    instance: Instance,
    scheme: Scheme,
    allowed: DemandSet,
    seconds: float,
    seed: int = 0,
    max_matrices: int = 0,
    report: Callable[[Generation], None] = lambda _: None,
) -> Audit:
    """Search for the demands under which ``scheme`` loses most.

    Args:
        instance: network, paths, matrices.
        scheme: any scheme of a value-maximising objective.
        allowed: the set.
        seconds: length of the search; the measured matrices are tried in any case.
        seed: of the mutations.
        max_matrices: number of matrices that are tried, about; 0 for no limit.
        report: called whenever something worse is found.

    Raises:
        SolverError: the scheme has no usable allocation of any matrix.
        KeyboardInterrupt: on Ctrl-C during the measured matrices; later it ends the search with the best so far.
    """
    rng, begin = np.random.default_rng(seed), time.perf_counter()
    count = instance.traffic.num_matrices
    rows = np.unique(np.linspace(0, count - 1, min(CHILDREN, count)).round().astype(int))
    parents = np.stack([allowed.within(rates) for rates in instance.traffic.read(rows)])
    problem = instance.problem(parents)
    tried, share = len(parents), _FIRST_SHARE
    found = _losses(problem, scheme)
    at = int(np.nanargmax(found[:, 0])) if np.isfinite(found[:, 0]).any() else -1
    if at < 0:
        raise SolverError("audit: the scheme has no usable allocation of the measured matrices")
    best, demand = found[at], parents[at]
    history: list[Generation] = []

    def note() -> None:
        elapsed = time.perf_counter() - begin
        loss, value, optimum = map(float, best)
        history.append(Generation(evaluations=tried, elapsed_s=elapsed, loss=loss, value=value, optimum=optimum))
        report(history[-1])

    note()
    try:
        while time.perf_counter() - begin < seconds and (not max_matrices or tried < max_matrices):
            children = np.stack([allowed.within(_mutated(demand, allowed, share, rng)) for _ in range(CHILDREN)])
            found = _losses(problem.with_demand(children), scheme)
            tried += CHILDREN
            at = int(np.nanargmax(np.append(found[:, 0], -np.inf)))
            if at < CHILDREN and found[at, 0] > best[0]:
                best, demand, share = found[at], children[at], min(_MOST, share * _GROW)
                note()
            else:
                share = max(1 / len(demand), share * _SHRINK)
    except KeyboardInterrupt:
        pass
    return Audit(demand, tuple(history))


def _mutated(demand: FloatArray, allowed: DemandSet, share: float, rng: np.random.Generator) -> FloatArray:
    """A copy with some demands changed: to a limit, to one common value, anew, or exchanged with each other."""
    chosen = np.flatnonzero(rng.random(len(demand)) < share)
    if not len(chosen):
        chosen = rng.integers(len(demand), size=1)
    changed, low, high = demand.copy(), allowed.low[chosen], allowed.high[chosen]
    match rng.integers(5):
        case 0:
            changed[chosen] = low
        case 1:
            changed[chosen] = high
        case 2:
            changed[chosen] = rng.random() * high.max()
        case 3:
            changed[chosen] = low + rng.random(len(chosen)) * (high - low)
        case _:
            changed[chosen] = rng.permutation(changed[chosen])
    return changed


def _losses(problem: Problem, scheme: Scheme) -> FloatArray:
    """(B, 3) loss, value and optimum of each matrix; NaN where the scheme has no usable allocation."""
    optimum = pdhg.solve(problem, gap=_GAP).value
    found = np.full((problem.batch, 3), np.nan)
    for b in range(problem.batch):
        single = problem.row(b)
        assessment = assess(single, scheme.solve(single))
        if assessment.status[0].usable and float(optimum[b]) > 0:
            value, best = float(assessment.value[0]), float(torch.maximum(optimum[b], assessment.value[0]))
            found[b] = (best - value) / best, value, best
    return found
