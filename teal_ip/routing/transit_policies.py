"""Transit policies: steering of all traffic that crosses a router towards an endpoint, like an IGP
shortcut.

A *transit policy* p of the router m_p and the endpoint t_p (Cisco: autoroute) captures the traffic
forwarded at m_p along shortest paths to t_p, wherever it comes from: demands, and segments of other
lists that end at t_p.  Of the traffic from node a to t_p it captures the share f_p(a) that meets
m_p before any other policy of the same endpoint: with h_p(a), the share that crosses m_p, h_p(a) =
sum over those policies q of f_q(a) h_p(m_q).  With volumes v[t, a] of demands and weights w of the
lists' steps, the policies capture

    x_p = sum_a f_p(a) v[t_p, a] + sum_q B[p, q] x_q,
    B[p, q] = sum over the steps (a -> t_p) of lists of q of
                                                            w f_p(a).

The first segment of a list leaves its router by the IGP, and is not captured there again.  A list
that returns to its own router, or to those of policies that lead back to it, is a forwarding loop
if no traffic leaves on the path: where the spectral radius of B over such policies reaches 1, their
traffic is lost.  Entry point: :class:`TransitSteering`.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse.csgraph import connected_components

from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentPolicies
from teal.pathops.segment_passes import SegmentPasses, SteeredTraffic, volumes
from teal.runtime.arrays import BoolArray, FloatArray, IntArray

# Spectral radius above which policies keep their traffic for ever.
_LOOPS = 1 - 1e-9
# Rounds of the fixed-point iteration: without Newton's method, and in total.
_PLAIN_ROUNDS = 200
_ROUNDS = 220
# Change of a share at which the iteration has converged.
_ROUNDING = 1e-13
# Step of finite differences of shares.
_DIFFERENCE = 1e-6
# Minimum share of a policy's traffic that counts as lost.
_LOST = 1e-9
# Minimum share of traffic that a policy captures.
_MIN_SHARE = 1e-9


def crossing_shares(passes: SegmentPasses, router: int) -> FloatArray:
    """Share (N, N) of the traffic to the first node from the second one that crosses a router; 0
    without a path.
    """
    topology = passes.dag.topology
    share = passes.segment_sum((topology.link_source == router)[None].astype(np.float64))[0]
    share[~np.isfinite(share)] = 0.0
    np.fill_diagonal(share, 0.0)
    return np.asarray(share)


class TransitSteering:
    """Transit policies on one set of shortest paths: a :class:`teal_ip.routing.steering.Steering`.

    Args:
        dag: shortest paths; a list ends at its first unusable segment.
        policies: transit policies, P of which have a path to their endpoint.
    """

    def __init__(self, dag: EcmpDag, policies: SegmentPolicies) -> None:
        self._passes = SegmentPasses(dag)
        nodes = dag.topology.num_nodes
        live_policies = [pair for pair in sorted(policies.lists) if dag.reaches[pair[1], pair[0]]]
        ends = np.array(live_policies, dtype=np.int64).reshape(-1, 2)
        self._router = ends[:, 0]
        self._endpoint = ends[:, 1]
        shares = {
            int(node): crossing_shares(self._passes, int(node)) for node in np.unique(self._router)
        }
        # (P, N)
        self._crossing = np.array([shares[m][t] for m, t in live_policies]).reshape(-1, nodes)
        self._steps = steps = policies.steps(live_policies, dag.topology.link_source)
        self._is_usable = steps.works(dag)
        self._step_shares = self._shares_of_steps()
        self._crossing = self._capture_shares(self._crossing)
        self._arrives = self._arriving_shares()
        self._weight_of_step = self._step_weights(self._arrives)[0]
        captured = self._capture_matrix(self._weight_of_step)
        self._loops = _looping(captured)
        self._inverse = np.linalg.inv(
            np.eye(len(live_policies)) - np.where(self._loops, 0.0, captured)
        )
        self._weight_of_step[self._loops[steps.policy]] = 0.0

    def _capture_shares(self, crossing: FloatArray, without: int = -1) -> FloatArray:
        """Shares f (P, n) of the module docstring, from shares h (P, n) that cross each router; 0
        for the policy ``without``.
        """
        result = np.zeros_like(crossing)
        for endpoint in np.unique(self._endpoint):
            competing = np.flatnonzero(
                (self._endpoint == endpoint) & (np.arange(len(crossing)) != without)
            )
            # h of each policy, from the router of each.
            cross_shares = self._crossing[np.ix_(competing, self._router[competing])]
            result[competing] = (
                np.linalg.solve(cross_shares, crossing[competing]) if len(competing) else 0.0
            )
        return np.where(result > _MIN_SHARE, result, 0.0)

    def _shares_of_steps(self) -> FloatArray:
        """Share (P, S) of each step that each policy captures."""
        steps = self._steps
        crossing = np.where(
            (steps.end == self._endpoint[:, None]) & (steps.link < 0),
            self._crossing[:, steps.start],
            0.0,
        )
        result = self._capture_shares(crossing)
        for k in np.flatnonzero(steps.is_first & (steps.link < 0)).tolist():
            own_policy = np.flatnonzero(
                (self._router == steps.start[k]) & (self._endpoint == steps.end[k])
            )
            if len(own_policy):
                result[:, [k]] = self._capture_shares(crossing[:, [k]], int(own_policy[0]))
        return result

    def _capture_matrix(self, weight: FloatArray) -> FloatArray:
        """Matrix B (P, P), from weights (S,) of the steps."""
        result = np.zeros((len(self._router),) * 2)
        for p, row in enumerate(self._step_shares * weight):
            result[p] = np.bincount(self._steps.policy, row, len(result))
        return result

    def _step_weights(self, arrives: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Share of a policy's traffic that reaches each of its steps (S,), and that arrives (P,).

        Args:
            arrives: (P,) share of the traffic captured by each policy that arrives at its endpoint.
        """
        steps = self._steps
        weight = np.zeros(self._step_shares.shape[1])
        result = np.zeros(len(arrives))
        remaining = 0.0
        survives = np.where(self._is_usable, 1 - (1 - arrives) @ self._step_shares, 0.0)
        is_last = np.append(steps.is_first[1:], True)
        for k in range(len(weight)):
            weight[k] = remaining = steps.share[k] if steps.is_first[k] else remaining
            remaining *= survives[k]
            if is_last[k]:
                result[steps.policy[k]] += remaining
        return weight, result

    def _arriving_shares(self) -> FloatArray:
        """Share (P,) of the traffic captured by each policy that arrives.

        A list that another policy captures continues with the share that arrives there: the least
        fixed point, since each round from zero allows one more capture.  After slow convergence,
        Newton's method finishes the iteration.
        """
        arrives = np.zeros(len(self._router))
        eye = np.eye(len(self._router))
        for iteration in range(_ROUNDS):
            weight, new_arrives = self._step_weights(arrives)
            change = new_arrives - arrives
            if np.abs(change).max(initial=0.0) <= _ROUNDING:
                break
            if iteration >= _PLAIN_ROUNDS:
                not_looping = np.flatnonzero(~_looping(self._capture_matrix(weight)))
                jacobian_rows = [
                    self._step_weights(arrives - _DIFFERENCE * unit)[1] for unit in eye[not_looping]
                ]
                jacobian = (
                    ((new_arrives[:, None] - np.array(jacobian_rows).T) / _DIFFERENCE)[not_looping]
                    if len(not_looping)
                    else np.zeros((0, 0))
                )
                change[not_looping] = np.linalg.solve(
                    eye[np.ix_(not_looping, not_looping)] - jacobian, change[not_looping]
                )
            arrives = np.clip(arrives + change, 0.0, 1.0)
        return arrives

    def traffic(self, pairs: IntArray, demand: FloatArray) -> SteeredTraffic:
        """Traffic of demands (see :meth:`teal_ip.routing.steering.Steering.traffic`).

        A volume from a router to the endpoint of its policy may be below 0: the traffic that leaves
        the shortest paths there.
        """
        topology = self._passes.dag.topology
        volume = volumes(pairs, demand, topology.num_nodes)
        offered = np.einsum("mpn,pn->mp", volume[:, self._endpoint], self._crossing)
        captured = offered @ self._inverse.T
        steps = self._steps
        adjacency = np.zeros((len(volume), topology.num_links))
        for matrix_volume, row in zip(volume, captured, strict=True):
            np.subtract.at(matrix_volume, (self._endpoint, self._router), row)
        steps.add_traffic(volume, adjacency, self._weight_of_step * captured[:, steps.policy])
        return SteeredTraffic(volume, adjacency, captured[:, self._loops].sum(1))

    def values(self, pairs: IntArray, value: FloatArray, link_value: FloatArray) -> FloatArray:
        """Sums along paths of demands (:meth:`teal_ip.routing.steering.Steering.values`)."""
        steps = self._steps
        finite = np.where(np.isfinite(value), value, 0.0)
        # (L, P)
        shortest_value = finite[:, self._endpoint, self._router]
        list_value = np.zeros_like(shortest_value)
        step_value = steps.values(finite, link_value)
        for row_lists, row_steps in zip(
            list_value, np.where(self._is_usable, self._weight_of_step, 0) * step_value, strict=True
        ):
            np.add.at(row_lists, steps.policy, row_steps)
        # Change per Gbit/s that a policy captures.
        change = (list_value - shortest_value) @ self._inverse
        result = value[:, pairs[:, 1], pairs[:, 0]]
        source = pairs[:, 0]
        target = pairs[:, 1]
        for p, endpoint in enumerate(self._endpoint.tolist()):
            demands = np.flatnonzero(target == endpoint)
            result[:, demands] += self._crossing[p, source[demands]] * change[:, p, None]
        return np.asarray(result)

    def loses(self, pairs: IntArray) -> BoolArray:
        """Whether each demand (D,) loses traffic (see
        :meth:`teal_ip.routing.steering.Steering.loses`).
        """
        result = ~self._passes.dag.reaches
        for p in np.flatnonzero(self._arrives < 1 - _LOST).tolist():
            result[self._endpoint[p]] |= self._crossing[p] > 0
        return np.asarray(result[pairs[:, 1], pairs[:, 0]])


def _looping(captured: FloatArray) -> BoolArray:
    """Whether each policy (P,) traps its traffic in an endless loop, by the captured shares B
    (P, P).
    """
    count, group = connected_components(captured > 0, connection="strong")
    loops = np.zeros(len(captured), dtype=bool)
    for index in range(count):
        members = np.flatnonzero(group == index)
        radius = np.abs(np.linalg.eigvals(captured[np.ix_(members, members)])).max()
        loops[members] = radius >= _LOOPS
    return loops
