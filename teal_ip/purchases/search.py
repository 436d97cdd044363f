"""Capacity expansion plans, from settings to a certified result: ``teal upgrade``.

The decomposition over candidate paths is embedded in column generation: the cuts of an expansion
hold for all paths if ``needed`` is computed with the shortest path of the network under the prices
of each cut, instead of the cheapest candidate path; paths that are cheaper than all candidates are
added.  Only cuts with a positive dual matter: as many as cables are bought.  Entry point:
:func:`plan_upgrade`.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from teal.network import PathSet
from teal.network.path_changes import paths_in_trees, with_more_paths
from teal.network.shortest import shortest_trees
from teal.runtime import rounding
from teal.runtime.arrays import BoolArray, FloatArray, Int64Array, IntArray
from teal.runtime.interrupts import on_interrupt
from teal_ip.purchases.benders import Upgrade, buy, buy_for_loads, buy_modules
from teal_ip.purchases.cuts import Cuts
from teal_ip.purchases.hose import Hose, HosePlan, buy_for_hose, pipe, static_limit
from teal_ip.purchases.igp import LeftOut, buy_for_igp, igp_loads
from teal_ip.purchases.outlook import alternative, by_quarter, curve, forecasts
from teal_ip.purchases.proof import CutProof
from teal_ip.purchases.question import Notify, Question, hose_of, load_question, purchases
from teal_ip.purchases.result import Quarter, ScenarioFit, UpgradePlan
from teal_ip.purchases.scenarios import Scenarios, load_over_capacity
from teal_ip.purchases.schedule import Period, schedule, schedule_of_loads
from teal_ip.purchases.settings import UpgradeOptions
from teal_ip.purchases.testing import Tester
from teal_ip.routing.growth import Growth, growth_of, month_after, quarters

# Price added per link, times the largest price: among equally cheap paths the one with fewer links
# is taken.
_TIE_WEIGHT = 1e-6
# Rounding error of the duals.
_ROUNDING = 1e-12
# Relative saving against all candidates above which a path is added.
_CHEAPER = 1e-6


def bound_over_all_paths(scenarios: Scenarios, cuts: Cuts, dual: FloatArray) -> float:
    """Lower bound on the cost of every expansion, for any paths.

    Args:
        scenarios: scenarios of the cuts, without demands that have no live candidate path.
        cuts: cuts of an expansion.
        dual: (n,) at least 0, with coefficient' dual <= cost, of the first n cuts; later searches
            append cuts.
    """
    positive = np.flatnonzero(dual > 0)
    needed = np.array([_needed_over_all_paths(scenarios, cuts, int(i))[0] for i in positive])
    excess = np.maximum(dual @ cuts.coefficient[: len(dual)] - scenarios.cost, 0.0)
    limits = np.where(excess > _ROUNDING, scenarios.most, 0.0)
    return float(dual[positive] @ (needed - cuts.existing[positive])) - float(
        np.where(np.isfinite(limits), limits, 0.0) @ excess
    )


def with_missing_paths(scenarios: Scenarios, cuts: Cuts, dual: FloatArray) -> PathSet:
    """Add to the candidate paths, for each cut with a positive dual, the shortest path of each
    demand under its prices.

    A path is added if it is cheaper than all live candidates; no path is added twice.
    """
    paths = scenarios.problem.paths
    for i in np.flatnonzero(dual > 0):
        _, ptr, links = _needed_over_all_paths(scenarios.with_paths(paths), cuts, int(i), find=True)
        if len(links):
            paths = with_more_paths(paths, ptr, links)
    return paths


def _needed_over_all_paths(
    scenarios: Scenarios, cuts: Cuts, cut_index: int, find: bool = False
) -> tuple[float, Int64Array, IntArray]:
    """Return ``needed`` of a cut over all paths; with ``find`` also the paths that are cheaper than
    all candidates.
    """
    problem = scenarios.problem
    row = int(cuts.row[cut_index])
    topology = problem.topology
    pairs = problem.paths.pairs
    prices = cuts.prices[cut_index]
    # Shortest path of each demand under the prices.
    weight = np.where(scenarios.live[row], prices, np.inf)
    sources, source_row = np.unique(pairs[:, 0], return_inverse=True)
    ends = (topology.num_nodes, topology.link_source, topology.link_target)
    distance, _ = shortest_trees(*ends, weight, sources, topology.no_transit)
    shortest = distance[source_row, pairs[:, 1]]
    demand = scenarios.demand[row]
    has_demand = demand > 0
    needed = float(demand[has_demand] @ shortest[has_demand])
    no_paths = np.zeros(0, dtype=np.int64)
    no_links = np.zeros(0, dtype=np.int32)
    if not find:
        return needed, no_paths, no_links
    # Cheapest candidate path of each demand.
    scenario = scenarios.batch(np.array([row]), np.zeros(scenarios.num_cables))
    cheapest = scenario.cheapest_path_cost(
        scenario.ops.path_sum(torch.from_numpy(prices[None].copy()))
    )[0].numpy()
    # Paths of the demands whose shortest path is cheaper, with few links.
    cheaper_demands = np.flatnonzero(has_demand & (shortest < cheapest * (1 - _CHEAPER)))
    if not len(cheaper_demands):
        return needed, no_paths, no_links
    tie_weight = _TIE_WEIGHT * float(prices.max(initial=0.0)) or 1.0
    _, tree_link = shortest_trees(*ends, weight + tie_weight, sources, topology.no_transit)
    ptr, links = paths_in_trees(cheaper_demands, pairs, source_row, tree_link, topology.link_source)
    return needed, ptr, links


# Maximum number of rounds of adding paths.
_MAX_PATH_ROUNDS = 12


def plan_upgrade(
    topology: Any,
    traffic: Any,
    options: UpgradeOptions,
    notify: Notify = lambda _: None,
    *,
    proves: bool = False,
) -> UpgradePlan:
    """Plan a capacity expansion; Ctrl-C ends the search with the best plan so far.

    Args:
        topology: the network, or a file or name.
        traffic: its matrices, or a file or name.
        options: settings.
        notify: called with the progress.
        proves: whether the plan carries a proof of its bound.

    Raises:
        InputError: invalid input.
        SolverError: no feasible expansion in time.
    """
    question = dataclasses.replace(load_question(topology, traffic, options, notify), proves=proves)

    def stop() -> None:
        notify("interrupted: the best purchase so far follows; once more ends at once")
        question.deadline.expire()

    with on_interrupt(stop):
        return _solve_question(question)


def _solve_question(question: Question) -> UpgradePlan:
    """Plan for an input; return the best plan so far at its deadline."""
    config = question.config
    scenarios, cut_off = _initial_scenarios(question)
    # Other kinds of plans.
    if config.demands == "hose":
        return _plan_hose(question, scenarios, cut_off)
    if config.horizon:
        return _plan_quarters(question, scenarios, cut_off)
    rate = (
        growth_of(config, question.instance.traffic, question.notify)
        if config.growth_per_year
        else None
    )
    # Search, replay the other matrices, and repeat with those that do not fit.
    left_out = LeftOut(question)
    cuts = None
    begin = time.perf_counter()
    rounds = 0
    while True:
        upgrade, cuts, scenarios, continuous = _expand(question, scenarios, cuts)
        rounds += upgrade.rounds
        plans = [(1.0, plan.bought) for plan in (upgrade, continuous) if plan is not None]
        replayed, overloaded = left_out.replay(question, scenarios, plans, cut_off)
        if not len(overloaded) or question.deadline.is_over:
            break
        question, scenarios = question.with_more(overloaded, scenarios)
    upgrade = dataclasses.replace(
        upgrade,
        reached=upgrade.reached and replayed.is_complete,
        rounds=rounds,
        solve_s=time.perf_counter() - begin,
    )
    # The plan, and further results.
    plan = _assemble_plan(question, scenarios, upgrade, cut_off, _cost(continuous))
    plan = dataclasses.replace(
        plan, growth=rate, replayed=replayed if config.demands == "matrices" else None
    )
    return _with_further_results(question, plan, scenarios, upgrade, cuts, rate)


def _initial_scenarios(question: Question) -> tuple[Scenarios, dict[int, list[int]]]:
    """Return the scenarios of the input, and the demands that each failure cuts off."""
    config = question.config
    if config.demands == "matrices":
        scenarios, cut_off = question.scenarios(
            config.growth * question.matrices, question.failures
        )
    else:
        peaks = config.growth * pipe(question.matrices)[None]
        scenarios, cut_off = question.scenarios(peaks, question.failures)
    num_scenarios = len(scenarios.demand)
    num_failures = len(question.failures)
    question.notify(
        f"{num_scenarios:,} scenarios: {num_scenarios // (1 + num_failures)} matrices, "
        f"{num_failures} failures and none"
    )
    return scenarios, cut_off


def _with_further_results(
    question: Question,
    plan: UpgradePlan,
    scenarios: Scenarios,
    upgrade: Upgrade,
    cuts: Cuts,
    rate: Growth | None,
) -> UpgradePlan:
    """Add the results that the settings request: proof, forecasts, replay and curve."""
    config = question.config
    if question.proves:
        plan = dataclasses.replace(
            plan, proof=CutProof.of(scenarios, cuts, upgrade.dual, upgrade.cost)
        )
    if rate is not None:
        forecast_list = (
            question.attempt("the forecast", partial(forecasts, question, scenarios, rate)) or []
        )
        plan = dataclasses.replace(plan, forecasts=forecast_list)
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
    """Cost of an expansion; NaN for none."""
    return math.nan if upgrade is None else upgrade.cost


def _expand(
    question: Question, scenarios: Scenarios, earlier_cuts: Cuts | None
) -> tuple[Upgrade, Cuts, Scenarios, Upgrade | None]:
    """Return the expansion, its cuts and scenarios (with added paths), and, with modules, the
    expansion in any amounts; ``earlier_cuts`` are those of an earlier expansion.
    """
    config = question.config
    if config.routing == "ecmp":
        cuts = Cuts(scenarios.num_cables, len(scenarios.cable))
        upgrade = buy_for_igp(question, scenarios, config.sizes, question.failures)
        continuous = (
            buy_for_igp(question, scenarios, (), question.failures) if config.sizes else None
        )
        return upgrade, cuts, scenarios, continuous
    upgrade, cuts, scenarios = _expand_over_paths(question, scenarios, earlier_cuts)
    upgrade, continuous = _in_modules(question, scenarios, upgrade, cuts)
    return upgrade, cuts, scenarios, continuous


def _expand_over_paths(
    question: Question, scenarios: Scenarios, earlier_cuts: Cuts | None
) -> tuple[Upgrade, Cuts, Scenarios]:
    """Return the expansion in any amounts, its cuts, and its scenarios with added paths."""
    upgrade, cuts = buy(
        scenarios,
        gap=question.config.gap,
        deadline=question.deadline,
        report=question.report,
        cuts=earlier_cuts,
    )
    step = partial(_over_all_paths, question, scenarios, upgrade, cuts)
    return question.attempt("the search for paths", step) or (upgrade, cuts, scenarios)


def _in_modules(
    question: Question, scenarios: Scenarios, upgrade: Upgrade, cuts: Cuts
) -> tuple[Upgrade, Upgrade | None]:
    """Return the expansion in modules, if requested, and the one in any amounts; only the latter if
    the former fails.
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
    in_modules = question.attempt("the purchase in modules", step)
    if in_modules is None:
        return dataclasses.replace(upgrade, reached=False), None
    return dataclasses.replace(
        in_modules, dual=upgrade.dual, bound_all_paths=upgrade.bound_all_paths
    ), upgrade


