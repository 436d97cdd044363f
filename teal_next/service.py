"""Allocations of a network for the interval after the last measured one, in the service.

Whenever a matrix is measured, the hedge ``mixture`` (:mod:`teal_next.mixture`) is updated and
allocates for the next interval, in a thread beside the engine.  The state of the mixture, and the
conformal limit of cost over the optimum, are stored beside the matrices and survive a restart.
Entry point: :class:`NextInterval` (entry point ``teal.service``).
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
from teal.solvers import pipeline
from teal_next.conformal import ConformalLimit
from teal_next.evaluation import realised
from teal_next.mixture import Mixture
from teal_next.variety import vary
from teal_serve.engine import parts
from teal_serve.engine.answer import Answer
from teal_serve.engine.log import LOG
from teal_serve.engine.solvers import HEDGE

# Target probability of the limit.
LIMIT_PROBABILITY = 0.95
# Certified gap of the optimum that realised utilisation is divided by.
_OPTIMUM_GAP = 1e-3
_MAX_LIMIT_BYTES = 1 << 20
# File names of the stored state.
_MIXTURE_FILE = "mixture.npz"
_LIMIT_FILE = "limit.json"


@dataclasses.dataclass(frozen=True, eq=False)
class NextAllocation(parts.NextAllocation):
    """Split ratios allocated for one interval.

    Attributes:
        version: version of the matrices that the splits are based on.
        time: time of the interval, if no interval is missing.
        capacity: (E,) Gbit/s that the splits were computed for.
        splits: (D, K) split ratios, float64.
        limit: upper limit of realised over optimal utilisation, which holds with probability
            :data:`LIMIT_PROBABILITY`; infinite while unknown.
        solve_s: solve time, seconds.
    """

    version: int
    time: np.datetime64
    capacity: FloatArray
    splits: Tensor
    limit: float
    solve_s: float


class NextInterval(parts.NextIntervalPart):
    """Next-interval allocation of one network in the service.

    :meth:`allocate` is called by one thread at a time.

    Args:
        name: name of the network.
        pairs: (D, 2) source and target of the demands.
        folder: folder of the measured matrices and of the stored state.
        varied: share of every demand on random, nearly optimal splits (:mod:`teal_next.variety`).
    """

    def __init__(self, name: str, pairs: Any, folder: Path, varied: float = 0.0) -> None:
        super().__init__(name, pairs, folder)
        self._random_share = varied
        self._mixture: Mixture | None = None
        # Time of the last interval that was compared with its optimum.
        self._compared_time: np.datetime64 | None = None
        self._ratio_limit = ConformalLimit(LIMIT_PROBABILITY)
        self.latest: NextAllocation | None = None
        # Realised over optimal utilisation in the last allocated interval.
        self.realised: float | None = None

    @override
    def clear(self) -> None:
        super().clear()
        self._mixture = self._compared_time = None
        self.latest = self.realised = None
        self._ratio_limit = ConformalLimit(LIMIT_PROBABILITY)

    @override
    def is_current(self, capacity: FloatArray) -> bool:
        """Return whether the latest allocation uses all measured matrices and these capacities.

        Args:
            capacity: (E,) current capacities, Gbit/s.
        """
        latest = self.latest
        if latest is None:
            return False
        return latest.version == self.matrices.version and np.array_equal(latest.capacity, capacity)

    @override
    def allocate(self, problem: Problem) -> NextAllocation:
        """Update the hedge with the matrices measured since the last call, and allocate.

        Args:
            problem: network, paths, objective, and the current capacities; B = 1, its demand is
                ignored.
        """
        begin = time.perf_counter()
        version = self.matrices.version
        traffic, first_row = self.matrices.traffic(self.name, self.pairs)
        # The next interval follows the newest matrix: lead 1.
        past = Past(problem, traffic, 1, first_row)
        previous = self.latest
        capacity = problem.capacity[0].numpy().copy()
        # Restart the mixture if capacities or the number of paths have changed: the hedges store
        # splits for the previous ones.
        if previous is not None and not np.array_equal(previous.capacity, capacity):
            self._mixture = None
        if previous is not None and previous.splits.shape[1] != problem.paths.num_paths:
            self._mixture = None
        mixture = self._mixture or self._restored_mixture(past)
        # Compare the last allocation with the optimum, once its matrix is measured.
        is_measured = previous is not None and previous.time in traffic.timestamps
        if previous is not None and is_measured and previous.time != self._compared_time:
            row = past.first_row + int(np.searchsorted(traffic.timestamps, previous.time))
            # Links may have failed since the allocation.
            self._observe(past.matrix(row), _over_live_paths(problem, previous.splits))
            self._compared_time = previous.time
        # Allocate for the next interval; optionally mix in random, nearly optimal splits.
        splits = mixture.allocate(past)
        if self._random_share:
            random_splits = vary(past.last(1), share=1.0, seed=past.traffic_row)
            splits = (1 - self._random_share) * splits.to(
                random_splits
            ) + self._random_share * random_splits
        # Repair the splits: live paths only, and a path for demands without traffic so far.
        is_new_demand = torch.from_numpy(~self.matrices.had_traffic())
        splits = _with_new_demands(problem, _over_live_paths(problem, splits), is_new_demand)
        self.latest = NextAllocation(
            version,
            past.target,
            capacity,
            splits,
            self._ratio_limit.limit,
            time.perf_counter() - begin,
        )
        # Store nothing if the network was deleted meanwhile.
        if not self.matrices.folder.is_dir():
            return self.latest
        # Store the state for a restart.
        mixture.save(self.matrices.folder / _MIXTURE_FILE)
        with atomic_file(self.matrices.folder / _LIMIT_FILE) as temporary:
            temporary.write_text(json.dumps(self._ratio_limit.state()), encoding="utf-8")
        return self.latest

    def _restored_mixture(self, past: Past) -> Mixture:
        """Return a new mixture with the stored weights and losses, if there are any.

        A stored state that is damaged or of other hedges is ignored, with a warning.

        Args:
            past: network, and the matrices measured so far.
        """
        mixture = make_hedge("mixture")
        assert isinstance(mixture, Mixture)
        mixture.begin(past)
        folder = self.matrices.folder
        if (folder / _MIXTURE_FILE).exists():
            try:
                mixture.restore(folder / _MIXTURE_FILE)
                self._ratio_limit.restore(
                    json.loads(small_text(folder / _LIMIT_FILE, _MAX_LIMIT_BYTES))
                )
            except (InputError, OSError, ValueError, RecursionError) as error:
                LOG.warning(
                    "stored state of the mixture is not usable, restarted without it",
                    extra={"teal": {"network": self.name, "error": str(error)[:200]}},
                )
        self._mixture = mixture
        return mixture

    def _observe(self, problem: Problem | None, splits: Tensor) -> None:
        """Record the ratio of realised to optimal utilisation in a measured interval.

        Args:
            problem: matrix of the interval, B = 1; None if it had no demand.
            splits: (D, K) splits that were allocated for it.
        """
        if problem is None:
            return
        optimal_result = pipeline.solve(problem, gap=_OPTIMUM_GAP)
        # Value of the allocated splits over that of optimal splits, both under the measured matrix.
        optimal_value = realised(problem, optimal_result.splits[0])
        ratio = realised(problem, splits) / optimal_value if optimal_value > 0 else math.nan
        if math.isfinite(ratio):
            self._ratio_limit.observe(ratio)
            self.realised = ratio

    @override
    def answer(
        self, latest: NextAllocation, rates: FloatArray, network: Problem, queue_s: float
    ) -> tuple[Answer, dict[str, Any]]:
        """Answer a request with the latest allocation, evaluated for given rates.

        Args:
            latest: latest allocation.
            rates: (1, D) Gbit/s for which utilisation and satisfied demand are computed.
            network: network with the current capacities, B = 1.
            queue_s: time that the request has waited, seconds.

        Returns:
            the answer, and its additional fields: time of the interval, and the conformal limit of
            the ratio of its cost to the optimum.
        """
        problem = network.with_demand(torch.from_numpy(rates))
        # Links may have failed since the allocation.
        splits = _over_live_paths(problem, latest.splits)[None]
        utilisation = problem.utilisation(splits).numpy()
        # Sent over requested traffic; 1e-300 avoids a division by 0.
        satisfied_share = problem.flows(splits).sum((1, 2)) / problem.demand.sum(1).clamp(
            min=1e-300
        )
        # Value, bound and gap are unknown, since the matrix of the interval is.
        unknown = np.full(1, np.nan)
        # JSON has no infinity: None stands for an unknown limit.
        limit = latest.limit if math.isfinite(latest.limit) else None
        answer = Answer(
            value=unknown,
            bound=unknown,
            gap=unknown,
            satisfied_demand=satisfied_share.numpy(),
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
    """Return splits in which the shares of failed paths move to the live paths of the same demand.

    They move in proportion to the splits of the live paths, or evenly if all these are 0.

    Args:
        problem: network with the current capacities, K paths per demand.
        splits: (D, K') splits with K' <= K; paths that were added since have a split of 0.

    Returns:
        (D, K) splits.
    """
    is_live = problem.path_mask[0]
    all_splits = splits.new_zeros(is_live.shape)
    # Raises an error if the problem has fewer paths.
    all_splits[:, : splits.shape[1]] = splits
    # Totals of each demand over live paths and over all paths; even splits where the first is 0.
    live_splits = torch.where(is_live, all_splits, 0)
    live_total = live_splits.sum(-1, keepdim=True)
    even_splits = is_live.to(splits) / is_live.sum(-1, keepdim=True).clamp(min=1)
    total_before = all_splits.sum(-1, keepdim=True)
    return torch.where(
        live_total > 0,
        live_splits * total_before / live_total.clamp(min=1e-300),
        even_splits * total_before,
    )


def _with_new_demands(problem: Problem, splits: Tensor, is_new_demand: Tensor) -> Tensor:
    """Return splits in which demands without known traffic use their shortest live path.

    Hedges cannot know such demands; on that path, new traffic is served.

    Args:
        problem: network and objective; if all demand must be carried, shares that the splits of a
            demand lack to 1 use the shortest path, too.
        splits: (D, K) over live paths.
        is_new_demand: (D,) whether a demand had no traffic so far.
    """
    # Find the live path with fewest links of each demand, and its share that no path carries.
    splits = torch.where(is_new_demand[:, None], 0, splits)
    is_live = problem.path_mask[0]
    hops = torch.where(is_live, torch.from_numpy(problem.paths.hops.astype(np.float64)), torch.inf)
    shortest_path_splits = torch.zeros_like(splits).scatter_(1, hops.argmin(1, keepdim=True), 1.0)
    missing_share = (1 - splits.sum(1)).clamp(min=0) * is_live.any(1)
    if not problem.demand_set.carries_all:
        missing_share = torch.where(is_new_demand, missing_share, 0)
    return splits + missing_share[:, None] * shortest_path_splits
