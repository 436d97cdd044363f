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
_MIN_SAVING = 1e-6


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
    # Limits of the cables whose price exceeds their cost; without a limit the excess is rounding.
    limits = np.where(excess > _ROUNDING, scenarios.max_added, 0.0)
    return float(dual[positive] @ (needed - cuts.existing[positive])) - float(
        np.where(np.isfinite(limits), limits, 0.0) @ excess
    )


def with_missing_paths(scenarios: Scenarios, cuts: Cuts, dual: FloatArray) -> PathSet:
    """Add the paths to the candidates without which cuts are invalid over all paths.

    For each cut with a positive dual, the shortest path of each demand under its prices is added if
    it is cheaper than all live candidates.  No path is added twice.

    Args:
        scenarios: scenarios of the cuts, over the candidate paths.
        cuts: Benders cuts of an expansion.
        dual: (n,) duals of the first n cuts.
    """
    paths = scenarios.problem.paths
    for i in np.flatnonzero(dual > 0):
        _, ptr, links = _needed_over_all_paths(
            scenarios.with_paths(paths), cuts, int(i), finds_paths=True
        )
        if len(links):
            paths = with_more_paths(paths, ptr, links)
    return paths


def _needed_over_all_paths(
    scenarios: Scenarios, cuts: Cuts, cut_index: int, finds_paths: bool = False
) -> tuple[float, Int64Array, IntArray]:
    """Return the cost of all demands on shortest paths under the prices of a cut, and cheaper
    paths.

    Args:
        scenarios: scenarios of the cut, over the candidate paths.
        cuts: Benders cuts of an expansion.
        cut_index: index of the cut.
        finds_paths: whether to return the paths that are cheaper than all candidates, too.

    Returns:
        ``needed`` of the cut over all paths; ptr (D + 1,) and links of the cheaper paths: that of
        demand d is links[ptr[d]:ptr[d + 1]], empty for none; both are empty without
        ``finds_paths``.
    """
    problem = scenarios.problem
    scenario_index = int(cuts.row[cut_index])
    topology = problem.topology
    pairs = problem.paths.pairs
    prices = cuts.prices[cut_index]
    # Shortest path of each demand under the prices.
    weight = np.where(scenarios.live[scenario_index], prices, np.inf)
    sources, source_row = np.unique(pairs[:, 0], return_inverse=True)
    graph = (topology.num_nodes, topology.link_source, topology.link_target)
    distance, _ = shortest_trees(*graph, weight, sources, topology.no_transit)
    # Distance (D,) from source to target of each demand.
    shortest_cost = distance[source_row, pairs[:, 1]]
    demand = scenarios.demand[scenario_index]
    has_demand = demand > 0
    needed = float(demand[has_demand] @ shortest_cost[has_demand])
    no_ptr = np.zeros(0, dtype=np.int64)
    no_links = np.zeros(0, dtype=np.int32)
    if not finds_paths:
        return needed, no_ptr, no_links
    # Cost (D,) of the cheapest live candidate path of each demand.
    scenario = scenarios.batch(np.array([scenario_index]), np.zeros(scenarios.num_cables))
    cheapest_cost = scenario.cheapest_path_cost(
        scenario.ops.path_sum(torch.from_numpy(prices[None].copy()))
    )[0].numpy()
    # Shortest paths of the demands for which they are cheaper.  A small price for every link
    # selects the path with the fewest links among equally cheap ones.
    cheaper_demands = np.flatnonzero(
        has_demand & (shortest_cost < cheapest_cost * (1 - _MIN_SAVING))
    )
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
    demand_growth = (
        growth_of(config, task.instance.traffic, task.notify) if config.growth_per_year else None
    )
    # Expand, evaluate the plan on the other matrices, and repeat with those that do not fit.
    left_out = LeftOut(task)
    cuts = None
    begin = time.perf_counter()
    num_rounds = 0
    while True:
        upgrade, cuts, scenarios, relaxed_upgrade = _expand(task, scenarios, cuts)
        num_rounds += upgrade.rounds
        # The plan, and with modules also the one in any amounts, without further growth (factor 1).
        plans = [(1.0, plan.bought) for plan in (upgrade, relaxed_upgrade) if plan is not None]
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
    plan = _assemble_plan(task, scenarios, upgrade, disconnected, _cost(relaxed_upgrade))
    plan = dataclasses.replace(
        plan, growth=demand_growth, replayed=evaluation if config.demands == "matrices" else None
    )
    return _with_further_results(task, plan, scenarios, upgrade, cuts, demand_growth)


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
    demand_growth: Growth | None,
) -> UpgradePlan:
    """Add the results that the settings request: proof, forecasts, evaluation on later traffic, and
    curve.

    Args:
        task: input of the search: network, matrices, failures and settings.
        plan: the plan without these results.
        scenarios: matrices under failures of the plan.
        upgrade: expansion of the plan.
        cuts: its Benders cuts.
        demand_growth: growth of the demands in time; None if not requested.
    """
    config = task.config
    if task.proves:
        plan = dataclasses.replace(
            plan, proof=CutProof.of(scenarios, cuts, upgrade.dual, upgrade.cost)
        )
    if demand_growth is not None:
        forecast_list = (
            task.attempt("the forecast", partial(forecasts, task, scenarios, demand_growth)) or []
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
        relaxed_upgrade = (
            expand_for_igp(task, scenarios, (), task.failures) if config.sizes else None
        )
        return upgrade, cuts, scenarios, relaxed_upgrade
    upgrade, cuts, scenarios = _expand_over_paths(task, scenarios, earlier_cuts)
    upgrade, relaxed_upgrade = _expansion_in_modules(task, scenarios, upgrade, cuts)
    return upgrade, cuts, scenarios, relaxed_upgrade


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
    # If adding paths fails, the expansion over the candidate paths remains.
    step = partial(_add_missing_paths, task, scenarios, upgrade, cuts)
    return task.attempt("the search for paths", step) or (upgrade, cuts, scenarios)


def _expansion_in_modules(
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
    module_upgrade = task.attempt("the expansion in modules", search_modules)
    if module_upgrade is None:
        return dataclasses.replace(upgrade, reached=False), None
    return dataclasses.replace(
        module_upgrade, dual=upgrade.dual, bound_all_paths=upgrade.bound_all_paths
    ), upgrade


def _add_missing_paths(
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
        # The expansion is in any amounts, so it has duals.
        assert upgrade.dual is not None
        bound = max(bound, bound_over_all_paths(scenarios, cuts, upgrade.dual))
        # Stop: gap closed, deadline, or latency limits, with which no path may be added.
        has_latency_limits = task.instance.max_latency is not None
        if (
            upgrade.cost - bound <= gap * upgrade.cost
            or task.deadline.is_over
            or has_latency_limits
        ):
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
    task: UpgradeTask, pipe_scenarios: Scenarios, disconnected: dict[int, list[int]]
) -> UpgradePlan:
    """Return the plan for a hose, compared with the plan for the largest value of every demand at
    once (pipe).

    If traffic is held back for evaluation, the share that each plan drops is compared, too.

    Args:
        task: input of the search: network, matrices, failures and settings.
        pipe_scenarios: one matrix, the largest value of every demand, under each failure.
        disconnected: demands that each failure disconnects.
    """
    # Pipe.
    config = task.config
    hose = make_hose(config, task.offer.topology, pipe_scenarios.problem.paths.pairs, task.matrices)
    task.notify("expanding for the largest value of every demand at once (pipe)")
    pipe_upgrade, _ = expand_capacity(
        pipe_scenarios, gap=config.gap, deadline=task.deadline, report=task.report
    )
    # Hose, in any amounts or in modules.
    hose_plan, relaxed_cost = _expand_for_hose(task, pipe_scenarios, hose)
    scenarios = hose_plan.scenarios
    upgrade = hose_plan.upgrade
    # The plan, its comparison with the pipe, its proof, and with --certify the upper bound on the
    # utilisation under any matrix of the hose.
    plan = _assemble_plan(task, scenarios, upgrade, disconnected, relaxed_cost)
    named_plans = ("hose", scenarios, upgrade), ("pipe", pipe_scenarios, pipe_upgrade)
    alternatives = task.attempt(
        "the replay", lambda: [alternative(task, *named_plan) for named_plan in named_plans]
    )
    if task.proves:
        plan = dataclasses.replace(
            plan, proof=CutProof.of(scenarios, hose_plan.cuts, upgrade.dual, upgrade.cost)
        )
    # Proven bound on the utilisation over all failures; infinite if one of them has none.
    utilisation_bound = float(hose_plan.limit.max(initial=0.0))
    if config.certify and not math.isfinite(utilisation_bound):
        certify = partial(_certified_limit, task, hose, hose_plan, pipe_scenarios.live)
        utilisation_bound = task.attempt("--certify", certify) or math.inf
    return dataclasses.replace(
        plan,
        worst_demands=float(hose_plan.worst.max(initial=0.0)),
        alternatives=alternatives or [],
        worst_limit=utilisation_bound if math.isfinite(utilisation_bound) else math.nan,
    )


def _expand_for_hose(
    task: UpgradeTask, pipe_scenarios: Scenarios, hose: Hose
) -> tuple[HosePlan, float]:
    """Find the expansion for a hose, in modules if the settings have module sizes.

    Args:
        task: input of the search: network, matrices, failures and settings.
        pipe_scenarios: scenarios of one matrix, under each failure.
        hose: limits of what each node sends and receives; the set of matrices within them.

    Returns:
        the plan, and with modules the cost in any amounts, else NaN.
    """
    config = task.config
    # Start from the matrix with the largest total hop count (rate times hops).
    intact_network = pipe_scenarios.batch(np.arange(1), np.zeros(pipe_scenarios.num_cables))
    unit_prices = torch.ones_like(intact_network.capacity)
    hop_count = intact_network.cheapest_path_cost(intact_network.ops.path_sum(unit_prices))[
        0
    ].numpy()
    max_hop_matrix = hose.max_weight_matrix(hop_count)
    first_scenarios = dataclasses.replace(
        pipe_scenarios, demand=np.where(pipe_scenarios.demand > 0, max_hop_matrix, 0.0)
    )
    task.notify("expanding for the hose")
    expand = partial(
        expand_for_hose,
        live=pipe_scenarios.live,
        hose=hose,
        gap=config.gap,
        deadline=task.deadline,
        report=task.report,
        notify=task.notify,
    )
    hose_plan = expand(first_scenarios)
    # Bound over all paths.
    upgrade = hose_plan.upgrade
    dual = np.zeros(0) if upgrade.dual is None else upgrade.dual
    compute_bound = partial(bound_over_all_paths, hose_plan.scenarios, hose_plan.cuts, dual)
    bound = task.attempt("the bound over all paths", lambda: max(0.0, compute_bound()))
    upgrade = dataclasses.replace(upgrade, bound_all_paths=math.nan if bound is None else bound)
    # Modules.
    relaxed_cost = math.nan
    if config.sizes:
        module_search = partial(
            expand, hose_plan.scenarios, sizes=config.sizes, cuts=hose_plan.cuts
        )
        module_plan = task.attempt("the expansion in modules", module_search)
        if module_plan is not None:
            hose_plan = module_plan
            relaxed_cost = upgrade.cost
            upgrade = dataclasses.replace(
                hose_plan.upgrade, dual=dual, bound_all_paths=upgrade.bound_all_paths
            )
        else:
            upgrade = dataclasses.replace(upgrade, reached=False)
    return dataclasses.replace(hose_plan, upgrade=upgrade), relaxed_cost


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
    utilisation_bound = 0.0
    # A scenario for each failure, without demand: only its capacities count.
    failure_scenarios = scenarios.select(np.zeros((len(live), scenarios.demand.shape[1])), live)
    for failure_index in range(len(live)):
        failure_network = failure_scenarios.batch(
            np.array([failure_index]), hose_plan.upgrade.bought
        )
        utilisation_bound = max(utilisation_bound, static_limit(failure_network, hose)[0])
        proven = rounding.percent_at_most(utilisation_bound, 2)
        task.notify(
            f"certified {failure_index + 1} of {len(live)} failures: utilisation at most {proven}"
        )
    return utilisation_bound


class _PeriodPlan(NamedTuple):
    """Expansions of all periods of a horizon.

    Attributes:
        periods: the expansions, in time order.
        upgrade: the expansion for all periods.
        largest_upgrade: the expansion for the largest demands in any amounts.
        last_scenarios: scenarios with the largest demands.
        scenarios: scenarios with today's demands, and added paths.
        cuts: cuts for the largest demands; None with ECMP.
    """

    periods: list[Period]
    upgrade: Upgrade
    largest_upgrade: Upgrade
    last_scenarios: Scenarios
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
    demand_growth = growth_of(config, task.instance.traffic, task.notify)
    ends, factors = quarters(demand_growth, config.horizon_years)
    left_out = LeftOut(task)
    cuts = None
    # Expand, evaluate the plan on the other matrices, and repeat with those that do not fit.
    begin = time.perf_counter()
    num_rounds = 0
    while True:
        period_plan = _expand_periods(task, scenarios, factors, cuts)
        scenarios = period_plan.scenarios
        cuts = period_plan.cuts
        largest_upgrade = period_plan.largest_upgrade
        num_rounds += largest_upgrade.rounds + period_plan.upgrade.rounds
        # Factor of all demands and expansion of each period, to be evaluated on the other matrices.
        plans = [(period.growth, period.bought) for period in period_plan.periods]
        # The expansion in any amounts, which the report has besides the modules, must fit all, too.
        if config.sizes:
            plans.append((float(factors.max()), largest_upgrade.bought))
        evaluation, overloaded = left_out.replay(task, scenarios, plans, disconnected)
        if not len(overloaded) or task.deadline.is_over:
            break
        task, scenarios = task.with_more(overloaded, scenarios)
    # The plan of the last quarter.
    upgrade = dataclasses.replace(
        period_plan.upgrade,
        reached=largest_upgrade.reached and period_plan.upgrade.reached and evaluation.is_complete,
        bound_all_paths=largest_upgrade.bound_all_paths,
        rounds=num_rounds,
        solve_s=time.perf_counter() - begin,
    )
    plan = _assemble_plan(
        task,
        period_plan.last_scenarios,
        upgrade,
        disconnected,
        largest_upgrade.cost if config.sizes else math.nan,
    )
    # Further results.
    forecast_list = (
        task.attempt("the forecast", partial(forecasts, task, scenarios, demand_growth)) or []
    )
    months = [month_after(today, float(end)) for end in ends]
    return dataclasses.replace(
        plan,
        replayed=evaluation if config.demands == "matrices" else None,
        growth=demand_growth,
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
        last_scenarios = scenarios.scaled(largest_factor)
        largest_upgrade = expand_for_loads(scenarios, largest_factor * load)
        periods, upgrade = schedule_of_loads(
            scenarios, load, factors.tolist(), sizes=config.sizes, deadline=task.deadline
        )
        return _PeriodPlan(periods, upgrade, largest_upgrade, last_scenarios, scenarios, cuts)
    # Optimal splits: expansion for the largest demands, then for the periods, the last one first.
    largest_upgrade, cuts, largest_scenarios = _expand_over_paths(
        task, scenarios.scaled(largest_factor), cuts
    )
    scenarios = scenarios.with_paths(largest_scenarios.problem.paths)
    periods, upgrade, last_scenarios, cuts = schedule(
        scenarios,
        factors.tolist(),
        gap=config.gap,
        sizes=config.sizes,
        deadline=task.deadline,
        notify=task.notify,
        cuts=cuts,
    )
    return _PeriodPlan(periods, upgrade, largest_upgrade, last_scenarios, scenarios, cuts)


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
    relaxed_cost: float,
) -> UpgradePlan:
    """Return the plan of an expansion: networks, named purchases, fits of scenarios, and link
    utilisations.

    Args:
        task: input of the search: network, matrices, failures and settings.
        scenarios: matrices under failures of the expansion.
        upgrade: the expansion.
        disconnected: demands by index of the failure that disconnects them, -1 for none.
        relaxed_cost: cost in any amounts, if modules were requested; else NaN.
    """
    topology = task.offer.topology
    failures = task.failures
    pairs = task.instance.traffic.pairs
    node_names = topology.node_names
    # Names of the demands that each failure disconnects, without those that never have a path.
    always_disconnected = set(disconnected.get(-1, ()))
    names_by_failure = {
        failures[failure_index].name if failure_index >= 0 else "": [
            f"{node_names[pairs[d, 0]]} -> {node_names[pairs[d, 1]]}" for d in failure_demands
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
    utilisations = task.attempt(
        "the loads of links", partial(_link_utilisations, task, scenarios, upgrade)
    )
    utilisation_before, utilisation_after = utilisations or (None, None)
    return UpgradePlan(
        topology=topology.with_capacity(task.offer.existing_capacity),
        upgraded=topology.with_capacity(capacity).with_links(capacity > 0),
        upgrade=upgrade,
        purchases=purchases(task, upgrade.bought, upgrade.modules),
        scenarios=_scenario_fits(task, scenarios, upgrade, disconnected),
        cut_off=names_by_failure,
        continuous=relaxed_cost,
        before=utilisation_before,
        after=utilisation_after,
        routing=task.config.routing,
        failed=task.failed,
    )


def _scenario_fits(
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
    matrix_indices = task.rows
    timestamps = task.instance.traffic.timestamps
    scenarios_per_matrix = 1 + len(task.failures)
    plans_for_matrices = task.config.demands == "matrices"
    # Number of demands that each failure disconnects, by name of the failure.
    num_disconnected = {
        task.failures[failure_index].name if failure_index >= 0 else "": len(demands)
        for failure_index, demands in disconnected.items()
    }
    # Failure of each scenario: a block for every matrix.
    failure_names = ["", *(failure.name for failure in task.failures)] * (
        scenarios.num_scenarios // scenarios_per_matrix
    )
    has_capacity = scenarios.problem.topology.capacity > 0
    fits = []
    for s in range(scenarios.num_scenarios):
        # A scenario of a matrix of the traffic, or of the first matrix of a pipe or hose.
        if s < len(failure_names) and (plans_for_matrices or s < scenarios_per_matrix):
            failure_name = failure_names[s]
        # A worst matrix of a hose, which the search added: find its failure by the failed links.
        else:
            failed_links = tuple(np.flatnonzero(has_capacity & ~scenarios.live[s]).tolist())
            failure_name = name_by_links.get(failed_links, "")
        index = int(matrix_indices[s // scenarios_per_matrix]) if plans_for_matrices else -1
        fits.append(
            ScenarioFit(
                index=index,
                timestamp=str(timestamps[index]) if plans_for_matrices else task.config.demands,
                failure=failure_name,
                utilisation=float(upgrade.utilisation[s]),
                cut_off=num_disconnected.get(failure_name, 0),
            )
        )
    return fits


def _link_utilisations(
    task: UpgradeTask, scenarios: Scenarios, upgrade: Upgrade
) -> tuple[FloatArray, FloatArray]:
    """Return the largest utilisation (E,) of each link over all scenarios, before and after the
    expansion.

    Args:
        task: input of the search: network, matrices, failures and settings.
        scenarios: matrices under failures of the expansion.
        upgrade: the expansion.
    """

    def largest_utilisation(added_capacity: FloatArray) -> FloatArray:
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

    return largest_utilisation(np.zeros(scenarios.num_cables)), largest_utilisation(upgrade.bought)


__all__ = ["bound_over_all_paths", "with_missing_paths"]
