"""Allocate a history of traffic matrices, part by part.

A part is a fixed number of consecutive matrices.  Each matrix of a part is solved by PDHG from the
state of the matrices before it; a part never depends on other parts, so that parts can be computed
in any order and in several processes.  Entry points: :func:`allocate` (all parts, in memory),
:class:`HistoryAllocator` (part by part).

Axes: B matrices of a batch, M matrices of the history, D demands, K candidate paths of a demand.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from teal.allocation.settings import AllocateOptions
from teal.app.instance import Instance
from teal.app.run_files import write_files
from teal.formats.allocations import MatrixFile, write_candidates
from teal.formats.rows import write_csv
from teal.network import PathSet, Topology, TrafficMatrices
from teal.problem import Allocation, Metrics, Problem, Status, assess
from teal.problem.churn import share_moved
from teal.runtime.arrays import Float32Array
from teal.runtime.storage import check_out_folder
from teal.schemes.default_model import default_model
from teal.schemes.models import named_model
from teal.schemes.successive import SuccessivePdhg
from teal.solvers.pdhg import MAX_LANES
from teal.solvers.result import Starter
from teal.solvers.short_paths import preferred
from teal.solvers.table_search import installable

# Files of the candidate paths, and of the figures of all matrices.
PATHS = "paths.parquet"
FIGURES_FILE = "figures.csv"


def part_file(part: int) -> str:
    """Return the name of the file with the splits of a part, from the index of the part."""
    return f"part-{part:05d}.parquet"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllocatedMatrix(Metrics):
    """Figures of one allocated matrix.

    The base class holds value, satisfied demand, bound, gap, largest link utilisation and largest
    violation.

    Attributes:
        index: row of the matrix in the traffic.
        timestamp: time of the matrix, ISO 8601.
        status: feasible, or infeasible (the validator's verdict).
        solve_s: solve time in seconds; the time of a batch is divided evenly among its matrices.
        exact_value: value before --entries and --min-split changed the splits.
        moved: share of the routable demand that moves to other paths, relative to the previous
            matrix of the part; NaN for the first matrix of a part, and without --max-churn.
    """

    index: int
    timestamp: str
    status: str
    solve_s: float
    exact_value: float
    moved: float = math.nan

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "index",
        "timestamp",
        "value",
        "bound",
        "gap",
        "satisfied_demand",
        "max_link_utilisation",
        "max_violation",
        "status",
        "solve_s",
        "exact_value",
        "moved",
    )
    """Columns of the CSV file of figures, in this order."""


@dataclasses.dataclass(frozen=True, eq=False)
class AllocatedBatch:
    """Result of a batch of matrices that were solved together.

    Attributes:
        problem: problem of the B matrices.
        allocation: splits to install (B, D, K), rounded, and link prices.
        matrices: figures of each matrix.
    """

    problem: Problem
    allocation: Allocation
    matrices: list[AllocatedMatrix]


class HistoryAllocator:
    """Allocator of the matrices of a history, part by part.

    Args:
        instance: network, matrices, candidate paths and objective.
        options: target gap, iteration limit, rounding, size of a part.

    Attributes:
        instance: network, matrices, candidate paths and objective.
        num_matrices: number of matrices to allocate, at most the option ``limit``.
    """

    def __init__(self, instance: Instance, options: AllocateOptions) -> None:
        self.instance = instance
        self._options = options
        # Model that the options name; None for the default one and for none.
        self._named_model = named_model(options.model, instance.objective)
        count = instance.traffic.num_matrices
        self.num_matrices = min(count, options.limit) if options.limit else count

    @property
    def num_parts(self) -> int:
        """Number of parts of the history; the last part may have fewer matrices."""
        return -(-self.num_matrices // self._options.part)

    def batches(self, part: int) -> Iterator[AllocatedBatch]:
        """Yield the allocated batches of a part, in order of time.

        Args:
            part: index of the part, from 0.
        """
        # Rows of the part, which has ``options.part`` matrices, and a problem, in which each batch
        # replaces the demand.
        options = self._options
        first_row = part * options.part
        rows = range(first_row, min(self.num_matrices, first_row + options.part))
        solver = SuccessivePdhg()
        problem = self.instance.problem(self.instance.traffic.read([first_row]))
        # PDHG solves MAX_LANES matrices side by side.  A limit on churn refers to the previous
        # matrix, so matrices are then solved one by one.
        batch_size = MAX_LANES if options.max_churn is None else 1
        installed_splits = None
        for begin in range(0, len(rows), batch_size):
            batch_rows = list(rows[begin : begin + batch_size])
            batch = self._allocate(solver, problem, batch_rows, installed_splits)
            if options.max_churn is not None:
                installed_splits = _updated_splits(batch, installed_splits)
            yield batch

    def _allocate(
        self,
        solver: SuccessivePdhg,
        problem: Problem,
        rows: list[int],
        installed_splits: torch.Tensor | None,
    ) -> AllocatedBatch:
        """Solve a batch of matrices, round the splits, and compute the figures of each matrix.

        Args:
            solver: PDHG solver of this part of the history; it starts from the matrix before.
            problem: problem of the network; its demand is replaced.
            rows: indices of the B matrices in the traffic.
            installed_splits: (D, K) splits of the previous matrix, from which at most
                ``max_churn`` of the demand may move; None for no limit.
        """
        options = self._options
        traffic = self.instance.traffic
        # Problem of the batch, with a limit on churn.
        problem = problem.with_demand(torch.from_numpy(traffic.read(rows)).to(problem.demand))
        if installed_splits is not None and options.max_churn is not None:
            problem = problem.with_churn_limit(installed_splits, options.max_churn)
        # Model whose predictions the solver starts from.
        predictor: Starter | None = self._named_model
        if options.model == "auto" and (default := default_model(problem, options.gap)):
            # Load before the clock starts.
            default.warm_up_kernels(problem)
            predictor = default
        # Solve; without a limit on churn, move flow to short paths (--prefer); round the splits.
        begin = time.perf_counter()
        result = solver.solve(
            problem, gap=options.gap, max_iterations=options.max_iterations, starter=predictor
        )
        preferred_splits = (
            result.splits
            if installed_splits is not None
            else preferred(problem, result.splits, options.prefer)
        )
        splits = installable(problem, preferred_splits, options.min_split, options.entries)
        solve_s = time.perf_counter() - begin
        # Validate the allocation independently of the solver, and compute its churn (B,): the moved
        # share of the demand, relative to the installed splits.
        allocation = Allocation.of_batch(splits, result.prices, solve_s, result.program_prices)
        assessment = assess(problem, allocation)
        churn = torch.full((len(rows),), math.nan)
        if installed_splits is not None:
            churn = share_moved(problem.program, splits.to(problem.demand), installed_splits)
        matrices = [
            AllocatedMatrix(
                index=row,
                timestamp=str(traffic.timestamps[row]),
                status=assessment.status[position].value,
                solve_s=solve_s / len(rows),
                # Before the splits were rounded.
                exact_value=float(result.value[position]),
                moved=float(churn[position]),
                **vars(assessment.metrics(position)),
            )
            for position, row in enumerate(rows)
        ]
        return AllocatedBatch(problem, allocation, matrices)


def _updated_splits(batch: AllocatedBatch, previous: torch.Tensor | None) -> torch.Tensor:
    """Return the installed splits (D, K) after a batch; demands of 0 keep the previous splits.

    Args:
        batch: allocated batch; its last matrix counts.
        previous: (D, K) installed splits before the batch; None for the first batch.
    """
    splits = batch.allocation.splits[-1]
    if previous is None:
        return splits
    return torch.where(batch.problem.demand[-1, :, None] > 0, splits, previous)


@dataclasses.dataclass(frozen=True, eq=False)
class AllocatedHistory:
    """Allocation of every matrix of a history.

    Attributes:
        topology: network.
        traffic: traffic matrices.
        paths: candidate paths of the demands.
        matrices: figures of each of the M matrices.
        splits: (M, D, K) fraction of each demand on each of its paths, float32.
    """

    topology: Topology
    traffic: TrafficMatrices
    paths: PathSet
    matrices: tuple[AllocatedMatrix, ...]
    splits: Float32Array

    def __repr__(self) -> str:
        """Return the number of matrices, the range of satisfied demand, and the largest gap."""
        return "\n".join(sentences(self.matrices))

    def to_frame(self) -> Any:
        """Return the figures as a pandas data frame with a row for each matrix."""
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(matrix) for matrix in self.matrices])

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write figures.csv, paths.parquet and part-00000.parquet (the splits) to a folder.

        The files have the format of ``teal allocate``.

        Args:
            folder: output folder; created if missing.
            overwrite: whether to replace results that the folder has already.

        Raises:
            InputError: the folder has results already, and ``overwrite`` is false.
        """
        names = [PATHS, FIGURES_FILE, part_file(0)]
        check_out_folder(Path(folder), names, overwrite=overwrite)
        write_files(
            Path(folder),
            {
                PATHS: partial(write_candidates, topology=self.topology, paths=self.paths),
                FIGURES_FILE: partial(write_csv, rows=self.matrices),
                part_file(0): self._write_part,
            },
        )

    def _write_part(self, file: Path) -> None:
        """Write the splits of all matrices to a Parquet file."""
        writer = MatrixFile(file, "splits")
        writer.add(list(self.matrices), self.splits)
        writer.close()


def allocate(instance: Instance, options: AllocateOptions) -> AllocatedHistory:
    """Return the allocation of every matrix of an instance, computed in this process."""
    allocator = HistoryAllocator(instance, options)
    batches = [batch for part in range(allocator.num_parts) for batch in allocator.batches(part)]
    return AllocatedHistory(
        instance.topology,
        instance.traffic,
        instance.paths,
        tuple(matrix for batch in batches for matrix in batch.matrices),
        np.concatenate([batch.allocation.splits.float().cpu().numpy() for batch in batches]),
    )


def sentences(matrices: Sequence[AllocatedMatrix]) -> list[str]:
    """Summarise allocated matrices in one or two lines of text.

    The first line counts the matrices and those without a usable allocation.  The second one, if
    any is usable, has the range of satisfied demand and the largest gap.
    """
    usable = [matrix for matrix in matrices if Status(matrix.status).usable]
    num_unusable = len(matrices) - len(usable)
    lines = [f"{len(matrices):,} matrices, {num_unusable:,} of them without a usable allocation"]
    if usable:
        gaps, satisfied = (
            np.array([getattr(matrix, name) for matrix in usable])
            for name in ("gap", "satisfied_demand")
        )
        lines.append(
            f"satisfied demand {100 * satisfied.min():.2f}% to {100 * satisfied.max():.2f}%, "
            f"mean {100 * satisfied.mean():.2f}%; gap {100 * gaps.max():.3f}% at most"
        )
    return lines
