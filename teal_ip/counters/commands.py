"""``teal estimate`` and ``teal check``: run from settings; write tables, an HTML page and files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from teal.app.command import EXIT_ALARM, EXIT_OK, Notify, Outcome
from teal.app.page import Section, write_page
from teal.app.run_files import write_files, write_manifest
from teal.app.table import Column, Table
from teal.app.text import digits, percent
from teal.app.web.layout import drawing_of, utilisation_map
from teal.formats import save_traffic
from teal.formats.rows import write_csv
from teal.runtime.storage import check_out_file, check_out_folder, json_value
from teal_ip.counters.estimate import (
    CheckedInterval,
    CheckRun,
    EstimateRun,
    check,
    estimate,
    measured_on,
    save_intervals,
)
from teal_ip.counters.settings import CheckConfig, EstimateConfig

# Maximum number of demands in the table of the page.
_MAX_PAGE_DEMANDS = 200
# Maximum number of intervals in the table of the terminal.
_MAX_SHOWN_INTERVALS = 20


def write_estimate_page(path: Path, run: EstimateRun) -> None:
    """Write an HTML page of estimated matrices.

    It has a table of the largest demands with their prediction intervals and, if given, the truth;
    and a map of the residual of each link as a share of its capacity.

    Args:
        path: path of the page.
        run: estimated matrices.
    """
    # Table: means over the intervals, (D,) Gbit/s.
    topology = run.topology
    traffic = run.traffic
    mean_demand = traffic.mean()
    lower = run.lower.mean(0)
    upper = run.upper.mean(0)
    truth = None if run.truth is None or np.isnan(run.truth).all() else np.nanmean(run.truth, 0)
    names = topology.node_names
    width = upper - lower
    columns = (
        Column("demand", lambda d: " -> ".join(names[node] for node in traffic.pairs[d])),
        Column("mean, Gbit/s", lambda d: float(mean_demand[d]), digits(4), most_is_best=True),
        Column(
            "prediction interval (mean of its ends), Gbit/s",
            lambda d: f"{lower[d]:.4g} to {upper[d]:.4g}" if np.isfinite(width[d]) else "",
        ),
        Column("width, Gbit/s", lambda d: float(width[d]), digits(4), optional=True),
        *([] if truth is None else [Column("truth, Gbit/s", lambda d: float(truth[d]), digits(4))]),
    )
    # Map: mean residual of each link over its capacity.
    is_live = topology.capacity > 0
    residual_share = np.where(
        is_live, np.abs(run.residual) / np.where(is_live, topology.capacity, 1), np.nan
    )
    map_values = {"mean unexplained traffic, share of the capacity": {"residual": residual_share}}
    section = Section(
        title=topology.name,
        facts=f"{traffic.num_matrices:,} matrices of {traffic.num_demands:,} demands",
        traffic="counters",
        table=Table("", columns, np.argsort(-mean_demand)[:_MAX_PAGE_DEMANDS].tolist()),
        map=utilisation_map(drawing_of(topology), map_values),
    )
    write_page(
        path,
        f"Matrices of {topology.name}, from counters",
        _as_paragraph(run.describe()),
        [section],
    )


def check_table(rows: Sequence[CheckedInterval]) -> Table:
    """Return the table of the intervals with an alarm; if there is none, of the 20 intervals
    nearest to the limit.
    """
    alarm_rows = [row for row in rows if row.alarm]
    nearest_rows = sorted(rows, key=lambda row: row.mean_statistic - row.limit, reverse=True)
    columns = (
        Column("interval", "timestamp"),
        Column("statistic", "mean_statistic", _three_decimals),
        Column("limit", "limit", _three_decimals),
        Column("ends disagree", "disagreeing", percent),
        Column("counters replaced", "blamed", str),
        Column("suspects", lambda row: row.unit or row.suspects),
    )
    title = (
        f"{len(alarm_rows):,} of {len(rows):,} intervals raise an alarm"
        if alarm_rows
        else "no alarm; intervals nearest to the limit"
    )
    return Table(
        title, columns, alarm_rows or nearest_rows[:_MAX_SHOWN_INTERVALS], _MAX_SHOWN_INTERVALS
    )


def named_table(run: CheckRun) -> Table:
    """Return the table of counters that contradict the others, one row per interface."""
    columns = (
        Column("router", "router"),
        Column("interface", "interface"),
        Column("counters", "kind"),
        Column("share of intervals", "share", percent, most_is_best=True),
        Column("counted / repaired", "ratio", digits(3), optional=True),
    )
    return Table("counters that contradict the others", columns, run.named)


def _three_decimals(value: float) -> str:
    """Return a number with three decimals."""
    return f"{value:.3f}"


def _as_paragraph(text: str) -> str:
    """Return the lines of a text as one paragraph: each becomes a sentence with a full stop."""
    return " ".join(f"{line[:1].upper()}{line[1:]}." for line in text.splitlines())


# Files that ``teal estimate`` writes to its output folder.
FILES = MATRICES, INTERVALS, ROWS, PAGE, MANIFEST = (
    "matrices.npz",
    "intervals.npz",
    "estimate.csv",
    "estimate.html",
    "manifest.json",
)


def run_estimate(config: EstimateConfig, notify: Callable[[str], None]) -> EstimateRun:
    """Estimate matrices from settings; write the files to the output folder, if any.

    The intervals so far are also written every ten seconds, and on Ctrl-C or SIGTERM.

    Raises:
        InputError: invalid settings, or existing results in OUT without --overwrite.
    """
    if config.out is not None:
        check_out_folder(config.out, FILES, overwrite=config.overwrite)
    out = config.out

    def write(run: EstimateRun) -> None:
        """Write the results so far to the output folder, if any."""
        if out is None:
            return
        manifest = partial(write_manifest, settings=config)
        write_files(out, {**estimate_files(run), MANIFEST: manifest})

    # An interrupted run writes its last results before it raises KeyboardInterrupt.
    try:
        measured = measured_on(config.topology, config.counters, config, notify)
        run = estimate(measured, config, notify, write)
    except KeyboardInterrupt:
        if out is not None:
            notify(f"{out}: results of the intervals before the interruption were written")
        raise
    write(run)
    return run


def estimate_files(run: EstimateRun) -> dict[str, Callable[[Path], None]]:
    """Return the functions that write matrices, tables and page to a path, by file name."""
    files: dict[str, Callable[[Path], None]] = {
        MATRICES: lambda path: save_traffic(path, run.traffic, run.topology),
        ROWS: partial(write_csv, rows=run.intervals),
        PAGE: partial(write_estimate_page, run=run),
    }
    # Lower ends of the prediction intervals are NaN without a calibration.
    if not np.isnan(run.lower).all():
        files[INTERVALS] = partial(save_intervals, run=run)
    return files


class EstimateReport(EstimateRun):
    """Estimated traffic matrices, with export to frames, a page and files."""

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write matrices, tables and page to a folder, as ``teal estimate`` does.

        Raises:
            InputError: existing results, and ``overwrite`` is false.
        """
        write_files(folder, estimate_files(self), overwrite=overwrite)


