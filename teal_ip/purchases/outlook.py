"""Further results of a plan: purchases by quarter, comparison with plans for other demands, cost at
other growth factors, and forecasts of full links.

Axis letters: S scenarios, M matrices, F failures, D demands, C cables, E links.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch

from teal.network.failures import NO_FAILURE
from teal.objectives import Objective
from teal.runtime.arrays import BoolArray, FloatArray
from teal.solvers.pipeline import solve
from teal_ip.purchases.benders import Upgrade, expand_capacity
from teal_ip.purchases.cuts import Cuts
from teal_ip.purchases.igp import expand_for_igp, largest_igp_loads
from teal_ip.purchases.question import UpgradeTask, num_planning_matrices, purchases
from teal_ip.purchases.result import Alternative, CurvePoint, Purchase
from teal_ip.purchases.scenarios import Scenarios, live_links
from teal_ip.purchases.schedule import Period
from teal_ip.purchases.testing import Tester
from teal_ip.routing.growth import Growth, LinkForecast, link_forecasts

# Growth factors of the cost chart, relative to the plan's demands.
_CURVE_GROWTHS = 0.8, 1.0, 1.2, 1.4, 1.6
# Maximum number of held-back matrices that are evaluated, evenly spread.
_MAX_REPLAYED = 24
# Number of scenarios that are evaluated at a time.
_REPLAY_BATCH = 512
# Certified gap of the solver in forecasts.
_FORECAST_GAP = 1e-3


def alternative(
    task: UpgradeTask, demands: str, scenarios: Scenarios, upgrade: Upgrade
) -> Alternative:
    """Summarise an expansion for some kind of demands, and the share of held-back traffic that it
    drops.

    Args:
        task: input of the search: network, matrices, failures and settings.
        demands: kind of demands that the expansion is made for: matrices, pipe or hose.
        scenarios: its scenarios.
        upgrade: the expansion.
    """
    replay_share = task.config.replay
    traffic = task.instance.traffic
    dropped_intact = dropped_failed = dropped_worst = math.nan
    if replay_share:
        # The latest matrices, which --replay holds back, under each failure (M, 1 + F).
        rows = np.arange(num_planning_matrices(traffic, task.config), traffic.num_matrices)
        rows = rows[
            np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _MAX_REPLAYED)).astype(int))
        ]
        live = live_links(scenarios.problem, [failure.links for failure in task.failures])
        dropped_by_failure = _dropped_shares(
            scenarios, upgrade.bought, task.config.growth * traffic.read(rows), live
        )
        # Means over the matrices: without failure, over all failures, and under the worst failure.
        dropped_intact = float(dropped_by_failure[:, 0].mean())
        dropped_failed = float(dropped_by_failure[:, 1:].mean()) if live.shape[0] > 1 else math.nan
        dropped_worst = float(dropped_by_failure.mean(0).max())
    return Alternative(
        demands=demands,
        bought=float(upgrade.bought.sum()),
        cost=upgrade.cost,
        bound=upgrade.bound,
        dropped=dropped_intact,
        dropped_under_failure=dropped_failed,
        dropped_at_worst=dropped_worst,
    )


def _dropped_shares(
    scenarios: Scenarios, added_capacity: FloatArray, matrices: FloatArray, live: BoolArray
) -> FloatArray:
    """Return the share (M, F) of each matrix that the expanded network drops under each failure:

        1 - (largest total flow within the utilisation limit) / (sum of demands with a live path)

    The largest flow is bounded from above, so the share is a certified lower bound.

    Args:
        scenarios: supplies network, cables and limit.
        added_capacity: (C,) Gbit/s added to each cable.
        matrices: (M, D) Gbit/s.
        live: (F, E) whether links are up, for each failure.
    """
    num_matrices = len(matrices)
    num_failures = len(live)
    # A block of F scenarios for each matrix.
    demand = np.repeat(matrices, num_failures, axis=0)
    live_by_scenario = np.tile(live, (num_matrices, 1))
    evaluated = scenarios.select(demand, live_by_scenario)
    dropped_share = np.zeros(len(demand))
    for first in range(0, len(demand), _REPLAY_BATCH):
        rows = np.arange(first, min(first + _REPLAY_BATCH, len(demand)))
        batch = evaluated.batch(rows, added_capacity)
        # Largest total flow, with every Gbit/s worth 1 and capacities times the utilisation limit.
        flow_problem = dataclasses.replace(
            batch,
            objective=Objective("total_flow"),
            capacity=scenarios.max_utilisation * batch.capacity,
            demand_value=torch.ones_like(batch.demand_value),
        )
        # Dropped share, at least 1 - (upper bound on the flow) / (demand with a live path).
        routable_total = flow_problem.routable_demand.sum(1).clamp(min=1e-300)
        dropped_share[rows] = (
            (1 - solve(flow_problem, gap=_FORECAST_GAP).bound / routable_total).clamp(min=0).numpy()
        )
    return dropped_share.reshape(num_matrices, num_failures)


def by_quarter(
    task: UpgradeTask, periods: Sequence[Period], months: Sequence[str]
) -> list[Purchase]:
    """Return the purchases of each quarter, the earliest first.

    Capacity is never removed, so their costs sum to the plan's.

    Args:
        task: supplies names, costs and sizes.
        periods: cumulative expansions in time order.
        months: last month of each period.
    """
    # Purchases of a quarter: the difference of the cumulative expansions of two periods.
    rows: list[Purchase] = []
    previous_period: Period | None = None
    for period, month in zip(periods, months, strict=True):
        added_capacity = period.bought
        modules = period.modules
        if previous_period is not None:
            added_capacity = period.bought - previous_period.bought
            modules = (
                None
                if period.modules is None or previous_period.modules is None
                else period.modules - previous_period.modules
            )
        rows += purchases(task, added_capacity, modules, month)
        previous_period = period
    return rows


def forecasts(task: UpgradeTask, scenarios: Scenarios, growth: Growth) -> list[LinkForecast]:
    """Forecast the months in which links are full without an expansion.

    The loads are those of the IGP, or of splits with the smallest largest utilisation in each
    scenario: then the first full link is certain, and later ones depend on the chosen splits.

    Args:
        task: input of the search: network, matrices, failures and settings.
        scenarios: matrices under failures, with today's demands.
        growth: growth of the demands in time.
    """
    no_expansion = np.zeros(scenarios.num_cables)
    topology = task.offer.topology
    names = [failure.name for failure in (NO_FAILURE, *task.failures)]
    if task.config.routing == "ecmp":
        max_load = largest_igp_loads(task)
    else:
        rows = np.arange(scenarios.num_scenarios)
        # A limit of 0 makes every scenario violated, so that each is solved to the finest gap.
        tightened = dataclasses.replace(scenarios, max_utilisation=0.0)
        load = (
            Tester(tightened)
            .test(no_expansion, rows, task.deadline, min_gap=_FORECAST_GAP, stop_at_cut=False)
            .load
        )
        # Largest load (1 + F, E) over the matrices, each of which has a block of 1 + F scenarios.
        max_load = load.reshape(-1, len(names), topology.num_links).max(0)
    today = task.instance.traffic.timestamps[-1]
    capacity = task.offer.existing_capacity
    return link_forecasts(
        topology, capacity, max_load, names, scenarios.max_utilisation, growth, today
    )


def curve(task: UpgradeTask, scenarios: Scenarios, cuts: Cuts) -> list[CurvePoint]:
    """Return the cost of the expansion, in any amounts, at other growth factors, with failures and
    without.

    Args:
        task: input of the search: network, matrices, failures and settings.
        scenarios: matrices under failures of the plan.
        cuts: Benders cuts of the plan.
    """
    # Scenarios without failure: the first of each block of 1 + F.
    points = []
    config = task.config
    is_intact = np.zeros(scenarios.num_scenarios, dtype=bool)
    is_intact[:: 1 + len(task.failures)] = True
    intact_scenarios = scenarios.select(scenarios.demand[is_intact], scenarios.live[is_intact])
    # Each growth factor, with and without failures; cuts of one factor hold for the next one.
    for planned_scenarios, has_failures in ((scenarios, True), (intact_scenarios, False)):
        if has_failures and not task.failures:
            continue
        known_cuts = cuts if has_failures else Cuts(scenarios.num_cables, len(scenarios.cable))
        for factor in _CURVE_GROWTHS:
            # Exact for fixed loads of the IGP; else by Benders decomposition from the known cuts,
            # which are stored for a factor of 1.
            if config.routing == "ecmp":
                failures = task.failures if has_failures else []
                upgrade = expand_for_igp(task, planned_scenarios.scaled(factor), (), failures)
            else:
                upgrade, grown_cuts = expand_capacity(
                    planned_scenarios.scaled(factor),
                    gap=config.gap,
                    deadline=task.deadline,
                    cuts=known_cuts.scaled(factor),
                )
                known_cuts = grown_cuts.scaled(1 / factor)
            points.append(
                CurvePoint(
                    growth=factor * config.growth,
                    failures=has_failures,
                    cost=upgrade.cost,
                    bound=upgrade.bound,
                )
            )
            task.notify(f"demands times {factor * config.growth:.3g}: cost {upgrade.cost:.6g}")
    return points
