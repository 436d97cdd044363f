"""Expansion for the IGP's shortest paths: loads, and the cheapest expansion over all subsets of new
cables.

The IGP routes over a new cable as soon as it exists, whatever its capacity, so every subset of new
cables has its own loads.  A subset with an unused cable routes like the subset without it.  Entry
points: :func:`buy_for_igp`; :class:`LeftOut` replays the matrices outside the plan.
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
from teal_ip.purchases.benders import Upgrade, buy_for_loads
from teal_ip.purchases.question import Question
from teal_ip.purchases.result import Replayed
from teal_ip.purchases.scenarios import Scenarios
from teal_ip.purchases.testing import FITS, Tester
from teal_ip.routing.igp_failures import IgpFailures
from teal_ip.routing.installed import IgpRouting
from teal_ip.routing.simulate import largest_loads

# Maximum number of new cables: 1,024 subsets, each of which is routed.
_MAX_CANDIDATES = 10
# Relative rounding error of HiGHS's bound on the cost.
_EXACT = 1e-6
# Rounding error of sums of disconnected demand, as a share of all demands.
_ROUNDING = 1e-9


def igp_loads(question: Question, scenarios: Scenarios, built: FloatArray) -> FloatArray:
    """Loads (S, E) on the IGP's shortest paths, converged after each failure, Gbit/s.

    Args:
        question: supplies the network and its failures.
        scenarios: every matrix without failure, and under each of the question's failures in turn.
        built: (C,) above 0 for the new cables that exist.
    """
    is_built = (built > 0)[scenarios.cable]
    return _route(question, _dag(question), scenarios, question.failures, is_built)[0]


def largest_igp_loads(question: Question) -> FloatArray:
    """Largest loads (1 + F, E) of all matrices, without new cables, Gbit/s: without failure, then
    under each.
    """
    absent = np.isin(_cables(question), question.offer.candidates)
    routing = IgpRouting(
        _dag(question).without(np.flatnonzero(absent).tolist()), question.instance.traffic.pairs
    )
    traffic = question.instance.traffic.scaled(question.config.growth)
    return largest_loads(routing, traffic, np.arange(question.num_matrices), question.failures)


def _cables(question: Question) -> Int64Array:
    """Index (E,) of the pair of links of each link."""
    cable = np.zeros(question.offer.topology.num_links, dtype=np.int64)
    for pair_index, links in enumerate(question.offer.topology.link_pairs()):
        cable[links] = pair_index
    return cable


def buy_for_igp(
    question: Question,
    scenarios: Scenarios,
    sizes: Sequence[tuple[float, float]],
    failures: Sequence[Failure],
) -> Upgrade:
    """Find the cheapest expansion over all subsets of new cables; its bound is 0 if the deadline
    comes before the last subset.

    Args:
        question: supplies the network, new cables and the deadline.
        scenarios: every matrix without failure, and under each failure in turn.
        sizes: module sizes and prices; () for any amounts.
        failures: failures of the scenarios.

    Raises:
        InputError: more than 10 new cables, or no subset within the limits of the cables.
    """
    begin = time.perf_counter()
    candidates = question.offer.candidates
    if len(candidates) > _MAX_CANDIDATES:
        raise InputError(
            "--candidates",
            "rows",
            f"at most {_MAX_CANDIDATES} new cables with --routing ecmp",
            len(candidates),
        )
    # All new cables together leave the least demand without a path.
    dag = _dag(question)
    _, lost = _route(question, dag, scenarios, failures, np.ones(len(scenarios.cable), dtype=bool))
    max_lost = lost + _ROUNDING * scenarios.demand.sum(1).max(initial=0.0)
    # Every subset of new cables, the smallest first.
    subsets = itertools.chain(
        *(itertools.combinations(candidates, count) for count in range(len(candidates) + 1))
    )
    best: Upgrade | None = None
    bound = math.inf
    num_tried = 0
    error = None
    for built in subsets:
        if best is not None and question.deadline.is_over:
            bound = 0.0
            break
        num_tried += 1
        load, subset_lost = _route(
            question, dag, scenarios, failures, np.isin(scenarios.cable, built)
        )
        if (subset_lost > max_lost).any():
            continue
        # The cheapest expansion for the loads of this subset.
        try:
            upgrade = buy_for_loads(scenarios, load, sizes, question.deadline)
        except InputError as infeasible:
            error = infeasible
            continue
        bound = min(bound, upgrade.bound)
        if best is None or upgrade.cost < best.cost:
            best = upgrade
    if best is None:
        raise error or InputError(
            "--candidates", "rows", "new cables that reach every node", "others"
        )
    return dataclasses.replace(
        best,
        bound=bound,
        rounds=num_tried,
        solve_s=time.perf_counter() - begin,
        reached=best.cost <= bound * (1 + _EXACT),
    )


def _dag(question: Question) -> EcmpDag:
    """The IGP's shortest paths with all new cables."""
    return EcmpDag.of(question.offer.topology, igp_metric(question.offer.topology, "file"))


