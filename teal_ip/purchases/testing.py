"""Subproblems of the decomposition: which scenarios fit an expansion, by the engine in batches, and
cuts for those that do not.

Entry point: :class:`Tester`.
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

# Certified gaps of the engine, in turn, for the scenarios that the previous gap does not decide.
GAPS = 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 5e-6, 1e-6
# Certified gap of the splits without failure that are tried under failures.
_INTACT_GAP = 1e-2
# Share of a demand on live paths below which it is spread over them evenly.
_MIN_LIVE_SHARE = 1e-3
# Path slots of all scenarios of a batch: about 100 MB for each array of the engine.
_MAX_SLOTS = 3_000_000
# Relative excess of a utilisation over the limit that counts as rounding.
FITS = 1e-6


@dataclasses.dataclass(frozen=True, eq=False)
class Tested:
    """Result of a test.

    Attributes:
        load: (n, E) Gbit/s of the best splits of each scenario.
        utilisation: (n,) largest link utilisation.
        cuts: violated cuts, at most one per scenario.
        violated: (n,) whether a scenario is proven not to fit.
        fits: (n,) whether a scenario is proven to fit.
    """

    load: FloatArray
    utilisation: FloatArray
    cuts: Cuts
    violated: BoolArray
    fits: BoolArray


class Tester:
    """Tests expansions on one set of scenarios, with a cache of each scenario's last link loads.

    Splits that fit an earlier expansion mostly fit the next one, so most scenarios of a later test
    are decided without a solve.
    """

    def __init__(self, scenarios: Scenarios) -> None:
        self.scenarios = scenarios
        self._batch = max(1, _MAX_SLOTS // scenarios.problem.paths.mask.size)
        self._loads = np.full((scenarios.num_scenarios, len(scenarios.cable)), np.inf)

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
            bought: (C,) the expansion.
            rows: (n,) indices of the scenarios.
            deadline: time limit, after which the current gaps decide; at least one pass is made.
            finest: smallest certified gap of the engine.
            until_cut: whether to stop refining as soon as some scenario does not fit: its cut
                changes the expansion.
        """
        # Cached loads decide most scenarios.
        scenarios = self.scenarios
        num_scenarios = len(rows)
        self._load_from_intact(bought, rows, deadline)
        load = self._loads[rows]
        violated = np.zeros(num_scenarios, dtype=bool)
        utilisation = _utilisation(load, scenarios.capacity(bought, rows))
        cuts = Cuts(scenarios.num_cables, len(scenarios.cable))
        # Solve the others, with smaller and smaller gaps.
        pending = np.flatnonzero(utilisation > scenarios.limit * (1 + FITS))
        state = None
        for gap in GAPS:
            if gap < finest and gap != GAPS[0]:
                break
            states = []
            for first in range(0, len(pending), self._batch):
                block = pending[first : first + self._batch]
                start = state.rows(slice(first, first + self._batch)) if state is not None else None
                states.append(
                    self._solve(
                        bought, rows, block, gap, start, deadline, load, utilisation, cuts, violated
                    )
                )
            fits = utilisation <= scenarios.limit * (1 + FITS)
            is_undecided = ~(fits | violated)[pending]
            if not is_undecided.any() or deadline.is_over or (until_cut and violated.any()):
                break
            undecided = torch.from_numpy(is_undecided)
            state = PdhgState(
                torch.cat([state.splits for state in states])[undecided],
                torch.cat([state.prices for state in states])[undecided],
            )
            pending = pending[is_undecided]
        self._loads[rows] = load
        return Tested(
            load, utilisation, cuts, violated, utilisation <= scenarios.limit * (1 + FITS)
        )

    def worst(self, bought: FloatArray, max_scenarios: int, deadline: Deadline) -> Int64Array:
        """Indices of the scenarios that fit the cached loads least, in descending order of
        utilisation.
        """
        rows = np.arange(self.scenarios.num_scenarios)
        self._load_from_intact(bought, rows, deadline)
        utilisation = _utilisation(self._loads, self.scenarios.capacity(bought, rows))
        order = np.argsort(-utilisation)[:max_scenarios]
        return np.asarray(order[utilisation[order] > self.scenarios.limit * (1 + FITS)])

    def _load_from_intact(self, bought: FloatArray, rows: Int64Array, deadline: Deadline) -> None:
        """Initialise the loads of untested scenarios: the splits without failure, moved to live
        paths.

        Most failures of most matrices fit these splits, at the cost of one pass over the paths.
        """
        scenarios = self.scenarios
        # Untested scenarios under failures, and their scenarios without failure.
        untested = rows[~np.isfinite(self._loads[rows]).all(1)]
        untested = untested[scenarios.intact[untested] != untested]
        bases = np.unique(scenarios.intact[untested])
        for first in range(0, len(bases), self._batch):
            block_bases = bases[first : first + self._batch]
            result = solve(
                scenarios.batch(block_bases, bought), gap=_INTACT_GAP, deadline=deadline.remaining
            )
            # Move the splits of failed paths to the live ones, in proportion.
            failed = untested[np.isin(scenarios.intact[untested], block_bases)]
            for begin in range(0, len(failed), self._batch):
                block = failed[begin : begin + self._batch]
                problem = scenarios.batch(block, bought)
                splits = result.splits[
                    torch.from_numpy(np.searchsorted(block_bases, scenarios.intact[block]))
                ]
                splits = torch.where(problem.path_mask, splits, 0.0)
                live_share = splits.sum(-1, keepdim=True)
                num_paths = problem.path_mask.to(splits).sum(-1, keepdim=True).clamp(min=1)
                even_splits = problem.path_mask.to(splits) / num_paths
                splits = torch.where(
                    live_share > _MIN_LIVE_SHARE,
                    splits / live_share.clamp(min=_MIN_LIVE_SHARE),
                    even_splits,
                )
                self._loads[block] = problem.loads(splits).numpy()

    def _solve(
        self,
        bought: FloatArray,
        rows: Int64Array,
        block: Int64Array,
        gap: float,
        start: PdhgState | None,
        deadline: Deadline,
        load: FloatArray,
        utilisation: FloatArray,
        cuts: Cuts,
        violated: BoolArray,
    ) -> PdhgState:
        """Solve some scenarios to a gap; store loads, utilisations and cuts."""
        scenarios = self.scenarios
        problem = scenarios.batch(rows[block], bought)
        result = solve(problem, gap=gap, deadline=deadline.remaining, warm_start=start)
        loads = problem.loads(result.splits)
        load[block] = loads.numpy()
        utilisation[block] = problem.utilisation_of(loads).amax(1).numpy()
        prices = torch.where(
            problem.capacity > 0, result.prices.clamp(min=0).nan_to_num(), 0.0
        ).numpy()
        needed = cheapest_cost(problem, prices)
        new_cuts = cuts_of(scenarios, rows[block], prices, needed)
        is_violated = new_cuts.lacking(bought) > 0
        violated[block[np.isin(rows[block], new_cuts.row[is_violated])]] = True
        cuts.add(new_cuts.some(np.flatnonzero(is_violated)))
        return result.state


def _utilisation(load: FloatArray, capacity: FloatArray) -> FloatArray:
    """Largest utilisation (n,) of loads (n, E) over capacities (n, E); infinite for a load on a
    link without capacity.
    """
    has_capacity = capacity > 0
    utilisation = np.where(
        has_capacity, load / np.where(has_capacity, capacity, 1.0), np.where(load > 0, np.inf, 0.0)
    )
    return np.asarray(utilisation.max(1, initial=0.0))
