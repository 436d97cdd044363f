"""Solve one traffic matrix shard by shard, for `teal solve --shards` and `--workers`.

A shard holds the demands and candidate paths of some source nodes.  :func:`solve_sharded` finds the
paths, runs PDHG over all shards, and lets each shard evaluate and write its part of the allocation
(:func:`finish`).  The report sums loads, values and dual bounds of the shards.

Axes: D demands and K paths of a demand of one shard, E links of the whole network.
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
    SolveMetrics,
    SolveProgress,
    select_matrix,
    surviving_capacity,
    traffic_up_to_index,
)
from teal.app.instance import demand_weights, load_network
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

# Context manager that yields the backend factory of a ShardedProblem.  Arguments: number of Ray
# processes, and the function that prints a message.
Workers = Callable[
    [int, Callable[[str], None]], contextlib.AbstractContextManager[Callable[..., ShardBackend]]
]


@dataclasses.dataclass(frozen=True, eq=False)
class PartFigures:
    """Figures of the demands of one shard.

    Attributes:
        rows: number of paths written to the file of the shard.
        load: (E,) load of each link by the demands of this shard, Gbit/s.
        demand: sum of the demands, Gbit/s.
        carried: sum of the flows, Gbit/s.
        value: objective value of the shard's demands alone.
        violation: largest violation of the constraints of single demands; capacities, which
            couple the shards, are checked for the sum of all loads.
        profit: contribution of the shard's demands to the dual bound of the maximisation.
        profit_all_paths: contribution to the dual bound over all paths of the network.
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
class ShardedReport(SolveMetrics):
    """Results of the sharded solve of one traffic matrix.

    Attributes:
        shards: number of shards.
        rows: number of paths written by all shards.
        rounds: number of rounds; each calls every shard once.
        sent_bytes: bytes sent to and from other processes in all rounds.
    """

    shards: int
    rows: int
    rounds: int
    sent_bytes: int

    @override
    def describe(self) -> str:
        """Return the figures as a few lines of text, with shards, rounds and bytes per round."""
        traffic_text = (
            f", {self.sent_bytes / max(self.rounds, 1) / 1e6:.3g} MB sent and received a round"
            * bool(self.sent_bytes)
        )
        return f"{super().describe()}\n{self.shards} shards, {self.rounds} rounds{traffic_text}"

    @override
    def to_json(self) -> dict[str, float | int | str | None]:
        """Return all figures as JSON values, with numbers of shards, rounds and bytes."""
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
    """Solve one matrix in shards, write the allocation of each shard, and return the figures.

    Args:
        config: settings of `teal solve`.
        notify: prints one line of text: assumptions, warnings and progress.
        workers: starts Ray processes that hold the shards; None to keep them in this process.

    Raises:
        InputError: invalid user input.
    """
    program = _load_program(config, notify)
    search = PathSearch(config.first_paths, config.path_method, config.path_weight)
    num_shards = max(config.shards, config.workers)
    begin = time.perf_counter()
    with contextlib.ExitStack() as stack:
        # Find the paths of each shard.
        backend = stack.enter_context(workers(config.workers, notify)) if workers else None
        with _path_search_bar(num_shards) as report:
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
        # Solve by PDHG over all shards; the deadline includes the path search.
        result = problem.solve(
            gap=config.gap,
            deadline=seconds(config.deadline) - build_s if config.deadline else math.inf,
            max_iterations=config.max_iterations,
            report=SolveProgress(notify),
        )
        # Validate and write the allocation of each shard, in the process that holds it.
        notify(f"solved in {result.solve_s:.3g} s; validating and writing the shards")
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
    """Network, demands and objective of the requested matrix, before the division into shards.

    Attributes:
        topology: network.
        pairs: (D, 2) source and target node index of each demand.
        demand: (D,) Gbit/s.
        objective: objective with its options.
        capacity: (E,) Gbit/s, 0 for failed links; None without failed links.
        weight: (D,) value per Gbit/s of each demand; None if the objective takes no weights.
    """

    topology: Topology
    pairs: IntArray
    demand: FloatArray
    objective: Objective
    capacity: FloatArray | None
    weight: FloatArray | None


