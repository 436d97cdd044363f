"""A history of matrices, allocated part by part: what `teal allocate` does, wherever a part is worked on."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import torch

from teal.allocation import Allocation
from teal.assessment import assess
from teal.config import AllocateConfig
from teal.formats.allocations import write_matrices
from teal.instance import Instance, load_instance
from teal.price_allocator import starter_for
from teal.solvers.pdhg import MOST_LANES
from teal.solvers.split_table import admit, table_weights
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
        config, traffic = self.config, self.instance.traffic
        engine, found, shares = Successive(), list[Allocated](), list[torch.Tensor]()
        end = min(self.num_matrices, (part + 1) * config.part)
        problem = self.instance.problem(traffic.read([part * config.part]))
        for first in range(part * config.part, end, MOST_LANES):
            rows = list(range(first, min(end, first + MOST_LANES)))
            problem = problem.with_demand(torch.from_numpy(traffic.read(rows)).to(problem.demand))
            begin = time.perf_counter()
            solved = engine.solve(problem, gap=config.gap, max_iterations=config.max_iterations, starter=self._starter)
            splits = admit(problem, solved.splits, config.entries) if config.entries else solved.splits
            spent = time.perf_counter() - begin
            measured = assess(problem, Allocation.of_batch(splits, solved.prices, spent))
            figures = {
                name: getattr(measured, name).tolist()
                for name in ("value", "bound", "gap", "satisfied_demand", "max_link_utilisation", "max_violation")
            }
            for place, row in enumerate(rows):
                found.append(
                    Allocated(
                        index=row,
                        timestamp=str(traffic.timestamps[row]),
                        status=measured.status[place].value,
                        solve_s=spent / len(rows),
                        **{name: values[place] for name, values in figures.items()},
                    )
                )
            if not config.figures_only:
                kept = table_weights(splits, config.entries).to(torch.uint8) if config.entries else splits.float()
                shares.append(kept.cpu())
        name = "weights" if config.entries else "splits"
        write_matrices(self.file(part), found, torch.cat(shares).numpy() if shares else None, name)
        return found
