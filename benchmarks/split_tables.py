"""Measure the value that is lost by rounding splits to split tables, and the part of it that a
search, random rounding and COMA* recover.

    python benchmarks/split_tables.py --entries 1 [--models FOLDER ...]

The networks are the 40 held-out ones of the Topology Zoo and SNDlib, with matrices as in
held_out.py.  The allocation of PDHG, certified to 1e-3, is rounded by largest remainders; to the
best of 32 random tables, each entry drawn by the splits (Raghavan & Thompson 1987); and by the
search of teal/solvers/table_search.py.  Models, such as those of ``teal pretrain --from universal
--learner coma --entries 4``, are rounded by largest remainders. Values are shares of the optimum
without tables.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from held_out import cases
from torch import Tensor
from tqdm import tqdm

import teal
from teal.nn.checkpoint import load_price_gnn
from teal.runtime.storage import model_folder
from teal.schemes.price_gnn import PriceGnnScheme
from teal.solvers.split_table import feasible_tables
from teal.solvers.table_search import round_to_tables
from teal_study.learning.network_pool import group_of, topohub_pool

_DRAWS = 32  # random tables, of which the best one counts


def best_random_table(problem: teal.Problem, splits: Tensor, entries: int) -> Tensor:
    """Return the splits (1, D, K) of the best of 32 random tables, in which every entry of a demand
    is a path drawn with the probabilities of its splits.

    Args:
        problem: problem of one matrix.
        splits: splits to round, (1, D, K).
        entries: number of entries of a demand's table.
    """
    generator = torch.Generator().manual_seed(0)
    best = None
    total = splits.sum(-1, keepdim=True)
    # Probabilities of the paths; tiny ones let a demand without splits draw some path.
    probabilities = (splits + 1e-12 * problem.path_mask).clamp(min=1e-15)[0]
    for _ in range(_DRAWS):
        chosen = torch.multinomial(probabilities, entries, replacement=True, generator=generator)
        counts = torch.zeros_like(splits[0]).scatter_add_(
            1, chosen, torch.ones(chosen.shape, dtype=splits.dtype)
        )
        # The table's ratios, with the rates scaled to the capacities.
        candidate = feasible_tables(problem, counts[None] / entries * total, entries)
        if best is None or problem.value(candidate)[0] > problem.value(best)[0]:
            best = candidate
    assert best is not None
    return best


def rounded_model_splits(model: PriceGnnScheme, problem: teal.Problem, entries: int) -> Tensor:
    """Return the splits (1, D, K) of a model, rounded to tables by largest remainders."""
    return feasible_tables(problem, model.solve(problem).splits, entries)


def rounding_methods(
    problem: teal.Problem, splits: Tensor, entries: int, models: dict[str, PriceGnnScheme]
) -> dict[str, Callable[[], Tensor]]:
    """Return the methods that make split tables, by name; each returns splits (1, D, K).

    Args:
        problem: problem of one matrix.
        splits: optimal splits, (1, D, K), which the first three methods round.
        entries: number of entries of a demand's table.
        models: models whose splits are rounded, by name.
    """
    methods: dict[str, Callable[[], Tensor]] = {
        "rounded": partial(feasible_tables, problem, splits, entries),
        "best of 32 random ones": partial(best_random_table, problem, splits, entries),
        "with the search": partial(round_to_tables, problem, splits, entries),
    }
    return methods | {
        f"{name}, rounded": partial(rounded_model_splits, model, problem, entries)
        for name, model in models.items()
    }


def main() -> None:
    """Measure all methods on every network and matrix; print the mean and worst share of the
    optimum and the median time of each method, by kind of matrix.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entries", type=int, default=4, help="entries of a split table")
    parser.add_argument("--models", type=Path, nargs="*", default=[], help="folders of models")
    parser.add_argument("--seed", type=int, default=0, help="of the traffic and its changes")
    options = parser.parse_args()
    models = {
        str(name): PriceGnnScheme(load_price_gnn(model_folder(name))[0]) for name in options.models
    }
    # Times and shares of the optimum by method and kind of matrix.
    seconds: dict[tuple[str, str], list[float]] = {}
    shares: dict[tuple[str, str], list[float]] = {}
    networks = [name for name in topohub_pool().held_out if group_of(name) in ("topozoo", "sndlib")]
    for name in tqdm(networks, unit="network"):
        topology = teal.load_topology(f"topohub:{name}")
        traffic = teal.load_traffic(f"gravity:seed={options.seed},count=3,load=1", topology)
        paths = teal.compute_paths(topology, traffic.pairs)
        for kind, problem in cases(topology, paths, traffic, np.random.default_rng(options.seed)):
            exact = teal.solve(problem, gap=1e-3, max_iterations=5000)
            methods = rounding_methods(problem, exact.splits, options.entries, models)
            for method, make_splits in methods.items():
                begin = time.perf_counter()
                splits = make_splits()
                seconds.setdefault((method, kind), []).append(time.perf_counter() - begin)
                share = float(problem.value(splits)[0] / exact.value[0])
                shares.setdefault((method, kind), []).append(share)
    for (method, kind), values in sorted(shares.items()):
        print(
            f"{method:40s} {kind:12s} {100 * statistics.mean(values):7.2f}%  worst {100 * min(values):6.2f}%  "
            f"{1e3 * statistics.median(seconds[method, kind]):6.1f} ms"
        )


if __name__ == "__main__":
    main()
