"""Solve one traffic matrix to a certified gap, for `teal solve`.

:func:`solve_matrix` loads network and traffic, solves over the candidate paths (or by column
generation over all paths), rounds the splits to those that routers can install, and computes the
figures of the allocation.  :func:`keep_within` limits churn after the solve: a demand whose new
splits hardly differ from its installed splits keeps the installed ones, since each router change
carries a risk.

Axes: B matrices, D demands, K candidate paths of a demand, E links.
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
from teal.app.command import throttled
from teal.app.instance import Instance, load_instance
from teal.app.path_sets import RoundsProgress, describe_gap_over_all_paths, proven
from teal.app.settings import seconds
from teal.app.warm_up import kernels_for_one_solve
from teal.errors import InputError
from teal.formats.allocations import read_allocation, read_splits, with_stored_paths
from teal.network import Topology, TrafficMatrices
from teal.network.unreachable import WithoutPath
from teal.objectives import Objective, ObjectiveName
from teal.problem import Allocation, Metrics, Problem, Status, all_paths_bound, assess
from teal.problem.assessment import METRICS, Assessment, LatencyMetrics, latency_metrics
from teal.problem.bounds import gap
from teal.problem.churn import ChurnLimit, live_part, share_moved
from teal.problem.part_certificates import PartCertificates, records, texts
from teal.runtime.arrays import FloatArray
from teal.runtime.interruptible import complete
from teal.runtime.kernel_cache import is_interpreting
from teal.runtime.memory import describe
from teal.runtime.rounding import bound_text, gap_text, percent_at_least, percent_at_most
from teal.runtime.storage import json_value
from teal.schemes.default_model import default_model
from teal.schemes.models import Model, named_model
from teal.solvers.columns import generating_columns
from teal.solvers.columns import prepare as prepare_columns
from teal.solvers.pdhg.dense import bytes_needed
from teal.solvers.pipeline import prepare, solve, takes_starter
from teal.solvers.result import SolveResult, Stage, Starter, Stop
from teal.solvers.short_paths import preferred
from teal.solvers.table_search import installable
from teal.spec import parse_spec

# Share of a demand; smaller differences of splits are rounding.
_EQUAL_SPLIT_TOLERANCE = 1e-9
# Tolerated overload of a link by kept splits, as a share of its capacity.
_CAPACITY_TOLERANCE = 1e-9


def changed_demands(problem: Problem, splits: Tensor, previous: Tensor) -> Tensor:
    """Return (B, D) whether a demand is positive and its splits differ from the installed ones.

    Args:
        problem: B matrices.
        splits: (B, D, K) new splits.
        previous: (B, D, K) or (D, K) installed splits; those on failed paths count as 0.
    """
    return (
        (splits - live_part(problem.program, previous)).abs().amax(-1) > _EQUAL_SPLIT_TOLERANCE
    ) & (problem.demand > 0)


def keep_within(problem: Problem, splits: Tensor, previous: Tensor, share: float) -> Tensor:
    """Return splits in which every demand with a small change keeps its installed splits.

    The change of a demand is max(sum_k (new_k - old_k)+, sum_k (old_k - new_k)+).  Demands with a
    change of at most ``share`` keep their installed splits.  While a link is overloaded, the kept
    demands on it take their new splits after all.  The loop ends after at most D rounds, since each
    round releases a demand and the new splits are feasible.

    Args:
        problem: B matrices, under an objective that maximises a value.
        splits: (B, D, K) new splits, feasible.
        previous: (B, D, K) or (D, K) installed splits; those on failed paths count as 0.
        share: largest change of a demand that keeps its splits, in [0, 1].

    Returns:
        (B, D, K) splits, feasible.

    Raises:
        InputError: a side condition other than a limit on churn; kept splits may violate it.
    """
    # The capacities alone are checked below: other side conditions could be violated.
    for condition in problem.conditions:
        if not isinstance(condition, ChurnLimit):
            raise InputError.invalid(
                "keep_within",
                condition.name,
                "the installed splits of a demand may violate this side condition",
                "keep splits only without side conditions, or with a limit on churn",
            )
    # (B, D, K) installed splits on live paths, and (B, D) change of each demand.
    installed_splits = live_part(problem.program, previous)
    difference = splits - installed_splits
    change = torch.maximum(difference.clamp(min=0).sum(-1), (-difference).clamp(min=0).sum(-1))
    # (B, D) whether a demand keeps its installed splits.
    is_kept = change <= share
    # Release the kept demands on overloaded links, until no link is overloaded.
    while True:
        mixed = torch.where(is_kept[..., None], installed_splits, splits)
        # (B, E) overloaded links, and (B, D, K) paths over at least one of them.
        is_overloaded = problem.loads(mixed.to(problem.demand)) > problem.capacity * (
            1 + _CAPACITY_TOLERANCE
        )
        is_path_overloaded = problem.ops.path_max(is_overloaded.to(problem.capacity))[0] > 0
        is_released = is_kept & (is_path_overloaded & (installed_splits > 0)).any(-1)
        if not bool(is_released.any()):
            return mixed
        is_kept = is_kept & ~is_released


# Satisfied fraction of the demand, and largest utilisation, below which a wrong unit is suspected.
_MIN_SATISFIED = 0.01
_MIN_UTILISATION = 0.001
# Maximum rounds of column generation; it usually ends long before, when no path can be added.
_MAX_ROUNDS = 1_000
# Seconds between two progress messages.
_REPORT_EVERY_S = 2.0
_ROUNDING_REASON = "rounding of the splits (--entries, --min-split, --keep-within)"
# Reasons why a search ended, as they follow "stopped by" in messages.
STOPPED_BY = {
    Stop.GAP: "rounding: the solver reached the gap, but the validated gap is just above it",
    Stop.ROUNDING: "the range of numbers: magnitudes are too far apart for float64",
    Stop.DEADLINE: "the deadline",
    Stop.ITERATIONS: "the iteration limit",
    Stop.STALLED: "a stalled search: the gap no longer shrinks",
    Stop.INFEASIBLE: "a proof that not all demand can be carried",
}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SolveMetrics(Metrics):
    """Results of the solve of one traffic matrix, as `teal solve` prints them.

    The base class holds value, satisfied demand, bound, gap, largest link utilisation and largest
    violation.

    Attributes:
        objective: objective of the program.
        gap_all_paths: certified gap between the returned splits and the optimum over all paths of
            the network, from the same link prices; NaN if the prices give no such bound.
        iterations: iterations of PDHG.
        build_s: seconds for paths, problem and model.
        solve_s: seconds to solve.
        bound_s: seconds for ``gap_all_paths``.
        status: feasible, or infeasible (the validator's verdict).
        reached: whether the returned splits reach the target gap.
        stopped_by: reason why the search ended, for the message if the gap was not reached.
        moved_share: share of the routable demand that moves to other paths, relative to the
            installed splits; None without installed splits.
        changed: number of positive demands whose splits change, relative to the installed splits;
            None without installed splits.
        latency: latency of the carried flow; None if the paths are in shards.
        part_certificates: certificate of each class or level, if the objective is a sequence of
            programs.
        without_path: positive demands without a live path; None if unknown.
        largest_share: if prices prove that not all demand can be carried: the common fraction of
            every demand that the splits carry, and its upper bound; None otherwise.
        over_all_paths: whether column generation added paths until the gap to the optimum over all
            paths was reached.
        trace: stages of the solve, for ``--explain``; empty without it.
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
    part_certificates: PartCertificates | None = None
    moved_share: float | None = None
    changed: int | None = None
    latency: LatencyMetrics | None = None
    without_path: WithoutPath | None = None
    largest_share: tuple[float, float] | None = None
    over_all_paths: bool = False
    trace: tuple[Stage, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether there is an allocation that may be installed."""
        return Status(self.status).usable

    def to_json(self) -> dict[str, Any]:
        """Return all figures as JSON values; NaN and infinity become null."""
        # Figures that every objective has.
        field_names = (
            *METRICS,
            "gap_all_paths",
            "iterations",
            "build_s",
            "solve_s",
            "bound_s",
            "status",
            "reached",
        )
        # Figures of the classes or levels of a sequence of programs; 0 is the only matrix.
        part_figures: dict[str, Any] = {}
        if self.part_certificates is not None:
            part_figures = {
                **self.part_certificates.counts(0),
                self.part_certificates.parts_key: records(self.part_certificates, 0),
            }
        figures = {name: getattr(self, name) for name in field_names}
        # Figures of some objectives and options only: churn relative to the installed splits, gap
        # as a fraction of the loss, latency, demands without a path, common served fraction.
        churn: dict[str, Any] = {}
        if self.moved_share is not None:
            churn = {"moved_share": self.moved_share, "changed": self.changed}
        loss_gap = self.objective.rules.loss_gap(self.value, self.bound)
        loss_figures = {} if loss_gap is None else {"loss_gap": loss_gap}
        # (mean, 99%, stretch), in the order of the fields of `LatencyFigures`.
        field_names = ("latency_mean", "latency_99", "largest_stretch")
        latency = {} if self.latency is None else dict(zip(field_names, self.latency, strict=True))
        unserved_figures = (
            {} if self.without_path is None else {"without_path": self.without_path.to_json()}
        )
        # (carried fraction, its upper bound).
        field_names = ("largest_share", "largest_share_bound")
        share_figures = (
            {}
            if self.largest_share is None
            else dict(zip(field_names, self.largest_share, strict=True))
        )
        trace: dict[str, Any] = {}
        if self.trace:
            trace = {"trace": [dataclasses.asdict(stage) for stage in self.trace]}
        # All figures in the documented order.
        entries = {
            "objective": self.objective.spec,
            **figures,
            **unserved_figures,
            **share_figures,
            **loss_figures,
            **latency,
        }
        return dict(json_value({**entries, **part_figures, **churn, **trace}))

    def unit_hint(self) -> str:
        """Return a hint if demand and capacity seem to be in different units, else ``""``."""
        question = "is the unit right (--traffic-unit Mbit/s, --attributes capacity_unit=Mbit/s)?"
        if self.satisfied_demand < _MIN_SATISFIED:
            return f"only {100 * self.satisfied_demand:.3g}% of the demand is satisfied: {question}"
        if 0 < self.max_link_utilisation < _MIN_UTILISATION:
            return (
                f"the fullest link is at {100 * self.max_link_utilisation:.2g}% of its capacity: "
                f"{question}"
            )
        return ""

    def describe(self) -> str:
        """Return the figures as a few lines of text."""
        # A program that prices prove to be infeasible has no value and gap.
        if self.largest_share is not None:
            return self._describe_share(*self.largest_share)
        # Value with bound and gap, service and utilisation, further figures, times.
        unit = self.objective.rules.unit
        bound = bound_text(self.bound, self.objective.rules.sense)
        lines = [
            f"{self.objective.spec}: {self.value:.6g}{unit}, bound {bound}{unit}, gap "
            f"{gap_text(self.gap)}"
            + (
                " (carried Gbit/s minus the latency penalty)"
                if self.objective.name == ObjectiveName.LATENCY_PENALISED_FLOW
                else ""
            ),
            f"satisfied demand {100 * self.satisfied_demand:.2f}%, "
            f"largest link utilisation {self.max_link_utilisation:.4g}, largest violation "
            f"{self.max_violation:.1g}",
            *self._without_path_line(),
            *self._further_lines(),
            *([] if self.latency is None else [_latency_line(self.latency)]),
            f"{self.iterations} iterations; build {self.build_s:.3g} s, solve {self.solve_s:.3g} s",
            *(stage.describe() for stage in self.trace),
        ]
        return "\n".join(lines)

    def _describe_share(self, share: float, bound: float) -> str:
        """Return the text of a program for which prices prove that not all demand can be carried.

        Args:
            share: common fraction of every demand that the splits carry.
            bound: upper bound on that fraction; 0 if a demand has no path.
        """
        lines = [f"{self.objective.spec}: infeasible, not all demand can be carried"]
        if bound > 0:
            lines += [
                f"of every demand at most {percent_at_most(bound)} (proved by the link prices)",
                f"the splits carry {percent_at_least(share)} of every demand",
            ]
        lines += [
            *self._without_path_line(),
            f"{self.iterations} iterations; build {self.build_s:.3g} s, solve {self.solve_s:.3g} s",
        ]
        return "\n".join(lines)

    def _without_path_line(self) -> list[str]:
        """Return a line about the demands without a path; an empty list if there are none."""
        if self.without_path is None or not self.without_path.pairs:
            return []
        is_excluded = self.objective.rules.carries_all and self.largest_share is None
        note = "; value and bound leave them out" if is_excluded else ""
        return [self.without_path.sentence() + note]

    def _further_lines(self) -> list[str]:
        """Return lines about the loss, the churn, and the classes or the gap over all paths."""
        lines = []
        # Objectives whose value is a fraction: the gap relative to the loss against full service.
        loss_gap = self.objective.rules.loss_gap(self.value, self.bound)
        if loss_gap is not None:
            label = self.objective.rules.measure_label
            lines.append(
                f"{label} {100 * self.value:.4f}%; the gap is {100 * loss_gap:.3f}% of the loss"
            )
        if self.moved_share is not None:
            changed = f"the splits of {self.changed:,} demands change"
            lines.append(f"{100 * self.moved_share:.2f}% of the volume moves; {changed}")
        # A bound over all paths exists for single programs without a limit on churn.
        if self.part_certificates is not None:
            lines += texts(self.part_certificates, 0)
        elif self.moved_share is None:
            hint = (
                " (--over-all-paths finds prices that do)"
                if math.isnan(self.gap_all_paths) and not self.over_all_paths
                else ""
            )
            lines.append(describe_gap_over_all_paths(self.gap_all_paths) + hint)
        return lines


def _latency_line(latency: LatencyMetrics) -> str:
    """Return a line with mean and 99% latency of the flow, ms, and the largest path stretch."""
    return (
        f"latency {latency.mean:.4g} ms on average, {latency.tail:.4g} ms for 99% of the volume, "
        f"at most {latency.stretch:.3g} times the fastest path"
    )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SolveReport(SolveMetrics):
    """Allocation of one matrix, with its figures.

    Attributes:
        problem: problem of the matrix, B = 1.
        splits: (D, K) splits to install.
        allocation: splits (1, D, K), and the link prices that prove the bound.
    """

    problem: Problem
    splits: Tensor
    allocation: Allocation


def solve_matrix(
    config: SolveConfig,
    notify: Callable[[str], None] = lambda _: None,
    compile_first: Callable[[int], None] = lambda _: None,
) -> SolveReport:
    """Load network and traffic, solve one matrix, and compute the figures of its allocation.

    Args:
        config: settings of `teal solve`.
        notify: prints one line of text: assumptions, warnings and progress.
        compile_first: compiles the kernels; called with an upper bound on the number of demands,
            if the network needs kernels that are not compiled on this machine yet.

    Raises:
        InputError: invalid user input.
    """
    # Generate no gravity matrices after the requested one.
    config = dataclasses.replace(config, traffic=traffic_up_to_index(config))
    model = named_model(config.model, Objective(config.objective))
    with contextlib.ExitStack() as kernel_context:
        # Column generation always compiles the kernels if the objective may be infeasible.
        rules = Objective(config.objective).rules
        needs_kernels = config.over_all_paths and rules.may_be_infeasible

        def prepare_kernels(topology: Topology) -> None:
            """Compile the kernels, or let HiGHS solve a small network without them."""
            num_pairs = topology.num_nodes * (topology.num_nodes - 1)
            if needs_kernels:
                compile_first(num_pairs)
                return
            kernel_context.enter_context(kernels_for_one_solve(num_pairs, compile_first))
            if is_interpreting():
                notify(
                    "the kernels are not compiled on this machine yet: HiGHS solves this small "
                    "network"
                )

        # Load the requested matrix over its network, and solve it.
        deadline = seconds(config.deadline, "--deadline") if config.deadline else math.inf
        instance = load_instance(
            config, notify, partial(select_matrix, config), prepare_kernels, deadline
        )
        return _solve_instance(config, instance, notify, model)


def _solve_instance(
    config: SolveConfig,
    instance: Instance,
    notify: Callable[[str], None],
    requested_model: Model | None,
) -> SolveReport:
    """Solve one matrix of a loaded instance, and compute the figures of its allocation.

    Args:
        config: settings of `teal solve`.
        instance: network, candidate paths and traffic.
        notify: prints one line of text.
        requested_model: model of ``--model``, whose prediction the solver starts from; None for
            the automatic choice or no model.

    Raises:
        InputError: invalid user input.
    """
    # Build the problem, and choose the model for the starting point.
    begin = time.perf_counter()
    setup = _build_problem(config, instance, notify)
    _prepare_backend(setup.problem, notify)
    starter: Starter | None = None
    if not config.over_all_paths and takes_starter(setup.problem):
        starter = requested_model
        if config.model == "auto":
            # A single solve: the model must save more than the time to load it.
            starter = default_model(setup.problem, config.gap, config.engine, counts_loading=True)
    build_s = setup.instance.paths_s + time.perf_counter() - begin
    # Compile and load the kernels; this does not count as solve time.
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
    # Move flow to short paths (--prefer), unless the solve starts from installed splits.
    preferred_splits = search.result.splits
    if search.result.largest_share is None and not config.previous:
        preferred_splits = preferred(search.problem, preferred_splits, config.prefer)
    solve_s = time.perf_counter() - begin
    # Round the splits to those that routers can install, and compute the figures.
    installation = _round_splits(config, search, preferred_splits, setup.installed_splits, notify)
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
    """Return the report of an allocation: value, bound, gap, feasibility and latency.

    Args:
        config: settings of `teal solve`.
        search: result of the solver.
        installation: splits to install, rounded.
        build_s: seconds for paths, problem and model.
        solve_s: seconds to solve.
        is_rounded: whether rounding changed the splits of the solver.
    """
    problem = search.problem
    result = search.result
    # (1, D, K) splits to install.
    splits = installation.splits
    # Validate the allocation independently of the solver, and bound the optimum over all paths.
    allocation = dataclasses.replace(
        Allocation.of_batch(splits, result.prices, solve_s, result.program_prices),
        status=result.allocation.status,
    )
    assessment = assess(problem, allocation)
    begin = time.perf_counter()
    gap_all_paths = _certified_gap_all_paths(search, assessment)
    bound_s = time.perf_counter() - begin
    # Compare the gap with its target, before and after rounding: if only the solver's splits
    # reach it, rounding is reported as the cause.
    figures = assessment.metrics(0)
    solver_reached_gap = bool(search.target_gap[0] <= config.gap)
    rounding_exceeds_gap = (
        is_rounded and (gap_all_paths if config.over_all_paths else figures.gap) > config.gap
    )
    stopped_by = STOPPED_BY[result.stopped_by[0]]
    # Figures of the validator, of the solver, and of the installation.
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
        reached=solver_reached_gap and not rounding_exceeds_gap,
        stopped_by=_ROUNDING_REASON if solver_reached_gap and rounding_exceeds_gap else stopped_by,
        moved_share=installation.moved_share,
        changed=installation.changed,
        latency=latency_metrics(problem, splits[0]),
        part_certificates=assessment.part_certificates,
        over_all_paths=config.over_all_paths,
        trace=result.trace if config.explain else (),
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
    """Problem of one matrix, with its inputs.

    Attributes:
        instance: network, candidate paths and traffic, without the failed links.
        problem: problem of the matrix, B = 1.
        installed_splits: (D, K) splits of the allocation of ``--previous``; None without one.
    """

    instance: Instance
    problem: Problem
    installed_splits: Tensor | None


def _build_problem(
    config: SolveConfig, instance: Instance, notify: Callable[[str], None]
) -> _Setup:
    """Build the problem of the requested matrix: failed links, installed splits, limit on churn.

    Args:
        config: settings of `teal solve`.
        instance: network, candidate paths and traffic.
        notify: prints one line of text.

    Raises:
        InputError: an unknown failed link, an unreadable installed allocation, or an objective that
            ``--keep-within`` does not support.
    """
    # Remove the failed links.
    capacity = surviving_capacity(config, instance.topology, notify)
    if capacity is not None:
        instance = instance.surviving([np.flatnonzero(capacity == 0).tolist()], notify)
    # Add the paths of the installed allocation to the candidates.
    stored = None
    location = str(config.previous)
    if config.previous is not None:
        stored = read_allocation(config.previous)
        # With latency limits they are not added, since they may exceed a limit.
        if not config.latency_limits:
            paths = with_stored_paths(
                stored, instance.topology, instance.paths, location, instance.traffic.classes
            )
            instance = dataclasses.replace(instance, paths=paths)
    # --carrying reduced the traffic to the requested matrix.
    row = 0 if config.carrying else config.index
    problem = instance.problem(instance.traffic.read([row]), capacity=capacity)
    if stored is None:
        return _Setup(instance, problem, None)
    # Limit the volume that moves away from the installed splits.
    installed_splits = torch.from_numpy(
        read_splits(stored, instance.topology, problem.paths, location, problem.classes)
    )
    if config.max_churn is not None:
        problem = problem.with_churn_limit(installed_splits, config.max_churn)
    elif problem.objective.rules.carries_all:
        raise InputError(
            "--keep-within", "", "an objective that maximises a value", problem.objective.name
        )
    return _Setup(instance, problem, installed_splits)


def _prepare_backend(problem: Problem, notify: Callable[[str], None]) -> None:
    """Report the GPU memory that the solve needs, or pack the paths for the CPU kernels."""
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
    """Result of the solver, with the problem over the final candidate paths.

    Attributes:
        problem: problem of the matrix, B = 1, including paths of column generation.
        result: splits and link prices over the paths of ``problem``.
        target_gap: (1,) certified gap that ``--gap`` limits: to the optimum over all paths with
            column generation, else to the optimum over the candidate paths.
        bound_all_paths: (1,) bound on the optimum over all paths; None if not computed yet.
    """

    problem: Problem
    result: SolveResult
    target_gap: Tensor
    bound_all_paths: Tensor | None


def _search_over_all_paths(
    config: SolveConfig, setup: _Setup, notify: Callable[[str], None]
) -> _Search:
    """Solve by column generation until the gap to the optimum over all paths is at most ``--gap``.

    Args:
        config: settings of `teal solve`.
        setup: problem of the matrix over the initial candidate paths.
        notify: prints one line of text.
    """
    problem = setup.problem
    # Run the rounds of column generation to the end, and keep the last one.
    last_round = complete(
        generating_columns(
            problem,
            target=config.gap,
            max_rounds=_MAX_ROUNDS,
            max_iterations=config.max_iterations,
            deadline=setup.instance.end,
            report=RoundsProgress(notify, _REPORT_EVERY_S),
        )
    )
    added = int(last_round.paths.mask.sum()) - int(problem.paths.mask.sum())
    notify(f"{added:,} paths added, at most {last_round.paths.num_paths} a demand")
    return _Search(
        problem.with_paths(last_round.paths),
        last_round.result,
        last_round.gap_all_paths,
        last_round.bound_all_paths,
    )


def _search_over_candidates(
    config: SolveConfig, setup: _Setup, starter: Starter | None, notify: Callable[[str], None]
) -> _Search:
    """Solve over the candidate paths until the certified gap is at most ``--gap``.

    Args:
        config: settings of `teal solve`.
        setup: problem of the matrix.
        starter: model that predicts the starting point; None for no model.
        notify: prints one line of text.
    """
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
    """Splits that routers can install, and their changes relative to the installed splits.

    Attributes:
        splits: (1, D, K) splits; the same tensor object as the solver's if nothing was rounded.
        moved_share: share of the routable demand that moves to other paths; None without installed
            splits.
        changed: number of positive demands whose splits change; None without installed splits.
    """

    splits: Tensor
    moved_share: float | None = None
    changed: int | None = None


def _round_splits(
    config: SolveConfig,
    search: _Search,
    preferred_splits: Tensor,
    installed_splits: Tensor | None,
    notify: Callable[[str], None],
) -> _Installation:
    """Apply ``--entries``, ``--min-split`` and ``--keep-within``, and report their cost.

    Args:
        config: settings of `teal solve`.
        search: result of the solver.
        preferred_splits: (1, D, K) splits of the solver, moved to short paths by ``--prefer``.
        installed_splits: (D, K) splits of ``--previous``; None without them.
        notify: prints one line of text.

    Returns:
        splits to install, and their changes relative to the installed ones.
    """
    problem = search.problem
    # Round the splits, except those of an infeasible program, which carry a common fraction of all
    # demand.
    splits = preferred_splits
    if search.result.largest_share is None:
        splits = installable(problem, preferred_splits, config.min_split, config.entries)
    if splits is not preferred_splits:
        notify(_describe_cost(problem, preferred_splits, splits, "--min-split and --entries"))
    if installed_splits is None:
        return _Installation(splits)
    # Demands with a small change keep their installed splits.
    if config.keep_within:
        kept_splits = keep_within(problem, splits, installed_splits, config.keep_within)
        notify(_describe_cost(problem, splits, kept_splits, "--keep-within"))
        splits = kept_splits
    return _Installation(
        splits,
        moved_share=float(
            share_moved(problem.program, splits.to(problem.demand), installed_splits)[0]
        ),
        changed=int(changed_demands(problem, splits, installed_splits).sum()),
    )


def _certified_gap_all_paths(search: _Search, assessment: Assessment) -> float:
    """Return the certified gap to the optimum over all paths; NaN if no bound is known."""
    problem = search.problem
    bound = search.bound_all_paths
    if bound is None and not problem.objective.rules.is_sequence and not problem.conditions:
        bound = all_paths_bound(problem, search.result.prices)
    if bound is None:
        return math.nan
    return float(gap(problem, assessment.value, bound)[0])


def signed_percent(share: float) -> str:
    """Return a relative change as text with its sign: ``+1.250%``; ``0.000%`` if it rounds to 0."""
    change = round(100 * share, 3)
    return f"{change:+.3f}%" if change else "0.000%"


def _describe_cost(problem: Problem, old_splits: Tensor, new_splits: Tensor, options: str) -> str:
    """Return a line with the change of the objective value from old to new splits (1, D, K)."""
    old_value = float(problem.value(old_splits)[0])
    new_value = float(problem.value(new_splits)[0])
    change = (new_value - old_value) / old_value if old_value else 0.0
    unit = problem.objective.rules.unit
    return (
        f"{options}: the value changes from {old_value:.6g}{unit} to {new_value:.6g}{unit} "
        f"({signed_percent(change)})"
    )


def surviving_capacity(
    config: SolveConfig | CertifyConfig, topology: Topology, notify: Callable[[str], None]
) -> FloatArray | None:
    """Return the capacities (E,) in Gbit/s, 0 for the links of ``--fail``; None without any."""
    if not config.fail:
        return None
    failed = topology.links_named(config.fail, "--fail")
    notify("failed: " + ", ".join(topology.link_name(link) for link in failed))
    return topology.with_failed_links(failed).capacity


class SolveProgress:
    """Progress callback of the solver that prints a line every few seconds."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._progress = throttled(notify)

    def __call__(self, iterations: int, gap: float) -> None:
        """Print the iteration count and the certified gap, a fraction, if the last line is old."""
        self._progress(
            f"{iterations} iterations" + (f": gap {100 * gap:.3g}%" if math.isfinite(gap) else "")
        )


def traffic_up_to_index(config: SolveConfig | CertifyConfig) -> str:
    """Return the ``--traffic`` specification, limited to the matrices up to ``--index``.

    ``gravity`` without ``count`` gets ``count=INDEX + 1``, so that no further matrices are
    generated.  Other specifications are returned unchanged; so is ``gravity`` with ``--calibrate``,
    which needs every matrix.
    """
    if config.traffic.partition(":")[0] != "gravity" or config.calibrate is not None:
        return config.traffic
    if "count" in parse_spec(config.traffic).options:
        return config.traffic
    return f"{config.traffic}{',' if ':' in config.traffic else ':'}count={config.index + 1}"


def select_matrix(config: SolveConfig | CertifyConfig, traffic: TrafficMatrices) -> TrafficMatrices:
    """Return the traffic; with ``--carrying``, only the matrix of ``--index`` and its demands.

    Args:
        config: settings with the index.
        traffic: traffic matrices.

    Raises:
        InputError: the traffic has no matrix of that index.
    """
    if config.index >= traffic.num_matrices:
        raise InputError(
            "--index", "", f"a matrix from 0 to {traffic.num_matrices - 1}", config.index
        )
    return (
        traffic.carrying(config.index)
        if isinstance(config, SolveConfig) and config.carrying
        else traffic
    )
