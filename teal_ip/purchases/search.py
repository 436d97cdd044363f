"""From settings to a certified plan of what to buy: `teal upgrade`.

What a purchase is certified to cost over all paths of the network, and the paths that would make it
cheaper.

The cuts of a purchase hold for all paths if ``needed`` is computed with the shortest path of the
network under the prices of each cut, in the place of the cheapest candidate path.  Only cuts with a
positive dual matter: as many as cables are bought.
"""

from __future__ import annotations

import dataclasses
import math
import time
from functools import partial
from typing import Any

import numpy as np
import torch

from teal.network import PathSet
from teal.network.path_changes import paths_in_trees, with_more_paths
from teal.network.shortest import shortest_trees
from teal.runtime import rounding
from teal.runtime.arrays import FloatArray, Int64Array, IntArray
from teal.runtime.interrupts import on_interrupt
from teal_ip.purchases.benders import Upgrade, buy, buy_for_loads, buy_modules
from teal_ip.purchases.cuts import Cuts
from teal_ip.purchases.hose import buy_for_hose, pipe, static_limit
from teal_ip.purchases.igp import LeftOut, buy_for_igp, igp_loads
from teal_ip.purchases.outlook import alternative, by_quarter, curve, forecasts
from teal_ip.purchases.proof import CutProof
from teal_ip.purchases.question import Notify, Question, hose_of, load_question, purchases
from teal_ip.purchases.result import Quarter, ScenarioFit, UpgradePlan
from teal_ip.purchases.scenarios import Scenarios, load_over_capacity
from teal_ip.purchases.schedule import schedule, schedule_of_loads
from teal_ip.purchases.settings import UpgradeOptions
from teal_ip.purchases.testing import Tester
from teal_ip.routing.growth import growth_of, month_after, quarters

# x the largest price, added per link: of equally cheap paths the one with fewer links is taken
_TIE_WEIGHT = 1e-6
_ROUNDING = 1e-12  # of the duals
_CHEAPER = 1e-6  # relative, by which a path must be cheaper than all candidates to be added


def bound_over_all_paths(scenarios: Scenarios, cuts: Cuts, dual: FloatArray) -> float:
    """The least cost of every purchase, whichever paths are used.

    Args:
        scenarios: scenarios of the cuts; demands without a live candidate path are not in them.
        cuts: cuts of a purchase.
        dual: (n,) at least 0, with coefficient' dual <= cost, of the first n cuts: later searches
            add cuts behind them.
    """
    used = np.flatnonzero(dual > 0)
    needed = np.array([_needed(scenarios, cuts, int(i))[0] for i in used])
    excess = np.maximum(dual @ cuts.coefficient[: len(dual)] - scenarios.cost, 0.0)
    limits = np.where(excess > _ROUNDING, scenarios.most, 0.0)
    return float(dual[used] @ (needed - cuts.existing[used])) - float(
        np.where(np.isfinite(limits), limits, 0.0) @ excess
    )


def with_missing_paths(scenarios: Scenarios, cuts: Cuts, dual: FloatArray) -> PathSet:
    """The candidate paths, and for each cut with a positive dual the shortest path of each demand
    under its prices.

    A path is added where it is cheaper than all live candidates; no path is added twice.
    """
    paths = scenarios.problem.paths
    for i in np.flatnonzero(dual > 0):
        _, ptr, links = _needed(scenarios.with_paths(paths), cuts, int(i), find=True)
        if len(links):
            paths = with_more_paths(paths, ptr, links)
    return paths


def _needed(
    scenarios: Scenarios, cuts: Cuts, number: int, find: bool = False
) -> tuple[float, Int64Array, IntArray]:
    """``needed`` of a cut over all paths; with ``find`` also the paths that are cheaper than all
    candidates.
    """
    problem, row = scenarios.problem, int(cuts.row[number])
    topology, pairs = problem.topology, problem.paths.pairs
    prices = cuts.prices[number]
    weight = np.where(scenarios.live[row], prices, np.inf)
    sources, source_row = np.unique(pairs[:, 0], return_inverse=True)
    ends = topology.num_nodes, topology.link_source, topology.link_target
    distance, _ = shortest_trees(*ends, weight, sources, topology.no_transit)
    shortest, demand = distance[source_row, pairs[:, 1]], scenarios.demand[row]
    wanted = demand > 0
    needed = float(demand[wanted] @ shortest[wanted])
    nothing, no_links = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
    if not find:
        return needed, nothing, no_links
    one = scenarios.batch(np.array([row]), np.zeros(scenarios.num_cables))
    import torch

    cheapest = one.cheapest_path_cost(one.ops.path_sum(torch.from_numpy(prices[None].copy())))[
        0
    ].numpy()
    chosen = np.flatnonzero(wanted & (shortest < cheapest * (1 - _CHEAPER)))
    if not len(chosen):
        return needed, nothing, no_links
    tie_weight = _TIE_WEIGHT * float(prices.max(initial=0.0)) or 1.0
    _, into = shortest_trees(*ends, weight + tie_weight, sources, topology.no_transit)
    ptr, links = paths_in_trees(chosen, pairs, source_row, into, topology.link_source)
    return needed, ptr, links


