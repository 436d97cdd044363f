"""What the commands about counters print."""

from __future__ import annotations

import dataclasses
import json
import sys

from teal.cli.runners import EXIT_OK, Notify, print_tables
from teal.config import CheckConfig, EstimateConfig

EXIT_ALARM = 4  # of `teal check`: some interval raised an alarm


def estimate(config: EstimateConfig, notify: Notify) -> int:
    """Matrices from counters."""
    from teal.studies.counters import PAGE, run_estimate

    run = run_estimate(config, notify)
    print(json.dumps(run.to_json(), allow_nan=False) if config.json else run.describe())
    if config.out is not None and not config.json:
        print(f"{config.out / PAGE}: open it in a browser; matrices are beside it")
    return EXIT_OK


def check(config: CheckConfig, notify: Notify) -> int:
    """Counters, matrix and topology against each other."""
    from teal.formats.allocations import finite_only
    from teal.reports.estimate import render_checks
    from teal.studies.counters import run_check

    rows = run_check(config, notify)
    alarms = sum(row.alarm for row in rows)
    if config.json:
        intervals = [finite_only(dataclasses.asdict(row)) for row in rows]
        print(json.dumps({"alarms": alarms, "intervals": intervals}, allow_nan=False))
    else:
        print_tables(render_checks(rows))
        sys.stdout.flush()
    return EXIT_ALARM if alarms else EXIT_OK
