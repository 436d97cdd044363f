"""Allocating a history of matrices part by part: a part depends on the options alone, not on which
parts were computed before.
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
from teal.problem import Allocation, Figures, Problem, Status, assess
from teal.problem.churn import share_moved
from teal.runtime.arrays import Float32Array
from teal.runtime.storage import check_out_folder
from teal.schemes.models import named_model, starter_for
from teal.schemes.successive import SuccessivePdhg
from teal.solvers.pdhg import MAX_LANES
from teal.solvers.short_paths import preferred
from teal.solvers.table_search import installable

PATHS = "paths.parquet"
FIGURES_FILE = "figures.csv"


def part_file(part: int) -> str:
    """Name of the file of a part."""
    return f"part-{part:05d}.parquet"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllocatedMatrix(Figures):
    """One matrix, with its figures (see :class:`teal.problem.assessment.Figures`).

    Attributes:
        index: row of the matrix in the traffic.
        timestamp: time of the matrix, ISO 8601.
        status: feasible, or infeasible (the validator's verdict).
        solve_s: seconds; those of matrices that were solved together are divided evenly.
        exact_value: value before --entries and --min-split changed the splits.
        moved: share of the routable demand that moves, against the matrix before it in its part;
            NaN for the first one, and without --max-churn.
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
    """Columns of a file of rows, in this order."""


@dataclasses.dataclass(frozen=True, eq=False)
class AllocatedBatch:
    """Matrices that were solved together.

    Attributes:
        problem: their problem, B matrices.
        allocation: their splits as they are installed, and prices.
        matrices: the figures of each.
    """

    problem: Problem
    allocation: Allocation
    matrices: list[AllocatedMatrix]


class HistoryAllocator:
    """The parts of a history.

    Args:
        instance: network, matrices, candidate paths and program.
        options: when to stop, and what can be installed.
    """

    def __init__(self, instance: Instance, options: AllocateOptions) -> None:
        self.instance = instance
        self._options = options
        named = named_model(options.model, instance.objective)
        self._starter = starter_for(options.model, named, instance.paths)
        count = instance.traffic.num_matrices
        self.num_matrices = min(count, options.limit) if options.limit else count

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return -(-self.num_matrices // self._options.part)

    def batches(self, part: int) -> Iterator[AllocatedBatch]:
        """Allocate the matrices of a part, in their order."""
        options = self._options
        begin = part * options.part
        rows = range(begin, min(self.num_matrices, begin + options.part))
        solver = SuccessivePdhg()
        problem = self.instance.problem(self.instance.traffic.read([begin]))
        at_once = MAX_LANES if options.max_churn is None else 1
        previous = None
        for first in range(0, len(rows), at_once):
            at = list(rows[first : first + at_once])
            batch = self._allocate(solver, problem, at, previous)
            if options.max_churn is not None:
                previous = _in_force(batch, previous)
            yield batch

    def _allocate(
        self,
        solver: SuccessivePdhg,
        problem: Problem,
        rows: list[int],
        previous: torch.Tensor | None,
    ) -> AllocatedBatch:
        """Allocate some matrices.

        Args:
            solver: solver of the part.
            problem: problem of the network.
            rows: numbers of the matrices.
            previous: (D, K) splits in force before, which limit what moves; None for no limit.
        """
        options = self._options
        traffic = self.instance.traffic
        problem = problem.with_demand(torch.from_numpy(traffic.read(rows)).to(problem.demand))
        if previous is not None and options.max_churn is not None:
            problem = problem.with_churn_limit(previous, options.max_churn)
        # Solve, prefer short paths, and round.
        begin = time.perf_counter()
        result = solver.solve(
            problem, gap=options.gap, max_iterations=options.max_iterations, starter=self._starter
        )
        short = (
            result.splits
            if previous is not None
            else preferred(problem, result.splits, options.prefer)
        )
        splits = installable(problem, short, options.min_split, options.entries)
        solve_s = time.perf_counter() - begin
        # Measure the allocation, and what moves.
        allocation = Allocation.of_batch(splits, result.prices, solve_s, result.program_prices)
        assessment = assess(problem, allocation)
        movement = torch.full((len(rows),), math.nan)
        if previous is not None:
            movement = share_moved(problem.program, splits.to(problem.demand), previous)
        matrices = [
            AllocatedMatrix(
                index=row,
                timestamp=str(traffic.timestamps[row]),
                status=assessment.status[index].value,
                solve_s=solve_s / len(rows),
                exact_value=float(result.value[index]),
                moved=float(movement[index]),
                **vars(assessment.figures(index)),
            )
            for index, row in enumerate(rows)
        ]
        return AllocatedBatch(problem, allocation, matrices)


def _in_force(batch: AllocatedBatch, previous: torch.Tensor | None) -> torch.Tensor:
    """(D, K) splits in force after a batch: a demand that is 0 keeps the splits that it had."""
    splits = batch.allocation.splits[-1]
    if previous is None:
        return splits
    return torch.where(batch.problem.demand[-1, :, None] > 0, splits, previous)


@dataclasses.dataclass(frozen=True, eq=False)
class AllocatedHistory:
    """Every matrix of a history, allocated.

    Attributes:
        topology: the network.
        traffic: the matrices.
        paths: candidate paths of the demands.
        matrices: the figures of each matrix, M of them.
        splits: (M, D, K) share of each demand on each of its paths, float32.
    """

    topology: Topology
    traffic: TrafficMatrices
    paths: PathSet
    matrices: tuple[AllocatedMatrix, ...]
    splits: Float32Array

    def __repr__(self) -> str:
        """How many matrices, what is satisfied, and the largest gap."""
        return "\n".join(sentences(self.matrices))

    def to_frame(self) -> Any:
        """A pandas frame of the figures, a row for each matrix."""
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(matrix) for matrix in self.matrices])

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write the figures, the candidate paths and the splits to a folder: figures.csv,
        paths.parquet and part-00000.parquet, as ``teal allocate`` does.

        Raises:
            InputError: there are results in it, and ``overwrite`` is false.
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
        writer = MatrixFile(file, "splits")
        writer.add(list(self.matrices), self.splits)
        writer.close()


def allocate(instance: Instance, options: AllocateOptions) -> AllocatedHistory:
    """Allocate every matrix of an instance, in this process."""
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
    """How many matrices have a usable allocation, what is satisfied, and the largest gap."""
    usable = [matrix for matrix in matrices if Status(matrix.status).usable]
    unusable = len(matrices) - len(usable)
    lines = [f"{len(matrices):,} matrices, {unusable:,} of them without a usable allocation"]
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
