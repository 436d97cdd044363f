"""The command `teal availability`: measure, then write tables, a plot, a page and a manifest."""

from __future__ import annotations

import dataclasses
from functools import partial

from teal.app.command import Notify, Outcome
from teal.app.instance import load_instance
from teal.app.run_files import write_files, write_manifest
from teal.runtime.storage import check_out_folder
from teal_availability.page import component_table, demand_table, promise_table, summary_table
from teal_availability.report import RESULTS, AvailabilityReport
from teal_availability.settings import AvailabilityConfig
from teal_availability.study import availability_of

MANIFEST = "manifest.json"


def run_availability(config: AvailabilityConfig, notify: Notify) -> AvailabilityReport:
    """Measure the availability of a network by the settings, and write all result files.

    Args:
        config: the settings.
        notify: called with progress messages.

    Raises:
        InputError: invalid settings, or existing results in OUT without ``overwrite``.
    """
    check_out_folder(config.out, (*RESULTS, MANIFEST), overwrite=config.overwrite)
    report = availability_of(load_instance(config, notify), config, notify)
    write_files(config.out, {**report.files(), MANIFEST: partial(write_manifest, settings=config)})
    return report


def availability_outcome(config: AvailabilityConfig, notify: Notify) -> Outcome:
    """Run `teal availability`.

    Args:
        config: the settings.
        notify: called with progress messages.

    Returns:
        tables, JSON data and written files.
    """
    report = run_availability(config, notify)
    # Components and demands are listed for the scheme that delivers the most.
    best_routing = max(report.of_all, key=lambda row: row.mean).routing
    promise_tables = [promise_table(report)] if report.promises else []
    return Outcome(
        text=report.answer,
        tables=[
            summary_table(report),
            *promise_tables,
            component_table(report, best_routing, config.worst),
            demand_table(report, best_routing, config.worst),
        ],
        written=", ".join(str(config.out / name) for name in (*report.files(), MANIFEST)),
        data={
            "answer": report.answer,
            "summary": [dataclasses.asdict(row) for row in report.summary],
            "promises": [dataclasses.asdict(row) for row in report.promises],
        },
    )