_MAX_PATH_ROUNDS = 12  # of adding paths


def plan_upgrade(
    topology: Any,
    traffic: Any,
    options: UpgradeOptions,
    notify: Notify = lambda _: None,
    *,
    proves: bool = False,
) -> UpgradePlan:
    """Find what to buy; Ctrl-C ends the search with the best so far.

    Args:
        topology: the network, or a file or name.
        traffic: its matrices, or a file or name.
        options: what is planned for, and what can be bought.
        notify: called with the progress.
        proves: whether the plan carries a proof of its bound.

    Raises:
        InputError: a fault in what the user gave.
        SolverError: no purchase was found in time.
    """
    question = dataclasses.replace(load_question(topology, traffic, options, notify), proves=proves)

    def stop() -> None:
        notify("interrupted: the best purchase so far follows; once more ends at once")
        question.deadline.expire()

    with on_interrupt(stop):
        return _planned(question)


def _planned(question: Question) -> UpgradePlan:
    """The plan that answers a question; the best so far once its deadline is over."""
    config, notify = question.config, question.notify
    if config.demands == "matrices":
        scenarios, cut_off = question.scenarios(
            config.growth * question.matrices, question.failures
        )
    else:
        peaks = config.growth * pipe(question.matrices)[None]
        scenarios, cut_off = question.scenarios(peaks, question.failures)
    count = len(scenarios.demand)
    failures = len(question.failures)
    notify(f"{count:,} scenarios: {count // (1 + failures)} matrices, {failures} failures and none")
    if config.demands == "hose":
        return _with_comparison(question, scenarios, cut_off)
    if config.horizon:
        return _over_time(question, scenarios, cut_off)
    rate = growth_of(config, question.instance.traffic, notify) if config.growth_per_year else None
    left_out, cuts, begin, rounds = LeftOut(question), None, time.perf_counter(), 0
    while True:
        upgrade, cuts, scenarios, continuous = _bought(question, scenarios, cuts)
        rounds += upgrade.rounds
        plans = [(1.0, one.bought) for one in (upgrade, continuous) if one is not None]
        replayed, missed = left_out.replay(question, scenarios, plans, cut_off)
        if not len(missed) or question.deadline.is_over:
            break
        question, scenarios = question.with_more(missed, scenarios)
    upgrade = dataclasses.replace(
        upgrade,
        reached=upgrade.reached and replayed.is_complete,
        rounds=rounds,
        solve_s=time.perf_counter() - begin,
    )
    plan = _plan(question, scenarios, upgrade, cut_off, _cost(continuous))
    plan = dataclasses.replace(
        plan, growth=rate, replayed=replayed if config.demands == "matrices" else None
    )
    if question.proves:
        plan = dataclasses.replace(
            plan, proof=CutProof.of(scenarios, cuts, upgrade.dual, upgrade.cost)
        )
    if rate is not None:
        full = question.attempt("the forecast", partial(forecasts, question, scenarios, rate)) or []
        plan = dataclasses.replace(plan, forecasts=full)
    if config.replay:
        step = partial(alternative, question, config.demands, scenarios, upgrade)
        plan = dataclasses.replace(
            plan, alternatives=question.attempt("the replay", lambda: [step()]) or []
        )
    if config.curve:
        points = question.attempt("the curve", partial(curve, question, scenarios, cuts)) or []
        plan = dataclasses.replace(plan, curve=points)
    return plan


def _cost(upgrade: Upgrade | None) -> float:
    """The cost of a purchase; NaN for none."""
    return math.nan if upgrade is None else upgrade.cost


