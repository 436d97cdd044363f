"""``teal upgrade``: plan an expansion from settings, and write its tables, its page with maps and
charts, and the expanded network.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from teal.app.chart import Chart, Series
from teal.app.command import EXIT_FAILED, EXIT_GAP, EXIT_OK, Notify, Outcome
from teal.app.page import Section, write_page
from teal.app.run_files import write_files, write_manifest
from teal.app.table import Column, Table
from teal.app.text import digits, percent
from teal.app.web.layout import drawing_of, utilisation_map
from teal.formats import save_topology
from teal.formats.rows import write_csv
from teal.runtime import rounding
from teal.runtime.storage import check_out_folder
from teal_ip.purchases import proof
from teal_ip.purchases.result import Purchase, UpgradePlan
from teal_ip.purchases.search import plan_upgrade
from teal_ip.purchases.settings import UpgradeConfig
from teal_ip.routing.growth import forecast_table

# Maximum number of rows of a table in the terminal.
_MAX_LINES = 30


def purchase_table(plan: UpgradePlan) -> Table:
    """Return the table of the added capacity, one row for each cable that is expanded."""
    columns = (
        Column("cable", lambda purchase: f"{purchase.source} - {purchase.target}"),
        Column("capacity, Gbit/s", "capacity", digits(6)),
        Column("buy, Gbit/s in each direction", "bought", digits(6), most_is_best=True),
        Column("modules", "modules", optional=True),
        Column("cost", "cost", digits(6), most_is_best=True),
        Column("by", "by", optional=True),
    )
    return Table("what to buy", columns, plan.purchases, _MAX_LINES)


def tables(plan: UpgradePlan) -> Iterator[Table]:
    """Yield the tables of a plan: purchases, quarters, forecasts of full links, other demands, and
    other growths.
    """
    # Purchases, and the cumulative expansion by quarter.
    cost_column = Column("cost", "cost", digits(6))
    bound_column = Column("lower bound", "bound", rounding.at_least)
    if plan.purchases:
        yield purchase_table(plan)
    if plan.quarters:
        columns = [
            Column("by", "by"),
            Column("demands x", "growth", digits(4)),
            cost_column,
            bound_column,
        ]
        columns.append(Column("largest utilisation", "utilisation", percent))
        yield Table("by quarter, cumulative", columns, plan.quarters)
    # Forecasts of links that will be full under some failure.
    if full_links := [forecast for forecast in plan.forecasts if forecast.full_under_failure]:
        title = "when links are full, without an expansion"
        fitted = plan.growth is not None and plan.growth.fitted
        yield forecast_table(
            full_links, title, routing=plan.routing_text, fitted=fitted, shown=_MAX_LINES
        )
    # Plans for other demands, with the share of held-back traffic that each one drops.
    if plan.alternatives:
        field_by_label = {
            "dropped later": "dropped",
            "under failures": "dropped_under_failure",
            "under the worst failure": "dropped_at_worst",
        }
        shares = [
            Column(label, name, _percentage_text, optional=True)
            for label, name in field_by_label.items()
        ]
        columns = [
            Column("planned for", "demands"),
            Column("Gbit/s", "bought", digits(6)),
            cost_column,
            bound_column,
            *shares,
        ]
        yield Table("plans for other kinds of demands, in any amounts", columns, plan.alternatives)
    # Cost at other growth factors.
    if plan.curve:
        failures_column = Column("with failures", lambda point: "yes" if point.failures else "no")
        columns = [
            Column("demands x", "growth", digits(4)),
            failures_column,
            cost_column,
            bound_column,
        ]
        yield Table("cost at other growth factors, in any amounts", columns, plan.curve)


def _percentage_text(value: float) -> str:
    """Format a share as a percentage with three decimals, such as 1.250% for 0.0125."""
    return f"{100 * value:.3f}%"


def write_upgrade_page(path: Path, plan: UpgradePlan) -> None:
    """Write a page with maps of the added capacity and of utilisation before and after, the table
    of purchases, and charts.

    Args:
        path: file to write.
        plan: the plan.
    """
    # Maps: values (E,) of the links by title of the map.
    topology = plan.topology
    bought = np.maximum(0.0, _bought_by_link(plan))
    relative_purchase = bought / max(float(bought.max(initial=0.0)), 1e-300)
    map_values = {"added capacity, relative to the largest": relative_purchase}
    if plan.before is not None:
        map_values["largest utilisation in any scenario, before"] = plan.before
        map_values["largest utilisation in any scenario, with the purchase"] = plan.after
    # A link that is neither built nor bought is drawn with a tiny capacity.
    drawing = drawing_of(topology, np.maximum(topology.capacity + bought, 1e-9))
    section = Section(
        title=topology.name,
        facts=(
            f"{topology.num_nodes} nodes, {len(topology.cables())} cables, "
            f"{len(plan.scenarios):,} scenarios"
        ),
        traffic="purchase",
        table=purchase_table(plan),
        charts=tuple(_charts(plan)),
        map=utilisation_map(
            drawing,
            {map_title: {"purchase": link_values} for map_title, link_values in map_values.items()},
        ),
    )
    write_page(
        path, f"What to buy for {topology.name}", plan.describe().replace("\n", ".  "), [section]
    )


def _bought_by_link(plan: UpgradePlan) -> np.ndarray:
    """Return the capacity (E,) that the plan adds to each link of the network, Gbit/s."""
    topology = plan.topology
    bought = np.zeros(topology.num_links)
    for pair_index, links in enumerate(topology.link_pairs()):
        bought[links] = plan.upgrade.bought[pair_index]
    return bought


def _charts(plan: UpgradePlan) -> Iterator[Chart]:
    """Yield the charts for which the plan has data: cost by cable, utilisation, cost by quarter,
    and cost by growth.
    """
    if plan.purchases:
        yield _cost_by_cable(plan)
    if plan.before is not None:
        yield _utilisation_chart(plan)
    if plan.quarters:
        yield _cost_by_quarter(plan)
    if plan.curve:
        yield _cost_by_growth(plan)


def _cost_by_cable(plan: UpgradePlan) -> Chart:
    """Return the chart of the cost of the capacity added to each cable, in descending order."""
    by_cable: dict[str, float] = defaultdict(float)
    for purchase in plan.purchases:
        by_cable[f"{purchase.source} - {purchase.target}"] += purchase.cost
    names = sorted(by_cable, key=lambda name: -by_cable[name])
    series = Series("cost", "points", names, [by_cable[name] for name in names])
    return Chart(
        "cost_by_cable",
        "Cost by cable",
        "Cost of the added capacity of each cable, in descending order.",
        "cable",
        "cost",
        (series,),
        x_scale="category",
    )


def _utilisation_chart(plan: UpgradePlan) -> Chart:
    """Return the chart of the largest utilisation of each link over all scenarios, before and after
    the expansion, in descending order.
    """
    series = [
        Series(
            name,
            "line",
            np.arange(1, len(values) + 1).tolist(),
            (100 * np.sort(values)[::-1]).tolist(),
        )
        for name, values in (("before", plan.before), ("with the purchase", plan.after))
    ]
    return Chart(
        "utilisation",
        "Largest utilisation of links",
        "Largest utilisation of each link over all scenarios, in descending order.",
        "links",
        "utilisation, %",
        tuple(series),
    )


def _cost_by_quarter(plan: UpgradePlan) -> Chart:
    """Return the chart of the cumulative cost by the end of each quarter, and its bound."""
    months = [quarter.by for quarter in plan.quarters]
    return Chart(
        "by_quarter",
        "Cost by quarter",
        "Cumulative cost by the end of each quarter, and the lower bound on the cost of an "
        "expansion for that quarter alone.",
        "quarter",
        "cost",
        (
            Series("cost", "marked", months, [quarter.cost for quarter in plan.quarters]),
            Series("lower bound", "marked", months, [quarter.bound for quarter in plan.quarters]),
        ),
        x_scale="category",
    )


def _cost_by_growth(plan: UpgradePlan) -> Chart:
    """Return the chart of the cost at other growth factors, with and without failures."""
    labels = {False: "without failures", True: "with failures"}
    curves = []
    for has_failures in (False, True):
        points = [point for point in plan.curve if point.failures is has_failures]
        if points:
            growths = [point.growth for point in points]
            costs = [point.cost for point in points]
            curves.append(Series(labels[has_failures], "marked", growths, costs))
    return Chart(
        "cost_by_growth",
        "Cost against growth",
        "Cost of the cheapest expansion with continuous capacities (no modules), for other growth "
        "factors of all demands.  "
        "The difference of the curves is the cost of protection against failures.",
        "growth factor of the demands",
        "cost",
        tuple(curves),
    )


FILES = PAGE, PURCHASES, SCENARIOS, FORECAST, TOPOLOGY, MANIFEST = (
    "upgrade.html",
    "purchases.csv",
    "scenarios.csv",
    "forecast.csv",
    "topology.json",
    "manifest.json",
)


def run_upgrade(config: UpgradeConfig, notify: Callable[[str], None]) -> UpgradePlan:
    """Plan the expansion; write the files to the output folder, if any.

    Args:
        config: the settings.
        notify: called with the progress.

    Raises:
        InputError: invalid settings, or existing results in OUT without --overwrite.
    """
    if config.out is not None:
        check_out_folder(config.out, FILES, overwrite=config.overwrite)
    if config.prove is not None:
        check_out_folder(config.prove, proof.FILES, overwrite=config.overwrite)
    plan = plan_upgrade(
        config.topology, config.traffic, config, notify, proves=config.prove is not None
    )
    if config.out is not None:
        manifest = partial(write_manifest, settings=config)
        write_files(config.out, {MANIFEST: manifest, **plan_files(plan)})
    return plan


def plan_files(plan: UpgradePlan) -> dict[str, Callable[[Path], None]]:
    """Return the functions that write tables, expanded network and page to a path, by file name."""
    # An empty row keeps the headings of a table without purchases.
    empty_row = [Purchase(source="", target="", capacity=0.0, bought=0.0, cost=0.0)]
    files: dict[str, Callable[[Path], None]] = {
        PURCHASES: partial(write_csv, rows=plan.purchases or empty_row),
        SCENARIOS: partial(write_csv, rows=plan.scenarios),
        TOPOLOGY: partial(save_topology, topology=plan.upgraded),
    }
    if plan.forecasts:
        files[FORECAST] = partial(write_csv, rows=plan.forecasts)

    # The page is last, so that a failure does not lose the tables.
    return {**files, PAGE: partial(write_upgrade_page, plan=plan)}


class UpgradeReport(UpgradePlan):
    """Capacity expansion plan, with export to a frame, a page and files."""

    def __repr__(self) -> str:
        """Return the summary of the plan: cost, scenarios and further results, a line each."""
        return self.describe()

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write tables, expanded network and page to a folder.

        Args:
            folder: output folder.
            overwrite: whether existing results may be replaced.

        Raises:
            InputError: the folder has results, and ``overwrite`` is false.
        """
        write_files(folder, plan_files(self), overwrite=overwrite)


def upgrade_outcome(config: UpgradeConfig, notify: Notify) -> Outcome:
    """Run ``teal upgrade``; return its summary, tables, files and exit code.

    Args:
        config: the settings.
        notify: called with the progress.
    """
    plan = run_upgrade(config, notify)
    proof_text = ""
    if config.prove is not None and plan.proof is not None:
        proof_text = f"\n{config.prove}: {proof.write_purchase_proof(config.prove, plan.proof)}"
    hint = "open it in a browser; the folder also has tables and the expanded network"
    return Outcome(
        text=plan.describe() + proof_text,
        tables=tables(plan),
        written="" if config.out is None else f"{config.out / PAGE}: {hint}",
        data=plan.to_json,
        exit_code=EXIT_FAILED if plan.failed else EXIT_OK if plan.upgrade.reached else EXIT_GAP,
    )
