"""One matrix over segment lists, from settings to a certified result: `teal solve --routing segments`."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from teal.config import SolveConfig
from teal.config.base import share
from teal.errors import InputError
from teal.evaluation.igp import load_igp
from teal.formats import load_traffic, topology_of
from teal.formats.allocations import finite_only
from teal.network import Topology, TrafficMatrices
from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentPolicies
from teal.pathops.segment_passes import SegmentPasses
from teal.runtime.arrays import FloatArray, IntArray
from teal.runtime.interruptible import Deadline
from teal.solvers.segments import SegmentProblem, SegmentResult, solve
from teal.solvers.segments.columns import FewPolicies, fewest_policies, finish
from teal.solvers.segments.one_list import OneList, one_list
from teal.solvers.segments.search import gap_between

_REPORT_EVERY_S = 2.0  # seconds between two progress messages
_TARGET_ROUNDING = 1e-6  # relative, of a utilisation at its target
_FINISH_S = 30.0  # for column generation where a search stalls, unless there is a deadline
_EXTRA_S = 60.0  # for the fewest policies or one list each, likewise


@dataclasses.dataclass(frozen=True, eq=False)
class SegmentReport:
    """What was found.

    Attributes:
        topology: the network, with the metrics in force.
        policies: lists of the demands that do not just follow the IGP.
        objective: total_flow or max_link_utilisation.
        value: of the installed lists: Gbit/s, or largest utilisation.
        bound: on the optimum over lists with one midpoint.
        free_bound: on the optimum over all paths.
        gap: between the value and ``bound``.
        free_gap: between the value and ``free_bound``.
        ecmp: value of the IGP's shortest paths alone.
        max_link_utilisation: of the installed lists.
        demand: Gbit/s of demands that have a path.
        lost: Gbit/s of demands whose ends are cut off from each other.
        latency_ms: mean over the volume.
        demands: number of demands above 0 that have a path.
        policies_bound: that no solution within the allowed utilisation has fewer policies; NaN unless asked for.
        fractional: value before one list was chosen for each demand; NaN unless asked for.
        iterations: of PDHG.
        solve_s: seconds.
        reached: whether the target gap was reached.
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
    fractional: float
    iterations: int
    solve_s: float
    reached: bool
    stopped_by: str

    def to_json(self) -> dict[str, Any]:
        """All figures; numbers that JSON cannot hold become null."""
        hidden = ("topology", "policies")
        figures = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in hidden}
        return finite_only({**figures, "policies": len(self.policies.lists)})

    def describe(self) -> str:
        """The same in a few lines."""
        balances = self.objective == "max_link_utilisation"
        unit = " Gbit/s" if self.objective in ("total_flow", "max_min") else ""
        few = f" (at least {self.policies_bound:g} are needed)" if math.isfinite(self.policies_bound) else ""
        lines = [
            f"{self.objective}: {self.value:.6g}{unit}, bound {self.bound:.6g}{unit}, gap {100 * self.gap:.3f}%",
            f"shortest paths alone {self.ecmp:.6g}{unit}",
            f"{len(self.policies.lists):,} of {self.demands:,} demands have a policy{few}; "
            f"mean latency {self.latency_ms:.4g} ms",
        ]
        if math.isfinite(self.free_bound):
            least = "least" if balances else "most"
            lines[1] = (
                f"over any paths at {least} {self.free_bound:.6g}{unit}: gap {100 * self.free_gap:.3f}%; {lines[1]}"
            )
        if math.isfinite(self.fractional):
            lines.append(f"one list for each demand; with splits {self.fractional:.6g}{unit}")
        if self.lost:
            lines.append(f"{self.lost:.6g} Gbit/s of demand between nodes without a path")
        return "\n".join([*lines, f"{self.iterations} iterations, {self.solve_s:.3g} s"])


def load_segments(config: SolveConfig, notify: Callable[[str], None]) -> tuple[EcmpDag, TrafficMatrices]:
    """Shortest paths of the network, and its traffic.

    Raises:
        InputError: a fault in what the user gave.
    """
    topology = topology_of(config)
    for note in topology.notes:
        notify(note)
    traffic = load_traffic(config.traffic, topology, unit=config.traffic_unit)
    if config.index >= traffic.num_matrices:
        raise InputError("--index", "", f"a matrix from 0 to {traffic.num_matrices - 1}", config.index)
    return load_igp(config, topology, notify)[1], traffic


