"""``teal segments``: from settings to certified segment lists and their report.

:func:`run_segments` selects the solver: lists for several matrices or failures
(:func:`solve_static`), the compiled two-segment search (:func:`solve_two_segments`), or column
generation for any length and objective (:func:`solve_over`).
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from teal.app.command import EXIT_GAP, EXIT_OK, Notify, Outcome, throttled
from teal.app.instance import demand_weights
from teal.app.settings import seconds, share
from teal.errors import InputError
from teal.formats.groups import load_groups
from teal.formats.segment_lists import write_policies
from teal.network import CandidateLists, Topology, TrafficMatrices
from teal.network.ecmp import EcmpDag
from teal.network.failures import Failure, failures_of
from teal.network.flex_algo import FlexAlgo
from teal.network.segment_lists import SegmentPolicies
from teal.objectives import Objective
from teal.problem import Problem, assess
from teal.problem.bounds import gap as certified_gap
from teal.problem.bounds import gap_between
from teal.runtime import rounding
from teal.runtime.arrays import FloatArray, Int64Array, IntArray
from teal.runtime.interruptible import Deadline
from teal.runtime.storage import check_out_file, json_value
from teal.schemes.igp import ecmp_allocation
from teal.solvers.result import Stop
from teal_ip.routing.igp import load_routed
from teal_ip.routing.installed import IgpRouting
from teal_ip.routing.simulate import utilisations, worst_matrix_indices
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

# Time limit of column generation after a stalled search, without a deadline, seconds.
_FINISH_S = 30.0
# Time limit of fewest policies or one list per demand, without a deadline, seconds.
_EXTRA_S = 60.0
# Part of _EXTRA_S for the integer program of one list per demand, if local search misses the gap.
_UNSPLIT_S = 10.0
# Largest number of demands for which the integer program is tried.
_MAX_UNSPLIT = 20_000


@dataclasses.dataclass(frozen=True, eq=False)
class SegmentReport:
    """Result of ``teal segments`` for one matrix.

    Attributes:
        topology: the network, with the current metrics.
        policies: segment lists of the demands that do not just follow the IGP.
        objective: total_flow or max_link_utilisation.
        value: value of the installed lists: Gbit/s, or largest utilisation.
        bound: bound on the optimum over lists with one midpoint.
        free_bound: bound on the optimum over all paths.
        gap: relative gap between the value and ``bound``.
        free_gap: relative gap between the value and ``free_bound``.
        ecmp: value of the IGP's shortest paths alone.
        max_link_utilisation: largest utilisation under the installed lists.
        demand: Gbit/s of demands that have a path.
        lost: Gbit/s of demands without a path.
        latency_ms: mean latency, weighted by volume.
        demands: number of demands above 0 that have a path.
        policies_bound: lower bound on the number of policies within the allowed utilisation; NaN
            unless policies were minimised.
        at_most: limit on the number of policies, for which value and bound hold; 0 for any number.
        fractional: value with splits, before one list per demand was chosen; NaN without that step.
        iterations: iterations of PDHG.
        solve_s: solve time, seconds.
        reached: whether the search with any number of policies and with splits reached the target
            gap.
        stopped_by: stopping criterion of the search.
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
        """Return all metrics as JSON values; numbers that JSON lacks become null."""
        hidden = ("topology", "policies")
        metrics = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in hidden
        }
        return dict(json_value({**metrics, "policies": len(self.policies.lists)}))

    def describe(self) -> str:
        """Return the summary of the report as lines of text: value and bounds, policies, and the
        effort of the search.
        """
        minimises_utilisation = self.objective == "max_link_utilisation"
        unit = " Gbit/s" if self.objective in ("total_flow", "max_min") else ""
        # Value, and number of policies, with the bound on it or the limit of --at-most.  Bounds are
        # rounded away from the value (``sense``): down on a minimum, up on a maximum.
        policies_note = (
            f" (at least {self.policies_bound:g} are needed)"
            if math.isfinite(self.policies_bound)
            else ""
        )
        policies_note = (
            f" (value and bound for at most {self.at_most:,})" if self.at_most else policies_note
        )
        sense = -1.0 if minimises_utilisation else 1.0
        bound = rounding.bound_text(self.bound, sense)
        lines = [
            f"{self.objective}: {self.value:.6g}{unit}, bound {bound}{unit}, gap "
            f"{rounding.gap_text(self.gap)}",
            f"shortest paths alone {self.ecmp:.6g}{unit}",
            f"{len(self.policies.lists):,} of {self.demands:,} demands have a "
            f"policy{policies_note}; mean latency {self.latency_ms:.4g} ms",
        ]
        # The bound over any paths precedes the value of the shortest paths on the second line.
        if math.isfinite(self.free_bound):
            direction = "least" if minimises_utilisation else "most"
            free_bound = rounding.bound_text(self.free_bound, sense)
            algorithm = self.policies.algorithm
            any_paths = (
                "any paths"
                if algorithm is None
                else f"any paths over the links of algorithm {algorithm.number}"
            )
            lines[1] = (
                f"over {any_paths} at {direction} {free_bound}{unit}: gap "
                f"{rounding.gap_text(self.free_gap)}; {lines[1]}"
            )
        if math.isfinite(self.fractional):
            lines.append(f"one list per demand; with splits {self.fractional:.6g}{unit}")
        if self.lost:
            lines.append(f"{self.lost:.6g} Gbit/s of demand has no path and is excluded")
        return "\n".join([*lines, f"{self.iterations} iterations, {self.solve_s:.3g} s"])


