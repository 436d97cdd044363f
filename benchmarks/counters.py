"""Evaluate what `teal_ip.counters` computes from link counters, on measured traffic series:
estimated matrices and their intervals, routing on the estimates, repair of wrong counters, alarms.

    python benchmarks/counters.py TOPOLOGY TRAFFIC [--history 0.6] [--parts estimate,repaired,persistent]

The first share of the matrices (``--history``) is the history, the rest is tested.  Counters are
the loads of shortest paths by hops, each with 1% noise.  NMAE is sum abs(estimate - truth) / sum
truth, the mean over intervals; the coverage of the 90% intervals is counted by demands and by
volume, and on working days and weekends apart; realised is the largest utilisation of splits for
the estimate, under the true matrix, over the optimum (4 edge-disjoint paths).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from series import series_parser

from teal.formats import load_topology, load_traffic
from teal.network import Topology, compute_paths
from teal.network.ecmp import EcmpDag
from teal.objectives import Objective
from teal.problem import Problem
from teal.runtime.arrays import BoolArray, FloatArray, IntArray
from teal.solvers.pdhg.scenarios.solver import solve_scenarios
from teal.solvers.pipeline import solve
from teal_ip.counters.check import Checker
from teal_ip.counters.estimator import Estimator
from teal_ip.counters.repair import repair, repaired_values
from teal_ip.counters.worst_load import worst_load
from teal_ip.routing.measurements import ecmp_measurements, path_measurements

_NOISE = 0.01
_TRIALS = 100  # repetitions of a lasting fault, from which the share of alarms is estimated
_PARTS = "estimate,routing,flows,repair,repaired,alarm,persistent,worst"


class Case(NamedTuple):
    """A network with counters under shortest-path routing, and a series of its traffic.

    Attributes:
        topology: the network.
        pairs: source and target of each demand, (D, 2) node indices.
        measurements: contribution of each demand to each counter, (M, D).
        history: matrices that are known, (H, D) Gbit/s.
        test: later matrices, which are estimated, (T, D) Gbit/s.
        is_weekend: whether a test matrix is of a Saturday or Sunday, (T,).
    """

    topology: Topology
    pairs: IntArray
    measurements: sp.csr_array
    history: FloatArray
    test: FloatArray
    is_weekend: BoolArray


def main() -> None:
    """Read the traffic series, and run the parts of the evaluation that the options name."""
    parser = series_parser(__doc__)
    parser.add_argument("--history", type=float, default=0.6)
    parser.add_argument("--parts", default=_PARTS)
    parser.add_argument(
        "--clean", type=int, default=1000, help="clean intervals for the rate of false alarms"
    )
    options = parser.parse_args()
    topology = load_topology(options.topology, options.default_capacity)
    traffic = load_traffic(options.traffic, topology)
    matrices = traffic.read(slice(None))
    # Intervals without traffic are left out.
    has_traffic = matrices.sum(1) > 0
    matrices = matrices[has_traffic]
    # Days since 1970-01-01, a Thursday; 0 is Monday.
    weekday = (traffic.timestamps[has_traffic].astype("datetime64[D]").astype(int) + 3) % 7
    num_history = round(options.history * len(matrices))
    measurements = ecmp_measurements(
        EcmpDag.of(topology, np.ones(topology.num_links)), traffic.pairs
    )
    # Counters are the loads of shortest paths by hops.
    case = Case(
        topology,
        traffic.pairs,
        measurements,
        matrices[:num_history],
        matrices[num_history:],
        weekday[num_history:] >= 5,
    )
    print(
        f"{topology.name}: {num_history} matrices of history, {len(matrices) - num_history} of test, F {measurements.shape}"
    )
    evaluations: dict[str, Callable[[Case], None]] = {
        "estimate": _evaluate_estimates,
        "routing": _evaluate_routing,
        "flows": _evaluate_measured_flows,
        "repair": _evaluate_repair,
        "repaired": _evaluate_repaired_estimates,
        "persistent": _evaluate_lasting_faults,
        "worst": _evaluate_worst_load,
        "alarm": lambda case: _evaluate_alarms(case, options.clean),
    }
    for part in options.parts.split(","):
        evaluations[part](case)


def _noisy_counters(case: Case, matrix: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Return the counters (M,) of a matrix (D,) in Gbit/s, each with 1% of Gaussian noise."""
    return case.measurements @ matrix * (1 + _NOISE * rng.normal(size=case.measurements.shape[0]))


def _calibrated_estimator(case: Case, history: FloatArray | None) -> Estimator:
    """Return an estimator for the case's routing, calibrated on a history (H, D) or on none."""
    estimator = Estimator(case.pairs, case.topology.num_nodes, history=history)
    estimator.route(case.measurements)
    estimator.calibrate()
    return estimator


