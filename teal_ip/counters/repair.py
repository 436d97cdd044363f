"""Counter repair by weighted voting (consensus) rounds.

The unknown values are the load u of every link and the ingress and egress of every router, (E + 2
N).  Witnesses of a value are

- its counters: both ends of a link, one for ingress or egress (weight 1; 0.4 for a zero where
  traffic is expected);
- the load of a traffic matrix: of a measured matrix (1.05), which is right more often than a single
  counter without any other support (at 0.9, 94% of values are within 5% instead of 98%); or of the
  matrix that :func:`believed` estimates from the counters whose two ends agree (0.9);
- flow conservation at a router: the balance of all other values there (0.15 + 0.85 f^2, with the
  share f of the router's other values that are settled), at both ends of a link, and at its router
  for ingress or egress.

Witnesses agree within 3 standard deviations of the value (6 for a measured matrix, 20% of the value
for an estimated one, 2.5 standard deviations of the router's sum for conservation).  In each round
every witness of an open value scores the sum of the weights of the witnesses that agree with it;
values whose best score passes the round's threshold are settled at the mean of the agreeing
witnesses.  Thresholds fall, until all are settled.

Linear programs that minimise the sum of all changes repair less: they spread the error of a wrong
counter over conservation at two routers, and distort their good values.  Entry points:
:func:`repair`, :func:`believed`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from teal.network.topology import Topology
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array
from teal_ip.counters.estimator import Estimator
from teal_ip.readings.readings import Readings

# Score that settles a value, by round.
_THRESHOLDS = (3.4, 3.0, 2.6, 2.6, 2.2, 2.2, 1.9, 1.9, 1.6, 1.6, 0.0)
# Weight of a counter that reads zero where traffic is expected.
_WEIGHT_OF_ZERO = 0.4
# Weights of matrix loads: above and below that of one counter.
_WEIGHT_OF_MEASURED = 1.05
_WEIGHT_OF_ESTIMATED = 0.9
# Tolerances of counters, measured matrices and conservation, in standard deviations.
_TOLERANCE = 3.0
_MEASURED_TOLERANCE = 6.0
_CONSERVATION_TOLERANCE = 2.5
# Relative tolerance of an estimated matrix.
_ESTIMATED_TOLERANCE = 0.2
# Relative error above which a counter is blamed.
_BLAMED = 0.08
# Floor of a value in tolerances, as a share of the mean value.
_MIN_VALUE_SHARE = 1e-3


@dataclasses.dataclass(frozen=True, eq=False)
class Repaired:
    """Values on which counters and flow conservation agree.

    Attributes:
        values: (E + 2 N,) Gbit/s: links, ingress, egress.
        support: (E + 2 N,) sum of the weights of the witnesses that agree on each value.
        blamed_sent: (E,) whether the counter at the start of a link is off by more than 8%.
        blamed_received: (E,) whether the counter at the end of a link is off by more than 8%.
        blamed_external: (2 N,) whether an ingress or egress counter is off by more than 8%.
    """

    values: FloatArray
    support: FloatArray
    blamed_sent: BoolArray
    blamed_received: BoolArray
    blamed_external: BoolArray

    @property
    def num_blamed(self) -> int:
        """Number of blamed counters."""
        return int(self.blamed_sent.sum() + self.blamed_received.sum() + self.blamed_external.sum())

    def blamed_names(self, topology: Topology) -> list[str]:
        """Names of the blamed counters: of links, then of ingress and egress."""
        link_names = topology.link_names()
        num_nodes = topology.num_nodes
        names = [
            f"counter {side} of {link_names[e]}"
            for side, blamed in (("sent", self.blamed_sent), ("received", self.blamed_received))
            for e in np.flatnonzero(blamed).tolist()
        ]
        for row in np.flatnonzero(self.blamed_external).tolist():
            side = "ingress" if row < num_nodes else "egress"
            names.append(f"counter {side} of {topology.node_names[row % num_nodes]}")
        return names


def repair(
    topology: Topology,
    readings: Readings,
    expected: FloatArray | None = None,
    relative: float = 0.01,
    *,
    is_estimated: bool = False,
) -> Repaired:
    """Repair the counters of one interval by voting.

    Args:
        topology: the network.
        readings: the counters.
        expected: (E + 2 N,) loads of a traffic matrix; None for none.
        relative: relative standard deviation of a counter.
        is_estimated: whether that matrix is an estimate, not measured.
    """
    num_links = topology.num_links
    count = num_links + 2 * topology.num_nodes
    # Direct witnesses: the counters and the matrix; their median is the start.
    counters = np.full((2, count), np.nan)
    counters[0] = np.concatenate([readings.sent, readings.ingress, readings.egress])
    counters[1, :num_links] = readings.received
    direct = np.vstack(
        [counters, np.full((1, count), np.nan) if expected is None else expected[None]]
    )
    values = _median(direct)
    # Settle the values on which enough witnesses agree, from high thresholds to low ones.
    balance = _RouterBalance.of(topology)
    settings = _VoteSettings(
        relative=relative,
        min_value=_MIN_VALUE_SHARE * max(float(values.mean()), 1e-300),
        is_estimated=is_estimated,
    )
    settled = np.zeros(count, dtype=bool)
    support = np.zeros(count)
    for threshold in _THRESHOLDS:
        witnesses = _Witnesses.stack(
            _direct_witnesses(direct, values, settings),
            _conservation_witnesses(balance, values, settled, settings),
        )
        mean, score = _vote(witnesses, values)
        newly_settled = ~settled & (score >= threshold)
        values = np.where(newly_settled, mean, values)
        support = np.where(newly_settled, score, support)
        settled |= newly_settled
        if settled.all():
            break
    # Blame counters that are off.
    off = np.abs(counters - values) > _BLAMED * np.maximum(values, 10 * settings.min_value)
    off &= np.isfinite(counters)
    return Repaired(values, support, off[0, :num_links], off[1, :num_links], off[0, num_links:])


class _VoteSettings(NamedTuple):
    """Tolerances of a vote.

    Attributes:
        relative: relative standard deviation of a counter.
        min_value: floor of a value in tolerances, Gbit/s.
        is_estimated: whether the matrix is an estimate, not measured.
    """

    relative: float
    min_value: float
    is_estimated: bool


class _Witnesses(NamedTuple):
    """Witnesses of each of C values, a row each.

    Attributes:
        value: (W, C) Gbit/s; NaN for none.
        weight: (W, C) weight in the vote.
        tolerance: (W, C) largest difference from a witness that agrees, Gbit/s.
    """

    value: FloatArray
    weight: FloatArray
    tolerance: FloatArray

    @classmethod
    def stack(cls, *groups: _Witnesses) -> _Witnesses:
        """Return the witnesses of all groups, one group after the other."""
        return cls(*(np.vstack(arrays) for arrays in zip(*groups, strict=True)))


class _RouterBalance(NamedTuple):
    """Routers in whose balance each value takes part.

    A link leaves its start (row 0) and enters its end (row 1); ingress and egress belong to one
    router.

    Attributes:
        router: (2, C) index of the router; -1 for none.
        sign: (2, C) sign in the balance of that router, in minus out; 0 for none.
        num_values: (N,) number of values of each router.
    """

    router: Int64Array
    sign: FloatArray
    num_values: FloatArray

    @classmethod
    def of(cls, topology: Topology) -> _RouterBalance:
        """Return the balances of a network."""
        num_nodes = topology.num_nodes
        num_links = topology.num_links
        count = num_links + 2 * num_nodes
        router = np.full((2, count), -1)
        router[0, :num_links] = topology.link_source
        router[1, :num_links] = topology.link_target
        router[0, num_links : num_links + num_nodes] = np.arange(num_nodes)
        router[0, num_links + num_nodes :] = np.arange(num_nodes)
        sign = np.zeros((2, count))
        sign[0, :num_links] = -1
        sign[1, :num_links] = 1
        sign[0, num_links : num_links + num_nodes] = 1
        sign[0, num_links + num_nodes :] = -1
        num_values = np.zeros(num_nodes)
        for side in (0, 1):
            has_router = router[side] >= 0
            np.add.at(num_values, router[side][has_router], 1)
        return cls(router, sign, num_values)


def _direct_witnesses(
    direct: FloatArray, values: FloatArray, settings: _VoteSettings
) -> _Witnesses:
    """Return the witnesses of counters and matrix.

    Args:
        direct: (3, C) both counters and the load of the matrix, Gbit/s; NaN for none.
        values: (C,) current values, Gbit/s.
        settings: tolerances.
    """
    min_value = settings.min_value
    # A counter that reads zero where traffic is expected has a small weight.
    weight = np.zeros_like(direct)
    weight[:2] = 1.0
    weight[2] = _WEIGHT_OF_ESTIMATED if settings.is_estimated else _WEIGHT_OF_MEASURED
    is_expected = values > 10 * min_value
    weight[:2] = np.where((direct[:2] <= min_value) & is_expected, _WEIGHT_OF_ZERO, weight[:2])
    # Tolerances are multiples of the standard deviation.
    reference = np.maximum(np.abs(np.nan_to_num(direct)), min_value)
    tolerance = settings.relative * reference
    tolerance[:2] *= _TOLERANCE
    tolerance[2] *= (
        _ESTIMATED_TOLERANCE / settings.relative if settings.is_estimated else _MEASURED_TOLERANCE
    )
    return _Witnesses(direct, weight, tolerance)


def _conservation_witnesses(
    balance: _RouterBalance, values: FloatArray, settled: BoolArray, settings: _VoteSettings
) -> _Witnesses:
    """Return the witnesses of flow conservation at both routers of each value.

    Args:
        balance: routers of each value.
        values: (C,) current values, Gbit/s.
        settled: (C,) whether a value is settled.
        settings: tolerances.
    """
    router, sign, num_values = balance
    relative = settings.relative
    # Balance of each router.
    num_settled = np.zeros(len(num_values))
    net = np.zeros(len(num_values))
    gross = np.zeros(len(num_values))
    for side in (0, 1):
        has_router = router[side] >= 0
        router_index = router[side][has_router]
        np.add.at(num_settled, router_index, settled[has_router].astype(float))
        np.add.at(net, router_index, (sign[side] * values)[has_router])
        np.add.at(gross, router_index, values[has_router] ** 2)
    # Value that balances a router, given all its other values.
    scale = np.maximum(values, settings.min_value)
    implied_value = np.full(router.shape, np.nan)
    weight = np.zeros(router.shape)
    tolerance = np.zeros(router.shape)
    for side in (0, 1):
        has_router = router[side] >= 0
        router_index = np.where(has_router, router[side], 0)
        implied = values - sign[side] * net[router_index]
        num_others = np.maximum(num_values[router_index] - 1, 1)
        share = (num_settled[router_index] - settled) / num_others
        spread = (
            _CONSERVATION_TOLERANCE
            * relative
            * np.sqrt(np.maximum(gross[router_index] - values**2, 0.0))
        )
        implied_value[side] = np.where(
            has_router & (implied >= -spread), np.maximum(implied, 0.0), np.nan
        )
        weight[side] = 0.15 + 0.85 * share**2
        tolerance[side] = np.maximum(spread, _TOLERANCE * relative * scale)
    return _Witnesses(implied_value, weight, tolerance)


def _vote(witnesses: _Witnesses, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the mean (C,) of the witnesses that agree with the best one of each value, and the
    best one's score (C,): the sum of the weights of the witnesses that agree with it.

    Args:
        witnesses: the witnesses.
        values: (C,) current values, Gbit/s: the means of values without witnesses.
    """
    weight = np.where(np.isfinite(witnesses.value), witnesses.weight, 0.0)
    filled = np.nan_to_num(witnesses.value)
    distance = np.abs(filled[:, None] - filled[None])
    # Whether the value of the first witness is within the tolerance of the second.
    agrees = distance <= witnesses.tolerance[None]
    score = np.where(weight > 0, (agrees * weight[None]).sum(1), -1.0)
    best = score.argmax(0)
    best_score = np.take_along_axis(score, best[None], 0)[0]
    # Mean of the agreeing witnesses, weighted by their precision.
    agreeing_weight = np.take_along_axis(agrees, best[None, None], 0)[0] * weight
    precision = agreeing_weight / np.maximum(witnesses.tolerance**2, 1e-300)
    total = precision.sum(0)
    mean = np.where(total > 0, (precision * filled).sum(0) / np.where(total > 0, total, 1), values)
    return mean, best_score


