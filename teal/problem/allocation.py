"""Result of every scheme, learned or LP: splits, link prices, status and times of each matrix.

Main classes: :class:`Allocation`, :class:`Status`, :class:`ProgramPrices` (prices of a sequence of
programs).
"""

from __future__ import annotations

import dataclasses
import math
import zipfile
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from teal.errors import InputError
from teal.network import AnyPaths
from teal.problem.problem import Problem
from teal.runtime.archives import check_npz
from teal.runtime.shapes import Float
from teal.runtime.storage import atomic_file


class Status(StrEnum):
    """Outcome of a matrix; only ``OPTIMAL`` and ``FEASIBLE`` have an allocation to install."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    # Set by the validator for an allocation that its scheme called usable, or by a solver's proof
    # that no feasible allocation exists.
    INFEASIBLE = "infeasible"
    TIME_LIMIT = "time_limit"
    FAILED = "failed"

    @property
    def usable(self) -> bool:
        """Whether the matrix has an allocation that may be installed."""
        return self in (Status.OPTIMAL, Status.FEASIBLE)


@dataclasses.dataclass(frozen=True, eq=False)
class ProgramPrices:
    """Link prices of each of S programs: classes under priority, fair levels under max_min.

    Attributes:
        prices: (B, S, E) dual price of each link, value per Gbit/s.
        level: (B, S) under max_min, the level of each program (see
            :mod:`teal.problem.fair_levels`), infinite where a matrix has fewer; None under
            priority.
    """

    prices: Float[Tensor, "B S E"]
    level: Float[Tensor, "B S"] | None = None

    @classmethod
    def of_levels(
        cls, levels: Sequence[Sequence[tuple[float, Tensor]]], num_links: int
    ) -> ProgramPrices:
        """Return the prices of the fair levels of each matrix, padded to the largest number of
        levels.

        Args:
            levels: for each matrix, any number of pairs (level, prices (E,)).
            num_links: E.
        """
        # Pad to the largest number of levels.
        shape = len(levels), max([1, *map(len, levels)])
        prices = torch.zeros(*shape, num_links, dtype=torch.float64)
        level = torch.full(shape, torch.inf, dtype=torch.float64)
        for row, row_levels in enumerate(levels):
            for index, (value, link_prices) in enumerate(row_levels):
                level[row, index] = value
                prices[row, index] = link_prices
        return cls(prices, level)

    def of_row(self, row: int) -> list[tuple[float, Tensor]]:
        """Return the fair levels of one matrix as pairs (level, prices (E,))."""
        assert self.level is not None
        levels = zip(self.level[row].tolist(), self.prices[row], strict=True)
        return [(level, prices) for level, prices in levels if math.isfinite(level)]

    def rows(self, rows: slice | Tensor) -> ProgramPrices:
        """Return the prices of some of the matrices, by a slice, indices or booleans."""
        return ProgramPrices(self.prices[rows], None if self.level is None else self.level[rows])


@dataclasses.dataclass(frozen=True, eq=False)
class Allocation:
    """Splits for B matrices, with the prices, status and times of their computation.

    Attributes:
        splits: (B, D, K) share of each demand on each of its paths; 0 where ``status`` is not
            usable.
        prices: (B, E) dual price of each link, the value of one more Gbit/s of capacity; None if
            the scheme has none. Any non-negative prices certify a bound (see
            :mod:`teal.problem.bounds`), near-optimal ones a tight bound.
        status: status of each of the B matrices.
        build_s: seconds to set up each matrix (build a model, encode).
        solve_s: seconds to solve each matrix.
        parallel_s: seconds of both for each matrix with one processor per independent subproblem;
            None where a scheme has no such subproblems.
        paths: paths of the splits, if they are not the problem's candidate paths.
        program_prices: prices of each program of a sequence; None where ``prices`` apply to all
            programs.
    """

    splits: Float[Tensor, "B D K"]
    prices: Float[Tensor, "B E"] | None
    status: tuple[Status, ...]
    build_s: tuple[float, ...]
    solve_s: tuple[float, ...]
    parallel_s: tuple[float | None, ...] = ()
    paths: AnyPaths | None = None
    program_prices: ProgramPrices | None = None

    def __repr__(self) -> str:
        num_by_status = Counter(status.value for status in self.status)
        status_text = ", ".join(f"{num} {status}" for status, num in num_by_status.items())
        prices = "with prices" if self.prices is not None else "without prices"
        return f"Allocation({status_text}; splits {tuple(self.splits.shape)}, {prices})"

    def to_frame(self, problem: Problem) -> Any:
        """Return a pandas frame with a row for each path that carries traffic.

        Columns: matrix, source, target, k, nodes (of a segment list its stops), split (share of the
        demand), flow (Gbit/s).

        Args:
            problem: problem of the allocation.
        """
        import pandas as pd

        paths = self.paths or problem.paths
        splits = self.splits.cpu().numpy()
        demand = problem.demand.cpu().numpy()
        # Matrix, demand and path indices of the paths with flow.
        matrix, demand_index, path_index = np.nonzero(
            (splits > 0) & (demand > 0)[..., None] & paths.mask
        )
        names = np.array(problem.topology.node_names, dtype=object)
        nodes = [
            names[paths.nodes_of(int(d), int(k), problem.topology.link_target)]
            for d, k in zip(demand_index, path_index, strict=True)
        ]
        split = splits[matrix, demand_index, path_index]
        return pd.DataFrame(
            {
                "matrix": matrix,
                "source": names[paths.pairs[demand_index, 0]],
                "target": names[paths.pairs[demand_index, 1]],
                "k": path_index,
                "nodes": nodes,
                "split": split,
                "flow": split * demand[matrix, demand_index],
            }
        )

    def save(self, file: Path | str) -> None:
        """Write splits, prices, status and times of each matrix to a .npz file, which :meth:`load`
        reads; ``parallel_s`` and ``program_prices`` are not stored.

        Raises:
            InputError: the splits are over other paths than the candidate paths.
        """
        if self.paths is not None:
            raise InputError.invalid(
                str(file), "allocation", "the splits are over paths that the file cannot store"
            )
        prices = np.zeros((0, 0)) if self.prices is None else self.prices.cpu().numpy()
        with atomic_file(Path(file)) as temporary, temporary.open("wb") as stream:
            np.savez(
                stream,
                splits=self.splits.cpu().numpy(),
                prices=prices,
                status=np.array([status.value for status in self.status]),
                build_s=np.array(self.build_s),
                solve_s=np.array(self.solve_s),
            )

    @classmethod
    def load(cls, file: Path | str) -> Allocation:
        """Load an allocation that :meth:`save` wrote.

        Raises:
            InputError: a missing file, or another format.
        """
        try:
            check_npz(Path(file))
            with np.load(file, allow_pickle=False) as stored:
                prices = torch.from_numpy(stored["prices"]) if stored["prices"].size else None
                return cls(
                    torch.from_numpy(stored["splits"]),
                    prices,
                    tuple(map(Status, stored["status"].tolist())),
                    tuple(stored["build_s"].tolist()),
                    tuple(stored["solve_s"].tolist()),
                )
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise InputError.invalid(
                str(file), "", f"the file is not a saved allocation: {error}"
            ) from None

    def rows(self, rows: slice) -> Allocation:
        """Return the allocations of some of the matrices, by a slice."""
        return dataclasses.replace(
            self,
            splits=self.splits[rows],
            prices=None if self.prices is None else self.prices[rows],
            status=self.status[rows],
            build_s=self.build_s[rows],
            solve_s=self.solve_s[rows],
            parallel_s=self.parallel_s[rows],
            program_prices=None if self.program_prices is None else self.program_prices.rows(rows),
        )

    @classmethod
    def of_batch(
        cls,
        splits: Tensor,
        prices: Tensor | None,
        seconds: float,
        program_prices: ProgramPrices | None = None,
    ) -> Allocation:
        """Build feasible allocations of matrices that were solved together.

        Args:
            splits: (B, D, K) share of each demand on each path.
            prices: (B, E) dual prices; None for none.
            seconds: time of the solve, divided evenly among the matrices.
            program_prices: prices of each program of a sequence; None for none.
        """
        batch = len(splits)
        times = (0.0,) * batch, (seconds / batch,) * batch
        return cls(
            splits, prices, (Status.FEASIBLE,) * batch, *times, program_prices=program_prices
        )
