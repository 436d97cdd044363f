"""Command `teal solve`: solve one matrix, write its allocation and proof, describe the result."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from teal.allocation.certify import prove
from teal.allocation.settings import SolveConfig
from teal.allocation.sharded import PART_FILES, Workers, part_file, solve_sharded
from teal.allocation.solve import SolveMetrics, SolveReport, solve_matrix
from teal.app.command import EXIT_FAILED, EXIT_GAP, EXIT_OK, Notify, Outcome
from teal.app.warm_up import compile_first
from teal.errors import InputError
from teal.formats.allocations import ALLOCATION_SUFFIXES, write_allocation
from teal.runtime.storage import check_out_file, check_out_folder, remove_files
from teal.solvers.split_table import table_weights


def run_solve(config: SolveConfig, notify: Callable[[str], None]) -> SolveMetrics:
    """Solve the matrix; write the allocation to ``--out`` and the proof to ``--prove``.

    Args:
        config: settings of `teal solve`.
        notify: prints one line of text.

    Returns:
        figures of the allocation.

    Raises:
        InputError: invalid settings, or an output file that must not be replaced.
    """
    if config.is_sharded:
        compile_first(notify)
        return _run_sharded(config, notify)
    # Check the output file before the solve.
    if config.out:
        check_out_file(config.out, ALLOCATION_SUFFIXES, overwrite=config.overwrite)
    report = solve_matrix(config, notify, partial(compile_first, notify))
    if config.out:
        num_paths = _write_allocation(config.out, report, config.entries)
        notify(f"{config.out}: {num_paths:,} paths that carry traffic")
    # If not all demand fits (largest_share is set), the allocation serves the same fraction of
    # every demand; `teal solve` writes no proof of that.
    if config.prove and report.largest_share is not None:
        notify(f"{config.prove}: no proof is written, since not all demand can be carried")
    elif config.prove:
        proof = prove(
            config.prove,
            report.problem,
            report.allocation,
            config.over_all_paths,
            compressed=False,
            overwrite=config.overwrite,
        )
        notify(
            "\n".join([*proof.sentences, f"{proof.folder}: check it without Teal: {proof.command}"])
        )
    return report


def _write_allocation(file: Path, report: SolveReport, entries: int) -> int:
    """Write the allocation with its figures; return the number of paths with traffic.

    Args:
        file: output file.
        report: result of the solve.
        entries: number of entries of a demand's split table, for integer weights; 0 to write
            fractions.
    """
    problem = report.problem
    demand = problem.demand[0].cpu().numpy()
    splits = report.splits.cpu().numpy()
    weights = None
    if entries:
        weights = table_weights(report.splits[None], entries)[0].cpu().numpy()
    return write_allocation(
        file,
        problem.topology,
        problem.paths,
        demand,
        splits,
        weights,
        report.to_json(),
        problem.classes,
    )


def _run_sharded(config: SolveConfig, notify: Callable[[str], None]) -> SolveMetrics:
    """Solve shard by shard, and write a file for each shard to the folder ``--out``.

    Args:
        config: settings of `teal solve`.
        notify: prints one line of text.

    Returns:
        figures of the allocation.

    Raises:
        InputError: invalid settings, or an output folder that must not be replaced.
    """
    if config.out:
        if config.out.suffix.lower() in ALLOCATION_SUFFIXES:
            raise InputError.invalid(
                str(config.out),
                "out",
                "this is the name of a file; with --shards and --workers it must be a folder",
            )
        earlier_files = sorted(file.name for file in config.out.glob(PART_FILES))
        check_out_folder(
            config.out, tuple(earlier_files) or (part_file(0),), overwrite=config.overwrite
        )
        remove_files(config.out, earlier_files)
    workers: Workers | None = None
    if config.workers:
        # Ray is imported only where it is needed.
        from teal.allocation.shard_workers import actors

        workers = actors
    report = solve_sharded(config, notify, workers)
    if config.out:
        notify(f"{config.out}: {report.rows:,} paths that carry traffic, in {report.shards} files")
    return report


def solve_outcome(config: SolveConfig, notify: Notify) -> Outcome:
    """Run `teal solve`; return its result as text, JSON data and exit code."""
    report = run_solve(config, notify)
    if hint := report.unit_hint():
        notify(hint)
    if report.usable and not report.reached:
        notify(
            f"the target gap of {100 * config.gap:g}% was not reached: stopped by "
            f"{report.stopped_by}"
        )
    return Outcome(
        text=report.describe(),
        data=report.to_json(),
        exit_code=EXIT_FAILED if not report.usable else EXIT_OK if report.reached else EXIT_GAP,
    )
