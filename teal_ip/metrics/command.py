"""``teal metrics``: optimise IGP metrics from settings, order the changes, and report them.

Entry points: :func:`improve`, :func:`run_metrics`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
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
from teal_ip.routing.simulate import selected_matrix_indices, worst_matrix_indices
from teal_ip.segments.problem import SegmentProblem
from teal_ip.segments.search import solve
from teal_ip.segments.static_lists import fewest_policies

# Upper bound on metrics if the options give none and no current metric is larger.
_DEFAULT_MAX_METRIC = 100
# Largest metric of the starting point from dual prices.
_MAX_PRICE_METRIC = 50.0
# Time limit of the dual prices, and of the bounds under failures: seconds, and share of the
# deadline.
_PRICE_LIMIT_S = 2.0
_PRICE_TIME_SHARE = 0.1
# Length of the warm-up search on three nodes, seconds.
_WARM_UP_S = 0.02
# Time limit for ordering the changes after Ctrl-C, seconds.
_ORDER_AFTER_INTERRUPT_S = 2.0
# Segment lists are counted that reach the two-segment optimum within this relative gap.
_POLICY_GAP = 0.01
# Time limit for counting segment lists: seconds for one set of metrics, share of the deadline for
# both.
_POLICY_LIMIT_S = 20.0
_POLICY_TIME_SHARE = 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class MetricsReport:
    """Optimised metrics.

    Attributes:
        topology: the network, with the new metrics.
        before: largest link utilisation with the current metrics.
        utilisation: largest utilisation with the new metrics.
        changes: metric changes, in the order in which they can be applied one by one.
        on_the_way: largest utilisation while the changes are applied.
        optimum: lower bound on the largest utilisation over any two-segment lists with the current
            metrics, for the matrix with most demand without failure, and for the worst matrices
            under failures; no metrics are proven to reach it.
        policies_before: number of demands that need a segment list for a utilisation within 1% of
            the optimum, with the current metrics; -1 unless requested.
        policies: the same number with the new metrics; -1 unless requested.
        moves: number of moves of the search.
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
        """Return utilisations, counts and changes as JSON values."""
        other_fields = ("topology", "changes")
        metrics = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in other_fields
        }
        return dict(json_value({**metrics, "changes": self.changes}))

    def describe(self) -> str:
        """Return a summary: utilisation before and after, number of changes, and of segment
        lists.
        """
        lines = [
            f"largest utilisation {100 * self.before:.2f}% -> {100 * self.utilisation:.2f}% "
            f"({self.moves:,} moves tried); lower bound with segment lists, under the same "
            f"failures: {100 * self.optimum:.2f}%",
            (
                f"{len(self.changes)} metrics change, one by one; largest utilisation meanwhile "
                f"{100 * self.on_the_way:.2f}%"
            ),
        ]
        if self.policies >= 0:
            lines.append(
                "demands that need a segment list for a utilisation within 1% of the optimum: "
                f"{self.policies_before} with the current metrics, "
                f"{self.policies} with the new ones"
            )
        return "\n".join(lines)


def change_table(report: MetricsReport) -> Table:
    """Return the table of metric changes, in the order in which they can be applied."""
    columns = (
        Column("link", "link"),
        Column("current metric", "before", str),
        Column("new metric", "after", str),
        Column("largest utilisation after this change", "utilisation", percent),
    )
    return Table("metric changes, in order", columns, report.changes)


