"""From counters to matrices and verdicts: what `teal estimate` and `teal check` compute."""

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

_MAX_SUSPECTS = 5  # counters that are named in words
_UNEXPLAINED = 0.25  # share of what was counted, from which on the routing is doubted
_SAVE_EVERY_S = 10.0  # seconds between two saves of the results so far, at least
_SAVE_SHARE = (
    0.05  # of the run, at most, that goes into saving: after a slow save the next one waits longer
)
_BETTER_FIT = (
    0.7  # of the error of matrices at the counters, below which the other labels are the right ones
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EstimatedInterval:
    """One interval.

    Attributes:
        timestamp: end of the interval, or its start under ``--labels start``.
        total: Gbit/s of all demands.
        prior: what was expected before the counters were read: history, tracked or gravity.
        dispersion: Gbit/s, variance over mean of what the prior does not know.
        unexplained: sum of the residuals' magnitudes over that of the counters.
        blamed: number of counters that repair replaced.
        missing: number of counters that were not measured.
        error: sum of abs(estimate - truth) over the truth, NMAE; NaN without the truth.
        covered: share of the demands whose interval holds the truth; NaN without.
        covered_volume: the share of the true traffic that those demands have; NaN without.
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
    """The verdict on one interval.

    Attributes:
        timestamp: end of the interval, or its start under ``--labels start``.
        statistic: T of :mod:`teal_ip.counters.check`.
        mean_statistic: over the window.
        limit: above which there is an alarm.
        alarm: whether there is one.
        disagreeing: share of links whose two ends disagree.
        blamed: number of counters that are named.
        suspects: the most suspicious names.
        unit: a mistaken unit that would explain it.
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
    """The result of a check.

    Attributes:
        intervals: a record each.
        named: all counters that contradict the others, those of most intervals first.
    """

    intervals: list[CheckedInterval]
    named: list[NamedCounter]

    @property
    def alarms(self) -> list[CheckedInterval]:
        """The intervals with an alarm."""
        return [row for row in self.intervals if row.alarm]

    def describe(self) -> str:
        """How many intervals raise an alarm, and the counters that contradict the others most
        often.
        """
        count = len(self.intervals)
        lines = [
            f"{len(self.alarms):,} of {count:,} intervals raise an alarm: counters, matrix and "
            "topology disagree"
            if self.alarms
            else f"none of {count:,} intervals raises an alarm"
        ]
        if self.named:
            most = [
                f"{one.interface} of {one.router} ({one.kind}, {100 * one.share:.3g}% of the "
                "intervals)"
                for one in self.named[:_MAX_SUSPECTS]
            ]
            lines.append(f"counters that contradict the others most often: {'; '.join(most)}")
        return "\n".join(lines)

    def to_frame(self) -> Any:
        """A pandas frame, a row for each interval."""
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(row) for row in self.intervals])