def _bought(
    question: Question, scenarios: Scenarios, known: Cuts | None
) -> tuple[Upgrade, Cuts, Scenarios, Upgrade | None]:
    """The purchase, its cuts and scenarios (with added paths), and, with modules, the purchase in
    any amounts.

    ``known`` are cuts of an earlier purchase.
    """
    config = question.config
    if config.routing == "ecmp":
        cuts = Cuts(scenarios.num_cables, len(scenarios.cable))
        upgrade = buy_for_igp(question, scenarios, config.sizes, question.failures)
        continuous = (
            buy_for_igp(question, scenarios, (), question.failures) if config.sizes else None
        )
        return upgrade, cuts, scenarios, continuous
    upgrade, cuts, scenarios = _bought_over_paths(question, scenarios, known)
    upgrade, continuous = _in_modules(question, scenarios, upgrade, cuts)
    return upgrade, cuts, scenarios, continuous


def _bought_over_paths(
    question: Question, scenarios: Scenarios, known: Cuts | None
) -> tuple[Upgrade, Cuts, Scenarios]:
    """The purchase in any amounts, its cuts and its scenarios, with the paths that it takes."""
    upgrade, cuts = buy(
        scenarios,
        gap=question.config.gap,
        deadline=question.deadline,
        report=question.report,
        cuts=known,
    )
    step = partial(_over_all_paths, question, scenarios, upgrade, cuts)
    return question.attempt("the search for paths", step) or (upgrade, cuts, scenarios)


def _in_modules(
    question: Question, scenarios: Scenarios, upgrade: Upgrade, cuts: Cuts
) -> tuple[Upgrade, Upgrade | None]:
    """The purchase in modules, where they are asked for, and that in any amounts; where it fails,
    the latter.
    """
    if not question.config.sizes:
        return upgrade, None
    step = partial(
        buy_modules,
        scenarios,
        cuts,
        question.config.sizes,
        deadline=question.deadline,
        report=question.report,
    )
    whole = question.attempt("the purchase in modules", step)
    if whole is None:
        return dataclasses.replace(upgrade, reached=False), None
    return dataclasses.replace(
        whole, dual=upgrade.dual, bound_all_paths=upgrade.bound_all_paths
    ), upgrade


def _over_all_paths(
    question: Question, scenarios: Scenarios, upgrade: Upgrade, cuts: Cuts
) -> tuple[Upgrade, Cuts, Scenarios]:
    """Add paths until the purchase is within the target of the cheapest one over all paths, or none
    is missing.

    Under --over-all-paths the target counts as reached only then.  Under limits of latency no path
    is added, since it may be longer, and the bound is that over paths of any latency.
    """
    bound, gap = 0.0, question.config.gap
    for number in range(1, _MAX_PATH_ROUNDS + 1):
        assert upgrade.dual is not None
        bound = max(bound, bound_over_all_paths(scenarios, cuts, upgrade.dual))
        is_limited = question.instance.max_latency is not None
        if upgrade.cost - bound <= gap * upgrade.cost or question.deadline.is_over or is_limited:
            break
        paths = with_missing_paths(scenarios, cuts, upgrade.dual)
        added = int(paths.mask.sum() - scenarios.problem.paths.mask.sum())
        question.notify(
            f"paths, round {number}: cost {upgrade.cost:.6g}, at least {rounding.at_least(bound)}; "
            f"{added} paths more"
        )
        if not added:
            break
        scenarios = scenarios.with_paths(paths)
        cuts.over_paths(scenarios)
        before = upgrade.rounds
        upgrade, cuts = buy(scenarios, gap=gap / 2, deadline=question.deadline, cuts=cuts)
        upgrade = dataclasses.replace(upgrade, rounds=before + upgrade.rounds)
    least = bound if question.config.over_all_paths else upgrade.bound
    reached = upgrade.cost - least <= gap * upgrade.cost
    return dataclasses.replace(upgrade, reached=reached, bound_all_paths=bound), cuts, scenarios