def _over_all_paths(
    question: Question, scenarios: Scenarios, upgrade: Upgrade, cuts: Cuts
) -> tuple[Upgrade, Cuts, Scenarios]:
    """Add paths until the expansion is within the target gap over all paths, or none is missing.

    With --over-all-paths only this gap counts.  With latency limits no path is added, since it may
    be too long, and the bound is over paths of any latency.
    """
    bound = 0.0
    gap = question.config.gap
    for path_round in range(1, _MAX_PATH_ROUNDS + 1):
        assert upgrade.dual is not None
        bound = max(bound, bound_over_all_paths(scenarios, cuts, upgrade.dual))
        is_limited = question.instance.max_latency is not None
        if upgrade.cost - bound <= gap * upgrade.cost or question.deadline.is_over or is_limited:
            break
        paths = with_missing_paths(scenarios, cuts, upgrade.dual)
        added = int(paths.mask.sum() - scenarios.problem.paths.mask.sum())
        question.notify(
            f"paths, round {path_round}: cost {upgrade.cost:.6g}, "
            f"at least {rounding.at_least(bound)}; {added} paths more"
        )
        if not added:
            break
        scenarios = scenarios.with_paths(paths)
        cuts.over_paths(scenarios)
        earlier_rounds = upgrade.rounds
        upgrade, cuts = buy(scenarios, gap=gap / 2, deadline=question.deadline, cuts=cuts)
        upgrade = dataclasses.replace(upgrade, rounds=earlier_rounds + upgrade.rounds)
    required_bound = bound if question.config.over_all_paths else upgrade.bound
    reached = upgrade.cost - required_bound <= gap * upgrade.cost
    return dataclasses.replace(upgrade, reached=reached, bound_all_paths=bound), cuts, scenarios


