"""Max-min fairness: fairness measure, efficiency and time of the schemes; the tables of
docs/operating.md.

    python benchmarks/fairness.py TOPOLOGY LOAD [MATRICES] [REFERENCE]
    python benchmarks/fairness.py random [NETWORKS]

REFERENCE: the scheme whose rates count as max-min fair: max-min-lp (exact, for small networks; the
default), or another one.  random: `pdhg` under max_min on dense random networks of eight nodes,
against the exact rates.
"""

from __future__ import annotations

import sys
import time

import torch
from timing import matrix_by_matrix

import teal
from teal.solvers.level_growths import level_growths
from teal.solvers.sequences.fairness import fairness, is_bottlenecked
from teal.testing import random_problem

SCHEMES = (
    "max-min",
    "max-min:form=filling",
    "adaptive-waterfiller",
    "geometric-binner",
    "pdhg",
    "ecmp:over=candidates",
)
# share of the largest capacity below which differences of rates do not count, as in the paper
_LEAST = 1e-4


def main(topology_name: str, load: str, count: str = "3", reference: str = "max-min-lp") -> None:
    """Print the table of one network."""
    topology = teal.load_topology(topology_name)
    traffic = teal.load_traffic(f"gravity:seed=0,load={load},count={count}", topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    problem = teal.Problem.create(topology, paths, teal.Objective(), traffic.read(slice(None)))
    min_rate = _LEAST * float(topology.capacity.max())

    def rates(name: str) -> tuple[torch.Tensor, torch.Tensor, float]:
        splits, seconds = matrix_by_matrix(name, problem)
        return splits, problem.flows(splits).sum(-1), seconds

    def growth(splits: torch.Tensor) -> str:
        """The growths of the first matrix's levels, in per cent, and s to certify them."""
        begin = time.perf_counter()
        found_levels = level_growths(problem.row(0), splits[:1], min_rate=min_rate)
        grown = ", ".join(f"{100 * (level.growth - 1):.1f}" for level in found_levels)
        return f"{grown} ({time.perf_counter() - begin:.2g} s)"

    exact, fair, seconds = rates(reference)
    print(f"{topology.name}, load {load}: {problem}")
    print(
        "| scheme | fairness | efficiency | at a bottleneck | certified growth of levels | time |"
    )
    print("|---|---|---|---|---|---|")
    print(f"| `{reference}` | 1 | 1 | | {growth(exact)} | {seconds:.3g} s |")
    for name in SCHEMES:
        splits, scheme_rates, seconds = rates(name)
        share = is_bottlenecked(problem, splits).double().mean()
        print(
            f"| `{name}` | {float(fairness(scheme_rates, fair, min_rate).mean()):.4f} | {float(scheme_rates.sum() / fair.sum()):.4f} | "
            f"{100 * float(share):.1f}% | {growth(splits)} | {seconds:.3g} s |"
        )


def on_random_networks(count: str = "24") -> None:
    """Print how many random networks reach target gaps, and the fairness of their rates."""
    for gap in (1e-2, 1e-3):
        reached = 0
        measures = []
        begin = time.perf_counter()
        for seed in range(int(count)):
            base = random_problem(seed, nodes=8, batch=1)
            problem = teal.Problem.create(
                base.topology, base.paths, teal.Objective("max_min"), 4 * base.demand.numpy()
            )
            found_levels = teal.solve(problem, gap=gap)
            reached += int(float(found_levels.gap) <= gap)
            scheme_rates, fair = (
                problem.flows(splits).sum(-1)
                for splits in (
                    found_levels.splits,
                    teal.make_scheme("max-min-lp").solve(problem).splits,
                )
            )
            measures.append(
                float(fairness(scheme_rates, fair, _LEAST * float(problem.capacity.max())).min())
            )
        seconds = (time.perf_counter() - begin) / int(count)
        print(
            f"gap {gap:g}: {reached} of {count} reached, fairness {sum(measures) / len(measures):.4f} in the mean, "
            f"{min(measures):.4f} at worst, {seconds:.2g} s a network with the exact rates"
        )


if __name__ == "__main__":
    if sys.argv[1] == "random":
        on_random_networks(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