def improve(
    dag: EcmpDag,
    traffic: TrafficMatrices,
    config: MetricsOptions,
    notify: Callable[[str], None] = lambda _: None,
) -> MetricsReport:
    """Search for IGP metrics with a small largest utilisation, and order the changes.

    Ctrl-C ends the search with the incumbent.

    Args:
        dag: shortest paths with the current metrics.
        traffic: the matrices.
        config: the options.
        notify: called with progress messages.

    Raises:
        InputError: invalid input.
    """
    # Read the matrices, and define the search problem.
    topology = dag.topology
    matrix_indices = selected_matrix_indices(config.index, config.limit, traffic)
    demand = traffic.read(matrix_indices)
    search = _search_problem(dag, traffic.pairs, demand, config)
    current_metric = search.start
    largest_demand = demand[int(demand.sum(1).argmax())]
    _warm_up(with_policies=config.with_policies)
    # Lower bound over segment lists, without failure and then under failures.  The dual prices of
    # the former give starting metrics (E,) of the search.
    full_deadline = Deadline.after(seconds(config.deadline, "--deadline"))
    search_deadline = (
        full_deadline.share(1 - _POLICY_TIME_SHARE) if config.with_policies else full_deadline
    )
    price_metric, lower_bound = _price_metrics(
        dag, traffic.pairs, largest_demand, search_deadline.share(_PRICE_TIME_SHARE)
    )
    current_utilisation = _utilisation_by_failure(search, current_metric)
    failure_bound = _bound_under_failures(
        dag,
        traffic.pairs,
        demand,
        search.failures,
        current_utilisation,
        search_deadline.share(_PRICE_TIME_SHARE),
    )
    lower_bound = max(lower_bound, failure_bound)
    notify(
        f"lower bound on the largest utilisation with segment lists: {100 * lower_bound:.2f}%; "
        f"searching for {config.deadline}"
    )
    # Search, and order the changes.
    earlier_metric = (
        None if config.start is None else _earlier_metrics(search, config.start, notify)
    )
    result = _search_all_matrices(
        search,
        search_deadline.share(_SEARCH_TIME_SHARE),
        price_metric,
        config.seed,
        earlier_metric,
        current_utilisation,
    )
    changed_links, utilisation_after = _order_changes(search, result, search_deadline)
    new_metric = current_metric.copy()
    new_metric[changed_links] = result.metric[changed_links]
    # Count segment lists with the current and the new metrics; keep the metrics that need fewer.
    num_policies_before = num_policies = -1
    if config.with_policies:
        num_policies_before, num_policies = _count_policies_before_after(
            dag, new_metric, traffic.pairs, largest_demand, full_deadline
        )
        if num_policies > num_policies_before:
            notify(
                f"the new metrics need {num_policies} segment lists, the current ones "
                f"{num_policies_before}: the current metrics are kept"
            )
            new_metric = current_metric
            changed_links = []
            utilisation_after = []
            num_policies = num_policies_before
    # Report, with the largest utilisation before the changes and after each of them (NaN where the
    # time limit prevented its computation).
    utilisations = [result.before, *utilisation_after]
    return MetricsReport(
        dataclasses.replace(topology, metric=new_metric.astype(np.int64)),
        result.before,
        utilisations[-1],
        _metric_changes(topology, current_metric, new_metric, changed_links, utilisation_after),
        float(np.nanmax(utilisations)),
        lower_bound,
        num_policies_before,
        num_policies,
        result.num_moves,
    )


def _search_problem(
    dag: EcmpDag, pairs: IntArray, demand: FloatArray, config: MetricsOptions
) -> MetricSearch:
    """Return the search problem with the failures and limits of the options.

    Args:
        dag: shortest paths with the current metrics.
        pairs: (D, 2) source and target of each demand.
        demand: (M, D) Gbit/s.
        config: the options.
    """
    topology = dag.topology
    volume = volumes(pairs, demand, topology.num_nodes)
    groups = {} if config.groups is None else load_groups(config.groups, topology)
    failure_kinds = () if config.failures == "none" else (config.failures,)
    failures = [failure.links for failure in failures_of(failure_kinds, topology, groups)]
    current_metric = np.where(topology.capacity > 0, dag.links.metric, 1.0)
    max_metric = config.max_metric or max(_DEFAULT_MAX_METRIC, int(current_metric.max()))
    return MetricSearch(
        topology,
        volume,
        failures,
        max_metric,
        current_metric,
        config.max_changes or topology.num_links,
    )


def _earlier_metrics(search: MetricSearch, path: Path, notify: Callable[[str], None]) -> FloatArray:
    """Return the metrics (E,) of an earlier search, from its file of changes.

    Args:
        search: search problem with the current metrics.
        path: file of changes from the current metrics.
        notify: called with a note on the utilisation of these metrics.

    Raises:
        InputError: an invalid file or metric.
    """
    topology = search.topology
    metric = search.start.copy()
    for link, value in read_changes(path, topology.link_names()).items():
        metric[link] = value
    check_metric(topology, metric)
    utilisation = largest_utilisation(search, metric)
    notify(f"{path}: largest utilisation {100 * utilisation:.2f}%; the search continues from there")
    return metric