def _with_comparison(
    question: Question, start: Scenarios, cut_off: dict[int, list[int]]
) -> UpgradePlan:
    """The plan for a hose, beside that for every pair's peak and, where traffic is replayed, what
    each drops.

    ``start`` has one matrix, every pair's peak, under each failure.
    """
    config = question.config
    hose = hose_of(config, question.offer.topology, start.problem.paths.pairs, question.matrices)
    question.notify("every pair's peak")
    of_pipe, _ = buy(start, gap=config.gap, deadline=question.deadline, report=question.report)
    live = start.live
    hops = start.batch(np.arange(1), np.zeros(start.num_cables))
    far = hops.cheapest_path_cost(hops.ops.path_sum(torch.ones_like(hops.capacity)))[0].numpy()
    matrix = hose.dearest(far)
    first = dataclasses.replace(start, demand=np.where(start.demand > 0, matrix, 0.0))
    question.notify("hose")
    search = partial(
        buy_for_hose,
        live=live,
        hose=hose,
        gap=config.gap,
        deadline=question.deadline,
        report=question.report,
        notify=question.notify,
    )
    found = search(first)
    upgrade = found.upgrade
    dual = np.zeros(0) if upgrade.dual is None else upgrade.dual
    step = partial(bound_over_all_paths, found.scenarios, found.cuts, dual)
    bound = question.attempt("the bound over all paths", lambda: max(0.0, step()))
    upgrade = dataclasses.replace(upgrade, bound_all_paths=math.nan if bound is None else bound)
    continuous = math.nan
    if config.sizes:
        more = partial(search, found.scenarios, sizes=config.sizes, cuts=found.cuts)
        whole = question.attempt("the purchase in modules", more)
        if whole is not None:
            found, continuous = whole, upgrade.cost
            upgrade = dataclasses.replace(
                found.upgrade, dual=dual, bound_all_paths=upgrade.bound_all_paths
            )
        else:
            upgrade = dataclasses.replace(upgrade, reached=False)
    scenarios = found.scenarios
    plan = _plan(question, scenarios, upgrade, cut_off, continuous)
    both = ("hose", scenarios, upgrade), ("pipe", start, of_pipe)
    alternatives = question.attempt(
        "the replay", lambda: [alternative(question, *one) for one in both]
    )

    def certified() -> float:
        limit, network = 0.0, scenarios.some(np.zeros((len(live), scenarios.demand.shape[1])), live)
        for number in range(len(live)):
            one = network.batch(np.array([number]), upgrade.bought)
            limit = max(limit, static_limit(one, hose)[0])
            proven = rounding.percent_at_most(limit, 2)
            question.notify(f"certified {number + 1} of {len(live)}: at most {proven}")
        return limit

    if question.proves:
        plan = dataclasses.replace(
            plan, proof=CutProof.of(scenarios, found.cuts, upgrade.dual, upgrade.cost)
        )
    limit = float(found.limit.max(initial=0.0))
    if config.certify and not math.isfinite(limit):
        limit = question.attempt("--certify", certified) or math.inf
    return dataclasses.replace(
        plan,
        worst_demands=float(found.worst.max(initial=0.0)),
        alternatives=alternatives or [],
        worst_limit=limit if math.isfinite(limit) else math.nan,
    )


def _over_time(
    question: Question, scenarios: Scenarios, cut_off: dict[int, list[int]]
) -> UpgradePlan:
    """Purchases by quarter, up to the horizon."""
    config, today = question.config, question.instance.traffic.timestamps[-1]
    rate = growth_of(config, question.instance.traffic, question.notify)
    ends, factors = quarters(rate, config.horizon_years)
    left_out, known, most = LeftOut(question), None, float(factors.max())
    begin, rounds = time.perf_counter(), 0
    while True:
        if config.routing == "ecmp":
            load, last = (
                igp_loads(question, scenarios, np.zeros(scenarios.num_cables)),
                scenarios.scaled(most),
            )
            largest = buy_for_loads(scenarios, most * load)
            periods, upgrade = schedule_of_loads(
                scenarios, load, factors.tolist(), sizes=config.sizes, deadline=question.deadline
            )
        else:
            largest, known, peak = _bought_over_paths(question, scenarios.scaled(most), known)
            scenarios = scenarios.with_paths(peak.problem.paths)
            periods, upgrade, last, known = schedule(
                scenarios,
                factors.tolist(),
                gap=config.gap,
                sizes=config.sizes,
                deadline=question.deadline,
                notify=question.notify,
                cuts=known,
            )
        rounds += largest.rounds + upgrade.rounds
        plans = [(one.growth, one.bought) for one in periods]
        if (
            config.sizes
        ):  # what is printed beside the modules, in any amounts, carries every matrix too
            plans.append((most, largest.bought))
        replayed, missed = left_out.replay(question, scenarios, plans, cut_off)
        if not len(missed) or question.deadline.is_over:
            break
        question, scenarios = question.with_more(missed, scenarios)
    reached = largest.reached and upgrade.reached and replayed.is_complete
    upgrade = dataclasses.replace(
        upgrade,
        reached=reached,
        bound_all_paths=largest.bound_all_paths,
        rounds=rounds,
        solve_s=time.perf_counter() - begin,
    )
    plan = _plan(question, last, upgrade, cut_off, largest.cost if config.sizes else math.nan)
    full = question.attempt("the forecast", partial(forecasts, question, scenarios, rate)) or []
    plan = dataclasses.replace(plan, replayed=replayed if config.demands == "matrices" else None)
    months = [month_after(today, float(end)) for end in ends]
    listed = [
        Quarter(
            by=month,
            growth=one.growth,
            cost=one.cost,
            bound=one.bound,
            utilisation=float(one.utilisation.max(initial=0.0)),
        )
        for month, one in zip(months, periods, strict=True)
    ]
    bought = by_quarter(question, periods, months)
    return dataclasses.replace(plan, growth=rate, forecasts=full, quarters=listed, purchases=bought)


