"""One matrix over segment lists, from settings to a certified result: `teal segments`."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from teal.app.command import EXIT_GAP, EXIT_OK, Notify, Outcome, seldom
from teal.app.instance import given_weights
from teal.app.settings import seconds, share
from teal.errors import InputError
from teal.formats.groups import load_groups
from teal.formats.segment_lists import write_policies
from teal.network import CandidateLists, Topology, TrafficMatrices
from teal.network.ecmp import EcmpDag
from teal.network.failures import failures_of
from teal.network.flex_algo import FlexAlgo
from teal.network.segment_lists import SegmentPolicies
from teal.objectives import Objective
from teal.problem import Problem, assess
from teal.problem.bounds import gap as certified_gap
from teal.problem.bounds import gap_between
from teal.runtime import rounding
from teal.runtime.arrays import FloatArray, IntArray
from teal.runtime.interruptible import Deadline
from teal.runtime.storage import check_out_file, json_value
from teal.schemes.igp import ecmp_allocation
from teal.solvers.result import Stop
from teal_ip.routing.igp import load_routed
from teal_ip.routing.installed import IgpRouting
from teal_ip.routing.simulate import utilisations, worst_rows
from teal_ip.segments.columns import finish
from teal_ip.segments.few import Few
from teal_ip.segments.one_list import OneList, one_list
from teal_ip.segments.over_lists import (
    OverLists,
    free_bound,
    searched_free_bound,
    solve_over_lists,
)
from teal_ip.segments.problem import TARGET_ROUNDING, SegmentProblem
from teal_ip.segments.search import SegmentResult, solve
from teal_ip.segments.settings import SegmentsConfig, SegmentsOptions
from teal_ip.segments.static_lists import (
    FewPolicies,
    StaticLists,
    fewest_policies,
    least_utilisation,
    static_lists,
    unsplit,
)

_FINISH_S = 30.0  # for column generation where a search stalls, unless there is a deadline
_EXTRA_S = 60.0  # for the fewest policies or one list each, likewise
_UNSPLIT_S = (
    10.0  # of _EXTRA_S, for the integer program of one list each, where local search misses the gap
)
_MAX_UNSPLIT = 20_000  # demands, up to which the integer program is tried


@dataclasses.dataclass(frozen=True, eq=False)
class SegmentReport:
    """The result over segment lists.

    Attributes:
        topology: the network, with the metrics in force.
        policies: lists of the demands that do not just follow the IGP.
        objective: total_flow or max_link_utilisation.
        value: value of the installed lists: Gbit/s, or largest utilisation.
        bound: on the optimum over lists with one midpoint.
        free_bound: on the optimum over all paths.
        gap: between the value and ``bound``.
        free_gap: between the value and ``free_bound``.
        ecmp: value of the IGP's shortest paths alone.
        max_link_utilisation: largest utilisation under the installed lists.
        demand: Gbit/s of demands that have a path.
        lost: Gbit/s of demands whose ends are cut off from each other.
        latency_ms: mean over the volume.
        demands: number of demands above 0 that have a path.
        policies_bound: least number of policies of any solution within the allowed utilisation; NaN
            unless asked for.
        at_most: number of policies that were allowed, of which value and bound are; 0 for any
            number.
        fractional: value before one list was chosen for each demand; NaN unless asked for.
        iterations: iterations of PDHG.
        solve_s: seconds.
        reached: whether the search, with any number of policies and with splits, reached the target
            gap.
        stopped_by: what ended the search.
    """

    topology: Topology
    policies: SegmentPolicies
    objective: str
    value: float
    bound: float
    free_bound: float
    gap: float
    free_gap: float
    ecmp: float
    max_link_utilisation: float
    demand: float
    lost: float
    latency_ms: float
    demands: int
    policies_bound: float
    at_most: int
    fractional: float
    iterations: int
    solve_s: float
    reached: bool
    stopped_by: str

    def to_json(self) -> dict[str, Any]:
        """All figures; numbers that JSON cannot hold become null."""
        hidden = ("topology", "policies")
        figures = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in hidden
        }
        return dict(json_value({**figures, "policies": len(self.policies.lists)}))

    def describe(self) -> str:
        """The report in a few lines."""
        balances = self.objective == "max_link_utilisation"
        unit = " Gbit/s" if self.objective in ("total_flow", "max_min") else ""
        few = (
            f" (at least {self.policies_bound:g} are needed)"
            if math.isfinite(self.policies_bound)
            else ""
        )
        few = f" (value and bound are of at most {self.at_most:,})" if self.at_most else few
        sense = -1.0 if balances else 1.0
        bound = rounding.bound_text(self.bound, sense)
        lines = [
            f"{self.objective}: {self.value:.6g}{unit}, bound {bound}{unit}, gap "
            f"{rounding.gap_text(self.gap)}",
            f"shortest paths alone {self.ecmp:.6g}{unit}",
            f"{len(self.policies.lists):,} of {self.demands:,} demands have a policy{few}; "
            f"mean latency {self.latency_ms:.4g} ms",
        ]
        if math.isfinite(self.free_bound):
            least = "least" if balances else "most"
            free_bound = rounding.bound_text(self.free_bound, sense)
            one = self.policies.algorithm
            any_paths = (
                "any paths"
                if one is None
                else f"any paths over the links of algorithm {one.number}"
            )
            lines[1] = (
                f"over {any_paths} at {least} {free_bound}{unit}: gap "
                f"{rounding.gap_text(self.free_gap)}; {lines[1]}"
            )
        if math.isfinite(self.fractional):
            lines.append(f"one list for each demand; with splits {self.fractional:.6g}{unit}")
        if self.lost:
            lines.append(f"{self.lost:.6g} Gbit/s of demand between nodes without a path")
        return "\n".join([*lines, f"{self.iterations} iterations, {self.solve_s:.3g} s"])


def algorithm_of(config: SegmentsOptions) -> FlexAlgo | None:
    """The flexible algorithm of the settings; None for the IGP itself."""
    return FlexAlgo.parse(config.flex_algo) if config.flex_algo else None


def _of_algorithm(policies: SegmentPolicies, config: SegmentsOptions) -> SegmentPolicies:
    """Policies with the algorithm of the settings."""
    return dataclasses.replace(policies, algorithm=algorithm_of(config))


def load_segments(
    config: SegmentsConfig, notify: Callable[[str], None]
) -> tuple[EcmpDag, TrafficMatrices]:
    """Shortest paths of the network, and its traffic.

    Raises:
        InputError: a fault in what the user gave.
    """
    dag, traffic = load_routed(config, notify)
    if algorithm := algorithm_of(config):
        dag = algorithm.dag_alone(dag.topology, dag.links.metric)
        live = int(np.isfinite(dag.links.metric).sum())
        notify(f"algorithm {algorithm.number} uses {live:,} of {dag.topology.num_links:,} links")
    if config.index >= traffic.num_matrices:
        raise InputError(
            "--index", "", f"a matrix from 0 to {traffic.num_matrices - 1}", config.index
        )
    return dag, traffic


def solved(
    config: SegmentsConfig,
    dag: EcmpDag,
    pairs: IntArray,
    demand: FloatArray,
    deadline: Deadline,
    notify: Callable[[str], None] = lambda _: None,
) -> SegmentReport:
    """The result for one matrix.

    Args:
        config: the settings.
        dag: shortest paths of the IGP.
        pairs: (D, 2) source and target.
        demand: (D,) Gbit/s.
        deadline: after which to stop with the best so far.
        notify: called with the progress.
    """
    begin = time.perf_counter()
    problem = SegmentProblem.of(
        dag, pairs, demand, balances=config.objective == "max_link_utilisation"
    )
    lost = float(demand[~dag.reaches[pairs[:, 1], pairs[:, 0]]].sum())
    if lost > 0:
        notify(f"{lost:.6g} Gbit/s of demand between nodes without a path are left out")
    result = (
        _ecmp(problem, config) if config.igp_alone else _solve(problem, config, deadline, notify)
    )
    mid, shares, value, bound = result.mid, result.share, result.value, result.bound
    policies_bound = fractional = math.nan
    allowed = math.inf
    extra = deadline if config.deadline else Deadline.after(_EXTRA_S)
    limit = _few(config)
    if limit is not None and not config.at_most:
        allowed = limit.limit(result.value, result.bound, "no lists with one midpoint")
        few: FewPolicies = fewest_policies(problem, result, allowed, extra)
        mid, shares, value, policies_bound = few.mid, few.share, few.utilisation, float(few.bound)
    if config.at_most:
        few, bound = least_utilisation(problem, result, config.at_most, extra, config.gap)
        mid, shares, value = few.mid, few.share, few.utilisation
    if config.one_list:
        fractional = value
        starts = (
            [(mid, shares)]
            if math.isfinite(allowed)
            else [(mid, shares), _basic(problem, result, extra)]
        )
        tried: list[OneList] = [one_list(problem, *start, extra) for start in starts]
        best = min(tried, key=lambda one: one.utilisation)
        mid, shares, value = best.mid, np.ones(best.mid.shape), best.utilisation
        is_free = math.isinf(allowed) and len(mid) <= _MAX_UNSPLIT
        if is_free and gap_between(value, result.bound, problem.sense) > config.gap:
            notify(
                f"one list each: {value:.6g} by local search; an integer program follows, within "
                f"{_UNSPLIT_S:g} s"
            )
            in_time = Deadline(time.perf_counter() + _UNSPLIT_S, extra)
            mid, value = unsplit(problem, result, mid, in_time, config.gap)
        if value > allowed * (1 + TARGET_ROUNDING):
            policies_bound = math.nan  # which is of lists within the utilisation
            if config.target_utilisation:
                found = (
                    f"{config.target_utilisation:g}, where one list each was found for {value:.6g}"
                )
                raise InputError(
                    "--one-list", "", "splits, or a larger --target-utilisation", found
                )
    load = problem.loads(mid, shares)
    policies = _of_algorithm(problem.policies(mid, shares), config)
    pairs = np.stack([problem.source, problem.target], 1)
    admitted = problem.demand * (1.0 if problem.balances else shares.sum(1))
    per_demand = IgpRouting(dag, pairs, policies).latency()
    return SegmentReport(
        topology=dag.topology,
        policies=policies,
        objective=str(config.objective),
        value=value,
        bound=bound,
        free_bound=result.free_bound,
        gap=gap_between(value, bound, problem.sense),
        free_gap=gap_between(value, result.free_bound, problem.sense),
        ecmp=_ecmp_value(problem),
        max_link_utilisation=problem.utilisation(load),
        demand=float(problem.demand.sum()),
        lost=lost,
        latency_ms=float((admitted * per_demand).sum() / max(admitted.sum(), 1e-300)),
        demands=len(problem.demand),
        policies_bound=policies_bound,
        at_most=config.at_most,
        fractional=fractional,
        iterations=result.iterations,
        solve_s=time.perf_counter() - begin,
        reached=result.gap <= config.gap,
        stopped_by=result.stopped_by,
    )


def _few(config: SegmentsOptions) -> Few | None:
    """The limit on policies that the settings name; None for none."""
    if not (config.fewest_policies or config.target_utilisation or config.at_most):
        return None
    within = (
        share(config.fewest_policies, "--fewest-policies") if config.fewest_policies else math.nan
    )
    return Few(within, config.target_utilisation or math.nan, config.at_most)


def _solve(
    problem: SegmentProblem,
    config: SegmentsConfig,
    deadline: Deadline,
    notify: Callable[[str], None],
) -> SegmentResult:
    progress = seldom(notify)

    def report(iterations: int, gap: float) -> None:
        progress(f"{iterations} iterations: gap {100 * gap:.3f}%")

    result = solve(problem, config.gap, deadline, config.max_iterations, report)
    if result.stopped_by == Stop.STALLED:
        notify(
            f"gap {100 * result.gap:.3f}% after {result.iterations} iterations: column generation "
            "ends the search"
        )
        rest = deadline if config.deadline else Deadline.after(_FINISH_S)
        result = finish(problem, result, config.gap, rest)
    return result


def _basic(
    problem: SegmentProblem, result: SegmentResult, deadline: Deadline
) -> tuple[IntArray, FloatArray]:
    """A solution that splits few demands, a good start for one list each."""
    few = fewest_policies(problem, result, result.value * (1 + 1e-3), deadline)
    return few.mid, few.share


def _ecmp_value(problem: SegmentProblem) -> float:
    """Utilisation of the shortest paths, or the flow if every demand is cut by the same factor that
    makes it fit.
    """
    utilisation = problem.utilisation(problem.loads(*problem.direct()))
    return utilisation if problem.balances else float(problem.demand.sum() / max(1.0, utilisation))


def _ecmp(problem: SegmentProblem, config: SegmentsConfig) -> SegmentResult:
    """Shortest paths alone, with the bound of a search of no iterations."""
    bounds = solve(problem, config.gap, max_iterations=0)
    mid, shares = problem.direct()
    value = _ecmp_value(problem)
    if not problem.balances:
        shares = shares * value / problem.demand.sum()
    return dataclasses.replace(bounds, mid=mid, share=shares, value=value)


_LOOSE_GAP = 0.02  # to the bound over any paths, above which that bound is searched for
_FREE_SEARCH_S = 10.0  # seconds of that search
_MAX_SEARCHED = 100_000  # demands, up to which that search says something in this time


def is_compiled_case(config: SegmentsConfig) -> bool:
    """Whether the compiled search for two segments (:mod:`teal_ip.segments.search`) solves this."""
    is_known = config.objective in ("total_flow", "max_link_utilisation")
    return is_known and config.max_segments == 2 and not config.adjacency


def solve_over(
    config: SegmentsConfig,
    dag: EcmpDag,
    traffic: TrafficMatrices,
    deadline: Deadline,
    notify: Callable[[str], None],
) -> SegmentReport:
    """The result for the matrix of the settings.

    Args:
        config: the settings.
        dag: shortest paths of the IGP.
        traffic: the matrices.
        deadline: after which to stop with the best so far.
        notify: called with the progress.
    """
    begin, progress = time.perf_counter(), seldom(notify)
    topology = dag.topology
    lists = CandidateLists.straight(dag, traffic.pairs)
    problem = Problem.create(
        topology,
        lists,
        Objective(config.objective),
        traffic.read([config.index]),
        weight=given_weights(config, topology, traffic, notify),
        classes=traffic.classes,
    )
    straight = ecmp_allocation(problem, dag)

    def report(rounds: int, gap: float) -> None:
        progress(f"{rounds} rounds of column generation: gap {100 * gap:.3f}%")

    if config.igp_alone:
        found = OverLists(problem, straight, assess(problem, straight), 0, 0.0, reached=True)
    else:
        found = solve_over_lists(
            problem,
            dag,
            segments=config.max_segments,
            adjacencies=config.adjacency,
            gap=config.gap,
            deadline=deadline,
            report=report,
        )
    return _report(
        config,
        topology,
        problem,
        found,
        float(assess(problem, straight).value),
        time.perf_counter() - begin,
    )


def with_tighter_free_bound(
    config: SegmentsConfig,
    report: SegmentReport,
    dag: EcmpDag,
    traffic: TrafficMatrices,
    notify: Callable[[str], None],
) -> SegmentReport:
    """A report with the bound of a search over paths, where the prices of segments say little about
    any paths.

    Args:
        config: the settings; under a deadline nothing is searched.
        report: report of the lists.
        dag: shortest paths of the IGP.
        traffic: the matrices.
        notify: called before a search.
    """
    is_loose = report.free_gap > _LOOSE_GAP and report.free_gap > 2 * report.gap
    if not is_loose or config.deadline or report.demands > _MAX_SEARCHED:
        return report
    notify(f"a bound over any paths, within {_FREE_SEARCH_S:g} s")
    live = dag.reaches[traffic.pairs[:, 1], traffic.pairs[:, 0]]
    demand = np.where(live, traffic.read([config.index])[0], 0.0)
    lists = CandidateLists.straight(dag, traffic.pairs)
    problem = Problem.create(dag.topology, lists, Objective(config.objective), demand[None])
    bound = float(searched_free_bound(problem, _FREE_SEARCH_S))
    sense = problem.objective.rules.sense
    if sense * bound >= sense * report.free_bound:
        return report
    values = (torch.tensor([x], dtype=torch.float64) for x in (report.value, bound))
    free_gap = float(certified_gap(problem, *values))
    return dataclasses.replace(report, free_bound=bound, free_gap=free_gap)


def _report(
    config: SegmentsConfig,
    topology: Topology,
    problem: Problem,
    found: OverLists,
    ecmp: float,
    solve_s: float,
) -> SegmentReport:
    """The report of a search over lists."""
    lists, figures = found.allocation.paths, found.assessment.figures(0)
    assert isinstance(lists, CandidateLists)
    share, demand = found.allocation.splits[0].cpu().numpy(), problem.demand[0].cpu().numpy()
    policies = _of_algorithm(lists.policies(share), config)
    delay = IgpRouting(lists.dag, lists.pairs, policies).latency()
    carried = np.where(np.isfinite(delay), demand * share.sum(1), 0)
    has_path = lists.mask.any(1)
    all_paths_bound = all_paths_gap = math.nan
    if found.allocation.prices is not None and not problem.objective.rules.is_sequence:
        bound = free_bound(problem, found.allocation.prices)
        all_paths_bound = float(bound)
        all_paths_gap = float(certified_gap(problem, found.assessment.value, bound))
    volume = float(carried.sum())
    # Which of the two ended a search that did not reach its target is not known: the deadline, if
    # there was one.
    missed_by = Stop.DEADLINE if config.deadline else Stop.ITERATIONS
    return SegmentReport(
        topology=topology,
        policies=policies,
        objective=str(config.objective),
        value=figures.value,
        bound=figures.bound,
        free_bound=all_paths_bound,
        gap=figures.gap,
        free_gap=all_paths_gap,
        ecmp=ecmp,
        max_link_utilisation=figures.max_link_utilisation,
        demand=float(demand[has_path].sum()),
        lost=float(demand[~has_path].sum()),
        latency_ms=float((carried * np.where(np.isfinite(delay), delay, 0)).sum() / volume)
        if volume
        else math.nan,
        demands=int((has_path & (demand > 0)).sum()),
        policies_bound=math.nan,
        at_most=0,
        fractional=math.nan,
        iterations=found.rounds,
        solve_s=solve_s,
        reached=found.reached,
        stopped_by=Stop.GAP if found.reached else missed_by,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class StaticReport:
    """The result of lists that hold under all failures.

    Attributes:
        topology: the network, with the metrics in force.
        lists: shares, value and bound.
        worst: name of the failure under which the fullest link is fullest; "" for none.
        failures: number of failures.
        lost: largest Gbit/s of demands whose ends are cut off from each other, of any matrix and
            failure.
        reached: whether the search, with any number of policies and with splits, reached the target
            gap.
        stopped_by: what ended the search.
        at_most: number of policies that were allowed, of which value and bound are; 0 for any
            number.
    """

    topology: Topology
    lists: StaticLists
    worst: str
    failures: int
    lost: float
    reached: bool
    stopped_by: str
    at_most: int = 0

    @property
    def policies(self) -> SegmentPolicies:
        """The lists of demands that do not go straight to their targets."""
        return self.lists.policies

    def to_json(self) -> dict[str, Any]:
        """All figures."""
        one = self.lists
        figures = {
            "value": one.value,
            "bound": one.bound,
            "gap": one.gap,
            "straight": one.straight,
            "worst": self.worst,
            "without_failure": float(one.utilisation[:, 0].max()),
            "matrices": len(one.utilisation),
            "failures": self.failures,
            "policies": len(self.policies.lists),
            "policies_bound": one.policies_bound,
            "fractional": one.fractional,
            "lost": self.lost,
            "at_most": self.at_most,
            "rounds": one.iterations,
            "solve_s": one.solve_s,
            "reached": self.reached,
        }
        return dict(json_value(figures))

    def describe(self) -> str:
        """The report in a few lines."""
        one = self.lists
        where = f" when {self.worst} fails" if self.worst else " without failure"
        is_transit = self.policies.is_transit
        what, of = (
            ("transit policies", "policy") if is_transit else ("demands with a policy", "demand")
        )
        few = (
            f" (at least {one.policies_bound:g} are needed)"
            if math.isfinite(one.policies_bound)
            else ""
        )
        few = f" (value and bound are of at most {self.at_most:,})" if self.at_most else few
        few += "; bounds are of policies that no other one steers again" if is_transit else ""
        return "\n".join(
            [
                f"max_link_utilisation over {len(one.utilisation)} matrices, {self.failures} "
                "failures and none: "
                f"{one.value:.6g}, bound {rounding.at_least(one.bound)}, gap "
                f"{rounding.gap_text(one.gap)}",
                f"fullest{where}; without failure {one.utilisation[:, 0].max():.6g}; shortest "
                "paths alone "
                f"{one.straight:.6g}",
                *(
                    [f"one list for each {of}; with splits {one.fractional:.6g}"]
                    if math.isfinite(one.fractional)
                    else []
                ),
                (
                    f"{what}: {len(self.policies.lists):,}{few}; {one.iterations} rounds, "
                    f"{one.solve_s:.3g} s"
                ),
            ]
        )


def solve_static(
    config: SegmentsOptions,
    dag: EcmpDag,
    traffic: TrafficMatrices,
    deadline: Deadline,
    notify: Callable[[str], None],
) -> StaticReport:
    """The lists.

    Args:
        config: the settings.
        dag: shortest paths without failure.
        traffic: the matrices.
        deadline: after which to stop with the best so far.
        notify: called with the progress.
    """
    progress = seldom(notify)
    if config.matrices == 1:
        traffic = traffic.part(config.index, config.index + 1)
    kinds = () if config.survive == "none" else (config.survive,)
    groups = {} if config.groups is None else load_groups(config.groups, dag.topology)
    failures = list(failures_of(kinds, dag.topology, groups))
    straight = utilisations(IgpRouting(dag, traffic.pairs), traffic, failures)
    rows = worst_rows(straight, config.matrices)
    dags = [dag, *(dag.without(list(one.links)) for one in failures)]

    def report(number: int, value: float, bound: float) -> None:
        progress(f"round {number}: {value:.6g}, bound {bound:.6g}")

    pairs = np.asarray(traffic.pairs, dtype=np.int64)
    cut_off = [
        max(
            float(part[:, ~one.reaches[pairs[:, 1], pairs[:, 0]]].sum(1).max())
            for part in traffic.chunks()
        )
        for one in dags
    ]
    if max(cut_off) > 0:
        place = int(np.argmax(cut_off))
        when = f" when {failures[place - 1].name} fails" if place else " without failure"
        notify(
            f"up to {max(cut_off):.6g} Gbit/s of demand are between nodes without a path{when}: "
            "they are left out"
        )
    while True:
        found = static_lists(
            dags,
            pairs,
            traffic.read(rows),
            gap=config.gap,
            few=_few(config),
            one_list=config.one_list,
            transit=config.transit,
            deadline=deadline,
            max_rounds=config.max_iterations,
            report=report,
        )
        used = utilisations(IgpRouting(dag, traffic.pairs, found.policies), traffic, failures)
        most = max(found.value, config.target_utilisation) * (1 + TARGET_ROUNDING)
        missed = np.setdiff1d(np.flatnonzero(used.max(1) > most), rows)
        if not len(missed) or deadline.is_over:
            break
        notify(
            f"{len(missed)} matrices that were left out pass {100 * most:.2f}%: the worst of them "
            "are added"
        )
        rows = np.concatenate([rows, missed[np.argsort(-used.max(1)[missed])[:_MAX_ADDED]]])
    found = dataclasses.replace(
        found,
        policies=_of_algorithm(found.policies, config),
        utilisation=used,
        value=float(used.max()),
        straight=float(straight.max()),
    )
    worst = int(found.utilisation.max(0).argmax())
    return StaticReport(
        dag.topology,
        found,
        failures[worst - 1].name if worst else "",
        len(failures),
        max(cut_off),
        found.reached and not len(missed),
        found.stopped_by,
        config.at_most,
    )


_MAX_ADDED = 4  # matrices that a round adds to those that lists are found for


def run_segments(
    config: SegmentsConfig, notify: Callable[[str], None]
) -> SegmentReport | StaticReport:
    """Solve the matrix and, if there is an output file, write the lists.

    Raises:
        InputError: a fault in the settings, or an output file that must not be replaced.
    """
    if config.out is not None:
        check_out_file(config.out, (".json",), overwrite=config.overwrite)
    dag, traffic = load_segments(config, notify)
    deadline = (
        Deadline.after(seconds(config.deadline, "--deadline"))
        if config.deadline
        else Deadline(math.inf)
    )
    report: SegmentReport | StaticReport
    if config.is_static:
        report = solve_static(config, dag, traffic, deadline, notify)
    elif is_compiled_case(config):
        report = solved(
            config, dag, traffic.pairs, traffic.read([config.index])[0], deadline, notify
        )
    else:
        report = solve_over(config, dag, traffic, deadline, notify)
    if isinstance(report, SegmentReport):
        report = with_tighter_free_bound(config, report, dag, traffic, notify)
    if config.out is not None:
        write_policies(config.out, report.topology, report.policies, report.to_json())
        notify(f"{config.out}: {len(report.policies.lists):,} policies")
    return report


def segments_outcome(config: SegmentsConfig, notify: Notify) -> Outcome:
    """`teal segments`."""
    report = run_segments(config, notify)
    if not report.reached and not config.igp_alone:
        notify(
            f"the target gap of {100 * config.gap:g}% was not reached: stopped by "
            f"{report.stopped_by}"
        )
    return Outcome(
        text=report.describe(),
        data=report.to_json(),
        exit_code=EXIT_OK if report.reached or config.igp_alone else EXIT_GAP,
    )
