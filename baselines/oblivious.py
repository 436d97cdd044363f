"""The hedge ``oblivious``: splits with the least ratio to the optimum over all traffic matrices.

Azar et al., STOC 2003.  With x[d, k] the splits, a[d, e] = sum of x[d, k] over the paths of d
through e, and opt(D) the least largest utilisation of matrix D over the same paths, the ratio is
max over D of max_e load[e] / c[e] / opt(D).  By duality (Applegate & Cohen, SIGCOMM 2003, here over
candidate paths), splits have ratio r or less if each link e has weights pi_e >= 0 of all links with

    sum_l c[l] pi_e[l] <= r,
    sum over the links l of the path of pi_e[l] >= a[d, e] / c[e]     for each d, and each of its paths,

so that one linear program over x, pi and r finds the best splits.  It has E^2 variables and a row
for each link that a demand can use and each path of that demand: for networks of up to some 50
nodes.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from baselines.linear_program import LinearProgram, LpSettings, solver_options
from baselines.lp_solver import solve_program
from baselines.matrix import Array, sparse_ones
from teal.errors import InputError, SolverError
from teal.problem import Problem
from teal.problem.allocation import Status
from teal.schemes.past import Past
from teal.spec import Spec

_MAX_ROWS = 300_000  # of the program; with them HiGHS takes minutes


@dataclasses.dataclass(frozen=True, eq=False)
class RatioProgram:
    """The rows above; variables are x of the live paths, then pi_e of each live link, then r.

    Attributes:
        paths: (n,) path numbers d * K + k of the variables x.
        rows: coefficients of rows that must be at most 0.
        sums: coefficients of rows that must be 1: the splits of each demand.
        loads: (live links, variables) 1 where a path passes a link.
        links: (L,) numbers of the live links.
        capacity: (L,) of these, in units of their mean.
        unit: Gbit/s, that mean.
    """

    paths: Array
    rows: sp.csr_array
    sums: sp.csr_array
    loads: sp.csr_array
    links: Array
    capacity: Array
    unit: float

    @property
    def width(self) -> int:
        """Number of variables."""
        return int(self.rows.shape[1])

    @classmethod
    def of(cls, problem: Problem) -> RatioProgram:
        """The rows of a network; B = 1, its demand means nothing.

        Raises:
            InputError: too many rows.
        """
        slots = problem.paths.num_paths
        links = np.flatnonzero(problem.capacity[0].numpy() > 0)
        capacity = problem.capacity[0].numpy()[links]
        unit = float(capacity.mean()) if len(capacity) else 1.0
        capacity = capacity / unit
        of_link = np.full(problem.topology.num_links, -1)
        of_link[links] = np.arange(len(links))
        live = problem.path_mask[0].numpy().reshape(-1)
        paths = np.flatnonzero(live)
        column = np.cumsum(live) - 1
        path, link = problem.paths.incidences()
        path, link = path[live[path]], link[live[path]]
        count = len(links)
        width = len(paths) + len(links) ** 2 + 1
        loads = sparse_ones(of_link[link], column[path], (count, width))
        # One row for each (link e that demand d can use, path q of d): a[d, e] / c[e] - sum of pi_e
        # over q <= 0.
        demand_of = paths // slots
        uses = sp.coo_array((loads.T.tocsr()[: len(paths)] > 0).astype(float))
        used = np.unique(demand_of[uses.row] * count + uses.col)  # pairs (demand, link)
        demand = used // count
        e = used % count
        first = np.searchsorted(demand_of, demand)
        last = np.searchsorted(demand_of, demand, side="right")
        size = last - first
        if size.sum() > _MAX_ROWS:
            expected = f"a network whose program has at most {_MAX_ROWS} rows"
            raise InputError("oblivious", problem.topology.name, expected, int(size.sum()))
        pair = np.repeat(np.arange(len(used)), size)
        # Column of the path.
        q = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size) + first[pair]
        row = np.arange(len(pair))
        share = sp.csr_array(
            (np.ones(len(uses.row)), (demand_of[uses.row] * count + uses.col, uses.row)),
            shape=(problem.paths.num_demands * count, width),
        )[used]
        share = sp.csr_array(sp.diags_array(1 / capacity[e]) @ share)[pair]
        of_path = sp.csr_array(loads.T.tocsr()[: len(paths)])[
            q
        ].tocoo()  # links of each path, a row each
        weights = sp.csr_array(
            (
                np.ones(of_path.nnz),
                (row[of_path.row], len(paths) + e[pair][of_path.row] * count + of_path.col),
            ),
            shape=(len(row), width),
        )
        e_of = np.repeat(np.arange(count), count)
        total = sp.csr_array(
            (np.tile(capacity, count), (e_of, len(paths) + np.arange(count**2))),
            shape=(count, width),
        )
        ratio = sparse_ones(np.arange(count), np.full(count, width - 1), (count, width))
        demands, of_demand = np.unique(demand_of, return_inverse=True)
        return cls(
            paths=paths,
            rows=sp.vstack([share - weights, total - ratio], format="csr"),
            sums=sparse_ones(of_demand, np.arange(len(paths)), (len(demands), width)),
            loads=loads,
            links=links,
            capacity=capacity,
            unit=unit,
        )

    def solve(self, cost: Array, rows: sp.csr_array, limits: Array, settings: LpSettings) -> Array:
        """The variables of least cost under further rows (at most ``limits``).

        Raises:
            SolverError: no optimum was found.
        """
        program = LinearProgram(
            cost,
            sp.csr_array(sp.vstack([self.rows, rows])),
            np.concatenate([np.zeros(self.rows.shape[0]), limits]),
            self.sums,
            np.ones(self.sums.shape[0]),
        )
        solution = solve_program(program, settings)
        if solution.status is not Status.OPTIMAL:
            raise SolverError("oblivious", f"no optimum: {solution.status.value}")
        return solution.x

    def least_ratio(self, settings: LpSettings) -> Array:
        """The variables of the best splits; the last one is their ratio."""
        cost = np.zeros(self.width)
        cost[-1] = 1
        return self.solve(cost, sp.csr_array((0, self.width)), np.zeros(0), settings)

    def splits(self, variables: Array, problem: Problem) -> Tensor:
        """(D, K)."""
        splits = np.zeros(problem.paths.leaf.shape)
        splits.reshape(-1)[self.paths] = variables[: len(self.paths)]
        return torch.from_numpy(splits / np.maximum(splits.sum(1, keepdims=True), 1e-300))


class Oblivious:
    """The hedge `oblivious`: splits that depend on the network alone, and are computed once.

    Args:
        settings: of the LP solver.

    Attributes:
        ratio: of the splits; NaN before the first call.
    """

    def __init__(self, settings: LpSettings) -> None:
        self._settings = settings
        self._splits: Tensor | None = None
        self.ratio = float("nan")

    def allocate(self, past: Past) -> Tensor:
        """(D, K) splits, the same for every interval."""
        if self._splits is None:
            program = RatioProgram.of(past.network)
            best = program.least_ratio(self._settings)
            self._splits = program.splits(best, past.network)
            self.ratio = float(best[-1])
        return self._splits


def make(spec: Spec, model: Path | None) -> Oblivious:
    """``oblivious[:solver=highs,method=auto,time-limit=0]``."""
    return Oblivious(solver_options(spec)[1])