def parse_algorithm(config: SegmentsOptions) -> FlexAlgo | None:
    """Return the flexible algorithm of the settings (--flex-algo); None for the IGP itself."""
    return FlexAlgo.parse(config.flex_algo) if config.flex_algo else None


def _with_algorithm(policies: SegmentPolicies, config: SegmentsOptions) -> SegmentPolicies:
    """Return the policies for the flexible algorithm of the settings; for the IGP without one."""
    return dataclasses.replace(policies, algorithm=parse_algorithm(config))


def load_segments(
    config: SegmentsConfig, notify: Callable[[str], None]
) -> tuple[EcmpDag, TrafficMatrices]:
    """Load the network's shortest paths and its traffic.

    Args:
        config: the settings.
        notify: called with the number of links that the flexible algorithm uses.

    Returns:
        the shortest paths, of the flexible algorithm if there is one, and all matrices.

    Raises:
        InputError: invalid input, or a matrix index out of range.
    """
    dag, traffic = load_routed(config, notify)
    if algorithm := parse_algorithm(config):
        dag = algorithm.dag_alone(dag.topology, dag.links.metric)
        num_links = int(np.isfinite(dag.links.metric).sum())
        notify(
            f"flexible algorithm {algorithm.number} uses {num_links:,} of "
            f"{dag.topology.num_links:,} links"
        )
    if config.index >= traffic.num_matrices:
        raise InputError(
            "--index", "", f"an index from 0 to {traffic.num_matrices - 1}", config.index
        )
    return dag, traffic


@dataclasses.dataclass(frozen=True, eq=False)
class _Routing:
    """Split ratios of one matrix, and the bounds that hold for them.

    Attributes:
        mid: (D, K) midpoints; the target itself for the shortest paths, -1 for an empty slot.
        shares: (D, K) split ratios.
        value: Gbit/s, or largest utilisation.
        bound: bound on the optimum over lists with one midpoint.
        policies_bound: lower bound on the number of policies; NaN unless policies were minimised.
        fractional: value with splits, before one list per demand was chosen; NaN without that step.
    """

    mid: IntArray
    shares: FloatArray
    value: float
    bound: float
    policies_bound: float = math.nan
    fractional: float = math.nan


def solve_two_segments(
    config: SegmentsConfig,
    dag: EcmpDag,
    pairs: IntArray,
    demand: FloatArray,
    deadline: Deadline,
    notify: Callable[[str], None] = lambda _: None,
) -> SegmentReport:
    """Solve one matrix over lists with one midpoint, by the compiled search.

    Steps: splits with any number of policies; few policies and one list per demand, if the settings
    ask for them; the report.

    Args:
        config: the settings.
        dag: shortest paths of the IGP.
        pairs: (D, 2) source and target.
        demand: (D,) Gbit/s.
        deadline: time limit, after which the incumbent is returned.
        notify: called with the progress.
    """
    begin = time.perf_counter()
    # Splits with any number of policies.
    problem = SegmentProblem.of(
        dag, pairs, demand, minimises_utilisation=config.objective == "max_link_utilisation"
    )
    # Demand without a path (``reaches`` has the target first).
    unroutable = float(demand[~dag.reaches[pairs[:, 1], pairs[:, 0]]].sum())
    if unroutable > 0:
        notify(f"{unroutable:.6g} Gbit/s of demand has no path and is excluded")
    split_result = (
        _shortest_paths_only(problem, config)
        if config.igp_alone
        else _solve(problem, config, deadline, notify)
    )
    # Limit the policies, then select one list per demand; without --deadline in at most _EXTRA_S.
    extra_deadline = deadline if config.deadline else Deadline.after(_EXTRA_S)
    routing, max_utilisation = _limit_policies(problem, split_result, config, extra_deadline)
    if config.one_list:
        routing = _select_one_list(
            problem, split_result, routing, max_utilisation, config, extra_deadline, notify
        )
    report = _two_segment_report(problem, split_result, routing, config, unroutable)
    return dataclasses.replace(report, solve_s=time.perf_counter() - begin)


