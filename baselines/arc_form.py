"""The optimum over all paths of the network: multicommodity flow in arc form, solved by HiGHS.

With f[s, e] the flow on link e of all demands with source s, x[s, t] the flow from s to t (both in
Gbit/s) and c the capacities:

    sum of f[s, e] over links e into t - sum of f[s, e] over links e out of t = x[s, t]
        for every s and t != s,
    sum over s of f[s, e] <= c[e],    0 <= x[s, t] <= demand[s, t],    f >= 0.

Value maximisation: max sum v x - sum cost[e] f[s, e].  least_cost: min sum cost[e] f[s, e] with
x = demand.  Min-max programs: min theta with x = demand and sum over s of f[s, e] <= theta c[e].
With N nodes and E links there are up to N E variables, so this is for small networks: a reference
for tests and for bounds.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.sparse as sp

from teal.problem import Problem
from teal.runtime.arrays import FloatArray
from teal.runtime.lp import solve_lp


def optimum(problem: Problem) -> float:
    """Return the optimal objective of one matrix over all paths of the network.

    It is the value for value maximisation, the largest utilisation theta for max_link_utilisation,
    and 1 / max(1, theta) for max_concurrent_flow.  Programs that serve all demand include only
    demands with a live candidate path; the least cost is infinite if they cannot all be carried.

    Args:
        problem: network, objective and one matrix; further matrices are ignored.

    Raises:
        SolverError: HiGHS did not find an optimum.
    """
    constraints = _ArcConstraints.of(problem)
    if problem.objective.maximises_value:
        return constraints.max_value(problem)
    demand = np.where(problem.routable[0].numpy(), problem.demand[0].numpy(), 0)
    if not problem.objective.rules.minimises_utilisation:
        return constraints.min_cost(problem, demand)
    theta = constraints.min_utilisation(demand)
    return 1 / max(1.0, theta) if problem.objective.may_shed else theta


@dataclasses.dataclass(frozen=True, eq=False)
class _ArcConstraints:
    """Constraints of the arc form, with S sources, N nodes, E links and D demands.

    Attributes:
        loads: (E, S E) matrix from flows f[s, e] to link loads.
        balance: (S (N - 1), S E) matrix from flows f[s, e] to the net inflow of each source's
            traffic at each other node.
        delivered: (S (N - 1), D) matrix with 1 where a demand from the source ends at the node.
        capacity: (E,) Gbit/s.
        num_sources: S.
    """

    loads: sp.csr_array
    balance: sp.csr_array
    delivered: sp.csr_array
    capacity: FloatArray
    num_sources: int

    @classmethod
    def of(cls, problem: Problem) -> _ArcConstraints:
        """Build the constraints of the first matrix.

        Args:
            problem: network, capacities and demands; further matrices are ignored.
        """
        topology = problem.topology
        pairs = problem.paths.pairs
        num_nodes = topology.num_nodes
        num_links = topology.num_links
        num_demands = len(pairs)
        sources, source_index = np.unique(pairs[:, 0], return_inverse=True)
        num_sources = len(sources)
        # (N, E) +1 where a link ends, -1 where it starts.
        net_inflow = sp.csr_array(
            (
                np.concatenate([np.ones(num_links), -np.ones(num_links)]),
                (
                    np.concatenate([topology.link_target, topology.link_source]),
                    np.tile(np.arange(num_links), 2),
                ),
            ),
            shape=(num_nodes, num_links),
        )
        # Rows by (source, node), columns of flows by (source, link).
        balance = sp.kron(sp.eye(num_sources), net_inflow, format="csr")
        delivered = sp.csr_array(
            (
                np.ones(num_demands),
                (source_index * num_nodes + pairs[:, 1], np.arange(num_demands)),
            ),
            shape=(num_sources * num_nodes, num_demands),
        )
        # The balance at the source follows from the other rows.
        is_independent = np.ones(num_sources * num_nodes, dtype=bool)
        is_independent[np.arange(num_sources) * num_nodes + sources] = False
        loads = sp.kron(np.ones((1, num_sources)), sp.eye(num_links), format="csr")
        return cls(
            loads,
            balance[is_independent],
            delivered[is_independent],
            problem.capacity[0].numpy(),
            num_sources,
        )

    def max_value(self, problem: Problem) -> float:
        """Return the maximum of the value of the delivered rates less the cost of the flows.

        Args:
            problem: costs of the links, and values and rates of the demands.
        """
        num_links, num_flows = self.loads.shape
        demand = problem.demand[0].numpy()
        zero_columns = sp.csr_array((num_links, len(demand)))
        # Variables: flows f[s, e], then delivered rates x[d].
        result = solve_lp(
            np.concatenate(
                [
                    np.tile(problem.link_cost.numpy(), self.num_sources),
                    -problem.demand_value.numpy(),
                ]
            ),
            (sp.hstack([self.loads, zero_columns]), self.capacity),
            (sp.hstack([self.balance, -self.delivered]), np.zeros(self.balance.shape[0])),
            high=np.concatenate([np.full(num_flows, np.inf), demand]),
        )
        result.solution("arc form")
        return -result.value

    def min_cost(self, problem: Problem, demand: FloatArray) -> float:
        """Return the least cost of carrying the demands (D,), Gbit/s; infinite if infeasible.

        Args:
            problem: costs of the links.
            demand: (D,) rates to carry, Gbit/s.
        """
        unit = max(float(problem.link_cost.max()), 1e-300)
        result = solve_lp(
            np.tile(problem.link_cost.numpy(), self.num_sources) / unit,
            (self.loads, self.capacity),
            (self.balance, self.delivered @ demand),
        )
        if result.is_infeasible:
            return np.inf
        result.solution("arc form")
        return result.value * unit

    def min_utilisation(self, demand: FloatArray) -> float:
        """Return the smallest maximum link utilisation for demands (D,), Gbit/s.

        Args:
            demand: (D,) rates to carry, Gbit/s.
        """
        num_links, num_flows = self.loads.shape
        zero_column = sp.csr_array((self.balance.shape[0], 1))
        # Variables: flows f[s, e], then theta.
        result = solve_lp(
            np.concatenate([np.zeros(num_flows), [1.0]]),
            (sp.hstack([self.loads, sp.csr_array(-self.capacity[:, None])]), np.zeros(num_links)),
            (sp.hstack([self.balance, zero_column]), self.delivered @ demand),
        )
        result.solution("arc form")
        return result.value
