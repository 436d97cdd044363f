"""Capacity expansion plans, from settings to a certified result: ``teal upgrade``.

Benders decomposition over candidate paths is embedded in column generation.  The cuts of an
expansion hold for all paths if ``needed``, the cost of all demands under the prices of a cut, is
computed with shortest paths of the network instead of the cheapest candidate paths; paths that are
cheaper than all candidates are added.  Only cuts with a positive dual matter; there are about as
many as cables with added capacity.

Axis letters: S scenarios, F failures, M matrices, D demands, C cables, E links, n cuts.  Entry
point: :func:`plan_upgrade`.
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
from teal_ip.purchases.benders import Upgrade, expand_capacity, expand_for_loads, expand_in_modules
from teal_ip.purchases.cuts import Cuts
from teal_ip.purchases.hose import Hose, HosePlan, expand_for_hose, pipe, static_limit
from teal_ip.purchases.igp import LeftOut, expand_for_igp, igp_loads
from teal_ip.purchases.outlook import alternative, by_quarter, curve, forecasts
from teal_ip.purchases.proof import CutProof
from teal_ip.purchases.question import Notify, UpgradeTask, load_task, make_hose, purchases
from teal_ip.purchases.result import Quarter, ScenarioFit, UpgradePlan
from teal_ip.purchases.scenarios import Scenarios, load_over_capacity
from teal_ip.purchases.schedule import Period, schedule, schedule_of_loads
from teal_ip.purchases.settings import UpgradeOptions
from teal_ip.purchases.testing import Tester
from teal_ip.routing.growth import Growth, growth_of, month_after, quarters

# Price added per link, as a fraction of the largest price, so that of equally cheap paths the one
# with the fewest links is chosen.
_TIE_WEIGHT = 1e-6
# Excess of a cable's price over its cost that counts as rounding error of the duals.
_ROUNDING = 1e-12
# Relative saving against all candidate paths above which a path is added.
_CHEAPER = 1e-6


def bound_over_all_paths(scenarios: Scenarios, cuts: Cuts, dual: FloatArray) -> float:
    """Return a lower bound on the cost of every expansion, for any paths.

    A cut requires coefficient a >= needed - existing of every expansion a (C,).  With duals l of
    the cuts, and ``needed`` computed with shortest paths of the network instead of the cheapest
    candidate paths,

        bound = l' (needed - existing) - max_added' max(0, coefficient' l - cost).

    Args:
        scenarios: scenarios of the cuts, without demands that have no live candidate path.
        cuts: Benders cuts of an expansion.
        dual: (n,) duals l >= 0 of the first n cuts, with coefficient' l <= cost for cables without
            a limit; later searches append cuts.
    """
    positive = np.flatnonzero(dual > 0)
    needed = np.array([_needed_over_all_paths(scenarios, cuts, int(i))[0] for i in positive])
    excess = np.maximum(dual @ cuts.coefficient[: len(dual)] - scenarios.cost, 0.0)
    limits = np.where(excess > _ROUNDING, scenarios.max_added, 0.0)
    return float(dual[positive] @ (needed - cuts.existing[positive])) - float(
        np.where(np.isfinite(limits), limits, 0.0) @ excess
    )


def with_missing_paths(scenarios: Scenarios, cuts: Cuts, dual: FloatArray) -> PathSet:
    """Return the candidate paths with those that cuts over all paths need.

    For each cut with a positive dual, the shortest path of each demand under its prices is added if
    it is cheaper than all live candidates.  No path is added twice.

    Args:
        scenarios: scenarios of the cuts, over the candidate paths.
        cuts: Benders cuts of an expansion.
        dual: (n,) duals of the first n cuts.
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
    """Return the cost of all demands on shortest paths under the prices of a cut, and cheaper
    paths.

    Args:
        scenarios: scenarios of the cut, over the candidate paths.
        cuts: Benders cuts of an expansion.
        cut_index: index of the cut.
        find: whether to return the paths that are cheaper than all candidates, too.

    Returns:
        ``needed`` of the cut over all paths; ptr (D + 1,) and links of the cheaper paths: that of
        demand d is links[ptr[d]:ptr[d + 1]], empty for none; both are empty without ``find``.
    """
    problem = scenarios.problem
    row = int(cuts.row[cut_index])
    topology = problem.topology
    pairs = problem.paths.pairs
    prices = cuts.prices[cut_index]
    # Shortest path of each demand under the prices.
    weight = np.where(scenarios.live[row], prices, np.inf)
    sources, source_row = np.unique(pairs[:, 0], return_inverse=True)
    graph = (topology.num_nodes, topology.link_source, topology.link_target)
    distance, _ = shortest_trees(*graph, weight, sources, topology.no_transit)
    # Distance (D,) from source to target of each demand.
    shortest = distance[source_row, pairs[:, 1]]
    demand = scenarios.demand[row]
    has_demand = demand > 0
    needed = float(demand[has_demand] @ shortest[has_demand])
    no_ptr = np.zeros(0, dtype=np.int64)
    no_links = np.zeros(0, dtype=np.int32)
    if not find:
        return needed, no_ptr, no_links
    # Cost (D,) of the cheapest live candidate path of each demand.
    scenario = scenarios.batch(np.array([row]), np.zeros(scenarios.num_cables))
    cheapest = scenario.cheapest_path_cost(
        scenario.ops.path_sum(torch.from_numpy(prices[None].copy()))
    )[0].numpy()
    # Shortest paths of the demands for which they are cheaper.  A small price for every link
    # selects the path with the fewest links among equally cheap ones.
    cheaper_demands = np.flatnonzero(has_demand & (shortest < cheapest * (1 - _CHEAPER)))
    if not len(cheaper_demands):
        return needed, no_ptr, no_links
    tie_weight = _TIE_WEIGHT * float(prices.max(initial=0.0)) or 1.0
    _, tree_link = shortest_trees(*graph, weight + tie_weight, sources, topology.no_transit)
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
        options: settings of ``teal upgrade``.
        notify: called with the progress.
        proves: whether the plan carries a proof of its bound.

    Raises:
        InputError: invalid input.
        SolverError: no feasible expansion in time.
    """
    task = dataclasses.replace(load_task(topology, traffic, options, notify), proves=proves)

    def stop() -> None:
        """Announce the interruption, and end the search by expiring its deadline."""
        notify(
            "interrupted: finishing with the best plan so far; press Ctrl-C again to stop at once"
        )
        task.deadline.expire()

    with on_interrupt(stop):
        return _solve_task(task)


def _solve_task(task: UpgradeTask) -> UpgradePlan:
    """Plan a capacity expansion for an input; return the best plan so far at its deadline.

    A round expands for the matrices so far and evaluates the plan on all others; matrices that do
    not fit are added, until all fit.  A hose and a horizon have their own planning functions.

    Args:
        task: input of the search: network, matrices, failures and settings.
    """
    config = task.config
    scenarios, disconnected = _initial_scenarios(task)
    # Plans for a hose, or for a horizon.
    if config.demands == "hose":
        return _plan_hose(task, scenarios, disconnected)
    if config.horizon:
        return _plan_quarters(task, scenarios, disconnected)
    rate = growth_of(config, task.instance.traffic, task.notify) if config.growth_per_year else None
    # Expand, evaluate the plan on the other matrices, and repeat with those that do not fit.
    left_out = LeftOut(task)
    cuts = None
    begin = time.perf_counter()
    num_rounds = 0
    while True:
        upgrade, cuts, scenarios, relaxed = _expand(task, scenarios, cuts)
        num_rounds += upgrade.rounds
        # The plan, and with modules also the one in any amounts, without further growth (factor 1).
        plans = [(1.0, plan.bought) for plan in (upgrade, relaxed) if plan is not None]
        evaluation, overloaded = left_out.replay(task, scenarios, plans, disconnected)
        if not len(overloaded) or task.deadline.is_over:
            break
        task, scenarios = task.with_more(overloaded, scenarios)
    upgrade = dataclasses.replace(
        upgrade,
        reached=upgrade.reached and evaluation.is_complete,
        rounds=num_rounds,
        solve_s=time.perf_counter() - begin,
    )
    # The plan, and further results.
    plan = _assemble_plan(task, scenarios, upgrade, disconnected, _cost(relaxed))
    plan = dataclasses.replace(
        plan, growth=rate, replayed=evaluation if config.demands == "matrices" else None
    )
    return _with_further_results(task, plan, scenarios, upgrade, cuts, rate)


def _initial_scenarios(task: UpgradeTask) -> tuple[Scenarios, dict[int, list[int]]]:
    """Return the scenarios of the input, and the demands that each failure disconnects.

    The disconnected demands are lists of indices by index of the failure, -1 for none.
    """
    config = task.config
    # Matrices (M, D): those to plan for; with pipe or hose, one matrix with the largest value of
    # every demand.
    if config.demands == "matrices":
        scenarios, disconnected = task.scenarios(config.growth * task.matrices, task.failures)
    else:
        peaks = config.growth * pipe(task.matrices)[None]
        scenarios, disconnected = task.scenarios(peaks, task.failures)
    num_scenarios = len(scenarios.demand)
    num_failures = len(task.failures)
    task.notify(
        f"{num_scenarios:,} scenarios: {num_scenarios // (1 + num_failures)} matrices, without "
        f"failure and under {num_failures} failures"
    )
    return scenarios, disconnected


def _with_further_results(
    task: UpgradeTask,
    plan: UpgradePlan,
    scenarios: Scenarios,
    upgrade: Upgrade,
    cuts: Cuts,
    rate: Growth | None,
) -> UpgradePlan:
    """Add the results that the settings request: proof, forecasts, evaluation on later traffic, and
    curve.

    Args:
        task: input of the search: network, matrices, failures and settings.
        plan: the plan without these results.
        scenarios: matrices under failures of the plan.
        upgrade: expansion of the plan.
        cuts: its Benders cuts.
        rate: growth of the demands in time; None if not requested.
    """
    config = task.config
    if task.proves:
        plan = dataclasses.replace(
            plan, proof=CutProof.of(scenarios, cuts, upgrade.dual, upgrade.cost)
        )
    if rate is not None:
        forecast_list = (
            task.attempt("the forecast", partial(forecasts, task, scenarios, rate)) or []
        )
        plan = dataclasses.replace(plan, forecasts=forecast_list)
    if config.replay:
        step = partial(alternative, task, config.demands, scenarios, upgrade)
        plan = dataclasses.replace(
            plan, alternatives=task.attempt("the replay", lambda: [step()]) or []
        )
    if config.curve:
        points = task.attempt("the curve", partial(curve, task, scenarios, cuts)) or []
        plan = dataclasses.replace(plan, curve=points)
    return plan


def _cost(upgrade: Upgrade | None) -> float:
    """Return the cost of an expansion; NaN for None."""
    return math.nan if upgrade is None else upgrade.cost


def _expand(
    task: UpgradeTask, scenarios: Scenarios, earlier_cuts: Cuts | None
) -> tuple[Upgrade, Cuts, Scenarios, Upgrade | None]:
    """Find the cheapest expansion for the routing of the settings: the IGP's shortest paths, or
    optimal splits.

    Args:
        task: input of the search: network, matrices, failures and settings.
        scenarios: matrices under failures that must fit.
        earlier_cuts: valid Benders cuts of an earlier expansion; None for none.

    Returns:
        the expansion, its cuts, its scenarios (with added paths), and, with modules, the expansion
        of the continuous relaxation (any amounts), else None.
    """
    config = task.config
    if config.routing == "ecmp":
        # No cuts: shortest-path routing is searched by enumeration, not by Benders decomposition.
        cuts = Cuts(scenarios.num_cables, len(scenarios.cable))
        upgrade = expand_for_igp(task, scenarios, config.sizes, task.failures)
        relaxed = expand_for_igp(task, scenarios, (), task.failures) if config.sizes else None
        return upgrade, cuts, scenarios, relaxed
    upgrade, cuts, scenarios = _expand_over_paths(task, scenarios, earlier_cuts)
    upgrade, relaxed = _in_modules(task, scenarios, upgrade, cuts)
    return upgrade, cuts, scenarios, relaxed


def _expand_over_paths(
    task: UpgradeTask, scenarios: Scenarios, earlier_cuts: Cuts | None
) -> tuple[Upgrade, Cuts, Scenarios]:
    """Find the expansion in any amounts for optimal splits, with paths added as needed.

    Args:
        task: input of the search: network, matrices, failures and settings.
        scenarios: matrices under failures that must fit.
        earlier_cuts: valid Benders cuts of an earlier expansion; None for none.

    Returns:
        the expansion, its cuts, and its scenarios with added paths.
    """
    upgrade, cuts = expand_capacity(
        scenarios,
        gap=task.config.gap,
        deadline=task.deadline,
        report=task.report,
        cuts=earlier_cuts,
    )
    step = partial(_over_all_paths, task, scenarios, upgrade, cuts)
    return task.attempt("the search for paths", step) or (upgrade, cuts, scenarios)


def _in_modules(
    task: UpgradeTask, scenarios: Scenarios, upgrade: Upgrade, cuts: Cuts
) -> tuple[Upgrade, Upgrade | None]:
    """Find the expansion in modules, if the settings have module sizes.

    Args:
        task: input of the search: network, matrices, failures and settings.
        scenarios: matrices under failures that must fit.
        upgrade: the expansion in any amounts.
        cuts: its Benders cuts, extended in place.

    Returns:
        the expansion in modules, and the one in any amounts; without sizes, or if the search fails,
        the expansion in any amounts and None.
    """
    if not task.config.sizes:
        return upgrade, None
    search_modules = partial(
        expand_in_modules,
        scenarios,
        cuts,
        task.config.sizes,
        deadline=task.deadline,
        report=task.report,
    )
    in_modules = task.attempt("the expansion in modules", search_modules)
    if in_modules is None:
        return dataclasses.replace(upgrade, reached=False), None
    return dataclasses.replace(
        in_modules, dual=upgrade.dual, bound_all_paths=upgrade.bound_all_paths
    ), upgrade


def _over_all_paths(
    task: UpgradeTask, scenarios: Scenarios, upgrade: Upgrade, cuts: Cuts
) -> tuple[Upgrade, Cuts, Scenarios]:
    """Add paths until the expansion is within the target gap of the bound over all paths, or until
    no path is missing.

    With --over-all-paths only this gap counts.  With latency limits no path is added, since it may
    be too long, and the bound is over paths of any latency.

    Args:
        task: input of the search: network, matrices, failures and settings.
        scenarios: matrices under failures that must fit.
        upgrade: the expansion over the candidate paths.
        cuts: its Benders cuts; recomputed in place when paths are added.

    Returns:
        the expansion, its cuts, and its scenarios with added paths.
    """
    bound = 0.0
    gap = task.config.gap
    for path_round in range(1, _MAX_PATH_ROUNDS + 1):
        assert upgrade.dual is not None
        bound = max(bound, bound_over_all_paths(scenarios, cuts, upgrade.dual))
        is_limited = task.instance.max_latency is not None
        if upgrade.cost - bound <= gap * upgrade.cost or task.deadline.is_over or is_limited:
            break
        paths = with_missing_paths(scenarios, cuts, upgrade.dual)
        num_added = int(paths.mask.sum() - scenarios.problem.paths.mask.sum())
        task.notify(
            f"path round {path_round}: cost {upgrade.cost:.6g}, lower bound over all paths "
            f"{rounding.at_least(bound)}; adding {num_added} paths"
        )
        if not num_added:
            break
        scenarios = scenarios.with_paths(paths)
        # The cuts may be invalid over more paths: recompute them, and expand again, to half of the
        # target gap.
        cuts.over_paths(scenarios)
        earlier_rounds = upgrade.rounds
        upgrade, cuts = expand_capacity(scenarios, gap=gap / 2, deadline=task.deadline, cuts=cuts)
        upgrade = dataclasses.replace(upgrade, rounds=earlier_rounds + upgrade.rounds)
    # The gap that counts: to the bound over all paths, or over the candidate paths.
    required_bound = bound if task.config.over_all_paths else upgrade.bound
    reached = upgrade.cost - required_bound <= gap * upgrade.cost
    return dataclasses.replace(upgrade, reached=reached, bound_all_paths=bound), cuts, scenarios


def _plan_hose(
    task: UpgradeTask, start: Scenarios, disconnected: dict[int, list[int]]
) -> UpgradePlan:
    """Return the plan for a hose, compared with the plan for the largest value of every demand at
    once (pipe).

    If traffic is held back for evaluation, the share that each plan drops is compared, too.

    Args:
        task: input of the search: network, matrices, failures and settings.
        start: one matrix, the largest value of every demand, under each failure.
        disconnected: demands that each failure disconnects.
    """
    # Pipe.
    config = task.config
    hose = make_hose(config, task.offer.topology, start.problem.paths.pairs, task.matrices)
    task.notify("expanding for the largest value of every demand at once (pipe)")
    pipe_upgrade, _ = expand_capacity(
        start, gap=config.gap, deadline=task.deadline, report=task.report
    )
    # Hose, in any amounts or in modules.
    hose_plan, relaxed = _expand_for_hose(task, start, hose)
    scenarios = hose_plan.scenarios
    upgrade = hose_plan.upgrade
    # The plan, its comparison with the pipe, its proof, and with --certify the upper bound on the
    # utilisation under any matrix of the hose.
    plan = _assemble_plan(task, scenarios, upgrade, disconnected, relaxed)
    named_plans = ("hose", scenarios, upgrade), ("pipe", start, pipe_upgrade)
    alternatives = task.attempt(
        "the replay", lambda: [alternative(task, *named_plan) for named_plan in named_plans]
    )
    if task.proves:
        plan = dataclasses.replace(
            plan, proof=CutProof.of(scenarios, hose_plan.cuts, upgrade.dual, upgrade.cost)
        )
    limit = float(hose_plan.limit.max(initial=0.0))
    if config.certify and not math.isfinite(limit):
        certify = partial(_certified_limit, task, hose, hose_plan, start.live)
        limit = task.attempt("--certify", certify) or math.inf
    return dataclasses.replace(
        plan,
        worst_demands=float(hose_plan.worst.max(initial=0.0)),
        alternatives=alternatives or [],
        worst_limit=limit if math.isfinite(limit) else math.nan,
    )


def _expand_for_hose(task: UpgradeTask, start: Scenarios, hose: Hose) -> tuple[HosePlan, float]:
    """Find the expansion for a hose, in modules if the settings have module sizes.

    Args:
        task: input of the search: network, matrices, failures and settings.
        start: scenarios of one matrix, under each failure.
        hose: limits of what each node sends and receives; the set of matrices within them.

    Returns:
        the plan, and with modules the cost in any amounts, else NaN.
    """
    config = task.config
    # Start from the matrix with the largest total hop count (rate times hops).
    intact_network = start.batch(np.arange(1), np.zeros(start.num_cables))
    unit_prices = torch.ones_like(intact_network.capacity)
    hop_count = intact_network.cheapest_path_cost(intact_network.ops.path_sum(unit_prices))[
        0
    ].numpy()
    matrix = hose.max_weight_matrix(hop_count)
    hose_start = dataclasses.replace(start, demand=np.where(start.demand > 0, matrix, 0.0))
    task.notify("expanding for the hose")
    search = partial(
        expand_for_hose,
        live=start.live,
        hose=hose,
        gap=config.gap,
        deadline=task.deadline,
        report=task.report,
        notify=task.notify,
    )
    hose_plan = search(hose_start)
    # Bound over all paths.
    upgrade = hose_plan.upgrade
    dual = np.zeros(0) if upgrade.dual is None else upgrade.dual
    compute_bound = partial(bound_over_all_paths, hose_plan.scenarios, hose_plan.cuts, dual)
    bound = task.attempt("the bound over all paths", lambda: max(0.0, compute_bound()))
    upgrade = dataclasses.replace(upgrade, bound_all_paths=math.nan if bound is None else bound)
    # Modules.
    relaxed = math.nan
    if config.sizes:
        module_search = partial(
            search, hose_plan.scenarios, sizes=config.sizes, cuts=hose_plan.cuts
        )
        module_plan = task.attempt("the expansion in modules", module_search)
        if module_plan is not None:
            hose_plan = module_plan
            relaxed = upgrade.cost
            upgrade = dataclasses.replace(
                hose_plan.upgrade, dual=dual, bound_all_paths=upgrade.bound_all_paths
            )
        else:
            upgrade = dataclasses.replace(upgrade, reached=False)
    return dataclasses.replace(hose_plan, upgrade=upgrade), relaxed


def _certified_limit(task: UpgradeTask, hose: Hose, hose_plan: HosePlan, live: BoolArray) -> float:
    """Return an upper bound on the largest utilisation under any matrix and failure, from static
    splits.

    Args:
        task: input of the search, notified after each failure.
        hose: limits of what each node sends and receives; the set of matrices within them.
        hose_plan: the expansion.
        live: (F, E) whether links are up, for each failure.
    """
    scenarios = hose_plan.scenarios
    limit = 0.0
    network = scenarios.select(np.zeros((len(live), scenarios.demand.shape[1])), live)
    for failure_index in range(len(live)):
        scenario = network.batch(np.array([failure_index]), hose_plan.upgrade.bought)
        limit = max(limit, static_limit(scenario, hose)[0])
        proven = rounding.percent_at_most(limit, 2)
        task.notify(
            f"certified {failure_index + 1} of {len(live)} failures: utilisation at most {proven}"
        )
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
    task: UpgradeTask, scenarios: Scenarios, disconnected: dict[int, list[int]]
) -> UpgradePlan:
    """Return the plan of the expansions by quarter, up to the horizon.

    Args:
        task: input of the search: network, matrices, failures and settings.
        scenarios: matrices under failures, with today's demands.
        disconnected: demands that each failure disconnects.
    """
    config = task.config
    today = task.instance.traffic.timestamps[-1]
    rate = growth_of(config, task.instance.traffic, task.notify)
    ends, factors = quarters(rate, config.horizon_years)
    left_out = LeftOut(task)
    cuts = None
    # Expand, evaluate the plan on the other matrices, and repeat with those that do not fit.
    begin = time.perf_counter()
    num_rounds = 0
    while True:
        period_plan = _expand_periods(task, scenarios, factors, cuts)
        scenarios = period_plan.scenarios
        cuts = period_plan.cuts
        largest = period_plan.largest
        num_rounds += largest.rounds + period_plan.upgrade.rounds
        plans = [(period.growth, period.bought) for period in period_plan.periods]
        # The expansion in any amounts, which the report has besides the modules, must fit all, too.
        if config.sizes:
            plans.append((float(factors.max()), largest.bought))
        evaluation, overloaded = left_out.replay(task, scenarios, plans, disconnected)
        if not len(overloaded) or task.deadline.is_over:
            break
        task, scenarios = task.with_more(overloaded, scenarios)
    # The plan of the last quarter.
    upgrade = dataclasses.replace(
        period_plan.upgrade,
        reached=largest.reached and period_plan.upgrade.reached and evaluation.is_complete,
        bound_all_paths=largest.bound_all_paths,
        rounds=num_rounds,
        solve_s=time.perf_counter() - begin,
    )
    plan = _assemble_plan(
        task, period_plan.last, upgrade, disconnected, largest.cost if config.sizes else math.nan
    )
    # Further results.
    forecast_list = task.attempt("the forecast", partial(forecasts, task, scenarios, rate)) or []
    months = [month_after(today, float(end)) for end in ends]
    return dataclasses.replace(
        plan,
        replayed=evaluation if config.demands == "matrices" else None,
        growth=rate,
        forecasts=forecast_list,
        quarters=_quarters_of(period_plan.periods, months),
        purchases=by_quarter(task, period_plan.periods, months),
    )


def _expand_periods(
    task: UpgradeTask, scenarios: Scenarios, factors: FloatArray, cuts: Cuts | None
) -> _PeriodPlan:
    """Expand for the largest demands, then for every period; return the expansions of all periods.

    Args:
        task: input of the search: network, matrices, failures and settings.
        scenarios: matrices under failures, with today's demands.
        factors: (Q,) factor of all demands in each period.
        cuts: Benders cuts that hold for the largest demands; None for none.
    """
    config = task.config
    largest_factor = float(factors.max())
    # Routing by the IGP: the loads do not depend on the expansion, and scale with the demands.
    if config.routing == "ecmp":
        load = igp_loads(task, scenarios, np.zeros(scenarios.num_cables))
        last = scenarios.scaled(largest_factor)
        largest = expand_for_loads(scenarios, largest_factor * load)
        periods, upgrade = schedule_of_loads(
            scenarios, load, factors.tolist(), sizes=config.sizes, deadline=task.deadline
        )
        return _PeriodPlan(periods, upgrade, largest, last, scenarios, cuts)
    # Optimal splits: expansion for the largest demands, then for the periods, the last one first.
    largest, cuts, largest_scenarios = _expand_over_paths(
        task, scenarios.scaled(largest_factor), cuts
    )
    scenarios = scenarios.with_paths(largest_scenarios.problem.paths)
    periods, upgrade, last, cuts = schedule(
        scenarios,
        factors.tolist(),
        gap=config.gap,
        sizes=config.sizes,
        deadline=task.deadline,
        notify=task.notify,
        cuts=cuts,
    )
    return _PeriodPlan(periods, upgrade, largest, last, scenarios, cuts)


def _quarters_of(periods: Sequence[Period], months: Sequence[str]) -> list[Quarter]:
    """Return the metrics of the expansion by the end of each period.

    Args:
        periods: cumulative expansions in time order.
        months: last month of each period, such as 2027-03.
    """
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
    task: UpgradeTask,
    scenarios: Scenarios,
    upgrade: Upgrade,
    disconnected: dict[int, list[int]],
    relaxed: float,
) -> UpgradePlan:
    """Return the plan of an expansion: networks, named purchases, fits of scenarios, and link
    utilisations.

    Args:
        task: input of the search: network, matrices, failures and settings.
        scenarios: matrices under failures of the expansion.
        upgrade: the expansion.
        disconnected: demands by index of the failure that disconnects them, -1 for none.
        relaxed: cost in any amounts, if modules were requested; else NaN.
    """
    topology = task.offer.topology
    failures = task.failures
    pairs = task.instance.traffic.pairs
    names = topology.node_names
    # Names of the demands that each failure disconnects, without those that never have a path.
    always_disconnected = set(disconnected.get(-1, ()))
    names_by_failure = {
        failures[failure_index].name if failure_index >= 0 else "": [
            f"{names[pairs[d, 0]]} -> {names[pairs[d, 1]]}" for d in failure_demands
        ]
        for failure_index, demands in disconnected.items()
        if (
            failure_demands := [
                d for d in demands if failure_index < 0 or d not in always_disconnected
            ]
        )
    }
    # Network after the expansion, without candidate cables that are not bought, and utilisations.
    capacity = task.offer.existing_capacity + upgrade.bought[scenarios.cable]
    loads = task.attempt("the loads of links", partial(_link_loads, task, scenarios, upgrade))
    utilisation_before, utilisation_after = loads or (None, None)
    return UpgradePlan(
        topology=topology.with_capacity(task.offer.existing_capacity),
        upgraded=topology.with_capacity(capacity).with_links(capacity > 0),
        upgrade=upgrade,
        purchases=purchases(task, upgrade.bought, upgrade.modules),
        scenarios=_fits(task, scenarios, upgrade, disconnected),
        cut_off=names_by_failure,
        continuous=relaxed,
        before=utilisation_before,
        after=utilisation_after,
        routing=task.config.routing,
        failed=task.failed,
    )


def _fits(
    task: UpgradeTask, scenarios: Scenarios, upgrade: Upgrade, disconnected: dict[int, list[int]]
) -> list[ScenarioFit]:
    """Return the fit of every scenario, with the names of its matrix and failure.

    Args:
        task: input of the search: network, matrices, failures and settings.
        scenarios: matrices under failures of the expansion.
        upgrade: the expansion.
        disconnected: demands by index of the failure that disconnects them, -1 for none.
    """
    # Names of failures by their links, and matrices in blocks of 1 + F scenarios.
    name_by_links = {tuple(failure.links): failure.name for failure in task.failures}
    rows = task.rows
    timestamps = task.instance.traffic.timestamps
    scenarios_per_matrix = 1 + len(task.failures)
    is_series = task.config.demands == "matrices"
    # Number of demands that each failure disconnects, by name of the failure.
    num_disconnected = {
        task.failures[failure_index].name if failure_index >= 0 else "": len(demands)
        for failure_index, demands in disconnected.items()
    }
    # Failure of each scenario: a block for every matrix.
    names = ["", *(failure.name for failure in task.failures)] * (
        scenarios.num_scenarios // scenarios_per_matrix
    )
    all_live = scenarios.problem.topology.capacity > 0
    fits = []
    for s in range(scenarios.num_scenarios):
        if s < len(names) and (is_series or s < scenarios_per_matrix):
            failure_name = names[s]
        # A worst matrix of a hose, which the search added: its failure is known by its links.
        else:
            failed_links = tuple(np.flatnonzero(all_live & ~scenarios.live[s]).tolist())
            failure_name = name_by_links.get(failed_links, "")
        index = int(rows[s // scenarios_per_matrix]) if is_series else -1
        fits.append(
            ScenarioFit(
                index=index,
                timestamp=str(timestamps[index]) if is_series else task.config.demands,
                failure=failure_name,
                utilisation=float(upgrade.utilisation[s]),
                cut_off=num_disconnected.get(failure_name, 0),
            )
        )
    return fits


def _link_loads(
    task: UpgradeTask, scenarios: Scenarios, upgrade: Upgrade
) -> tuple[FloatArray, FloatArray]:
    """Return the largest utilisation (E,) of each link over all scenarios, before and after the
    expansion.

    Args:
        task: input of the search: network, matrices, failures and settings.
        scenarios: matrices under failures of the expansion.
        upgrade: the expansion.
    """

    def largest(added_capacity: FloatArray) -> FloatArray:
        """Return the largest utilisation (E,) of each link with added Gbit/s (C,) on cables."""
        # Loads (S, E) of the IGP, or of the best splits of each scenario.
        if task.config.routing == "ecmp":
            load = igp_loads(task, scenarios, added_capacity)
        else:
            rows = np.arange(scenarios.num_scenarios)
            load = (
                Tester(scenarios).test(added_capacity, rows, task.deadline, stop_at_cut=True).load
            )
        return load_over_capacity(
            load.max(0), task.offer.existing_capacity + added_capacity[scenarios.cable]
        )

    return largest(np.zeros(scenarios.num_cables)), largest(upgrade.bought)


__all__ = ["bound_over_all_paths", "with_missing_paths"]