def _evaluate_estimates(case: Case) -> None:
    """Print the error of estimated matrices and the coverage and width of their 90% intervals, with
    the history and without.
    """
    for name, history in (("with history", case.history), ("cold", None)):
        estimator = _calibrated_estimator(case, history)
        rng = np.random.default_rng(0)
        rows = []
        for truth in case.test:
            counters = _noisy_counters(case, truth, rng)
            begin = time.perf_counter()
            estimated = estimator.estimate(counters)
            seconds = time.perf_counter() - begin
            is_covered = (truth >= estimated.lower) & (truth <= estimated.upper)
            width = (estimated.upper - estimated.lower).sum() / truth.sum()
            volume_coverage = truth[is_covered].sum() / truth.sum()
            rows.append(
                (
                    np.abs(estimated.matrix - truth).sum() / truth.sum(),
                    is_covered.mean(),
                    volume_coverage,
                    width,
                    seconds,
                )
            )
        # One value for each test matrix.
        error, demand_coverage, volume_coverage, width, seconds = np.array(rows).T
        text = f"estimate, {name}: NMAE {error.mean():.4f}, {1e3 * np.median(seconds):.1f} ms"
        if history is not None:
            for kind, coverage in (("demands", demand_coverage), ("volume", volume_coverage)):
                worst_sixth = min(part.mean() for part in np.array_split(coverage, 6))
                text += f"; 90% intervals hold {coverage.mean():.3f} of the {kind}, worst sixth {worst_sixth:.3f}"
            text += f"; width {width.mean():.3f}"
        print(text, flush=True)
        for days, is_of_days in (("working days", ~case.is_weekend), ("weekends", case.is_weekend)):
            if history is not None and is_of_days.any():
                print(
                    f"  {days}: NMAE {error[is_of_days].mean():.4f}, {demand_coverage[is_of_days].mean():.3f} of the demands, "
                    f"{volume_coverage[is_of_days].mean():.3f} of the volume, width {width[is_of_days].mean():.3f}",
                    flush=True,
                )


def _evaluate_routing(case: Case) -> None:
    """Print the maximum utilisation over the optimum, under the true matrix, of three splits.

    They are optimised for the estimate, for 30 scenarios (the estimate, alone and with each of 29
    past residuals), and for the previous matrix.
    """
    paths = compute_paths(case.topology, case.pairs, num_paths=4)
    estimator = _calibrated_estimator(case, case.history)
    rng = np.random.default_rng(0)
    # Splits are computed for 60 of the test matrices; the estimator runs on all of them in turn.
    evaluated_rows = set(np.linspace(0, len(case.test) - 1, 60).astype(int).tolist())
    ratios: dict[str, list[float]] = {
        "estimate": [],
        "estimate and 29 residuals": [],
        "matrix before": [],
    }
    for number, truth in enumerate(case.test):
        estimated = estimator.estimate(_noisy_counters(case, truth, rng))
        if number not in evaluated_rows:
            continue
        # The smallest possible maximum utilisation for the true matrix.
        problem = Problem.create(
            case.topology, paths, Objective("max_link_utilisation"), truth[None]
        )
        optimum = float(solve(problem, gap=1e-3).value)
        # Splits for the estimate, for 30 scenarios around it, and for the previous matrix.
        previous_matrix = case.test[max(0, number - 1)]
        scenarios = problem.with_demand(torch.from_numpy(estimator.scenarios(estimated.matrix, 30)))
        splits = {
            "estimate": solve(problem.with_demand(estimated.matrix[None]), gap=1e-3).splits[0],
            "estimate and 29 residuals": solve_scenarios(
                scenarios, gap=1e-2, max_iterations=3000
            ).splits,
            "matrix before": solve(problem.with_demand(previous_matrix[None]), gap=1e-3).splits[0],
        }
        # Utilisation that each of them realises under the true matrix.
        for name, split_ratios in splits.items():
            ratios[name].append(
                float(problem.utilisation(split_ratios[None].to(problem.demand)).amax()) / optimum
            )
    for name, values in ratios.items():
        print(
            f"routing on {name}: realised / optimum mean {np.mean(values):.4f}, p95 {np.quantile(values, 0.95):.4f}"
        )


