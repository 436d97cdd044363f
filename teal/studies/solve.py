"""`teal solve`: one matrix, and the file of its allocation."""

from __future__ import annotations

from collections.abc import Callable

from teal.config import SolveConfig
from teal.evaluation.solve import SolveReport, solve_matrix
from teal.formats.allocations import ALLOCATION_SUFFIXES, write_allocation
from teal.runtime.storage import check_out_file


def run_solve(config: SolveConfig, notify: Callable[[str], None]) -> SolveReport:
    """Solve the matrix and, if there is an output file, write the allocation.

    Raises:
        InputError: a fault in the settings, or an output file that must not be replaced.
    """
    if config.out:
        check_out_file(config.out, ALLOCATION_SUFFIXES, overwrite=config.overwrite)
    report = solve_matrix(config, notify)
    if config.out:
        problem = report.problem
        demand, splits = problem.demand[0].cpu().numpy(), report.splits.cpu().numpy()
        rows = write_allocation(config.out, problem.topology, problem.paths, demand, splits)
        notify(f"{config.out}: {rows:,} paths that carry traffic")
    return report
