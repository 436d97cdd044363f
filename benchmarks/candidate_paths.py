"""Measure the loss by candidate paths: 4 edge-disjoint paths per demand, and chosen paths, against
the optimum over all paths of the network.

    python benchmarks/candidate_paths.py --data FOLDER [--schemes price-gnn,pop:replicas=16,ncflow] [NETWORK ...]

FOLDER holds the files that data/README.md names.  Paths are chosen for the training part (the first
70% of the matrices); losses are measured on matrices of the last fifth, against a bound over all
paths that column generation proves to 0.1%.  The only matrix of a network serves for both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from public_data import published

import teal
from teal.network.traffic import spread
from teal.problem import Allocation, assess
from teal.runtime.arrays import FloatArray
from teal.solvers.candidates import representative_matrices
from teal.solvers.columns import generate_columns

GENERATED = "gravity:seed=1,count=40,load=4"
SNDLIB = "sndlib/directed-{}.tgz"
# Topology and traffic of each network, and the factor of all demands under total_flow.
NETWORKS = {
    "b4": ("b4", "gravity:seed=1,count=40,load=8", 1.0),
    "abilene": ("sndlib/abilene.xml", SNDLIB.format("abilene-zhang-5min-over-6months-ALL"), 3.0),
    "geant": ("sndlib/geant.xml", SNDLIB.format("geant-uhlig-15min-over-4months-ALL"), 3.0),
    "germany50": (
        "sndlib/germany50.xml",
        SNDLIB.format("germany50-DFN-aggregated-1day-over-1month"),
        3.0,
    ),
    "synth50": ("repetita/synth50_opt_hard.graph", "repetita/synth50_opt_hard.demands", 1.5),
    "rf3967": ("repetita/rf3967_real_hard.graph", "repetita/rf3967_real_hard.0000.demands", 1.5),
    "rf1221": ("repetita/rf1221_real_hard.graph", "repetita/rf1221_real_hard.0000.demands", 1.5),
    "cogentco": ("repetita/Cogentco.graph", "repetita/Cogentco.0000.demands", 1.5),
    "uscarrier": ("topologies/UsCarrier.json", GENERATED, 1.0),
    "kdl": ("topologies/Kdl.json", "gravity:seed=0,count=3,load=6", 1.0),
    "asn": ("topologies/ASN2k.json", "gravity:seed=0,count=1,load=6", 1.0),
}
MAX_UNSEEN = 10  # largest number of unseen matrices of a network
MANY_PATHS = 1_000_000  # with more path slots (D x K), one unseen matrix is tested to save time
TIMED = 5  # timed solves over each path set


def main() -> None:
    """Print a row of losses, times and path counts for each network and objective."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of the files that data/README.md names"
    )
    parser.add_argument(
        "--schemes", default="", help="schemes whose share of the optimum over all paths is printed"
    )
    parser.add_argument(
        "--objective", default="max_link_utilisation,total_flow", help="objectives, by commas"
    )
    parser.add_argument(
        "networks", nargs="*", default=list(NETWORKS), metavar="NETWORK", help=" ".join(NETWORKS)
    )
    options = parser.parse_args()
    print(
        "| network | objective | unseen | time of 4 / chosen | paths of 4 / chosen | lost with 4: mean, worst "
        "| lost with chosen: mean, worst | time of a solve |\n" + "|---" * 8 + "|"
    )
    for name in options.networks:
        for objective in options.objective.split(","):
            compare(
                name, objective, options.data, [text for text in options.schemes.split(",") if text]
            )


def paths_by_column_generation(
    topology: teal.Topology,
    edge_disjoint: teal.PathSet,
    objective: teal.Objective,
    matrices: FloatArray,
) -> tuple[teal.PathSet, float]:
    """Return the paths chosen for training matrices, and the time of the choice, s.

    Args:
        topology: network.
        edge_disjoint: four paths a demand, to which paths are added.
        objective: objective of the choice.
        matrices: training matrices, (T, D) Gbit/s.
    """
    problem = teal.Problem.create(topology, edge_disjoint, objective, matrices[matrices.sum(1) > 0])
    teal.solve(problem, gap=0.01)  # compile before the clock starts
    begin = time.perf_counter()
    chosen = teal.choose_paths(
        topology, problem.demand.numpy(), paths=edge_disjoint, objective=objective, cache=False
    )
    return chosen.paths, time.perf_counter() - begin