def solved(
    config: SolveConfig,
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
    problem = SegmentProblem.of(dag, pairs, demand, balances=config.objective == "max_link_utilisation")
    lost = float(demand[~dag.reaches[pairs[:, 1], pairs[:, 0]]].sum())
    if lost > 0:
        notify(f"{lost:.6g} Gbit/s of demand between nodes without a path are left out")
    result = _ecmp(problem, config) if config.routing == "ecmp" else _solve(problem, config, deadline, notify)
    mid, shares, value, bound = result.mid, result.share, result.value, result.bound
    policies_bound = fractional = math.nan
    allowed = math.inf
    extra = deadline if config.deadline else Deadline.after(_EXTRA_S)
    if config.fewest_policies or config.target_utilisation:
        allowed = _allowed(config, result)
        few: FewPolicies = fewest_policies(problem, result, allowed, extra)
        mid, shares, value, policies_bound = few.mid, few.share, few.utilisation, float(few.bound)
    if config.one_list:
        fractional = value
        starts = [(mid, shares)] if math.isfinite(allowed) else [(mid, shares), _basic(problem, result, extra)]
        tried: list[OneList] = [one_list(problem, *start, extra) for start in starts]
        best = min(tried, key=lambda one: one.utilisation)
        mid, shares, value = best.mid, np.ones(best.mid.shape), best.utilisation
        if value > allowed * (1 + _TARGET_ROUNDING):
            policies_bound = math.nan  # which is of lists within the utilisation
            if config.target_utilisation:
                found = f"{config.target_utilisation:g}, where one list each was found for {value:.6g}"
                raise InputError("--one-list", "", "splits, or a larger --target-utilisation", found)
    load = problem.loads(mid, shares)
    policies = problem.policies(mid, shares)
    delay = SegmentPasses(dag).segment_sum(dag.topology.latency[None])[0]
    admitted = problem.demand * (1.0 if problem.balances else shares.sum(1))
    per_demand = policies.mean_over_lists(
        delay, dag.topology.latency, np.stack([problem.source, problem.target], 1), dag.topology.link_source
    )
    return SegmentReport(
        dag.topology, policies, str(config.objective), value, bound, result.free_bound,
        gap_between(problem, value, bound), gap_between(problem, value, result.free_bound), _ecmp_value(problem),
        problem.utilisation(load), float(problem.demand.sum()), lost,
        float((admitted * per_demand).sum() / max(admitted.sum(), 1e-300)), len(problem.demand), policies_bound,
        fractional, result.iterations, time.perf_counter() - begin, result.gap <= config.gap, result.stopped_by,
    )  # fmt: skip


def _allowed(config: SolveConfig, result: SegmentResult) -> float:
    """The utilisation within which policies are to be few.

    Raises:
        InputError: no lists keep the target, or the search has found none that do.
    """
    if config.fewest_policies:
        return result.value * (1 + share(config.fewest_policies, "--fewest-policies"))
    target = config.target_utilisation
    if result.bound > target * (1 + _TARGET_ROUNDING):
        expected = f"at least {result.bound:.6g}: no lists with one midpoint load every link less"
        raise InputError("--target-utilisation", "", expected, target)
    if result.value > target * (1 + _TARGET_ROUNDING):
        reached = math.ceil(result.value * 1e5) / 1e5
        expected = f"at least {reached:g}, which was reached (down to {result.bound:.6g} is not excluded)"
        raise InputError("--target-utilisation", "", expected, target)
    return max(target, result.value)


def _solve(
    problem: SegmentProblem, config: SolveConfig, deadline: Deadline, notify: Callable[[str], None]
) -> SegmentResult:
    last = time.perf_counter()

    def report(iterations: int, gap: float) -> None:
        nonlocal last
        if time.perf_counter() - last > _REPORT_EVERY_S:
            last = time.perf_counter()
            notify(f"{iterations} iterations: gap {100 * gap:.3f}%")

    result = solve(problem, config.gap, deadline, config.max_iterations, report)
    if result.stopped_by == "stall":
        notify(f"gap {100 * result.gap:.3f}% after {result.iterations} iterations: column generation ends the search")
        rest = deadline if config.deadline else Deadline.after(_FINISH_S)
        result = finish(problem, result, config.gap, rest)
    return result


def _basic(problem: SegmentProblem, result: SegmentResult, deadline: Deadline) -> tuple[IntArray, FloatArray]:
    """A solution that splits few demands, a good start for one list each."""
    few = fewest_policies(problem, result, result.value * (1 + 1e-3), deadline)
    return few.mid, few.share


def _direct(problem: SegmentProblem) -> tuple[IntArray, FloatArray]:
    return np.ascontiguousarray(problem.target[:, None]), np.ones((len(problem.target), 1))


def _ecmp_value(problem: SegmentProblem) -> float:
    """Utilisation of the shortest paths, or the flow if every demand is cut by the same factor that makes it fit."""
    utilisation = problem.utilisation(problem.loads(*_direct(problem)))
    return utilisation if problem.balances else float(problem.demand.sum() / max(1.0, utilisation))


def _ecmp(problem: SegmentProblem, config: SolveConfig) -> SegmentResult:
    """Shortest paths alone, with the bound of a search of no iterations."""
    bounds = solve(problem, config.gap, max_iterations=0)
    mid, shares = _direct(problem)
    value = _ecmp_value(problem)
    if not problem.balances:
        shares = shares * value / problem.demand.sum()
    gap = gap_between(problem, value, bounds.bound)
    return dataclasses.replace(bounds, mid=mid, share=shares, value=value, gap=gap)