def _limit_policies(
    problem: SegmentProblem, split_result: SegmentResult, config: SegmentsConfig, deadline: Deadline
) -> tuple[_Routing, float]:
    """Return the routing with few policies if the settings limit their number, else that of the
    search.

    Args:
        problem: routing of one matrix over lists with at most one midpoint.
        split_result: splits with any number of policies.
        config: the settings.
        deadline: time limit, after which the incumbent is returned.

    Returns:
        the routing, and the utilisation within which policies were minimised, infinite if they were
        not.
    """
    routing = _Routing(split_result.mid, split_result.share, split_result.value, split_result.bound)
    max_utilisation = math.inf
    # Fewest policies within a utilisation (--fewest-policies or --target-utilisation).
    policy_limit = _policy_limit(config)
    if policy_limit is not None and not config.at_most:
        max_utilisation = policy_limit.utilisation_limit(
            split_result.value, split_result.bound, "lists with one midpoint"
        )
        few_policies: FewPolicies = fewest_policies(
            problem, split_result, max_utilisation, deadline
        )
        routing = _Routing(
            few_policies.mid,
            few_policies.share,
            few_policies.utilisation,
            split_result.bound,
            float(few_policies.bound),
        )
    # Least utilisation with a limited number of policies.
    if config.at_most:
        few_policies, bound = least_utilisation(
            problem, split_result, config.at_most, deadline, config.gap
        )
        routing = _Routing(few_policies.mid, few_policies.share, few_policies.utilisation, bound)
    return routing, max_utilisation


def _select_one_list(
    problem: SegmentProblem,
    result: SegmentResult,
    split_routing: _Routing,
    max_utilisation: float,
    config: SegmentsConfig,
    deadline: Deadline,
    notify: Callable[[str], None],
) -> _Routing:
    """Choose one list per demand: rounding and local search, then an integer program.

    Args:
        problem: routing of one matrix over lists with at most one midpoint.
        result: splits with any number of policies.
        split_routing: splits from which the lists are rounded.
        max_utilisation: utilisation within which policies were minimised; infinite if they were
            not.
        config: the settings.
        deadline: time limit, after which the incumbent is returned.
        notify: called before the integer program.

    Raises:
        InputError: one list per demand exceeds the target utilisation.
    """
    # Rounding and local search, from the splits and from a solution that splits few demands.
    starts = (
        [(split_routing.mid, split_routing.shares)]
        if math.isfinite(max_utilisation)
        else [(split_routing.mid, split_routing.shares), _nearly_unsplit(problem, result, deadline)]
    )
    candidates: list[OneList] = [one_list(problem, *start, deadline) for start in starts]
    best = min(candidates, key=lambda candidate: candidate.utilisation)
    mid = best.mid
    shares = np.ones(best.mid.shape)
    value = best.utilisation
    # An integer program, unless policies were minimised, the gap is closed, or there are too many
    # demands.
    tries_integer_program = math.isinf(max_utilisation) and len(mid) <= _MAX_UNSPLIT
    if tries_integer_program and gap_between(value, result.bound, problem.sense) > config.gap:
        notify(
            f"one list per demand: utilisation {value:.6g} by local search; solving an integer "
            f"program for up to {_UNSPLIT_S:g} s"
        )
        integer_deadline = Deadline(time.perf_counter() + _UNSPLIT_S, deadline)
        mid, value = unsplit(problem, result, mid, integer_deadline, config.gap)
    # The bound on the number of policies holds only for lists within the utilisation.
    policies_bound = split_routing.policies_bound
    if value > max_utilisation * (1 + TARGET_ROUNDING):
        policies_bound = math.nan
        if config.target_utilisation:
            problem_text = (
                f"the target utilisation is {config.target_utilisation:g}, but one list per demand "
                f"reaches {value:.6g}"
            )
            raise InputError.invalid(
                "--one-list", "", problem_text, "drop --one-list, or raise --target-utilisation"
            )
    return _Routing(
        mid, shares, value, split_routing.bound, policies_bound, fractional=split_routing.value
    )


