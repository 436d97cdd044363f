"""`teal solve --routing segments`: the result, and the file of its lists."""

from __future__ import annotations

from collections.abc import Callable

from teal.config import SolveConfig
from teal.evaluation.segments import SegmentReport, solve_segments
from teal.formats.segment_lists import write_policies
from teal.runtime.storage import check_out_file


def run_segments(config: SolveConfig, notify: Callable[[str], None]) -> SegmentReport:
    """Solve the matrix and, if there is an output file, write the lists.

    Raises:
        InputError: a fault in the settings, or an output file that must not be replaced.
    """
    if config.out is not None:
        check_out_file(config.out, (".json",), overwrite=config.overwrite)
    report = solve_segments(config, notify)
    if config.out is not None:
        write_policies(config.out, report.topology, report.policies, report.to_json())
        notify(f"{config.out}: {len(report.policies.lists):,} policies")
    return report