def _plan(
    question: Question,
    scenarios: Scenarios,
    upgrade: Upgrade,
    cut_off: dict[int, list[int]],
    continuous: float,
) -> UpgradePlan:
    """The purchase with names."""
    topology, failures = question.offer.topology, question.failures
    pairs, names = question.instance.traffic.pairs, topology.node_names
    always = set(cut_off.get(-1, ()))
    named = {
        failures[number].name if number >= 0 else "": [
            f"{names[pairs[d, 0]]} -> {names[pairs[d, 1]]}" for d in own
        ]
        for number, demands in cut_off.items()
        if (own := [d for d in demands if number < 0 or d not in always])
    }
    capacity = question.offer.regular + upgrade.bought[scenarios.cable]
    loads = question.attempt(
        "the loads of links", partial(_link_loads, question, scenarios, upgrade)
    )
    before, after = loads or (None, None)
    return UpgradePlan(
        topology=topology.with_capacity(question.offer.regular),
        upgraded=topology.with_capacity(capacity).with_links(capacity > 0),
        upgrade=upgrade,
        purchases=purchases(question, upgrade.bought, upgrade.modules),
        scenarios=_fits(question, scenarios, upgrade, cut_off),
        cut_off=named,
        continuous=continuous,
        before=before,
        after=after,
        routing=question.config.routing,
        failed=question.failed,
    )


def _fits(
    question: Question, scenarios: Scenarios, upgrade: Upgrade, cut_off: dict[int, list[int]]
) -> list[ScenarioFit]:
    """Every scenario with its utilisation."""
    by_links = {tuple(one.links): one.name for one in question.failures}
    rows, timestamps = question.rows, question.instance.traffic.timestamps
    per_matrix, is_series = 1 + len(question.failures), question.config.demands == "matrices"
    cut = {
        question.failures[number].name if number >= 0 else "": len(demands)
        for number, demands in cut_off.items()
    }
    names = [*["", *(one.name for one in question.failures)]] * (
        scenarios.num_scenarios // per_matrix
    )
    all_live = scenarios.problem.topology.capacity > 0
    fits = []
    for s in range(scenarios.num_scenarios):
        if s < len(names) and (is_series or s < per_matrix):
            failure = names[s]
        else:  # a matrix that the search for worst demands added
            failure = by_links.get(
                tuple(np.flatnonzero(all_live & ~scenarios.live[s]).tolist()), ""
            )
        index = int(rows[s // per_matrix]) if is_series else -1
        fits.append(
            ScenarioFit(
                index=index,
                timestamp=str(timestamps[index]) if is_series else question.config.demands,
                failure=failure,
                utilisation=float(upgrade.utilisation[s]),
                cut_off=cut.get(failure, 0),
            )
        )
    return fits


def _link_loads(
    question: Question, scenarios: Scenarios, upgrade: Upgrade
) -> tuple[FloatArray, FloatArray]:
    """Largest utilisation of each link over all scenarios, before and with the purchase."""

    def largest(bought: FloatArray) -> FloatArray:
        if question.config.routing == "ecmp":
            load = igp_loads(question, scenarios, bought)
        else:
            rows = np.arange(scenarios.num_scenarios)
            load = Tester(scenarios).test(bought, rows, question.deadline, until_cut=True).load
        return load_over_capacity(load.max(0), question.offer.regular + bought[scenarios.cable])

    return largest(np.zeros(scenarios.num_cables)), largest(upgrade.bought)


__all__ = ["bound_over_all_paths", "with_missing_paths"]
