"""Which candidate paths survive: volume without a path when cables fail, by path set, beside what
no path could carry.

    python benchmarks/survival.py TOPOLOGY LOAD [METHODS [DRAWS]]

Cables fail alone, each in turn, and 1, 2 and 3% of them at random, both directions of each, DRAWS
times (default 20). METHODS of the path search, separated by commas, perhaps with a number of paths:
edge-disjoint,yen,survivable=8.
"""

from __future__ import annotations

import sys
import time
from functools import partial

import numpy as np
from timing import median_s

import teal
from teal.network import PathMethod
from teal.network.disturbances import fail_cables

_SHARES = (0.01, 0.02, 0.03)  # of all cables
_REPEATS = 3


def main(
    topology_name: str, load: str, methods: str = ",".join(PathMethod), draws: str = "20"
) -> None:
    """Print the table of one network."""
    topology = teal.load_topology(topology_name)
    traffic = teal.load_traffic(f"gravity:seed=0,load={load},count=1", topology)
    demand = traffic.read([0])
    rng = np.random.default_rng(0)
    cables = topology.cables()
    drawn = {
        share: [
            fail_cables(topology, max(1, round(share * len(cables))), rng)
            for _ in range(int(draws))
        ]
        for share in _SHARES
    }
    print(
        f"{topology.name}, load {load}, {len(traffic.pairs):,} pairs, {len(cables)} cables; volume without a path, %"
    )
    print(
        "| | paths, search | worst cable | 1% | 2% | 3% | all work | time |\n|---|---|---|---|---|---|---|---|"
    )
    for named in methods.split(","):
        method, _, num_paths = named.partition("=")
        begin = time.perf_counter()
        paths = teal.compute_paths(
            topology,
            traffic.pairs,
            method=PathMethod(method),
            num_paths=int(num_paths or 4),
            cache=False,
        )
        search_s = time.perf_counter() - begin
        problem = teal.Problem.create(topology, paths, teal.Objective(), demand)

        def stranded(failed: list[int], problem: teal.Problem = problem) -> float:
            routable = problem.with_capacity(
                topology.with_failed_links(failed).capacity
            ).routable_demand.sum()
            return 100 * (1 - float(routable) / float(demand.sum()))

        alone = max(map(stranded, cables))
        means = [np.mean([stranded(failed) for failed in drawn[share]]) for share in _SHARES]
        result = teal.solve(problem, gap=1e-2)
        seconds = median_s(partial(teal.solve, problem, gap=1e-2), _REPEATS)
        served_percent = 100 * float(result.value) / float(demand.sum())
        figures = " | ".join(f"{figure:.2f}" for figure in (alone, *means, served_percent))
        count = int(paths.mask.sum())
        print(
            f"| `{named}` | {count:,}, {search_s:.3g} s | {figures} | {seconds:.3g} s |", flush=True
        )

    def cut_off(failed: list[int]) -> float:
        part = topology.with_failed_links(failed).component_of_node()
        is_cut_off = part[traffic.pairs[:, 0]] != part[traffic.pairs[:, 1]]
        return 100 * float(demand[0, is_cut_off].sum()) / float(demand.sum())

    lost = [
        max(map(cut_off, cables)),
        *(np.mean([cut_off(failed) for failed in drawn[share]]) for share in _SHARES),
    ]
    print(f"| no path in the network | | {' | '.join(f'{share:.2f}' for share in lost)} | | |")


if __name__ == "__main__":
    main(*sys.argv[1:])
