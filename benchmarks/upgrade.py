"""Measure capacity expansion: cost, certified gap and time, against the whole linear program in
HiGHS.

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


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
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
    return parser.parse_args()


def load_scenarios(options: argparse.Namespace) -> tuple[Scenarios, int]:
    """Return the scenarios (matrices times failures) of the options, and the number of demands that
    some failure disconnects.
    """
    topology = teal.load_topology(options.topology, default_capacity=options.default_capacity)
    traffic = teal.load_traffic(options.traffic, topology)
    rows = np.unique(np.linspace(0, traffic.num_matrices - 1, options.matrices).astype(int))
    matrices = traffic.read(rows)
    paths = teal.compute_paths(
        topology, traffic.pairs, num_paths=4, method="survivable", weight="latency", cache=False
    )
    objective = teal.Objective("max_link_utilisation")
    problem = teal.Problem.create(topology, paths, objective, matrices)
    # Scale so that the best routing of the worst matrix has a largest utilisation of 80%.
    worst_utilisation = float(teal.solve(problem, gap=1e-3).value.max())
    demand = matrices * (0.8 / worst_utilisation)
    unit_costs = np.ones(len(topology.link_pairs()))
    scenarios, disconnected = scenarios_of(
        problem.row(0), demand, topology.cables(), unit_costs, 1.0, options.growth
    )
    return scenarios, sum(map(len, disconnected.values()))


def main() -> None:
    """Print one JSON object with the figures of the expansion."""
    options = parse_options()
    scenarios, num_disconnected = load_scenarios(options)
    # Expansion in any amounts.
    # The first call compiles; the second one is timed.
    expand_capacity(scenarios, gap=0.5)
    result, cuts = expand_capacity(scenarios, gap=options.gap)
    figures: dict[str, object] = {
        "network": scenarios.problem.topology.name,
        "cables": scenarios.num_cables,
        "scenarios": len(scenarios.demand),
        "cut_off": num_disconnected,
        "cost": result.cost,
        "bound": result.bound,
        "gap": result.gap,
        "rounds": result.rounds,
        "cuts": result.cuts,
        "solve_s": result.solve_s,
    }
    # Expansion in modules of one size.
    if options.modules:
        deadline = Deadline.after(options.module_deadline)
        modules = [(options.modules, options.modules)]
        plan = expand_in_modules(scenarios, cuts, modules, deadline=deadline)
        names = ("cost", "bound", "gap", "rounds", "solve_s")
        figures["modules"] = {name: getattr(plan, name) for name in names}
    # The whole linear program by HiGHS.
    if options.highs:
        begin = time.perf_counter()
        cost = whole_program(scenarios, options.highs)
        figures["highs"] = {"cost": cost, "s": time.perf_counter() - begin}
    figures["replayed"] = _replayed_utilisation(scenarios, result.bought)
    print(json.dumps(figures))


def whole_program(scenarios: Scenarios, seconds: float) -> float:
    """Return the cost of the cheapest expansion in any amounts by HiGHS; NaN if it takes longer than
    ``seconds``.

    It is one linear program over all scenarios s, in the added capacities a of the cables and the
    path flows x[s], with A the incidence matrix of links and paths:

        minimise    cost . a
        subject to  A x[s] <= limit (capacity + a)  on the live links of s,
                    the flows x[s] of each demand sum to it,  a >= 0,  x >= 0.

    Args:
        scenarios: matrices times failures, with the limit of the utilisation.
        seconds: time limit of HiGHS, s.
    """
    paths = scenarios.problem.paths
    num_links = scenarios.problem.topology.num_links
    incidence = scenarios.problem.ops.incidence(num_links).tocsc()
    # (E, cables) coefficients of the added capacities in the rows of links: minus the limit.
    added_capacity = sp.csr_array(
        (np.full(num_links, -scenarios.max_utilisation), (np.arange(num_links), scenarios.cable))
    )
    capacity_rows = []
    flow_rows = []
    capacity_limits = []
    demand_rows = []
    demand_rates = []
    for s, demand in enumerate(scenarios.demand):
        live = scenarios.live[s]
        # Columns: live paths of demands above 0.
        is_failed_path = (incidence.T @ (~live).astype(np.float64)) > 0
        has_demand = np.repeat(demand, paths.num_paths) > 0
        live_columns = np.flatnonzero(paths.mask.reshape(-1) & ~is_failed_path & has_demand)
        # Rows of live links.
        capacity_rows.append(added_capacity[live])
        flow_rows.append(incidence[:, live_columns].tocsr()[live])
        capacity_limits.append(scenarios.max_utilisation * scenarios.existing_capacity[live])
        # Rows of demands.
        demands = np.unique(live_columns // paths.num_paths)
        row = np.searchsorted(demands, live_columns // paths.num_paths)
        demand_rows.append(
            sp.csr_array((np.ones(len(live_columns)), (row, np.arange(len(live_columns)))))
        )
        demand_rates.append(demand[demands])
    # Path flows of different scenarios share no row: blocks on the diagonal.
    flows = sp.block_diag(flow_rows, format="csr")
    demand_sums = sp.block_diag(demand_rows, format="csr")
    no_capacity = sp.csr_array((demand_sums.shape[0], scenarios.num_cables))
    result = linprog(
        np.concatenate([scenarios.cost, np.zeros(flows.shape[1])]),
        sp.hstack([sp.vstack(capacity_rows), flows], format="csr"),
        np.concatenate(capacity_limits),
        sp.hstack([no_capacity, demand_sums], format="csr"),
        np.concatenate(demand_rates),
        bounds=(0, None),
        method="highs",
        options={"time_limit": seconds},
    )
    return float(result.fun) if result.status == 0 else math.nan


def _replayed_utilisation(scenarios: Scenarios, bought: teal.runtime.arrays.FloatArray) -> float:
    """Return the largest utilisation of any scenario with the added capacity, over the limit; each
    scenario is solved to 0.1%.

    Args:
        scenarios: matrices times failures.
        bought: added capacity of each cable, Gbit/s.
    """
    worst = 0.0
    # Batches of 256 scenarios limit the memory.
    for first in range(0, len(scenarios.demand), 256):
        rows = np.arange(first, min(first + 256, len(scenarios.demand)))
        problem = dataclasses.replace(
            scenarios.problem.with_demand(scenarios.demand[rows]).with_capacity(
                scenarios.capacity(bought, rows)
            )
        )
        worst = max(
            worst, float(teal.solve(problem, gap=1e-3).value.max()) / scenarios.max_utilisation
        )
    return worst


if __name__ == "__main__":
    main()
