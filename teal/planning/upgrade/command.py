"""`teal upgrade`: from settings to tables, a page with a map and charts, and files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from rich.markup import escape
from rich.table import Table

from teal.app.chart import Chart, Series
from teal.app.command import EXIT_FAILED, EXIT_GAP, EXIT_OK, Notify, Outcome
from teal.app.page import Cell, Column, Section, write_page
from teal.app.run_files import write_files, write_manifest
from teal.app.web.layout import drawing, packed_utilisation
from teal.formats import save_topology
from teal.formats.rows import write_csv
from teal.planning.settings import UpgradeConfig
from teal.planning.upgrade import proof
from teal.planning.upgrade.result import Purchase, UpgradePlan
from teal.planning.upgrade.search import plan_upgrade
from teal.runtime.storage import check_out_folder

_MAX_LINKS = 30  # of the forecast in the terminal


def render_upgrade(plan: UpgradePlan, most: int = 30) -> Iterator[Table]:
    """Tables: what to buy, by quarter, when links are full, and what other demands would need."""
    if plan.purchases:
        has_modules, has_times = any(one.modules for one in plan.purchases), any(one.by for one in plan.purchases)
        columns = [
            "cable",
            "capacity",
            "buy",
            *(["modules"] if has_modules else []),
            "cost",
            *(["by"] if has_times else []),
        ]
        lines = [
            [
                f"{one.source} - {one.target}", f"{one.capacity:g}", f"{one.bought:.6g}",
                *([one.modules] if has_modules else []), f"{one.cost:.6g}", *([one.by] if has_times else []),
            ]
            for one in plan.purchases[:most]
        ]  # fmt: skip
        yield _table("what to buy, Gbit/s in each direction", columns, lines, len(plan.purchases))
    if plan.quarters:
        lines = [
            [one.by, f"{one.growth:.4g}", f"{one.cost:.6g}", f"{one.bound:.6g}", f"{100 * one.utilisation:.2f}%"]
            for one in plan.quarters
        ]
        yield _table("by quarter, what is there by then", ["by", "demands x", "cost", "at least", "fullest"], lines)
    if plan.forecasts:
        full = [one for one in plan.forecasts if one.full_under_failure]
        lines = [
            [
                one.link, f"{100 * one.utilisation:.1f}%", one.full or "-", f"{100 * one.failed_utilisation:.1f}%",
                one.full_under_failure, one.worst_failure,
            ]
            for one in full[: min(most, _MAX_LINKS)]
        ]  # fmt: skip
        columns = ["link", "today", "full in", "worst failure", "full in", "failure"]
        if lines:
            yield _table(f"when links are full, if nothing is bought; {plan.routing_text}", columns, lines, len(full))
    if plan.alternatives:
        replayed = any(np.isfinite(one.dropped) for one in plan.alternatives)
        lines = [
            [
                one.demands, f"{one.bought:.6g}", f"{one.cost:.6g}", f"{one.bound:.6g}",
                *([f"{100 * share:.3f}%" for share in (one.dropped, one.dropped_under_failure, one.dropped_at_worst)]
                  if replayed else []),
            ]
            for one in plan.alternatives
        ]  # fmt: skip
        columns = ["planned for", "Gbit/s", "cost", "at least"]
        columns += ["dropped later", "under failures", "at the worst"] if replayed else []
        yield _table("planned for other demands, in any amounts", columns, lines)
    if plan.curve:
        lines = [
            [f"{one.growth:.4g}", "yes" if one.failures else "no", f"{one.cost:.6g}", f"{one.bound:.6g}"]
            for one in plan.curve
        ]
        yield _table(
            "what other growths cost, in any amounts", ["demands x", "with failures", "cost", "at least"], lines
        )


def _table(title: str, columns: Sequence[str], lines: Sequence[Sequence[str]], total: int = 0) -> Table:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for line in lines:
        table.add_row(*(escape(cell) for cell in line))
    if total > len(lines):
        table.caption = f"the first {len(lines)} of {total}; all are in the files of --out"
    return table


def write_upgrade_page(path: Path, plan: UpgradePlan) -> None:
    """A page: maps of what is bought and of utilisation before and after, the table of purchases, and charts."""
    topology = plan.topology
    bought = np.maximum(0.0, _on_links(plan))
    share = (bought / max(float(bought.max(initial=0.0)), 1e-300)).astype(np.float32)
    drawn = drawing(
        topology.node_names, topology.coordinates, topology.link_source, topology.link_target,
        np.maximum(topology.capacity + bought, 1e-9),
    )  # fmt: skip
    shown = {"what is bought, share of the largest purchase": share}
    if plan.before is not None:
        shown["largest utilisation in any scenario, before"] = plan.before.astype(np.float32)
        shown["largest utilisation in any scenario, with the purchase"] = plan.after.astype(np.float32)
    has_modules, has_times = any(one.modules for one in plan.purchases), any(one.by for one in plan.purchases)
    columns = [
        Column("capacity before, Gbit/s"), Column("bought, Gbit/s", most_is_best=True),
        *([Column("modules", is_number=False)] if has_modules else []), Column("cost", most_is_best=True),
        *([Column("by", is_number=False)] if has_times else []),
    ]  # fmt: skip
    lines = [
        (
            f"{one.source} - {one.target}",
            [
                Cell(f"{one.capacity:.6g}", one.capacity), Cell(f"{one.bought:.6g}", one.bought),
                *([Cell(one.modules)] if has_modules else []), Cell(f"{one.cost:.6g}", one.cost),
                *([Cell(one.by)] if has_times else []),
            ],
        )
        for one in plan.purchases
    ]  # fmt: skip
    section = Section(
        title=topology.name,
        facts=f"{topology.num_nodes} nodes, {len(topology.cables())} cables, {len(plan.scenarios):,} scenarios",
        traffic="purchase",
        columns=columns,
        lines=lines,
        charts=tuple(_charts(plan)),
        row_label="cable",
        map={
            **drawn, "cases": list(shown), "schemes": ["purchase"],
            "utilisation": {f"{number}/0": packed_utilisation(one) for number, one in enumerate(shown.values())},
        },
    )  # fmt: skip
    write_page(path, f"What to buy for {topology.name}", plan.describe().replace("\n", ".  "), [section])


def _on_links(plan: UpgradePlan) -> np.ndarray:
    """(E,) Gbit/s bought on each link of the network before."""
    topology = plan.topology
    bought = np.zeros(topology.num_links)
    for number, links in enumerate(topology.link_pairs()):
        bought[links] = plan.upgrade.bought[number]
    return bought


def _charts(plan: UpgradePlan) -> Iterator[Chart]:
    """The charts of a plan, as far as it has the figures."""
    if plan.purchases:
        by_cable: dict[str, float] = defaultdict(float)
        for one in plan.purchases:
            by_cable[f"{one.source} - {one.target}"] += one.cost
        names = sorted(by_cable, key=lambda name: -by_cable[name])
        series = Series("cost", "points", names, [by_cable[name] for name in names])
        yield Chart(
            "cost_by_cable", "Cost by cable", "What each cable costs, the dearest first.", "cable", "cost", (series,),
            x_scale="category",
        )  # fmt: skip
    if plan.before is not None:
        both = [
            Series(name, "line", np.arange(1, len(values) + 1).tolist(), (100 * np.sort(values)[::-1]).tolist())
            for name, values in (("before", plan.before), ("with the purchase", plan.after))
        ]
        yield Chart(
            "utilisation", "Largest utilisation of links",
            "The largest utilisation of each link in any scenario, the fullest links first.", "links",
            "utilisation, %", tuple(both),
        )  # fmt: skip
    if plan.quarters:
        quarters = [one.by for one in plan.quarters]
        yield Chart(
            "by_quarter", "Cost by quarter", "What must be there by the end of each quarter, and the least that a "
            "purchase for that quarter alone would cost.", "quarter", "cost",
            (
                Series("cost", "marked", quarters, [one.cost for one in plan.quarters]),
                Series("at least", "marked", quarters, [one.bound for one in plan.quarters]),
            ),
            x_scale="category",
        )  # fmt: skip
    if plan.curve:
        kinds = {False: "without failures", True: "with failures"}
        parts = [
            Series(
                kinds[kind], "marked", [one.growth for one in plan.curve if one.failures is kind],
                [one.cost for one in plan.curve if one.failures is kind],
            )
            for kind in (False, True) if any(one.failures is kind for one in plan.curve)
        ]  # fmt: skip
        yield Chart(
            "cost_by_growth", "Cost against growth", "The cheapest purchase in any amounts, for other growths of all "
            "demands; the distance of the curves is what protection costs.", "factor of demands", "cost", tuple(parts),
        )  # fmt: skip


FILES = PAGE, PURCHASES, SCENARIOS, FORECAST, TOPOLOGY, MANIFEST = (
    "upgrade.html", "purchases.csv", "scenarios.csv", "forecast.csv", "topology.json", "manifest.json",
)  # fmt: skip


def run_upgrade(config: UpgradeConfig, notify: Callable[[str], None]) -> UpgradePlan:
    """Find what to buy, and write the files if there is a folder for them.

    Raises:
        InputError: a fault in the settings, or results in OUT that must not be replaced.
    """
    if config.out is not None:
        check_out_folder(config.out, FILES, overwrite=config.overwrite)
    if config.prove is not None:
        check_out_folder(config.prove, proof.FILES, overwrite=config.overwrite)
    plan = plan_upgrade(config, notify)
    if config.out is not None:
        nothing = [Purchase(source="", target="", capacity=0.0, bought=0.0, cost=0.0)]
        files: dict[str, Callable[[Path], None]] = {
            PURCHASES: partial(write_csv, rows=plan.purchases or nothing),
            SCENARIOS: partial(write_csv, rows=plan.scenarios),
            TOPOLOGY: partial(save_topology, topology=plan.upgraded),
            MANIFEST: partial(write_manifest, settings=config),
            PAGE: partial(write_upgrade_page, plan=plan),  # behind the tables, which must not be lost with it
        }
        if plan.forecasts:
            files[FORECAST] = partial(write_csv, rows=plan.forecasts)
        write_files(config.out, files)
    return plan


def upgrade_outcome(config: UpgradeConfig, notify: Notify) -> Outcome:
    """`teal upgrade`."""
    plan = run_upgrade(config, notify)
    proved = ""
    if config.prove is not None and plan.proof is not None:
        proved = f"\n{config.prove}: {proof.write_purchase_proof(config.prove, plan.proof)}"
    beside = "open it in a browser; tables and the upgraded network are beside it"
    return Outcome(
        text=plan.describe() + proved,
        tables=render_upgrade(plan),
        written="" if config.out is None else f"{config.out / PAGE}: {beside}",
        data=plan.to_json,
        exit_code=EXIT_FAILED if plan.failed else EXIT_OK if plan.upgrade.reached else EXIT_GAP,
    )
