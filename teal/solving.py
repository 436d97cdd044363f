"""One matrix from settings to a certified allocation: what `teal solve` does."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from teal.allocation import Allocation, Status
from teal.assessment import assess
from teal.bounds import all_paths_bound, gap
from teal.config import SolveConfig, seconds
from teal.errors import InputError
from teal.instance import failed_links, load_instance
from teal.memory import describe
from teal.network.traffic import TrafficMatrices
from teal.price_allocator import starter_for
from teal.problem import Problem
from teal.solvers.pdhg import solve
from teal.solvers.pdhg.dense import bytes_needed
from teal.spec import parse_spec

_PATIENCE = 2.0  # seconds without a word


@dataclasses.dataclass(frozen=True, eq=False)
class Solved:
    """One matrix, allocated and measured.

    Attributes:
        problem: what was solved, B = 1.
        splits: (D, K).
        value, bound, gap, satisfied_demand, max_link_utilisation, max_violation: as in :class:`Assessment`.
        gap_all_paths: certified gap to the optimum over all paths of the network, by the same prices.
        iterations: of PDHG.
        status: feasible, or infeasible where the validator says so; reached: whether the target gap was.
        stopped_by: what ended the search short of it.
        build_s: seconds for paths, problem and model; solve_s: to solve; bound_s: for ``gap_all_paths``.
    """

    problem: Problem
    splits: Tensor
    value: float
    bound: float
    gap: float
    satisfied_demand: float
    max_link_utilisation: float
    max_violation: float
    gap_all_paths: float
    iterations: int
    build_s: float
    solve_s: float
    bound_s: float
    status: str
    reached: bool
    stopped_by: str

    @property
    def usable(self) -> bool:
        """Whether the validator let it pass."""
        return Status(self.status).usable

    def figures(self) -> dict[str, float | int | str | None]:
        """Everything but the tensors, for JSON, where what is not a number is null."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        for name in ("problem", "splits", "stopped_by"):
            del own[name]
        numbers = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in own.items()}
        return {"objective": self.problem.objective.name.value, **numbers}

    def describe(self) -> str:
        """The same in a few lines."""
        unit = " Gbit/s" if self.problem.objective.maximises_value else ""
        return (
            f"{self.problem.objective.name.value}: {self.value:.6g}{unit}, bound {self.bound:.6g}{unit}, "
            f"gap {100 * self.gap:.3f}%\n"
            f"satisfied demand {100 * self.satisfied_demand:.2f}%, "
            f"largest link utilisation {self.max_link_utilisation:.4g}, largest violation {self.max_violation:.1g}\n"
            f"gap to the optimum over all paths {100 * self.gap_all_paths:.3f}%\n"
            f"{self.iterations} iterations; build {self.build_s:.3g} s, solve {self.solve_s:.3g} s"
        )


def solve_matrix(config: SolveConfig, say: Callable[[str], None] = lambda _: None) -> Solved:
    """Load, solve, and measure.

    Raises:
        InputError: a fault in what the user gave.
    """
    config = dataclasses.replace(config, traffic=_no_more_than_needed(config))
    instance = load_instance(config, say, choose=lambda traffic: _chosen(config, traffic))
    begin = time.perf_counter()
    capacity = None
    if config.fail:
        failed = failed_links(instance.topology, config.fail)
        capacity = instance.topology.with_failed_links(failed).capacity
        say("failed: " + ", ".join(instance.topology.link_name(link) for link in failed))
    row = 0 if config.carrying else config.index
    problem = instance.problem(instance.traffic.read([row]), capacity=capacity)
    if problem.ops.backend.name == "cuda":
        matrix, held = bytes_needed(problem.paths, torch.float32), problem.paths.levels.num_bytes
        say(f"{problem.ops.device}: paths take about {describe(held)} of its memory, solving {describe(matrix)}")
    else:
        _ = problem.paths.packed  # belongs to the building
    model = starter_for(config.model, problem.paths)
    build_s = instance.paths_s + time.perf_counter() - begin
    deadline = seconds(config.deadline) if config.deadline else math.inf
    begin = time.perf_counter()
    start = None if model is None else model.start(problem)
    found = solve(
        problem,
        gap=config.gap,
        deadline=deadline + begin - time.perf_counter(),
        warm_start=start,
        max_iterations=config.max_iterations,
        report=_Progress(say),
    )
    solve_s = time.perf_counter() - begin
    measured = assess(problem, Allocation(found.splits, found.prices, (Status.FEASIBLE,), (0.0,), (solve_s,)))
    begin = time.perf_counter()
    widest = all_paths_bound(problem, found.prices)
    bound_s = time.perf_counter() - begin
    stopped_by = "the iteration limit" if found.iterations >= config.max_iterations else "the deadline"
    return Solved(
        problem=problem,
        splits=found.splits[0],
        gap_all_paths=float(gap(problem, found.value, widest)[0]),
        iterations=found.iterations,
        build_s=build_s,
        solve_s=solve_s,
        bound_s=bound_s,
        status=measured.status[0].value,
        reached=bool(measured.gap[0] <= config.gap),
        stopped_by=stopped_by,
        **measured.figures(0),
    )


class _Progress:
    """Says now and then how far a long search has come."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._last = say, time.perf_counter()

    def __call__(self, iterations: int, gap: float) -> None:
        if time.perf_counter() - self._last > _PATIENCE:
            self._say(f"{iterations} iterations: gap {100 * gap:.3g}%")
            self._last = time.perf_counter()


def _no_more_than_needed(config: SolveConfig) -> str:
    """The traffic's name; a generator makes no matrix after the one that is asked for."""
    if config.traffic.partition(":")[0] != "gravity" or config.calibrate is not None:
        return config.traffic
    if "count" in parse_spec(config.traffic).options:
        return config.traffic
    return f"{config.traffic}{',' if ':' in config.traffic else ':'}count={config.index + 1}"


def _chosen(config: SolveConfig, traffic: TrafficMatrices) -> TrafficMatrices:
    if config.index >= traffic.num_matrices:
        raise InputError("--index", "", f"a matrix from 0 to {traffic.num_matrices - 1}", config.index)
    return traffic.carrying(config.index) if config.carrying else traffic
