"""Purchases for the IGP's shortest paths: their loads, and the cheapest purchase over all sets of
new cables.

A new cable takes part in the IGP's routing as soon as it exists, whatever its capacity, so that
every set of new cables has loads of its own.  A set of which some cable carries nothing routes as
the set without it.
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

_MAX_CANDIDATES = 10  # new cables: 1,024 sets, each of which is routed
_EXACT = 1e-6  # relative, of the cost: rounding of HiGHS's bound
# share of all demands, by which two sums of disconnected demand may differ and count as equal
_ROUNDING = 1e-9


def igp_loads(question: Question, scenarios: Scenarios, built: FloatArray) -> FloatArray:
    """(S, E) Gbit/s along the IGP's shortest paths, converged after each failure.

    Args:
        question: for the network and its failures.
        scenarios: every matrix without failure, and under each of the question's failures in turn.
        built: (C,) above 0 for the new cables that exist.
    """
    is_built = (built > 0)[scenarios.cable]
    return _routed(question, _dag(question), scenarios, question.failures, is_built)[0]


def largest_igp_loads(question: Question) -> FloatArray:
    """(1 + F, E) Gbit/s, the largest of all matrices, without new cables: without failure, then
    under each.
    """
    absent = np.isin(_cables(question), question.offer.candidates)
    routing = IgpRouting(
        _dag(question).without(np.flatnonzero(absent).tolist()), question.instance.traffic.pairs
    )
    traffic = question.instance.traffic.scaled(question.config.growth)
    return largest_loads(routing, traffic, np.arange(question.num_matrices), question.failures)


def _cables(question: Question) -> Int64Array:
    """(E,) number of the pair of links of each."""
    cable = np.zeros(question.offer.topology.num_links, dtype=np.int64)
    for number, links in enumerate(question.offer.topology.link_pairs()):
        cable[links] = number
    return cable


def buy_for_igp(
    question: Question,
    scenarios: Scenarios,
    sizes: Sequence[tuple[float, float]],
    failures: Sequence[Failure],
) -> Upgrade:
    """The cheapest purchase over all sets of new cables; its bound is 0 if the deadline comes
    before the last set.

    Args:
        question: for the network, new cables and the deadline.
        scenarios: every matrix without failure, and under each failure in turn.
        sizes: sizes of modules and their prices; () for any amounts.
        failures: failures of the scenarios.

    Raises:
        InputError: more than 10 new cables, or no set within the limits of the cables.
    """
    begin, candidates = time.perf_counter(), question.offer.candidates
    if len(candidates) > _MAX_CANDIDATES:
        raise InputError(
            "--candidates",
            "rows",
            f"at most {_MAX_CANDIDATES} new cables with --routing ecmp",
            len(candidates),
        )
    dag = _dag(question)
    _, lost = _routed(question, dag, scenarios, failures, np.ones(len(scenarios.cable), dtype=bool))
    sets = itertools.chain(
        *(itertools.combinations(candidates, count) for count in range(len(candidates) + 1))
    )
    best: Upgrade | None = None
    bound, tried, error = math.inf, 0, None
    for built in sets:
        if best is not None and question.deadline.is_over:
            bound = 0.0
            break
        tried += 1
        load, lost_too = _routed(
            question, dag, scenarios, failures, np.isin(scenarios.cable, built)
        )
        if (lost_too > lost + _ROUNDING * scenarios.demand.sum(1).max(initial=0.0)).any():
            continue
        try:
            upgrade = buy_for_loads(scenarios, load, sizes, question.deadline)
        except InputError as limited:
            error = limited
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
        rounds=tried,
        solve_s=time.perf_counter() - begin,
        reached=best.cost <= bound * (1 + _EXACT),
    )


def _dag(question: Question) -> EcmpDag:
    """The IGP's shortest paths with all new cables."""
    return EcmpDag.of(question.offer.topology, igp_metric(question.offer.topology, "file"))