def _metric_changes(
    topology: Topology,
    current_metric: FloatArray,
    new_metric: FloatArray,
    changed_links: Sequence[int],
    utilisations: Sequence[float],
) -> list[MetricChange]:
    """Return the metric changes in order.

    Args:
        topology: the network.
        current_metric: (E,) current metrics.
        new_metric: (E,) new metrics.
        changed_links: links whose metrics change.
        utilisations: largest utilisation after each change.
    """
    return [
        MetricChange(
            topology.link_names()[link],
            topology.node_names[topology.link_source[link]],
            topology.node_names[topology.link_target[link]],
            int(current_metric[link]),
            int(new_metric[link]),
            largest,
        )
        for link, largest in zip(changed_links, utilisations, strict=True)
    ]


def _utilisation_by_failure(search: MetricSearch, metric: FloatArray) -> FloatArray:
    """Return the largest link utilisation of each of M matrices under metrics (E,), as an array
    (M, 1 + F): without failure in column 0, then under each of F failures.
    """
    failures = [[], *(list(links) for links in search.failures)]
    loads = IgpFailures(EcmpDag.of(search.topology, metric), search.volume)
    return loads.under(failures).utilisation.T


# Share of the remaining time for the search; the rest is for ordering the changes.
_SEARCH_TIME_SHARE = 0.7
# Number of the worst matrices that are added to the search at a time.
_NUM_WORST_MATRICES = 4


def _search_all_matrices(
    search: MetricSearch,
    deadline: Deadline,
    price_metric: FloatArray,
    seed: int,
    earlier_metric: FloatArray | None,
    utilisation: FloatArray,
) -> MetricResult:
    """Search for metrics that minimise the largest utilisation over all matrices.

    Constraint generation: search over the worst matrices only, evaluate the result for all, add the
    matrices that exceed it, and repeat.

    Args:
        search: search problem with all matrices.
        deadline: time limit.
        price_metric: (E,) starting metrics from dual prices, used if all metrics may change.
        seed: random seed.
        earlier_metric: (E,) metrics of an earlier search; None for none.
        utilisation: (M, 1 + F) largest link utilisation with the current metrics, without failure
            and under each of F failures.
    """
    # Start with the worst matrices under the worst failures, and with the metrics of an earlier
    # search or the current ones.
    matrices = worst_matrix_indices(utilisation, _NUM_WORST_MATRICES)
    best_metric = search.start if earlier_metric is None else earlier_metric
    num_moves = 0
    best_utilisation = largest_utilisation(search, best_metric)
    while True:
        # Start from the best metrics so far.  If the number of changes is limited, also try beam
        # search around the most utilised link, for half of the remaining time.
        partial_search = dataclasses.replace(search, volume=search.volume[matrices])
        start_metric = best_metric
        if search.max_changes < search.topology.num_links:
            beam_metric, num_trials = near_changes(
                partial_search, Deadline(time.perf_counter() + deadline.remaining_s / 2, deadline)
            )
            start_metric = min(
                beam_metric,
                best_metric,
                key=lambda metric: largest_utilisation(partial_search, metric),
            )
            num_moves += num_trials
        # Simulated annealing over these matrices, for half of the remaining time.
        result = improve_metrics(
            partial_search, deadline.remaining_s / 2, [price_metric], seed, best_so_far=start_metric
        )
        num_moves += result.num_moves
        # Evaluate the result for all matrices: (M,) largest utilisation of each.
        matrix_utilisation = _utilisation_by_failure(search, result.metric).max(1)
        if matrix_utilisation.max() < best_utilisation:
            best_metric = result.metric
            best_utilisation = float(matrix_utilisation.max())
        # Add the worst of the other matrices whose utilisation exceeds the optimised one; 1e-9
        # allows for rounding errors.
        exceeding = np.setdiff1d(
            np.flatnonzero(matrix_utilisation > result.utilisation * (1 + 1e-9)), matrices
        )
        if not len(exceeding) or deadline.is_over or result.was_interrupted:
            break
        matrices = np.concatenate(
            [matrices, exceeding[np.argsort(-matrix_utilisation[exceeding])[:_NUM_WORST_MATRICES]]]
        )
    return MetricResult(
        best_metric, best_utilisation, float(utilisation.max()), num_moves, result.was_interrupted
    )


