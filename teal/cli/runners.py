"""What each command prints: run the study, print its result, return the exit code."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from teal.config import (
    AllocateConfig,
    AuditConfig,
    CertifyConfig,
    EvaluateConfig,
    ExportConfig,
    ImproveConfig,
    PathsConfig,
    PlanConfig,
    PretrainConfig,
    PretrainHedgeConfig,
    ReportConfig,
    ServeConfig,
    SolveConfig,
    SweepConfig,
    TrainConfig,
    UpdateConfig,
    WarmUpConfig,
)
from teal.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

# Success; no usable result, or a solver failed; a target gap was missed.
EXIT_OK, EXIT_FAILED, EXIT_GAP = 0, 1, 3
_RACE_TABLE_GAP = 0.01  # certified gap, 1%; the table of a race shows the time that each start needs to reach it
_TABLE_WIDTH, _WIDE_TABLE_WIDTH = 80, 160  # characters of a line where the output is no terminal

Notify = Callable[[str], None]  # prints a message about the progress to the standard error


def print_json(value: Any) -> None:
    """One JSON object; numbers that JSON cannot hold become null."""

    def plain(one: Any) -> Any:
        if isinstance(one, dict):
            return {key: plain(part) for key, part in one.items()}
        if isinstance(one, list | tuple):
            return [plain(part) for part in one]
        return None if isinstance(one, float) and not math.isfinite(one) else one

    print(json.dumps(plain(value), indent=1, default=str))


def warm_up(config: WarmUpConfig, _: Notify) -> int:
    from teal.studies.warm_up import run_warm_up

    run_warm_up(config)
    print("all kernels are compiled for this machine")
    return EXIT_OK


def train(config: TrainConfig, notify: Notify) -> int:
    from teal.studies.train import run_train

    state = run_train(config, notify)
    if config.json:
        print_json({"out": str(config.out)} | dataclasses.asdict(state))
        return EXIT_OK
    found = f"at step {state.best_step}" if state.best_step else "no better than the start"
    percent = {name: f"{100 * share:.2f}%" for name, share in state.reached.items()}
    print(f"{config.out}: {state.step} steps in {state.elapsed_s:.0f} s, stopped: {state.reason}; best: {found}")
    if not percent:
        print("no validation had a finite gap, so that no checkpoint was written; try a lower --learning-rate")
        return EXIT_OK
    print(
        f"validation matrices: the model alone, cut to fit and not repaired, carries {percent['cut_demand']}, gap "
        f"{percent['cut_gap']}; repaired {percent['repaired_demand']}, gap {percent['repaired_gap']}"
        f"{_tensorboard_hint(config.out)}"
    )
    return EXIT_OK


def sweep(config: SweepConfig, notify: Notify) -> int:
    from rich.table import Table

    from teal.reports.text import percent
    from teal.studies.sweep import FILES, run_sweep, summarise

    summaries = summarise(run_sweep(config, notify))
    if config.json:
        print_json({"summary": [dataclasses.asdict(one) for one in summaries]})
        return EXIT_OK
    table = Table(title=f"{config.seeds} seeds each: mean and 95% interval of the mean", title_justify="left")
    for column in ("settings", "validation", "satisfied", "gap by the best bound"):
        table.add_column(column, justify="left" if column == "settings" else "right", overflow="fold")
    for settings in dict.fromkeys(one.settings for one in summaries):
        own = {one.measure: one for one in summaries if one.settings == settings}
        cells = [
            f"{one.mean:.4f} ({one.low:.4f}, {one.high:.4f})" if measure == "validation"
            else f"{percent(one.mean)} ({percent(one.low)}, {percent(one.high)})"
            for measure in ("validation", "satisfied_demand", "gap_known") if (one := own[measure])
        ]  # fmt: skip
        table.add_row(settings, *cells)
    print_tables([table])
    print(", ".join(str(config.out / name) for name in FILES))
    return EXIT_OK


def _tensorboard_hint(out: Path) -> str:
    if importlib.util.find_spec("tensorboard") is None:
        return "; with pip install tensorboard, its course is logged too"
    return f"; to see its course: tensorboard --logdir {out}"


def pretrain(config: PretrainConfig, _: Notify) -> int:
    from teal.studies.pretrain import run_pretrain

    trainer = run_pretrain(config)
    print(
        f"{config.out}: {trainer.step} steps in {trainer.elapsed_s:.0f} s on {len(trainer.networks.train)} networks, "
        f"{len(trainer.networks.held_out)} held out; try it with: "
        f"teal evaluate --scheme {trainer.task.scheme} --model {config.out}"
    )
    return EXIT_OK


def pretrain_hedge(config: PretrainHedgeConfig, _: Notify) -> int:
    from teal.studies.pretrain_hedge import run_pretrain_hedge

    trainer = run_pretrain_hedge(config)
    print(
        f"{config.out}: {trainer.step} steps in {trainer.elapsed_s:.0f} s; on histories that are held out, largest "
        f"utilisation {trainer.best:.4f} of the mixture's; try it with: teal evaluate --next-interval --scheme learned "
        f"--model {config.out}"
    )
    return EXIT_OK


def evaluate(config: EvaluateConfig, notify: Notify) -> int:
    """Compare schemes by the protocol that was asked for."""
    if config.race:
        return _race(config, notify)
    return _next_interval(config, notify) if config.next_interval else _evaluate(config, notify)


def _evaluate(config: EvaluateConfig, notify: Notify) -> int:
    from teal.reports.table import render_all, summaries_of
    from teal.studies.evaluate import REPORT, EvaluationStudy

    rows = EvaluationStudy(config, notify).run().rows
    if config.json:
        print_json({"results": summaries_of(rows)})
        return EXIT_OK if any(row.usable for row in rows) else EXIT_FAILED
    print_tables(render_all(rows, wide=config.wide), wide=config.wide)
    print(f"{config.out / REPORT}: open it in a browser; the rows are in {config.out}/results.csv")
    return EXIT_OK if any(row.usable for row in rows) else EXIT_FAILED


def _race(config: EvaluateConfig, notify: Notify) -> int:
    from teal.evaluation.race import times_to_gap
    from teal.reports.race import render_times_to_gap
    from teal.studies.race import FILES, run_race

    runs = run_race(config, notify)
    if config.json:
        print_json({"times_to_gap": [dataclasses.asdict(one) for one in times_to_gap(runs, _RACE_TABLE_GAP)]})
        return EXIT_OK
    print_tables([render_times_to_gap(times_to_gap(runs, _RACE_TABLE_GAP), _RACE_TABLE_GAP)])
    print(", ".join(str(config.out / name) for name in FILES))
    return EXIT_OK


def _next_interval(config: EvaluateConfig, notify: Notify) -> int:
    from teal.reports.next_interval import render_next_interval
    from teal.studies.next_interval import FILES, run_next_interval

    summaries = run_next_interval(config, notify)
    print_tables(render_next_interval(summaries, wide=config.wide), wide=config.wide)
    print(", ".join(str(config.out / name) for name in FILES))
    return EXIT_OK


def print_tables(tables: Iterable[Table], *, wide: bool = True) -> None:
    """Print tables as wide as the terminal, or so wide that they can be read from a file."""
    console = Console(width=None if sys.stdout.isatty() else _WIDE_TABLE_WIDTH if wide else _TABLE_WIDTH)
    for table in tables:
        console.print(table)


def report(config: ReportConfig, _: Notify) -> int:
    from teal.studies.report import run_report

    written = run_report(config)
    if config.out is not None:
        print(f"{config.out}: {written.rows:,} rows of {written.networks} networks")
    if written.figures:
        print(f"{config.figures}: {len(written.figures)} figures")
    return EXIT_OK


def serve(config: ServeConfig, notify: Notify) -> int:
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
    return EXIT_OK


def plan(config: PlanConfig, notify: Notify) -> int:
    from teal.reports.plan import plan_findings, render_plan
    from teal.studies.plan import FILES, PAGE, run_plan

    report = run_plan(config, notify)
    findings = plan_findings(report)
    if config.json:
        print_json(
            {
                "findings": findings,
                "failures": [dataclasses.asdict(one) for one in report.by_failure()],
                "links": [dataclasses.asdict(one) for one in report.links()],
            }
        )
        return EXIT_OK
    print("\n".join(findings))
    print_tables(render_plan(report.outages, config.worst, report.objective))
    others = ", ".join(name for name in FILES if name != PAGE)
    print(f"{config.out / PAGE}: open it in a browser; {len(report.outages):,} cases are in {others} beside it")
    return EXIT_OK


def audit(config: AuditConfig, notify: Notify) -> int:
    from teal.studies.audit import FILES, run_audit

    result = run_audit(config, notify)
    first, last = result.generations[0], result.generations[-1]
    if config.json:
        print_json(
            {
                "loss": last.loss,
                "value": last.value,
                "optimum": last.optimum,
                "loss_on_given_matrices": first.loss,
                "tried": last.evaluations,
            }
        )
        return EXIT_OK
    whole = "" if config.measure == "optimum" else " of the sum of all capacities"
    print(
        f"{', '.join(config.scheme)} loses at least {100 * last.loss:.2f}%{whole} ({last.value:.6g} of "
        f"{last.optimum:.6g} Gbit/s); on the matrices given, within the limits, {100 * first.loss:.2f}%"
    )
    print(", ".join(str(config.out / name) for name in FILES))
    return EXIT_OK


def certify(config: CertifyConfig, notify: Notify) -> int:
    from teal.studies.certify import run_certify

    proof = run_certify(config, notify)
    if config.json:
        print_json({"folder": str(proof.folder), "files": proof.files, "proved": proof.sentences})
        return EXIT_OK
    print("\n".join(proof.sentences))
    print(f"{proof.folder}: check it without Teal: {proof.command}")
    return EXIT_OK


def solve(config: SolveConfig, notify: Notify) -> int:
    from teal.studies.solve import run_solve

    report = run_solve(config, notify)
    print(json.dumps(report.to_json(), allow_nan=False) if config.json else report.describe())
    if hint := report.unit_hint():
        notify(hint)
    if report.usable and not report.reached:
        notify(f"the target gap of {100 * config.gap:g}% was not reached: stopped by {report.stopped_by}")
    if not report.usable:
        return EXIT_FAILED
    return EXIT_OK if report.reached else EXIT_GAP


def allocate(config: AllocateConfig, notify: Notify) -> int:
    from teal.evaluation.solve import signed_percent
    from teal.problem import Status
    from teal.studies.allocate import FIGURES_FILE, run_allocate

    matrices = run_allocate(config, notify)
    usable = [matrix for matrix in matrices if Status(matrix.status).usable]
    gaps, satisfied = (np.array([getattr(matrix, name) for matrix in usable]) for name in ("gap", "satisfied_demand"))
    unusable = len(matrices) - len(usable)
    if config.json:
        print_json(
            {
                "out": str(config.out),
                "matrices": len(matrices),
                "unusable": unusable,
                "largest_gap": float(gaps.max(initial=0.0)),
                "mean_satisfied_demand": float(satisfied.mean()) if usable else None,
            }
        )
        return EXIT_FAILED if unusable else EXIT_GAP if (gaps > config.gap).any() else EXIT_OK
    print(f"{config.out}: {len(matrices):,} matrices, {unusable:,} of them without a usable allocation")
    above = int((gaps > config.gap).sum())
    if usable:
        print(
            f"satisfied demand {100 * satisfied.min():.2f}% to {100 * satisfied.max():.2f}%, "
            f"mean {100 * satisfied.mean():.2f}%; gap {100 * gaps.max():.3f}% at most, "
            f"{above:,} matrices above {100 * config.gap:g}%; all figures in {config.out}/{FIGURES_FILE}"
        )
        if config.entries or config.min_split:
            exact, value = (sum(getattr(matrix, name) for matrix in usable) for name in ("exact_value", "value"))
            change = (value - exact) / exact if exact else 0.0
            print(f"--min-split and --entries changed the sum of all values by {signed_percent(change)}")
    if unusable:
        return EXIT_FAILED
    return EXIT_GAP if above else EXIT_OK


def export(config: ExportConfig, notify: Notify) -> int:
    from teal.studies.export import run_export

    exported = run_export(config)
    for reason in exported.reasons:
        notify(f"left out: {reason}")
    now, before = f"{100 * exported.utilisation:.4g}%", f"{100 * exported.utilisation_before:.4g}%"
    print(
        f"{config.out}: {exported.admitted:.6g} of {exported.admitted_before:.6g} Gbit/s, {exported.left_out:,} paths "
        f"left out; fullest link at {now}, " + ("as before" if now == before else f"{before} before")
    )
    return EXIT_OK


def update(config: UpdateConfig, _: Notify) -> int:
    from teal.studies.update import run_update

    planned = run_update(config)
    shed = "" if planned.kept >= 1 - 1e-6 else f"; up to {100 * (1 - planned.kept):.3g}% of a demand is shed meanwhile"
    print(f"{config.out}: {planned.steps} step{'s' if planned.steps > 1 else ''}, no link above its capacity{shed}")
    return EXIT_OK


def improve(config: ImproveConfig, notify: Notify) -> int:
    from teal.studies.paths import run_improve

    before, last = run_improve(config, notify)
    count, added = int(last.paths.mask.sum()), int(last.paths.mask.sum()) - int(before.mask.sum())
    print(
        f"{config.out}: {count:,} paths, {added:,} of them new, at most {last.paths.num_paths} a demand; "
        f"gap to the optimum over all paths {100 * float(last.gap_all_paths.max()):.2f}%"
    )
    return EXIT_OK


def paths(config: PathsConfig, notify: Notify) -> int:
    from teal.studies.paths import run_compute

    topology, paths = run_compute(config, notify)
    count = paths.mask.sum(1)
    print(f"{topology.name}: {topology.num_nodes} nodes, {topology.num_links} links, {paths.num_demands:,} demands")
    print(f"paths: {int(count.sum()):,}; longest {int(paths.hops.max())} links")
    for k in range(paths.num_paths + 1):
        print(f"  demands with {k} paths: {int((count == k).sum()):,}")
    print(f"pairs of a path and a link: {paths.num_incidences:,}; nodes of the path trie: {paths.trie.num_nodes:,}")
    if config.out:
        print(config.out)
    return EXIT_OK
