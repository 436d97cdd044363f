"""A history of matrices, allocated part by part: what `teal allocate` does, wherever a part is worked on."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch

from teal.allocation import Allocation
from teal.assessment import assess
from teal.config import AllocateConfig
from teal.formats.allocations import MatrixFile
from teal.instance import Instance, load_instance
from teal.price_allocator import starter_for
from teal.problem import Problem
from teal.solvers.pdhg import MOST_LANES
from teal.solvers.split_table import admit, table_weights
from teal.storage import atomic_file
from teal.successive import Successive


@dataclasses.dataclass(frozen=True)
class Allocated:
    """One matrix.

    Attributes:
        index, timestamp: of the matrix.
        value, bound, gap, satisfied_demand, max_link_utilisation, max_violation, status: by the validator.
        solve_s: seconds, those of matrices that were solved together divided evenly.
    """

    index: int
    timestamp: str
    value: float
    bound: float
    gap: float
    satisfied_demand: float
    max_link_utilisation: float
    max_violation: float
    status: str
    solve_s: float


class Bulk:
    """The parts of a history.  A part depends on the settings alone, not on which parts were worked on before.

    Args:
        config: the settings.
        say: is told what was assumed and found.

    Raises:
        InputError: a fault in what the user gave.
    """

    def __init__(self, config: AllocateConfig, say: Callable[[str], None] = lambda _: None) -> None:
        self.config = config
        self.instance: Instance = load_instance(config, say)
        self._starter = starter_for(config.model, self.instance.paths)
        count = self.instance.traffic.num_matrices
        self.num_matrices = min(count, config.limit) if config.limit else count

    @property
    def num_parts(self) -> int:
        """How many there are."""
        return -(-self.num_matrices // self.config.part)

    def file(self, part: int) -> Path:
        """Where a part is written."""
        return self.config.out / f"part-{part:05d}.parquet"

    def work(self, part: int) -> list[Allocated]:
        """Allocate the matrices of a part and write its file, whole or not at all."""
        begin, size = part * self.config.part, self.config.part
        rows = range(begin, min(self.num_matrices, begin + size))
        engine, found = Successive(), list[Allocated]()
        problem = self.instance.problem(self.instance.traffic.read([begin]))
        with atomic_file(self.file(part)) as temporary:
            file = MatrixFile(temporary, "weights" if self.config.entries else "splits")
            for first in range(0, len(rows), MOST_LANES):
                allocated, splits = self._batch(engine, problem, list(rows[first : first + MOST_LANES]))
                file.add(allocated, None if self.config.figures_only else self._kept(splits))
                found += allocated
            file.close()
        return found

    def _batch(self, engine: Successive, problem: Problem, rows: list[int]) -> tuple[list[Allocated], torch.Tensor]:
        config, traffic = self.config, self.instance.traffic
        problem = problem.with_demand(torch.from_numpy(traffic.read(rows)).to(problem.demand))
        begin = time.perf_counter()
        solved = engine.solve(problem, gap=config.gap, max_iterations=config.max_iterations, starter=self._starter)
        splits = admit(problem, solved.splits, config.entries) if config.entries else solved.splits
        spent = time.perf_counter() - begin
        measured = assess(problem, Allocation.of_batch(splits, solved.prices, spent))
        allocated = [
            Allocated(
                index=row,
                timestamp=str(traffic.timestamps[row]),
                status=measured.status[place].value,
                solve_s=spent / len(rows),
                **measured.figures(place),
            )
            for place, row in enumerate(rows)
        ]
        return allocated, splits

    def _kept(self, splits: torch.Tensor) -> npt.NDArray[Any]:
        entries = self.config.entries
        kept = table_weights(splits, entries).to(torch.uint8) if entries else splits.float()
        return kept.cpu().numpy()
