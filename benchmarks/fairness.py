"""Max-min fairness: fairness measure, efficiency and time of the schemes; the tables of docs/operating.md.

    python benchmarks/fairness.py TOPOLOGY LOAD [MATRICES] [REFERENCE]

REFERENCE: the scheme whose rates count as max-min fair: max-min-lp (exact, for small networks; the default), or
another one.
"""

from __future__ import annotations

import sys
import time

import torch
from timing import matrix_by_matrix

import teal
from teal.solvers.level_growths import level_growths
from teal.solvers.sequences.fairness import fairness, is_bottlenecked

SCHEMES = (
    "max-min",
    "max-min:form=filling",
    "adaptive-waterfiller",
    "geometric-binner",
    "pdhg",
    "ecmp:over=candidates",
)
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

    def growth(splits: torch.Tensor) -> str:
        """The growths of the first matrix's levels, in per cent, and s to certify them."""
        begin = time.perf_counter()
        found = level_growths(problem.row(0), splits[:1], least=least)
        grown = ", ".join(f"{100 * (one.growth - 1):.1f}" for one in found)
        return f"{grown} ({time.perf_counter() - begin:.2g} s)"

    exact, fair, seconds = rates(reference)
    print(f"{topology.name}, load {load}: {problem}")
    print("| scheme | fairness | efficiency | at a bottleneck | certified growth of levels | time |")
    print("|---|---|---|---|---|---|")
    print(f"| `{reference}` | 1 | 1 | | {growth(exact)} | {seconds:.3g} s |")
    for name in SCHEMES:
        splits, own, seconds = rates(name)
        share = is_bottlenecked(problem, splits).double().mean()
        print(
            f"| `{name}` | {float(fairness(own, fair, least).mean()):.4f} | {float(own.sum() / fair.sum()):.4f} | "
            f"{100 * float(share):.1f}% | {growth(splits)} | {seconds:.3g} s |"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
