"""One matrix over segment lists under any objective: `teal solve --routing segments` beyond its compiled two cases."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

import numpy as np
import torch

from teal.config import SolveConfig
from teal.evaluation.instance import given_weights
from teal.evaluation.segments import SegmentReport
from teal.network import CandidateLists, Topology, TrafficMatrices
from teal.network.ecmp import EcmpDag
from teal.objectives import Objective
from teal.pathops.segment_passes import SegmentPasses
from teal.problem import Problem, assess
from teal.problem.bounds import gap as certified_gap
from teal.runtime.interruptible import Deadline
from teal.solvers.segments.over_lists import (
    OverLists,
    ecmp_allocation,
    free_bound,
    searched_free_bound,
    solve_over_lists,
)

_REPORT_EVERY_S = 2.0  # seconds between two progress messages
_LOOSE_GAP = 0.02  # to the bound over any paths, above which that bound is searched for
_FREE_SEARCH_S = 10.0  # seconds of that search
_MOST_SEARCHED = 100_000  # demands, up to which that search says something in this time


def is_compiled_case(config: SolveConfig) -> bool:
    """Whether the compiled search for two segments (:mod:`teal.solvers.segments.search`) solves this."""
    is_known = config.objective in ("total_flow", "max_link_utilisation")
    return is_known and config.max_segments == 2 and not config.adjacency


def solve_over(
    config: SolveConfig, dag: EcmpDag, traffic: TrafficMatrices, deadline: Deadline, notify: Callable[[str], None]
) -> SegmentReport:
    """The result for the matrix of the settings.

    Args:
        config: the settings.
        dag: shortest paths of the IGP.
        traffic: the matrices.
        deadline: after which to stop with the best so far.
        notify: called with the progress.
    """
    begin = last = time.perf_counter()
    topology = dag.topology
    lists = CandidateLists.straight(dag, traffic.pairs)
    problem = Problem.create(
        topology, lists, Objective(config.objective, config.epsilon), traffic.read([config.index]),
        weight=given_weights(config, topology, traffic, notify), classes=traffic.classes,
    )  # fmt: skip
    straight = ecmp_allocation(problem, dag)

    def report(rounds: int, gap: float) -> None:
        nonlocal last
        if time.perf_counter() - last > _REPORT_EVERY_S:
            last = time.perf_counter()
            notify(f"{rounds} rounds of column generation: gap {100 * gap:.3f}%")

    if config.routing == "ecmp":
        found = OverLists(problem, straight, assess(problem, straight), 0, 0.0, reached=True)
    else:
        found = solve_over_lists(
            problem, dag, segments=config.max_segments, adjacencies=config.adjacency, gap=config.gap,
            deadline=deadline, report=report,
        )  # fmt: skip
    return _report(
        config, topology, problem, found, float(assess(problem, straight).value), time.perf_counter() - begin
    )


def with_tighter_free_bound(
    config: SolveConfig, report: SegmentReport, dag: EcmpDag, traffic: TrafficMatrices, notify: Callable[[str], None]
) -> SegmentReport:
    """The same, where the prices of segments say little about any paths, with the bound of a search over paths.

    Args:
        config: the settings; under a deadline nothing is searched.
        report: of the lists.
        dag: shortest paths of the IGP.
        traffic: the matrices.
        notify: called before a search.
    """
    is_loose = report.free_gap > _LOOSE_GAP and report.free_gap > 2 * report.gap
    if not is_loose or config.deadline or report.demands > _MOST_SEARCHED:
        return report
    notify(f"a bound over any paths, within {_FREE_SEARCH_S:g} s")
    live = dag.reaches[traffic.pairs[:, 1], traffic.pairs[:, 0]]
    demand = np.where(live, traffic.read([config.index])[0], 0.0)
    lists = CandidateLists.straight(dag, traffic.pairs)
    problem = Problem.create(dag.topology, lists, Objective(config.objective, config.epsilon), demand[None])
    bound = float(searched_free_bound(problem, _FREE_SEARCH_S))
    sense = problem.objective.rules.sense
    if sense * bound >= sense * report.free_bound:
        return report
    values = (torch.tensor([x], dtype=torch.float64) for x in (report.value, bound))
    free_gap = float(certified_gap(problem, *values))
    return dataclasses.replace(report, free_bound=bound, free_gap=free_gap)


def _report(
    config: SolveConfig, topology: Topology, problem: Problem, found: OverLists, ecmp: float, solve_s: float
) -> SegmentReport:
    lists, figures = found.allocation.paths, found.assessment.figures(0)
    assert isinstance(lists, CandidateLists)
    share, demand = found.allocation.splits[0].cpu().numpy(), problem.demand[0].cpu().numpy()
    policies = lists.policies(share)
    delay = policies.mean_over_lists(
        SegmentPasses(lists.dag).segment_sum(topology.latency[None])[0], topology.latency, lists.pairs,
        topology.link_source,
    )  # fmt: skip
    carried = np.where(np.isfinite(delay), demand * share.sum(1), 0)
    has_path = lists.mask.any(1)
    free = free_gap = math.nan
    if found.allocation.prices is not None and not problem.objective.rules.is_sequence:
        bound = free_bound(problem, found.allocation.prices)
        free, free_gap = float(bound), float(certified_gap(problem, found.assessment.value, bound))
    volume = float(carried.sum())
    return SegmentReport(
        topology=topology, policies=policies, objective=str(config.objective), value=figures.value,
        bound=figures.bound, free_bound=free, gap=figures.gap, free_gap=free_gap, ecmp=ecmp,
        max_link_utilisation=figures.max_link_utilisation, demand=float(demand[has_path].sum()),
        lost=float(demand[~has_path].sum()),
        latency_ms=float((carried * np.where(np.isfinite(delay), delay, 0)).sum() / volume) if volume else math.nan,
        demands=int((has_path & (demand > 0)).sum()), policies_bound=math.nan, fractional=math.nan,
        iterations=found.rounds, solve_s=solve_s, reached=found.reached,
        stopped_by="gap" if found.reached else "deadline" if config.deadline else "rounds",
    )  # fmt: skip
