"""The command ``teal``: parse the settings, run the command, print its result."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np
import tyro
from rich.console import Console
from tyro.conf import EnumChoicesFromValues, FlagCreatePairsOff, UseAppendAction, subcommand

from teal.config import (
    AllocateConfig,
    EvaluateConfig,
    ImproveConfig,
    PathsConfig,
    PlanConfig,
    PretrainConfig,
    ReportConfig,
    ServeConfig,
    SolveConfig,
    TrafficConfig,
    TrafficConvertConfig,
    TrafficGenerateConfig,
    TrainConfig,
    WarmUpConfig,
)
from teal.errors import InputError, TealError

if TYPE_CHECKING:
    from rich.table import Table

_DESCRIPTION = """Traffic engineering for wide-area networks: computes exactly feasible allocations and proves how far
from the optimum they can be.  Example: teal train --topology b4 --traffic gravity:seed=0,count=200,load=4
--calibrate 0.9 --time-budget 1m --out runs/b4"""

_Traffic = (
    Annotated[TrafficConfig, subcommand("info", description="Describe traffic matrices.")]
    | Annotated[TrafficGenerateConfig, subcommand("generate", description="Generate traffic matrices into a file.")]
    | Annotated[TrafficConvertConfig, subcommand("convert", description="Write traffic matrices to another format.")]
)
_Paths = Annotated[PathsConfig, subcommand("compute")] | Annotated[ImproveConfig, subcommand("improve")]
_Command = (
    Annotated[SolveConfig, subcommand("solve")]
    | Annotated[AllocateConfig, subcommand("allocate")]
    | Annotated[TrainConfig, subcommand("train")]
    | Annotated[PretrainConfig, subcommand("pretrain")]
    | Annotated[EvaluateConfig, subcommand("evaluate")]
    | Annotated[ReportConfig, subcommand("report")]
    | Annotated[PlanConfig, subcommand("plan")]
    | Annotated[ServeConfig, subcommand("serve")]
    | Annotated[WarmUpConfig, subcommand("warm-up")]
    | Annotated[_Paths, subcommand("paths", description="Compute or improve the candidate paths of a network.")]
    | Annotated[_Traffic, subcommand("traffic", description="Describe, generate or convert traffic matrices.")]
)

# Commands that call no kernels, or compile them themselves.
_WITHOUT_KERNELS = (ReportConfig, TrafficConfig, TrafficConvertConfig, WarmUpConfig)
_RACE_TABLE_GAP = 0.01  # certified gap, 1%; the table of a race shows the time that each start needs to reach it
_TABLE_WIDTH = 160  # characters of a line where the output is no terminal; wide enough for all columns
_MIN_DEMAND = 1e-300  # Gbit/s, instead of 0 as a divisor
_EXIT_OK, _EXIT_FAILED, _EXIT_INPUT = 0, 1, 2
_EXIT_INTERRUPTED = 130  # the exit code of shells for Ctrl-C

Notify = Callable[[str], None]  # prints a message about the progress to the standard error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.  Returns the exit code.

    0: success; 1: no usable result, or a solver failed; 2: wrong input, or a file that cannot be read or written; 130:
    interrupted.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    config = None
    console = Console(stderr=True, highlight=False, soft_wrap=True)

    def notify(text: str) -> None:
        console.print(text, markup=False)

    try:
        config = tyro.cli(
            _Command,
            prog="teal",
            description=_DESCRIPTION,
            args=arguments or ["--help"],
            config=(EnumChoicesFromValues, FlagCreatePairsOff, UseAppendAction, tyro.conf.OmitSubcommandPrefixes),
        )
        return _run(config, notify)
    except TealError as error:
        print(f"teal: error: {' '.join(str(error).split())}", file=sys.stderr)
        return _EXIT_INPUT if isinstance(error, InputError) else _EXIT_FAILED
    except OSError as error:
        print(f"teal: error: {error.filename or 'system'}: {error.strerror or error}", file=sys.stderr)
        return _EXIT_INPUT
    except KeyboardInterrupt:
        print(f"\nteal: interrupted{_resume_hint(config)}", file=sys.stderr)
        return _EXIT_INTERRUPTED


def _run(config: object, notify: Notify) -> int:
    if not isinstance(config, _WITHOUT_KERNELS):
        from teal.studies.warm_up import compile_first

        compile_first(notify)
    match config:
        case WarmUpConfig():
            return _warm_up(config)
        case TrainConfig():
            return _train(config, notify)
        case PretrainConfig():
            return _pretrain(config)
        case EvaluateConfig(race=True):
            return _race(config, notify)
        case EvaluateConfig(next_interval=True):
            return _next_interval(config, notify)
        case EvaluateConfig():
            return _evaluate(config, notify)
        case ReportConfig():
            return _report(config)
        case PlanConfig():
            return _plan(config, notify)
        case ServeConfig():
            return _serve(config, notify)
        case AllocateConfig():
            return _allocate(config, notify)
        case SolveConfig():
            return _solve(config, notify)
        case PathsConfig():
            return _paths(config)
        case ImproveConfig():
            return _improve(config, notify)
        case TrafficConvertConfig():  # also its subclass TrafficGenerateConfig
            return _convert_traffic(config)
        case TrafficConfig():
            return _describe_traffic(config)
    raise AssertionError(config)


def _warm_up(config: WarmUpConfig) -> int:
    from teal.studies.warm_up import run_warm_up

    run_warm_up(config)
    print("all kernels are compiled for this machine")
    return _EXIT_OK


def _resume_hint(config: object) -> str:
    """How to continue an interrupted run; ``""`` for a command that cannot be resumed or has saved no state."""
    if isinstance(config, TrainConfig | PretrainConfig):
        from teal.learning.run_state import RUN

        state_file = config.out / RUN
    elif isinstance(config, EvaluateConfig | PlanConfig | AllocateConfig):
        from teal.studies.journal import JOURNAL

        state_file = config.out / JOURNAL
    else:
        return ""
    if not state_file.exists():
        return ""
    return f"; to continue, run the same command with --resume (state in {config.out})"


def _train(config: TrainConfig, notify: Notify) -> int:
    from teal.studies.train import run_train

    state = run_train(config, notify)
    print(
        f"{config.out}: {state.step} steps in {state.elapsed_s:.0f} s, best validation score {state.best:.4f}; "
        f"stopped: {state.reason}; to see its course: tensorboard --logdir {config.out}"
    )
    return _EXIT_OK


def _pretrain(config: PretrainConfig) -> int:
    from teal.studies.pretrain import run_pretrain

    trainer = run_pretrain(config)
    print(
        f"{config.out}: {trainer.step} steps in {trainer.elapsed_s:.0f} s on {len(trainer.networks.train)} networks, "
        f"{len(trainer.networks.held_out)} held out; try it with: teal evaluate --scheme price-gnn --model {config.out}"
    )
    return _EXIT_OK


def _evaluate(config: EvaluateConfig, notify: Notify) -> int:
    from teal.reports.table import render_all
    from teal.studies.evaluate import REPORT, EvaluationStudy

    rows = EvaluationStudy(config, notify).run().rows
    _print_tables(render_all(rows))
    print(f"{config.out / REPORT}: open it in a browser; the rows are in {config.out}/results.csv")
    return _EXIT_OK if any(row.usable for row in rows) else _EXIT_FAILED


def _race(config: EvaluateConfig, notify: Notify) -> int:
    from teal.evaluation.race import times_to_gap
    from teal.reports.race import render_times_to_gap
    from teal.studies.race import FILES, run_race

    runs = run_race(config, notify)
    _print_tables([render_times_to_gap(times_to_gap(runs, _RACE_TABLE_GAP), _RACE_TABLE_GAP)])
    print(", ".join(str(config.out / name) for name in FILES))
    return _EXIT_OK


def _next_interval(config: EvaluateConfig, notify: Notify) -> int:
    from teal.reports.next_interval import render_next_interval
    from teal.studies.next_interval import FILES, run_next_interval

    summaries = run_next_interval(config, notify)
    _print_tables(render_next_interval(summaries))
    print(", ".join(str(config.out / name) for name in FILES))
    return _EXIT_OK


def _print_tables(tables: Iterable[Table]) -> None:
    console = Console(width=None if sys.stdout.isatty() else _TABLE_WIDTH)
    for table in tables:
        console.print(table)


def _report(config: ReportConfig) -> int:
    from teal.studies.report import run_report

    written = run_report(config)
    if config.out is not None:
        print(f"{config.out}: {written.rows:,} rows of {written.networks} networks")
    if written.figures:
        print(f"{config.figures}: {len(written.figures)} figures")
    return _EXIT_OK


def _serve(config: ServeConfig, notify: Notify) -> int:
    try:
        if config.is_one_process:
            from teal.serving.process import run_service
        else:
            from teal.distributed.guard import guard

            guard()  # sets environment variables that Ray reads when it is imported
            from teal.serving.deployment import run_service
    except ImportError as error:
        raise InputError(
            "teal serve", "", "the optional packages of the service: pip install 'teal-te[serve]'", str(error)
        ) from None
    run_service(config, notify)
    return _EXIT_OK


def _plan(config: PlanConfig, notify: Notify) -> int:
    from teal.objectives import Objective
    from teal.reports.plan import render_plan
    from teal.studies.plan import FILES, run_plan

    outages = run_plan(config, notify)
    higher_is_better = Objective(config.objective).higher_is_better
    _print_tables(render_plan(outages, config.worst, higher_is_better=higher_is_better))
    print(f"{len(outages):,} cases: " + ", ".join(str(config.out / name) for name in FILES))
    return _EXIT_OK


def _solve(config: SolveConfig, notify: Notify) -> int:
    from teal.studies.solve import run_solve

    report = run_solve(config, notify)
    print(json.dumps(report.to_json(), allow_nan=False) if config.json else report.describe())
    if report.usable and not report.reached:
        notify(f"the target gap of {100 * config.gap:g}% was not reached: stopped by {report.stopped_by}")
    return _EXIT_OK if report.usable else _EXIT_FAILED


def _allocate(config: AllocateConfig, notify: Notify) -> int:
    from teal.problem import Status
    from teal.studies.allocate import FIGURES_FILE, run_allocate

    matrices = run_allocate(config, notify)
    usable = [matrix for matrix in matrices if Status(matrix.status).usable]
    gaps, satisfied = (np.array([getattr(matrix, name) for matrix in usable]) for name in ("gap", "satisfied_demand"))
    unusable = len(matrices) - len(usable)
    print(f"{config.out}: {len(matrices):,} matrices, {unusable:,} of them without a usable allocation")
    if usable:
        above = int((gaps > config.gap).sum())
        print(
            f"satisfied demand {100 * satisfied.min():.2f}% to {100 * satisfied.max():.2f}%, "
            f"mean {100 * satisfied.mean():.2f}%; gap {100 * gaps.max():.3f}% at most, "
            f"{above:,} matrices above {100 * config.gap:g}%; all figures in {config.out}/{FIGURES_FILE}"
        )
    return _EXIT_FAILED if unusable else _EXIT_OK


def _improve(config: ImproveConfig, notify: Notify) -> int:
    from teal.studies.paths import run_improve

    before, last = run_improve(config, notify)
    count, added = int(last.paths.mask.sum()), int(last.paths.mask.sum()) - int(before.mask.sum())
    print(
        f"{config.out}: {count:,} paths, {added:,} of them new, at most {last.paths.num_paths} a demand; "
        f"gap to the optimum over all paths {100 * float(last.gap_all_paths.max()):.2f}%"
    )
    return _EXIT_OK


def _paths(config: PathsConfig) -> int:
    from teal.studies.paths import run_compute

    topology, paths = run_compute(config)
    count = paths.mask.sum(1)
    print(f"{topology.name}: {topology.num_nodes} nodes, {topology.num_links} links, {paths.num_demands:,} demands")
    print(f"paths: {int(count.sum()):,}; longest {int(paths.hops.max())} links")
    for k in range(config.num_paths + 1):
        print(f"  demands with {k} paths: {int((count == k).sum()):,}")
    print(f"pairs of a path and a link: {paths.num_incidences:,}; nodes of the path trie: {paths.trie.num_nodes:,}")
    if config.out:
        print(config.out)
    return _EXIT_OK


def _describe_traffic(config: TrafficConfig) -> int:
    from teal.evaluation.instance import describe_traffic
    from teal.formats import load_topology, load_traffic

    topology = load_topology(config.topology, config.default_capacity)
    traffic = load_traffic(config.traffic, topology, progress=True)
    print(describe_traffic(traffic))
    mean = traffic.mean()
    largest_tenth = np.sort(mean)[::-1][: max(1, round(len(mean) / 10))]
    totals = np.concatenate([chunk.sum(1) for chunk in traffic.chunks()])
    low, middle, high = np.quantile(totals, [0.0, 0.5, 1.0])
    print(f"total demand of a matrix: {low:.6g} to {high:.6g} Gbit/s, median {middle:.6g}")
    share = largest_tenth.sum() / max(mean.sum(), _MIN_DEMAND)
    print(f"largest tenth of the demands: {100 * share:.1f}% of the total demand")
    for gap in traffic.gaps:
        print(f"missing matrices: {gap.missing} after {gap.after}")
    for line in traffic.skipped:
        print(f"skipped: {line}")
    return _EXIT_OK


def _convert_traffic(config: TrafficConvertConfig) -> int:
    from teal.studies.traffic import run_convert

    traffic = run_convert(config)
    print(f"{config.out}: {traffic.num_matrices} matrices of {traffic.num_demands} demands")
    return _EXIT_OK