@dataclasses.dataclass(frozen=True, eq=False)
class EstimateRun:
    """All intervals.

    Attributes:
        topology: the network.
        traffic: the estimated matrices.
        lower: (T, D) Gbit/s, NaN without history.
        upper: (T, D) likewise.
        intervals: a record each.
        residual: (E,) mean of counted less explained, Gbit/s, of the links.
        truth: (T, D) Gbit/s; None if it was not given.
        labels: end or start, which the timestamps of the intervals are.
        expected_error: NMAE that the first matrix is expected to have without a history; NaN with
            one.
        checked: the matrices checked against the counters; None before the end, and without
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
        """The run in a few lines."""
        return self.describe()

    def to_frame(self) -> Any:
        """A pandas frame, a row for each interval."""
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(one) for one in self.intervals])

    def to_json(self) -> dict[str, Any]:
        """Means over the intervals, and a record of each; numbers that JSON cannot hold become
        null.
        """
        means = {
            name: float(np.mean([getattr(one, name) for one in self.intervals]))
            for name in ("total", "unexplained", "error", "covered", "covered_volume")
        }
        others: dict[str, Any] = {"expected_error": self.expected_error, "labels": self.labels}
        if self.checked is not None:
            others["alarms"] = len(self.checked.alarms)
            others["counters"] = self.checked.named
        return dict(json_value({**means, **others, "intervals": self.intervals}))

    def describe(self) -> str:
        """The run in a few lines."""
        rows = self.intervals
        lines = [
            f"{len(rows):,} matrices of {self.traffic.num_demands:,} demands, {rows[0].timestamp} "
            "to "
            f"{rows[-1].timestamp} ({self.labels} of the intervals); "
            f"{np.mean([one.total for one in rows]):.6g} Gbit/s "
            "on average",
            "what the matrices leave unexplained: "
            f"{100 * np.mean([one.unexplained for one in rows]):.2f}% of what was "
            f"counted; {sum(one.blamed for one in rows):,} readings replaced, "
            f"{sum(one.missing for one in rows):,} missing",
        ]
        if not math.isnan(self.expected_error):
            lines.append(
                "without a history, by what gravity leaves of the counters: a matrix has an error "
                "(NMAE) of about "
                f"{self.expected_error:.1g}, so single demands are not known; loads after the "
                "failure of a cable, "
                "which are sums of many, are mostly within 3% of themselves (docs/counters.md)"
            )
        if self.truth is not None:
            covered, volume = (
                np.mean([getattr(one, name) for one in rows])
                for name in ("covered", "covered_volume")
            )
            held = (
                f"; intervals hold {100 * covered:.1f}% of the demands and {100 * volume:.1f}% of "
                "the traffic"
            )
            held = "" if math.isnan(covered) else held
            lines.append(
                f"error (NMAE) {np.mean([one.error for one in rows]):.4f} against the truth{held}"
            )
        if self.checked is not None and self.checked.intervals:
            lines += self.checked.describe().splitlines()
        return "\n".join(lines)


class Measured(NamedTuple):
    """A network, and the counters of its interfaces.

    Attributes:
        topology: the network as its routers use it.
        dag: its shortest paths.
        counters: readings of its interfaces.
    """

    topology: Topology
    dag: EcmpDag
    counters: Counters


def measured_on(
    topology: Any, counters: Any, options: CounterOptions, notify: Callable[[str], None]
) -> Measured:
    """Network and counters, as they are or from files.

    Args:
        topology: a Topology, a networkx graph, a file or a name.
        counters: Counters, a pandas frame of readings, or a file.
        options: how files are read, and the metrics in force.
        notify: takes notes.

    Raises:
        InputError: a fault in what the user gave.
    """
    network = topology_from(topology, options)
    for note in network.notes:
        notify(note)
    network, dag = load_igp(options, network, notify)
    found = (
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
    found.check(network)
    for note in found.notes:
        notify(note)
    if options.labels == "start":
        found = dataclasses.replace(found, timestamps=found.timestamps - _step(found))
    return Measured(network, dag, found)


def _step(counters: Counters) -> np.timedelta64:
    """An interval."""
    return np.timedelta64(round(counters.interval_s), "s")


def _other_labels(
    config: CounterOptions, counters: Counters, matrices: TrafficMatrices, f: sp.csr_array
) -> str:
    """A sentence if measured matrices fit the counters better by the other end of their intervals;
    else nothing.

    Args:
        config: settings.
        counters: labelled by them.
        matrices: matrices of the same times.
        f: (E + 2 N, D) over the pairs of the matrices.
    """
    other, shift = (
        ("start", -_step(counters)) if config.labels == "end" else ("end", _step(counters))
    )
    errors: tuple[list[FloatArray], list[FloatArray]] = [], []
    for values, stamp in zip(counters.values, counters.timestamps, strict=True):
        counted = np.nan_to_num(values) > 0
        found = [_at(matrices, at, matrices.pairs) for at in (stamp, stamp + shift)]
        for of_labels, matrix in zip(errors, found, strict=True):
            if matrix is not None and counted.any() and all(one is not None for one in found):
                of_labels.append(np.abs(f @ matrix - values)[counted] / values[counted])
    own, better = (float(np.median(np.concatenate(parts))) if parts else 0.0 for parts in errors)
    if not better < _BETTER_FIT * own:
        return ""
    return (
        f"matrices labelled by the {other} of their intervals would fit the counters better (error "
        f"{100 * better:.2g}% "
        f"for {100 * own:.2g}%): --labels {other}?"
    )


def estimate(
    measured: Measured,
    config: EstimateOptions,
    notify: Callable[[str], None] = lambda _: None,
    keep: Callable[[EstimateRun], None] = lambda _: None,
) -> EstimateRun:
    """The matrices of all intervals, checked against the counters.

    Args:
        measured: network and counters.
        config: what is known besides.
        notify: takes notes.
        keep: called every ten seconds, and when the run is interrupted, with the intervals so far.

    Raises:
        InputError: a fault in what the user gave.
        KeyboardInterrupt: on Ctrl-C or SIGTERM, after the present interval.
    """
    topology, dag, counters = measured
    history = (
        load_traffic(config.history, topology, unit=config.traffic_unit) if config.history else None
    )
    pairs = all_pairs(topology) if history is None else history.pairs
    flows = _flows(config, topology, counters, notify) if config.flows else None
    truth = load_traffic(config.truth, topology, unit=config.traffic_unit) if config.truth else None
    past = None if history is None else history.read(slice(None))
    estimator = Estimator(
        pairs,
        topology.num_nodes,
        history=past,
        relative=config.counter_error,
        level=config.level,
        tracking=config.tracking,
    )
    links_of = partial(measurements_of, config.policies, dag)
    measurements = links_of(pairs)
    estimator.route(measurements)
    if past is not None:
        notify(f"{len(past):,} past matrices: intervals from the second half of them")
        estimator.calibrate()
    count = counters.num_intervals
    matrices, lower, upper = (np.zeros((count, len(pairs))) for _ in range(3))
    known_truth = None if truth is None else np.full((count, len(pairs)), np.nan)
    residual, rows = np.zeros(topology.num_links), list[EstimatedInterval]()
    values, expected = counters.values, math.nan

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
            expected,
        )

    for t in _keeping(count, lambda: keep(so_far())):
        y, blamed = values[t], 0
        if not config.no_repair:
            y, fixed = believed(estimator, topology, counters.at(t), config.counter_error)
            blamed = fixed.num_blamed
        if not np.nansum(y) > 0:
            found = None
        else:
            known_flows = _at(flows, counters.timestamps[t], pairs)
            if past is None and not estimator.knows_traffic:
                expected = expected_error(
                    measurements, topology.num_links, pairs, y, config.counter_error
                )
            found = estimator.estimate(y, flows=known_flows, robust=not config.no_repair)
            matrices[t], lower[t], upper[t] = found.matrix, found.lower, found.upper
            residual += np.nan_to_num(found.residual[: topology.num_links])
        error = covered = covered_volume = math.nan
        real = _at(truth, counters.timestamps[t], pairs)
        if (
            known_truth is not None
            and real is not None
            and np.isfinite(real).any()
            and found is not None
        ):
            real = np.nan_to_num(real)
            known_truth[t] = real
            error = float(np.abs(matrices[t] - real).sum() / max(float(real.sum()), 1e-300))
            if past is not None:
                is_held = (real >= lower[t]) & (real <= upper[t])
                covered, covered_volume = (
                    float(is_held.mean()),
                    float(real[is_held].sum() / max(real.sum(), 1e-300)),
                )
        rows.append(
            EstimatedInterval(
                timestamp=str(counters.timestamps[t]),
                total=float(matrices[t].sum()),
                prior="" if found is None else found.prior,
                dispersion=0.0 if found is None else found.dispersion,
                unexplained=0.0 if found is None else found.unexplained,
                blamed=blamed,
                missing=int(np.isnan(values[t]).sum()),
                error=error,
                covered=covered,
                covered_volume=covered_volume,
            )
        )
    unexplained = float(np.mean([one.unexplained for one in rows]))
    if unexplained > _UNEXPLAINED:
        notify(
            f"no matrix explains {100 * unexplained:.0f}% of what was counted under this routing: "
            "are metrics, failed "
            "links and the units of the counters those of the network?"
        )
    if truth is not None and (
        note := _other_labels(config, counters, truth, links_of(truth.pairs))
    ):
        notify(f"--truth: {note}")
    run = so_far()
    calibrating = run.traffic if history is None else history
    if not calibrating.mean().sum() > 0:  # an alarm is calibrated on matrices with traffic
        return run
    checked = check_matrices(measured, run.traffic, history, CheckOptions(), config, notify)
    return dataclasses.replace(run, checked=checked)


def _keeping(count: int, keep: Callable[[], None]) -> Iterator[int]:
    """The numbers of all intervals; what is done is kept now and then, and when the run is
    interrupted.
    """
    with interrupts_wait() as stop_if_requested:
        due = time.monotonic() + _SAVE_EVERY_S
        for t in progress_bar(range(count), desc="estimating", unit="interval"):
            yield t
            try:
                stop_if_requested()
            except Interrupted:
                keep()
                raise
            if (begin := time.monotonic()) >= due:
                keep()
                end = time.monotonic()
                due = end + max(_SAVE_EVERY_S, (end - begin) / _SAVE_SHARE)


def _flows(
    config: EstimateOptions, topology: Topology, counters: Counters, notify: Callable[[str], None]
) -> TrafficMatrices:
    """Measured demands, of a file of traffic or of flow records."""
    if config.prefixes is None:
        return _in_time(load_traffic(config.flows, topology, unit=config.traffic_unit), counters)
    found = load_flows(
        Path(config.flows),
        topology,
        Prefixes.load(config.prefixes, topology),
        interval_s=counters.interval_s,
        sampling=config.sampling,
        exporters=config.exporters,
    )
    for note in found.notes:
        notify(f"{config.flows}: {note}")
    flows = found.traffic  # by the ends of intervals
    if config.labels == "start":
        flows = dataclasses.replace(flows, timestamps=flows.timestamps - _step(counters))
    return _in_time(flows, counters)


def _in_time(flows: TrafficMatrices, counters: Counters) -> TrafficMatrices:
    """The flows; raises InputError if none is of an interval of the counters."""
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
    """Check counters and matrices against each other, for every interval that has a matrix.

    Args:
        measured: network and counters.
        traffic: the matrices: TrafficMatrices, a pandas frame, a file or a name.
        config: the matrices that are believed, and the alarm.
        notify: takes notes.

    Raises:
        InputError: a fault in settings or files, or no matrix of the times of the counters.
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
    """A record of each interval that has a matrix; none where no matrix is of the counters' times.

    Args:
        measured: network and counters.
        traffic: the matrices.
        history: past matrices that are believed, which calibrate the alarm; None for ``traffic``.
        alarm: window and seed of the alarm.
        config: how the counters were read.
        notify: takes notes.
    """
    topology, dag, counters = measured
    believed_matrices = traffic if history is None else history
    pairs = traffic.pairs
    measurements = measurements_of(config.policies, dag, pairs)
    checker = Checker(
        topology, pairs, measurements, relative=config.counter_error, window=alarm.window
    )
    notify(f"calibrating the alarm on {believed_matrices.num_matrices:,} matrices")
    checker.calibrate(_over(believed_matrices, pairs), seed=alarm.seed)
    rows, named = list[CheckedInterval](), NamedCounters(topology)
    for t in progress_bar(range(counters.num_intervals), desc="checking", unit="interval"):
        matrix = (
            traffic.read([0])[0]
            if traffic.num_matrices == 1
            else _at(traffic, counters.timestamps[t], pairs)
        )
        if matrix is None or not np.isfinite(matrix).all():
            continue
        one = checker.check(counters.at(t), matrix)
        named.add(counters.at(t), one.repaired)
        rows.append(
            CheckedInterval(
                timestamp=str(counters.timestamps[t]),
                statistic=one.statistic,
                mean_statistic=one.mean_statistic,
                limit=one.limit,
                alarm=one.alarm,
                disagreeing=one.disagreeing,
                blamed=one.repaired.num_blamed,
                suspects="; ".join(one.suspects[:8]),
                unit=one.unit,
            )
        )
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