def _two_segment_report(
    problem: SegmentProblem,
    result: SegmentResult,
    routing: _Routing,
    config: SegmentsConfig,
    unroutable: float,
) -> SegmentReport:
    """Build the report of the two-segment search, without its solve time.

    Args:
        problem: routing of one matrix over lists with at most one midpoint.
        result: splits with any number of policies, whose bounds hold.
        routing: the routing to install.
        config: the settings.
        unroutable: Gbit/s of demands without a path.
    """
    dag = problem.dag
    load = problem.loads(routing.mid, routing.shares)
    policies = _with_algorithm(problem.policies(routing.mid, routing.shares), config)
    # Mean latency, weighted by the admitted volume.
    pairs = np.stack([problem.source, problem.target], 1)
    admitted_demand = problem.demand * (
        1.0 if problem.minimises_utilisation else routing.shares.sum(1)
    )
    latency = IgpRouting(dag, pairs, policies).latency()
    return SegmentReport(
        topology=dag.topology,
        policies=policies,
        objective=str(config.objective),
        value=routing.value,
        bound=routing.bound,
        free_bound=result.free_bound,
        gap=gap_between(routing.value, routing.bound, problem.sense),
        free_gap=gap_between(routing.value, result.free_bound, problem.sense),
        ecmp=_ecmp_value(problem),
        max_link_utilisation=problem.utilisation(load),
        demand=float(problem.demand.sum()),
        lost=unroutable,
        latency_ms=float((admitted_demand * latency).sum() / max(admitted_demand.sum(), 1e-300)),
        demands=len(problem.demand),
        policies_bound=routing.policies_bound,
        at_most=config.at_most,
        fractional=routing.fractional,
        iterations=result.iterations,
        solve_s=math.nan,
        reached=result.gap <= config.gap,
        stopped_by=result.stopped_by,
    )


def _policy_limit(config: SegmentsOptions) -> Few | None:
    """Return the limit on the number of policies of the settings; None for none."""
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
    """Run the two-segment search, and column generation if the search stalls.

    Args:
        problem: routing of one matrix over lists with at most one midpoint.
        config: the settings.
        deadline: time limit, after which the incumbent is returned.
        notify: called with the progress.
    """
    progress = throttled(notify)

    def report(iterations: int, gap: float) -> None:
        """Report the number of iterations and the gap, at most every few seconds."""
        progress(f"{iterations} iterations: gap {100 * gap:.3f}%")

    result = solve(problem, config.gap, deadline, config.max_iterations, report)
    if result.stopped_by == Stop.STALLED:
        notify(
            f"gap {100 * result.gap:.3f}% after {result.iterations} iterations: the search stalls; "
            "continuing with column generation"
        )
        finish_deadline = deadline if config.deadline else Deadline.after(_FINISH_S)
        result = finish(problem, result, config.gap, finish_deadline)
    return result


def _nearly_unsplit(
    problem: SegmentProblem, result: SegmentResult, deadline: Deadline
) -> tuple[IntArray, FloatArray]:
    """Return midpoints and split ratios (D, K) that split few demands, as a start for one list per
    demand: fewest policies within a utilisation 0.1% above the best.

    Args:
        problem: routing of one matrix over lists with at most one midpoint.
        result: splits with any number of policies.
        deadline: time limit, after which the incumbent is returned.
    """
    few_policies = fewest_policies(problem, result, result.value * (1 + 1e-3), deadline)
    return few_policies.mid, few_policies.share


def _ecmp_value(problem: SegmentProblem) -> float:
    """Return the value of the shortest paths: the largest utilisation, or the total flow in Gbit/s
    if one common factor scales all demands to fit.
    """
    utilisation = problem.utilisation(problem.loads(*problem.direct()))
    return (
        utilisation
        if problem.minimises_utilisation
        else float(problem.demand.sum() / max(1.0, utilisation))
    )


def _shortest_paths_only(problem: SegmentProblem, config: SegmentsConfig) -> SegmentResult:
    """Return the solution in which all demands follow the IGP's shortest paths, with the bounds
    that the starting prices of the search prove.

    If the flow is maximised, one common factor scales all demands to fit.

    Args:
        problem: routing of one matrix over lists with at most one midpoint.
        config: the settings.
    """
    start_result = solve(problem, config.gap, max_iterations=0)
    mid, shares = problem.direct()
    value = _ecmp_value(problem)
    if not problem.minimises_utilisation:
        shares = shares * value / problem.demand.sum()
    return dataclasses.replace(start_result, mid=mid, share=shares, value=value)