def _evaluate_measured_flows(case: Case) -> None:
    """Print the estimation error if, besides the link counters, the rates of a tenth of the demands
    are measured: those with the largest residuals in the history.
    """
    estimator = _calibrated_estimator(case, case.history)
    rng = np.random.default_rng(0)
    errors = []
    assert estimator.residuals is not None
    measured_demands = np.argsort(-(estimator.residuals**2).sum(0))[: len(case.pairs) // 10]
    for truth in case.test[:: max(1, len(case.test) // 100)]:
        flows = np.full(len(truth), np.nan)
        flows[measured_demands] = truth[measured_demands] * (
            1 + _NOISE * rng.normal(size=len(measured_demands))
        )
        estimated = estimator.estimate(
            _noisy_counters(case, truth, rng), flows=np.maximum(flows, 0.0)
        )
        errors.append(np.abs(estimated.matrix - truth).sum() / truth.sum())
    print(f"a tenth of the pairs measured: NMAE {np.mean(errors):.4f}")


def _evaluate_repair(case: Case) -> None:
    """Print how many link loads are right to 5% after the repair of counters of which a tenth or
    three tenths are wrong, and how many right counters are blamed.
    """
    checker = Checker(case.topology, case.pairs, case.measurements)
    links = case.topology.num_links
    for share in (0.1, 0.3):
        rng = np.random.default_rng(1)
        rows = []
        for _ in range(40):
            truth, stuck_matrix = (case.test[rng.integers(len(case.test))] for _ in range(2))
            true_loads = case.measurements @ truth
            # Counters at the senders, at the receivers and at the border, as they should be.
            true_counters = np.concatenate([true_loads[:links], true_loads])
            counters = checker.corrupted_counters(truth, stuck_matrix, share, rng)
            # The matrix that the operator assumes, with 2% noise.
            assumed_matrix = truth * (1 + 0.02 * rng.normal(size=len(truth)))
            begin = time.perf_counter()
            repair_result = repair(case.topology, counters, case.measurements @ assumed_matrix)
            seconds = time.perf_counter() - begin
            has_load = true_loads > 0
            blamed = np.concatenate(
                [
                    repair_result.blamed_sent,
                    repair_result.blamed_received,
                    repair_result.blamed_external,
                ]
            )
            is_right = np.abs(np.concatenate(counters) - true_counters) <= 0.05 * true_counters
            right_share = (np.abs(repair_result.values - true_loads) <= 0.05 * true_loads)[
                has_load
            ].mean()
            rows.append((right_share, (blamed & is_right).sum() / is_right.sum(), seconds))
        # For each trial: share of loads right to 5%, share of right counters blamed, seconds.
        right_share, blamed, seconds = np.array(rows).T
        print(
            f"repair, {100 * share:.0f}% of the counters wrong: {right_share.mean():.3f} within 5%, "
            f"{100 * blamed.mean():.3f}% of the good ones blamed, {1e3 * np.median(seconds):.1f} ms",
            flush=True,
        )


def _evaluate_alarms(case: Case, num_clean: int) -> None:
    """Print the number of false alarms, and the share of alarms where the assumed matrix lacks 5%
    of the traffic, with none, a tenth and three tenths of the counters wrong.

    Args:
        case: network and traffic.
        num_clean: number of intervals without a fault in the matrix.
    """
    checker = Checker(case.topology, case.pairs, case.measurements)
    checker.calibrate(case.history)
    for share in (0.0, 0.1, 0.3):
        rng = np.random.default_rng(2)
        alarms = []
        num_false_alarms = 0
        for _ in range(num_clean):
            truth, stuck_matrix = (case.test[rng.integers(len(case.test))] for _ in range(2))
            counters = checker.corrupted_counters(truth, stuck_matrix, share, rng)
            num_false_alarms += checker.check(
                counters, truth * (1 + 0.02 * rng.normal(size=len(truth)))
            ).alarm
        # 100 intervals in which whole demands are missing in the assumed matrix.
        for _ in range(100):
            truth, stuck_matrix = (case.test[rng.integers(len(case.test))] for _ in range(2))
            counters = checker.corrupted_counters(truth, stuck_matrix, share, rng)
            assumed_matrix = truth * (1 + 0.02 * rng.normal(size=len(truth)))
            order = rng.permutation(len(truth))
            # The first demands in random order with 5% of the traffic.
            num_missing = np.searchsorted(np.cumsum(truth[order]), 0.05 * truth.sum()) + 1
            assumed_matrix[order[:num_missing]] = 0.0
            alarms.append(checker.check(counters, assumed_matrix).alarm)
        print(
            f"alarm, {100 * share:.0f}% of the counters wrong: {num_false_alarms} of {num_clean} clean intervals, "
            f"{np.mean(alarms):.2f} of those where 5% of the traffic is missing",
            flush=True,
        )


def _evaluate_lasting_faults(case: Case) -> None:
    """Print the share of alarms for faults that last: the assumed matrix lacks 0 to 3% of the
    traffic in 1, 4 or 16 successive intervals, and the check uses all of them.
    """
    for window in (1, 4, 16):
        checker = Checker(case.topology, case.pairs, case.measurements, window=window)
        checker.calibrate(case.history)
        for share in (0.0, 0.1):
            texts = []
            for missing_share in (0.0, 0.01, 0.02, 0.03):
                rng = np.random.default_rng(3)
                alarms = 0
                for _ in range(_TRIALS):
                    # The same demands are missing in every interval of the window.
                    order = rng.permutation(len(case.pairs))
                    for _ in range(window):
                        truth, stuck_matrix = (
                            case.test[rng.integers(len(case.test))] for _ in range(2)
                        )
                        assumed_matrix = truth * (1 + 0.02 * rng.normal(size=len(truth)))
                        # The first demands in this order with the missing share of the traffic.
                        num_missing = (
                            np.searchsorted(np.cumsum(truth[order]), missing_share * truth.sum())
                            + 1
                        )
                        assumed_matrix[order[: num_missing if missing_share else 0]] = 0.0
                        result = checker.check(
                            checker.corrupted_counters(truth, stuck_matrix, share, rng),
                            assumed_matrix,
                        )
                    alarms += result.alarm
                texts.append(f"{100 * missing_share:.0f}% missing {alarms / _TRIALS:.2f}")
            print(
                f"window {window}, {100 * share:.0f}% of the counters wrong: share of alarms with "
                + ", ".join(texts),
                flush=True,
            )


def _evaluate_repaired_estimates(case: Case) -> None:
    """Print the error of estimates from counters of which some are wrong, with the repair of `teal
    estimate` and without.
    """
    checker = Checker(case.topology, case.pairs, case.measurements)
    for share, (knowledge, history) in itertools.product(
        (0.0, 0.1, 0.3), (("history", case.history), ("nothing", None))
    ):
        for is_repaired in (False, True):
            estimator = _calibrated_estimator(case, history)
            rng = np.random.default_rng(4)
            errors = []
            for number, truth in enumerate(case.test):
                readings = checker.corrupted_counters(truth, case.test[number - 1], share, rng)
                values = readings.values
                if is_repaired:
                    values, _ = repaired_values(estimator, case.topology, readings)
                estimated = estimator.estimate(values, robust=is_repaired)
                errors.append(np.abs(estimated.matrix - truth).sum() / truth.sum())
            name = "repaired" if is_repaired else "as counted"
            print(
                f"estimate, {knowledge} known, {100 * share:.0f}% of the counters wrong, {name}: "
                f"NMAE {np.mean(errors):.4f}",
                flush=True,
            )


def _evaluate_worst_load(case: Case) -> None:
    """Print the largest utilisation that splits for the estimate can have under a matrix that
    explains the counters: under all such matrices, and under those near the estimate.
    """
    paths = compute_paths(case.topology, case.pairs, num_paths=4)
    estimator = _calibrated_estimator(case, case.history)
    rng = np.random.default_rng(0)
    truth = case.test[len(case.test) // 2]
    assert estimator.residuals is not None
    # The 90% quantile of the estimator's past errors, as shares of the traffic, bounds the near
    # ones.
    radius = float(np.quantile(np.abs(estimator.residuals).sum(1), 0.9))
    counters = _noisy_counters(case, truth, rng)
    estimated = estimator.estimate(counters)
    # Splits for the estimate, and the optimum of the true matrix.
    problem = Problem.create(
        case.topology, paths, Objective("max_link_utilisation"), estimated.matrix[None]
    )
    splits = solve(problem, gap=1e-3).splits[0]
    optimum = float(solve(problem.with_demand(truth[None]), gap=1e-3).value)
    links = case.topology.num_links
    # (E, D) share of each demand on each link.
    link_shares = sp.csr_array(
        path_measurements(paths, splits.numpy(), case.topology.num_nodes)[:links]
    )
    for name, centre in (
        ("all matrices", None),
        (f"those within {radius:.3f} of the estimate", estimated.matrix),
    ):
        begin = time.perf_counter()
        worst = worst_load(
            link_shares,
            case.topology.capacity,
            case.measurements,
            counters,
            tolerance=0.03,
            near=centre,
            ball=None if centre is None else radius,
        )
        seconds = time.perf_counter() - begin
        print(
            f"worst load over {name}: {worst.utilisation / optimum:.3f} x optimum, "
            f"bound {worst.bound / optimum:.3f}, {seconds:.2f} s"
        )


if __name__ == "__main__":
    main()
