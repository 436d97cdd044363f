"""Integer split weights: the value that rounding to split tables loses, and the part that COMA* regains.

    teal pretrain --from universal --learner coma --entries 4 --std 0.3 --learning-rate 5e-4 --time-budget 4m --out M
    python benchmarks/split_tables.py --entries 4 --models universal M

The 40 held-out networks of the Topology Zoo and SNDlib, with matrices as in held_out.py.  The allocation of PDHG,
certified to 1e-3, and that of each model are rounded to split tables by largest remainders and admitted in the same
way; the values are shares of the optimum without rounding.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from held_out import cases
from tqdm import tqdm

import teal
from teal.learning.network_pool import group_of, topohub_pool
from teal.nn.checkpoint import load_price_gnn
from teal.runtime.storage import model_folder
from teal.schemes.price_gnn import PriceGnnScheme, PriceGnnSchemeConfig
from teal.solvers.split_table import admit


def main() -> None:
    """Measure every network and matrix, and print the mean and worst share of each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=4, help="entries of a split table")
    parser.add_argument("--models", type=Path, nargs="+", default=[Path("universal")], help="folders of models")
    parser.add_argument("--seed", type=int, default=0, help="of the traffic and its changes")
    options = parser.parse_args()
    settings = PriceGnnSchemeConfig(entries=options.entries)
    models = {str(name): PriceGnnScheme(load_price_gnn(model_folder(name))[0], settings) for name in options.models}
    shares: dict[tuple[str, str], list[float]] = {}
    for name in tqdm([n for n in topohub_pool().held_out if group_of(n) in ("topozoo", "sndlib")], unit="network"):
        topology = teal.load_topology(f"topohub:{name}")
        traffic = teal.load_traffic(f"gravity:seed={options.seed},count=3,load=1", topology)
        paths = teal.compute_paths(topology, traffic.pairs)
        for kind, problem in cases(topology, paths, traffic, np.random.default_rng(options.seed)):
            exact = teal.solve(problem, gap=1e-3, max_iterations=5000)
            splits_of: dict[str, Any] = {"PDHG, rounded": admit(problem, exact.splits, options.entries)}
            splits_of |= {f"{key}, rounded": model.solve(problem).splits for key, model in models.items()}
            for key, splits in splits_of.items():
                shares.setdefault((key, kind), []).append(float(problem.value(splits)[0] / exact.value[0]))
    for (key, kind), values in sorted(shares.items()):
        print(f"{key:40s} {kind:12s} {100 * statistics.mean(values):7.2f}%  worst {100 * min(values):6.2f}%")


if __name__ == "__main__":
    main()
