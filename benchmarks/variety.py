"""A closed loop without any matrix: splits for the estimate, varied on purpose or not, and what the
estimate gains.

    python benchmarks/variety.py TOPOLOGY TRAFFIC [--first 0] [--intervals 120] [--share 0.5] [--budget 0.02]

Every interval is carried by splits made for the estimate of the interval before; its counters (1%
noise, under these splits) are all that the estimator sees, after --history measured matrices if
any.  NMAE is sum abs(estimate - truth) / sum truth, realised the largest utilisation over the
optimum of the interval; both are means after the first third.
"""

from __future__ import annotations

import numpy as np
import torch
from series import loop_parser

import teal
import teal_ip
from teal_next.variety import vary

_NOISE = 0.01


def main() -> None:
    """Print one line."""
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
    history = (
        traffic.read(rows[0] - 1 - np.arange(options.history)[::-1]) if options.history else None
    )
    estimator = teal_ip.Estimator(
        traffic.pairs, topology.num_nodes, history=history, tracking=options.tracking
    )
    rng = np.random.default_rng(0)
    splits = problem.first_path_splits[0]
    errors = []
    ratios = []
    for number, matrix in enumerate(matrices):
        here = problem.with_demand(matrix[None])
        load = float(here.utilisation(splits[None].to(here.demand)).amax())
        ratios.append(load / float(teal.solve(here, gap=1e-3).value))
        rows_in_force = teal_ip.path_measurements(paths, splits.numpy(), topology.num_nodes)
        counters = rows_in_force @ matrix
        estimator.route(rows_in_force)
        estimate = estimator.estimate(
            np.maximum(counters * (1 + _NOISE * rng.normal(size=len(counters))), 0)
        ).matrix
        errors.append(float(np.abs(estimate - matrix).sum() / matrix.sum()))
        believed = problem.with_demand(torch.from_numpy(estimate[None]))
        splits = vary(believed, budget=options.budget, share=options.share, seed=number)
    third = len(errors) // 3
    print(
        f"{topology.name}, share {options.share:g}, budget {options.budget:g}: NMAE {np.mean(errors[third:]):.3f}, "
        f"realised {np.mean(ratios[third:]):.4f}, p95 {np.quantile(ratios[third:], 0.95):.4f}"
    )


if __name__ == "__main__":
    main()
