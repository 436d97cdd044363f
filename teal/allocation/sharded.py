"""One matrix in shards, from settings to measured figures, for `teal solve --shards` and
`--workers`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from teal.allocation.settings import SolveConfig
from teal.allocation.solve import (
    STOPPED_BY,
    SolveFigures,
    SolveProgress,
    capacity_in_force,
    selected,
    traffic_up_to_index,
)
from teal.app.instance import given_weights, load_network
from teal.app.path_sets import proven
from teal.app.settings import seconds
from teal.errors import InputError
from teal.formats.allocations import write_allocation
from teal.network import Topology
from teal.network.shards import PathSearch
from teal.objectives import Objective
from teal.problem import Problem, Status, all_paths_bound, dual_bound, violations
from teal.problem.bounds import from_score, gap, usable_prices
from teal.problem.feasibility import TOLERANCE, overload
from teal.runtime.arrays import FloatArray, IntArray
from teal.runtime.progress import progress_bar
from teal.solvers.pdhg.shards.sharded import ShardedProblem, ShardedResult
from teal.solvers.pdhg.shards.shards import Allocated, ShardBackend

# Makes the backend of a ShardedProblem; given the function that prints messages.
Workers = Callable[
    [int, Callable[[str], None]], contextlib.AbstractContextManager[Callable[..., ShardBackend]]
]


@dataclasses.dataclass(frozen=True, eq=False)
class PartFigures:
    """Figures of the part of an allocation that one shard holds.

    Attributes:
        rows: paths that were written.
        load: (E,) Gbit/s.
        demand: sum of the demands, Gbit/s.
        carried: sum of the flows, Gbit/s.
        value: sum of value times flow.
        least_share: smallest share of a routable demand that is carried.
        violation: largest violation of a rule other than the capacities.
        profit: the shard's part of the dual bound.
        profit_all_paths: the same over all paths of the network.
    """

    rows: int
    load: FloatArray
    demand: float
    carried: float
    value: float
    violation: float
    profit: float
    profit_all_paths: float


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ShardedReport(SolveFigures):
    """One matrix in shards, allocated and measured.

    Attributes:
        shards: their number.
        rows: paths that were written.
        rounds: calls to all shards.
        sent_bytes: to and from other processes, in all rounds.
    """

    shards: int
    rows: int
    rounds: int
    sent_bytes: int

    @override
    def describe(self) -> str:
        exchanged = (
            f", {self.sent_bytes / max(self.rounds, 1) / 1e6:.3g} MB sent and received a round"
            * bool(self.sent_bytes)
        )
        return f"{super().describe()}\n{self.shards} shards, {self.rounds} rounds{exchanged}"

    @override
    def to_json(self) -> dict[str, float | int | str | None]:
        return super().to_json() | {
            "shards": self.shards,
            "rounds": self.rounds,
            "sent_bytes": self.sent_bytes,
        }


def solve_sharded(
    config: SolveConfig,
    notify: Callable[[str], None] = lambda _: None,
    workers: Workers | None = None,
) -> ShardedReport:
    """Load, solve, measure and write shard by shard.

    Args:
        config: the settings.
        notify: called with what was assumed and found, and with progress.
        workers: makes other processes that hold the shards; None for this process.

    Raises:
        InputError: invalid user input.
    """
    program = _load(config, notify)
    search = PathSearch(config.first_paths, config.path_method, config.path_weight)
    num_shards = max(config.shards, config.workers)
    begin = time.perf_counter()
    with contextlib.ExitStack() as stack:
        # Find the paths of each shard.
        backend = stack.enter_context(workers(config.workers, notify)) if workers else None
        with _bar(num_shards) as report:
            problem = stack.enter_context(
                ShardedProblem(
                    program.topology,
                    program.pairs,
                    program.demand,
                    program.objective,
                    num_shards=num_shards,
                    search=search,
                    capacity=program.capacity,
                    weight=program.weight,
                    backend=backend,
                    report=report,
                )
            )
        build_s = time.perf_counter() - begin
        notify(f"{problem.num_shards} shards of paths in {build_s:.3g} s")
        # Solve.
        result = problem.solve(
            gap=config.gap,
            deadline=seconds(config.deadline) - build_s if config.deadline else math.inf,
            max_iterations=config.max_iterations,
            report=SolveProgress(notify),
        )
        # Measure and write the shards.
        notify(f"solved in {result.solve_s:.3g} s; measuring and writing the shards")
        begin = time.perf_counter()
        network = problem.network
        parts = problem.apply(
            finish,
            program.topology,
            program.objective,
            network.capacity[0].numpy(),
            network.link_cost.numpy(),
            result.prices,
            None if config.out is None else config.out.resolve(),
        )
    return _report(config, network, parts, result, build_s, time.perf_counter() - begin)


@dataclasses.dataclass(frozen=True, eq=False)
class _Program:
    """Inputs of the program of one matrix.

    Attributes:
        topology: the network.
        pairs: (D, 2) node pairs.
        demand: (D,) Gbit/s.
        objective: the objective.
        capacity: (E,) without the failed links; None if there are none.
        weight: weights of the demands, as from :func:`given_weights`.
    """

    topology: Topology
    pairs: IntArray
    demand: FloatArray
    objective: Objective
    capacity: FloatArray | None
    weight: FloatArray | None


def _load(config: SolveConfig, notify: Callable[[str], None]) -> _Program:
    """Load network and traffic, and note which settings do not apply to shards.

    Raises:
        InputError: invalid settings, traffic with classes, or path groups.
    """
    config = dataclasses.replace(config, traffic=traffic_up_to_index(config))
    topology, traffic = load_network(config.topology, config.traffic, config, notify)
    if traffic.classes is not None:
        raise InputError("--shards", "", "traffic without classes", "classes")
    if config.path_groups is not None:
        raise InputError(
            "--shards", "", "survivable paths of cables, no --path-groups", config.path_groups
        )
    traffic = selected(config, traffic)
    objective = Objective(config.objective)
    weight = given_weights(config, topology, traffic, notify)
    demand = traffic.read([0 if config.carrying else config.index])[0]
    capacity = capacity_in_force(config, topology, notify)
    if config.choice is not None:
        notify(
            f"candidate paths: {config.first_paths} a demand; choosing further ones needs all "
            "paths in one process"
        )
    return _Program(topology, traffic.pairs, demand, objective, capacity, weight)


# Files of all shards.
PART_FILES = "demands-*.parquet"


def part_file(first: int) -> str:
    """Name of the file of the shard whose first demand has this number."""
    return PART_FILES.replace("*", f"{first:010d}")


def finish(
    allocated: Allocated,
    topology: Topology,
    objective: Objective,
    capacity: FloatArray,
    link_cost: FloatArray,
    prices: FloatArray,
    out: Path | None,
) -> PartFigures:
    """Measure the allocation of a shard, independently of the engine, and write it.

    Args:
        allocated: what was found.
        topology: the network.
        objective: the program.
        capacity: (E,) in force.
        link_cost: (E,) value per Gbit/s.
        prices: (E,) of the result.
        out: folder of the files; None to write nothing.
    """
    demands = allocated.demands
    splits = allocated.splits
    # Without values and costs of its own: they are given.
    problem = Problem.create(
        topology, allocated.paths, Objective(), demands.demand, capacity=capacity
    )
    value = torch.from_numpy(np.broadcast_to(demands.demand_value, demands.demand.shape).copy())
    cost = torch.from_numpy(link_cost)
    problem = dataclasses.replace(problem, objective=objective, demand_value=value, link_cost=cost)
    tensor = torch.from_numpy(splits)[None]
    price = torch.from_numpy(prices)[None]
    solved = problem.solved
    links_part = _links_part(problem, price)
    sense = solved.objective.rules.sense
    measured = violations(problem, tensor)
    flows = problem.flows(tensor)
    rows = 0
    if out is not None:
        file = out / part_file(demands.first)
        rows = write_allocation(file, topology, allocated.paths, demands.demand, splits)
    return PartFigures(
        rows=rows,
        load=problem.ops.link_sum(flows)[0].numpy(),
        demand=float(problem.demand.sum()),
        carried=float(flows.sum()),
        value=float(problem.value(tensor)),
        violation=float(torch.stack([measured.demand, measured.sign, measured.mask]).max()),
        profit=sense * float(dual_bound(solved, price)) - links_part,
        profit_all_paths=sense * float(all_paths_bound(solved, price)) - links_part,
    )


def _links_part(problem: Problem, prices: Tensor, max_entries: float = 1e6) -> float:
    """The part of the links in the bound of the program as a maximum, at prices (1, E); the rest is
    that of demands.
    """
    prices = usable_prices(problem, prices, max_entries)
    return float(problem.price_set.support(problem.capacity_value(prices)))


def _report(
    config: SolveConfig,
    network: Problem,
    parts: list[PartFigures],
    result: ShardedResult,
    build_s: float,
    bound_s: float,
) -> ShardedReport:
    """Return the figures of all shards together."""
    # Sum the loads and values of all shards.
    objective = network.objective
    load = torch.from_numpy(np.sum([part.load for part in parts], axis=0))[None]
    largest_utilisation = float(network.utilisation_of(load).amax())
    violation = max(float(overload(network, load)), *(part.violation for part in parts))
    value = objective.rules.value_of_parts([part.value for part in parts], largest_utilisation)
    # Bounds: the part of the links, and the profits of the demands.
    links_part = _links_part(network, torch.from_numpy(result.prices)[None], max_entries=math.inf)
    bound, bound_all_paths = (
        float(from_score(network, torch.tensor(links_part + sum(profits), dtype=torch.float64)))
        for profits in ([part.profit for part in parts], [part.profit_all_paths for part in parts])
    )

    def certified(limit: float) -> float:
        return float(gap(network, *torch.tensor([[value], [limit]], dtype=torch.float64)))

    # Satisfied demand and feasibility.
    demand = sum(part.demand for part in parts)
    carried = sum(part.carried for part in parts)
    is_feasible = violation <= TOLERANCE
    return ShardedReport(
        value=value,
        satisfied_demand=carried / demand if demand > 0 else 1.0,
        bound=bound,
        gap=certified(bound),
        max_link_utilisation=largest_utilisation,
        max_violation=violation,
        objective=objective,
        gap_all_paths=proven(certified(bound_all_paths)),
        iterations=result.iterations,
        build_s=build_s,
        solve_s=result.solve_s,
        bound_s=bound_s,
        status=(Status.FEASIBLE if is_feasible else Status.INFEASIBLE).value,
        reached=certified(bound) <= config.gap,
        stopped_by=STOPPED_BY[result.stopped_by],
        shards=len(parts),
        rows=sum(part.rows for part in parts),
        rounds=result.rounds,
        sent_bytes=result.sent_bytes,
    )


@contextlib.contextmanager
def _bar(count: int) -> Iterator[Callable[[int, int], None]]:
    """A progress bar of the shards whose paths are found."""
    with progress_bar(total=count, desc="paths", unit="shard") as bar:

        def report(num_done: int, total: int) -> None:
            bar.total = total
            bar.update(num_done - bar.n)

        yield report