def _load_program(config: SolveConfig, notify: Callable[[str], None]) -> _Program:
    """Load network and traffic, and reject or report settings that shards do not support.

    Args:
        config: settings of `teal solve`.
        notify: prints one line of text.

    Raises:
        InputError: invalid settings, traffic with classes, or path groups.
    """
    config = dataclasses.replace(config, traffic=traffic_up_to_index(config))
    topology, traffic = load_network(config.topology, config.traffic, config, notify)
    if traffic.classes is not None:
        raise InputError.invalid(
            "--shards",
            "",
            "the traffic has demand classes",
            "use traffic without classes, or solve without --shards and --workers",
        )
    if config.path_groups is not None:
        raise InputError.invalid(
            "--shards",
            "",
            f"--path-groups {config.path_groups} is not supported with shards",
            "drop --path-groups",
        )
    # With --carrying, the traffic has the requested matrix only.
    traffic = select_matrix(config, traffic)
    objective = Objective(config.objective)
    weight = demand_weights(config, topology, traffic, notify)
    demand = traffic.read([0 if config.carrying else config.index])[0]
    capacity = surviving_capacity(config, topology, notify)
    if config.choice is not None:
        notify(
            f"candidate paths: {config.first_paths} a demand; further paths are not chosen, since "
            "that needs all paths in one process"
        )
    return _Program(topology, traffic.pairs, demand, objective, capacity, weight)


# Glob pattern of the files of all shards.
PART_FILES = "demands-*.parquet"


def part_file(first_demand: int) -> str:
    """Return the file name of a shard, from the index of its first demand among all demands."""
    return PART_FILES.replace("*", f"{first_demand:010d}")


def finish(
    allocated: Allocated,
    topology: Topology,
    objective: Objective,
    capacity: FloatArray,
    link_cost: FloatArray,
    prices: FloatArray,
    out: Path | None,
) -> PartFigures:
    """Validate the allocation of a shard independently of the solver, and write it to a file.

    Args:
        allocated: paths, demands (D,) and splits (D, K) of the shard.
        topology: network.
        objective: objective of the program.
        capacity: (E,) current capacities, Gbit/s.
        link_cost: (E,) cost of a Gbit/s on each link, in the unit of the objective.
        prices: (E,) link prices of the whole solve.
        out: folder of the files; None to write nothing.

    Returns:
        figures of the shard, with its loads and its parts of value and dual bounds.
    """
    demands = allocated.demands
    splits = allocated.splits
    # Build the problem of the shard.  Values and costs are those of the whole problem, since the
    # cost of a link may depend on the paths of all shards.
    problem = Problem.create(
        topology, allocated.paths, Objective(), demands.demand, capacity=capacity
    )
    # (D,) value per Gbit/s, and (E,) cost per Gbit/s.
    value = torch.from_numpy(np.broadcast_to(demands.demand_value, demands.demand.shape).copy())
    cost = torch.from_numpy(link_cost)
    problem = dataclasses.replace(problem, objective=objective, demand_value=value, link_cost=cost)
    # (1, D, K) splits and (1, E) prices.
    batch_splits = torch.from_numpy(splits)[None]
    batch_prices = torch.from_numpy(prices)[None]
    # The dual bound of the maximisation is a term of the links, common to all shards, plus the
    # profits of the demands; this shard contributes the profits of its demands.
    solved_problem = problem.solved
    link_score = _link_score(problem, batch_prices)
    sense = solved_problem.objective.rules.sense
    # Check the constraints of single demands, and write the paths with traffic.
    violations_by_kind = violations(problem, batch_splits)
    flows = problem.flows(batch_splits)
    rows = 0
    if out is not None:
        file = out / part_file(demands.first)
        rows = write_allocation(file, topology, allocated.paths, demands.demand, splits)
    return PartFigures(
        rows=rows,
        load=problem.ops.link_sum(flows)[0].numpy(),
        demand=float(problem.demand.sum()),
        carried=float(flows.sum()),
        value=float(problem.value(batch_splits)),
        violation=float(
            torch.stack(
                [violations_by_kind.demand, violations_by_kind.sign, violations_by_kind.mask]
            ).max()
        ),
        profit=sense * float(dual_bound(solved_problem, batch_prices)) - link_score,
        profit_all_paths=sense * float(all_paths_bound(solved_problem, batch_prices)) - link_score,
    )


