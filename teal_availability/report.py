"""Report of an availability study: the Python result object and its files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from teal.app.run_files import write_files
from teal.formats.rows import write_csv
from teal.runtime.storage import check_out_folder
from teal_availability.page import plot_availability, summary_table, write_availability_report
from teal_availability.records import AvailabilityFigures

RESULTS = SUMMARY, DEMANDS, COMPONENTS, PROMISES, PLOT, REPORT = (
    "summary.csv",
    "demands.csv",
    "components.csv",
    "promises.csv",
    "availability.png",
    "report.html",
)


@dataclasses.dataclass(frozen=True, eq=False)
class AvailabilityReport(AvailabilityFigures):
    """Results of an availability study, with result files and a pandas frame."""

    def __repr__(self) -> str:
        """Return the answer and the summary table, as text."""
        return f"{self.answer}\n{summary_table(self).markdown()}"

    def to_frame(self) -> Any:
        """Return a pandas frame with a row for each routing scheme, as in summary.csv."""
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(row) for row in self.summary])

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write tables, plot and page to a folder, as ``teal availability`` does.

        Args:
            folder: the folder.
            overwrite: whether existing results are replaced.

        Raises:
            InputError: existing results without ``overwrite``.
        """
        check_out_folder(Path(folder), RESULTS, overwrite=overwrite)
        write_files(Path(folder), self.files())

    def files(self) -> dict[str, Callable[[Path], None]]:
        """Return the writer of each result file, by file name."""
        promises = {PROMISES: partial(write_csv, rows=self.promises)} if self.promises else {}
        return {
            SUMMARY: partial(write_csv, rows=self.summary),
            DEMANDS: partial(write_csv, rows=self.demands),
            COMPONENTS: partial(write_csv, rows=self.by_component),
            **promises,
            PLOT: partial(plot_availability, report=self),
            REPORT: partial(write_availability_report, report=self),
        }
