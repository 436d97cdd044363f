"""Solve one traffic matrix to a certified gap, for `teal solve`.

:func:`solve_matrix` loads network and traffic, solves over the candidate paths (or by column
generation over all paths), rounds the splits to those that routers can install, and measures the
allocation.  :func:`keep_within` limits churn after the solve: demands whose splits hardly differ
from those in force keep them, since each change of a router carries a risk.  Where that would
overload a link, the demands on it change after all, so that at most D rounds end with a feasible
allocation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from teal.allocation.settings import CertifyConfig, SolveConfig
from teal.app.command import seldom
from teal.app.instance import Instance, load_instance
from teal.app.path_sets import RoundsProgress, describe_gap_over_all_paths, proven
from teal.app.settings import seconds
from teal.app.warm_up import kernels_for_one_solve
from teal.errors import InputError
from teal.formats.allocations import read_allocation, read_splits, with_stored_paths
from teal.network import Topology, TrafficMatrices
from teal.network.unreachable import WithoutPath
from teal.objectives import Objective, ObjectiveName
from teal.problem import Allocation, Figures, Problem, Status, all_paths_bound, assess
from teal.problem.assessment import FIGURES, Assessment, LatencyFigures, latency_figures
from teal.problem.bounds import gap
from teal.problem.churn import ChurnLimit, live_part, share_moved
from teal.problem.lines import Lines, records, texts
from teal.runtime.arrays import FloatArray
from teal.runtime.interruptible import complete
from teal.runtime.kernel_cache import is_interpreting
from teal.runtime.memory import describe
from teal.runtime.rounding import bound_text, gap_text, percent_at_least, percent_at_most
from teal.runtime.storage import json_value
from teal.schemes.models import Model, named_model, starter_for
from teal.solvers.columns import improving
from teal.solvers.columns import prepare as prepare_columns
from teal.solvers.pdhg import PdhgResult, Stop, prepare, solve, takes_starter
from teal.solvers.pdhg.dense import bytes_needed
from teal.solvers.short_paths import preferred
from teal.solvers.table_search import installable
from teal.spec import parse_spec

# Share of a demand; smaller differences of splits are rounding.
_EQUAL_SPLIT_TOLERANCE = 1e-9
# Share of a link's capacity by which kept flows may exceed it.
_CAPACITY_TOLERANCE = 1e-9


def changes(problem: Problem, splits: Tensor, previous: Tensor) -> Tensor:
    """(B, D) true for demands above 0 whose splits differ from ``previous`` ones (see
    :func:`keep_within`).
    """
    return (
        (splits - live_part(problem.program, previous)).abs().amax(-1) > _EQUAL_SPLIT_TOLERANCE
    ) & (problem.demand > 0)


def keep_within(problem: Problem, splits: Tensor, previous: Tensor, share: float) -> Tensor:
    """Keep the splits in force of every demand that would change by at most ``share`` of its rate.

    Args:
        problem: B matrices, under an objective that maximises a value.
        splits: (B, D, K) feasible.
        previous: (B, D, K) or (D, K) in force; those on paths that are not live count as 0.
        share: in [0, 1]; a demand changes by what it sends onto paths, or takes off them, whichever
            is more.

    Returns:
        (B, D, K) splits.

    Raises:
        InputError: a side condition other than a limit on churn, which kept splits may break.
    """
    # Other conditions may be violated by splits in force.
    for condition in problem.conditions:
        if not isinstance(condition, ChurnLimit):
            raise InputError(
                "keep_within",
                condition.name,
                "no side condition other than a limit on churn",
                "one that splits in force may violate",
            )
    live_splits = live_part(problem.program, previous)
    difference = splits - live_splits
    change = torch.maximum(difference.clamp(min=0).sum(-1), (-difference).clamp(min=0).sum(-1))
    is_kept = change <= share
    # Give up the splits in force of demands on overloaded links, until none is overloaded.
    while True:
        mixed = torch.where(is_kept[..., None], live_splits, splits)
        is_over = problem.loads(mixed.to(problem.demand)) > problem.capacity * (
            1 + _CAPACITY_TOLERANCE
        )
        on_full = problem.ops.path_max(is_over.to(problem.capacity))[0] > 0
        too_much = is_kept & (on_full & (live_splits > 0)).any(-1)
        if not bool(too_much.any()):
            return mixed
        is_kept = is_kept & ~too_much


# Satisfied demand and largest utilisation below which units are more likely wrong than networks so
# loaded.
_MIN_SATISFIED = 0.01
_MIN_UTILISATION = 0.001
# Maximum rounds of column generation, which ends long before if nothing can be added.
_MAX_ROUNDS = 1_000
# Seconds between two progress messages.
_REPORT_EVERY_S = 2.0
_ROUNDED = "rounding of the splits (--entries, --min-split, --keep-within)"
# What ended a search, for messages.
STOPPED_BY = {
    Stop.GAP: "rounding: the search has the gap, its independent measurement just does not",
    Stop.ROUNDING: "the range of numbers: magnitudes are too far apart for float64",
    Stop.DEADLINE: "the deadline",
    Stop.ITERATIONS: "the iteration limit",
    Stop.STALLED: "a gap that no longer shrinks",
    Stop.INFEASIBLE: "a proof that not all demand can be carried",
}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SolveFigures(Figures):
    """Figures of one matrix, as `teal solve` prints them (see
    :class:`teal.problem.assessment.Figures`).

    Attributes:
        objective: the program.
        gap_all_paths: certified gap of the splits that are returned to the optimum over all paths
            of the network, by the same prices; NaN where these prove nothing over all paths.
        iterations: iterations of PDHG.
        build_s: seconds for paths, problem and model.
        solve_s: seconds to solve.
        bound_s: seconds for ``gap_all_paths``.
        status: feasible, or infeasible (the validator's verdict).
        reached: whether the target gap was reached, by the splits that are returned.
        stopped_by: what ended the search if it was not.
        moved_share: with an allocation in force, share of the routable demand that moves.
        changed: with an allocation in force, number of demands above 0 whose splits change.
        latency: latency of the carried flow; None where paths are in parts.
        lines: certified figures of each class or level, where the objective is a sequence of
            programs.
        without_path: demands without a path that works; None where they are not known.
        largest_share: share of every demand that the splits carry, and share that no allocation
            exceeds, where prices prove that not all demand can be carried; None elsewhere.
        over_all_paths: whether paths were added until the gap to all paths was reached.
    """

    objective: Objective
    gap_all_paths: float
    iterations: int
    build_s: float
    solve_s: float
    bound_s: float
    status: str
    reached: bool
    stopped_by: str
    lines: Lines | None = None
    moved_share: float | None = None
    changed: int | None = None
    latency: LatencyFigures | None = None
    without_path: WithoutPath | None = None
    largest_share: tuple[float, float] | None = None
    over_all_paths: bool = False

    @property
    def usable(self) -> bool:
        """Whether there is an allocation that may be installed."""
        return Status(self.status).usable

    def to_json(self) -> dict[str, Any]:
        """All figures; numbers that JSON cannot hold become null."""
        # Figures of all programs.
        names = (
            *FIGURES,
            "gap_all_paths",
            "iterations",
            "build_s",
            "solve_s",
            "bound_s",
            "status",
            "reached",
        )
        parts: dict[str, Any] = {}
        if self.lines is not None:
            parts = {**self.lines.counts(0), self.lines.parts: records(self.lines, 0)}
        figures = {name: getattr(self, name) for name in names}
        moved = (
            {}
            if self.moved_share is None
            else {"moved_share": self.moved_share, "changed": self.changed}
        )
        # Figures of some programs and options only.
        loss_gap = self.objective.rules.loss_gap(self.value, self.bound)
        loss = {} if loss_gap is None else {"loss_gap": loss_gap}
        names = ("latency_mean", "latency_99", "largest_stretch")
        latency = {} if self.latency is None else dict(zip(names, self.latency, strict=True))
        lost = {} if self.without_path is None else {"without_path": self.without_path.to_json()}
        names = ("largest_share", "largest_share_bound")
        share = (
            {} if self.largest_share is None else dict(zip(names, self.largest_share, strict=True))
        )
        # All figures in their order.
        entries = {"objective": self.objective.spec, **figures, **lost, **share, **loss, **latency}
        return dict(json_value({**entries, **parts, **moved}))

    def unit_hint(self) -> str:
        """A hint where demand and capacity seem to be in different units; ``""`` if they do not."""
        ask = "is the unit right (--traffic-unit Mbit/s, --attributes capacity_unit=Mbit/s)?"
        if self.satisfied_demand < _MIN_SATISFIED:
            return f"only {100 * self.satisfied_demand:.3g}% of the demand is satisfied: {ask}"
        if 0 < self.max_link_utilisation < _MIN_UTILISATION:
            return (
                f"the fullest link is at {100 * self.max_link_utilisation:.2g}% of its capacity: "
                f"{ask}"
            )
        return ""

    def describe(self) -> str:
        """The figures in a few lines of text."""
        if self.largest_share is not None:
            return self._describe_share(*self.largest_share)
        unit = self.objective.rules.unit
        bound = bound_text(self.bound, self.objective.rules.sense)
        lines = [
            f"{self.objective.spec}: {self.value:.6g}{unit}, bound {bound}{unit}, gap "
            f"{gap_text(self.gap)}"
            + (
                " (Gbit/s less what latency costs)"
                if self.objective.name == ObjectiveName.LATENCY_PENALISED_FLOW
                else ""
            ),
            f"satisfied demand {100 * self.satisfied_demand:.2f}%, "
            f"largest link utilisation {self.max_link_utilisation:.4g}, largest violation "
            f"{self.max_violation:.1g}",
            *self._lost_line(),
            *self._further_lines(),
            *([] if self.latency is None else [_latency_line(self.latency)]),
            f"{self.iterations} iterations; build {self.build_s:.3g} s, solve {self.solve_s:.3g} s",
        ]
        return "\n".join(lines)

    def _describe_share(self, share: float, bound: float) -> str:
        lines = [f"{self.objective.spec}: infeasible, not all demand can be carried"]
        if bound > 0:
            lines += [
                f"of every demand at most {percent_at_most(bound)} (proved by prices of the links)",
                f"the splits carry {percent_at_least(share)} of every demand",
            ]
        lines += [
            *self._lost_line(),
            f"{self.iterations} iterations; build {self.build_s:.3g} s, solve {self.solve_s:.3g} s",
        ]
        return "\n".join(lines)

    def _lost_line(self) -> list[str]:
        if self.without_path is None or not self.without_path.pairs:
            return []
        is_left_out = self.objective.rules.carries_all and self.largest_share is None
        left_out = "; value and bound leave them out" if is_left_out else ""
        return [self.without_path.sentence() + left_out]

    def _further_lines(self) -> list[str]:
        lines = []
        loss_gap = self.objective.rules.loss_gap(self.value, self.bound)
        if loss_gap is not None:
            label = self.objective.rules.measure_label
            lines.append(
                f"{label} {100 * self.value:.4f}%; the gap is {100 * loss_gap:.3f}% of what is lost"
            )
        if self.moved_share is not None:
            changed = f"the splits of {self.changed:,} demands change"
            lines.append(f"{100 * self.moved_share:.2f}% of the volume moves; {changed}")
        if self.lines is not None:
            lines += texts(self.lines, 0)
        elif self.moved_share is None:
            unknown = (
                " (--over-all-paths finds prices that do)"
                if math.isnan(self.gap_all_paths) and not self.over_all_paths
                else ""
            )
            lines.append(describe_gap_over_all_paths(self.gap_all_paths) + unknown)
        return lines


def _latency_line(latency: LatencyFigures) -> str:
    return (
        f"latency {latency.mean:.4g} ms on average, {latency.tail:.4g} ms for 99% of the volume, "
        f"at most {latency.stretch:.3g} times the fastest path"
    )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SolveReport(SolveFigures):
    """One matrix, allocated and measured.

    Attributes:
        problem: the problem, B = 1.
        splits: (D, K).
        allocation: the splits with the prices that prove the bound.
    """

    problem: Problem
    splits: Tensor
    allocation: Allocation


def solve_matrix(
    config: SolveConfig,
    notify: Callable[[str], None] = lambda _: None,
    compile_first: Callable[[int], None] = lambda _: None,
) -> SolveReport:
    """Load, solve, and measure.

    Args:
        config: the settings.
        notify: called with what was assumed and found, and with progress.
        compile_first: called with the number of demands, at most, once the network is known to need
            kernels that this machine has not compiled.

    Raises:
        InputError: invalid user input.
    """
    config = dataclasses.replace(config, traffic=traffic_up_to_index(config))
    model = named_model(config.model, Objective(config.objective))
    with contextlib.ExitStack() as kernels:
        rules = Objective(config.objective).rules
        needs_kernels = config.over_all_paths and rules.may_have_no_allocation

        def prepare_kernels(topology: Topology) -> None:
            num_pairs = topology.num_nodes * (topology.num_nodes - 1)
            if needs_kernels:
                compile_first(num_pairs)
                return
            kernels.enter_context(kernels_for_one_solve(num_pairs, compile_first))
            if is_interpreting():
                notify(
                    "nothing is compiled on this machine yet: HiGHS solves a network of this size"
                )

        deadline = seconds(config.deadline, "--deadline") if config.deadline else math.inf
        instance = load_instance(
            config, notify, partial(selected, config), prepare_kernels, deadline
        )
        return _solve_instance(config, instance, notify, model)


def _solve_instance(
    config: SolveConfig, instance: Instance, notify: Callable[[str], None], named: Model | None
) -> SolveReport:
    """Solve one matrix of a loaded instance, and measure the allocation.

    Args:
        config: the settings.
        instance: network, candidate paths and traffic.
        notify: as in :func:`solve_matrix`.
        named: model to start from; None where the settings name none.

    Raises:
        InputError: invalid user input.
    """
    # Build the problem, and choose the start.
    begin = time.perf_counter()
    setup = _build_problem(config, instance, notify)
    _prepare_backend(setup.problem, notify)
    model = None if config.over_all_paths else starter_for(config.model, named, setup.problem.paths)
    build_s = setup.instance.paths_s + time.perf_counter() - begin
    starter = model if takes_starter(setup.problem) else None
    # Compile and load the kernels, which does not count as solving.
    if config.over_all_paths:
        prepare_columns(setup.problem, config.gap)
    else:
        prepare(setup.problem, gap=config.gap, engine=config.engine, starter=starter)
    # Solve, over all paths of the network or over the candidate paths.
    begin = time.perf_counter()
    if config.over_all_paths:
        search = _search_over_all_paths(config, setup, notify)
    else:
        search = _search_over_candidates(config, setup, starter, notify)
    preferred_splits = search.result.splits
    if search.result.largest_share is None and not config.previous:
        preferred_splits = preferred(search.problem, preferred_splits, config.prefer)
    solve_s = time.perf_counter() - begin
    # Round the splits to those that routers can install, and measure them.
    installation = _round_splits(config, search, preferred_splits, setup.in_force, notify)
    return _report(
        config,
        search,
        installation,
        build_s=build_s,
        solve_s=solve_s,
        is_rounded=installation.splits is not preferred_splits,
    )


def _report(
    config: SolveConfig,
    search: _Search,
    installation: _Installation,
    *,
    build_s: float,
    solve_s: float,
    is_rounded: bool,
) -> SolveReport:
    """Measure the allocation, and report its figures.

    Args:
        config: the settings.
        search: result of the search.
        installation: splits to install.
        build_s: seconds for paths, problem and model.
        solve_s: seconds to solve.
        is_rounded: whether the splits differ from those of the search.
    """
    problem = search.problem
    result = search.result
    splits = installation.splits
    # Measure the allocation, and its gap to the optimum over all paths.
    allocation = dataclasses.replace(
        Allocation.of_batch(splits, result.prices, solve_s, result.program_prices),
        status=result.allocation.status,
    )
    assessment = assess(problem, allocation)
    begin = time.perf_counter()
    gap_all_paths = _measure_gap_all_paths(search, assessment)
    bound_s = time.perf_counter() - begin
    # Compare the gap with its target, before and after rounding.
    figures = assessment.figures(0)
    was_reached = bool(search.target_gap[0] <= config.gap)
    lost_by_rounding = (
        is_rounded and (gap_all_paths if config.over_all_paths else figures.gap) > config.gap
    )
    stopped_by = STOPPED_BY[result.stopped_by[0]]
    return SolveReport(
        problem=problem,
        objective=problem.objective,
        splits=splits[0],
        allocation=allocation,
        gap_all_paths=proven(gap_all_paths),
        iterations=result.iterations,
        build_s=build_s,
        solve_s=solve_s,
        bound_s=bound_s,
        status=assessment.status[0].value,
        reached=was_reached and not lost_by_rounding,
        stopped_by=_ROUNDED if was_reached and lost_by_rounding else stopped_by,
        moved_share=installation.moved_share,
        changed=installation.changed,
        latency=latency_figures(problem, splits[0]),
        lines=assessment.lines,
        over_all_paths=config.over_all_paths,
        largest_share=None
        if result.largest_share is None
        else tuple(result.largest_share[0].tolist()),
        without_path=WithoutPath.of(
            problem.topology,
            problem.paths.pairs,
            problem.demand[0].cpu().numpy(),
            problem.routable[0].cpu().numpy(),
        ),
        **vars(figures),
    )


class _Setup(NamedTuple):
    """Problem of one matrix, with the inputs that it was built from.

    Attributes:
        instance: network, candidate paths and traffic, without the failed links.
        problem: the problem, B = 1.
        in_force: (D, K) splits in force; None without ``--previous``.
    """

    instance: Instance
    problem: Problem
    in_force: Tensor | None


def _build_problem(
    config: SolveConfig, instance: Instance, notify: Callable[[str], None]
) -> _Setup:
    """Build the problem of the requested matrix: failed links, splits in force, limit on churn.

    Raises:
        InputError: an unknown failed link, an unreadable allocation in force, or an objective that
            ``--keep-within`` does not support.
    """
    # Remove the failed links.
    capacity = capacity_in_force(config, instance.topology, notify)
    if capacity is not None:
        instance = instance.surviving([np.flatnonzero(capacity == 0).tolist()], notify)
    # Add the paths of the allocation in force.
    stored = None
    location = str(config.previous)
    if config.previous is not None:
        stored = read_allocation(config.previous)
        # A path in force may be longer than a limit.
        if not config.latency_limits:
            paths = with_stored_paths(
                stored, instance.topology, instance.paths, location, instance.traffic.classes
            )
            instance = dataclasses.replace(instance, paths=paths)
    row = 0 if config.carrying else config.index
    problem = instance.problem(instance.traffic.read([row]), capacity=capacity)
    if stored is None:
        return _Setup(instance, problem, None)
    # Limit the volume that moves away from the splits in force.
    in_force = torch.from_numpy(
        read_splits(stored, instance.topology, problem.paths, location, problem.classes)
    )
    if config.max_churn is not None:
        problem = problem.with_churn_limit(in_force, config.max_churn)
    elif problem.objective.rules.carries_all:
        raise InputError(
            "--keep-within", "", "an objective that maximises a value", problem.objective.name
        )
    return _Setup(instance, problem, in_force)


def _prepare_backend(problem: Problem, notify: Callable[[str], None]) -> None:
    """Report the memory that a GPU needs, or pack the paths for the CPU."""
    if problem.ops.backend.name == "cuda":
        matrix_bytes = bytes_needed(problem.paths, torch.float32)
        path_bytes = problem.paths.levels.num_bytes
        needs = (
            f"paths take about {describe(path_bytes)} of its memory, solving "
            f"{describe(matrix_bytes)}"
        )
        notify(f"{problem.ops.device}: {needs}")
    else:
        # Computed here, so that its time counts as building.
        _ = problem.paths.packed


class _Search(NamedTuple):
    """Result of a search, with the problem that it ended with.

    Attributes:
        problem: the problem, B = 1, with the paths that were added.
        result: splits and prices over its paths.
        target_gap: (B,) certified gap that ``--gap`` refers to.
        bound_all_paths: (B,) bound on the optimum over all paths; None if it is still unknown.
    """

    problem: Problem
    result: PdhgResult
    target_gap: Tensor
    bound_all_paths: Tensor | None


def _search_over_all_paths(
    config: SolveConfig, setup: _Setup, notify: Callable[[str], None]
) -> _Search:
    """Solve by column generation, to the gap to the optimum over all paths of the network."""
    problem = setup.problem
    last = complete(
        improving(
            problem,
            target=config.gap,
            max_rounds=_MAX_ROUNDS,
            max_iterations=config.max_iterations,
            deadline=setup.instance.end,
            report=RoundsProgress(notify, _REPORT_EVERY_S),
        )
    )
    added = int(last.paths.mask.sum()) - int(problem.paths.mask.sum())
    notify(f"{added:,} paths added, at most {last.paths.num_paths} a demand")
    return _Search(
        problem.with_paths(last.paths), last.result, last.gap_all_paths, last.bound_all_paths
    )


def _search_over_candidates(
    config: SolveConfig, setup: _Setup, starter: Model | None, notify: Callable[[str], None]
) -> _Search:
    """Solve over the candidate paths."""
    result = solve(
        setup.problem,
        gap=config.gap,
        deadline=setup.instance.end.remaining,
        starter=starter,
        max_iterations=config.max_iterations,
        engine=config.engine,
        report=SolveProgress(notify),
    )
    return _Search(setup.problem, result, result.gap, None)


class _Installation(NamedTuple):
    """Splits that routers can install, and the changes against those in force.

    Attributes:
        splits: (1, D, K); the very tensor that the search preferred if nothing was rounded.
        moved_share: share of the routable demand that moves; None without splits in force.
        changed: number of demands above 0 whose splits change; None without splits in force.
    """

    splits: Tensor
    moved_share: float | None = None
    changed: int | None = None


def _round_splits(
    config: SolveConfig,
    search: _Search,
    preferred_splits: Tensor,
    in_force: Tensor | None,
    notify: Callable[[str], None],
) -> _Installation:
    """Apply ``--entries``, ``--min-split`` and ``--keep-within``, and report their cost.

    Args:
        config: the settings.
        search: result of the search.
        preferred_splits: (1, D, K) splits of the search, with the preferred paths.
        in_force: (D, K) splits in force; None if there are none.
        notify: as in :func:`solve_matrix`.
    """
    problem = search.problem
    # Without a feasible allocation, the splits carry a share of all demand and stay unchanged.
    splits = preferred_splits
    if search.result.largest_share is None:
        splits = installable(problem, preferred_splits, config.min_split, config.entries)
    if splits is not preferred_splits:
        notify(_cost_of(problem, preferred_splits, splits, "--min-split and --entries"))
    if in_force is None:
        return _Installation(splits)
    # Keep splits in force that hardly change.
    if config.keep_within:
        steady_splits = keep_within(problem, splits, in_force, config.keep_within)
        notify(_cost_of(problem, splits, steady_splits, "--keep-within"))
        splits = steady_splits
    return _Installation(
        splits,
        moved_share=float(share_moved(problem.program, splits.to(problem.demand), in_force)[0]),
        changed=int(changes(problem, splits, in_force).sum()),
    )


def _measure_gap_all_paths(search: _Search, assessment: Assessment) -> float:
    """Return the certified gap to the optimum over all paths; NaN where no bound is known."""
    problem = search.problem
    bound = search.bound_all_paths
    if bound is None and not problem.objective.rules.is_sequence and not problem.conditions:
        bound = all_paths_bound(problem, search.result.prices)
    if bound is None:
        return math.nan
    return float(gap(problem, assessment.value, bound)[0])


def signed_percent(share: float) -> str:
    """A change as text, with its sign: ``+1.250%``; a change of nothing has none."""
    change = round(100 * share, 3)
    return f"{change:+.3f}%" if change else "0.000%"


def _cost_of(problem: Problem, before: Tensor, after: Tensor, options: str) -> str:
    old = float(problem.value(before)[0])
    new = float(problem.value(after)[0])
    change = (new - old) / old if old else 0.0
    unit = problem.objective.rules.unit
    return f"{options}: {old:.6g}{unit} become {new:.6g}{unit} ({signed_percent(change)})"


def capacity_in_force(
    config: SolveConfig | CertifyConfig, topology: Topology, notify: Callable[[str], None]
) -> FloatArray | None:
    """(E,) capacities without the failed links; None if there are none."""
    if not config.fail:
        return None
    failed = topology.links_named(config.fail, "--fail")
    notify("failed: " + ", ".join(topology.link_name(link) for link in failed))
    return topology.with_failed_links(failed).capacity


class SolveProgress:
    """Prints a message about a long search from time to time."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._progress = seldom(notify)

    def __call__(self, iterations: int, gap: float) -> None:
        """Show a step, as ``report`` of :func:`teal.solvers.pdhg.solve`."""
        self._progress(
            f"{iterations} iterations" + (f": gap {100 * gap:.3g}%" if math.isfinite(gap) else "")
        )


def traffic_up_to_index(config: SolveConfig | CertifyConfig) -> str:
    """The traffic as specified; a generator without a count makes only the matrices up to the
    requested one.
    """
    if config.traffic.partition(":")[0] != "gravity" or config.calibrate is not None:
        return config.traffic
    if "count" in parse_spec(config.traffic).options:
        return config.traffic
    return f"{config.traffic}{',' if ':' in config.traffic else ':'}count={config.index + 1}"


def selected(config: SolveConfig | CertifyConfig, traffic: TrafficMatrices) -> TrafficMatrices:
    """The traffic with the requested matrix, and with its demands alone if ``config`` says so."""
    if config.index >= traffic.num_matrices:
        raise InputError(
            "--index", "", f"a matrix from 0 to {traffic.num_matrices - 1}", config.index
        )
    return (
        traffic.carrying(config.index)
        if isinstance(config, SolveConfig) and config.carrying
        else traffic
    )
