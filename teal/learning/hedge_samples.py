"""What a mixture of hedges decided over histories: computed once, in parallel, and read again and again by training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from teal.learning.histories import draw_history
from teal.learning.network_pool import NetworkPool
from teal.network import TrafficMatrices
from teal.problem import Problem
from teal.runtime.archives import check_npz
from teal.runtime.arrays import Float32Array, FloatArray, Int64Array
from teal.runtime.processes import call_all
from teal.runtime.storage import atomic_file
from teal.schemes.hedges import Past, make_hedge
from teal.schemes.hedges.mixture import DEFAULT, Mixture
from teal.solvers import pdhg

INTERVALS = 16  # recorded of each history
_WARM_UP_INTERVALS = 10  # intervals before them in which the mixture already learns
_LEAST_PAST, _MOST_PAST = 12, 160  # matrices known before the first interval that the mixture sees
_OPTIMUM_GAP = 1e-3  # of the optima that losses are divided by


@dataclasses.dataclass(frozen=True, eq=False)
class Recording:
    """One history, and the mixture's decisions in its last T intervals, H hedges.

    Attributes:
        problem: the network; B = 1, its demand means nothing.
        traffic: all matrices.
        rows: (T,) number of the matrix of each interval.
        decisions: (T, H, D, K) splits.
        weights: (T, H) of the hedges.
        recent_losses: (T, H) see :class:`teal.schemes.hedges.mixture.Mixture`.
        optimum: (T,) least possible largest utilisation.
    """

    problem: Problem
    traffic: TrafficMatrices
    rows: Int64Array
    decisions: Float32Array
    weights: FloatArray
    recent_losses: FloatArray
    optimum: FloatArray


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A history that is drawn from a seed.

    Attributes:
        pool: of networks.
        seed: of the training run.
        number: of the history.
        num_paths: K.
    """

    pool: NetworkPool
    seed: int
    number: int
    num_paths: int

    def load(self) -> tuple[Problem, TrafficMatrices]:
        """The network and its matrices."""
        rng = np.random.default_rng([self.seed, self.number])
        past = int(rng.integers(_LEAST_PAST, _MOST_PAST + 1))
        return draw_history(rng, self.pool, past + _WARM_UP_INTERVALS + INTERVALS, self.num_paths)


def record(source: Drawn, file: Path) -> None:
    """Run the default mixture over the last intervals of a history and write its decisions."""
    problem, traffic = source.load()
    mixture = Mixture({name: make_hedge(name) for name in DEFAULT.split("+")}, warm_up=0)
    rows, decisions, weights, recent = [], [], [], []
    first = traffic.num_matrices - INTERVALS
    for row in range(first - _WARM_UP_INTERVALS, traffic.num_matrices):
        decided = mixture.decisions(Past(problem, traffic.part(0, row)))
        if row >= first and traffic.read([row]).sum() > 0:
            rows.append(row)
            decisions.append(decided.to(torch.float32).numpy())
            weights.append(mixture.weights)
            recent.append(mixture.recent_losses.copy())
    optimum = pdhg.solve(problem.with_demand(torch.from_numpy(traffic.read(rows))), gap=_OPTIMUM_GAP).value
    with atomic_file(file) as temporary:
        np.savez(
            temporary, rows=np.array(rows), decisions=np.stack(decisions), weights=np.stack(weights),
            recent_losses=np.stack(recent), optimum=optimum.numpy(),
        )  # fmt: skip


def record_all(sources: Sequence[Drawn], files: Sequence[Path], workers: int) -> Iterator[int]:
    """Record each history whose file does not exist; yields the numbers of those that are there.

    Args:
        sources: the histories.
        files: for each of them.
        workers: processes; 0 for one per core.
    """
    missing = [number for number, file in enumerate(files) if not file.exists()]
    yield from sorted(set(range(len(files))) - set(missing))
    calls = [(sources[number], files[number]) for number in missing]
    yield from (missing[done] for done in call_all(record, calls, workers=workers, threads=1))


def load_recording(source: Drawn, file: Path) -> Recording:
    """What :func:`record` wrote."""
    problem, traffic = source.load()
    check_npz(file)
    with np.load(file, allow_pickle=False) as stored:
        return Recording(problem, traffic, **{name: stored[name] for name in stored.files})