def _route(
    question: Question,
    dag: EcmpDag,
    scenarios: Scenarios,
    failures: Sequence[Failure],
    is_built: BoolArray,
) -> tuple[FloatArray, FloatArray]:
    """Loads of links (S, E), and disconnected demand (S,), Gbit/s.

    Args:
        question: supplies its new cables.
        dag: shortest paths with all new cables.
        scenarios: every matrix without failure, and under each failure in turn.
        failures: failures of the scenarios.
        is_built: (E,) whether a new cable's link exists; ignored for the others.
    """
    absent_links = np.flatnonzero(
        np.isin(scenarios.cable, question.offer.candidates) & ~is_built
    ).tolist()
    # The scenarios without failure have all connected demands.
    demand = scenarios.demand[:: 1 + len(failures)]
    loads = IgpFailures.of_demands(
        dag, scenarios.problem.paths.pairs, demand, SegmentPolicies.none()
    )
    results = loads.under(
        [absent_links, *(absent_links + list(failure.links) for failure in failures)], loads=True
    )
    return results.load.transpose(1, 0, 2).reshape(
        len(scenarios.demand), -1
    ), results.lost.T.reshape(-1)


# Scenarios (a matrix under a failure) that are replayed at a time.
_MAX_SCENARIOS = 4096
# Entries of demands and loads in memory at a time, and of cached loads: 8 bytes each, 200 MB.
_MAX_ENTRIES = 25_000_000
# Matrices that a round adds to the plan, so that the next search stays small.
_MAX_ADDED = 8
# Certified relative gap of the least largest utilisation in a replay.
_GAP = 1e-4


class LeftOut:
    """Replay of the matrices that are not planned for at first.

    Attributes:
        rows: (n,) indices of these matrices.
    """

    def __init__(self, question: Question) -> None:
        self.rows = np.setdiff1d(np.arange(question.num_matrices), question.rows)
        self._tests: dict[tuple[int, int], Tester] = {}

    def replay(
        self,
        question: Question,
        scenarios: Scenarios,
        plans: Sequence[tuple[float, FloatArray]],
        cut_off: dict[int, list[int]],
    ) -> tuple[Replayed, Int64Array]:
        """Replay the matrices under every failure; return the result and the indices of the
        matrices to add, those that exceed the limit most.

        Args:
            question: input with the matrices that are planned for.
            scenarios: scenarios whose paths are used.
            plans: pairs of a factor of all demands and the expansion (C,) for it.
            cut_off: disconnected demands by failure; those of the replayed matrices are added.
        """
        largest = np.zeros(len(self.rows))
        fits = np.ones(len(self.rows), dtype=bool)
        num_replayed = 0
        per_matrix = 1 + len(question.failures)
        width = scenarios.demand.shape[1] + len(scenarios.cable)
        block_size = max(1, min(_MAX_SCENARIOS, _MAX_ENTRIES // width) // per_matrix)
        # Blocks of matrices, each on all plans.
        while num_replayed < len(self.rows) and not question.deadline.is_over:
            block = slice(num_replayed, num_replayed + block_size)
            demand = question.config.growth * question.instance.traffic.read(self.rows[block])
            block_scenarios, disconnected = question.scenarios(demand, question.failures)
            for failure, demands in disconnected.items():
                cut_off[failure] = sorted({*cut_off.get(failure, []), *demands})
            # Largest utilisation of each matrix, with each expansion.
            for plan_index, (factor, bought) in enumerate(plans):
                plan_scenarios = block_scenarios.with_paths(scenarios.problem.paths).scaled(factor)
                utilisation = (
                    self._utilisation(question, plan_scenarios, bought, (num_replayed, plan_index))
                    .reshape(-1, per_matrix)
                    .max(1)
                )
                largest[block] = np.maximum(largest[block], utilisation)
                fits[block] &= utilisation <= scenarios.limit * (1 + FITS)
            num_replayed = min(num_replayed + block_size, len(self.rows))
            if num_replayed < len(self.rows):
                question.notify(
                    f"{num_replayed:,} of {len(self.rows):,} matrices outside the plan are replayed"
                )
        # Cached loads, unless they take too much memory.
        if len(plans) * len(self.rows) * per_matrix * width > _MAX_ENTRIES:
            self._tests.clear()
        # Summary, and the matrices to add.
        is_replayed = ~np.isin(self.rows, question.rows)
        is_replayed[num_replayed:] = False
        overloaded = np.flatnonzero(is_replayed & ~fits)
        result = Replayed(
            matrices=question.num_matrices,
            planned=len(question.rows),
            replayed=int(is_replayed.sum()),
            added=len(question.rows) - question.num_matrices + len(self.rows),
            overloaded=len(overloaded),
            utilisation=float(largest[is_replayed].max(initial=0.0)),
        )
        return result, self.rows[overloaded[np.argsort(-largest[overloaded])[:_MAX_ADDED]]]

    def _utilisation(
        self, question: Question, scenarios: Scenarios, bought: FloatArray, key: tuple[int, int]
    ) -> FloatArray:
        """Largest link utilisation (S,) in each scenario; ``key`` identifies the tester with cached
        loads.
        """
        if question.config.routing == "ecmp":
            return scenarios.utilisation(igp_loads(question, scenarios, bought), bought)
        test = self._tests.setdefault(key, Tester(scenarios))
        test.scenarios = scenarios
        rows = np.arange(scenarios.num_scenarios)
        return test.test(bought, rows, question.deadline, finest=_GAP, until_cut=False).utilisation
