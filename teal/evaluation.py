"""Schemes on the same matrices, through the same validator, on the same clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import torch
from tqdm import tqdm

from teal.allocation import Allocation, Status
from teal.assessment import assess
from teal.errors import SolverError
from teal.instance import Instance
from teal.network.topology import FloatArray
from teal.network.traffic import Rows
from teal.problem import Problem
from teal.schemes import Scheme


@dataclasses.dataclass(frozen=True)
class Row:
    """One scheme on one matrix.  Rates in Gbit/s, times in seconds; NaN where there is no allocation.

    Attributes:
        scheme: as it was specified.
        topology, traffic: names.
        index: row of the matrix in the traffic; timestamp: its time, ISO 8601.
        objective: which program.
        value: the objective; satisfied_demand: share of all demand that is carried.
        bound: certified bound on the optimum from the scheme's own prices; gap: how far the optimum may be.
        max_link_utilisation: largest load / capacity.
        max_violation: largest violation of any rule, as a share (see :mod:`teal.feasibility`).
        build_s, solve_s: time to build a model and to solve it.
        status: optimal, feasible, infeasible (says the validator), time_limit or failed.
    """

    scheme: str
    topology: str
    traffic: str
    index: int
    timestamp: str
    objective: str
    value: float
    satisfied_demand: float
    bound: float
    gap: float
    max_link_utilisation: float
    max_violation: float
    build_s: float
    solve_s: float
    status: str


def evaluate(
    instance: Instance,
    schemes: Mapping[str, Scheme],
    rows: Rows,
    capacity: FloatArray | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Run every scheme on every matrix, one at a time, so that a time is that of one matrix.

    Each scheme first solves one matrix that is not counted: compilation and caches.  A scheme that
    raises SolverError fails for the rest of its rows, is reported to ``say``, and the others go on.

    Args:
        capacity: (E,) in force, if links have failed; None for the topology's.

    Raises:
        InputError: from a scheme, such as a model for another K; before anything is measured.
    """
    warm = instance.problem(instance.traffic.read(rows[:1]), capacity=capacity)
    broken: set[str] = set()

    def attempt(name: str, scheme: Scheme, problem: Problem) -> Allocation:
        if name not in broken:
            try:
                return scheme.solve(problem)
            except SolverError as error:
                broken.add(name)
                say(str(error))
        return _failed(problem)

    for name, scheme in schemes.items():
        attempt(name, scheme, warm)
    results = []
    for row in tqdm(rows, desc="evaluating", unit="matrix"):
        problem = warm.with_demand(torch.from_numpy(instance.traffic.read([int(row)])))
        for name, scheme in schemes.items():
            results.append(_row(instance, name, int(row), problem, attempt(name, scheme, problem)))
    return results


def _failed(problem: Problem) -> Allocation:
    nothing = torch.zeros_like(problem.path_value.expand(problem.batch, -1, -1))
    none = (float("nan"),) * problem.batch
    return Allocation(nothing, None, (Status.FAILED,) * problem.batch, none, none)


def _row(instance: Instance, name: str, index: int, problem: Problem, allocation: Allocation) -> Row:
    measured = vars(assess(problem, allocation))
    (status,) = measured.pop("status")
    return Row(
        scheme=name,
        topology=instance.topology.name,
        traffic=instance.traffic.name,
        index=index,
        timestamp=str(instance.traffic.timestamps[index]),
        objective=problem.objective.name.value,
        build_s=allocation.build_s[0],
        solve_s=allocation.solve_s[0],
        status=status.value,
        **{field: float(values[0]) for field, values in measured.items()},
    )
