"""Allocations of a network for the interval after the last measured one, whose traffic nobody knows
yet.

Whenever a matrix is measured, the hedge ``mixture`` (:mod:`teal_next.mixture`) takes it in and
allocates for the interval after it, in a thread beside the engine.  What the mixture has learnt,
and the limit of what an allocation costs over the optimum, are stored beside the matrices and
survive a restart.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from teal.errors import InputError
from teal.problem import Problem
from teal.runtime.arrays import FloatArray
from teal.runtime.storage import atomic_file, small_text
from teal.schemes.hedges import make_hedge
from teal.schemes.past import Past
from teal.serving.engine import parts
from teal.serving.engine.answer import Answer
from teal.serving.engine.log import LOG
from teal.serving.engine.solvers import HEDGE
from teal.solvers import pdhg
from teal_next.conformal import ConformalLimit
from teal_next.evaluation import realised
from teal_next.mixture import Mixture
from teal_next.variety import vary

LIMIT_PROBABILITY = 0.95  # probability with which the limit is to hold
_OPTIMUM_GAP = 1e-3  # certified, of the optimum that realised utilisation is divided by
_MAX_LIMIT_BYTES = 1 << 20
_MIXTURE, _LIMIT = "mixture.npz", "limit.json"


@dataclasses.dataclass(frozen=True, eq=False)
class NextAllocation(parts.NextAllocation):
    """Splits for an interval.

    Attributes:
        version: version of the matrices that they know.
        time: time of the interval, if none is missing between.
        capacity: (E,) that they were made for.
        splits: (D, K) float64.
        limit: limit of realised over optimal utilisation, to hold with probability
            :data:`LIMIT_PROBABILITY`; infinite while unknown.
        solve_s: seconds that it took.
    """

    version: int
    time: np.datetime64
    capacity: FloatArray
    splits: Tensor
    limit: float
    solve_s: float


class NextInterval(parts.NextIntervalPart):
    """One network.  :meth:`allocate` is called in one thread at a time.

    Args:
        name: name of the network.
        pairs: (D, 2) of its paths.
        folder: folder of the measured matrices and of what is learnt.
        varied: share of every demand on random, nearly optimal splits (:mod:`teal_next.variety`).
    """

    def __init__(self, name: str, pairs: Any, folder: Path, varied: float = 0.0) -> None:
        super().__init__(name, pairs, folder)
        self._varied = varied
        self._hedge: Mixture | None = None
        # Time of the last interval that was compared with its optimum.
        self._observed: np.datetime64 | None = None
        self._limit = ConformalLimit(LIMIT_PROBABILITY)
        self.latest: NextAllocation | None = None
        self.realised: float | None = (
            None  # over optimal utilisation, in the last interval that was allocated for
        )

    @override
    def clear(self) -> None:
        super().clear()
        self._hedge = self._observed = None
        self.latest = self.realised = None
        self._limit = ConformalLimit(LIMIT_PROBABILITY)

    @override
    def is_current(self, capacity: FloatArray) -> bool:
        """Whether the latest allocation knows all matrices, and is for these capacities."""
        latest = self.latest
        if latest is None:
            return False
        return latest.version == self.matrices.version and np.array_equal(latest.capacity, capacity)

    @override
    def allocate(self, problem: Problem) -> NextAllocation:
        """Take in what was measured since the last call, and allocate for the next interval.

        Args:
            problem: network, paths, objective, and the capacities in force; B = 1, its demand means
                nothing.
        """
        begin, version = time.perf_counter(), self.matrices.version
        traffic, first_row = self.matrices.traffic(self.name, self.pairs)
        past = Past(problem, traffic, 1, first_row)
        before, capacity = self.latest, problem.capacity[0].numpy().copy()
        if before is not None and not np.array_equal(before.capacity, capacity):
            self._hedge = None  # its parts remember splits that they made for other capacities
        if before is not None and before.splits.shape[1] != problem.paths.num_paths:
            self._hedge = None  # and those of fewer paths
        hedge = self._hedge or self._begun(past)
        is_measured = before is not None and before.time in traffic.timestamps
        if before is not None and is_measured and before.time != self._observed:
            row = past.first_row + int(np.searchsorted(traffic.timestamps, before.time))
            self._observe(
                past.matrix(row), _over_live_paths(problem, before.splits)
            )  # links may have failed since
            self._observed = before.time
        splits = hedge.allocate(past)
        if self._varied:
            other = vary(past.last(1), share=1.0, seed=past.traffic_row)
            splits = (1 - self._varied) * splits.to(other) + self._varied * other
        is_new = torch.from_numpy(~self.matrices.had_traffic())
        splits = _all_sent(problem, _over_live_paths(problem, splits), is_new)
        self.latest = NextAllocation(
            version, past.target, capacity, splits, self._limit.limit, time.perf_counter() - begin
        )
        if not self.matrices.folder.is_dir():  # the network was deleted
            return self.latest
        hedge.save(self.matrices.folder / _MIXTURE)
        with atomic_file(self.matrices.folder / _LIMIT) as temporary:
            temporary.write_text(json.dumps(self._limit.state()), encoding="utf-8")
        return self.latest

    def _begun(self, past: Past) -> Mixture:
        """The hedge, with what was learnt before a restart."""
        hedge = make_hedge("mixture")
        assert isinstance(hedge, Mixture)
        hedge.begin(past)
        folder = self.matrices.folder
        if (folder / _MIXTURE).exists():
            try:
                hedge.restore(folder / _MIXTURE)
                self._limit.restore(json.loads(small_text(folder / _LIMIT, _MAX_LIMIT_BYTES)))
            except (InputError, OSError, ValueError, RecursionError) as error:
                LOG.warning(
                    "begun anew", extra={"teal": {"network": self.name, "error": str(error)[:200]}}
                )
        self._hedge = hedge
        return hedge

    def _observe(self, problem: Problem | None, splits: Tensor) -> None:
        """Compare what an interval brought with its optimum."""
        if problem is None:
            return
        optimum = pdhg.solve(problem, gap=_OPTIMUM_GAP)
        least = realised(problem, optimum.splits[0])
        ratio = realised(problem, splits) / least if least > 0 else math.nan
        if math.isfinite(ratio):
            self._limit.observe(ratio)
            self.realised = ratio

    @override
    def answer(
        self, latest: NextAllocation, rates: FloatArray, network: Problem, queue_s: float
    ) -> tuple[Answer, dict[str, Any]]:
        problem = network.with_demand(torch.from_numpy(rates))
        splits = _over_live_paths(problem, latest.splits)[None]  # links may have failed since
        utilisation = problem.utilisation(splits).numpy()
        carried = problem.flows(splits).sum((1, 2)) / problem.demand.sum(1).clamp(min=1e-300)
        unknown = np.full(1, np.nan)
        limit = latest.limit if math.isfinite(latest.limit) else None
        answer = Answer(
            value=unknown,
            bound=unknown,
            gap=unknown,
            satisfied_demand=carried.numpy(),
            max_link_utilisation=utilisation.max(1),
            utilisation=utilisation,
            splits=splits.to(torch.float32).numpy(),
            weights=None,
            status=("next",),
            queue_ms=1e3 * queue_s,
            solve_ms=1e3 * latest.solve_s,
            batch=1,
            solver=HEDGE,
        )
        return answer, {
            "time": f"{latest.time}Z",
            "limit": {"level": LIMIT_PROBABILITY, "ratio": limit, "realised": self.realised},
        }


def _over_live_paths(problem: Problem, splits: Tensor) -> Tensor:
    """The splits (D, K), 0 on paths that were added since; what failed paths had is divided in
    proportion.
    """
    is_live = problem.path_mask[0]
    wider = splits.new_zeros(is_live.shape)
    wider[:, : splits.shape[1]] = splits  # raises where the problem has fewer paths
    live = torch.where(is_live, wider, 0)
    total = live.sum(-1, keepdim=True)
    even = is_live.to(splits) / is_live.sum(-1, keepdim=True).clamp(min=1)
    wanted = wider.sum(-1, keepdim=True)
    return torch.where(total > 0, live * wanted / total.clamp(min=1e-300), even * wanted)


def _all_sent(problem: Problem, splits: Tensor, is_new: Tensor) -> Tensor:
    """The splits (D, K) with the shortest live path for what hedges cannot know, so that traffic
    that begins is sent.

    Args:
        problem: network and objective; where all demand must be carried, whatever is missing takes
            the shortest path.
        splits: (D, K) over live paths.
        is_new: (D,) demands without traffic so far, which take it alone.
    """
    splits = torch.where(is_new[:, None], 0, splits)
    is_live = problem.path_mask[0]
    hops = torch.where(is_live, torch.from_numpy(problem.paths.hops.astype(np.float64)), torch.inf)
    shortest = torch.zeros_like(splits).scatter_(1, hops.argmin(1, keepdim=True), 1.0)
    missing = (1 - splits.sum(1)).clamp(min=0) * is_live.any(1)
    if not problem.demand_set.carries_all:
        missing = torch.where(is_new, missing, 0)
    return splits + missing[:, None] * shortest
