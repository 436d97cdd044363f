"""One matrix as baselines see it, and the loop over the matrices of a problem."""

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
    """What the matrices of a problem share, as arrays.

    Attributes:
        path_ptr: (D * K + 1,) where the links of each path place d * K + k begin.
        path_links: the links of one path after the other.
        hops: (D, K) links of each path.
        value: (D, K) of one Gbit/s on a path.
    """

    problem: Problem
    path_ptr: Array
    path_links: Array
    hops: Array
    value: Array

    @classmethod
    def of(cls, problem: Problem) -> PathArrays:
        """Of a problem with any number of matrices."""
        path, link = problem.paths.incidences()
        places = problem.paths.leaf.size
        ptr = np.searchsorted(path, np.arange(places + 1)).astype(np.int64)
        return cls(problem, ptr, link.astype(np.int64), problem.paths.hops, problem.path_value.cpu().numpy())

    @property
    def objective(self) -> Objective:
        """The program."""
        return self.problem.objective


@dataclasses.dataclass(frozen=True, eq=False)
class Matrix:
    """One of the matrices.

    Attributes:
        network: shared.
        demand: (D,) Gbit/s.
        capacity: (E,) Gbit/s.
        mask: (D, K) true where a path exists and works.
    """

    network: PathArrays
    demand: Array
    capacity: Array
    mask: Array

    @cached_property
    def routable(self) -> Array:
        """(D,) whether any path is left."""
        return np.asarray(self.mask.any(1))

    def columns(self, chosen: Array) -> PathVariables:
        """The paths that work of the ``chosen`` demands (D,) that want anything: the variables of a program."""
        network, places = self.network, self.mask.shape[1]
        wanted = np.asarray(chosen, bool) & (self.demand > 0)
        place = np.flatnonzero((self.mask & wanted[:, None]).reshape(-1))
        rows, row = np.unique(place // places, return_inverse=True)
        counts = network.path_ptr[place + 1] - network.path_ptr[place]
        starts = np.repeat(network.path_ptr[place] - (np.cumsum(counts) - counts), counts)
        link = network.path_links[starts + np.arange(counts.sum())]
        return PathVariables(place, rows, row, link, np.repeat(np.arange(len(place)), counts))

    def loads(self, flow: Array) -> Array:
        """(E,) of flows (D, K)."""
        network = self.network
        per_link = np.repeat(flow.reshape(-1), np.diff(network.path_ptr))
        return np.bincount(network.path_links, per_link, minlength=len(self.capacity))

    def with_demand(self, demand: Array) -> Matrix:
        """Other rates."""
        return dataclasses.replace(self, demand=demand)


@dataclasses.dataclass(frozen=True, eq=False)
class PathVariables:
    """Paths as the n variables of a program.

    Attributes:
        place: (n,) d * K + k.
        demands: (m,) the demands that they belong to; demand: (n,) which of those.
        link, column: every link of every path.
    """

    place: Array
    demands: Array
    demand: Array
    link: Array
    column: Array

    def served(self) -> sp.csr_array:
        """(m, n) which path serves which demand."""
        return ones(self.demand, np.arange(len(self.place)), (len(self.demands), len(self.place)))

    def loads(self, num_links: int) -> sp.csr_array:
        """(E, n) which path goes over which link."""
        return ones(self.link, self.column, (num_links, len(self.place)))


def ones(row: Array, column: Array, shape: tuple[int, int]) -> sp.csr_array:
    """A sparse matrix of ones."""
    return sp.csr_array((np.ones(len(row)), (row, column)), shape=shape)


@dataclasses.dataclass(frozen=True, eq=False)
class MatrixResult:
    """Of one matrix.

    Attributes:
        flow: (D, K) Gbit/s; prices: (E,) if any.
        build_s, solve_s: seconds; solve_s None where all that is not building is solving.
        parallel_s: seconds if every subproblem had a processor of its own; None where there are none.
    """

    flow: Array
    prices: Array | None = None
    status: Status = Status.FEASIBLE
    build_s: float = 0.0
    solve_s: float | None = None
    parallel_s: float | None = None


def matrices(problem: Problem) -> Iterator[Matrix]:
    """Those of a problem in float64, one after the other."""
    network = PathArrays.of(problem)
    masks, demands, capacities = (v.cpu().numpy() for v in (problem.path_mask, problem.demand, problem.capacity))
    for demand, capacity, mask in zip(demands, capacities, masks, strict=True):
        yield Matrix(network, demand, capacity, mask)


def per_matrix(problem: Problem, solve: Callable[[Matrix], MatrixResult]) -> Allocation:
    """Run ``solve`` on one matrix after the other.

    An answer's flows become splits; where it gives no time of its own, solving takes what is not building.
    """
    problem = problem.to(torch.float64)
    demands, answers, seconds = problem.demand.cpu().numpy(), [], []
    for matrix in matrices(problem):
        begin = time.perf_counter()
        answers.append(solve(matrix))
        seconds.append(time.perf_counter() - begin)
    flow = np.stack([answer.flow for answer in answers])
    splits = np.divide(flow, demands[..., None], out=np.zeros_like(flow), where=demands[..., None] > 0)
    known = [answer.prices for answer in answers if answer.prices is not None]
    prices = torch.from_numpy(np.stack(known)).to(problem.demand) if len(known) == len(answers) else None
    return Allocation(
        torch.from_numpy(splits).to(problem.demand),
        prices,
        tuple(answer.status for answer in answers),
        tuple(answer.build_s for answer in answers),
        tuple(
            s - answer.build_s if answer.solve_s is None else answer.solve_s
            for answer, s in zip(answers, seconds, strict=True)
        ),
        tuple(answer.parallel_s for answer in answers),
    )


def only(scheme: str, objective: Objective, *names: ObjectiveName) -> None:
    """Raise InputError unless the program is one of those that a scheme knows."""
    if objective.name not in names:
        raise InputError(scheme, "objective", " or ".join(names), objective.name.value)


def as_part(status: Status) -> Status:
    """The status of a whole, a part of which ended so: an optimal part makes it no more than feasible."""
    return Status.FEASIBLE if status is Status.OPTIMAL else status
