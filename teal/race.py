"""The race: what certified gap after how much time, by the same kernels, clock and validator.

Four situations, of a matrix and the one before it: the next interval as it came; a flash crowd, a tenth of the demands
times 10; failures of 1 to 5% of the links, both directions; and the first interval of all, with no earlier state.
PDHG runs from nothing and, where there is an earlier state, from it; every scheme gives the answer it gives; and every
scheme that says where PDHG may start (see :class:`teal.schemes.Starter`) is also run on, to the same targets.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from tqdm import tqdm

from teal.allocation import Allocation
from teal.assessment import assess
from teal.errors import SolverError
from teal.instance import Instance
from teal.network.disturbances import fail_cables, flash_crowd
from teal.problem import Problem
from teal.schemes import Scheme, Starter
from teal.solvers import pdhg
from teal.solvers.pdhg.search import WarmStart

NEXT, CROWD, FAILURES, FIRST = SITUATIONS = ("next interval", "flash crowd", "failures", "no earlier state")
TARGETS = (0.05, 0.02, 0.01, 0.005, 0.002)
COLD, WARM, FROM = "pdhg cold", "pdhg warm", " + pdhg"
_FAILED = (0.01, 0.05)
_KNOWN = 1e-3  # gap of the state before
_REPEATS, _PATIENCE = 5, 2.0  # a run is repeated as often, or until so many seconds are gone
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Lap:
    """One scheme in one situation.

    Attributes:
        topology, traffic: names; index: row of the matrix; situation: one of :data:`SITUATIONS`.
        scheme: as specified, with :data:`FROM` where PDHG went on from it.
        target: gap it was told to stop at; NaN for a scheme that takes none.
        seconds: median, models built and answers finished.
        iterations: of PDHG; 0 for other schemes.
        gap: certified, by the scheme's own prices; satisfied_demand: share of all demand.
        status: feasible, optimal, or what else the validator says.
    """

    topology: str
    traffic: str
    index: int
    situation: str
    scheme: str
    target: float
    seconds: float
    iterations: int
    gap: float
    satisfied_demand: float
    status: str


def race(
    instance: Instance,
    schemes: Mapping[str, Scheme],
    rows: Sequence[int],
    *,
    seed: int = 0,
    targets: Sequence[float] = TARGETS,
    say: Callable[[str], None] = lambda _: None,
) -> list[Lap]:
    """Every scheme in every situation.

    A scheme that raises SolverError is reported to ``say`` and left out from there on.

    Args:
        rows: of the traffic; the matrix before each is the state before, that before row 0 is the last.
        seed: of crowds and failures.
    """
    running: dict[str, Scheme] = dict(schemes)
    laps: list[Lap] = []
    with tqdm(total=len(rows) * len(SITUATIONS), desc="racing", unit="situation") as bar:
        for row in rows:
            for situation, problem, known in situations(instance, int(row), seed):
                lap = partial(Lap, instance.topology.name, instance.traffic.name, int(row), situation)
                laps += [lap(*figures) for figures in _laps(problem, known, running, targets, say)]
                bar.update()
    return laps


def situations(instance: Instance, row: int, seed: int) -> Iterator[tuple[str, Problem, pdhg.PdhgResult | None]]:
    """(name, problem, what was known before) of one row."""
    rng = np.random.default_rng([seed, row])
    topology = instance.topology
    before, now = (instance.traffic.read([(row + step) % instance.traffic.num_matrices]) for step in (-1, 0))
    known = pdhg.solve(instance.problem(before), gap=_KNOWN)
    yield NEXT, instance.problem(now), known
    yield CROWD, instance.problem(flash_crowd(now, rng)), known
    count = max(1, round(rng.uniform(*_FAILED) * len(topology.cables())))
    failed = topology.with_failed_links(fail_cables(topology, count, rng))
    yield FAILURES, instance.problem(now, capacity=failed.capacity), known
    yield FIRST, instance.problem(now), None


_Answer = tuple[Allocation, int]
_Figures = tuple[str, float, float, int, float, float, str]


def _laps(
    problem: Problem,
    known: pdhg.PdhgResult | None,
    schemes: dict[str, Scheme],
    targets: Sequence[float],
    say: Callable[[str], None],
) -> Iterator[_Figures]:
    for name, scheme in list(schemes.items()):
        try:
            yield _measured(problem, name, math.nan, lambda scheme=scheme: (scheme.solve(problem), 0))  # type: ignore[misc]
        except SolverError as error:
            say(str(error))
            del schemes[name]
    starts: dict[str, Callable[[], WarmStart | None]] = {COLD: lambda: None}
    if known is not None:
        starts[WARM] = lambda: known
    for name, scheme in schemes.items():
        if isinstance(scheme, Starter):
            starts[name + FROM] = lambda scheme=scheme: scheme.start(problem)  # type: ignore[misc]
    for target in targets:
        for name, start in starts.items():
            yield _measured(problem, name, target, lambda start=start, target=target: _run(problem, start(), target))  # type: ignore[misc]


def _run(problem: Problem, start: WarmStart | None, target: float) -> _Answer:
    found = pdhg.solve(problem, gap=target, warm_start=start)
    return Allocation.of_batch(found.splits, found.prices, found.solve_s), found.iterations


def _measured(problem: Problem, name: str, target: float, run: Callable[[], _Answer]) -> _Figures:
    (allocation, iterations), seconds = timed(run)
    found = assess(problem, allocation)
    satisfied = float(found.satisfied_demand[0])
    return name, target, seconds, iterations, float(found.gap[0]), satisfied, found.status[0].value


def timed(run: Callable[[], _T]) -> tuple[_T, float]:
    """The result and the median of its seconds; the first run, which may compile, does not count."""
    taken: list[float] = []
    while len(taken) <= _REPEATS and (len(taken) < 2 or sum(taken[1:]) < _PATIENCE):
        start = time.perf_counter()
        result = run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return result, float(np.median(taken[1:]))


@dataclasses.dataclass(frozen=True)
class Standing:
    """How soon a scheme was at a target, over the matrices of one situation.

    Attributes:
        situation, scheme: which.
        seconds: median to the earliest of its laps with that gap or less; infinite if one matrix has none, or no lap.
        against: that of the better of cold and warm PDHG over it, matrix by matrix; median, 0 if seconds is infinite.
    """

    situation: str
    scheme: str
    seconds: float
    against: float


def standings(laps: Sequence[Lap], gap: float = 0.01) -> list[Standing]:
    """Time to a certified ``gap`` of every scheme in every situation, in order of appearance."""
    soonest: dict[tuple[str, str], dict[tuple[str, str, int], float]] = {}
    for lap in laps:
        times = soonest.setdefault((lap.situation, lap.scheme), {})
        key, reached = (lap.topology, lap.traffic, lap.index), lap.gap <= gap
        times[key] = min(times.get(key, math.inf), lap.seconds if reached else math.inf)
    found = []
    for (situation, scheme), times in soonest.items():
        rivals = [soonest.get((situation, name), {}) for name in (COLD, WARM)]
        keys = {key for rival in rivals for key in rival} or set(times)
        own = [times.get(key, math.inf) for key in keys]
        if math.inf in own:
            found.append(Standing(situation, scheme, math.inf, 0.0))
            continue
        best = [min(rival.get(key, math.inf) for rival in rivals) for key in keys]
        against = float(np.median([rival / seconds for rival, seconds in zip(best, own, strict=True)]))
        found.append(Standing(situation, scheme, float(np.median(own)), against))
    return found