def _order_changes(
    search: MetricSearch, result: MetricResult, deadline: Deadline
) -> tuple[list[int], list[float]]:
    """Order the metric changes of a search, without those that do not reduce the utilisation.

    Ctrl-C ends the ordering like the deadline.  If Ctrl-C already ended the search, two seconds
    remain.

    Args:
        search: search problem.
        result: best metrics of the search.
        deadline: time limit of the ordering.

    Returns:
        links in order of their changes, and largest link utilisation after each change.
    """
    deadline = Deadline.after(_ORDER_AFTER_INTERRUPT_S) if result.was_interrupted else deadline
    try:
        return useful_changes(search, result.metric, deadline)
    except KeyboardInterrupt:
        return useful_changes(search, result.metric, Deadline.after(0.0))


def _price_metrics(
    dag: EcmpDag, pairs: IntArray, demand: FloatArray, deadline: Deadline
) -> tuple[FloatArray, float]:
    """Return starting metrics from the dual prices of two-segment routing, and its dual bound.

    The metric of link e is 1 + 49 q_e / max(q).  Here q_e is the dual price of the link plus a term
    in proportion to 1 / capacity, so that links with dual price 0 get different metrics, too.

    Args:
        dag: shortest paths with the current metrics.
        pairs: (D, 2) source and target of each demand.
        demand: (D,) Gbit/s.
        deadline: time limit.

    Returns:
        metrics (E,), and lower bound on the largest utilisation over two-segment lists.
    """
    # Solve to a relative gap of 1%.
    problem = SegmentProblem.of(dag, pairs, demand, minimises_utilisation=True)
    result = solve(problem, 0.01, Deadline(time.perf_counter() + _PRICE_LIMIT_S, deadline))
    live = problem.capacity > 0
    # Term in proportion to 1 / capacity; its sum of price times capacity is that of the dual
    # prices.
    uniform_price = (
        float((problem.capacity * result.prices).sum())
        * problem.inverse_capacity
        / max(1, int(live.sum()))
    )
    # The lower limit of 1e-300 avoids a division by 0 if all prices are 0.
    mixed_price = result.prices + uniform_price
    return 1 + (_MAX_PRICE_METRIC - 1) * mixed_price / max(
        float(mixed_price.max()), 1e-300
    ), result.bound


# Number of failures, the worst ones, for which a lower bound is computed.
_NUM_BOUNDED_FAILURES = 10


def _bound_under_failures(
    dag: EcmpDag,
    pairs: IntArray,
    demand: FloatArray,
    failures: Sequence[Sequence[int]],
    utilisation: FloatArray,
    deadline: Deadline,
) -> float:
    """Return a lower bound on the largest utilisation under failures, over any two-segment lists.

    The bound is the largest of the worst failures' bounds, each under its worst matrix.

    Args:
        dag: shortest paths with the current metrics.
        pairs: (D, 2) source and target of each demand.
        demand: (M, D) Gbit/s.
        failures: links of each of F failures.
        utilisation: (M, 1 + F) largest link utilisation, without failure and under each.
        deadline: time limit, after which no further failure is evaluated.
    """
    largest_bound = 0.0
    for failure_index in (
        np.argsort(-utilisation[:, 1:].max(0), kind="stable")[:_NUM_BOUNDED_FAILURES]
    ).tolist():
        utilisation_by_matrix = utilisation[:, 1 + failure_index]
        # Failures come in order of utilisation: those without any load have no bound.
        if deadline.is_over or utilisation_by_matrix.max() <= 0:
            break
        worst_demand = demand[int(utilisation_by_matrix.argmax())]
        # Dual bound of the two-segment optimum without the failed links, to a relative gap of 1%.
        problem = SegmentProblem.of(
            dag.without(list(failures[failure_index])),
            pairs,
            worst_demand,
            minimises_utilisation=True,
        )
        largest_bound = max(
            largest_bound,
            solve(
                problem,
                0.01,
                Deadline(time.perf_counter() + _PRICE_LIMIT_S / _NUM_BOUNDED_FAILURES, deadline),
            ).bound,
        )
    return largest_bound


