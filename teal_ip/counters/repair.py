"""Repair of counters by rounds of weighted voting.

The values to find are the load of every link and the ingress and egress of every router: C = E + 2
N values.  A *witness* of a value is an independent source of it; witnesses are

- its counters: both ends of a link, one for ingress or egress (weight 1; 0.4 for a zero where
  traffic is expected);
- the load of a traffic matrix: of a measured matrix (weight 1.05; with 0.9 only 94% of the values
  are within 5%, instead of 98%), or of the matrix that :func:`repaired_values` estimates from links
  whose two counters agree (weight 0.9);
- flow conservation at a router: the value that balances all other values there (weight
  0.15 + 0.85 f^2, with f the share of the router's other values that are settled); a link has two
  such witnesses, one at each end, an ingress or egress has one.

Witnesses agree within 3 standard deviations of the value (6 for a measured matrix, 20% of the value
for an estimated one, 2.5 standard deviations of the router's sum for conservation).  In each round
the score of a witness is the sum of the weights of the witnesses that agree with it.  A value whose
best score reaches the threshold of the round is settled at the mean of the agreeing witnesses.
Thresholds fall until all values are settled.

Linear programs that minimise the sum of all changes are less accurate: they spread the error of one
counter over the flow balance of two routers, and distort good values.  Entry points:
:func:`repair`, :func:`repaired_values`.
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

# Minimum score that settles a value, by round.
_SCORE_THRESHOLDS = (3.4, 3.0, 2.6, 2.6, 2.2, 2.2, 1.9, 1.9, 1.6, 1.6, 0.0)
# Weight of a counter that reads zero where traffic is expected.
_ZERO_COUNTER_WEIGHT = 0.4
# Weights of matrix loads: above that of one counter if measured, below if estimated.
_MEASURED_MATRIX_WEIGHT = 1.05
_ESTIMATED_MATRIX_WEIGHT = 0.9
# Tolerances of counters, measured matrices and conservation, in standard deviations.
_COUNTER_TOLERANCE = 3.0
_MEASURED_TOLERANCE = 6.0
_CONSERVATION_TOLERANCE = 2.5
# Relative tolerance of the loads of an estimated matrix.
_ESTIMATED_TOLERANCE = 0.2
# Relative difference from the repaired value above which a counter is blamed.
_BLAME_THRESHOLD = 0.08
# Floor of a value when tolerances are computed, as a share of the mean value.
_MIN_VALUE_SHARE = 1e-3


@dataclasses.dataclass(frozen=True, eq=False)
class Repaired:
    """Repaired counters of one interval, for E links and N routers.

    A counter is blamed (found wrong) if it differs from the repaired value by more than 8%.

    Attributes:
        values: (E + 2 N,) repaired values of links, ingress and egress, Gbit/s.
        support: (E + 2 N,) sum of the weights of the sources (counters, matrix load, flow balances)
            that agree on each value.
        blamed_sent: (E,) whether the counter at the start of a link is blamed.
        blamed_received: (E,) whether the counter at the end of a link is blamed.
        blamed_external: (2 N,) whether an ingress or egress counter is blamed.
    """

    values: FloatArray
    support: FloatArray
    blamed_sent: BoolArray
    blamed_received: BoolArray
    blamed_external: BoolArray

    @property
    def num_blamed(self) -> int:
        """Number of counters that differ from the repaired value by more than 8%."""
        return int(self.blamed_sent.sum() + self.blamed_received.sum() + self.blamed_external.sum())

    def blamed_names(self, topology: Topology) -> list[str]:
        """Return the names of the blamed counters: those of links, then of ingress and egress."""
        link_names = topology.link_names()
        num_nodes = topology.num_nodes
        names = [
            f"counter {side} of {link_names[e]}"
            for side, blamed in (("sent", self.blamed_sent), ("received", self.blamed_received))
            for e in np.flatnonzero(blamed).tolist()
        ]
        # External counters: ingress of all N routers, then egress.
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
    """Repair the counters of one interval by rounds of weighted voting.

    Each value (load of a link, ingress or egress of a router) is settled at the mean of the
    counters, matrix load and flow balances that agree, once their weights reach the threshold of
    the round.

    Args:
        topology: the network.
        readings: the counters.
        expected: (E + 2 N,) loads of links, ingress and egress under a traffic matrix, Gbit/s; None
            for none.
        relative: relative standard deviation of a counter.
        is_estimated: whether the matrix of ``expected`` is estimated, not measured.
    """
    num_links = topology.num_links
    num_values = num_links + 2 * topology.num_nodes
    # Direct witnesses (3, C) of C = E + 2 N values: two counters and the matrix load; NaN for none.
    # Values start at the median of these.
    counters = np.full((2, num_values), np.nan)
    counters[0] = np.concatenate([readings.sent, readings.ingress, readings.egress])
    counters[1, :num_links] = readings.received
    direct_values = np.vstack(
        [counters, np.full((1, num_values), np.nan) if expected is None else expected[None]]
    )
    values = _finite_median(direct_values)
    # Voting rounds with falling thresholds: a value whose best score reaches the threshold is
    # settled at the mean of the agreeing witnesses.  This raises the weight of the flow balances
    # that contain the value.
    balance = _RouterBalance.of(topology)
    settings = _VoteSettings(
        relative=relative,
        min_value=_MIN_VALUE_SHARE * max(float(values.mean()), 1e-300),
        is_estimated=is_estimated,
    )
    is_settled = np.zeros(num_values, dtype=bool)
    support = np.zeros(num_values)
    for threshold in _SCORE_THRESHOLDS:
        witnesses = _Witnesses.stack(
            _direct_witnesses(direct_values, values, settings),
            _conservation_witnesses(balance, values, is_settled, settings),
        )
        # Vote, and settle the values whose best score reaches the threshold.
        best_mean, best_score = _vote(witnesses, values)
        is_newly_settled = ~is_settled & (best_score >= threshold)
        values = np.where(is_newly_settled, best_mean, values)
        support = np.where(is_newly_settled, best_score, support)
        is_settled |= is_newly_settled
        if is_settled.all():
            break
    # Blame counters that differ from the repaired value by more than 8%.
    is_blamed = np.abs(counters - values) > _BLAME_THRESHOLD * np.maximum(
        values, 10 * settings.min_value
    )
    is_blamed &= np.isfinite(counters)
    return Repaired(
        values,
        support,
        is_blamed[0, :num_links],
        is_blamed[1, :num_links],
        is_blamed[0, num_links:],
    )


class _VoteSettings(NamedTuple):
    """Settings of the vote on the values of an interval.

    Attributes:
        relative: relative standard deviation of a counter.
        min_value: floor of a value when tolerances are computed, Gbit/s.
        is_estimated: whether the traffic matrix whose loads vote is estimated, not measured.
    """

    relative: float
    min_value: float
    is_estimated: bool


class _Witnesses(NamedTuple):
    """W witnesses of each of C values: independent sources (counter, matrix load, flow balance).

    Attributes:
        value: (W, C) value that the witness states, Gbit/s; NaN for none.
        weight: (W, C) weight in the vote.
        tolerance: (W, C) other witnesses agree if they differ by at most this, Gbit/s.
    """

    value: FloatArray
    weight: FloatArray
    tolerance: FloatArray

    @classmethod
    def stack(cls, *groups: _Witnesses) -> _Witnesses:
        """Return all witnesses of the groups, one after the other along the first axis."""
        return cls(*(np.vstack(arrays) for arrays in zip(*groups, strict=True)))


class _RouterBalance(NamedTuple):
    """Routers whose flow balance contains each of C = E + 2 N values.

    Row 0 is the router where a link starts, or that of an ingress or egress; row 1 is the router
    where a link ends.

    Attributes:
        router: (2, C) index of the router; -1 for none.
        sign: (2, C) 1 for a value that enters the router, -1 for one that leaves it; 0 for none.
        num_values: (N,) number of values in the balance of each router.
    """

    router: Int64Array
    sign: FloatArray
    num_values: FloatArray

    @classmethod
    def of(cls, topology: Topology) -> _RouterBalance:
        """Return the values in the flow conservation of every router of a network."""
        # Row 0 has the routers where links start, then those of ingress and egress; row 1 has the
        # routers where links end.
        num_nodes = topology.num_nodes
        num_links = topology.num_links
        num_all_values = num_links + 2 * num_nodes
        router = np.full((2, num_all_values), -1)
        router[0, :num_links] = topology.link_source
        router[1, :num_links] = topology.link_target
        router[0, num_links : num_links + num_nodes] = np.arange(num_nodes)
        router[0, num_links + num_nodes :] = np.arange(num_nodes)
        # Links that end at a router and its ingress enter it (+1); links that start there and its
        # egress leave it (-1).
        sign = np.zeros((2, num_all_values))
        sign[0, :num_links] = -1
        sign[1, :num_links] = 1
        sign[0, num_links : num_links + num_nodes] = 1
        sign[0, num_links + num_nodes :] = -1
        # Count the values of each router.
        num_values = np.zeros(num_nodes)
        for side in (0, 1):
            has_router = router[side] >= 0
            np.add.at(num_values, router[side][has_router], 1)
        return cls(router, sign, num_values)


def _direct_witnesses(
    direct_values: FloatArray, values: FloatArray, settings: _VoteSettings
) -> _Witnesses:
    """Return the witnesses of C values from counters and from the matrix.

    A witness is an independent source of a value, with a weight in the vote and a tolerance within
    which other witnesses agree with it.

    Args:
        direct_values: (3, C) both counters and the load of the matrix, Gbit/s; NaN for none.
        values: (C,) current values, Gbit/s.
        settings: error of a counter, floor of a value, and kind of the traffic matrix.
    """
    min_value = settings.min_value
    # Weights: 1 for a counter, less if it reads (almost) zero where traffic is expected, since the
    # current value exceeds 10 times the floor.
    weight = np.zeros_like(direct_values)
    weight[:2] = 1.0
    weight[2] = _ESTIMATED_MATRIX_WEIGHT if settings.is_estimated else _MEASURED_MATRIX_WEIGHT
    expects_traffic = values > 10 * min_value
    weight[:2] = np.where(
        (direct_values[:2] <= min_value) & expects_traffic, _ZERO_COUNTER_WEIGHT, weight[:2]
    )
    # Tolerances: multiples of the standard deviation, or 20% for an estimated matrix.
    floored_values = np.maximum(np.abs(np.nan_to_num(direct_values)), min_value)
    tolerance = settings.relative * floored_values
    tolerance[:2] *= _COUNTER_TOLERANCE
    tolerance[2] *= (
        _ESTIMATED_TOLERANCE / settings.relative if settings.is_estimated else _MEASURED_TOLERANCE
    )
    return _Witnesses(direct_values, weight, tolerance)


def _conservation_witnesses(
    balance: _RouterBalance, values: FloatArray, is_settled: BoolArray, settings: _VoteSettings
) -> _Witnesses:
    """Return the witnesses of C values from flow conservation: one for each router of a value.

    A witness is an independent source of a value: here the value that balances inflow and outflow
    of the router, given all other values there.  Its weight is 0.15 + 0.85 f^2, with f the share of
    the router's other values that are settled.

    Args:
        balance: router (2, C) of each value, -1 for none; sign (2, C) of the value in the balance
            of that router; number of values (N,) of each router.
        values: (C,) current values, Gbit/s.
        is_settled: (C,) whether a value is settled.
        settings: error of a counter, and floor of a value.
    """
    router, sign, num_values = balance
    counter_error = settings.relative
    # Per router: number of settled values, inflow minus outflow, and sum of squared values.
    num_settled = np.zeros(len(num_values))
    net_inflow = np.zeros(len(num_values))
    square_sum = np.zeros(len(num_values))
    for side in (0, 1):
        has_router = router[side] >= 0
        router_index = router[side][has_router]
        np.add.at(num_settled, router_index, is_settled[has_router].astype(float))
        np.add.at(net_inflow, router_index, (sign[side] * values)[has_router])
        np.add.at(square_sum, router_index, values[has_router] ** 2)
    # Per value, at both routers: the balancing value, NaN if it is clearly negative; its weight and
    # tolerance.
    floored_values = np.maximum(values, settings.min_value)
    balancing_values = np.full(router.shape, np.nan)
    weight = np.zeros(router.shape)
    tolerance = np.zeros(router.shape)
    for side in (0, 1):
        has_router = router[side] >= 0
        router_index = np.where(has_router, router[side], 0)
        # Change the value such that the net inflow of the router becomes 0.
        unclipped_values = values - sign[side] * net_inflow[router_index]
        # Share of the router's other values that are settled.
        num_others = np.maximum(num_values[router_index] - 1, 1)
        settled_share = (num_settled[router_index] - is_settled) / num_others
        # Tolerance: 2.5 standard deviations of the sum of the router's other values.
        balance_tolerance = (
            _CONSERVATION_TOLERANCE
            * counter_error
            * np.sqrt(np.maximum(square_sum[router_index] - values**2, 0.0))
        )
        balancing_values[side] = np.where(
            has_router & (unclipped_values >= -balance_tolerance),
            np.maximum(unclipped_values, 0.0),
            np.nan,
        )
        weight[side] = 0.15 + 0.85 * settled_share**2
        tolerance[side] = np.maximum(
            balance_tolerance, _COUNTER_TOLERANCE * counter_error * floored_values
        )
    return _Witnesses(balancing_values, weight, tolerance)


def _vote(witnesses: _Witnesses, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the outcome of a weighted vote on C values.

    Each value has W witnesses (counters, matrix load, flow balances).  The score of a witness is
    the sum of the weights of the witnesses that agree with it; the one with the largest score wins.

    Args:
        witnesses: the witnesses.
        values: (C,) current values, Gbit/s; kept where no witness exists.

    Returns:
        (C,) mean of the witnesses that agree with the best one, weighted by precision, Gbit/s; and
        (C,) score of the best one.
    """
    # Missing witnesses have weight 0, and cannot win.
    weight = np.where(np.isfinite(witnesses.value), witnesses.weight, 0.0)
    known_value = np.nan_to_num(witnesses.value)
    # (W, W, C) at [i, j, c]: difference of witnesses i and j of value c, and whether it is within
    # the tolerance of witness j.  (W, C) score of each witness.
    difference = np.abs(known_value[:, None] - known_value[None])
    agrees = difference <= witnesses.tolerance[None]
    score = np.where(weight > 0, (agrees * weight[None]).sum(1), -1.0)
    best_witness = score.argmax(0)
    best_score = np.take_along_axis(score, best_witness[None], 0)[0]
    # Mean of the agreeing witnesses, weighted by their precision.
    agreeing_weight = np.take_along_axis(agrees, best_witness[None, None], 0)[0] * weight
    precision = agreeing_weight / np.maximum(witnesses.tolerance**2, 1e-300)
    precision_sum = precision.sum(0)
    mean = np.where(
        precision_sum > 0,
        (precision * known_value).sum(0) / np.where(precision_sum > 0, precision_sum, 1),
        values,
    )
    return mean, best_score


