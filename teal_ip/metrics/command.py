"""From settings to better IGP metrics: `teal metrics`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from teal.app.command import Notify, Outcome
from teal.app.settings import seconds
from teal.app.table import Column, Table
from teal.app.text import percent
from teal.formats.groups import load_groups
from teal.network import Topology, TrafficMatrices, all_pairs
from teal.network.ecmp import EcmpDag, check_metric
from teal.network.failures import failures_of
from teal.pathops.segment_passes import volumes
from teal.runtime.arrays import FloatArray, IntArray
from teal.runtime.interruptible import Deadline
from teal.runtime.storage import check_out_file, json_value
from teal_ip.metrics.changes import SUFFIXES, MetricChange, read_changes, write_changes
from teal_ip.metrics.near_changes import near_changes
from teal_ip.metrics.search import (
    MetricResult,
    MetricSearch,
    improve_metrics,
    largest_utilisation,
    useful_changes,
)
from teal_ip.metrics.settings import MetricsConfig, MetricsOptions
from teal_ip.routing.igp import load_routed
from teal_ip.routing.igp_failures import IgpFailures
from teal_ip.routing.simulate import chosen_rows, worst_rows
from teal_ip.segments.problem import SegmentProblem
from teal_ip.segments.search import solve
from teal_ip.segments.static_lists import fewest_policies

_USUAL_MOST = 100  # largest metric
_PRICE_RANGE = 50.0  # largest metric of the start from prices
# For the prices, and for the bounds; and their share of the deadline.
_PRICE_SECONDS = 2.0
_PRICE_TIME = 0.1
_REHEARSAL_S = 0.02  # for a search on three nodes, each of whose steps is done once
_ORDER_SECONDS = 2.0  # for the order of the changes after Ctrl-C
_POLICY_GAP = 0.01  # over the optimum with two segments, at which policies are counted
# For the policies of each metrics, and for both of the deadline.
_POLICY_SECONDS = 20.0
_POLICY_TIME = 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class MetricsReport:
    """The metrics that were found.

    Attributes:
        topology: the network, with the new metrics.
        before: largest utilisation with the metrics in force.
        utilisation: with the new ones.
        changes: in the order in which to make them.
        on_the_way: largest utilisation during the changes.
        optimum: bound on the largest utilisation over any two-segment lists with the metrics in
            force, for the matrix with most demand; no metrics are proven to reach it.
        policies_before: demands that need a list for 1% over the optimum now; -1 unless asked for.
        policies: likewise with the new ones.
        moves: number of moves that were tried.
    """

    topology: Topology
    before: float
    utilisation: float
    changes: list[MetricChange]
    on_the_way: float
    optimum: float
    policies_before: int
    policies: int
    moves: int

    def to_json(self) -> dict[str, Any]:
        """All figures and changes."""
        hidden = ("topology", "changes")
        figures = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in hidden
        }
        return dict(json_value({**figures, "changes": self.changes}))

    def describe(self) -> str:
        """The report in a few lines."""
        lines = [
            f"largest utilisation {100 * self.before:.2f}% -> {100 * self.utilisation:.2f}% "
            f"({self.moves:,} moves tried); segment lists could reach {100 * self.optimum:.2f}% at "
            "best, "
            "under the same failures",
            (
                f"{len(self.changes)} links change; at most {100 * self.on_the_way:.2f}% on the "
                "way, "
                "one by one"
            ),
        ]
        if self.policies >= 0:
            lines.append(
                "demands that need a segment list to come within 1% of the optimum: "
                f"{self.policies_before} with the "
                f"metrics in force, {self.policies} with the new ones"
            )
        return "\n".join(lines)


def change_table(report: MetricsReport) -> Table:
    """The changes, in the order in which they are made."""
    columns = (
        Column("link", "link"),
        Column("metric now", "before", str),
        Column("metric to come", "after", str),
        Column("largest utilisation after this change", "utilisation", percent),
    )
    return Table("metrics to change, in this order", columns, report.changes)


def improve(
    dag: EcmpDag,
    traffic: TrafficMatrices,
    config: MetricsOptions,
    notify: Callable[[str], None] = lambda _: None,
) -> MetricsReport:
    """Search, and order the changes; Ctrl-C ends the search with the best so far.

    Args:
        dag: shortest paths with the metrics in force.
        traffic: the matrices.
        config: the options.
        notify: called with the progress.

    Raises:
        InputError: a fault in what the user gave.
    """
    topology, rows = dag.topology, chosen_rows(config.index, config.limit, traffic)
    demand = traffic.read(rows)
    volume = volumes(traffic.pairs, demand, topology.num_nodes)
    groups = {} if config.groups is None else load_groups(config.groups, topology)
    kinds = () if config.failures == "none" else (config.failures,)
    failing = list(failures_of(kinds, topology, groups))
    failures = [one.links for one in failing]
    start = np.where(topology.capacity > 0, dag.links.metric, 1.0)
    most = config.most or max(_USUAL_MOST, int(start.max()))
    search = MetricSearch(
        topology, volume, failures, most, start, config.at_most or topology.num_links
    )
    busiest = demand[int(demand.sum(1).argmax())]
    _rehearse(with_policies=config.with_policies)
    whole = Deadline.after(seconds(config.deadline, "--deadline"))
    end = whole.share(1 - _POLICY_TIME) if config.with_policies else whole
    prices, optimum = _prices(dag, traffic.pairs, busiest, end.share(_PRICE_TIME))
    before = _utilisations(search, start)
    of_failures = _bound_under_failures(
        dag, traffic.pairs, demand, failures, before, end.share(_PRICE_TIME)
    )
    optimum = max(optimum, of_failures)
    notify(
        f"segment lists could reach {100 * optimum:.2f}% at best; searching for {config.deadline}"
    )
    earlier = None
    if config.start is not None:
        earlier = start.copy()
        for link, value in read_changes(config.start, topology.link_names()).items():
            earlier[link] = value
        check_metric(topology, earlier)
        reached = largest_utilisation(search, earlier)
        notify(f"{config.start}: {100 * reached:.2f}%, from which the search goes on")
    found = _searched(search, end.share(_SEARCH_TIME), prices, config.seed, earlier, before)
    order, after = _ordered(search, found, end)
    metric = start.copy()
    metric[order] = found.metric[order]
    before_policies = policies = -1
    if config.with_policies:
        before_policies = _policies(dag, traffic.pairs, busiest, whole.share(0.5))
        policies = _policies(EcmpDag.of(topology, metric), traffic.pairs, busiest, whole)
        if policies > before_policies:
            notify(
                f"the new metrics need {policies} policies, those in force {before_policies}: "
                "nothing changes"
            )
            metric, order, after, policies = start, [], [], before_policies
    steps = [found.before, *after]
    changes = [
        MetricChange(
            topology.link_names()[link],
            topology.node_names[topology.link_source[link]],
            topology.node_names[topology.link_target[link]],
            int(start[link]),
            int(metric[link]),
            most_used,
        )
        for link, most_used in zip(order, after, strict=True)
    ]
    changed = dataclasses.replace(topology, metric=metric.astype(np.int64))
    return MetricsReport(
        changed,
        found.before,
        steps[-1],
        changes,
        float(np.nanmax(steps)),
        optimum,
        before_policies,
        policies,
        found.moves,
    )


def _utilisations(search: MetricSearch, metric: FloatArray) -> FloatArray:
    """(M, 1 + F) largest utilisation of each matrix, without failure and under each."""
    sets = [[], *(list(one) for one in search.failures)]
    return IgpFailures(EcmpDag.of(search.topology, metric), search.volume).under(sets).utilisation.T


_SEARCH_TIME = 0.7  # share of the time for the search; the rest is for the order of the changes
_FEW = 4  # matrices that are searched over at a time


def _searched(
    search: MetricSearch,
    end: Deadline,
    prices: FloatArray,
    seed: int,
    earlier: FloatArray | None,
    used: FloatArray,
) -> MetricResult:
    """The best metrics of all matrices, by a search over the fullest ones, to which those are added
    that it missed.

    Args:
        search: program of all matrices.
        end: deadline.
        prices: metrics to start from where all may change.
        seed: seed of all draws.
        earlier: metrics of an earlier search.
        used: (M, 1 + F) largest utilisation with the metrics in force.
    """
    rows = worst_rows(used, _FEW)
    best, moves = search.start if earlier is None else earlier, 0
    reached = largest_utilisation(search, best)
    while True:
        part = dataclasses.replace(search, volume=search.volume[rows])
        first = best
        if search.at_most < search.topology.num_links:
            near, trials = near_changes(part, Deadline(time.perf_counter() + end.left / 2, end))
            first = min(near, best, key=lambda one: largest_utilisation(part, one))
            moves += trials
        found = improve_metrics(part, end.left / 2, [prices], seed, best_so_far=first)
        moves += found.moves
        by_matrix = _utilisations(search, found.metric).max(1)
        if by_matrix.max() < reached:
            best, reached = found.metric, float(by_matrix.max())
        missed = np.setdiff1d(np.flatnonzero(by_matrix > found.utilisation * (1 + 1e-9)), rows)
        if not len(missed) or end.is_over or found.was_interrupted:
            break
        rows = np.concatenate([rows, missed[np.argsort(-by_matrix[missed])[:_FEW]]])
    return MetricResult(best, reached, float(used.max()), moves, found.was_interrupted)


def _ordered(
    search: MetricSearch, found: MetricResult, end: Deadline
) -> tuple[list[int], list[float]]:
    """The useful changes of a search; Ctrl-C ends their order as the deadline does."""
    end = Deadline.after(_ORDER_SECONDS) if found.was_interrupted else end
    try:
        return useful_changes(search, found.metric, end)
    except KeyboardInterrupt:
        return useful_changes(search, found.metric, Deadline.after(0.0))


def _prices(
    dag: EcmpDag, pairs: IntArray, demand: FloatArray, end: Deadline
) -> tuple[FloatArray, float]:
    """(E,) metrics in proportion to the prices of two-segment routing, and its bound."""
    problem = SegmentProblem.of(dag, pairs, demand, balances=True)
    result = solve(problem, 0.01, Deadline(time.perf_counter() + _PRICE_SECONDS, end))
    live = problem.capacity > 0
    uniform = (
        float((problem.capacity * result.prices).sum())
        * problem.inverse_capacity
        / max(1, int(live.sum()))
    )
    mixed = result.prices + uniform
    return 1 + (_PRICE_RANGE - 1) * mixed / max(float(mixed.max()), 1e-300), result.bound


_BOUNDED = 10  # failures, the fullest ones, whose bounds are computed


def _bound_under_failures(
    dag: EcmpDag,
    pairs: IntArray,
    demand: FloatArray,
    failures: Sequence[Sequence[int]],
    used: FloatArray,
    end: Deadline,
) -> float:
    """The largest bound over any two-segment lists of a failure under its fullest matrix.

    Args:
        dag: shortest paths with the metrics in force.
        pairs: (D, 2) source and target.
        demand: (M, D) Gbit/s.
        failures: links of each of F failures.
        used: (M, 1 + F) largest utilisation, without failure and under each.
        end: deadline after which no further failure is looked at.
    """
    largest = 0.0
    for failure in (np.argsort(-used[:, 1:].max(0), kind="stable")[:_BOUNDED]).tolist():
        of_failure = used[:, 1 + failure]
        if (
            end.is_over or of_failure.max() <= 0
        ):  # a failure that cuts off all demand bounds nothing
            break
        matrix = demand[int(of_failure.argmax())]
        problem = SegmentProblem.of(
            dag.without(list(failures[failure])), pairs, matrix, balances=True
        )
        largest = max(
            largest,
            solve(
                problem, 0.01, Deadline(time.perf_counter() + _PRICE_SECONDS / _BOUNDED, end)
            ).bound,
        )
    return largest


def _rehearse(*, with_policies: bool) -> None:
    """Do each step on three nodes before the clock starts: no deadline counts compilation."""
    ring = np.array([0, 1, 2], dtype=np.int32)
    ones, places = np.ones(3), np.full((3, 2), np.nan)
    topology = Topology("rehearsal", ("a", "b", "c"), ring, np.roll(ring, -1), ones, ones, places)
    dag, pairs, demand = EcmpDag.of(topology, ones), all_pairs(topology), np.ones(6)
    unlimited = Deadline()
    _prices(dag, pairs, demand, unlimited)
    search = MetricSearch(topology, volumes(pairs, demand[None], 3), (), 2, ones, 3)
    for _ in range(2):  # of the first time all is spent on what fills the state of a walk
        found = improve_metrics(search, _REHEARSAL_S)
    near_changes(dataclasses.replace(search, at_most=1), Deadline.after(_REHEARSAL_S))
    useful_changes(search, np.where(np.arange(3) == 0, 2.0, found.metric), unlimited)
    if with_policies:
        _policies(dag, pairs, demand, unlimited)


def _policies(dag: EcmpDag, pairs: IntArray, demand: FloatArray, end: Deadline) -> int:
    problem = SegmentProblem.of(dag, pairs, demand, balances=True)
    result = solve(
        problem, _POLICY_GAP / 10, Deadline(time.perf_counter() + _POLICY_SECONDS, end.share(0.5))
    )
    allowed = result.value * (1 + _POLICY_GAP)
    return fewest_policies(
        problem, result, allowed, Deadline(time.perf_counter() + _POLICY_SECONDS, end)
    ).policies


def run_metrics(config: MetricsConfig, notify: Callable[[str], None]) -> MetricsReport:
    """Search and, if there is an output file, write the changes.

    Raises:
        InputError: a fault in the settings, or an output file that must not be replaced.
    """
    if config.out is not None:
        check_out_file(config.out, SUFFIXES, overwrite=config.overwrite)
    dag, traffic = load_routed(config, notify)
    report = improve(dag, traffic, config, notify)
    if config.out is not None:
        write_changes(config.out, report.changes, report.to_json())
        notify(f"{config.out}: {len(report.changes)} changes")
    return report


def metrics_outcome(config: MetricsConfig, notify: Notify) -> Outcome:
    """`teal metrics`."""
    report = run_metrics(config, notify)
    tables = [change_table(report)] if report.changes else []
    return Outcome(text=report.describe(), tables=tables, data=report.to_json())
