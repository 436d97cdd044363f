"""``teal``: parse the settings, call the library, say what happened."""

from __future__ import annotations

import csv
import json
import shutil
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
)
from teal.errors import InputError, TealError

if TYPE_CHECKING:
    from rich.table import Table

_DESCRIPTION = """Teal: traffic engineering for wide-area networks.  Learned allocations that are exactly feasible and
carry a certified optimality gap.  Try: teal train --topology b4 --traffic gravity:seed=0,count=200,load=4
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
    | Annotated[_Paths, subcommand("paths", description="Compute or improve the candidate paths of a network.")]
    | Annotated[_Traffic, subcommand("traffic", description="Describe, generate or convert traffic matrices.")]
)

_GAP = 0.01  # of the table of a race
_WIDTH = 160  # of the table where the output is no terminal
_INTERRUPTED = 130  # what shells report for Ctrl-C


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code: 0, 1 for a failed solver, 2 for wrong input, 130 for Ctrl-C."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    config = None
    console = Console(stderr=True, highlight=False, soft_wrap=True)

    def say(text: str) -> None:
        console.print(text, markup=False)

    try:
        config = tyro.cli(
            _Command,
            prog="teal",
            description=_DESCRIPTION,
            args=arguments or ["--help"],
            config=(EnumChoicesFromValues, FlagCreatePairsOff, UseAppendAction, tyro.conf.OmitSubcommandPrefixes),
        )
        match config:
            case TrainConfig():
                _train(config, say)
            case PretrainConfig():
                _pretrain(config)
            case EvaluateConfig():
                return _evaluate(config, say)
            case ReportConfig():
                _report(config)
            case PlanConfig():
                _plan(config, say)
            case ServeConfig():
                _serve(config, say)
            case AllocateConfig():
                return _allocate(config, say)
            case SolveConfig():
                return _solve(config, say)
            case PathsConfig():
                _paths(config)
            case ImproveConfig():
                _improve(config, say)
            case TrafficGenerateConfig() | TrafficConvertConfig():
                _write_traffic(config)
            case TrafficConfig():
                _traffic_info(config)
    except TealError as error:
        print(f"teal: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    except OSError as error:
        print(f"teal: error: {error.filename or 'system'}: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        hint = ""
        if isinstance(config, TrainConfig | PretrainConfig | EvaluateConfig | PlanConfig | AllocateConfig):
            state = "trainer.safetensors" if isinstance(config, TrainConfig | PretrainConfig) else "journal.jsonl"
            if (config.out / state).exists():
                hint = f"; go on with the same command and --resume (state in {config.out})"
        print(f"\nteal: interrupted{hint}", file=sys.stderr)
        return _INTERRUPTED
    return 0


def _train(config: TrainConfig, say: Callable[[str], None]) -> None:
    from teal.instance import load_instance
    from teal.learning.checkpoint import MODEL_CARD, MODEL_WEIGHTS, RUN, load_run
    from teal.learning.trainer import Trainer
    from teal.storage import check_out_folder

    files = (MODEL_CARD, MODEL_WEIGHTS, RUN)
    if config.resume:
        load_run(config.out)  # fail before anything slow
    else:
        check_out_folder(config.out, files, overwrite=config.overwrite, hint="--resume or --overwrite")
    instance = load_instance(config, say)
    if not config.resume:
        for name in files:
            (config.out / name).unlink(missing_ok=True)
        shutil.rmtree(config.out / "tensorboard", ignore_errors=True)
    if config.workers:
        from teal.distributed.train import train

        say(f"starting {config.workers} workers on Ray")
        state = train(config)
    else:
        first = instance.problem(instance.traffic.read(instance.split.train[:1]))
        trainer = Trainer(first, instance.traffic, instance.split, config)
        if config.resume:
            trainer.resume(config.out)
            say(f"resuming at step {trainer.state.step}, after {trainer.state.elapsed_s:.0f} s of training")
        state = trainer.train(config.out)
    print(
        f"{config.out}: {state.step} steps in {state.elapsed_s:.0f} s, best validation {state.best:.4f} "
        f"({state.reason}); look at it with: tensorboard --logdir {config.out}"
    )


def _pretrain(config: PretrainConfig) -> None:
    from teal.learning.checkpoint import MODEL_CARD, MODEL_WEIGHTS, RUN
    from teal.learning.universal import Pretrainer
    from teal.storage import check_out_folder

    if not config.resume:
        check_out_folder(
            config.out, (MODEL_CARD, MODEL_WEIGHTS, RUN), overwrite=config.overwrite, hint="--resume or --overwrite"
        )
    trainer = Pretrainer(config)
    if config.resume:
        trainer.resume(config.out)
    trainer.train(config.out)
    print(
        f"{config.out}: {trainer.step} steps in {trainer.elapsed_s:.0f} s on {len(trainer.networks.train)} networks, "
        f"{len(trainer.networks.held_out)} held out; try it with: teal evaluate --scheme price-gnn --model {config.out}"
    )


def _evaluate(config: EvaluateConfig, say: Callable[[str], None]) -> int:
    from teal.reports.table import render_all
    from teal.studies.evaluate import REPORT, Study

    if config.race:
        return _race(config, say)
    rows = Study(config, say).run().rows
    _show(render_all(rows))
    print(f"{config.out / REPORT}: open it in a browser; the rows are in {config.out}/results.csv")
    return 0 if any(row.usable for row in rows) else 1


def _race(config: EvaluateConfig, say: Callable[[str], None]) -> int:
    from teal.race import standings
    from teal.reports.race import render_standings
    from teal.studies.race import FILES, run_race

    laps = run_race(config, say)
    _show([render_standings(standings(laps, _GAP), _GAP)])
    print(", ".join(str(config.out / name) for name in FILES))
    return 0


def _show(tables: Iterable[Table]) -> None:
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    for table in tables:
        console.print(table)


def _report(config: ReportConfig) -> None:
    from teal.reports.record import Record
    from teal.reports.report import write_report
    from teal.storage import atomic_file, check_out_file

    check_out_file(config.out, (".html",), overwrite=config.overwrite)
    record = Record.load(config.results)
    with atomic_file(config.out) as temporary:
        write_report(temporary, record)
    print(f"{config.out}: {len(record.rows):,} rows of {len(record.networks)} networks")


def _serve(config: ServeConfig, say: Callable[[str], None]) -> None:
    try:
        from teal.distributed.guard import guard

        guard()
        from teal.serving.deployment import run_service
    except ImportError as error:
        raise InputError("teal serve", "", "the service's packages: pip install 'teal-te[serve]'", str(error)) from None
    run_service(config, say)


def _plan(config: PlanConfig, say: Callable[[str], None]) -> None:
    from teal.objectives import Objective
    from teal.reports.plan import render_plan
    from teal.studies.plan import FILES, run_plan

    found = run_plan(config, say)
    _show(render_plan(found, config.worst, higher_is_better=Objective(config.objective).higher_is_better))
    print(f"{len(found):,} cases: " + ", ".join(str(config.out / name) for name in FILES))


def _solve(config: SolveConfig, say: Callable[[str], None]) -> int:
    from teal.formats.allocations import ALLOCATION_SUFFIXES, write_allocation
    from teal.solving import solve_matrix
    from teal.storage import check_out_file

    if config.out:
        check_out_file(config.out, ALLOCATION_SUFFIXES, overwrite=config.overwrite)
    solved = solve_matrix(config, say)
    print(json.dumps(solved.figures(), allow_nan=False) if config.json else solved.describe())
    if solved.usable and not solved.reached:
        say(f"the target gap of {config.gap:g} was not reached: {solved.stopped_by}")
    if config.out:
        problem = solved.problem
        rows = write_allocation(
            config.out, problem.topology, problem.paths, problem.demand[0].cpu().numpy(), solved.splits.cpu().numpy()
        )
        say(f"{config.out}: {rows:,} paths that carry traffic")
    return 0 if solved.usable else 1


def _allocate(config: AllocateConfig, say: Callable[[str], None]) -> int:
    from teal.allocation import Status
    from teal.studies.allocate import FIGURES, run_allocate

    found = run_allocate(config, say)
    usable = [one for one in found if Status(one.status).usable]
    gaps, satisfied = (np.array([getattr(one, name) for one in usable]) for name in ("gap", "satisfied_demand"))
    print(f"{config.out}: {len(found):,} matrices, {len(found) - len(usable):,} of them without a usable allocation")
    if usable:
        over = int((gaps > config.gap).sum())
        print(
            f"satisfied demand {100 * satisfied.min():.2f}% to {100 * satisfied.max():.2f}%, "
            f"mean {100 * satisfied.mean():.2f}%; gap {100 * gaps.max():.3f}% at most, "
            f"{over:,} above {100 * config.gap:g}%; each in {config.out}/{FIGURES}"
        )
    return 0 if len(usable) == len(found) else 1


def _improve(config: ImproveConfig, say: Callable[[str], None]) -> None:
    from teal.instance import load_instance
    from teal.network.path_file import save_paths
    from teal.network.traffic import spread
    from teal.solvers.columns import ColumnRound, improve
    from teal.storage import check_out_file

    check_out_file(config.out, (".npz",), overwrite=config.overwrite)
    instance = load_instance(config, say)
    rows = spread(instance.split.train, config.matrices)
    problem = instance.problem(instance.traffic.read(rows))

    def report(done: ColumnRound) -> None:
        say(
            f"{int(done.paths.mask.sum()):,} paths: gap {100 * float(done.gap.max()):.2f}% to the optimum over them, "
            f"{100 * float(done.gap_all_paths.max()):.2f}% to that over all paths; {done.added:,} added"
        )

    found = improve(problem, target=config.gap, max_rounds=config.rounds, report=report)
    save_paths(config.out, found.paths)
    before, after = int(instance.paths.mask.sum()), int(found.paths.mask.sum())
    print(
        f"{config.out}: {after:,} paths, {after - before:,} of them new, at most {found.paths.num_paths} a demand; "
        f"gap to the optimum over all paths {100 * float(found.gap_all_paths.max()):.2f}%"
    )


def _paths(config: PathsConfig) -> None:
    from teal.formats import load_topology, load_traffic
    from teal.network import compute_paths
    from teal.storage import atomic_file, check_out_file

    if config.out:
        check_out_file(config.out, (".csv",), overwrite=config.overwrite)
    topology = load_topology(config.topology, config.default_capacity)
    pairs = load_traffic(config.traffic, topology, progress=True).pairs if config.traffic else None
    paths = compute_paths(
        topology, pairs, num_paths=config.num_paths, method=config.path_method, weight=config.path_weight,
        progress=True,
    )  # fmt: skip
    count = paths.mask.sum(1)
    print(f"{topology.name}: {topology.num_nodes} nodes, {topology.num_links} links, {paths.num_demands:,} demands")
    print(f"paths: {int(count.sum()):,}; longest {int(paths.hops.max())} links")
    for k in range(config.num_paths + 1):
        print(f"  demands with {k}: {int((count == k).sum()):,}")
    print(f"incidences: {paths.num_incidences:,}; trie nodes: {paths.trie.num_nodes:,}")
    if config.out:
        with atomic_file(config.out) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(["source", "target", "k", "nodes"])
            names = topology.node_names
            for d, (source, target) in enumerate(paths.pairs):
                for k in np.flatnonzero(paths.mask[d]).tolist():
                    links = paths.path_links(d, k)
                    nodes = [names[source], *(names[topology.link_target[link]] for link in links)]
                    writer.writerow([names[source], names[target], k, " ".join(nodes)])
        print(config.out)


def _traffic_info(config: TrafficConfig) -> None:
    from teal.formats import load_topology, load_traffic
    from teal.instance import describe_traffic

    topology = load_topology(config.topology, config.default_capacity)
    traffic = load_traffic(config.traffic, topology, progress=True)
    print(describe_traffic(traffic))
    mean = traffic.mean()
    largest = np.sort(mean)[::-1][: max(1, round(len(mean) / 10))]
    totals = np.concatenate([chunk.sum(1) for chunk in traffic.chunks()])
    low, middle, high = np.quantile(totals, [0.0, 0.5, 1.0])
    print(f"total rate: {low:.6g} to {high:.6g} Gbit/s, median {middle:.6g}")
    print(f"largest tenth of the demands: {100 * largest.sum() / max(mean.sum(), 1e-300):.1f}% of the volume")
    for gap in traffic.gaps:
        print(f"gap: {gap.missing} missing after {gap.after}")
    for line in traffic.skipped:
        print(f"skipped: {line}")


def _write_traffic(config: TrafficGenerateConfig | TrafficConvertConfig) -> None:
    from teal.formats import TRAFFIC_SUFFIXES, load_topology, load_traffic, save_traffic
    from teal.storage import check_out_file

    check_out_file(config.out, TRAFFIC_SUFFIXES, overwrite=config.overwrite)
    topology = load_topology(config.topology, config.default_capacity)
    traffic = load_traffic(config.traffic, topology, progress=True)
    save_traffic(config.out, traffic, topology)
    print(f"{config.out}: {traffic.num_matrices} matrices of {traffic.num_demands} demands")