def _plan_hose(question: Question, start: Scenarios, cut_off: dict[int, list[int]]) -> UpgradePlan:
    """Plan for a hose, and for every pair's peak (pipe) for comparison; if traffic is replayed,
    also compare what each drops.

    ``start`` has one matrix, every pair's peak, under each failure.
    """
    # Pipe.
    config = question.config
    hose = hose_of(config, question.offer.topology, start.problem.paths.pairs, question.matrices)
    question.notify("every pair's peak")
    pipe_upgrade, _ = buy(start, gap=config.gap, deadline=question.deadline, report=question.report)
    # Hose, in any amounts or in modules.
    hose_plan, continuous = _expand_for_hose(question, start, hose)
    scenarios = hose_plan.scenarios
    upgrade = hose_plan.upgrade
    # The plan, its comparison, and its certificate.
    plan = _assemble_plan(question, scenarios, upgrade, cut_off, continuous)
    plans = ("hose", scenarios, upgrade), ("pipe", start, pipe_upgrade)
    alternatives = question.attempt(
        "the replay", lambda: [alternative(question, *scenario) for scenario in plans]
    )
    if question.proves:
        plan = dataclasses.replace(
            plan, proof=CutProof.of(scenarios, hose_plan.cuts, upgrade.dual, upgrade.cost)
        )
    limit = float(hose_plan.limit.max(initial=0.0))
    if config.certify and not math.isfinite(limit):
        certify = partial(_certified_limit, question, hose, hose_plan, start.live)
        limit = question.attempt("--certify", certify) or math.inf
    return dataclasses.replace(
        plan,
        worst_demands=float(hose_plan.worst.max(initial=0.0)),
        alternatives=alternatives or [],
        worst_limit=limit if math.isfinite(limit) else math.nan,
    )


