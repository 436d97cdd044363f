"""Subproblems of the Benders decomposition: tests of scenarios against an expansion, and cuts of
those that do not fit.

:mod:`teal.solvers.pdhg` solves scenarios in batches.  Axis letters: n tested scenarios, S
scenarios, C cables, E links.  Entry point: :class:`Tester`.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from teal.runtime.arrays import BoolArray, FloatArray, Int64Array
from teal.runtime.interruptible import Deadline
from teal.solvers.pipeline import solve
from teal.solvers.result import SolveState
from teal_ip.purchases.cuts import Cuts, cheapest_cost, make_cuts
from teal_ip.purchases.scenarios import Scenarios

# Certified gaps of the solver, in turn; each one is for the scenarios that the previous gap leaves
# undecided.
GAPS = 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 5e-6, 1e-6
# Certified gap of the splits without failure that are tried under failures.
_INTACT_GAP = 1e-2
# Split ratio on live paths below which a demand is spread over them evenly.
_MIN_LIVE_SHARE = 1e-3
# Largest number of path slots of a batch, over all its scenarios: about 100 MB for each array of
# the solver.
_MAX_SLOTS = 3_000_000
# Relative excess of a utilisation over the limit that counts as rounding.
FIT_TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True, eq=False)
class Tested:
    """Result of a test of n scenarios.

    Attributes:
        load: (n, E) Gbit/s under the best splits of each scenario.
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

    Args:
        scenarios: matrices under failures.
    """

    def __init__(self, scenarios: Scenarios) -> None:
        self.scenarios = scenarios
        self._batch_size = max(1, _MAX_SLOTS // scenarios.problem.paths.mask.size)
        # Cache (S, E) of link loads, Gbit/s; infinite before the first test.
        self._cached_loads = np.full((scenarios.num_scenarios, len(scenarios.cable)), np.inf)

    def test(
        self,
        added_capacity: FloatArray,
        rows: Int64Array,
        deadline: Deadline,
        *,
        min_gap: float = 1e-2,
        stop_at_cut: bool,
    ) -> Tested:
        """Solve scenarios to smaller and smaller gaps, until each one is proven to fit or proven
        not to fit, or until the gap ``min_gap`` is reached.

        A scenario (matrix under a failure) fits if its splits respect the utilisation limit; it
        does not fit if its dual prices give a violated cut.

        Args:
            added_capacity: (C,) Gbit/s added to each cable.
            rows: (n,) indices of the scenarios.
            deadline: time limit, after which the current gaps decide; at least one pass is made.
            min_gap: smallest certified gap of the solver; undecided scenarios are not solved to a
                smaller one.
            stop_at_cut: whether to return as soon as a pass proves that some scenario does not fit,
                since its cut changes the expansion.
        """
        # Cached loads, or those of the splits without failure, decide most scenarios.
        scenarios = self.scenarios
        num_scenarios = len(rows)
        self._load_from_intact(added_capacity, rows, deadline)
        load = self._cached_loads[rows]
        violated = np.zeros(num_scenarios, dtype=bool)
        utilisation = _utilisation(load, scenarios.capacity(added_capacity, rows))
        cuts = Cuts(scenarios.num_cables, len(scenarios.cable))
        # Solve the others in batches, with smaller and smaller gaps; positions in ``rows``.
        pending_positions = np.flatnonzero(
            utilisation > scenarios.max_utilisation * (1 + FIT_TOLERANCE)
        )
        state = None
        for gap in GAPS:
            # The first pass is always made.
            if gap < min_gap and gap != GAPS[0]:
                break
            states = []
            for first in range(0, len(pending_positions), self._batch_size):
                block = pending_positions[first : first + self._batch_size]
                start = (
                    state.rows(slice(first, first + self._batch_size))
                    if state is not None
                    else None
                )
                states.append(
                    self._solve(
                        added_capacity,
                        rows,
                        block,
                        gap,
                        start,
                        deadline,
                        load,
                        utilisation,
                        cuts,
                        violated,
                    )
                )
            # Refine the undecided scenarios, from the splits and prices of this pass.
            fits = utilisation <= scenarios.max_utilisation * (1 + FIT_TOLERANCE)
            is_undecided = ~(fits | violated)[pending_positions]
            if not is_undecided.any() or deadline.is_over or (stop_at_cut and violated.any()):
                break
            undecided = torch.from_numpy(is_undecided)
            state = SolveState(
                torch.cat([state.splits for state in states])[undecided],
                torch.cat([state.prices for state in states])[undecided],
            )
            pending_positions = pending_positions[is_undecided]
        self._cached_loads[rows] = load
        return Tested(
            load,
            utilisation,
            cuts,
            violated,
            utilisation <= scenarios.max_utilisation * (1 + FIT_TOLERANCE),
        )

    def most_violated_scenarios(
        self, added_capacity: FloatArray, max_scenarios: int, deadline: Deadline
    ) -> Int64Array:
        """Return the indices of the scenarios whose cached loads exceed the limit, by descending
        utilisation.

        Args:
            added_capacity: (C,) Gbit/s added to each cable.
            max_scenarios: largest number of scenarios.
            deadline: time limit of the solves without failure.
        """
        rows = np.arange(self.scenarios.num_scenarios)
        self._load_from_intact(added_capacity, rows, deadline)
        utilisation = _utilisation(
            self._cached_loads, self.scenarios.capacity(added_capacity, rows)
        )
        order = np.argsort(-utilisation)[:max_scenarios]
        return np.asarray(
            order[utilisation[order] > self.scenarios.max_utilisation * (1 + FIT_TOLERANCE)]
        )

    def _load_from_intact(
        self, added_capacity: FloatArray, rows: Int64Array, deadline: Deadline
    ) -> None:
        """Initialise the loads of untested scenarios under failures.

        The splits of the same matrix without failure move from failed paths to live ones, in
        proportion.  They fit most failures of most matrices, at the cost of one pass over the
        paths.

        Args:
            added_capacity: (C,) Gbit/s added to each cable.
            rows: (n,) indices of the scenarios.
            deadline: time limit of the solves.
        """
        scenarios = self.scenarios
        # Untested scenarios under failures, and the scenarios of the same matrices without failure.
        untested_rows = rows[~np.isfinite(self._cached_loads[rows]).all(1)]
        untested_rows = untested_rows[scenarios.intact[untested_rows] != untested_rows]
        intact_rows = np.unique(scenarios.intact[untested_rows])
        for first in range(0, len(intact_rows), self._batch_size):
            block_intact = intact_rows[first : first + self._batch_size]
            solution = solve(
                scenarios.batch(block_intact, added_capacity),
                gap=_INTACT_GAP,
                deadline=deadline.remaining,
            )
            # Move the splits of failed paths to the live ones, in proportion; spread them evenly if
            # the live paths have almost none.
            failed_rows = untested_rows[np.isin(scenarios.intact[untested_rows], block_intact)]
            for begin in range(0, len(failed_rows), self._batch_size):
                block = failed_rows[begin : begin + self._batch_size]
                problem = scenarios.batch(block, added_capacity)
                splits = solution.splits[
                    torch.from_numpy(np.searchsorted(block_intact, scenarios.intact[block]))
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
                self._cached_loads[block] = problem.loads(splits).numpy()

    def _solve(
        self,
        added_capacity: FloatArray,
        rows: Int64Array,
        block: Int64Array,
        gap: float,
        start: SolveState | None,
        deadline: Deadline,
        load: FloatArray,
        utilisation: FloatArray,
        cuts: Cuts,
        violated: BoolArray,
    ) -> SolveState:
        """Solve a block of the tested scenarios to a gap; store loads, utilisations and cuts.

        Args:
            added_capacity: (C,) Gbit/s added to each cable.
            rows: (n,) indices of the tested scenarios.
            block: positions in ``rows`` of the scenarios to solve.
            gap: certified gap of the solver.
            start: splits and prices of a previous pass; None for none.
            deadline: time limit.
            load: (n, E) Gbit/s (written).
            utilisation: (n,) largest link utilisation (written).
            cuts: violated cuts are appended.
            violated: (n,) whether each scenario is proven not to fit (written).

        Returns:
            splits and prices of the block, to start the next pass.
        """
        scenarios = self.scenarios
        problem = scenarios.batch(rows[block], added_capacity)
        solution = solve(problem, gap=gap, deadline=deadline.remaining, warm_start=start)
        loads = problem.loads(solution.splits)
        load[block] = loads.numpy()
        utilisation[block] = problem.utilisation_of(loads).amax(1).numpy()
        # Dual prices, 0 on links without capacity, and their Benders cuts: the capacity must be
        # worth at least the cost of all demands on cheapest paths.
        prices = torch.where(
            problem.capacity > 0, solution.prices.clamp(min=0).nan_to_num(), 0.0
        ).numpy()
        needed = cheapest_cost(problem, prices)
        new_cuts = make_cuts(scenarios, rows[block], prices, needed)
        # Scenarios whose cut the expansion violates do not fit; keep these cuts.
        is_violated = new_cuts.relative_violation(added_capacity) > 0
        violated[block[np.isin(rows[block], new_cuts.row[is_violated])]] = True
        cuts.add(new_cuts.select(np.flatnonzero(is_violated)))
        return solution.state


def _utilisation(load: FloatArray, capacity: FloatArray) -> FloatArray:
    """Return the largest link utilisation (n,); infinite for a load on a link without capacity.

    Args:
        load: (n, E) Gbit/s.
        capacity: (n, E) Gbit/s.
    """
    has_capacity = capacity > 0
    utilisation = np.where(
        has_capacity, load / np.where(has_capacity, capacity, 1.0), np.where(load > 0, np.inf, 0.0)
    )
    return np.asarray(utilisation.max(1, initial=0.0))
