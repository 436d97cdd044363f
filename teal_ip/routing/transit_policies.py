"""Transit policies: segment lists for all traffic that crosses a router towards an endpoint, like
an IGP shortcut.

A *transit policy* p of the router m_p and the endpoint t_p (Cisco: autoroute) captures all traffic
forwarded at m_p along shortest paths to t_p: demands from any source, and segments of other lists
that end at t_p.  Let h_p(a) be the share of the traffic from node a to t_p that crosses m_p on its
shortest paths.  The policy captures the share f_p(a) that meets m_p before the router of any other
policy of the same endpoint; over all policies q of this endpoint

    h_p(a) = sum_q f_q(a) h_p(m_q).

With volumes v[t, a] of demands from node a to node t, and the share w of its policy's captured
traffic on each step (segment of a list), the policies capture

    x_p = sum_a f_p(a) v[t_p, a] + sum_q B[p, q] x_q,
    B[p, q] = sum of w f_p(a) over the steps (a -> t_p) of the lists of q.

The first segment of a list leaves its router by the IGP, and is not captured there again.  A list
that returns to its own router, directly or by the lists of other policies, is a forwarding loop if
no traffic leaves on the way: where the spectral radius of B over such policies reaches 1, their
traffic is lost.  Entry point: :class:`TransitSteering`.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse.csgraph import connected_components

from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentPolicies
from teal.pathops.segment_passes import SegmentPasses, SteeredTraffic, volumes
from teal.runtime.arrays import BoolArray, FloatArray, IntArray

# Spectral radius of B from which traffic loops for ever: 1, less rounding errors.
_LOOP_RADIUS = 1 - 1e-9
# Rounds of the fixed-point iteration before Newton's method starts, and in total.
_FIXED_POINT_ROUNDS = 200
_MAX_ROUNDS = 220
# Convergence tolerance of the arrival shares.
_TOLERANCE = 1e-13
# Step of the finite differences of the Jacobian.
_DIFFERENCE_STEP = 1e-6
# Policies that lose a smaller share of their traffic count as lossless.
_MIN_LOST_SHARE = 1e-9
# Smaller capture shares are set to 0.
_MIN_SHARE = 1e-9


def crossing_shares(passes: SegmentPasses, router: int) -> FloatArray:
    """Return the share of the traffic between each pair of nodes that crosses a router.

    Args:
        passes: passes over the shortest-path DAGs of N nodes.
        router: index of the router.

    Returns:
        (N, N) share of the traffic from node u to node t at [t, u]; 0 without a path.
    """
    topology = passes.dag.topology
    crossing = passes.segment_sum((topology.link_source == router)[None].astype(np.float64))[0]
    crossing[~np.isfinite(crossing)] = 0.0
    np.fill_diagonal(crossing, 0.0)
    return np.asarray(crossing)


class TransitSteering:
    """Transit policies on one set of shortest paths: a :class:`teal_ip.routing.steering.Steering`.

    Arrays, for P policies with a path to their endpoint and S steps of their lists (a step is one
    segment; steps of a list are consecutive):

    - ``_router``, ``_endpoint`` (P,): node m_p where policy p captures traffic, and its endpoint
      t_p;
    - ``_capture`` (P, N): f_p(a), share of the traffic from node a to t_p that policy p captures
      before any other policy; at the beginning of the initialisation it holds h_p(a), the share
      that crosses m_p;
    - ``_step_capture`` (P, S): share of each step's traffic that policy p captures;
    - ``_arrival_share`` (P,): share of the captured traffic that arrives at the endpoint;
    - ``_step_weight`` (S,): share of its policy's captured traffic on each step;
    - ``_loops`` (P,): whether the traffic of a policy loops for ever;
    - ``_inverse`` (P, P): (I - B)^-1, where B[p, q] is the share of the traffic captured by policy
      q that policy p captures from its lists; 0 for looping policies q.

    Args:
        dag: shortest paths; a list ends at its first unusable segment.
        policies: transit policies.
    """

    def __init__(self, dag: EcmpDag, policies: SegmentPolicies) -> None:
        # Policies with a path to their endpoint, as (router, endpoint).
        self._passes = SegmentPasses(dag)
        nodes = dag.topology.num_nodes
        live_policies = [pair for pair in sorted(policies.lists) if dag.reaches[pair[1], pair[0]]]
        policy_ends = np.array(live_policies, dtype=np.int64).reshape(-1, 2)
        self._router = policy_ends[:, 0]
        self._endpoint = policy_ends[:, 1]
        crossing_by_router = {
            int(node): crossing_shares(self._passes, int(node)) for node in np.unique(self._router)
        }
        # (P, N) share h of the traffic from each node to the endpoint that crosses the router.
        self._capture = np.array([crossing_by_router[m][t] for m, t in live_policies]).reshape(
            -1, nodes
        )
        # Steps of the lists, and the shares that policies capture from steps and from all nodes.
        self._steps = steps = policies.steps(live_policies, dag.topology.link_source)
        self._is_usable = steps.works(dag)
        self._step_capture = self._captured_step_shares()
        self._capture = self._first_capture_shares(self._capture)
        # Traffic on the steps per unit of captured traffic, and the matrix B; looping traffic is
        # lost.
        self._arrival_share = self._arrival_shares()
        self._step_weight = self._step_weights(self._arrival_share)[0]
        capture_matrix = self._capture_matrix(self._step_weight)
        self._loops = _find_loops(capture_matrix)
        self._inverse = np.linalg.inv(
            np.eye(len(live_policies)) - np.where(self._loops, 0.0, capture_matrix)
        )
        self._step_weight[self._loops[steps.policy]] = 0.0

    def _first_capture_shares(self, crossing: FloatArray, excluded: int = -1) -> FloatArray:
        """Return the share of each of n traffic flows that each policy captures before any other
        one.

        For the policies of each endpoint, the captured shares f solve sum_q h_p(m_q) f_q = h_p for
        every policy p; h_p(m_q) is the share of the traffic from the router m_q of policy q to the
        endpoint that crosses the router of policy p.  During this call ``_capture`` (P, N) must
        have the shares h.

        Args:
            crossing: (P, n) share h_p of each flow that crosses the router of policy p.
            excluded: policy that captures nothing; -1 for none.

        Returns:
            (P, n) share f_p of each flow that policy p captures.
        """
        result = np.zeros_like(crossing)
        for endpoint in np.unique(self._endpoint):
            competing = np.flatnonzero(
                (self._endpoint == endpoint) & (np.arange(len(crossing)) != excluded)
            )
            # h_p(m_q): traffic from the router of policy q that crosses the router of policy p.
            mutual_crossing = self._capture[np.ix_(competing, self._router[competing])]
            result[competing] = (
                np.linalg.solve(mutual_crossing, crossing[competing]) if len(competing) else 0.0
            )
        return np.where(result > _MIN_SHARE, result, 0.0)

    def _captured_step_shares(self) -> FloatArray:
        """Return the share (P, S) of each step's traffic that each policy captures.

        A policy captures shortest-path segments to its endpoint.  The first segment of a list is
        not captured by a policy of the router where it starts.
        """
        steps = self._steps
        crossing = np.where(
            (steps.end == self._endpoint[:, None]) & (steps.link < 0),
            self._capture[:, steps.start],
            0.0,
        )
        result = self._first_capture_shares(crossing)
        # First steps: without the policy of the router and endpoint of the step.
        for k in np.flatnonzero(steps.is_first & (steps.link < 0)).tolist():
            same_policy = np.flatnonzero(
                (self._router == steps.start[k]) & (self._endpoint == steps.end[k])
            )
            if len(same_policy):
                result[:, [k]] = self._first_capture_shares(crossing[:, [k]], int(same_policy[0]))
        return result

    def _capture_matrix(self, step_weight: FloatArray) -> FloatArray:
        """Return the matrix B (P, P): B[p, q] is the share of the traffic captured by policy q that
        policy p captures from its lists.

        Args:
            step_weight: (S,) share of its policy's captured traffic on each step.
        """
        result = np.zeros((len(self._router),) * 2)
        for p, row in enumerate(self._step_capture * step_weight):
            result[p] = np.bincount(self._steps.policy, row, len(result))
        return result

    def _step_weights(self, arrival_share: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the share of its policy's captured traffic that reaches each step, and the
        endpoint.

        Args:
            arrival_share: (P,) share of each policy's captured traffic that arrives at its
                endpoint, for steps that another policy captures.

        Returns:
            (S,) share that reaches each step, and (P,) share that arrives at the endpoint.
        """
        # ``pass_share`` (S,) is the share of a step's traffic that reaches its end: 0 for an
        # unusable segment; traffic captured by another policy arrives with that policy's share.
        steps = self._steps
        step_weight = np.zeros(self._step_capture.shape[1])
        new_arrival_share = np.zeros(len(arrival_share))
        remaining_share = 0.0
        pass_share = np.where(self._is_usable, 1 - (1 - arrival_share) @ self._step_capture, 0.0)
        is_last = np.append(steps.is_first[1:], True)
        # Walk along each list: a step receives the traffic that passed the previous one.
        for k in range(len(step_weight)):
            step_weight[k] = remaining_share = (
                steps.share[k] if steps.is_first[k] else remaining_share
            )
            remaining_share *= pass_share[k]
            if is_last[k]:
                new_arrival_share[steps.policy[k]] += remaining_share
        return step_weight, new_arrival_share

    def _arrival_shares(self) -> FloatArray:
        """Return the share (P,) of each policy's captured traffic that arrives at its endpoint.

        The shares are the least fixed point of :meth:`_step_weights`, found by iteration from 0:
        round i is exact for traffic that is captured at most i times.  If this has not converged
        after 200 rounds, Newton's method with a finite-difference Jacobian continues for loop-free
        policies.
        """
        arrival_share = np.zeros(len(self._router))
        eye = np.eye(len(self._router))
        for iteration in range(_MAX_ROUNDS):
            # One round of the fixed-point iteration, and the change of the shares by it.
            step_weight, new_arrival_share = self._step_weights(arrival_share)
            change = new_arrival_share - arrival_share
            if np.abs(change).max(initial=0.0) <= _TOLERANCE:
                break
            if iteration >= _FIXED_POINT_ROUNDS:
                # Newton step over the loop-free policies: (I - J) step = change.  Column j of the
                # Jacobian J is the finite difference of the new shares by the share of policy j.
                loop_free_policies = np.flatnonzero(~_find_loops(self._capture_matrix(step_weight)))
                perturbed_shares = [
                    self._step_weights(arrival_share - _DIFFERENCE_STEP * unit)[1]
                    for unit in eye[loop_free_policies]
                ]
                jacobian = (
                    (
                        (new_arrival_share[:, None] - np.array(perturbed_shares).T)
                        / _DIFFERENCE_STEP
                    )[loop_free_policies]
                    if len(loop_free_policies)
                    else np.zeros((0, 0))
                )
                change[loop_free_policies] = np.linalg.solve(
                    eye[np.ix_(loop_free_policies, loop_free_policies)] - jacobian,
                    change[loop_free_policies],
                )
            arrival_share = np.clip(arrival_share + change, 0.0, 1.0)
        return arrival_share

    def traffic(self, pairs: IntArray, demand: FloatArray) -> SteeredTraffic:
        """Return the traffic of matrices on shortest-path segments and adjacencies.

        The traffic x (P,) that policies capture solves x = y + B x: y is captured from demands on
        their shortest paths, and B[p, q] is the share of the traffic captured by policy q that
        policy p captures from its lists.  It is withdrawn from the shortest path from the policy's
        router to its endpoint, and added to the steps of the policy's lists.  Hence a volume may be
        below 0.

        Args:
            pairs: (D, 2) source and target of each demand.
            demand: (M, D) Gbit/s.

        Returns:
            volumes (M, N, N) from node u to node t at [m, t, u], adjacency loads (M, E), and
            traffic in forwarding loops (M,), Gbit/s.
        """
        # Captured traffic (M, P): what shortest paths offer each policy, then what lists add.
        topology = self._passes.dag.topology
        volume = volumes(pairs, demand, topology.num_nodes)
        offered_traffic = np.einsum("mpn,pn->mp", volume[:, self._endpoint], self._capture)
        captured_traffic = offered_traffic @ self._inverse.T
        # Withdraw it from the shortest paths, and add it to the steps.
        steps = self._steps
        adjacency = np.zeros((len(volume), topology.num_links))
        for matrix_volume, captured_by_policy in zip(volume, captured_traffic, strict=True):
            np.subtract.at(matrix_volume, (self._endpoint, self._router), captured_by_policy)
        steps.add_traffic(volume, adjacency, self._step_weight * captured_traffic[:, steps.policy])
        return SteeredTraffic(volume, adjacency, captured_traffic[:, self._loops].sum(1))

    def values(self, pairs: IntArray, value: FloatArray, link_value: FloatArray) -> FloatArray:
        """Return the sum of values along the paths of each demand, weighted by split ratios.

        Args:
            pairs: (D, 2) source and target of each demand.
            value: (L, N, N) values of the shortest paths from node u to node t, at [l, t, u].
            link_value: (L, E) values of adjacency links.

        Returns:
            (L, D) sums.
        """
        steps = self._steps
        finite = np.where(np.isfinite(value), value, 0.0)
        # Values (L, P) per Gbit/s of each policy: on the shortest path, and on its lists.
        shortest_value = finite[:, self._endpoint, self._router]
        list_value = np.zeros_like(shortest_value)
        step_value = steps.values(finite, link_value)
        for list_row, step_row in zip(
            list_value, np.where(self._is_usable, self._step_weight, 0) * step_value, strict=True
        ):
            np.add.at(list_row, steps.policy, step_row)
        # (L, P) change of the value per Gbit/s that a policy captures from demands, including later
        # captures by other policies.
        value_change = (list_value - shortest_value) @ self._inverse
        result = value[:, pairs[:, 1], pairs[:, 0]]
        source = pairs[:, 0]
        target = pairs[:, 1]
        for p, endpoint in enumerate(self._endpoint.tolist()):
            demands = np.flatnonzero(target == endpoint)
            result[:, demands] += self._capture[p, source[demands]] * value_change[:, p, None]
        return np.asarray(result)

    def loses(self, pairs: IntArray) -> BoolArray:
        """Return whether each demand (D,) loses traffic: it has no path, or a policy that captures
        some of it has an unusable segment or a forwarding loop.

        Args:
            pairs: (D, 2) source and target of each demand.
        """
        # (N, N) whether traffic from node u to node t is lost, at [t, u].
        result = ~self._passes.dag.reaches
        for p in np.flatnonzero(self._arrival_share < 1 - _MIN_LOST_SHARE).tolist():
            result[self._endpoint[p]] |= self._capture[p] > 0
        return np.asarray(result[pairs[:, 1], pairs[:, 0]])


def _find_loops(capture_matrix: FloatArray) -> BoolArray:
    """Return whether the traffic of each policy (P,) loops for ever.

    Policies loop where the spectral radius of a strongly connected block of B reaches 1.

    Args:
        capture_matrix: (P, P) matrix B of captured shares.
    """
    num_groups, group_of_policy = connected_components(capture_matrix > 0, connection="strong")
    is_loop = np.zeros(len(capture_matrix), dtype=bool)
    for group in range(num_groups):
        members = np.flatnonzero(group_of_policy == group)
        spectral_radius = np.abs(np.linalg.eigvals(capture_matrix[np.ix_(members, members)])).max()
        is_loop[members] = spectral_radius >= _LOOP_RADIUS
    return is_loop