def _expand_for_hose(question: Question, start: Scenarios, hose: Hose) -> tuple[HosePlan, float]:
    """Return the expansion for a hose, in modules if requested; then also the cost in any amounts,
    else NaN.

    Args:
        question: the input.
        start: scenarios of one matrix, under each failure.
        hose: the matrices.
    """
    config = question.config
    # Start from the matrix with the largest total hop count.
    hops = start.batch(np.arange(1), np.zeros(start.num_cables))
    unit_prices = torch.ones_like(hops.capacity)
    hop_count = hops.cheapest_path_cost(hops.ops.path_sum(unit_prices))[0].numpy()
    matrix = hose.dearest(hop_count)
    hose_start = dataclasses.replace(start, demand=np.where(start.demand > 0, matrix, 0.0))
    question.notify("hose")
    search = partial(
        buy_for_hose,
        live=start.live,
        hose=hose,
        gap=config.gap,
        deadline=question.deadline,
        report=question.report,
        notify=question.notify,
    )
    hose_plan = search(hose_start)
    # Bound over all paths.
    upgrade = hose_plan.upgrade
    dual = np.zeros(0) if upgrade.dual is None else upgrade.dual
    step = partial(bound_over_all_paths, hose_plan.scenarios, hose_plan.cuts, dual)
    bound = question.attempt("the bound over all paths", lambda: max(0.0, step()))
    upgrade = dataclasses.replace(upgrade, bound_all_paths=math.nan if bound is None else bound)
    # Modules.
    continuous = math.nan
    if config.sizes:
        module_search = partial(
            search, hose_plan.scenarios, sizes=config.sizes, cuts=hose_plan.cuts
        )
        module_plan = question.attempt("the purchase in modules", module_search)
        if module_plan is not None:
            hose_plan = module_plan
            continuous = upgrade.cost
            upgrade = dataclasses.replace(
                hose_plan.upgrade, dual=dual, bound_all_paths=upgrade.bound_all_paths
            )
        else:
            upgrade = dataclasses.replace(upgrade, reached=False)
    return dataclasses.replace(hose_plan, upgrade=upgrade), continuous