def repaired_values(
    estimator: Estimator, topology: Topology, readings: Readings, counter_error: float = 0.01
) -> tuple[FloatArray, Repaired]:
    """Return the counters of an interval, repaired for the estimate of its matrix.

    Links whose two counters disagree are predicted, by a traffic matrix that explains the links
    whose counters agree and, without past traffic, ingress and egress.  In the
    weighted vote (:func:`repair`) this prediction is one more source of each value.

    Args:
        estimator: estimator with prior and routing; it is not changed.
        topology: the network.
        readings: the counters.
        counter_error: relative standard deviation of a counter.

    Returns:
        (E + 2 N,) values of links, ingress and egress, Gbit/s, with wrong ones replaced and NaN for
        missing ones; and the repaired counters.
    """
    # Leave out links whose counters differ by more than 3 standard deviations of the difference,
    # sqrt(2) times that of a counter.  These links are predicted from the others.
    sent_rates = readings.sent
    received_rates = readings.received
    measured_values = readings.values
    num_links = topology.num_links
    difference_tolerance = math.sqrt(2) * _COUNTER_TOLERANCE * counter_error
    ends_disagree = np.abs(sent_rates - received_rates) > difference_tolerance * np.fmax(
        sent_rates, received_rates
    )
    agreeing_values = measured_values.copy()
    agreeing_values[:num_links][ends_disagree] = np.nan
    # Ingress and egress have one counter only.  With past traffic, predict them, too.  Without it,
    # the prediction needs them: replace those that a first vote finds wrong.
    if estimator.knows_traffic:
        agreeing_values[num_links:] = np.nan
    else:
        first_repair = repair(topology, readings, None, counter_error)
        agreeing_values[num_links:][first_repair.blamed_external] = first_repair.values[num_links:][
            first_repair.blamed_external
        ]
    predicted_values = (
        estimator.explained(agreeing_values) if np.nansum(agreeing_values) > 0 else None
    )
    # Repair with the prediction as a source of each value, and replace the blamed counters.
    final_repair = repair(topology, readings, predicted_values, counter_error, is_estimated=True)
    is_blamed_link = final_repair.blamed_sent | final_repair.blamed_received
    min_value = _MIN_VALUE_SHARE * float(final_repair.values.mean())
    # A link that should carry traffic is silent if either end counts (almost) nothing.
    is_silent = (np.minimum(sent_rates, received_rates) <= min_value) & estimator.is_used[
        :num_links
    ]
    ends_agree = (
        np.isfinite(sent_rates)
        & np.isfinite(received_rates)
        & ~ends_disagree
        & ~is_blamed_link
        & ~is_silent
    )
    is_replaced = np.concatenate([is_blamed_link, final_repair.blamed_external])
    output_values = np.where(
        is_replaced & np.isfinite(measured_values), final_repair.values, measured_values
    )
    if not np.nansum(measured_values) > 0:
        return output_values, final_repair
    # Ingress and egress counters have no second reading, and flow balance does not reveal a router
    # whose counters are all halved.  At routers where both counters of every link agree, the links
    # predict ingress and egress, and these are replaced if they differ by more than 8%.
    has_reliable_links = np.tile(_has_agreeing_links(topology, ends_agree), 2)
    is_firm = np.concatenate([ends_agree, np.zeros(len(has_reliable_links), dtype=bool)])
    predicted_external = estimator.explained(
        np.concatenate([output_values[:num_links], measured_values[num_links:]]), is_firm
    )[num_links:]
    contradicts_links = np.abs(
        measured_values[num_links:] - predicted_external
    ) > _BLAME_THRESHOLD * np.maximum(predicted_external, 10 * min_value)
    # Ingress and egress of these routers: the prediction where it differs, else the counter; of
    # other routers the outcome of the vote.
    blamed_external = np.where(has_reliable_links, contradicts_links, final_repair.blamed_external)
    output_values[num_links:] = np.where(
        has_reliable_links,
        np.where(contradicts_links, predicted_external, measured_values[num_links:]),
        output_values[num_links:],
    )
    return output_values, dataclasses.replace(final_repair, blamed_external=blamed_external)


