"""Hitless updates over a series of matrices: steps, what is shed meanwhile, and a check of random
interleavings.

    python benchmarks/update.py TOPOLOGY TRAFFIC [MATRICES] [SLACK]

Each matrix is allocated to a gap of 0.1% on capacities less SLACK (a share, 0 by default); the
update leads from one allocation to the next on the full capacities.
"""

from __future__ import annotations

import collections
import statistics
import sys
import time

import numpy as np
import scipy.sparse as sp
import torch

import teal
from teal.allocation.update import PathIncidence, plan_update

_INTERLEAVINGS = 100  # random combinations of old and new flows that are checked for each step


def main(topology_name: str, traffic_name: str, count: str = "96", slack: str = "0") -> None:
    """Print the figures of one series."""
    topology = teal.load_topology(topology_name)
    traffic = teal.load_traffic(traffic_name, topology)
    paths = teal.compute_paths(topology, traffic.pairs)
    demand = traffic.read(slice(0, int(count)))
    base = teal.Problem.create(topology, paths, teal.Objective(), demand)
    # Scaled to a satisfied demand of about 90% in the mean matrix, as controllers of full networks
    # see it.
    factor = 1.0
    while float(
        teal.solve(base.with_demand(base.demand.mean(0, keepdim=True) * factor)).value[0]
    ) > 0.9 * float(base.demand.mean(0).sum() * factor):
        factor *= 1.2
    problem = base.with_demand(base.demand * factor)
    tight = problem.with_capacity((1 - float(slack)) * problem.capacity)
    flows = problem.flows(
        torch.cat([teal.solve(tight.row(t), gap=1e-3).splits for t in range(problem.batch)])
    )
    rates = flows.numpy().reshape(problem.batch, -1)
    path, link = paths.incidences()
    through = sp.csr_array(
        (np.ones(len(link)), (link, path)), shape=(topology.num_links, paths.leaf.size)
    )
    named_paths = PathIncidence(
        through, np.repeat(np.arange(paths.num_demands), paths.num_paths), topology.capacity
    )
    rng = np.random.default_rng(0)
    steps = collections.Counter[int]()
    kept_shares = []
    seconds = []
    worst = 0.0
    for t in range(problem.batch - 1):
        begin = time.perf_counter()
        plan = plan_update(named_paths, rates[t], rates[t + 1])
        seconds.append(time.perf_counter() - begin)
        steps[plan.steps] += 1
        kept_shares.append(plan.min_served_fraction)
        for a in range(plan.steps):
            for _ in range(_INTERLEAVINGS):
                is_new = rng.random(rates.shape[1]) < rng.random()
                load = through @ np.where(is_new, plan.flows[a + 1], plan.flows[a])
                worst = max(worst, float((load / topology.capacity).max()))
    print(
        f"{topology.name}, slack {slack}: {len(kept_shares)} updates, steps {dict(sorted(steps.items()))}, "
        f"kept at least {100 * min(kept_shares):.2f}% (median {100 * statistics.median(kept_shares):.2f}%), "
        f"fullest link in {_INTERLEAVINGS} interleavings a step {100 * worst:.6f}%, "
        f"{statistics.median(seconds):.3g} s each"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
