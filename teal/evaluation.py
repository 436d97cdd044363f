"""Schemes on the same matrices, through the same validator, on the same clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from tqdm import tqdm

from teal.allocation import Allocation, Status
from teal.assessment import Assessment, assess
from teal.bounds import all_paths_bound, gap
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
        bound: certified bound on the optimum from the scheme's own prices; gap: how far the optimum may be by it.
        gap_known: the same by the best bound that any scheme has of this matrix; of a scheme with paths of its own by
            the bound over all paths of the network.
        max_link_utilisation: largest load / capacity.
        max_violation: largest violation of any rule, as a share (see :mod:`teal.feasibility`).
        build_s, solve_s: time to build a model and to solve it; parallel_s: what both would take if every independent
            subproblem had a processor of its own, NaN where there are none.
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
    gap_known: float
    max_link_utilisation: float
    max_violation: float
    build_s: float
    solve_s: float
    parallel_s: float
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
        # What all of them share belongs to nobody's time.
        _ = problem.path_mask, problem.path_value, problem.inverse_capacity
        found = {name: attempt(name, scheme, problem) for name, scheme in schemes.items()}
        results += _rows(instance, int(row), problem, found)
    return results


def _failed(problem: Problem) -> Allocation:
    nothing = torch.zeros_like(problem.path_value.expand(problem.batch, -1, -1))
    none = (float("nan"),) * problem.batch
    return Allocation(nothing, None, (Status.FAILED,) * problem.batch, none, none)


def _rows(instance: Instance, index: int, problem: Problem, found: Mapping[str, Allocation]) -> list[Row]:
    measured = {name: assess(problem, allocation) for name, allocation in found.items()}
    known, wide = _best_bounds(problem, found, measured)
    rows = []
    for name, allocation in found.items():
        figures = vars(measured[name]).copy()
        (status,) = figures.pop("status")
        value = figures["value"]
        (parallel,) = allocation.parallel_s or (None,)
        rows.append(
            Row(
                scheme=name,
                topology=instance.topology.name,
                traffic=instance.traffic.name,
                index=index,
                timestamp=str(instance.traffic.timestamps[index]),
                objective=problem.objective.name.value,
                gap_known=float(gap(problem, value, known if allocation.paths is None else wide)[0]),
                build_s=allocation.build_s[0],
                solve_s=allocation.solve_s[0],
                parallel_s=float("nan") if parallel is None else parallel,
                status=status.value,
                **{field: float(values[0]) for field, values in figures.items()},
            )
        )
    return rows


def _best_bounds(
    problem: Problem, found: Mapping[str, Allocation], measured: Mapping[str, Assessment]
) -> tuple[Tensor, Tensor]:
    """(1,) the best bound over the candidate paths, and that of the same prices over all paths, if anybody needs it."""
    nothing = torch.full((1,), float("nan"), dtype=torch.float64)
    own = {n: m.bound for n, m in measured.items() if found[n].paths is None and not bool(m.bound.isnan())}
    if not own:
        if any(allocation.paths is not None for allocation in found.values()):
            return nothing, all_paths_bound(problem, torch.zeros_like(problem.capacity))
        return nothing, nothing
    best = (min if problem.objective.higher_is_better else max)(own, key=lambda name: float(own[name]))
    prices, wide = found[best].prices, nothing
    if any(allocation.paths is not None for allocation in found.values()):
        wide = all_paths_bound(problem, torch.zeros_like(problem.capacity) if prices is None else prices)
    return own[best], wide
