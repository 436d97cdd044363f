"""The optimum over all paths there are: multicommodity flow in arc form, solved by HiGHS.

With f[s, e] the flow on link e of everything that comes from node s, aggregated over targets:

    sum of f[s, e] over links into t - sum over links out of t = x[s, t]      for every s and t != s,
    sum over s of f[s, e] <= c[e],    0 <= x[s, t] <= demand[s, t],

and the objective in x and f: max sum v x - sum cost[e] f[s, e]; for the balanced programs min theta with
x = demand and loads <= theta c.  N E variables: for small networks, and as the oracle of the bounds.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from teal.errors import SolverError
from teal.problem import Problem


def optimum(problem: Problem) -> float:
    """The optimal objective of the one matrix of ``problem``, over all paths; its K candidates do not count.

    Raises:
        SolverError: HiGHS found none.
    """
    topology, pairs = problem.topology, problem.paths.pairs
    nodes, links, demands = topology.num_nodes, topology.num_links, len(pairs)
    capacity, demand = problem.capacity[0].numpy(), problem.demand[0].numpy()
    sources, source_of = np.unique(pairs[:, 0], return_inverse=True)
    count = len(sources)
    ends = sp.csr_array(
        (
            np.concatenate([np.ones(links), -np.ones(links)]),
            (np.concatenate([topology.link_target, topology.link_source]), np.tile(np.arange(links), 2)),
        ),
        shape=(nodes, links),
    )
    balance = sp.kron(sp.eye(count), ends, format="csr")
    delivered = sp.csr_array(
        (np.ones(demands), (source_of * nodes + pairs[:, 1], np.arange(demands))), shape=(count * nodes, demands)
    )
    inner = np.ones(count * nodes, dtype=bool)
    inner[np.arange(count) * nodes + sources] = False  # the source's own row says nothing new
    loads = sp.kron(np.ones((1, count)), sp.eye(links), format="csr")
    flows = count * links
    if problem.objective.maximises_value:
        cost = np.concatenate([np.tile(problem.link_cost.numpy(), count), -problem.demand_value.numpy()])
        found = linprog(
            cost,
            A_ub=sp.hstack([loads, sp.csr_array((links, demands))]),
            b_ub=capacity,
            A_eq=sp.hstack([balance, -delivered])[inner],
            b_eq=np.zeros(int(inner.sum())),
            bounds=[(0, None)] * flows + [(0, d) for d in demand],
            method="highs",
        )
        if not found.success:
            raise SolverError(f"arc form: {found.message}")
        return float(-found.fun)
    demand = np.where(problem.routable[0].numpy(), demand, 0)
    found = linprog(
        np.concatenate([np.zeros(flows), [1.0]]),
        A_ub=sp.hstack([loads, sp.csr_array(-capacity[:, None])]),
        b_ub=np.zeros(links),
        A_eq=sp.hstack([balance, sp.csr_array((count * nodes, 1))])[inner],
        b_eq=(delivered @ demand)[inner],
        bounds=[(0, None)] * (flows + 1),
        method="highs",
    )
    if not found.success:
        raise SolverError(f"arc form: {found.message}")
    theta = float(found.fun)
    return 1 / max(1.0, theta) if problem.objective.higher_is_better else theta
