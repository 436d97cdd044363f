"""Few changes of metrics around the fullest link, tried one by one: what a planner would try first.

A change matters where it makes a link as short as the way that traffic takes now, or one longer or
shorter: for each link near the fullest one these metrics are tried, first under the scenarios that
are fullest now, then, the best of them, under all.  The best few after each change are kept, since
two changes may mend what neither does alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from teal.network.ecmp import EcmpDag
from teal.runtime.arrays import FloatArray
from teal.runtime.interruptible import Deadline
from teal_ip.metrics.search import MetricSearch
from teal_ip.routing.igp_failures import IgpFailures

_NEAR = 1  # hops from the ends of the fullest link
_FIRST_SCENARIOS = 8  # failures, the fullest ones, under which every change is tried
_KEPT = 4  # metrics that are kept after each change
_POWER = 10  # of the score beside the largest utilisation


@dataclasses.dataclass(frozen=True, eq=False)
class Tried:
    """Metrics that were tried.

    Attributes:
        metric: (E,).
        score: largest utilisation, then the sum of the tenth powers of those of all scenarios.
    """

    metric: FloatArray
    score: tuple[float, float]


def near_changes(search: MetricSearch, deadline: Deadline) -> tuple[FloatArray, int]:
    """The best metrics (E,) of at most ``search.at_most`` changes, one added at a time, and the
    number of trials.
    """
    sets = [[], *(list(one) for one in search.failures)]
    best = Tried(search.start, _score(search, search.start, sets))
    kept, trials = [best], 0
    for _ in range(search.at_most):
        tried: dict[bytes, Tried] = {}
        for one in kept:
            fullest, busiest = _fullest(search, one.metric, sets)
            for link, value in _values(search, one.metric, busiest):
                if deadline.is_over:
                    return best.metric, trials
                metric = one.metric.copy()
                metric[link] = value
                trials += 1
                tried[metric.tobytes()] = Tried(metric, _score(search, metric, fullest))
        first = sorted(tried.values(), key=lambda one: one.score)[: 4 * _KEPT]
        exact = [Tried(one.metric, _score(search, one.metric, sets)) for one in first]
        kept = sorted(exact, key=lambda one: one.score)[:_KEPT]
        if not kept:
            break
        best = min(best, kept[0], key=lambda one: one.score)
    return best.metric, trials


def _score(search: MetricSearch, metric: FloatArray, sets: list[list[int]]) -> tuple[float, float]:
    used = IgpFailures(EcmpDag.of(search.topology, metric), search.volume).under(sets).utilisation
    return float(used.max()), float((used**_POWER).sum())


def _fullest(
    search: MetricSearch, metric: FloatArray, sets: list[list[int]]
) -> tuple[list[list[int]], int]:
    """The failures under which links are fullest, and the fullest link of all."""
    found = IgpFailures(EcmpDag.of(search.topology, metric), search.volume).under(sets)
    most = found.utilisation.max(1)
    worst = int(most.argmax())
    order = np.argsort(-most, kind="stable")[:_FIRST_SCENARIOS]
    return [sets[s] for s in order], int(found.busiest[worst, found.utilisation[worst].argmax()])


def _values(search: MetricSearch, metric: FloatArray, busiest: int) -> Iterator[tuple[int, float]]:
    """Links near a link, the nearest first, and metrics at which some traffic comes to them or
    leaves them.
    """
    topology = search.topology
    source, target = topology.link_source, topology.link_target
    hops = EcmpDag.of(topology, np.ones(len(source))).dags.distance
    distance = EcmpDag.of(topology, metric).dags.distance  # to each destination, from each node
    ends = source[busiest], target[busiest]
    near = np.min([hops[end][side] for end in ends for side in (source, target)], axis=0)
    for link in np.argsort(near, kind="stable").tolist():
        if near[link] > _NEAR:
            break
        if topology.capacity[link] <= 0:
            continue
        others = np.flatnonzero((source == source[link]) & (np.arange(len(source)) != link))
        ways = [
            distance[:, source[link]]
        ]  # the way that is taken, and the best one without the link
        if len(others):
            ways.append((metric[others] + distance[:, target[others]]).min(1))
        ties = np.concatenate([way - distance[:, target[link]] for way in ways])
        around = np.unique(ties[np.isfinite(ties)][:, None] + np.array([-1.0, 0.0, 1.0]))
        for value in around[
            (around >= 1) & (around <= search.most) & (around != metric[link])
        ].tolist():
            yield link, value