def _routed(
    question: Question,
    dag: EcmpDag,
    scenarios: Scenarios,
    failures: Sequence[Failure],
    is_built: BoolArray,
) -> tuple[FloatArray, FloatArray]:
    """(S, E) Gbit/s on each link, and (S,) Gbit/s of demands whose ends are cut off from each
    other.

    Args:
        question: for its new cables.
        dag: shortest paths with all of them.
        scenarios: every matrix without failure, and under each failure in turn.
        failures: failures of the scenarios.
        is_built: (E,) whether a new cable's link exists; ignored for the others.
    """
    absent = np.flatnonzero(
        np.isin(scenarios.cable, question.offer.candidates) & ~is_built
    ).tolist()
    demand = scenarios.demand[
        :: 1 + len(failures)
    ]  # without failure: of all demands that have a path
    loads = IgpFailures.of_demands(
        dag, scenarios.problem.paths.pairs, demand, SegmentPolicies.none()
    )
    found = loads.under([absent, *(absent + list(one.links) for one in failures)], loads=True)
    return found.load.transpose(1, 0, 2).reshape(len(scenarios.demand), -1), found.lost.T.reshape(
        -1
    )


_MAX_SCENARIOS = 4096  # scenarios (a matrix under a failure) that are replayed at a time
# demands and loads in memory at a time, and again kept between rounds: 8 bytes each, 200 MB
_MAX_NUMBERS = 25_000_000
_MAX_ADDED = (
    8  # matrices that a round adds to those planned for, so that the next search stays small
)
_GAP = 1e-4  # relative, certified, of the least largest utilisation in a replay


class LeftOut:
    """The matrices of a question that are not planned for at first.

    Attributes:
        rows: (n,) their numbers.
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
        """Replay the matrices under every failure; return the result and the numbers of the
        matrices to add.

        The matrices to add are those whose utilisation passes the limit by most.

        Args:
            question: with the matrices that are planned for.
            scenarios: scenarios whose paths are used.
            plans: a factor of all demands, and the purchase (C,) for it, each.
            cut_off: for each failure the demands that it cuts off; those of the matrices replayed
                are added.
        """
        over, fits, done = np.zeros(len(self.rows)), np.ones(len(self.rows), dtype=bool), 0
        per_matrix, width = (
            1 + len(question.failures),
            scenarios.demand.shape[1] + len(scenarios.cable),
        )
        count = max(1, min(_MAX_SCENARIOS, _MAX_NUMBERS // width) // per_matrix)
        while done < len(self.rows) and not question.deadline.is_over:
            part = slice(done, done + count)
            demand = question.config.growth * question.instance.traffic.read(self.rows[part])
            more, cut = question.scenarios(demand, question.failures)
            for failure, demands in cut.items():
                cut_off[failure] = sorted({*cut_off.get(failure, []), *demands})
            for number, (factor, bought) in enumerate(plans):
                now = more.with_paths(scenarios.problem.paths).scaled(factor)
                used = (
                    self._utilisation(question, now, bought, (done, number))
                    .reshape(-1, per_matrix)
                    .max(1)
                )
                over[part] = np.maximum(over[part], used)
                fits[part] &= used <= scenarios.limit * (1 + FITS)
            done = min(done + count, len(self.rows))
            if done < len(self.rows):
                question.notify(
                    f"{done:,} of {len(self.rows):,} matrices that were left out are replayed"
                )
        if len(plans) * len(self.rows) * per_matrix * width > _MAX_NUMBERS:
            self._tests.clear()
        is_left = ~np.isin(self.rows, question.rows)
        is_left[done:] = False
        missed = np.flatnonzero(is_left & ~fits)
        found = Replayed(
            matrices=question.num_matrices,
            planned=len(question.rows),
            replayed=int(is_left.sum()),
            added=len(question.rows) - question.num_matrices + len(self.rows),
            overloaded=len(missed),
            utilisation=float(over[is_left].max(initial=0.0)),
        )
        return found, self.rows[missed[np.argsort(-over[missed])[:_MAX_ADDED]]]

    def _utilisation(
        self, question: Question, scenarios: Scenarios, bought: FloatArray, key: tuple[int, int]
    ) -> FloatArray:
        """(S,) largest of a link in each scenario; ``key`` names the test whose splits are tried
        first.
        """
        if question.config.routing == "ecmp":
            return scenarios.utilisation(igp_loads(question, scenarios, bought), bought)
        test = self._tests.setdefault(key, Tester(scenarios))
        test.scenarios = scenarios
        rows = np.arange(scenarios.num_scenarios)
        return test.test(bought, rows, question.deadline, finest=_GAP, until_cut=False).utilisation
