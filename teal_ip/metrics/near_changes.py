"""Local search for few metric changes around the most utilised link (beam search).

A change matters if it makes a link as short as the current path, or one longer or shorter: these
metrics are tried for each link near the most utilised one, first under the worst scenarios, then,
the best of them, under all.  A beam of the best few is kept after each change, since two changes
may repair an overload that neither repairs alone.  Entry point: :func:`near_changes`.
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

# Hops from the ends of the most utilised link.
_NEAR = 1
# Number of failures, the worst ones, under which every change is tried.
_FIRST_SCENARIOS = 8
# Beam width: metrics that are kept after each change.
_KEPT = 4
# Power of utilisations in the second part of the score.
_POWER = 10


@dataclasses.dataclass(frozen=True, eq=False)
class Tried:
    """Evaluated metrics.

    Attributes:
        metric: (E,) metrics.
        score: largest utilisation, then the sum of the tenth powers of those of all scenarios.
    """

    metric: FloatArray
    score: tuple[float, float]


def near_changes(search: MetricSearch, deadline: Deadline) -> tuple[FloatArray, int]:
    """Return the best metrics (E,) with at most ``search.at_most`` changes, added one at a time,
    and the number of trials.
    """
    sets = [[], *(list(member) for member in search.failures)]
    best = Tried(search.start, _score(search, search.start, sets))
    beam = [best]
    trials = 0
    for _ in range(search.at_most):
        candidates: dict[bytes, Tried] = {}
        for member in beam:
            worst_failures, busiest = _worst_failures(search, member.metric, sets)
            for link, value in _candidate_values(search, member.metric, busiest):
                if deadline.is_over:
                    return best.metric, trials
                metric = member.metric.copy()
                metric[link] = value
                trials += 1
                candidates[metric.tobytes()] = Tried(metric, _score(search, metric, worst_failures))
        shortlist = sorted(candidates.values(), key=lambda member: member.score)[: 4 * _KEPT]
        evaluated = [
            Tried(member.metric, _score(search, member.metric, sets)) for member in shortlist
        ]
        beam = sorted(evaluated, key=lambda member: member.score)[:_KEPT]
        if not beam:
            break
        best = min(best, beam[0], key=lambda member: member.score)
    return best.metric, trials


def _score(search: MetricSearch, metric: FloatArray, sets: list[list[int]]) -> tuple[float, float]:
    utilisation = (
        IgpFailures(EcmpDag.of(search.topology, metric), search.volume).under(sets).utilisation
    )
    return float(utilisation.max()), float((utilisation**_POWER).sum())


def _worst_failures(
    search: MetricSearch, metric: FloatArray, sets: list[list[int]]
) -> tuple[list[list[int]], int]:
    """Return the worst failures, and the most utilised link of all."""
    results = IgpFailures(EcmpDag.of(search.topology, metric), search.volume).under(sets)
    largest = results.utilisation.max(1)
    worst = int(largest.argmax())
    order = np.argsort(-largest, kind="stable")[:_FIRST_SCENARIOS]
    return [sets[s] for s in order], int(
        results.busiest[worst, results.utilisation[worst].argmax()]
    )


def _candidate_values(
    search: MetricSearch, metric: FloatArray, busiest: int
) -> Iterator[tuple[int, float]]:
    """Yield links near a link, nearest first, with metrics at which they gain or lose traffic."""
    topology = search.topology
    source = topology.link_source
    target = topology.link_target
    hops = EcmpDag.of(topology, np.ones(len(source))).dags.distance
    # To each destination, from each node.
    distance = EcmpDag.of(topology, metric).dags.distance
    ends = (source[busiest], target[busiest])
    hops_away = np.min([hops[end][side] for end in ends for side in (source, target)], axis=0)
    for link in np.argsort(hops_away, kind="stable").tolist():
        if hops_away[link] > _NEAR:
            break
        if topology.capacity[link] <= 0:
            continue
        alternatives = np.flatnonzero((source == source[link]) & (np.arange(len(source)) != link))
        # The current path, and the best one without the link.
        path_lengths = [distance[:, source[link]]]
        if len(alternatives):
            path_lengths.append((metric[alternatives] + distance[:, target[alternatives]]).min(1))
        ties = np.concatenate([length - distance[:, target[link]] for length in path_lengths])
        candidates = np.unique(ties[np.isfinite(ties)][:, None] + np.array([-1.0, 0.0, 1.0]))
        for value in candidates[
            (candidates >= 1) & (candidates <= search.most) & (candidates != metric[link])
        ].tolist():
            yield link, value