def _warm_up(*, with_policies: bool) -> None:
    """Run each step once on a ring of three nodes, so that the kernels are compiled before the
    time limits start.
    """
    # Small problem: a ring with all demands of 1 Gbit/s.
    ring = np.array([0, 1, 2], dtype=np.int32)
    ones = np.ones(3)
    coordinates = np.full((3, 2), np.nan)
    topology = Topology(
        "warm-up", ("a", "b", "c"), ring, np.roll(ring, -1), ones, ones, coordinates
    )
    dag = EcmpDag.of(topology, ones)
    pairs = all_pairs(topology)
    demand = np.ones(6)
    unlimited = Deadline()
    _price_metrics(dag, pairs, demand, unlimited)
    search = MetricSearch(topology, volumes(pairs, demand[None], 3), (), 2, ones, 3)
    # Two runs, since the first one may spend all its time on the initial state.
    for _ in range(2):
        result = improve_metrics(search, _WARM_UP_S)
    near_changes(dataclasses.replace(search, max_changes=1), Deadline.after(_WARM_UP_S))
    useful_changes(search, np.where(np.arange(3) == 0, 2.0, result.metric), unlimited)
    if with_policies:
        _count_policies(dag, pairs, demand, unlimited)


def _count_policies_before_after(
    dag: EcmpDag, metric: FloatArray, pairs: IntArray, demand: FloatArray, deadline: Deadline
) -> tuple[int, int]:
    """Return the numbers of demands that need a segment list, with the current and with new
    metrics.

    Args:
        dag: shortest paths with the current metrics.
        metric: (E,) new metrics.
        pairs: (D, 2) source and target of each demand.
        demand: (D,) Gbit/s.
        deadline: time limit; the first count may use half of the time.
    """
    num_before = _count_policies(dag, pairs, demand, deadline.share(0.5))
    return num_before, _count_policies(EcmpDag.of(dag.topology, metric), pairs, demand, deadline)


def _count_policies(dag: EcmpDag, pairs: IntArray, demand: FloatArray, deadline: Deadline) -> int:
    """Return the number of demands that need a segment list for a largest utilisation within 1% of
    the optimum with two segments.

    Args:
        dag: shortest paths.
        pairs: (D, 2) source and target of each demand.
        demand: (D,) Gbit/s.
        deadline: time limit.
    """
    # Optimum with two segments, to a tenth of the allowed gap.
    problem = SegmentProblem.of(dag, pairs, demand, minimises_utilisation=True)
    result = solve(
        problem,
        _POLICY_GAP / 10,
        Deadline(time.perf_counter() + _POLICY_LIMIT_S, deadline.share(0.5)),
    )
    allowed_utilisation = result.value * (1 + _POLICY_GAP)
    return fewest_policies(
        problem,
        result,
        allowed_utilisation,
        Deadline(time.perf_counter() + _POLICY_LIMIT_S, deadline),
    ).policies


def run_metrics(config: MetricsConfig, notify: Callable[[str], None]) -> MetricsReport:
    """Optimise the metrics from settings; write the changes to the output file, if any.

    Raises:
        InputError: invalid settings, or an existing output file without --overwrite.
    """
    if config.out is not None:
        check_out_file(config.out, SUFFIXES, overwrite=config.overwrite)
    dag, traffic = load_routed(config, notify)
    report = improve(dag, traffic, config, notify)
    if config.out is not None:
        write_changes(config.out, report.changes, report.to_json())
        notify(f"{config.out}: {len(report.changes)} metric changes written")
    return report


def metrics_outcome(config: MetricsConfig, notify: Notify) -> Outcome:
    """Run ``teal metrics``; return its summary, the table of metric changes, and the JSON data."""
    report = run_metrics(config, notify)
    tables = [change_table(report)] if report.changes else []
    return Outcome(text=report.describe(), tables=tables, data=report.to_json())
