"""`teal estimate` and `teal check`: what they compute, and their files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from teal.config.counters import CheckConfig, EstimateConfig
from teal.evaluation.counters import CheckedInterval, EstimateRun, check, estimate, save_intervals
from teal.formats import save_traffic
from teal.formats.rows import write_csv
from teal.reports.estimate import write_estimate_page
from teal.reports.manifest import write_manifest
from teal.runtime.storage import check_out_file, check_out_folder
from teal.studies.files import write_files

FILES = MATRICES, INTERVALS, ROWS, PAGE, MANIFEST = (
    "matrices.npz", "intervals.npz", "estimate.csv", "estimate.html", "manifest.json",
)  # fmt: skip


def run_estimate(config: EstimateConfig, notify: Callable[[str], None]) -> EstimateRun:
    """Estimate, and write the files if there is a folder for them: as intervals are done, also before an interruption.

    Raises:
        InputError: a fault in the settings, or results in OUT that must not be replaced.
    """
    if config.out is not None:
        check_out_folder(config.out, FILES, overwrite=config.overwrite)
    out = config.out

    def write(run: EstimateRun) -> None:
        if out is None:
            return
        files: dict[str, Callable[[Path], None]] = {
            MATRICES: lambda path: save_traffic(path, run.traffic, run.topology),
            ROWS: partial(write_csv, rows=run.intervals),
            PAGE: partial(write_estimate_page, run=run),
            MANIFEST: partial(write_manifest, settings=config),
        }
        if config.history:
            files[INTERVALS] = partial(save_intervals, run=run)
        write_files(out, files)

    try:
        run = estimate(config, notify, write)
    except KeyboardInterrupt:
        if out is not None:
            notify(f"{out}: the intervals before the interruption")
        raise
    write(run)
    return run


def run_check(config: CheckConfig, notify: Callable[[str], None]) -> list[CheckedInterval]:
    """Check, and write the rows if there is a file for them.

    Raises:
        InputError: a fault in the settings, or an output file that must not be replaced.
    """
    if config.out is not None:
        check_out_file(config.out, (".csv",), overwrite=config.overwrite)
    rows = check(config, notify)
    if config.out is not None:
        write_csv(config.out, rows)
    return rows
