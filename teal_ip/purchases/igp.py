"""Expansion for the IGP's shortest paths: loads, and the cheapest expansion over all subsets of new
cables.

The IGP routes over a new cable as soon as it exists, whatever its capacity, so every subset of new
cables has its own loads.  A subset with an unused cable routes like the subset without it.  Entry
points: :func:`expand_for_igp`; :class:`LeftOut` evaluates a plan on the matrices outside it.

Axis letters: S scenarios, F failures, M matrices, D demands, C cables, E links.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Sequence

import numpy as np

from teal.errors import InputError
from teal.network.ecmp import EcmpDag, igp_metric
from teal.network.failures import Failure
from teal.network.segment_lists import SegmentPolicies
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array
from teal_ip.purchases.benders import Upgrade, expand_for_loads
from teal_ip.purchases.question import UpgradeTask
from teal_ip.purchases.result import Replayed
from teal_ip.purchases.scenarios import Scenarios
from teal_ip.purchases.testing import FIT_TOLERANCE, Tester
from teal_ip.routing.igp_failures import IgpFailures
from teal_ip.routing.installed import IgpRouting
from teal_ip.routing.simulate import largest_loads

# Maximum number of new cables: every one of their 1,024 subsets is routed.
_MAX_CANDIDATES = 10
# Relative rounding error of HiGHS's bound on the cost.
_BOUND_ROUNDING = 1e-6
# Rounding error of sums of disconnected demand, as a fraction of all demands.
_ROUNDING = 1e-9


def igp_loads(task: UpgradeTask, scenarios: Scenarios, added_capacity: FloatArray) -> FloatArray:
    """Return the link loads (S, E), Gbit/s, on the IGP's shortest paths after it has converged.

    Args:
        task: supplies the network and its failures.
        scenarios: every matrix without failure, and under each of the task's failures in turn.
        added_capacity: (C,) above 0 for each candidate cable that is built.
    """
    is_built = (added_capacity > 0)[scenarios.cable]
    return _route(task, _dag(task), scenarios, task.failures, is_built)[0]


def largest_igp_loads(task: UpgradeTask) -> FloatArray:
    """Return the largest link loads (1 + F, E), Gbit/s, of all matrices without new cables: without
    failure, then under each.
    """
    # Links of new cables are left out: none is built yet.
    is_candidate_link = np.isin(_cable_of_link(task), task.offer.candidates)
    routing = IgpRouting(
        _dag(task).without(np.flatnonzero(is_candidate_link).tolist()), task.instance.traffic.pairs
    )
    traffic = task.instance.traffic.scaled(task.config.growth)
    return largest_loads(routing, traffic, np.arange(task.num_matrices), task.failures)


def _cable_of_link(task: UpgradeTask) -> Int64Array:
    """Return the index (E,) of the cable (pair of opposite links) of each link."""
    cable = np.zeros(task.offer.topology.num_links, dtype=np.int64)
    for pair_index, links in enumerate(task.offer.topology.link_pairs()):
        cable[links] = pair_index
    return cable


def expand_for_igp(
    task: UpgradeTask,
    scenarios: Scenarios,
    sizes: Sequence[tuple[float, float]],
    failures: Sequence[Failure],
) -> Upgrade:
    """Find the cheapest expansion over all subsets of new cables, for the IGP's shortest paths.

    The bound on the cost is 0 if the deadline comes before the last subset.

    Args:
        task: supplies the network, new cables and the deadline.
        scenarios: every matrix without failure, and under each failure in turn.
        sizes: Gbit/s and price of each module size; () for any amounts.
        failures: failures of the scenarios.

    Raises:
        InputError: more than 10 new cables, or no subset within the limits of the cables.
    """
    begin = time.perf_counter()
    candidates = task.offer.candidates
    if len(candidates) > _MAX_CANDIDATES:
        raise InputError(
            "--candidates",
            "rows",
            f"at most {_MAX_CANDIDATES} new cables with --routing ecmp",
            len(candidates),
        )
    # Demand (S,) without a path if all new cables exist: subsets that disconnect more are skipped.
    dag = _dag(task)
    _, unroutable = _route(
        task, dag, scenarios, failures, np.ones(len(scenarios.cable), dtype=bool)
    )
    max_unroutable = unroutable + _ROUNDING * scenarios.demand.sum(1).max(initial=0.0)
    # Every subset of new cables, the smallest first.
    subsets = itertools.chain(
        *(itertools.combinations(candidates, count) for count in range(len(candidates) + 1))
    )
    best_upgrade: Upgrade | None = None
    bound = math.inf
    num_tried = 0
    last_error = None
    for built_cables in subsets:
        if best_upgrade is not None and task.deadline.is_over:
            bound = 0.0
            break
        num_tried += 1
        # Loads and unroutable demand with these new cables; skip a subset that disconnects more.
        load, subset_unroutable = _route(
            task, dag, scenarios, failures, np.isin(scenarios.cable, built_cables)
        )
        if (subset_unroutable > max_unroutable).any():
            continue
        # The cheapest expansion for the loads of this subset.
        try:
            upgrade = expand_for_loads(scenarios, load, sizes, task.deadline)
        except InputError as infeasible:
            last_error = infeasible
            continue
        bound = min(bound, upgrade.bound)
        if best_upgrade is None or upgrade.cost < best_upgrade.cost:
            best_upgrade = upgrade
    if best_upgrade is None:
        raise last_error or InputError.invalid(
            "--candidates", "rows", "no set of new cables connects all demands"
        )
    return dataclasses.replace(
        best_upgrade,
        bound=bound,
        rounds=num_tried,
        solve_s=time.perf_counter() - begin,
        reached=best_upgrade.cost <= bound * (1 + _BOUND_ROUNDING),
    )


def _dag(task: UpgradeTask) -> EcmpDag:
    """Return the shortest paths of the IGP, by the metrics of the network, with all new cables."""
    return EcmpDag.of(task.offer.topology, igp_metric(task.offer.topology, "file"))


def _route(
    task: UpgradeTask,
    dag: EcmpDag,
    scenarios: Scenarios,
    failures: Sequence[Failure],
    is_built: BoolArray,
) -> tuple[FloatArray, FloatArray]:
    """Return the link loads (S, E) and the disconnected demand (S,), Gbit/s, on shortest paths.

    Args:
        task: supplies its new cables.
        dag: shortest paths with all new cables.
        scenarios: every matrix without failure, and under each failure in turn.
        failures: failures of the scenarios.
        is_built: (E,) whether a new cable's link exists; ignored for the others.
    """
    absent_links = np.flatnonzero(
        np.isin(scenarios.cable, task.offer.candidates) & ~is_built
    ).tolist()
    # Matrices (M, D): the first scenario of each block of 1 + F is without failure.
    demand = scenarios.demand[:: 1 + len(failures)]
    failure_routing = IgpFailures.of_demands(
        dag, scenarios.problem.paths.pairs, demand, SegmentPolicies.none()
    )
    # Loads (1 + F, M, E) and lost demand (1 + F, M), reordered to a block of 1 + F scenarios for
    # each matrix.
    results = failure_routing.under(
        [absent_links, *(absent_links + list(failure.links) for failure in failures)], loads=True
    )
    return results.load.transpose(1, 0, 2).reshape(
        len(scenarios.demand), -1
    ), results.lost.T.reshape(-1)


# Number of scenarios (a matrix under a failure) that are evaluated at a time.
_MAX_SCENARIOS = 4096
# Largest number of entries of demands and loads in memory at a time, and of cached loads: 8 bytes
# each, 200 MB.
_MAX_ENTRIES = 25_000_000
# Matrices that a round adds to the plan, so that the next search stays small.
_MAX_ADDED = 8
# Certified relative gap of the largest link utilisation of replayed matrices.
_GAP = 1e-4


class LeftOut:
    """Evaluation of plans on the matrices outside the first plan.

    Attributes:
        rows: (n,) indices of these matrices.

    Args:
        task: input of the search, with the matrices of the first plan.
    """

    def __init__(self, task: UpgradeTask) -> None:
        self.rows = np.setdiff1d(np.arange(task.num_matrices), task.rows)
        # Testers with cached link loads, by (position in ``rows`` of a block's first matrix, index
        # of the plan).
        self._testers: dict[tuple[int, int], Tester] = {}

    def replay(
        self,
        task: UpgradeTask,
        scenarios: Scenarios,
        plans: Sequence[tuple[float, FloatArray]],
        disconnected: dict[int, list[int]],
    ) -> tuple[Replayed, Int64Array]:
        """Evaluate the matrices outside the plan under every failure, with each expansion.

        Args:
            task: input of the search, with the matrices that are planned for.
            scenarios: matrices under failures whose candidate paths are used.
            plans: pairs of a factor of all demands and the expansion (C,), Gbit/s, for it.
            disconnected: disconnected demands by index of the failure, -1 for none; those of the
                evaluated matrices are added.

        Returns:
            the summary, and the indices of the overloaded matrices to add to the plan, the worst
            first.
        """
        # Largest utilisation (n,) of each matrix, and whether it fits (n,), over all expansions.
        max_utilisation = np.zeros(len(self.rows))
        fits = np.ones(len(self.rows), dtype=bool)
        num_replayed = 0
        scenarios_per_matrix = 1 + len(task.failures)
        entries_per_scenario = scenarios.demand.shape[1] + len(scenarios.cable)
        # Matrices of a block: its scenarios and its memory stay within their limits.
        block_size = max(
            1, min(_MAX_SCENARIOS, _MAX_ENTRIES // entries_per_scenario) // scenarios_per_matrix
        )
        # Blocks of matrices, each evaluated with all expansions.
        while num_replayed < len(self.rows) and not task.deadline.is_over:
            block = slice(num_replayed, num_replayed + block_size)
            demand = task.config.growth * task.instance.traffic.read(self.rows[block])
            block_scenarios, block_disconnected = task.scenarios(demand, task.failures)
            for failure_index, demands in block_disconnected.items():
                disconnected[failure_index] = sorted(
                    {*disconnected.get(failure_index, []), *demands}
                )
            # Largest utilisation of each matrix, with each expansion.
            for plan_index, (factor, added_capacity) in enumerate(plans):
                plan_scenarios = block_scenarios.with_paths(scenarios.problem.paths).scaled(factor)
                utilisation = (
                    self._utilisation(
                        task, plan_scenarios, added_capacity, (num_replayed, plan_index)
                    )
                    .reshape(-1, scenarios_per_matrix)
                    .max(1)
                )
                max_utilisation[block] = np.maximum(max_utilisation[block], utilisation)
                fits[block] &= utilisation <= scenarios.max_utilisation * (1 + FIT_TOLERANCE)
            num_replayed = min(num_replayed + block_size, len(self.rows))
            if num_replayed < len(self.rows):
                task.notify(
                    f"evaluated {num_replayed:,} of {len(self.rows):,} matrices outside the plan"
                )
        # Drop the cached loads if they take too much memory.
        if len(plans) * len(self.rows) * scenarios_per_matrix * entries_per_scenario > _MAX_ENTRIES:
            self._testers.clear()
        # Summary of the evaluated matrices that are still outside the plan, and the matrices to
        # add.  ``added`` is the number of planned matrices now less that of the first plan.
        is_replayed = ~np.isin(self.rows, task.rows)
        is_replayed[num_replayed:] = False
        overloaded = np.flatnonzero(is_replayed & ~fits)
        result = Replayed(
            matrices=task.num_matrices,
            planned=len(task.rows),
            replayed=int(is_replayed.sum()),
            added=len(task.rows) - task.num_matrices + len(self.rows),
            overloaded=len(overloaded),
            utilisation=float(max_utilisation[is_replayed].max(initial=0.0)),
        )
        return result, self.rows[overloaded[np.argsort(-max_utilisation[overloaded])[:_MAX_ADDED]]]

    def _utilisation(
        self,
        task: UpgradeTask,
        scenarios: Scenarios,
        added_capacity: FloatArray,
        key: tuple[int, int],
    ) -> FloatArray:
        """Return the largest link utilisation (S,) of each scenario with an expansion.

        Args:
            task: supplies the routing and the deadline.
            scenarios: scenarios of one block of matrices.
            added_capacity: (C,) Gbit/s added to each cable.
            key: first matrix of the block and index of the plan, for the tester with cached loads.
        """
        if task.config.routing == "ecmp":
            return scenarios.utilisation(igp_loads(task, scenarios, added_capacity), added_capacity)
        # The tester of an earlier evaluation of this block has loads that mostly still fit; its
        # scenarios may have more candidate paths now.
        tester = self._testers.setdefault(key, Tester(scenarios))
        tester.scenarios = scenarios
        rows = np.arange(scenarios.num_scenarios)
        return tester.test(
            added_capacity, rows, task.deadline, min_gap=_GAP, stop_at_cut=False
        ).utilisation
