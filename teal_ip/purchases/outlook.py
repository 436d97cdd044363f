"""A plan of `teal upgrade` beside others: in time, for other demands, for other growths."""

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

_CURVE = 0.8, 1.0, 1.2, 1.4, 1.6  # x the demands of the plan, of the chart of costs
_REPLAYED = 24  # matrices at most, evenly spread, that are replayed
_REPLAY_BATCH = 512  # scenarios at a time
_FORECAST_GAP = 1e-3  # certified, of the engine in forecasts


def alternative(
    question: Question, demands: str, scenarios: Scenarios, upgrade: Upgrade
) -> Alternative:
    """A purchase for other demands, and the part of the replayed traffic that would not fit."""
    share = question.config.replay
    traffic = question.instance.traffic
    none = failed = worst = math.nan
    if share:
        rows = np.arange(planned_matrices(traffic, question.config), traffic.num_matrices)
        rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _REPLAYED)).astype(int))]
        live = live_links(scenarios.problem, [one.links for one in question.failures])
        dropped = _dropped(
            scenarios, upgrade.bought, question.config.growth * traffic.read(rows), live
        )
        none, failed = (
            float(dropped[:, 0].mean()),
            float(dropped[:, 1:].mean()) if live.shape[0] > 1 else math.nan,
        )
        worst = float(dropped.mean(0).max())
    return Alternative(
        demands=demands,
        bought=float(upgrade.bought.sum()),
        cost=upgrade.cost,
        bound=upgrade.bound,
        dropped=none,
        dropped_under_failure=failed,
        dropped_at_worst=worst,
    )


def _dropped(
    scenarios: Scenarios, bought: FloatArray, matrices: FloatArray, live: BoolArray
) -> FloatArray:
    """(M, F) share of matrices (M, D) that the upgraded network does not carry, of demands that
    have a live path.
    """
    count, failures = len(matrices), len(live)
    demand, alive = np.repeat(matrices, failures, axis=0), np.tile(live, (count, 1))
    replayed = scenarios.some(demand, alive)
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
        wanted = problem.routable_demand.sum(1).clamp(min=1e-300)
        share[rows] = (1 - solve(problem, gap=_FORECAST_GAP).bound / wanted).clamp(min=0).numpy()
    return share.reshape(count, failures)


def by_quarter(
    question: Question, periods: Sequence[Period], months: Sequence[str]
) -> list[Purchase]:
    """Purchases of each quarter, the earliest first; none is ever removed, so their costs sum up to
    the plan's.
    """
    rows: list[Purchase] = []
    before: Period | None = None
    for one, month in zip(periods, months, strict=True):
        added, modules = one.bought, one.modules
        if before is not None:
            added = one.bought - before.bought
            modules = (
                None
                if one.modules is None or before.modules is None
                else one.modules - before.modules
            )
        rows += purchases(question, added, modules, month)
        before = one
    return rows


def forecasts(question: Question, scenarios: Scenarios, growth: Growth) -> list[LinkForecast]:
    """When each link is full, if nothing is bought, with today's demands in ``scenarios``.

    Under the IGP these are its loads; else those of splits with the least largest utilisation of
    each scenario, so that the first link to be full is certain and later ones depend on the splits
    chosen.
    """
    nothing = np.zeros(scenarios.num_cables)
    topology, names = (
        question.offer.topology,
        [one.name for one in (NO_FAILURE, *question.failures)],
    )
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
    today, capacity = question.instance.traffic.timestamps[-1], question.offer.regular
    return link_forecasts(topology, capacity, per_link, names, scenarios.limit, growth, today)


def curve(question: Question, scenarios: Scenarios, cuts: Cuts) -> list[CurvePoint]:
    """The cost of other growths, without failures and with them, in any amounts."""
    points, config = [], question.config
    is_intact = np.zeros(scenarios.num_scenarios, dtype=bool)
    is_intact[:: 1 + len(question.failures)] = True
    intact = scenarios.some(scenarios.demand[is_intact], scenarios.live[is_intact])
    for one, has_failures in ((scenarios, True), (intact, False)):
        if has_failures and not question.failures:
            continue
        known = cuts if has_failures else Cuts(scenarios.num_cables, len(scenarios.cable))
        for factor in _CURVE:
            if config.routing == "ecmp":
                failures = question.failures if has_failures else []
                found = buy_for_igp(question, one.scaled(factor), (), failures)
            else:
                found, grown = buy(
                    one.scaled(factor),
                    gap=config.gap,
                    deadline=question.deadline,
                    cuts=known.at_growth(factor),
                )
                known = grown.at_growth(1 / factor)
            points.append(
                CurvePoint(
                    growth=factor * config.growth,
                    failures=has_failures,
                    cost=found.cost,
                    bound=found.bound,
                )
            )
            question.notify(f"demands x {factor * config.growth:.3g}: cost {found.cost:.6g}")
    return points