def run_check(config: CheckConfig, notify: Callable[[str], None]) -> CheckRun:
    """Check counters and matrices from settings; write a row per interval to the output file, if
    any.

    Raises:
        InputError: invalid settings, or an existing output file without --overwrite.
    """
    if config.out is not None:
        check_out_file(config.out, (".csv",), overwrite=config.overwrite)
    measured = measured_on(config.topology, config.counters, config, notify)
    run = check(measured, config.traffic, config, notify)
    if config.out is not None:
        write_csv(config.out, run.intervals)
    return run


def estimate_outcome(config: EstimateConfig, notify: Notify) -> Outcome:
    """Run ``teal estimate``; return its summary, the table of wrong counters, and the JSON data."""
    run = run_estimate(config, notify)
    check_run = run.checked
    return Outcome(
        text=run.describe(),
        tables=[named_table(check_run)] if check_run is not None and check_run.named else [],
        written=""
        if config.out is None
        else f"{config.out / PAGE}: open it in a browser; matrices are beside it",
        data=run.to_json,
    )


def check_outcome(config: CheckConfig, notify: Notify) -> Outcome:
    """Run ``teal check``; return its tables, the JSON data, and an exit code that reports
    alarms.
    """
    run = run_check(config, notify)
    num_alarms = len(run.alarms)
    return Outcome(
        tables=[check_table(run.intervals), *([named_table(run)] if run.named else [])],
        data=json_value({"alarms": num_alarms, "intervals": run.intervals, "counters": run.named}),
        exit_code=EXIT_ALARM if num_alarms else EXIT_OK,
    )
