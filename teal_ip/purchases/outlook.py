"""Comparisons of a plan: by quarter, for other demands, for other growths, and forecasts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch

from teal.network.failures import NO_FAILURE
from teal.objectives import Objective
from teal.runtime.arrays import BoolArray, FloatArray
from teal.solvers.pdhg import solve
from teal_ip.purchases.benders import Upgrade, buy
from teal_ip.purchases.cuts import Cuts
from teal_ip.purchases.igp import buy_for_igp, largest_igp_loads
from teal_ip.purchases.question import Question, planned_matrices, purchases
from teal_ip.purchases.result import Alternative, CurvePoint, Purchase
from teal_ip.purchases.scenarios import Scenarios, live_links
from teal_ip.purchases.schedule import Period
from teal_ip.purchases.testing import Tester
from teal_ip.routing.growth import Growth, LinkForecast, link_forecasts

# Growth factors of the cost chart, relative to the plan's demands.
_CURVE = 0.8, 1.0, 1.2, 1.4, 1.6
# Maximum number of matrices that are replayed, evenly spread.
_REPLAYED = 24
# Number of scenarios that are replayed at a time.
_REPLAY_BATCH = 512
# Certified gap of the engine in forecasts.
_FORECAST_GAP = 1e-3


def alternative(
    question: Question, demands: str, scenarios: Scenarios, upgrade: Upgrade
) -> Alternative:
    """Summarise an expansion for other demands, and the replayed traffic that would not fit."""
    share = question.config.replay
    traffic = question.instance.traffic
    dropped_intact = dropped_failed = dropped_worst = math.nan
    if share:
        rows = np.arange(planned_matrices(traffic, question.config), traffic.num_matrices)
        rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _REPLAYED)).astype(int))]
        live = live_links(scenarios.problem, [failure.links for failure in question.failures])
        dropped = _dropped(
            scenarios, upgrade.bought, question.config.growth * traffic.read(rows), live
        )
        dropped_intact = float(dropped[:, 0].mean())
        dropped_failed = float(dropped[:, 1:].mean()) if live.shape[0] > 1 else math.nan
        dropped_worst = float(dropped.mean(0).max())
    return Alternative(
        demands=demands,
        bought=float(upgrade.bought.sum()),
        cost=upgrade.cost,
        bound=upgrade.bound,
        dropped=dropped_intact,
        dropped_under_failure=dropped_failed,
        dropped_at_worst=dropped_worst,
    )


def _dropped(
    scenarios: Scenarios, bought: FloatArray, matrices: FloatArray, live: BoolArray
) -> FloatArray:
    """Share (M, F) of matrices (M, D) that the expanded network does not carry, among demands with
    a live path.
    """
    num_matrices = len(matrices)
    num_failures = len(live)
    demand = np.repeat(matrices, num_failures, axis=0)
    live_by_scenario = np.tile(live, (num_matrices, 1))
    replayed = scenarios.some(demand, live_by_scenario)
    share = np.zeros(len(demand))
    for first in range(0, len(demand), _REPLAY_BATCH):
        rows = np.arange(first, min(first + _REPLAY_BATCH, len(demand)))
        balanced = replayed.batch(rows, bought)
        problem = dataclasses.replace(
            balanced,
            objective=Objective("total_flow"),
            capacity=scenarios.limit * balanced.capacity,
            demand_value=torch.ones_like(balanced.demand_value),
        )
        routable_total = problem.routable_demand.sum(1).clamp(min=1e-300)
        share[rows] = (
            (1 - solve(problem, gap=_FORECAST_GAP).bound / routable_total).clamp(min=0).numpy()
        )
    return share.reshape(num_matrices, num_failures)


def by_quarter(
    question: Question, periods: Sequence[Period], months: Sequence[str]
) -> list[Purchase]:
    """Return the purchases of each quarter, the earliest first; capacity is never removed, so their
    costs sum to the plan's.
    """
    rows: list[Purchase] = []
    earlier: Period | None = None
    for period, month in zip(periods, months, strict=True):
        added = period.bought
        modules = period.modules
        if earlier is not None:
            added = period.bought - earlier.bought
            modules = (
                None
                if period.modules is None or earlier.modules is None
                else period.modules - earlier.modules
            )
        rows += purchases(question, added, modules, month)
        earlier = period
    return rows


def forecasts(question: Question, scenarios: Scenarios, growth: Growth) -> list[LinkForecast]:
    """Forecast the months in which links are full without an expansion, with today's demands in
    ``scenarios``.

    The loads are those of the IGP, or of splits with the least largest utilisation in each
    scenario: then the first full link is certain, and later ones depend on the chosen splits.
    """
    nothing = np.zeros(scenarios.num_cables)
    topology = question.offer.topology
    names = [failure.name for failure in (NO_FAILURE, *question.failures)]
    if question.config.routing == "ecmp":
        per_link = largest_igp_loads(question)
    else:
        rows = np.arange(scenarios.num_scenarios)
        relaxed = dataclasses.replace(scenarios, limit=0.0)
        load = (
            Tester(relaxed)
            .test(nothing, rows, question.deadline, finest=_FORECAST_GAP, until_cut=False)
            .load
        )
        per_link = load.reshape(-1, len(names), topology.num_links).max(0)
    today = question.instance.traffic.timestamps[-1]
    capacity = question.offer.regular
    return link_forecasts(topology, capacity, per_link, names, scenarios.limit, growth, today)


def curve(question: Question, scenarios: Scenarios, cuts: Cuts) -> list[CurvePoint]:
    """Cost of other growths, without failures and with them, in any amounts."""
    points = []
    config = question.config
    is_intact = np.zeros(scenarios.num_scenarios, dtype=bool)
    is_intact[:: 1 + len(question.failures)] = True
    intact = scenarios.some(scenarios.demand[is_intact], scenarios.live[is_intact])
    # Each growth factor, with and without failures; cuts of one factor hold for the next one.
    for case, has_failures in ((scenarios, True), (intact, False)):
        if has_failures and not question.failures:
            continue
        known_cuts = cuts if has_failures else Cuts(scenarios.num_cables, len(scenarios.cable))
        for factor in _CURVE:
            if config.routing == "ecmp":
                failures = question.failures if has_failures else []
                upgrade = buy_for_igp(question, case.scaled(factor), (), failures)
            else:
                upgrade, grown_cuts = buy(
                    case.scaled(factor),
                    gap=config.gap,
                    deadline=question.deadline,
                    cuts=known_cuts.at_growth(factor),
                )
                known_cuts = grown_cuts.at_growth(1 / factor)
            points.append(
                CurvePoint(
                    growth=factor * config.growth,
                    failures=has_failures,
                    cost=upgrade.cost,
                    bound=upgrade.bound,
                )
            )
            question.notify(f"demands x {factor * config.growth:.3g}: cost {upgrade.cost:.6g}")
    return points
