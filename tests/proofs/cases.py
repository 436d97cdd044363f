"""Small random networks, one for each kind of proof."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from teal.network import all_pairs, compute_paths
from teal.network.bandwidth_functions import BandwidthFunctions
from teal.objectives import ObjectiveName
from teal.problem import Problem
from teal.problem.priority import priority_problem
from teal.proofs.write import write_proof
from teal.solvers.pipeline import solve
from teal.testing import cabled_topology, random_problem, random_topology

_NEARLY_FULL = 0.9


class Case(NamedTuple):
    """A kind of proof.

    Attributes:
        objective: of the program.
        over_all: whether the bound is over all paths.
        protected: whether flows are promises.
    """

    objective: ObjectiveName
    over_all: bool = False
    protected: bool = False


CASES = (
    Case(ObjectiveName.TOTAL_FLOW),
    Case(ObjectiveName.TOTAL_FLOW, over_all=True),
    Case(ObjectiveName.WEIGHTED_FLOW),
    Case(ObjectiveName.LATENCY_PENALISED_FLOW),
    Case(ObjectiveName.LATENCY_PENALISED_FLOW, over_all=True),
    Case(ObjectiveName.BANDWIDTH_FUNCTIONS),
    Case(ObjectiveName.BANDWIDTH_FUNCTIONS, over_all=True),
    Case(ObjectiveName.MAX_LINK_UTILISATION),
    Case(ObjectiveName.MAX_LINK_UTILISATION, over_all=True),
    Case(ObjectiveName.MAX_CONCURRENT_FLOW),
    Case(ObjectiveName.LEAST_COST),
    Case(ObjectiveName.LEAST_COST, over_all=True),
    Case(ObjectiveName.PRIORITY),
    Case(ObjectiveName.MAX_MIN),
    Case(ObjectiveName.WEIGHTED_FLOW, protected=True),
)


def problem_of(case: Case, seed: int) -> Problem:
    """A problem of the kind with one matrix; demands exceed the capacities, or nearly fill them
    where all must be carried."""
    if case.objective == ObjectiveName.PRIORITY:
        topology = random_topology(seed)
        paths = compute_paths(topology, all_pairs(topology), num_paths=3, cache=False)
        rng = np.random.default_rng(seed)
        demand = {
            name: rng.lognormal(0, 1.5, (1, paths.num_demands))
            for name in ("gold", "silver", "bronze")
        }
        return priority_problem(topology, paths, demand)
    if case.objective == ObjectiveName.BANDWIDTH_FUNCTIONS:
        base = random_problem(seed, batch=1, failed=0 if case.over_all else seed % 3)
        rng, points = np.random.default_rng(seed), []
        for _ in range(base.demand.shape[1]):
            rates, slopes = rng.uniform(0.1, 1.5, 3).cumsum(), -np.sort(-rng.uniform(0.1, 9, 3))
            points.append(
                list(
                    zip(
                        rates.tolist(),
                        (slopes * np.diff(rates, prepend=0)).cumsum().tolist(),
                        strict=True,
                    )
                )
            )
        functions = BandwidthFunctions.of_points(points, range(len(points)))
        return Problem.create(
            base.topology,
            base.paths,
            case.objective,
            base.demand.numpy(),
            capacity=base.capacity.numpy(),
            functions=functions,
        )
    if case.protected:
        topology = cabled_topology(seed)
        paths = compute_paths(topology, all_pairs(topology), num_paths=3, cache=False)
        rng = np.random.default_rng(seed)
        problem = Problem.create(
            topology,
            paths,
            case.objective,
            rng.lognormal(0, 1.5, (1, paths.num_demands)),
            weight=rng.choice([1.0, 2.0, 4.0], paths.num_demands),
        )
        return problem.with_protection()
    problem = random_problem(
        seed, objective=case.objective, batch=1, failed=0 if case.over_all else seed % 3
    )
    if case.objective == ObjectiveName.LEAST_COST:
        # All demand is to be carried: there is none without a path.
        routable = torch.where(problem.routable, problem.demand, 0.0)
        return _nearly_full(problem.with_demand(routable))
    return problem


def _nearly_full(problem: Problem) -> Problem:
    """The problem with as much demand as nearly fills the fullest link at the best."""
    balanced = problem.as_min_max_program(ObjectiveName.MAX_LINK_UTILISATION, problem.demand)
    fullest = float(solve(balanced, gap=1e-4).value[0])
    return problem.with_demand(problem.demand * (_NEARLY_FULL / fullest))


def write_case(case: Case, folder: Path, seed: int) -> list[str]:
    """Write the proof of a solve."""
    problem = problem_of(case, seed)
    result = solve(problem, gap=1e-4)
    return write_proof(folder, problem, result.allocation, over_all=case.over_all)
