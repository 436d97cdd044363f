"""`teal solve --routing segments`: the result, and the file of its lists."""

from __future__ import annotations

import math
from collections.abc import Callable

from teal.config import SolveConfig, seconds
from teal.evaluation.over_lists import is_compiled_case, solve_over, with_tighter_free_bound
from teal.evaluation.segments import SegmentReport, load_segments, solved
from teal.evaluation.static_lists import StaticReport, is_static, solve_static
from teal.formats.segment_lists import write_policies
from teal.formats.sr_policies import write_sr_policies
from teal.runtime.interruptible import Deadline
from teal.runtime.storage import check_out_file

_SR_POLICY = ".sr-policy.json"  # ending of the name of a file with labels and candidate paths


def run_segments(config: SolveConfig, notify: Callable[[str], None]) -> SegmentReport | StaticReport:
    """Solve the matrix and, if there is an output file, write the lists.

    Raises:
        InputError: a fault in the settings, or an output file that must not be replaced.
    """
    if config.out is not None:
        check_out_file(config.out, (".json", ".conf"), overwrite=config.overwrite)
    dag, traffic = load_segments(config, notify)
    deadline = Deadline.after(seconds(config.deadline, "--deadline")) if config.deadline else Deadline(math.inf)
    report: SegmentReport | StaticReport
    if is_static(config):
        report = solve_static(config, dag, traffic, deadline, notify)
    elif is_compiled_case(config):
        report = solved(config, dag, traffic.pairs, traffic.read([config.index])[0], deadline, notify)
    else:
        report = solve_over(config, dag, traffic, deadline, notify)
    if isinstance(report, SegmentReport):
        report = with_tighter_free_bound(config, report, dag, traffic, notify)
    if config.out is not None:
        if config.out.suffix.lower() == ".conf" or config.out.name.endswith(_SR_POLICY):
            write_sr_policies(config.out, report.topology, report.policies)
        else:
            write_policies(config.out, report.topology, report.policies, report.to_json())
        notify(f"{config.out}: {len(report.policies.lists):,} policies")
    return report
