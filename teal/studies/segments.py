"""`teal solve --routing segments`: the result, and the file of its lists."""

from __future__ import annotations

from collections.abc import Callable

from teal.config import SolveConfig
from teal.evaluation.segments import SegmentReport, solve_segments
from teal.formats.segment_lists import write_policies
from teal.formats.sr_policies import write_sr_policies
from teal.runtime.storage import check_out_file

_SR_POLICY = ".sr-policy.json"  # ending of the name of a file with labels and candidate paths


def run_segments(config: SolveConfig, notify: Callable[[str], None]) -> SegmentReport:
    """Solve the matrix and, if there is an output file, write the lists.

    Raises:
        InputError: a fault in the settings, or an output file that must not be replaced.
    """
    if config.out is not None:
        check_out_file(config.out, (".json", ".conf"), overwrite=config.overwrite)
    report = solve_segments(config, notify)
    if config.out is not None:
        if config.out.suffix.lower() == ".conf" or config.out.name.endswith(_SR_POLICY):
            write_sr_policies(config.out, report.topology, report.policies)
        else:
            write_policies(config.out, report.topology, report.policies, report.to_json())
        notify(f"{config.out}: {len(report.policies.lists):,} policies")
    return report
