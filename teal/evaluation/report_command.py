"""`teal report`: one report of several evaluations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

from teal.app.chart import Chart
from teal.app.command import Notify, Outcome
from teal.app.image import save_charts
from teal.app.run_files import write_files
from teal.app.table import writers
from teal.errors import InputError
from teal.evaluation.next_interval import NextRow, summarise
from teal.evaluation.next_interval_command import (
    TABLE,
    figures_of_intervals,
    interval_tables,
    write_next_interval_report,
)
from teal.evaluation.record import ROWS, Record
from teal.evaluation.report import figures_of, write_report
from teal.evaluation.settings import ReportConfig
from teal.evaluation.table import summary_tables
from teal.formats.rows import read_csv
from teal.runtime.storage import atomic_file, check_out_file, check_out_folder


@dataclasses.dataclass(frozen=True)
class Written:
    """The files that were written.

    Attributes:
        rows: number of results.
        networks: number of networks.
        figures: files of charts and tables.
    """

    rows: int
    networks: int
    figures: list[Path]


def run_report(config: ReportConfig) -> Written:
    """Read the results and write the report.

    Raises:
        InputError: a folder without results, folders of two kinds, or an output file that must not be replaced.
    """
    if config.out is not None:
        check_out_file(config.out, (".html",), overwrite=config.overwrite)
    is_next = [(folder / TABLE).is_file() and not (folder / ROWS).is_file() for folder in config.results]
    if any(is_next) != all(is_next):
        raise InputError("--results", "", "folders of one kind, with or without --next-interval", "both kinds")
    charts: dict[str, list[Chart]]
    write: Callable[[Path], None]
    if all(is_next):
        rows = [row for folder in config.results for row in read_csv(folder / TABLE, NextRow)]
        charts, count = figures_of_intervals(rows), len(rows)
        tables = interval_tables(summarise(rows), wide=True)
        write = partial(write_next_interval_report, rows=rows, selections={})
    else:
        record = Record.load(config.results)
        charts, count = figures_of(record), len(record.rows)
        tables = list(summary_tables(record.rows, wide=True))
        write = partial(write_report, record=record)
    figures = []
    if config.figures is not None:
        check = partial(check_out_folder, overwrite=config.overwrite)
        of_tables = writers(tables, "tables")
        check(config.figures, list(of_tables))
        figures = save_charts(config.figures, charts, check)
        write_files(config.figures, of_tables)
        figures += [config.figures / name for name in of_tables]
    if config.out is not None:
        with atomic_file(config.out) as temporary:
            write(temporary)
    return Written(count, len(charts), figures)


def report_outcome(config: ReportConfig, _: Notify) -> Outcome:
    """`teal report`."""
    written = run_report(config)
    lines = [] if config.out is None else [f"{config.out}: {written.rows:,} rows of {written.networks} networks"]
    lines += [f"{config.figures}: {len(written.figures)} files"] if written.figures else []
    return Outcome(
        text="\n".join(lines),
        data={"rows": written.rows, "networks": written.networks, "figures": [str(path) for path in written.figures]},
    )
