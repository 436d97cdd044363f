"""The result of every scheme, learned or LP."""

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
    """How a matrix ended.  Only the first two come with an allocation that may be installed."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    # The validator's verdict on an allocation that its scheme called usable, or a solver's proof
    # that no allocation keeps all rules.
    INFEASIBLE = "infeasible"
    TIME_LIMIT = "time_limit"
    FAILED = "failed"

    @property
    def usable(self) -> bool:
        """Whether there is an allocation that may be installed."""
        return self in (Status.OPTIMAL, Status.FEASIBLE)


@dataclasses.dataclass(frozen=True, eq=False)
class ProgramPrices:
    """Prices for each of S programs of a sequence: of the classes under priority, of the levels
    under max_min.

    Attributes:
        prices: (B, S, E).
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
        """The prices of the levels of each matrix, with the prices (E,) of each, however many there
        are.
        """
        shape = len(levels), max([1, *map(len, levels)])
        prices = torch.zeros(*shape, num_links, dtype=torch.float64)
        level = torch.full(shape, torch.inf, dtype=torch.float64)
        for row, of_row in enumerate(levels):
            for number, (value, of_links) in enumerate(of_row):
                level[row, number], prices[row, number] = value, of_links
        return cls(prices, level)

    def of_row(self, row: int) -> list[tuple[float, Tensor]]:
        """The levels of one matrix, with the prices (E,) of each, as :meth:`of_levels` takes
        them.
        """
        assert self.level is not None
        of_levels = zip(self.level[row].tolist(), self.prices[row], strict=True)
        return [(level, prices) for level, prices in of_levels if math.isfinite(level)]

    def rows(self, rows: slice | Tensor) -> ProgramPrices:
        """The prices of some of the matrices."""
        return ProgramPrices(self.prices[rows], None if self.level is None else self.level[rows])


@dataclasses.dataclass(frozen=True, eq=False)
class Allocation:
    """Splits for B matrices, and how they were obtained.

    Attributes:
        splits: (B, D, K) share of each demand on each of its paths; 0 where ``status`` is not
            usable.
        prices: (B, E) value of one more Gbit/s of capacity on each link, or None if the scheme has
            none; any non-negative numbers certify a bound (see :mod:`teal.problem.bounds`), good
            ones a close bound.
        status: status of each of the B matrices.
        build_s: seconds to set up each matrix (build a model, encode).
        solve_s: seconds to solve each matrix.
        parallel_s: seconds that both would take for each matrix if every independent subproblem had
            a processor to itself; None where a scheme has no such subproblems.
        paths: the paths that the splits are over, if they are not the problem's candidates.
        program_prices: prices of each program of a sequence; None where ``prices`` serve for all of
            them.
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
        count = Counter(status.value for status in self.status)
        how = ", ".join(f"{number} {status}" for status, number in count.items())
        prices = "with prices" if self.prices is not None else "without prices"
        return f"Allocation({how}; splits {tuple(self.splits.shape)}, {prices})"

    def to_frame(self, problem: Problem) -> Any:
        """A pandas frame, a row for each path that carries traffic.

        Columns: matrix, source, target, k, nodes (of a segment list its stops), split (share of the
        demand), flow (Gbit/s).

        Args:
            problem: problem that the allocation is for.
        """
        import pandas as pd

        paths = self.paths or problem.paths
        splits, demand = self.splits.cpu().numpy(), problem.demand.cpu().numpy()
        matrix, d, k = np.nonzero((splits > 0) & (demand > 0)[..., None] & paths.mask)
        names = np.array(problem.topology.node_names, dtype=object)
        nodes = [
            names[paths.nodes_of(int(i), int(j), problem.topology.link_target)]
            for i, j in zip(d, k, strict=True)
        ]
        split = splits[matrix, d, k]
        return pd.DataFrame(
            {
                "matrix": matrix,
                "source": names[paths.pairs[d, 0]],
                "target": names[paths.pairs[d, 1]],
                "k": k,
                "nodes": nodes,
                "split": split,
                "flow": split * demand[matrix, d],
            }
        )

    def save(self, file: Path | str) -> None:
        """Write everything but paths of its own to a .npz file, which :meth:`load` reads.

        Raises:
            InputError: an allocation over paths of its own.
        """
        if self.paths is not None:
            raise InputError(
                str(file), "allocation", "splits over the problem's paths", "paths of its own"
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
        """Load what :meth:`save` wrote.

        Raises:
            InputError: no such file, or another one.
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
            raise InputError(str(file), "", "an allocation that was saved", error) from None

    def rows(self, rows: slice) -> Allocation:
        """The allocations of some of the matrices."""
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
        """Feasible allocations of matrices that were solved together: ``seconds`` is divided evenly
        among them.
        """
        count = len(splits)
        times = (0.0,) * count, (seconds / count,) * count
        return cls(
            splits, prices, (Status.FEASIBLE,) * count, *times, program_prices=program_prices
        )