def _link_score(problem: Problem, prices: Tensor, max_ratio: float = 1e6) -> float:
    """Return the links' term of the dual bound, with the objective as a maximisation.

    The dual bound is this term, the support function of the price set at capacity times price,
    plus the profits of the demands.

    Args:
        problem: one matrix.
        prices: (1, E) link prices, value per Gbit/s.
        max_ratio: multiple of the largest value per Gbit/s up to which prices stay unchanged.
    """
    prices = usable_prices(problem, prices, max_ratio)
    return float(problem.price_set.support(problem.capacity_value(prices)))


def _report(
    config: SolveConfig,
    network: Problem,
    shard_figures: list[PartFigures],
    result: ShardedResult,
    build_s: float,
    bound_s: float,
) -> ShardedReport:
    """Combine the figures of all shards into the report of the matrix.

    Args:
        config: settings of `teal solve`.
        network: problem of the whole network without demands: capacities, costs, objective.
        shard_figures: figures of each shard.
        result: result of the solver.
        build_s: seconds for the path search.
        bound_s: seconds to validate and write the shards.
    """
    # Sum the loads (1, E) and the values of all shards, and check the capacities.
    objective = network.objective
    load = torch.from_numpy(np.sum([part.load for part in shard_figures], axis=0))[None]
    largest_utilisation = float(network.utilisation_of(load).amax())
    violation = max(float(overload(network, load)), *(part.violation for part in shard_figures))
    value = objective.rules.value_of_parts(
        [part.value for part in shard_figures], largest_utilisation
    )
    # Dual bounds over the candidate paths and over all paths: the links' term plus the profits of
    # the demands of all shards.
    link_score = _link_score(network, torch.from_numpy(result.prices)[None], max_ratio=math.inf)
    bound, bound_all_paths = (
        float(from_score(network, torch.tensor(link_score + sum(profits), dtype=torch.float64)))
        for profits in (
            [part.profit for part in shard_figures],
            [part.profit_all_paths for part in shard_figures],
        )
    )

    def certified_gap(upper_bound: float) -> float:
        """Return the relative gap between the value and a bound."""
        return float(gap(network, *torch.tensor([[value], [upper_bound]], dtype=torch.float64)))

    # Satisfied demand and feasibility; times and iterations are those of the solver.
    demand = sum(part.demand for part in shard_figures)
    carried = sum(part.carried for part in shard_figures)
    is_feasible = violation <= TOLERANCE
    return ShardedReport(
        value=value,
        satisfied_demand=carried / demand if demand > 0 else 1.0,
        bound=bound,
        gap=certified_gap(bound),
        max_link_utilisation=largest_utilisation,
        max_violation=violation,
        objective=objective,
        gap_all_paths=proven(certified_gap(bound_all_paths)),
        iterations=result.iterations,
        build_s=build_s,
        solve_s=result.solve_s,
        bound_s=bound_s,
        status=(Status.FEASIBLE if is_feasible else Status.INFEASIBLE).value,
        reached=certified_gap(bound) <= config.gap,
        stopped_by=STOPPED_BY[result.stopped_by],
        shards=len(shard_figures),
        rows=sum(part.rows for part in shard_figures),
        rounds=result.rounds,
        sent_bytes=result.sent_bytes,
    )


@contextlib.contextmanager
def _path_search_bar(count: int) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar of the path search; yield its callback (shards done, all shards)."""
    with progress_bar(total=count, desc="paths", unit="shard") as bar:

        def report(num_done: int, total: int) -> None:
            """Show that some of all shards are done."""
            bar.total = total
            bar.update(num_done - bar.n)

        yield report
