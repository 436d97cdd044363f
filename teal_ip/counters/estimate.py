"""Traffic matrices and consistency checks from counters: the computation behind ``teal estimate``
and ``teal check``.

Entry points: :func:`measured_on` (load network and counters), :func:`estimate`, :func:`check`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from teal.errors import InputError
from teal.formats import load_traffic, topology_from
from teal.network import Topology, TrafficMatrices, all_pairs
from teal.network.ecmp import EcmpDag
from teal.network.rates import ArrayRates
from teal.runtime.arrays import FloatArray, IntArray
from teal.runtime.interrupts import Interrupted, interrupts_wait
from teal.runtime.progress import progress_bar
from teal.runtime.storage import json_value
from teal_ip.counters.check import Checker
from teal_ip.counters.estimator import Estimator
from teal_ip.counters.expected_error import expected_error
from teal_ip.counters.flow_records import Prefixes, load_flows
from teal_ip.counters.named import NamedCounter, NamedCounters
from teal_ip.counters.repair import believed
from teal_ip.counters.settings import CheckOptions, CounterOptions, EstimateOptions
from teal_ip.readings.files import interfaces_of, load_counters
from teal_ip.readings.readings import Counters
from teal_ip.routing.igp import load_igp
from teal_ip.routing.simulate import measurements_of

# Maximum number of counters that the summary names.
_MAX_SUSPECTS = 5
# Unexplained share of the counters above which the routing is doubted.
_UNEXPLAINED = 0.25
# Minimum time between two saves of the results so far, seconds.
_SAVE_EVERY_S = 10.0
# Maximum share of the run time spent on saving: after a slow save the next one waits longer.
_SAVE_SHARE = 0.05
# Ratio of the matrices' errors at the counters below which the other interval labels are suggested.
_BETTER_FIT = 0.7


@dataclasses.dataclass(frozen=True, kw_only=True)
class EstimatedInterval:
    """Summary of the estimate of one interval.

    Attributes:
        timestamp: end of the interval, or its start under ``--labels start``.
        total: Gbit/s of all demands.
        prior: source of the prior: history, tracked or gravity.
        dispersion: Gbit/s, variance over mean of the prior's error.
        unexplained: sum of the residuals' magnitudes over that of the counters.
        blamed: number of counters that repair replaced.
        missing: number of counters that were not measured.
        error: sum of abs(estimate - truth) over the truth, NMAE; NaN without the truth.
        covered: share of the demands whose interval holds the truth; NaN without.
        covered_volume: share of the true traffic in these demands; NaN without.
    """

    timestamp: str
    total: float
    prior: str
    dispersion: float
    unexplained: float
    blamed: int
    missing: int
    error: float
    covered: float
    covered_volume: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckedInterval:
    """Result of the consistency check of one interval.

    Attributes:
        timestamp: end of the interval, or its start under ``--labels start``.
        statistic: T of :mod:`teal_ip.counters.check`.
        mean_statistic: mean of T over the window.
        limit: limit of the mean statistic above which the alarm is raised.
        alarm: whether the alarm is raised.
        disagreeing: share of links whose two ends disagree.
        blamed: number of counters that are named.
        suspects: the most suspicious names.
        unit: a mistaken unit that would explain the deviation.
    """

    timestamp: str
    statistic: float
    mean_statistic: float
    limit: float
    alarm: bool
    disagreeing: float
    blamed: int
    suspects: str
    unit: str


class CheckRun(NamedTuple):
    """Result of a consistency check.

    Attributes:
        intervals: one record per interval.
        named: counters that contradict the others, those of most intervals first.
    """

    intervals: list[CheckedInterval]
    named: list[NamedCounter]

    @property
    def alarms(self) -> list[CheckedInterval]:
        """The intervals with an alarm."""
        return [row for row in self.intervals if row.alarm]

    def describe(self) -> str:
        """Summarise the alarms, and the counters that contradict the others most often."""
        num_intervals = len(self.intervals)
        lines = [
            f"{len(self.alarms):,} of {num_intervals:,} intervals raise an alarm: "
            "counters, matrix and topology disagree"
            if self.alarms
            else f"none of {num_intervals:,} intervals raises an alarm"
        ]
        if self.named:
            worst_counters = [
                f"{one.interface} of {one.router} ({one.kind}, {100 * one.share:.3g}% of the "
                "intervals)"
                for one in self.named[:_MAX_SUSPECTS]
            ]
            lines.append(
                f"counters that contradict the others most often: {'; '.join(worst_counters)}"
            )
        return "\n".join(lines)

    def to_frame(self) -> Any:
        """Return a pandas frame with a row for each interval."""
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(row) for row in self.intervals])


@dataclasses.dataclass(frozen=True, eq=False)
class EstimateRun:
    """Estimated traffic matrices of all intervals.

    Attributes:
        topology: the network.
        traffic: the estimated matrices.
        lower: (T, D) lower ends of the prediction intervals, Gbit/s; NaN without history.
        upper: (T, D) upper ends of the prediction intervals, Gbit/s; NaN without history.
        intervals: one record per interval.
        residual: (E,) mean of counted less explained traffic of the links, Gbit/s.
        truth: (T, D) true matrices, Gbit/s; None if not given.
        labels: end or start: the meaning of the intervals' timestamps.
        expected_error: expected NMAE of the first matrix without a history; NaN with one.
        checked: check of the matrices against the counters; None before the end, and without
            traffic.
    """

    topology: Topology
    traffic: TrafficMatrices
    lower: FloatArray
    upper: FloatArray
    intervals: list[EstimatedInterval]
    residual: FloatArray
    truth: FloatArray | None
    labels: str
    expected_error: float = math.nan
    checked: CheckRun | None = None

    def __repr__(self) -> str:
        """Summarise the run in a few lines."""
        return self.describe()

    def to_frame(self) -> Any:
        """Return a pandas frame with a row for each interval."""
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(one) for one in self.intervals])

    def to_json(self) -> dict[str, Any]:
        """Means over the intervals and a record for each, as JSON values; numbers that JSON lacks
        become null.
        """
        means = {
            name: float(np.mean([getattr(one, name) for one in self.intervals]))
            for name in ("total", "unexplained", "error", "covered", "covered_volume")
        }
        scalars: dict[str, Any] = {"expected_error": self.expected_error, "labels": self.labels}
        if self.checked is not None:
            scalars["alarms"] = len(self.checked.alarms)
            scalars["counters"] = self.checked.named
        return dict(json_value({**means, **scalars, "intervals": self.intervals}))

    def describe(self) -> str:
        """Summarise the run in a few lines."""
        rows = self.intervals
        lines = [
            f"{len(rows):,} matrices of {self.traffic.num_demands:,} demands, "
            f"{rows[0].timestamp} to {rows[-1].timestamp} ({self.labels} of the intervals); "
            f"{np.mean([one.total for one in rows]):.6g} Gbit/s on average",
            "unexplained by the matrices: "
            f"{100 * np.mean([one.unexplained for one in rows]):.2f}% of what was counted; "
            f"{sum(one.blamed for one in rows):,} readings replaced, "
            f"{sum(one.missing for one in rows):,} missing",
        ]
        if not math.isnan(self.expected_error):
            lines.append(
                "without a history, from the part of the counters that gravity does not explain: a "
                f"matrix has an error (NMAE) of about {self.expected_error:.1g}, so single demands "
                "are not known; loads after the failure of a cable, which are sums of many, are "
                "mostly within 3% of themselves (docs/counters.md)"
            )
        if self.truth is not None:
            covered, volume = (
                np.mean([getattr(one, name) for one in rows])
                for name in ("covered", "covered_volume")
            )
            coverage = (
                f"; intervals hold {100 * covered:.1f}% of the demands and {100 * volume:.1f}% of "
                "the traffic"
            )
            coverage = "" if math.isnan(covered) else coverage
            lines.append(
                f"error (NMAE) {np.mean([one.error for one in rows]):.4f} "
                f"against the truth{coverage}"
            )
        if self.checked is not None and self.checked.intervals:
            lines += self.checked.describe().splitlines()
        return "\n".join(lines)


class Measured(NamedTuple):
    """A network and its interface counters.

    Attributes:
        topology: the network as its routers use it.
        dag: its shortest paths.
        counters: interface counters.
    """

    topology: Topology
    dag: EcmpDag
    counters: Counters


def measured_on(
    topology: Any, counters: Any, options: CounterOptions, notify: Callable[[str], None]
) -> Measured:
    """Load network and counters from objects or files.

    Args:
        topology: a Topology, a networkx graph, a file or a name.
        counters: Counters, a pandas frame of readings, or a file.
        options: file options and current metrics.
        notify: called with notes.

    Raises:
        InputError: invalid input.
    """
    network = topology_from(topology, options)
    for note in network.notes:
        notify(note)
    network, dag = load_igp(options, network, notify)
    loaded = (
        counters
        if isinstance(counters, Counters)
        else load_counters(
            counters,
            network,
            interfaces=options.interfaces,
            unit=options.counter_unit,
            interval_s=options.interval,
            ignore=options.ignore_interfaces,
        )
    )
    loaded.check(network)
    for note in loaded.notes:
        notify(note)
    if options.labels == "start":
        loaded = dataclasses.replace(
            loaded, timestamps=loaded.timestamps - _interval_length(loaded)
        )
    return Measured(network, dag, loaded)


def _interval_length(counters: Counters) -> np.timedelta64:
    """Length of an interval."""
    return np.timedelta64(round(counters.interval_s), "s")


def _other_labels(
    config: CounterOptions, counters: Counters, matrices: TrafficMatrices, f: sp.csr_array
) -> str:
    """Return a hint if measured matrices fit the counters better with the other interval labels;
    else "".

    Args:
        config: settings.
        counters: counters, labelled as in the settings.
        matrices: measured matrices of the same times.
        f: (E + 2 N, D) measurement matrix over the pairs of the matrices.
    """
    other, shift = (
        ("start", -_interval_length(counters))
        if config.labels == "end"
        else ("end", _interval_length(counters))
    )
    errors: tuple[list[FloatArray], list[FloatArray]] = [], []
    for values, timestamp in zip(counters.values, counters.timestamps, strict=True):
        is_counted = np.nan_to_num(values) > 0
        candidates = [
            _matrix_at(matrices, time, matrices.pairs) for time in (timestamp, timestamp + shift)
        ]
        for label_errors, matrix in zip(errors, candidates, strict=True):
            if (
                matrix is not None
                and is_counted.any()
                and all(one is not None for one in candidates)
            ):
                label_errors.append(np.abs(f @ matrix - values)[is_counted] / values[is_counted])
    current_error, other_error = (
        float(np.median(np.concatenate(label_lists))) if label_lists else 0.0
        for label_lists in errors
    )
    if not other_error < _BETTER_FIT * current_error:
        return ""
    return (
        f"matrices labelled by the {other} of their intervals would fit the counters better (error "
        f"{100 * other_error:.2g}% for {100 * current_error:.2g}%): --labels {other}?"
    )


def estimate(
    measured: Measured,
    config: EstimateOptions,
    notify: Callable[[str], None] = lambda _: None,
    save: Callable[[EstimateRun], None] = lambda _: None,
) -> EstimateRun:
    """Estimate the matrices of all intervals and check them against the counters.

    Args:
        measured: network and counters.
        config: settings, with history, measured flows and truth.
        notify: called with notes.
        save: called every ten seconds, and when the run is interrupted, with the intervals so far.

    Raises:
        InputError: invalid input.
        KeyboardInterrupt: Ctrl-C or SIGTERM, after the current interval.
    """
    # Load history, flows and truth.
    topology, dag, counters = measured
    history = (
        load_traffic(config.history, topology, unit=config.traffic_unit) if config.history else None
    )
    pairs = all_pairs(topology) if history is None else history.pairs
    flows = _flows(config, topology, counters, notify) if config.flows else None
    truth = load_traffic(config.truth, topology, unit=config.traffic_unit) if config.truth else None
    past_matrices = None if history is None else history.read(slice(None))
    # Estimator, calibrated on the history.
    estimator = Estimator(
        pairs,
        topology.num_nodes,
        history=past_matrices,
        relative=config.counter_error,
        level=config.level,
        tracking=config.tracking,
    )
    measurements_for = partial(measurements_of, config.policies, dag)
    measurements = measurements_for(pairs)
    estimator.route(measurements)
    if past_matrices is not None:
        notify(f"{len(past_matrices):,} past matrices: intervals from the second half of them")
        estimator.calibrate()
    # Results.
    num_intervals = counters.num_intervals
    matrices, lower, upper = (np.zeros((num_intervals, len(pairs))) for _ in range(3))
    known_truth = None if truth is None else np.full((num_intervals, len(pairs)), np.nan)
    residual = np.zeros(topology.num_links)
    rows = list[EstimatedInterval]()
    values = counters.values
    expected_nmae = math.nan

    def so_far() -> EstimateRun:
        done = slice(len(rows))
        traffic = TrafficMatrices(
            "estimate",
            pairs,
            counters.timestamps[done],
            ArrayRates(matrices[done]),
            round(counters.interval_s),
        )
        return EstimateRun(
            topology,
            traffic,
            lower[done],
            upper[done],
            rows,
            residual / max(1, len(rows)),
            None if known_truth is None else known_truth[done],
            config.labels,
            expected_nmae,
        )

    for t in _intervals_with_saves(num_intervals, lambda: save(so_far())):
        # Repair the counters.
        y = values[t]
        blamed = 0
        if not config.no_repair:
            y, fixed = believed(estimator, topology, counters.at(t), config.counter_error)
            blamed = fixed.num_blamed
        # Estimate the matrix.
        if not np.nansum(y) > 0:
            interval_estimate = None
        else:
            known_flows = _matrix_at(flows, counters.timestamps[t], pairs)
            if past_matrices is None and not estimator.knows_traffic:
                expected_nmae = expected_error(
                    measurements, topology.num_links, pairs, y, config.counter_error
                )
            interval_estimate = estimator.estimate(
                y, flows=known_flows, robust=not config.no_repair
            )
            matrices[t] = interval_estimate.matrix
            lower[t] = interval_estimate.lower
            upper[t] = interval_estimate.upper
            residual += np.nan_to_num(interval_estimate.residual[: topology.num_links])
        # Compare with the truth.
        error = covered = covered_volume = math.nan
        true_matrix = _matrix_at(truth, counters.timestamps[t], pairs)
        if (
            known_truth is not None
            and true_matrix is not None
            and np.isfinite(true_matrix).any()
            and interval_estimate is not None
        ):
            true_matrix = np.nan_to_num(true_matrix)
            known_truth[t] = true_matrix
            error = float(
                np.abs(matrices[t] - true_matrix).sum() / max(float(true_matrix.sum()), 1e-300)
            )
            if past_matrices is not None:
                is_held = (true_matrix >= lower[t]) & (true_matrix <= upper[t])
                covered = float(is_held.mean())
                covered_volume = float(true_matrix[is_held].sum() / max(true_matrix.sum(), 1e-300))
        rows.append(
            EstimatedInterval(
                timestamp=str(counters.timestamps[t]),
                total=float(matrices[t].sum()),
                prior="" if interval_estimate is None else interval_estimate.prior,
                dispersion=0.0 if interval_estimate is None else interval_estimate.dispersion,
                unexplained=0.0 if interval_estimate is None else interval_estimate.unexplained,
                blamed=blamed,
                missing=int(np.isnan(values[t]).sum()),
                error=error,
                covered=covered,
                covered_volume=covered_volume,
            )
        )
    # Hints, and the consistency check.
    unexplained = float(np.mean([one.unexplained for one in rows]))
    if unexplained > _UNEXPLAINED:
        notify(
            f"no matrix explains {100 * unexplained:.0f}% of what was counted under this routing: "
            "are metrics, failed links and the units of the counters those of the network?"
        )
    if truth is not None and (
        note := _other_labels(config, counters, truth, measurements_for(truth.pairs))
    ):
        notify(f"--truth: {note}")
    run = so_far()
    calibration_matrices = run.traffic if history is None else history
    # The alarm is calibrated on matrices with traffic.
    if not calibration_matrices.mean().sum() > 0:
        return run
    checked = check_matrices(measured, run.traffic, history, CheckOptions(), config, notify)
    return dataclasses.replace(run, checked=checked)


def _intervals_with_saves(num_intervals: int, save: Callable[[], None]) -> Iterator[int]:
    """Yield the indices of all intervals; call ``save`` from time to time and on interruption."""
    with interrupts_wait() as stop_if_requested:
        next_save = time.monotonic() + _SAVE_EVERY_S
        for t in progress_bar(range(num_intervals), desc="estimating", unit="interval"):
            yield t
            try:
                stop_if_requested()
            except Interrupted:
                save()
                raise
            if (begin := time.monotonic()) >= next_save:
                save()
                end = time.monotonic()
                next_save = end + max(_SAVE_EVERY_S, (end - begin) / _SAVE_SHARE)


def _flows(
    config: EstimateOptions, topology: Topology, counters: Counters, notify: Callable[[str], None]
) -> TrafficMatrices:
    """Load measured demands from a traffic file or from flow records."""
    if config.prefixes is None:
        return _require_common_times(
            load_traffic(config.flows, topology, unit=config.traffic_unit), counters
        )
    records = load_flows(
        Path(config.flows),
        topology,
        Prefixes.load(config.prefixes, topology),
        interval_s=counters.interval_s,
        sampling=config.sampling,
        exporters=config.exporters,
    )
    for note in records.notes:
        notify(f"{config.flows}: {note}")
    # Labelled by the ends of intervals.
    flows = records.traffic
    if config.labels == "start":
        flows = dataclasses.replace(flows, timestamps=flows.timestamps - _interval_length(counters))
    return _require_common_times(flows, counters)


def _require_common_times(flows: TrafficMatrices, counters: Counters) -> TrafficMatrices:
    """Return the flows; raise InputError if none is of an interval of the counters."""
    if not np.isin(flows.timestamps, counters.timestamps).any():
        times = (
            f"{counters.timestamps[0]} to {counters.timestamps[-1]}, every {counters.interval_s:g} "
            "s"
        )
        raise InputError(
            "--flows", "times", f"those of the counters, {times}", f"{flows.timestamps[0]}, ..."
        )
    return flows


def check(
    measured: Measured, traffic: Any, config: CheckOptions, notify: Callable[[str], None]
) -> CheckRun:
    """Check counters and matrices against each other, for every interval with a matrix.

    Args:
        measured: network and counters.
        traffic: the matrices: TrafficMatrices, a pandas frame, a file or a name.
        config: settings, with the trusted matrices and the alarm.
        notify: called with notes.

    Raises:
        InputError: invalid settings or files, or no matrix with a timestamp of the counters.
    """
    matrices = load_traffic(traffic, measured.topology, unit=config.traffic_unit)
    history = (
        load_traffic(config.history, measured.topology, unit=config.traffic_unit)
        if config.history
        else None
    )
    run = check_matrices(measured, matrices, history, config, config, notify)
    if not run.intervals:
        stamps = measured.counters.timestamps
        raise InputError(
            "--traffic",
            "timestamps",
            f"matrices of the times of the counters, {stamps[0]} to {stamps[-1]}",
            "none of them",
        )
    return run


def check_matrices(
    measured: Measured,
    traffic: TrafficMatrices,
    history: TrafficMatrices | None,
    alarm: CheckOptions,
    config: CounterOptions,
    notify: Callable[[str], None],
) -> CheckRun:
    """Check every interval with a matrix; the result is empty if no timestamps match.

    Args:
        measured: network and counters.
        traffic: the matrices.
        history: past trusted matrices, which calibrate the alarm; None for ``traffic``.
        alarm: settings of the alarm: window and seed.
        config: settings of the counters.
        notify: called with notes.
    """
    # Calibrate the alarm.
    topology, dag, counters = measured
    believed_matrices = traffic if history is None else history
    pairs = traffic.pairs
    measurements = measurements_of(config.policies, dag, pairs)
    checker = Checker(
        topology, pairs, measurements, relative=config.counter_error, window=alarm.window
    )
    notify(f"calibrating the alarm on {believed_matrices.num_matrices:,} matrices")
    checker.calibrate(_all_over(believed_matrices, pairs), seed=alarm.seed)
    # Check all intervals.
    rows = list[CheckedInterval]()
    named = NamedCounters(topology)
    for t in progress_bar(range(counters.num_intervals), desc="checking", unit="interval"):
        matrix = (
            traffic.read([0])[0]
            if traffic.num_matrices == 1
            else _matrix_at(traffic, counters.timestamps[t], pairs)
        )
        if matrix is None or not np.isfinite(matrix).all():
            continue
        result = checker.check(counters.at(t), matrix)
        named.add(counters.at(t), result.repaired)
        rows.append(
            CheckedInterval(
                timestamp=str(counters.timestamps[t]),
                statistic=result.statistic,
                mean_statistic=result.mean_statistic,
                limit=result.limit,
                alarm=result.alarm,
                disagreeing=result.disagreeing,
                blamed=result.repaired.num_blamed,
                suspects="; ".join(result.suspects[:8]),
                unit=result.unit,
            )
        )
    # Hint at mistaken labels.
    if any(row.alarm for row in rows) and (
        note := _other_labels(config, counters, traffic, measurements)
    ):
        notify(note)
        rows = [
            dataclasses.replace(row, suspects="; ".join(filter(None, (note, row.suspects))))
            if row.alarm
            else row
            for row in rows
        ]
    interfaces = (
        ({}, {}) if config.interfaces is None else interfaces_of(config.interfaces, topology)
    )
    return CheckRun(rows, named.rows(*interfaces))


def _matrix_at(
    traffic: TrafficMatrices | None, time: np.datetime64, pairs: IntArray
) -> FloatArray | None:
    """Matrix (D,) of a timestamp over other pairs, NaN for demands that the traffic lacks; None if
    there is no matrix.
    """
    if traffic is None:
        return None
    row = int(np.searchsorted(traffic.timestamps, time))
    if row >= traffic.num_matrices or traffic.timestamps[row] != time:
        return None
    return _rates_over(traffic, traffic.read([row]), pairs)[0]


def _all_over(traffic: TrafficMatrices, pairs: IntArray) -> FloatArray:
    """All matrices (T, D) over other pairs, 0 for demands that the traffic lacks."""
    return np.nan_to_num(_rates_over(traffic, traffic.read(slice(None)), pairs))


def _rates_over(traffic: TrafficMatrices, rates: FloatArray, pairs: IntArray) -> FloatArray:
    if np.array_equal(traffic.pairs, pairs):
        return rates
    index_by_pair = {(int(s), int(t)): d for d, (s, t) in enumerate(traffic.pairs)}
    index = np.array([index_by_pair.get((int(s), int(t)), -1) for s, t in pairs])
    return np.where(index >= 0, rates[:, index], np.nan)


def save_intervals(path: Path, run: EstimateRun) -> None:
    """Write the prediction intervals to a .npz file: lower and upper (T, D), Gbit/s, in the order
    of matrices.npz.
    """
    from teal.runtime.storage import atomic_file

    with atomic_file(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, lower=run.lower, upper=run.upper)
