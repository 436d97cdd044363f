"""What the commands about the network itself print: its routing, and what to buy."""

from __future__ import annotations

import json
import sys

from teal.cli import runners
from teal.cli.runners import EXIT_FAILED, EXIT_GAP, EXIT_OK, Notify, print_tables
from teal.config import MetricsConfig, SimulateConfig, SolveConfig, SurveyConfig, UpgradeConfig


def simulate(config: SimulateConfig, notify: Notify) -> int:
    """Loads of today's routing, without failure and under each."""
    from teal.reports.simulate import describe, render
    from teal.studies.simulate import PAGE, run_simulate

    result = run_simulate(config, notify)
    if config.json:
        print(json.dumps(result.to_json(), allow_nan=False))
        return EXIT_OK
    print(describe(result))
    sys.stdout.flush()
    print_tables(render(result, config.worst))
    if config.out is not None:
        print(f"{config.out / PAGE}: open it in a browser; tables are beside it")
    return EXIT_OK


def survey(config: SurveyConfig, notify: Notify) -> int:
    """From files to answers: the sentences with which the page begins."""
    from teal.studies.survey import PAGE, run_survey

    for step in run_survey(config, notify):
        if step.answer:
            print(step.answer)
    print(f"{config.out / PAGE}: open it in a browser")
    return EXIT_OK


def solve(config: SolveConfig, notify: Notify) -> int:
    """One matrix, over candidate paths or over segment lists."""
    if config.routing == "paths":
        return runners.solve(config, notify)
    from teal.studies.segments import run_segments

    report = run_segments(config, notify)
    print(json.dumps(report.to_json(), allow_nan=False) if config.json else report.describe())
    if report.reached:
        return EXIT_OK
    if config.routing == "segments":
        notify(f"the target gap of {100 * config.gap:g}% was not reached: stopped by {report.stopped_by}")
    return EXIT_OK if config.routing == "ecmp" else EXIT_GAP


def metrics(config: MetricsConfig, notify: Notify) -> int:
    """Better IGP metrics, and the changes in order."""
    from teal.studies.metrics import run_metrics

    report = run_metrics(config, notify)
    print(json.dumps(report.to_json(), allow_nan=False) if config.json else report.describe())
    return EXIT_OK


def upgrade(config: UpgradeConfig, notify: Notify) -> int:
    """What to buy."""
    from teal.reports.upgrade import render_upgrade
    from teal.studies.upgrade import PAGE, run_upgrade

    plan = run_upgrade(config, notify)
    if config.json:
        print(json.dumps(plan.to_json(), allow_nan=False))
    else:
        print(plan.describe())
        sys.stdout.flush()
        print_tables(render_upgrade(plan))
        if config.out is not None:
            print(f"{config.out / PAGE}: open it in a browser; tables and the upgraded network are beside it")
    if plan.failed:
        return EXIT_FAILED
    return EXIT_OK if plan.upgrade.reached else EXIT_GAP
