"""Race: time to certified gaps, with the same kernels, clock and validator for all schemes.

Four situations, each with a matrix and the one before it: the next interval; a flash crowd (a tenth
of the demands multiplied by 10); failures of 1 to 5% of the cables; and a first interval without an
earlier state.  PDHG runs from a cold start and, if there is an earlier state, from a warm start.
Every scheme is timed once without a target; a warm one, such as ``lp-all:warm=true``, has solved
the earlier matrix before the clock starts.  From every scheme that gives PDHG a start
(:class:`teal.Starter`), PDHG runs to the same target gaps.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from teal.app.chart import COLOURS
from teal.app.command import Notify, Outcome
from teal.app.image import MARKERS, plain_log_axis
from teal.app.instance import Instance, load_instance, rows_of
from teal.app.run_files import write_files, write_manifest
from teal.app.table import Column, Table
from teal.app.text import time_text
from teal.errors import SolverError
from teal.formats.rows import write_csv
from teal.network.disturbances import fail_cables, flash_crowd
from teal.network.traffic import spread
from teal.problem import Problem
from teal.problem.allocation import Allocation
from teal.problem.assessment import assess
from teal.runtime.progress import progress_bar
from teal.runtime.storage import check_out_folder
from teal.schemes import Follower, make_scheme
from teal.schemes.models import model_of_each
from teal.schemes.registry import Scheme
from teal.solvers import pipeline
from teal.solvers.cost_model import may_benefit_from_model
from teal.solvers.result import SolveResult, SolveState, Starter
from teal_study.evaluation.settings import DEFAULT_SCHEMES, EvaluateConfig

NEXT, CROWD, FAILURES, FIRST = SITUATIONS = (
    "next interval",
    "flash crowd",
    "failures",
    "no earlier state",
)
# Certified gaps to which PDHG runs.
TARGETS = (0.05, 0.02, 0.01, 0.005, 0.002)
# Names of runs of PDHG: cold start, warm start, and suffix of a scheme that gives the start.
COLD = "pdhg cold"
WARM = "pdhg warm"
FROM = " + pdhg"
# Range from which the share of failed cables is drawn.
_FAILED_SHARES = (0.01, 0.05)
# Certified gap of the earlier state.
_EARLIER_GAP = 1e-3
# Maximum number of timed repetitions of a run.
_MAX_REPEATS = 5
# Total time of repetitions after which no more are made, seconds.
_MAX_REPEAT_S = 2.0
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class RaceRun:
    """One scheme in one situation, to one target gap.

    Attributes:
        topology: name of the network.
        traffic: name of the traffic.
        index: index of the matrix.
        situation: one of :data:`SITUATIONS`.
        scheme: specification of the scheme, with the suffix :data:`FROM` if PDHG continued from it.
        target: target gap; NaN for a scheme without one.
        seconds: median time over the repetitions, from the problem to the allocation.
        iterations: iterations of PDHG; 0 for other schemes.
        gap: certified gap by the scheme's own prices.
        satisfied_demand: served share of all demand.
        status: status of the scheme, or infeasible (the validator's verdict).
    """

    topology: str
    traffic: str
    index: int
    situation: str
    scheme: str
    target: float
    seconds: float
    iterations: int
    gap: float
    satisfied_demand: float
    status: str


def race(
    instance: Instance,
    schemes: Mapping[str, Scheme],
    rows: Sequence[int],
    *,
    seed: int = 0,
    targets: Sequence[float] = TARGETS,
    notify: Callable[[str], None] = lambda _: None,
) -> list[RaceRun]:
    """Run every scheme in each of :data:`SITUATIONS` of every matrix, and return all metrics.

    A scheme that raises SolverError is reported to ``notify`` and excluded from further runs.

    Args:
        instance: network, paths, traffic.
        schemes: schemes by name.
        rows: indices of the matrices; the previous matrix gives the earlier state, for matrix 0 the
            last one.
        seed: seed of flash crowds and failures.
        targets: certified gaps to which PDHG runs.
        notify: called with the error of each scheme that raises one.
    """
    active_schemes: dict[str, Scheme] = dict(schemes)
    runs: list[RaceRun] = []
    with progress_bar(total=len(rows) * len(SITUATIONS), desc="racing", unit="situation") as bar:
        for matrix_index in rows:
            for situation, problem, previous in situations(instance, int(matrix_index), seed):
                make_run = partial(
                    RaceRun,
                    instance.topology.name,
                    instance.traffic.name,
                    int(matrix_index),
                    situation,
                )
                runs += [
                    make_run(*metrics)
                    for metrics in _situation_runs(
                        problem, previous, active_schemes, targets, notify
                    )
                ]
                bar.update()
    return runs


@dataclasses.dataclass(frozen=True)
class PreviousInterval:
    """Previous interval: its problem and its solution.

    Attributes:
        problem: the previous matrix, on the network before any failure.
        result: its solution by PDHG.
    """

    problem: Problem
    result: SolveResult


def situations(
    instance: Instance, matrix_index: int, seed: int
) -> Iterator[tuple[str, Problem, PreviousInterval | None]]:
    """Yield name, problem and previous interval (None without an earlier state) of each situation.

    Args:
        instance: network, paths, traffic.
        matrix_index: index of the matrix.
        seed: seed of flash crowd and failures.
    """
    # The previous matrix (before matrix 0: the last one) and the matrix of this index; then the
    # solution of the previous one.
    rng = np.random.default_rng([seed, matrix_index])
    topology = instance.topology
    earlier_demand, demand = (
        instance.traffic.read([(matrix_index + offset) % instance.traffic.num_matrices])
        for offset in (-1, 0)
    )
    earlier_problem = instance.problem(earlier_demand)
    previous = PreviousInterval(earlier_problem, pipeline.solve(earlier_problem, gap=_EARLIER_GAP))
    # The next interval, a flash crowd, failures, and no earlier state.
    yield NEXT, instance.problem(demand), previous
    yield CROWD, instance.problem(flash_crowd(demand, rng)), previous
    num_failed = max(1, round(rng.uniform(*_FAILED_SHARES) * len(topology.cables())))
    failed_topology = topology.with_failed_links(fail_cables(topology, num_failed, rng))
    yield FAILURES, instance.problem(demand, capacity=failed_topology.capacity), previous
    yield FIRST, instance.problem(demand), None


# Result of a run: allocation, and number of PDHG iterations.
_RunResult = tuple[Allocation, int]
# Fields of a RaceRun, beginning with the scheme.
_RunMetrics = tuple[str, float, float, int, float, float, str]


def _situation_runs(
    problem: Problem,
    previous: PreviousInterval | None,
    schemes: dict[str, Scheme],
    targets: Sequence[float],
    notify: Callable[[str], None],
) -> Iterator[_RunMetrics]:
    """Yield the metrics of all runs of one situation: each scheme without a target, then PDHG from
    each start to each target.

    Args:
        problem: problem of the situation.
        previous: previous interval; None for none.
        schemes: schemes by name; one that raises SolverError is removed.
        targets: certified gaps to which PDHG runs.
        notify: called with failures.
    """
    # Each scheme without a target (NaN) and without PDHG iterations (0).  A follower continues from
    # the previous interval: it gets that problem before the clock starts.
    for name, scheme in list(schemes.items()):
        prepare = None
        if isinstance(scheme, Follower):
            prepare = partial(scheme.follow, previous.problem if previous else None)
        try:
            yield _timed_run(
                problem,
                name,
                math.nan,
                lambda scheme=scheme: (scheme.solve(problem), 0),  # type: ignore[misc]
                prepare,
            )
        except SolverError as error:
            notify(str(error))
            del schemes[name]
    # Starts of PDHG by name of the run: none (cold), the previous solution (warm), and each model.
    starts: dict[str, SolveResult | Starter | None] = {COLD: None}
    if previous is not None:
        starts[WARM] = previous.result
    starts |= {
        name + FROM: scheme for name, scheme in schemes.items() if isinstance(scheme, Starter)
    }
    for target in targets:
        for name, start in starts.items():
            yield _timed_run(
                problem,
                name,
                target,
                lambda start=start, target=target: _solve(problem, start, target),  # type: ignore[misc]
            )


def _solve(problem: Problem, start: SolveResult | Starter | None, target: float) -> _RunResult:
    """Run PDHG to a target gap; return the allocation and the number of iterations.

    Args:
        problem: problem of the situation.
        start: solution or model from which PDHG starts; None for a cold start.
        target: certified gap.
    """
    if isinstance(start, Starter) and not may_benefit_from_model(problem):
        # PDHG itself would not call the model for this problem; the race measures it all the same.
        model_state = SolveState(*start.start(problem))
        result = pipeline.solve(problem, gap=target, warm_start=model_state)
    elif isinstance(start, Starter):
        result = pipeline.solve(problem, gap=target, starter=start)
    else:
        result = pipeline.solve(problem, gap=target, warm_start=start)
    return result.allocation, result.iterations


def _timed_run(
    problem: Problem,
    name: str,
    target: float,
    solve: Callable[[], _RunResult],
    prepare: Callable[[], None] | None = None,
) -> _RunMetrics:
    """Time a run, and assess its allocation.

    Args:
        problem: problem of the situation.
        name: name of the run.
        target: target gap; NaN for none.
        solve: the run, which returns the allocation and the number of PDHG iterations.
        prepare: called before each repetition, untimed; None for nothing.

    Returns:
        fields of a RaceRun: scheme, target, seconds, iterations, gap, satisfied demand, status.
    """
    (allocation, iterations), seconds = timed(solve, prepare)
    assessment = assess(problem, allocation)
    satisfied = float(assessment.satisfied_demand[0])
    status = assessment.status[0].value
    return name, target, seconds, iterations, float(assessment.gap[0]), satisfied, status


def timed(run: Callable[[], _T], prepare: Callable[[], None] | None = None) -> tuple[_T, float]:
    """Return the result of a function, and the median of its seconds over the repetitions.

    A first run, which may compile, is not counted.

    Args:
        run: function without arguments whose calls are timed.
        prepare: called before each run, untimed; None for nothing.
    """
    # At least one counted run, at most _MAX_REPEATS, and no more once they took _MAX_REPEAT_S.
    times: list[float] = []
    while len(times) <= _MAX_REPEATS and (len(times) < 2 or sum(times[1:]) < _MAX_REPEAT_S):
        if prepare is not None:
            prepare()
        start = time.perf_counter()
        result = run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return result, float(np.median(times[1:]))


@dataclasses.dataclass(frozen=True)
class TimeToGap:
    """The time of a scheme to a target gap, over the matrices of one situation.

    Attributes:
        situation: one of :data:`SITUATIONS`.
        scheme: specification of the scheme, with the suffix :data:`FROM` if PDHG continued from it.
        seconds: median over the matrices of the time of the fastest run with that gap or less;
            infinite if some matrix has no such run.
        speedup: time of the better of cold and warm PDHG over that of the scheme, median over the
            matrices; 0 if seconds is infinite.
    """

    situation: str
    scheme: str
    seconds: float
    speedup: float


def times_to_gap(runs: Sequence[RaceRun], gap: float = 0.01) -> list[TimeToGap]:
    """Return the time to a certified gap of every scheme in every situation, in order of
    appearance.

    Args:
        runs: runs of all matrices.
        gap: certified gap.
    """
    # Seconds of the fastest run with that gap or less, by (situation, scheme), then by matrix.
    fastest: dict[tuple[str, str], dict[tuple[str, str, int], float]] = {}
    for run in runs:
        times_by_matrix = fastest.setdefault((run.situation, run.scheme), {})
        matrix_key = (run.topology, run.traffic, run.index)
        reaches_gap = run.gap <= gap
        times_by_matrix[matrix_key] = min(
            times_by_matrix.get(matrix_key, math.inf), run.seconds if reaches_gap else math.inf
        )
    # Median of each situation and scheme over the matrices on which PDHG ran, or else over those of
    # the scheme.
    results = []
    for (situation, scheme), times_by_matrix in fastest.items():
        pdhg_times_by_start = [fastest.get((situation, name), {}) for name in (COLD, WARM)]
        matrix_keys = {
            matrix_key for pdhg_times in pdhg_times_by_start for matrix_key in pdhg_times
        } or set(times_by_matrix)
        seconds = [times_by_matrix.get(matrix_key, math.inf) for matrix_key in matrix_keys]
        if math.inf in seconds:
            results.append(TimeToGap(situation, scheme, math.inf, 0.0))
            continue
        # Speedup over the better of cold and warm PDHG, matrix by matrix.
        best_pdhg_times = [
            min(pdhg_times.get(matrix_key, math.inf) for pdhg_times in pdhg_times_by_start)
            for matrix_key in matrix_keys
        ]
        speedup = float(
            np.median(
                [
                    pdhg_time / scheme_time
                    for pdhg_time, scheme_time in zip(best_pdhg_times, seconds, strict=True)
                ]
            )
        )
        results.append(TimeToGap(situation, scheme, float(np.median(seconds)), speedup))
    return results


# Smaller gaps are drawn at this value, since the axis is logarithmic.
_MIN_DRAWN_GAP = 1e-5


def time_table(times: Sequence[TimeToGap], gap: float) -> Table:
    """Return the table of times to a gap, with schemes as rows and situations as columns.

    A cell has the time, and the speedup over the better of cold and warm PDHG.

    Args:
        times: times of all schemes and situations.
        gap: certified gap, for the title.
    """
    time_by_cell = {(entry.scheme, entry.situation): entry for entry in times}

    def column(situation: str) -> Column:
        """Return the column of a situation, whose rows are schemes."""
        return Column(situation, lambda scheme: time_by_cell.get((scheme, situation)), _time_cell)

    title = f"time to a certified gap of {100 * gap:g}% (against the better of cold and warm PDHG)"
    columns = (Column("scheme", str), *map(column, SITUATIONS))
    return Table(title, columns, list(dict.fromkeys(entry.scheme for entry in times)))


def _time_cell(time: TimeToGap | None) -> str:
    """Format a time to the gap and its speedup, such as "12 ms (3x)"; "-" for None, and "not
    reached" for an infinite time, also of PDHG alone.
    """
    if time is None:
        return "-"
    if not math.isfinite(time.seconds):
        return "not reached"
    if time.scheme in (COLD, WARM):
        return time_text(time.seconds)
    # Infinite if neither a cold nor a warm start of PDHG reached the gap.
    ratio = f"{time.speedup:.2g}x" if math.isfinite(time.speedup) else "PDHG: not reached"
    return f"{time_text(time.seconds)} ({ratio})"


def plot_race(path: Path, runs: Sequence[RaceRun]) -> None:
    """Plot certified gap against time, with a row of panels per network and a column per situation.

    A line is a scheme that ran to several target gaps, a single mark a scheme without targets.
    Points are medians over the matrices.

    Args:
        path: image file to write.
        runs: all runs.
    """
    # A row of panels for each network with its traffic, a column for each situation.
    networks = list(dict.fromkeys((run.topology, run.traffic) for run in runs))
    grid_shape = len(networks), len(SITUATIONS)
    figure = Figure(figsize=(3.3 * grid_shape[1], 0.6 + 2.6 * grid_shape[0]), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(*grid_shape, squeeze=False, sharey=True)
    schemes = list(dict.fromkeys(run.scheme for run in runs))
    # One legend for all panels, by scheme.
    lines_by_scheme: dict[str, Any] = {}
    for panel_row, network in zip(panels, networks, strict=True):
        for axes, situation in zip(panel_row, SITUATIONS, strict=True):
            panel_runs = [
                run
                for run in runs
                if (run.topology, run.traffic) == network and run.situation == situation
            ]
            lines_by_scheme |= _plot_panel(axes, panel_runs, schemes, situation)
        panel_row[0].set_ylabel(f"{network[0]}\n{network[1]}\ncertified gap (%)", fontsize="small")
    for axes in panels[-1]:
        axes.set_xlabel("time (ms)")
    figure.legend(
        lines_by_scheme.values(),
        lines_by_scheme.keys(),
        loc="outside lower center",
        ncols=4,
        fontsize="small",
    )
    figure.savefig(path, dpi=130)


def _plot_panel(
    axes: Any, runs: Sequence[RaceRun], schemes: Sequence[str], situation: str
) -> dict[str, Any]:
    """Draw the lines of a panel; return them by scheme, for the legend.

    Args:
        axes: axes of the panel.
        runs: runs of the panel.
        schemes: all schemes, in the order of their colours.
        situation: title of the panel.
    """
    # Colours by scheme without the suffix: a model and PDHG from that model have one colour; PDHG
    # without a model is dashed.
    colour_keys = list(
        dict.fromkeys([COLD, WARM, *(scheme.removesuffix(FROM) for scheme in schemes)])
    )
    # A line for several target gaps, a star for a scheme without targets.
    lines_by_scheme = {}
    for scheme in schemes:
        points = _curve_points([run for run in runs if run.scheme == scheme])
        colour_index = colour_keys.index(scheme.removesuffix(FROM))
        is_single = len(points) == 1
        if points:
            (lines_by_scheme[scheme],) = axes.plot(
                *zip(*points, strict=True),
                color=COLOURS[colour_index % len(COLOURS)],
                linestyle="--" if scheme in (COLD, WARM) else "-",
                marker="*" if is_single else MARKERS[colour_index % len(MARKERS)],
                markersize=11 if is_single else 4,
            )
    axes.set(xscale="log", yscale="log", title=situation)
    axes.title.set_fontsize("medium")
    plain_log_axis(axes.xaxis, subs=(1.0, 2.0, 5.0))
    plain_log_axis(axes.yaxis)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return lines_by_scheme


def _curve_points(runs: list[RaceRun]) -> list[tuple[float, float]]:
    """Return the points (ms, gap in %) of a scheme, medians over the matrices, in order of time.

    The gap is the running minimum, since by chance a run to a smaller target may be faster.

    Args:
        runs: runs of one scheme in one panel.
    """
    # Medians of the runs to each target; runs of a scheme without a target are one group.
    finite_runs = [run for run in runs if not math.isnan(run.gap)]
    target_keys = dict.fromkeys(
        "none" if math.isnan(run.target) else run.target for run in finite_runs
    )
    points = []
    for target in target_keys:
        target_runs = [
            run
            for run in finite_runs
            if ("none" if math.isnan(run.target) else run.target) == target
        ]
        gap = float(np.median([run.gap for run in target_runs]))
        points.append(
            (
                1e3 * float(np.median([run.seconds for run in target_runs])),
                100 * max(gap, _MIN_DRAWN_GAP),
            )
        )
    # In order of time, with the running minimum of the gap.
    points.sort()
    gaps = itertools.accumulate((gap for _, gap in points), min)
    return [(milliseconds, gap) for (milliseconds, _), gap in zip(points, gaps, strict=True)]


FILES = TABLE, MANIFEST, PLOT = ("race.csv", "manifest.json", "race.png")
# Number of matrices of each network if --limit is 0.
_DEFAULT_MATRICES = 3


def run_race(config: EvaluateConfig, notify: Callable[[str], None]) -> list[RaceRun]:
    """Race on every network, write table, plot and manifest, and return all runs.

    Args:
        config: the settings.
        notify: called with the progress.

    Raises:
        InputError: invalid settings, or existing results in OUT without --overwrite.
    """
    check_out_folder(config.out, FILES, overwrite=config.overwrite)
    # Schemes by name, for each network with its model.
    models = config.models_by_network()
    names = config.scheme or DEFAULT_SCHEMES
    schemes = [
        {
            name: make_scheme(name, model_of_scheme)
            for name, model_of_scheme in model_of_each(names, model, notify).items()
        }
        for model in models
    ]
    # Evenly spread matrices of each network.
    runs = []
    for network_index, instance_config in enumerate(config.instances()):
        instance = load_instance(instance_config, notify)
        matrix_indices = spread(rows_of(instance, config.split), config.limit or _DEFAULT_MATRICES)
        runs += race(
            instance,
            schemes[network_index],
            matrix_indices.tolist(),
            seed=config.seed,
            notify=notify,
        )
    write_files(
        config.out,
        {
            TABLE: partial(write_csv, rows=runs),
            MANIFEST: partial(write_manifest, settings=config),
            PLOT: partial(plot_race, runs=runs),
        },
    )
    return runs


def race_outcome(config: EvaluateConfig, notify: Notify) -> Outcome:
    """Run ``teal evaluate --race``; return the table of times to a gap of 1%, and the files.

    Args:
        config: the settings.
        notify: called with the progress.
    """
    times = times_to_gap(run_race(config, notify), _TABLE_GAP)
    return Outcome(
        tables=[time_table(times, _TABLE_GAP)],
        written=", ".join(str(config.out / name) for name in FILES),
        data={"times_to_gap": times},
    )


# Certified gap of the table of times, 1%.
_TABLE_GAP = 0.01
