"""Promises that hold under every single cable failure: value, gap, time, and what happens to other
allocations.

python benchmarks/protection.py TOPOLOGY LOAD [MATRICES [METHOD]]

METHOD of the path search: edge-disjoint (the default), yen or survivable.
"""

from __future__ import annotations

import sys

from timing import matrix_by_matrix

import teal
from teal.network import PathMethod
from teal.problem.protection import Protection
from teal.solvers.protection import under_failures

_EXACT_UP_TO = 2000  # pairs; above, the LP takes minutes
_SCHEMES = ("protected", "ffc", "teavar", "pdhg", "ecmp:over=candidates")


def main(topology_name: str, load: str, count: str = "3", method: str = "edge-disjoint") -> None:
    """Print the table of one network."""
    topology = teal.load_topology(topology_name)
    traffic = teal.load_traffic(f"gravity:seed=0,load={load},count={count}", topology)
    paths = teal.compute_paths(topology, traffic.pairs, method=PathMethod(method))
    problem = teal.Problem.create(topology, paths, teal.Objective(), traffic.read(slice(None)))
    unprotected = Protection.of(problem.ops, topology.num_links, topology.cables()).unprotected(
        problem.program
    )
    without = float((problem.demand * unprotected).sum() / problem.demand.sum())
    print(
        f"{topology.name}, load {load}, {count} matrices; {100 * without:.2f}% of the demand cannot be protected"
    )
    print(
        "| scheme | satisfied | fullest link, worst failure | lost, worst failure | time |\n|---|---|---|---|---|"
    )
    for name in _SCHEMES:
        if paths.num_demands > _EXACT_UP_TO and name in ("ffc", "teavar"):
            continue
        joined, seconds = matrix_by_matrix(name, problem)
        utilisation, lost = under_failures(problem, joined)
        satisfied = problem.flows(joined).sum((1, 2)) / problem.demand.sum(1)
        share_lost = (lost / problem.flows(joined).sum((1, 2))).amax()
        print(
            f"| `{name}` | {100 * float(satisfied.mean()):.3f}% | {100 * float(utilisation.max()):.1f}% | "
            f"{100 * float(share_lost):.2f}% | {seconds:.3g} s |"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
