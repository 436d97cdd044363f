"""Traffic matrices and consistency checks from counters: the computation behind ``teal estimate``
and ``teal check``.

Entry points: :func:`measured_on` (load network and counters), :func:`estimate`, :func:`check`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
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
from teal_ip.counters.check import Check, Checker
from teal_ip.counters.estimator import Estimate, Estimator
from teal_ip.counters.expected_error import expected_error
from teal_ip.counters.flow_records import Prefixes, load_flows
from teal_ip.counters.named import NamedCounter, NamedCounters
from teal_ip.counters.repair import repaired_values
from teal_ip.counters.settings import CheckOptions, CounterOptions, EstimateOptions
from teal_ip.readings.files import interfaces_of, load_counters
from teal_ip.readings.readings import Counters
from teal_ip.routing.igp import load_igp
from teal_ip.routing.simulate import measurements_of

# Maximum number of counters named in the summary.
_MAX_NAMED_COUNTERS = 5
# Unexplained share of the counters above which a note says that routing or units may be wrong.
_MAX_UNEXPLAINED = 0.25
# Minimum time between two saves of the results so far, seconds.
_MIN_SAVE_INTERVAL_S = 10.0
# Maximum share of the run time spent on saves: a slow save delays the next one.
_MAX_SAVE_SHARE = 0.05
# Ratio of the errors at the counters under the other and the current interval labels, below which
# the other labels are suggested.
_MAX_ERROR_RATIO = 0.7


@dataclasses.dataclass(frozen=True, kw_only=True)
class EstimatedInterval:
    """Record of the estimate of one interval.

    Attributes:
        timestamp: end of the interval, or its start under ``--labels start``.
        total: sum of all demands, Gbit/s.
        prior: source of the prior: history, tracked or gravity.
        dispersion: variance over mean of the prior's error, Gbit/s.
        unexplained: sum of abs(counter - load of the matrix) over the sum of the counters.
        blamed: number of counters that were found wrong and replaced (repair).
        missing: number of counters that were not measured.
        error: NMAE, sum of abs(estimate - truth) over the sum of the truth; NaN without truth.
        covered: share of the demands whose prediction interval contains the truth; NaN without
            truth or intervals.
        covered_volume: share of the true traffic in the covered demands; NaN without truth or
            intervals.
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
        statistic: T, mean of min(z^2, 9) over all links, ingress and egress, with the relative
            difference z of matrix and repaired counter, in units of 2%.
        mean_statistic: mean of T over the last intervals (window).
        limit: limit of the mean statistic above which the alarm is raised.
        alarm: whether the alarm is raised.
        disagreeing: share of links whose two counters disagree.
        blamed: number of counters that were found wrong and replaced (repair).
        suspects: names of suspicious links, routers and counters, the most suspicious first.
        unit: hint at a mistaken unit; "" for none.
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
        named: interfaces with counters that contradict the others, the most frequent first.
    """

    intervals: list[CheckedInterval]
    named: list[NamedCounter]

    @property
    def alarms(self) -> list[CheckedInterval]:
        """Records of the intervals that raise an alarm."""
        return [row for row in self.intervals if row.alarm]

    def describe(self) -> str:
        """Return a summary: number of alarms, and the counters that contradict the others most
        often.
        """
        num_intervals = len(self.intervals)
        lines = [
            f"{len(self.alarms):,} of {num_intervals:,} intervals raise an alarm: "
            "counters, matrix and topology are inconsistent"
            if self.alarms
            else f"no alarm in {num_intervals:,} intervals"
        ]
        if self.named:
            worst_counters = [
                f"{counter.interface} of {counter.router} ({counter.kind}, "
                f"{100 * counter.share:.3g}% of the intervals)"
                for counter in self.named[:_MAX_NAMED_COUNTERS]
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
        lower: (T, D) lower ends of the prediction intervals of each interval and demand, Gbit/s;
            NaN without history.
        upper: (T, D) upper ends, Gbit/s; NaN without history.
        intervals: one record per interval.
        residual: (E,) counter of each link minus its load under the matrix, mean over the
            intervals, Gbit/s.
        truth: (T, D) true matrices, Gbit/s; None if not given.
        labels: ``end`` or ``start``: the point of the interval that a timestamp is.
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
        """Return a summary in a few lines: traffic, unexplained counters, errors, and alarms."""
        return self.describe()

    def to_frame(self) -> Any:
        """Return a pandas frame with a row for each interval."""
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(row) for row in self.intervals])

    def to_json(self) -> dict[str, Any]:
        """Return means over the intervals, and a record of each, as JSON values; NaN becomes
        null.
        """
        means = {
            name: float(np.mean([getattr(row, name) for row in self.intervals]))
            for name in ("total", "unexplained", "error", "covered", "covered_volume")
        }
        scalars: dict[str, Any] = {"expected_error": self.expected_error, "labels": self.labels}
        if self.checked is not None:
            scalars["alarms"] = len(self.checked.alarms)
            scalars["counters"] = self.checked.named
        return dict(json_value({**means, **scalars, "intervals": self.intervals}))

    def describe(self) -> str:
        """Return a summary: traffic, unexplained counters, errors against the truth, and alarms."""
        # Traffic, and how well the matrices explain the counters.
        rows = self.intervals
        lines = [
            f"{len(rows):,} matrices of {self.traffic.num_demands:,} demands, "
            f"{rows[0].timestamp} to {rows[-1].timestamp} ({self.labels} of the intervals); "
            f"{np.mean([row.total for row in rows]):.6g} Gbit/s on average",
            "counted traffic that the matrices do not explain: "
            f"{100 * np.mean([row.unexplained for row in rows]):.2f}%; "
            f"{sum(row.blamed for row in rows):,} readings replaced, "
            f"{sum(row.missing for row in rows):,} missing",
        ]
        if not math.isnan(self.expected_error):
            lines.append(
                f"no history: expected error (NMAE) of a matrix {self.expected_error:.1g}, so "
                "single demands are unreliable; link loads after the failure of a cable, sums of "
                "many demands, are mostly within 3% (docs/counters.md)"
            )
        # Errors against the truth, and coverage of the prediction intervals; NaN if unknown.
        if self.truth is not None:
            covered, volume = (
                np.mean([getattr(row, name) for row in rows])
                for name in ("covered", "covered_volume")
            )
            coverage = (
                f"; prediction intervals contain {100 * covered:.1f}% of the demands and "
                f"{100 * volume:.1f}% of the traffic"
            )
            coverage = "" if math.isnan(covered) else coverage
            lines.append(
                f"error (NMAE) {np.mean([row.error for row in rows]):.4f} "
                f"against the truth{coverage}"
            )
        if self.checked is not None and self.checked.intervals:
            lines += self.checked.describe().splitlines()
        return "\n".join(lines)


class Measured(NamedTuple):
    """A network and its interface counters.

    Attributes:
        topology: the network, with current metrics and failed links.
        dag: shortest paths of the network.
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
        options: file options and IGP metrics.
        notify: called with notes on the input.

    Raises:
        InputError: invalid input.
    """
    # Network with its IGP.
    network = topology_from(topology, options)
    for note in network.notes:
        notify(note)
    network, dag = load_igp(options, network, notify)
    # Counters; their timestamps are the ends of intervals, and may be shifted to the starts.
    loaded_counters = (
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
    loaded_counters.check(network)
    for note in loaded_counters.notes:
        notify(note)
    if options.labels == "start":
        loaded_counters = dataclasses.replace(
            loaded_counters,
            timestamps=loaded_counters.timestamps - _interval_length(loaded_counters),
        )
    return Measured(network, dag, loaded_counters)


def _interval_length(counters: Counters) -> np.timedelta64:
    """Return the length of an interval, rounded to seconds."""
    return np.timedelta64(round(counters.interval_s), "s")


def _label_hint(
    config: CounterOptions,
    counters: Counters,
    matrices: TrafficMatrices,
    measurements: sp.csr_array,
) -> str:
    """Return a suggestion if timestamps of matrices seem to be the other end of the interval, else
    "".

    The errors at the counters are compared between both labels.

    Args:
        config: settings.
        counters: counters, labelled as in the settings.
        matrices: traffic matrices of the same times.
        measurements: (E + 2 N, D) measurement matrix over the pairs of the matrices.
    """
    other_labels, shift = (
        ("start", -_interval_length(counters))
        if config.labels == "end"
        else ("end", _interval_length(counters))
    )
    # Relative errors |F x - y| / y of matrices x at the counters y, under the current and the other
    # labels, in intervals with a matrix under both.
    errors: tuple[list[FloatArray], list[FloatArray]] = [], []
    for counter_values, timestamp in zip(counters.values, counters.timestamps, strict=True):
        is_counted = np.nan_to_num(counter_values) > 0
        label_matrices = [
            _matrix_of_time(matrices, time, matrices.pairs)
            for time in (timestamp, timestamp + shift)
        ]
        for label_errors, matrix in zip(errors, label_matrices, strict=True):
            if (
                matrix is not None
                and is_counted.any()
                and all(candidate is not None for candidate in label_matrices)
            ):
                label_errors.append(
                    np.abs(measurements @ matrix - counter_values)[is_counted]
                    / counter_values[is_counted]
                )
    # Median errors; 0 if no interval could be compared.
    current_error, other_error = (
        float(np.median(np.concatenate(error_arrays))) if error_arrays else 0.0
        for error_arrays in errors
    )
    if not other_error < _MAX_ERROR_RATIO * current_error:
        return ""
    return (
        f"the matrices fit the counters better if their timestamps are the {other_labels} of the "
        f"intervals (median error {100 * other_error:.2g}% instead of {100 * current_error:.2g}%): "
        f"--labels {other_labels}?"
    )


def estimate(
    measured: Measured,
    config: EstimateOptions,
    notify: Callable[[str], None] = lambda _: None,
    save: Callable[[EstimateRun], None] = lambda _: None,
) -> EstimateRun:
    """Estimate the traffic matrix of each interval, and check the matrices against the counters.

    Args:
        measured: network and counters.
        config: settings, with history, measured demands and truth.
        notify: called with notes and progress.
        save: called with the intervals so far every ten seconds, and when the run is interrupted.

    Raises:
        InputError: invalid input.
        KeyboardInterrupt: Ctrl-C or SIGTERM, after the current interval.
    """
    # Load history, measured demands and truth.  ``pairs`` (D, 2) are source and target of each
    # demand.
    topology, dag, counters = measured
    history = (
        load_traffic(config.history, topology, unit=config.traffic_unit) if config.history else None
    )
    pairs = all_pairs(topology) if history is None else history.pairs
    flow_matrices = (
        _load_measured_demands(config, topology, counters, notify) if config.flows else None
    )
    truth = load_traffic(config.truth, topology, unit=config.traffic_unit) if config.truth else None
    past_matrices = None if history is None else history.read(slice(None))
    # Calibrate the estimator on the history.
    measurements = measurements_of(config.policies, dag, pairs)
    estimator = _calibrated_estimator(config, topology, pairs, measurements, past_matrices, notify)
    # Estimate all intervals t; ``values`` (T, E + 2 N) are the counters, Gbit/s.
    recorder = _EstimateRecorder(topology, counters, pairs, config, has_truth=truth is not None)
    values = counters.values
    for t in _intervals_with_saves(counters.num_intervals, lambda: save(recorder.run())):
        # Repair the counters.
        counter_values = values[t]
        num_blamed = 0
        if not config.no_repair:
            counter_values, repair_result = repaired_values(
                estimator, topology, counters.at(t), config.counter_error
            )
            num_blamed = repair_result.num_blamed
        # Estimate the matrix.
        interval_estimate = None
        if np.nansum(counter_values) > 0:
            measured_demands = _matrix_of_time(flow_matrices, counters.timestamps[t], pairs)
            # The expected error is computed once, for the first matrix without past traffic.
            if past_matrices is None and not estimator.knows_traffic:
                recorder.expected_nmae = expected_error(
                    measurements, topology.num_links, pairs, counter_values, config.counter_error
                )
            interval_estimate = estimator.estimate(
                counter_values, flows=measured_demands, robust=not config.no_repair
            )
            recorder.set_matrix(t, interval_estimate)
        # Compare with the truth.
        comparison = _NO_COMPARISON
        true_matrix = _matrix_of_time(truth, counters.timestamps[t], pairs)
        if true_matrix is not None and interval_estimate is not None:
            comparison = recorder.compare(t, true_matrix, has_intervals=past_matrices is not None)
        recorder.add_row(t, interval_estimate, num_blamed, comparison)
    # Hint at wrong routing, units or labels; then check the matrices against the counters.
    _notify_unexplained(recorder.rows, notify)
    if truth is not None and (
        hint := _label_hint(
            config, counters, truth, measurements_of(config.policies, dag, truth.pairs)
        )
    ):
        notify(f"--truth: {hint}")
    run = recorder.run()
    calibration_matrices = run.traffic if history is None else history
    # Without traffic the alarm cannot be calibrated.
    if not calibration_matrices.mean().sum() > 0:
        return run
    check_run = check_matrices(measured, run.traffic, history, CheckOptions(), config, notify)
    return dataclasses.replace(run, checked=check_run)


def _calibrated_estimator(
    config: EstimateOptions,
    topology: Topology,
    pairs: IntArray,
    measurements: sp.csr_array,
    past_matrices: FloatArray | None,
    notify: Callable[[str], None],
) -> Estimator:
    """Return the estimator of a network, calibrated on past matrices.

    Args:
        config: settings.
        topology: the network.
        pairs: (D, 2) source and target of each demand.
        measurements: (E + 2 N, D) measurement matrix F.
        past_matrices: (T, D) past matrices, Gbit/s; None for none.
        notify: called with a note on the calibration.
    """
    estimator = Estimator(
        pairs,
        topology.num_nodes,
        history=past_matrices,
        relative=config.counter_error,
        level=config.level,
        tracking=config.tracking,
    )
    estimator.route(measurements)
    if past_matrices is not None:
        notify(f"calibrating prediction intervals on {len(past_matrices):,} past matrices")
        estimator.calibrate()
    return estimator


class _Comparison(NamedTuple):
    """Errors of an estimate against the truth.

    Attributes:
        error: NMAE, sum of abs(estimate - truth) over the sum of the truth.
        covered: share of the demands whose prediction interval contains the truth.
        covered_volume: share of the true traffic in these demands.
    """

    error: float
    covered: float
    covered_volume: float


_NO_COMPARISON = _Comparison(math.nan, math.nan, math.nan)


class _EstimateRecorder:
    """Recorder of the estimates of consecutive intervals.

    Args:
        topology: the network.
        counters: counters of all T intervals.
        pairs: (D, 2) source and target of each demand.
        config: settings.
        has_truth: whether true matrices are given.

    Attributes:
        rows: one record per interval.
        expected_nmae: expected error of the first matrix without a history; NaN with one.
    """

    def __init__(
        self,
        topology: Topology,
        counters: Counters,
        pairs: IntArray,
        config: EstimateOptions,
        *,
        has_truth: bool,
    ) -> None:
        shape = (counters.num_intervals, len(pairs))
        self.rows = list[EstimatedInterval]()
        self.expected_nmae = math.nan
        self._topology = topology
        self._counters = counters
        self._values = counters.values
        self._pairs = pairs
        self._labels = config.labels
        # (T, D) Gbit/s: estimates, ends of their prediction intervals, and true matrices; (E,) sum
        # of the residuals at the links.
        self._matrices, self._lower, self._upper = (np.zeros(shape) for _ in range(3))
        self._truth = np.full(shape, np.nan) if has_truth else None
        self._residual_sum = np.zeros(topology.num_links)

    def set_matrix(self, t: int, estimate: Estimate) -> None:
        """Store the estimate of interval t: matrix, prediction intervals, and residuals at the
        links.
        """
        self._matrices[t] = estimate.matrix
        self._lower[t] = estimate.lower
        self._upper[t] = estimate.upper
        self._residual_sum += np.nan_to_num(estimate.residual[: self._topology.num_links])

    def compare(self, t: int, true_matrix: FloatArray, *, has_intervals: bool) -> _Comparison:
        """Store the true matrix of interval t, and return the errors of the estimate.

        The errors are NaN if no demand of the truth is known.

        Args:
            t: index of the interval.
            true_matrix: (D,) Gbit/s; NaN for unknown demands, which count as 0.
            has_intervals: whether the prediction intervals are known, since past matrices were
                given.
        """
        assert self._truth is not None
        if not np.isfinite(true_matrix).any():
            return _NO_COMPARISON
        # NMAE of the estimate.
        true_matrix = np.nan_to_num(true_matrix)
        self._truth[t] = true_matrix
        error = float(
            np.abs(self._matrices[t] - true_matrix).sum() / max(float(true_matrix.sum()), 1e-300)
        )
        if not has_intervals:
            return _Comparison(error, math.nan, math.nan)
        # Coverage of the prediction intervals, by demands and by traffic.
        is_covered = (true_matrix >= self._lower[t]) & (true_matrix <= self._upper[t])
        covered_volume = true_matrix[is_covered].sum() / max(true_matrix.sum(), 1e-300)
        return _Comparison(error, float(is_covered.mean()), float(covered_volume))

    def add_row(
        self, t: int, estimate: Estimate | None, num_blamed: int, comparison: _Comparison
    ) -> None:
        """Append the record of interval t.

        Args:
            t: index of the interval.
            estimate: the estimate; None for an interval without traffic.
            num_blamed: number of counters that were found wrong and replaced.
            comparison: errors against the truth.
        """
        self.rows.append(
            EstimatedInterval(
                timestamp=str(self._counters.timestamps[t]),
                total=float(self._matrices[t].sum()),
                prior="" if estimate is None else estimate.prior,
                dispersion=0.0 if estimate is None else estimate.dispersion,
                unexplained=0.0 if estimate is None else estimate.unexplained,
                blamed=num_blamed,
                missing=int(np.isnan(self._values[t]).sum()),
                error=comparison.error,
                covered=comparison.covered,
                covered_volume=comparison.covered_volume,
            )
        )

    def run(self) -> EstimateRun:
        """Return the results of the intervals so far."""
        # The arrays have rows for all intervals; return those with a record.
        finished_rows = slice(len(self.rows))
        traffic = TrafficMatrices(
            "estimate",
            self._pairs,
            self._counters.timestamps[finished_rows],
            ArrayRates(self._matrices[finished_rows]),
            round(self._counters.interval_s),
        )
        return EstimateRun(
            self._topology,
            traffic,
            self._lower[finished_rows],
            self._upper[finished_rows],
            self.rows,
            self._residual_sum / max(1, len(self.rows)),
            None if self._truth is None else self._truth[finished_rows],
            self._labels,
            self.expected_nmae,
        )


def _notify_unexplained(rows: list[EstimatedInterval], notify: Callable[[str], None]) -> None:
    """Send a note if the matrices leave more than 25% of the counted traffic unexplained."""
    unexplained = float(np.mean([row.unexplained for row in rows]))
    if unexplained > _MAX_UNEXPLAINED:
        notify(
            f"no traffic matrix explains {100 * unexplained:.0f}% of the counted traffic under "
            "this routing; check the metrics, failed links and the units of the counters"
        )


def _intervals_with_saves(num_intervals: int, save: Callable[[], None]) -> Iterator[int]:
    """Yield the indices of all intervals, and save the results in between.

    Results are saved at most every ten seconds, and less often if a save is slow.  Ctrl-C or
    SIGTERM ends the iteration after the current interval, with a last save.

    Args:
        num_intervals: number of intervals.
        save: saves the results so far.

    Raises:
        Interrupted: Ctrl-C or SIGTERM.
    """
    with interrupts_wait() as stop_if_requested:
        next_save = time.monotonic() + _MIN_SAVE_INTERVAL_S
        for t in progress_bar(range(num_intervals), desc="estimating", unit="interval"):
            yield t
            try:
                stop_if_requested()
            except Interrupted:
                save()
                raise
            # Save if it is due; the next save follows after ten seconds, or after 20 times the
            # duration of this one.
            if (save_start := time.monotonic()) >= next_save:
                save()
                save_end = time.monotonic()
                next_save = save_end + max(
                    _MIN_SAVE_INTERVAL_S, (save_end - save_start) / _MAX_SAVE_SHARE
                )


def _load_measured_demands(
    config: EstimateOptions, topology: Topology, counters: Counters, notify: Callable[[str], None]
) -> TrafficMatrices:
    """Load measured demands from a traffic file, or from flow records if prefixes are given.

    Args:
        config: settings, with the file and the options of flow records.
        topology: the network.
        counters: counters, for the length and the times of intervals.
        notify: called with notes on excluded records.

    Raises:
        InputError: an invalid file, or no time in common with the counters.
    """
    # Without prefixes, the file has traffic matrices.
    if config.prefixes is None:
        return _require_common_times(
            load_traffic(config.flows, topology, unit=config.traffic_unit), counters
        )
    # With prefixes, it has flow records: aggregate them to the intervals of the counters.
    measured_flows = load_flows(
        Path(config.flows),
        topology,
        Prefixes.load(config.prefixes, topology),
        interval_s=counters.interval_s,
        sampling=config.sampling,
        exporters=config.exporters,
    )
    for note in measured_flows.notes:
        notify(f"{config.flows}: {note}")
    # Flow records are labelled by the ends of intervals.
    flows = measured_flows.traffic
    if config.labels == "start":
        flows = dataclasses.replace(flows, timestamps=flows.timestamps - _interval_length(counters))
    return _require_common_times(flows, counters)


def _require_common_times(flows: TrafficMatrices, counters: Counters) -> TrafficMatrices:
    """Return the measured demands unchanged; raise InputError if they share no time with the
    counters.
    """
    if not np.isin(flows.timestamps, counters.timestamps).any():
        raise InputError.invalid(
            "--flows",
            "times",
            f"no time is one of the counters ({counters.timestamps[0]} to "
            f"{counters.timestamps[-1]}, every {counters.interval_s:g} s); the first is "
            f"{flows.timestamps[0]}",
        )
    return flows


def check(
    measured: Measured, traffic: Any, config: CheckOptions, notify: Callable[[str], None]
) -> CheckRun:
    """Check counters and matrices against each other, in every interval with a matrix.

    Args:
        measured: network and counters.
        traffic: the matrices: TrafficMatrices, a pandas frame, a file or a name.
        config: settings, with trusted matrices and alarm.
        notify: called with notes and progress.

    Raises:
        InputError: invalid settings or files, or no matrix with a timestamp of the counters.
    """
    matrices = load_traffic(traffic, measured.topology, unit=config.traffic_unit)
    history = (
        load_traffic(config.history, measured.topology, unit=config.traffic_unit)
        if config.history
        else None
    )
    # ``config`` has both the settings of the alarm and those of the counters.
    run = check_matrices(measured, matrices, history, config, config, notify)
    if not run.intervals:
        stamps = measured.counters.timestamps
        raise InputError.invalid(
            "--traffic",
            "timestamps",
            f"no matrix has a timestamp of the counters, which span {stamps[0]} to {stamps[-1]}",
        )
    return run


def check_matrices(
    measured: Measured,
    traffic: TrafficMatrices,
    history: TrafficMatrices | None,
    alarm_settings: CheckOptions,
    counter_settings: CounterOptions,
    notify: Callable[[str], None],
) -> CheckRun:
    """Check the counters against matrices, in every interval with a matrix.

    The result is empty if no timestamps match.  A single matrix is used for all intervals.

    Args:
        measured: network and counters.
        traffic: the matrices.
        history: trusted matrices that calibrate the alarm; None to calibrate on ``traffic``.
        alarm_settings: settings of the alarm: window and seed.
        counter_settings: settings of the counters.
        notify: called with notes and progress.
    """
    # Calibrate the alarm.
    topology, dag, counters = measured
    trusted_matrices = traffic if history is None else history
    pairs = traffic.pairs
    measurements = measurements_of(counter_settings.policies, dag, pairs)
    checker = Checker(
        topology,
        pairs,
        measurements,
        relative=counter_settings.counter_error,
        window=alarm_settings.window,
    )
    notify(f"calibrating the alarm on {trusted_matrices.num_matrices:,} matrices")
    checker.calibrate(_all_matrices_over(trusted_matrices, pairs), seed=alarm_settings.seed)
    # Check all intervals.
    records = list[CheckedInterval]()
    blamed_counters = NamedCounters(topology)
    for t in progress_bar(range(counters.num_intervals), desc="checking", unit="interval"):
        # Skip intervals without a matrix, or with unknown demands.
        matrix = (
            traffic.read([0])[0]
            if traffic.num_matrices == 1
            else _matrix_of_time(traffic, counters.timestamps[t], pairs)
        )
        if matrix is None or not np.isfinite(matrix).all():
            continue
        interval_check = checker.check(counters.at(t), matrix)
        blamed_counters.add(counters.at(t), interval_check.repaired)
        records.append(_checked_interval(str(counters.timestamps[t]), interval_check))
    # If wrong interval labels may be the cause of alarms, say so, also among the suspects.
    if any(row.alarm for row in records) and (
        hint := _label_hint(counter_settings, counters, traffic, measurements)
    ):
        notify(hint)
        records = [
            dataclasses.replace(row, suspects="; ".join(filter(None, (hint, row.suspects))))
            if row.alarm
            else row
            for row in records
        ]
    # Name the interfaces whose counters contradict the others.
    interface_names = (
        ({}, {})
        if counter_settings.interfaces is None
        else interfaces_of(counter_settings.interfaces, topology)
    )
    return CheckRun(records, blamed_counters.rows(*interface_names))


def _checked_interval(timestamp: str, result: Check) -> CheckedInterval:
    """Return the record of a checked interval, with its first eight suspects."""
    return CheckedInterval(
        timestamp=timestamp,
        statistic=result.statistic,
        mean_statistic=result.mean_statistic,
        limit=result.limit,
        alarm=result.alarm,
        disagreeing=result.disagreeing,
        blamed=result.repaired.num_blamed,
        suspects="; ".join(result.suspects[:8]),
        unit=result.unit,
    )


def _matrix_of_time(
    traffic: TrafficMatrices | None, time: np.datetime64, pairs: IntArray
) -> FloatArray | None:
    """Return the matrix of a timestamp, with the demands of ``pairs``; None if there is none.

    Args:
        traffic: the matrices; None for none.
        time: timestamp of the matrix.
        pairs: (D, 2) source and target of each demand of the result.

    Returns:
        (D,) Gbit/s; NaN for pairs without a demand in the traffic.
    """
    if traffic is None:
        return None
    # Find the row of the timestamp; timestamps increase.
    row = int(np.searchsorted(traffic.timestamps, time))
    if row >= traffic.num_matrices or traffic.timestamps[row] != time:
        return None
    return _rates_over(traffic, traffic.read([row]), pairs)[0]


def _all_matrices_over(traffic: TrafficMatrices, pairs: IntArray) -> FloatArray:
    """Return all T matrices, with the demands of ``pairs`` (D, 2) as columns.

    Returns:
        (T, D) Gbit/s; 0 for pairs without a demand in the traffic.
    """
    return np.nan_to_num(_rates_over(traffic, traffic.read(slice(None)), pairs))


def _rates_over(traffic: TrafficMatrices, rates: FloatArray, pairs: IntArray) -> FloatArray:
    """Return rates of demands with the demands of ``pairs`` as columns.

    Args:
        traffic: matrices, for source and target of each of their demands.
        rates: (B, demands of ``traffic``) Gbit/s in B intervals.
        pairs: (D, 2) source and target of each demand of the result.

    Returns:
        (B, D) Gbit/s; NaN for pairs without a demand in the traffic.
    """
    if np.array_equal(traffic.pairs, pairs):
        return rates
    # Column of each pair in the traffic; -1 for none.
    index_by_pair = {(int(s), int(t)): d for d, (s, t) in enumerate(traffic.pairs)}
    pair_columns = np.array([index_by_pair.get((int(s), int(t)), -1) for s, t in pairs])
    return np.where(pair_columns >= 0, rates[:, pair_columns], np.nan)


def save_intervals(path: Path, run: EstimateRun) -> None:
    """Write the prediction intervals to a .npz file.

    It has the arrays ``lower`` and ``upper`` (T, D), Gbit/s, with the intervals and demands of
    matrices.npz in the same order.
    """
    from teal.runtime.storage import atomic_file

    with atomic_file(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, lower=run.lower, upper=run.upper)
