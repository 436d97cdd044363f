"""Calibration of the cost model to a machine: measured over predicted seconds of the engines.

The cost model (:mod:`teal.solvers.cost_model`) is fitted on one machine; another one has other
caches, vector units and numbers of cores.  :func:`measure` solves programs by each engine,
:func:`factors_of` fits one factor for each engine, kind of program and start, by least squares in
logarithms:

    log(factor) = mean over its cases of log(measured seconds / predicted seconds).

:func:`slowdowns` compares the choices with and without the factors.  :func:`calibrate` does all of
it on public networks, and stores the factors.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from teal.formats import load_topology, load_traffic
from teal.network import compute_paths
from teal.objectives import Objective, ObjectiveName
from teal.problem import Problem
from teal.runtime.interruptible import Deadline
from teal.runtime.progress import progress_bar
from teal.solvers import cost_model, pipeline
from teal.solvers.cost_model import Factors, Features
from teal.solvers.interior.engine import FirstMatrixProgram
from teal.solvers.result import SolveResult, SolveState

# Networks of 12 to 90 nodes, small and large ones in turn.
_NETWORKS = (
    "topohub:sndlib/abilene",
    "topohub:sndlib/germany50",
    "topohub:topozoo/Uninett2011",
    "topohub:sndlib/polska",
    "topohub:sndlib/cost266",
    "topohub:gabriel/90/7",
    "b4",
    "topohub:sndlib/geant",
    "topohub:gabriel/60/8",
    "topohub:sndlib/nobel-eu",
)
_OBJECTIVES = (
    ObjectiveName.TOTAL_FLOW,
    ObjectiveName.MAX_LINK_UTILISATION,
    ObjectiveName.PROPORTIONAL_FAIR,
)
# Gravity traffic: all of it can be carried, or not, in turn.
_LOADS = (1.5, 6.0)
# Utilities are measured on networks up to this scan size, in trie nodes and path slots.
_MAX_UTILITY_SCAN = 10_000
_SOLVE_LIMIT_S = 5.0
# No case is begun after this time, s.
_TOTAL_LIMIT_S = 300.0
# A choice is near the fastest engine within this ratio of times.
NEAR = 1.15
GAPS = (1e-2, 1e-4, 1e-6)
BATCH = 16
# Repeated calls of a solve end after these seconds or calls; after a long call at once.
_REPEAT_S = 0.1
_MAX_REPEATS = 5
_MAX_ITERATIONS = 1_000_000
# Factor on the time of an engine that missed the target.
_MISSED_GAP_FACTOR = 3.0
_ENGINES = {"interior": "interior", "pdhg": "fused"}


@dataclasses.dataclass(frozen=True)
class Case:
    """A program, solved by each engine.

    Attributes:
        network: name of the network.
        program: features of the program.
        is_warm: whether the solves had a warm start.
        measured_s: median seconds of each engine, three times as much where it missed the target.
        predicted_s: seconds of each engine that the cost model predicts, without factors.
    """

    network: str
    program: Features
    is_warm: bool
    measured_s: dict[str, float]
    predicted_s: dict[str, float]

    def key(self, engine: str) -> str:
        """Return the key of the factor of an engine for this program."""
        return cost_model.factor_key(engine, self.program.kind, is_warm=self.is_warm)


def measure(network: str, problem: Problem, limit_s: float) -> Iterator[Case]:
    """Yield the cases of a network: cold and warm for one matrix, cold for a batch.

    Programs in which no engine reaches the target are left out: their times are not known.

    Args:
        network: name of the network.
        problem: matrices of one program, at least 2; the first gives warm starts.
        limit_s: time limit of a solve, s.
    """
    program_size = FirstMatrixProgram(problem.row(1)).size
    for gap in GAPS:
        warm_state = pipeline.solve(problem.row(0), gap=gap, deadline=limit_s).state
        for is_warm, batch in ((False, 1), (True, 1), (False, min(BATCH, problem.batch - 1))):
            batch_problem = problem.rows(slice(1, 1 + batch))

            def solve(
                engine: str,
                deadline: float,
                batch_problem: Problem = batch_problem,
                gap: float = gap,
                warm_start: SolveState | None = warm_state if is_warm else None,
            ) -> SolveResult:
                return pipeline.solve(
                    batch_problem,
                    gap=gap,
                    engine=engine,
                    warm_start=warm_start,
                    deadline=deadline,
                    max_iterations=_MAX_ITERATIONS,
                )

            measured_s = _measured_in_turn(solve, gap, limit_s)
            if not measured_s:
                continue
            program = cost_model.features_of(batch_problem, program_size, gap)
            predicted_s = {
                engine: cost_model.uncorrected_seconds(engine, program, is_warm=is_warm)
                for engine in _ENGINES
            }
            yield Case(network, program, is_warm, measured_s, predicted_s)


def _measured_in_turn(
    solve: Callable[[str, float], SolveResult], gap: float, limit_s: float
) -> dict[str, float]:
    """Return the median seconds of each engine, called in turn; three times as much if it misses
    the target, and {} if all miss it.

    The first call of each loads its kernels and is not counted; a long call is repeated once.

    Args:
        solve: function of engine and deadline.
        gap: target gap.
        limit_s: time limit of a call, s.
    """
    seconds_by_engine: dict[str, list[float]] = {engine: [] for engine in _ENGINES}
    time_factor: dict[str, float] = {}
    for call_index in range(_MAX_REPEATS + 1):
        for engine, engine_name in _ENGINES.items():
            # Enough calls of this engine have been measured.
            if call_index > 1 and sum(seconds_by_engine[engine]) > _REPEAT_S:
                continue
            begin = time.perf_counter()
            result = solve(engine_name, limit_s)
            elapsed_s = time.perf_counter() - begin
            # The first call is not counted; it shows whether the engine reaches the target.
            if call_index > 0:
                seconds_by_engine[engine].append(elapsed_s)
                continue
            reaches_gap = float(result.gap.max()) <= gap * (1 + 1e-4)
            time_factor[engine] = 1.0 if reaches_gap else _MISSED_GAP_FACTOR
        if min(time_factor.values()) == _MISSED_GAP_FACTOR:
            return {}
    return {
        engine: time_factor[engine] * statistics.median(engine_seconds)
        for engine, engine_seconds in seconds_by_engine.items()
    }


def factors_of(cases: Iterable[Case]) -> Factors:
    """Return the factor of each engine, kind of program and start, by key.

    Args:
        cases: measured cases.
    """
    log_ratios: dict[str, list[float]] = collections.defaultdict(list)
    for case in cases:
        for engine, seconds in case.measured_s.items():
            log_ratios[case.key(engine)].append(math.log(seconds / case.predicted_s[engine]))
    return {key: math.exp(statistics.fmean(part)) for key, part in log_ratios.items()}


def slowdowns(cases: Iterable[Case], factors: Factors) -> list[float]:
    """Return the time of the engine with the shortest predicted time over that of the fastest, for
    each case.

    Args:
        cases: measured cases.
        factors: factor on the predicted seconds, by key; 1 for others.
    """
    ratios = []
    for case in cases:
        predicted_s = {
            engine: factors.get(case.key(engine), 1.0) * seconds
            for engine, seconds in case.predicted_s.items()
        }
        predicted_fastest = min(predicted_s, key=predicted_s.__getitem__)
        ratios.append(case.measured_s[predicted_fastest] / min(case.measured_s.values()))
    return ratios


def held_out_slowdowns(cases: Sequence[Case]) -> list[float]:
    """Return the slowdowns of each half of the networks with the factors of the other half.

    Args:
        cases: measured cases.
    """
    networks = sorted({case.network for case in cases})
    halves = [
        [case for case in cases if networks.index(case.network) % 2 == parity] for parity in (0, 1)
    ]
    return slowdowns(halves[0], factors_of(halves[1])) + slowdowns(halves[1], factors_of(halves[0]))


@dataclasses.dataclass(frozen=True)
class Calibration:
    """Result of a calibration.

    Attributes:
        cases: measured cases.
        before: time of the chosen engine over that of the fastest, for each case, without factors.
        after: the same with factors that were fitted on other networks.
        factors: stored factors by key; none if they would not improve the choice.
        path: file of the factors; None if none is written.
    """

    cases: Sequence[Case]
    before: Sequence[float]
    after: Sequence[float]
    factors: cost_model.Factors
    path: Path | None

    def to_json(self) -> dict[str, Any]:
        """Return a dict for ``--json``."""
        return {
            "programs": len(self.cases),
            "near_fastest_before": share_near_fastest(self.before),
            "near_fastest_after": share_near_fastest(self.after),
            "factors": self.factors,
            "file": None if self.path is None else str(self.path),
        }


def require_networks() -> None:
    """Raise InputError if the networks of a calibration are not installed."""
    load_topology(_NETWORKS[0])


def calibrate() -> Calibration:
    """Measure the engines on public networks; store the factors if they improve the choice on
    networks that they were not fitted on, and remove those of an earlier calibration if not.

    Raises:
        InputError: the networks are not installed.
    """
    cases = list(_measured_cases())
    slowdowns_before = slowdowns(cases, {})
    slowdowns_after = held_out_slowdowns(cases)
    if np.mean(np.log(slowdowns_after)) >= np.mean(np.log(slowdowns_before)):
        cost_model.remove_factors()
        return Calibration(cases, slowdowns_before, slowdowns_after, {}, None)
    factors = factors_of(cases)
    return Calibration(
        cases, slowdowns_before, slowdowns_after, factors, cost_model.store_factors(factors)
    )


def _measured_cases() -> Iterator[Case]:
    """Yield the cases of all networks and objectives, until the time is over."""
    problems = [
        (network, problem)
        for index, network in enumerate(_NETWORKS)
        for problem in _problems(network, _LOADS[index % len(_LOADS)])
    ]
    end = Deadline.after(_TOTAL_LIMIT_S)
    with progress_bar(total=len(problems), desc="measuring", unit="program") as bar:
        for network, problem in problems:
            for case in measure(network, problem, _SOLVE_LIMIT_S):
                yield case
                if end.is_over:
                    return
            bar.update(1)


def _problems(network: str, load: float) -> Iterator[Problem]:
    """Yield the problems of a network, one for each objective.

    Args:
        network: source of the topology.
        load: load of the gravity traffic.
    """
    topology = load_topology(network)
    traffic = load_traffic(f"gravity:seed=0,count={BATCH + 1},load={load}", topology)
    paths = compute_paths(topology, traffic.pairs)
    demand = traffic.read(list(range(BATCH + 1)))
    for objective in _OBJECTIVES:
        is_utility = objective is ObjectiveName.PROPORTIONAL_FAIR
        if not is_utility or paths.scan_size <= _MAX_UTILITY_SCAN:
            yield Problem.create(topology, paths, Objective(objective), demand)


def share_near_fastest(ratios: Sequence[float]) -> float:
    """Return the share of ratios that are at most NEAR."""
    return float(np.mean(np.asarray(ratios) <= NEAR))
