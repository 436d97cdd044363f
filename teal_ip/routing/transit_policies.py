"""Policies that steer all traffic which crosses their router towards an endpoint, as an IGP
shortcut does.

A *transit policy* p of the router m_p and the endpoint t_p (Cisco: autoroute) takes what is
forwarded at m_p along shortest paths to t_p, wherever it comes from: traffic of demands, and
segments of other lists that end at t_p.  Of the traffic from node a to t_p it takes the share
f_p(a) that meets m_p before any other policy of the same endpoint: with h_p(a), the share that
crosses m_p, h_p(a) = sum over those policies q of f_q(a) h_p(m_q).  With volumes v[t, a] of demands
and weights w of the lists' steps, the policies take

    x_p = sum_a f_p(a) v[t_p, a] + sum_q B[p, q] x_q,
    B[p, q] = sum over the steps (a -> t_p) of lists of q of
                                                            w f_p(a).

The first segment of a list leaves its router as the IGP says, and is not taken there again.  A list
that comes back to its own router, or to those of policies that lead back to it, is a forwarding
loop if nothing leaves on the way: where the spectral radius of B over such policies reaches 1, what
they take is lost.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse.csgraph import connected_components

from teal.network.ecmp import EcmpDag
from teal.network.segment_lists import SegmentPolicies
from teal.pathops.segment_passes import SegmentPasses, SteeredTraffic, volumes
from teal.runtime.arrays import BoolArray, FloatArray, IntArray

_LOOPS = 1 - 1e-9  # spectral radius from which on policies keep their traffic for ever
_PLAIN_ROUNDS, _ROUNDS = 200, 220  # of the fixed point, those without Newton's method and all
_ROUNDING = 1e-13  # change of a share at which it ends
_DIFFERENCE = 1e-6  # of a share, by which slopes are measured
# Share of a policy's traffic that counts as lost; share that a policy takes at least.
_LOST = 1e-9
_MIN_SHARE = 1e-9


def crossing_shares(passes: SegmentPasses, router: int) -> FloatArray:
    """(N, N) share of the traffic to the first node from the second one that crosses a router; 0
    without a path.
    """
    topology = passes.dag.topology
    share = passes.segment_sum((topology.link_source == router)[None].astype(np.float64))[0]
    share[~np.isfinite(share)] = 0.0
    np.fill_diagonal(share, 0.0)
    return np.asarray(share)


class TransitSteering:
    """Transit policies on one set of shortest paths.

    Args:
        dag: shortest paths; a list ends with the first segment that cannot be followed.
        policies: transit policies, of which P have a path to their endpoint.
    """

    def __init__(self, dag: EcmpDag, policies: SegmentPolicies) -> None:
        self._passes, nodes = SegmentPasses(dag), dag.topology.num_nodes
        live = [pair for pair in sorted(policies.lists) if dag.reaches[pair[1], pair[0]]]
        ends = np.array(live, dtype=np.int64).reshape(-1, 2)
        self._router, self._endpoint = ends[:, 0], ends[:, 1]
        shares = {
            int(node): crossing_shares(self._passes, int(node)) for node in np.unique(self._router)
        }
        self._crossing = np.array([shares[m][t] for m, t in live]).reshape(-1, nodes)  # (P, N)
        self._steps = steps = policies.steps(live, dag.topology.link_source)
        self._works = steps.works(dag)
        self._take = self._shares_of_steps()
        self._crossing = self._first_met(self._crossing)
        self._arrives = self._arriving()
        self._weight = self._weights(self._arrives)[0]
        taken = self._takes(self._weight)
        self._loops = _looping(taken)
        self._inverse = np.linalg.inv(np.eye(len(live)) - np.where(self._loops, 0.0, taken))
        self._weight[self._loops[steps.policy]] = 0.0

    def _first_met(self, crossing: FloatArray, without: int = -1) -> FloatArray:
        """(P, n) f of the module, of shares h (P, n) that cross each router; 0 for a policy that is
        left out.
        """
        result = np.zeros_like(crossing)
        for endpoint in np.unique(self._endpoint):
            among = np.flatnonzero(
                (self._endpoint == endpoint) & (np.arange(len(crossing)) != without)
            )
            onwards = self._crossing[
                np.ix_(among, self._router[among])
            ]  # h of each, from the router of each
            result[among] = np.linalg.solve(onwards, crossing[among]) if len(among) else 0.0
        return np.where(result > _MIN_SHARE, result, 0.0)

    def _shares_of_steps(self) -> FloatArray:
        """(P, S) share of each step that each policy takes."""
        steps = self._steps
        met = np.where(
            (steps.end == self._endpoint[:, None]) & (steps.link < 0),
            self._crossing[:, steps.start],
            0.0,
        )
        result = self._first_met(met)
        for k in np.flatnonzero(steps.is_first & (steps.link < 0)).tolist():
            own = np.flatnonzero(
                (self._router == steps.start[k]) & (self._endpoint == steps.end[k])
            )
            if len(own):
                result[:, [k]] = self._first_met(met[:, [k]], int(own[0]))
        return result

    def _takes(self, weight: FloatArray) -> FloatArray:
        """(P, P) B, of weights (S,) of the steps."""
        result = np.zeros((len(self._router),) * 2)
        for p, row in enumerate(self._take * weight):
            result[p] = np.bincount(self._steps.policy, row, len(result))
        return result

    def _weights(self, arrives: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The share of a policy's traffic that comes to each of its steps (S,), and that arrives
        (P,).

        Args:
            arrives: (P,) share of what each policy takes that arrives at its endpoint, in the list
                that it meets.
        """
        steps, weight, result, left = (
            self._steps,
            np.zeros(self._take.shape[1]),
            np.zeros(len(arrives)),
            0.0,
        )
        survives = np.where(self._works, 1 - (1 - arrives) @ self._take, 0.0)
        is_last = np.append(steps.is_first[1:], True)
        for k in range(len(weight)):
            weight[k] = left = steps.share[k] if steps.is_first[k] else left
            left *= survives[k]
            if is_last[k]:
                result[steps.policy[k]] += left
        return weight, result

    def _arriving(self) -> FloatArray:
        """(P,) the share of what each policy takes that arrives.

        A list that another policy takes on its way goes on by the share of what arrives there: a
        fixed point, the least one, since each round from none lets traffic be taken once more.
        Where it is slow, Newton's method ends it.
        """
        arrives, eye = np.zeros(len(self._router)), np.eye(len(self._router))
        for number in range(_ROUNDS):
            weight, now = self._weights(arrives)
            change = now - arrives
            if np.abs(change).max(initial=0.0) <= _ROUNDING:
                break
            if number >= _PLAIN_ROUNDS:
                free = np.flatnonzero(~_looping(self._takes(weight)))
                slopes = [self._weights(arrives - _DIFFERENCE * unit)[1] for unit in eye[free]]
                slope = (
                    ((now[:, None] - np.array(slopes).T) / _DIFFERENCE)[free]
                    if len(free)
                    else np.zeros((0, 0))
                )
                change[free] = np.linalg.solve(eye[np.ix_(free, free)] - slope, change[free])
            arrives = np.clip(arrives + change, 0.0, 1.0)
        return arrives

    def traffic(self, pairs: IntArray, demand: FloatArray) -> SteeredTraffic:
        """Traffic of demands (:meth:`teal_ip.routing.steering.Steering.traffic`).

        A volume from a router to the endpoint of its policy may be below 0: what leaves the
        shortest paths there.
        """
        topology = self._passes.dag.topology
        volume = volumes(pairs, demand, topology.num_nodes)
        offered = np.einsum("mpn,pn->mp", volume[:, self._endpoint], self._crossing)
        taken, steps = offered @ self._inverse.T, self._steps
        adjacency = np.zeros((len(volume), topology.num_links))
        for of_matrix, row in zip(volume, taken, strict=True):
            np.subtract.at(of_matrix, (self._endpoint, self._router), row)
        steps.add_traffic(volume, adjacency, self._weight * taken[:, steps.policy])
        return SteeredTraffic(volume, adjacency, taken[:, self._loops].sum(1))

    def values(self, pairs: IntArray, value: FloatArray, link_value: FloatArray) -> FloatArray:
        """Sums along the ways of demands (:meth:`teal_ip.routing.steering.Steering.values`)."""
        steps, finite = self._steps, np.where(np.isfinite(value), value, 0.0)
        own = finite[:, self._endpoint, self._router]  # (L, P)
        lists, met = np.zeros_like(own), steps.values(finite, link_value)
        for of_lists, of_steps in zip(
            lists, np.where(self._works, self._weight, 0) * met, strict=True
        ):
            np.add.at(of_lists, steps.policy, of_steps)
        change = (lists - own) @ self._inverse  # of a Gbit/s that a policy takes
        result, source, target = value[:, pairs[:, 1], pairs[:, 0]], pairs[:, 0], pairs[:, 1]
        for p, endpoint in enumerate(self._endpoint.tolist()):
            towards = np.flatnonzero(target == endpoint)
            result[:, towards] += self._crossing[p, source[towards]] * change[:, p, None]
        return np.asarray(result)

    def loses(self, pairs: IntArray) -> BoolArray:
        """(D,) the demands of which a part is lost
        (:meth:`teal_ip.routing.steering.Steering.loses`).
        """
        result = ~self._passes.dag.reaches
        for p in np.flatnonzero(self._arrives < 1 - _LOST).tolist():
            result[self._endpoint[p]] |= self._crossing[p] > 0
        return np.asarray(result[pairs[:, 1], pairs[:, 0]])


def _looping(taken: FloatArray) -> BoolArray:
    """(P,) the policies that keep what they take for ever; argument (P, P) B of the module."""
    count, group = connected_components(taken > 0, connection="strong")
    loops = np.zeros(len(taken), dtype=bool)
    for number in range(count):
        inside = np.flatnonzero(group == number)
        radius = np.abs(np.linalg.eigvals(taken[np.ix_(inside, inside)])).max()
        loops[inside] = radius >= _LOOPS
    return loops
