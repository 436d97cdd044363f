"""Run a closed loop of estimation and allocation in which splits may be varied on purpose, and
measure by how much the variation improves the estimates.

    python benchmarks/variety.py TOPOLOGY TRAFFIC [--first 0] [--intervals 120] [--share 0.5] [--budget 0.02]

The traffic of every interval takes splits made for the estimate of the previous interval; its
counters under these splits (1% noise) are the only input of the estimator, after --history measured
matrices if any.  NMAE is sum abs(estimate - truth) / sum truth, realised is the largest utilisation
over the optimum of the interval; both are means after the first third of the intervals.
"""

from __future__ import annotations

import numpy as np
import torch
from series import loop_parser

import teal
import teal_ip
from teal_next.variety import vary

_NOISE = 0.01  # relative standard deviation of a counter


def main() -> None:
    """Run the loop; print the mean error of the estimates and the realised utilisation, as one
    line.
    """
    parser = loop_parser(__doc__, first=0, intervals=120)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--budget", type=float, default=0.02)
    parser.add_argument("--tracking", type=float, help="of the estimator; its default without")
    options = parser.parse_args()
    topology = teal.load_topology(options.topology, options.default_capacity)
    traffic = teal.load_traffic(options.traffic, topology)
    rows = np.arange(options.first, options.first + options.intervals)
    matrices = traffic.read(rows)
    paths = teal.compute_paths(topology, traffic.pairs, num_paths=4, cache=False)
    problem = teal.Problem.create(
        topology, paths, teal.Objective("max_link_utilisation"), matrices[:1]
    )
    # Matrices before the first interval, in time order.
    history_rows = rows[0] - 1 - np.arange(options.history)[::-1]
    history = traffic.read(history_rows) if options.history else None
    estimator = teal_ip.Estimator(
        traffic.pairs, topology.num_nodes, history=history, tracking=options.tracking
    )
    rng = np.random.default_rng(0)
    splits = problem.first_path_splits[0]
    errors = []
    ratios = []
    for number, matrix in enumerate(matrices):
        # Largest utilisation of the current splits, over the optimum of the interval.
        interval = problem.with_demand(matrix[None])
        max_utilisation = float(interval.utilisation(splits[None].to(interval.demand)).amax())
        ratios.append(max_utilisation / float(teal.solve(interval, gap=1e-3).value))
        # Estimate the matrix from noisy counters of links and nodes under these splits.
        measurements = teal_ip.path_measurements(paths, splits.numpy(), topology.num_nodes)
        counters = measurements @ matrix
        estimator.route(measurements)
        estimate = estimator.estimate(
            np.maximum(counters * (1 + _NOISE * rng.normal(size=len(counters))), 0)
        ).matrix
        errors.append(float(np.abs(estimate - matrix).sum() / matrix.sum()))
        # Splits for the next interval: for this estimate, varied within the budget.
        estimated_problem = problem.with_demand(torch.from_numpy(estimate[None]))
        splits = vary(estimated_problem, budget=options.budget, share=options.share, seed=number)
    third = len(errors) // 3
    print(
        f"{topology.name}, share {options.share:g}, budget {options.budget:g}: NMAE {np.mean(errors[third:]):.3f}, "
        f"realised {np.mean(ratios[third:]):.4f}, p95 {np.quantile(ratios[third:], 0.95):.4f}"
    )


if __name__ == "__main__":
    main()