def believed(
    estimator: Estimator, topology: Topology, readings: Readings, relative: float = 0.01
) -> tuple[FloatArray, Repaired]:
    """Return the values (E + 2 N,) of an interval for an estimate, NaN for missing ones, and their
    repair.

    The load of a link whose two counters disagree is predicted by a robust estimate from the links
    whose counters agree and, while the traffic is unknown, from ingress and egress.  The prediction
    is one of the witnesses.

    Args:
        estimator: supplies prior and routing; it is not updated.
        topology, readings, relative: as in :func:`repair`.
    """
    # Predict links whose counters disagree.
    sent = readings.sent
    received = readings.received
    values = readings.values
    num_links = topology.num_links
    disagree = np.abs(sent - received) > math.sqrt(2) * _TOLERANCE * relative * np.fmax(
        sent, received
    )
    agreeing_values = values.copy()
    agreeing_values[:num_links][disagree] = np.nan
    # Ingress and egress have only one counter, so a wrong one would be predicted as it is.
    if estimator.knows_traffic:
        agreeing_values[num_links:] = np.nan
    else:
        first = repair(topology, readings, None, relative)
        agreeing_values[num_links:][first.blamed_external] = first.values[num_links:][
            first.blamed_external
        ]
    expected = estimator.explained(agreeing_values) if np.nansum(agreeing_values) > 0 else None
    # Repair with the prediction.
    repaired_counters = repair(topology, readings, expected, relative, is_estimated=True)
    is_blamed_link = repaired_counters.blamed_sent | repaired_counters.blamed_received
    min_value = _MIN_VALUE_SHARE * float(repaired_counters.values.mean())
    # Both ends of a link may be dead.
    is_silent = (np.minimum(sent, received) <= min_value) & estimator.is_used[:num_links]
    agrees = np.isfinite(sent) & np.isfinite(received) & ~disagree & ~is_blamed_link & ~is_silent
    is_replaced = np.concatenate([is_blamed_link, repaired_counters.blamed_external])
    repaired = np.where(is_replaced & np.isfinite(values), repaired_counters.values, values)
    if not np.nansum(values) > 0:
        return repaired, repaired_counters
    # An external counter has no second reading, and conservation does not show that all counters of
    # a router are halved: predict them from the links of routers without disagreement.
    has_reliable_links = np.tile(_has_agreeing_links(topology, agrees), 2)
    is_firm = np.concatenate([agrees, np.zeros(len(has_reliable_links), dtype=bool)])
    predicted = estimator.explained(
        np.concatenate([repaired[:num_links], values[num_links:]]), is_firm
    )[num_links:]
    off = np.abs(values[num_links:] - predicted) > _BLAMED * np.maximum(predicted, 10 * min_value)
    blamed = np.where(has_reliable_links, off, repaired_counters.blamed_external)
    repaired[num_links:] = np.where(
        has_reliable_links, np.where(off, predicted, values[num_links:]), repaired[num_links:]
    )
    return repaired, dataclasses.replace(repaired_counters, blamed_external=blamed)


def _has_agreeing_links(topology: Topology, agrees: BoolArray) -> BoolArray:
    """Whether the two ends of every link of each router (N,) agree; argument (E,)."""
    result = np.ones(topology.num_nodes, dtype=bool)
    for ends in (topology.link_source, topology.link_target):
        result[ends[~agrees & (topology.capacity > 0)]] = False
    return result


def _median(values: FloatArray) -> FloatArray:
    """Median (C,) of the rows' finite values; 0 without any."""
    is_known = np.isfinite(values)
    ordered = np.sort(np.where(is_known, values, np.inf), axis=0)
    count = is_known.sum(0)
    low = np.take_along_axis(ordered, np.maximum((count - 1) // 2, 0)[None], 0)[0]
    high = np.take_along_axis(ordered, np.minimum(count // 2, len(values) - 1)[None], 0)[0]
    return np.where(count > 0, (low + np.where(np.isfinite(high), high, low)) / 2, 0.0)
