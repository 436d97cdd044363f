"""`teal metrics`: the search, and the file of its changes."""

from __future__ import annotations

from collections.abc import Callable

from teal.config.metrics import MetricsConfig
from teal.evaluation.metrics import MetricsReport, improve
from teal.formats.metric_changes import SUFFIXES, write_changes
from teal.runtime.storage import check_out_file


def run_metrics(config: MetricsConfig, notify: Callable[[str], None]) -> MetricsReport:
    """Search and, if there is an output file, write the changes.

    Raises:
        InputError: a fault in the settings, or an output file that must not be replaced.
    """
    if config.out is not None:
        check_out_file(config.out, SUFFIXES, overwrite=config.overwrite)
    report = improve(config, notify)
    if config.out is not None:
        write_changes(config.out, report.changes, report.to_json())
        notify(f"{config.out}: {len(report.changes)} changes")
    return report
