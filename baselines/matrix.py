"""One traffic matrix as NumPy arrays, and the loop of the baselines over the matrices of a
problem.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch

from teal.errors import InputError
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.problem.allocation import Allocation, Status

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, eq=False)
class PathArrays:
    """The paths that all matrices of a problem share, as arrays.

    Attributes:
        problem: problem of the paths.
        path_ptr: (D K + 1,) the links of the path with index p = d K + k are
            ``path_links[path_ptr[p]:path_ptr[p + 1]]``.
        path_links: (I,) link indices of one path after the other.
        hops: (D, K) number of links of each path.
        value: (D, K) value of one Gbit/s on each path.
    """

    problem: Problem
    path_ptr: Array
    path_links: Array
    hops: Array
    value: Array

    @classmethod
    def of(cls, problem: Problem) -> PathArrays:
        """Return the arrays of a problem with any number of matrices."""
        path, link = problem.paths.incidences()
        num_paths = problem.paths.leaf.size
        ptr = np.searchsorted(path, np.arange(num_paths + 1)).astype(np.int64)
        return cls(
            problem,
            ptr,
            link.astype(np.int64),
            problem.paths.hops,
            problem.path_value.cpu().numpy(),
        )

    @property
    def objective(self) -> Objective:
        """The objective of the problem, with its rules."""
        return self.problem.objective


@dataclasses.dataclass(frozen=True, eq=False)
class Matrix:
    """One traffic matrix of a problem, as NumPy arrays of demands, capacities and live paths.

    LP solvers have absolute tolerances, about 1e-7, so all rates are in a unit of the matrix in
    which the mean capacity is near 1.

    Attributes:
        network: paths, shared by all matrices of the problem.
        demand: (D,) rate of each demand, in units.
        capacity: (E,) capacity of each link, in units; 0 where it has failed.
        mask: (D, K) true for live paths.
        unit: one unit in Gbit/s, a power of two, so that conversion is exact.
    """

    network: PathArrays
    demand: Array
    capacity: Array
    mask: Array
    unit: float = 1.0

    @cached_property
    def routable(self) -> Array:
        """Whether each demand has a live path, (D,)."""
        return np.asarray(self.mask.any(1))

    def path_variables(self, selected: Array) -> PathVariables:
        """Return the live paths of selected demands above 0, as the variables of a program.

        Args:
            selected: (D,) true for the demands to include.
        """
        network = self.network
        num_paths = self.mask.shape[1]
        included = np.asarray(selected, bool) & (self.demand > 0)
        path = np.flatnonzero((self.mask & included[:, None]).reshape(-1))
        demands, demand_row = np.unique(path // num_paths, return_inverse=True)
        # Concatenate the link ranges of the paths.
        counts = network.path_ptr[path + 1] - network.path_ptr[path]
        starts = np.repeat(network.path_ptr[path] - (np.cumsum(counts) - counts), counts)
        link = network.path_links[starts + np.arange(counts.sum())]
        return PathVariables(
            path, demands, demand_row, link, np.repeat(np.arange(len(path)), counts)
        )

    def loads(self, flow: Array) -> Array:
        """Return the load (E,) of each link from path flows (D, K), in the same unit."""
        network = self.network
        # Flow of the path of each (path, link) incidence.
        per_link = np.repeat(flow.reshape(-1), np.diff(network.path_ptr))
        return np.bincount(network.path_links, per_link, minlength=len(self.capacity)).astype(
            np.float64
        )

    def with_demand(self, demand: Array) -> Matrix:
        """Return a matrix with other demands on this network.

        Args:
            demand: (D,) rate of each demand, in the unit of this matrix.
        """
        return dataclasses.replace(self, demand=demand)


@dataclasses.dataclass(frozen=True, eq=False)
class PathVariables:
    """n paths of m demands, with I (link, path) incidences, as the variables of a program.

    Attributes:
        path: (n,) path index d K + k of each variable, ascending.
        demands: (m,) indices of the demands to which the paths belong, ascending.
        demand_row: (n,) position in ``demands`` of each variable's demand.
        link: (I,) link of each incidence.
        column: (I,) variable of each incidence.
    """

    path: Array
    demands: Array
    demand_row: Array
    link: Array
    column: Array

    def demand_incidence(self) -> sp.csr_array:
        """Return the matrix (m, n) with 1 where a path belongs to a demand."""
        return sparse_ones(
            self.demand_row, np.arange(len(self.path)), (len(self.demands), len(self.path))
        )

    def link_incidence(self, num_links: int) -> sp.csr_array:
        """Return the matrix (E, n) with 1 where a path uses a link."""
        return sparse_ones(self.link, self.column, (num_links, len(self.path)))


def sparse_ones(row: Array, column: Array, shape: tuple[int, int]) -> sp.csr_array:
    """Return a sparse matrix with 1 at each (row, column)."""
    return sp.csr_array((np.ones(len(row)), (row, column)), shape=shape)


@dataclasses.dataclass(frozen=True, eq=False)
class MatrixResult:
    """The result of a scheme for one matrix: path flows, link prices, status and times.

    Attributes:
        flow: (D, K) flow on each path, in the unit of the matrix.
        prices: (E,) value of one more unit of capacity on each link; None if the scheme has none.
        status: status of the allocation.
        build_s: time to build the programs, s.
        solve_s: time to solve them, s; None for the measured time less ``build_s``.
        parallel_s: time if every independent subproblem had a processor to itself, s; None if there
            are no subproblems.
    """

    flow: Array
    prices: Array | None = None
    status: Status = Status.FEASIBLE
    build_s: float = 0.0
    solve_s: float | None = None
    parallel_s: float | None = None


def matrices(problem: Problem) -> Iterator[Matrix]:
    """Yield each matrix of a problem as arrays, with rates in a unit near its mean capacity."""
    network = PathArrays.of(problem)
    masks, demands, capacities = (
        tensor.cpu().numpy() for tensor in (problem.path_mask, problem.demand, problem.capacity)
    )
    for demand, capacity, mask in zip(demands, capacities, masks, strict=True):
        unit = power_of_two(capacity[capacity > 0].mean() if (capacity > 0).any() else 1.0)
        yield Matrix(network, demand / unit, capacity / unit, mask, unit)


def power_of_two(number: Any) -> Any:
    """Return for each positive number the power of two with the nearest logarithm."""
    return np.exp2(np.round(np.log2(number)))


def per_matrix(problem: Problem, solve: Callable[[Matrix], MatrixResult]) -> Allocation:
    """Solve one matrix after the other in float64, and convert path flows to splits.

    The time to build the arrays that all matrices share counts for the first matrix.

    Args:
        problem: B matrices.
        solve: returns flows, prices and times of one matrix; without ``solve_s`` it is the measured
            time less ``build_s``.
    """
    problem = problem.to(torch.float64)
    # Solve the matrices in turn.
    demands = problem.demand.cpu().numpy()
    results = []
    units = []
    total_seconds = []
    last_end_time = time.perf_counter()
    for matrix in matrices(problem):
        # The generator has computed the arrays of this matrix since the end of the last solve.
        begin_time = time.perf_counter()
        arrays_s = time.perf_counter() - last_end_time
        result = solve(matrix)
        last_end_time = time.perf_counter()
        results.append(dataclasses.replace(result, build_s=result.build_s + arrays_s))
        units.append(matrix.unit)
        total_seconds.append(last_end_time - begin_time + arrays_s)
    # Convert flows to Gbit/s, and then to splits; gather prices if every matrix has them.
    flow = np.stack([result.flow * unit for result, unit in zip(results, units, strict=True)])
    splits = np.divide(
        flow, demands[..., None], out=np.zeros_like(flow), where=demands[..., None] > 0
    )
    all_prices = [result.prices for result in results if result.prices is not None]
    prices = (
        torch.from_numpy(np.stack(all_prices)).to(problem.demand)
        if len(all_prices) == len(results)
        else None
    )
    return Allocation(
        torch.from_numpy(splits).to(problem.demand),
        prices,
        tuple(result.status for result in results),
        tuple(result.build_s for result in results),
        tuple(
            total_s - result.build_s if result.solve_s is None else result.solve_s
            for result, total_s in zip(results, total_seconds, strict=True)
        ),
        tuple(result.parallel_s for result in results),
    )


def require_objective(scheme: str, objective: Objective, *supported: ObjectiveName) -> None:
    """Raise InputError if the scheme does not support the objective.

    Args:
        scheme: name of the scheme, for the message.
        objective: objective of the problem.
        supported: objectives that the scheme supports.
    """
    if objective.name not in supported:
        raise InputError(scheme, "objective", " or ".join(supported), objective.name)


def heuristic_status(lp_status: Status) -> Status:
    """Return the status of an allocation that contains an LP solution, from the status of the LP:
    FEASIBLE for an optimal LP, since the allocation as a whole need not be optimal.
    """
    return Status.FEASIBLE if lp_status is Status.OPTIMAL else lp_status