def _has_agreeing_links(topology: Topology, ends_agree: BoolArray) -> BoolArray:
    """Return whether each router (N,) has only links whose two counters agree.

    Args:
        topology: the network.
        ends_agree: (E,) whether the two counters of each link agree.
    """
    all_links_agree = np.ones(topology.num_nodes, dtype=bool)
    # A link whose counters disagree excludes the routers at both ends.
    for link_end in (topology.link_source, topology.link_target):
        all_links_agree[link_end[~ends_agree & (topology.capacity > 0)]] = False
    return all_links_agree


def _finite_median(values: FloatArray) -> FloatArray:
    """Return the median (C,) of the finite values in each column of an array (R, C).

    A column without a finite value has median 0.
    """
    is_known = np.isfinite(values)
    # Sort each column, missing values last, and take its two middle values.
    sorted_values = np.sort(np.where(is_known, values, np.inf), axis=0)
    num_finite = is_known.sum(0)
    lower_middle = np.take_along_axis(sorted_values, np.maximum((num_finite - 1) // 2, 0)[None], 0)[
        0
    ]
    upper_middle = np.take_along_axis(
        sorted_values, np.minimum(num_finite // 2, len(values) - 1)[None], 0
    )[0]
    return np.where(
        num_finite > 0,
        (lower_middle + np.where(np.isfinite(upper_middle), upper_middle, lower_middle)) / 2,
        0.0,
    )
