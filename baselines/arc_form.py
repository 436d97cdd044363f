"""The optimum over all paths of the network: multicommodity flow in arc form, solved by HiGHS.

With f[s, e] the flow on link e of all demands with source s, x[s, t] the flow from s to t (both in
Gbit/s) and c the capacities:

    sum of f[s, e] over links e into t - sum of f[s, e] over links e out of t = x[s, t]
        for every s and t != s,
    sum over s of f[s, e] <= c[e],    0 <= x[s, t] <= demand[s, t],    f >= 0.

Value maximisation: max sum v x - sum cost[e] f[s, e].  least_cost: min sum cost[e] f[s, e] with
x = demand.  Balanced programs: min theta with x = demand and sum over s of f[s, e] <= theta c[e].
There are up to N E variables, so this is for small
networks: a reference for tests and for bounds.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from teal.problem import Problem
from teal.runtime.lp import solve_lp


def optimum(problem: Problem) -> float:
    """The optimal objective of one matrix over all paths of the network, not only its K candidate
    paths.

    The value for value maximisation, theta for max_link_utilisation, 1 / max(1, theta) for
    max_concurrent_flow.  The balanced programs and least_cost include only demands with a live
    candidate path; the least cost is infinite where not all can be carried.

    Args:
        problem: of one matrix; others are ignored.

    Raises:
        SolverError: HiGHS did not find an optimum.
    """
    topology = problem.topology
    pairs = problem.paths.pairs
    nodes = topology.num_nodes
    links = topology.num_links
    demands = len(pairs)
    capacity = problem.capacity[0].numpy()
    demand = problem.demand[0].numpy()
    sources, source_row = np.unique(pairs[:, 0], return_inverse=True)
    count = len(sources)
    net_inflow = sp.csr_array(  # (N, E) +1 where a link ends, -1 where it starts
        (
            np.concatenate([np.ones(links), -np.ones(links)]),
            (
                np.concatenate([topology.link_target, topology.link_source]),
                np.tile(np.arange(links), 2),
            ),
        ),
        shape=(nodes, links),
    )
    balance = sp.kron(sp.eye(count), net_inflow, format="csr")
    delivered = sp.csr_array(
        (np.ones(demands), (source_row * nodes + pairs[:, 1], np.arange(demands))),
        shape=(count * nodes, demands),
    )
    kept_rows = np.ones(count * nodes, dtype=bool)
    kept_rows[np.arange(count) * nodes + sources] = (
        False  # balance at the source follows from the other rows
    )
    loads = sp.kron(np.ones((1, count)), sp.eye(links), format="csr")
    num_flows = count * links
    if problem.objective.maximises_value:
        cost = np.concatenate(
            [np.tile(problem.link_cost.numpy(), count), -problem.demand_value.numpy()]
        )
        result = solve_lp(
            cost,
            (sp.hstack([loads, sp.csr_array((links, demands))]), capacity),
            (sp.hstack([balance, -delivered])[kept_rows], np.zeros(int(kept_rows.sum()))),
            high=np.concatenate([np.full(num_flows, np.inf), demand]),
        )
        result.solution("arc form")
        return -result.value
    demand = np.where(problem.routable[0].numpy(), demand, 0)
    if not problem.objective.rules.balances:
        unit = max(float(problem.link_cost.max()), 1e-300)
        result = solve_lp(
            np.tile(problem.link_cost.numpy(), count) / unit,
            (loads, capacity),
            (balance[kept_rows], (delivered @ demand)[kept_rows]),
        )
        if result.is_infeasible:
            return np.inf
        result.solution("arc form")
        return result.value * unit
    result = solve_lp(
        np.concatenate([np.zeros(num_flows), [1.0]]),
        (sp.hstack([loads, sp.csr_array(-capacity[:, None])]), np.zeros(links)),
        (
            sp.hstack([balance, sp.csr_array((count * nodes, 1))])[kept_rows],
            (delivered @ demand)[kept_rows],
        ),
    )
    result.solution("arc form")
    theta = result.value
    return 1 / max(1.0, theta) if problem.objective.may_shed else theta
