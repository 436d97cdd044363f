"""Max-min fairness: fairness measure, efficiency and time of the schemes; the tables of docs/fairness.md.

    python benchmarks/fairness.py TOPOLOGY LOAD [MATRICES] [REFERENCE]

REFERENCE: the scheme whose rates count as max-min fair: max-min-lp (exact, for small networks; the default), or
another one.
"""

from __future__ import annotations

import sys

import torch
from timing import matrix_by_matrix

import teal
from teal.solvers.fairness import fairness, is_bottlenecked

SCHEMES = ("max-min", "max-min:iterations=300", "adaptive-waterfiller", "geometric-binner", "pdhg", "ecmp")
_LEAST = 1e-4  # share of the largest capacity below which differences of rates do not count, as in the paper


def main(topology_name: str, load: str, count: str = "3", reference: str = "max-min-lp") -> None:
    """Print the table of one network."""
    topology = teal.load_topology(topology_name)
    traffic = teal.load_traffic(f"gravity:seed=0,load={load},count={count}", topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    problem = teal.Problem.create(topology, paths, teal.Objective(), traffic.read(slice(None)))
    least = _LEAST * float(topology.capacity.max())

    def rates(name: str) -> tuple[torch.Tensor, torch.Tensor, float]:
        splits, seconds = matrix_by_matrix(name, problem)
        return splits, problem.flows(splits).sum(-1), seconds

    _, fair, seconds = rates(reference)
    print(f"{topology.name}, load {load}: {problem}")
    print("| scheme | fairness | efficiency | at a bottleneck | time |\n|---|---|---|---|---|")
    print(f"| `{reference}` | 1 | 1 | | {seconds:.3g} s |")
    for name in SCHEMES:
        splits, own, seconds = rates(name)
        share = is_bottlenecked(problem, splits).double().mean()
        print(
            f"| `{name}` | {float(fairness(own, fair, least).mean()):.4f} | {float(own.sum() / fair.sum()):.4f} | "
            f"{100 * float(share):.1f}% | {seconds:.3g} s |"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