def _certified_limit(question: Question, hose: Hose, hose_plan: HosePlan, live: BoolArray) -> float:
    """Return a bound on the largest utilisation under any matrix and failure, from static splits.

    Args:
        question: the input, notified after each failure.
        hose: the matrices.
        hose_plan: the expansion.
        live: (F, E) whether links are up, for each failure.
    """
    scenarios = hose_plan.scenarios
    limit = 0.0
    network = scenarios.some(np.zeros((len(live), scenarios.demand.shape[1])), live)
    for failure_index in range(len(live)):
        scenario = network.batch(np.array([failure_index]), hose_plan.upgrade.bought)
        limit = max(limit, static_limit(scenario, hose)[0])
        proven = rounding.percent_at_most(limit, 2)
        question.notify(f"certified {failure_index + 1} of {len(live)}: at most {proven}")
    return limit


class _PeriodPlan(NamedTuple):
    """Expansions of all periods of a horizon.

    Attributes:
        periods: the expansions, in time order.
        upgrade: the expansion for all periods.
        largest: the expansion for the largest demands in any amounts.
        last: scenarios with the largest demands.
        scenarios: scenarios with today's demands, and added paths.
        cuts: cuts for the largest demands; None with ECMP.
    """

    periods: list[Period]
    upgrade: Upgrade
    largest: Upgrade
    last: Scenarios
    scenarios: Scenarios
    cuts: Cuts | None


def _plan_quarters(
    question: Question, scenarios: Scenarios, cut_off: dict[int, list[int]]
) -> UpgradePlan:
    """Plan expansions by quarter, up to the horizon."""
    config = question.config
    today = question.instance.traffic.timestamps[-1]
    rate = growth_of(config, question.instance.traffic, question.notify)
    ends, factors = quarters(rate, config.horizon_years)
    left_out = LeftOut(question)
    cuts = None
    # Search, replay the other matrices, and repeat with those that do not fit.
    begin = time.perf_counter()
    rounds = 0
    while True:
        expansion = _expand_periods(question, scenarios, factors, cuts)
        scenarios = expansion.scenarios
        cuts = expansion.cuts
        largest = expansion.largest
        rounds += largest.rounds + expansion.upgrade.rounds
        plans = [(period.growth, period.bought) for period in expansion.periods]
        # The expansion in any amounts, reported beside the modules, must fit every matrix, too.
        if config.sizes:
            plans.append((float(factors.max()), largest.bought))
        replayed, overloaded = left_out.replay(question, scenarios, plans, cut_off)
        if not len(overloaded) or question.deadline.is_over:
            break
        question, scenarios = question.with_more(overloaded, scenarios)
    # The plan.
    upgrade = dataclasses.replace(
        expansion.upgrade,
        reached=largest.reached and expansion.upgrade.reached and replayed.is_complete,
        bound_all_paths=largest.bound_all_paths,
        rounds=rounds,
        solve_s=time.perf_counter() - begin,
    )
    plan = _assemble_plan(
        question, expansion.last, upgrade, cut_off, largest.cost if config.sizes else math.nan
    )
    # Further results.
    forecast_list = (
        question.attempt("the forecast", partial(forecasts, question, scenarios, rate)) or []
    )
    months = [month_after(today, float(end)) for end in ends]
    return dataclasses.replace(
        plan,
        replayed=replayed if config.demands == "matrices" else None,
        growth=rate,
        forecasts=forecast_list,
        quarters=_quarters_of(expansion.periods, months),
        purchases=by_quarter(question, expansion.periods, months),
    )