def solve_time_ratio(chosen: teal.Problem, edge_disjoint: teal.Problem) -> float:
    """Return the median time of a solve of the first matrix over chosen paths, divided by the
    median time over four paths; the two are timed in turn.
    """
    chosen_s: list[float] = []
    edge_disjoint_s: list[float] = []
    for _ in range(TIMED):
        for problem, times in ((edge_disjoint, edge_disjoint_s), (chosen, chosen_s)):
            begin = time.perf_counter()
            teal.solve(problem.row(0), gap=0.01)
            times.append(time.perf_counter() - begin)
    return statistics.median(chosen_s) / statistics.median(edge_disjoint_s)


def compare(name: str, objective_name: str, data: Path, schemes: list[str]) -> None:
    """Print a row of the table for a network and an objective, and a row for each scheme.

    Args:
        name: key of :data:`NETWORKS`.
        objective_name: name of the objective.
        data: folder of the published files.
        schemes: names of schemes whose share of the optimum over all paths is printed.
    """
    topology_name, traffic_name, total_flow_factor = NETWORKS[name]
    topology = teal.load_topology(
        published(data, topology_name) if "/" in topology_name else topology_name
    )
    traffic = teal.load_traffic(
        published(data, traffic_name) if "/" in traffic_name else traffic_name, topology
    )
    # Total flow needs demands that do not all fit.
    factor = total_flow_factor if objective_name == "total_flow" else 1.0
    objective = teal.Objective(teal.ObjectiveName(objective_name))
    # Both sets of candidate paths.
    begin = time.perf_counter()
    edge_disjoint_paths = teal.compute_paths(topology, traffic.pairs, num_paths=4, cache=False)
    edge_disjoint_s = time.perf_counter() - begin
    split = traffic.split()
    training = (
        traffic.read(spread(split.train, representative_matrices(edge_disjoint_paths))) * factor
    )
    chosen_paths, chosen_s = paths_by_column_generation(
        topology, edge_disjoint_paths, objective, training
    )
    # Problems of unseen matrices over each set, and bounds over all paths of the network.
    # One unseen matrix if D x K paths are many.
    num_unseen = 1 if edge_disjoint_paths.leaf.size > MANY_PATHS else MAX_UNSEEN
    unseen = traffic.read(spread(split.test, num_unseen)) * factor
    unseen = unseen[unseen.sum(1) > 0]
    edge_disjoint_problem = teal.Problem.create(topology, edge_disjoint_paths, objective, unseen)
    chosen_problem = teal.Problem.create(topology, chosen_paths, objective, unseen)
    bounds = torch.cat(
        [
            generate_columns(chosen_problem.row(row), target=1e-3).bound_all_paths
            for row in range(len(unseen))
        ]
    )
    # The row of the table.
    losses = " | ".join(
        f"{100 * loss.mean():.2f}%, {100 * loss.max():.2f}%"
        for loss in (
            relative_losses(problem, teal.solve(problem, gap=3e-4).value, bounds)
            for problem in (edge_disjoint_problem, chosen_problem)
        )
    )
    counts = f"{int(edge_disjoint_paths.mask.sum()):,} / {int(chosen_paths.mask.sum()):,}"
    ratio = solve_time_ratio(chosen_problem, edge_disjoint_problem)
    print(
        f"| {name} | {objective_name} | {len(unseen)} | {edge_disjoint_s:.2g} / {chosen_s:.2g} s | {counts} "
        f"| {losses} | {ratio:.2f} x |",
        flush=True,
    )
    for scheme in schemes:
        edge_disjoint_share, chosen_share = (
            100 - 100 * relative_losses(problem, scheme_values(scheme, problem), bounds).mean()
            for problem in (edge_disjoint_problem, chosen_problem)
        )
        print(
            f"|  | `{scheme}`, of all paths |  |  |  | {edge_disjoint_share:.2f}% | {chosen_share:.2f}% |  |",
            flush=True,
        )


def relative_losses(problem: teal.Problem, value: torch.Tensor, bounds: torch.Tensor) -> FloatArray:
    """Return the relative losses (B,): the share of the bound by which each value is worse.

    Args:
        problem: problem whose objective says whether values should be large or small.
        value: values of allocations, (B,).
        bounds: bounds over all paths, (B,).
    """
    if problem.objective.rules.sense > 0:
        return np.asarray(1 - value / bounds)
    return np.asarray(value / bounds - 1)


def scheme_values(scheme: str, problem: teal.Problem) -> torch.Tensor:
    """Return the values (B,) of a scheme's allocations, which it computes one matrix at a time."""
    allocator = teal.make_scheme(scheme)
    values = []
    for row in range(problem.batch):
        case_problem = problem.row(row)
        allocation: Allocation = allocator.solve(case_problem)
        values.append(assess(case_problem, allocation).value)
    return torch.cat(values)


if __name__ == "__main__":
    main()
