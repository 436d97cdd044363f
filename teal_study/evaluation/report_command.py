"""``teal report``: one report of several evaluations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from teal.app.chart import Chart
from teal.app.command import Notify, Outcome
from teal.app.image import save_charts
from teal.app.run_files import write_files
from teal.app.table import Table, csv_writer, writers
from teal.errors import InputError
from teal.runtime.storage import atomic_file, check_out_file, check_out_folder
from teal.spec import Registry
from teal_study.evaluation.record import ROWS, Record
from teal_study.evaluation.report import figures_of, write_report
from teal_study.evaluation.settings import ReportConfig
from teal_study.evaluation.table import difference_tables, summary_tables


@dataclasses.dataclass(frozen=True)
class Reported:
    """Content of a report of results.

    Attributes:
        rows: number of rows of results.
        charts: charts of each network, by its title.
        tables: tables of all networks.
        write: writes the page to a path.
    """

    rows: int
    charts: Mapping[str, list[Chart]]
    tables: list[Table]
    write: Callable[[Path], None]


def _load_evaluations(folders: Sequence[Path]) -> Reported:
    """Return rows, charts and tables of the results that teal evaluate wrote to some folders."""
    record = Record.load(folders)
    return Reported(
        rows=len(record.rows),
        charts=figures_of(record),
        tables=[*summary_tables(record.rows, wide=True), *difference_tables(record.rows)],
        write=partial(write_report, record=record),
    )


# Loaders by kind of results, which is the name of the file of results without .csv; packages
# register further kinds by entry points.
KINDS: Registry[Callable[[Sequence[Path]], Reported]] = Registry(
    "kind of results", "teal.reports", {Path(ROWS).stem: _load_evaluations}
)


def _kind_of(folder: Path) -> str:
    """Return the kind of the results in a folder, a key of KINDS; the kind of an evaluation if the
    folder has no results.
    """
    default_kind = Path(ROWS).stem
    return next(
        (name for name in [default_kind, *KINDS.names()] if (folder / f"{name}.csv").is_file()),
        default_kind,
    )


@dataclasses.dataclass(frozen=True)
class Written:
    """Files that a report has written, and the size of its results.

    Attributes:
        rows: number of rows of results.
        networks: number of networks.
        figures: files of charts and tables.
    """

    rows: int
    networks: int
    figures: list[Path]


def run_report(config: ReportConfig) -> Written:
    """Read the results, write page, charts and tables, and return the written files.

    Args:
        config: the settings.

    Raises:
        InputError: a folder without results, folders with results of two kinds, or an existing
            output file without --overwrite.
    """
    if config.out is not None:
        check_out_file(config.out, (".html",), overwrite=config.overwrite)
    # Read the results, which must be of one kind.
    kinds = {_kind_of(folder) for folder in config.results}
    if len(kinds) > 1:
        names = " and ".join(f"{kind}.csv" for kind in sorted(kinds))
        fault = f"the folders have results of different kinds: {names}"
        raise InputError.invalid("--results", "", fault, "report each kind separately")
    report_content = KINDS[kinds.pop()](config.results)
    # Write tables and charts to a folder.
    figure_files = []
    if config.figures is not None:
        check_folder = partial(check_out_folder, overwrite=config.overwrite)
        labels = _labels(config.label, report_content)
        headings = _headings(config.columns, report_content.tables)
        tables = [table.with_columns(headings).labelled(labels) for table in report_content.tables]
        table_writers = {**writers(tables, "tables"), "tables.csv": csv_writer(tables)}
        check_folder(config.figures, list(table_writers))
        charts = {
            network: [chart.labelled(labels) for chart in network_charts]
            for network, network_charts in report_content.charts.items()
        }
        figure_files = save_charts(config.figures, charts, check_folder)
        write_files(config.figures, table_writers)
        figure_files += [config.figures / name for name in table_writers]
    if config.out is not None:
        with atomic_file(config.out) as temporary:
            report_content.write(temporary)
    return Written(report_content.rows, len(report_content.charts), figure_files)


def _headings(text: str, tables: Sequence[Table]) -> list[str]:
    """Return the headings of --columns, in lower case, that some table has, except those of first
    columns, which are always shown.

    Args:
        text: headings, separated by semicolons, in any case.
        tables: tables of the report.

    Raises:
        InputError: no table has such a heading.
    """
    # Labels by heading, headings of first columns, and the requested headings in lower case.
    column_by_heading = {
        heading: column.label for table in tables for heading, column in table.by_heading.items()
    }
    first_headings = {table.columns[0].label.lower() for table in tables}
    requested_headings = [
        " ".join(part.lower().split()) for part in text.split(";") if part.strip()
    ]
    for heading in requested_headings:
        if heading not in column_by_heading and heading not in first_headings:
            labels = "; ".join(" ".join(label.split()) for label in column_by_heading.values())
            raise InputError("--columns", "", f"headings such as {labels}", heading)
    return [heading for heading in requested_headings if heading in column_by_heading]


def _labels(texts: Sequence[str], reported: Reported) -> dict[str, str]:
    """Return the labels of schemes, by scheme, from texts SCHEME=TEXT.

    Args:
        texts: values of --label.
        reported: results with the charts, which have the schemes.

    Raises:
        InputError: an empty text, or no such scheme.
    """
    schemes = dict.fromkeys(
        series.scheme
        for network_charts in reported.charts.values()
        for chart in network_charts
        for series in chart.series
    )
    labels = {}
    for text in texts:
        # The options of a scheme contain =, too: the longest matching name is the scheme.
        matching_schemes = [name for name in schemes if text.startswith(f"{name}=")]
        if not matching_schemes:
            scheme_names = ", ".join(schemes)
            expected = f"SCHEME=TEXT with one of the schemes {scheme_names}"
            raise InputError("--label", "", expected, repr(text))
        name = max(matching_schemes, key=len)
        labels[name] = text[len(name) + 1 :].strip()
        if not labels[name]:
            raise InputError("--label", "", "SCHEME=TEXT with a non-empty TEXT", repr(text))
    return labels


def report_outcome(config: ReportConfig, _: Notify) -> Outcome:
    """Run ``teal report``; return the written files, and the numbers of rows and networks.

    Args:
        config: the settings.
    """
    written = run_report(config)
    lines = (
        []
        if config.out is None
        else [f"{config.out}: {written.rows:,} rows of {written.networks} networks"]
    )
    lines += [f"{config.figures}: {len(written.figures)} files"] if written.figures else []
    return Outcome(
        text="\n".join(lines),
        data={
            "rows": written.rows,
            "networks": written.networks,
            "figures": [str(path) for path in written.figures],
        },
    )