def _at(traffic: TrafficMatrices | None, time: np.datetime64, pairs: IntArray) -> FloatArray | None:
    """(D,) the matrix of a time over other pairs, NaN for demands that the traffic does not have;
    None for none.
    """
    if traffic is None:
        return None
    row = int(np.searchsorted(traffic.timestamps, time))
    if row >= traffic.num_matrices or traffic.timestamps[row] != time:
        return None
    return _spread(traffic, traffic.read([row]), pairs)[0]


def _over(traffic: TrafficMatrices, pairs: IntArray) -> FloatArray:
    """(T, D) all matrices over other pairs, 0 for demands that the traffic does not have."""
    return np.nan_to_num(_spread(traffic, traffic.read(slice(None)), pairs))


def _spread(traffic: TrafficMatrices, rates: FloatArray, pairs: IntArray) -> FloatArray:
    if np.array_equal(traffic.pairs, pairs):
        return rates
    place = {(int(s), int(t)): d for d, (s, t) in enumerate(traffic.pairs)}
    at = np.array([place.get((int(s), int(t)), -1) for s, t in pairs])
    return np.where(at >= 0, rates[:, at], np.nan)


def save_intervals(path: Path, run: EstimateRun) -> None:
    """Write the ends of all intervals to a .npz file: lower and upper (T, D), Gbit/s, in the order
    of matrices.npz.
    """
    from teal.runtime.storage import atomic_file

    with atomic_file(path) as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, lower=run.lower, upper=run.upper)
