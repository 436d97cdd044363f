"""Oblivious routing, ``oblivious``: splits with the least ratio to the optimum over all traffic
matrices (Azar et al., STOC 2003).

With x[d, k] the splits, c[e] the capacity of link e, a[d, e] the sum of x[d, k] over the paths of
demand d through e, and opt(M) the smallest possible maximum utilisation of matrix M over the same
paths, the ratio is max over M of max_e load[e] / c[e] / opt(M).  By duality (Applegate & Cohen,
SIGCOMM 2003, here over candidate paths), splits have a ratio of at most r if for each link e there
are weights pi_e[l] >= 0 of all links l with

    sum_l c[l] pi_e[l] <= r,
    sum of pi_e[l] over the links l of path q >= a[d, e] / c[e]  for each d and each of its paths q,

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

# Maximum number of rows of the program; with so many HiGHS takes minutes.
_MAX_ROWS = 300_000


@dataclasses.dataclass(frozen=True, eq=False)
class RatioProgram:
    """Linear program of the splits with the smallest ratio to the optimum over all matrices.

    Variables are the splits x of the n live paths, then for each of the L live links e the weights
    pi_e (L,) of all live links, then the ratio r: n + L^2 + 1 in all.

    Attributes:
        paths: (n,) path indices d K + k of the variables x.
        rows: (m, variables) rows that must be at most 0.
        sums: (demands, variables) rows that must be 1: the sum of the splits of each demand.
        loads: (L, variables) 1 where a path uses a link.
        links: (L,) indices of the live links.
        capacity: (L,) capacities of the live links, in units of their mean.
        unit: mean capacity, Gbit/s.
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
        """Number of variables of the program."""
        return int(self.rows.shape[1])

    @classmethod
    def of(cls, problem: Problem) -> RatioProgram:
        """Build the program of a network.

        Args:
            problem: network with B = 1; its demand is ignored.

        Raises:
            InputError: too many rows.
        """
        # Live links, with capacities in units of their mean.
        links = np.flatnonzero(problem.capacity[0].numpy() > 0)
        capacity = problem.capacity[0].numpy()[links]
        unit = float(capacity.mean()) if len(capacity) else 1.0
        capacity = capacity / unit
        # Live paths, and the demand of each.
        paths = np.flatnonzero(problem.path_mask[0].numpy().reshape(-1))
        path_demand = paths // problem.paths.num_paths
        width = len(paths) + len(links) ** 2 + 1
        loads = _link_loads(problem, links, width)
        # Assemble the rows.
        cover = _cover_rows(problem, loads, path_demand, capacity)
        ratio = _ratio_rows(capacity, len(paths))
        demands, demand_row = np.unique(path_demand, return_inverse=True)
        return cls(
            paths=paths,
            rows=sp.vstack([cover, ratio], format="csr"),
            sums=sparse_ones(demand_row, np.arange(len(paths)), (len(demands), width)),
            loads=loads,
            links=links,
            capacity=capacity,
            unit=unit,
        )

    def solve(self, cost: Array, rows: sp.csr_array, limits: Array, settings: LpSettings) -> Array:
        """Return the optimal variables under additional rows.

        Args:
            cost: (variables,) coefficients of the objective, which is minimised.
            rows: (k, variables) additional rows.
            limits: (k,) upper bounds of these rows.
            settings: settings of the LP solver.

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
            raise SolverError(f"oblivious: the LP solver found no optimum: {solution.status.value}")
        return solution.x

    def solve_min_ratio(self, settings: LpSettings) -> Array:
        """Return the variables of the splits with the smallest ratio; the last one is the ratio."""
        cost = np.zeros(self.width)
        cost[-1] = 1
        return self.solve(cost, sp.csr_array((0, self.width)), np.zeros(0), settings)

    def splits(self, variables: Array, problem: Problem) -> Tensor:
        """Return the splits (D, K), with a sum of 1 for each demand, from the variables."""
        # The solver keeps the sums to a tolerance only: divide by them.
        splits = np.zeros(problem.paths.leaf.shape)
        splits.reshape(-1)[self.paths] = variables[: len(self.paths)]
        return torch.from_numpy(splits / np.maximum(splits.sum(1, keepdims=True), 1e-300))


def _link_loads(problem: Problem, links: Array, width: int) -> sp.csr_array:
    """Return the matrix (L, width) with 1 where a live path uses a live link; the live paths are
    its first columns.

    Args:
        problem: network, B = 1.
        links: (L,) live links.
        width: number of variables.
    """
    live = problem.path_mask[0].numpy().reshape(-1)
    row_of_link = np.full(problem.topology.num_links, -1)
    row_of_link[links] = np.arange(len(links))
    column_of_path = np.cumsum(live) - 1
    path, link = problem.paths.incidences()
    is_live = live[path]
    return sparse_ones(
        row_of_link[link[is_live]], column_of_path[path[is_live]], (len(links), width)
    )


def _cover_rows(
    problem: Problem, loads: sp.csr_array, path_demand: Array, capacity: Array
) -> sp.csr_array:
    """Return the matrix (m, variables) of the rows a[d, e] / c[e] - sum of pi_e over the links of
    q, which must be at most 0.

    There is a row for each demand d, each link e that it can use and each path q of d.  Here a[d,
    e] is the sum of the splits of d on paths over e, c[e] the capacity of e, and pi_e[l] the weight
    of link l for link e; all but c are variables.

    Args:
        problem: network, B = 1.
        loads: (L, variables) 1 where a path uses a link.
        path_demand: (n,) demand of each live path, ascending.
        capacity: (L,) capacities in units of their mean.

    Raises:
        InputError: too many rows.
    """
    num_links, width = loads.shape
    num_paths = len(path_demand)
    path_links = sp.csr_array(loads.T.tocsr()[:num_paths])
    # Pairs of a demand d and a link e that it can use, coded as d L + e.
    path_link_uses = sp.coo_array((path_links > 0).astype(float))
    pair_of_use = path_demand[path_link_uses.row] * num_links + path_link_uses.col
    pairs = np.unique(pair_of_use)
    pair_demand = pairs // num_links
    pair_link = pairs % num_links
    # A row for each pair and each path q of its demand: find the pair and the path of each row.
    first_path = np.searchsorted(path_demand, pair_demand)
    num_paths_of_pair = np.searchsorted(path_demand, pair_demand, side="right") - first_path
    if num_paths_of_pair.sum() > _MAX_ROWS:
        raise InputError.invalid(
            "oblivious",
            problem.topology.name,
            f"the linear program would have {int(num_paths_of_pair.sum()):,} rows; at most "
            f"{_MAX_ROWS:,} rows are supported",
            "use fewer paths, or a smaller network",
        )
    # Index of the pair of each row.
    row_pair = np.repeat(np.arange(len(pairs)), num_paths_of_pair)
    row_path = (
        np.arange(num_paths_of_pair.sum())
        - np.repeat(np.cumsum(num_paths_of_pair) - num_paths_of_pair, num_paths_of_pair)
        + first_path[row_pair]
    )
    row = np.arange(len(row_pair))
    # Coefficients of the splits: a[d, e] / c[e].
    split_terms = sp.csr_array(
        (np.ones(len(path_link_uses.row)), (pair_of_use, path_link_uses.row)),
        shape=(problem.paths.num_demands * num_links, width),
    )[pairs]
    split_terms = sp.csr_array(sp.diags_array(1 / capacity[pair_link]) @ split_terms)[row_pair]
    # Coefficients of the weights: the links of each path q.
    row_path_links = path_links[row_path].tocoo()
    column = num_paths + pair_link[row_pair][row_path_links.row] * num_links + row_path_links.col
    weight_terms = sp.csr_array(
        (np.ones(row_path_links.nnz), (row[row_path_links.row], column)), shape=(len(row), width)
    )
    return sp.csr_array(split_terms - weight_terms)


def _ratio_rows(capacity: Array, num_paths: int) -> sp.csr_array:
    """Return the matrix (L, variables) of the rows sum over l of c[l] pi_e[l] - r, one for each
    live link e, which must be at most 0.

    Args:
        capacity: (L,) capacities of the live links, in units of their mean.
        num_paths: number of live paths, whose variables are the first.
    """
    num_links = len(capacity)
    width = num_paths + num_links**2 + 1
    row_link = np.repeat(np.arange(num_links), num_links)
    weight_sum = sp.csr_array(
        (np.tile(capacity, num_links), (row_link, num_paths + np.arange(num_links**2))),
        shape=(num_links, width),
    )
    ratio = sparse_ones(np.arange(num_links), np.full(num_links, width - 1), (num_links, width))
    return sp.csr_array(weight_sum - ratio)


class Oblivious:
    """Oblivious routing: splits for the next interval that depend on the network alone, and are
    computed once.

    Args:
        settings: settings of the LP solver.

    Attributes:
        ratio: ratio of the splits; NaN before the first call.
    """

    def __init__(self, settings: LpSettings) -> None:
        self._settings = settings
        self._splits: Tensor | None = None
        self.ratio = float("nan")

    def allocate(self, past: Past) -> Tensor:
        """Return the splits (D, K), which are equal for all intervals; ``past`` gives
        the network.
        """
        if self._splits is None:
            program = RatioProgram.of(past.network)
            optimal_variables = program.solve_min_ratio(self._settings)
            self._splits = program.splits(optimal_variables, past.network)
            self.ratio = float(optimal_variables[-1])
        return self._splits


def make(spec: Spec, model: Path | None) -> Oblivious:
    """Build the scheme from its specification; the options and their defaults are
    ``oblivious[:solver=highs,method=auto,time-limit=0]``.
    """
    return Oblivious(solver_options(spec)[1])
