"""Calibration of the cost model to a machine: measured over predicted seconds of the engines.

The cost model (:mod:`teal.solvers.cost_model`) is fitted on one machine; another one has other
caches, vector units and numbers of cores.  :func:`measure` solves programs by each engine,
:func:`factors_of` fits one factor for each engine, kind of program and start, by least squares in
logarithms:

    log(factor) = mean over its cases of log(measured seconds / predicted seconds).

:func:`regrets` compares the choices with and without the factors.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from teal.problem import Problem
from teal.solvers import cost_model, pipeline
from teal.solvers.cost_model import Factors, Features
from teal.solvers.interior.engine import FirstProgram
from teal.solvers.result import PdhgResult, PdhgState

GAPS = (1e-2, 1e-4, 1e-6)
BATCH = 16
# Repeated calls of a solve end after these seconds or calls; a longer one is not repeated.
_REPEAT_S = 0.1
_MAX_REPEATS = 5
_LONG_CALL_S = 1.0
_MAX_ITERATIONS = 1_000_000
# Factor on the time of an engine that missed the target.
_MISSED = 3.0
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

    Args:
        network: name of the network.
        problem: matrices of one program, at least 2; the first gives warm starts.
        limit_s: time limit of a solve, s.
    """
    size = FirstProgram(problem.row(1)).size
    for gap in GAPS:
        start = pipeline.solve(problem.row(0), gap=gap, deadline=limit_s).state
        for is_warm, batch in ((False, 1), (True, 1), (False, min(BATCH, problem.batch - 1))):
            part = problem.rows(slice(1, 1 + batch))

            def solve(
                engine: str,
                deadline: float,
                part: Problem = part,
                gap: float = gap,
                warm_start: PdhgState | None = start if is_warm else None,
            ) -> PdhgResult:
                return pipeline.solve(
                    part,
                    gap=gap,
                    engine=engine,
                    warm_start=warm_start,
                    deadline=deadline,
                    max_iterations=_MAX_ITERATIONS,
                )

            program = cost_model.features_of(part, size, gap)
            yield Case(
                network,
                program,
                is_warm,
                _measured_in_turn(solve, gap, limit_s),
                {
                    engine: cost_model.uncorrected_seconds(engine, program, is_warm=is_warm)
                    for engine in _ENGINES
                },
            )


def _measured_in_turn(
    solve: Callable[[str, float], PdhgResult], gap: float, limit_s: float
) -> dict[str, float]:
    """Return the median seconds of each engine, called in turn.

    The first call of each loads its kernels and is not counted, unless it is long.

    Args:
        solve: function of engine and deadline.
        gap: target gap.
        limit_s: time limit of a call, s.
    """
    times: dict[str, list[float]] = {engine: [] for engine in _ENGINES}
    penalty: dict[str, float] = {}
    for repeat in range(_MAX_REPEATS + 1):
        for engine, name in _ENGINES.items():
            is_long = bool(times[engine]) and times[engine][0] > _LONG_CALL_S
            if repeat > 1 and (is_long or sum(times[engine]) > _REPEAT_S):
                continue
            begin = time.perf_counter()
            result = solve(name, limit_s)
            elapsed_s = time.perf_counter() - begin
            if repeat == 0:
                has_reached = float(result.gap.max()) <= gap * (1 + 1e-4)
                penalty[engine] = 1.0 if has_reached else _MISSED
            if repeat > 0 or elapsed_s > _LONG_CALL_S:
                times[engine].append(elapsed_s)
    return {engine: penalty[engine] * statistics.median(part) for engine, part in times.items()}


def factors_of(cases: Iterable[Case]) -> Factors:
    """Return the factor of each engine, kind of program and start, by key.

    Args:
        cases: measured cases.
    """
    logs: dict[str, list[float]] = collections.defaultdict(list)
    for case in cases:
        for engine, seconds in case.measured_s.items():
            logs[case.key(engine)].append(math.log(seconds / case.predicted_s[engine]))
    return {key: math.exp(statistics.fmean(part)) for key, part in logs.items()}


def regrets(cases: Iterable[Case], factors: Factors) -> list[float]:
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
        chosen = min(predicted_s, key=predicted_s.__getitem__)
        ratios.append(case.measured_s[chosen] / min(case.measured_s.values()))
    return ratios


def held_out_regrets(cases: Sequence[Case]) -> list[float]:
    """Return the regrets of each half of the networks with the factors of the other half.

    Args:
        cases: measured cases.
    """
    networks = sorted({case.network for case in cases})
    halves = [
        [case for case in cases if networks.index(case.network) % 2 == parity] for parity in (0, 1)
    ]
    return regrets(halves[0], factors_of(halves[1])) + regrets(halves[1], factors_of(halves[0]))
