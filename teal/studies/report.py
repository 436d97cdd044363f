"""`teal report`: one report of several evaluations."""

from __future__ import annotations

from teal.config import ReportConfig
from teal.reports.record import Record
from teal.reports.report import write_report
from teal.runtime.storage import atomic_file, check_out_file


def run_report(config: ReportConfig) -> Record:
    """Read the results and write the report.

    Raises:
        InputError: a folder without results, or an output file that must not be replaced.
    """
    check_out_file(config.out, (".html",), overwrite=config.overwrite)
    record = Record.load(config.results)
    with atomic_file(config.out) as temporary:
        write_report(temporary, record)
    return record