# Gap to the bound over any paths above which that bound is tightened by a search.
_LOOSE_GAP = 0.02
# Time limit of that search, seconds.
_FREE_SEARCH_S = 10.0
# Largest number of demands for which that search improves the bound in this time.
_MAX_SEARCHED = 100_000


def is_compiled_case(config: SegmentsConfig) -> bool:
    """Whether the compiled two-segment search (:mod:`teal_ip.segments.search`) applies."""
    is_supported = config.objective in ("total_flow", "max_link_utilisation")
    return is_supported and config.max_segments == 2 and not config.adjacency


def solve_over(
    config: SegmentsConfig,
    dag: EcmpDag,
    traffic: TrafficMatrices,
    deadline: Deadline,
    notify: Callable[[str], None],
) -> SegmentReport:
    """Solve the matrix of the settings by column generation over segment lists.

    It supports any objective and list length.

    Args:
        config: the settings.
        dag: shortest paths of the IGP.
        traffic: the matrices.
        deadline: time limit, after which the incumbent is returned.
        notify: called with the progress.
    """
    begin = time.perf_counter()
    progress = throttled(notify)
    topology = dag.topology
    # Program over the shortest paths, the first lists.
    lists = CandidateLists.straight(dag, traffic.pairs)
    problem = Problem.create(
        topology,
        lists,
        Objective(config.objective),
        traffic.read([config.index]),
        weight=demand_weights(config, topology, traffic, notify),
        classes=traffic.classes,
    )
    shortest_path_allocation = ecmp_allocation(problem, dag)

    def report(rounds: int, gap: float) -> None:
        """Report the number of rounds and the gap, at most every few seconds."""
        progress(f"{rounds} rounds of column generation: gap {100 * gap:.3f}%")

    # Column generation; with --igp-alone the shortest paths after 0 rounds and 0 seconds.
    if config.igp_alone:
        result = OverLists(
            problem,
            shortest_path_allocation,
            assess(problem, shortest_path_allocation),
            0,
            0.0,
            reached=True,
        )
    else:
        result = solve_over_lists(
            problem,
            dag,
            segments=config.max_segments,
            adjacencies=config.adjacency,
            gap=config.gap,
            deadline=deadline,
            report=report,
        )
    # The value of the shortest paths is reported beside the result.
    return _column_generation_report(
        config,
        topology,
        problem,
        result,
        float(assess(problem, shortest_path_allocation).value),
        time.perf_counter() - begin,
    )


def with_tighter_free_bound(
    config: SegmentsConfig,
    report: SegmentReport,
    dag: EcmpDag,
    traffic: TrafficMatrices,
    notify: Callable[[str], None],
) -> SegmentReport:
    """Tighten the bound over any paths by column generation over paths, if the bound from segment
    prices is loose.

    Args:
        config: the settings; with a deadline the report is returned unchanged.
        report: report of the lists.
        dag: shortest paths of the IGP.
        traffic: the matrices.
        notify: called before the search.
    """
    # Loose: a gap above 2%, and above twice the gap to the bound over lists.
    is_loose = report.free_gap > _LOOSE_GAP and report.free_gap > 2 * report.gap
    if not is_loose or config.deadline or report.demands > _MAX_SEARCHED:
        return report
    notify(f"tightening the bound over any paths, for up to {_FREE_SEARCH_S:g} s")
    # Program of the demands that have a path.
    # Reachability has the target first.
    has_path = dag.reaches[traffic.pairs[:, 1], traffic.pairs[:, 0]]
    demand = np.where(has_path, traffic.read([config.index])[0], 0.0)
    lists = CandidateLists.straight(dag, traffic.pairs)
    problem = Problem.create(
        dag.topology,
        lists,
        Objective(config.objective),
        demand[None],
        weight=demand_weights(config, dag.topology, traffic, notify),
    )
    bound = float(searched_free_bound(problem, _FREE_SEARCH_S))
    # Sense: 1 for a maximum, whose bounds improve downwards; -1 for a minimum.
    sense = problem.objective.rules.sense
    if sense * bound >= sense * report.free_bound:
        return report
    # The bound is better: replace it, and its gap.
    values = (torch.tensor([x], dtype=torch.float64) for x in (report.value, bound))
    free_gap = float(certified_gap(problem, *values))
    return dataclasses.replace(report, free_bound=bound, free_gap=free_gap)