def _expand_periods(
    question: Question, scenarios: Scenarios, factors: FloatArray, cuts: Cuts | None
) -> _PeriodPlan:
    """Expand for the largest demands, then for every period.

    Args:
        question: the input.
        scenarios: scenarios with today's demands.
        factors: (Q,) factor of all demands in each period.
        cuts: cuts that hold for the largest demands; None for none.
    """
    config = question.config
    largest_factor = float(factors.max())
    # Fixed loads of the IGP.
    if config.routing == "ecmp":
        load = igp_loads(question, scenarios, np.zeros(scenarios.num_cables))
        last = scenarios.scaled(largest_factor)
        largest = buy_for_loads(scenarios, largest_factor * load)
        periods, upgrade = schedule_of_loads(
            scenarios, load, factors.tolist(), sizes=config.sizes, deadline=question.deadline
        )
        return _PeriodPlan(periods, upgrade, largest, last, scenarios, cuts)
    # Optimal splits.
    largest, cuts, peak = _expand_over_paths(question, scenarios.scaled(largest_factor), cuts)
    scenarios = scenarios.with_paths(peak.problem.paths)
    periods, upgrade, last, cuts = schedule(
        scenarios,
        factors.tolist(),
        gap=config.gap,
        sizes=config.sizes,
        deadline=question.deadline,
        notify=question.notify,
        cuts=cuts,
    )
    return _PeriodPlan(periods, upgrade, largest, last, scenarios, cuts)


def _quarters_of(periods: Sequence[Period], months: Sequence[str]) -> list[Quarter]:
    """Return the figures of each period, by the month in which it ends."""
    return [
        Quarter(
            by=month,
            growth=period.growth,
            cost=period.cost,
            bound=period.bound,
            utilisation=float(period.utilisation.max(initial=0.0)),
        )
        for month, period in zip(months, periods, strict=True)
    ]


def _assemble_plan(
    question: Question,
    scenarios: Scenarios,
    upgrade: Upgrade,
    cut_off: dict[int, list[int]],
    continuous: float,
) -> UpgradePlan:
    """Assemble the plan, with names."""
    topology = question.offer.topology
    failures = question.failures
    pairs = question.instance.traffic.pairs
    names = topology.node_names
    # Names of the demands that each failure disconnects, besides those without a path.
    always_cut = set(cut_off.get(-1, ()))
    names_by_failure = {
        failures[number].name if number >= 0 else "": [
            f"{names[pairs[d, 0]]} -> {names[pairs[d, 1]]}" for d in failure_demands
        ]
        for number, demands in cut_off.items()
        if (failure_demands := [d for d in demands if number < 0 or d not in always_cut])
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
        cut_off=names_by_failure,
        continuous=continuous,
        before=before,
        after=after,
        routing=question.config.routing,
        failed=question.failed,
    )


def _fits(
    question: Question, scenarios: Scenarios, upgrade: Upgrade, cut_off: dict[int, list[int]]
) -> list[ScenarioFit]:
    """Return the fit of every scenario."""
    by_links = {tuple(failure.links): failure.name for failure in question.failures}
    rows = question.rows
    timestamps = question.instance.traffic.timestamps
    per_matrix = 1 + len(question.failures)
    is_series = question.config.demands == "matrices"
    num_cut_off = {
        question.failures[number].name if number >= 0 else "": len(demands)
        for number, demands in cut_off.items()
    }
    names = ["", *(failure.name for failure in question.failures)] * (
        scenarios.num_scenarios // per_matrix
    )
    all_live = scenarios.problem.topology.capacity > 0
    fits = []
    for s in range(scenarios.num_scenarios):
        if s < len(names) and (is_series or s < per_matrix):
            failure_name = names[s]
        # A matrix that the search for worst demands added.
        else:
            failed_links = tuple(np.flatnonzero(all_live & ~scenarios.live[s]).tolist())
            failure_name = by_links.get(failed_links, "")
        index = int(rows[s // per_matrix]) if is_series else -1
        fits.append(
            ScenarioFit(
                index=index,
                timestamp=str(timestamps[index]) if is_series else question.config.demands,
                failure=failure_name,
                utilisation=float(upgrade.utilisation[s]),
                cut_off=num_cut_off.get(failure_name, 0),
            )
        )
    return fits


def _link_loads(
    question: Question, scenarios: Scenarios, upgrade: Upgrade
) -> tuple[FloatArray, FloatArray]:
    """Largest utilisation of each link over all scenarios, before and after the expansion."""

    def largest(bought: FloatArray) -> FloatArray:
        if question.config.routing == "ecmp":
            load = igp_loads(question, scenarios, bought)
        else:
            rows = np.arange(scenarios.num_scenarios)
            load = Tester(scenarios).test(bought, rows, question.deadline, until_cut=True).load
        return load_over_capacity(load.max(0), question.offer.regular + bought[scenarios.cable])

    return largest(np.zeros(scenarios.num_cables)), largest(upgrade.bought)


__all__ = ["bound_over_all_paths", "with_missing_paths"]
