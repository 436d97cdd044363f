"""Tests of a purchase: which scenarios fit, by the engine in batches, and cuts for those that do
not.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from teal.runtime.arrays import BoolArray, FloatArray, Int64Array
from teal.runtime.interruptible import Deadline
from teal.solvers.pdhg import PdhgState, solve
from teal_ip.purchases.cuts import Cuts, cheapest_cost, cuts_of
from teal_ip.purchases.scenarios import Scenarios

# Certified gaps of the engine, one after the other, for the scenarios that the one before does not
# decide.
GAPS = 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 5e-6, 1e-6
_INTACT_GAP = 1e-2  # certified, of splits without failure that are tried under failures
_MIN_LEFT = (
    1e-3  # share of a demand on paths that are left, below which it is spread over them evenly
)
_MAX_SLOTS = (
    3_000_000  # path slots of all scenarios of a batch: some 100 MB for each array of the engine
)
FITS = 1e-6  # relative, by which a utilisation may pass the limit, for rounding


@dataclasses.dataclass(frozen=True, eq=False)
class Tested:
    """The result of a test.

    Attributes:
        load: (n, E) Gbit/s of the best splits of each scenario.
        utilisation: (n,) largest of a link.
        cuts: violated ones, at most one a scenario.
        violated: (n,) whether a scenario is proven not to fit.
        fits: (n,) whether it is proven to fit.
    """

    load: FloatArray
    utilisation: FloatArray
    cuts: Cuts
    violated: BoolArray
    fits: BoolArray


class Tester:
    """Tests purchases of one set of scenarios, and remembers the loads of each scenario's last
    splits.

    Splits that fit an earlier purchase mostly fit the next one too, so that most scenarios of a
    later test are decided without a solve.
    """

    def __init__(self, scenarios: Scenarios) -> None:
        self.scenarios = scenarios
        self._batch = max(1, _MAX_SLOTS // scenarios.problem.paths.mask.size)
        self._load = np.full((scenarios.num_scenarios, len(scenarios.cable)), np.inf)

    def test(
        self,
        bought: FloatArray,
        rows: Int64Array,
        deadline: Deadline,
        *,
        finest: float = 1e-2,
        until_cut: bool,
    ) -> Tested:
        """Solve scenarios until each is proven to fit or not to fit, or the finest gap is reached.

        Args:
            bought: (C,) the purchase.
            rows: (n,) numbers of the scenarios.
            deadline: after which the gaps reached are taken as they are; one pass is made in any
                case.
            finest: certified gap of the engine, below which no scenario is solved further.
            until_cut: whether to stop refining as soon as some scenario does not fit: its cut moves
                the purchase.
        """
        scenarios, count = self.scenarios, len(rows)
        self._load_as_intact(bought, rows, deadline)
        load = self._load[rows]
        violated = np.zeros(count, dtype=bool)
        utilisation = _utilisation(load, scenarios.capacity(bought, rows))
        cuts = Cuts(scenarios.num_cables, len(scenarios.cable))
        pending, state = np.flatnonzero(utilisation > scenarios.limit * (1 + FITS)), None
        for gap in GAPS:
            if gap < finest and gap != GAPS[0]:
                break
            states = []
            for first in range(0, len(pending), self._batch):
                part = pending[first : first + self._batch]
                start = state.rows(slice(first, first + self._batch)) if state is not None else None
                states.append(
                    self._solve(
                        bought, rows, part, gap, start, deadline, load, utilisation, cuts, violated
                    )
                )
            fits = utilisation <= scenarios.limit * (1 + FITS)
            left = ~(fits | violated)[pending]
            if not left.any() or deadline.is_over or (until_cut and violated.any()):
                break
            chosen = torch.from_numpy(left)
            state = PdhgState(
                torch.cat([one.splits for one in states])[chosen],
                torch.cat([one.prices for one in states])[chosen],
            )
            pending = pending[left]
        self._load[rows] = load
        return Tested(
            load, utilisation, cuts, violated, utilisation <= scenarios.limit * (1 + FITS)
        )

    def worst(self, bought: FloatArray, most: int, deadline: Deadline) -> Int64Array:
        """Numbers of the scenarios that the splits so far fit least, those first that pass the
        limit by most.
        """
        rows = np.arange(self.scenarios.num_scenarios)
        self._load_as_intact(bought, rows, deadline)
        over = _utilisation(self._load, self.scenarios.capacity(bought, rows))
        order = np.argsort(-over)[:most]
        return np.asarray(order[over[order] > self.scenarios.limit * (1 + FITS)])

    def _load_as_intact(self, bought: FloatArray, rows: Int64Array, deadline: Deadline) -> None:
        """First loads of scenarios that were never tested: by the splits without failure, moved to
        paths that are left.

        Most failures of most matrices fit so, at the price of one pass over the paths.
        """
        scenarios = self.scenarios
        new = rows[~np.isfinite(self._load[rows]).all(1)]
        new = new[scenarios.intact[new] != new]
        bases = np.unique(scenarios.intact[new])
        for first in range(0, len(bases), self._batch):
            some = bases[first : first + self._batch]
            result = solve(
                scenarios.batch(some, bought), gap=_INTACT_GAP, deadline=deadline.remaining
            )
            failed = new[np.isin(scenarios.intact[new], some)]
            for begin in range(0, len(failed), self._batch):
                part = failed[begin : begin + self._batch]
                problem = scenarios.batch(part, bought)
                splits = result.splits[
                    torch.from_numpy(np.searchsorted(some, scenarios.intact[part]))
                ]
                splits = torch.where(problem.path_mask, splits, 0.0)
                left = splits.sum(-1, keepdim=True)
                paths = problem.path_mask.to(splits).sum(-1, keepdim=True).clamp(min=1)
                even = problem.path_mask.to(splits) / paths
                splits = torch.where(left > _MIN_LEFT, splits / left.clamp(min=_MIN_LEFT), even)
                self._load[part] = problem.loads(splits).numpy()

    def _solve(
        self,
        bought: FloatArray,
        rows: Int64Array,
        part: Int64Array,
        gap: float,
        start: PdhgState | None,
        deadline: Deadline,
        load: FloatArray,
        utilisation: FloatArray,
        cuts: Cuts,
        violated: BoolArray,
    ) -> PdhgState:
        """Solve some scenarios to a gap and write down what was found."""
        scenarios = self.scenarios
        problem = scenarios.batch(rows[part], bought)
        result = solve(problem, gap=gap, deadline=deadline.remaining, warm_start=start)
        loads = problem.loads(result.splits)
        load[part] = loads.numpy()
        utilisation[part] = problem.utilisation_of(loads).amax(1).numpy()
        prices = torch.where(
            problem.capacity > 0, result.prices.clamp(min=0).nan_to_num(), 0.0
        ).numpy()
        needed = cheapest_cost(problem, prices)
        found = cuts_of(scenarios, rows[part], prices, needed)
        missed = found.lacking(bought) > 0
        violated[part[np.isin(rows[part], found.row[missed])]] = True
        cuts.add(found.some(np.flatnonzero(missed)))
        return result.state


def _utilisation(load: FloatArray, capacity: FloatArray) -> FloatArray:
    """(n,) largest of loads (n, E) over capacities (n, E); infinite for a load on a link without
    capacity.
    """
    has_capacity = capacity > 0
    over = np.where(
        has_capacity, load / np.where(has_capacity, capacity, 1.0), np.where(load > 0, np.inf, 0.0)
    )
    return np.asarray(over.max(1, initial=0.0))
