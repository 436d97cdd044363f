"""Allocating a history of matrices part by part, for `teal allocate`, in whichever process a part
is computed.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import torch

from teal.allocation.settings import AllocateConfig
from teal.app.instance import Instance, load_instance
from teal.formats.allocations import MatrixFile, write_allocation
from teal.objectives import Objective
from teal.problem import Allocation, Figures, Problem, assess
from teal.problem.churn import share_moved
from teal.proofs.write import write_proof
from teal.runtime.arrays import AnyArray
from teal.runtime.storage import atomic_file, json_value
from teal.schemes.models import named_model, starter_for
from teal.schemes.successive import SuccessivePdhg
from teal.solvers.pdhg import MAX_LANES
from teal.solvers.short_paths import preferred
from teal.solvers.split_table import table_weights
from teal.solvers.table_search import installable

MATRICES = "matrices"  # subfolder of OUT for the files of single matrices
PROOFS = "proofs"  # subfolder of OUT for a folder of each matrix with its proof


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


class HistoryAllocator:
    """The parts of a history.  A part depends on the settings alone, not on which parts were
    computed before.

    Args:
        config: the settings.
        notify: called with what was assumed and found while loading.

    Raises:
        InputError: a fault in what the user gave.
    """

    def __init__(
        self, config: AllocateConfig, notify: Callable[[str], None] = lambda _: None
    ) -> None:
        self.config = config
        named = named_model(config.model, Objective(config.objective, config.epsilon))
        self.instance: Instance = load_instance(config, notify)
        self._starter = starter_for(config.model, named, self.instance.paths)
        count = self.instance.traffic.num_matrices
        self.num_matrices = min(count, config.limit) if config.limit else count

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return -(-self.num_matrices // self.config.part)

    def file(self, part: int) -> Path:
        """The file of a part."""
        return self.config.out / f"part-{part:05d}.parquet"

    def allocate_part(self, part: int) -> list[AllocatedMatrix]:
        """Allocate the matrices of a part and write its file, whole or not at all."""
        begin, size = part * self.config.part, self.config.part
        rows = range(begin, min(self.num_matrices, begin + size))
        solver, results = SuccessivePdhg(), list[AllocatedMatrix]()
        problem = self.instance.problem(self.instance.traffic.read([begin]))
        with atomic_file(self.file(part)) as temporary:
            file = MatrixFile(temporary, "weights" if self.config.entries else "splits")
            at_once, previous = MAX_LANES if self.config.max_churn is None else 1, None
            for first in range(0, len(rows), at_once):
                at = list(rows[first : first + at_once])
                batch, splits, in_force = self._allocate_batch(solver, problem, at, previous)
                previous = None if self.config.max_churn is None else in_force
                file.add(batch, None if self.config.figures_only else self._stored_form(splits))
                if self.config.each != "none":
                    self._write_each(batch, splits)
                results += batch
            file.close()
        return results

    def _allocate_batch(
        self,
        solver: SuccessivePdhg,
        problem: Problem,
        rows: list[int],
        previous: torch.Tensor | None,
    ) -> tuple[list[AllocatedMatrix], torch.Tensor, torch.Tensor]:
        """The matrices, their splits (B, D, K), and the splits (D, K) in force after the last one.

        Args:
            solver: solver of the part.
            problem: problem of the network.
            rows: numbers of the matrices.
            previous: (D, K) splits in force before, which limit what moves; None for no limit.
        """
        config, traffic = self.config, self.instance.traffic
        problem = problem.with_demand(torch.from_numpy(traffic.read(rows)).to(problem.demand))
        if previous is not None and config.max_churn is not None:
            problem = problem.with_churn_limit(previous, config.max_churn)
        begin = time.perf_counter()
        result = solver.solve(
            problem, gap=config.gap, max_iterations=config.max_iterations, starter=self._starter
        )
        short = (
            result.splits
            if previous is not None
            else preferred(problem, result.splits, config.prefer)
        )
        splits = installable(problem, short, config.min_split, config.entries)
        solve_s = time.perf_counter() - begin
        allocation = Allocation.of_batch(splits, result.prices, solve_s, result.program_prices)
        assessment = assess(problem, allocation)
        if config.prove:
            for place, row in enumerate(rows):
                one = slice(place, place + 1)
                write_proof(
                    config.out / PROOFS / f"{row:06d}",
                    problem.row(place),
                    allocation.rows(one),
                    compressed=True,
                )
        movement = torch.full((len(rows),), math.nan)
        if previous is not None:
            movement = share_moved(problem.program, splits.to(problem.demand), previous)
        allocated = [
            AllocatedMatrix(
                index=row,
                timestamp=str(traffic.timestamps[row]),
                status=assessment.status[place].value,
                solve_s=solve_s / len(rows),
                exact_value=float(result.value[place]),
                moved=float(movement[place]),
                **vars(assessment.figures(place)),
            )
            for place, row in enumerate(rows)
        ]
        in_force = splits[-1]
        if previous is not None:  # a demand that is 0 keeps the splits that it had
            in_force = torch.where(problem.demand[-1, :, None] > 0, in_force, previous)
        return allocated, splits, in_force

    def _write_each(self, matrices: list[AllocatedMatrix], splits: torch.Tensor) -> None:
        """Write each matrix to a file of its own."""
        instance, entries = self.instance, self.config.entries
        weights = table_weights(splits, entries).cpu().numpy() if entries else None
        for place, matrix in enumerate(matrices):
            figures = {"objective": str(instance.objective.spec), **json_value(matrix)}
            write_allocation(
                self.config.out / MATRICES / f"{matrix.index:06d}.{self.config.each}",
                instance.topology,
                instance.paths,
                instance.traffic.read([matrix.index])[0],
                splits[place].double().cpu().numpy(),
                None if weights is None else weights[place],
                figures,
                instance.traffic.classes,
            )

    def _stored_form(self, splits: torch.Tensor) -> AnyArray:
        """Splits as float32, or the weights of a split table as bytes."""
        entries = self.config.entries
        stored = table_weights(splits, entries).to(torch.uint8) if entries else splits.float()
        return stored.cpu().numpy()
