"""What to buy, measured: cost, certified gap and time against the whole linear program by HiGHS.

The setting of docs/upgrade.md: matrices spread evenly over a series, four survivable candidate
paths by latency, every single cable fails.  Compile first, with `teal warm-up`.
Demands are scaled so that the best routing of the worst matrix uses its fullest link to 80%, and
then multiplied by --growth.

    python benchmarks/upgrade.py geant.json geant.npz --matrices 24 --growth 1.5 --gap 0.001 --modules 10
    python benchmarks/upgrade.py topohub:sndlib/nobel-eu gravity:seed=0,count=100 --matrices 100 --highs 600
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

import teal
from teal.runtime.interruptible import Deadline
from teal_ip.purchases.benders import expand_capacity, expand_in_modules
from teal_ip.purchases.scenarios import Scenarios, scenarios_of


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("topology")
    parser.add_argument("traffic")
    parser.add_argument("--matrices", type=int, default=24)
    parser.add_argument(
        "--default-capacity", type=float, default=None, help="Gbit/s of links without one"
    )
    parser.add_argument("--growth", type=float, default=1.5)
    parser.add_argument("--gap", type=float, default=0.01)
    parser.add_argument(
        "--modules", type=float, default=0.0, help="size of a module; 0 for any amounts alone"
    )
    parser.add_argument("--module-deadline", type=float, default=300.0, help="seconds")
    parser.add_argument(
        "--highs", type=float, default=0.0, help="seconds that HiGHS may take for the whole program"
    )
    options = parser.parse_args()

    topology = teal.load_topology(options.topology, default_capacity=options.default_capacity)
    traffic = teal.load_traffic(options.traffic, topology)
    rows = np.unique(np.linspace(0, traffic.num_matrices - 1, options.matrices).astype(int))
    matrices = traffic.read(rows)
    paths = teal.compute_paths(
        topology, traffic.pairs, num_paths=4, method="survivable", weight="latency", cache=False
    )
    objective = teal.Objective("max_link_utilisation")
    problem = teal.Problem.create(topology, paths, objective, matrices)
    worst = float(teal.solve(problem, gap=1e-3).value.max())
    demand = matrices * (0.8 / worst)
    cables = topology.cables()
    scenarios, cut_off = scenarios_of(
        problem.row(0), demand, cables, np.ones(len(topology.link_pairs())), 1.0, options.growth
    )
    expand_capacity(scenarios, gap=0.5)  # whatever is not compiled yet
    result, cuts = expand_capacity(scenarios, gap=options.gap)
    figures: dict[str, object] = {
        "network": topology.name,
        "cables": len(cables),
        "scenarios": len(scenarios.demand),
        "cut_off": sum(map(len, cut_off.values())),
        "cost": result.cost,
        "bound": result.bound,
        "gap": result.gap,
        "rounds": result.rounds,
        "cuts": result.cuts,
        "solve_s": result.solve_s,
    }
    if options.modules:
        plan = expand_in_modules(
            scenarios,
            cuts,
            [(options.modules, options.modules)],
            deadline=Deadline.after(options.module_deadline),
        )
        figures["modules"] = {
            key: getattr(plan, key) for key in ("cost", "bound", "gap", "rounds", "solve_s")
        }
    if options.highs:
        begin = time.perf_counter()
        figures["highs"] = {
            "cost": whole_program(scenarios, options.highs),
            "s": time.perf_counter() - begin,
        }
    figures["replayed"] = _replayed(scenarios, result.bought)
    print(json.dumps(figures))


def whole_program(scenarios: Scenarios, seconds: float) -> float:
    """Cost of the cheapest purchase by HiGHS on the whole linear program; NaN if it takes longer
    than ``seconds``.
    """
    paths = scenarios.problem.paths
    cables = scenarios.num_cables
    links = scenarios.problem.topology.num_links
    incidence = scenarios.problem.ops.incidence(links).tocsc()
    of_cable = sp.csr_array((np.full(links, -scenarios.limit), (np.arange(links), scenarios.cable)))
    upper = []
    upper_bounds = []
    equal = []
    lower_bounds = []
    for s, demand in enumerate(scenarios.demand):
        live = scenarios.live[s]
        is_dead = (incidence.T @ (~live).astype(np.float64)) > 0
        column = np.flatnonzero(
            paths.mask.reshape(-1) & ~is_dead & (np.repeat(demand, paths.num_paths) > 0)
        )
        upper.append((of_cable[live], incidence[:, column].tocsr()[live]))
        upper_bounds.append(scenarios.limit * scenarios.regular[live])
        has = np.unique(column // paths.num_paths)
        rows = np.searchsorted(has, column // paths.num_paths)
        equal.append(sp.csr_array((np.ones(len(column)), (rows, np.arange(len(column))))))
        lower_bounds.append(demand[has])
    flows = sp.block_diag([block for _, block in upper], format="csr")
    rows_upper = sp.hstack([sp.vstack([block for block, _ in upper]), flows], format="csr")
    sums = sp.block_diag(equal, format="csr")
    rows_equal = sp.hstack([sp.csr_array((sums.shape[0], cables)), sums], format="csr")
    cost = np.concatenate([scenarios.cost, np.zeros(flows.shape[1])])
    result = linprog(
        cost,
        rows_upper,
        np.concatenate(upper_bounds),
        rows_equal,
        np.concatenate(lower_bounds),
        bounds=(0, None),
        method="highs",
        options={"time_limit": seconds},
    )
    return float(result.fun) if result.status == 0 else math.nan


def _replayed(scenarios: Scenarios, bought: teal.runtime.arrays.FloatArray) -> float:
    """Largest utilisation over the limit, every scenario solved anew to 0.1%."""
    worst = 0.0
    for first in range(0, len(scenarios.demand), 256):
        rows = np.arange(first, min(first + 256, len(scenarios.demand)))
        problem = dataclasses.replace(
            scenarios.problem.with_demand(scenarios.demand[rows]).with_capacity(
                scenarios.capacity(bought, rows)
            )
        )
        worst = max(worst, float(teal.solve(problem, gap=1e-3).value.max()) / scenarios.limit)
    return worst


if __name__ == "__main__":
    main()
