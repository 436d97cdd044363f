"""Which counters to believe: repair by voting rounds.

The unknown values are the load u of every link and what enters and leaves at every router, (E + 2
N).  Witnesses of a value are

- its counters: both ends of a link, one for what enters or leaves (weight 1; 0.4 for a zero where
  traffic is expected);
- the load that a matrix puts there: of a matrix that was measured (1.05), which is right more often
  than a single counter without any other support (at 0.9, 94% of values are within 5% in place of
  98%); or of the matrix that is estimated from the counters whose two ends agree (0.9), by
  :func:`believed`;
- conservation at a router: what all other values there leave for this one (0.15 + 0.85 f^2, with
  the share f of the router's other values that are settled), at both ends of a link, and at its
  router for what enters or leaves.

Witnesses agree within 3 standard deviations of the value (6 for a measured matrix, 20% of the value
for an estimated one, 2.5 standard deviations of the router's sum for conservation).  In each round
every witness of an open value gets the sum of weights of those that agree with it; values whose
best score passes the round's threshold are settled at the mean of the agreeing witnesses.
Thresholds fall, until all are settled.

Linear programs that minimise the sum of all changes repair less: the error of a wrong counter is
spread over conservation at two routers, and drags their good values along.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from teal.network.topology import Topology
from teal.runtime.arrays import BoolArray, FloatArray
from teal_ip.counters.estimator import Estimator
from teal_ip.readings.readings import Readings

_THRESHOLDS = (3.4, 3.0, 2.6, 2.6, 2.2, 2.2, 1.9, 1.9, 1.6, 1.6, 0.0)
_WEIGHT_OF_ZERO = 0.4
# Of loads of a matrix: more and less than one counter.
_WEIGHT_OF_MEASURED = 1.05
_WEIGHT_OF_ESTIMATED = 0.9
_TOLERANCE, _OF_MEASURED, _OF_SUM = 3.0, 6.0, 2.5  # standard deviations
_OF_ESTIMATED = 0.2  # share of a value, by which an estimated matrix may miss it
_BLAMED = 0.08  # relative error from which on a counter is named
_MIN_VALUE_SHARE = 1e-3  # share of the mean value that a value counts as at least, in tolerances


@dataclasses.dataclass(frozen=True, eq=False)
class Repaired:
    """Values that counters and conservation agree on.

    Attributes:
        values: (E + 2 N,) Gbit/s: links, ingress, egress.
        support: (E + 2 N,) sum of the weights of the witnesses that agree on each.
        blamed_sent: (E,) whether the counter where a link starts is off by more than 8%.
        blamed_received: (E,) likewise where it ends.
        blamed_external: (2 N,) likewise of ingress and egress.
    """

    values: FloatArray
    support: FloatArray
    blamed_sent: BoolArray
    blamed_received: BoolArray
    blamed_external: BoolArray

    @property
    def num_blamed(self) -> int:
        """Number of counters that are named."""
        return int(self.blamed_sent.sum() + self.blamed_received.sum() + self.blamed_external.sum())

    def blamed_names(self, topology: Topology) -> list[str]:
        """The counters that are named: of links, then of what enters and leaves."""
        links, nodes = topology.link_names(), topology.num_nodes
        names = [
            f"counter {side} of {links[e]}"
            for side, blamed in (("sent", self.blamed_sent), ("received", self.blamed_received))
            for e in np.flatnonzero(blamed).tolist()
        ]
        for row in np.flatnonzero(self.blamed_external).tolist():
            side = "ingress" if row < nodes else "egress"
            names.append(f"counter {side} of {topology.node_names[row % nodes]}")
        return names


def repair(
    topology: Topology,
    readings: Readings,
    expected: FloatArray | None = None,
    relative: float = 0.01,
    *,
    is_estimated: bool = False,
) -> Repaired:
    """Repair the counters of one interval.

    Args:
        topology: the network.
        readings: the counters.
        expected: (E + 2 N,) what a matrix puts on each; None if there is none.
        relative: standard deviation of a counter, as a share of it.
        is_estimated: whether that matrix is an estimate, and not measured.
    """
    nodes, links = topology.num_nodes, topology.num_links
    count = links + 2 * nodes
    counters = np.full((2, count), np.nan)
    counters[0] = np.concatenate([readings.sent, readings.ingress, readings.egress])
    counters[1, :links] = readings.received
    # What a value does to the balance of the routers: in minus out; a link leaves its start and
    # enters its end.
    router = np.full((2, count), -1)
    router[0, :links], router[1, :links] = topology.link_source, topology.link_target
    router[0, links : links + nodes] = router[0, links + nodes :] = np.arange(nodes)
    sign = np.zeros((2, count))
    sign[0, :links], sign[1, :links], sign[0, links : links + nodes], sign[0, links + nodes :] = (
        -1,
        1,
        1,
        -1,
    )
    size = np.zeros(nodes)
    for side in (0, 1):
        used = router[side] >= 0
        np.add.at(size, router[side][used], 1)
    direct = np.vstack(
        [counters, np.full((1, count), np.nan) if expected is None else expected[None]]
    )
    values = _median(direct)
    least = _MIN_VALUE_SHARE * max(float(values.mean()), 1e-300)
    settled, support = np.zeros(count, dtype=bool), np.zeros(count)
    for threshold in _THRESHOLDS:
        settled_at, net, gross = np.zeros(nodes), np.zeros(nodes), np.zeros(nodes)
        for side in (0, 1):
            used = router[side] >= 0
            at = router[side][used]
            np.add.at(settled_at, at, settled[used].astype(float))
            np.add.at(net, at, (sign[side] * values)[used])
            np.add.at(gross, at, values[used] ** 2)
        witness, weight = np.full((5, count), np.nan), np.zeros((5, count))
        tolerance = np.zeros((5, count))
        witness[:3] = direct
        scale = np.maximum(values, least)
        weight[:2], weight[2] = 1.0, _WEIGHT_OF_ESTIMATED if is_estimated else _WEIGHT_OF_MEASURED
        is_expected = values > 10 * least
        weight[:2] = np.where((counters <= least) & is_expected, _WEIGHT_OF_ZERO, weight[:2])
        reference = np.maximum(np.abs(np.nan_to_num(direct)), least)
        tolerance[:3] = relative * reference
        tolerance[:2] *= _TOLERANCE
        tolerance[2] *= _OF_ESTIMATED / relative if is_estimated else _OF_MEASURED
        for side in (0, 1):
            used = router[side] >= 0
            at = np.where(used, router[side], 0)
            implied = values - sign[side] * net[at]
            others = np.maximum(size[at] - 1, 1)
            share = (settled_at[at] - settled) / others
            spread = _OF_SUM * relative * np.sqrt(np.maximum(gross[at] - values**2, 0.0))
            witness[3 + side] = np.where(
                used & (implied >= -spread), np.maximum(implied, 0.0), np.nan
            )
            weight[3 + side] = 0.15 + 0.85 * share**2
            tolerance[3 + side] = np.maximum(spread, _TOLERANCE * relative * scale)
        weight = np.where(np.isfinite(witness), weight, 0.0)
        filled = np.nan_to_num(witness)
        apart = np.abs(filled[:, None] - filled[None])
        agrees = (
            apart <= tolerance[None]
        )  # is the value of the first witness one that the second may stand for?
        score = np.where(weight > 0, (agrees * weight[None]).sum(1), -1.0)
        best = score.argmax(0)
        top = np.take_along_axis(score, best[None], 0)[0]
        joined = np.take_along_axis(agrees, best[None, None], 0)[0] * weight
        precise = joined / np.maximum(tolerance**2, 1e-300)
        total = precise.sum(0)
        mean = np.where(
            total > 0, (precise * filled).sum(0) / np.where(total > 0, total, 1), values
        )
        new = ~settled & (top >= threshold)
        values = np.where(new, mean, values)
        support = np.where(new, top, support)
        settled |= new
        if settled.all():
            break
    off = np.abs(counters - values) > _BLAMED * np.maximum(values, 10 * least)
    off &= np.isfinite(counters)
    return Repaired(values, support, off[0, :links], off[1, :links], off[0, links:])


def believed(
    estimator: Estimator, topology: Topology, readings: Readings, relative: float = 0.01
) -> tuple[FloatArray, Repaired]:
    """(E + 2 N,) the values of an interval that an estimate should be made of, NaN for missing
    ones, and their repair.

    The load of a link whose two counters disagree is predicted by a robust estimate from the links
    whose counters agree and, before anything is known of the traffic, from what enters and leaves.
    The prediction is one of the witnesses.

    Args:
        estimator: its prior and routing; it learns nothing here.
        topology: as in :func:`repair`, and so are all others.
    """
    sent, received, values, links = (
        readings.sent,
        readings.received,
        readings.values,
        topology.num_links,
    )
    disagree = np.abs(sent - received) > math.sqrt(2) * _TOLERANCE * relative * np.fmax(
        sent, received
    )
    agreed = values.copy()
    agreed[:links][disagree] = np.nan
    # What enters or leaves has one counter alone, so that a wrong one would be predicted as it is.
    if estimator.knows_traffic:
        agreed[links:] = np.nan
    else:
        first = repair(topology, readings, None, relative)
        agreed[links:][first.blamed_external] = first.values[links:][first.blamed_external]
    expected = estimator.explained(agreed) if np.nansum(agreed) > 0 else None
    fixed = repair(topology, readings, expected, relative, is_estimated=True)
    of_link = fixed.blamed_sent | fixed.blamed_received
    least = _MIN_VALUE_SHARE * float(fixed.values.mean())
    is_silent = (np.minimum(sent, received) <= least) & estimator.is_used[
        :links
    ]  # both ends may be dead
    agrees = np.isfinite(sent) & np.isfinite(received) & ~disagree & ~of_link & ~is_silent
    is_replaced = np.concatenate([of_link, fixed.blamed_external])
    repaired = np.where(is_replaced & np.isfinite(values), fixed.values, values)
    if not np.nansum(values) > 0:
        return repaired, fixed
    # An external counter has no second reading, and conservation does not show that all of a router
    # are halved.
    decides = np.tile(_with_links(topology, agrees), 2)
    is_firm = np.concatenate([agrees, np.zeros(len(decides), dtype=bool)])
    seen = estimator.explained(np.concatenate([repaired[:links], values[links:]]), is_firm)[links:]
    off = np.abs(values[links:] - seen) > _BLAMED * np.maximum(seen, 10 * least)
    blamed = np.where(decides, off, fixed.blamed_external)
    repaired[links:] = np.where(decides, np.where(off, seen, values[links:]), repaired[links:])
    return repaired, dataclasses.replace(fixed, blamed_external=blamed)


def _with_links(topology: Topology, agrees: BoolArray) -> BoolArray:
    """(N,) routers of which the two ends of every link agree; argument (E,)."""
    result = np.ones(topology.num_nodes, dtype=bool)
    for ends in (topology.link_source, topology.link_target):
        result[ends[~agrees & (topology.capacity > 0)]] = False
    return result


def _median(values: FloatArray) -> FloatArray:
    """(C,) median of the rows that are numbers; 0 where none is."""
    known = np.isfinite(values)
    ordered = np.sort(np.where(known, values, np.inf), axis=0)
    count = known.sum(0)
    low = np.take_along_axis(ordered, np.maximum((count - 1) // 2, 0)[None], 0)[0]
    high = np.take_along_axis(ordered, np.minimum(count // 2, len(values) - 1)[None], 0)[0]
    return np.where(count > 0, (low + np.where(np.isfinite(high), high, low)) / 2, 0.0)
