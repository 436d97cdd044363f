"""Local search for few metric changes around the most utilised link (beam search).

Candidates are links near the most utilised one, with metrics at which a path over the link is as
long as the current shortest path, or longer or shorter by one.  All candidates are evaluated under
the worst failures, the best of them under all.  The beam keeps the best few metrics after each
change, since two changes may remove an overload that neither removes alone.  Entry point:
:func:`near_changes`.
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

# Maximum number of hops between a candidate link and the most utilised one.
_MAX_HOPS_AWAY = 1
# Number of failures, the worst ones, under which every candidate is evaluated.
_NUM_WORST_FAILURES = 8
# Number of metrics that are kept after each change.
_BEAM_WIDTH = 4
# Exponent of utilisations in the second part of the score.
_POWER = 10


@dataclasses.dataclass(frozen=True, eq=False)
class EvaluatedMetrics:
    """Metrics with their score.

    Attributes:
        metric: (E,) metrics.
        score: largest link utilisation u, then the sum of u^10 over failures and matrices.
    """

    metric: FloatArray
    score: tuple[float, float]


def near_changes(search: MetricSearch, deadline: Deadline) -> tuple[FloatArray, int]:
    """Search for few metric changes by beam search, one more change in each round.

    Args:
        search: search problem; at most ``search.max_changes`` metrics change.
        deadline: time limit.

    Returns:
        best metrics (E,), and number of evaluated candidates.
    """
    # No failure, then each failure.
    failures = [[], *(list(member) for member in search.failures)]
    best = EvaluatedMetrics(search.start, _score(search, search.start, failures))
    beam = [best]
    num_trials = 0
    for _ in range(search.max_changes):
        candidates: dict[bytes, EvaluatedMetrics] = {}
        # Evaluate each change of each member of the beam under the worst failures.
        for member in beam:
            worst_failures, busiest_link = _worst_failures(search, member.metric, failures)
            for link, candidate_metric in _candidate_values(search, member.metric, busiest_link):
                if deadline.is_over:
                    return best.metric, num_trials
                metric = member.metric.copy()
                metric[link] = candidate_metric
                num_trials += 1
                # Metrics that several members of the beam lead to count once.
                candidates[metric.tobytes()] = EvaluatedMetrics(
                    metric, _score(search, metric, worst_failures)
                )
        # Evaluate the best candidates, four times the width of the beam, under all failures; keep
        # the best of them.
        shortlist = sorted(candidates.values(), key=lambda member: member.score)[: 4 * _BEAM_WIDTH]
        evaluated = [
            EvaluatedMetrics(member.metric, _score(search, member.metric, failures))
            for member in shortlist
        ]
        beam = sorted(evaluated, key=lambda member: member.score)[:_BEAM_WIDTH]
        if not beam:
            break
        best = min(best, beam[0], key=lambda member: member.score)
    return best.metric, num_trials


def _score(
    search: MetricSearch, metric: FloatArray, failures: list[list[int]]
) -> tuple[float, float]:
    """Return the score of metrics (E,): the largest link utilisation u, then the sum of u^10 over
    failures and matrices.
    """
    utilisation = (
        IgpFailures(EcmpDag.of(search.topology, metric), search.volume).under(failures).utilisation
    )
    return float(utilisation.max()), float((utilisation**_POWER).sum())


def _worst_failures(
    search: MetricSearch, metric: FloatArray, failures: list[list[int]]
) -> tuple[list[list[int]], int]:
    """Return the failures with the largest link utilisation, and the most utilised link of all.

    Args:
        search: search problem.
        metric: (E,) metrics.
        failures: link indices of each failure.

    Returns:
        link indices of the worst eight failures, the worst first; and index of the link.
    """
    results = IgpFailures(EcmpDag.of(search.topology, metric), search.volume).under(failures)
    utilisation_by_failure = results.utilisation.max(1)
    worst_failure = int(utilisation_by_failure.argmax())
    order = np.argsort(-utilisation_by_failure, kind="stable")[:_NUM_WORST_FAILURES]
    return [failures[s] for s in order], int(
        results.busiest[worst_failure, results.utilisation[worst_failure].argmax()]
    )


def _candidate_values(
    search: MetricSearch, metric: FloatArray, busiest_link: int
) -> Iterator[tuple[int, float]]:
    """Yield pairs (link, metric) that may move traffic, for links near the most utilised one.

    Args:
        search: search problem.
        metric: (E,) current metrics.
        busiest_link: index of the most utilised link.
    """
    topology = search.topology
    source = topology.link_source
    target = topology.link_target
    # (N, N) number of hops, then distance, from node u to destination t, at [t, u].
    hop_distance = EcmpDag.of(topology, np.ones(len(source))).dags.distance
    distance = EcmpDag.of(topology, metric).dags.distance
    # (E,) hops from the nearer end of each link to the nearer end of the busiest link.
    ends = (source[busiest_link], target[busiest_link])
    hops_away = np.min(
        [hop_distance[end][side] for end in ends for side in (source, target)], axis=0
    )
    for link in np.argsort(hops_away, kind="stable").tolist():
        if hops_away[link] > _MAX_HOPS_AWAY:
            break
        if topology.capacity[link] <= 0:
            continue
        alternatives = np.flatnonzero((source == source[link]) & (np.arange(len(source)) != link))
        # Lengths of the shortest path and of the best path over another link, to each destination.
        path_lengths = [distance[:, source[link]]]
        if len(alternatives):
            path_lengths.append((metric[alternatives] + distance[:, target[alternatives]]).min(1))
        # Metrics with which a path over the link is equally long, and one more or less.
        tie_metrics = np.concatenate(
            [length - distance[:, target[link]] for length in path_lengths]
        )
        candidates = np.unique(
            tie_metrics[np.isfinite(tie_metrics)][:, None] + np.array([-1.0, 0.0, 1.0])
        )
        for value in candidates[
            (candidates >= 1) & (candidates <= search.max_metric) & (candidates != metric[link])
        ].tolist():
            yield link, value