def _column_generation_report(
    config: SegmentsConfig,
    topology: Topology,
    problem: Problem,
    result: OverLists,
    ecmp: float,
    solve_s: float,
) -> SegmentReport:
    """Build the report of column generation over segment lists.

    Args:
        config: the settings.
        topology: the network.
        problem: the matrix, over the shortest paths; supplies demands and objective.
        result: allocation over the generated lists.
        ecmp: value of the shortest paths alone.
        solve_s: solve time, seconds.
    """
    # Split ratios (D, K) of the lists of each demand; a demand without a list has no path.
    lists = result.allocation.paths
    metrics = result.assessment.metrics(0)
    assert isinstance(lists, CandidateLists)
    splits = result.allocation.splits[0].cpu().numpy()
    demand = problem.demand[0].cpu().numpy()
    policies = _with_algorithm(lists.policies(splits), config)
    has_path = lists.mask.any(1)
    # Mean latency, weighted by the carried volume.
    latency = IgpRouting(lists.dag, lists.pairs, policies).latency()
    carried_demand = np.where(np.isfinite(latency), demand * splits.sum(1), 0)
    total_carried = float(carried_demand.sum())
    mean_latency = (
        float((carried_demand * np.where(np.isfinite(latency), latency, 0)).sum() / total_carried)
        if total_carried
        else math.nan
    )
    # Bound over all paths.
    all_paths_bound = all_paths_gap = math.nan
    if result.allocation.prices is not None and not problem.objective.rules.is_sequence:
        bound = free_bound(problem, result.allocation.prices)
        all_paths_bound = float(bound)
        all_paths_gap = float(certified_gap(problem, result.assessment.value, bound))
    # A search that misses its target does not record its stopping criterion: assume the deadline if
    # there was one.
    missed_by = Stop.DEADLINE if config.deadline else Stop.ITERATIONS
    return SegmentReport(
        topology=topology,
        policies=policies,
        objective=str(config.objective),
        value=metrics.value,
        bound=metrics.bound,
        free_bound=all_paths_bound,
        gap=metrics.gap,
        free_gap=all_paths_gap,
        ecmp=ecmp,
        max_link_utilisation=metrics.max_link_utilisation,
        demand=float(demand[has_path].sum()),
        lost=float(demand[~has_path].sum()),
        latency_ms=mean_latency,
        demands=int((has_path & (demand > 0)).sum()),
        policies_bound=math.nan,
        at_most=0,
        fractional=math.nan,
        iterations=result.rounds,
        solve_s=solve_s,
        reached=result.reached,
        stopped_by=Stop.GAP if result.reached else missed_by,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class StaticReport:
    """Result of segment lists that serve all matrices and failures.

    Attributes:
        topology: the network, with the current metrics.
        lists: split ratios, value and bound.
        worst: failure with the largest link utilisation; "" for none.
        failures: number of failures.
        lost: largest Gbit/s of demands without a path, of any matrix and failure.
        reached: whether the search with any number of policies and with splits reached the target
            gap.
        stopped_by: stopping criterion of the search.
        at_most: limit on the number of policies, for which value and bound hold; 0 for any number.
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
        """Segment lists of the demands that do not just follow the IGP's shortest paths."""
        return self.lists.policies

    def to_json(self) -> dict[str, Any]:
        """Return all metrics as JSON values; numbers that JSON lacks become null."""
        lists = self.lists
        metrics = {
            "value": lists.value,
            "bound": lists.bound,
            "gap": lists.gap,
            "straight": lists.straight,
            "worst": self.worst,
            "without_failure": float(lists.utilisation[:, 0].max()),
            "matrices": len(lists.utilisation),
            "failures": self.failures,
            "policies": len(self.policies.lists),
            "policies_bound": lists.policies_bound,
            "fractional": lists.fractional,
            "lost": self.lost,
            "at_most": self.at_most,
            "rounds": lists.iterations,
            "solve_s": lists.solve_s,
            "reached": self.reached,
        }
        return dict(json_value(metrics))

    def describe(self) -> str:
        """Return the summary of the report as lines of text: value and bound over all matrices and
        failures, the worst case, and the policies.
        """
        # Texts of the worst case, and of the policies with their bound or limit.
        lists = self.lists
        worst_case = f" when {self.worst} fails" if self.worst else " without failure"
        is_transit = self.policies.is_transit
        kind, policy_unit = (
            ("transit policies", "policy") if is_transit else ("demands with a policy", "demand")
        )
        policies_note = (
            f" (at least {lists.policies_bound:g} are needed)"
            if math.isfinite(lists.policies_bound)
            else ""
        )
        policies_note = (
            f" (value and bound for at most {self.at_most:,})" if self.at_most else policies_note
        )
        policies_note += (
            "; bounds hold for sets of policies that do not steer each other's traffic"
            if is_transit
            else ""
        )
        return "\n".join(
            [
                f"max_link_utilisation over {len(lists.utilisation)} matrices, without failure and "
                f"under {self.failures} failures: {lists.value:.6g}, "
                f"bound {rounding.at_least(lists.bound)}, gap {rounding.gap_text(lists.gap)}",
                f"worst case{worst_case}; without failure {lists.utilisation[:, 0].max():.6g}; "
                f"shortest paths alone {lists.straight:.6g}",
                *(
                    [f"one list per {policy_unit}; with splits {lists.fractional:.6g}"]
                    if math.isfinite(lists.fractional)
                    else []
                ),
                f"{kind}: {len(self.policies.lists):,}{policies_note}; {lists.iterations} rounds, "
                f"{lists.solve_s:.3g} s",
            ]
        )


@dataclasses.dataclass(frozen=True, eq=False)
class _StaticInstance:
    """Matrices and failures that one set of segment lists must serve.

    Attributes:
        traffic: the matrices.
        failures: the failures.
        dags: shortest paths without failure, then under each.
    """

    traffic: TrafficMatrices
    failures: Sequence[Failure]
    dags: Sequence[EcmpDag]

    @classmethod
    def create(
        cls, config: SegmentsOptions, dag: EcmpDag, traffic: TrafficMatrices
    ) -> _StaticInstance:
        """Select the matrices and failures of the settings, and compute the shortest paths under
        each failure.

        Args:
            config: the settings.
            dag: shortest paths without failure.
            traffic: all matrices.
        """
        if config.matrices == 1:
            traffic = traffic.part(config.index, config.index + 1)
        failure_kinds = () if config.survive == "none" else (config.survive,)
        groups = {} if config.groups is None else load_groups(config.groups, dag.topology)
        failures = list(failures_of(failure_kinds, dag.topology, groups))
        dags = [dag, *(dag.without(list(failure.links)) for failure in failures)]
        return cls(traffic, failures, dags)

    def utilisations(self, policies: SegmentPolicies | None = None) -> FloatArray:
        """Return the largest link utilisation (M, 1 + F) of each matrix, without and under each
        failure.

        Args:
            policies: the segment lists; None for shortest paths alone.
        """
        routing = IgpRouting(self.dags[0], self.traffic.pairs, policies)
        return utilisations(routing, self.traffic, self.failures)

    def demand_without_path(self) -> list[float]:
        """Return the largest Gbit/s without a path of any matrix, without and under each failure
        (1 + F).
        """
        pairs = np.asarray(self.traffic.pairs, dtype=np.int64)
        return [
            max(
                float(block[:, ~dag.reaches[pairs[:, 1], pairs[:, 0]]].sum(1).max())
                for block in self.traffic.chunks()
            )
            for dag in self.dags
        ]


def solve_static(
    config: SegmentsOptions,
    dag: EcmpDag,
    traffic: TrafficMatrices,
    deadline: Deadline,
    notify: Callable[[str], None],
) -> StaticReport:
    """Optimise segment lists that serve all matrices and failures of the settings.

    The lists are optimised for some matrices and evaluated on all of them; matrices under which the
    utilisation exceeds the result are added, until no matrix exceeds it.

    Args:
        config: the settings.
        dag: shortest paths without failure.
        traffic: the matrices.
        deadline: time limit, after which the incumbent is returned.
        notify: called with the progress.
    """
    progress = throttled(notify)

    def report(round_index: int, value: float, bound: float) -> None:
        """Report the value and the bound of a round, at most every few seconds."""
        progress(f"round {round_index}: value {value:.6g}, bound {bound:.6g}")

    # Matrices and failures; the first matrices are those with the worst shortest-path routing.
    instance = _StaticInstance.create(config, dag, traffic)
    failures = instance.failures
    shortest_path_utilisation = instance.utilisations()
    first_matrix_indices = worst_matrix_indices(shortest_path_utilisation, config.matrices)
    # Demand without a path, under each failure.
    unroutable = instance.demand_without_path()
    if max(unroutable) > 0:
        worst_failure_index = int(np.argmax(unroutable))
        under_failure = (
            f" when {failures[worst_failure_index - 1].name} fails"
            if worst_failure_index
            else " without failure"
        )
        notify(
            f"up to {max(unroutable):.6g} Gbit/s of demand has no path{under_failure} and is "
            "excluded"
        )
    # Optimise, and evaluate on all matrices.
    solution, num_exceeding = _optimise_all_matrices(
        config, instance, first_matrix_indices, deadline, notify, report
    )
    solution = dataclasses.replace(
        solution,
        policies=_with_algorithm(solution.policies, config),
        value=float(solution.utilisation.max()),
        straight=float(shortest_path_utilisation.max()),
    )
    worst_index = int(solution.utilisation.max(0).argmax())
    return StaticReport(
        dag.topology,
        solution,
        failures[worst_index - 1].name if worst_index else "",
        len(failures),
        max(unroutable),
        solution.reached and not num_exceeding,
        solution.stopped_by,
        config.at_most,
    )


def _optimise_all_matrices(
    config: SegmentsOptions,
    instance: _StaticInstance,
    matrix_indices: Int64Array,
    deadline: Deadline,
    notify: Callable[[str], None],
    report: Callable[[int, float, float], None],
) -> tuple[StaticLists, int]:
    """Optimise segment lists for some matrices, evaluate them on all, and add matrices under which
    the utilisation exceeds the result, until no matrix exceeds it.

    Args:
        config: the settings.
        instance: matrices and failures.
        matrix_indices: indices of the matrices of the first search.
        deadline: time limit, after which the incumbent is returned.
        notify: called when matrices are added.
        report: called after each round with its index, the incumbent's value and the bound.

    Returns:
        the lists with the utilisations of all matrices, and the number of matrices that exceed the
        result when the deadline ends the search.
    """
    pairs = np.asarray(instance.traffic.pairs, dtype=np.int64)
    while True:
        solution = static_lists(
            instance.dags,
            pairs,
            instance.traffic.read(matrix_indices),
            gap=config.gap,
            few=_policy_limit(config),
            one_list=config.one_list,
            transit=config.transit,
            deadline=deadline,
            max_rounds=config.max_iterations,
            report=report,
        )
        # Evaluate on all matrices: which of the others exceed the result, or the target?
        utilisation = instance.utilisations(solution.policies)
        allowed_utilisation = max(solution.value, config.target_utilisation) * (1 + TARGET_ROUNDING)
        exceeding_matrices = np.setdiff1d(
            np.flatnonzero(utilisation.max(1) > allowed_utilisation), matrix_indices
        )
        if not len(exceeding_matrices) or deadline.is_over:
            return dataclasses.replace(solution, utilisation=utilisation), len(exceeding_matrices)
        # Add the worst of the matrices that exceed the result.
        notify(
            f"{len(exceeding_matrices)} matrices outside the search exceed a utilisation of "
            f"{100 * allowed_utilisation:.2f}%: adding the worst "
            f"{min(len(exceeding_matrices), _MAX_ADDED)}"
        )
        matrix_indices = np.concatenate(
            [
                matrix_indices,
                exceeding_matrices[
                    np.argsort(-utilisation.max(1)[exceeding_matrices])[:_MAX_ADDED]
                ],
            ]
        )


# Matrices that a round adds to the search.
_MAX_ADDED = 4


def run_segments(
    config: SegmentsConfig, notify: Callable[[str], None]
) -> SegmentReport | StaticReport:
    """Optimise segment lists for the settings; write them if there is an output file.

    Args:
        config: the settings.
        notify: called with the progress.

    Raises:
        InputError: invalid settings, or an existing output file without --overwrite.
    """
    # Input; a wrong output file is reported before the search.
    if config.out is not None:
        check_out_file(config.out, (".json",), overwrite=config.overwrite)
    dag, traffic = load_segments(config, notify)
    deadline = (
        Deadline.after(seconds(config.deadline, "--deadline"))
        if config.deadline
        else Deadline(math.inf)
    )
    # Lists for several matrices or failures, the compiled search, or column generation.
    report: SegmentReport | StaticReport
    if config.is_static:
        report = solve_static(config, dag, traffic, deadline, notify)
    elif is_compiled_case(config):
        report = solve_two_segments(
            config, dag, traffic.pairs, traffic.read([config.index])[0], deadline, notify
        )
    else:
        report = solve_over(config, dag, traffic, deadline, notify)
    if isinstance(report, SegmentReport):
        report = with_tighter_free_bound(config, report, dag, traffic, notify)
    if config.out is not None:
        write_policies(config.out, report.topology, report.policies, report.to_json())
        notify(f"{config.out}: {len(report.policies.lists):,} policies written")
    return report


def segments_outcome(config: SegmentsConfig, notify: Notify) -> Outcome:
    """Run ``teal segments``; return its report, with exit code EXIT_GAP if the target gap was not
    reached.

    Args:
        config: the settings.
        notify: called with the progress.
    """
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
